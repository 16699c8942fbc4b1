/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A clamp of the congestion window: a connection's share of the packets that all connections of
 * its path may have in flight together. User space writes that number into the row of flow_counts.
 *
 * The share changes with every connection that begins or ends. So a connection with a clamp asks
 * for a call each round trip (BPF_SOCK_OPS_RTT_CB), and then gets its present share.
 */
#ifndef TCPILOT_CLAMP_BPF_H
#define TCPILOT_CLAMP_BPF_H

#include "flows.bpf.h"

#define CLAMP_BIT (1ULL << FIELD_CWND_CLAMP)

enum {
	/* No clamp: the kernel's own is ~0 (tcp_init_sock), but the option is an int. The slow
	 * start threshold, which the option sets as well, is TCP_INFINITE_SSTHRESH then. */
	NO_CLAMP = 0x7fffffff,
	MOST_CLAMP = 0xffff,	/* track.clamp */
};

/* The share of each of the path's connections now; 0: they have no clamp. */
static __always_inline __u32 clamp_share(const struct flow_count *n)
{
	__u32 share, flows = n->begun - n->ended;

	if (!n->clamp)
		return 0;
	share = n->clamp / ((__s32)flows > 1 ? flows : 1);
	if (share < n->least_clamp)
		share = n->least_clamp;
	return share < MOST_CLAMP ? share : MOST_CLAMP;
}

/* Gives a connection its present share, or lifts its clamp if share is 0. ctx is the context of
 * sock_ops or, in the iterator, the socket. A clamp that tcpilot did not set (a route's, RTAX_CWND) is
 * kept. TCP_BPF_SNDCWND_CLAMP also sets the slow start threshold, which the kernel needs in a
 * recovery: so the clamp changes only in TCP_CA_Open. */
static __always_inline void follow_share(void *ctx, struct tcp_sock *tp, struct track *t,
					 __u32 share)
{
	__u32 clamp = share ?: NO_CLAMP, has = tp->snd_cwnd_clamp;

	if (share == t->clamp || (has < NO_CLAMP ? has : 0) != t->clamp ||
	    tcp_ca_state(tp) != TCP_CA_OPEN)
		return;
	if (!bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &clamp, sizeof(clamp)))
		t->clamp = share;
}

#endif
