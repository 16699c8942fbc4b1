/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A cache of routes: of flows, and of all connections between two addresses. To look a route up takes 1,300 to 2,100 instructions
 * more than to find it here, most of them for the kernel's look-up and for the question whether the connection is translated.
 *
 * A change of a route, a rule, an address, a device's row or a translation takes effect FLOW_US later at most. Whether a TCP
 * connection is translated is asked for each SYN, so that another connection with the same addresses and ports, which may be
 * translated, does not get the route of the one before. For the same reason all CPUs share the cache. */
#ifndef TCPILOT_POD_FLOW_BPF_H
#define TCPILOT_POD_FLOW_BPF_H

#include "../include/compat.bpf.h"
#include "maps.bpf.h"
#include "packet.bpf.h"
#include "ports.bpf.h"

/* For how long a route is used at most, in microseconds. The clock advances with the kernel's ticks, and so stands still while
 * the CPU that handles them does. A tick takes 1 to 10 ms. */
#define FLOW_US 10000

/* In flow_key.transport: the route of all connections between two addresses, whose ports are 0 in the key. */
#define ALL_PORTS 0x100

/* User space sets it to a random number, so that nobody can choose ports that share the place of another
 * connection. */
const volatile __u32 flow_seed;

static __always_inline __u32 mix(__u32 h, __u32 word)
{
	return (h ^ word) * 0x9e3779b1;	/* 2^32 divided by the golden ratio (Knuth, TAOCP 3, 6.4) */
}

/* Where the route of a flow is in the cache, if it is there. */
static __always_inline struct flow *place_of(const union flow_key *key)
{
	__u32 at;

	at = mix(flow_seed, key->source.word[3]);
	at = mix(at, key->destination.word[3]);
	at = mix(at, (__u32)key->ports.source << 16 | key->ports.destination);
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

/* Whether a time is still to come. It is read without the lock, which most packets that are left to the stack so do
 * not need. */
static __always_inline bool is_ahead(const __u64 *jiffies)
{
	return bpf_jiffies64() < *(const volatile __u64 *)jiffies;
}

/* Whether the packet has a look-up of its own: an ICMP error, or one with a mark, which rules may ask for. */
static __always_inline bool is_single(struct __sk_buff *skb, const struct packet *p)
{
	return p->protocol != p->flow.transport || skb->mark;
}

/* The route of a key, if it is known and the packet fits its MTU. */
static __always_inline bool read_route(const union flow_key *key, struct packet *p, struct route *r)
{
	struct flow *f = place_of(key);
	bool known;

	if (!f || !is_ahead(&f->until))
		return false;
	bpf_spin_lock(&f->lock);
	known = f->until && p->length <= f->route.mtu && is_same_flow(&f->key, key);
	if (known) {
		p->until = f->until;
		*r = f->route;
	}
	bpf_spin_unlock(&f->lock);
	return known;
}

/* Keeps the route of a key, unless the place is in use by another one. begun: it is that of a SYN. */
static __always_inline void write_route(const union flow_key *key, const struct packet *p, const struct route *r, bool begun)
{
	struct flow *f = place_of(key);
	__u64 now;

	if (!f)
		return;
	now = bpf_jiffies64();
	bpf_spin_lock(&f->lock);
	if (now >= f->until || has_same_ends(&f->key, key)) {
		f->begun = begun;
		f->until = p->until;
		f->key = *key;
		f->route = *r;
	}
	bpf_spin_unlock(&f->lock);
}

/* The route of a packet, if that of its flow is known. */
static __always_inline bool recall(struct __sk_buff *skb, struct packet *p, struct route *r)
{
	return !p->begins && !is_single(skb, p) && read_route(&p->flow, p, r);
}

static __always_inline void keep(struct __sk_buff *skb, const struct packet *p, const struct route *r)
{
	if (!is_single(skb, p))
		write_route(&p->flow, p, r, p->begins && !p->accepts);
}

/* Forgets the route of a connection that the stack has to take. */
static __always_inline void forget(const struct packet *p)
{
	struct flow *f;

	if (p->protocol != p->flow.transport)
		return;
	f = place_of(&p->flow);
	if (!f || !is_ahead(&f->until))
		return;
	bpf_spin_lock(&f->lock);
	if (has_same_ends(&f->key, &p->flow))
		f->until = 0;
	bpf_spin_unlock(&f->lock);
}

static __always_inline union flow_key without_ports(const struct packet *p)
{
	union flow_key key = p->flow;

	key.ports = (struct ports){};
	key.transport = ALL_PORTS;
	return key;
}

/* The route of a packet, if that of another connection between the same addresses is known. Sets whether the packet's may be kept
 * for others. Connections of IPv6 do not share routes: the next hop of multipath depends on the flow label, and nothing tells
 * whether a route has several. */
static __always_inline bool recall_shared(struct __sk_buff *skb, struct packet *p, struct route *r)
{
	union flow_key key;

	p->shares_route = p->family == AF_INET && !is_single(skb, p) && !v4_routes_depend_on_ports(skb);
	if (!p->shares_route)
		return false;
	key = without_ports(p);
	return read_route(&key, p, r);
}

static __always_inline void keep_shared(const struct packet *p, const struct route *r)
{
	union flow_key key;

	if (!p->shares_route)
		return;
	key = without_ports(p);
	write_route(&key, p, r, false);
}

static __always_inline struct ports swapped(struct ports p)
{
	return (struct ports){.source = p.destination, .destination = p.source};
}

/* Whether the packet is the answer to a SYN (SYN-ACK) whose connection was found not to be translated. Only the first one is. */
static __always_inline bool answers_known(struct packet *p)
{
	union flow_key syn = {
		.source = p->flow.destination, .destination = p->flow.source, .ports = swapped(p->flow.ports),
		.transport = p->flow.transport,
	};
	struct flow *f;
	bool known;

	if (!p->accepts)
		return false;
	f = place_of(&syn);
	if (!f || !is_ahead(&f->until))
		return false;
	bpf_spin_lock(&f->lock);
	known = f->begun && f->until && has_same_ends(&f->key, &syn);
	if (known) {
		f->begun = false;
		if (p->until > f->until)
			p->until = f->until;
	}
	bpf_spin_unlock(&f->lock);
	return known;
}

#endif
