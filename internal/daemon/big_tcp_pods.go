package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/bigtcp"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podlink"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// bigTCPAnnotation is the annotation by which a pod keeps packets of at most 64 KB.
const bigTCPAnnotation = "tcpilot.io/big-tcp"

// bigTCPView is what is known of BIG TCP at one time. It is immutable.
type bigTCPView struct {
	wanted bool
	failed error // why no pod has it
	size   uint32
	pods   map[uint64]error // by cookie: why a pod does not have it; nil if it does
}

// wantsBigTCP reports whether pods are to have packets above 64 KB now. The caller has pods.mu.
func (d *Daemon) wantsBigTCP() bool {
	cfg := d.cfg.Load()
	return cfg.Pods.HasBigTCP() && cfg.Mode != engine.ModeObserve && !d.podDevices.detached
}

// findBigPath looks at the devices by which packets of pods leave. The caller has pods.mu.
func (d *Daemon) findBigPath() {
	b := d.bigTCP
	b.path, b.refused = bigtcp.Path{}, nil
	if !d.wantsBigTCP() {
		return
	}
	cfg := d.cfg.Load()
	b.path, b.refused = bigtcp.FindPath(cfg.Pods.Devices, cfg.Pods.Networks)
	for i := range b.path.Devices {
		one := &b.path.Devices[i]
		if why, left := b.left[deviceAt{d.pods.own, one.Index}]; left && outerGoal(&b.path).Of(bigtcp.Values{Sizes: one.Sizes}).Sizes != one.Sizes {
			b.refused = errors.New(why)
		}
	}
}

// wantsBig reports whether a pod is to have it.
func (d *Daemon) wantsBig(p *pod.Pod) bool {
	value, asks := p.Annotations[bigTCPAnnotation]
	return d.wantsBigTCP() && d.bigTCP.refused == nil && (!asks || value == "on")
}

// followBigTCP makes the devices of the wanted pods, and those by which their packets leave, accept packets
// above 64 KB, and no others. The caller has pods.mu.
func (d *Daemon) followBigTCP(w *podlink.Wanted, v *podDevicesView, before *bigTCPView) (now bigTCPView) {
	b := d.bigTCP
	now = bigTCPView{wanted: d.wantsBigTCP(), failed: b.refused, size: b.path.Size, pods: map[uint64]error{}}
	if err := d.podDevices.failed; err != nil && now.wanted {
		now.failed = cmp.Or(now.failed, fmt.Errorf("it could not be verified, because packets cannot be counted: %w", err))
	}
	if now.failed != nil && !isSame(before.failed, now.failed) {
		d.log.Warn("no BIG TCP for pods", "why", now.failed)
	}
	if !now.wanted || now.failed != nil || w == nil {
		if err := b.restore(func(*resized) bool { return true }); err != nil {
			d.log.Warn("sizes of packets of devices not all taken back", "error", err)
		}
		return now
	}
	var targets []target
	for i := range b.path.Devices {
		targets = append(targets, target{deviceAt{d.pods.own, b.path.Devices[i].Index}, "", outerGoal(&b.path)})
	}
	for i := range w.Pods {
		p := &w.Pods[i]
		if !p.Big {
			continue
		}
		mtu, err := d.checkBig(p.Pod)
		if now.pods[p.Cookie] = cmp.Or(v.missing.Pods[p.Cookie], err); now.pods[p.Cookie] == nil {
			targets = append(targets, target{d.hostEnd(p.Pod), "", bigtcp.Goal{Size: now.size}},
				target{podEnd(p.Pod), p.NetNS, bigtcp.Goal{Size: now.size, MTU6: mtu}})
		}
	}
	failed := b.follow(targets, time.Now())
	for i := range w.Pods {
		p := &w.Pods[i]
		err, wanted := now.pods[p.Cookie]
		if err == nil && wanted {
			err = b.bothEnds(d.hostEnd(p.Pod), podEnd(p.Pod), failed)
			now.pods[p.Cookie] = err
		}
		if err != nil && !isSame(before.pods[p.Cookie], err) {
			d.log.Warn("no BIG TCP for a pod", "pod", d.PodName(p.Cookie), "why", err)
		}
	}
	return now
}

func (d *Daemon) hostEnd(p *pod.Pod) deviceAt { return deviceAt{d.pods.own, p.HostIndex} }
func podEnd(p *pod.Pod) deviceAt              { return deviceAt{p.Cookie, p.Index} }

// outerGoal is what a device that leads to other hosts is to have.
func outerGoal(p *bigtcp.Path) bigtcp.Goal { return bigtcp.Goal{Size: p.Size, Forwards: true} }

// bothEnds returns why a pod does not have BIG TCP. If one end of its pair was left alone, or refused, the sizes
// of the other end are restored, too.
func (b *bigTCP) bothEnds(host, inside deviceAt, failed map[deviceAt]error) error {
	err := cmp.Or(failed[host], failed[inside])
	for _, at := range []deviceAt{host, inside} {
		if err == nil || failed[at] != nil {
			continue
		}
		if restored := b.restore(func(r *resized) bool { return r.deviceAt == at }); restored != nil {
			err = errors.Join(err, restored)
		}
		if b.left[host]+b.left[inside] != "" {
			b.left[at] = err.Error()
		}
	}
	return err
}

// checkBig says why a pod's pair of devices cannot have larger packets. mtu is the pod's greatest MTU of IPv6 with them.
func (d *Daemon) checkBig(p *pod.Pod) (mtu uint32, err error) {
	if at := podEnd(p); d.bigTCP.isFresh(at, time.Now()) && d.bigTCP.find(at) != nil {
		host, err := rtnetlink.LinkByIndex(p.HostIndex)
		return d.bigTCP.path.PodMTU(host), err
	}
	host, inside, err := podlink.Pair(p)
	if err != nil {
		return 0, err
	}
	return d.bigTCP.path.PodMTU(host), d.bigTCP.path.CheckPair(host, inside)
}

// bigTCPFeature describes BIG TCP of pods as a feature.
func (d *Daemon) bigTCPFeature() api.Feature {
	v, cfg := d.podDevices.view(), d.cfg.Load()
	f := api.Feature{Name: featureBigTCP, Wanted: true, Active: v.big.wanted && v.big.failed == nil}
	switch {
	case v.big.failed != nil:
		f.Why = v.big.failed.Error()
	case !v.big.wanted:
		f.Why = notNow(cfg)
	}
	return f
}

// featureBigTCP is the feature's name in status and doctor.
const featureBigTCP = "BIG TCP: packets of pods above 64 KB"

// triedBigTCP says whether this kernel supports BIG TCP for pods, found by trying.
func triedBigTCP(wanted bool) api.Feature {
	f := api.Feature{Name: featureBigTCP, Wanted: wanted, Active: wanted}
	if err := bigtcp.Try(); err != nil {
		f.Active, f.Why = false, err.Error()
	} else if !wanted {
		f.Why = "this kernel can do it; pods.big_tcp is off"
	}
	return f
}

// podBigTCP says whether a pod has packets above 64 KB, and how many; nil if that is not configured.
func (v *podDevicesView) podBigTCP(p *pod.Pod) *api.PodBigTCP {
	wrong := wrongSwitch(p, bigTCPAnnotation)
	why, known := v.big.pods[p.Cookie]
	switch {
	case !v.big.wanted:
		return nil
	case p.Annotations[bigTCPAnnotation] == "off":
		return &api.PodBigTCP{Why: "annotation " + bigTCPAnnotation}
	case wrong != "":
		return &api.PodBigTCP{Why: wrong}
	case v.big.failed != nil:
		return &api.PodBigTCP{Why: v.big.failed.Error()}
	case !known:
		return &api.PodBigTCP{Why: "its devices were not looked at yet"}
	case why != nil:
		return &api.PodBigTCP{Why: why.Error()}
	}
	b := &api.PodBigTCP{Active: true, Size: v.big.size}
	if v.links != nil {
		m := v.links.Meters(p.HostIndex)
		b.Sent, b.Received = m.Egress.Big, m.Ingress.Big
	}
	return b
}

// bigTCPCounts are the sums over all pods; nil unless it is wanted.
func (d *Daemon) bigTCPCounts() *metrics.BigTCPCount {
	v := d.podDevices.view()
	if v.links == nil || !v.big.wanted {
		return nil
	}
	m := v.links.TotalMeters()
	c := &metrics.BigTCPCount{Sent: m.Egress.Big, Received: m.Ingress.Big}
	for _, why := range v.big.pods {
		if why == nil {
			c.Pods++
		}
	}
	return c
}
