/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A cache of routes by flow. To look a route up takes 1,300 to 2,100 instructions more than to find it here, most of
 * them for the kernel's look-up and for the question whether the connection is translated.
 *
 * A change of a route, a rule, an address, a device's row or a translation takes effect FLOW_US later at most. The first packets of a
 * TCP connection (SYN) are always looked up, so that another connection with the same addresses and ports, which may be
 * translated, does not get the route of the one before. For the same reason all CPUs share the cache. */
#ifndef TCPILOT_POD_FLOW_BPF_H
#define TCPILOT_POD_FLOW_BPF_H

#include "../include/compat.bpf.h"
#include "maps.bpf.h"
#include "packet.bpf.h"

/* For how long a route is used at most, in microseconds. The clock advances with the kernel's ticks, and so stands still while
 * the CPU that handles them does. A tick takes 1 to 10 ms. */
#define FLOW_US 10000

/* User space sets it to a random number, so that nobody can choose ports that share the place of another
 * connection. */
const volatile __u32 flow_seed;

static __always_inline __u32 mix(__u32 h, __u32 word)
{
	return (h ^ word) * 0x9e3779b1;	/* 2^32 divided by the golden ratio (Knuth, TAOCP 3, 6.4) */
}

/* The place of a packet's flow; NULL for an ICMP error, which is looked up each time. */
static __always_inline struct flow *flow_of(const struct packet *p)
{
	__u32 at;

	if (p->protocol != p->flow.transport)
		return NULL;
	at = mix(flow_seed, p->flow.source.word[3]);
	at = mix(at, p->flow.destination.word[3]);
	at = mix(at, (__u32)p->flow.ports.source << 16 | p->flow.ports.destination);
	at >>= 32 - FLOW_BITS;
	return bpf_map_lookup_elem(&pod_flows, &at);
}

/* Whether both are of one connection, in the same direction. */
static __always_inline bool has_same_ends(const union flow_key *a, const union flow_key *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3] &&
	       a->word[4] == b->word[4];
}

static __always_inline bool is_same_flow(const union flow_key *a, const union flow_key *b)
{
	return has_same_ends(a, b) && a->word[5] == b->word[5];
}

/* Whether the entry may be used. It is read without the lock, which most packets that are left to the stack so do
 * not need. */
static __always_inline bool is_fresh(const struct flow *f)
{
	return bpf_jiffies64() < *(const volatile __u64 *)&f->until;
}

/* The route of a packet, if that of its flow is known. */
static __always_inline bool recall(struct __sk_buff *skb, struct flow *f, const struct packet *p, struct route *r)
{
	bool known;

	if (!f || p->begins || skb->mark || !is_fresh(f))
		return false;
	bpf_spin_lock(&f->lock);
	known = f->until && p->length <= f->route.mtu && is_same_flow(&f->key, &p->flow);
	if (known)
		*r = f->route;
	bpf_spin_unlock(&f->lock);
	return known;
}

/* Keeps the route that was looked up for a packet, unless the place is in use by another connection, or the packet has a
 * mark, which rules may ask for. */
static __always_inline void keep(struct __sk_buff *skb, struct flow *f, const struct packet *p, const struct route *r)
{
	if (!f || skb->mark)
		return;
	bpf_spin_lock(&f->lock);
	if (p->asked >= f->until || has_same_ends(&f->key, &p->flow)) {
		f->until = p->asked + FLOW_US / jiffy_us;
		f->key = p->flow;
		f->route = *r;
	}
	bpf_spin_unlock(&f->lock);
}

/* Forgets the route of a connection that the stack has to take. */
static __always_inline void forget(struct flow *f, const struct packet *p)
{
	if (!f || !is_fresh(f))
		return;
	bpf_spin_lock(&f->lock);
	if (has_same_ends(&f->key, &p->flow))
		f->until = 0;
	bpf_spin_unlock(&f->lock);
}

#endif
