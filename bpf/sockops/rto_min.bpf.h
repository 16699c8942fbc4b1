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

#include "report.bpf.h"

#define RTO_MIN_BIT (1ULL << FIELD_RTO_MIN)

enum {
	KERNEL_RTO_MIN_US = 200000,	/* TCP_RTO_MIN */
};

/* usecs_to_jiffies: rounded up. The length of a jiffy is not a whole number of microseconds
 * on every kernel, but the number of them in a second is. */
static __always_inline __u32 us_to_jiffies(__u32 us)
{
	return ((__u64)us * (USEC_PER_SEC / jiffy_us) + USEC_PER_SEC - 1) / USEC_PER_SEC;
}

/* Sets RTO_MIN to `us` if it still is `was` jiffies: what the application (TCP_RTO_MIN_US) or
 * the sysctl chose is kept. Not for MPTCP, whose subflows retransmit for each other. Returns
 * track.rto_min. */
static __always_inline __u32 change_rto_min(void *ctx, struct tcp_sock *tp, __u32 was, __u32 us)
{
	__u32 now = us_to_jiffies(us);

	if (tp->inet_conn.icsk_rto_min != was || tcp_is_mptcp(tp) ||
	    bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_RTO_MIN, &us, sizeof(us)))
		return 0;
	return us == KERNEL_RTO_MIN_US ? 0 : now;
}

/* A connection begins. If it is outgoing, the value is set before the handshake, so that the
 * first round-trip time does not begin with the kernel's. */
static __always_inline __u32 lower_rto_min(void *ctx, struct tcp_sock *tp, __u32 us, bool outgoing)
{
	if (!outgoing && !tcp_has_sack(tp))
		return 0;
	return change_rto_min(ctx, tp, us_to_jiffies(KERNEL_RTO_MIN_US), us);
}

/* The handshake of an outgoing connection is over. Without SACK, the peer does not report
 * spurious retransmissions, and there is no probe for a lost tail. */
static __always_inline void check_rto_min(void *ctx, struct tcp_sock *tp, struct track *t)
{
	if (t->rto_min && !tcp_has_sack(tp))
		t->rto_min = change_rto_min(ctx, tp, t->rto_min, KERNEL_RTO_MIN_US);
}

/* Gives a running connection the value that its path has now: the kernel's if all of its
 * connections are in the hold-out, or if it has no policy any more (p is NULL). */
static __always_inline void follow_rto_min(struct tcp_sock *tp, struct track *t,
					   const struct runtime_config *cfg,
					   const struct path_policy *p)
{
	__u32 was = t->rto_min ?: us_to_jiffies(KERNEL_RTO_MIN_US), us = KERNEL_RTO_MIN_US, now;

	if (p && (p->set & p->adapted & ~cfg->yield & RTO_MIN_BIT) && p->hold_out < 1 << 16)
		us = p->value[FIELD_RTO_MIN];
	now = us_to_jiffies(us);
	if (now == was || (t->flags & (F_HOLD_OUT | F_ADOPTED)))
		return;
	/* Under rules that are newer, the connection may have another class, or be left alone. */
	if (now < was && (t->start_ns < cfg->rules_ns || !tcp_has_sack(tp)))
		return;
	if (tp->inet_conn.icsk_rto_min == was)
		t->rto_min = change_rto_min(tp, tp, was, us);
}

#endif
