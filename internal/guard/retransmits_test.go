package guard

import (
	"math/rand/v2"
	"testing"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

var bbr, reno = named("bbr"), named("reno")

func named(name string) (cc tcp.CC) {
	copy(cc[:], name)
	return cc
}

// loses returns how many packets a connection sends, and how many of them are retransmits.
type loses func(r *rand.Rand, held bool) (sent, retrans uint32)

// stormAfter is the number of connections, a random quarter of them in the hold-out, after
// which the guard retired the arm; 0 if it did not within n.
func stormAfter(t *testing.T, r *rand.Rand, n int, l loses) int {
	g := &State{}
	for i := range n {
		s := tcp.Sample{Kind: tcp.KindClose, Arm: bbr}
		held := r.IntN(4) == 0
		if held {
			s.Flags = tcp.FlagHoldOut
		}
		s.DataSegsOut, s.Retrans = l(r, held)
		a := g.Add(&s, learn.Outcome{Weight: 1}, learn.Outcome{})
		if a == nil {
			continue
		}
		if which, why := g.Judge(a, false); why != "" {
			if which != RetransmitStorm {
				t.Fatal(which, why)
			}
			return i + 1
		}
	}
	return 0
}

// atRandom loses packets independently.
func atRandom(r *rand.Rand, sent uint32, share float64) (retrans uint32) {
	for range sent {
		if r.Float64() < share {
			retrans++
		}
	}
	return retrans
}

// An arm that loses as much as the hold-out is not retired, however often it is checked.
func TestNoStormByChance(t *testing.T) {
	const runs, connections = 4000, 300
	for _, c := range []struct {
		name string
		most float64 // share of runs in which the arm may be retired
		loses
	}{
		{"each packet by itself", 0.001, func(r *rand.Rand, _ bool) (sent, retrans uint32) {
			return 20, atRandom(r, 20, 0.1)
		}},
		{"half of a connection or nothing", 0.005, func(r *rand.Rand, _ bool) (sent, retrans uint32) {
			if r.IntN(5) == 0 {
				return 20, 10
			}
			return 20, 0
		}},
		{"large connections, good and bad times", 0.005, func(r *rand.Rand, _ bool) (sent, retrans uint32) {
			sent = 20 << r.IntN(10)
			return sent, uint32(0.2 * r.Float64() * float64(sent))
		}},
	} {
		r, storms := rand.New(rand.NewPCG(3, 4)), 0
		for range runs {
			if stormAfter(t, r, connections, c.loses) > 0 {
				storms++
			}
		}
		t.Logf("%s: %d of %d retired", c.name, storms, runs)
		if storms > int(c.most*runs) {
			t.Errorf("%s: %d of %d retired", c.name, storms, runs)
		}
	}
}

// The losses of bbr on a policed path are detected within a few dozen connections, of which 20
// must be the arm's.
func TestStormIsSeen(t *testing.T) {
	for _, packets := range []uint32{20, 200, 5000} {
		r, most, sum := rand.New(rand.NewPCG(5, 6)), 0, 0
		const runs = 200
		for range runs {
			n := stormAfter(t, r, 300, func(r *rand.Rand, held bool) (sent, retrans uint32) {
				if held {
					return packets, 0
				}
				return packets, atRandom(r, packets, 2*0.17*r.Float64()) // varies from connection to connection
			})
			if n == 0 {
				t.Fatalf("%d packets: not seen", packets)
			}
			most, sum = max(most, n), sum+n
		}
		t.Logf("%d packets: after %d connections, %d at most", packets, sum/runs, most)
		if sum/runs > 48 || most > 120 {
			t.Errorf("%d packets: after %d connections, %d at most", packets, sum/runs, most)
		}
	}
}

// Thousands of packets of a few connections are little evidence.
func TestStormPackets(t *testing.T) {
	var few, many, none packets
	for range 5 {
		few.add(&tcp.Sample{Kind: tcp.KindClose, DataSegsOut: 10_000, Retrans: 1000})
	}
	if few.sent > 5*mostIndependent || few.share() < 0.099 || few.share() > 0.101 {
		t.Errorf("5 connections count for %v packets, share %v", few.sent, few.share())
	}
	for range 500 {
		many.add(&tcp.Sample{Kind: tcp.KindClose, DataSegsOut: 1, Retrans: 1})
	}
	if many.sent < 480 || many.share() != 1 {
		t.Errorf("500 packets by themselves count for %v, share %v", many.sent, many.share())
	}
	if stormy(&many, &none) || stormy(&none, &many) {
		t.Error("compared with nothing")
	}
}
