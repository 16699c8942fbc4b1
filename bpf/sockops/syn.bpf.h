/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A timeout of the SYN that is shorter than the kernel's second (TCP_TIMEOUT_INIT), computed
 * from the path's metrics: 500, 250 or 125 ms.
 *
 * It must not make a connect fail earlier. So a SYN that is lost is retransmitted once more for each time
 * that the timeout was halved. The kernel keeps that number (icsk_syn_retries) when the socket
 * begins another connection; the map raised_retries of the including object remembers that tcpilot set
 * it.
 *
 * The connection needs no state for that. The kernel asks for the timeout right after the hook of the
 * connect (tcp_connect, tcp_connect_init), for which syn_marks holds the answer. It asks again when the timeout
 * expires for the second time (retransmits_timed_out), to know for how long the retransmissions take at most; without an
 * answer it computes that with a second. The number is raised then: few SYNs are lost.
 */
#ifndef TCPILOT_SYN_BPF_H
#define TCPILOT_SYN_BPF_H

#include "track.bpf.h"

enum {
	SYN_TIMEOUT_MS = 1000,	/* TCP_TIMEOUT_INIT */
	SYN_HALVED_MAX = 3,
	SYN_RETRIES_MIN = 4,	/* see mark_syn_timeout */
	SYN_MARKS = 256,
};

/* The timeout of a SYN that is about to be sent. One that is overwritten leaves a connection the kernel's timeout. */
struct syn_mark {
	__u64 sk;	/* address of the socket */
	__u32 timeout;	/* jiffies */
};

static struct syn_mark syn_marks[SYN_MARKS];	/* by local port */

/* The number of SYN retransmissions that sockets of the namespace have by default. */
static __always_inline __u8 usual_syn_retries(struct tcp_sock *tp)
{
	return tcp_sk_sock(tp)->__sk_common.skc_net.net->ipv4.sysctl_tcp_syn_retries;
}

/* Whether the application has chosen another number than the usual one. */
static __always_inline bool syn_retries_chosen(struct tcp_sock *tp, __u8 usual)
{
	return tp->inet_conn.icsk_syn_retries && tp->inet_conn.icsk_syn_retries != usual;
}

static __always_inline void set_syn_retries(struct bpf_sock_ops *skops, int retries)
{
	bpf_setsockopt(skops, SOL_TCP, TCP_SYNCNT, &retries, sizeof(retries));
}

/* A connection begins: leaves its timeout for syn_timeout_taken. It stays the kernel's if the application has limited the
 * retransmissions, by number or by time (then the kernel does not ask again), or if the connection belongs to MPTCP, which
 * counts retransmissions to detect middleboxes. So it does if there are few: the first ones are not doubled
 * (tcp_syn_linear_timeouts, four), which makes a connect fail up to 3 s earlier; from four on that is less than a tenth. */
static __always_inline void mark_syn_timeout(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct counters *counters,
					     __u32 jiffies)
{
	struct syn_mark *mark = &syn_marks[skops->local_port % SYN_MARKS];
	__u8 usual = usual_syn_retries(tp);

	if (syn_retries_chosen(tp, usual) || usual < SYN_RETRIES_MIN || tp->inet_conn.icsk_user_timeout || tcp_is_mptcp(tp))
		return;
	mark->sk = (__u64)skops->sk;
	mark->timeout = jiffies;
	counters->n[COUNT_REPLIES]++;
}

/* Answers with the timeout that mark_syn_timeout left for the SYN that is about to be sent. False: there is none. */
static __always_inline bool syn_timeout_taken(struct bpf_sock_ops *skops)
{
	struct syn_mark *mark = &syn_marks[skops->local_port % SYN_MARKS];

	if (mark->sk != (__u64)skops->sk)
		return false;
	mark->sk = 0;
	if ((__s32)skops->reply <= 0)	/* see on_request */
		skops->reply = mark->timeout;
	return true;
}

/* How often a timeout was halved; 0: it is none of the adapted ones (synTimeouts in internal/policy). */
static __always_inline __u32 syn_halved(__u32 jiffies)
{
	__u32 halved = 0;

	while (halved < SYN_HALVED_MAX && jiffies < ms_to_jiffies(SYN_TIMEOUT_MS >> halved))
		halved++;
	return jiffies == ms_to_jiffies(SYN_TIMEOUT_MS >> halved) ? halved : 0;
}

/* Answers with the timeout that a rule sets for a SYN. It is a tick longer than the adapted one of the same length, by which
 * raise_syn_retries knows them apart. */
static __always_inline void reply_syn_timeout(struct bpf_sock_ops *skops, __u32 ms)
{
	__u32 jiffies = ms_to_jiffies(ms);

	skops->reply = syn_halved(jiffies) ? jiffies + 1 : jiffies;
}

/* The kernel asks for the timeout of a connection again. If its SYN was lost twice with an adapted timeout, adds
 * retransmissions, and returns 1; then the kernel gets no answer.
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int raise_syn_retries(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct bpf_sock *sk = skops->sk;
	__u32 halved;
	__u8 *raised, usual;

	if (!tp || !sk || tp->inet_conn.icsk_retransmits != 1)
		return 0;
	halved = syn_halved(tp->inet_conn.icsk_rto >> (tp->inet_conn.icsk_backoff & 31));
	usual = usual_syn_retries(tp);
	if (!halved || syn_retries_chosen(tp, usual))
		return 0;
	raised = bpf_sk_storage_get(&raised_retries, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!raised)
		return 0;
	*raised = usual + halved;
	set_syn_retries(skops, *raised);
	return 1;
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
