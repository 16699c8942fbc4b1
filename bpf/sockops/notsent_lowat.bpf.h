/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* TCP_NOTSENT_LOWAT, which a rule or its objective sets when a connection begins, and which follows the rules while it
 * runs. The kernel wakes a writer that a new value lets write (sk_write_space in do_tcp_setsockopt, and before
 * Linux 6.1 in _bpf_setsockopt).
 *
 * What the application chooses after that is kept: the socket then has another value than tcpilot gave it.
 */
#ifndef TCPILOT_NOTSENT_LOWAT_BPF_H
#define TCPILOT_NOTSENT_LOWAT_BPF_H

#include "maps.bpf.h"

#define NOTSENT_LOWAT_BIT (1ULL << FIELD_NOTSENT_LOWAT)
/* The value of subflows of MPTCP (mptcp_sockopt_sync_locked; Linux 6.7). What a listener for MPTCP accepts has it as well if the
 * peer has no MPTCP. */
#define SUBFLOW_LOWAT (~0U)

/* Whether the application has set no value, on the socket or on its listener. 0 stands for the sysctl
 * (tcp_notsent_lowat in include/net/tcp.h). */
static __always_inline bool lowat_is_unset(struct tcp_sock *tp)
{
	return !tp->notsent_lowat || tp->notsent_lowat == SUBFLOW_LOWAT;
}

/* A connection begins. Returns set without what it is not to get: an application's value is replaced by the operator's, but
 * not by the default of a rule's objective, which nobody has named. Subflows of MPTCP never get one, because MPTCP's scheduler
 * goes by it. */
static __always_inline __u64 without_own(struct tcp_sock *tp, __u64 set, __u64 defaults)
{
	if ((set & NOTSENT_LOWAT_BIT) &&
	    (tcp_is_mptcp(tp) || ((defaults & NOTSENT_LOWAT_BIT) && !lowat_is_unset(tp))))
		set &= ~NOTSENT_LOWAT_BIT;
	return set;
}

/* A socket has got a value instead of another one. Remembers both. */
static __always_inline void note_lowat(void *ctx, struct track *t, __u32 had, __u32 value)
{
	t->notsent_lowat = value;
	if (had)
		bpf_sk_storage_get(&own_lowat, ctx, &had, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Whether a running connection may get another value: it has the one that tcpilot gave it, or none. */
static __always_inline bool lowat_may_change(struct tcp_sock *tp, const struct track *t)
{
	if (t->notsent_lowat)
		return tp->notsent_lowat == t->notsent_lowat;
	return lowat_is_unset(tp) && !tcp_is_mptcp(tp);
}

/* Gives such a connection a value, or what it had before tcpilot if value is 0. */
static __always_inline void give_lowat(struct tcp_sock *tp, struct track *t, __u32 value)
{
	__u32 had = tp->notsent_lowat, to = value, *own = NULL;

	if (value == t->notsent_lowat)
		return;
	if (!value)
		own = bpf_sk_storage_get(&own_lowat, tp, 0, 0);
	if (own)
		to = *own;
	if (bpf_setsockopt(tp, SOL_TCP, TCP_NOTSENT_LOWAT, &to, sizeof(to)))
		return;
	if (!t->notsent_lowat) {
		note_lowat(tp, t, had, value);
		return;
	}
	t->notsent_lowat = value;
	if (own)
		bpf_sk_storage_delete(&own_lowat, tp);
}

#endif
