// Package bigtcp finds out how large the packets of pods can be on their way through this host, and makes
// devices accept packets above 64 KB (BIG TCP), of IPv4 and IPv6.
//
// It refuses to remember what a device had before: the caller records that.
package bigtcp
