package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/kubeapi"
	"github.com/tcpilot/tcpilot/internal/routes"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// nodeRoutes are the routes to the pods of the other nodes (pods.node_routes), one for each network of pods of a node, by the node's
// address. They have a routing protocol of their own, by which those of an earlier process are found. All others are left alone.
type nodeRoutes struct {
	log     *slog.Logger
	watcher atomic.Pointer[kubeapi.NodeWatcher]
	changed chan struct{}
	routeTo func(netip.Addr) (rtnetlink.Route, error) // of the kernel

	mu       sync.Mutex // one round at a time
	detached bool       // on request, until the configuration is read again
	shown    atomic.Pointer[nodeRoutesView]
}

// nodeRoutesView is the outcome of a round. It is immutable.
type nodeRoutesView struct {
	made    int
	missing []missingRoute // in the order of the nodes' names
	failed  error          // why the round failed
}

// missingRoute is a network of pods to which there is no route.
type missingRoute struct {
	node    string
	network netip.Prefix
	why     string
}

func (m missingRoute) String() string {
	return fmt.Sprintf("%v of node %s: %s", m.network, m.node, m.why)
}

// podNetwork is a network of pods of another node, and the node's address.
type podNetwork struct {
	node    string
	network netip.Prefix
	gateway netip.Addr
}

// openNodeRoutes removes what an earlier process left, if no routes are wanted. Otherwise these stay until the nodes are known, so that
// the pods' traffic goes on.
func (d *Daemon) openNodeRoutes(u *undo.Stack) {
	d.nodeRoutes.log, d.nodeRoutes.changed, d.nodeRoutes.routeTo = d.log, make(chan struct{}, 1), rtnetlink.RouteTo
	u.Push("remove routes to pods of other nodes", func() error {
		d.nodeRoutes.mu.Lock()
		defer d.nodeRoutes.mu.Unlock()
		if d.keep() || !d.cfg.Load().Pods.RoutesNodes() { // removed at the start, below
			return nil
		}
		_, err := removeNodeRoutes()
		return err
	})
	if d.cfg.Load().Pods.RoutesNodes() {
		return
	}
	if n, err := removeNodeRoutes(); err != nil {
		d.log.Warn("routes to pods of other nodes that an earlier tcpilot left not removed", "error", err)
	} else if n > 0 {
		d.log.Info("routes to pods of other nodes that an earlier tcpilot left removed", "routes", n)
	}
}

// removeNodeRoutes removes all routes of tcpilot's protocol.
func removeNodeRoutes() (removed int, err error) {
	own, _, err := routes.PodRoutes(func(netip.Prefix) bool { return false })
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, r := range own {
		if err := routes.DeletePodRoute(r); err != nil {
			failed = append(failed, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(failed...)
}

// detachNodeRoutes is removeNodeRoutes when no daemon runs.
func detachNodeRoutes() (undone []string, err error) {
	n, err := removeNodeRoutes()
	if n > 0 {
		undone = append(undone, fmt.Sprintf("%d routes to pods of other nodes (proto %d)", n, routes.Protocol))
	}
	return undone, err
}

// nodeRoutesTasks are the tasks for these routes, if they are configured.
func (d *Daemon) nodeRoutesTasks(cfg *config.Config) []task {
	if !cfg.Pods.RoutesNodes() {
		return nil
	}
	return []task{
		{"nodes from the API server", func(ctx context.Context) error { return d.nodeRoutes.follow(ctx, &cfg.Pods.Kubernetes) }},
		{"routes to pods of other nodes", func(ctx context.Context) error { return d.nodeRoutes.hold(ctx, &cfg.Pods.Kubernetes) }},
	}
}

func (n *nodeRoutes) follow(ctx context.Context, cfg *config.Kubernetes) error {
	w := n.watcher.Load()
	if w == nil {
		var err error
		if w, err = kubeapi.OpenNodes(cfg.Kubeconfig, n.tell); err != nil {
			return err
		}
		n.watcher.Store(w)
	}
	return w.Run(ctx)
}

// tell asks for a round.
func (n *nodeRoutes) tell() {
	select {
	case n.changed <- struct{}{}:
	default: // it is asked for already
	}
}

// hold makes a round when nodes have changed, and every watchInterval, because the kernel removes routes when their device goes down.
func (n *nodeRoutes) hold(ctx context.Context, cfg *config.Kubernetes) error {
	self, err := nodeName(cfg)
	if err != nil {
		return err
	}
	for {
		if w := n.watcher.Load(); w != nil {
			if nodes, known := w.Nodes(); known {
				n.round(self, nodes)
			}
		}
		now := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		case <-time.After(now.Truncate(watchInterval).Add(watchInterval).Sub(now)):
		}
	}
}

// round makes the routes those to the pods of the nodes.
func (n *nodeRoutes) round(self string, nodes []kubeapi.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.detached {
		return
	}
	v := &nodeRoutesView{}
	wanted, missing, err := planNodeRoutes(self, nodes)
	if err == nil {
		v.made, v.missing, err = n.apply(wanted, missing)
	}
	v.failed = err
	before := n.shown.Swap(v)
	if err != nil && (before == nil || !isSame(before.failed, err)) {
		n.log.Warn("routes to pods of other nodes not looked at", "error", err)
	}
	for _, m := range v.missing {
		if before == nil || !slices.Contains(before.missing, m) {
			n.log.Warn("no route to pods of another node", "node", m.node, "network", m.network, "why", m.why)
		}
	}
}

// planNodeRoutes says to which networks of pods there should be routes, and to which there cannot be. A network has to be one of
// pods, as the controller of nodes gives them: a route to what else a Node object may have would cut this host off.
func planNodeRoutes(self string, nodes []kubeapi.Node) (wanted []podNetwork, missing []missingRoute, err error) {
	at := slices.IndexFunc(nodes, func(n kubeapi.Node) bool { return n.Name == self })
	if at < 0 {
		return nil, nil, fmt.Errorf("the API server knows no node %q: set pods.kubernetes.node to the name of this one", self)
	}
	taken := map[netip.Prefix]string{}
	for _, p := range nodes[at].PodCIDRs {
		taken[p] = self
	}
	for _, node := range nodes {
		if node.Name == self {
			continue
		}
		for _, network := range node.PodCIDRs {
			gateway, why := gatewayTo(network, node, nodes, taken)
			if why != "" {
				missing = append(missing, missingRoute{node.Name, network, why})
				continue
			}
			taken[network] = node.Name
			wanted = append(wanted, podNetwork{node.Name, network, gateway})
		}
	}
	return wanted, missing, nil
}

// gatewayTo is the address by which a network of a node is reached, or why it is not.
func gatewayTo(network netip.Prefix, node kubeapi.Node, nodes []kubeapi.Node, taken map[netip.Prefix]string) (gateway netip.Addr, why string) {
	if a := network.Addr(); network.Bits() == 0 || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return gateway, "it cannot be a network of pods"
	}
	first := netip.Prefix{} // so that the reason is the same in each round
	for other := range taken {
		if other.Overlaps(network) && (!first.IsValid() || other.String() < first.String()) {
			first = other
		}
	}
	if first.IsValid() {
		return gateway, fmt.Sprintf("it overlaps %v of node %s", first, taken[first])
	}
	for _, n := range nodes {
		for _, a := range n.Addresses {
			if network.Contains(a) {
				return gateway, fmt.Sprintf("it contains the address %v of node %s", a, n.Name)
			}
		}
	}
	for _, a := range node.Addresses {
		if a.Is4() == network.Addr().Is4() {
			return a, ""
		}
	}
	return gateway, "the node has no InternalIP of this family"
}

// apply adds and deletes routes, so that there are those that are wanted and possible.
func (n *nodeRoutes) apply(wanted []podNetwork, missing []missingRoute) (made int, _ []missingRoute, err error) {
	to := make(map[netip.Prefix]bool, len(wanted))
	for _, w := range wanted {
		to[w.network] = true
	}
	own, others, err := routes.PodRoutes(func(p netip.Prefix) bool { return to[p] })
	if err != nil {
		return 0, missing, err
	}
	var want []routes.PodRoute
	of := map[routes.PodRoute]podNetwork{}
	unknown := map[netip.Prefix]bool{} // networks to which it is not known whether there can be a route: what there is stays
	var failed []error
	for _, w := range wanted {
		r, why, err := n.possible(w, others)
		switch {
		case err != nil:
			failed, unknown[w.network] = append(failed, fmt.Errorf("look up the route to node %s: %w", w.node, err)), true
		case why != "":
			missing = append(missing, missingRoute{w.node, w.network, why})
		default:
			want, of[r] = append(want, r), w
		}
	}
	for _, r := range own {
		if unknown[r.Destination] {
			made++
			continue
		}
		if _, stays := of[r]; stays {
			continue
		}
		if err := routes.DeletePodRoute(r); err != nil {
			failed = append(failed, err)
			continue
		}
		n.log.Info("route to pods of another node removed", "network", r.Destination, "via", r.Gateway)
	}
	for _, r := range want {
		if slices.Contains(own, r) {
			made++
			continue
		}
		if err := routes.AddPodRoute(r); err != nil {
			missing = append(missing, missingRoute{of[r].node, of[r].network, err.Error()})
			continue
		}
		made++
		n.log.Info("route to pods of another node added", "node", of[r].node, "network", r.Destination, "via", r.Gateway)
	}
	slices.SortStableFunc(missing, func(a, b missingRoute) int { return cmp.Compare(a.node, b.node) })
	return made, missing, errors.Join(failed...)
}

// possible is the route to a network, or why there cannot be one; or an error if that could not be found out. others are the protocols of the routes that others have to such networks.
func (n *nodeRoutes) possible(w podNetwork, others map[netip.Prefix]uint8) (r routes.PodRoute, why string, err error) {
	if protocol, there := others[w.network]; there {
		return r, fmt.Sprintf("somebody else has a route to it (proto %d), which stays", protocol), nil
	}
	hop, err := n.routeTo(w.gateway)
	switch {
	case err != nil:
		return r, "", err
	case hop.Local:
		why = fmt.Sprintf("the node's address %v is one of this host", w.gateway)
	case hop.Device == 0:
		why = fmt.Sprintf("there is no route to the node's address %v", w.gateway)
	case hop.Router || hop.Encapsulates:
		why = fmt.Sprintf("the node's address %v is behind a router, which would have to have a route to the pods: give it one, or use another network plugin", w.gateway)
	}
	return routes.PodRoute{Destination: w.network, Gateway: w.gateway, Device: hop.Device}, why, nil
}

// detach removes the routes until the next reload.
func (n *nodeRoutes) detach() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.detached = true
	_, err := removeNodeRoutes()
	n.shown.Store(&nodeRoutesView{failed: cmp.Or(err, errDetached)})
	return err
}

// reload ends detach.
func (n *nodeRoutes) reload() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.detached = false
	n.tell()
}

// shownMissing is how many missing routes a feature lists.
const shownMissing = 5

// feature describes the routes as a feature.
func (n *nodeRoutes) feature() api.Feature {
	f := api.Feature{Name: "routes to pods of other nodes", Wanted: true}
	v := n.shown.Load()
	switch {
	case v == nil:
		f.Why = "the nodes are not known yet: routes of an earlier tcpilot stay"
	case v.failed != nil:
		f.Why = v.failed.Error()
	case len(v.missing) > 0:
		var why []string
		for _, m := range v.missing[:min(len(v.missing), shownMissing)] {
			why = append(why, m.String())
		}
		if more := len(v.missing) - shownMissing; more > 0 {
			why = append(why, fmt.Sprintf("%d more", more))
		}
		f.Why = fmt.Sprintf("%d routes; none to %s", v.made, strings.Join(why, "; "))
	default:
		f.Active = true
	}
	return f
}
