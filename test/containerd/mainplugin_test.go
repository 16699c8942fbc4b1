package containerd

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// The plugin makes pods' networks for the runtime: pods reach each other, the host, and with the host's address the
// outside, and are reached by the host and by a port of the host. Their end leaves nothing.
func TestMainPlugin(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	web := n.runPod(t, "web-1", map[string]string{"team": "blue"}, &portMapping{Container: 80, Host: 8080})
	db := n.runPod(t, "db-1", nil)
	inWeb, inDB := n.netns(t, web), n.netns(t, db)
	webAt, dbAt := n.addresses(t, web), n.addresses(t, db)
	if !slices.Equal(webAt, []string{"10.88.0.2", "fd88::2"}) || !slices.Equal(dbAt, []string{"10.88.0.3", "fd88::3"}) {
		t.Fatalf("the runtime reports the addresses %q and %q", webAt, dbAt)
	}
	if p := n.record(t, web); !p.Made || !p.Masqueraded || p.Name != "web-1" || p.Annotations["team"] != "blue" || len(p.Addresses) != 2 {
		t.Errorf("record %+v", p)
	}
	for i, at := range []struct{ host, outside netip.Addr }{{n.own.V4, n.wire.V4}, {n.own.V6, n.wire.V6}} {
		if got := reaches(t, inWeb, inDB, dbAt[i]); got.String() != webAt[i] {
			t.Errorf("a pod sees another one as %s", got)
		}
		if got := reaches(t, inWeb, n.host, at.host.String()); got.String() != webAt[i] {
			t.Errorf("the host sees a pod as %s", got)
		}
		reaches(t, n.host, inWeb, webAt[i])
		if got := reaches(t, inWeb, n.outside, at.outside.String()); got != at.host {
			t.Errorf("the outside sees a pod as %s, want %s", got, at.host)
		}
	}
	n.outside.Speak(t, inWeb, ":80", netip.AddrPortFrom(n.own.V4, 8080).String(), limit)
	if got := control(t, inWeb, inDB, dbAt[0]); got != "reno" {
		t.Errorf("a connection of web-1 has %s", got)
	}
	for _, s := range []sandbox{web, db} {
		must(t, n.stop(t.Context(), s.id))
	}
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// The configuration that 'cni install --main' writes is one that the runtime takes: pods have addresses of the node's networks, keep
// them to the cluster's networks, and get the host's elsewhere.
func TestInstallMain(t *testing.T) {
	n := newNode(t)
	out := n.host.Run(t, n.daemon.args[0], "cni", "install", "--main", "--conf-dir", n.path("net.d"), "--bin-dir", n.path("plugins"), "--pods-dir", n.path("pods"),
		"--socket", n.path("tcpilot.sock"), "--pod-cidr", "10.88.1.0/24,fd88:0:0:1::/64", "--cluster-cidr", "10.88.0.0/16,"+netip.PrefixFrom(n.wire.V6, 128).String())
	if want := "wrote " + n.path("net.d") + "/10-tcpilot.conflist, with tcpilot-cni as the main plugin and addresses of 10.88.1.0/24 and fd88:0:0:1::/64\n"; out != want {
		t.Fatalf("%q, want %q", out, want)
	}
	eventually(t, "the network is ready", func() error { _, err := n.networkReady(t.Context()); return err })
	web := n.runPod(t, "web-1", nil, &portMapping{Container: 80, Host: 8080})
	at := n.addresses(t, web)
	if !slices.Equal(at, []string{"10.88.1.2", "fd88:0:0:1::2"}) {
		t.Fatalf("the runtime reports the addresses %q", at)
	}
	inWeb := n.netns(t, web)
	reaches(t, n.host, inWeb, at[1])
	if got := reaches(t, inWeb, n.outside, n.wire.V4.String()); got != n.own.V4 {
		t.Errorf("the outside sees the pod as %s", got)
	}
	n.outside.Run(t, "ip", "-6", "route", "add", "fd88:0:0:1::/64", "via", n.own.V6.String())
	if got := reaches(t, inWeb, n.outside, n.wire.V6.String()); got.String() != at[1] {
		t.Errorf("what is excepted from masquerading sees the pod as %s", got)
	}
	n.outside.Speak(t, inWeb, ":80", netip.AddrPortFrom(n.own.V4, 8080).String(), limit)
	must(t, n.stop(t.Context(), web.id))
	n.expectNothing(t)
	left, err := filepath.Glob("/var/lib/cni/networks/tcpilot/*") // of the tests' own /var/lib
	must(t, err)
	left = slices.DeleteFunc(left, func(f string) bool { _, err := netip.ParseAddr(filepath.Base(f)); return err != nil }) // files of its own
	if len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// Pods whose network another configuration has made end without leaving anything: one of the main plugin when it is chained
// behind another one, and one of that plugin when tcpilot-cni is the main plugin.
func TestConfigurationIsChanged(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4, mainPlugin, portmap)
	web := n.runPod(t, "web-1", nil)
	n.configure(t, v4, ptp, portmap, chained)
	db := n.runPod(t, "db-1", nil)
	if made := [2]bool{n.record(t, web).Made, n.record(t, db).Made}; made != [2]bool{true, false} {
		t.Errorf("made %v", made)
	}
	t.Run("connections", func(t *testing.T) { // its end closes the namespaces: that of db-1 has to end with the pod
		inWeb, inDB := n.netns(t, web), n.netns(t, db)
		reaches(t, inWeb, inDB, n.addresses(t, db)[0])
		reaches(t, inDB, inWeb, n.addresses(t, web)[0])
	})
	must(t, n.stop(t.Context(), web.id))
	n.configure(t, v4, mainPlugin, portmap)
	must(t, n.stop(t.Context(), db.id))
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// Pods come and go 8 at a time, and leave nothing. The log says how long RunPodSandbox takes.
func TestManyPods(t *testing.T) {
	for _, c := range []struct {
		name, ranges, plugin string
		count                int
	}{
		{"ptp with IPv4", v4, ptp, 20},
		{"tcpilot-cni with IPv4", v4, mainPlugin, 20},
		{"ptp with both families", v4AndV6, ptp, 4}, // it is slow
		{"tcpilot-cni with both families", v4AndV6, mainPlugin, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.configure(t, c.ranges, c.plugin, portmap)
			took, ids := make([]time.Duration, c.count), make([]string, c.count)
			atOnce(c.count, func(i int) {
				begin := time.Now()
				s, err := n.tryRun(t.Context(), n.config(podName(i), nil))
				took[i], ids[i] = time.Since(begin), s.id
				if err != nil {
					t.Error(err)
				}
			})
			if c.plugin == mainPlugin {
				n.expectPods(t, c.count)
			}
			atOnce(c.count, func(i int) {
				if err := n.stop(t.Context(), ids[i]); err != nil {
					t.Error(err)
				}
			})
			n.expectNothing(t)
			slices.Sort(took)
			t.Logf("RunPodSandbox, %d pods 8 at a time: %v in the median, %v at most", c.count, took[c.count/2], took[c.count-1])
			alone := make([]time.Duration, min(3, c.count/4))
			for i := range alone {
				begin := time.Now()
				s := n.runPod(t, podName(i), nil)
				alone[i] = time.Since(begin)
				must(t, n.stop(t.Context(), s.id))
			}
			slices.Sort(alone)
			t.Logf("RunPodSandbox, one pod at a time: %v in the median", alone[len(alone)/2])
		})
	}
}
