/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Timers of a connection that are shorter than the kernel's: RTO_MIN (rto_min.bpf.h) and DELACK_MAX
 * (delack.bpf.h).
 */
#ifndef TCPILOT_TIMERS_BPF_H
#define TCPILOT_TIMERS_BPF_H

#include "report.bpf.h"
#include "same_rule.bpf.h"

enum {
	KERNEL_TIMER_US = 200000,	/* TCP_RTO_MIN, TCP_DELACK_MAX */
};

/* usecs_to_jiffies: rounded up. The length of a jiffy is not a whole number of microseconds
 * on every kernel, but the number of them in a second is. */
static __always_inline __u32 us_to_jiffies(__u32 us)
{
	return ((__u64)us * (USEC_PER_SEC / jiffy_us) + USEC_PER_SEC - 1) / USEC_PER_SEC;
}

/* Sets a timer to `us` if its value, `has` jiffies, still is the expected one, `was` jiffies: a value that
 * others chose is kept. Not for MPTCP, whose subflows retransmit and acknowledge for each other.
 * Returns the jiffies to remember in struct track; 0: the kernel's, or a value that others chose. */
static __always_inline __u32 change_timer(void *ctx, struct tcp_sock *tp, int option, __u32 has,
					  __u32 was, __u32 us)
{
	if (has != was || tcp_is_mptcp(tp) || bpf_setsockopt(ctx, SOL_TCP, option, &us, sizeof(us)))
		return 0;
	return us == KERNEL_TIMER_US ? 0 : us_to_jiffies(us);
}

/* What running connections of a path should have: `us`, or the kernel's value if all connections of the path are
 * in the hold-out, or if the path has no policy any more (p is NULL). */
static __always_inline __u32 running_timer(const struct path_policy *p, __u32 us)
{
	return !p || p->hold_out >= 1 << 16 ? KERNEL_TIMER_US : us;
}

/* Gives a running connection a value in microseconds. given is what struct track remembers, in jiffies; returns what it should
 * remember. */
static __always_inline __u32 follow_timer(struct tcp_sock *tp, const struct track *t,
					  const struct runtime_config *cfg, __u32 us, int option,
					  __u32 has, __u32 given, bool may_shorten)
{
	__u32 was = given ?: us_to_jiffies(KERNEL_TIMER_US), now = us_to_jiffies(us);

	if (now == was || has != was || (t->flags & (F_HOLD_OUT | F_ADOPTED)))
		return given;
	if (now < was && (!may_shorten || !has_same_rule(tp, t, cfg)))
		return given;
	return change_timer(tp, tp, option, has, was, us);
}

#endif
