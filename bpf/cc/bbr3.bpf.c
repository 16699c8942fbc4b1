// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* BBRv3, from draft-ietf-ccwg-bbr. Sections are those of the editors' copy of the draft after
 * version -06. ProbeRTT comes every 5 s with a filter of its own (probe_rtt_min) as in version -05
 * and Google's v3, so that flows of this control drain the queue at the same time as flows of those;
 * the copy has 10 s, and says that each flow MUST use that (5.3.4.2). The draft asks that ECN marks be
 * answered as congestion and leaves open how (3.7): here as in Google's v3 for Linux, with its
 * constants.
 *
 * Where it departs, and why:
 * - Stock kernels do not keep P.tx_in_flight and P.lost. What was in flight when the packet
 *   just acknowledged was sent is computed: what has been delivered since (rs->delivered),
 *   plus what was lost since. The latter is interpolated between the counters at the last
 *   two round starts. This is exact without reordering and with losses spread evenly. For a
 *   lost packet, the values of the acknowledged packet that revealed the loss are used.
 * - Losses that the path causes by itself are not answered: the draft's answer to each loss
 *   halves the rate on a path that loses 2 % at random. The share of such losses is learned
 *   in Cruise without a queue (smoothed RTT near the smallest). It is taken to be at least
 *   2 % until the first probe, or until a queue is seen that is not Startup's. Losses count
 *   as congestion if they exceed this share by more than three standard deviations of
 *   chance; while probing, the excess must also be 2 %; without a queue, only losses of
 *   10 % or more in all count. Losses without a queue count at all because a policer may
 *   cause them. For the same reason a share above 5 % is learned only when the rate has been
 *   reduced to what the path delivered. See tolerate_random_loss and bbr3_loss.bpf.h.
 * - If more than a quarter of the packets is lost, in at least six places, the loss is severe: a
 *   policer's bucket ran empty, or a small buffer overflowed. Severe loss ends Startup at
 *   once; the draft waits for the end of the round. It sets the rate to what was delivered,
 *   at once; the draft takes four rounds of BBR.Beta to come down from the bucket's rate to
 *   the policer's, and remembers the bucket's rate for the next probe.
 * - With a queue (smoothed RTT half above the smallest), Down and Cruise forget rates older
 *   than 10 to 20 rounds, about what tcp_bbr.c remembers. In the draft a rate lasts for one
 *   to two cycles, 2 to 6 s. Beside a loss-based flow that fills the buffer, the old rate
 *   keeps both pacing rate and window high, so that Down does not drain the queue and the
 *   other flow cannot grow. Without a queue only a probe shows the rate, and the draft's
 *   rule is used.
 * - Rounds with a queue of about a BDP (smoothed RTT half to one and a quarter above the
 *   smallest) do not count for Reno's time, and a precautionary probe that ends with such a
 *   queue is not followed by another at once; those by the clock come every 2 to 3 s. The
 *   path is full, so what a probe gains is taken from other flows: by the draft, two flows
 *   of this control beside two of Cubic probe every second or more often, and leave Cubic a
 *   quarter. In a deeper queue loss-based flows have more than their half anyway, and the
 *   draft's times are used.
 * - While Startup sees no queue, its gains are 2.89 as in tcp_bbr.c. The draft's are 2.77 for the
 *   rate and 2 for the window, which hold it back: the window is computed from the mean rate of
 *   a round trip during which the rate doubles.
 * - Losses are seen once per ACK, not once per packet; each ACK with losses counts as one
 *   lost range (BBRStartupFullLossCnt).
 * - A connection without SACK is treated like any other.
 * - The full-pipe test reads bw_latest once a round: the best rate of the loss round (which
 *   the first loss makes longer), not the rate of each ACK.
 * - The time to probe is checked once a round, not on every ACK. This costs no extra
 *   storage look-up, and is late by one round at most.
 * - extra_acked remembers two windows of 5 rounds instead of a sliding one of 10.
 * - Below an RTT of 1 ms the offload budget is added to the window, not its floor, as
 *   tcp_bbr.c does: there the hosts' own batches are most of what is in flight.
 * - Volumes are packets, times are units of 1024 us.
 * - The send quantum cannot be set here: tcp_tso_autosize() sets it. It is assumed to be
 *   1 ms of the pacing rate, two packets to 64 KB, as the draft says. Autosize sends more at
 *   once below an RTT of about 3 ms (sysctl tcp_tso_rtt_log), and if a device takes more.
 * - ECN: marks are answered at any RTT and with any receiver. Google's code requires a
 *   route flag and an RTT below 5 ms, because it needs a receiver that echoes each mark,
 *   and is such a receiver itself. This one echoes as its kernel does. With a peer that
 *   echoes as in RFC 3168, every round with a mark looks fully marked: the cut is then a
 *   third, about as for a loss. No new probe begins when marks cease. Startup ends as soon
 *   as half of what was delivered in a round trip is marked while a queue is seen; Google's
 *   waits for two such rounds, in which what is in flight doubles twice.
 */
#include "bbr3.bpf.h"

/* ---- knobs, set before load -------------------------------------------- */

/* Every change of mode is written to bbr3_transitions. Off: that ring stays empty. */
const volatile bool trace_transitions = false;

/* Losses that a link causes by itself are not answered. Off: every loss is answered as the
 * draft says, so that (1 - loss)^63 of the rate is left before each probe. Severe loss is answered as
 * described above in both cases. */
const volatile bool tolerate_random_loss = true;

/* ---- maps ---------------------------------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bbr3_more);
} bbr3_more SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);	/* the largest page size */
} bbr3_transitions SEC(".maps");

#include "bbr3_probe.bpf.h"

/* ---- control parameters ------------------------------------------------------------ */

/* Whether Startup sees no end yet: no queue, and the rate grows. */
static __always_inline bool startup_open(struct tcp_sock *tp, const struct bbr3 *b)
{
	return b->cc.mode == BBR3_STARTUP && !b->full_bw_count && !rtt_above(tp, QUEUE_SEEN);
}

/* 5.6.2 SetPacingRateWithGain */
static __always_inline void set_pacing_rate(struct tcp_sock *tp, struct bbr3 *b, __u32 gain)
{
	__u64 rate = bw_to_rate(tp, bbr3_bw(b), gain);

	if (full_bw_reached(b) || rate > tcp_sk_sock(tp)->sk_pacing_rate)
		tcp_pace(tp, rate);
}

/* 5.6.4.7 BoundCwndForModel */
static __always_inline __u32 cwnd_cap(const struct bbr3 *b)
{
	__u32 cap = CC_NO_BOUND;

	if (b->cc.mode == BBR3_PROBE_CRUISE || b->cc.mode == BBR3_PROBE_RTT)
		cap = inflight_with_headroom(b);
	else if (in_probe_bw(b))
		cap = b->cc.inflight_hi;
	cap = min_u32(cap, b->cc.inflight_lo);
	return max_u32(cap, MIN_PIPE_CWND);
}

/* 5.6.4.6 SetCwnd */
static __always_inline void set_cwnd(struct tcp_sock *tp, struct bbr3 *b, const struct ack *a,
				     __u32 gain)
{
	__u32 cwnd = tp->snd_cwnd;
	__u32 inflight;

	if (a->acked) {
		inflight = bdp_multiple(b, bbr3_bw(b), gain);
		inflight += b->extra_acked[0] > b->extra_acked[1] ? b->extra_acked[0] :
								    b->extra_acked[1];
		inflight = b->cc.min_rtt_us < HOST_RTT_US ?
				   inflight + quantization_budget(tp, b, 0) :
				   quantization_budget(tp, b, inflight);
		if (full_bw_reached(b))
			cwnd = min_u32(cwnd + a->acked, inflight);
		else if (cwnd < inflight || tp->delivered < INITIAL_CWND)
			cwnd += a->acked;
		cwnd = max_u32(cwnd, MIN_PIPE_CWND);
	}
	cwnd = min_u32(cwnd, cwnd_cap(b));
	if (b->cc.mode == BBR3_PROBE_RTT)
		cwnd = min_u32(cwnd, a->probe_rtt_cwnd);
	tp->snd_cwnd = min_u32(cwnd, tp->snd_cwnd_clamp);
}

/* ---- the ACK ------------------------------------------------------------------------- */

/* 5.5.1 UpdateRound, 5.5.5 UpdateMaxBw, 5.5.10.3 UpdateLatestDeliverySignals */
static __always_inline void take_sample(struct tcp_sock *tp, struct bbr3 *b,
					const struct rate_sample *rs, struct ack *a)
{
	__u32 sent_at = rs->prior_delivered;

	a->delivered = rs->delivered;
	a->bw = sat_u32(((__u64)a->delivered << BW_SHIFT) / (__u64)rs->interval_us);
	b->bw_latest = max_u32(b->bw_latest, a->bw);
	b->inflight_latest = max_u32(b->inflight_latest, a->delivered);
	if (!before(sent_at, b->mark_delivered[1])) {
		b->mark_delivered[0] = b->mark_delivered[1];
		b->mark_lost[0] = b->mark_lost[1];
		b->mark_delivered[1] = tp->delivered;
		b->mark_lost[1] = tp->lost;
	}
	a->lost = lost_since(tp, b, sent_at);
	a->tx_in_flight = a->delivered + a->lost;
	if (!before(sent_at, b->next_round)) {
		start_round(tp, b);
		a->round_start = true;
	}
	if (!a->app_limited || a->bw >= max_filter_get(&b->max_bw))
		max_filter_update(&b->max_bw, a->bw);
}

static __always_inline void update_model(struct tcp_sock *tp, struct bbr3 *b,
					 const struct rate_sample *rs, struct ack *a)
{
	bool up, probed;

	take_sample(tp, b, rs, a);
	a->loss_thresh = loss_thresh(b, queue_seen(tp));
	a->marked = b->cc.flags & CC_ECN &&
		    rs->delivered_ce > (__s32)(a->delivered * ECN_THRESH >> 10);
	if (a->losses)
		handle_losses(tp, a);
	if (!before(rs->prior_delivered, b->loss_round)) {
		b->loss_round = tp->delivered;
		a->loss_round_start = true;
		end_loss_round(tp, a);
	}
	update_ack_aggregation(tp, b, a);
	/* An ACK that begins Up still acknowledges what was sent before. */
	up = b->cc.mode == BBR3_PROBE_UP;
	probed = b->probe_sample;
	if (a->round_start)
		begin_round(tp, a);
	if (b->cc.inflight_hi != CC_NO_BOUND && a->tx_in_flight > b->cc.inflight_hi &&
	    full_bw_reached(b) && !a->marked && !inflight_too_high(b, a))
		b->cc.inflight_hi = a->tx_in_flight;
	if (a->marked && probed == b->probe_sample)
		handle_marks(tp, a);
	if (up && b->cc.mode == BBR3_PROBE_UP)
		update_up(tp, a);
	else if (b->cc.mode == BBR3_PROBE_DOWN || b->cc.mode == BBR3_DRAIN)
		update_draining(tp);
	if (a->loss_round_start) {
		b->bw_latest = a->bw;
		b->inflight_latest = a->delivered;
	}
}

SEC("struct_ops")
void bbr3_main(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	const struct rate_sample *rs = cong_control_rs(ctx);
	struct bbr3 *b = bbr3_get(tp);
	struct ack a = {};
	bool open;

	/* The ACK of a SYN comes before bbr3_init (tcp_rcv_synsent_state_process). */
	if (!b->probe_rtt_min_us)
		return;
	a.now = tcp_now_1024us(tp);
	a.acked = rs->acked_sacked;
	a.losses = rs->losses > 0 ? rs->losses : 0;
	a.prior_in_flight = rs->prior_in_flight;
	a.min_rtt_us = b->cc.min_rtt_us;
	a.app_limited = rs->is_app_limited;
	if (rs->delivered >= 0 && rs->interval_us > 0 && a.acked)
		update_model(tp, b, rs, &a);
	else if (a.losses)
		handle_losses(tp, &a);
	if (update_min_rtt(b, rs, a.now) && b->cc.mode != BBR3_PROBE_RTT)
		handle_probe_rtt(tp, &a, true);
	else if (b->cc.mode == BBR3_PROBE_RTT)
		handle_probe_rtt(tp, &a, false);
	if (rs->delivered > 0)
		b->idle_restart = 0;
	open = startup_open(tp, b);
	set_pacing_rate(tp, b, open ? OPEN_PACING_GAIN : pacing_gain[b->cc.mode & 7]);
	set_cwnd(tp, b, &a, open ? OPEN_CWND_GAIN : cwnd_gain[b->cc.mode & 7]);
}

/* ---- other events ---------------------------------------------------------------------- */

SEC("struct_ops")
void BPF_PROG(bbr3_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct bbr3 *b = bbr3_get(tp);
	__u32 now = tcp_now_1024us(tp);
	__u32 min_rtt = max_u32(tcp_min_rtt(tp), 1);

	bpf_sk_storage_delete(&bbr3_more, tp);	/* left from an earlier use of this control */
	__builtin_memset(b, 0, sizeof(*b));
	b->cc.min_rtt_us = min_rtt == CC_NO_BOUND ? 0 : min_rtt;
	b->probe_rtt_min_us = min_rtt;
	b->random_loss = tolerate_random_loss ? LOSS_THRESH : 0;
	b->min_rtt_stamp = now;
	b->probe_rtt_min_stamp = now;
	b->cc.inflight_hi = CC_NO_BOUND;
	b->cc.alpha = ALPHA_ONE;	/* Google v3: ecn_alpha_init */
	if (tp->ecn_flags & (TCP_ECN_OK | TCP_ECN_MODE_ACCECN))
		b->cc.flags = CC_ECN;
	reset_short_term_model(b);
	b->next_round = tp->delivered;
	b->loss_round = tp->delivered + 1;
	b->mark_delivered[0] = tp->delivered;
	b->mark_delivered[1] = tp->delivered;
	b->mark_lost[0] = tp->lost;
	b->mark_lost[1] = tp->lost;
	b->epoch_stamp = tcp_now_us(tp);
	tp->snd_ssthresh = TCP_INFINITE_SSTHRESH;
	init_pacing_rate(tp, b);
	tcp_pacing_on(tp);
}

/* 5.4.1 HandleRestartFromIdle */
static __noinline void bbr3_tx_start(struct tcp_sock *tp)
{
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m;

	if (!tp->app_limited)
		return;
	b->idle_restart = 1;
	b->epoch_stamp = tcp_now_us(tp);
	b->epoch_acked = 0;
	if (in_probe_bw(b)) {
		set_pacing_rate(tp, b, PACED(100));
	} else if (b->cc.mode == BBR3_PROBE_RTT) {
		m = bbr3_more_get(tp);
		if (m)
			check_probe_rtt_done(tp, m);
	}
}

SEC("struct_ops")
void BPF_PROG(bbr3_cwnd_event, struct sock *sk, int event)
{
	if (event == CA_EVENT_TX_START)
		bbr3_tx_start((struct tcp_sock *)sk);
}

SEC("struct_ops")
void BPF_PROG(bbr3_cwnd_event_tx_start, struct sock *sk)
{
	bbr3_tx_start((struct tcp_sock *)sk);
}

/* Losses begin (recovery or timeout): nothing is cut here, only remembered. */
SEC("struct_ops")
__u32 BPF_PROG(bbr3_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m = bbr3_more_get(tp);

	if (m)
		save_state(tp, b, m);
	else
		save_cwnd(tp, b);
	return tp->snd_ssthresh;
}

/* 5.6.4.4: called with the new state while icsk_ca_state still holds the old. */
SEC("struct_ops")
void BPF_PROG(bbr3_set_state, struct sock *sk, __u8 state)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct bbr3 *b = bbr3_get(tp);
	__u8 new_state = state;
	struct bbr3_more *m;

	if (new_state == TCP_CA_LOSS) {
		/* Google v3: a timeout starts the short-term model and the search for the
		 * full rate anew, because the path may have changed. */
		m = bbr3_more_get(tp);
		if (m)
			reset_full_bw(b, m, 0);
		if (!is_probing_bw(b) && b->cc.inflight_lo == CC_NO_BOUND)
			b->cc.inflight_lo = max_u32(b->cc.w_max, tp->snd_cwnd);
	} else if (tcp_ca_state(tp) >= TCP_CA_RECOVERY && new_state < TCP_CA_RECOVERY) {
		restore_cwnd(tp, b);
	}
}

/* 5.5.11.2 HandleSpuriousLossDetection */
SEC("struct_ops")
__u32 BPF_PROG(bbr3_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct bbr3 *b = bbr3_get(tp);
	struct bbr3_more *m = bbr3_more_get(tp);
	__u32 undo = b->undo;

	if (!m)
		return max_u32(tp->snd_cwnd, b->cc.w_max);
	b->loss_in_round = 0;
	reset_full_bw(b, m, 0);
	b->bw_lo = max_u32(b->bw_lo, m->undo_bw_lo);
	b->cc.inflight_lo = max_u32(b->cc.inflight_lo, m->undo_inflight_lo);
	b->cc.inflight_hi = max_u32(b->cc.inflight_hi, m->undo_inflight_hi);
	if (m->undo_max_bw)
		max_filter_update(&b->max_bw, m->undo_max_bw);
	b->undo = UNDO_NONE;
	if (undo == UNDO_STARTUP && b->cc.mode != BBR3_STARTUP) {
		b->cc.flags &= ~CC_FULL_PIPE;
		if (b->cc.mode != BBR3_PROBE_RTT)
			set_mode(tp, b, m, BBR3_STARTUP, BBR3_SPURIOUS);
	} else if (undo == UNDO_UP && b->cc.mode != BBR3_PROBE_UP &&
		   b->cc.mode != BBR3_PROBE_RTT) {
		start_refill(tp, m, BBR3_SPURIOUS);
	}
	return max_u32(tp->snd_cwnd, b->cc.w_max);
}

/* tcp_bbr.c and Google v3: room for three windows, because the window may double while a
 * whole one waits for retransmissions. */
SEC("struct_ops")
__u32 BPF_PROG(bbr3_sndbuf_expand, struct sock *sk)
{
	return 3;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tcpilot_bbr3 = {
	.init = (void *)bbr3_init,
	.cong_control = (void *)bbr3_main,
	.cwnd_event = (void *)bbr3_cwnd_event,
	.cwnd_event_tx_start = (void *)bbr3_cwnd_event_tx_start,
	.ssthresh = (void *)bbr3_ssthresh,
	.set_state = (void *)bbr3_set_state,
	.undo_cwnd = (void *)bbr3_undo_cwnd,
	.sndbuf_expand = (void *)bbr3_sndbuf_expand,
	.name = "tcpilot_bbr3",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
