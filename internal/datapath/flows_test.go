package datapath

import (
	"math/rand/v2"
	"testing"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func newFlows(rows int) *flows {
	return &flows{
		keys: map[abiPathKey]uint32{}, of: map[uint64]uint32{}, used: make([]uint16, rows), partial: make([]bool, rows), next: 1,
		counts: make([]abiFlowCount, rows), found: make([]uint64, rows), off: make([]int32, rows),
	}
}

func flowKey(class uint32, host byte) *abiPathKey {
	k := abiPathKey{Prefixlen: 32 + 32, Class: class | pathV4}
	k.Rest[3] = host
	return &k
}

// A count is complete if all connections were followed from the first on, or will be after the next walk.
func TestFlowCountsThatArePartial(t *testing.T) {
	f := newFlows(10)
	row := f.row("web", flowKey(1, 1))
	paced := path.Policy{CountFlows: true, Adapted: 1 << tcp.MaxPacingRate} // followed for another reason
	paced.Params.Set(tcp.MaxPacingRate, 1e6)
	for i, c := range []struct {
		p    path.Policy
		want bool
	}{
		{paced, false},
		{path.Policy{CountFlows: true}, true},
		{paced, true},
		{path.Policy{CountFlows: true, FollowAll: true}, false},
		{paced, false},
	} {
		if f.note(row, &c.p); f.partial[row] != c.want {
			t.Errorf("policy %d: partial %v", i, f.partial[row])
		}
	}
}

// A path has one row, also under another class of the same rule; another rule, or another
// path, has its own.
func TestFlowRowsBelongToPaths(t *testing.T) {
	f := newFlows(10)
	row := f.row("web", flowKey(1, 1))
	for name, k := range map[string]*abiPathKey{"the same": flowKey(1, 1), "another class": flowKey(2, 1)} {
		if got := f.row("web", k); got != row || got == 0 {
			t.Errorf("%s: row %d, want %d", name, got, row)
		}
	}
	if got := f.row("web", flowKey(1, 2)); got == row || got == 0 {
		t.Errorf("another path has row %d", got)
	}
	if got := f.row("bulk", flowKey(3, 1)); got == row || got == 0 {
		t.Errorf("another rule has row %d", got)
	}
}

// A row with connections, or with a policy, is not given away, and a path that comes back
// finds its row.
func TestFlowRowsAreReusedWhenEmpty(t *testing.T) {
	f := newFlows(4) // rows 1 to 3
	for host := range byte(3) {
		f.row("all", flowKey(1, host))
	}
	if got := f.row("all", flowKey(1, 9)); got != 0 {
		t.Errorf("row %d was given away", got)
	}
	f.counts[2].Begun = 7 // of host 1, with connections
	f.release(flowKey(1, 1))
	f.release(flowKey(1, 2))
	if got := f.row("all", flowKey(1, 9)); got != 3 {
		t.Errorf("a new path has row %d, want 3", got)
	}
	if got := f.row("all", flowKey(1, 1)); got != 2 || f.active(got) != 7 {
		t.Errorf("a path that came back has row %d with %d connections", got, f.active(got))
	}
	f.releaseExcept(func(uint32) bool { return false })
	f.counts[2].Ended = 7
	if got := f.row("all", flowKey(2, 77)); got == 0 {
		t.Error("no row, although all are free")
	}
}

// A correct count is not changed, whatever connections begin and end during walks; a wrong one is
// correct after two walks without traffic.
func TestFlowsAreCheckedAgainstWalks(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := newFlows(2)
		c, alive := &f.counts[1], uint32(0)
		traffic := func() {
			for range r.IntN(5) {
				if r.IntN(2) == 0 {
					alive, c.Begun = alive+1, c.Begun+1
				} else if alive > 0 {
					alive, c.Ended = alive-1, c.Ended+1
				}
			}
		}
		walk := func(busy bool) int32 {
			before := *c
			if busy {
				traffic()
			}
			f.found[1] = uint64(alive)
			if busy {
				traffic()
			}
			return f.check(1, before)
		}
		for range 50 {
			traffic()
			if fix := walk(true); fix != 0 {
				t.Fatalf("seed %d: a right count was changed by %d", seed, fix)
			}
		}
		wrong := uint32(1 + r.IntN(10))
		if r.IntN(2) == 0 {
			c.Begun += wrong
		} else {
			c.Ended += wrong
		}
		for range 2 {
			if fix := walk(false); fix > 0 {
				c.Ended += uint32(fix)
			} else {
				c.Begun += uint32(-fix)
			}
		}
		if got := c.Begun - c.Ended; got != alive {
			t.Fatalf("seed %d: %d after two walks, want %d", seed, got, alive)
		}
	}
}
