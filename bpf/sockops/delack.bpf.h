/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A shorter DELACK_MAX, on paths whose peers wait for delayed ACKs.
 *
 * The kernel delays the ACK of a small segment by icsk_ack.ato, which is 40 ms or more, but by
 * icsk_delack_max at most (tcp_send_delayed_ack, tcp_delack_max).
 */
#ifndef TCPILOT_DELACK_BPF_H
#define TCPILOT_DELACK_BPF_H

#include "rto_min.bpf.h"

#define DELACK_MAX_BIT (1ULL << FIELD_DELACK_MAX)

enum {
	KERNEL_DELACK_MAX_US = 200000,	/* TCP_DELACK_MAX */
};

/* Sets DELACK_MAX to `us` if it still is `was` jiffies: there is no option for applications,
 * but another BPF program may have chosen it. Not for MPTCP, whose subflows acknowledge data of
 * the connection. Returns track.delack_max. */
static __always_inline __u32 change_delack_max(void *ctx, struct tcp_sock *tp, __u32 was, __u32 us)
{
	if (tp->inet_conn.icsk_delack_max != was || tcp_is_mptcp(tp) ||
	    bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_DELACK_MAX, &us, sizeof(us)))
		return 0;
	return us == KERNEL_DELACK_MAX_US ? 0 : us_to_jiffies(us);
}

/* Gives a running connection the value that its path has now: the kernel's if all of its
 * connections are in the hold-out, or if it has no policy any more (p is NULL). */
static __always_inline void follow_delack_max(struct tcp_sock *tp, struct track *t,
					      const struct runtime_config *cfg,
					      const struct path_policy *p)
{
	__u32 was = t->delack_max ?: us_to_jiffies(KERNEL_DELACK_MAX_US), us = KERNEL_DELACK_MAX_US, now;

	if (p && (p->set & p->adapted & ~cfg->yield & DELACK_MAX_BIT) && p->hold_out < 1 << 16)
		us = p->value[FIELD_DELACK_MAX];
	now = us_to_jiffies(us);
	if (now == was || (t->flags & (F_HOLD_OUT | F_ADOPTED)))
		return;
	/* Under rules that are newer, the connection may have another class, or be left alone. */
	if (now < was && t->start_ns < cfg->rules_ns)
		return;
	if (tp->inet_conn.icsk_delack_max == was)
		t->delack_max = change_delack_max(tp, tp, was, us);
}

#endif
