// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * DCTCP: RFC 8257. For networks whose queues mark at a low threshold, and in which all
 * competing traffic answers marks this way (8257 5).
 *
 * Once per window, the sender reduces its window by half the smoothed share of packets
 * that were marked (3.3). It answers losses as Reno does, and grows as Reno does. The
 * receiver reports by the ECE bit of its ACKs whether packets were marked; so it
 * acknowledges at once when packets change from marked to unmarked or back (3.2).
 *
 * What the kernel does itself: it calls ssthresh and reduces the window when an ACK
 * carries ECE, at most once per window (its CWR state), and sets ECT on SYNs and
 * retransmissions too (TCP_CONG_NEEDS_ECN).
 *
 * Departures from the RFC, shared with the kernel's dctcp:
 * - the share is of packets acknowledged, not of bytes: delivered_ce is in packets
 * Where the kernel's dctcp differs:
 * - alpha has 20 bits of fraction rather than 10, so that it neither falls to 0 nor
 *   misses rare marks at windows of thousands of packets
 * - a connection without ECN changes to the kernel's reno; the kernel's dctcp has a
 *   reno of its own for that. If a BPF program sets this control on a connection
 *   without ECN, the change comes only with the next ACK: until then packets carry ECT
 *   although marks would not be answered
 * - with accurate ECN (RFC 9768) ACKs count marks themselves: the receiver has nothing
 *   to do
 */
#include "scalable.bpf.h"

enum {
	SHIFT_G = 4,		/* g = 1/16: 4.2 */
};

struct dctcp {
	struct cc_state pub;	/* alpha, flags */
	struct marks marks;
	struct receiver receiver;
};

_Static_assert(sizeof(struct dctcp) <= 104, "icsk_ca_priv");

SEC("struct_ops")
void BPF_PROG(dctcp_init, struct tcp_sock *tp)
{
	struct dctcp *ca = inet_csk_ca(tp);

	__builtin_memset(ca, 0, sizeof(*ca));
	ca->pub.inflight_hi = CC_NO_BOUND;
	ca->pub.inflight_lo = CC_NO_BOUND;
	marks_init(&ca->marks, &ca->pub, tp);
	receiver_init(&ca->receiver, tp);
	if (!tcp_ecn_possible(tp))
		fall_back(tp);
}

SEC("struct_ops")
void BPF_PROG(dctcp_in_ack_event, struct tcp_sock *tp, __u32 flags)
{
	struct dctcp *ca = inet_csk_ca(tp);

	if (!tcp_ecn_ok(tp)) {
		fall_back(tp);
		return;
	}
	if (before(tp->snd_una, ca->marks.window_end))
		return;
	marks_update(&ca->marks, &ca->pub, tp, SHIFT_G);
	ca->pub.mode = tcp_in_slow_start(tp) ? SCALABLE_SLOW_START : SCALABLE_AVOIDANCE;
}

/* 3.3: cwnd * (1 - alpha / 2). After losses, set_state and cwnd_event override it. */
SEC("struct_ops")
__u32 BPF_PROG(dctcp_ssthresh, struct tcp_sock *tp)
{
	struct dctcp *ca = inet_csk_ca(tp);

	ca->pub.flags |= CC_FULL_PIPE;
	ca->pub.w_max = tp->snd_cwnd;
	return scalable_ssthresh(tp, &ca->marks);
}

/* 3.5: losses are answered as by Reno. */
static __always_inline void dctcp_loss(struct tcp_sock *tp)
{
	struct dctcp *ca = inet_csk_ca(tp);

	ca->pub.w_max = tp->snd_cwnd;
	tp->snd_ssthresh = max_u32(tp->snd_cwnd / 2, MIN_WINDOW);
}

SEC("struct_ops")
void BPF_PROG(dctcp_set_state, struct tcp_sock *tp, __u8 new_state)
{
	if (new_state == TCP_CA_RECOVERY && tcp_ca_state(tp) != TCP_CA_RECOVERY)
		dctcp_loss(tp);
}

SEC("struct_ops")
void BPF_PROG(dctcp_cwnd_event, struct tcp_sock *tp, int event)
{
	struct dctcp *ca = inet_csk_ca(tp);

	if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE)
		receiver_update(&ca->receiver, tp, event == CA_EVENT_ECN_IS_CE);
	else if (event == CA_EVENT_LOSS)
		dctcp_loss(tp);
}

SEC("struct_ops")
void BPF_PROG(dctcp_cong_avoid, struct tcp_sock *tp, __u32 ack, __u32 acked)
{
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
__u32 BPF_PROG(dctcp_undo_cwnd, struct tcp_sock *tp)
{
	struct dctcp *ca = inet_csk_ca(tp);

	return max_u32(tp->snd_cwnd, ca->pub.w_max);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tcpilot_dctcp = {
	.init = (void *)dctcp_init,
	.in_ack_event = (void *)dctcp_in_ack_event,
	.ssthresh = (void *)dctcp_ssthresh,
	.cong_avoid = (void *)dctcp_cong_avoid,
	.set_state = (void *)dctcp_set_state,
	.cwnd_event = (void *)dctcp_cwnd_event,
	.undo_cwnd = (void *)dctcp_undo_cwnd,
	.flags = TCP_CONG_NEEDS_ECN,
	.name = "tcpilot_dctcp",
};

char _license[] SEC("license") = "Dual BSD/GPL";
