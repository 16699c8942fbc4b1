/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* CUBIC's state, and what it learns from round trips: when slow start ends (HyStart, as in the
 * kernel's cubic), and when others have left the path. */
#ifndef TCPILOT_CUBIC_HYSTART_BPF_H
#define TCPILOT_CUBIC_HYSTART_BPF_H

#include "cc.bpf.h"
#include "trace.h"

/* The end of slow start, and each time on a freed path (its end only if a round ends it, not if a
 * loss does), are written to cubic_transitions. Off: that ring stays empty. */
const volatile bool trace_transitions = false;

enum cubic_mode {
	CUBIC_SLOW_START,
	CUBIC_FREED,		/* others have left the path */
	CUBIC_RENO,		/* Reno-friendly region, RFC 9438 4.3 */
	CUBIC_CONCAVE,		/* below w_max, RFC 9438 4.4 */
	CUBIC_CONVEX,		/* above w_max, RFC 9438 4.5 */
};

enum {				/* hystart_* parameters of the kernel's cubic */
	HYSTART_LOW_WINDOW = 16,	/* packets */
	HYSTART_ACK_DELTA_US = 2000,	/* between ACKs of one train */
	HYSTART_ACK_DELAY_US = 1000,	/* the most that large GSO packets add to a train (hystart_ack_delay) */
	HYSTART_MIN_SAMPLES = 8,	/* round trips */
	HYSTART_DELAY_MIN_US = 4000,
	HYSTART_DELAY_MAX_US = 16000,
	HYSTART_DELAY_DIVISOR = 8,	/* of the least round trip */
};

enum {
	/* Without a queue, before a path counts as freed: at least so many rounds, and for so long. With
	 * less, those that come and go every few round trips would find a full path, and be slower. */
	CALM_ROUNDS = 2,
	CALM_US = 600000,
	MOST_CALM_ROUNDS = 255,	/* counted; enough also if rounds are shorter than 2.4 ms */
	/* The window must exceed the share by this part of it. If all connections reduce theirs at
	 * once and the queue was short, it is empty for a while although none has left. */
	SHARE_MARGIN = 4,
	FREED_GROWTH = 8,	/* acknowledged per packet of growth on a freed path: 12.5 % per round trip */
};

struct curve {			/* what an undo restores, with cc_state.w_max */
	__u32 epoch;		/* 1024 us; when congestion avoidance began, 0: not yet */
	__u32 k;		/* 1024 us; from there to w_max */
	__u32 w_est;		/* packets; what Reno would have */
};

struct cubic {
	struct cc_state pub;	/* min_rtt_us, w_max; 0: unknown */
	struct curve curve;
	struct curve undo;
	__u32 undo_w_max;
	__u32 undo_share;
	__u32 cnt;		/* packets to acknowledge per packet of growth */
	__u32 acked;		/* packets acknowledged, not yet counted in w_est */
	__u32 last_cwnd;	/* packets; when cnt was computed */
	__u32 last_time;	/* 1024 us; when cnt was computed */
	/* rounds */
	__u32 round_end;	/* sequence number */
	__u32 round_begin_us;	/* in slow start */
	__u32 round_min_us;	/* least round trip; ~0: no sample */
	__u32 last_ack_us;	/* in slow start: of the train */
	__u32 share;		/* after slow start, packets: share_of; 0: unknown */
	__u8 samples;		/* of this round, up to HYSTART_MIN_SAMPLES */
	__u8 calm_rounds;	/* after slow start: without a queue, up to MOST_CALM_ROUNDS */
	bool freed : 1;		/* others have left the path: at least FREED_GROWTH */
	bool probing : 1;	/* w_max is not the window of a loss: at least PROBE_GROWTH */
	bool undo_probing : 1;
};

_Static_assert(sizeof(struct cubic) <= 104, "icsk_ca_priv");

/* ---- trace ------------------------------------------------------------------- */

static __noinline void trace_transition(struct tcp_sock *tp, __u32 mode, __u32 why)
{
	struct cubic *ca = inet_csk_ca(tp);
	struct sock_common *skc = &tcp_sk_sock(tp)->__sk_common;
	struct cubic_transition *t = bpf_ringbuf_reserve(&cubic_transitions, sizeof(*t), 0);

	if (!t)
		return;
	t->at_ns = bpf_ktime_get_ns();
	t->cwnd = tp->snd_cwnd;
	t->min_rtt_us = ca->pub.min_rtt_us;
	t->round_min_us = ca->round_min_us;
	t->share = ca->share;
	t->inflight = tcp_packets_in_flight(tp);
	t->retrans = tp->total_retrans;
	t->srtt_us = tp->srtt_us >> 3;
	t->delivered = tp->delivered;
	t->local_port = skc->skc_num;
	t->remote_port = bpf_ntohs(skc->skc_dport);
	t->from = ca->pub.mode;
	t->to = mode;
	t->why = why;
	t->calm_rounds = ca->calm_rounds;
	bpf_ringbuf_submit(t, 0);
}

static __always_inline void set_mode(struct tcp_sock *tp, struct cubic *ca, __u32 mode, __u32 why)
{
	if (trace_transitions)
		trace_transition(tp, mode, why);
	ca->pub.mode = mode;
}

/* ---- a path that others have left ------------------------------------------- */

/* A delay that is a queue, however short the round trip is: an eighth of the least one. */
static __always_inline __u32 queue_us(const struct cubic *ca)
{
	return min_u32(ca->pub.min_rtt_us / HYSTART_DELAY_DIVISOR, HYSTART_DELAY_MAX_US);
}

/* Round trips that show a queue for certain: HyStart's threshold. */
static __always_inline bool queued(const struct cubic *ca, __u32 rtt_us)
{
	return rtt_us >= ca->pub.min_rtt_us + max_u32(HYSTART_DELAY_MIN_US, queue_us(ca));
}

/* Round trips that show that there is no queue. HyStart's threshold, at least 4 ms, would not do
 * below 32 ms: on a path of 5 ms, a queue of 4 ms is a long one. */
static __always_inline bool calm(const struct cubic *ca, __u32 rtt_us)
{
	return rtt_us < ca->pub.min_rtt_us + queue_us(ca);
}

/* With a window and round trips that show a queue: what the connection would have in flight if
 * it kept its share of the path, but not of the queue, packets. 0 if there is no queue: then
 * the window does not tell what that share is. */
static __always_inline __u32 share_of(const struct cubic *ca, __u32 cwnd, __u32 rtt_us)
{
	__u32 base = ca->pub.min_rtt_us;

	return base && queued(ca, rtt_us) ? (__u64)cwnd * base / rtt_us : 0;
}

/* From now on, the path counts as freed if there is no queue although the window is more than its
 * share was with the given window and round trips. Without a queue in these it never does. */
static __always_inline void freed_begin(struct cubic *ca, __u32 cwnd, __u32 rtt_us)
{
	ca->share = share_of(ca, cwnd, rtt_us);
	ca->calm_rounds = 0;
	ca->freed = false;
}

/* Whether there was no queue for long enough. The least round trip may become less later. */
static __always_inline bool calm_for_long(const struct cubic *ca)
{
	__u32 n = ca->calm_rounds;

	return n >= CALM_ROUNDS && (ca->freed || n == MOST_CALM_ROUNDS || n * ca->pub.min_rtt_us >= CALM_US);
}

/* A connection that does not use its window says nothing of the queue that it would make. */
static __always_inline void freed_round(struct cubic *ca, struct tcp_sock *tp)
{
	bool was = ca->freed, alone = calm(ca, ca->round_min_us) && tcp_is_cwnd_limited(tp);

	ca->calm_rounds = alone ? min_u32(ca->calm_rounds + 1, MOST_CALM_ROUNDS) : 0;
	ca->freed = ca->share && tp->snd_cwnd > ca->share + ca->share / SHARE_MARGIN && calm_for_long(ca);
	if (!was && ca->freed)
		set_mode(tp, ca, CUBIC_FREED, CUBIC_NO_QUEUE);
	else if (was && !ca->freed)
		set_mode(tp, ca, CUBIC_CONVEX, CUBIC_DELAY);
}

/* With each round trip after slow start. */
static __always_inline void freed_update(struct cubic *ca, struct tcp_sock *tp, __u32 rtt_us)
{
	if (!before(tp->snd_una, ca->round_end)) {
		freed_round(ca, tp);
		ca->round_end = tp->snd_nxt;
		ca->round_min_us = ~0u;
		ca->samples = 0;	/* slow start resumes after an undo */
	}
	ca->round_min_us = min_u32(ca->round_min_us, rtt_us);
}

/* ---- the end of slow start ------------------------------------------------- */

static __always_inline void hystart_round(struct cubic *ca, struct tcp_sock *tp)
{
	ca->round_end = tp->snd_nxt;
	ca->round_begin_us = tcp_now_us(tp);
	ca->last_ack_us = tcp_now_us(tp);
	ca->round_min_us = ~0u;
	ca->samples = 0;
}

/* rtt_us: round trips that show a queue, 0: none does. */
static __always_inline void hystart_exit(struct cubic *ca, struct tcp_sock *tp, __u32 why, __u32 rtt_us)
{
	tp->snd_ssthresh = tp->snd_cwnd;
	freed_begin(ca, tp->snd_cwnd, rtt_us);
	set_mode(tp, ca, CUBIC_CONVEX, why);
	ca->pub.flags |= CC_FULL_PIPE;
}

/* The ACKs of one round have followed each other closely for half a round trip, or for a
 * whole one if pacing spreads them: the path is full. */
static __always_inline bool hystart_train(struct cubic *ca, struct tcp_sock *tp)
{
	struct sock *sk = tcp_sk_sock(tp);
	__u32 now = tcp_now_us(tp), most = ca->pub.min_rtt_us;
	__u64 rate = sk->sk_pacing_rate, burst = sk->sk_gso_max_size * 4;

	if (now - ca->last_ack_us > HYSTART_ACK_DELTA_US)
		return false;
	ca->last_ack_us = now;
	if (rate)
		most += min_u64(HYSTART_ACK_DELAY_US, burst * USEC_PER_SEC / rate);
	if (sk->sk_pacing_status == SK_PACING_NONE)
		most /= 2;
	return now - ca->round_begin_us > most;
}

static __always_inline void hystart_update(struct cubic *ca, struct tcp_sock *tp, __u32 rtt_us)
{
	/* As in the kernel, a round ends with the first ACK of the next train. */
	if (after(tp->snd_una, ca->round_end))
		hystart_round(ca, tp);
	if (tp->snd_cwnd < HYSTART_LOW_WINDOW)
		return;
	ca->round_min_us = min_u32(ca->round_min_us, rtt_us);
	if (hystart_train(ca, tp))
		hystart_exit(ca, tp, CUBIC_TRAIN, 0);
	else if (ca->samples < HYSTART_MIN_SAMPLES)
		ca->samples++;
	else if (queued(ca, ca->round_min_us))
		hystart_exit(ca, tp, CUBIC_DELAY, ca->round_min_us);
}

#endif
