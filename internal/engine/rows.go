package engine

import (
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// rows are the policies in the kernel.
type rows struct {
	ttl     int64     // nanoseconds for which the kernel applies one
	byWrite list      // nodes with a row, least recently written first
	removed []key     // to be deleted
	adopt   bool      // when they are deleted, connections without state are to be followed: rows of ancestors do so
	retryAt int64     // 0 unless the latest write failed
	lastID  uint32    // of a policy
	armSets []*armSet // of all policies
}

// written is the part of a policy that differs between the paths of a rule. It is kept
// in place of the whole policy to save memory.
type written struct {
	arms    *armSet
	weights [path.MaxArms]uint32
	holdOut uint32
	slices  uint32 // held out
	slice   uint8  // path.Policy's
	params  uint32 // stamp of the rule's fixed fields
	adapted policy.Adapted
	// switchFrom and switchTo are the policy's.
	switchFrom, switchTo               uint8
	followAll, countFlows, watchLosses bool // path.Policy's
	// windowExpires is the policy's: a later one alone is written if policy.WindowRenewed.
	windowExpires int64
}

// armSet is a list of arms. Paths with equal lists share one.
type armSet struct {
	num       uint8
	isDefault [path.MaxArms]bool
	cc        [path.MaxArms]tcp.CC
}

func (s *armSet) list() []tcp.CC {
	if s == nil {
		return nil
	}
	return s.cc[:s.num]
}

// sameShare is the greatest difference of shares, in 1/65536, that is not written.
const sameShare = policy.One / 256

// put notes the policy that is written for n.
func (r *rows) put(n *node, w written, now int64) {
	if r.lastID++; r.lastID == 0 {
		r.lastID = 1 // 0 is no policy
	}
	if n.id == 0 {
		n.rowAt = now
	}
	n.id, n.policy, n.expires = r.lastID, w, now+r.ttl
	r.byWrite.remove(n)
	r.byWrite.pushBack(n)
}

// withdraw asks for the row of n to be deleted, if there is one.
func (r *rows) withdraw(n *node) {
	if n.id != 0 {
		r.removed = append(r.removed, n.key)
	}
	r.byWrite.remove(n)
	n.id, n.rowAt, n.expires, n.policy, n.best = 0, 0, 0, written{}, -1
}

// due reports whether a policy must be renewed: half of its time is over.
func (r *rows) due(now int64) bool {
	n := r.byWrite.first
	return n != nil && !r.fresh(n, now)
}

// fresh reports whether more than half of the time of n's policy is left. If more than
// all of it is left, the clock was set back: then the policy is not fresh, because the
// kernel uses another clock.
func (r *rows) fresh(n *node, now int64) bool {
	left := n.expires - now
	return left > r.ttl/2 && left <= r.ttl
}

// written returns the part of a policy that is needed to compare it with the next one. params is
// the stamp of its fixed fields (ruleState.paramsOf).
func (r *rows) written(params uint32, p *path.Policy) written {
	w := written{holdOut: p.HoldOut, slices: p.HoldSlices, slice: p.Slice, params: params, adapted: policy.AdaptedIn(p), windowExpires: p.WindowExpires,
		switchFrom: p.SwitchFrom, switchTo: p.SwitchTo, followAll: p.FollowAll, countFlows: p.CountFlows, watchLosses: p.WatchLosses}
	set := armSet{num: p.NumArms}
	for i := range p.NumArms {
		set.cc[i], set.isDefault[i], w.weights[i] = p.Arms[i].CC, p.Arms[i].Default, p.Arms[i].Weight
	}
	for _, s := range r.armSets {
		if *s == set {
			w.arms = s
			return w
		}
	}
	w.arms = new(armSet) // not &set, which would then be allocated for every decision
	*w.arms = set
	r.armSets = append(r.armSets, w.arms)
	return w
}

// same reports whether the policies are equal, apart from differences of shares that are
// too small to be written.
func (w *written) same(o *written) bool {
	if w.arms != o.arms || w.holdOut != o.holdOut || w.slice != o.slice || w.params != o.params || w.adapted != o.adapted ||
		w.switchFrom != o.switchFrom || w.switchTo != o.switchTo || w.followAll != o.followAll || w.countFlows != o.countFlows || w.watchLosses != o.watchLosses || policy.WindowRenewed(o.windowExpires, w.windowExpires) {
		return false
	}
	// The hold-out share of a new path falls with each outcome: a change by an eighth or
	// less is not written.
	if a, b := w.slices, o.slices; (a == 0) != (b == 0) || max(a, b)-min(a, b) > max(a, b)/8 {
		return false
	}
	for i := range w.weights {
		a, b := w.weights[i], o.weights[i]
		if (a == 0) != (b == 0) || max(a, b)-min(a, b) > sameShare {
			return false
		}
	}
	return true
}
