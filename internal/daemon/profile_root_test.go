package daemon

import (
	"log/slog"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

const (
	sackNr  = "net.ipv4.tcp_comp_sack_nr"
	unsent  = "net.ipv4.tcp_notsent_lowat"
	freshNr = "44" // of a new namespace
)

// profiledCookies are those of namespaces of profiled.
var profiledCookies = map[uint64]bool{}

// profiled is a namespace in which a process lives, without which it could not be found.
func profiled(t *testing.T) *testenv.NS {
	t.Helper()
	ns := testenv.NetNS(t)
	process := exec.Command("sleep", "60")
	ns.Do(t, func() {
		if err := process.Start(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	cookie, err := netns.Cookie(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	profiledCookies[cookie] = true
	return ns
}

func readIn(t *testing.T, ns *testenv.NS, name string) (value string) {
	t.Helper()
	ns.Do(t, func() {
		var err error
		if value, err = sysctl.Read(name); err != nil {
			t.Error(err)
		}
	})
	return value
}

// newProfileIn is a profile of a daemon whose own namespace is ns.
func newProfileIn(t *testing.T, cfg *config.Config, ns *testenv.NS) (p *profile) {
	t.Helper()
	ns.Do(t, func() {
		s, err := newSysctls(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.close() })
		if p, err = newProfile(cfg, s, s.log); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.netNSList.Close() })
	})
	all := p.listed
	p.listed = func() (list []host.NetNS, changed bool, err error) { // not those of other tests
		list, changed, err = all()
		return slices.DeleteFunc(slices.Clone(list), func(n host.NetNS) bool { return !profiledCookies[n.Cookie] }), changed, err
	}
	p.fresh = map[string]string{sackNr: freshNr, unsent: "4294967295"}
	return p
}

// The profile is given to all namespaces, except where the owner has set a value; the old value is
// restored afterwards, unless someone has changed it meanwhile.
func TestRootHostProfile(t *testing.T) {
	testenv.Root(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Host = config.Host{NetNS: "all", Sysctls: config.HostSysctls{sackNr: "7", unsent: "1048576"}}
	own, other, owned, changed := profiled(t), profiled(t), profiled(t), profiled(t)
	testenv.Sysctl(t, own, sackNr, "20") // the configuration decides in the daemon's own
	testenv.Sysctl(t, owned, sackNr, "30")
	p := newProfileIn(t, cfg, own)
	in := func(f func()) { own.Do(t, f) }
	want := func(when string, values map[*testenv.NS]string) {
		t.Helper()
		for ns, v := range values {
			if got := readIn(t, ns, sackNr); got != v {
				t.Errorf("%s: %s is %s in %s, want %s", when, sackNr, got, ns.Path(), v)
			}
		}
	}
	in(func() { p.poll(time.Now(), true) })
	want("in mode observe", map[*testenv.NS]string{own: "20", other: freshNr, owned: "30", changed: freshNr})
	in(func() { p.poll(time.Now(), false) })
	want("given", map[*testenv.NS]string{own: "7", other: "7", owned: "30", changed: "7"})
	if got := readIn(t, owned, unsent); got != "1048576" {
		t.Errorf("%s is %s where only another sysctl is its owner's", unsent, got)
	}
	if len(p.state()) != 7 || p.problem != "" {
		t.Errorf("status shows %+v, problem %q", p.state(), p.problem)
	}
	testenv.Sysctl(t, changed, sackNr, "9") // an administrator's
	late := profiled(t)
	in(func() { p.poll(time.Now(), false) })
	want("later", map[*testenv.NS]string{late: "7", changed: "9"})

	// A crash: another process takes everything back.
	next := newProfileIn(t, cfg, own)
	in(func() {
		undone, err := next.adoptAndRestore()
		if err != nil || len(undone) != 8 {
			t.Errorf("taken back: %q, %v", undone, err)
		}
	})
	want("taken back", map[*testenv.NS]string{own: "20", other: freshNr, owned: "30", changed: "9", late: freshNr})
	if got := readIn(t, other, unsent); got != "4294967295" {
		t.Errorf("%s is %s at the end", unsent, got)
	}
	if next.journal.exists() {
		t.Error("the journal is still there")
	}
}

// A sysctl that the kernel does not have is reported, and the others are set.
func TestRootHostProfileOfAnotherKernel(t *testing.T) {
	testenv.Root(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Host.Sysctls = config.HostSysctls{"net.ipv4.tcp_of_the_future": "1", sackNr: "7"}
	own, other := profiled(t), profiled(t)
	p := newProfileIn(t, cfg, own)
	own.Do(t, func() { p.poll(time.Now(), false) })
	if got := readIn(t, own, sackNr); got != "7" || p.problem == "" {
		t.Errorf("%s is %s, problem %q", sackNr, got, p.problem)
	}
	if got := readIn(t, other, sackNr); got != freshNr {
		t.Errorf("another namespace got %s", got)
	}
	own.Do(t, func() {
		if _, err := p.restore(); err != nil {
			t.Error(err)
		}
	})
	if got := readIn(t, own, sackNr); got != freshNr {
		t.Errorf("afterwards it is %s", got)
	}
}

// The process of a namespace's path moves to another namespace: neither is written by the other's name, and the
// journal keeps the entries of the first.
func TestRootHostProfileOfAMovedProcess(t *testing.T) {
	testenv.Root(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Host = config.Host{NetNS: "all", Sysctls: config.HostSysctls{sackNr: "7"}}
	own, other, late, moved := profiled(t), profiled(t), profiled(t), testenv.NetNS(t)
	p := newProfileIn(t, cfg, own)
	all, goneFrom := p.listed, map[uint64]bool{}
	p.listed = func() (list []host.NetNS, changed bool, err error) {
		list, _, err = all()
		for i, ns := range list {
			if goneFrom[ns.Cookie] {
				list[i].Path = moved.Path()
			}
		}
		return list, true, err
	}
	cookie := func(ns *testenv.NS) uint64 {
		c, err := netns.Cookie(ns.Path())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	goneFrom[cookie(late)] = true
	own.Do(t, func() { p.poll(time.Now(), false) })
	goneFrom[cookie(other)] = true
	own.Do(t, func() { p.poll(time.Now(), false) })
	for ns, want := range map[*testenv.NS]string{own: "7", other: "7", late: freshNr, moved: freshNr} {
		if got := readIn(t, ns, sackNr); got != want {
			t.Errorf("%s is %s in %s, want %s", sackNr, got, ns.Path(), want)
		}
	}
	if p.problem != "" || len(p.given) != 2 {
		t.Errorf("problem %q, given %+v", p.problem, p.given)
	}
	clear(goneFrom)
	own.Do(t, func() {
		p.poll(time.Now(), false)
		if undone, err := p.restore(); err != nil || len(undone) != 3 {
			t.Errorf("taken back: %q, %v", undone, err)
		}
	})
	if got := readIn(t, other, sackNr); got != freshNr {
		t.Errorf("at the end %s is %s", sackNr, got)
	}
}

// What an earlier tcpilot gave and could not be taken back is still known under a configuration with another value.
func TestRootHostProfileLeftOver(t *testing.T) {
	testenv.Root(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Host.Sysctls = config.HostSysctls{sackNr: "9"}
	own := profiled(t)
	testenv.Sysctl(t, own, sackNr, "7")
	p := newProfileIn(t, cfg, own)
	old := given{NetNS: p.sysctls.own, Name: sackNr, Original: "20", Value: "7"}
	p.given[old.where()] = old
	own.Do(t, func() {
		p.poll(time.Now(), false)
		if _, err := p.restore(); err != nil {
			t.Error(err)
		}
	})
	if got := readIn(t, own, sackNr); got != "20" {
		t.Errorf("at the end %s is %s, want 20", sackNr, got)
	}
}

func TestProfileJournal(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	j := profileJournal(cfg)
	g := given{NetNS: 1 << 60, Name: sackNr, Original: "44", Value: "7", At: 17}
	if err := j.write([]given{g}); err != nil {
		t.Fatal(err)
	}
	if got, err := j.read(); len(got) != 1 || got[0] != g || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
