package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/measure"
)

func pageOf(t testing.TB, reports ...*Report) string {
	t.Helper()
	var b bytes.Buffer
	must(t, HTML(&b, reports...))
	return b.String()
}

var embedded = regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`)

// dataOf is what the page's script reads.
func dataOf(t testing.TB, page string) pageData {
	t.Helper()
	found := embedded.FindStringSubmatch(page)
	if found == nil {
		t.Fatal("no data in the page")
	}
	var raw struct {
		CC    map[string]int
		Cases []json.RawMessage
	}
	must(t, json.Unmarshal([]byte(found[1]), &raw))
	data := pageData{CC: raw.CC}
	for _, c := range raw.Cases {
		var plots casePlots
		must(t, json.Unmarshal(c, &plots))
		data.Cases = append(data.Cases, &plots)
	}
	return data
}

func TestPage(t *testing.T) {
	page := pageOf(t, syntheticReport(t))
	for _, want := range []string{
		"<noscript>", `<a href="#case-1">loss</a>`, `<section class="case" id="case-6">`, "Refused: this kernel has no dctcp",
		"skipped: bpftune is not installed", "cubic (baseline)", "tcpilot lab run loss shift", "uPlot",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	// Nothing is fetched: the page forbids it to the browser, and contains no URL except
	// in uPlot's own comment.
	if !strings.Contains(page, `content="default-src 'none';`) {
		t.Error("the page may load from other hosts")
	}
	for _, link := range regexp.MustCompile(`(?:src|href)="?([^" >]*)|url\(([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(link[1], "#") {
			t.Errorf("the page refers to %q", link[0])
		}
	}
	data := dataOf(t, page)
	if len(data.Cases) != 6 || len(data.Cases[0].Series) != 4 || len(data.Cases[0].Choices) != 1 || len(data.Cases[0].Regret) != 2 ||
		len(data.Cases[2].CDFs) != 1 || len(data.Cases[5].Series) != 0 {
		t.Errorf("data %+v", data.Cases)
	}
	if data.CC["cubic"] != 1 || data.CC["bbr"] != 2 || data.CC["reno"] != 3 {
		t.Errorf("colours %v", data.CC)
	}
}

// Everything that comes from a file is shown as text, never as markup.
func TestNamesAreNotMarkup(t *testing.T) {
	const evil = `</script><script>alert(1)</script><img src=x onerror=alert(1)>"'` + "`{{.}}"
	r := syntheticReport(t)
	r.Run.Command, r.Run.Kernel, r.Run.CPU, r.Truncated, r.End.Stopped = evil, evil, evil, evil, evil
	for _, c := range r.Cases {
		c.Title, c.Source, c.Expect, c.Link, c.Backend, c.Scenario = evil, evil, evil, evil, evil, evil
		c.Calibration, c.Refused = json.RawMessage(`{"a":"`+`</script><script>alert(1)</script>`+`"}`), evil
		c.Baseline += evil
		for i := range c.Subjects {
			c.Subjects[i].Name += evil
		}
		c.Metrics = append(c.Metrics, evil+"/goodput")
		for _, round := range c.Rounds {
			round.Subject += evil
			round.Groups = map[string]map[string]float64{evil: {"goodput": 1}}
			round.State = json.RawMessage(`"</script><script>alert(1)</script>"`)
			for i := range round.Connections {
				round.Connections[i].CC, round.Connections[i].Group = evil, evil
			}
			for i := range round.Requests {
				round.Requests[i].Group = evil
			}
			for i := range round.Points {
				round.Points[i].CC = evil
			}
		}
	}
	r.Cases[0].Refused = ""
	page := pageOf(t, r)
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") {
		i := strings.Index(page, "alert(1)")
		t.Errorf("markup: %s", page[i-200:i+50])
	}
	if n := strings.Count(page, "<script"); n != 3 {
		t.Errorf("%d scripts, want the page's 3", n)
	}
	if data := dataOf(t, page); data.Cases[0].Subjects[0].Name != "cubic"+evil || data.Cases[0].Series[0].Lines[0].CC != evil {
		t.Errorf("the data is not what was given: %+v", data.Cases[0].Subjects[0])
	}
}

// If there are several reports, each case names its report.
func TestPageOfTwo(t *testing.T) {
	r := syntheticReport(t)
	page := pageOf(t, r, r)
	for _, want := range []string{"<b>report</b>", "<b>report (2)</b>", `id="case-12"`, `loss/5%</a> <small>report (2)</small>`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(pageOf(t, r), "<b>report") {
		t.Error("a single report has a number")
	}
}

// The page and the notes name the version of uPlot that is embedded.
func TestVersionOfUPlot(t *testing.T) {
	for _, name := range []string{"uplot/uPlot.iife.min.js", "uplot/README.md", "page.html"} {
		text, err := assets.ReadFile("assets/" + name)
		must(t, err)
		if !bytes.Contains(text, []byte("1.6.32")) {
			t.Errorf("%s is not of uPlot 1.6.32", name)
		}
	}
}

// A page of long runs stays small, and says what is left out.
func TestPageSize(t *testing.T) {
	const cases, subjects, connections, points = 30, 6, 40, 300
	r := &Report{Run: Run{CPUs: 2}}
	for i := range cases {
		c := &CaseRounds{Case: Case{Scenario: fmt.Sprint("case", i), Primary: "goodput", Baseline: "s0"}}
		for s := range subjects {
			c.Subjects = append(c.Subjects, Subject{Name: fmt.Sprint("s", s), Fixed: fmt.Sprint("cc", s)})
			round := &RoundData{Round: Round{Subject: c.Subjects[s].Name, Repeat: 1, Order: s, Metrics: map[string]float64{"goodput": 1e8}}}
			for n := range connections {
				round.Connections = append(round.Connections, measure.Connection{
					ID: n, Group: "bulk", CC: "cubic", Start: time.Duration(n), Elapsed: time.Second, Bytes: 1e6,
				})
				for p := range points {
					round.Points = append(round.Points, measure.Point{
						Conn: n, At: time.Duration(p) * 100 * time.Millisecond, Goodput: 1.234567e8 * float64(1+p%7), SRTT: 12345, Cwnd: 1234, CC: "cubic",
					})
				}
			}
			c.Rounds = append(c.Rounds, round)
		}
		c.Subjects[1].Learns = true
		r.Cases = append(r.Cases, c)
	}
	page := pageOf(t, r)
	t.Logf("a page of %.1f MB", float64(len(page))/1e6)
	if len(page) > 5e6 {
		t.Errorf("the page has %d bytes", len(page))
	}
	if !strings.Contains(page, "connections.</li>") || !strings.Contains(page, fmt.Sprintf("of %d connections", cases*subjects*connections)) {
		t.Error("the page does not say what it leaves out")
	}
}

// The script draws all plots of the page without errors.
func TestPageInBrowser(t *testing.T) {
	if os.Getenv("TCPILOT_FULL") == "" {
		t.Skip("takes a browser: TCPILOT_FULL=1")
	}
	browser, err := exec.LookPath("chromium")
	if err != nil {
		testenv.Missing(t, "chromium is not installed")
	}
	file := filepath.Join(t.TempDir(), "report.html")
	must(t, os.WriteFile(file, []byte(pageOf(t, syntheticReport(t))), 0o644))
	var console bytes.Buffer
	cmd := exec.Command(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000",
		"--window-size=1400,9000", "--dump-dom", "file://"+file)
	cmd.Stderr = &console
	dom, err := cmd.Output()
	must(t, err)
	for line := range strings.Lines(console.String()) {
		if strings.Contains(line, "CONSOLE") {
			t.Error(line)
		}
	}
	// Three plots over time on both sides in three cases, five regrets, two CDFs.
	if n := bytes.Count(dom, []byte("<canvas")); n != 3*2*3+5+2 {
		t.Errorf("%d plots", n)
	}
	if n := bytes.Count(dom, []byte(`class="heat"`)); n != 5 {
		t.Errorf("%d strips of choices", n)
	}
}

func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	writeSynthetic(b, &text, 30)
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		_, err := Read(bytes.NewReader(text.Bytes()))
		must(b, err)
	}
}

func BenchmarkHTML(b *testing.B) {
	r := syntheticReport(b)
	for b.Loop() {
		must(b, HTML(io.Discard, r))
	}
}

func TestNamesOfReports(t *testing.T) {
	for want, files := range map[string][]string{
		"":                    {"a.jsonl"},
		"a.jsonl b.jsonl":     {"x/a.jsonl", "b.jsonl"},
		"a.jsonl a.jsonl (2)": {"x/a.jsonl", "y/a.jsonl"},
		"report report (2)":   {"", ""},
	} {
		var reports []*Report
		for _, file := range files {
			reports = append(reports, &Report{File: file})
		}
		if have := strings.Join(names(reports), " "); have != want {
			t.Errorf("%q are %q, want %q", files, have, want)
		}
	}
}
