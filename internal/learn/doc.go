// Package learn turns samples into beliefs about a path's arms and beliefs into
// the share of connections that each arm should get.
//
// It refuses to read a clock, to draw a random number, or to do any I/O: time comes
// with each outcome, and the datapath draws from the weights.
package learn
