package cc

// The clang version is pinned in the Makefile (CLANG), which passes it on as
// BPF2GO_CC; "make generate" is the way to run this.

//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types bbr3 ../../bpf/cc/bbr3.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types cubic ../../bpf/cc/cubic.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types dctcp ../../bpf/cc/dctcp.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types prague ../../bpf/cc/prague.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types ledbat ../../bpf/cc/ledbat.bpf.c
