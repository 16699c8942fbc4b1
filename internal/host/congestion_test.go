package host

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestCongestionControls(t *testing.T) {
	root := fakeSysctls(t, map[string]string{
		"net.ipv4.tcp_available_congestion_control": "reno bbr cubic\n", ccName: "bbr\n",
	})
	got, def, err := congestionControls(root)
	if want := []string{"reno", "bbr", "cubic"}; err != nil || !slices.Equal(got, want) || def != "bbr" {
		t.Errorf("%q, default %q, %v", got, def, err)
	}
	if _, _, err := congestionControls(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the sysctl: %v", err)
	}
}

func TestTryCongestionControl(t *testing.T) {
	for _, name := range []string{"", "sixteen_letters_"} {
		if err := TryCongestionControl(name); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	if err := TryCongestionControl("nosuchcc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that does not exist: %v", err)
	}
}

func TestRootTryCongestionControl(t *testing.T) {
	testenv.Root(t)
	available, def, err := CongestionControls()
	if err != nil || !slices.Contains(available, def) {
		t.Fatalf("%q, default %q, %v", available, def, err)
	}
	for _, name := range available {
		if err := TryCongestionControl(name); err != nil {
			t.Error(err)
		}
	}
}
