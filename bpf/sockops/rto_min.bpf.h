/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A shorter RTO_MIN, on paths whose round-trip times vary little.
 *
 * The kernel's retransmission timeout is srtt plus the greater of four times the variation
 * and RTO_MIN (tcp_rtt_estimator, __tcp_set_rto), which is 200 ms by default. The probe for
 * the loss of a lone packet waits as long (tcp_schedule_loss_probe). On newer kernels, the
 * connection's own ACKs are also delayed by less than RTO_MIN (tcp_delack_max).
 */
#ifndef TCPILOT_RTO_MIN_BPF_H
#define TCPILOT_RTO_MIN_BPF_H

#include "timers.bpf.h"

#define RTO_MIN_BIT (1ULL << FIELD_RTO_MIN)

/* What the application (TCP_RTO_MIN_US) or the sysctl chose is kept. Returns track.rto_min. */
static __always_inline __u32 change_rto_min(void *ctx, struct tcp_sock *tp, __u32 was, __u32 us)
{
	return change_timer(ctx, tp, TCP_BPF_RTO_MIN, tp->inet_conn.icsk_rto_min, was, us);
}

/* A connection begins. If it is outgoing, the value is set before the handshake, so that the
 * first round-trip time does not begin with the kernel's. */
static __always_inline __u32 lower_rto_min(void *ctx, struct tcp_sock *tp, __u32 us, bool outgoing)
{
	if (!outgoing && !tcp_has_sack(tp))
		return 0;
	return change_rto_min(ctx, tp, us_to_jiffies(KERNEL_TIMER_US), us);
}

/* The handshake of an outgoing connection is over. Without SACK, the peer does not report
 * spurious retransmissions, and there is no probe for a lost tail. */
static __always_inline void check_rto_min(void *ctx, struct tcp_sock *tp, struct track *t)
{
	if (t->rto_min && !tcp_has_sack(tp))
		t->rto_min = change_rto_min(ctx, tp, t->rto_min, KERNEL_TIMER_US);
}

/* Without SACK it is not shortened, as at the beginning. */
static __always_inline void follow_rto_min(struct tcp_sock *tp, struct track *t,
					   const struct runtime_config *cfg,
					   const struct path_policy *p)
{
	t->rto_min = follow_timer(tp, t, cfg, p, FIELD_RTO_MIN, TCP_BPF_RTO_MIN,
				  tp->inet_conn.icsk_rto_min, t->rto_min, tcp_has_sack(tp));
}

#endif
