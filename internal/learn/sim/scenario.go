package sim

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Arm is the truth about one arm during a phase.
type Arm struct {
	Goodput float64 // median, bytes/s
	SD      float64 // standard deviation of ln(goodput) from connection to connection
	Loss    float64 // share of its packets that it retransmits, 0 to 1
	// Slow is the share of connections that take SlowBy times as long, as those of cubic
	// that leave slow start too early.
	Slow, SlowBy float64
}

// Phase is the truth about a path from one of its connections on.
type Phase struct {
	From int   // connection of the path, from 0
	Arms []Arm // in the order of Scenario.Arms
}

// Group is a number of paths of one kind.
type Group struct {
	Paths       int
	Start       int // step of the simulation at which the group's first connection may come
	Connections int // of each path
	Phases      []Phase
}

// Scenario describes the simulated paths and arms that a learner is run on.
type Scenario struct {
	Name    string
	Doc     string
	Arms    []string // the first is the kernel's default, which hold-out connections use
	Groups  []Group
	Gap     time.Duration // between connections of all paths
	Batch   int           // connections that start on the same shares; 1 if 0
	Slice   time.Duration // for which one draw of an arm holds; 0: each connection draws
	Level   float64       // sd of ln(speed) between paths
	Spread  float64       // sd between paths of each arm's ln(goodput), on top of Level
	Drift   float64       // sd of the random walk of each arm's ln(goodput), per connection
	Outlier float64       // share of connections that something else slows down tenfold
}

const (
	kbit = 1e3 / 8
	mbit = 1e6 / 8
	gbit = 1e9 / 8
)

func one(connections int, phases ...Phase) []Group {
	return []Group{{Paths: 1, Connections: connections, Phases: phases}}
}

func still(arms ...Arm) Phase { return Phase{Arms: arms} }

var three = []string{"cubic", "bbr", "reno"}

// The clean and lossy truths are those measured on veth links at 20 ms
// (cubic 8-11 Gbit/s without loss, 5-50 Mbit/s with 1-2 %; bbr 1.2-4 Gbit/s).
var (
	clean = []Arm{{10 * gbit, 0.3, 0, 0, 1}, {8 * gbit, 0.3, 0, 0, 1}, {9 * gbit, 0.3, 0, 0, 1}}
	lossy = []Arm{{50 * mbit, 0.4, 0.02, 0, 1}, {4 * gbit, 0.3, 0.02, 0, 1}, {45 * mbit, 0.4, 0.02, 0, 1}}
)

// The same measured at 200 Mbit/s and 5 ms, connections of 250 ms.
var (
	limited      = []Arm{{190 * mbit, 0.01, 0, 0, 1}, {189 * mbit, 0.01, 0, 0, 1}, {163 * mbit, 0.1, 0.001, 0, 1}}
	limitedLossy = []Arm{{13 * mbit, 0.4, 0.05, 0, 1}, {145 * mbit, 0.08, 0.05, 0, 1}, {12 * mbit, 0.4, 0.05, 0, 1}}
)

// Scenarios are what learners are compared on.
var Scenarios = []Scenario{
	{
		Name: "steady", Doc: "a lossy path: one arm is three times as fast as the others; 1 s connections, one at a time",
		Arms: three, Gap: time.Second,
		Groups: one(200, still(Arm{100 * mbit, 0.4, 0.01, 0, 1}, Arm{300 * mbit, 0.4, 0.01, 0, 1}, Arm{90 * mbit, 0.4, 0.01, 0, 1})),
	}, {
		Name: "slow", Doc: "a link of a few hundred kbit/s: the arms differ in kbit/s, not in Mbit/s",
		Arms: three, Gap: 5 * time.Second,
		Groups: one(200, still(Arm{100 * kbit, 0.4, 0.03, 0, 1}, Arm{250 * kbit, 0.4, 0.03, 0, 1}, Arm{90 * kbit, 0.4, 0.03, 0, 1})),
	}, {
		Name: "many-arms", Doc: "eight arms, one good, one close, the rest half as fast or worse",
		Arms: []string{"cubic", "bbr", "reno", "htcp", "dctcp", "vegas", "westwood", "illinois"}, Gap: time.Second,
		Groups: one(300, still(Arm{50 * mbit, 0.4, 0.01, 0, 1}, Arm{200 * mbit, 0.4, 0.01, 0, 1}, Arm{45 * mbit, 0.4, 0.01, 0, 1},
			Arm{70 * mbit, 0.4, 0.01, 0, 1}, Arm{40 * mbit, 0.4, 0.01, 0, 1}, Arm{30 * mbit, 0.4, 0.01, 0, 1},
			Arm{180 * mbit, 0.4, 0.01, 0, 1}, Arm{90 * mbit, 0.4, 0.01, 0, 1})),
	}, {
		Name: "rare", Doc: "a path that is used every ten minutes: what fades too fast must be learned again",
		Arms: three, Gap: 10 * time.Minute,
		Groups: one(200, still(Arm{100 * mbit, 0.4, 0.01, 0, 1}, Arm{250 * mbit, 0.4, 0.01, 0, 1}, Arm{90 * mbit, 0.4, 0.01, 0, 1})),
	}, {
		Name: "near-tie", Doc: "all arms within 5 %: nothing to win, and nothing to be lost by trying",
		Arms: three, Gap: time.Second,
		Groups: one(200, still(Arm{100 * mbit, 0.3, 0, 0, 1}, Arm{97 * mbit, 0.3, 0, 0, 1}, Arm{95 * mbit, 0.3, 0, 0, 1})),
	}, {
		Name: "noise", Doc: "30 % between arms under noise of a factor of 2, and 5 % of outliers",
		Arms: three, Gap: time.Second, Outlier: 0.05,
		Groups: one(300, still(Arm{100 * mbit, 0.7, 0.01, 0, 1}, Arm{143 * mbit, 0.7, 0.01, 0, 1}, Arm{80 * mbit, 0.7, 0.01, 0, 1})),
	}, {
		Name: "flip-to-lossy", Doc: "a clean path begins to lose 2 %: the arm in use falls by far",
		Arms: three, Gap: time.Second,
		Groups: one(200, Phase{0, clean}, Phase{100, lossy}),
	}, {
		Name: "flip-to-clean", Doc: "and back: the arm in use gains, another gains more",
		Arms: three, Gap: time.Second,
		Groups: one(200, Phase{0, lossy}, Phase{100, clean}),
	}, {
		Name: "flip-fivefold", Doc: "the best arm falls to a fifth and another becomes best, twice, with no sign but the rewards",
		Arms: three, Gap: time.Second,
		Groups: one(240,
			Phase{0, []Arm{{500 * mbit, 0.4, 0, 0, 1}, {250 * mbit, 0.4, 0, 0, 1}, {200 * mbit, 0.4, 0, 0, 1}}},
			Phase{80, []Arm{{100 * mbit, 0.4, 0, 0, 1}, {250 * mbit, 0.4, 0, 0, 1}, {80 * mbit, 0.4, 0, 0, 1}}},
			Phase{160, []Arm{{100 * mbit, 0.4, 0, 0, 1}, {50 * mbit, 0.4, 0, 0, 1}, {300 * mbit, 0.4, 0, 0, 1}}}),
	}, {
		Name: "limited", Doc: "a clean link at its limit: two arms fill it to the same per cent, the third lacks 15 %",
		Arms: three, Gap: 250 * time.Millisecond,
		Groups: one(100, still(limited...)),
	}, {
		Name: "limited-flip", Doc: "the same begins to lose 5 % and stops again; the best arm falls by a quarter, the others to a tenth",
		Arms: three, Gap: 250 * time.Millisecond,
		Groups: one(150, Phase{0, limited}, Phase{50, limitedLossy}, Phase{100, limited}),
	}, {
		Name: "silent", Doc: "an arm that is not in use becomes twice as good unseen: only trials can tell",
		Arms: three, Gap: time.Second,
		Groups: one(600,
			Phase{0, []Arm{{100 * mbit, 0.3, 0, 0, 1}, {40 * mbit, 0.3, 0, 0, 1}, {80 * mbit, 0.3, 0, 0, 1}}},
			Phase{150, []Arm{{100 * mbit, 0.3, 0, 0, 1}, {200 * mbit, 0.3, 0, 0, 1}, {80 * mbit, 0.3, 0, 0, 1}}}),
	}, {
		Name: "drift", Doc: "every arm wanders by itself, a factor of 1.5 in 100 connections",
		Arms: three, Gap: time.Second, Drift: 0.04,
		Groups: one(400, still(Arm{100 * mbit, 0.3, 0.001, 0, 1}, Arm{150 * mbit, 0.3, 0.001, 0, 1}, Arm{80 * mbit, 0.3, 0.001, 0, 1})),
	}, {
		Name: "busy", Doc: "50 connections a second on the same shares",
		Arms: three, Gap: 20 * time.Millisecond, Batch: 50,
		Groups: one(1500, Phase{0, []Arm{{100 * mbit, 0.4, 0, 0, 1}, {300 * mbit, 0.4, 0, 0, 1}, {90 * mbit, 0.4, 0, 0, 1}}},
			Phase{750, []Arm{{100 * mbit, 0.4, 0, 0, 1}, {30 * mbit, 0.4, 0, 0, 1}, {90 * mbit, 0.4, 0, 0, 1}}}),
	}, {
		Name: "sparse", Doc: "60 hosts of very different speed, 6 connections each: only what they share can be learned",
		Arms: three, Gap: 5 * time.Second, Level: 1.5, Spread: 0.3,
		Groups: []Group{{Paths: 60, Connections: 6,
			Phases: []Phase{still(Arm{100 * mbit, 0.4, 0.01, 0, 1}, Arm{250 * mbit, 0.4, 0.01, 0, 1}, Arm{90 * mbit, 0.4, 0.01, 0, 1})}}},
	}, {
		Name: "once", Doc: "300 hosts that connect once each",
		Arms: three, Gap: time.Second, Level: 1, Spread: 0.2,
		Groups: []Group{{Paths: 300, Connections: 1,
			Phases: []Phase{still(Arm{100 * mbit, 0.4, 0.01, 0, 1}, Arm{300 * mbit, 0.4, 0.01, 0, 1}, Arm{90 * mbit, 0.4, 0.01, 0, 1})}}},
	}, {
		Name: "sibling", Doc: "clean hosts appear beside lossy ones, whose choice does not suit them",
		Arms: three, Gap: time.Second, Level: 0.3, Spread: 0.05,
		Groups: []Group{
			{Paths: 3, Connections: 60, Phases: []Phase{still(lossy...)}},
			{Paths: 2, Start: 180, Connections: 80, Phases: []Phase{still(
				Arm{10 * gbit, 0.3, 0, 0, 1}, Arm{5 * gbit, 0.3, 0, 0, 1}, Arm{9 * gbit, 0.3, 0, 0, 1})}},
		},
	}, {
		Name: "slow-start", Doc: "the default leaves slow start too early in one of six connections, which others do not",
		Arms: []string{"cubic", "tcpilot_bbr3", "reno"}, Gap: 200 * time.Millisecond,
		Groups: one(2000, still(Arm{17 * mbit, 0.05, 0.001, 1. / 6, 2.3}, Arm{16.5 * mbit, 0.08, 0.002, 0, 1}, Arm{16 * mbit, 0.1, 0.001, 1. / 6, 2.3})),
	}, {
		Name: "slow-start-other", Doc: "another arm leaves slow start too early in one of six connections; it retransmits less than the default, and its mean time is the same",
		Arms: []string{"bbr", "cubic", "tcpilot_bbr3"}, Gap: 200 * time.Millisecond,
		Groups: one(2000, still(Arm{14.5 * mbit, 0.08, 0.12, 0, 1}, Arm{17 * mbit, 0.05, 0.02, 1. / 6, 2.3}, Arm{14.8 * mbit, 0.08, 0.03, 0, 1})),
	}, {
		Name: "web", Doc: "slow-start, five at a time: 40 slices of 200 connections; a variant of the default seldom does the same",
		Arms: []string{"cubic", "tcpilot_cubic", "tcpilot_bbr3", "reno"}, Gap: 100 * time.Millisecond, Batch: 5, Slice: 500 * time.Millisecond,
		Groups: one(600, still(Arm{17 * mbit, 0.05, 0.001, 1. / 6, 2.3}, Arm{17 * mbit, 0.08, 0, 0.02, 1.3}, Arm{16.5 * mbit, 0.08, 0.002, 0, 1}, Arm{16 * mbit, 0.1, 0.001, 1. / 6, 2.3})),
	}, {
		Name: "lockstep", Doc: "twenty at a time fill a link, and take the same time: with another arm 2 to 5 % more (measured: nginx, 100 KB)",
		Arms: []string{"bbr", "tcpilot_bbr3", "tcpilot_cubic", "reno"}, Gap: 14 * time.Millisecond, Batch: 20, Slice: 280 * time.Millisecond,
		Groups: one(400, still(Arm{2.89 * mbit, 0.02, 0, 0, 1}, Arm{2.83 * mbit, 0.03, 0, 0, 1}, Arm{2.84 * mbit, 0.03, 0, 0, 1}, Arm{2.76 * mbit, 0.03, 0, 0, 1})),
	}, {
		Name: "clean-tie", Doc: "a clean path on which all arms are alike",
		Arms: []string{"cubic", "tcpilot_bbr3", "reno"}, Gap: 200 * time.Millisecond,
		Groups: one(200, still(Arm{10 * mbit, 0.15, 0, 0, 1}, Arm{10 * mbit, 0.15, 0, 0, 1}, Arm{10 * mbit, 0.15, 0, 0, 1})),
	},
}

// ByName finds a shipped scenario.
func ByName(name string) (Scenario, bool) {
	for _, s := range Scenarios {
		if s.Name == name {
			return s, true
		}
	}
	return Scenario{}, false
}

// Changes returns the connections at which the first group's paths change.
func (s *Scenario) Changes() []int {
	var at []int
	for _, p := range s.Groups[0].Phases {
		if p.From > 0 {
			at = append(at, p.From)
		}
	}
	return at
}

// arms returns the arms' kernel names.
func (s *Scenario) arms() []tcp.CC {
	ccs := make([]tcp.CC, len(s.Arms))
	for i, name := range s.Arms {
		ccs[i], _ = tcp.ParseCC(name)
	}
	return ccs
}

// at returns the arms in force at connection n of a path of the group.
func (g *Group) at(n int) []Arm {
	arms := g.Phases[0].Arms
	for _, p := range g.Phases {
		if n >= p.From {
			arms = p.Arms
		}
	}
	return arms
}

// logs of the arms' median goodput.
func logs(arms []Arm) []float64 {
	mu := make([]float64, len(arms))
	for i, a := range arms {
		mu[i] = math.Log(a.Goodput)
	}
	return mu
}

// tail is by how much an arm's mean time is above that of its other connections, natural
// log.
func (a Arm) tail() float64 {
	if a.Slow == 0 {
		return 0
	}
	return math.Log(1 + a.Slow*(a.SlowBy-1))
}
