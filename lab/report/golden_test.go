package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files again")

// golden compares text with testdata/NAME.
func golden(t *testing.T, name string, have []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, have, 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Equal(have, want) {
		t.Errorf("%s differs (go test ./lab/report -update if it should)\n got:\n%s\nwant:\n%s", file, have, want)
	}
}

func TestGolden(t *testing.T) {
	r := syntheticReport(t)
	var other bytes.Buffer
	writeSynthetic(t, &other, 2)
	b, err := Read(&other)
	must(t, err)
	b.Run.Kernel, b.Run.Emulated, b.End.Stopped = "6.12.9", true, "interrupted"
	b.Cases = b.Cases[:3] // the others are only in A
	b.Cases[1].Backend, b.Cases[1].Baseline = "netem", "reno"
	for name, write := range map[string]func(io.Writer) error{
		"table.golden":       func(w io.Writer) error { return Table(w, r, Style{}) },
		"table-120.golden":   func(w io.Writer) error { return Table(w, r, Style{Width: 120, Colour: true}) },
		"report.md.golden":   func(w io.Writer) error { return Markdown(w, r) },
		"overview.golden":    func(w io.Writer) error { return Overview(w, Summarise(r), Style{}) },
		"overview.md.golden": func(w io.Writer) error { return OverviewMarkdown(w, Summarise(r), "tcpilot", oracleColumn, "reno") },
		"compare.golden":     func(w io.Writer) error { return Compare(w, r, b, Style{}) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			must(t, write(&out))
			golden(t, name, out.Bytes())
		})
	}
}

// Columns fit the width asked for.
func TestTableFits(t *testing.T) {
	r := syntheticReport(t)
	for _, width := range []int{60, 80, 110, 200} {
		var out bytes.Buffer
		must(t, Table(&out, r, Style{Width: width}))
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "Repeat with") || strings.HasPrefix(line, "tcpilot 0.2.0") {
				continue // the command, one line so that it can be copied
			}
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > width {
				t.Errorf("width %d: %d characters: %s", width, n, line)
			}
		}
	}
}

// Other programs read the lines of a report: a change of the format needs a new version.
func TestSchema(t *testing.T) {
	var b bytes.Buffer
	writeSmall(t, NewWriter(&b))
	golden(t, "small.jsonl", b.Bytes())
}

func TestSummaryJSON(t *testing.T) {
	var b bytes.Buffer
	writeSmall(t, NewWriter(&b))
	r, err := Read(&b)
	must(t, err)
	text, err := json.MarshalIndent(r.Summary(), "", " ")
	must(t, err)
	golden(t, "summary.json.golden", append(text, '\n'))
	text, err = json.MarshalIndent(Compared(r, r), "", " ")
	must(t, err)
	golden(t, "compared.json.golden", append(text, '\n'))
}

// Names come from files: they must not send control characters to the terminal.
func TestNoEscapeSequencesFromNames(t *testing.T) {
	r := syntheticReport(t)
	c := r.Cases[0]
	c.Title, c.Subjects[4].Skipped, c.Subjects[1].Name = "\x1b[2Jgone", "\x1b]0;title\x07", "b\x1b[31mbr"
	r.Run.Command = "\x1b[31mrm"
	for _, round := range c.Rounds {
		if round.Subject == "bbr" {
			round.Subject = c.Subjects[1].Name
		}
	}
	var out bytes.Buffer
	must(t, Table(&out, r, Style{}))
	must(t, Overview(&out, Summarise(r), Style{}))
	must(t, Compare(&out, r, r, Style{}))
	must(t, Markdown(&out, r))
	if i := bytes.IndexAny(out.Bytes(), "\x1b\x07"); i >= 0 {
		t.Errorf("control character in %q", out.Bytes()[max(0, i-30):i+10])
	}
}
