package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// masqueraded lists the devices in the rules of the network net.
func masqueraded(t *testing.T, ns *testenv.NS) (devices []string) {
	t.Helper()
	ns.Do(t, func() {
		var err error
		if devices, err = podnet.Masqueraded("net"); err != nil {
			t.Fatal(err)
		}
	})
	return devices
}

// The daemon writes the rules that masquerade pods again when another program has deleted them, until the pod's record is gone.
func TestRootMasqueradeReturns(t *testing.T) {
	p := newPlace(t)
	host := testenv.NetNS(t)
	_, path, cookie := p.podNetNS(t, "a")
	record := pod.Pod{Network: "net", Container: "c1", Interface: "eth0", Namespace: "shop", Name: "web-1", NetNS: path, Cookie: cookie, Added: time.Now(),
		Made: true, Masqueraded: true, MasqueradeExcept: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}
	putRecord(t, p.path("pods"), &record)
	device := podnet.HostName(record.Key())
	host.Run(t, "ip", "link", "add", device, "type", "veth", "peer", "name", "peer0")
	p.rules(t, fmt.Sprintf("pods: {dir: %s}", p.path("pods")))
	host.Do(t, func() {
		if err := podnet.Masquerade("net", device, record.MasqueradeExcept); err != nil {
			t.Fatal(err)
		}
	})
	d := p.spawn(t, host)
	time.Sleep(500 * time.Millisecond) // the daemon has looked at the rules once
	if text := d.log.String(); strings.Contains(text, "masquerade") {
		t.Errorf("log:\n%s", text)
	}
	if _, err := exec.LookPath("nft"); err == nil {
		host.Run(t, "nft", "flush", "ruleset")
	} else {
		host.Do(t, func() {
			if err := podnet.Unmasquerade("net", device); err != nil {
				t.Fatal(err)
			}
		})
	}
	if list := masqueraded(t, host); list != nil {
		t.Fatalf("left %q", list)
	}
	await(t, "the rules", func() bool { return slices.Equal(masqueraded(t, host), []string{device}) })
	await(t, "the log", func() bool { return strings.Contains(d.log.String(), "are written again") })
	if text := d.log.String(); strings.Count(text, "are written again") != 1 ||
		!strings.Contains(text, `network=net pods=1 missing="there is no nftables table inet tcpilot-net"`) {
		t.Errorf("log:\n%s", text)
	}
}

// A program that keeps deleting the rules is answered at most once in rewriteInterval. An administrator who has detached tcpilot
// from pods, or has it only observe, keeps the rules as they are.
func TestRootMasqueradeRewrites(t *testing.T) {
	host := testenv.NetNS(t)
	host.Enter(t)
	host.Run(t, "ip", "link", "add", "tcp0", "type", "veth", "peer", "name", "peer0")
	var log bytes.Buffer
	d := &Daemon{log: slog.New(slog.NewTextHandler(&log, nil))}
	d.pods.masqueraded = map[string]*masquerading{"net": {devices: []string{"tcp0"}, latest: &pod.Pod{}}}
	now := time.Now()
	for i, c := range []struct {
		after    time.Duration
		mode     string
		detached bool
		want     bool
	}{
		{0, engine.ModeTune, false, true},
		{rewriteInterval - time.Second, engine.ModeTune, false, false},
		{time.Second, engine.ModeTune, false, true},
		{rewriteInterval, engine.ModeObserve, false, false},
		{0, engine.ModeTune, true, false},
		{0, engine.ModeTune, false, true},
	} {
		if err := podnet.Unmasquerade("net", "tcp0"); err != nil { // the table goes with it
			t.Fatal(err)
		}
		now = now.Add(c.after)
		d.cfg.Store(&config.Config{Mode: c.mode})
		d.podDevices.detached = c.detached
		d.masqueradePods(now)
		if devices := masqueraded(t, host); (len(devices) == 1) != c.want {
			t.Errorf("step %d: masqueraded %q", i, devices)
		}
	}
	if n := strings.Count(log.String(), "written again"); n != 3 {
		t.Errorf("%d messages:\n%s", n, &log)
	}
	d.pods.masqueraded = nil // the last pod has ended
	if d.masqueradePods(now); len(d.pods.rewrites) != 0 {
		t.Errorf("left %v", d.pods.rewrites)
	}
}
