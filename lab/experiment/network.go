package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/scenario"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// network is a case's network: built, shaped, and with agents on its hosts.
type network struct {
	net     *topology.Net
	layout  *topology.Layout
	cgroups map[string]*topology.Cgroup
	links   map[string]duplex
	backend link.Backend
	// How to calibrate: see calibrate.Want.
	quick, emulated, ipv6 bool
	fleet                 *workload.Fleet
	undo                  undo.Stack // before net.Close
	anyHost               bool       // of Options
}

// duplex is an emulated link, both directions.
type duplex struct {
	scenario.Link
	wire              *topology.Wire
	forward, backward *link.Direction
}

// sysctls are the settings of all hosts of the lab, unless a case overrides them.
var sysctls = map[string]string{
	// Otherwise the kernel would carry path metrics over from one subject's connections to
	// the next subject's.
	"net.ipv4.tcp_no_metrics_save": "1",
	// Many short connections need many ports, also those of closed connections.
	"net.ipv4.ip_local_port_range": "1024 65535",
	"net.ipv4.tcp_tw_reuse":        "1",
}

// build makes the network of a case; b must not be link.Auto, so that all links have the
// same backend.
func build(ctx context.Context, c scenario.Case, b link.Backend) (_ *network, err error) {
	n := &network{cgroups: map[string]*topology.Cgroup{}, links: map[string]duplex{}, backend: b}
	if n.net, err = topology.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.layout, err = topology.Build(n.net, c.Graph); err != nil {
		return nil, fmt.Errorf("build network: %w", err)
	}
	if err := n.prepareHosts(c); err != nil {
		return nil, err
	}
	for _, w := range n.layout.Wires {
		l, ok := c.Links[w.Name]
		if !ok && len(c.Graph.Pods) > 0 {
			continue // left as it is, with its offloads: only what connects the pods differs between subjects
		}
		if err := n.shape(w, l); err != nil {
			return nil, fmt.Errorf("make link %s: %w", w.Name, err)
		}
	}
	n.fleet, err = workload.Start(ctx, n.layout, func(host string) load.Placer { return n.cgroups[host] })
	if err != nil {
		return nil, fmt.Errorf("start agents: %w", err)
	}
	n.undo.Push("", n.fleet.Close)
	return n, nil
}

func (n *network) prepareHosts(c scenario.Case) (err error) {
	settings := maps.Clone(sysctls)
	maps.Copy(settings, c.Sysctls)
	spread := slices.ContainsFunc(c.Traffic, func(s workload.Spec) bool { return s.Paths > 1 })
	for _, h := range slices.Concat(n.layout.Senders, n.layout.Receivers) {
		if err := n.addCgroup(h); err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(settings)) {
			if err := h.SetSysctl(key, settings[key]); err != nil {
				return err
			}
		}
	}
	if spread {
		return n.layout.Spread(n.layout.Receivers[0])
	}
	return nil
}

// addCgroup makes the cgroup of a host; that of a pod is in its node's.
func (n *network) addCgroup(h *topology.Host) (err error) {
	node := n.layout.Place(h)
	if n.cgroups[node.Name] == nil {
		if n.cgroups[node.Name], err = n.net.Cgroup(node.Name); err != nil || node == h {
			return err
		}
	}
	n.cgroups[h.Name], err = n.cgroups[node.Name].Child(n.net, h.Name)
	return err
}

func (n *network) shape(w *topology.Wire, l scenario.Link) (err error) {
	d := duplex{Link: l, wire: w}
	if d.forward, err = link.Shape(link.Ends{From: w.From, To: w.To}, l.Forward, n.backend); err != nil {
		return err
	}
	n.undo.Push("", d.forward.Close)
	if d.backward, err = link.Shape(link.Ends{From: w.To, To: w.From}, l.Backward, n.backend); err != nil {
		return err
	}
	n.undo.Push("", d.backward.Close)
	n.links[w.Name] = d
	return nil
}

// close removes everything.
func (n *network) close() error {
	return errors.Join(n.undo.Run(), n.net.Close())
}
