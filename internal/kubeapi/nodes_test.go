package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
)

// followed is a watcher of nodes.
type followed struct {
	w       *NodeWatcher
	changed chan struct{}
	failed  chan error
}

// nodes is a watcher of the nodes of a server of the tests.
type nodes struct {
	*kubeapitest.Server
	*followed
}

func startNodes(t *testing.T) *nodes {
	t.Helper()
	s := kubeapitest.New(t, nil)
	s.PutNode(kubeapitest.Node{Name: "a", UID: "1", PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}, Addresses: []string{"192.0.2.1", "2001:db8::1"}})
	return &nodes{s, followNodes(t, s.Kubeconfig(t, "secret"))}
}

// followNodes starts a watcher.
func followNodes(t *testing.T, kubeconfig string) *followed {
	t.Helper()
	x := &followed{changed: make(chan struct{}, 100), failed: make(chan error, 100)}
	w, err := OpenNodes(kubeconfig, func() { x.changed <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	x.w = w
	if _, known := w.Nodes(); known {
		t.Error("known before the server was asked")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := w.Run(ctx); err != nil {
				x.failed <- err
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return x
}

func (x *followed) expect(t *testing.T, want string) {
	t.Helper()
	for limit := time.After(10 * time.Second); ; {
		list, known := x.w.Nodes()
		if got := fmt.Sprint(list); known && got == want {
			return
		}
		select {
		case <-x.changed:
		case <-limit:
			t.Fatalf("%v, %v; want %s", list, known, want)
		}
	}
}

func TestFollowsTheNodes(t *testing.T) {
	x := startNodes(t)
	const a = "{a [10.1.0.0/24 fd00:1::/64] [192.0.2.1 2001:db8::1]}"
	x.expect(t, "["+a+"]")
	// What is no network or address is left out.
	x.PutNode(kubeapitest.Node{Name: "b", UID: "2", PodCIDRs: []string{"10.1.1.7/24", "x"}, Addresses: []string{"", "::ffff:192.0.2.2"}})
	x.expect(t, "["+a+" {b [10.1.1.0/24] [192.0.2.2]}]")
	for len(x.changed) > 0 {
		<-x.changed
	}
	x.PutNode(kubeapitest.Node{Name: "b", UID: "2", PodCIDRs: []string{"10.1.1.0/24"}, Addresses: []string{"192.0.2.2"}}) // the same, as kubelets write
	x.Put(annotated("1", "one"))
	x.PutNode(kubeapitest.Node{Name: "c", UID: "3"})
	<-x.changed
	x.expect(t, "["+a+" {b [10.1.1.0/24] [192.0.2.2]} {c [] []}]")
	if len(x.changed) != 0 {
		t.Errorf("%d more changes", len(x.changed))
	}
	x.DeleteNode("1")
	x.DeleteNode("3")
	x.expect(t, "[{b [10.1.1.0/24] [192.0.2.2]}]")
}

// While the server refuses, what was known stays known.
func TestNodesStayKnown(t *testing.T) {
	x := startNodes(t)
	const a = "[{a [10.1.0.0/24 fd00:1::/64] [192.0.2.1 2001:db8::1]}]"
	x.expect(t, a)
	x.Refuse(http.StatusForbidden)
	var err error
	for err = <-x.failed; !strings.Contains(err.Error(), "403"); err = <-x.failed {
	}
	if !strings.Contains(err.Error(), "follow nodes") || !strings.Contains(err.Error(), "main plugin also nodes") {
		t.Error(err)
	}
	x.expect(t, a)
	x.DeleteNode("1")
	x.Refuse(0)
	x.expect(t, "[]")
}

func TestReadNode(t *testing.T) {
	s := kubeapitest.New(t, nil)
	s.PutNode(kubeapitest.Node{Name: "a", UID: "1", PodCIDRs: []string{"10.1.0.0/24"}})
	if n, err := ReadNode(t.Context(), s.Kubeconfig(t, "secret"), "a"); err != nil || fmt.Sprint(n) != "{a [10.1.0.0/24] []}" {
		t.Errorf("%v, %v", n, err)
	}
	if _, err := ReadNode(t.Context(), s.Kubeconfig(t, "secret"), "b"); err == nil || !strings.Contains(err.Error(), `read node b`) || !strings.Contains(err.Error(), "404") {
		t.Errorf("a node that is not there: %v", err)
	}
	if _, err := ReadNode(t.Context(), s.Kubeconfig(t, "wrong"), "a"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a wrong token: %v", err)
	}
}
