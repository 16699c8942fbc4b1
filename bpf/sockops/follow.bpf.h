/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* On a busy host, most of the connections that get nothing are not followed: there is no state of them, and
 * nothing happens at their end. The share that is followed is the one that is reported (thinning.bpf.h), and
 * each stands for as many others.
 */
#ifndef TCPILOT_FOLLOW_BPF_H
#define TCPILOT_FOLLOW_BPF_H

#include "decide.bpf.h"
#include "report.bpf.h"
#include "thinning.bpf.h"

/* Whether all connections of the policy get the default now. While other arms are drawn as well, all
 * connections are followed: the arms could not be compared if another share of the long-lived ones were
 * sampled of each. The weight of a single arm is not read: it is in the next cache line. */
static __always_inline bool only_default(const struct path_policy *p)
{
	if (!p->num_arms)
		return true;
	return p->arm[0] == ARM_DEFAULT && (likely(p->num_arms == 1) || p->weight[0] >= 1 << 16);
}

/* Whether a connection that begins stays as it would be without tcpilot as long as it lives, hold-out or not. Nothing
 * is counted for it either, except that it is one. */
static __always_inline bool gets_nothing(const struct conn_ctx *ctx)
{
	const struct path_policy *p = ctx->policy;

	if (p && (p->set || p->adapted || p->flow || !only_default(p)))
		return false;
	return !(ctx->cls->flags & CLASS_FOLLOW_ALL) && !ctx->cfg->limits;
}

/* Whether a connection that begins is to be followed. Sets how many it stands for; 0: drawn at its end. */
static __always_inline bool follows(const struct conn_ctx *ctx, __u64 number, __u32 *stands_for)
{
	*stands_for = 0;
	if (unlikely(!gets_nothing(ctx)))
		return true;
	thin_count(ctx->counters, ctx->now, ctx->cfg->report_rate);
	*stands_for = thin_draw(conn_draw(number, ctx->cfg->draw_key[1]), ctx->cfg->report_rate);
	if (unlikely(*stands_for))
		return true;
	ctx->counters->n[COUNT_NOT_FOLLOWED]++;
	return false;
}

#endif
