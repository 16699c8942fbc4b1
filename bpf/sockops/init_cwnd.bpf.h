/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* An initial congestion window that is computed from the packets in flight that the path has shown to
 * hold, divided by its connections (Hung, Zhang and Lu, "Fine-Grained TCP Tuning":
 * ssthresh / flow_count).
 */
#ifndef TCPILOT_INIT_CWND_BPF_H
#define TCPILOT_INIT_CWND_BPF_H

#include "apply.bpf.h"
#include "flows.bpf.h"

enum {
	TCP_INIT_CWND = 10,		/* include/net/tcp.h; RFC 6928 */
};

/* Turns pacing on: setting a limit of the rate does that, and pacing stays on when the limit is
 * removed (sk_setsockopt). Then the kernel spreads each window of slow start over half a round trip
 * (tcp_pacing_ss_ratio). Until the first ACK, an outgoing connection is paced at the rate that was
 * computed for the kernel's window. An application that chose a limit is paced anyway. */
static __always_inline void turn_pacing_on(struct bpf_sock_ops *skops, struct tcp_sock *tp)
{
	__u32 most = ~1U, none = ~0U;	/* bytes per second; no limit */

	if (tcp_sk_sock(tp)->sk_max_pacing_rate == ~0UL &&
	    !bpf_setsockopt(skops, SOL_SOCKET, SO_MAX_PACING_RATE, &most, sizeof(most)))
		bpf_setsockopt(skops, SOL_SOCKET, SO_MAX_PACING_RATE, &none, sizeof(none));
}

/* Takes packets from the path's token bucket, which bounds the initial windows of all its connections
 * together: it holds the path's window, and fills within a round trip. Returns how many packets were
 * taken, at most `want` and more than `least`. 0: the bucket has no more than that, or another CPU
 * changed it meanwhile; then the connection keeps its window. */
static __always_inline __u32 take_packets(struct flow_count *n, const struct path_policy *p,
					  __u64 now, __u32 srtt_us, __u32 least, __u32 want)
{
	__u64 *both = (__u64 *)&n->given_us, was = *both, is;
	/* The clock wraps after 71 minutes; a path that was idle for so long may be taken for one that was
	 * used a moment ago, which may cost the connections of the next 0.1 s their windows. */
	__u32 now_us = now / NSEC_PER_USEC, since = (__u32)was, given = was >> 32;
	__u32 us = now_us - since, ahead = since - now_us;
	__u64 back;

	if (ahead < USEC_PER_SEC / 10) {
		/* Another CPU, whose program began later, was here before. */
	} else if (us > srtt_us) {
		since = now_us;
		given = 0;
	} else {
		/* `since` moves on by whole packets only, so that no fraction is lost. */
		back = (__u64)us * p->window / (srtt_us ?: 1);
		since += back * srtt_us / (p->window ?: 1);
		given -= back < given ? back : given;
	}
	if (given >= p->window)
		return 0;
	if (want > p->window - given)
		want = p->window - given;
	if (want <= least)
		return 0;
	is = (__u64)(given + want) << 32 | since;
	return __sync_bool_compare_and_swap(both, was, is) ? want : 0;
}

/* The greatest window that a policy and the kernel's own bounds allow a connection, in packets. field says which window. */
static __always_inline __u32 most_window(struct tcp_sock *tp, const struct path_policy *p, __u32 field)
{
	__u32 most = p->value[field];

	if (most > tp->snd_cwnd_clamp)
		most = tp->snd_cwnd_clamp;
	return most > tp->snd_ssthresh ? tp->snd_ssthresh : most;
}

/* A connection's share of the path's window, in packets, at most `most`. */
static __always_inline __u32 window_share(const struct path_policy *p, __u32 flow, __u32 most)
{
	__u32 share = p->window / (flow_active(flow) ?: 1);

	return share > most ? most : share;
}

/* Raises the initial window of a connection. Returns the window; 0: it is not changed. It stays if
 * the route or the application chose another one than the kernel's, if the handshake lost a packet
 * (RFC 5681, 3.1), if the round-trip time is unknown (TCP Fast Open, SYN cookies), or if the
 * connection is counted in another row than the policy's. The slow start threshold and the clamp
 * that the kernel has for the route are upper bounds.
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int raise_init_cwnd(struct bpf_sock_ops *skops, const struct path_policy *p, __u64 now,
			       __u32 flow)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct flow_count *n;
	__u32 want;

	if (!tp || !p || now >= p->window_expires_ns || !flow || p->flow != flow ||
	    tp->snd_cwnd != TCP_INIT_CWND || tp->total_retrans || !tp->srtt_us)
		return 0;
	n = flow_row(flow);
	want = window_share(p, flow, most_window(tp, p, FIELD_INIT_CWND));
	if (!n || want <= TCP_INIT_CWND)
		return 0;
	want = take_packets(n, p, now, tp->srtt_us >> 3, TCP_INIT_CWND, want);
	if (!want)
		return 0;
	if (bpf_setsockopt(skops, SOL_TCP, TCP_BPF_IW, &want, sizeof(want))) {
		count_failure(FIELD_INIT_CWND);
		return 0;
	}
	turn_pacing_on(skops, tp);
	/* for first_window_lost */
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RETRANS_CB_FLAG);
	return want;
}

/* Packets are retransmitted. Counts those of a raised initial window, and of the round trip after a jump (resume.bpf.h) until
 * they are acknowledged. */
static __always_inline void first_window_lost(struct bpf_sock_ops *skops, struct tcp_sock *tp,
					      struct track *t)
{
	/* Offset of the first retransmitted byte (args[0]) in what the connection has sent. The SYN
	 * of an outgoing connection counts as one byte. */
	__u32 offset = skops->args[0] - tp->snd_una + (__u32)tp->bytes_acked;
	__u32 raised = t->init_cwnd + t->resume_cwnd, lost = t->init_lost + skops->args[1];

	/* Not in TCP_CA_Open and TCP_CA_Disorder: a tail loss probe does not mean that packets were lost. */
	if ((offset < t->init_cwnd * tp->mss_cache || t->resume_phase >= RESUME_UNVALIDATED) && !skops->args[2] &&
	    tcp_ca_state(tp) >= TCP_CA_RECOVERY)
		t->init_lost = lost < raised ? lost : raised;
}

#endif
