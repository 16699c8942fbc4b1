/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* An initial window from what the path has shown to hold, shared among its connections
 * (Hung, Zhang and Lu, "Fine-Grained TCP Tuning": ssthresh / flow_count).
 */
#ifndef TCPILOT_INIT_CWND_BPF_H
#define TCPILOT_INIT_CWND_BPF_H

#include "apply.bpf.h"

enum {
	TCP_INIT_CWND = 10,		/* include/net/tcp.h; RFC 6928 */
	TCP_CA_RECOVERY = 3,		/* enum tcp_ca_state; CA_Loss is the next */
	SO_MAX_PACING_RATE = 47,
};

/* SO_MAX_PACING_RATE of 32 bits: all ones are no limit. */
#define NO_PACING_LIMIT 0xffffffffU

static __always_inline bool set_pacing_limit(struct bpf_sock_ops *skops, __u32 rate)
{
	return !bpf_setsockopt(skops, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
}

/* Spreads a window of n packets over half a round trip, as the kernel paces slow start
 * (tcp_pacing_ss_ratio). Any limit turns pacing on (sk_setsockopt), and lowers the present
 * rate; without the limit, the kernel computes the next rates from the window. */
static __always_inline void pace_window(struct bpf_sock_ops *skops, struct tcp_sock *tp, __u32 n)
{
	__u64 srtt_us = tp->srtt_us >> 3, rate;

	if (!srtt_us || tcp_sk_sock(tp)->sk_max_pacing_rate != ~0UL)
		return;		/* the application has chosen a rate, and so is paced */
	rate = 2 * USEC_PER_SEC * n * tp->mss_cache / srtt_us;
	if (set_pacing_limit(skops, rate < NO_PACING_LIMIT ? rate : NO_PACING_LIMIT - 1))
		set_pacing_limit(skops, NO_PACING_LIMIT);
}

/* Raises the initial window of a connection, which is one of `active`. Returns the window, or
 * 0 if it is not changed: the path has not shown more, the window is already larger (by the
 * route), or it is smaller, because the handshake lost packets (tcp_init_transfer).
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int raise_init_cwnd(struct bpf_sock_ops *skops, const struct path_policy *p, __u64 now,
			       __u32 active)
{
	struct tcp_sock *tp = skops_tcp(skops);
	__u32 most, cwnd, want;

	if (!tp || !p || now >= p->window_expires_ns)
		return 0;
	most = p->value[FIELD_INIT_CWND];
	cwnd = tp->snd_cwnd;
	if (cwnd < TCP_INIT_CWND)
		return 0;
	want = p->window / (active ?: 1);
	if (want > most)
		want = most;
	if (want <= cwnd)
		return 0;
	if (bpf_setsockopt(skops, SOL_TCP, TCP_BPF_IW, &want, sizeof(want))) {
		count_failure(FIELD_INIT_CWND);
		return 0;
	}
	pace_window(skops, tp, want);
	/* for first_window_lost */
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RETRANS_CB_FLAG);
	return want;
}

/* Packets are sent again. Counts those of a raised initial window; after the first one that
 * is not, the kernel is not asked to call again, unless a rule watches the connection. Global
 * as well. */
__noinline int first_window_lost(struct bpf_sock_ops *skops, struct track *t)
{
	struct tcp_sock *tp = skops_tcp(skops);
	__u32 offset, lost;

	if (!tp || !t)
		return 0;
	/* bytes from the first one that the connection sent, give or take the SYN */
	offset = skops->args[0] - tp->snd_una + (__u32)tp->bytes_acked;
	lost = t->init_lost + skops->args[1];
	if (offset < t->init_cwnd * tp->mss_cache) {
		/* not a tail loss probe, which need not follow a loss */
		if (BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state) >= TCP_CA_RECOVERY)
			t->init_lost = lost < t->init_cwnd ? lost : t->init_cwnd;
	} else if (!(t->flags & F_WATCHED)) {
		bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_RETRANS_CB_FLAG);
	}
	return 0;
}

#endif
