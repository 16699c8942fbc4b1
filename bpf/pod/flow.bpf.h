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
#include "ports.bpf.h"

/* For how long a route is used at most, in microseconds. The clock advances with the kernel's ticks, and so stands still while
 * the CPU that handles them does. A tick takes 1 to 10 ms. */
#define FLOW_US 10000

/* In flow_key.transport: the route of all connections between two addresses. Its ports are 0. */
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

/* Keeps the route of a key, unless the place is in use by another one. */
static __always_inline void write_route(const union flow_key *key, const struct packet *p, const struct route *r)
{
	struct flow *f = place_of(key);
	__u64 now;

	if (!f)
		return;
	now = bpf_jiffies64();
	bpf_spin_lock(&f->lock);
	if (now >= f->until || has_same_ends(&f->key, key)) {
		f->until = p->until;
		f->answer = 0;
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
		write_route(&p->flow, p, r);
}

/* Forgets the route of a connection that the stack has to take. */
static __always_inline void forget(const struct packet *p)
{
	struct flow *f;

	if (p->protocol != p->flow.transport)
		return;
	f = place_of(&p->flow);
	if (!f || (!is_ahead(&f->until) && !is_ahead(&f->answer)))
		return;
	bpf_spin_lock(&f->lock);
	if (has_same_ends(&f->key, &p->flow))
		f->until = f->answer = 0;
	bpf_spin_unlock(&f->lock);
}

/* Whether connections between the same addresses share a route; then key becomes where it is. Those of IPv6 do not, because next
 * hops of multipath depend on the flow label, and nothing tells whether there are several. */
static __always_inline bool shares_route(struct __sk_buff *skb, const struct packet *p, union flow_key *key)
{
	if (p->family != AF_INET || is_single(skb, p) || v4_routes_depend_on_ports(skb))
		return false;
	*key = p->flow;
	key->ports = (struct ports){};
	key->transport |= ALL_PORTS;
	return true;
}

/* The route of a packet, if that of another connection between the same addresses is known. */
static __always_inline bool recall_shared(struct __sk_buff *skb, struct packet *p, struct route *r)
{
	union flow_key key;

	return shares_route(skb, p, &key) && read_route(&key, p, r);
}

static __always_inline void keep_shared(struct __sk_buff *skb, const struct packet *p, const struct route *r)
{
	union flow_key key;

	if (shares_route(skb, p, &key))
		write_route(&key, p, r);
}

/* Notes that a connection which begins is not translated, for its answer. */
static __always_inline void expect_answer(const struct packet *p)
{
	union flow_key back = {
		.source = p->flow.destination, .destination = p->flow.source, .transport = p->flow.transport,
		.ports = {.source = p->flow.ports.destination, .destination = p->flow.ports.source},
	};
	struct flow *f = place_of(&back);
	__u64 now = bpf_jiffies64();

	if (!f)
		return;
	bpf_spin_lock(&f->lock);
	if (now >= f->until || has_same_ends(&f->key, &back)) {
		f->until = 0;
		f->answer = now + FLOW_US / jiffy_us;
		f->key = back;
	}
	bpf_spin_unlock(&f->lock);
}

/* Whether the packet is the answer that a connection waits for which is not translated. Once its own route is kept, no other one
 * is. */
static __always_inline bool is_expected(const struct packet *p)
{
	struct flow *f = place_of(&p->flow);
	bool expected;

	if (!f || !is_ahead(&f->answer))
		return false;
	bpf_spin_lock(&f->lock);
	expected = f->answer && has_same_ends(&f->key, &p->flow);
	bpf_spin_unlock(&f->lock);
	return expected;
}

#endif
