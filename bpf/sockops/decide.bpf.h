/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Decides what a connection gets of its path's policy: the hold-out or an arm, and whether fields
 * are set.
 */
#ifndef TCPILOT_DECIDE_BPF_H
#define TCPILOT_DECIDE_BPF_H

#include "apply.bpf.h"
#include "draws.bpf.h"
#include "owned.bpf.h"

/* The context of one call of a hook. */
struct conn_ctx {
	struct runtime_config *cfg;
	struct counters *counters;
	struct tcp_sock *tp;		/* NULL on a request socket */
	const struct class_entry *cls;	/* has an id, and is not to be left alone */
	const struct path_policy *policy; /* may be NULL or expired */
	__u64 now;
	__u64 yield;			/* what the namespace owns: mask of netns_yields */
};

/* The draw of the slice in which the connection begins. Without slices, a draw for each
 * connection. */
static __always_inline struct slice slice_of(const struct conn_ctx *ctx, const struct conn *c)
{
	if (!ctx->policy->slice_shift)
		return (struct slice){ .arm = bpf_get_prandom_u32() >> 16 };
	return slice_draw(c, ctx->cfg->slice_key, ctx->now + ctx->cfg->wall_offset_ns,
			  ctx->policy->slice_shift);
}

/* Whether the whole slice is a hold-out. */
static __always_inline bool slice_is_hold_out(const struct conn_ctx *ctx, struct slice s)
{
	return ctx->policy->slice_shift && s.hold_out < ctx->policy->hold_out_slices;
}

/* Requests for which is_left_out draws. For others, a request socket and its connection have one draw. */
#define REQUESTS_DRAWN_APART (1U << BPF_SOCK_OPS_TIMEOUT_INIT | REQUEST_SYN | REQUEST_SYNACK | REQUEST_ADAPTED_SYNACK)

/* Whether the connection is a hold-out by itself; number is for conn_draw. If policies
 * answer other requests for incoming connections, the draw of one of those is one that the request socket has, too. */
static __always_inline bool conn_is_hold_out(const struct conn_ctx *ctx, const struct conn *c, __u64 number)
{
	__u32 share = ctx->policy->hold_out;

	return share && (c->outgoing || likely(!(ctx->cfg->requests & ~REQUESTS_DRAWN_APART)) ?
				 conn_draw(number, ctx->cfg->draw_key[0]) >> 48 :
				 incoming_draw(c, ctx->cfg->draw_key)) < share;
}

/* Whether a request socket is a hold-out: by the same draws as in decide. The results may differ if the slice ends before the
 * handshake does. */
static __always_inline bool request_is_hold_out(const struct conn_ctx *ctx, const struct conn *c)
{
	return conn_is_hold_out(ctx, c, 0) ||
	       (ctx->policy->hold_out_slices && slice_is_hold_out(ctx, slice_of(ctx, c)));
}

/* Whether a connection of which no state is kept, or a request socket, keeps the kernel's timeout. Nothing that is compared
 * depends on that, so there is one draw for it alone, with the share of all hold-outs: those of decide take longer. */
static __always_inline bool is_left_out(const struct conn_ctx *ctx, __u64 number)
{
	const struct path_policy *p = ctx->policy;

	return conn_draw(number, ctx->cfg->draw_key[0]) >> 48 < p->hold_out + (p->slice_shift ? p->hold_out_slices : 0);
}

/* What the network namespace of a connection owns. Nothing if the rule names the
 * namespace, or a cgroup: such a rule overrides the namespace's settings. */
static __always_inline __u64 owned(struct bpf_sock_ops *skops, const struct conn_ctx *ctx)
{
	if (likely(!ctx->cfg->yield) || (ctx->cls->flags & CLASS_NAMED))
		return 0;
	return netns_owns(bpf_get_netns_cookie(skops));
}

/* Whether the namespace's owner chose its default congestion control. */
static __always_inline bool cc_owned(const struct conn_ctx *ctx)
{
	return !(ctx->cls->flags & CLASS_NAMED) && !netns_cc_inherited(ctx->tp, ctx->cfg);
}

/* Draws what a connection gets and stores it in t. */
static __always_inline void decide(const struct conn_ctx *ctx, struct track *t, const struct conn *c, __u64 number)
{
	struct slice slice = {};

	if (unlikely(!ctx->policy)) {
		count(COUNT_NO_POLICY);
		return;
	}
	if (unlikely(ctx->now >= ctx->policy->expires_ns)) {
		count(COUNT_EXPIRED);
		return;
	}
	t->policy_id = ctx->policy->id;
	t->flow = ctx->policy->flow;
	if (ctx->policy->num_arms && unlikely(cc_owned(ctx)))
		t->flags |= F_APP_CC;	/* not comparable, not even as a hold-out */
	if (ctx->policy->num_arms || ctx->policy->hold_out_slices)
		slice = slice_of(ctx, c);
	/* The slice first: all connections that begin in a hold-out slice belong to it. */
	if (slice_is_hold_out(ctx, slice))
		t->flags |= F_HOLD_OUT | F_HOLD_OUT_SLICE;
	else if (conn_is_hold_out(ctx, c, number))
		t->flags |= F_HOLD_OUT;
	if (unlikely(t->flags & F_HOLD_OUT)) {
		count(COUNT_HOLD_OUT);
		return;
	}
	ctx->counters->n[COUNT_SET]++;
	if (unlikely(t->flags & F_APP_CC))
		count(COUNT_APP_CC);
	else if (likely(!(ctx->yield & YIELD_CC)))
		t->arm = draw_arm(ctx->policy, slice.arm);
	if (t->arm == ARM_DEFAULT)	/* nothing will be set */
		ctx->counters->n[cc_chosen(ctx->tp, t) ? COUNT_APP_CC : COUNT_CC_DEFAULT]++;
	if (unlikely(ctx->policy->set & ~ctx->yield))
		t->flags |= F_FIELDS;
}

#endif
