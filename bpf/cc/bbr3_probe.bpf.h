/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* BBRv3's probes: for bandwidth, in rounds and phases (5.3.1 to 5.3.3), and for the
 * smallest RTT (5.3.4). */
#ifndef TCPILOT_BBR3_PROBE_BPF_H
#define TCPILOT_BBR3_PROBE_BPF_H

#include "bbr3_loss.bpf.h"

/* ---- rounds ------------------------------------------------------------------- */

/* 5.5.9 UpdateACKAggregation */
static __always_inline void update_ack_aggregation(struct tcp_sock *tp, struct bbr3 *b,
						   const struct ack *a)
{
	__u32 now = tcp_now_us(tp);
	__u32 expected = sat_u32((__u64)bbr3_bw(b) * (now - b->epoch_stamp) >> BW_SHIFT);
	__u32 extra;

	if (b->epoch_acked <= expected || b->epoch_acked > 1 << 20) {
		b->epoch_acked = 0;
		b->epoch_stamp = now;
		expected = 0;
	}
	b->epoch_acked += a->acked;
	extra = min_u32(b->epoch_acked - expected, min_u32(tp->snd_cwnd, 0xffff));
	if (extra > b->extra_acked[1])
		b->extra_acked[1] = extra;
}

/* 5.3.1.2 CheckFullBWReached, at a round start */
static __always_inline void check_full_bw(struct bbr3 *b, struct bbr3_more *m, const struct ack *a)
{
	if (b->full_bw_now || a->app_limited)
		return;
	if (b->bw_latest >= m->full_bw + (m->full_bw >> 2)) {
		reset_full_bw(b, m, b->bw_latest);
		return;
	}
	b->full_bw_count++;
	if (b->full_bw_count < FULL_BW_ROUNDS)
		return;
	b->full_bw_now = 1;
	b->cc.flags |= CC_FULL_PIPE;
}

/* 5.3.3.5.3 IsTimeToProbeBW */
static __always_inline bool check_time_to_probe(struct tcp_sock *tp, struct bbr3 *b,
						struct bbr3_more *m, const struct ack *a)
{
	if (after(a->now, m->cycle_stamp + m->probe_wait)) {
		start_refill(tp, m, BBR3_PROBE_TIME);
		return true;
	}
	if (m->reno_rounds >= min_u32(target_inflight(tp, b), MAX_RENO_ROUNDS)) {
		start_refill(tp, m, BBR3_RENO_TIME);
		return true;
	}
	return false;
}

/* 5.3.3.6 AdaptLongTermModel: the part that only a round start can change. Returns whether
 * it changed the state. */
static __always_inline bool advance_ack_phase(struct tcp_sock *tp, struct bbr3 *b,
					      struct bbr3_more *m, const struct ack *a)
{
	if (b->ack_phase == ACKS_PROBE_STARTING)
		b->ack_phase = ACKS_PROBE_FEEDBACK;
	if (b->ack_phase != ACKS_PROBE_STOPPING)
		return false;
	b->probe_sample = 0;
	b->ack_phase = ACKS_INIT;
	if (!in_probe_bw(b))
		return false;
	if (!a->app_limited)
		max_filter_advance(&b->max_bw);
	if (!b->prev_probe_precautionary || b->prev_probe_too_high || queue_of_bdp(tp))
		return false;
	start_refill(tp, m, BBR3_PROBE_SAFE);
	return true;
}

/* With a queue the filter must forget by rounds too: see bbr3.bpf.c. */
static __always_inline bool max_bw_stale(struct tcp_sock *tp, const struct bbr3 *b,
					 const struct bbr3_more *m, const struct ack *a)
{
	if (b->cc.mode != BBR3_PROBE_DOWN && b->cc.mode != BBR3_PROBE_CRUISE)
		return false;
	if (a->app_limited || !m->rounds_since_probe || m->rounds_since_probe % BW_ROUNDS)
		return false;
	return rtt_above(tp, QUEUE_HALF);
}

/* What happens once a round, in the draft's order. */
static __noinline void begin_round(struct tcp_sock *tp, struct ack *a)
{
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m = bbr3_more_get(tp);

	if (!m)
		return;
	m->round++;
	m->rounds_since_probe++;
	if (!queue_of_bdp(tp))
		m->reno_rounds++;
	m->extra_rounds++;
	if (!full_bw_reached(b) || m->extra_rounds >= EXTRA_ACKED_ROUNDS) {
		b->extra_acked[0] = full_bw_reached(b) ? b->extra_acked[1] : 0;
		b->extra_acked[1] = 0;
		m->extra_rounds = 0;
	}
	if (!b->has_rtt && tp->srtt_us)
		init_pacing_rate(tp, b);
	if (max_bw_stale(tp, b, m, a))
		max_filter_advance(&b->max_bw);
	b->cc.bw = bw_to_rate(tp, bbr3_bw(b), RATE_ONE);

	check_full_bw(b, m, a);
	if (b->cc.mode == BBR3_STARTUP && full_bw_reached(b)) {
		set_mode(tp, b, m, BBR3_DRAIN, BBR3_FULL_BW);
		m->drain_start = m->round;
	} else if (b->cc.mode == BBR3_DRAIN && m->round > m->drain_start + DRAIN_ROUNDS) {
		start_down(tp, m, BBR3_DRAIN_TIME);
	}
	if (!full_bw_reached(b) || advance_ack_phase(tp, b, m, a))
		return;
	if (b->cc.mode == BBR3_PROBE_DOWN || b->cc.mode == BBR3_PROBE_CRUISE)
		check_time_to_probe(tp, b, m, a);
	else if (b->cc.mode == BBR3_PROBE_REFILL)
		start_up(tp, m);
}

/* ---- ProbeBW -------------------------------------------------------------------- */

/* 5.3.3.6 ProbeInflightLongtermUpward */
static __always_inline void probe_upward(struct tcp_sock *tp, struct bbr3 *b,
					 struct bbr3_more *m, const struct ack *a)
{
	__u32 delta;

	m->up_acked += a->acked;
	if (m->up_count && m->up_acked >= m->up_count) {
		delta = m->up_acked / m->up_count;
		m->up_acked -= delta * m->up_count;
		b->cc.inflight_hi += delta;
	}
	if (a->round_start)
		raise_inflight_slope(tp, m);
}

/* 5.3.3.6 for Up: grow inflight_hi, IsTimeToGoDown. C.inflight is taken before the ACK, as
 * in Google's v3: after the ACK the window, which inflight_hi bounds, is never full. */
static __noinline void update_up(struct tcp_sock *tp, struct ack *a)
{
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m = bbr3_more_get(tp);
	bool limited = BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited) &&
		       tp->snd_cwnd >= b->cc.inflight_hi;

	if (!m)
		return;
	if (limited && !a->marked && !inflight_too_high(b, a))
		probe_upward(tp, b, m, a);
	if (b->prev_probe_too_high && a->prior_in_flight >= b->cc.inflight_hi) {
		b->prev_probe_precautionary = 1;
		b->prev_probe_too_high = 0;
		start_down(tp, m, BBR3_PRECAUTION);
	} else if (limited) {
		reset_full_bw(b, m, a->bw);
	} else if (b->full_bw_now) {
		b->prev_probe_too_high = 0;
		start_down(tp, m, BBR3_FULL_BW);
	}
}

/* In flight has come down: 5.3.2 CheckDrainDone, 5.3.3.6 IsTimeToCruise. */
static __noinline void update_draining(struct tcp_sock *tp)
{
	struct bbr3 *b = bbr3_get(tp);
	__u32 in_flight = tcp_packets_in_flight(tp);
	struct bbr3_more *m;

	if (in_flight > bbr3_inflight(tp, b, max_filter_get(&b->max_bw)))
		return;
	if (b->cc.mode == BBR3_PROBE_DOWN && in_flight > inflight_with_headroom(b))
		return;
	m = bbr3_more_get(tp);
	if (!m)
		return;
	if (b->cc.mode == BBR3_DRAIN)
		start_down(tp, m, BBR3_DRAINED);
	else
		set_mode(tp, b, m, BBR3_PROBE_CRUISE, BBR3_DRAINED);
}

/* ---- ProbeRTT --------------------------------------------------------------------- */

static __noinline void check_probe_rtt_done(struct tcp_sock *tp, struct bbr3_more *m)
{
	struct bbr3 *b = bbr3_get(tp);
	__u32 now = tcp_now_1024us(tp);

	if (!m->probe_rtt_done || !after(now, m->probe_rtt_done))
		return;
	b->probe_rtt_min_stamp = now;
	restore_cwnd(tp, b);
	reset_short_term_model(b);
	if (full_bw_reached(b)) {
		start_down(tp, m, BBR3_PROBED_RTT);
		set_mode(tp, b, m, BBR3_PROBE_CRUISE, BBR3_PROBED_RTT);
	} else {
		set_mode(tp, b, m, BBR3_STARTUP, BBR3_PROBED_RTT);
	}
}

/* 5.6.4.5: half a BDP, from the smallest RTT known before this ACK. If this ACK made that
 * RTT expire, the sample that replaces it includes a full queue. The value is kept for all
 * of ProbeRTT. */
static __always_inline __u32 probe_rtt_cwnd(const struct bbr3 *b, const struct ack *a)
{
	return max_u32(bdp_of(bbr3_bw(b), a->min_rtt_us, GAIN_ONE / 2), MIN_PIPE_CWND);
}

/* 5.3.4.3 HandleProbeRTT */
static __noinline void handle_probe_rtt(struct tcp_sock *tp, struct ack *a, bool enter)
{
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m = bbr3_more_get(tp);
	__u32 in_flight = tcp_packets_in_flight(tp);

	if (!m)
		return;
	if (enter) {
		save_cwnd(tp, b);
		set_mode(tp, b, m, BBR3_PROBE_RTT, BBR3_MIN_RTT_OLD);
		m->probe_rtt_done = 0;
		m->probe_rtt_cwnd = probe_rtt_cwnd(b, a);
		b->ack_phase = ACKS_PROBE_STOPPING;
		start_round(tp, b);
	}
	a->probe_rtt_cwnd = m->probe_rtt_cwnd;
	tp->app_limited = max_u32(tp->delivered + in_flight, 1);
	if (!m->probe_rtt_done) {
		if (in_flight > m->probe_rtt_cwnd)
			return;
		m->probe_rtt_done = (a->now + PROBE_RTT_DURATION) | 1;
		b->probe_rtt_round_done = 0;
		start_round(tp, b);
		return;
	}
	if (a->round_start)
		b->probe_rtt_round_done = 1;
	if (b->probe_rtt_round_done)
		check_probe_rtt_done(tp, m);
}

/* 5.3.4.3 UpdateMinRTT. Returns whether it is time for ProbeRTT. */
static __always_inline bool update_min_rtt(struct bbr3 *b, const struct rate_sample *rs, __u32 now)
{
	bool expired = after(now, b->probe_rtt_min_stamp + PROBE_RTT_INTERVAL);
	long rtt = rs->rtt_us;

	if (rtt > 0 && (rtt < b->probe_rtt_min_us || (expired && !rs->is_ack_delayed))) {
		b->probe_rtt_min_us = rtt;
		b->probe_rtt_min_stamp = now;
	}
	if (b->probe_rtt_min_us < b->cc.min_rtt_us || !b->cc.min_rtt_us ||
	    after(now, b->min_rtt_stamp + MIN_RTT_WIN)) {
		b->cc.min_rtt_us = b->probe_rtt_min_us == CC_NO_BOUND ? 0 : b->probe_rtt_min_us;
		b->min_rtt_stamp = b->probe_rtt_min_stamp;
	}
	return expired && !b->idle_restart;
}

#endif
