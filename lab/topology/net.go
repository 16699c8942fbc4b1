package topology

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/thread"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// Net is one emulated network. Its methods may be called from any goroutine.
type Net struct {
	id runID

	mu     sync.Mutex
	undo   undo.Stack
	closed bool
}

// New starts an empty network.
func New() (*Net, error) {
	id, err := newRunID()
	if err != nil {
		return nil, err
	}
	return &Net{id: id}, nil
}

// ID is the run id that the names of this network contain.
func (n *Net) ID() string { return n.id.String() }

// errClosed is the error of calls that add to a network after Close, which a signal
// may call while the network is being built.
var errClosed = errors.New("the network is closed")

// onClose adds a step to those that Close runs. If the network is closed already, the step
// runs at once, and the error says that the network is closed.
func (n *Net) onClose(f func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.Join(errClosed, f())
	}
	n.undo.Push("", f)
	return nil
}

// Close undoes everything in reverse order: processes, links, cgroups,
// namespaces. A second call does nothing.
func (n *Net) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	return n.undo.Run()
}

// Host adds a host: a network namespace with lo up.
func (n *Net) Host(name string) (*Host, error) {
	full := n.id.name(name)
	ns, err := newNamed(full)
	if err != nil {
		return nil, fmt.Errorf("add host %s: %w", name, err)
	}
	h := &Host{Name: name, net: n, ns: ns, Namespace: full}
	if err := n.onClose(func() error { return errors.Join(ns.Close(), killNamespace(h.Path())) }); err != nil {
		return nil, fmt.Errorf("add host %s: %w", name, err)
	}
	if h.link, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", name, err)
	}
	if err := n.onClose(func() error { h.link.Close(); return nil }); err != nil {
		return nil, fmt.Errorf("add host %s: %w", name, err)
	}
	lo, err := h.link.LinkByName("lo")
	if err == nil {
		err = h.link.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("set lo of %s up: %w", name, err)
	}
	return h, nil
}

// newNamed makes a namespace as `ip netns add` does.
func newNamed(name string) (ns vnetns.NsHandle, err error) {
	if err := prepareNetnsDir(); err != nil {
		return vnetns.None(), err
	}
	err = thread.Apart(func() (err error) { ns, err = vnetns.NewNamed(name); return err })
	return ns, err
}
