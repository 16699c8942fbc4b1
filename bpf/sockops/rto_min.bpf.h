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

#include "owned.bpf.h"
#include "timers.bpf.h"

#define RTO_MIN_BIT (1ULL << FIELD_RTO_MIN)
#define PEER_BIT (1ULL << FIELD_PEER_OPTION)

enum {
	PEER_LEAST_US = 10000,	/* the least value of estimate.RTOMins */
};

/* RTO_MIN towards a peer that delays its ACKs by at most delack_max_ms: the sum of what the path needs if ACKs
 * are not delayed, that delay, and a tick by which either timer may be late. The sum is rounded up to a value of
 * estimate.RTOMins, for which spurious retransmissions are counted. A sum up to 5 ms above 25 or 50 ms, or up to
 * 10 ms above 10 ms, is not rounded: such a connection counts for the value below. */
static __always_inline __u32 peer_rto_min(__u32 undelayed_us, __u32 delack_max_ms)
{
	__u32 us = undelayed_us + delack_max_ms * 1000 + jiffy_us;

	if (us <= PEER_LEAST_US)
		return PEER_LEAST_US;
	if (us <= 20000 || (us > 25000 && us <= 30000) || (us > 50000 && us <= 55000))
		return us;
	if (us <= 25000)
		return 25000;
	return us <= 50000 ? 50000 : us <= 100000 ? 100000 : KERNEL_TIMER_US;
}

/* RTO_MIN for a connection of the path, in microseconds: the lesser of the value that is adapted to the path and the
 * one that follows from what the peer told; KERNEL_TIMER_US if there is neither. mask has the fields that may be
 * set. */
static __always_inline __u32 rto_min_of(const struct path_policy *p, __u64 mask, const struct track *t)
{
	__u64 set = p->set & mask;
	__u32 us = KERNEL_TIMER_US, peer;

	if (!(mask & RTO_MIN_BIT))
		return us;
	if (set & p->adapted & RTO_MIN_BIT)
		us = p->value[FIELD_RTO_MIN];
	else if (set & RTO_MIN_BIT)
		return us;	/* a rule's value, which is not changed */
	if ((set & PEER_BIT) && t->peer_delack_max_ms) {
		peer = peer_rto_min(p->value[FIELD_PEER_OPTION], t->peer_delack_max_ms);
		if (peer < us)
			us = peer;
	}
	return us;
}

/* A value that the application (TCP_RTO_MIN_US) or the sysctl chose is kept. Returns track.rto_min. */
static __always_inline __u32 change_rto_min(void *ctx, struct tcp_sock *tp, __u32 was, __u32 us)
{
	return change_timer(ctx, tp, TCP_BPF_RTO_MIN, tp->inet_conn.icsk_rto_min, was, us);
}

/* A connection begins. If it is outgoing, the value is set before the handshake, so that the first
 * retransmission timeout is computed with it. If the peer turns out to have no SACK, it does not report spurious
 * retransmissions, but the value stays: the timeout is computed already, and would not follow the variation with a greater
 * value (lengthens_timeout). An incoming connection without SACK does not get it. */
static __always_inline __u32 lower_rto_min(void *ctx, struct tcp_sock *tp, __u32 us, bool outgoing)
{
	if (!outgoing && !tcp_has_sack(tp))
		return 0;
	return change_rto_min(ctx, tp, us_to_jiffies(KERNEL_TIMER_US), us);
}

/* The handshake of an outgoing connection has shown how long its peer delays ACKs. */
static __always_inline void peer_shorten_rto_min(void *ctx, struct tcp_sock *tp, struct track *t,
						 const struct path_policy *p, __u64 mask)
{
	__u32 was = t->rto_min ?: us_to_jiffies(KERNEL_TIMER_US), us;

	if (!t->peer_delack_max_ms || !tcp_has_sack(tp))
		return;
	us = rto_min_of(p, mask, t);
	if (us_to_jiffies(us) < was)
		t->rto_min = change_rto_min(ctx, tp, was, us);
}

/* Whether a connection's timeout follows a greater RTO_MIN. Once round trips are measured, it is srtt plus rttvar_us, which
 * tcp_rtt_estimator raises only if the measured variation exceeds RTO_MIN. If round trips begin to vary, but by less, the
 * timeout stays as it is, and is too short. With a smaller RTO_MIN, it follows the variation. */
static __always_inline bool lengthens_timeout(const struct tcp_sock *tp, __u32 us)
{
	return !tp->srtt_us || tp->rttvar_us >= us;
}

/* A running connection without SACK is not shortened further. */
static __always_inline void follow_rto_min(struct tcp_sock *tp, struct track *t,
					   const struct runtime_config *cfg,
					   const struct path_policy *p)
{
	__u32 us = running_timer(p, p ? rto_min_of(p, ~owned_by_netns(tp, cfg, t->more_flags & RULE_NAMED), t) : 0);

	if (t->rto_min && us_to_jiffies(us) > t->rto_min && !lengthens_timeout(tp, us))
		return;
	t->rto_min = follow_timer(tp, t, cfg, us, TCP_BPF_RTO_MIN,
				  tp->inet_conn.icsk_rto_min, t->rto_min, tcp_has_sack(tp));
}

#endif
