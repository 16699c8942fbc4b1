// Package measure holds what a round of lab traffic leaves behind, connection by
// connection, and computes from it what reports compare: goodput, completion
// times, retransmits, fairness, and the statistics over rounds.
//
// It refuses to touch the kernel or a file: it is arithmetic on records.
package measure
