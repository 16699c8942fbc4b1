/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Gives running connections a better congestion control than the one that they began with, if
 * the policy of their path says so. Called by the iterator, which holds the socket's lock.
 */
#ifndef TCPILOT_SWITCH_BPF_H
#define TCPILOT_SWITCH_BPF_H

#include "report.bpf.h"

/* How many more connections may be switched. User space sets it before each walk, so that
 * a wrong belief does not change all connections at once. */
__u32 switches_left;

/* One connection in 16 keeps its arm, so that the arm is still observed: those with 0 in the upper four
 * bits of a multiplicative hash of the cookie (2^64 / golden ratio), which spreads sequential cookies
 * evenly. */
static __always_inline bool keeps_arm(const struct track *t)
{
	return !(t->cookie * 0x9e3779b97f4a7c15ULL >> 60);
}

/* Whether the policy replaces an arm. */
static __always_inline bool replaces(const struct path_policy *p, __u8 arm)
{
	for (int i = 0; i < MAX_ARMS; i++)
		if (i < p->num_arms && p->arm[i] == arm)
			return p->switch_from & (1U << i);
	return false;
}

/* Whether the congestion control is still the arm that tcpilot set, or the default that it left: an
 * application's choice is kept. */
static __always_inline bool cc_is_ours(struct tcp_sock *tp, const struct track *t,
				       const struct runtime_config *cfg)
{
	__u32 arm = t->arm;

	if (arm == ARM_DEFAULT)
		return !tcp_ca_chosen(tp) && tcp_ca_default(tp);
	return bounded(arm, MAX_CC) && cc_is(tcp_ca_name(tp), cfg->cc[arm]);
}

static __always_inline void switch_cc(struct tcp_sock *tp, struct track *t,
				      const struct runtime_config *cfg,
				      const struct path_policy *p)
{
	__u32 to;

	/* Under newer rules, the connection may have another class, or be left alone. */
	if (!switches_left || t->arm == NO_ARM || keeps_arm(t) || t->start_ns < cfg->rules_ns ||
	    (t->flags & (F_HOLD_OUT | F_APP_CC | F_ARM_FAILED | F_ADOPTED)) ||
	    (cfg->yield & YIELD_CC) || !netns_cc_inherited(tp, cfg))
		return;
	if (!p->switch_from || !replaces(p, t->arm) || !cc_is_ours(tp, t, cfg))
		return;
	to = p->switch_to;
	if (!bounded(to, MAX_CC))
		return;
	if (bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, (void *)cfg->cc[to], CC_NAME)) {
		t->flags |= F_ARM_FAILED;	/* not tried again */
		count(COUNT_CC_FAILED);
		return;
	}
	t->arm = to;
	t->flags |= F_CC_CHANGED;	/* its samples belong to two arms */
	switches_left--;
	count(COUNT_SWITCHED);
}

#endif
