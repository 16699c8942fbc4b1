/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reno (RFC 5681) by the kernel's own functions, or with one fault: the object
 * that the tests load as a user's. */
#include "../../../bpf/cc/cc.bpf.h"

enum {
	FAULT_NONE,
	FAULT_SHUT,		/* one packet in flight, forever */
	FAULT_STALL,		/* one byte a second */
	FAULT_BLIND,		/* a huge window, whatever is lost */
};

const volatile __u32 fault = FAULT_NONE;

#define IMMENSE 50000

SEC("struct_ops")
void BPF_PROG(plain_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;

	if (fault == FAULT_STALL) {
		sk->sk_pacing_rate = 1;
		tcp_pacing_on(tp);
	}
}

SEC("struct_ops")
void BPF_PROG(plain_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;

	if (fault == FAULT_SHUT) {
		tp->snd_cwnd = 1;
		return;
	}
	if (fault == FAULT_STALL)
		sk->sk_pacing_rate = 1;
	if (fault == FAULT_BLIND) {
		tp->snd_cwnd = IMMENSE;
		return;
	}
	if (!tcp_is_cwnd_limited(tp))
		return;
	if (tcp_in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	tcp_cong_avoid_ai(tp, tp->snd_cwnd, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(plain_ssthresh, struct sock *sk)
{
	if (fault == FAULT_BLIND)
		return IMMENSE;
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(plain_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops plain = {
	.init = (void *)plain_init,
	.ssthresh = (void *)plain_ssthresh,
	.cong_avoid = (void *)plain_cong_avoid,
	.undo_cwnd = (void *)plain_undo_cwnd,
	.name = "plain",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
