// Package sim plays learners against paths whose truth is known, and measures what
// their choices cost.
//
// It refuses to draw from anything but the generator it is given: a seed and a scenario
// give one result.
package sim
