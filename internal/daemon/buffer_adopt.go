package daemon

import (
	"maps"

	"github.com/tcpilot/tcpilot/internal/buffers"
	"github.com/tcpilot/tcpilot/internal/host"
)

// listNetNS lists the network namespaces, forgets those that are gone, and takes over what new
// ones have inherited.
func (b *bufferLimits) listNetNS(now int64) error {
	list, changed, err := b.netNSList.Poll()
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.list = list
	if changed {
		b.controller.Forget(func(cookie uint64) bool { _, ok := netNSByCookie(list, cookie); return ok })
	}
	b.mu.Unlock()
	if !changed {
		return nil
	}
	adopted := b.resolve()
	for _, ns := range list {
		if !b.seen[ns.Cookie] {
			adopted = b.adoptInherited(ns, now) || adopted
			b.seen[ns.Cookie] = true
		}
	}
	maps.DeleteFunc(b.seen, func(cookie uint64, _ bool) bool { _, ok := netNSByCookie(list, cookie); return !ok })
	if adopted {
		b.save()
	}
	return nil
}

// adopt takes over the raises of the journal that are still in force.
func (b *bufferLimits) adopt() error {
	raised, err := b.journal.read()
	if err != nil {
		b.log.Warn("raised buffer limits of an earlier tcpilot are not known", "error", err)
		return b.journal.setAside()
	}
	list, _, err := b.netNSList.Poll()
	if err != nil {
		return err
	}
	b.list, b.unresolved = list, raised
	b.resolve()
	for _, ns := range list {
		b.seen[ns.Cookie] = true
	}
	return nil
}

// resolve takes over raises of the journal whose namespaces are listed now.
func (b *bufferLimits) resolve() (adopted bool) {
	waiting := b.unresolved
	b.unresolved = nil
	for _, r := range waiting {
		ns, ok := netNSByCookie(b.list, r.NetNS)
		if !ok {
			b.unresolved = append(b.unresolved, r)
			continue
		}
		name := r.Which.Sysctl()
		values, err := ns.ReadSysctls(bufferSysctls)
		if err != nil {
			b.unresolved = append(b.unresolved, r)
			continue
		}
		// A raise that an earlier process wrote to the journal but not to the kernel, and one
		// that an administrator has changed since, are not in force.
		if maximumOf(values[name]) != r.Limit {
			continue
		}
		b.mu.Lock()
		b.controller.Adopt(r)
		b.mu.Unlock()
		if ns.Own {
			b.sysctls.inheritedBefore(name, withMaximum(values[name], r.Original))
		}
		b.sysctls.wrote(r.NetNS, name, values[name])
		adopted = true
	}
	return adopted
}

// adoptInherited takes over the limits of a new namespace that began with raised ones of the
// initial namespace (tcp_sk_init, net/ipv4/tcp_ipv4.c), so that they are taken back too.
func (b *bufferLimits) adoptInherited(ns host.NetNS, now int64) (adopted bool) {
	own, _ := netNSByCookie(b.list, b.sysctls.own)
	if ns.Own || own.Path != b.initial {
		return false
	}
	for _, r := range b.raised() {
		if r.NetNS != own.Cookie {
			continue
		}
		name := r.Which.Sysctl()
		values, err := ns.ReadSysctls(bufferSysctls)
		if err != nil || maximumOf(values[name]) != r.Limit {
			continue
		}
		b.mu.Lock()
		b.controller.Adopt(buffers.Raised{NetNS: ns.Cookie, Which: r.Which, Original: r.Original, Limit: r.Limit, At: now,
			Why: "inherited from the initial network namespace"})
		b.mu.Unlock()
		b.sysctls.wrote(ns.Cookie, name, values[name])
		adopted = true
	}
	return adopted
}
