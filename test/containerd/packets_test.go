package containerd

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// Host routing, BIG TCP and limits of bandwidth work for pods that the runtime makes, and leave nothing when they are switched
// off, or the pods end.
func TestPacketsOfPods(t *testing.T) {
	for _, c := range []struct {
		name    string
		plugins []string
	}{
		{"main plugin", []string{mainPlugin, portmap}},
		{"chained", []string{ptp, portmap, chained}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.configureDaemon(t, "dir: DIR/pods, host_routing: on, big_tcp: on")
			n.configure(t, v4AndV6, c.plugins...)
			web := n.runPod(t, "web-1", map[string]string{"kubernetes.io/egress-bandwidth": "200M"})
			db := n.runPod(t, "db-1", nil)
			for _, name := range []string{"web-1", "db-1"} {
				n.expectPod(t, name, func(p *api.Pod) bool {
					return p.Routing != nil && p.Routing.Active && p.BigTCP != nil && p.BigTCP.Active && (p.Egress != nil) == (name == "web-1")
				})
			}
			const size = 8 << 20
			for _, address := range n.addresses(t, web) {
				send(t, n.netns(t, db), n.netns(t, web), address, size)
			}
			send(t, n.netns(t, web), n.netns(t, db), n.addresses(t, db)[0], 1<<20)
			n.expectPod(t, "db-1", func(p *api.Pod) bool { return p.BigTCP.Sent > 0 && p.Egress == nil })
			n.expectPod(t, "web-1", func(p *api.Pod) bool {
				return p.BigTCP.Received > 0 && p.Egress.Limit == 200e6/8 && p.Egress.Passed > 1<<20
			})
			if routed := n.routed(t); routed < size/(192<<10) {
				t.Errorf("%d packets routed from pod to pod", routed)
			}
			n.configureDaemon(t, "dir: DIR/pods")
			for _, p := range n.pods(t).Pods {
				if p.Routing != nil || p.BigTCP != nil {
					t.Errorf("%s: host routing and BIG TCP go on: %+v", p.Name, p)
				}
			}
			send(t, n.netns(t, db), n.netns(t, web), n.addresses(t, web)[0], size)
			for _, s := range []sandbox{web, db} {
				must(t, n.stop(t.Context(), s.id))
			}
			n.expectNothing(t)
			n.expectPods(t, 0)
		})
	}
}

// configureDaemon gives tcpilot another part pods of its configuration.
func (n *node) configureDaemon(t *testing.T, pods string) {
	t.Helper()
	n.writeDaemonConfig(t, pods)
	_, err := n.tcpilot("reload")
	must(t, err)
}

func (n *node) pods(t *testing.T) (l api.PodList) {
	t.Helper()
	text, err := n.tcpilot("pods", "--json")
	must(t, err)
	must(t, json.Unmarshal([]byte(text), &l))
	return l
}

// expectPod waits until tcpilot says of a pod what it should.
func (n *node) expectPod(t *testing.T, name string, ok func(*api.Pod) bool) {
	t.Helper()
	eventually(t, "tcpilot pods says what it should of "+name, func() error {
		l := n.pods(t)
		for i := range l.Pods {
			if p := &l.Pods[i]; p.Name == name {
				if ok(p) {
					return nil
				}
				return fmt.Errorf("it says: host routing %+v, BIG TCP %+v, egress %+v, warning %q", p.Routing, p.BigTCP, p.Egress, p.Warning)
			}
		}
		return fmt.Errorf("%d pods, %d refused", len(l.Pods), len(l.Refused))
	})
}

// routed is the number of packets that were routed from pod to pod.
func (n *node) routed(t *testing.T) (count uint64) {
	t.Helper()
	for _, c := range n.pods(t).Packets {
		if c.Routed {
			count += c.Packets
		}
	}
	return count
}

// send sends bytes from one namespace to an address in another one, and waits until they have arrived.
func send(t *testing.T, from, to *testenv.NS, address string, size int) {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 0).String())
	defer l.Close()
	arrived := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			var got int64
			if got, err = io.Copy(io.Discard, c); err == nil && got != int64(size) {
				err = fmt.Errorf("%d of %d bytes have arrived", got, size)
			}
		}
		arrived <- err
	}()
	c := dial(t, from, l)
	_, err := c.Write(make([]byte, size))
	must(t, err)
	must(t, c.Close())
	must(t, <-arrived)
}
