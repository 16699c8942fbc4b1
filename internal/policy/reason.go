package policy

// Reason says why a connection or a path got what it got. The list is closed: snapshots,
// metrics and the API use no other values.
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
	Learned                        // one arm is believed to be the best
	DefaultBest                    // the default is in use: nothing is shown to be better
	WorseThanDefault               // shown to do worse than the default, which it gets for now
	ChangeDetected                 // the path changed: arms are compared again
	HoldOut                        // left at kernel defaults, to compare with
	YieldedSysctl                  // somebody set the sysctl that gives the kernel's default
	AppChose                       // the application chose its congestion control
	ArmRetired                     // the congestion control is missing, or the kernel refused it, or a guard retired it on the path
	LeaseExpired                   // no daemon has renewed the policy
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
	HoldOut:          "hold-out",
	YieldedSysctl:    "yielded-sysctl",
	AppChose:         "app-chose",
	ArmRetired:       "arm-retired",
	LeaseExpired:     "lease-expired",
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
