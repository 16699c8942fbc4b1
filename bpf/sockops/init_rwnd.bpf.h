/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A larger initial receive window, so that a sender's initial window is not bounded by the 64 KB
 * that follow from the default of net.ipv4.tcp_rmem.
 *
 * The kernel computes the initial window from the receive buffer (tcp_select_initial_window).
 * The SYN announces at most 64 KB of it; the first ACK announces all of it, since Linux 6.10. SO_RCVBUF
 * would make the buffer larger, but ends its autotuning (SOCK_RCVBUF_LOCK), and is bounded by
 * net.core.rmem_max. SO_RCVLOWAT makes the buffer large enough for the low-water mark and has neither
 * effect (tcp_set_rcvlowat), and the buffer keeps its size when the mark is set back.
 */
#ifndef TCPILOT_INIT_RWND_BPF_H
#define TCPILOT_INIT_RWND_BPF_H

#include "maps.bpf.h"

#define SO_RCVLOWAT 18

#define TCP_WINDOW_CLAMP 10
#define NO_WINDOW_CLAMP (65535 << 14)	/* bytes; tcp_select_initial_window, if the clamp is 0 */
#define ETHERNET_MSS 1460		/* bytes; IPv4, MTU 1500, no TCP options */

/* Called before the SYN of an outgoing connection; window is in packets. Nothing changes if the
 * application has chosen the size of its buffer (tcp_set_rcvlowat respects that) or of its window, if
 * the kernel does not tune buffers, or for MPTCP, whose receive window is that of all subflows. */
static __always_inline void raise_init_rwnd(struct bpf_sock_ops *skops, struct tcp_sock *tp,
					    __u32 window)
{
	struct sock *sk = tcp_sk_sock(tp);
	int mark = window * ETHERNET_MSS, usual = sk->sk_rcvlowat, clamp = NO_WINDOW_CLAMP;

	if (tp->window_clamp || sk->sk_rcvbuf >= 2 * mark ||
	    !sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_moderate_rcvbuf || tcp_is_mptcp(tp))
		return;
	if (bpf_setsockopt(skops, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof(mark)))
		return;
	bpf_setsockopt(skops, SOL_SOCKET, SO_RCVLOWAT, &usual, sizeof(usual));
	/* Kernels before October 2025 ("tcp: take care of zero tp->window_clamp in
	 * tcp_set_rcvlowat()") set a window clamp, which would bound the window scale option. */
	if (tp->window_clamp)
		bpf_setsockopt(skops, SOL_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof(clamp));
}

#endif
