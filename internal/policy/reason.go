package policy

// Reason says why a path or a field got what it got. The list is closed: snapshots, policies'
// metrics and the API use no other values. What the programs count is in package datapath
// (Counters.Decisions).
type Reason uint8

const (
	NoRule           Reason = iota // no rule matches
	LeftAlone                      // a rule says leave
	ByRule                         // the rule fixes it
	ByObjective                    // a default of the rule's objective
	FromMetrics                    // computed from the metrics of the path
	NewPath                        // nothing is known yet: shares as for an unknown path
	Inherited                      // nothing is known of this prefix: the enclosing prefix's belief is used
	Exploring                      // arms are still being compared
	Learned                        // one arm is in use: it is shown to be better than the default
	DefaultBest                    // the default is in use: nothing is shown to be better
	WorseThanDefault               // shown to do worse than the default, which it gets for now
	ChangeDetected                 // the path changed: arms are compared again
	YieldedSysctl                  // somebody set the sysctl that gives the kernel's default
	ArmRetired                     // the congestion control is missing, or the kernel refused it, or a guard retired it on the path
	numReasons
)

var reasonNames = [numReasons]string{
	NoRule:           "no-rule",
	LeftAlone:        "left-alone",
	ByRule:           "rule",
	ByObjective:      "objective",
	FromMetrics:      "metrics",
	NewPath:          "new-path",
	Inherited:        "inherited",
	Exploring:        "exploring",
	Learned:          "learned",
	DefaultBest:      "default",
	WorseThanDefault: "worse-than-default",
	ChangeDetected:   "change-detected",
	YieldedSysctl:    "yielded-sysctl",
	ArmRetired:       "arm-retired",
}

// String returns the word for snapshots, metrics and the API.
func (r Reason) String() string {
	if r < numReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Reasons lists every reason, in order.
func Reasons() []Reason {
	all := make([]Reason, numReasons)
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}
