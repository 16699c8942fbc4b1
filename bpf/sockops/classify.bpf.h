/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds the class of a connection.
 *
 * For each dimension there is the set of the rules that match the connection in it. The sets
 * are intersected, and the first remaining rule wins. A dimension without conditions
 * costs nothing, and the cost does not depend on the number of rules.
 */
#ifndef TCPILOT_CLASSIFY_BPF_H
#define TCPILOT_CLASSIFY_BPF_H

#include "maps.bpf.h"

struct conn {
	__u32 remote[4];	/* v4-mapped, network byte order */
	__u32 local[4];
	__u16 remote_port;	/* host byte order */
	__u16 local_port;
	bool outgoing;
};

/* Of a deeper cgroup, only its first levels are compared with rules. */
#define MAX_CGROUP_LEVELS 16

/* volatile: clang would merge reads of different members into one at a computed offset, which the
 * verifier refuses. */
static __always_inline void conn_read(const volatile struct bpf_sock_ops *skops, struct conn *c)
{
	bool v6 = skops->family == AF_INET6;

	if (unlikely(v6)) {
		c->remote[0] = skops->remote_ip6[0];
		c->remote[1] = skops->remote_ip6[1];
		c->remote[2] = skops->remote_ip6[2];
		c->remote[3] = skops->remote_ip6[3];
		c->local[0] = skops->local_ip6[0];
		c->local[1] = skops->local_ip6[1];
		c->local[2] = skops->local_ip6[2];
		c->local[3] = skops->local_ip6[3];
	}
	/* A dual-stack listener's IPv4 children may carry their addresses in the
	 * IPv4 members alone. */
	if (!v6 || !(c->remote[0] | c->remote[1] | c->remote[2] | c->remote[3])) {
		map_v4(c->remote, skops->remote_ip4);
		map_v4(c->local, skops->local_ip4);
	}
	c->remote_port = bpf_ntohl(skops->remote_port);
	c->local_port = skops->local_port;
}

static __always_inline void conn_read_sock(struct tcp_sock *tp, struct conn *c)
{
	struct sock_common *k = &tcp_sk_sock(tp)->__sk_common;

	sock_addresses(k, c->local, c->remote);
	c->remote_port = bpf_ntohs(k->skc_dport);
	c->local_port = k->skc_num;
}

/* Whether the default congestion control of the connection's namespace is one that new
 * namespaces have: otherwise its owner chose it. */
static __always_inline bool netns_cc_inherited(struct tcp_sock *tp,
					       const struct runtime_config *cfg)
{
	struct cc_words own;

	if (!cfg->num_inherited)
		return true;
	own = tcp_ca_default_name(tp);
	for (int i = 0; i < MAX_INHERITED; i++)
		if (i < cfg->num_inherited && cc_is(own, cfg->inherited[i]))
			return true;
	return false;
}

/* Sets of up to 64 rules have one word. */
static __always_inline bool many(const struct rule_bank *b)
{
	return unlikely(b->num_rules > 64);
}

static __always_inline void set_and(struct rule_set *a, const struct rule_set *b, bool many)
{
	a->word[0] &= b->word[0];
	if (many) {
		a->word[1] &= b->word[1];
		a->word[2] &= b->word[2];
		a->word[3] &= b->word[3];
	}
}

static __always_inline void set_or(struct rule_set *a, const struct rule_set *b)
{
	a->word[0] |= b->word[0];
	a->word[1] |= b->word[1];
	a->word[2] |= b->word[2];
	a->word[3] |= b->word[3];
}

static __always_inline int set_first(const struct rule_set *s, bool many)
{
	if (likely(s->word[0]))
		return __builtin_ctzll(s->word[0]);
	if (many) {
		if (s->word[1])
			return 64 + __builtin_ctzll(s->word[1]);
		if (s->word[2])
			return 128 + __builtin_ctzll(s->word[2]);
		if (s->word[3])
			return 192 + __builtin_ctzll(s->word[3]);
	}
	return -1;
}

/* The table of rules in force; NULL: there is none. */
static __always_inline const struct rule_bank *rules_of(__u32 bank)
{
	return bpf_map_lookup_elem(&rule_banks, &bank);
}

static __always_inline bool under(const __u32 addr[4], const struct masked_prefix *p)
{
	const __u32 *a = (const __u32 *)p->addr, *m = (const __u32 *)p->mask;

	return !(((addr[0] ^ a[0]) & m[0]) | ((addr[1] ^ a[1]) & m[1]) |
		 ((addr[2] ^ a[2]) & m[2]) | ((addr[3] ^ a[3]) & m[3]));
}

/* Up to MAX_FEW_PREFIX prefixes are compared one by one, because each step in a trie is a cache miss
 * on a busy host; more are in a trie. Both contain /0 of both families. So if no prefix is found, the
 * table is not written yet, and nothing matches. */
static __always_inline void and_prefix(struct rule_set *rules, void *trie, __u32 bank,
				       const struct rule_bank *b, int which, const __u32 addr[4])
{
	const struct rule_set *s = NULL;

	if (likely(b->num_few[which])) {
		for (int i = 0; i < MAX_FEW_PREFIX; i++) {
			if (i >= b->num_few[which])
				break;
			if (under(addr, &b->few[which][i])) {
				s = &b->few[which][i].rules;
				break;
			}
		}
	} else {
		struct rule_prefix key = { .prefixlen = 32 + 128, .bank = bank };

		__builtin_memcpy(key.addr, addr, sizeof(key.addr));
		s = bpf_map_lookup_elem(trie, &key);
	}
	if (likely(s))
		set_and(rules, s, many(b));
	else
		__builtin_memset(rules, 0, sizeof(*rules));
}

/* This and the other __noinline functions are global, so that their loops are verified once: inlined, they were
 * three quarters of the instructions that the verifier processed. */
__noinline int and_local(struct rule_set *rules, __u32 bank, const struct conn *c)
{
	const struct rule_bank *b = rules_of(bank);

	if (rules && b && c)
		and_prefix(rules, &local_rules, bank, b, FEW_LOCAL, c->local);
	return 0;
}

/* which: 0 remote, 1 local. port_rules has an index into port_sets for each port. */
static __always_inline void and_port(struct rule_set *rules, const struct rule_bank *b,
				     __u32 bank, __u32 which, __u16 port)
{
	__u32 index = ((bank * 2 + which) << 16) | port;
	const __u32 *run = bpf_map_lookup_elem(&port_rules, &index);
	const struct rule_set *s;

	if (!run)
		return;
	index = (bank * 2 + which) * MAX_PORT_SETS + *run;
	s = bpf_map_lookup_elem(&port_sets, &index);
	if (s)
		set_and(rules, s, many(b));
}

/* A rule that names a cgroup matches everything below it, so the result is the union
 * of the sets of all ancestors. *cgroup is the address of the socket's. */
__noinline int and_cgroup(struct rule_set *rules, __u32 bank, const __u64 *cgroup)
{
	const struct rule_bank *b = rules_of(bank);
	struct rule_set found;
	struct cgroup *cg;
	int level = -1;

	if (!rules || !b || !cgroup)
		return 0;
	found = b->any_cgroup;
	cg = (struct cgroup *)*cgroup;
	if (cg)
		bpf_core_read(&level, sizeof(level), &cg->level);
	for (int i = 0; i < MAX_CGROUP_LEVELS; i++) {
		struct rule_id key = { .bank = bank };
		const struct rule_set *s;
		const void *at; /* the ancestor, then its kernfs node */

		if (i > level)
			break;
		bpf_core_read(&at, sizeof(at), &cg->ancestors[i]);
		bpf_core_read(&at, sizeof(at), &((struct cgroup *)at)->kn);
		bpf_core_read(&key.id, sizeof(key.id), &((struct kernfs_node *)at)->id);
		s = bpf_map_lookup_elem(&cgroup_rules, &key);
		if (s)
			set_or(&found, s);
	}
	set_and(rules, &found, many(b));
	return 0;
}

static __always_inline bool same_bits(const struct conn *c, const __u8 mask[16])
{
	const __u32 *m = (const __u32 *)mask;

	return !(((c->remote[0] ^ c->local[0]) & m[0]) | ((c->remote[1] ^ c->local[1]) & m[1]) |
		 ((c->remote[2] ^ c->local[2]) & m[2]) | ((c->remote[3] ^ c->local[3]) & m[3]));
}

__noinline int and_same_prefix(struct rule_set *rules, __u32 bank, const struct conn *c)
{
	const struct rule_bank *b = rules_of(bank);
	struct rule_set found;
	bool v4;

	if (!rules || !b || !c)
		return 0;
	found = b->any_same;
	v4 = is_v4_mapped(c->remote);
	for (int i = 0; i < MAX_SAME_PREFIX; i++) {
		if (i >= b->num_same)
			break;
		if (!!b->same[i].v4 == v4 && same_bits(c, b->same[i].mask))
			set_or(&found, &b->same[i].rules);
	}
	set_and(rules, &found, many(b));
	return 0;
}

/* The dimensions that few configurations use. */
static __always_inline void and_others(struct rule_set *rules, const struct conn *c,
				       const struct rule_bank *b, __u32 bank, struct tcp_sock *tp,
				       __u64 netns)
{
	if (b->dims & DIM_LOCAL)
		and_local(rules, bank, c);
	if (b->dims & DIM_REMOTE_PORT)
		and_port(rules, b, bank, 0, c->remote_port);
	if (b->dims & DIM_LOCAL_PORT)
		and_port(rules, b, bank, 1, c->local_port);
	if (tp && (b->dims & DIM_CGROUP)) {
		__u64 cgroup = (__u64)tcp_sk_sock(tp)->sk_cgrp_data.cgroup;

		and_cgroup(rules, bank, &cgroup);
	}
	if (b->dims & DIM_NETNS) {
		struct rule_id key = { .bank = bank, .id = netns };
		const struct rule_set *s = bpf_map_lookup_elem(&netns_rules, &key);

		set_and(rules, s ? s : &b->any_netns, many(b));
	}
	if (b->dims & DIM_SAME_PREFIX)
		and_same_prefix(rules, bank, c);
}

/* tp is NULL on a request socket; netns is 0 if no rule needs it. */
static __always_inline const struct class_entry *classify(const struct conn *c, const struct rule_bank *b,
							  __u32 bank, struct tcp_sock *tp, __u64 netns)
{
	const struct rule_set *all = c->outgoing ? &b->outgoing : &b->incoming;
	struct rule_set rules = { .word[0] = all->word[0] };
	__u32 index;
	int rule;

	if (many(b))
		rules = *all;
	if (b->dims & DIM_REMOTE)
		and_prefix(&rules, &remote_rules, bank, b, FEW_REMOTE, c->remote);
	if (unlikely(b->dims & ~(DIM_REMOTE | DIM_DIRECTION)))
		and_others(&rules, c, b, bank, tp, netns);
	rule = set_first(&rules, many(b));
	if (rule < 0)
		return NULL;
	/* A request socket has no cgroup: if a rule with a cgroup could match, the class
	 * is not known yet. */
	if (!tp && (b->dims & DIM_CGROUP) &&
	    !(b->any_cgroup.word[(rule / 64) & (SET_WORDS - 1)] & (1ULL << (rule & 63))))
		return NULL;
	index = bank * MAX_RULES + rule;
	return bpf_map_lookup_elem(&classes, &index);
}

/* Counts a connection that begins. Class 0: it has none. */
static __always_inline void count_class(struct counters *c, __u32 class, bool outgoing)
{
	struct class_count *n = &c->classes[class % MAX_CLASS_COUNTS];

	if (unlikely(!class))
		c->n[outgoing ? COUNT_NO_RULE_OUTGOING : COUNT_NO_RULE_INCOMING]++;
	else if (outgoing)
		n->outgoing++;
	else
		n->incoming++;
}

#endif
