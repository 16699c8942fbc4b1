package cc

import (
	"errors"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// TestRootUnsupportedReason: this kernel loads each of tcpilot's own controls, or gives
// the reason why not. The only reason allowed is that it lacks links, and that is wrong
// if it has links.
func TestRootUnsupportedReason(t *testing.T) {
	testenv.Root(t)
	for _, o := range embedded() {
		err := o.try()
		t.Logf("%s: %v", o.name(), err)
		if err != nil && !errors.Is(err, errNoLinks) {
			t.Errorf("%s: %v", o.name(), err)
		}
	}
}

func TestEmbedded(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range embedded() {
		spec, err := o.spec()
		must(t, err)
		ops, err := opsMap(spec)
		must(t, err)
		name, err := member(ops, "name")
		must(t, err)
		if got := strings.TrimRight(string(name), "\x00"); got != o.name() || !congestion.IsOwn(o.CC) || len(got) > maxName || seen[got] {
			t.Errorf("%s calls itself %s", o.name(), got)
		}
		seen[o.name()] = true
		if needsECN(ops) != o.NeedsECN || o.Source == "" || len(o.Version) != 12 {
			t.Errorf("%+v", o)
		}
		for name, p := range spec.Programs {
			if !gplCompatible(p.License) {
				t.Errorf("%s has the license %q", name, p.License)
			}
		}
	}
}
