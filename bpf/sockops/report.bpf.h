/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fills one conn_sample from a socket and the state of its connection. */
#ifndef TCPILOT_REPORT_BPF_H
#define TCPILOT_REPORT_BPF_H

#include "flows.bpf.h"

#define USEC_PER_SEC 1000000ULL

enum {
	/* enum sock_flags */
	SOCK_DEAD_BIT = 0,	/* no application has the socket any more */
	SOCK_DONE_BIT = 1,	/* the peer's FIN arrived */
	SHUTDOWN_MASK = 3,	/* sock.sk_shutdown: both sides are shut down, as by close */
	/* tcp_sock.ecn_flags: TCP_ECN_OK, and TCP_ECN_MODE_ACCECN (Linux 6.18) */
	TCP_ECN_AGREED = 1 | 16,
	TCP_ECN_SEEN = 8,
	/* asm-generic/errno.h */
	BROKEN_PIPE = 32,
	CONN_ABORTED = 103,
	CONN_RESET = 104,
	TIMED_OUT = 110,
	SNDBUF_LOCK = 1,	/* sock.sk_userlocks: the application chose the size (SO_SNDBUF) */
	RCVBUF_LOCK = 2,
};

/* The reader is woken at most this often. After each batch it pauses for longer
 * than this (at least batchPause in internal/datapath) and looks again, so that a record
 * that came without a wake-up does not wait for one. */
#define WAKE_INTERVAL_NS (40 * 1000000ULL)

static __u64 last_wake_ns;

/* The counters of this CPU; never NULL in practice, but the verifier does not know. */
static __always_inline struct counters *counters_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&counters, &cpu);
}

/* For what is rare: code that counts several things calls counters_here once instead. */
static __always_inline void count(enum counter which)
{
	struct counters *c = counters_here();

	if (c)
		c->n[which]++;
}

static __always_inline void report_addresses(struct conn_sample *s, struct tcp_sock *tp)
{
	struct inet_sock *inet = &tp->inet_conn.icsk_inet;
	struct sock_common *c = &inet->sk.__sk_common;

	sock_addresses(c, (__u32 *)s->local, (__u32 *)s->remote);
	s->remote_port = bpf_ntohs(c->skc_dport);
	/* skc_num, the same to begin with, is 0 once the socket is closed */
	s->local_port = bpf_ntohs(inet->inet_sport);
}

/* The connection's window jumped (resume.bpf.h), and its packets are not all acknowledged yet. */
static __always_inline bool is_unvalidated(const struct track *t)
{
	return t->resume_phase == RESUME_UNVALIDATED || t->resume_phase == RESUME_VALIDATING;
}

/* The slow start threshold is that of the jump, and not one that the path has shown. After a loss that was none, the kernel
 * restores it. */
static __always_inline bool is_capped(struct tcp_sock *tp, const struct track *t)
{
	return t->resume_phase >= RESUME_UNVALIDATED && tp->snd_ssthresh == t->resume_cwnd;
}

/* The slow start threshold that the path has shown. One that equals the clamp of the window comes from that: the option sets both
 * (TCP_BPF_SNDCWND_CLAMP), and a route's clamp bounds it (tcp_init_metrics). */
static __always_inline __u32 shown_ssthresh(struct tcp_sock *tp, const struct track *t)
{
	__u32 ssthresh = tp->snd_ssthresh;

	return is_capped(tp, t) || ssthresh == tp->snd_cwnd_clamp ? TCP_INFINITE_SSTHRESH : ssthresh;
}

/* The state of the path as the socket sees it now. */
static __always_inline void report_path(struct conn_sample *s, struct tcp_sock *tp, const struct track *t)
{
	__u32 interval = tp->rate_interval_us;

	s->min_rtt_us = tp->rtt_min.s[0].v;
	if (s->min_rtt_us == ~0U)	/* tcp_sock starts with "no sample yet" */
		s->min_rtt_us = 0;
	s->srtt_us = tp->srtt_us >> 3;
	s->rttvar_us = tp->mdev_us >> 2;
	s->cwnd = tp->snd_cwnd;
	s->ssthresh = shown_ssthresh(tp, t);
	s->mss = tp->mss_cache;
	s->rto_min_us = jiffies_us(tp->inet_conn.icsk_rto_min);
	s->delack_max_us = jiffies_us(tp->inet_conn.icsk_delack_max);
	s->delivery_rate = 0;
	if (interval)		/* tcp_compute_delivery_rate */
		s->delivery_rate = (__u64)tp->rate_delivered * s->mss * USEC_PER_SEC / interval;
}

/* Whether buffers that the kernel tunes have grown as far as the namespace lets them. */
static __always_inline __u16 report_buffers(struct sock *sk)
{
	struct netns_ipv4 *ipv4 = &sk->__sk_common.skc_net.net->ipv4;
	__u8 locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks);
	__u16 flags = 0;

	if (!(locks & RCVBUF_LOCK) && sk->sk_rcvbuf >= ipv4->sysctl_tcp_rmem[2])
		flags |= F_RCVBUF_MAX;
	if (!(locks & SNDBUF_LOCK) && sk->sk_sndbuf >= ipv4->sysctl_tcp_wmem[2])
		flags |= F_SNDBUF_MAX;
	return flags;
}

/* The application asked for its congestion control. The kernel says so as well once the window was changed in mid-flight
 * (resume.bpf.h); then F_APP_CC has what it said before; and if tcpilot set it for an earlier connection of the socket. */
static __always_inline bool cc_chosen(struct tcp_sock *tp, const struct track *t)
{
	return tcp_ca_chosen(tp) && !t->resume_cwnd && !(t->more_flags & CC_LEFT);
}

/* Whether the congestion control is the default unless the application or the route has set one, whatever the kernel says: that of an
 * earlier connection of the socket was replaced by the default after the handshake (restore_cc). */
static __always_inline bool reads_default(const struct track *t)
{
	return t->arm == ARM_DEFAULT || ((t->more_flags & CC_LEFT) && (t->flags & F_ESTABLISHED));
}

static __always_inline __u16 report_flags(struct tcp_sock *tp, struct cc_words cc,
					  const struct track *t, const struct runtime_config *cfg)
{
	__u16 flags = t->flags & F_MASK;
	__u32 arm = t->arm;

	if (bounded(arm, MAX_CC)) {
		if (!cc_is(cc, cfg->cc[arm]) && (t->flags & F_ESTABLISHED) &&
		    !(t->flags & (F_HOLD_OUT | F_APP_CC | F_ARM_FAILED)))
			flags |= F_CC_CHANGED;
	} else if (cc_chosen(tp, t) || (reads_default(t) && !tcp_ca_default(tp))) {
		flags |= F_APP_CC;	/* tcpilot set nothing, so the application or the route did */
	}
	if (arm == ARM_DEFAULT)
		flags |= F_DEFAULT_ARM;
	if (BPF_CORE_READ_BITFIELD(tp, rate_app_limited))
		flags |= F_APP_LIMITED;
	if (tp->ecn_flags & TCP_ECN_AGREED)
		flags |= F_ECN;
	if (tp->ecn_flags & TCP_ECN_SEEN)
		flags |= F_ECN_SEEN;
	if (t->more_flags & PEER_SENT)
		flags |= F_PEER_SENT;
	if (t->more_flags & PEER_RESENT)
		flags |= F_PEER_RESENT;
	return flags | report_buffers(tcp_sk_sock(tp));
}

/* Copies the state of one of tcpilot's own congestion controls, if one is in use. The state is valid
 * until the last sample: tcp_destroy_sock, and the reset that tcp_disconnect sends, come before the
 * control's release. Before a connection is established there is no state yet. */
static __always_inline void report_cc_state(struct conn_sample *s, struct tcp_sock *tp,
					    struct cc_words cc)
{
	bool known = cc_ours(cc) && BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_initialized);
	const __u64 *priv = tp->inet_conn.icsk_ca_priv;
	__u64 state[sizeof(s->cc_state) / sizeof(*priv)] = {};

	if (known)
		for (int i = 0; i < sizeof(state) / sizeof(*state); i++)
			state[i] = priv[i];
	__builtin_memcpy(&s->cc_state, state, sizeof(s->cc_state));
	if (known)
		s->cc_state.flags |= CC_KNOWN;
}

/* Whether a connection ended in spite of an error, and not by it: an ICMP error that the application asked for (IP_RECVERR) and has not read.
 * After unanswered keepalive probes, such an error takes the place of ETIMEDOUT (tcp_write_err). */
static __always_inline bool outlived(struct tcp_sock *tp, __u32 err, __u32 closed)
{
	if (!err || err == BROKEN_PIPE || err == CONN_ABORTED || err == CONN_RESET || err == TIMED_OUT)
		return false;
	return (closed & CLOSED_RST_SENT) || ((closed & CLOSED_ALL_ACKED) && !tp->inet_conn.icsk_probes_out);
}

/* Sends one sample. If the ring is full, the sample is dropped and counted. */
static __always_inline void report(struct tcp_sock *tp, const struct track *t,
				   const struct totals *now, const struct totals *last,
				   const struct runtime_config *cfg, __u8 kind, __u32 closed,
				   __u32 stands_for)
{
	struct sock *sk = tcp_sk_sock(tp);
	__u64 flags = BPF_RB_NO_WAKEUP;
	struct conn_sample *s;
	struct cc_words cc;

	/* A socket that tcp_disconnect has reset has no remote port. */
	if (shrank(now, last) || (kind == SAMPLE_CLOSE && !sk->__sk_common.skc_dport)) {
		count(COUNT_BACKWARDS);
		return;
	}
	s = bpf_ringbuf_reserve(&samples, sizeof(*s), 0);
	if (!s) {
		count(COUNT_SAMPLES_LOST);
		return;
	}
	s->at_ns = now->at_ns;
	s->cookie = t->cookie;
	s->netns = sk->__sk_common.skc_net.net->net_cookie;
	s->cgroup = sock_cgroup_id(sk);
	report_addresses(s, tp);
	s->kind = kind;
	s->state = sk->__sk_common.skc_state;
	s->class = t->class;
	s->policy_id = t->policy_id;
	cc = tcp_ca_name(tp);
	__builtin_memcpy(s->cc, &cc, sizeof(s->cc));
	s->arm = t->arm;
	s->stands_for = stands_for;
	s->flags = report_flags(tp, cc, t, cfg) | (last->at_ns ? F_LATER : 0);
	s->err = sk->sk_err ?: t->err;
	s->duration_us = (now->at_ns - (last->at_ns ?: t->start_ns)) / NSEC_PER_USEC;
	s->connect_us = last->at_ns ? 0 : t->connect_us;
	s->closed = closed;
	if (sk->__sk_common.skc_flags & (1 << SOCK_DONE_BIT))
		s->closed |= CLOSED_FIN_SEEN;
	if (tp->snd_una == tp->write_seq)
		s->closed |= CLOSED_ALL_ACKED;
	if (kind == SAMPLE_CLOSE && outlived(tp, s->err, s->closed))
		s->err = 0;
	/* The kernel wakes the application before the tracepoint inet_sk_error_report, so that the
	 * application may have read (and cleared) sk_err by then. So a connection that ended without
	 * FIN or RST and with unanswered probes or retransmissions counts as timed out. */
	if (kind == SAMPLE_CLOSE && !s->err && !(s->closed & (CLOSED_FIN_SEEN | CLOSED_RST_SENT)) &&
	    (tp->inet_conn.icsk_probes_out || tp->inet_conn.icsk_retransmits))
		s->err = TIMED_OUT;
	report_totals(s, now, last);
	report_path(s, tp, t);
	report_cc_state(s, tp, cc);
	s->init_cwnd = t->init_cwnd;
	s->init_lost = last->at_ns ? 0 : t->init_lost;
	s->resume_cwnd = last->at_ns ? 0 : t->resume_cwnd;
	s->flows = flow_active(t->flow);
	s->loss_rtt_us = t->loss_rtt_us;
	s->peer_delack_us = t->peer_delack_max_ms * 1000;
	s->peer_receive = t->peer_receive_log2 ? 1ULL << (t->peer_receive_log2 & 63) : 0;
	s->max_pacing_rate = sk->sk_max_pacing_rate == ~0UL ? 0 : sk->sk_max_pacing_rate;

	if (now->at_ns - last_wake_ns > WAKE_INTERVAL_NS) {
		last_wake_ns = now->at_ns;
		flags = BPF_RB_FORCE_WAKEUP;
	}
	bpf_ringbuf_submit(s, flags);
	count(COUNT_SAMPLES);
}

#endif
