/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* On a busy host, most of the connections that get nothing, or only timeouts of the handshake, are not followed: there is
 * no state of them, and nothing happens at their end. The share that is followed is the one that is reported (thinning.bpf.h), and
 * each stands for as many others.
 */
#ifndef TCPILOT_FOLLOW_BPF_H
#define TCPILOT_FOLLOW_BPF_H

#include "decide.bpf.h"
#include "report.bpf.h"
#include "thinning.bpf.h"

/* Whether a connection that begins needs no state: as long as it lives, it stays as it would be without tcpilot, hold-out or
 * not, but for timeouts of its handshake (syn.bpf.h), and nothing is counted for it either, except that it is one. While
 * other arms than the default are drawn as well, all connections are followed: the arms could not be compared if another
 * share of the long-lived ones were sampled of each. */
static __always_inline bool needs_no_state(const struct conn_ctx *ctx)
{
	if (ctx->policy && !(ctx->policy->flags & POLICY_UNFOLLOWED))
		return false;
	return !(ctx->cls->flags & CLASS_FOLLOW_ALL) && !ctx->cfg->limits;
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

#endif
