/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether the host translates addresses or ports of a connection (NAT). All packets of such a connection
 * need the host's stack, in both directions: also the answers of a pod that was reached through a
 * service's address, although their own addresses are the pod's and the client's. */
#ifndef TCPILOT_POD_NAT_BPF_H
#define TCPILOT_POD_NAT_BPF_H

#include "flow.bpf.h"
#include "packet.bpf.h"

union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));

union nf_conntrack_man_proto {
	__be16 all;
} __attribute__((preserve_access_index));

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
	} dst;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];	/* of the first packet, and of its answers */
} __attribute__((preserve_access_index));

/* net/netfilter/nf_conntrack_bpf.c: this size is accepted by all versions. */
struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

/* Linux 6.0. Weak, because they are missing if connection tracking is not loaded. */
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple__sz,
					 struct bpf_ct_opts *opts, __u32 opts__sz) __ksym __weak;
extern int bpf_ct_change_timeout(struct nf_conn *ct, __u32 timeout_ms) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

/* Whether the kernel has these functions. User space sets it, because the loader cannot resolve the address
 * of a module's function for a test in the program. If it is false, the verifier skips the calls as dead
 * code. */
const volatile bool has_conntrack;

static __always_inline bool differ(const union nf_inet_addr *a, const union nf_inet_addr *b)
{
	return a->all[0] != b->all[0] || a->all[1] != b->all[1] || a->all[2] != b->all[2] || a->all[3] != b->all[3];
}

/* Whether the addresses and ports of the answers are other ones than those of the first packet, exchanged. The
 * bits IPS_NAT_MASK of the status do not show that: IPVS translates without them (ip_vs_update_conntrack). */
static __always_inline bool is_asymmetric(const struct nf_conn *ct)
{
	const struct nf_conntrack_tuple *first = &ct->tuplehash[0].tuple, *answers = &ct->tuplehash[1].tuple;

	return first->src.u.all != answers->dst.u.all || first->dst.u.all != answers->src.u.all ||
	       differ(&first->src.u3, &answers->dst.u3) || differ(&first->dst.u3, &answers->src.u3);
}

/* The entry of the connection with these addresses and ports, in either direction; NULL: there is none. To be released. */
static __always_inline struct nf_conn *find_entry(struct __sk_buff *skb, const struct packet *p, const union address *source,
						  const union address *destination, struct ports ports)
{
	struct bpf_ct_opts opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = p->flow.transport};
	struct bpf_sock_tuple tuple = {};

	if (p->family == AF_INET) {
		tuple.ipv4.saddr = source->word[3];
		tuple.ipv4.daddr = destination->word[3];
		tuple.ipv4.sport = ports.source;
		tuple.ipv4.dport = ports.destination;
		return bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts));
	}
	__builtin_memcpy(tuple.ipv6.saddr, source, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, destination, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = ports.source;
	tuple.ipv6.dport = ports.destination;
	return bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv6), &opts, sizeof(opts));
}

/* Whether the connection with these addresses and ports, in either direction, is translated. */
static __always_inline bool is_translated(struct __sk_buff *skb, struct packet *p, const union address *source,
					  const union address *destination, struct ports ports)
{
	struct nf_conn *ct;
	bool translated;

	if (!has_conntrack)
		return true;	/* unknown; user space does not turn routing on then */
	ct = find_entry(skb, p, source, destination, ports);
	if (!ct)
		return false;
	translated = is_asymmetric(ct);
	bpf_ct_release(ct);
	p->tracked = true;
	return translated;
}

/* Makes connection tracking forget a TCP connection of which this direction is routed. The entry has the windows of before: if
 * packets took the stack again, they would be invalid, and kube-proxy (iptables) drops these. Without an entry, the next packet that
 * the stack gets makes a new one (nf_conntrack_tcp_loose). */
static __always_inline void untrack(struct __sk_buff *skb, const struct packet *p)
{
	struct nf_conn *ct;

	if (!has_conntrack || !p->tracked || p->flow.transport != IPPROTO_TCP)
		return;
	ct = find_entry(skb, p, &p->flow.source, &p->flow.destination, p->flow.ports);
	if (!ct)
		return;
	bpf_ct_change_timeout(ct, 0);
	bpf_ct_release(ct);
}

/* Whether the packet needs the translation of the host's stack.
 *
 * Of a connection to a service there may be an entry whose answers have the addresses and ports of this
 * connection's answers, for minutes after its end. The stack gives the packets of this one another source port then;
 * without that, its answers would be translated. Therefore a connection that begins is looked up by its answers as
 * well, and UDP, which does not tell when it begins, each time. These are the same two look-ups for a SYN and its answer. */
static __always_inline bool needs_translation(struct __sk_buff *skb, struct packet *p)
{
	if (answers_known(p))
		return false;
	if (is_translated(skb, p, &p->flow.source, &p->flow.destination, p->flow.ports))
		return true;
	return (p->begins || p->flow.transport == IPPROTO_UDP) &&
	       is_translated(skb, p, &p->flow.destination, &p->flow.source, swapped(p->flow.ports));
}

#endif
