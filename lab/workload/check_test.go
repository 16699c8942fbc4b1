package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
)

// sound are parts without a mistake, with their description and their length.
var sound = map[string]struct {
	Spec
	length time.Duration
}{
	"4 bulk streams of 10s":                 {Spec{Kind: Bulk, Streams: 4, Duration: 10 * time.Second}, 10 * time.Second},
	"1 sequence of 8 bulk streams of 500ms": {Spec{Kind: Bulk, Count: 8, Duration: 500 * time.Millisecond}, 4 * time.Second},
	"1 sequence of 4 bulk streams of 1s, from 1s on, until 4.5s": {
		Spec{Kind: Bulk, Count: 4, Duration: time.Second, Start: time.Second, End: 4500 * time.Millisecond}, 4500 * time.Millisecond},
	"1 bulk stream of 1s, until 2s": {Spec{Kind: Bulk, Duration: time.Second, End: 2 * time.Second}, time.Second},
	"1 iperf3 stream of 3s, IPv6":   {Spec{Kind: Iperf3, Duration: 3 * time.Second, IPv6: true}, 3 * time.Second},
	"100 requests of 1 MB and 256 B back on 16 connections, 10ms apart": {
		Spec{Kind: RPC, Count: 100, Request: 1_000_000, Streams: 16, Think: 10 * time.Millisecond}, time.Second},
	"requests for 2s of 64 B and 10 kB back on 1 connection, from 1s on": {
		Spec{Kind: RPC, Duration: 2 * time.Second, Reply: 10_000, Start: time.Second}, 3 * time.Second},
	"1000 flows of 1.01 MB on average (Pareto 0.8, 200 kB to 10.4 MB), 5 at a time, 5ms apart": {
		Spec{Kind: Flows, Count: 1000, Concurrency: 5, Gap: 5 * time.Millisecond, Size: Size{Alpha: 0.8, Scale: 2e5, Max: 52 * 2e5}}, 5 * time.Second},
	"flows for 10s of 1 B, 20 a second": {Spec{Kind: Flows, Duration: 10 * time.Second, Rate: 20, Size: Size{Fixed: 1}}, 10 * time.Second},
	"1 flow of 5 kB, reno by its own choice": {
		Spec{Kind: Flows, Size: Size{Fixed: 5000}, CC: "reno"}, 0},
	"2 flows by trace": {Spec{Kind: Flows, Trace: []Arrival{{0, 1}, {time.Second, 2}}}, time.Second},
	"10000 short connections, 8 at a time, over 10000 paths": {
		Spec{Kind: Churn, Count: 10_000, Streams: 8, Paths: 10_000}, 0},
	"short connections for 4s, 1 at a time, 5000 a second": {Spec{Kind: Churn, Duration: 4 * time.Second, Rate: 5000}, 4 * time.Second},
	"20 bursts of 10 replies of 30 kB on 2 connections, 100ms apart": {
		Spec{Kind: Mux, Count: 20, Concurrency: 10, Streams: 2, Size: Size{Fixed: 30_000}, Think: 100 * time.Millisecond}, 2 * time.Second},
	"wrk for 5s, files of 1 kB, 16 at a time": {Spec{Kind: Wrk, Duration: 5 * time.Second, Concurrency: 16, Size: Size{Fixed: 1000}}, 5 * time.Second},
}

func TestSoundParts(t *testing.T) {
	for want, p := range sound {
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if got := p.String(); got != want {
			t.Errorf("in words %q, want %q", got, want)
		}
		if got := p.Length(); got != p.length {
			t.Errorf("%s: length %s, want %s", want, got, p.length)
		}
	}
}

func TestMistakesAreNamedByField(t *testing.T) {
	bulk := Spec{Kind: Bulk, Duration: time.Second}
	flows := Spec{Kind: Flows, Count: 1, Size: Size{Fixed: 1}}
	with := func(s Spec, change func(*Spec)) Spec {
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		Spec
		fields []string
	}{
		"no kind":          {Spec{}, []string{"kind"}},
		"endless bulk":     {Spec{Kind: Bulk}, []string{"duration"}},
		"long bulk":        {with(bulk, func(s *Spec) { s.Count = 1000 }), []string{"count"}},
		"past":             {with(bulk, func(s *Spec) { s.Start = -1 }), []string{"start"}},
		"end before it":    {with(bulk, func(s *Spec) { s.Start, s.End = 2, 2 }), []string{"end"}},
		"late end":         {with(bulk, func(s *Spec) { s.End = load.MaxDuration + 1 }), []string{"end"}},
		"flows to an end":  {with(flows, func(s *Spec) { s.End = 1 }), []string{"end"}},
		"too long":         {with(bulk, func(s *Spec) { s.Duration = load.MaxDuration + 1 }), []string{"duration", "count"}},
		"itself":           {with(bulk, func(s *Spec) { s.From, s.To = "a", "a" }), []string{"to"}},
		"bulk of a size":   {with(bulk, func(s *Spec) { s.Size.Fixed, s.Gap = 1, 1 }), []string{"gap", "size"}},
		"many streams":     {with(bulk, func(s *Spec) { s.Streams = MaxStreams + 1 }), []string{"streams"}},
		"fine points":      {with(bulk, func(s *Spec) { s.Sample = 999 * time.Microsecond }), []string{"sample"}},
		"long cc":          {with(bulk, func(s *Spec) { s.CC = "sixteen-letters-" }), []string{"cc"}},
		"short request":    {Spec{Kind: RPC, Count: 1, Request: 10}, []string{"request"}},
		"huge reply":       {Spec{Kind: RPC, Count: 1, Reply: load.MaxMessage + 1}, []string{"reply"}},
		"long think":       {Spec{Kind: RPC, Count: 1, Think: time.Minute}, []string{"think"}},
		"flows of nothing": {Spec{Kind: Flows, Count: 1}, []string{"size"}},
		"two ways":         {with(flows, func(s *Spec) { s.Rate, s.Concurrency, s.Gap = 1, 1, 1 }), []string{"concurrency", "gap"}},
		"trace and more":   {with(flows, func(s *Spec) { s.Trace = []Arrival{{0, 1}} }), []string{"size", "count"}},
		"trace back":       {Spec{Kind: Flows, Trace: []Arrival{{2, 1}, {1, 1}}}, []string{"trace"}},
		"empty arrival":    {Spec{Kind: Flows, Trace: []Arrival{{0, 0}}}, []string{"trace"}},
		"two sizes":        {with(flows, func(s *Spec) { s.Size = Size{1, 1, 1, 1} }), []string{"size"}},
		"no alpha":         {with(flows, func(s *Spec) { s.Size = Size{Scale: 1, Max: 2} }), []string{"size"}},
		"max below scale":  {with(flows, func(s *Spec) { s.Size = Size{Alpha: 1, Scale: 3, Max: 2} }), []string{"size"}},
		"too many":         {Spec{Kind: Flows, Duration: time.Minute, Rate: 1e5, Size: Size{Fixed: 1}}, []string{"rate"}},
		"endless churn":    {Spec{Kind: Churn}, []string{"duration"}},
		"many paths":       {Spec{Kind: Churn, Count: 1, Paths: 1 << 20}, []string{"paths"}},
		"paths to senders": {Spec{Kind: Churn, Count: 1, Paths: 2, From: "receivers", To: "senders"}, []string{"paths"}},
		"mux of nothing":   {Spec{Kind: Mux, Count: 1}, []string{"size"}},
		"wide mux":         {Spec{Kind: Mux, Count: 1, Size: Size{Fixed: 1}, Concurrency: load.MaxConcurrency + 1}, []string{"concurrency"}},
		"half a second":    {Spec{Kind: Iperf3, Duration: 500 * time.Millisecond}, []string{"duration"}},
		"wrk, distributed": {Spec{Kind: Wrk, Duration: time.Second, Size: Size{Alpha: 1, Scale: 1, Max: 2}, CC: "reno"}, []string{"cc", "size"}},
	} {
		err := c.Check()
		if err == nil {
			t.Errorf("%s: no mistake found", name)
			continue
		}
		var got []string
		for line := range strings.Lines(err.Error()) {
			field, _, _ := strings.Cut(line, ":")
			got = append(got, field)
		}
		if strings.Join(got, " ") != strings.Join(c.fields, " ") {
			t.Errorf("%s: mistakes of %v, want %v: %v", name, got, c.fields, err)
		}
	}
}

// A part that passes Check has a description, a length, and flows within bounds.
func FuzzCheck(f *testing.F) {
	f.Add(uint8(2), int64(1), int64(0), 10, 5, 0.8, 2000.0, 104e3, uint64(0), 0.0)
	f.Add(uint8(2), int64(1), int64(time.Second), 0, 0, 0.8, 2000.0, 104e3, uint64(0), 100.0)
	f.Add(uint8(4), int64(1), int64(time.Second), 0, 8, 0.0, 0.0, 0.0, uint64(1000), 0.0)
	f.Fuzz(func(t *testing.T, kind uint8, seed, duration int64, count, concurrency int, alpha, scale, top float64, fixed uint64, rate float64) {
		s := Spec{Kind: kinds[int(kind)%len(kinds)], Seed: seed, Duration: time.Duration(duration), Count: count,
			Concurrency: concurrency, Size: Size{fixed, alpha, scale, top}, Rate: rate}
		if s.Check() != nil {
			return
		}
		if s.String() == "" || s.Length() < 0 {
			t.Errorf("%+v: %q, %s", s, s, s.Length())
		}
		if s.Kind != Flows {
			return
		}
		flows := s.flows(0)
		if len(flows) > load.MaxFlows {
			t.Errorf("%d flows of %+v", len(flows), s)
		}
		for _, f := range flows {
			if f.Size == 0 || f.Size > load.MaxMessage || f.At < 0 {
				t.Fatalf("flow %+v of %+v", f, s)
			}
		}
	})
}
