/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sockets that begin another connection (connect to AF_UNSPEC, then connect). The kernel keeps the congestion control, the clamp of the
 * congestion window, TCP_NOTSENT_LOWAT, priority and DSCP of the first connection (tcp_disconnect). What of that tcpilot set is taken
 * back, and does not count as the application's choice. If the application has set the same congestion control meanwhile, that is not noticed.
 * A connection that was shut down both ways, and then reset by connect to AF_UNSPEC, looks like one that is being closed (may_be_reused):
 * its socket keeps what it was given.
 *
 * Needs the map given_values of the including object.
 */
#ifndef TCPILOT_REUSE_BPF_H
#define TCPILOT_REUSE_BPF_H

#include "ack_values.bpf.h"
#include "clamp.bpf.h"
#include "report.bpf.h"

/* Whether tcpilot has set the connection's present congestion control, which it does once the handshake is over. */
static __always_inline bool cc_was_set(struct tcp_sock *tp, const struct track *t, const struct runtime_config *cfg)
{
	const struct timeout_answer *a;
	struct cc_words name;
	__u32 arm = t->arm;

	if (!tcp_ca_chosen(tp) || !(t->flags & F_ESTABLISHED) || (t->flags & F_APP_CC))
		return false;
	name = tcp_ca_name(tp);
	if (bounded(arm, MAX_CC) && cc_is(name, cfg->cc[arm]))
		return true;
	if (t->resume_cwnd && tcp_ca_default(tp))	/* it was exchanged for a moment (set_window) */
		return true;
	a = t->flags & F_CC_CHANGED ? bpf_map_lookup_elem(&timeout_answers, &t->class) : NULL;
	return a && cc_is(name, a->cc);
}

/* The connection of a socket that may begin another one is over. l is NULL if its state is in a slot. Not inlined: most sockets do not. */
static __noinline int note_given(struct tcp_sock *tp, const struct track *t, const struct live_conn *l,
				 const struct runtime_config *cfg)
{
	bool cc = cc_was_set(tp, t, cfg);
	struct given *g;

	if (!cc && !t->notsent_lowat && !t->clamp && !(l && l->acks.marks))
		return 0;
	g = bpf_sk_storage_get(&given_values, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!g)
		return 0;
	if (cc)			/* else it may have one of an earlier connection (restore_cc) */
		g->cc = tcp_ca_name(tp);
	g->notsent_lowat = t->notsent_lowat;
	g->clamp = t->clamp;
	if (l)
		g->acks = l->acks;
	return 0;
}

/* Whether the socket has a congestion control that tcpilot set for an earlier connection, and no route demands it. */
static __always_inline bool cc_is_left(struct tcp_sock *tp, const struct given *g)
{
	struct cc_words has = tcp_ca_name(tp);

	return has.w[0] == g->cc.w[0] && has.w[1] == g->cc.w[1] &&
	       !BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_dst_locked);
}

/* A socket that was seen before begins a connection.
 *
 * This and the following ones are global functions, so that they are verified once. */
__noinline int take_back(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	__u32 *own, lowat = 0, clamp = NO_CLAMP;
	struct given *g;

	g = tp ? bpf_sk_storage_get(&given_values, tp, 0, 0) : NULL;
	if (!g)
		return 0;
	own = bpf_sk_storage_get(&own_lowat, tp, 0, 0);
	if (own)
		lowat = *own;
	if (g->notsent_lowat && g->notsent_lowat == tp->notsent_lowat)
		bpf_setsockopt(skops, SOL_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat));
	if (own)
		bpf_sk_storage_delete(&own_lowat, tp);
	if (g->clamp && g->clamp == tp->snd_cwnd_clamp)
		bpf_setsockopt(skops, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &clamp, sizeof(clamp));
	if (g->acks.marks) {
		mark_dscp(skops, tp, &g->acks, 0);
		mark_priority(skops, tp, &g->acks, 0);
	}
	g->notsent_lowat = 0;
	g->clamp = 0;
	g->acks.marks = 0;
	return 0;
}

/* Whether any hook has seen the socket: it has a cookie then. */
static __always_inline bool was_seen(struct tcp_sock *tp)
{
	return tcp_sk_sock(tp)->__sk_common.skc_cookie.counter;
}

/* A connection begins whose congestion control is not the one that a new socket has. */
__noinline int has_left_cc(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct given *g;

	g = tp ? bpf_sk_storage_get(&given_values, tp, 0, 0) : NULL;
	return g && cc_is_left(tp, g);
}

/* The handshake of an outgoing connection is over, and its congestion control is not the one that a new socket has. If tcpilot set it for
 * an earlier connection, the socket gets the default of its network namespace: here, because the kernel has not initialised
 * the congestion control yet. */
__noinline int restore_cc(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct cc_words name;
	struct given *g;

	g = tp ? bpf_sk_storage_get(&given_values, tp, 0, 0) : NULL;
	if (!g || !cc_is_left(tp, g) || tcp_ca_default(tp))
		return 0;
	name = tcp_ca_default_name(tp);
	if (!bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, &name, CC_NAME))
		g->cc = name;
	return 0;
}

#endif
