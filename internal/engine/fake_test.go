package engine

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	second = int64(time.Second)
	start  = int64(1_700_000_000) * second
	mss    = 1448
)

var cubic, bbr, reno, dctcp = cc("cubic"), cc("bbr"), cc("reno"), cc("dctcp")

func cc(name string) tcp.CC {
	c, ok := tcp.ParseCC(name)
	if !ok {
		panic(name)
	}
	return c
}

// offer lists the congestion controls that the kernel has.
func offer(ccs ...tcp.CC) (list []congestion.Control) {
	for _, c := range ccs {
		list = append(list, congestion.Of(c))
	}
	return list
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// fakeSink has the tables of a kernel, and a log of the writes to them.
type fakeSink struct {
	table   *class.Table
	rows    map[path.Key]path.Entry
	log     []string
	writes  int   // rows
	adopts  int   // rows whose connections are to be adopted
	calls   int   // of any method
	refuse  error // of everything
	noRules error // of WriteRules alone
	onWrite func()
	onRules func() // when new rules are in force
}

func newSink() *fakeSink { return &fakeSink{rows: map[path.Key]path.Entry{}} }

func (f *fakeSink) WriteRules(t *class.Table) error {
	f.calls++
	if err := cmpErr(f.refuse, f.noRules); err != nil {
		return err
	}
	f.table = t
	if f.onRules != nil {
		f.onRules()
	}
	f.log = append(f.log, fmt.Sprintf("rules %d", len(t.Classes)))
	return nil
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeSink) WritePolicies(entries []path.Entry) error {
	f.calls++
	if f.onWrite != nil {
		f.onWrite()
	}
	if f.refuse != nil {
		return f.refuse
	}
	for _, en := range entries {
		f.rows[en.Key] = en
		f.writes++
		if en.Adopt {
			f.adopts++
		}
		f.log = append(f.log, fmt.Sprintf("write %v id %d expires %d %v", en.Key, en.ID, en.Expires, en.Policy))
	}
	return nil
}

func (f *fakeSink) DeletePolicies(keys []path.Key, adopt bool) error {
	f.calls++
	if f.refuse != nil {
		return f.refuse
	}
	if adopt {
		f.adopts++
	}
	for _, k := range keys {
		delete(f.rows, k)
		f.log = append(f.log, "delete "+k.String())
	}
	return nil
}

// lookup is the kernel's longest match.
func (f *fakeSink) lookup(class uint32, scope uint64, addr netip.Addr) (path.Entry, bool) {
	for _, s := range slices.Compact([]uint64{scope, 0}) {
		for bits := addr.BitLen(); bits >= 0; bits-- {
			if en, ok := f.rows[path.Of(class, s, addr, bits)]; ok {
				return en, true
			}
		}
	}
	return path.Entry{}, false
}

// world is an engine with a simulated kernel and simulated connections.
type world struct {
	t    testing.TB
	e    *Engine
	sink *fakeSink
	rng  *rand.Rand
	now  int64
	// gap is the time between two connections.
	gap int64
	// alone: the kernel draws for each connection, whatever the policy says.
	alone bool
	// armsOnly: no path is left to the default, because its comparisons begin anew at each connection.
	// For tests of the guards of arms.
	armsOnly bool
}

func learnRule(name string, change ...func(*policy.Rule)) policy.Rule {
	r := policy.Rule{Name: name, Learn: &policy.Learn{Objective: learn.Throughput, HoldOut: 0.02}}
	for _, f := range change {
		f(&r)
	}
	return r
}

func options(sink Sink) Options {
	return Options{Learner: learn.DefaultThompson(), Sink: sink, Now: start}
}

func newWorld(t testing.TB, opt func(*Options), rules ...policy.Rule) *world {
	t.Helper()
	w := &world{t: t, sink: newSink(), rng: rand.New(rand.NewPCG(1, 2)), now: start, gap: second}
	o := options(w.sink)
	if opt != nil {
		opt(&o)
	}
	if len(rules) == 0 {
		rules = []policy.Rule{learnRule("all")}
	}
	w.e = New(o)
	w.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
	if err := w.e.Start(rules, policy.Resolver{}, nil, w.now); err != nil {
		t.Fatal(err)
	}
	return w
}

// goods is the goodput of each arm in Mbit/s.
type goods map[tcp.CC]float64

// connect opens a connection as the datapath does, and returns its sample.
func (w *world) connect(to netip.Addr, g goods, change ...func(*tcp.Sample)) *tcp.Sample {
	w.t.Helper()
	s := w.sample(to, change...)
	i := w.sink.table.Classify(&class.Conn{Remote: to, Local: s.Local.Addr(), NetNS: s.NetNS, Outgoing: true})
	if i < 0 {
		return s
	}
	cls := w.sink.table.Classes[i]
	s.Class = cls.ID
	scope := uint64(0)
	if cls.OwnScope {
		scope = s.NetNS
	}
	arm := cubic
	if row, ok := w.sink.lookup(cls.ID, scope, to); ok {
		s.PolicyID = row.ID
		if row.Policy.HoldSlices > 0 && w.draw(row.Policy.Slice, 2) < row.Policy.HoldSlices {
			s.Flags |= tcp.FlagHoldOut | tcp.FlagHoldOutSlice
		} else if w.rng.Uint32N(policy.One) < row.Policy.HoldOut {
			s.Flags |= tcp.FlagHoldOut
		} else if row.Policy.NumArms > 0 {
			draw, sum := w.draw(row.Policy.Slice, 1), uint32(0)
			for _, a := range row.Policy.Arms[:row.Policy.NumArms] {
				if sum += a.Weight; draw < sum {
					arm = a.CC
					break
				}
			}
			s.Arm = arm
		}
	}
	if s.Arm == (tcp.CC{}) {
		s.CC = arm
	}
	w.transfer(s, g)
	for _, f := range change {
		f(s)
	}
	return s
}

// draw is uniform below policy.One, the same for a slice of time.
func (w *world) draw(slice uint8, salt uint64) uint32 {
	if slice == 0 || w.alone {
		return w.rng.Uint32N(policy.One)
	}
	return rand.New(rand.NewPCG(uint64(w.now>>slice), salt)).Uint32N(policy.One)
}

// transfer sets how much data the sample's congestion control delivered.
func (w *world) transfer(s *tcp.Sample, g goods) {
	w.t.Helper()
	if s.Arm != (tcp.CC{}) {
		s.CC = s.Arm
	}
	mbit, ok := g[s.CC]
	if !ok {
		w.t.Fatalf("no goodput of %s", s.CC)
	}
	bytesPerSecond := mbit * 125e3 * math.Exp(0.2*w.rng.NormFloat64())
	s.BytesAcked = uint64(bytesPerSecond * s.Busy.Seconds())
	s.DeliveryRate = uint64(bytesPerSecond)
	s.DataSegsOut = uint32(s.BytesAcked/mss) + 1
	s.SegsOut = s.DataSegsOut
}

// sample is that of a bulk connection of one second without losses.
func (w *world) sample(to netip.Addr, change ...func(*tcp.Sample)) *tcp.Sample {
	s := &tcp.Sample{
		Kind: tcp.KindClose, End: tcp.EndFin, Flags: tcp.FlagOutgoing, At: w.now, NetNS: 7,
		Local: netip.AddrPortFrom(ip("192.0.2.1"), 40000), Remote: netip.AddrPortFrom(to, 443),
		Duration: time.Second, Connect: 10 * time.Millisecond, Busy: time.Second,
		MinRTT: 10_000, SRTT: 12_000, RTTVar: 1000, Cwnd: 100, Ssthresh: 80, MSS: mss,
	}
	for _, f := range change {
		f(s)
	}
	return s
}

// run makes n connections one after the other.
func (w *world) run(n int, to netip.Addr, g goods, change ...func(*tcp.Sample)) (starts []tcp.CC) {
	for range n {
		s := w.connect(to, g, change...)
		starts = append(starts, s.CC)
		w.now += w.gap
		s.At = w.now
		w.e.Observe(s)
		if w.armsOnly {
			for _, n := range w.e.nodes {
				n.comparisons.end()
			}
		}
		w.e.Tick(w.now)
	}
	return starts
}

func (w *world) path(prefix string) *PathState {
	w.t.Helper()
	for _, p := range w.e.View(time.Unix(0, w.now)).Paths {
		if p.Prefix == prefix {
			return p
		}
	}
	w.t.Fatalf("no path %s", prefix)
	return nil
}

func (p *PathState) arm(c tcp.CC) PathArm {
	for _, a := range p.Arms {
		if a.CC == c {
			return a
		}
	}
	return PathArm{}
}

func count(ccs []tcp.CC, c tcp.CC) (n int) {
	for _, x := range ccs {
		if x == c {
			n++
		}
	}
	return n
}

func (f *fakeSink) digest() uint64 {
	h := fnv.New64a()
	for _, line := range f.log {
		h.Write([]byte(line + "\n"))
	}
	return h.Sum64()
}
