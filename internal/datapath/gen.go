package datapath

// The clang version is pinned in the Makefile (CLANG), which passes it on as BPF2GO_CC:
// run this by "make generate".

//go:generate go tool bpf2go -target bpfel -go-package datapath -type rule_set -type rule_prefix -type rule_id -type rule_bank -type same_prefix -type masked_prefix -type class_entry -type path_key -type path_policy -type flow_count -type limit -type limited -type limit_member -type runtime_config -type cc_state -type track -type conn_sample -type counters -type class_count -type event_key -type event -type timeout_answer -type sock_option -type probe_result -type abi_limits -type sample_flags -type cc_flags -type closed_bits -type class_flags -type policy_flags -type limit_flags -type counter -type probe_hook abi ../../bpf/include/abi.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types sockops ../../bpf/sockops/sockops.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types iter ../../bpf/sockops/iter.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types limits ../../bpf/sockops/limits.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types release ../../bpf/sockops/release.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types resume ../../bpf/sockops/resume.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types probe ../../bpf/probe/probe.bpf.c
