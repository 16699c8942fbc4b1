/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The packets that established connections receive, as the kernel's own tracepoint shows
 * them: independent of what a congestion control makes of them. */
#include "../../../bpf/include/tcp.bpf.h"
#include <bpf/bpf_tracing.h>

struct ack {
	__u64 at_ns;		/* CLOCK_MONOTONIC */
	__u32 snd_una;		/* before this packet is processed */
	__u32 snd_nxt;
	__u32 cwnd;		/* packets */
	__u32 delivered_ce;	/* packets, before this one is processed */
	__u16 local_port;
	__u16 unused[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
	__type(value, struct ack);
} acks SEC(".maps");

SEC("tp_btf/tcp_probe")
int BPF_PROG(probe, struct sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct ack *a;

	if (!tp)
		return 0;
	a = bpf_ringbuf_reserve(&acks, sizeof(*a), 0);
	if (!a)
		return 0;
	a->at_ns = bpf_ktime_get_ns();
	a->snd_una = tp->snd_una;
	a->snd_nxt = tp->snd_nxt;
	a->cwnd = tp->snd_cwnd;
	a->delivered_ce = tp->delivered_ce;
	a->local_port = sk->__sk_common.skc_num;
	__builtin_memset(a->unused, 0, sizeof(a->unused));
	bpf_ringbuf_submit(a, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
