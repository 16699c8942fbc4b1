// Package congestion is the catalogue of congestion controls: what is known of each of
// Linux's and of tcpilot's own by its name. CONTRIBUTING.md says what else a new one needs.
//
// It refuses to know what is loaded, or what a path thinks of it.
package congestion
