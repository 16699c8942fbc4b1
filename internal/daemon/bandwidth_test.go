package daemon

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// A connection within the pod is not under its limit: nor is one to the pod's address of which no other one is known.
func TestStaysInside(t *testing.T) {
	var d Daemon
	d.pods.view.Store(&podView{set: pod.NewSet([]pod.Pod{{Cookie: 11, Link: pod.Link{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}})})
	ip := func(s string) (a netip.Addr) {
		if s != "" {
			a = netip.MustParseAddr(s)
		}
		return a
	}
	for _, c := range []struct {
		netns         uint64
		local, remote string
		want          bool
	}{
		{11, "", "127.0.0.1", true},
		{11, "192.0.2.1", "::1", true},
		{11, "127.0.0.6", "192.0.2.1", true},
		{11, "192.0.2.1", "192.0.2.1", true},
		{11, "", "192.0.2.1", true},
		{12, "", "192.0.2.1", false},
		{11, "192.0.2.9", "192.0.2.1", false},
		{11, "", "192.0.2.2", false},
	} {
		if got := d.staysInside(&class.Conn{NetNS: c.netns, Local: ip(c.local), Remote: ip(c.remote)}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Pods are limited as they ask, unless the configuration says that nothing is to be limited; TCP gets
// what is left for payload.
func TestBandwidths(t *testing.T) {
	set := pod.NewSet([]pod.Pod{
		{Cookie: 11, Name: "both", Annotations: map[string]string{pod.EgressAnnotation: "8M", pod.IngressAnnotation: "16M"}},
		{Cookie: 12, Name: "runtime", Bandwidth: pod.Bandwidth{Ingress: 80e6}},
		{Cookie: 13, Name: "wrong", Annotations: map[string]string{pod.EgressAnnotation: "much"}},
		{Cookie: 14, Name: "none"},
	})
	all := map[uint64]pod.Bandwidth{11: {Egress: 8e6, Ingress: 16e6}, 12: {Ingress: 80e6}}
	for text, want := range map[string]map[uint64]pod.Bandwidth{"": all, "mode: observe": {}, "pods: {bandwidth: off}": {}} {
		var d Daemon
		d.pods.view.Store(&podView{set: set})
		cfg, err := config.Parse("", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		d.cfg.Store(cfg)
		got := d.bandwidths()
		if !maps.Equal(got, want) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
		if wrong := d.podDevices.view().bandwidthWarnings(set.ByCookie(13), got[13]); len(wrong) != 1 || !strings.Contains(wrong[0], `"much" is not a quantity`) {
			t.Errorf("%q: %q", text, wrong)
		}
	}
	v := podDevicesView{unlimited: errDetached}
	for cookie, want := range map[uint64]string{11: "only TCP that the pod sends is limited: detached", 12: "not limited: detached"} {
		if wrong := v.bandwidthWarnings(set.ByCookie(cookie), all[cookie]); len(wrong) != 1 || !strings.Contains(wrong[0], want) {
			t.Errorf("without programs: %q, want %q", wrong, want)
		}
	}
	if got := egressLimits(all); !maps.Equal(got, map[uint64]limit.Limit{11: {Rate: 943196}}) {
		t.Errorf("limits of TCP: %+v, want 1428 of 1514 parts of 1 MB/s for the first", got)
	}
}
