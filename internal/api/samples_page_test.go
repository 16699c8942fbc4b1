package api_test

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const samplesPage = "../../docs/samples.md"

// TestMeasuresInDocumentation compares two tables of docs/samples.md with what they are
// written from: the rows between cc and cc_state with the tags of tcp.Sample, and the modes of
// congestion controls with the catalogue.
func TestMeasuresInDocumentation(t *testing.T) {
	page, err := os.ReadFile(samplesPage)
	if err != nil {
		t.Fatal(err)
	}
	want := replaceRows(t, page, "(\n\\| `cc` [^\n]*\n)(.*?)(\\| `cc_state` )", measures())
	want = replaceRows(t, want, "(\n\\| congestion control \\| modes \\|\n[^\n]*\n)(.*?)(\n\n)", modes())
	if bytes.Equal(page, want) {
		return
	}
	if !*update {
		t.Fatal("docs/samples.md differs from the tags of tcp.Sample, or from the catalogue of congestion controls: make generate")
	}
	if err := os.WriteFile(samplesPage, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// replaceRows replaces the second group of pattern, which must match once.
func replaceRows(t *testing.T, page []byte, pattern, rows string) []byte {
	t.Helper()
	at := regexp.MustCompile("(?s)"+pattern).FindAllSubmatchIndex(page, -1)
	if len(at) != 1 {
		t.Fatalf("docs/samples.md matches %q %d times, want once", pattern, len(at))
	}
	return slices.Concat(page[:at[0][4]], []byte(rows), page[at[0][5]:])
}

func measures() string {
	var out strings.Builder
	for f := range reflect.TypeFor[tcp.Sample]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", name, f.Tag.Get("unit"), f.Tag.Get("doc"))
		}
	}
	return out.String()
}

func modes() string {
	var out strings.Builder
	for _, c := range congestion.Own() {
		fmt.Fprintf(&out, "| `%s` | `%s` |\n", c.CC, strings.Join(c.Modes, "`, `"))
	}
	return strings.TrimSpace(out.String())
}
