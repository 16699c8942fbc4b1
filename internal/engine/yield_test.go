package engine

import (
	"testing"

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
