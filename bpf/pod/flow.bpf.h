/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ways that were found for connections lately. To find one takes 1,400 (IPv4) or 2,100 instructions more
 * than to recall it, most of them for the route and for the question whether the connection is translated.
 *
 * A way is kept for FLOW_NS, after which it is looked up again: so routes, rules, and devices that change count
 * that much later. The first packets of a TCP connection (SYN) are always looked up, so that another connection
 * with the same addresses and ports, which may be translated, does not get the way of the one before. For the same
 * reason all CPUs share the table. */
#ifndef TCPILOT_POD_FLOW_BPF_H
#define TCPILOT_POD_FLOW_BPF_H

#include "maps.bpf.h"
#include "packet.bpf.h"

/* For how long a way is used, in nanoseconds by a clock that advances with the kernel's ticks (1 to 10 ms). */
#define FLOW_NS (10 * 1000 * 1000)

static __always_inline __u32 mix(__u32 h, __u32 word)
{
	return (h ^ word) * 0x9e3779b1;	/* 2^32 divided by the golden ratio (Knuth, TAOCP 3, 6.4) */
}

/* The place for a packet's flow, or NULL if its way depends on more than the key. */
static __always_inline struct flow *flow_of(struct __sk_buff *skb, const struct packet *p, struct flow_key *key)
{
	__u32 at;

	if (p->protocol != p->transport || skb->mark)
		return NULL;
	key->source = p->source;
	key->destination = p->destination;
	key->ports = p->ports;
	key->ifindex = skb->ifindex;
	/* Without ECN, which differs from packet to packet. */
	key->flowinfo = p->family == AF_INET ? p->fib.tos & 0xfc : p->fib.flowinfo & bpf_htonl(0x0fcfffff);
	key->transport = p->transport;
	key->family = p->family;
	at = mix(0, p->source.word[3]);
	at = mix(at, p->destination.word[3]);
	at = mix(at, (__u32)p->ports.source << 16 | p->ports.destination);
	at >>= 32 - FLOW_BITS;
	return bpf_map_lookup_elem(&pod_flows, &at);
}

static __always_inline bool is_same_flow(const struct flow_key *a, const struct flow_key *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4] && x[5] == y[5];
}

/* The device that a packet leaves by, if its way is known; next hop and device are then in p->fib, as bpf_fib_lookup
 * returns them. */
static __always_inline const struct device *recall(struct flow *f, const struct flow_key *key, struct packet *p)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	const struct device *to;
	union address next_hop;
	__u32 ifindex = 0;
	__u8 family;

	if (!f || p->begins)
		return NULL;
	bpf_spin_lock(&f->lock);
	if (now < f->until && p->length <= f->length && is_same_flow(&f->key, key))
		ifindex = f->to;
	family = f->next_family;
	next_hop = f->next_hop;
	bpf_spin_unlock(&f->lock);
	if (!ifindex)
		return NULL;
	to = bpf_map_lookup_elem(&pod_devices, &ifindex);
	if (!to || !(to->flags & DEVICE_ROUTED))
		return NULL;
	p->fib.ifindex = ifindex;
	p->fib.family = family;
	__builtin_memcpy(p->fib.ipv6_dst, &next_hop, sizeof(p->fib.ipv6_dst));
	return to;
}

/* Keeps the way that was found for a packet. */
static __always_inline void keep(struct flow *f, const struct flow_key *key, const struct packet *p)
{
	__u64 until = bpf_ktime_get_coarse_ns() + FLOW_NS;

	if (!f)
		return;
	bpf_spin_lock(&f->lock);
	f->until = until;
	f->to = p->fib.ifindex;
	f->key = *key;
	__builtin_memcpy(&f->next_hop, p->fib.ipv6_dst, sizeof(f->next_hop));
	f->length = p->length;
	f->next_family = p->fib.family;
	bpf_spin_unlock(&f->lock);
}

/* Forgets the way of a flow that the stack has to take. */
static __always_inline void forget(struct flow *f, const struct flow_key *key)
{
	if (!f)
		return;
	bpf_spin_lock(&f->lock);
	if (is_same_flow(&f->key, key))
		f->until = 0;
	bpf_spin_unlock(&f->lock);
}

_Static_assert(sizeof(struct flow_key) == 48, "is_same_flow compares all of it");

#endif
