// Package congestion is the catalogue of congestion controls: what is known of each control
// of Linux and of tcpilot by its name. CONTRIBUTING.md lists what else a new one needs.
//
// Two other types describe a congestion control: cc.Control adds its code and its state in the
// kernel, api.CongestionControl is what the API shows.
//
// It refuses to know what is loaded, or what was learned about it.
package congestion
