/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A timeout of the SYN-ACK that is shorter than the kernel's second, computed from the path's metrics.
 *
 * The kernel asks for it when a SYN arrives, before it is known whether a connection follows, and the answer needs a
 * classification and a look-up. So a CPU answers a limited number a second. SYN-ACKs that it does not answer keep the kernel's
 * timeout, also those of a flood of SYNs.
 */
#ifndef TCPILOT_SYNACK_BPF_H
#define TCPILOT_SYNACK_BPF_H

#include "budget.bpf.h"
#include "syn.bpf.h"

enum {
	SYNACK_PER_WINDOW = 50,	/* SYN-ACKs that a CPU looks up in BUDGET_WINDOW_MS */
	SYNACK_RETRIES_MIN = 4,	/* see may_shorten_synack */
};

static struct budget synacks[BUDGET_CPUS];

/* Whether the timeout of another SYN-ACK may be looked up now. */
static __always_inline bool synack_affordable(void)
{
	return budget_take(synacks, SYNACK_PER_WINDOW);
}

struct bpf_sock_ops_kern {
	struct sock *sk;
} __attribute__((preserve_access_index));

/* Linux 6.2. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/* Not 0: a SYN-ACK kept the kernel's timeout because the kernel does not have these functions. User space reads it. */
__u32 synacks_blind;

/* Whether the timeout of a SYN-ACK may be shortened. The number of retransmissions is the listener's, so that the kernel forgets an
 * unfinished handshake earlier. It stays the kernel's if the application has chosen that number (TCP_SYNCNT), or if there are
 * few, as on hosts that are to stand floods of SYNs; and if the listener defers accept (TCP_DEFER_ACCEPT), because the kernel
 * counts the seconds for that in retransmissions (secs_to_retrans). Before Linux 6.2, a program cannot find out. */
static __always_inline bool may_shorten_synack(struct bpf_sock_ops *skops)
{
	const struct inet_connection_sock *listener;
	const struct bpf_sock_ops_kern *kern;

	if (!bpf_cast_to_kern_ctx || !bpf_rdonly_cast) {
		synacks_blind = 1;
		return false;
	}
	kern = bpf_cast_to_kern_ctx(skops);
	listener = bpf_rdonly_cast(kern->sk->__sk_common.skc_listener, bpf_core_type_id_kernel(struct inet_connection_sock));
	return !listener->icsk_syn_retries && !listener->icsk_accept_queue.rskq_defer_accept &&
	       kern->sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_synack_retries >= SYNACK_RETRIES_MIN;
}

#endif
