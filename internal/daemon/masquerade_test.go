package daemon

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
)

// The exceptions of a network are those of its latest pod, whatever the order of the records.
func TestMasqueradedOf(t *testing.T) {
	now := time.Now()
	first, later := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	pods := []pod.Pod{
		{Network: "a", Container: "c1", Interface: "eth0", Masqueraded: true, MasqueradeExcept: first, Added: now},
		{Network: "a", Container: "c2", Interface: "eth0", Masqueraded: true, MasqueradeExcept: later, Added: now.Add(time.Second)},
		{Network: "b", Container: "c2", Interface: "eth1", Masqueraded: true, Added: now},
		{Network: "a", Container: "c3", Interface: "eth0", Added: now.Add(time.Hour)},
	}
	device := func(i int) string { return podnet.HostName(pods[i].Key()) }
	want := map[string]*masquerading{
		"a": {devices: []string{device(0), device(1)}, latest: &pods[1]},
		"b": {devices: []string{device(2)}, latest: &pods[2]},
	}
	if got := masqueradedOf(pods); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	slices.Reverse(pods)
	if got := masqueradedOf(pods)["a"]; !reflect.DeepEqual(got.latest.MasqueradeExcept, later) {
		t.Errorf("in reverse: %+v", got)
	}
}
