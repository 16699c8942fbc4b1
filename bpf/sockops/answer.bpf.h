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

/* The kernel asks for the timeout of a connection again. Returns whether its SYN was lost twice with an adapted timeout; then
 * the kernel gets no answer.
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int syn_lost_twice(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);

	return tp && tp->inet_conn.icsk_retransmits == 1 && raise_syn_retries(skops, tp);
}

#endif
