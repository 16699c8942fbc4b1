// Package measure has the records of a round of lab traffic, connection by connection,
// and computes from them what reports compare: goodput, completion times, retransmits,
// fairness, and the statistics over rounds.
//
// It refuses to access the kernel or files: it only computes from records.
package measure
