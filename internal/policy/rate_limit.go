package policy

import (
	"cmp"
	"hash/fnv"
)

// RateLimit bounds the rate at which connections send, in bytes/s of payload, retransmissions
// included. 0 is no bound.
type RateLimit struct {
	Total      uint64 // of all connections of the rule together
	Connection uint64 // of each
}

// LimitKey is the key of the rule's rate limit; 0 if it has none. It depends on the name of the
// rule alone, so that running connections keep their limit when the rule is edited, and when the
// daemon is restarted. Variants of a rule are under its limit.
func (r *Rule) LimitKey() uint64 {
	if r.Leave || r.Limit == (RateLimit{}) {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte("rate limit of rule "))
	h.Write([]byte(cmp.Or(r.Of, r.Name)))
	return max(1, h.Sum64())
}
