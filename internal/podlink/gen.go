package podlink

// The clang version is pinned in the Makefile (CLANG), which passes it on as BPF2GO_CC:
// run this by "make generate".

//go:generate go tool bpf2go -target bpfel -go-package podlink -type device -type network -type pod_counters -type pod_meter -type pod_meters -type pod_limits -type device_flags -type pod_count abi ../../bpf/pod/abi.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package podlink -no-global-types pod ../../bpf/pod/pod.bpf.c
