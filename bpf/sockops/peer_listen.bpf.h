/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Listeners that may answer with the peer option (peer.bpf.h): the kernel asks for the options of a SYN-ACK only if
 * the listener has BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG. New listeners get the flag when they begin to listen. Older
 * ones get it from the walk over all sockets, on kernels with TCP_BPF_SOCK_OPS_CB_FLAGS (Linux 6.12). When no rule
 * has the option any more, the walk takes the flag back.
 */
#ifndef TCPILOT_PEER_LISTEN_BPF_H
#define TCPILOT_PEER_LISTEN_BPF_H

#include "report.bpf.h"

#define PEER_OPS (1U << BPF_SOCK_OPS_TCP_LISTEN_CB)	/* in runtime_config.requests: some rule has the option */


/* How much a socket can receive at a time, as binary logarithm of bytes, rounded down. The kernel tunes buffers
 * that the application has not set up to tcp_rmem. */
static __always_inline __u8 receive_log2(struct tcp_sock *tp)
{
	struct sock *sk = tcp_sk_sock(tp);
	__u8 locks = BPF_CORE_READ_BITFIELD(sk, sk_userlocks);
	int most = sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_rmem[2];
	__u32 bytes = sk->sk_rcvbuf;

	if (!(locks & RCVBUF_LOCK) && most > sk->sk_rcvbuf)
		bytes = most;
	return 31 - __builtin_clz(bytes | 1);
}

/* From a request socket, a program cannot reach tcp_rmem of its namespace: so the receive_log2 of listeners is kept
 * by the namespace's cookie. 0: unknown. */
static __always_inline __u8 netns_receive_log2(__u64 netns)
{
	const __u8 *v = bpf_map_lookup_elem(&netns_receive, &netns);

	return v ? *v : 0;
}

static __always_inline void netns_receive_note(struct tcp_sock *tp)
{
	__u64 netns = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	__u8 now = receive_log2(tp);

	if (netns_receive_log2(netns) != now)
		bpf_map_update_elem(&netns_receive, &netns, &now, BPF_ANY);
}

/* Marks a socket on which tcpilot sets the flag, so that it can be taken back. */
static __always_inline bool peer_mark(void *sk)
{
	return bpf_sk_storage_get(&peer_callbacks, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Sets the flag on a socket that a walk finds, or takes it back. Returns the error of the kernel, which needs to be
 * Linux 6.12. */
static __always_inline int peer_change_flag(struct tcp_sock *tp, bool on)
{
	int flags = tp->bpf_sock_ops_cb_flags, flag = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, err;

	flags = on ? flags | flag : flags & ~flag;
	err = bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	if (err)
		return err;
	if (on)
		peer_mark(tp);
	else
		bpf_sk_storage_delete(&peer_callbacks, tp);
	return 0;
}

#endif
