/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A shorter DELACK_MAX, on paths whose peers wait for delayed ACKs.
 *
 * The kernel delays the ACK of a small segment by icsk_ack.ato, which is 40 ms or more, but by
 * icsk_delack_max at most (tcp_send_delayed_ack, tcp_delack_max).
 */
#ifndef TCPILOT_DELACK_BPF_H
#define TCPILOT_DELACK_BPF_H

#include "timers.bpf.h"

#define DELACK_MAX_BIT (1ULL << FIELD_DELACK_MAX)

/* A connection begins. There is no option for applications, but another BPF program may have
 * chosen a value. Returns track.delack_max. */
static __always_inline __u32 lower_delack_max(void *ctx, struct tcp_sock *tp, __u32 us)
{
	return change_timer(ctx, tp, TCP_BPF_DELACK_MAX, tp->inet_conn.icsk_delack_max,
			    us_to_jiffies(KERNEL_TIMER_US), us);
}

static __always_inline void follow_delack_max(struct tcp_sock *tp, struct track *t,
					      const struct runtime_config *cfg,
					      const struct path_policy *p)
{
	__u32 us = KERNEL_TIMER_US;

	if (p && (p->set & p->adapted & ~cfg->yield & DELACK_MAX_BIT))
		us = p->value[FIELD_DELACK_MAX];
	us = running_timer(p, us);
	/* The peer was told a bound, from which its RTO_MIN follows. */
	if (t->told_ms && t->delack_max && us_to_jiffies(us) > t->delack_max)
		return;
	t->delack_max = follow_timer(tp, t, cfg, us, TCP_BPF_DELACK_MAX,
				     tp->inet_conn.icsk_delack_max, t->delack_max, true);
}

#endif
