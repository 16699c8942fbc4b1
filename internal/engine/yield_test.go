package engine

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestYieldsAreListedBySysctl(t *testing.T) {
	ys := yields{bySysctl: map[string]Yield{}}
	if !ys.add(Yield{Sysctl: "b", After: "1"}, Default{Field: tcp.InitCwnd}) || !ys.add(Yield{Sysctl: "a"}, Default{CC: true}) {
		t.Error("not new")
	}
	if ys.add(Yield{Sysctl: "b", Before: "1", After: "2"}, Default{Field: tcp.InitCwnd}) {
		t.Error("new, although it was changed before")
	}
	list := ys.list()
	if len(list) != 2 || list[0].Sysctl != "a" || list[1].Before != "" || list[1].After != "2" {
		t.Errorf("%+v", list)
	}
	if !ys.cc || ys.fields != 1<<tcp.InitCwnd {
		t.Errorf("congestion control %t, fields %b", ys.cc, ys.fields)
	}
}

// A field that a rule adapts is yielded as well: the administrator's value of its sysctl would not take effect otherwise.
func TestAdaptedFieldIsYielded(t *testing.T) {
	w := newWorld(t, nil, learnRule("learn", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.RTOMin} }))
	y := Yield{Sysctl: tcp.Fields[tcp.RTOMin].Sysctl, Before: "200000", After: "100000"}
	if !w.e.SetYield(y, Default{Field: tcp.RTOMin}) {
		t.Error("not yielded")
	}
	if _, fields := w.e.Yields(); fields != 1<<tcp.RTOMin {
		t.Errorf("yielded fields %b", fields)
	}
	if w.e.SetYield(Yield{Sysctl: "net.ipv4.tcp_wmem"}, Default{Field: tcp.Sndbuf}) {
		t.Error("a field that no rule sets or adapts was yielded")
	}
}
