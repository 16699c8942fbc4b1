/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* On a busy host, most of the connections that get nothing, or only timeouts of the handshake, are not followed: there is
 * no state of them, and nothing happens at their end. The share that is followed is the one that is reported (thinning.bpf.h), and
 * each stands for as many others.
 *
 * On paths whose losses are watched, those that lose packets are all followed from then on, each for itself. The others of the share
 * stand for those that do not.
 */
#ifndef TCPILOT_FOLLOW_BPF_H
#define TCPILOT_FOLLOW_BPF_H

#include "budget.bpf.h"
#include "decide.bpf.h"
#include "pacing.bpf.h"
#include "policy.bpf.h"
#include "remember.bpf.h"
#include "thinning.bpf.h"

enum {
	/* Retransmissions from which a connection is followed: half as many losses as suggest a policer (policedLosses in
	 * internal/estimate), so that the round-trip time of some is noted (note_loss). Small connections hardly reach it. */
	LOSSES_TO_FOLLOW = 4,
	LOSSES_LOOKED_AT = 1024, /* retransmissions from which it is not looked at any more */
	LOSSY_PER_WINDOW = 20,	/* connections that a CPU looks at in BUDGET_WINDOW_MS */
};

static struct budget lossy[BUDGET_CPUS];

/* Whether a connection that begins needs no state: as long as it lives, it stays as it would be without tcpilot, hold-out or
 * not, but for timeouts of its handshake (syn.bpf.h), and nothing is counted for it either, except that it is one. While
 * other arms than the default are drawn as well, all connections are followed: the arms could not be compared if another
 * share of the long-lived ones were sampled of each. */
static __always_inline bool needs_no_state(const struct conn_ctx *ctx)
{
	if (ctx->policy && !(ctx->policy->flags & POLICY_UNFOLLOWED))
		return false;
	/* Who opened it is not known any more once it loses packets. */
	if (unlikely(watches_losses(ctx->policy, ctx->now)) && !(ctx->cls->flags & CLASS_UNDIRECTED))
		return false;
	return !(ctx->cls->flags & CLASS_FOLLOW_ALL);
}

/* Whether a connection that begins is to be followed. Sets how many it stands for; 0: drawn at its end. */
static __always_inline bool follows(const struct conn_ctx *ctx, __u64 number, __u32 *stands_for)
{
	*stands_for = 0;
	if (unlikely(!needs_no_state(ctx)))
		return true;
	thin_count(ctx->counters, ctx->now, ctx->cfg->report_rate);
	*stands_for = thin_draw(conn_draw(number, ctx->cfg->draw_key[1]), ctx->cfg->report_rate);
	if (unlikely(*stands_for))
		return true;
	ctx->counters->n[COUNT_NOT_FOLLOWED]++;
	return false;
}

/* Whether a connection that retransmits may have to be followed from now on: it has lost packets, and has no state, or its state
 * stands for others (t), or it was adopted without a class. Not for ever: its path's losses may not be watched. A CPU looks at a limited number. */
static __always_inline bool shows_losses(struct tcp_sock *tp, const struct track *t)
{
	return tp->total_retrans >= LOSSES_TO_FOLLOW && tp->total_retrans < LOSSES_LOOKED_AT &&
	       (!t || t->stands_for > 1 || ((t->flags & F_ADOPTED) && !t->class)) &&
	       (1U << (tcp_sk_sock(tp)->__sk_common.skc_state & 31) & FLOW_STATES) && budget_take(lossy, LOSSY_PER_WINDOW);
}

/* The class of a connection, if it does not depend on who opened it; else 0.
 *
 * This and follow_lossy are global functions, so that each is verified once and not where it is called, and two, because both need much
 * of the stack: with the program that calls this, and what this calls, it is all of the 512 bytes on Linux before 6.5. */
__noinline int class_undirected(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	const struct class_entry *cls;
	const struct rule_bank *b;
	struct runtime_config *cfg;
	struct conn c = {};
	__u32 zero = 0;

	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	b = cfg ? rules_of(cfg->bank & 1) : NULL;
	if (!tp || !b)
		return 0;
	conn_read_sock(tp, &c);
	cls = classify(&c, b, cfg->bank & 1, tp, tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie);
	return cls && (cls->flags & CLASS_UNDIRECTED) ? cls->id : 0;
}

/* A connection of a class has lost packets (shows_losses). If its path's losses are watched, it has state of its own from now on, and
 * stands for itself alone. */
__noinline int follow_lossy(struct bpf_sock_ops *skops, __u32 class)
{
	struct track t = { .arm = NO_ARM, .flags = F_ADOPTED | F_ESTABLISHED, .stands_for = 1, .class = class }, *known;
	struct tcp_sock *tp = skops_tcp(skops);
	struct counters *n = counters_here();
	const struct path_policy *p;
	struct runtime_config *cfg;
	__u32 zero = 0;

	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	t.start_ns = bpf_ktime_get_ns();
	if (!tp || !n || !cfg || t.start_ns >= cfg->lease_ns)
		return 0;
	p = conn_policy(tp, class, t.start_ns);
	if (!watches_losses(p, t.start_ns))
		return 0;
	known = recall(skops, tp);
	if (known) {
		if (known->stands_for > 1)
			known->stands_for = 1;
		if (!known->class) {
			known->class = class;	/* the next walk counts it (flow_follow) */
			known->policy_id = p->id;
			n->n[COUNT_LOSSY]++;
		}
		return 0;
	}
	t.cookie = bpf_get_socket_cookie(skops);
	t.policy_id = p->id;
	t.flow = p->flow;
	flow_begin(t.flow);
	if (!remember(skops, &t, n))
		flow_end_of(&t);
	else
		n->n[COUNT_LOSSY]++;
	return 0;
}

#endif
