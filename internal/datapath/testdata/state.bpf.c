/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A congestion control under a name of tcpilot's that reports the state that the
 * tests expect, and is otherwise Reno by the kernel's own functions. */
#include "../../../bpf/cc/cc.bpf.h"

SEC("struct_ops")
void BPF_PROG(state_init, struct sock *sk)
{
	struct cc_state *state = inet_csk_ca((struct tcp_sock *)sk);

	state->bw = 0x1122334455667788ULL;
	state->min_rtt_us = 1001;
	state->inflight_hi = 1002;
	state->inflight_lo = CC_NO_BOUND;
	state->alpha = 1004;
	state->w_max = 1005;
	state->mode = 6;
	state->flags = CC_ECN;
}

SEC("struct_ops")
void BPF_PROG(state_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct cc_state *state = inet_csk_ca(tp);

	state->w_max++;
	if (tcp_in_slow_start(tp))
		acked = tcp_slow_start(tp, acked);
	if (acked)
		tcp_cong_avoid_ai(tp, tp->snd_cwnd, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(state_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(state_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops state = {
	.init = (void *)state_init,
	.ssthresh = (void *)state_ssthresh,
	.cong_avoid = (void *)state_cong_avoid,
	.undo_cwnd = (void *)state_undo_cwnd,
	.name = "tcpilot_state",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
