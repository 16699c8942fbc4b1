/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* BBRv3's states: entering each of them, and tracing it. */
#ifndef TCPILOT_BBR3_STATES_BPF_H
#define TCPILOT_BBR3_STATES_BPF_H

#include "bbr3.bpf.h"
#include "trace.h"

static __always_inline struct bbr3_more *bbr3_more_get(struct tcp_sock *tp)
{
	return bpf_sk_storage_get(&bbr3_more, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
}

static __noinline void trace_transition(struct tcp_sock *tp, struct bbr3_more *m, __u32 mode,
					__u32 why)
{
	struct bbr3 *b = bbr3_get(tp);
	struct sock_common *skc = &tcp_sk_sock(tp)->__sk_common;
	struct bbr3_transition *t;

	t = bpf_ringbuf_reserve(&bbr3_transitions, sizeof(*t), 0);
	if (!t)
		return;
	t->at_ns = bpf_ktime_get_ns();
	t->cookie = skc->skc_cookie.counter;
	t->local_port = skc->skc_num;
	t->remote_port = bpf_ntohs(skc->skc_dport);
	t->bw = bw_to_rate(tp, bbr3_bw(b), RATE_ONE);
	t->pacing_rate = tcp_sk_sock(tp)->sk_pacing_rate;
	t->min_rtt_us = b->cc.min_rtt_us;
	t->inflight = tcp_packets_in_flight(tp);
	t->inflight_hi = b->cc.inflight_hi;
	t->inflight_lo = b->cc.inflight_lo;
	t->cwnd = tp->snd_cwnd;
	t->round = m->round;
	t->delivered = tp->delivered;
	t->lost = tp->lost;
	t->reno_rounds = m->reno_rounds;
	t->srtt_us = tp->srtt_us >> 3;
	t->from = b->cc.mode;
	t->to = mode;
	t->why = why;
	t->random_loss = b->random_loss;
	bpf_ringbuf_submit(t, 0);
}

static __always_inline void set_mode(struct tcp_sock *tp, struct bbr3 *b, struct bbr3_more *m,
				     __u32 mode, __u32 why)
{
	if (trace_transitions)
		trace_transition(tp, m, mode, why);
	b->cc.mode = mode;
}

/* 5.5.1 StartRound */
static __always_inline void start_round(struct tcp_sock *tp, struct bbr3 *b)
{
	b->next_round = tp->delivered;
}

static __always_inline void reset_full_bw(struct bbr3 *b, struct bbr3_more *m, __u32 bw)
{
	m->full_bw = bw;
	b->full_bw_count = 0;
	b->full_bw_now = 0;
}

static __always_inline void reset_short_term_model(struct bbr3 *b)
{
	b->bw_lo = NO_BW;
	b->cc.inflight_lo = CC_NO_BOUND;
}

/* The share that the path is assumed to lose by itself: what was learned, and at first at
 * least LOSS_THRESH. */
static __always_inline void take_random_loss(struct bbr3 *b, const struct bbr3_more *m)
{
	b->random_loss = max_u32(m->random_loss >> 3, m->allowance_over ? 0 : LOSS_THRESH);
}

static __always_inline void end_allowance(struct bbr3 *b, struct bbr3_more *m)
{
	m->allowance_over = 1;
	take_random_loss(b, m);
}

static __always_inline void start_loss_count(struct tcp_sock *tp, struct bbr3_more *m)
{
	m->loss_lost = tp->lost;
	m->loss_delivered = tp->delivered;
}

/* 5.3.3.6 RaiseInflightLongtermSlope: each round of Up doubles the growth. */
static __always_inline void raise_inflight_slope(struct tcp_sock *tp, struct bbr3_more *m)
{
	__u32 growth = 1U << (m->up_rounds & 31);

	m->up_rounds = min_u32(m->up_rounds + 1, MAX_UP_ROUNDS);
	m->up_count = max_u32(tp->snd_cwnd / growth, 1);
}

/* 5.3.3.6 StartProbeBW_DOWN */
static __noinline void start_down(struct tcp_sock *tp, struct bbr3_more *m, __u32 why)
{
	struct bbr3 *b = bbr3_get(tp);
	__u32 r = bpf_get_prandom_u32();

	b->loss_events = 0;
	b->loss_in_round = 0;
	b->queue_in_round = 0;
	b->bw_latest = 0;
	b->inflight_latest = 0;
	start_loss_count(tp, m);
	m->up_count = 0;
	m->rounds_since_probe = r & 1;
	m->reno_rounds = r & 1;
	m->probe_wait = PROBE_WAIT_MIN + (r >> 1) % PROBE_WAIT_RANDOM;
	m->cycle_stamp = tcp_now_1024us(tp);
	b->ack_phase = ACKS_PROBE_STOPPING;
	start_round(tp, b);
	set_mode(tp, b, m, BBR3_PROBE_DOWN, why);
}

/* 5.3.3.6 StartProbeBW_REFILL */
static __noinline void start_refill(struct tcp_sock *tp, struct bbr3_more *m, __u32 why)
{
	struct bbr3 *b = bbr3_get(tp);

	set_mode(tp, b, m, BBR3_PROBE_REFILL, why);
	reset_short_term_model(b);
	end_allowance(b, m);
	m->up_rounds = 0;
	m->up_acked = 0;
	b->prev_probe_precautionary = 0;
	b->ack_phase = ACKS_REFILLING;
	start_round(tp, b);
}

/* 5.3.3.6 StartProbeBW_UP */
static void start_up(struct tcp_sock *tp, struct bbr3_more *m)
{
	struct bbr3 *b = bbr3_get(tp);

	b->probe_sample = 1;
	b->ack_phase = ACKS_PROBE_STARTING;
	start_round(tp, b);
	reset_full_bw(b, m, b->bw_latest);
	set_mode(tp, b, m, BBR3_PROBE_UP, BBR3_REFILLED);
	raise_inflight_slope(tp, m);
}

#endif
