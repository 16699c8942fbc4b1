package daemon

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podlink"
)

// bandwidths are the limits of the present pods that have some, by cookie (design note 21). In mode
// observe there are none.
func (d *Daemon) bandwidths() map[uint64]pod.Bandwidth {
	limits := map[uint64]pod.Bandwidth{}
	if cfg := d.cfg.Load(); cfg == nil || cfg.Mode == engine.ModeObserve || !cfg.Pods.LimitsBandwidth() {
		return limits
	}
	for _, p := range d.pods.now().All() {
		if b, _ := p.Limits(); b != (pod.Bandwidth{}) {
			limits[p.Cookie] = b
		}
	}
	return limits
}

// payload is the part of a pod's egress limit that its TCP connections may use for payload: an
// Ethernet frame of 1514 bytes, without FCS, has 1428 bytes of payload of TCP over IPv6 with timestamps.
const payload = 1428. / 1514

// egressLimits are the rate limits of the TCP connections of pods, by the pods' cookies.
func egressLimits(pods map[uint64]pod.Bandwidth) map[uint64]limit.Limit {
	limits := map[uint64]limit.Limit{}
	for cookie, b := range pods {
		if b.Egress != 0 {
			limits[cookie] = limit.Limit{Rate: max(1, uint64(payload*float64(b.Egress)/8))}
		}
	}
	return limits
}

// addOffered adds to the limits of pods what the pod has sent in all, also what was dropped.
func (d *Daemon) addOffered(limits map[uint64]limit.Limit) {
	v := d.podDevices.view()
	if v.links == nil {
		return
	}
	for _, p := range d.pods.now().All() {
		if l, ok := limits[p.Cookie]; ok {
			m := v.links.Meters(p.HostIndex).Egress
			l.Offered = uint64(payload * float64(m.Passed+m.DroppedBytes))
			limits[p.Cookie] = l
		}
	}
}

// putLimits puts the rate limits of rules and pods into force.
func (d *Daemon) putLimits() error {
	d.limits.writing.Lock() // so that the last write has the latest values
	defer d.limits.writing.Unlock()
	rules, pods := limitsOf(d.cfg.Load()), egressLimits(d.bandwidths())
	limits := maps.Clone(rules)
	maps.Copy(limits, pods)
	if !d.limits.failed && maps.Equal(limits, d.limits.inForce) {
		return nil
	}
	err := d.dp.SetLimits(rules, pods)
	d.limits.inForce, d.limits.failed = limits, err != nil
	select {
	case d.limits.changed <- struct{}{}:
	default:
	}
	return err
}

// showBandwidth adds the limits of a pod that are in force, and what they were applied to.
func (v *podDevicesView) showBandwidth(p *pod.Pod, limits pod.Bandwidth, to *api.Pod) {
	var m podlink.Meters
	if v.links != nil {
		m = v.links.Meters(p.HostIndex)
	}
	show := func(limit uint64, m podlink.Meter) *api.PodBandwidth {
		if limit == 0 {
			return nil
		}
		return &api.PodBandwidth{Limit: limit / 8, Passed: m.Passed, Marked: m.Marked, Dropped: m.Dropped}
	}
	to.Egress, to.Ingress = show(limits.Egress, m.Egress), show(limits.Ingress, m.Ingress)
}

// bandwidthWarnings are the limits that a pod asks for and does not have. limits are those that it
// should have.
func (v *podDevicesView) bandwidthWarnings(p *pod.Pod, limits pod.Bandwidth) (list []string) {
	_, list = p.Limits()
	if err := cmp.Or(v.unlimited, v.missing.Pods[p.Cookie]); err != nil && limits != (pod.Bandwidth{}) {
		is := "only TCP that the pod sends is limited"
		if limits.Egress == 0 {
			is = "not limited"
		}
		list = append(list, fmt.Sprintf("bandwidth: %s: %v", is, err))
	}
	return list
}

// podLimitCounts are the limits of present pods whose devices have programs that count, by pod and direction.
func (d *Daemon) podLimitCounts() (list []metrics.PodLimitCount) {
	v, limits, pods := d.podDevices.view(), d.bandwidths(), d.pods.view.Load()
	if v.links == nil || v.unlimited != nil || len(limits) == 0 {
		return nil
	}
	for _, p := range pods.set.All() {
		if v.missing.Pods[p.Cookie] != nil {
			continue
		}
		m := v.links.Meters(p.HostIndex)
		add := func(direction string, limit uint64, m podlink.Meter) {
			if limit != 0 {
				list = append(list, metrics.PodLimitCount{Pod: pods.names[p.Cookie], Direction: direction, Limit: limit / 8, Passed: m.Passed, Marked: m.Marked, Dropped: m.Dropped})
			}
		}
		add("egress", limits[p.Cookie].Egress, m.Egress)
		add("ingress", limits[p.Cookie].Ingress, m.Ingress)
	}
	return list
}

// bandwidthCounts are the sums over all pods; none without a limit.
func (d *Daemon) bandwidthCounts() []metrics.BandwidthCount {
	v, limits := d.podDevices.view(), d.bandwidths()
	if v.links == nil || len(limits) == 0 {
		return nil
	}
	m := v.links.TotalMeters()
	count := func(direction string, m podlink.Meter, limit func(pod.Bandwidth) uint64) metrics.BandwidthCount {
		c := metrics.BandwidthCount{Direction: direction, Passed: m.Passed, Marked: m.Marked, Dropped: m.Dropped}
		for _, b := range limits {
			if limit(b) != 0 {
				c.Limited++
			}
		}
		return c
	}
	return []metrics.BandwidthCount{
		count("egress", m.Egress, func(b pod.Bandwidth) uint64 { return b.Egress }),
		count("ingress", m.Ingress, func(b pod.Bandwidth) uint64 { return b.Ingress }),
	}
}
