/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Host routing: packets of pods take the route that the host's tables have for them, without the
 * host's stack. The stack gets every packet about which there is any doubt; so it also answers what
 * must be answered (ICMP errors), and counts what cannot be delivered. */
#ifndef TCPILOT_POD_ROUTE_BPF_H
#define TCPILOT_POD_ROUTE_BPF_H

#include <linux/errno.h>
#include "flow.bpf.h"
#include "maps.bpf.h"
#include "nat.bpf.h"

/* BPF_FIB_LOOKUP_MARK (Linux 6.10): the mark is passed where struct bpf_fib_lookup has the MAC addresses of
 * the result. */
#define FIB_LOOKUP_MARK (1U << 5)

static __always_inline int pass(enum pod_count why)
{
	count(why);
	return TCX_NEXT;
}

static __always_inline enum pod_count why_not(long result)
{
	switch (result) {
	case BPF_FIB_LKUP_RET_BLACKHOLE:
		return LEFT_BLACKHOLE;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
		return LEFT_UNREACHABLE;
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return LEFT_PROHIBIT;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return LEFT_NOT_FORWARDED;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return LEFT_NO_FORWARDING;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return LEFT_ENCAP;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return LEFT_TOO_LONG;
	}
	return LEFT_LOOKUP;
}

/* The address that a router's ICMP error comes from: that of its connection is another one. */
static __always_inline bool read_router(struct __sk_buff *skb, struct bpf_fib_lookup *fib)
{
	if (fib->family == AF_INET)
		return read_bytes(skb, ETH_HLEN + offsetof(struct iphdr, saddr), &fib->ipv4_src, sizeof(fib->ipv4_src));
	return read_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, saddr), &fib->ipv6_src, sizeof(fib->ipv6_src));
}

/* Looks the packet's route up as the stack would for a packet that arrives here: all rules and tables,
 * multipath, MTU. The next hop's MAC address is not looked up. */
static __always_inline long look_up_route(struct __sk_buff *skb, const struct packet *p, struct bpf_fib_lookup *fib)
{
	__u32 flags = BPF_FIB_LOOKUP_SKIP_NEIGH, mark = skb->mark;
	long result;

	fib->family = p->family;
	if (p->family == AF_INET) {
		fib->ipv4_src = p->flow.source.word[3];
		fib->ipv4_dst = p->flow.destination.word[3];
		fib->tos = p->flow.flowinfo;
	} else {
		__builtin_memcpy(fib->ipv6_src, &p->flow.source, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, &p->flow.destination, sizeof(fib->ipv6_dst));
		fib->flowinfo = p->flow.flowinfo;
	}
	if (p->by_router && !read_router(skb, fib))
		return -1;
	fib->l4_protocol = p->protocol;
	if (has_ports(p->protocol)) {
		fib->sport = p->flow.ports.source;
		fib->dport = p->flow.ports.destination;
	}
	fib->tot_len = p->length;
	fib->ifindex = skb->ifindex;
	if (mark) {	/* a kernel that cannot consider it returns an error */
		flags |= FIB_LOOKUP_MARK;
		__builtin_memcpy(fib->smac, &mark, sizeof(mark));
	}
	result = bpf_fib_lookup(skb, fib, sizeof(*fib), flags);
	if (result != -EINVAL)
		return result;
	/* Before Linux 6.3, the next hop's MAC address is always looked up. If it is not known, the result for the MTU is the
	 * packet's length, so that longer packets have a look-up of their own. */
	result = bpf_fib_lookup(skb, fib, sizeof(*fib), flags & ~BPF_FIB_LOOKUP_SKIP_NEIGH);
	return result == BPF_FIB_LKUP_RET_NO_NEIGH ? BPF_FIB_LKUP_RET_SUCCESS : result;
}

/* The MAC addresses that the pod's device expects; they are zero if it has none (netkit, L3). */
static __always_inline void address_frame(struct ethhdr *eth, const struct device *d)
{
	__builtin_memcpy(eth->h_dest, d->mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, d->host_mac, ETH_ALEN);
}

struct frame_v4 {
	struct ethhdr eth;
	struct iphdr ip;
} __attribute__((packed, aligned(8)));

/* Takes one from the TTL, as every router does, and writes MAC addresses, unless to is NULL. */
static __always_inline bool forward_v4(struct __sk_buff *skb, const struct device *to)
{
	const __u32 addresses = offsetof(struct frame_v4, ip.saddr), ttl = offsetof(struct frame_v4, ip.ttl);
	struct frame_v4 frame;
	__u32 sum;

	if (!read_bytes(skb, 0, &frame, addresses))
		return false;
	frame.ip.ttl--;
	/* RFC 1141. The checksum makes up for the TTL, so that the sum of all bytes stays as it is. */
	sum = frame.ip.check + bpf_htons(0x0100);
	frame.ip.check = sum + (sum >= 0xffff);
	if (!to)
		return !bpf_skb_store_bytes(skb, ttl, (void *)&frame + ttl, addresses - ttl, 0);
	address_frame(&frame.eth, to);
	frame.eth.h_proto = bpf_htons(ETH_P_IP);	/* a pod that transmits may have written something else there */
	return !bpf_skb_store_bytes(skb, 0, &frame, addresses, 0);
}

/* The same for IPv6. The hop limit comes last: if it was decreased and the packet went to the stack, the stack would
 * decrease it again. */
static __always_inline bool forward_v6(struct __sk_buff *skb, const struct device *to)
{
	const __u32 at = ETH_HLEN + offsetof(struct ipv6hdr, hop_limit);
	struct ethhdr eth;
	__u8 hop_limit;

	if (!read_bytes(skb, at, &hop_limit, sizeof(hop_limit)))
		return false;
	if (to) {
		eth.h_proto = bpf_htons(ETH_P_IPV6);
		address_frame(&eth, to);
		if (bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0))
			return false;
	}
	hop_limit--;
	return !bpf_skb_store_bytes(skb, at, &hop_limit, sizeof(hop_limit), BPF_F_RECOMPUTE_CSUM);
}

/* False: memory is short, and the packet's IP header is as it was. */
static __always_inline bool forward(struct __sk_buff *skb, __u8 family, const struct device *to)
{
	return family == AF_INET ? forward_v4(skb, to) : forward_v6(skb, to);
}

/* To a pod of this host, which need not see the packet at the host's end of its pair. Only at tcx ingress. */
static __always_inline int deliver(struct __sk_buff *skb, __u8 family, const struct route *r, enum pod_count way)
{
	if (!forward(skb, family, &r->to))
		return pass(LEFT_LOOKUP);
	if (!to_pod(skb, &r->to))
		return TCX_DROP;
	count(way);
	return bpf_redirect_peer(r->to.index, 0);
}

/* The same where the kernel cannot do that: by the host's end, whose own program does what to_pod does. */
static __always_inline int hand_over(struct __sk_buff *skb, __u8 family, const struct route *r)
{
	if (!forward(skb, family, &r->to))
		return pass(LEFT_LOOKUP);
	count(ROUTED_POD_TO_POD);
	return bpf_redirect(r->to.index, 0);
}

static __always_inline int send(struct __sk_buff *skb, __u8 family, const struct route *r)
{
	struct bpf_redir_neigh next = {.nh_family = r->next_family};

	if (!forward(skb, family, NULL))
		return pass(LEFT_LOOKUP);
	/* A route without a gateway leaves the destination there. */
	__builtin_memcpy(next.ipv6_nh, &r->next_hop, sizeof(next.ipv6_nh));
	count(ROUTED_POD_TO_WIRE);
	return bpf_redirect_neigh(r->to.index, &next, sizeof(next), 0);
}

static __always_inline bool without_nat(const union address *a, __u8 family)
{
	struct network n = {.prefixlen = 128};
	const __u8 *of;

	__builtin_memcpy(n.addr, a, sizeof(n.addr));
	of = bpf_map_lookup_elem(&pod_networks, &n);
	return of && *of == family;
}

/* Looks up which device the packet's route leads to: UNDERSTOOD, or why the stack has to take the packet. */
static __always_inline enum pod_count find_way(struct __sk_buff *skb, const struct packet *p, struct route *r)
{
	struct bpf_fib_lookup fib = {};
	long result;

	result = look_up_route(skb, p, &fib);
	if (result)
		return why_not(result);
	if (!find_device(fib.ifindex, &r->to) || !(r->to.flags & DEVICE_ROUTED))
		return LEFT_DEVICE;
	r->to.index = fib.ifindex;	/* the row of an earlier build may not have it */
	__builtin_memcpy(&r->next_hop, fib.ipv6_dst, sizeof(r->next_hop));
	r->next_family = fib.family;
	r->mtu = fib.mtu_result;
	return UNDERSTOOD;
}

/* The way of a packet that a pod sent: UNDERSTOOD, or why the stack has to take the packet. If its route is shared, that is known
 * already. */
static __always_inline enum pod_count way_from_pod(struct __sk_buff *skb, struct packet *p, struct route *r, bool shared)
{
	const __u32 *here, *there = NULL;
	enum pod_count why;

	if (!shared) {
		p->until = bpf_jiffies64() + FLOW_US / jiffy_us;
		here = bpf_map_lookup_elem(&pod_addresses, &p->flow.source);
		if (p->by_router || !here || *here != skb->ifindex)
			return LEFT_SOURCE;
		there = bpf_map_lookup_elem(&pod_addresses, &p->flow.destination);
		if (!there && !without_nat(&p->flow.destination, p->family))
			return LEFT_DESTINATION;
	}
	if (needs_translation(skb, p))
		return LEFT_NAT;
	if (shared)
		return UNDERSTOOD;
	why = find_way(skb, p, r);
	if (why != UNDERSTOOD)
		return why;
	if (r->to.index == skb->ifindex)
		return LEFT_DEVICE;
	if (r->to.flags & DEVICE_OUTER) {
		/* A pod's address whose route leads to another host is treated as an address of that host. */
		return there && !without_nat(&p->flow.destination, p->family) ? LEFT_DESTINATION : UNDERSTOOD;
	}
	return there && *there == r->to.index ? UNDERSTOOD : LEFT_DESTINATION;
}

/* The same for a packet that arrives from another host, for the pod with the device `there`. */
static __always_inline enum pod_count way_from_wire(struct __sk_buff *skb, struct packet *p, __u32 there, struct route *r, bool shared)
{
	enum pod_count why;

	if (!shared) {
		p->until = bpf_jiffies64() + FLOW_US / jiffy_us;
		r->from = (struct device){};
		if (!without_nat(&p->flow.source, p->family))
			return LEFT_SOURCE;
	}
	if (needs_translation(skb, p))
		return LEFT_NAT;
	if (shared)
		return there == r->to.index ? UNDERSTOOD : LEFT_DEVICE;
	why = find_way(skb, p, r);
	if (why != UNDERSTOOD)
		return why;
	return there == r->to.index ? UNDERSTOOD : LEFT_DEVICE;
}

/* Keeps what a look-up has found for the next packets of the flow, and of others that share its route. Returns it. If the packet is
 * routed, connection tracking forgets its connection. */
static __always_inline enum pod_count learn(struct __sk_buff *skb, const struct packet *p, enum pod_count why, const struct route *r,
					    bool shared)
{
	if (why != UNDERSTOOD) {
		forget(p);
		return why;
	}
	untrack(skb, p);
	keep(skb, p, r);
	if (!shared)
		keep_shared(p, r);
	return why;
}

enum hook {
	HOOK_TCX,	/* ingress of the host's end of a pod's pair */
	HOOK_NETKIT,	/* the pod's end, which is transmitting */
};

/* A packet that a pod sent. */
static __always_inline int route_from_pod(struct __sk_buff *skb, enum hook hook)
{
	bool known = false, shared = false;
	struct packet p = {};
	enum pod_count why;
	struct route r;

	why = parse(skb, &p);
	if (why == UNDERSTOOD) {
		known = recall(skb, &p, &r);
		shared = !known && recall_shared(skb, &p, &r);
	}
	if (!known && !shared && !find_device(skb->ifindex, &r.from))
		return TCX_NEXT;
	if (!from_pod(skb, &r.from))
		return TCX_DROP;
	if (!(r.from.flags & DEVICE_ROUTED))
		return TCX_NEXT;
	if (why == UNDERSTOOD && !known)
		why = learn(skb, &p, way_from_pod(skb, &p, &r, shared), &r, shared);
	if (why != UNDERSTOOD)
		return pass(why);
	if (r.to.flags & DEVICE_OUTER)
		return send(skb, p.family, &r);
	return hook == HOOK_TCX ? deliver(skb, p.family, &r, ROUTED_POD_TO_POD) : hand_over(skb, p.family, &r);
}

/* A packet that arrives from another host. */
static __always_inline int route_from_wire(struct __sk_buff *skb)
{
	struct packet p = {};
	enum pod_count why;
	const __u32 *there;
	struct route r;
	bool shared;

	if (parse(skb, &p) != UNDERSTOOD)
		return TCX_NEXT;	/* not counted: it may be the host's own */
	if (!recall(skb, &p, &r)) {
		there = bpf_map_lookup_elem(&pod_addresses, &p.flow.destination);
		if (!there)
			return TCX_NEXT;	/* nor is this: most are the host's own */
		shared = recall_shared(skb, &p, &r);
		why = learn(skb, &p, way_from_wire(skb, &p, *there, &r, shared), &r, shared);
		if (why != UNDERSTOOD)
			return pass(why);
	}
	return deliver(skb, p.family, &r, ROUTED_WIRE_TO_POD);
}

#endif
