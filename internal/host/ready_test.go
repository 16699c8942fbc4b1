package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// Only devices with hardware behind them count, and a payload of a page needs room for its headers.
func TestCards(t *testing.T) {
	dir := t.TempDir()
	for name, mtu := range map[string]string{"big": "9000\n", "just": "4168\n", "small": "4167\n", "veth": ""} {
		sub := filepath.Join(dir, name)
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if mtu == "" {
			continue
		}
		if err := os.Mkdir(filepath.Join(sub, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sub, "mtu"), []byte(mtu), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]Ready{}
	for _, r := range cards(dir) {
		got[r.What] = r
	}
	if len(got) != 6 {
		t.Errorf("%d rows, want two for each of three cards: %+v", len(got), got)
	}
	for name, want := range map[string]bool{"big": true, "just": true, "small": false} {
		if r := got[name+": payload of a page in each packet"]; r.Ready != want || !strings.Contains(r.Why, "MTU") {
			t.Errorf("%s: %+v", name, r)
		}
		if r := got[name+": GRO"]; r.Ready || r.Why == "" { // there is no such device
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The kernels that tests run on compress SACKs, and map sockets. Whether routes take timestamps in
// microseconds is the kernel's answer.
func TestRootCheckReady(t *testing.T) {
	testenv.Root(t)
	list := CheckReady()
	if len(list) < 3 {
		t.Fatalf("%+v", list)
	}
	for _, r := range list[:2] {
		if !r.Ready || r.Why == "" {
			t.Errorf("%+v", r)
		}
	}
	usec := list[2]
	if !usec.Ready && !strings.Contains(usec.Why, "invalid argument") { // before Linux 6.7
		t.Errorf("%+v", usec)
	}
}

// A device has GRO unless it was turned off.
func TestRootGRO(t *testing.T) {
	a, _ := testenv.Veth(t, testenv.NetNS(t), testenv.NetNS(t))
	a.NS.Do(t, func() {
		if _, err := groEnabled(a.Name); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
		if _, err := groEnabled("none"); err == nil {
			t.Error("no error for a device that is not there")
		}
	})
}
