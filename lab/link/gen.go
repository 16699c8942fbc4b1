package link

// The clang version is pinned in the Makefile (CLANG), which passes it on as
// BPF2GO_CC; "make generate" is the way to run this.

//go:generate go tool bpf2go -target bpfel -go-package link -type link_config -type link_counters model bpf/model.bpf.c
