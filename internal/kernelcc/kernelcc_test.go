package kernelcc

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTry(t *testing.T) {
	for _, name := range []string{"", "sixteen_letters_"} {
		if err := Try(name); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	if err := Try("nosuchcc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that does not exist: %v", err)
	}
}

func TestRootTry(t *testing.T) {
	testenv.Root(t)
	available, err := Available()
	def, err2 := Default()
	if err != nil || err2 != nil || !slices.Contains(available, def) {
		t.Fatalf("%q, %v; default %q, %v", available, err, def, err2)
	}
	for _, name := range available {
		if err := Try(name); err != nil {
			t.Error(err)
		}
	}
}
