package subject

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// defaultControls are the default congestion controls of all hosts.
func defaultControls(t *testing.T, w World) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, h := range w.Layout.Hosts {
		cc, err := h.Sysctl(kernelcc.DefaultKey)
		must(t, err)
		all[name] = cc
	}
	return all
}

func TestRootCongestionIsSetAndUndone(t *testing.T) {
	w := newWorld(t)
	before := look(t, w)
	own, err := kernelcc.Default()
	must(t, err)
	given := w
	given.Default = "cubic"
	for _, c := range []struct {
		spec  Spec
		tuned string
	}{
		{Spec{Kind: Default}, own},
		{Spec{Kind: Default, Name: "given"}, "cubic"},
		{Spec{Kind: Fixed, CC: "cubic"}, "cubic"},
		{Spec{Kind: Route, InitCwnd: 20}, "reno"},
		{Spec{Kind: Route, InitCwnd: 20, CC: "cubic"}, "cubic"},
	} {
		t.Run(c.spec.String(), func(t *testing.T) {
			w := w
			if c.spec.Name == "given" {
				w = given
			}
			s := newSubject(t, c.spec, w)
			for range 2 {
				must(t, s.Start(t.Context()))
				for name, got := range defaultControls(t, w) {
					want := "reno"
					if strings.HasPrefix(name, "sender") {
						want = c.tuned
					}
					if got != want {
						t.Errorf("%s has %s, want %s", name, got, want)
					}
				}
				if err := s.Start(t.Context()); err == nil {
					t.Error("it starts twice")
				}
				must(t, s.Stop(t.Context()))
				must(t, s.Stop(t.Context()))
				unchanged(t, w, before)
			}
		})
	}
}

// A congestion control of tcpilot's own is loaded by tcpilot, without a daemon.
func TestRootOwnCongestionControl(t *testing.T) {
	w := newWorld(t)
	bin, err := build()
	must(t, err)
	w.Binary = bin
	before := look(t, w)
	s, err := New(Spec{Name: "own", Kind: Fixed, CC: "tcpilot_cubic"}, w)
	if errors.Is(err, ErrUnavailable) {
		testenv.Missing(t, err.Error())
	}
	must(t, err)
	unchanged(t, w, before)
	for range 2 {
		must(t, s.Start(t.Context()))
		controls := defaultControls(t, w)
		if controls["sender1"] != "tcpilot_cubic" || controls["receiver1"] != "reno" {
			t.Errorf("the hosts have %v", controls)
		}
		must(t, s.Stop(t.Context()))
		unchanged(t, w, before)
	}
	must(t, s.Close())
}

func TestRootCongestionThatTheKernelLacks(t *testing.T) {
	w := newWorld(t)
	for _, s := range []Spec{
		{Name: "a", Kind: Fixed, CC: "nonesuch"},
		{Name: "a", Kind: Tcpilot, CC: "nonesuch"},
	} {
		if s.Kind == Tcpilot {
			w.Binary = "true"
		}
		if _, err := New(s, w); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "nonesuch") {
			t.Errorf("%s: %v", s.Kind, err)
		}
	}
}

func TestRootRouteIsSetAndUndone(t *testing.T) {
	w := newWorld(t)
	h := w.Layout.Hosts["sender1"]
	// An administrator's own attributes have to survive.
	for _, args := range []string{
		"-4 route change default via 10.77.0.2 mtu 1400 initcwnd 7 proto static",
		"-6 route add fd99::/64 via fd77:0:0::2 metric 77 advmss 1300",
	} {
		_, err := h.Run("ip", strings.Fields(args)...)
		must(t, err)
	}
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Route, InitCwnd: 33, InitRwnd: 44}, w)
	must(t, s.Start(t.Context()))
	for _, to := range []string{"10.77.2.2", "fd77:0:2::2", "fd99::1", "10.77.0.2"} {
		out, err := h.Run("ip", "route", "get", to)
		must(t, err)
		route, err := h.Run("ip", "route", "show", "match", to)
		must(t, err)
		if !strings.Contains(out+route, "initcwnd 33") || !strings.Contains(out+route, "initrwnd 44") {
			t.Errorf("the route to %s is\n%s%s", to, out, route)
		}
	}
	if out, _ := w.Layout.Hosts["receiver1"].Run("ip", "route"); strings.Contains(out, "initcwnd") {
		t.Errorf("a host that is not tuned has\n%s", out)
	}
	must(t, s.Stop(t.Context()))
	unchanged(t, w, before)
}

// outputs are the files that a command wrote in each host's directory.
func outputs(t *testing.T, w World, name string) []string {
	t.Helper()
	files, err := filepath.Glob("/run/tcpilot-" + w.Net.ID() + "-subject-*/*/" + name)
	must(t, err)
	return files
}

func TestRootCommandInTheForeground(t *testing.T) {
	w := newWorld(t)
	w.CC = "" // the machine's
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Command, Begin: `
		trap 'echo ends; touch "$TCPILOT_LAB_DIR/ended"; exit 3' TERM
		sysctl -qw net.ipv4.tcp_wmem='4096 8192 16384' # not undone by the command
		sysctl -qw net.ipv4.tcp_congestion_control=reno
		grep '^0::' /proc/self/cgroup
		echo "$TCPILOT_LAB_HOST $TCPILOT_LAB_CGROUP" >"$TCPILOT_LAB_DIR/new"
		mv "$TCPILOT_LAB_DIR/new" "$TCPILOT_LAB_DIR/host"
		sleep 100 & wait`}, w)
	if !s.Forgets() || !s.Learns() {
		t.Error("what a command learned is taken to be kept")
	}
	must(t, s.Start(t.Context()))
	var hosts []string
	for range 100 { // it does not say when it is ready
		if hosts = outputs(t, w, "host"); len(hosts) == 2 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(hosts) != 2 {
		t.Fatalf("it ran on %d hosts", len(hosts))
	}
	if cc := defaultControls(t, w)["sender1"]; cc != "reno" {
		t.Errorf("the congestion control is %s", cc)
	}
	if wmem, _ := w.Tuned[0].Sysctl("net.ipv4.tcp_wmem"); wmem != "4096\t8192\t16384" {
		t.Errorf("tcp_wmem is %q", wmem)
	}
	told, err := os.ReadFile(hosts[1])
	must(t, err)
	if want := "sender2 " + w.Cgroups["sender2"].Path + "\n"; string(told) != want {
		t.Errorf("it was told %q, want %q", told, want)
	}
	must(t, s.Stop(t.Context()))
	if n := len(outputs(t, w, "ended")); n != 2 {
		t.Errorf("%d of 2 were ended by SIGTERM", n)
	}
	for _, want := range []string{"sender1:\n", "ends", filepath.Base(w.Cgroups["sender1"].Path)} {
		if !strings.Contains(s.Log(), want) {
			t.Errorf("no %q in the log\n%s", want, s.Log())
		}
	}
	unchanged(t, w, before)
	must(t, s.Close())
	if left := outputs(t, w, "*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

func TestRootCommandWithEnd(t *testing.T) {
	w := newWorld(t)
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Command,
		Begin: `(while sleep 0.1; do echo still here; done) & echo $! >"$TCPILOT_LAB_DIR/pid"; sleep 0.2; touch "$TCPILOT_LAB_DIR/begun"`,
		End:   `kill "$(cat "$TCPILOT_LAB_DIR/pid")"; rm "$TCPILOT_LAB_DIR/begun"`}, w)
	must(t, s.Start(t.Context()))
	if n := len(outputs(t, w, "begun")); n != 2 {
		t.Errorf("%d of 2 had begun", n)
	}
	if slices.Equal(look(t, w), before) {
		t.Error("what it left running does not run")
	}
	time.Sleep(500 * time.Millisecond)
	must(t, s.Stop(t.Context()))
	if n := len(outputs(t, w, "begun")); n != 0 {
		t.Errorf("%d of 2 did not end", n)
	}
	if strings.Count(s.Log(), "still here") < 4 {
		t.Errorf("the log is\n%s", s.Log())
	}
	unchanged(t, w, before)
}

func TestRootCommandThatFails(t *testing.T) {
	w := newWorld(t)
	before := look(t, w)
	usual := settle
	settle = 2 * time.Second // a busy machine may take that long to run a command
	t.Cleanup(func() { settle = usual })
	for _, c := range []struct {
		name       string
		begin, end string
		want       string
	}{
		{"at once", "echo no such thing; exit 4", "", "begin on sender1 ended by itself: exit status 4\nno such thing"},
		{"on one host", "[ $TCPILOT_LAB_HOST = sender1 ] && exec sleep 100", "", "begin on sender2 ended by itself"},
		{"at its end", `echo half; sleep 100 & echo $! >"$TCPILOT_LAB_DIR/pid"; exit 5`, `kill "$(cat "$TCPILOT_LAB_DIR/pid")"`, "begin on sender1: exit status 5\nhalf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSubject(t, Spec{Kind: Command, Begin: c.begin, End: c.end}, w)
			if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			unchanged(t, w, before)
			must(t, s.Stop(t.Context()))
		})
	}
	t.Run("later", func(t *testing.T) {
		s := newSubject(t, Spec{Kind: Command, Begin: "sleep 3; echo I die"}, w)
		must(t, s.Start(t.Context()))
		time.Sleep(2 * time.Second)
		if err := s.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "ended by itself: exit status 0\nI die") {
			t.Errorf("stop: %v", err)
		}
		unchanged(t, w, before)
	})
}

func TestRootCommandThatDoesNotEndIsKilled(t *testing.T) {
	w := newWorld(t)
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Command, Begin: "trap '' TERM; while :; do sleep 0.1; done"}, w)
	const patience = 2 * time.Second
	for _, site := range s.(*subject).tuner.(*command).sites {
		site.patience = patience
	}
	must(t, s.Start(t.Context()))
	began := time.Now()
	err := s.Stop(t.Context())
	if err == nil || strings.Count(err.Error(), "was killed") != 2 {
		t.Errorf("stop: %v", err)
	}
	if took := time.Since(began); took < patience || took > patience+30*time.Second {
		t.Errorf("it took %s, want %s for both", took, patience)
	}
	unchanged(t, w, before)
}
