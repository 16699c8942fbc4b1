/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* BBRv3: constants, state, and the model of the path that follows from the state.
 * bbr3.bpf.c names the sources; numbers are sections of the draft. "ours" marks
 * a choice of this implementation.
 */
#ifndef TCPILOT_BBR3_BPF_H
#define TCPILOT_BBR3_BPF_H

#include "cc.bpf.h"

enum bbr3_constants {
	BW_SHIFT = 24,			/* bandwidth: packets per us << 24, as in tcp_bbr.c */
	GAIN_ONE = 256,			/* of a BDP */
	RATE_ONE = 1024,		/* of a bandwidth */
	MIN_PIPE_CWND = 4,		/* 2.8 BBR.MinPipeCwnd, packets */
	INITIAL_CWND = 10,		/* C.InitialCwnd: RFC 6928 */
	OPEN_CWND_GAIN = 739,		/* tcp_bbr.c: bbr_high_gain 2/ln(2), in 1/256 ... */
	OPEN_PACING_GAIN = 2925,	/* ... and in 1/1024, less 1 % */
	FULL_BW_ROUNDS = 3,		/* 5.3.1.2 */
	FULL_LOSS_COUNT = 6,		/* 5.3.1.3 BBRStartupFullLossCnt */
	FULL_ECN_COUNT = 8,		/* ours: packets; N_RTT_SAMPLE of RFC 9406 4.2 */
	DRAIN_ROUNDS = 3,		/* 5.3.2 */
	MAX_RENO_ROUNDS = 63,		/* 5.3.3.5.3 */
	MAX_UP_ROUNDS = 30,		/* 5.3.3.6 */
	EXTRA_ACKED_ROUNDS = 5,		/* 2.12: half of BBR.ExtraAckedFilterLen */
	BW_ROUNDS = 10,			/* tcp_bbr.c: bbr_bw_rtts */
	OFFLOAD_BUDGET = 3,		/* 5.5.8.1, send quanta */
	MAX_QUANTUM = 65536,		/* 5.6.3, bytes */
	HOST_RTT_US = 1000,		/* ours: below it the hosts' own batches dominate */
	LOSS_THRESH = 20,		/* 2.8 BBR.LossThresh 2 %, in 1/1024 */
	BETA = 717,			/* 2.8 BBR.Beta 0.7, in 1/1024 */
	HEAVY_LOSS = 102,		/* ours: 10 %, answered even without a queue */
	SEVERE_LOSS = 256,		/* ours: 25 %, the rate itself is far too high */
	FREE_LOSS = 51,			/* ours: 5 %, learned even if it may be a policer's */
	MAX_RANDOM_LOSS = 255,		/* ours: 25 %, what 8 bits hold */
	ECHO_ROUNDS = 3,		/* ours: rounds until the losses of a probe are known */
	FLOOR_ROUNDS = 2,		/* ours: rounds until losses of what was sent before a bound are known */
	QUEUE_SEEN = 9,			/* ours: smoothed RTT in eighths of the smallest */
	QUEUE_HALF = 12,		/* ours: a queue of half a BDP */
	QUEUE_DEEP = 18,		/* ours: 1.25 BDP: above 1 because it is smoothed */
	HEADROOM = 154,			/* 2.8 BBR.Headroom 0.15, in 1/1024 */
	ALPHA_ONE = 1024,
	MARK_BITS = 20,			/* of fraction in unmarked, as in scalable.bpf.h */
	ALPHA_SHIFT = 4,		/* Google v3: ecn_alpha_gain 1/16 */
	ECN_THRESH = 512,		/* Google v3: ecn_thresh 1/2, in 1/1024 */
	ECN_FACTOR = 3,			/* Google v3: ecn_factor 1/3 */
	NO_BW = 0xffffffff,		/* bw_lo: no bound */
};

#define TICKS(us) ((__u32)((us) >> 10))
#define MIN_RTT_WIN TICKS(10 * USEC_PER_SEC)		/* 2.16.1 BBR.MinRTTFilterLen */
#define PROBE_RTT_INTERVAL TICKS(5 * USEC_PER_SEC)	/* 2.16.2 BBR.ProbeRTTInterval */
#define PROBE_RTT_DURATION TICKS(200000)		/* 2.16.2 BBR.ProbeRTTDuration */
#define PROBE_WAIT_MIN TICKS(2 * USEC_PER_SEC)		/* 5.3.3.5.3 PickProbeWait */
#define PROBE_WAIT_RANDOM TICKS(USEC_PER_SEC)

enum bbr3_mode {		/* draft-ietf-ccwg-bbr 5.1.1 */
	BBR3_STARTUP,
	BBR3_DRAIN,
	BBR3_PROBE_DOWN,
	BBR3_PROBE_CRUISE,
	BBR3_PROBE_REFILL,
	BBR3_PROBE_UP,
	BBR3_PROBE_RTT,
};

enum ack_phase {		/* 2.14 BBR.ack_phase */
	ACKS_INIT,
	ACKS_REFILLING,
	ACKS_PROBE_STARTING,
	ACKS_PROBE_FEEDBACK,
	ACKS_PROBE_STOPPING,
};

enum undo_state {		/* 2.15 BBR.undo_state */
	UNDO_NONE,
	UNDO_STARTUP,
	UNDO_UP,
};

/* 5.6.1: gains by enum bbr3_mode. Those of pacing are in 1/1024 and less by the margin of
 * 1 % (2.5 BBR.PacingMarginPercent); those of the window are in 1/256. */
#define PACED(percent) ((percent) * RATE_ONE * 99 / 10000)
static const __u16 pacing_gain[8] = {
	PACED(277), PACED(50), PACED(90), PACED(100), PACED(100), PACED(125), PACED(100),
};
static const __u16 cwnd_gain[8] = { 512, 512, 512, 512, 512, 576, 128, 512 };

/* State that most ACKs use, in icsk_ca_priv. cc.w_max is BBR.prior_cwnd; cc.inflight_hi
 * and inflight_lo are inflight_longterm and inflight_shortterm. */
struct bbr3 {
	struct cc_state cc;
	__u32 min_rtt_stamp;		/* 1024 us */
	__u32 probe_rtt_min_us;
	__u32 probe_rtt_min_stamp;	/* 1024 us */
	__u32 next_round;		/* tp->delivered at which the round ends */
	struct max_filter max_bw;	/* windows are ProbeBW cycles */
	__u32 bw_latest;
	__u32 bw_lo;			/* bw_shortterm */
	__u32 inflight_latest;		/* packets */
	__u32 loss_round;		/* tp->delivered at which the loss round ends */
	__u32 mark_delivered[2];	/* counters at the last two round starts */
	__u32 mark_lost[2];
	__u32 epoch_stamp;		/* us: extra_acked_interval_start */
	__u32 epoch_acked;		/* packets: extra_acked_delivered */
	__u16 extra_acked[2];		/* packets: last window, this window */
	__u32 random_loss : 8,		/* share that the path loses by itself, 1/1024 */
		ack_phase : 3, loss_in_round : 1, full_bw_now : 1, full_bw_count : 2,
		probe_sample : 1, prev_probe_too_high : 1, prev_probe_precautionary : 1,
		idle_restart : 1, probe_rtt_round_done : 1, loss_events : 4,
		undo : 2, queue_in_round : 1, has_rtt : 1;
};

_Static_assert(sizeof(struct bbr3) <= 104, "icsk_ca_priv");

/* State that is needed once a round or less often. */
struct bbr3_more {
	__u32 full_bw;
	__u32 round;
	__u32 drain_start;		/* round */
	__u32 cycle_stamp;		/* 1024 us */
	__u32 probe_wait;		/* 1024 us */
	__u32 rounds_since_probe;
	__u32 reno_rounds;		/* of these, those without a queue of a BDP */
	__u32 probe_rtt_done;		/* 1024 us; 0: in flight is still too high */
	__u32 probe_rtt_cwnd;		/* packets */
	__u32 up_count;			/* packets acked per packet of growth; 0: none */
	__u32 up_acked;
	__u32 up_rounds;
	__u32 extra_rounds;		/* rounds in this window of extra_acked */
	__u32 random_loss;		/* as learned, times 8 */
	__u32 allowance_over;		/* LOSS_THRESH is no longer the minimum */
	__u32 floor_rounds;		/* loss rounds with bw_lo at what was delivered */
	__u32 loss_delivered;		/* tp->delivered and lost at the last loss round */
	__u32 loss_lost;
	__u32 ecn_delivered;		/* tp->delivered and delivered_ce when last read */
	__u32 ecn_delivered_ce;
	__u32 unmarked;			/* share not marked, smoothed; 0 at first */
	__u32 undo_bw_lo;
	__u32 undo_inflight_lo;
	__u32 undo_inflight_hi;
	__u32 undo_max_bw;		/* before severe loss reset it; 0: it did not */
};

struct ack {			/* the draft's RS and what else one ACK needs */
	__u32 bw;
	__u32 delivered;
	__u32 acked;
	__u32 losses;		/* on this ACK */
	__u32 lost;		/* since the packet was sent */
	__u32 tx_in_flight;
	__u32 prior_in_flight;	/* before this ACK */
	__u32 loss_thresh;	/* 1/1024 */
	__u32 min_rtt_us;	/* before this ACK */
	__u32 probe_rtt_cwnd;	/* in ProbeRTT only */
	__u32 now;		/* 1024 us */
	bool app_limited;
	bool marked;		/* more than ECN_THRESH of what was delivered since */
	bool round_start;
	bool loss_round_start;
};

static __always_inline struct bbr3 *bbr3_get(struct tcp_sock *tp)
{
	return inet_csk_ca(tp);
}

static __always_inline bool full_bw_reached(const struct bbr3 *b)
{
	return b->cc.flags & CC_FULL_PIPE;
}

static __always_inline bool in_probe_bw(const struct bbr3 *b)
{
	return b->cc.mode >= BBR3_PROBE_DOWN && b->cc.mode <= BBR3_PROBE_UP;
}

static __always_inline bool is_probing_bw(const struct bbr3 *b)
{
	return b->cc.mode == BBR3_STARTUP || b->cc.mode == BBR3_PROBE_REFILL ||
	       b->cc.mode == BBR3_PROBE_UP;
}

/* ---- the queue --------------------------------------------------------------- */

/* Whether the smoothed RTT is above this many eighths of the smallest: packets wait in a
 * queue, of this flow or of others. The smallest is the kernel's, because after 10 s cc.min_rtt_us
 * includes the queue of a competitor. A path with very variable RTT always shows a queue,
 * and so does one that became longer in the last 300 s: its losses are answered as the
 * draft says, and its probes may have to wait for the clock. */
static __always_inline bool rtt_above(struct tcp_sock *tp, __u32 eighths)
{
	return tp->srtt_us > (__u64)tcp_min_rtt(tp) * eighths;
}

/* Whether about a BDP waits in a queue, of this flow or of others. Then the path is full, and its
 * buffer is too shallow for a loss-based flow to take more than half of the path. Below
 * 1 ms the queue is the hosts' own batches. */
static __always_inline bool queue_of_bdp(struct tcp_sock *tp)
{
	return tcp_min_rtt(tp) >= HOST_RTT_US && rtt_above(tp, QUEUE_HALF) &&
	       !rtt_above(tp, QUEUE_DEEP);
}

/* ---- model: rate and volume ------------------------------------------------ */

static __always_inline __u32 bbr3_bw(const struct bbr3 *b)
{
	return min_u32(max_filter_get(&b->max_bw), b->bw_lo);
}

/* bw times gain, in bytes per second; no more than 1 Tbit/s before the gain. */
static __always_inline __u64 bw_to_rate(struct tcp_sock *tp, __u32 bw, __u32 gain)
{
	__u64 bytes = min_u64((__u64)bw * tp->mss_cache, 1ULL << 41);	/* per us << BW_SHIFT */

	return ((bytes * gain) >> 10) * USEC_PER_SEC >> BW_SHIFT;
}

/* 5.6.2 InitPacingRate: from the first RTT, and from 1 ms until there is one. */
static __always_inline void init_pacing_rate(struct tcp_sock *tp, struct bbr3 *b)
{
	__u32 rtt = tp->srtt_us >> 3;
	__u32 bw = sat_u32(((__u64)tp->snd_cwnd << BW_SHIFT) / (rtt ?: 1000));

	b->has_rtt = rtt != 0;
	tcp_pace(tp, bw_to_rate(tp, bw, OPEN_PACING_GAIN));
}

static __always_inline __u32 bdp_of(__u32 bw, __u32 min_rtt_us, __u32 gain)
{
	__u64 bdp;

	if (!min_rtt_us)
		return INITIAL_CWND;
	bdp = ((__u64)bw * min_rtt_us >> 8) * gain;
	return sat_u32((bdp + (1 << BW_SHIFT) - 1) >> BW_SHIFT);
}

/* 5.6.4.2 BDPMultiple: packets, rounded up. */
static __always_inline __u32 bdp_multiple(const struct bbr3 *b, __u32 bw, __u32 gain)
{
	return bdp_of(bw, b->cc.min_rtt_us, gain);
}

/* 5.6.3 SetSendQuantum, packets. */
static __always_inline __u32 send_quantum(struct tcp_sock *tp)
{
	__u64 bytes = min_u64(tcp_sk_sock(tp)->sk_pacing_rate >> 10, MAX_QUANTUM);
	__u32 mss = tp->mss_cache;

	return max_u32(mss ? (__u32)bytes / mss : 0, 2);
}

/* 5.6.4.2 QuantizationBudget */
static __always_inline __u32 quantization_budget(struct tcp_sock *tp, const struct bbr3 *b,
						 __u32 inflight)
{
	inflight = max_u32(inflight, OFFLOAD_BUDGET * send_quantum(tp));
	inflight = max_u32(inflight, MIN_PIPE_CWND);
	if (b->cc.mode == BBR3_PROBE_UP)
		inflight += 2;
	return inflight;
}

static __always_inline __u32 bbr3_inflight(struct tcp_sock *tp, const struct bbr3 *b, __u32 bw)
{
	return quantization_budget(tp, b, bdp_multiple(b, bw, GAIN_ONE));
}

/* 5.3.3.6 InflightWithHeadroom */
static __always_inline __u32 inflight_with_headroom(const struct bbr3 *b)
{
	__u32 hi = b->cc.inflight_hi;
	__u32 headroom;

	if (hi == CC_NO_BOUND)
		return CC_NO_BOUND;
	headroom = max_u32((__u64)hi * HEADROOM >> 10, 1);
	return max_u32(hi > headroom ? hi - headroom : 0, MIN_PIPE_CWND);
}

/* 5.3.3.5.3 TargetInflight */
static __always_inline __u32 target_inflight(struct tcp_sock *tp, const struct bbr3 *b)
{
	return min_u32(bdp_multiple(b, bbr3_bw(b), GAIN_ONE), tp->snd_cwnd);
}

#endif
