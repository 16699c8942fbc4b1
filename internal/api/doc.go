// Package api is the interface of a running tcpilot: HTTP and JSON on two unix sockets. File
// permissions control who may read. Requests that change something are only for
// administrators, by the credentials that the kernel reports for the caller.
//
// The name of a number in JSON contains its unit, and a name has the same unit in all
// answers:
//
//   - a time is a string in the format of RFC 3339
//   - a duration is a whole number of nanoseconds, and its name ends with _ns; a round-trip
//     time is one of microseconds, as in the kernel, and its name ends with _us
//   - a rate is in bytes per second, and its name ends with _bytes_per_second
//   - a size in bytes begins with bytes_ or ends with _bytes
//   - a share is 0 to 1; every other number is a count
//   - a setting of a connection has a unit of its own beside its value
//
// It refuses to keep state or to decide: every answer comes from the Backend. A reader that
// is too slow loses samples; it does not slow the daemon down.
package api

//go:generate go test -run ^TestMeasuresInDocumentation$ -update .
