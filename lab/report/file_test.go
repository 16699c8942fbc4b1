package report

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// writeSmall writes a report with each kind of line, with all of their fields set.
func writeSmall(t testing.TB, w *Writer) {
	t.Helper()
	began := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	must(t, w.Run(Run{
		Tcpilot: "0.2.0", Began: began, Command: "tcpilot lab run loss", Kernel: "6.18", CPUs: 2, CPU: "AMD EPYC", Quick: true, Repeat: 1,
	}))
	must(t, w.Case(Case{
		Scenario: "loss", Case: "5%", Title: "A lossy link", Source: "loss", Expect: "<bbr> wins", Link: "10 Mbit/s", Backend: "emulator",
		Primary: "goodput", Metrics: []string{"goodput", "web/fct_p50"}, Baseline: "cubic",
		Subjects:    []Subject{{Name: "cubic", Fixed: "cubic"}, {Name: "tcpilot", Learns: true, Warmup: 1}, {Name: "bpftune", Skipped: "none"}},
		Calibration: json.RawMessage(`{"loss":0.05}`),
	}))
	for i, subject := range []string{"tcpilot", "cubic", "tcpilot", "cubic"} {
		result := &measure.Result{
			Elapsed: 2 * time.Second, CPU: map[string]measure.CPU{"s1": {User: time.Millisecond, System: 2 * time.Millisecond}},
			Connections: []measure.Connection{{
				Group: "web", ID: 0, From: "s1", To: "r1", Start: time.Millisecond, Elapsed: time.Second, Bytes: uint64(1e6 * (i + 1)),
				CC: "cubic", CCEnd: "bbr", Segments: 700, Retrans: 7, RTOs: 1, MinRTT: 10_000, SRTT: 12_000,
				MeanRTT: 11_000, Delivered: true,
			}},
			Requests: []measure.Request{{Group: "web", Conn: 0, Start: time.Millisecond, Elapsed: 500 * time.Millisecond, Bytes: 1000}},
			Points: []measure.Point{{
				Conn: 0, At: 100 * time.Millisecond, Goodput: 8e6, SRTT: 12_000, Cwnd: 10, Retrans: 1, CC: "cubic",
			}},
			Errors: 1, FirstError: "connect: refused",
		}
		r := Round{Scenario: "loss", Case: "5%", Subject: subject, Repeat: i / 2, Order: i, Began: began, State: json.RawMessage(`{"n":1}`)}
		if i == 1 {
			r.Repeat = 1
		}
		if i == 3 {
			r.Repeat, r.Refused = 2, "the host stalled"
		}
		r.Measure(result)
		must(t, w.Round(r, result))
	}
	must(t, w.End(End{Elapsed: time.Minute, Stopped: "interrupted"}))
	must(t, w.Close())
}

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	var reports []*Report
	for _, name := range []string{"report.jsonl", "report.jsonl.gz"} {
		name = filepath.Join(dir, name)
		w, err := Create(name)
		must(t, err)
		writeSmall(t, w)
		r, err := Open(name)
		must(t, err)
		reports = append(reports, r)
		if _, err := Create(name); !errors.Is(err, fs.ErrExist) {
			t.Errorf("created again: %v", err)
		}
	}
	if !reflect.DeepEqual(reports[0], reports[1]) {
		t.Errorf("plain:\n%+v\ncompressed:\n%+v", reports[0], reports[1])
	}
	r := reports[0]
	if r.Truncated != "" || r.End == nil || r.End.Stopped != "interrupted" || len(r.Cases) != 1 || len(r.Cases[0].Rounds) != 4 {
		t.Fatalf("read %+v", r)
	}
	round := r.Cases[0].Rounds[2]
	if round.Subject != "tcpilot" || round.Metrics["goodput"] != 12e6 || round.Groups["web"]["fct_p50"] != 0.5 || round.Errors != 1 ||
		len(round.Connections) != 1 || round.Connections[0].Bytes != 3e6 || round.Requests[0].Bytes != 1000 || round.Points[0].Cwnd != 10 {
		t.Errorf("round %+v", round)
	}
}

// A run may be killed after any byte. If the first line is complete, the rest can be
// read: it has only complete rounds, and Truncated is set.
func TestCutOff(t *testing.T) {
	var plain, zipped bytes.Buffer
	writeSmall(t, NewWriter(&plain))
	writeSmall(t, NewZipWriter(&zipped))
	all := plain.Bytes()
	firstLine := bytes.IndexByte(all, '\n')
	rounds := 0
	for n := range len(all) - 1 { // without the last line's end it is complete
		r, err := Read(bytes.NewReader(all[:n]))
		if n < firstLine {
			if err == nil {
				t.Fatalf("%d bytes: read %+v", n, r)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if r.Truncated == "" || r.End != nil {
			t.Fatalf("%d bytes: Truncated is not set: %+v", n, r)
		}
		if len(r.Cases) == 0 {
			continue
		}
		now := len(r.Cases[0].Rounds)
		if now < rounds || now > rounds+1 {
			t.Fatalf("%d bytes: %d rounds after %d", n, now, rounds)
		}
		for _, round := range r.Cases[0].Rounds {
			if len(round.Connections) != 1 || len(round.Requests) != 1 || len(round.Points) != 1 {
				t.Fatalf("%d bytes: an incomplete round: %+v", n, round)
			}
		}
		rounds = now
	}
	if rounds != 4 {
		t.Errorf("the complete report has %d rounds", rounds)
	}
	for n := 400; n < zipped.Len(); n++ {
		if r, err := Read(bytes.NewReader(zipped.Bytes()[:n])); err != nil {
			t.Fatalf("%d bytes, compressed: %v", n, err)
		} else if r.Truncated == "" && r.End == nil {
			t.Fatalf("%d bytes, compressed: Truncated is not set", n)
		}
	}
}

func TestDamage(t *testing.T) {
	var b bytes.Buffer
	writeSmall(t, NewWriter(&b))
	lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
	with := func(i int, line string) string {
		changed := append([]string(nil), lines...)
		changed[i] = line + "\n"
		return strings.Join(changed, "")
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":           {"", "the report is empty"},
		"foreign":         {"hello\n", "line 1: this is not a report of the lab"},
		"foreign JSON":    {`{"type":"case"}` + "\n", "line 1: this is not a report of the lab"},
		"no version":      {`{"type":"run","run":{}}` + "\n", "line 1: this is not a report of the lab"},
		"newer":           {with(0, `{"type":"run","run":{"version":4,"cpus":"many"}}`), "line 1: the report is of version 4, and this tcpilot reads version 3"},
		"older":           {with(0, `{"type":"run","run":{"version":2}}`), "line 1: the report is of version 2, and this tcpilot reads version 3"},
		"not JSON":        {with(4, "{"), "line 5: unexpected end of JSON input"},
		"second run":      {with(1, strings.TrimSpace(lines[0])), "line 2: a second run record: a report is of one run"},
		"joined":          {b.String() + b.String(), "a second run record: a report is of one run"},
		"joined, cut off": {strings.Join(lines[:7], "") + b.String(), "line 8: a second run record: a report is of one run"},
		"type":            {with(1, `{"type":"note","case":{}}`), `line 2: the contents do not match the record type "note"`},
		"two parts":       {with(1, `{"type":"case","case":{},"end":{}}`), `line 2: the contents do not match the record type "case"`},
		"case twice":      {with(2, strings.TrimSpace(lines[1])), "line 3: case loss/5% occurs twice"},
		"no case":         {with(1, strings.TrimSpace(lines[5])), "line 2: unknown case loss/5%"},
		"round twice":     {with(6, strings.TrimSpace(lines[5])), "line 7: round 0 of case loss/5% occurs twice"},
		"huge":            {with(5, strings.Replace(strings.TrimSpace(lines[5]), `"goodput":4000000`, `"goodput":1e200`, 1)), "line 6: metric goodput cannot be 1e+200"},
		"after the end":   {b.String() + lines[5], "after the end record"},
		"order twice":     {with(5, strings.TrimSpace(lines[9])), "line 10: round 1 of case loss/5% occurs twice"},
		"rounds are lost": {strings.Join(append(append([]string(nil), lines[:5]...), lines[6:]...), ""), "the report has an end record, but one of its rounds or lines is incomplete"},
		"bad gzip":        {"\x1f\x8bxx", "uncompress"},
	} {
		if r, err := Read(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q (%+v)", name, err, c.want, r)
		}
	}
}

func TestDamagedCompression(t *testing.T) {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	fmt.Fprintln(zip, `{"type":"run","run":{"version":3}}`)
	must(t, zip.Close())
	damaged := b.Bytes()
	damaged[len(damaged)-6] ^= 1 // a bit of the checksum
	if r, err := Read(bytes.NewReader(damaged)); !errors.Is(err, gzip.ErrChecksum) {
		t.Errorf("%v (%+v)", err, r)
	}
}

// A full disk is reported by the call that meets it and by all later ones.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errors.New("no space left")
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	for _, w := range []*Writer{NewWriter(&full{100}), NewZipWriter(&full{20})} {
		err := w.Run(Run{Command: strings.Repeat("x", 200)})
		if err == nil || err.Error() != "write report: no space left" {
			t.Errorf("run: %v", err)
		}
		if again := w.End(End{}); again != err {
			t.Errorf("end: %v", again)
		}
		if last := w.Close(); last != err {
			t.Errorf("close: %v", last)
		}
	}
}

// The records of a round are flushed to the file before the next round begins.
func TestEveryRoundIsFlushed(t *testing.T) {
	for name, open := range map[string]func(*bytes.Buffer) *Writer{
		"plain":      func(b *bytes.Buffer) *Writer { return NewWriter(b) },
		"compressed": func(b *bytes.Buffer) *Writer { return NewZipWriter(b) },
	} {
		var b bytes.Buffer
		w := open(&b)
		must(t, w.Run(Run{}))
		must(t, w.Case(Case{Scenario: "loss"}))
		for i := range 3 {
			must(t, w.Round(Round{Scenario: "loss", Repeat: 1, Order: i}, nil))
			r, err := Read(bytes.NewReader(b.Bytes()))
			must(t, err)
			if n := len(r.Cases[0].Rounds); n != i+1 || r.Truncated != "the run did not end" {
				t.Errorf("%s: %d rounds after %d, %q", name, n, i+1, r.Truncated)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	var small, zipped bytes.Buffer
	writeSmall(f, NewWriter(&small))
	writeSmall(f, NewZipWriter(&zipped))
	f.Add(small.Bytes())
	f.Add(zipped.Bytes())
	f.Add(small.Bytes()[:1500])
	f.Add([]byte(`{"type":"run","run":{"version":3}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		r, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if _, err := json.Marshal(Summarise(r)); err != nil {
			t.Fatal(err)
		}
		must(t, Table(&out, r, Style{}))
		must(t, Compare(&out, r, r, Style{}))
		must(t, HTML(&out, r))
		out.Reset()
		w := NewWriter(&out)
		must(t, rewrite(w, r))
		again, err := Read(&out)
		must(t, err)
		again.Truncated, r.Truncated = "", ""
		if !reflect.DeepEqual(normal(t, r), normal(t, again)) {
			t.Errorf("read:\n%s\nthen:\n%s", normal(t, r), normal(t, again))
		}
	})
}

// normal is a report as JSON, in which an empty and a missing list are the same.
func normal(t testing.TB, r *Report) string {
	t.Helper()
	r.Run.Version = version
	text, err := json.Marshal(r)
	must(t, err)
	return string(text)
}

// rewrite writes a report again after it was read.
func rewrite(w *Writer, r *Report) error {
	if err := w.Run(r.Run); err != nil {
		return err
	}
	for _, c := range r.Cases {
		if err := w.Case(c.Case); err != nil {
			return err
		}
		for _, round := range c.Rounds {
			result := &measure.Result{Connections: round.Connections, Requests: round.Requests, Points: round.Points}
			if err := w.Round(round.Round, result); err != nil {
				return err
			}
		}
	}
	if r.End != nil {
		if err := w.End(*r.End); err != nil {
			return err
		}
	}
	return w.Close()
}
