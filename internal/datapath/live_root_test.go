package datapath

import (
	"errors"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// walk samples the live connections of a namespace.
func (r *rig) walk(t testing.TB, ns *testenv.NS) {
	t.Helper()
	ns.Do(t, func() { must(t, r.SampleLive()) })
}

// completeWalk is a walk that also corrects the counts of connections, by how many it returns.
func (r *rig) completeWalk(t testing.TB) (tooMany, tooFew int) {
	t.Helper()
	tooMany, tooFew, err := r.Walk(func() (bool, error) { r.walk(t, r.ns); return true, nil })
	must(t, err)
	return tooMany, tooFew
}

func (r *rig) needLive(t testing.TB) {
	t.Helper()
	for _, f := range r.Features() {
		if f.Name == featureLive && f.Err != nil {
			testenv.Missing(t, f.Err.Error())
		}
	}
}

// sums adds up the counters of samples.
type sums struct {
	duration, busy, rwnd, sndbuf                 time.Duration
	acked, received, retransBytes                uint64
	out, in, data, retrans, delivered, lost, rto uint32
}

func (a *sums) add(s *tcp.Sample) {
	a.duration, a.busy, a.rwnd, a.sndbuf = a.duration+s.Duration, a.busy+s.Busy, a.rwnd+s.RwndLtd, a.sndbuf+s.SndbufLtd
	a.acked, a.received, a.retransBytes = a.acked+s.BytesAcked, a.received+s.BytesReceived, a.retransBytes+s.BytesRetrans
	a.out, a.in, a.data, a.retrans = a.out+s.SegsOut, a.in+s.SegsIn, a.data+s.DataSegsOut, a.retrans+s.Retrans
	a.delivered, a.lost, a.rto = a.delivered+s.Delivered, a.lost+s.Lost, a.rto+s.RTOs
}

// TestRootIntervalsSumUp: interval samples are deltas. Together with the last one they
// add up to the whole connection.
func TestRootIntervalsSumUp(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	id := r.policy(t, arms(arm("reno", 1<<16)))
	must(t, r.SetSettings(Settings{Interval: time.Second})) // the connection is younger
	begun := time.Now()
	c, s := r.pair(t, "127.0.0.1:0")
	exchange(t, c, s, 1000)
	r.walk(t, r.ns)
	r.walk(t, r.ns)
	must(t, r.SetSettings(Settings{Interval: 30 * time.Millisecond}))
	isFinal, isInterval := ofConn(c), intervalOf(c)
	time.Sleep(50 * time.Millisecond)
	const rounds = 4
	for i := range rounds {
		exchange(t, c, s, 200_000*(i+1))
		exchange(t, s, c, 5000)
		time.Sleep(15 * time.Millisecond)
		r.walk(t, r.ns)
		r.walk(t, r.ns) // nothing new: no sample
		r.count(t, i+1, isInterval)
	}
	exchange(t, c, s, 777)
	time.Sleep(60 * time.Millisecond) // the last ACK
	info := tcpInfo(t, c)
	must(t, c.(*net.TCPConn).SetLinger(0))
	closeAll(t, c, s)
	last := r.find(t, "client", isFinal)
	parts := r.count(t, rounds, isInterval)
	if len(parts) != rounds {
		t.Errorf("%d interval samples, want %d", len(parts), rounds)
	}
	var total sums
	for i := range parts {
		p := &parts[i]
		total.add(p)
		if p.End != tcp.EndNone || p.Kind != tcp.KindInterval || p.PolicyID != id || p.Class != 1 || p.Arm.String() != "reno" || p.Duration <= 0 {
			t.Errorf("%+v", p)
		}
		if (p.Connect > 0) != (i == 0) || p.Has(tcp.FlagLater) == (i == 0) {
			t.Errorf("sample %d: the connect took %v, flags %v", i, p.Connect, p.Flags)
		}
		if p.BytesAcked < uint64(200_000*(i+1)) || p.BytesAcked > uint64(200_000*(i+1)+1010) {
			t.Errorf("sample %d has %d bytes", i, p.BytesAcked)
		}
	}
	total.add(&last)
	if last.BytesAcked != 777 || last.Kind != tcp.KindClose || last.Connect != 0 || last.PolicyID != id || !last.Has(tcp.FlagOutgoing|tcp.FlagLater) {
		t.Errorf("the last sample is %+v", last)
	}
	if total.acked != info.Bytes_acked || total.received != info.Bytes_received || total.in != info.Segs_in ||
		total.data != info.Data_segs_out || total.delivered != info.Delivered || total.retrans != info.Total_retrans ||
		uint64(total.busy/time.Microsecond) != info.Busy_time || uint64(total.rwnd/time.Microsecond) != info.Rwnd_limited {
		t.Errorf("samples add up to %+v, tcp_info to %+v", total, info)
	}
	if d := time.Since(begun); total.duration > d || total.duration < d/2 {
		t.Errorf("samples cover %v of %v", total.duration, d)
	}
}

// The first walk that finds a connection leaves it the values that it has.
func TestRootFirstWalkKeepsValues(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, released)
	must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Interval: 5 * time.Millisecond}))
	c, s := r.pair(t, "127.0.0.1:0")
	is := intervalOf(c)
	for walk := range 3 { // a sample has the values from before the walk
		exchange(t, c, s, 1000)
		time.Sleep(10 * time.Millisecond)
		r.walk(t, r.ns)
		r.caughtUp(t)
		if got := r.latest(is); ssthreshOf(t, c) >= 400 || micros32(got.RTOMin) >= kernelRTOMin || micros32(got.DelackMax) >= kernelDelackMax {
			t.Errorf("after walk %d: clamp %d, sample with RTO_MIN %v, DELACK_MAX %v", walk, ssthreshOf(t, c), got.RTOMin, got.DelackMax)
		}
	}
}

// TestRootHalfClosedIsSampled: after a FIN data may flow in one direction for a long
// time.
func TestRootHalfClosedIsSampled(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, nil)
	must(t, r.SetSettings(Settings{Interval: time.Millisecond}))
	c, s := r.pair(t, "127.0.0.1:0")
	must(t, c.(*net.TCPConn).CloseWrite())
	time.Sleep(20 * time.Millisecond)
	exchange(t, s, c, 100_000)
	r.walk(t, r.ns)
	for _, conn := range []net.Conn{c, s} {
		r.find(t, "half-closed connection", intervalOf(conn))
	}
	isC, isS := ofConn(c), ofConn(s)
	closeAll(t, s, c)
	a, b := r.find(t, "client", isC), r.find(t, "server", isS)
	if a.End != tcp.EndFin || b.End != tcp.EndFin {
		t.Errorf("%s and %s", a.End, b.End)
	}
}

// TestRootAdoption: connections that are older than tcpilot are sampled if its rules want
// them, and no others.
func TestRootAdoption(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.stop()
	must(t, r.Detach())
	// Nothing is attached: these are old.
	type conns struct{ c, s net.Conn }
	pairOn := func(address string) conns {
		c, s := r.pair(t, address)
		return conns{c, s}
	}
	wanted, left, none := pairOn("127.0.0.1:0"), pairOn("127.0.0.2:0"), pairOn("127.0.0.3:0")
	var elsewhere conns
	outside := testenv.Cgroup(t) // a sibling: neither cgroup is below the other
	outside.Do(t, func() { elsewhere = pairOn("127.0.0.1:0") })
	r.open(t)
	tab := compileRules([]rule{
		{remote: prefix("127.0.0.2/32"), dims: class.DimRemote, leave: true},
		{local: prefix("127.0.0.2/32"), dims: class.DimLocal, leave: true},
		{remote: prefix("127.0.0.1/32"), local: prefix("127.0.0.1/32"), dims: class.DimRemote | class.DimLocal},
	}, 1)
	r.rules(t, tab)
	must(t, r.SetSettings(Settings{Interval: time.Millisecond}))
	all := []conns{wanted, left, none, elsewhere}
	for range 3 {
		r.walk(t, r.ns)
		for _, p := range all {
			exchange(t, p.c, p.s, 10_000)
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.walk(t, r.ns)
	s := r.find(t, "adopted connection", intervalOf(wanted.c))
	if !s.Has(tcp.FlagAdopted) || s.Class != 0 || s.PolicyID != 0 || s.Arm != (tcp.CC{}) || s.Connect != 0 || s.BytesAcked < 10_000 || s.BytesAcked > 20_000 {
		t.Errorf("%+v", s)
	}
	r.find(t, "its other end", intervalOf(wanted.s))
	cookies := map[uint64]string{}
	for name, p := range map[string]conns{"left alone": left, "of no rule": none, "of another cgroup": elsewhere} {
		cookies[cookieOf(p.c)], cookies[cookieOf(p.s)] = name, name
	}
	is := ofConn(wanted.c)
	for _, p := range all {
		closeAll(t, p.c, p.s)
	}
	if s := r.find(t, "end of an adopted connection", is); s.Kind != tcp.KindClose || !s.Has(tcp.FlagAdopted) || s.End != tcp.EndFin || s.BytesAcked > 40_000 {
		t.Errorf("%+v", s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.samples {
		if name, ok := cookies[r.samples[i].Cookie]; ok {
			t.Errorf("a connection %s is reported: %+v", name, r.samples[i])
		}
	}
}

// noSocket is a cookie that no socket has.
const noSocket = 1 << 60

// TestRootSlotsFull: if all slots of a connection are taken, nothing is lost.
func TestRootSlotsFull(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	fill := func(start int64) {
		keys := make([]uint32, r.maps.Slots.MaxEntries())
		values := make([]abiTrack, len(keys))
		for i := range keys {
			keys[i], values[i] = uint32(i), abiTrack{Cookie: noSocket, StartNs: uint64(start)}
		}
		must(t, putBatch(r.maps.Slots, keys, values))
	}
	try := func(n int) {
		t.Helper()
		for range n {
			c, s := r.pair(t, "127.0.0.1:0")
			isC, isS := ofConn(c), ofConn(s)
			exchange(t, c, s, 1000)
			r.walk(t, r.ns)
			closeAll(t, c, s)
			a, b := r.find(t, "client", isC), r.find(t, "server", isS)
			if a.Class != 1 || b.Class != 1 || a.Arm.String() != "reno" || a.Connect == 0 || b.BytesReceived < 1000 {
				t.Errorf("%+v\n%+v", a, b)
			}
		}
	}
	fill(monotonic())
	before, err := r.Counters()
	must(t, err)
	try(10)
	after, err := r.Counters()
	must(t, err)
	if n := after.Storages - before.Storages; n != 20 || after.Forgotten != before.Forgotten {
		t.Errorf("%d connections were remembered in socket storage, %d forgotten", n, after.Forgotten-before.Forgotten)
	}
}

// TestRootSlotIsKept: no other connection gets the slot of one that waits for the
// iterator, however long.
func TestRootSlotIsKept(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	c, s := r.pair(t, "127.0.0.1:0")
	is, cookie := ofConn(c), cookieOf(c)
	const day = int64(24 * time.Hour)
	if monotonic() < day { // the clock of a machine that has not been up for so long begins at 0
		t.Log("ages are cut at the machine's start")
	}
	old := max(monotonic()-day, 1)
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	fd := -1
	var of [3]uint32
	for range 1 << 20 {
		var err error
		r.ns.Do(t, func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
		must(t, err)
		rival, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		must(t, err)
		if of = r.slots(rival); of[0] == r.slots(cookie)[0] {
			break
		}
		must(t, unix.Close(fd))
		fd = -1
	}
	for _, i := range of { // the old connection has the first one
		var slot abiTrack
		must(t, r.maps.Slots.Lookup(i, &slot))
		if slot.Cookie == 0 {
			slot.Cookie = noSocket
		}
		slot.StartNs = uint64(old)
		must(t, r.maps.Slots.Put(i, &slot))
	}
	r.connectTo(t, l, fd)
	rival := connOf(t, fd)
	isRival := ofConn(rival)
	closeAll(t, rival, accept(t, l), c, s)
	for what, x := range map[string]tcp.Sample{"the old connection": r.find(t, "the old connection", is), "its rival": r.find(t, "its rival", isRival)} {
		if x.Class != 1 || x.Arm != cc("reno") {
			t.Errorf("%s: %+v", what, x)
		}
	}
	n, err := r.Counters()
	must(t, err)
	if n.Forgotten != 0 || n.Storages == 0 {
		t.Errorf("%d connections were forgotten, %d in storage", n.Forgotten, n.Storages)
	}
}

// TestRootLostSlotsAreFreed: the slot of a connection whose end was missed is free after
// a walk; the slot of a live or young connection is not freed.
func TestRootLostSlotsAreFreed(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	c, s := r.pair(t, "127.0.0.1:0")
	is, age := ofConn(c), 10*time.Millisecond
	must(t, r.SetSettings(Settings{Interval: age}))
	time.Sleep(2 * age)
	used := r.slots(cookieOf(c))[0]
	put := func(i uint32, start int64) uint32 {
		must(t, r.maps.Slots.Put(i, &abiTrack{Cookie: noSocket, StartNs: uint64(start)}))
		return i
	}
	lost, young := put(used^512, monotonic()-int64(time.Second)), put(used^1024, monotonic()+int64(time.Hour))
	r.walk(t, r.ns)
	if found, err := r.HasAged(age, time.Minute); err != nil || !found {
		t.Errorf("no old slots after a walk: %t, %v", found, err)
	}
	if found, err := r.HasAged(age, 500*time.Millisecond); err != nil || found {
		t.Errorf("a walk is to look for a connection that earlier ones did not find: %t, %v", found, err)
	}
	if used, all, err := r.UsedSlots(); err != nil || used < 2 || all != int(r.maps.Slots.MaxEntries()) {
		t.Errorf("%d of %d slots used, %v", used, all, err)
	}
	if n, err := r.FreeLost(age); err != nil || n != 1 {
		t.Errorf("%d freed, %v, want 1", n, err)
	}
	if found, err := r.HasAged(age, time.Minute); err != nil || found {
		t.Errorf("some are left: %t, %v", found, err)
	}
	for i, want := range map[uint32]uint64{lost: 0, young: noSocket} {
		var slot abiTrack
		must(t, r.maps.Slots.Lookup(i, &slot))
		if slot.Cookie != want {
			t.Errorf("slot %d: cookie %#x, want %#x", i, slot.Cookie, want)
		}
	}
	closeAll(t, c, s)
	if x := r.find(t, "the one that lived", is); x.Class != 1 || x.Arm != cc("reno") {
		t.Errorf("%+v", x)
	}
}

// slots are the slots that a connection may have (slot_choice of bpf/sockops/slots.bpf.h).
func (r *rig) slots(cookie uint64) [3]uint32 {
	mask, batch, other := r.maps.Slots.MaxEntries()-1, cookie>>12<<8, cookie&255
	if other < 32 {
		other += 32 * (1 + cookie>>8&3)
	}
	return [3]uint32{uint32(batch|cookie&31) & mask, uint32(batch|other) & mask, uint32(cookie) & mask}
}

// TestRootIteratorSharesMaps: the iterator reads and writes the maps of the hooks, and
// has no others except flows_found and its variables.
func TestRootIteratorSharesMaps(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	hooks := map[ebpf.MapID]bool{}
	for _, value := range reflect.ValueOf(r.maps).Elem().Fields() {
		info, err := value.Interface().(*ebpf.Map).Info()
		must(t, err)
		id, ok := info.ID()
		if !ok {
			testenv.Missing(t, "ids of maps")
		}
		hooks[id] = true
	}
	info, err := r.live.prog.Info()
	must(t, err)
	used, ok := info.MapIDs()
	if !ok {
		testenv.Missing(t, "ids of a program's maps")
	}
	n := 0
	for _, id := range used {
		if hooks[id] {
			n++
			continue
		}
		m, err := ebpf.NewMapFromID(id)
		must(t, err)
		info, err := m.Info()
		must(t, errors.Join(err, m.Close()))
		if shared(info.Name) && info.Name != "flows_found" {
			t.Errorf("map %s is the iterator's own", info.Name)
		}
	}
	if n == 0 {
		t.Error("it has none of the hooks' maps")
	}
}
