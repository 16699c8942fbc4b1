package cc

//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types -output-suffix _test plain testdata/plain.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -output-suffix _test -type ack acks testdata/acks.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -output-suffix _test -type bbr3_transition -type bbr3_why -type cubic_transition -type cubic_why trace testdata/trace.bpf.c
