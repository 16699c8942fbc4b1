/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A timeout of the SYN that is shorter than the kernel's second (TCP_TIMEOUT_INIT), computed
 * from the path's metrics: 500, 250 or 125 ms.
 *
 * It must not make a connect fail earlier. So the SYN is retransmitted once more for each time
 * that the timeout was halved. The kernel keeps that number (icsk_syn_retries) when the socket
 * begins another connection; the map raised_retries of the including object remembers that tcpilot set
 * it.
 */
#ifndef TCPILOT_SYN_BPF_H
#define TCPILOT_SYN_BPF_H

#include "track.bpf.h"

enum {
	SYN_TIMEOUT_MS = 1000,	/* TCP_TIMEOUT_INIT */
	SYN_HALVED_SHIFT = __builtin_ctz(F_SYN_HALVED),
	SYN_HALVED_MAX = F_SYN_HALVED >> SYN_HALVED_SHIFT,
};

/* The number of SYN retransmissions that sockets of the namespace have by default. */
static __always_inline __u8 usual_syn_retries(struct tcp_sock *tp)
{
	return tcp_sk_sock(tp)->__sk_common.skc_net.net->ipv4.sysctl_tcp_syn_retries;
}

static __always_inline bool set_syn_retries(struct bpf_sock_ops *skops, int retries)
{
	return !bpf_setsockopt(skops, SOL_TCP, TCP_SYNCNT, &retries, sizeof(retries));
}

/* Adds retransmissions for a timeout. Returns the flags to remember; 0 if the timeout stays
 * the kernel's, because the application has chosen the number of retransmissions, or the
 * connection belongs to MPTCP, which counts retransmissions to detect middleboxes. */
static __always_inline __u16 halve_syn_timeout(struct bpf_sock_ops *skops, struct tcp_sock *tp,
					       __u32 timeout_ms)
{
	__u8 usual = usual_syn_retries(tp);
	__u8 chosen = tp->inet_conn.icsk_syn_retries;
	__u16 halved = 0;

	if ((chosen && chosen != usual) || tcp_is_mptcp(tp))
		return 0;
	for (__u32 ms = SYN_TIMEOUT_MS; halved < SYN_HALVED_MAX && ms > timeout_ms; ms /= 2)
		halved++;
	if (!halved || !set_syn_retries(skops, usual + halved))
		return 0;
	return halved << SYN_HALVED_SHIFT;
}

/* The timeout that a connection was given, in milliseconds; 0: the kernel's. The kernel asks
 * again at each timeout, when the policy may have changed. */
static __always_inline __u32 syn_timeout_given(const struct track *t)
{
	__u16 halved = t ? t->flags >> SYN_HALVED_SHIFT : 0;

	return halved ? SYN_TIMEOUT_MS >> halved : 0;
}

/* A connect failed: its socket may begin another one. */
static __always_inline void note_syn_retries(struct sock *sk, struct tcp_sock *tp,
					     const struct track *t)
{
	__u8 *raised;

	if (!syn_timeout_given(t))
		return;
	raised = bpf_sk_storage_get(&raised_retries, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (raised)
		*raised = tp->inet_conn.icsk_syn_retries;
}

/* A socket begins a connection. Takes back what an earlier connect had raised. */
static __always_inline void restore_syn_retries(struct bpf_sock_ops *skops, struct tcp_sock *tp)
{
	struct bpf_sock *sk = skops->sk;
	__u8 *raised;

	if (likely(!tp->inet_conn.icsk_syn_retries) || !sk)
		return;
	raised = bpf_sk_storage_get(&raised_retries, sk, 0, 0);
	if (!raised)
		return;
	if (*raised == tp->inet_conn.icsk_syn_retries)
		set_syn_retries(skops, usual_syn_retries(tp));
	bpf_sk_storage_delete(&raised_retries, sk);
}

#endif
