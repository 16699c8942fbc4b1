// Package estimate keeps the metrics of a path: what the samples of its connections show of
// the network between the two hosts, whatever congestion control they had, and what type of
// network that is.
//
// It refuses to decide what follows from them.
package estimate
