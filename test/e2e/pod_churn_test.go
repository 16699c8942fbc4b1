package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// mainNode is a node, the world's client, whose pods tcpilot-cni makes as the main plugin, with
// addresses of host-local.
type mainNode struct {
	*world
	*tcpilot
	leases string // directory of host-local
}

func newMainNode(t *testing.T) *mainNode {
	t.Helper()
	w := newPlainWorld(t, "far")
	p := newTcpilot(t, w, settings{})
	n := &mainNode{world: w, tcpilot: p, leases: filepath.Join(p.dir, "leases")}
	hostLocal, err := exec.Command("go", "tool", "-n", "host-local").Output() // builds it, and prints its path; of the CNI project
	must(t, err)
	must(t, os.Symlink(strings.TrimSpace(string(hostLocal)), filepath.Join(p.dir, "host-local")))
	must(t, w.star.Client.SetSysctl("net.ipv4.ip_forward", "1"))
	p.configure(t, settings{keys: fmt.Sprintf("pods: {dir: %s/pods, host_routing: on, devices: [%s]}\n", p.dir, w.star.Access.Device),
		rules: "  - {name: all, learn: {arms: [cubic]}}\n"})
	return n
}

// main is cni as the main plugin, which makes eth0 of the pod.
func (n *mainNode) main(ctx context.Context, command, pod, netns string, keys map[string]any) error {
	conf := map[string]any{"ipMasq": true,
		"ipam": map[string]any{"type": "host-local", "dataDir": n.leases, "ranges": []any{[]any{map[string]string{"subnet": "10.88.0.0/16"}}}}}
	maps.Copy(conf, keys)
	_, _, err := n.cni(ctx, command, pod, "eth0", netns, conf)
	return err
}

// left is what pods have left on the node: devices, routes, tables and addresses, records, and pinned programs.
func (n *mainNode) left(t *testing.T) (names []string) {
	t.Helper()
	for _, args := range []string{"-br link", "-4 route"} {
		out, err := n.star.Client.Run("ip", strings.Fields(args)...)
		must(t, err)
		for line := range strings.Lines(out) {
			names = append(names, strings.Join(strings.Fields(line), " "))
		}
	}
	must(t, n.star.Client.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		for _, table := range tables {
			names = append(names, "table "+table.Name)
		}
		return err
	}))
	for _, pattern := range []string{n.leases + "/net/*", n.dir + "/pods/*", n.dir + "/bpf/*/pods/links/*"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, f := range files {
			name := filepath.Base(f)
			if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(f, "/net/") { // host-local keeps files of its own there
				names = append(names, name)
			}
		}
	}
	return names
}

// podChurn adds and deletes pods, 8 at a time. For every fifth pod, the plugin is killed during ADD or DEL,
// and the runtime forgets the pod. It returns how long the other ADDs took.
func (n *mainNode) podChurn(t *testing.T, pods int) (took []time.Duration, killed int) {
	t.Helper()
	const workers = 8
	var mu sync.Mutex
	var group sync.WaitGroup
	for worker := range workers {
		ns, err := n.net.Host(fmt.Sprint("pod", worker))
		must(t, err)
		random := rand.New(rand.NewPCG(uint64(worker), 1))
		group.Go(func() {
			for i := range pods / workers {
				container := fmt.Sprintf("c%d-%d", worker, i)
				keys := map[string]any{"runtimeConfig": map[string]any{
					"io.kubernetes.cri.pod-annotations": map[string]string{"kubernetes.io/egress-bandwidth": "50M"}}}
				if i%5 == 4 {
					for _, command := range []string{"ADD", "DEL"}[:1+random.IntN(2)] {
						ctx, stop := context.WithTimeout(t.Context(), time.Duration(random.IntN(120))*time.Millisecond)
						if err := n.main(ctx, command, container, ns.Path(), keys); err != nil && ctx.Err() == nil {
							t.Error(err)
						} else if err != nil {
							mu.Lock()
							killed++
							mu.Unlock()
						}
						stop()
					}
					ns.Run("ip", "link", "del", "eth0") // as the end of a namespace does; perhaps there is none
					continue
				}
				begin := time.Now()
				err := n.main(t.Context(), "ADD", container, ns.Path(), keys)
				added := time.Since(begin)
				if err == nil {
					err = n.main(t.Context(), "DEL", container, ns.Path(), keys)
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				took = append(took, added)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(took)
	return took, killed
}

// Pods come and go while the plugin and the daemon are killed at random points. A connection of another pod goes on, and
// the runtime's GC leaves nothing but that pod.
func TestRootPodsComeAndGo(t *testing.T) {
	t.Parallel()
	pods := 120
	if full() {
		pods = 1000
	}
	n := newMainNode(t)
	before := n.left(t)
	n.start(t)
	stays, err := n.net.Host("stays")
	must(t, err)
	must(t, n.main(t.Context(), "ADD", "stays", stays.Path(), nil))
	withOne := n.left(t)

	flow := startExchange(t, stays, n.remotes[0].Host, n.remotes[0].Addr4)
	done := make(chan struct{})
	var took []time.Duration
	var killed, daemons int
	go func() {
		defer close(done)
		took, killed = n.podChurn(t, pods)
	}()
	for random := rand.New(rand.NewPCG(1, 2)); ; daemons++ {
		select {
		case <-done:
		case <-time.After(time.Duration(random.IntN(1500)) * time.Millisecond):
			n.kill()
			n.launch(t)
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			n.kill() // perhaps while it starts
			n.start(t)
			continue
		}
		break
	}
	t.Logf("%d pods, %d processes of the plugin and %d of the daemon were killed; ADD took %v in the median, p99 %v",
		pods, killed, 2*daemons, took[len(took)/2], took[len(took)*99/100])
	if killed < pods/20 || daemons < 1 {
		t.Errorf("%d processes of the plugin were killed, and %d of the daemon", killed, 2*daemons)
	}
	if err := flow.end(); err != nil {
		t.Errorf("the connection of the pod that stays: %v", err)
	}
	t.Logf("its %d turns took %v at most", flow.turns, flow.longest)

	gc := map[string]any{"cni.dev/valid-attachments": []any{map[string]string{"containerID": "stays", "ifname": "eth0"}}}
	must(t, n.main(t.Context(), "GC", "", "", gc))
	expect := func(when string, want []string) {
		t.Helper()
		eventually(t, 15*time.Second, when, func() error {
			if got := n.left(t); !slices.Equal(got, want) {
				return fmt.Errorf("the node has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			return nil
		})
	}
	expect("only the pod that stays is left", withOne)
	if list := ask[api.PodList](t, n.tcpilot, "pods").Pods; len(list) != 1 || list[0].Name != "stays" {
		t.Errorf("pods %+v", list)
	}
	must(t, n.main(t.Context(), "DEL", "stays", stays.Path(), nil))
	n.stop(t)
	expect("nothing is left", before)
}

// exchange is requests and responses of 20 kB on one connection, one after the other.
type exchange struct {
	stop    atomic.Bool
	done    chan error
	turns   int
	longest time.Duration
}

func startExchange(t *testing.T, from, to *topology.Host, address netip.Addr) *exchange {
	t.Helper()
	var l net.Listener
	var c net.Conn
	must(t, to.Do(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(address, 0).String()); return err }))
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	must(t, from.Do(func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err }))
	return exchangeOn(c, time.Millisecond)
}

// exchangeOn uses a connection to a server that sends back what it gets, with a pause after each turn, and closes it at the end.
func exchangeOn(c net.Conn, pause time.Duration) *exchange {
	x := &exchange{done: make(chan error, 1)}
	go func() {
		defer c.Close()
		x.done <- x.run(c, pause)
	}()
	return x
}

func (x *exchange) run(c net.Conn, pause time.Duration) error {
	for data := make([]byte, 20_000); !x.stop.Load(); x.turns++ {
		begin := time.Now()
		if err := c.SetDeadline(begin.Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(data); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, data); err != nil {
			return err
		}
		x.longest = max(x.longest, time.Since(begin))
		time.Sleep(pause)
	}
	return nil
}

// end ends the connection, and returns why it had ended before, if it had.
func (x *exchange) end() error {
	x.stop.Store(true)
	return <-x.done
}
