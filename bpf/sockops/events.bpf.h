/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Events of connections, which rules may count.
 *
 * Needs the map events of the including object.
 */
#ifndef TCPILOT_EVENTS_BPF_H
#define TCPILOT_EVENTS_BPF_H

#include "follow.bpf.h"
#include "resume.bpf.h"
#include "timeouts.bpf.h"

/* Asks for the callbacks that the rule counts, for a share of its connections. Returns flags for
 * track.flags. */
static __always_inline __u16 watch(struct bpf_sock_ops *skops, const struct class_entry *cls)
{
	if (likely(!cls->cb_flags) || (bpf_get_prandom_u32() & 0xffff) >= cls->watch_share)
		return 0;
	/* other programs of this cgroup may have asked for callbacks */
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | cls->cb_flags);
	return (cls->cb_flags & BPF_SOCK_OPS_RETRANS_CB_FLAG ? F_WATCH_RETRANS : 0) |
	       (cls->cb_flags & BPF_SOCK_OPS_STATE_CB_FLAG ? F_WATCH_STATE : 0);
}

static __always_inline void count_event(__u32 class, __u32 op)
{
	struct event_key key = { .class = class, .op = op };
	__u64 one = 1, *n = bpf_map_lookup_elem(&events, &key);

	if (n)
		(*n)++;
	else
		/* Each CPU has its own count: nothing is lost if another CPU made the entry meanwhile. */
		bpf_map_update_elem(&events, &key, &one, BPF_ANY);
}

/* A timeout, a retransmission, or another state. Features that need one ask for it too, and so may other programs
 * of the cgroup. */
static __always_inline void on_event(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct track *t = recall(skops, tp);
	__u32 op = skops->op, class;

	if (op == BPF_SOCK_OPS_RETRANS_CB && tp && shows_losses(tp, t)) {
		class = t && t->class ? t->class : class_undirected(skops);
		if (class)
			follow_lossy(skops, class);
		t = recall(skops, tp);
	}
	if (!t)
		return;
	if (op == BPF_SOCK_OPS_RTO_CB && answer_timeout(skops))
		count_event(t->class, EVENT_ANSWERED);
	if (op == BPF_SOCK_OPS_RETRANS_CB) {
		if (tp && (t->init_cwnd || t->resume_cwnd))
			first_window_lost(skops, tp, t);
		if (tp)
			resume_lost(skops, tp, t);
		if (tp)
			note_loss(tp, t);
		if (!(t->flags & F_WATCH_RETRANS))
			return;
	}
	if (op == BPF_SOCK_OPS_STATE_CB && tp && !(t->flags & F_WATCH_STATE) && tcp_is_mptcp(tp))
		return;		/* await_mptcp_end asked */
	count_event(t->class, op);
}

#endif
