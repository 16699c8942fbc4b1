/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A limit of the pacing rate, just below the rate at which the path's policer was found to drop. It is
 * divided among the path's connections like the rate limit of a rule (limits.bpf.h).
 */
#ifndef TCPILOT_PACING_BPF_H
#define TCPILOT_PACING_BPF_H

#include "apply.bpf.h"
#include "flows.bpf.h"
#include "limits.bpf.h"

/* Limits the pacing rate of a connection to its share. The limit also turns pacing on
 * (sk_setsockopt). A lower limit that the application chose, or inherited from its listener,
 * stays. A connection that is counted in another row than the policy's is not limited. */
static __always_inline void limit_pacing(struct bpf_sock_ops *skops, const struct path_policy *p, __u32 flow)
{
	struct flow_count *n = flow_row(flow);

	if (n && p->flow == flow)
		limit_begin(skops, 0, n->path);
}

/* Whether losses are to be noted (note_loss), so that samples tell a policer, which drops without a
 * queue, from a full queue. */
static __always_inline bool watches_losses(const struct path_policy *p, __u64 now)
{
	return p && now < p->expires_ns && (p->adapted & (1U << FIELD_MAX_PACING_RATE));
}

/* Asks for a callback when the connection retransmits. Other programs of this cgroup may have asked for others. */
static __always_inline void await_losses(struct bpf_sock_ops *skops)
{
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RETRANS_CB_FLAG);
}

/* Packets are retransmitted. Smooths the round-trip time of the packets that were delivered last, by
 * eighths: if the lost ones were dropped by a full queue, these have waited in it. Losses without a longer
 * round-trip time come from a policer (Flach et al., "An Internet-Wide Analysis of Traffic Policing",
 * SIGCOMM 2016). */
static __always_inline void note_loss(struct tcp_sock *tp, struct track *t)
{
	__u32 rtt = tp->rack.rtt_us, was = t->loss_rtt_us;

	if (rtt && tcp_ca_state(tp) >= TCP_CA_RECOVERY)
		t->loss_rtt_us = was ? was - was / 8 + rtt / 8 : rtt;
}

#endif
