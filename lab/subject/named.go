package subject

import "slices"

// KernelOnly is tcpilot with the kernel's own congestion controls, and none of its
// own.
const KernelOnly = "tcpilot-kernel"

// Named returns the subject that a word alone stands for.
func Named(word string) (s Spec, ok bool) {
	s.Name = word
	switch k := Kind(word); {
	case k == Default, k == Tcpilot, k == Bpftune:
		s.Kind = k
	case word == KernelOnly:
		s.Kind, s.Config = Tcpilot, "congestion_controls: none\n"
	case slices.Contains(KnownControls, word):
		s.Kind, s.CC = Fixed, word
	default:
		return Spec{}, false
	}
	return s, true
}

// Words lists what Named knows.
func Words() []string {
	return append([]string{string(Default), string(Tcpilot), KernelOnly, string(Bpftune)}, KnownControls...)
}
