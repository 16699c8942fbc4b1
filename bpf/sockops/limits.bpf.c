// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reads and changes the connections that are under a rate limit. It shares the maps of
 * sockops.bpf.c, and may fail to load alone: then each limit is divided equally among all
 * connections that have begun under it.
 */
#include "attached.bpf.h"
#include "classify.bpf.h"
#include "slots.bpf.h"
#include "limits.bpf.h"

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

/* Writes a connection under limits for user space. If the reader's buffer is full, the kernel runs the program again for the same
 * connection: so it changes nothing. */
static __always_inline void list_limited(struct seq_file *to, struct tcp_sock *tp, const struct limited *m)
{
	struct sock_common *k = &tcp_sk_sock(tp)->__sk_common;
	struct limit_member out = {};

	if (!(m->rule | m->path))
		return;
	out.cookie = k->skc_cookie.counter;
	out.rule = m->rule;
	out.path = m->path;
	out.own = m->own;
	out.given = m->given;
	out.since_ns = m->since_ns;
	out.sent = limit_sent(tp, m);
	out.unsent = tp->write_seq - tp->snd_nxt;
	out.state = k->skc_state;
	bpf_seq_write(to, &out, sizeof(out));
}

/* Lists those of all network namespaces. It does not hold the sockets' locks. */
SEC("iter/bpf_sk_storage_map")
int tcpilot_limited(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct limited *m = ctx->value;
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp;

	if (!sk || !m)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		list_limited(ctx->meta->seq, tp, m);
	return 0;
}

/* Lists those of the reader's network namespace, if the kernel refuses iterators over maps. */
SEC("iter/tcp")
int tcpilot_limited_here(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct limited *m;
	struct tcp_sock *tp;

	if (!skc || skc->skc_state == TCP_LISTEN)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	m = bpf_sk_storage_get(&limited, tp, 0, 0);
	if (m)
		list_limited(ctx->meta->seq, tp, m);
	return 0;
}

/* Puts a running connection under the limit that its rule has by now, and under that of its network namespace. If it has no state
 * (t is NULL), or was adopted, it is not known which end opened it: then under the rule's only if that does not matter. As long as the
 * limit of a rule is in force, it stays under that. */
static __always_inline void join_later(struct tcp_sock *tp, struct limited *m, const struct track *t, __u32 bank)
{
	bool directed = t && !(t->flags & F_ADOPTED);
	__u64 netns = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	const struct rule_bank *b = rules_of(bank);
	const struct class_entry *cls;
	__u64 rule = 0, path = 0;
	struct conn c = {};
	__u32 flags;

	if (!b)
		return;
	conn_read_sock(tp, &c);
	c.outgoing = directed && (t->flags & F_OUTGOING);
	cls = classify(&c, b, bank, tp, netns);
	if (m && m->rule != netns && limit_find(m->rule))
		rule = m->rule;
	else if (cls && (directed || (cls->flags & CLASS_UNDIRECTED)))
		rule = cls->limit;
	limit_keys(tp, &rule, &path);
	if (!(limit_find(rule) ?: limit_find(path)) || (m && m->rule == rule && (m->path == path || !path)))
		return;
	bpf_get_socket_cookie(tp);	/* shares are found by it */
	m = limit_join(tp, rule, path);
	if (!m)
		return;
	/* Without the flag, the connection reads its share only at each walk. */
	flags = tp->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG;
	bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	limit_walked(tp, m);
}

/* Whether a connection of ours is established. Without state (t is NULL), its cgroup tells whether it is one. */
static __always_inline bool is_established(struct tcp_sock *tp, const struct track *t)
{
	if (t)
		return t->flags & F_ESTABLISHED;
	return (1U << (tcp_sk_sock(tp)->__sk_common.skc_state & 31) & FLOW_STATES) && attached_to(tp);
}

/* Brings running connections, also idle ones, in line with the limits in force. */
SEC("iter/tcp")
int tcpilot_limit_walk(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct runtime_config *cfg;
	struct live_conn *l;
	struct limited *m;
	struct tcp_sock *tp;
	struct track *t;
	__u32 zero = 0;
	__u64 cookie, netns;

	if (!skc || skc->skc_state == TCP_LISTEN)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!tp || !cfg)
		return 0;
	m = bpf_sk_storage_get(&limited, tp, 0, 0);
	if (m)
		limit_walked(tp, m);
	netns = skc->skc_net.net->net_cookie;
	if (m && limit_find(m->rule) && (!(cfg->limits & LIMITS_OF_NETNS) || !limit_find(netns) || m->path == netns))
		return 0;	/* otherwise its rule or namespace may have got a limit */
	cookie = skc->skc_cookie.counter;	/* 0: no hook has seen it */
	l = bpf_sk_storage_get(&live, tp, 0, 0);
	t = l ? &l->track : cookie ? slot_find(cookie) : NULL;
	if (is_established(tp, t) && bpf_ktime_get_ns() < cfg->lease_ns)
		join_later(tp, m, t, cfg->bank & 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
