/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Gives running connections a better congestion control than the one that they began with, if
 * the policy of their path says so: at the end of a round trip (BPF_SOCK_OPS_RTT_CB), which does not wait for
 * a walk over all sockets.
 */
#ifndef TCPILOT_SWITCH_BPF_H
#define TCPILOT_SWITCH_BPF_H

#include "owned.bpf.h"
#include "policy.bpf.h"
#include "report.bpf.h"
#include "same_rule.bpf.h"

/* How often a connection looks for its policy, at most. */
#define SWITCH_LOOK_US (100 * 1000)

/* How many connections are switched at most, so that a wrong belief does not change all of them
 * at once. */
#define SWITCHES_A_SECOND 20

static struct {
	__u64 begun_ns;		/* of a second */
	__u64 n;		/* switched in it */
} switches;

static __always_inline bool switches_left(__u64 now)
{
	__u64 begun = switches.begun_ns;

	if (now - begun >= NSEC_PER_SEC && __sync_bool_compare_and_swap(&switches.begun_ns, begun, now))
		switches.n = 0;
	return __sync_fetch_and_add(&switches.n, 1) < SWITCHES_A_SECOND;
}

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

/* Whether the owner of the connection's namespace chose its default congestion control, and no rule overrides that. */
static __always_inline bool cc_is_owned(struct tcp_sock *tp, const struct track *t, const struct runtime_config *cfg)
{
	return !(t->more_flags & RULE_NAMED) &&
	       ((owned_by_netns(tp, cfg, false) & YIELD_CC) || !netns_cc_inherited(tp, cfg));
}

/* Whether the congestion control is still the arm that tcpilot set, or the default that it left: an
 * application's choice is kept. */
static __always_inline bool cc_is_ours(struct tcp_sock *tp, const struct track *t,
				       const struct runtime_config *cfg)
{
	__u32 arm = t->arm;

	if (arm == ARM_DEFAULT || arm == NO_ARM)
		return !cc_chosen(tp, t) && tcp_ca_default(tp);
	return bounded(arm, MAX_CC) && cc_is(tcp_ca_name(tp), cfg->cc[arm]);
}

/* A connection begins whose rule switches running ones. */
static __always_inline void await_switch(struct bpf_sock_ops *skops, struct track *t)
{
	t->looked_at = (__u16)bpf_jiffies64() ?: 1;
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
}

/* Whether a connection is to look for its policy now. */
static __always_inline bool looks_now(struct tcp_sock *tp, struct track *t, const struct runtime_config *cfg)
{
	__u32 jiffies = bpf_jiffies64();

	if (!t->looked_at || jiffies_us((__u16)(jiffies - t->looked_at)) < SWITCH_LOOK_US)
		return false;
	if (t->arm == NO_ARM || keeps_arm(t) || (t->flags & (F_HOLD_OUT | F_APP_CC | F_ARM_FAILED)) ||
	    !has_same_rule(tp, t, cfg))
		return false;
	t->looked_at = (__u16)jiffies ?: 1;
	return true;
}

/* A round trip of a connection is over. */
static __always_inline void switch_running(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct track *t)
{
	const struct path_policy *p;
	struct runtime_config *cfg;
	__u32 zero = 0, to;
	__u64 now;

	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!cfg || !looks_now(tp, t, cfg) || cc_is_owned(tp, t, cfg))
		return;
	now = bpf_ktime_get_ns();
	p = conn_policy(tp, t->class, now);
	if (!p || !p->switch_from || !replaces(p, t->arm) || !cc_is_ours(tp, t, cfg))
		return;
	to = p->switch_to;
	if (!bounded(to, MAX_CC) || !switches_left(now))
		return;
	if (bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, (void *)cfg->cc[to], CC_NAME)) {
		t->flags |= F_ARM_FAILED;	/* not tried again */
		count(COUNT_CC_FAILED);
		return;
	}
	t->arm = to;
	t->flags |= F_CC_CHANGED;	/* its samples belong to two arms */
	count(COUNT_SWITCHED);
}

#endif
