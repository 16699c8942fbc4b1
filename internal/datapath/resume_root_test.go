package datapath

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// resumes is a policy by which windows jump to their share of held packets after the first round trip.
func resumes(held uint64, left time.Duration) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.ResumeCwnd, 1000)
		p.Adapted = 1 << tcp.ResumeCwnd
		p.Window, p.WindowExpires, p.CountFlows = uint32(held), time.Now().Add(left).UnixNano(), true
	}
}

// needResume fails, or skips on kernels that are known not to have it, if windows cannot be raised in mid-flight.
func (r *rig) needResume(t testing.TB) {
	t.Helper()
	if r.resume.err != nil {
		testenv.Missing(t, r.resume.err.Error())
	}
}

// far is the other end of a link with a round trip of 40 ms, whose receiver takes all that is sent.
type far struct {
	near *topology.End
	l    net.Listener
}

func newFar(t *testing.T, there link.Spec) *far {
	t.Helper()
	n, err := topology.New()
	must(t, err)
	stop := testenv.CloseOnSignal(n)
	t.Cleanup(func() {
		stop()
		must(t, n.Close())
	})
	var ends [2]topology.EndSpec
	for i, host := range []string{"near", "far"} {
		h, err := n.Host(host)
		must(t, err)
		must(t, h.SetSysctl("net.ipv4.tcp_congestion_control", "cubic"))
		must(t, h.SetSysctl("net.ipv4.tcp_rmem", "4096 8000000 8000000"))
		must(t, h.SetSysctl("net.ipv4.tcp_no_metrics_save", "1"))
		ends[i] = topology.EndSpec{Host: h, Device: "eth0", Addr4: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 1, byte(i + 1)}), 24)}
	}
	f := &far{}
	var other *topology.End
	f.near, other, err = n.Wire(ends[0], ends[1])
	must(t, err)
	there.Delay = 20 * time.Millisecond
	for _, d := range []struct {
		from, to *topology.End
		spec     link.Spec
	}{{f.near, other, there}, {other, f.near, link.Spec{Delay: there.Delay}}} {
		dir, err := link.Shape(link.Ends{From: d.from, To: d.to}, d.spec, link.Auto)
		must(t, err)
		t.Cleanup(func() { must(t, dir.Close()) })
	}
	must(t, other.Host.Do(func() (err error) {
		f.l, err = net.Listen("tcp4", netip.AddrPortFrom(other.Addr4.Addr(), 0).String())
		return err
	}))
	t.Cleanup(func() { must(t, f.l.Close()) })
	return f
}

// connect makes a connection whose other end acknowledges and discards what arrives.
func (f *far) connect(t *testing.T, c control) (net.Conn, net.Conn) {
	t.Helper()
	d := net.Dialer{Control: c.raw}
	var client net.Conn
	must(t, f.near.Host.Do(func() (err error) {
		client, err = d.DialContext(t.Context(), "tcp4", f.l.Addr().String())
		return err
	}))
	return client, accept(t, f.l)
}

// send writes n bytes and waits until they have arrived.
func send(t *testing.T, c, s net.Conn, n int) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, n))
		done <- err
	}()
	_, err := io.CopyN(io.Discard, s, int64(n))
	must(t, err)
	must(t, <-done)
}

// A connection with more data than its window jumps to its share after the first round trip, and keeps its
// congestion control, its own or the default. One with less data waits until it has more.
func TestRootResume(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Rate: 100e6, Queue: link.Queue{Bytes: 500_000}})
	const share, held = 300, 600 // both ends are counted
	own := wantCC("reno")
	for _, x := range []struct {
		name   string
		policy func(*path.Policy)
		own    control
		sizes  []int // of writes, each after the other has arrived
		jumps  uint16
	}{
		{"the default control", resumes(held, time.Minute), nil, []int{500_000}, share},
		{"an application's own", resumes(held, time.Minute), own, []int{500_000}, share},
		{"small messages first", resumes(held, time.Minute), nil, []int{1000, 1000, 500_000}, share},
		{"small messages only", resumes(held, time.Minute), nil, []int{1000, 1000, 5000}, 0},
		{"a share that slow start reaches anyway", resumes(70, time.Minute), nil, []int{500_000}, 0},
		{"what the path holds is not known any more", resumes(held, -time.Second), nil, []int{500_000}, 0},
		{"a bound", func(p *path.Policy) { resumes(held, time.Minute)(p); p.Params.Set(tcp.ResumeCwnd, 100) }, nil, []int{500_000}, 100},
		{"a value of the rule", set(tcp.ResumeCwnd, 150), nil, []int{500_000}, 150},
		{"not asked for", window(10, held, time.Minute), nil, []int{500_000}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			r.policy(t, x.policy)
			var got tcp.Sample
			for range 5 { // on a loaded machine, the first round trip may take too long for a jump
				time.Sleep(50 * time.Millisecond) // what others were given counts for a round trip
				c, s := f.connect(t, x.own)
				before := ccOf(t, c)
				for _, n := range x.sizes {
					send(t, c, s, n)
				}
				if after := ccOf(t, c); after != before {
					t.Errorf("its control was %s and is %s", before, after)
				}
				is := ofConn(c)
				closeAll(t, c, s)
				if got = r.find(t, "client", is); got.ResumeCwnd == x.jumps {
					break
				}
				t.Logf("jumped to %d", got.ResumeCwnd)
			}
			if got.ResumeCwnd != x.jumps || got.InitLost != 0 {
				t.Errorf("jumped to %d, %d lost, want %d", got.ResumeCwnd, got.InitLost, x.jumps)
			}
			if x.own != nil && got.Ssthresh != tcp.InfiniteSsthresh {
				t.Errorf("the sample has the threshold %d that caps the window", got.Ssthresh)
			}
			if chosen := got.Has(tcp.FlagAppCC); chosen != (x.own != nil) {
				t.Errorf("the application chose its control: %v", chosen)
			}
		})
	}
	if n, err := r.Counters(); err != nil || n.Decisions["resumed"] < 5 || n.Decisions["retreated"] != 0 {
		t.Errorf("counted %v %v, %v", n.Decisions["resumed"], n.Decisions["retreated"], err)
	}
}

// The window is capped until the packets of the jump are acknowledged; then slow start goes on. Samples do not take the threshold
// that caps it for one that the path has shown.
func TestRootResumeCapsTheWindow(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Rate: 100e6, Queue: link.Queue{Bytes: 500_000}}) // holds 660 packets
	r.policy(t, resumes(240, time.Minute))
	const jump = 120 // both ends are counted
	for range 5 {    // as in TestRootResume
		time.Sleep(50 * time.Millisecond)
		c, s := f.connect(t, wantCC("reno"))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			send(t, c, s, 1_000_000)
		}()
		var capped time.Duration  // for how long
		var greatest, most uint32 // windows while it was capped, and otherwise
		var begun time.Time
		done := false
		for !done {
			select {
			case <-sent:
				done = true
			case <-time.After(time.Millisecond):
			}
			info := tcpInfo(t, c)
			switch {
			case info.Snd_ssthresh == jump && begun.IsZero():
				begun = time.Now()
			case info.Snd_ssthresh == jump:
				capped, greatest = time.Since(begun), max(greatest, info.Snd_cwnd)
			default:
				most = max(most, info.Snd_cwnd)
			}
		}
		is := ofConn(c)
		closeAll(t, c, s)
		got := r.find(t, "client", is)
		t.Logf("jumped to %d, capped for %v at %d packets at most; afterwards the window was %d packets", got.ResumeCwnd, capped, greatest, most)
		if got.ResumeCwnd != jump || got.Retrans != 0 {
			continue
		}
		if greatest > jump+jump/10 || most < 3*jump/2 || got.Ssthresh != tcp.InfiniteSsthresh {
			t.Errorf("the window had up to %d packets while it was capped, and up to %d later; threshold %d", greatest, most, got.Ssthresh)
		}
		if capped < 60*time.Millisecond { // a loaded machine looks late
			continue
		}
		return
	}
	t.Error("no window was capped for two round trips of 40 ms after a jump without losses")
}

// Losses that were none, because packets overtook others, do not leave the threshold of the jump behind: the kernel restores it.
func TestRootResumeOfReorderedPackets(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Reorder: 0.006})
	r.policy(t, resumes(240, time.Minute))
	undone := 0
	for range 40 { // in most of them, packets of the first round trip overtake others, or the retreat replaces what the kernel restores
		time.Sleep(50 * time.Millisecond)
		c, s := f.connect(t, wantCC("reno"))
		send(t, c, s, 300_000)
		var threshold uint32
		for range 5 { // round trips after the recovery
			send(t, c, s, 10_000)
			if threshold = tcpInfo(t, c).Snd_ssthresh; threshold != 120 {
				break
			}
		}
		is := ofConn(c)
		closeAll(t, c, s)
		got := r.find(t, "client", is)
		if got.ResumeCwnd == 0 || got.DSACKs == 0 {
			continue
		}
		undone++
		t.Logf("jumped to %d, %d packets sent again, %d of them in vain: the threshold is %d", got.ResumeCwnd, got.Retrans, got.DSACKs, threshold)
		if threshold == uint32(got.ResumeCwnd) || got.Ssthresh == uint32(got.ResumeCwnd) {
			t.Errorf("the threshold is still that of the jump to %d; the sample has %d", got.ResumeCwnd, got.Ssthresh)
		}
	}
	if undone < 3 {
		t.Errorf("%d connections lost packets in vain after a jump", undone)
	}
}

// The jump saves the round trips in which slow start doubles the window, whatever the congestion control is.
func TestRootResumeIsFaster(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Rate: 100e6, Queue: link.Queue{Bytes: 500_000}})
	for _, name := range []string{"cubic", "reno", "bbr"} {
		t.Run(name, func(t *testing.T) {
			took := func(p func(*path.Policy)) time.Duration {
				r.policy(t, p)
				least := time.Hour
				for range 5 {
					c, s := f.connect(t, wantCC(name))
					begun := time.Now()
					send(t, c, s, 300_000)
					least = min(least, time.Since(begun))
					if is := ccOf(t, c); is != name {
						t.Errorf("its control is %s", is)
					}
					closeAll(t, c, s)
				}
				return least
			}
			without, with := took(nil), took(resumes(600, time.Minute))
			t.Logf("300 kB over 40 ms: %v, and %v with a jump", without, with)
			if with > without*9/10 { // 0.45 on an idle machine
				t.Errorf("300 kB take %v with a jump and %v without", with, without)
			}
		})
	}
}

// If the path does not hold what it was thought to hold, the window falls to what arrived, and the sample has the losses.
func TestRootResumeRetreats(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Rate: 20e6, Queue: link.Queue{Bytes: 60_000}}) // holds 110 packets
	r.policy(t, resumes(1200, time.Minute))
	for range 5 { // a loaded machine may send too slowly to fill the queue
		time.Sleep(50 * time.Millisecond)
		c, s := f.connect(t, nil)
		send(t, c, s, 1_000_000)
		info := tcpInfo(t, c)
		is := ofConn(c)
		closeAll(t, c, s)
		got := r.find(t, "client", is)
		n, err := r.Counters()
		must(t, err)
		t.Logf("jumped to %d, lost %d of that; threshold %d, window %d, %d packets sent again", got.ResumeCwnd, got.InitLost, info.Snd_ssthresh, info.Snd_cwnd, got.Retrans)
		if got.InitLost < 100 {
			continue
		}
		if got.ResumeCwnd != 600 || info.Snd_ssthresh > 110 || info.Snd_ssthresh < 20 || n.Decisions["retreated"] == 0 {
			t.Errorf("the threshold is %d packets on a path that holds 110; %d connections retreated", info.Snd_ssthresh, n.Decisions["retreated"])
		}
		return
	}
	t.Error("no jump lost packets")
}

// What a connection does not use of its jump is taken back: a pause later, it sends no more at once than slow start would.
func TestRootResumeTakesBackWhatIsNotUsed(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Rate: 100e6, Queue: link.Queue{Bytes: 500_000}})
	must(t, f.near.Host.SetSysctl("net.ipv4.tcp_slow_start_after_idle", "0"))
	r.policy(t, resumes(1200, time.Minute))
	for _, pause := range []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond, time.Second} {
		resumed := false
		for range 5 { // as in TestRootResume
			time.Sleep(50 * time.Millisecond)
			c, s := f.connect(t, nil)
			send(t, c, s, 40_000)
			time.Sleep(pause)
			send(t, c, s, 20_000)
			time.Sleep(60 * time.Millisecond) // a round trip, whose end is seen
			window := tcpInfo(t, c).Snd_cwnd
			is := ofConn(c)
			closeAll(t, c, s)
			got := r.find(t, "client", is)
			if resumed = got.ResumeCwnd != 0; !resumed {
				continue
			}
			t.Logf("pause of %v: window %d, the sample has %d", pause, window, got.ResumeCwnd)
			if window > 120 || got.ResumeCwnd > 120 {
				t.Errorf("40 kB, a pause of %v, and 20 kB: the window is %d packets, and %d in the sample", pause, window, got.ResumeCwnd)
			}
			break
		}
		if !resumed {
			t.Error("no connection jumped")
		}
	}
}

// A connection that is older than the interval of samples does not jump: its first sample, with the losses of a jump, is sent.
func TestRootResumeIsForTheBeginning(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	f := newFar(t, link.Spec{Rate: 100e6, Queue: link.Queue{Bytes: 500_000}})
	r.policy(t, resumes(600, time.Minute))
	must(t, r.SetSettings(Settings{Interval: 50 * time.Millisecond, ReportRate: 1000}))
	c, s := f.connect(t, nil)
	send(t, c, s, 1000)
	time.Sleep(60 * time.Millisecond)
	send(t, c, s, 500_000)
	closeAll(t, c, s)
	if n, err := r.Counters(); err != nil || n.Decisions["resumed"] != 0 {
		t.Errorf("%v connections jumped, %v", n.Decisions["resumed"], err)
	}
}

// The kernel's dctcp without ECN runs as dctcp-reno, which cannot be set again: it is Reno afterwards.
func TestRootResumeOfDCTCP(t *testing.T) {
	r := newRig(t)
	r.needResume(t)
	if !slices.Contains(strings.Fields(testenv.ReadSysctl(t, nil, "net.ipv4.tcp_available_congestion_control")), "dctcp") {
		return // Debian's kernels, as in test/vm, have it
	}
	f := newFar(t, link.Spec{Rate: 100e6, Queue: link.Queue{Bytes: 500_000}})
	r.policy(t, resumes(600, time.Minute))
	for range 5 { // as in TestRootResume
		time.Sleep(50 * time.Millisecond)
		c, s := f.connect(t, wantCC("dctcp"))
		send(t, c, s, 500_000)
		after := ccOf(t, c)
		is := ofConn(c)
		closeAll(t, c, s)
		if got := r.find(t, "client", is); got.ResumeCwnd == 0 {
			continue
		}
		if after != "reno" {
			t.Errorf("after a jump, its control is %s", after)
		}
		return
	}
	t.Error("no connection jumped")
}
