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

/* Whether all connections that the policy now treats get the default. While other arms are drawn as well, all
 * connections are followed: the arms could not be compared if another share of the long-lived ones were
 * sampled of each. */
static __always_inline bool only_default(const struct path_policy *p)
{
	return !p->num_arms || (p->arm[0] == ARM_DEFAULT && p->weight[0] >= 1 << 16);
}

/* Whether a connection stays as it would be without tcpilot as long as it lives. Nothing is counted for it
 * either, except that it is one. */
static __always_inline bool gets_nothing(const struct conn_ctx *ctx, const struct track *t)
{
	const struct path_policy *p = ctx->policy;

	if (t->arm < MAX_CC || t->flow || (p && ((p->set | p->adapted) || !only_default(p))))
		return false;
	return !(ctx->cls->flags & CLASS_FOLLOW_ALL) && !ctx->cfg->limits;
}

/* Whether a connection that begins is to be followed. */
static __always_inline bool follows(const struct conn_ctx *ctx, struct track *t, __u64 number)
{
	if (unlikely(!gets_nothing(ctx, t)))
		return true;
	thin_count(ctx->counters, ctx->cfg->report_rate);
	t->stands_for = thin_draw(conn_draw(number, ctx->cfg->draw_key[1]), ctx->cfg->report_rate);
	if (likely(t->stands_for))
		return true;
	ctx->counters->n[COUNT_NOT_FOLLOWED]++;
	return false;
}

#endif
