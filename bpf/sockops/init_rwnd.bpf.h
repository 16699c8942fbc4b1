/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A larger initial receive window, so that a sender's initial window does not end at the 64 KB
 * that come from net.ipv4.tcp_rmem.
 *
 * The kernel computes the initial window from the receive buffer (tcp_select_initial_window).
 * The SYN announces at most 64 KB of it, the first ACK all. SO_RCVBUF would make the buffer
 * larger, but ends its autotuning (SOCK_RCVBUF_LOCK), and is bounded by net.core.rmem_max.
 * SO_RCVLOWAT makes room for the low-water mark without either (tcp_set_rcvlowat), and the
 * buffer keeps its size when the mark is set back.
 */
#ifndef TCPILOT_INIT_RWND_BPF_H
#define TCPILOT_INIT_RWND_BPF_H

#include "maps.bpf.h"

#define SO_RCVLOWAT 18

/* Before the SYN of an outgoing connection: window is in packets. It does nothing if the
 * application has chosen the size of the buffer, because tcp_set_rcvlowat respects that, and
 * for MPTCP, whose receive window is that of all subflows. */
static __always_inline void raise_init_rwnd(struct bpf_sock_ops *skops, struct tcp_sock *tp,
					    __u32 window)
{
	struct sock *sk = tcp_sk_sock(tp);
	int mark = window * 1460, usual = sk->sk_rcvlowat;	/* mss of Ethernet, RFC 1122 */

	if (sk->sk_rcvbuf >= 2 * mark || (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp))
		return;
	if (!bpf_setsockopt(skops, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof(mark)))
		bpf_setsockopt(skops, SOL_SOCKET, SO_RCVLOWAT, &usual, sizeof(usual));
}

#endif
