/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What follows the path at each round trip of a connection: the clamp of its congestion window, its congestion
 * control (switch.bpf.h), and the window to resume at (resume.bpf.h).
 */
#ifndef TCPILOT_ROUND_TRIP_BPF_H
#define TCPILOT_ROUND_TRIP_BPF_H

#include "clamp.bpf.h"
#include "remember.bpf.h"
#include "resume.bpf.h"
#include "switch.bpf.h"

/* A connection whose path has a clamp is established. Returns its share in packets; 0: none.
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int clamp_cwnd(struct bpf_sock_ops *skops, const struct path_policy *p, __u32 flow)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct flow_count *n = flow_row(flow);
	struct track t = {};

	if (!tp || !p || !n || p->flow != flow)
		return 0;
	follow_share(skops, tp, &t, clamp_share(n));
	if (t.clamp)
		bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	return t.clamp;
}

/* A round trip is over (BPF_SOCK_OPS_RTT_CB). Another program of the cgroup may have asked for the
 * call. Without a lease the clamp is lifted, and nothing is switched or resumed: only windows that have jumped are uncapped. */
__noinline int on_round_trip(struct bpf_sock_ops *skops, bool leased)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct track *t = recall(skops, tp);
	struct flow_count *n;

	if (!tp || !t)
		return 0;
	n = t->clamp ? flow_row(t->flow) : NULL;
	if (n)
		follow_share(skops, tp, t, leased ? clamp_share(n) : 0);
	if (leased)
		switch_running(skops, tp, t);
	if (t->resume_phase && (leased || is_unvalidated(t)))
		resume_cwnd(skops);
	return 0;
}

#endif
