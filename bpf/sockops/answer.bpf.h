/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Answers to BPF_SOCK_OPS_TIMEOUT_INIT: the timeout of a SYN or SYN-ACK. */
#ifndef TCPILOT_ANSWER_BPF_H
#define TCPILOT_ANSWER_BPF_H

#include "report.bpf.h"
#include "syn.bpf.h"

/* Answers with a timeout, in the jiffies that the kernel expects (tcp_timeout_init). */
static __always_inline void reply_timeout(struct bpf_sock_ops *skops, __u32 ms)
{
	skops->reply = ms_to_jiffies(ms);
}

/* Answers with the timeout that a rule sets for a SYN. It is a tick longer than the adapted one of the same length, by which
 * raise_syn_retries knows them apart. */
static __always_inline void reply_syn_timeout(struct bpf_sock_ops *skops, __u32 ms)
{
	skops->reply = ms_to_jiffies(ms) + !!syn_halved(ms_to_jiffies(ms));
}

/* Answers for a connection whose SYN timeout was adapted, without a look-up of its policy.
 * Returns the timeout in milliseconds; 0: it was not adapted, or its SYN was lost.
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int syn_timeout_answered(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	__u32 given = tp ? syn_timeout_taken(tp) : 0;

	if (!given) {
		if (unlikely(tp && tp->inet_conn.icsk_retransmits == 1))
			raise_syn_retries(skops, tp);
		return 0;
	}
	if ((__s32)skops->reply <= 0) {
		reply_timeout(skops, given);
		count(COUNT_REPLIES);
	}
	return given;
}

#endif
