package daemon

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
)

// masquerading is what the CNI plugin has made to masquerade the pods of a network.
type masquerading struct {
	devices []string // the pods' ends on the host
	latest  *pod.Pod // whose exceptions all pods have: the plugin writes the rules anew if a pod has others
}

// masqueradedOf are the networks of pods that the CNI plugin masquerades.
func masqueradedOf(pods []pod.Pod) map[string]*masquerading {
	networks := map[string]*masquerading{}
	for i := range pods {
		p := &pods[i]
		if !p.Masqueraded {
			continue
		}
		m := networks[p.Network]
		if m == nil {
			m = &masquerading{}
			networks[p.Network] = m
		}
		m.devices = append(m.devices, podnet.HostName(p.Key()))
		if m.latest == nil || p.AddedAfter(m.latest) {
			m.latest = p
		}
	}
	return networks
}

// rewrite is the latest attempt to write the masquerading rules of a network.
type rewrite struct {
	at     time.Time
	failed string // empty if it succeeded
}

// rewriteInterval is the shortest time between two attempts: a program that keeps deleting the rules is not answered each time.
const rewriteInterval = 30 * time.Second

// masqueradePods makes the rules that masquerade pods anew if another program has deleted them, such as by nft flush ruleset: the CNI
// plugin would not notice before the next pod starts. In mode observe, and when tcpilot is detached from pods, the rules are left as
// they are. The caller has pods.mu.
func (d *Daemon) masqueradePods(now time.Time) {
	p := &d.pods
	for network := range p.rewrites {
		if p.masqueraded[network] == nil {
			delete(p.rewrites, network)
		}
	}
	if d.podDevices.detached || d.cfg.Load().Mode == engine.ModeObserve {
		return
	}
	for network, m := range p.masqueraded {
		before := p.rewrites[network]
		if now.Sub(before.at) < rewriteInterval {
			continue
		}
		missing, err := podnet.Remasquerade(network, m.latest.MasqueradeExcept, m.devices)
		if missing == nil && err == nil {
			delete(p.rewrites, network)
			continue
		}
		next := rewrite{at: now}
		if err != nil {
			next.failed = err.Error()
		}
		switch {
		case err == nil:
			d.log.Warn("rules that masquerade pods were missing, and are written again", "network", network, "pods", len(m.devices), "missing", missing)
		case next.failed == before.failed:
		case missing == nil:
			d.log.Error("cannot check the rules that masquerade pods", "network", network, "error", err)
		default:
			d.log.Error("rules that masquerade pods are missing, and cannot be written again", "network", network, "missing", missing, "error", err)
		}
		if p.rewrites == nil {
			p.rewrites = map[string]rewrite{}
		}
		p.rewrites[network] = next
	}
}
