package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// incastScenario is the traffic of the TCP-BPF paper, as in the lab's incast-clamp, without its other
// settings. There is no hold-out, so that all rounds of a subject are alike.
const incastScenario = `
name: incast
title: Three hosts to one, with a fixed and an adapted clamp
source: L. Brakmo, "TCP-BPF", 2017
expect: an adapted clamp is better
topology: {kind: incast, senders: 3}
links:
  bottleneck: {rtt: 2ms, forward: {rate: 100Mbit/s, queue: 640p}}
tuned: all
traffic:
  rpc1m: {kind: rpc, ipv6: true, streams: %d, request: 1MB, reply: 100B, duration: 4s}
  stream: {kind: bulk, ipv6: true, duration: 4s}
  rpc10k: {kind: rpc, ipv6: true, streams: 2, request: 10kB, reply: 100B, duration: 4s}
subjects:
  - cubic
  - {name: fixed, tcpilot: {rules: [{name: all, match: {same_prefix: {ipv6: 44}}, set: {cwnd_clamp: 20}}]}}
  - {name: adapted, tcpilot: {rules: [{name: all, match: {same_prefix: {ipv6: 44}}, learn: {arms: [cubic], hold_out: 0}, adapt: [cwnd_clamp]}]}}
baseline: cubic
primary: rpc10k/fct_p99
metrics: [rpc10k/fct_p50, rpc10k/retrans, rpc1m/retrans, rpc1m/goodput, rpc10k/goodput]
repeat: 3
warmup: 5
`

// TestMeasureIncast measures the documented claim: at most half the p99 of 10 KB RPCs up to X = 8, with hardly
// any retransmits, and less at X = 16, where the fixed clamp fails.
func TestMeasureIncast(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, x := range []int{1, 2, 4, 8, 16, 32} {
			r := labRun(t, labFile(t, fmt.Sprintf(incastScenario, x)), filepath.Join(t.TempDir(), "run.jsonl.gz"))
			got := map[string]map[string][]float64{}
			for _, round := range r.Cases[0].Rounds {
				by := got[round.Round.Subject]
				if by == nil {
					by = map[string][]float64{}
					got[round.Round.Subject] = by
				}
				for name, v := range round.Round.Metrics {
					by[name] = append(by[name], v)
				}
			}
			p99 := func(subject string) float64 { return mean(got[subject]["rpc10k/fct_p99"]) }
			for _, subject := range []string{"cubic", "fixed", "adapted"} {
				by := got[subject]
				t.Logf("X = %d, %s: p50 %.4g, p99 %.4g, retransmits %.4g and %.4g (10 KB, 1 MB), goodput %.4g and %.4g", x, subject, mean(by["rpc10k/fct_p50"]), p99(subject),
					mean(by["rpc10k/retrans"]), mean(by["rpc1m/retrans"]), mean(by["rpc10k/goodput"]), mean(by["rpc1m/goodput"]))
			}
			most := 0.5
			if x > 8 {
				most = 0.9
			}
			testenv.AtMost(m, fmt.Sprintf("X = %d: p99 of 10 KB, of that without tcpilot", x), p99("adapted")/p99("cubic"), most)
		}
	})
}
