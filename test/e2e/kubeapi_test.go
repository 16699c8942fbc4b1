package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// twoPods is a daemon that asks an API server, and two pods of its host; the rest of the host has cubic.
type twoPods struct {
	*world
	p           *tcpilot
	web, db     *topology.Host
	inWeb, inDB *load.Agent
}

// newTwoPods needs the kubeconfig of a server that is reached from the world's client, where the daemon is.
func newTwoPods(t *testing.T, kubeconfig func(w *world) string) *twoPods {
	t.Helper()
	w := newPlainWorld(t, "far", "web", "db")
	x := &twoPods{world: w, web: w.remotes[1].Host, db: w.remotes[2].Host}
	x.inWeb, x.inDB = w.agent(t, x.web, w.cgroup), w.agent(t, x.db, w.cgroup)
	x.p = newTcpilot(t, w, settings{})
	x.p.configure(t, settings{keys: fmt.Sprintf("pods: {dir: %s/pods, kubernetes: {kubeconfig: %s, node: here}}\n", x.p.dir, kubeconfig(w)),
		rules: "  - {name: bulk, match: {pod: {annotation: {tcpilot.io/profile: bulk}}}, set: {cc: bbr}}\n" +
			"  - {name: others, match: {remote: [10.0.0.0/8]}, set: {cc: cubic}}\n"})
	x.p.start(t)
	return x
}

// cc is what a new connection gets.
func (x *twoPods) cc(t *testing.T, a *load.Agent) string {
	t.Helper()
	return bulk(t, a, load.BulkSpec{To: at(x.remotes[0].Addr4), Duration: 20 * time.Millisecond}).CCStart
}

// expect waits until new connections of the pod web have a congestion control, and checks that those of the pod
// db and of the host have others. It returns how long that took.
func (x *twoPods) expect(t *testing.T, when, web, db string) time.Duration {
	t.Helper()
	begun := time.Now()
	eventually(t, 10*time.Second, when, func() error {
		if got := x.cc(t, x.inWeb); got != web {
			return fmt.Errorf("%s, want %s", got, web)
		}
		return nil
	})
	took := time.Since(begun)
	t.Logf("%s: in force within %v", when, took.Round(time.Millisecond))
	if got := x.cc(t, x.inDB); got != db {
		t.Errorf("%s, another pod: %s, want %s", when, got, db)
	}
	if got := x.cc(t, x.client); got != "cubic" {
		t.Errorf("%s, the host: %s, want cubic", when, got)
	}
	return took
}

// An annotation that is changed at the API server decides about the pod's new connections, and about no other pod's. Without
// the API server, pods start, and what was known holds.
func TestRootAnnotationsOfTheAPIServer(t *testing.T) {
	t.Parallel()
	var server *kubeapitest.Server
	x := newTwoPods(t, func(w *world) string {
		var l net.Listener // where the daemon is
		must(t, w.star.Client.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
		server = kubeapitest.New(t, l)
		return server.Kubeconfig(t, "secret")
	})
	put := func(uid string, annotations map[string]string) {
		server.Put(kubeapitest.Pod{Namespace: "shop", Name: strings.TrimPrefix(uid, "uid-"), UID: uid, Node: "here", Annotations: annotations})
	}
	annotate := func(uid, cc string) {
		if cc == "" {
			put(uid, nil)
			return
		}
		put(uid, map[string]string{"tcpilot.io/congestion-control": cc})
	}
	eventsOf := func(texts ...string) {
		t.Helper()
		eventually(t, 10*time.Second, "the events", func() error {
			events := server.Events()
			for i, text := range texts {
				if len(events) != len(texts) || events[i].InvolvedObject.UID != "uid-web" || !strings.Contains(events[i].Message, text) {
					return fmt.Errorf("%+v", events)
				}
			}
			return nil
		})
	}
	annotate("uid-web", "reno")
	annotate("uid-db", "bbr")
	x.p.plugin(t, "ADD", x.web, "web", nil)
	x.p.plugin(t, "ADD", x.db, "db", nil)
	x.expect(t, "annotated before its start", "reno", "bbr")
	annotate("uid-web", "bbr")
	x.expect(t, "annotated anew", "bbr", "bbr")
	annotate("uid-db", "")
	server.Put(kubeapitest.Pod{Namespace: "shop", Name: "web", UID: "the next one", Node: "here", Annotations: map[string]string{"tcpilot.io/congestion-control": "reno"}})
	annotate("uid-web", "nonsense")
	x.expect(t, "a wrong annotation", "cubic", "cubic")
	eventsOf("nonsense is not available here")
	put("uid-web", map[string]string{"tcpilot.io/profile": "bulk"})
	x.expect(t, "a profile", "bbr", "cubic")
	put("uid-web", map[string]string{"tcpilot.io/profile": "blk"})
	x.expect(t, "a profile that there is not", "cubic", "cubic")
	eventsOf("nonsense is not available here", `no rule for this pod has the profile "blk"`)
	if out, err := x.p.run(t, "pods"); err != nil || !strings.Contains(string(out), `no rule for this pod has the profile "blk"`) {
		t.Errorf("%s, %v", out, err)
	}
	annotate("uid-web", "")
	x.expect(t, "without an annotation", "cubic", "cubic")
	annotate("uid-web", "reno")
	x.expect(t, "annotated again", "reno", "cubic")

	server.Hold()
	x.p.plugin(t, "DEL", x.web, "web", nil)
	x.p.plugin(t, "ADD", x.web, "web", nil)
	x.expect(t, "a start while the API server does not answer", "reno", "cubic")
	server.Refuse(http.StatusUnauthorized)
	server.Release()
	x.p.plugin(t, "DEL", x.web, "web", nil)
	x.expect(t, "after DEL", "cubic", "cubic")
	x.p.plugin(t, "ADD", x.web, "web", nil)
	x.expect(t, "a start while the API server refuses", "reno", "cubic")
	eventually(t, 20*time.Second, "the status", func() error {
		if d := strings.Join(x.p.status(t).Degraded, "\n"); !strings.Contains(d, "does not accept the credentials (401)") {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
}
