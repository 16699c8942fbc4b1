package config

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/policy"
)

// A rate limit is in bytes per second, and is enough for a rule to do something.
func TestRateLimit(t *testing.T) {
	for text, want := range map[string]policy.RateLimit{
		"{total: 100Mbit/s, connection: 20Mbit/s}": {Total: 12_500_000, Connection: 2_500_000},
		"{total: 1MB/s}":          {Total: 1_000_000},
		"{connection: 500kbit/s}": {Connection: 62_500},
	} {
		r := parse(t, "builtin_rules: false\nrules:\n- {name: a, rate_limit: "+text+"}\n").Rules[0]
		if r.Limit != want || r.Action() != "limit" || r.LimitKey() == 0 {
			t.Errorf("%s: %+v, action %s, key %d", text, r.Limit, r.Action(), r.LimitKey())
		}
	}
}
