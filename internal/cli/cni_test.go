package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestCNIInstallNeedsTheDaemon(t *testing.T) {
	w := newWorld(t)
	var asked []CNIOptions
	w.env.InstallCNI = func(o CNIOptions) (CNIChange, error) {
		asked = append(asked, o)
		return CNIChange{Changed: []string{"added tcpilot-cni to 10-x.conflist, behind portmap"}}, nil
	}
	if r := w.runPlain(t.Context(), "cni", "install", "--socket", t.TempDir()+"/none.sock"); r.code != 3 || asked != nil || !strings.Contains(r.stderr, "not installed before the daemon is ready") {
		t.Errorf("without a daemon: %+v, asked %+v", r, asked)
	}
	r := w.run(t.Context(), "cni", "install", "--conf-dir", "/c", "--bin-dir", "/b")
	if r.code != 0 || r.stdout != "added tcpilot-cni to 10-x.conflist, behind portmap\n" || len(asked) != 1 {
		t.Fatalf("%+v, asked %+v", r, asked)
	}
	if o := asked[0]; o.ConfDir != "/c" || o.BinDir != "/b" || o.Socket != w.socket || o.Records != "/var/lib/tcpilot/pods" {
		t.Errorf("asked for %+v", o)
	}
	w.env.InstallCNI = func(CNIOptions) (CNIChange, error) { return CNIChange{Changed: []string{}}, nil }
	if r := w.run(t.Context(), "cni", "install"); r.stdout != "nothing to do: the plugin is installed\n" {
		t.Errorf("%+v", r)
	}
	w.env.InstallCNI = func(CNIOptions) (CNIChange, error) {
		return CNIChange{Changed: []string{}, Warning: "a has the plugin bandwidth"}, nil
	}
	if r := w.run(t.Context(), "cni", "install"); r.stdout != "nothing to do: the plugin is installed\nwarning: a has the plugin bandwidth\n" {
		t.Errorf("%+v", r)
	}
	w.env.InstallCNI = func(CNIOptions) (CNIChange, error) { return CNIChange{Changed: []string{}}, nil }
	if r := w.run(t.Context(), "cni", "install", "--json"); strings.Join(strings.Fields(r.stdout), "") != `{"changed":[]}` {
		t.Errorf("%+v", r)
	}
}

// --follow waits for what is missing, says it once, and goes on after the plugin is installed.
func TestCNIInstallFollows(t *testing.T) {
	w := newWorld(t)
	calls := 0
	w.env.InstallCNI = func(CNIOptions) (CNIChange, error) {
		if calls++; calls < 3 {
			return CNIChange{}, errors.New("no network configuration")
		}
		return CNIChange{Changed: []string{"added"}}, nil
	}
	r := w.runUntil(t.Context(), "added", 1, "cni", "install", "--follow")
	if r.code != 0 || calls < 3 || r.stdout != "added\n" || r.stderr != "no network configuration; trying again\n" {
		t.Errorf("%d calls, %+v", calls, r)
	}
}

func TestCNIUninstall(t *testing.T) {
	w := newWorld(t)
	var asked CNIOptions
	w.env.UninstallCNI = func(o CNIOptions) (CNIChange, error) {
		asked = o
		return CNIChange{Changed: []string{"removed tcpilot-cni from a"}, Stays: "/opt/cni/bin/tcpilot-cni stays: 2 interfaces"}, nil
	}
	r := w.run(t.Context(), "cni", "uninstall", "--force")
	if r.code != 0 || r.stdout != "removed tcpilot-cni from a\n/opt/cni/bin/tcpilot-cni stays: 2 interfaces\n" || !asked.Force {
		t.Errorf("%+v, asked %+v", r, asked)
	}
	w.env.UninstallCNI = func(CNIOptions) (CNIChange, error) {
		return CNIChange{Changed: []string{}, Stays: "it stays", Waits: []string{"shop/web-1"}}, nil
	}
	if r := w.run(t.Context(), "cni", "uninstall", "--json"); r.code != 0 || strings.Join(strings.Fields(r.stdout), "") != `{"changed":[],"stays":"itstays","waits":["shop/web-1"]}` {
		t.Errorf("%+v", r)
	}
	w.env.UninstallCNI = func(CNIOptions) (CNIChange, error) { return CNIChange{}, errors.New("no such directory") }
	if r := w.run(t.Context(), "cni", "uninstall"); r.code != 1 || !strings.Contains(r.stderr, "no such directory") {
		t.Errorf("%+v", r)
	}
	w.env.UninstallCNI = func(CNIOptions) (CNIChange, error) { return CNIChange{}, nil }
	if r := w.run(t.Context(), "cni", "uninstall"); r.stdout != "nothing to do: the plugin is not installed\n" {
		t.Errorf("%+v", r)
	}
}

// --follow writes a warning, too.
func TestCNIInstallFollowsWithAWarning(t *testing.T) {
	w := newWorld(t)
	calls := 0
	w.env.InstallCNI = func(CNIOptions) (CNIChange, error) {
		if calls++; calls == 1 {
			return CNIChange{}, errors.New("no network configuration")
		}
		return CNIChange{Changed: []string{"added"}, Warning: "a has the plugin bandwidth"}, nil
	}
	r := w.runUntil(t.Context(), "added", 1, "cni", "install", "--follow")
	if r.code != 0 || r.stderr != "no network configuration; trying again\nwarning: a has the plugin bandwidth\n" {
		t.Errorf("%+v", r)
	}
}

func TestRemovalWaits(t *testing.T) {
	for _, c := range []struct {
		pods      []string
		sandboxes int
		want      string
	}{
		{[]string{"a"}, 2, "for the end of pod a"},
		{[]string{"a", "b"}, 0, "for the end of 2 pods: a, b"},
		{[]string{"a", "b", "c", "d", "e", "f"}, 0, "for the end of 6 pods: a, b, c, d, e and others"},
		{nil, 2, "for the container runtime, which removes what it has of ended pods: 2"},
		{nil, 0, ""},
	} {
		if got := RemovalWaits(c.pods, c.sandboxes); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// --follow repeats the removal until no pod needs the program, also after a failure, and does not end then.
func TestCNIUninstallFollows(t *testing.T) {
	w := newWorld(t)
	answers := []CNIChange{
		{Changed: []string{"removed tcpilot-cni from a"}, Stays: "it stays: 2"}, {Stays: "it stays: 2"}, {}, {Changed: []string{"removed it"}},
	}
	calls := 0
	w.env.UninstallCNI = func(o CNIOptions) (CNIChange, error) {
		if calls++; calls == 3 {
			return CNIChange{}, errors.New("busy")
		}
		if o.Force {
			t.Error("by force")
		}
		return answers[calls-1], nil
	}
	r := w.runUntil(t.Context(), "removed it\n", 1, "cni", "uninstall", "--follow")
	if want := "removed tcpilot-cni from a\nit stays: 2\nremoved it\n"; r.code != 0 || calls != 4 || r.stdout != want || r.stderr != "busy; trying again\n" {
		t.Errorf("%d calls, %+v", calls, r)
	}
	// A removal that fails at once is the end: the container is not ready then.
	w.env.UninstallCNI = func(CNIOptions) (CNIChange, error) { return CNIChange{}, errors.New("no such directory") }
	if r := w.run(t.Context(), "cni", "uninstall", "--follow"); r.code != 1 || !strings.Contains(r.stderr, "no such directory") {
		t.Errorf("%+v", r)
	}
}

// The networks of the node's pods are those of --pod-cidr, or of the API server, which is asked once.
func TestCNIInstallMain(t *testing.T) {
	w := newWorld(t)
	var asked CNIOptions
	w.env.InstallCNI = func(o CNIOptions) (CNIChange, error) { asked = o; return CNIChange{Changed: []string{"wrote it"}}, nil }
	w.env.PodCIDRs = func(context.Context, CNIOptions) ([]netip.Prefix, error) { return nil, errors.New("no answer") }
	r := w.run(t.Context(), "cni", "install", "--main", "--pod-cidr", "10.1.0.0/24,fd00:1::/64", "--cluster-cidr", "10.1.0.0/16")
	if r.code != 0 || !asked.Main || fmt.Sprint(asked.PodCIDRs) != "[10.1.0.0/24 fd00:1::/64]" || fmt.Sprint(asked.Cluster) != "[10.1.0.0/16]" {
		t.Errorf("%+v, asked %+v", r, asked)
	}
	if r := w.run(t.Context(), "cni", "install", "--main"); r.code != 1 || !strings.Contains(r.stderr, "no answer") {
		t.Errorf("%+v", r)
	}
	reads, calls := 0, 0
	w.env.PodCIDRs = func(_ context.Context, o CNIOptions) ([]netip.Prefix, error) {
		if reads++; o.Node != "n1" || o.Kubeconfig != "/k" {
			t.Errorf("asked %+v", o)
		}
		return []netip.Prefix{netip.MustParsePrefix("10.1.7.0/24")}, nil
	}
	w.env.InstallCNI = func(o CNIOptions) (CNIChange, error) {
		if asked = o; calls == 0 {
			calls++
			return CNIChange{}, errors.New("no portmap")
		}
		return CNIChange{Changed: []string{"wrote it"}}, nil
	}
	r = w.runUntil(t.Context(), "wrote it", 1, "cni", "install", "--main", "--follow", "--node", "n1", "--kubeconfig", "/k")
	if r.code != 0 || reads != 1 || fmt.Sprint(asked.PodCIDRs) != "[10.1.7.0/24]" || r.stderr != "no portmap; trying again\n" {
		t.Errorf("%d reads, %+v, asked %+v", reads, r, asked)
	}
	for _, args := range [][]string{{"--pod-cidr", "10.1.0.0/24"}, {"--main", "--pod-cidr", "10.1.0.1/24"}, {"--main", "--cluster-cidr", "x"}, {"--node", "n"}} {
		if r := w.run(t.Context(), append([]string{"cni", "install"}, args...)...); r.code != 2 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
