package learn

import "github.com/tcpilot/tcpilot/internal/tcp"

// toParent is how many outcomes of one slice the parent hears of.
const toParent = 3

// pool folds an outcome of child's connection into the parent: the reward relative
// to the child's own level. So what a parent holds is how arms differ on one and
// the same path, whatever its speed.
func (t thompson) pool(child, parent *Belief, cc tcp.CC, o Outcome) (told float64) {
	if !o.usable() {
		return 0
	}
	parent.Pooled = true
	own := child.find(cc)
	if own != nil {
		if own.open.n > toParent {
			return 0 // the path's slice is no news to the parent any more
		}
		o.Weight *= Novelty(max(1, own.open.n))
	}
	o.Slice = 0 // of the child, not of the parent
	sure := 1.0
	level, known := t.level(child, parent, cc)
	if known {
		// A busy child must not speak for all: it counts about once per memory.
		if own != nil {
			o.Weight /= max(1, own.Weight)
		}
	} else if child.Count > 1 || own != nil && own.Count > 1 {
		return 0 // one arm only: its outcomes say nothing about the others
	} else if level, sure, known = t.newcomer(parent, cc, &o); !known {
		return 0
	}
	o.Reward -= level
	before := parent.Arm(cc).M2
	t.Observe(parent, cc, o)
	if a := parent.Arm(cc); a.M2 > before {
		// Its weight says already how far it may lie from the truth.
		a.M2 = before + sure*(a.M2-before)
	}
	if own != nil {
		own.Given += min(o.Weight, 1)
	}
	return min(o.Weight, 1)
}

// level is what child's arms other than cc say that a reward is on its path, what
// the parent knows of these arms taken out. cc itself must not have a say: compared
// with itself it would prove that it equals what was believed.
func (t thompson) level(child, parent *Belief, cc tcp.CC) (level float64, ok bool) {
	n := 0.0
	for i := range child.Arms {
		a := &child.Arms[i]
		if a.CC == cc || a.Weight == 0 {
			continue
		}
		w := min(a.Weight, t.opt.ParentMax)
		level += w * (a.Mean - parent.effect(a.CC))
		n += w
	}
	if n == 0 {
		return 0, false
	}
	return level / n, true
}

// newcomer compares the first connection of a path with those of others. Its arm
// was drawn by the parent's shares, not by what suits the path, so that the
// comparison is fair; but paths differ in speed, which makes it weak evidence. It
// is the only evidence where every host connects once. sure is the part of its weight that
// the difference in speed leaves.
func (t thompson) newcomer(parent *Belief, cc tcp.CC, o *Outcome) (level, sure float64, ok bool) {
	l := &parent.Level
	x := o.Reward - parent.effect(cc)
	w := min(o.Weight, 1)
	level, sure, ok = l.Mean, 1, l.Weight >= baseline
	if ok {
		v := t.opt.Noise * t.opt.Noise
		between := l.M2 / max(1, l.Weight-1)
		sure = v / (v + between)
		o.Weight *= sure
	}
	l.Mean, l.Weight, l.M2 = fold(l.Mean, l.Weight, l.M2, x, w, t.opt.Memory)
	return level, sure, ok
}

// effect is what the belief holds of cc, 0 if nothing.
func (b *Belief) effect(cc tcp.CC) float64 {
	if a := b.find(cc); a != nil {
		return a.Mean
	}
	return 0
}
