/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the congestion controls share: constants and accessors of the kernel's TCP, small
 * arithmetic, and the differences between kernels that concern only them.
 *
 * A congestion control in BPF may write sk_pacing_rate, sk_pacing_status, icsk_ca_priv,
 * icsk_ack.pending, snd_cwnd, snd_cwnd_cnt, snd_ssthresh, ecn_flags and, since Linux 6.4,
 * app_limited. The kernel refuses one that has get_info (net/ipv4/bpf_tcp_ca.c).
 */
#ifndef TCPILOT_CC_BPF_H
#define TCPILOT_CC_BPF_H

#include "../include/tcp.bpf.h"
#include <bpf/bpf_tracing.h>

#define USEC_PER_SEC 1000000ULL
#define TCP_CONG_NEEDS_ECN 2			/* tcp_congestion_ops.flags */

enum {				/* include/net/tcp.h, enum tcp_ca_event */
	/* First data after nothing was in flight. Since Linux 7.1 the kernel calls the
	 * hook cwnd_event_tx_start instead; on older kernels the loader drops the program
	 * of that hook. */
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,	/* window cut after idling */
	CA_EVENT_COMPLETE_CWR,	/* recovery over */
	CA_EVENT_LOSS,		/* retransmission timeout */
	CA_EVENT_ECN_NO_CE,	/* an unmarked packet arrived */
	CA_EVENT_ECN_IS_CE,	/* a marked packet arrived */
};

enum {				/* in_ack_event's flags */
	CA_ACK_SLOWPATH = 1 << 0,
	CA_ACK_WIN_UPDATE = 1 << 1,
	CA_ACK_ECE = 1 << 2,
};

enum {				/* tcp_sock.ecn_flags */
	TCP_ECN_OK = 1,
	TCP_ECN_QUEUE_CWR = 2,
	TCP_ECN_DEMAND_CWR = 4,
	TCP_ECN_SEEN = 8,
	TCP_ECN_MODE_ACCECN = 16,	/* accurate ECN (RFC 9768), since Linux 6.18 */
};

enum {				/* sock.sk_pacing_status, include/net/sock.h */
	SK_PACING_NONE,
	SK_PACING_NEEDED,	/* TCP paces by itself */
	SK_PACING_FQ,		/* the queueing discipline paces */
};

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, __u32 w, __u32 acked) __ksym;

/* ---- kernels ------------------------------------------------------------- */

/* cong_control takes (sk, ack, flag, rs) since Linux 6.10 and (sk, rs) before. User space
 * sets this from the kernel's own BTF; the verifier drops the other branch. */
const volatile bool cong_control_with_ack = true;

static __always_inline const struct rate_sample *cong_control_rs(unsigned long long *ctx)
{
	const struct rate_sample *rs;

	/* In assembly, because clang would merge the two into one load with a variable
	 * offset. No verifier accepts such a load from a context. */
	if (cong_control_with_ack)
		asm volatile("%0 = *(u64 *)(%1 + 24)" : "=r"(rs) : "r"(ctx));
	else
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(rs) : "r"(ctx));
	return rs;
}

/* ---- arithmetic ---------------------------------------------------------- */

static __always_inline __u32 min_u32(__u32 a, __u32 b)
{
	return a < b ? a : b;
}

static __always_inline __u32 max_u32(__u32 a, __u32 b)
{
	return a > b ? a : b;
}

static __always_inline __u64 min_u64(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

static __always_inline __u64 max_u64(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* a, limited to 32 bits: a large counter must not wrap to a small value. */
static __always_inline __u32 sat_u32(__u64 a)
{
	return min_u64(a, 0xffffffff);
}

/* Sequence numbers, stamps and counters that wrap: a came before b. */
static __always_inline bool before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline bool after(__u32 a, __u32 b)
{
	return before(b, a);
}

/* Largest value of the current window and the one before. It takes two words, and
 * remembers a value for one to two windows. */
struct max_filter {
	__u32 v[2];		/* last window, this window */
};

static __always_inline __u32 max_filter_get(const struct max_filter *f)
{
	return max_u32(f->v[0], f->v[1]);
}

static __always_inline void max_filter_update(struct max_filter *f, __u32 v)
{
	f->v[1] = max_u32(f->v[1], v);
}

static __always_inline void max_filter_reset(struct max_filter *f, __u32 v)
{
	f->v[0] = v;
	f->v[1] = v;
}

/* A window without a value is not counted: otherwise the filter would be empty after two
 * of them. */
static __always_inline void max_filter_advance(struct max_filter *f)
{
	if (!f->v[1])
		return;
	f->v[0] = f->v[1];
	f->v[1] = 0;
}

/* ---- the kernel's TCP ---------------------------------------------------- */

/* The congestion control's own 104 bytes; they begin with struct cc_state. */
static __always_inline void *inet_csk_ca(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ca_priv;
}

static __always_inline __u32 tcp_packets_in_flight(struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

static __always_inline bool tcp_in_slow_start(struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/* Enough of the window was used recently to justify growth. */
static __always_inline bool tcp_is_cwnd_limited(struct tcp_sock *tp)
{
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return true;
	return tcp_in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out;
}

/* The kernel's own windowed minimum (sysctl tcp_min_rtt_wlen, 300 s). */
static __always_inline __u32 tcp_min_rtt(struct tcp_sock *tp)
{
	return tp->rtt_min.s[0].v;
}

/* Low 32 bits of the time of the packet being handled, in microseconds. It wraps after 71
 * minutes, so it can only be compared with times less than 35 minutes away. */
static __always_inline __u32 tcp_now_us(struct tcp_sock *tp)
{
	return tp->tcp_mstamp;
}

/* The same in units of 1024 us, for times up to 24 days away. */
static __always_inline __u32 tcp_now_1024us(struct tcp_sock *tp)
{
	return tp->tcp_mstamp >> 10;
}

/* Sets the pacing rate, in bytes per second, to at most what SO_MAX_PACING_RATE allows. */
static __always_inline void tcp_pace(struct tcp_sock *tp, __u64 rate)
{
	struct sock *sk = tcp_sk_sock(tp);

	sk->sk_pacing_rate = min_u64(rate, sk->sk_max_pacing_rate);
}

/* Makes TCP pace at sk_pacing_rate, unless a queueing discipline paces. */
static __always_inline void tcp_pacing_on(struct tcp_sock *tp)
{
	struct sock *sk = tcp_sk_sock(tp);

	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
}

#endif
