// Package podrecord keeps what tcpilot-cni was told of pods: one file for each attachment, in a
// directory that the daemon reads.
//
// It refuses what package pod refuses, files that are not regular or too long, and records in a
// file of another name than theirs.
package podrecord
