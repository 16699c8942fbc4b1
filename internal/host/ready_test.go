package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// Only devices with hardware behind them count, and a payload of a page needs room for its headers.
func TestCards(t *testing.T) {
	dir := t.TempDir()
	write := func(name, file, text string) {
		if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var devices []net.Interface
	for i, name := range []string{"big", "just", "small", "veth", "elsewhere"} {
		d := net.Interface{Index: i + 2, Name: name, MTU: []int{9000, 4168, 4167, 1500, 9000}[i], HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}}
		devices = append(devices, d)
		if err := os.MkdirAll(filepath.Join(dir, name, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(name, "ifindex", fmt.Sprint(d.Index))
		write(name, "address", d.HardwareAddr.String())
	}
	if err := os.Remove(filepath.Join(dir, "veth", "device")); err != nil {
		t.Fatal(err)
	}
	// In the network namespace that sysfs shows, another device has the name.
	write("elsewhere", "address", "02:00:00:00:00:ff")
	got := map[string]Ready{}
	for _, r := range cards(dir, devices) {
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
