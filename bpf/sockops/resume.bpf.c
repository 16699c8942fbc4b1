// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A congestion control that a connection gets for the moment in which its window is changed in mid-flight
 * (resume.bpf.h). User space registers it under a new name each time. If a socket gets it in another
 * way, it is Reno.
 */
#include "maps.bpf.h"
#include <bpf/bpf_tracing.h>

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

SEC("struct_ops")
void BPF_PROG(resume_init, struct tcp_sock *tp)
{
	__u32 cookie = tcp_sk_sock(tp)->__sk_common.skc_cookie.counter, zero = 0;
	union resume_window *shared, w;

	shared = bpf_map_lookup_elem(&resume_windows, &zero);
	if (!shared)
		return;
	w.word = *(volatile __u64 *)&shared->word;
	if (!cookie || w.cookie != cookie)
		return;
	shared->word = 0;
	if (w.cwnd)
		tp->snd_cwnd = w.cwnd;
	if (w.ssthresh)
		tp->snd_ssthresh = w.ssthresh == NO_SSTHRESH ? TCP_INFINITE_SSTHRESH : w.ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(resume_ssthresh, struct tcp_sock *tp)
{
	return tcp_reno_ssthresh(tcp_sk_sock(tp));
}

SEC("struct_ops")
__u32 BPF_PROG(resume_undo_cwnd, struct tcp_sock *tp)
{
	return tcp_reno_undo_cwnd(tcp_sk_sock(tp));
}

SEC("struct_ops")
void BPF_PROG(resume_cong_avoid, struct tcp_sock *tp, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(tcp_sk_sock(tp), ack, acked);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tcpilot_resume = {
	.init = (void *)resume_init,
	.ssthresh = (void *)resume_ssthresh,
	.undo_cwnd = (void *)resume_undo_cwnd,
	.cong_avoid = (void *)resume_cong_avoid,
	.name = "tcpilot_resume",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
