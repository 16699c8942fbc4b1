package report

import (
	"bytes"
	"os"
	"testing"
)

func TestLook(t *testing.T) {
	r := syntheticReport(t)
	var b bytes.Buffer
	writeSynthetic(t, &b, 2)
	r2, err := Read(&b)
	must(t, err)
	r2.Run.Kernel = "6.12"
	must(t, Overview(os.Stdout, Summarise(r), Style{Colour: os.Getenv("C") != ""}))
	must(t, OverviewMarkdown(os.Stdout, Summarise(r)))
	must(t, Compare(os.Stdout, r, r2, Style{}))
	must(t, Markdown(os.Stdout, r))
}

func TestPage(t *testing.T) {
	f, err := os.Create("/tmp/x.html")
	must(t, err)
	must(t, HTML(f, syntheticReport(t)))
	must(t, f.Close())
}
