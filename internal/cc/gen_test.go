package cc

//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types -output-suffix _test plain testdata/plain.bpf.c
