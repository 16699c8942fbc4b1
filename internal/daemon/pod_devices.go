package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podlink"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// routingAnnotation is the annotation by which a pod's packets take the host's stack.
const routingAnnotation = "tcpilot.io/host-routing"

// podDevices are the programs on the network devices of pods. The methods that change something need
// pods.mu.
type podDevices struct {
	links    *podlink.Links // nil as long as nothing is wanted, or they are not available
	detached bool           // on request, until the configuration is read again
	// Until the configuration is read again, what failed is not tried again.
	failed    error // why there are no programs
	noRouting error // why the programs cannot route; they are loaded anew when connection tracking comes
	// conntrack: the kernel had its module when the programs were loaded.
	conntrack bool
	shown     atomic.Pointer[podDevicesView]
}

// podDevicesView is what is known of one time. It is immutable.
type podDevicesView struct {
	wanted    bool  // packets are to be routed
	failed    error // why they are not
	unlimited error // why bandwidth is not limited
	missing   podlink.Missing
	links     *podlink.Links // for its counters
	big       bigTCPView
}

// view is what is known now.
func (p *podDevices) view() *podDevicesView {
	if v := p.shown.Load(); v != nil {
		return v
	}
	return &podDevicesView{}
}

// podPins is the directory of the pins of pods' devices.
func podPins(bpffs string) string { return filepath.Join(datapath.PinDir(bpffs), "pods") }

// openPodDevices takes over what an earlier process left at the devices of pods, or removes it.
func (d *Daemon) openPodDevices(u *undo.Stack) {
	d.pods.mu.Lock()
	defer d.pods.mu.Unlock()
	u.Push("close programs of pods' devices", func() error {
		d.pods.mu.Lock()
		defer d.pods.mu.Unlock()
		return d.closePodDevices(d.keep())
	})
	d.bigTCP = newBigTCP(d.cfg.Load(), d.log)
	if err := d.bigTCP.adopt(); err != nil {
		d.log.Warn("sizes of packets that an earlier tcpilot has set are not known", "error", err)
	}
	if d.wantedOfPods() == nil {
		if removed, err := podlink.Remove(podPins(d.bpffs)); err != nil {
			d.log.Warn("programs that an earlier tcpilot left at devices of pods not removed", "error", err)
		} else if removed {
			d.log.Info("programs that an earlier tcpilot left at devices of pods removed")
		}
	}
	d.followPodDevices()
}

// closePodDevices ends the use of pods' devices; with keep, programs and sizes stay.
func (d *Daemon) closePodDevices(keep bool) (err error) {
	if !keep {
		err = d.bigTCP.restore(func(*resized) bool { return true })
	}
	return errors.Join(err, d.podDevices.close(keep))
}

// close ends the use of the programs; with keep they stay attached.
func (p *podDevices) close(keep bool) (err error) {
	if p.links == nil {
		return nil
	}
	if keep {
		err = p.links.Close()
	} else {
		err = p.links.Detach()
	}
	p.links = nil
	return err
}

// mayRouteNow reports whether programs that could not route could if they were loaded anew: tcpilot may start before what
// loads the kernel's connection tracking.
func (p *podDevices) mayRouteNow() bool { return p.noRouting != nil && !p.conntrack && hasConntrack() }

func hasConntrack() bool {
	_, err := os.Stat("/sys/module/nf_conntrack")
	return err == nil
}

// renew has the programs loaded anew, with what is attached kept, if they cannot route.
func (p *podDevices) renew() error {
	if p.noRouting == nil {
		return nil
	}
	p.noRouting = nil
	return p.close(true)
}

// routesPods reports whether packets of pods are to be routed now. The caller has pods.mu.
func (d *Daemon) routesPods() bool {
	cfg := d.cfg.Load()
	return cfg.Pods.RoutesHost() && cfg.Mode != engine.ModeObserve && !d.podDevices.detached
}

// wantedOfPods is what should be at the devices of the present pods; nil for nothing. The caller has
// pods.mu.
func (d *Daemon) wantedOfPods() *podlink.Wanted {
	if d.podDevices.detached {
		return nil
	}
	cfg, route, limits := d.cfg.Load(), d.routesPods() && d.podDevices.noRouting == nil, d.bandwidths()
	big := d.wantsBigTCP() && d.bigTCP.refused == nil
	if !route && len(limits) == 0 && !big {
		return nil
	}
	w := &podlink.Wanted{}
	if route {
		w.Devices, w.Networks = cfg.Pods.Devices, cfg.Pods.Networks
	}
	for _, p := range d.pods.now().All() {
		value, asks := p.Annotations[routingAnnotation]
		one := podlink.Pod{Pod: p, Route: route && (!asks || value == "on"), Limits: limits[p.Cookie], Big: d.wantsBig(p)}
		if one.Route || one.Big || one.Limits != (pod.Bandwidth{}) {
			w.Pods = append(w.Pods, one)
		}
	}
	return w
}

// followPodDevices attaches programs at the devices of the present pods, and removes them elsewhere. The
// caller has pods.mu.
func (d *Daemon) followPodDevices() {
	p := &d.podDevices
	before := p.view()
	if p.mayRouteNow() {
		d.log.Info("the kernel has connection tracking now: packets of pods may be routed")
		if err := p.renew(); err != nil {
			d.log.Warn("programs of pods' devices not closed", "error", err)
		}
	}
	d.findBigPath()
	w := d.wantedOfPods()
	if w != nil && p.links == nil && p.failed == nil {
		d.openPodLinks()
		w = d.wantedOfPods()
	}
	v := &podDevicesView{wanted: d.routesPods(), failed: cmp.Or(p.failed, p.noRouting), unlimited: p.failed}
	if p.detached {
		v.unlimited = errDetached
	}
	switch {
	case w == nil:
		if err := p.close(false); err != nil {
			d.log.Warn("programs of pods' devices not removed", "error", err)
		}
	case p.links != nil:
		v.links = p.links
		var err error
		if v.missing, err = p.links.Set(w); err != nil && !isSame(before.unlimited, err) {
			d.log.Warn("devices of pods not all set", "error", err)
		}
		v.failed, v.unlimited = cmp.Or(err, p.noRouting), err
		d.logMissing(&before.missing, &v.missing)
	}
	v.big = d.followBigTCP(w, v, &before.big)
	p.shown.Store(v)
}

// openPodLinks loads the programs, and finds out whether they can route.
func (d *Daemon) openPodLinks() {
	p, conntrack := &d.podDevices, hasConntrack()
	if p.links, p.failed = podlink.Open(podPins(d.bpffs), d.log); p.failed == nil {
		p.conntrack, p.noRouting = conntrack, p.links.CanRoute()
	}
	if err := cmp.Or(p.failed, p.noRouting); err != nil && d.routesPods() {
		d.log.Error("packets of pods take the host's stack", "error", err)
	}
	if p.failed != nil && len(d.bandwidths()) > 0 {
		d.log.Error("only TCP that pods send is limited", "error", p.failed)
	}
}

// reloadPodDevices follows a new configuration.
func (d *Daemon) reloadPodDevices() {
	d.pods.mu.Lock()
	defer d.pods.mu.Unlock()
	d.podDevices.detached, d.podDevices.failed = false, nil
	if err := d.podDevices.renew(); err != nil {
		d.log.Warn("programs of pods' devices not closed", "error", err)
	}
	clear(d.bigTCP.left)
	d.followPodDevices()
}

// routingWarnings lists the devices of host routing that this host does not have.
func routingWarnings(c *config.Pods) (list []string) {
	for _, name := range c.Devices {
		if _, err := net.InterfaceByName(name); err != nil {
			list = append(list, fmt.Sprintf("pods.devices: there is no device %s here", name))
		}
	}
	return list
}

// Bypassed lists what packets of pods bypass by a configuration; nothing unless host routing is on.
func Bypassed(file string) ([]string, error) {
	cfg, err := config.Load(file)
	if err != nil || !cfg.Pods.RoutesHost() {
		return nil, err
	}
	return []string{"pods.host_routing: TCP and UDP packets between pods, and between pods and pods.networks, bypass netfilter (chain FORWARD, and so network " +
		"policies by iptables or nftables; connection tracking), IPsec policies, rp_filter, and tc filters of their devices that run after tcpilot's programs (docs/pods.md)"}, nil
}

// DetachPods implements api.Backend.
func (d *Daemon) DetachPods(context.Context) error {
	d.pods.mu.Lock()
	defer d.pods.mu.Unlock()
	d.podDevices.detached = true
	err := d.podDevices.close(false)
	if err == nil {
		_, err = podlink.Remove(podPins(d.bpffs)) // what is left if the programs could not be loaded anew
	}
	d.followPodDevices()
	if d.cfg.Load().Pods.RoutesNodes() {
		err = errors.Join(err, d.nodeRoutes.detach())
	}
	if err == nil {
		d.log.Info("packets of all pods take the host's stack until the next reload")
	}
	return err
}

// isSame reports whether two errors say the same.
func isSame(a, b error) bool { return a != nil && b != nil && a.Error() == b.Error() }

// logMissing logs what is not in force, unless it was not for the same reason before.
func (d *Daemon) logMissing(before, now *podlink.Missing) {
	for _, name := range slices.Sorted(maps.Keys(now.Devices)) {
		if err := now.Devices[name]; !isSame(before.Devices[name], err) {
			d.log.Warn("packets from other hosts for pods take the host's stack", "device", name, "error", err)
		}
	}
	for cookie, err := range now.Pods {
		if !isSame(before.Pods[cookie], err) {
			d.log.Warn("no programs at the device of a pod", "pod", d.PodName(cookie), "error", err)
		}
	}
	for cookie, err := range now.Routes {
		if !isSame(before.Routes[cookie], err) {
			d.log.Warn("packets of a pod take the host's stack", "pod", d.PodName(cookie), "error", err)
		}
	}
}

// routingFeature describes host routing of pods as a feature.
func (d *Daemon) routingFeature() api.Feature {
	v, cfg := d.podDevices.view(), d.cfg.Load()
	f := api.Feature{Name: featureRouting, Wanted: cfg.Pods.RoutesHost(), Active: v.wanted && v.links != nil && v.failed == nil}
	if f.Active {
		f.Why = podlink.WithoutTCX()
	}
	var why []error
	switch {
	case v.wanted && v.failed != nil:
		why = append(why, v.failed)
	case f.Wanted && !v.wanted:
		why = append(why, errors.New(notNow(cfg)))
	}
	for _, name := range slices.Sorted(maps.Keys(v.missing.Devices)) {
		why = append(why, fmt.Errorf("packets that arrive at device %s: %w", name, v.missing.Devices[name]))
	}
	if err := errors.Join(why...); err != nil {
		f.Active, f.Why = false, err.Error()
	}
	return f
}

// featureRouting is the feature's name in status and doctor.
const featureRouting = "tcx or tc filters: packets of pods are routed without the host's stack"

// triedRouting says whether this kernel supports host routing, found by trying.
func triedRouting(wanted bool) api.Feature {
	f := api.Feature{Name: featureRouting, Wanted: wanted, Active: wanted, Why: podlink.WithoutTCX()}
	if err := podlink.Try(); err != nil {
		f.Active, f.Why = false, err.Error()
	} else if !wanted {
		f.Why = strings.TrimPrefix(f.Why+"; this kernel can do it; pods.host_routing is off", "; ")
	}
	return f
}

var errDetached = errors.New("detached on request; 'tcpilot reload' attaches it again")

func notNow(cfg *config.Config) string {
	if cfg.Mode == engine.ModeObserve {
		return "mode is observe"
	}
	return errDetached.Error()
}

// podRouting says whether the packets of a pod are routed by programs; nil if that is not configured.
func (v *podDevicesView) podRouting(p *pod.Pod) *api.PodRouting {
	wrong := wrongSwitch(p, routingAnnotation)
	switch {
	case !v.wanted:
		return nil
	case p.Annotations[routingAnnotation] == "off":
		return &api.PodRouting{Why: "annotation " + routingAnnotation}
	case wrong != "":
		return &api.PodRouting{Why: wrong}
	case v.failed != nil:
		return &api.PodRouting{Why: v.failed.Error()}
	}
	if err := cmp.Or(v.missing.Pods[p.Cookie], v.missing.Routes[p.Cookie]); err != nil {
		return &api.PodRouting{Why: err.Error()}
	}
	return &api.PodRouting{Active: true}
}

// packetCounts are the counters of the programs; none if there are no programs.
func (d *Daemon) packetCounts() (list []metrics.PacketCount) {
	v := d.podDevices.view()
	if v.links == nil || !v.wanted {
		return nil
	}
	counts, err := v.links.Counters()
	if err != nil { // detached meanwhile
		return nil
	}
	for _, c := range counts {
		list = append(list, metrics.PacketCount{Fate: c.Name, Routed: c.Routed, Packets: c.Count})
	}
	return list
}
