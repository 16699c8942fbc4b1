/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Repeated retransmission timeouts of a connection are answered by another congestion control, if its rule says so.
 *
 * After a timeout, a loss-based congestion control begins again with a window of one packet. One that models
 * the rate of the path returns to that rate. The flow hash is left alone: the kernel changes it at each
 * timeout (tcp_write_timeout, sk_rethink_txhash) unless net.core.txrehash or SO_TXREHASH is 0.
 */
#ifndef TCPILOT_TIMEOUTS_BPF_H
#define TCPILOT_TIMEOUTS_BPF_H

#include "remember.bpf.h"
#include "switch.bpf.h"

/* Whether the connection is one of the share; the result is the same at each call. It takes other bits of the
 * cookie's hash than keeps_arm (switch.bpf.h), so that the two draws are independent. */
static __always_inline bool in_timeout_share(__u64 cookie, const struct timeout_answer *a)
{
	return ((cookie * 0x9e3779b97f4a7c15ULL >> 32) & 0xffff) < a->share;
}

/* A connection begins whose rule answers timeouts.
 *
 * Global functions, so that they are verified once: most connections do not get here. */
__noinline int await_timeouts(struct bpf_sock_ops *skops, __u32 class)
{
	const struct timeout_answer *a = bpf_map_lookup_elem(&timeout_answers, &class);

	if (a && in_timeout_share(bpf_get_socket_cookie(skops), a))
		bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTO_CB_FLAG);
	return 0;
}

/* How many timeouts the connection has had, including this one, which the kernel counts after the call. Before
 * Linux 6.7 only those in succession are known. */
static __always_inline __u32 timeouts(struct bpf_sock_ops *skops, struct tcp_sock *tp)
{
	return 1 + (bpf_core_field_exists(tp->total_rto) ? tp->total_rto : skops->args[0]);
}

/* The retransmission timer of a connection has expired. Returns whether it was answered. */
__noinline int answer_timeout(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct track *t = recall(skops, tp);
	const struct timeout_answer *a;
	const struct runtime_config *cfg;
	__u32 zero = 0;

	if (!tp || !t || !(t->flags & F_ESTABLISHED) ||
	    (t->flags & (F_HOLD_OUT | F_APP_CC | F_ARM_FAILED | F_CC_CHANGED | F_ADOPTED)))
		return 0;
	a = bpf_map_lookup_elem(&timeout_answers, &t->class);
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!a || !cfg || !in_timeout_share(t->cookie, a) || timeouts(skops, tp) < a->after ||
	    bpf_ktime_get_ns() >= cfg->lease_ns || cc_is_owned(tp, t, cfg) || !cc_is_ours(tp, t, cfg) ||
	    cc_is(tcp_ca_name(tp), a->cc))
		return 0;
	if (bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, (void *)a->cc, CC_NAME)) {
		count(COUNT_CC_FAILED);
		t->flags |= F_CC_CHANGED;	/* not tried again */
		return 0;
	}
	t->flags |= F_CC_CHANGED;	/* its samples belong to two arms */
	return 1;
}

#endif
