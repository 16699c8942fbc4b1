/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether the host translates addresses or ports of a connection. Such packets need the stack in both
 * directions: also those whose own addresses look as if they did not, such as the answers of a pod
 * that was reached through a service's address. */
#ifndef TCPILOT_POD_NAT_BPF_H
#define TCPILOT_POD_NAT_BPF_H

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
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

/* Whether these functions are there. Not the address of one: the loader cannot give that of a
 * module's. Without them the verifier does not look at the calls. */
const volatile bool has_conntrack;

static __always_inline bool is_other(const union nf_inet_addr *a, const union nf_inet_addr *b)
{
	return a->all[0] != b->all[0] || a->all[1] != b->all[1] || a->all[2] != b->all[2] || a->all[3] != b->all[3];
}

/* Whether answers come from, or go to, another address or port than the packets go to, or come from. Not
 * IPS_NAT_MASK of the status: IPVS translates without these bits (ip_vs_update_conntrack). */
static __always_inline bool is_asymmetric(const struct nf_conn *ct)
{
	const struct nf_conntrack_tuple *first = &ct->tuplehash[0].tuple, *answers = &ct->tuplehash[1].tuple;

	return first->src.u.all != answers->dst.u.all || first->dst.u.all != answers->src.u.all ||
	       is_other(&first->src.u3, &answers->dst.u3) || is_other(&first->dst.u3, &answers->src.u3);
}

static __always_inline bool is_translated(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_ct_opts opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = p->transport};
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *ct;
	bool translated;

	if (!has_conntrack)
		return true;	/* it cannot be found out: user space does not switch routing on */
	if (p->family == AF_INET) {
		tuple.ipv4.saddr = p->source.word[3];
		tuple.ipv4.daddr = p->destination.word[3];
		tuple.ipv4.sport = p->ports.source;
		tuple.ipv4.dport = p->ports.destination;
		ct = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts));
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &p->source, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &p->destination, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = p->ports.source;
		tuple.ipv6.dport = p->ports.destination;
		ct = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv6), &opts, sizeof(opts));
	}
	if (!ct)
		return false;
	translated = is_asymmetric(ct);
	bpf_ct_release(ct);
	return translated;
}

#endif
