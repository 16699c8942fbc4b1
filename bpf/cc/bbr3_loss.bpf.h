/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* BBRv3's answer to losses and marks (5.5.10, 5.5.11). */
#ifndef TCPILOT_BBR3_LOSS_BPF_H
#define TCPILOT_BBR3_LOSS_BPF_H

#include "bbr3_states.bpf.h"

/* 5.6.4.4 SaveCwnd */
static __always_inline void save_cwnd(struct tcp_sock *tp, struct bbr3 *b)
{
	if (tcp_ca_state(tp) < TCP_CA_RECOVERY && b->cc.mode != BBR3_PROBE_RTT)
		b->cc.w_max = tp->snd_cwnd;
	else
		b->cc.w_max = max_u32(b->cc.w_max, tp->snd_cwnd);
}

static __always_inline void restore_cwnd(struct tcp_sock *tp, struct bbr3 *b)
{
	tp->snd_cwnd = max_u32(tp->snd_cwnd, b->cc.w_max);
}

/* 5.5.11.1 SaveStateUponLoss */
static __always_inline void save_state(struct tcp_sock *tp, struct bbr3 *b, struct bbr3_more *m)
{
	save_cwnd(tp, b);
	b->undo = UNDO_NONE;
	m->undo_bw_lo = b->bw_lo;
	m->undo_inflight_lo = b->cc.inflight_lo;
	m->undo_inflight_hi = b->cc.inflight_hi;
	m->undo_max_bw = 0;
}

/* Packets lost since the one just acknowledged was sent (draft: C.lost - P.lost), from
 * the counters at the last two round starts. */
static __always_inline __u32 lost_since(struct tcp_sock *tp, const struct bbr3 *b, __u32 sent_at)
{
	__u32 rounds_lost = b->mark_lost[1] - b->mark_lost[0];
	__u32 span = b->mark_delivered[1] - b->mark_delivered[0];
	__u32 into = sent_at - b->mark_delivered[0];

	if (!rounds_lost || before(sent_at, b->mark_delivered[0]))
		return tp->lost - b->mark_lost[0];
	if (into >= span)
		return tp->lost - b->mark_lost[1];
	return tp->lost - b->mark_lost[0] - (__u32)((__u64)rounds_lost * into / span);
}

/* Whether losses may be caused by a queue. */
static __always_inline bool queue_seen(struct tcp_sock *tp)
{
	return !tolerate_random_loss || rtt_above(tp, QUEUE_SEEN);
}

/* Whether more was lost than by chance on a path that loses this share (1/1024) at random:
 * by three standard deviations of a Poisson count. If the share is 0, any loss is more. */
static __always_inline bool beyond_chance(__u32 lost, __u32 all, __u32 share)
{
	__u64 mean = (__u64)all * share;
	__u64 seen = (__u64)min_u32(lost, 1 << 20) << 10;

	return seen > mean && (seen - mean) * (seen - mean) > (9 * mean) << 10;
}

/* Share of losses, in 1/1024, from which on too much may be in flight: 2 % more than the
 * path loses by itself, and without a queue at least 10 %. */
static __always_inline __u32 loss_thresh(const struct bbr3 *b, bool queue)
{
	return max_u32(b->random_loss + LOSS_THRESH, queue ? 0 : HEAVY_LOSS);
}

/* 5.5.10.2 IsInflightTooHigh */
static __always_inline bool inflight_too_high(const struct bbr3 *b, const struct ack *a)
{
	return a->lost > ((__u64)a->tx_in_flight * a->loss_thresh >> 10) &&
	       beyond_chance(a->lost, a->tx_in_flight, b->random_loss);
}

/* 5.5.10.2 InflightAtLoss: what was in flight when losses crossed the threshold. */
static __always_inline __u32 inflight_at_loss(const struct ack *a)
{
	__u32 before_in_flight = a->tx_in_flight - min_u32(a->losses, a->tx_in_flight);
	__u32 lost_before = a->lost - min_u32(a->losses, a->lost);
	__u32 budget = ((__u64)before_in_flight * a->loss_thresh + 1023) >> 10;

	if (lost_before >= budget)
		return before_in_flight;
	return before_in_flight +
	       (__u32)(((__u64)(budget - lost_before) << 10) / (1024 - a->loss_thresh));
}

/* 5.5.10.2 HandleInflightTooHigh */
static __always_inline void handle_too_high(struct tcp_sock *tp, struct bbr3 *b,
					    struct bbr3_more *m, __u32 in_flight,
					    bool app_limited, __u32 why)
{
	b->prev_probe_too_high = 1;
	b->probe_sample = 0;
	if (!app_limited)
		b->cc.inflight_hi = max_u32(in_flight,
					    (__u64)target_inflight(tp, b) * BETA >> 10);
	if (b->cc.mode == BBR3_PROBE_UP) {
		b->undo = UNDO_UP;
		start_down(tp, m, why);
	}
}

/* 5.3.1.3: the way out of Startup when a queue is seen before a plateau. */
static __always_inline void leave_startup(struct tcp_sock *tp, struct bbr3 *b, struct bbr3_more *m,
					  __u32 why)
{
	b->undo = UNDO_STARTUP;
	b->cc.flags |= CC_FULL_PIPE;
	b->cc.inflight_hi = max_u32(bbr3_inflight(tp, b, max_filter_get(&b->max_bw)),
				    b->inflight_latest);
	set_mode(tp, b, m, BBR3_DRAIN, why);
	m->drain_start = m->round;
}

/* Whether a large share was lost, and in many places of the round. The cause is on the
 * path: a policer whose bucket is empty, or a buffer much smaller than the burst. */
static __always_inline bool severe_loss(const struct bbr3 *b, __u32 lost, __u32 all)
{
	return b->loss_events >= FULL_LOSS_COUNT && (__u64)lost << 10 > (__u64)all * SEVERE_LOSS;
}

/* 5.5.10.2 NoteLoss, HandleLostPacket */
static __noinline void handle_losses(struct tcp_sock *tp, struct ack *a)
{
	struct bbr3 *b = bbr3_get(tp);
	bool too_high, severe;
	struct bbr3_more *m;

	if (!b->loss_in_round)
		b->loss_round = tp->delivered;
	b->loss_in_round = 1;
	if (queue_seen(tp))
		b->queue_in_round = 1;
	if (b->loss_events < 15)
		b->loss_events++;
	too_high = b->probe_sample && inflight_too_high(b, a);
	severe = !b->probe_sample && b->cc.mode == BBR3_STARTUP &&
		 severe_loss(b, a->lost, a->tx_in_flight);
	if (!too_high && !severe)
		return;
	m = bbr3_more_get(tp);
	if (!m)
		return;
	if (too_high)
		handle_too_high(tp, b, m, inflight_at_loss(a), a->app_limited, BBR3_HIGH_LOSS);
	else
		leave_startup(tp, b, m, BBR3_HIGH_LOSS);
}

/* Google v3: more than half of what was delivered since the packet was sent is marked. With
 * a queue and at least FULL_ECN_COUNT packets, this ends Startup. */
static __noinline void handle_marks(struct tcp_sock *tp, struct ack *a)
{
	struct bbr3 *b = bbr3_get(tp);
	bool too_high, full;
	struct bbr3_more *m;

	too_high = b->probe_sample;
	full = !too_high && b->cc.mode == BBR3_STARTUP && a->delivered >= FULL_ECN_COUNT &&
	       queue_seen(tp);
	if (!too_high && !full)
		return;
	m = bbr3_more_get(tp);
	if (!m)
		return;
	if (too_high)
		handle_too_high(tp, b, m, a->tx_in_flight, a->app_limited, BBR3_HIGH_ECN);
	else
		leave_startup(tp, b, m, BBR3_HIGH_ECN);
}

/* 5.5.10.3 AdaptLowerBoundsFromCongestion, with Google's answer to marks. After severe loss
 * what was delivered becomes the bound at once, not after four rounds. The caller does not
 * set severe if the application limited that rate. */
static __always_inline void adapt_lower_bounds(struct tcp_sock *tp, struct bbr3 *b,
					       struct bbr3_more *m, bool ecn, bool loss,
					       bool severe)
{
	__u32 keep = severe ? 0 : BETA;
	__u32 ecn_lo = CC_NO_BOUND;

	if (is_probing_bw(b) || !(ecn || loss))
		return;
	if (b->cc.inflight_lo == CC_NO_BOUND)
		b->cc.inflight_lo = tp->snd_cwnd;
	if (ecn)
		ecn_lo = (__u64)b->cc.inflight_lo * (ALPHA_ONE - b->cc.alpha / ECN_FACTOR) >> 10;
	if (loss) {
		if (b->bw_lo == NO_BW)
			b->bw_lo = max_filter_get(&b->max_bw);
		b->bw_lo = max_u32(b->bw_latest, (__u64)b->bw_lo * keep >> 10);
		b->bw_lo = max_u32(b->bw_lo, 1);
		if (severe) {
			m->undo_max_bw = max_u32(m->undo_max_bw, max_filter_get(&b->max_bw));
			max_filter_reset(&b->max_bw, b->bw_lo);
		}
		b->cc.inflight_lo = max_u32(b->inflight_latest,
					    (__u64)b->cc.inflight_lo * keep >> 10);
	}
	b->cc.inflight_lo = min_u32(b->cc.inflight_lo, ecn_lo);
}

/* Share of the packets of the last round that were marked, in 1/1024, rounded up so that
 * one mark counts. Also smooths it into alpha as DCTCP does (RFC 8257 3.3). The fraction
 * has enough bits for rare marks to raise alpha, and for alpha to reach 0 without marks. */
static __always_inline __u32 update_alpha(struct tcp_sock *tp, struct bbr3 *b,
					  struct bbr3_more *m)
{
	__u32 delivered = tp->delivered - m->ecn_delivered;
	__u32 marked = min_u32(tp->delivered_ce - m->ecn_delivered_ce, delivered);

	if (!delivered)
		return 0;
	m->ecn_delivered = tp->delivered;
	m->ecn_delivered_ce = tp->delivered_ce;
	m->unmarked -= m->unmarked >> ALPHA_SHIFT;
	m->unmarked += ((__u64)(delivered - marked) << (MARK_BITS - ALPHA_SHIFT)) / delivered;
	b->cc.alpha = ((1U << MARK_BITS) - m->unmarked) >> 10;
	return (((__u64)marked << 10) + delivered - 1) / delivered;
}

/* Learns how much the path loses by itself, from rounds in Cruise without a queue. A
 * policer drops without a queue too, but only what exceeds its rate. So a share that a
 * policer may have caused is learned only if as much is still lost after the rate has come
 * down to what was delivered. It is then learned quickly if each round causes a cut (excess:
 * losses beyond chance).
 *
 * At first the share is at least LOSS_THRESH: otherwise, with the queue that Startup
 * leaves, each random loss would cause a cut that lasts until a probe. This minimum ends
 * with the first probe, or when a queue is seen after Startup's is gone, because that is
 * another flow's. */
static __always_inline void learn_random_loss(struct bbr3 *b, struct bbr3_more *m, __u32 share,
					      bool excess)
{
	__u32 eighths = 1;

	if (b->cc.mode != BBR3_PROBE_CRUISE || m->rounds_since_probe <= ECHO_ROUNDS)
		return;
	if (m->floor_rounds >= FLOOR_ROUNDS) {
		eighths = excess ? 4 : 1;
	} else if (share > FREE_LOSS) {
		if (b->random_loss >= FREE_LOSS)
			return;
		share = FREE_LOSS;
	}
	m->random_loss += eighths * (min_u32(share, MAX_RANDOM_LOSS) - (m->random_loss >> 3));
	take_random_loss(b, m);
}

/* Called after the bounds were adapted: bw_latest is still what the round delivered. */
static __always_inline void count_floor_rounds(struct bbr3 *b, struct bbr3_more *m, bool cut)
{
	if (b->bw_lo == NO_BW || (cut && b->bw_lo > b->bw_latest))
		m->floor_rounds = 0;
	else if (cut || m->floor_rounds)
		m->floor_rounds++;
}

/* Whether the losses of the loss round that is ending show that too much is in flight. */
static __always_inline bool losses_count(struct tcp_sock *tp, struct bbr3 *b,
					 struct bbr3_more *m, __u32 lost, __u32 all)
{
	__u32 share = all ? ((__u64)lost << 10) / all : 0;
	bool excess = beyond_chance(lost, all, b->random_loss);

	if (b->queue_in_round) {
		if (b->cc.mode == BBR3_PROBE_CRUISE && m->rounds_since_probe > ECHO_ROUNDS)
			end_allowance(b, m);
		return excess;
	}
	excess = excess && share > loss_thresh(b, false);
	if (!queue_seen(tp))
		learn_random_loss(b, m, share, excess);
	return excess;
}

/* 5.3.1.3 CheckStartupHighLoss. Losses without a queue end Startup only if the rate has
 * also stopped growing, as it does with a policer. */
static __always_inline bool startup_lossy(struct tcp_sock *tp, const struct bbr3 *b,
					  const struct ack *a)
{
	return b->loss_events >= FULL_LOSS_COUNT && tcp_ca_state(tp) == TCP_CA_RECOVERY &&
	       (queue_seen(tp) || b->full_bw_count) && inflight_too_high(b, a);
}

/* Once per loss round: 5.5.10.3 UpdateCongestionSignals, and the ways out of Startup. */
static __noinline void end_loss_round(struct tcp_sock *tp, struct ack *a)
{
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m = bbr3_more_get(tp);
	__u32 lost, all, share = 0;
	bool loss;

	if (!m)
		return;
	lost = tp->lost - m->loss_lost;
	all = tp->delivered - m->loss_delivered + lost;
	start_loss_count(tp, m);
	loss = losses_count(tp, b, m, lost, all) && b->loss_in_round;
	if (b->cc.flags & CC_ECN)
		share = update_alpha(tp, b, m);
	adapt_lower_bounds(tp, b, m, share, loss, severe_loss(b, lost, all) && !a->app_limited);
	count_floor_rounds(b, m, loss);
	if (b->cc.mode == BBR3_STARTUP && startup_lossy(tp, b, a))
		leave_startup(tp, b, m, BBR3_HIGH_LOSS);
	b->loss_events = 0;
	b->loss_in_round = 0;
	b->queue_in_round = 0;
}

#endif
