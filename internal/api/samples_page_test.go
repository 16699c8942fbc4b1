package api_test

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const samplesPage = "../../docs/samples.md"

// TestMeasuresInDocumentation compares the rows of docs/samples.md between cc and cc_state
// with the tags of tcp.Sample, from which they are written.
func TestMeasuresInDocumentation(t *testing.T) {
	page, err := os.ReadFile(samplesPage)
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?s)(\n\\| `cc` [^\n]*\n)(.*?)(\\| `cc_state` )")
	if len(rows.FindAll(page, -1)) != 1 {
		t.Fatal("docs/samples.md has no rows cc and cc_state")
	}
	var out strings.Builder
	for f := range reflect.TypeFor[tcp.Sample]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", name, f.Tag.Get("unit"), f.Tag.Get("doc"))
		}
	}
	want := rows.ReplaceAll(page, []byte("${1}"+out.String()+"${3}"))
	if bytes.Equal(page, want) {
		return
	}
	if !*update {
		t.Fatal("docs/samples.md differs from the tags of tcp.Sample: make generate")
	}
	if err := os.WriteFile(samplesPage, want, 0o644); err != nil {
		t.Fatal(err)
	}
}
