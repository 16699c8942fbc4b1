package datapath

import (
	"math"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// theDefault is the arm that leaves the congestion control as it is.
func theDefault(weight uint32) path.Arm { return path.Arm{Default: true, Weight: weight} }

// TestRootDefaultArm: a connection that draws the default keeps its congestion control,
// still gets the policy's fields, and is distinct from a hold-out and from an arm of that
// name.
func TestRootDefaultArm(t *testing.T) {
	r := newRig(t)
	const n = 300
	r.policy(t, func(p *path.Policy) {
		arms(theDefault(1<<15), arm("reno", 1<<15))(p)
		p.Params.Set(tcp.InitCwnd, 23)
	})
	clients, servers := r.churn(t, n)
	for side, samples := range map[string][]tcp.Sample{"outgoing": clients, "incoming": servers} {
		kept := 0
		for i := range samples {
			s := &samples[i]
			want := cc("reno")
			if s.Has(tcp.FlagDefaultArm) {
				kept++
				want = cc("cubic")
			}
			if s.CC != want || s.Arm != want || s.Flags&(tcp.FlagHoldOut|tcp.FlagAppCC|tcp.FlagCCChanged|tcp.FlagArmFailed) != 0 {
				t.Errorf("%s: arm %s, in use %s, flags %b", side, s.Arm, s.CC, s.Flags)
			}
			// A socket that sends nothing for a while loses half of its
			// window above the kernel's 10 (tcp_cwnd_application_limited); a
			// machine that pauses causes that.
			if s.Cwnd < (23+10)/2 {
				t.Errorf("%s: a window of %d with %s, want the policy's 23", side, s.Cwnd, s.CC)
			}
			if s.StandsFor != 1 {
				t.Errorf("%s: a sample stands for %d", side, s.StandsFor)
			}
		}
		if math.Abs(float64(kept)-n/2) > 4.5*math.Sqrt(n/4) {
			t.Errorf("%s: %d of %d drew the default, want half", side, kept, n)
		}
	}
	c, err := r.Counters()
	must(t, err)
	if d := c.Decisions; d["cc-default"]+d["cc-set"] != 2*n || d["cc-default"] == 0 || d["cc-failed"] != 0 {
		t.Errorf("decisions are %v", d)
	}

	r.policy(t, arms(theDefault(1<<16)))
	chosen := dialAndEnd(t, r, wantCC("reno"))
	if !chosen.Has(tcp.FlagAppCC|tcp.FlagDefaultArm) || chosen.CC != cc("reno") || chosen.Arm != cc("reno") {
		t.Errorf("the application chose: arm %s, in use %s, flags %b", chosen.Arm, chosen.CC, chosen.Flags)
	}
}

// dialAndEnd returns the client's sample of one connection.
func dialAndEnd(t *testing.T, r *rig, f control) tcp.Sample {
	t.Helper()
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	c := dial(t, r.ns, l.Addr().String(), f)
	s := accept(t, l)
	is := ofConn(c)
	closeAll(t, c, s, l)
	return r.find(t, "client", is)
}

// TestRootHoldOutSlices: a slice is a hold-out as a whole, handshakes included, or not at
// all. Single connections of other slices are hold-outs too.
func TestRootHoldOutSlices(t *testing.T) {
	r := newRig(t)
	const (
		shift = 23                          // 8.4 ms
		near  = int64(time.Millisecond / 2) // the two clocks are read one after the other
	)
	r.policy(t, func(p *path.Policy) {
		arms(arm("reno", 1<<15), theDefault(1<<15))(p)
		p.Slice, p.HoldSlices, p.HoldOut = shift, 1<<14, 1<<13
	})
	held, reno := map[int64]bool{}, map[int64]bool{}
	single, drawn := 0, 0
	for batch := 0; len(held) < 40 && batch < 300; batch++ {
		clients, _ := r.churn(t, 50) // the servers' are to another network
		for i := range clients {
			s := &clients[i]
			begun := s.At - int64(s.Duration)
			slice := begun >> shift
			if (begun-near)>>shift != slice || (begun+near)>>shift != slice {
				continue
			}
			is := s.Has(tcp.FlagHoldOutSlice)
			if was, ok := held[slice]; ok && was != is {
				t.Errorf("slice %d is a hold-out for some connections only", slice)
			}
			held[slice] = is
			if is && (!s.Has(tcp.FlagHoldOut) || s.Arm != (tcp.CC{}) || s.CC != cc("cubic")) {
				t.Errorf("held out with arm %s, %s, flags %b", s.Arm, s.CC, s.Flags)
			}
			if !is {
				drawn++
				if s.Has(tcp.FlagHoldOut) {
					single++
				} else {
					reno[slice] = s.CC == cc("reno")
				}
			}
		}
	}
	n := 0
	for _, is := range held {
		if is {
			n++
		}
	}
	t.Logf("%d of %d slices held out; %d of %d connections in the others", n, len(held), single, drawn)
	if want := float64(len(held)) / 4; len(held) < 40 || math.Abs(float64(n)-want) > 4.5*math.Sqrt(want*0.75) {
		t.Errorf("%d of %d slices are held out, want about a quarter", n, len(held))
	}
	if want := float64(drawn) / 8; math.Abs(float64(single)-want) > 4.5*math.Sqrt(want*7/8) {
		t.Errorf("%d of %d connections are held out one by one, want about %.0f", single, drawn, want)
	}
	both := map[bool]int{}
	for _, is := range reno {
		both[is]++
	}
	if both[true] == 0 || both[false] == 0 {
		t.Errorf("the slices that are not held out draw arms %v: the two draws are one", both)
	}
}

// TestRootHoldOutSlicesFromTheHandshake: in a hold-out slice request ops get no answer,
// neither for a request socket nor for a client; without slices there is no hold-out
// slice.
func TestRootHoldOutSlicesFromTheHandshake(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		slice uint8
		hold  uint32
		want  bool
	}{{23, 1 << 16, true}, {23, 0, false}, {0, 1 << 16, false}} {
		r.policy(t, func(p *path.Policy) {
			p.Params.Set(tcp.InitRwnd, 77)
			p.Params.Set(tcp.SynRTO, 900)
			p.Params.Set(tcp.SynAckRTO, 900)
			p.Slice, p.HoldSlices = c.slice, c.hold
		})
		before, err := r.Counters()
		must(t, err)
		client, server := r.pair(t, "127.0.0.1:0")
		isC, isS := ofConn(client), ofConn(server)
		closeAll(t, client, server)
		after, err := r.Counters()
		must(t, err)
		for end, s := range map[string]tcp.Sample{"client": r.find(t, "client", isC), "server": r.find(t, "server", isS)} {
			if s.Has(tcp.FlagHoldOut) != c.want || s.Has(tcp.FlagHoldOutSlice) != c.want {
				t.Errorf("%+v: %s has flags %b", c, end, s.Flags)
			}
		}
		if answered := after.Replies - before.Replies; (answered == 0) != c.want {
			t.Errorf("%+v: %d answers during the handshake", c, answered)
		}
	}
}

// beside opens another datapath that handles the same connections.
func (r *rig) beside(t *testing.T, key [16]byte) *rig {
	t.Helper()
	o := &rig{ns: r.ns, cg: r.cg, opt: r.opt, wait: r.wait}
	o.opt.BPFFS, o.opt.SliceKey = mountBPFFS(t), key
	o.open(t)
	t.Cleanup(func() {
		o.stop()
		must(t, o.Detach())
	})
	o.rules(t, oneClass)
	return o
}

// TestRootDrawsAreKeyed: hosts that share a key draw alike for one network in one slice,
// and others do not; the draw of a single connection is each host's own.
func TestRootDrawsAreKeyed(t *testing.T) {
	none := newRig(t) // random keys, and no policy
	r, twin, other := none.beside(t, [16]byte{1, 2, 3}), none.beside(t, [16]byte{1, 2, 3}), none.beside(t, [16]byte{1, 2, 4})
	const shift = 23
	rigs := []*rig{r, twin, other}
	for _, d := range rigs {
		d.policy(t, func(p *path.Policy) {
			arms(arm("reno", 1<<15), arm("cubic", 1<<15))(p)
			p.Slice, p.HoldOut = shift, 1<<15
		})
	}
	type slices struct{ same, all int }
	var withTwin, withOther, heldWithTwin slices
	add := func(n *slices, same bool) {
		n.all++
		if same {
			n.same++
		}
	}
	seen := map[int64]bool{}
	for batch := 0; withTwin.all < 40 && batch < 400; batch++ {
		_, servers := r.churn(t, 20)
		for i := range servers {
			s := &servers[i]
			is := func(x *tcp.Sample) bool { return x.Cookie == s.Cookie }
			a, b := twin.find(t, "the twin's", is), other.find(t, "the other's", is)
			add(&heldWithTwin, a.Has(tcp.FlagHoldOut) == s.Has(tcp.FlagHoldOut))
			begun := s.At - int64(s.Duration)
			slice := begun >> shift
			const near = int64(time.Millisecond / 2)
			if (s.Flags|a.Flags|b.Flags)&tcp.FlagHoldOut != 0 || seen[slice] ||
				(begun-near)>>shift != slice || (begun+near)>>shift != slice {
				continue
			}
			seen[slice] = true
			add(&withTwin, a.Arm == s.Arm)
			add(&withOther, b.Arm == s.Arm)
		}
	}
	t.Logf("slices alike: %+v with the same key, %+v with another; hold-outs alike %+v", withTwin, withOther, heldWithTwin)
	if withTwin.all < 40 || withTwin.same != withTwin.all {
		t.Errorf("with the same key %d of %d slices draw alike", withTwin.same, withTwin.all)
	}
	half := func(what string, n slices) {
		if want := float64(n.all) / 2; math.Abs(float64(n.same)-want) > 4.5*math.Sqrt(want/2) {
			t.Errorf("%s: %d of %d draw alike, want about half", what, n.same, n.all)
		}
	}
	half("slices with another key", withOther)
	half("connections", heldWithTwin)

	was := r.config.DrawKey
	r.crash(t)
	r.open(t)
	if r.config.DrawKey != was || was == [2]uint64{} || was == twin.config.DrawKey {
		t.Errorf("the key of connections was %x, is %x with the maps adopted", was, r.config.DrawKey)
	}
}
