package cc

import (
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The clang version is pinned in the Makefile (CLANG), which passes it on as BPF2GO_CC:
// run this by "make generate".

//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types bbr3 ../../bpf/cc/bbr3.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types cubic ../../bpf/cc/cubic.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types dctcp ../../bpf/cc/dctcp.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types prague ../../bpf/cc/prague.bpf.c
//go:generate go tool bpf2go -target bpfel -go-package cc -no-global-types ledbat ../../bpf/cc/ledbat.bpf.c

// embedded lists tcpilot's own controls, with the documents that specify them.
func embedded() []Control {
	return []Control{
		ours("bbr3", "draft-ietf-ccwg-bbr", _Bbr3Bytes),
		ours("cubic", "RFC 9438, RFC 9406", _CubicBytes),
		ours("dctcp", "RFC 8257", _DctcpBytes),
		ours("ledbat", "RFC 6817, draft-irtf-iccrg-ledbat-plus-plus-01", _LedbatBytes),
		ours("prague", "RFC 9331, draft-briscoe-iccrg-prague-congestion-control-04", _PragueBytes),
	}
}

// ours is the control in bpf/cc/NAME.bpf.c.
func ours(name, source string, elf []byte) Control {
	facts := congestion.Of(tcp.CCOf(congestion.Prefix + name))
	return Control{Control: facts, Source: source, Version: version(elf), elf: elf}
}

// find returns the one of objects that is called name, or nil.
func find(objects []Control, name string) *Control {
	for i := range objects {
		if objects[i].name() == name {
			return &objects[i]
		}
	}
	return nil
}
