package subject

import "slices"

const (
	// KernelOnly is tcpilot with the kernel's own congestion controls, and none of its
	// own.
	KernelOnly = "tcpilot-kernel"
	// Adapting is tcpilot with all that `adapt: auto` adapts, for every connection.
	Adapting = "tcpilot-adapt"
)

// Named returns the subject of a name that needs no settings.
func Named(name string) (s Spec, ok bool) {
	s.Name = name
	switch k := Kind(name); {
	case k == Default, k == Tcpilot, k == Bpftune:
		s.Kind = k
	case name == KernelOnly:
		s.Kind, s.Config = Tcpilot, "congestion_controls: none\n"
	case name == Adapting:
		s.Kind, s.Config = Tcpilot, "rules: [{name: all, learn: {}, adapt: auto}]\n"
	case slices.Contains(knownControls, name):
		s.Kind, s.CC = Fixed, name
	default:
		return Spec{}, false
	}
	return s, true
}

// Names lists the names that Named accepts.
func Names() []string {
	return append([]string{string(Default), string(Tcpilot), KernelOnly, Adapting, string(Bpftune)}, knownControls...)
}
