package learn

import "github.com/tcpilot/tcpilot/internal/tcp"

// toParent is how many outcomes of one slice are passed to the parent.
const toParent = 3

// pool updates the parent by an outcome of child's connection: by the reward relative to
// the child's own level. So a parent's belief is about how arms differ on one and the same
// path, whatever its speed. It returns the evidence that the outcome gave to the parent.
func (t thompson) pool(child, parent *Belief, cc tcp.CC, o Outcome) float64 {
	if !o.usable() {
		return 0
	}
	parent.Pooled = true
	own := child.find(cc)
	if own != nil {
		if own.open.n > toParent {
			return 0 // more outcomes of the slice add next to nothing
		}
		o.Weight *= SliceWeight(max(1, own.open.n))
	}
	o.Slice = 0 // of the child, not of the parent
	sure := 1.0
	level, known := t.level(child, parent, cc)
	if known {
		// A busy child must not dominate: it counts about once per memory.
		if own != nil {
			o.Weight /= max(1, own.Weight)
		}
	} else if child.Count > 1 || own != nil && own.Count > 1 {
		return 0 // one arm only: its outcomes say nothing about the others
	} else if level, sure, known = t.evidenceFromNewPath(parent, cc, &o); !known {
		return 0
	}
	o.Reward -= level
	before := parent.arm(cc).M2
	t.Observe(parent, cc, o)
	if a := parent.arm(cc); a.M2 > before {
		// The weight already includes the uncertainty of the level.
		a.M2 = before + sure*(a.M2-before)
	}
	if own != nil {
		own.Given += float32(min(o.Weight, 1))
	}
	return min(o.Weight, 1)
}

// level is the mean reward of child's arms other than cc, minus the effects that the parent
// knows of these arms. cc is left out: compared with itself it would only confirm what was
// believed of it.
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

// evidenceFromNewPath compares the first connection of a path with the first ones of others. Its arm
// was drawn by the parent's shares, independent of the path, so that the comparison is
// unbiased. But it is weak evidence, because paths differ in speed. It is the only evidence
// if every host connects once. sure is the part of its weight that remains in view of the
// differences in speed.
func (t thompson) evidenceFromNewPath(parent *Belief, cc tcp.CC, o *Outcome) (level, sure float64, ok bool) {
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

// effect is the believed mean of cc, 0 if nothing is known.
func (b *Belief) effect(cc tcp.CC) float64 {
	if a := b.find(cc); a != nil {
		return a.Mean
	}
	return 0
}
