package engine

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// counts are counters since the start.
type counts struct {
	totals      Totals
	ignored     [learn.NumIgnored]uint64
	noArm       uint64
	retirements [guard.NumKinds]uint64
	barred      [len(estimate.RTOMins)]uint64 // values of RTO_MIN found too short, by index
	reasons     []uint64                      // by policy.Reason
	kinds       [tcp.KindFailedConnect + 1]uint64
	// stoodFor counts the connections that the samples of each kind stand for.
	stoodFor [tcp.KindFailedConnect + 1]uint64
	started  time.Time
}

// view describes them.
func (c *counts) view() Totals {
	t := c.totals
	t.Connections = map[string]uint64{}
	t.Samples, t.Ignored, t.Decisions, t.Retired = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	for k := tcp.KindClose; k <= tcp.KindFailedConnect; k++ {
		t.Samples[k.String()], t.Connections[k.String()] = c.kinds[k], c.stoodFor[k]
	}
	for i, n := range c.ignored {
		if n > 0 {
			t.Ignored[learn.Ignored(i).String()] = n
		}
	}
	if c.noArm > 0 {
		t.Ignored["no-arm"] = c.noArm
	}
	for r, n := range c.reasons {
		if n > 0 {
			t.Decisions[policy.Reason(r).String()] = n
		}
	}
	t.RTOMinBarred = map[string]uint64{}
	for i, n := range c.barred {
		if i > 0 { // the kernel's value is never barred
			t.RTOMinBarred[RTOMinLabel(time.Duration(estimate.RTOMins[i])*time.Millisecond)] = n
		}
	}
	for g, n := range c.retirements {
		t.Retired[guard.Kind(g).String()] = n
	}
	return t
}
