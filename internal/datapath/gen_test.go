package datapath

//go:generate go tool bpf2go -target bpfel -go-package datapath -no-global-types -output-suffix _test state testdata/state.bpf.c
