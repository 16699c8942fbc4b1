// Package sim runs learners on simulated paths whose true goodput is known, and measures
// what their choices cost.
//
// It refuses to use any source of randomness but the generator that it is given: a seed and
// a scenario always give the same result.
package sim
