package daemon

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
)

// A rule with the peer option: both ends of connections send it, and what they told is shown.
func TestRootPeerOption(t *testing.T) {
	p := newPlace(t)
	p.rules(t, `rules:
  - {name: all, match: {remote: [127.0.0.0/8]}, learn: {arms: [cubic], hold_out: 0}, adapt: [peer_option]}`)
	d := p.start(t)
	exchange(t, 30)
	d.awaitSamples(t, 60)
	d.awaitPath(t, "127.0.0.0/24", 20)
	n := d.status(t).Counters.Peer
	if n.Sent < 60 || n.Seen != n.Sent || n.Resent != 0 || n.Omitted != 0 {
		t.Errorf("counted are %+v", n)
	}
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Cgroup: p.cgroup.Path})
	if err != nil {
		t.Fatal(err)
	}
	if e.Path == nil || e.Path.Peer == nil || e.Path.Peer.Delack != 40*time.Millisecond || e.Path.Peer.Receive == 0 {
		t.Errorf("path is %+v", e.Path)
	}
	if !slices.ContainsFunc(e.Fields, func(f api.FieldWhy) bool { return f.Field == "peer_option" && f.Applied }) {
		t.Errorf("fields are %+v", e.Fields)
	}
}
