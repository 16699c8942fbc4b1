/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Host routing: packets of pods take the route that the host's tables have for them, without the
 * host's stack. The stack gets every packet about which there is any doubt; so it also answers what
 * must be answered (ICMP errors), and counts what cannot be delivered. */
#ifndef TCPILOT_POD_ROUTE_BPF_H
#define TCPILOT_POD_ROUTE_BPF_H

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

/* Looks the packet's route up as the stack would for a packet that arrives here: all rules and tables,
 * multipath, MTU. The next hop's MAC address is not looked up. */
static __always_inline long look_up_route(struct __sk_buff *skb, struct packet *p)
{
	__u32 flags = BPF_FIB_LOOKUP_SKIP_NEIGH, mark = skb->mark;

	p->fib.family = p->family;
	p->fib.l4_protocol = p->protocol;
	if (has_ports(p->protocol)) {
		p->fib.sport = p->ports.source;
		p->fib.dport = p->ports.destination;
	}
	p->fib.tot_len = p->length;
	p->fib.ifindex = skb->ifindex;
	if (mark) {	/* a kernel that cannot consider it returns an error */
		flags |= FIB_LOOKUP_MARK;
		__builtin_memcpy(p->fib.smac, &mark, sizeof(mark));
	}
	return bpf_fib_lookup(skb, &p->fib, sizeof(p->fib), flags);
}

/* Takes one from the TTL or hop limit, as every router does. */
static __always_inline long decrease_ttl(struct __sk_buff *skb, const struct packet *p)
{
	struct {
		__u8 ttl, protocol;
		__sum16 check;
	} v4 = {.ttl = p->ttl - 1, .protocol = p->protocol};
	__u8 hop_limit = p->ttl - 1;
	__u32 sum;

	if (p->family == AF_INET6)
		return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &hop_limit, sizeof(hop_limit),
					   BPF_F_RECOMPUTE_CSUM);
	/* RFC 1141. The checksum makes up for the TTL, so that the sum of all bytes stays as it is. */
	sum = p->check + bpf_htons(0x0100);
	v4.check = sum + (sum >= 0xffff);
	return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &v4, sizeof(v4), 0);
}

/* Writes the MAC addresses that the pod's device expects; they are zero if it has none (netkit, L3). */
static __always_inline long address_frame(struct __sk_buff *skb, const struct device *d)
{
	struct {
		__u8 destination[ETH_ALEN], source[ETH_ALEN];
	} frame;

	__builtin_memcpy(frame.destination, d->mac, ETH_ALEN);
	__builtin_memcpy(frame.source, d->host_mac, ETH_ALEN);
	return bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0);
}

static __always_inline int deliver(struct __sk_buff *skb, const struct packet *p, const struct device *to, enum pod_count way)
{
	int verdict;

	/* These fail only if memory is short. The TTL comes last: if it was decreased and the packet
	 * went to the stack, the stack would decrease it again. */
	if (address_frame(skb, to) || decrease_ttl(skb, p))
		return pass(LEFT_LOOKUP);
	/* After decrease_ttl, which uses the checksum that the packet arrived with: a mark of congestion changes
	 * it. */
	verdict = to_pod(skb, to);
	if (verdict != TCX_NEXT)
		return verdict;
	count(way);
	return bpf_redirect_peer(p->fib.ifindex, 0);
}

static __always_inline int send(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_redir_neigh next = {.nh_family = p->fib.family};

	if (decrease_ttl(skb, p))
		return pass(LEFT_LOOKUP);
	/* A route without a gateway leaves the destination there. */
	__builtin_memcpy(next.ipv6_nh, p->fib.ipv6_dst, sizeof(next.ipv6_nh));
	count(ROUTED_POD_TO_WIRE);
	return bpf_redirect_neigh(p->fib.ifindex, &next, sizeof(next), 0);
}

static __always_inline bool without_nat(const union address *a, __u8 family)
{
	struct network n = {.prefixlen = 128};
	const __u8 *of;

	__builtin_memcpy(n.addr, a, sizeof(n.addr));
	of = bpf_map_lookup_elem(&pod_networks, &n);
	return of && *of == family;
}

/* Finds the device that the route of a packet leads to: UNDERSTOOD, or why the stack has to take the packet. */
static __always_inline enum pod_count find_way(struct __sk_buff *skb, struct packet *p, const struct device **to)
{
	long result;

	p->asked_ns = bpf_ktime_get_coarse_ns();
	if (needs_translation(skb, p))
		return LEFT_NAT;
	result = look_up_route(skb, p);
	if (result)
		return why_not(result);
	*to = bpf_map_lookup_elem(&pod_devices, &p->fib.ifindex);
	return *to && ((*to)->flags & DEVICE_ROUTED) ? UNDERSTOOD : LEFT_DEVICE;
}

/* The way of a packet that a pod sent: UNDERSTOOD, or why the stack has to take the packet. */
static __always_inline enum pod_count way_from_pod(struct __sk_buff *skb, struct packet *p, const struct device **to)
{
	const __u32 *here, *there;
	enum pod_count why;

	here = bpf_map_lookup_elem(&pod_addresses, &p->source);
	if (p->by_router || !here || *here != skb->ifindex)
		return LEFT_SOURCE;
	there = bpf_map_lookup_elem(&pod_addresses, &p->destination);
	if (!there && !without_nat(&p->destination, p->family))
		return LEFT_DESTINATION;
	why = find_way(skb, p, to);
	if (why != UNDERSTOOD)
		return why;
	if (p->fib.ifindex == skb->ifindex)
		return LEFT_DEVICE;
	if ((*to)->flags & DEVICE_OUTER) {
		/* A pod's address whose route leads to another host is treated as an address of that host. */
		return there && !without_nat(&p->destination, p->family) ? LEFT_DESTINATION : UNDERSTOOD;
	}
	return there && *there == p->fib.ifindex ? UNDERSTOOD : LEFT_DESTINATION;
}

/* A packet that is not for a pod of this host, which is not counted: most are the host's own. */
#define NOT_FOR_A_POD (NUM_POD_COUNTS + 1)

/* The same for a packet that arrives from another host. */
static __always_inline enum pod_count way_from_wire(struct __sk_buff *skb, struct packet *p, const struct device **to)
{
	const __u32 *there;
	enum pod_count why;

	there = bpf_map_lookup_elem(&pod_addresses, &p->destination);
	if (!there)
		return NOT_FOR_A_POD;
	if (!without_nat(&p->source, p->family))
		return LEFT_SOURCE;
	why = find_way(skb, p, to);
	if (why != UNDERSTOOD)
		return why;
	return *there == p->fib.ifindex ? UNDERSTOOD : LEFT_DEVICE;
}

/* The same for either, from the cache if the flow's route is there. */
static __always_inline enum pod_count way(struct __sk_buff *skb, struct packet *p, bool from_pod, const struct device **to)
{
	struct flow *f = flow_of(p);
	enum pod_count why;

	*to = recall(skb, f, p);
	if (*to)
		return UNDERSTOOD;
	why = from_pod ? way_from_pod(skb, p, to) : way_from_wire(skb, p, to);
	if (why == UNDERSTOOD)
		keep(skb, f, p);
	else if (why != NOT_FOR_A_POD)
		forget(skb, f, p);
	return why;
}

/* A packet that a pod sent, at the host's end of its pair. */
static __always_inline int route_from_pod(struct __sk_buff *skb)
{
	const struct device *to;
	struct packet p = {};
	enum pod_count why;

	why = parse(skb, &p);
	if (why == UNDERSTOOD)
		why = way(skb, &p, true, &to);
	if (why != UNDERSTOOD)
		return pass(why);
	return to->flags & DEVICE_OUTER ? send(skb, &p) : deliver(skb, &p, to, ROUTED_POD_TO_POD);
}

/* A packet that arrives from another host. */
static __always_inline int route_from_wire(struct __sk_buff *skb)
{
	const struct device *to;
	struct packet p = {};
	enum pod_count why;

	if (parse(skb, &p) != UNDERSTOOD)
		return TCX_NEXT;	/* not counted: it may be the host's own */
	why = way(skb, &p, false, &to);
	if (why != UNDERSTOOD)
		return pass(why);
	return deliver(skb, &p, to, ROUTED_WIRE_TO_POD);
}

#endif
