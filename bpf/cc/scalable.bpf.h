/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Shared by the controls that answer ECN marks in proportion: dctcp and prague.
 * Sections are of RFC 8257. */
#ifndef TCPILOT_SCALABLE_BPF_H
#define TCPILOT_SCALABLE_BPF_H

#include "cc.bpf.h"

enum {
	ALPHA_BITS = 20,	/* of fraction in marks.alpha */
	ALPHA_ONE = 1 << ALPHA_BITS,
	PUBLIC_SHIFT = 10,	/* from there to cc_state.alpha */
	MIN_WINDOW = 2,		/* packets */
	ICSK_ACK_TIMER = 2,	/* icsk_ack.pending, include/net/inet_connection_sock.h */
	ICSK_ACK_NOW = 16,
};

enum scalable_mode {		/* of every control that includes this file */
	SCALABLE_SLOW_START,
	SCALABLE_AVOIDANCE,
};

/* ---- is there ECN ---------------------------------------------------------- */

static __always_inline bool tcp_ecn_ok(struct tcp_sock *tp)
{
	return tp->ecn_flags & (TCP_ECN_OK | TCP_ECN_MODE_ACCECN);
}

/* ECN was negotiated, or still can be: a control that is chosen before the handshake
 * takes part in the negotiation. */
static __always_inline bool tcp_ecn_possible(struct tcp_sock *tp)
{
	__u8 state = tcp_sk_sock(tp)->__sk_common.skc_state;

	return tcp_ecn_ok(tp) || state == TCP_CLOSE || state == TCP_LISTEN ||
	       state == TCP_SYN_SENT;
}

/* Without ECN only losses show a queue, and Reno answers those. The change also takes
 * ECT off the socket's packets, which a control may not do itself. The kernel refuses
 * it while another BPF program is setting this control: the next ACK tries again. After
 * it, icsk_ca_priv belongs to the other control. */
static __always_inline void fall_back(struct tcp_sock *tp)
{
	char reno[] = "reno";

	bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
}

/* ---- the sender: 3.3 ------------------------------------------------------- */

struct marks {
	__u32 window_end;	/* sequence number */
	__u32 delivered;	/* packets, at the start of the window */
	__u32 delivered_ce;
	__u32 alpha;		/* share of packets marked, smoothed, of ALPHA_ONE */
};

static __always_inline void marks_window(struct marks *m, struct tcp_sock *tp)
{
	m->window_end = tp->snd_nxt;
	m->delivered = tp->delivered;
	m->delivered_ce = tp->delivered_ce;
}

/* Alpha starts at 1: the first mark halves the window. */
static __always_inline void marks_init(struct marks *m, struct cc_state *pub, struct tcp_sock *tp)
{
	m->alpha = ALPHA_ONE;
	pub->alpha = ALPHA_ONE >> PUBLIC_SHIFT;
	marks_window(m, tp);
}

/* At the end of a window: alpha = alpha * (1 - g) + g * F. */
static __always_inline void marks_update(struct marks *m, struct cc_state *pub,
					 struct tcp_sock *tp, __u32 shift_g)
{
	__u32 marked = tp->delivered_ce - m->delivered_ce;
	__u32 all = max_u32(tp->delivered - m->delivered, 1);

	m->alpha -= m->alpha >> shift_g;
	if (marked) {
		m->alpha += ((__u64)min_u32(marked, all) << (ALPHA_BITS - shift_g)) / all;
		pub->flags |= CC_ECN;
	}
	m->alpha = min_u32(m->alpha, ALPHA_ONE);
	pub->alpha = m->alpha >> PUBLIC_SHIFT;
	marks_window(m, tp);
}

/* The kernel calls it at most once per window. */
static __always_inline __u32 scalable_ssthresh(struct tcp_sock *tp, const struct marks *m)
{
	__u32 cwnd = tp->snd_cwnd;
	__u32 less = (__u64)cwnd * m->alpha >> (ALPHA_BITS + 1);

	return max_u32(cwnd - less, MIN_WINDOW);
}

/* ---- the receiver: 3.2 ------------------------------------------------------ */

struct receiver {
	__u32 rcv_nxt;		/* before the packet that is being handled */
	__u32 ce;		/* DCTCP.CE: the last packet was marked */
};

static __always_inline void receiver_init(struct receiver *r, struct tcp_sock *tp)
{
	r->rcv_nxt = tp->rcv_nxt;
	r->ce = 0;
}

/* Sets what ACKs carry in ECE. */
static __always_inline void receiver_ece(struct tcp_sock *tp, bool ce)
{
	if (ce)
		tp->ecn_flags |= TCP_ECN_DEMAND_CWR;
	else
		tp->ecn_flags &= ~TCP_ECN_DEMAND_CWR;
}

/* A change of CE is acknowledged at once. If an ACK for the packets before the change
 * is still delayed, it is sent first, with the old bit. */
static __always_inline void receiver_update(struct receiver *r, struct tcp_sock *tp, bool ce)
{
	if (tp->ecn_flags & TCP_ECN_MODE_ACCECN)
		return;
	if (r->ce != ce) {
		if (tp->inet_conn.icsk_ack.pending & ICSK_ACK_TIMER) {
			receiver_ece(tp, r->ce);
			bpf_tcp_send_ack(tp, r->rcv_nxt);
		}
		tp->inet_conn.icsk_ack.pending |= ICSK_ACK_NOW;
	}
	r->rcv_nxt = tp->rcv_nxt;
	r->ce = ce;
	receiver_ece(tp, ce);
}

#endif
