package estimate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// linkSample is a sample that test/e2e recorded on an emulated link (TestRecordLinks): connections of
// cubic, reno and bbr, one at a time, short ones between them, and then three at a time. None of them
// is paced by tcpilot.
type linkSample struct {
	Link  string    `json:"link"`
	Kind  tcp.Kind  `json:"kind"`
	Flags tcp.Flags `json:"flags"`
	At    int64     `json:"at_ns"`
	CC    tcp.CC    `json:"cc"`
	tcp.Sample
}

// readLinks returns the recorded samples by link.
func readLinks(t *testing.T) map[string][]*tcp.Sample {
	t.Helper()
	text, err := os.ReadFile("testdata/links.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	links := map[string][]*tcp.Sample{}
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		var s linkSample
		if err := json.Unmarshal(in.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		s.Sample.Kind, s.Sample.Flags, s.Sample.At, s.Sample.CC = s.Kind, s.Flags, t0+s.At, s.CC
		s.Flows = max(1, s.Flows) // those of a path without a row were not counted, and were alone
		links[s.Link] = append(links[s.Link], &s.Sample)
	}
	return links
}

// Every recorded policer is suspected within some ten connections of a second, with each congestion
// control alone, and at a rate from which the search finds it. Links with a queue of a tenth of a
// round trip or more are not suspected at all. Links that lose packets at random, or have a shorter
// queue, may be: pacing shows the difference.
func TestRecordedLinks(t *testing.T) {
	for link, samples := range readLinks(t) {
		for _, cc := range []string{"cubic", "reno", "bbr", ""} {
			var p Path
			bulk, suspected := 0, 0
			for _, s := range samples {
				if cc != "" && s.CC.String() != cc {
					continue
				}
				if s.Duration > 500e6 {
					bulk++
				}
				if p.Observe(s); p.Policer.State == PolicerSuspected && suspected == 0 {
					suspected = bulk
				}
			}
			if suspected != 0 {
				t.Logf("%s, %q: suspected after %d of %d: %+v", link, cc, suspected, bulk, p.Policer)
			}
			switch {
			case strings.HasPrefix(link, "policer") && bulk > 3 && (suspected == 0 || suspected > 11):
				t.Errorf("%s, %q: suspected after %d connections: %+v", link, cc, suspected, p.Policer)
			case strings.HasPrefix(link, "loss"), strings.HasPrefix(link, "policer"), link == "shift", strings.Contains(link, "10 packets"):
			case suspected != 0:
				t.Errorf("%s, %q: suspected after %d connections: %+v", link, cc, suspected, p.Policer)
			}
		}
	}
}
