/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* CUBIC's state, and its slow start: RFC 9406 4.2. */
#ifndef TCPILOT_CUBIC_HYSTART_BPF_H
#define TCPILOT_CUBIC_HYSTART_BPF_H

#include "cc.bpf.h"
#include "trace.h"

/* Which is followed if the kernel's cubic and the RFCs differ: see the table in cubic.bpf.c. */
const volatile bool like_kernel = true;

/* Every change of mode in slow start is written to cubic_transitions. Off: that ring stays
 * empty. */
const volatile bool trace_transitions = false;

enum cubic_mode {
	CUBIC_SLOW_START,
	CUBIC_CSS,		/* conservative slow start, RFC 9406 4.2 */
	CUBIC_RENO,		/* Reno-friendly region, RFC 9438 4.3 */
	CUBIC_CONCAVE,		/* below w_max, RFC 9438 4.4 */
	CUBIC_CONVEX,		/* above w_max, RFC 9438 4.5 */
};

enum {				/* RFC 9406 4.3 */
	MIN_RTT_THRESH_US = 4000,
	MAX_RTT_THRESH_US = 16000,
	MIN_RTT_DIVISOR = 8,
	N_RTT_SAMPLE = 8,
	CSS_GROWTH_DIVISOR = 4,
	CSS_ROUNDS = 5,
};

/* Conservative slow start grows as congestion avoidance does while the queue is at least
 * this part of the least round trip. */
#define CSS_QUEUE_DIVISOR 4

/* Slow start does not resume after a queue of this part of the least round trip. */
#define CSS_LONG_QUEUE_DIVISOR 2

enum {				/* hystart_* parameters of the kernel's cubic */
	HYSTART_LOW_WINDOW = 16,	/* packets */
	HYSTART_ACK_DELTA_US = 2000,	/* between ACKs of one train */
	HYSTART_ACK_DELAY_US = 1000,	/* the most that large GSO packets add to a train (hystart_ack_delay) */
};

enum {
	PROBE_GROWTH = 20,	/* 5 % per round trip: bictcp_update of the kernel */
};

struct curve {			/* what an undo restores, with cc_state.w_max */
	__u32 epoch;		/* 1024 us; when congestion avoidance began, 0: not yet */
	__u32 k;		/* 1024 us; from there to w_max */
	__u32 w_est;		/* packets; what Reno would have */
	__u32 cwnd_prior;	/* packets; window at the last reduction */
};

struct cubic {
	struct cc_state pub;	/* min_rtt_us, w_max; 0: unknown */
	struct curve curve;
	struct curve undo;
	__u32 undo_w_max;
	__u32 cnt;		/* packets to acknowledge per packet of growth */
	__u32 acked;		/* packets acknowledged, not yet counted in w_est */
	__u32 last_cwnd;	/* packets; when cnt was computed */
	__u32 last_time;	/* 1024 us; when cnt was computed */
	/* slow start; RFC 9406 4.2 */
	__u32 round_end;	/* sequence number */
	__u32 round_min_us;	/* ~0: no sample */
	union {
		__u32 last_round_min_us;	/* unless like_kernel */
		__u32 round_begin_us;		/* like_kernel */
	};
	union {
		__u32 css_base_us;	/* in conservative slow start */
		__u32 last_ack_us;	/* otherwise: of the train */
	};
	__u8 samples;		/* of this round, up to N_RTT_SAMPLE */
	__u8 css_left;		/* rounds */
	bool css_stays : 1;	/* the queue was long: slow start does not resume */
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
	t->base_us = ca->css_base_us;
	t->inflight = tcp_packets_in_flight(tp);
	t->retrans = tp->total_retrans;
	t->srtt_us = tp->srtt_us >> 3;
	t->delivered = tp->delivered;
	t->local_port = skc->skc_num;
	t->remote_port = bpf_ntohs(skc->skc_dport);
	t->from = ca->pub.mode;
	t->to = mode;
	t->why = why;
	t->css_rounds = CSS_ROUNDS - ca->css_left;
	bpf_ringbuf_submit(t, 0);
}

static __always_inline void set_mode(struct tcp_sock *tp, struct cubic *ca, __u32 mode, __u32 why)
{
	if (trace_transitions)
		trace_transition(tp, mode, why);
	ca->pub.mode = mode;
}

/* ---- the end of slow start ------------------------------------------------- */

static __always_inline void hystart_round(struct cubic *ca, struct tcp_sock *tp)
{
	ca->round_end = tp->snd_nxt;
	if (like_kernel)
		ca->round_begin_us = tcp_now_us(tp);
	else
		ca->last_round_min_us = ca->round_min_us;
	if (ca->pub.mode != CUBIC_CSS)
		ca->last_ack_us = tcp_now_us(tp);
	ca->round_min_us = ~0u;
	ca->samples = 0;
}

/* In the kernel a round ends one ACK later, with the first ACK of the next train. */
static __always_inline bool hystart_round_over(const struct cubic *ca, struct tcp_sock *tp)
{
	if (like_kernel)
		return after(tp->snd_una, ca->round_end);
	return !before(tp->snd_una, ca->round_end);
}

static __always_inline void hystart_exit(struct cubic *ca, struct tcp_sock *tp, __u32 why)
{
	tp->snd_ssthresh = tp->snd_cwnd;
	set_mode(tp, ca, CUBIC_CONVEX, why);
	ca->pub.flags |= CC_FULL_PIPE;
}

/* The round's smallest delay exceeds base by an eighth: the queue is filling. */
static __always_inline bool hystart_delayed(const struct cubic *ca, __u32 base)
{
	__u32 thresh = max_u32(MIN_RTT_THRESH_US,
			       min_u32(base / MIN_RTT_DIVISOR, MAX_RTT_THRESH_US));

	return ca->samples >= N_RTT_SAMPLE && base != ~0u && ca->round_min_us >= base + thresh;
}

static __always_inline bool hystart_suspects(const struct cubic *ca)
{
	return hystart_delayed(ca, like_kernel ? ca->pub.min_rtt_us : ca->last_round_min_us);
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

/* ---- conservative slow start ------------------------------------------------- */

static __always_inline void css_begin(struct cubic *ca, struct tcp_sock *tp)
{
	ca->css_base_us = ca->round_min_us;
	ca->css_left = CSS_ROUNDS;
	ca->css_stays = false;
	set_mode(tp, ca, CUBIC_CSS, CUBIC_DELAY);
}

/* The round's smallest delay so far shows a queue of a part of the least round trip. */
static __always_inline bool css_queue(const struct cubic *ca, __u32 divisor)
{
	__u32 base = ca->pub.min_rtt_us;

	return ca->round_min_us > base + base / divisor;
}

/* A long queue is mostly not the burst of one other connection, but that of connections that fill the link: if it is gone for a
 * moment, it comes back. */
static __always_inline void css_judge_queue(struct cubic *ca)
{
	if (like_kernel && ca->samples >= N_RTT_SAMPLE && css_queue(ca, CSS_LONG_QUEUE_DIVISOR))
		ca->css_stays = true;
}

/* There is no queue, or it was another connection's and is gone. */
static __always_inline bool css_spurious(const struct cubic *ca)
{
	if (ca->css_stays)
		return false;
	if (like_kernel)
		return ca->samples >= N_RTT_SAMPLE && !hystart_suspects(ca);
	return ca->samples >= N_RTT_SAMPLE && ca->round_min_us < ca->css_base_us;
}

static __always_inline void css_resume(struct cubic *ca, struct tcp_sock *tp)
{
	set_mode(tp, ca, CUBIC_SLOW_START, CUBIC_SPURIOUS);
	/* Trains count again from the next round on. */
	ca->last_ack_us = tcp_now_us(tp) - HYSTART_ACK_DELTA_US - 1;
}

/* Packets acknowledged per packet of growth. A round without a sample counts as one with
 * the longest delay. */
static __always_inline __u32 css_growth(const struct cubic *ca)
{
	return like_kernel && css_queue(ca, CSS_QUEUE_DIVISOR) ? PROBE_GROWTH : CSS_GROWTH_DIVISOR;
}

static __always_inline void hystart_update(struct cubic *ca, struct tcp_sock *tp, __u32 rtt_us)
{
	if (hystart_round_over(ca, tp)) {
		hystart_round(ca, tp);
		if (ca->pub.mode == CUBIC_CSS && !--ca->css_left) {
			hystart_exit(ca, tp, CUBIC_ROUNDS);
			return;
		}
	}
	ca->round_min_us = min_u32(ca->round_min_us, rtt_us);
	if (ca->samples < N_RTT_SAMPLE)
		ca->samples++;
	if (ca->pub.mode == CUBIC_CSS) {
		css_judge_queue(ca);
		if (css_spurious(ca))
			css_resume(ca, tp);
		return;
	}
	if (like_kernel && tp->snd_cwnd < HYSTART_LOW_WINDOW)
		return;
	if (like_kernel && hystart_train(ca, tp))
		hystart_exit(ca, tp, CUBIC_TRAIN);
	else if (hystart_suspects(ca))
		css_begin(ca, tp);
}

#endif
