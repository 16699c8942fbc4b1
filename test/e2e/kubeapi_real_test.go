package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
)

// With a real API server, a changed annotation is in force within a second for the pod's new connections, and for
// no other's; one that is wrong becomes an event of the pod.
func TestRealAPIServer(t *testing.T) {
	a := kubeapitest.FromEnvironment()
	if a == nil {
		t.Skip("TCPILOT_KUBEAPI names no API server")
	}
	const namespace = "/api/v1/namespaces/shop"
	for _, o := range [][2]string{{"/api/v1/namespaces", `{"metadata":{"name":"shop"}}`}, {namespace + "/serviceaccounts", `{"metadata":{"name":"default"}}`}} {
		if status, answer := a.Do(t, "POST", o[0], "application/json", o[1]); status/100 != 2 && status != http.StatusConflict {
			t.Fatal(answer)
		}
	}
	a.Must(t, "DELETE", namespace+"/events", "", "")
	uids := map[string]string{}
	for _, name := range []string{"web", "db"} {
		a.Do(t, "DELETE", namespace+"/pods/"+name+"?gracePeriodSeconds=0", "", "")
		answer := a.Must(t, "POST", namespace+"/pods", "application/json", fmt.Sprintf(`{"metadata":{"name":%q,"annotations":{"tcpilot.io/congestion-control":"reno"}},
			"spec":{"nodeName":"here","containers":[{"name":"c","image":"x"}]}}`, name))
		var made struct{ Metadata struct{ UID string } }
		must(t, json.Unmarshal([]byte(answer), &made))
		uids[name] = made.Metadata.UID
	}
	x := newTwoPods(t, func(w *world) string { return kubeapitest.Kubeconfig(t, forward(t, w, a.URL), a.Token) })
	x.p.uids = uids
	x.p.plugin(t, "ADD", x.web, "web", nil)
	x.p.plugin(t, "ADD", x.db, "db", nil)
	x.expect(t, "annotated before its start", "reno", "reno")
	annotate := func(value string) {
		a.Must(t, "PATCH", namespace+"/pods/web", "application/merge-patch+json", fmt.Sprintf(`{"metadata":{"annotations":{"tcpilot.io/congestion-control":%q}}}`, value))
	}
	for range 10 {
		for _, cc := range []string{"bbr", "cubic", "reno"} {
			annotate(cc)
			if took := x.expect(t, "annotated "+cc, cc, "reno"); took > time.Second {
				t.Errorf("%v", took)
			}
		}
	}
	annotate("nonsense")
	x.expect(t, "a wrong annotation", "cubic", "reno")
	eventually(t, 10*time.Second, "the event", func() error {
		if text := a.Must(t, "GET", namespace+"/events", "", ""); !strings.Contains(text, "nonsense is not available here") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// forward makes a server reachable from the world's client, and returns its URL there.
func forward(t *testing.T, w *world, server string) string {
	t.Helper()
	var l net.Listener
	must(t, w.star.Client.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
	return kubeapitest.Forward(t, l, server)
}
