// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A scalable control after the Prague requirements (RFC 9331 4.3 and A.1) and
 * draft-briscoe-iccrg-prague-congestion-control: DCTCP's answer to marks, made smoother
 * and less dependent on the round trip. It is not L4S, because stock kernels lack what
 * is listed below. It is for paths whose bottleneck is known to mark at a low
 * threshold.
 *
 * What it has:
 * - the window has fractions, so that small answers to few marks add up
 * - it grows with each packet that came unmarked, also in the round trip after marks
 * - with a round trip below 25 ms it grows, and answers marks, as if it had 25 ms (after
 *   500 rounds, so that short transfers are not slowed): so rates do not depend on the
 *   round trip. Within a datacentre this is slow: use dctcp there
 * - it paces at cwnd / srtt, twice that in slow start
 * - losses halve the window, as with Reno, marks of the same round trip included
 * - without ECN it changes to the kernel's reno
 * Loss detection in units of time (RACK) is the kernel's.
 *
 * What is missing:
 * - ECT(1) (9331 4.1): data is sent as ECT(0), because the kernel sets it for each
 *   packet and neither struct_ops nor setsockopt(IP_TOS) may change it. Linux 6.18.44
 *   accepts the flags TCP_CONG_NEEDS_ACCECN | TCP_CONG_ECT_1_NEGOTIATION (4 | 8), which
 *   put ECT(1) on SYN and SYN-ACK and leave data at ECT(0) (seen on the wire). So an
 *   L4S bottleneck treats it as Classic traffic. At other bottlenecks that mark, it
 *   takes more than a Classic control would: use it only on paths whose bottleneck is known
 *   to mark from a fixed, low queue length on
 * - accurate ECN (9331 4.2): with flag 4, 6.18.44 negotiates it, although it refuses
 *   sysctl tcp_ecn=3, and this control works with it (tried). The flag is not set,
 *   because older kernels refuse a control with flags that they do not know. Without
 *   accurate ECN the far end must echo marks one by one, as this control and dctcp do;
 *   with any other, alpha is too high and the answer too strong
 * - detection of a Classic ECN bottleneck, to answer as Reno there (9331 4.3): whoever
 *   chooses this control must know the bottleneck
 * - windows below 2 packets (9331 4.3), bursts below 1 ms (a control cannot set
 *   sk_pacing_shift), and the draft's variation of the pacing rate
 */
#include "scalable.bpf.h"

/* A connection below this round trip behaves as if it had it. */
const volatile __u32 rtt_virt_us = 25000;

enum {
	SHIFT_G = 4,		/* g = 1/16: RFC 8257 4.2 */
	CWND_BITS = 20,		/* of fraction in prague.cwnd */
	AI_BITS = 16,		/* of fraction in prague.ai */
	SETTLE_ROUNDS = 500,	/* after slow start, until rtt_virt_us counts */
};

struct prague {
	struct cc_state pub;	/* alpha, w_max, flags */
	__u64 cwnd;		/* packets, with fraction; snd_cwnd is that rounded up */
	struct marks marks;
	struct receiver receiver;
	__u32 window_us;	/* when this window began: tcp_now_us */
	__u32 reduced_us;	/* when marks were answered last */
	__u32 acked_ce;		/* delivered_ce at the last ACK */
	__u32 ai;		/* packets of growth per round trip */
	__u32 rounds;		/* since slow start, up to SETTLE_ROUNDS */
};

_Static_assert(sizeof(struct prague) <= 104, "icsk_ca_priv");

static __always_inline __u32 srtt_us(struct tcp_sock *tp)
{
	return tp->srtt_us >> 3;
}

/* Whether this connection is treated as one with a round trip of rtt_virt_us. */
static __always_inline bool prague_virtual(const struct prague *ca, struct tcp_sock *tp)
{
	return ca->rounds >= SETTLE_ROUNDS && srtt_us(tp) < rtt_virt_us;
}

/* ---- window ------------------------------------------------------------------ */

static __always_inline __u32 prague_packets(const struct prague *ca)
{
	return (ca->cwnd + (1 << CWND_BITS) - 1) >> CWND_BITS;
}

/* Takes over snd_cwnd if the kernel has set it: after a timeout, an undo, or idling. */
static __always_inline void prague_adopt(struct prague *ca, struct tcp_sock *tp)
{
	if (prague_packets(ca) != tp->snd_cwnd)
		ca->cwnd = (__u64)tp->snd_cwnd << CWND_BITS;
}

static __always_inline void prague_set(struct prague *ca, struct tcp_sock *tp, __u64 cwnd)
{
	ca->cwnd = max_u64(cwnd, (__u64)MIN_WINDOW << CWND_BITS);
	ca->cwnd = min_u64(ca->cwnd, (__u64)tp->snd_cwnd_clamp << CWND_BITS);
	tp->snd_cwnd = prague_packets(ca);
}

/* The window is used as far as pacing at cwnd / srtt allows. */
static __always_inline bool prague_limited(struct tcp_sock *tp)
{
	return tcp_is_cwnd_limited(tp) ||
	       (!tp->app_limited && tp->snd_cwnd <= tp->max_packets_out + tp->max_packets_out / 4);
}

/* Growth by what came unmarked, in CWR too: marks come all the time. */
static __always_inline void prague_grow(struct prague *ca, struct tcp_sock *tp, __u32 unmarked)
{
	__u32 state = tcp_ca_state(tp);

	if (!unmarked || !prague_limited(tp))
		return;
	if (tcp_in_slow_start(tp)) {
		__u64 most = (__u64)tp->snd_ssthresh << CWND_BITS;

		prague_set(ca, tp, min_u64(ca->cwnd + ((__u64)unmarked << CWND_BITS), most));
	} else if (state < TCP_CA_RECOVERY) {
		__u64 more = ((__u64)unmarked * ca->ai << (CWND_BITS - AI_BITS)) /
			     max_u32(tp->snd_cwnd, 1);

		prague_set(ca, tp, ca->cwnd + more);
	}
}

/* ---- once per window ----------------------------------------------------------- */

static __always_inline void prague_window(struct prague *ca, struct tcp_sock *tp)
{
	__u32 now = tcp_now_us(tp), srtt = srtt_us(tp);

	ca->ai = 1 << AI_BITS;
	if (prague_virtual(ca, tp)) {
		__u32 share = ((__u64)srtt << AI_BITS) / rtt_virt_us;

		ca->ai = (__u64)share * share >> AI_BITS;
		if (now - ca->window_us < rtt_virt_us) {
			ca->marks.window_end = tp->snd_nxt;
			return;
		}
	}
	ca->window_us = now;
	marks_update(&ca->marks, &ca->pub, tp, SHIFT_G);
	if (!tcp_in_slow_start(tp) && ca->rounds < SETTLE_ROUNDS)
		ca->rounds++;
	ca->pub.mode = tcp_in_slow_start(tp) ? SCALABLE_SLOW_START : SCALABLE_AVOIDANCE;
}

/* cwnd / srtt; in slow start twice that, because otherwise it could not double. */
static __always_inline void prague_pace(struct prague *ca, struct tcp_sock *tp)
{
	__u64 bytes = max_u32(tp->snd_cwnd, tp->packets_out) * (__u64)tp->mss_cache;
	__u32 srtt8 = tp->srtt_us;

	if (!srtt8)
		return;
	tcp_pace(tp, (bytes * 8 * USEC_PER_SEC / srtt8) << tcp_in_slow_start(tp));
}

/* ---- operations ------------------------------------------------------------------ */

SEC("struct_ops")
void BPF_PROG(prague_init, struct tcp_sock *tp)
{
	struct prague *ca = inet_csk_ca(tp);

	__builtin_memset(ca, 0, sizeof(*ca));
	ca->pub.inflight_hi = CC_NO_BOUND;
	ca->pub.inflight_lo = CC_NO_BOUND;
	ca->cwnd = (__u64)tp->snd_cwnd << CWND_BITS;
	ca->acked_ce = tp->delivered_ce;
	ca->window_us = ca->reduced_us = tcp_now_us(tp);
	ca->ai = 1 << AI_BITS;
	marks_init(&ca->marks, &ca->pub, tp);
	receiver_init(&ca->receiver, tp);
	if (tcp_ecn_possible(tp))
		tcp_pacing_on(tp);
	else
		fall_back(tp);
}

SEC("struct_ops")
void BPF_PROG(prague_in_ack_event, struct tcp_sock *tp, __u32 flags)
{
	if (!tcp_ecn_ok(tp))
		fall_back(tp);
}

SEC("struct_ops")
void prague_cong_control(unsigned long long *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	const struct rate_sample *rs = cong_control_rs(ctx);
	struct prague *ca = inet_csk_ca(tp);
	__u32 acked = rs->acked_sacked, marked = tp->delivered_ce - ca->acked_ce;

	ca->acked_ce = tp->delivered_ce;
	prague_adopt(ca, tp);
	prague_grow(ca, tp, acked - min_u32(acked, marked));
	if (!before(tp->snd_una, ca->marks.window_end))
		prague_window(ca, tp);
	prague_pace(ca, tp);
}

/* Also called for losses; set_state overrides the result then. */
SEC("struct_ops")
__u32 BPF_PROG(prague_ssthresh, struct tcp_sock *tp)
{
	struct prague *ca = inet_csk_ca(tp);
	__u32 now = tcp_now_us(tp);
	__u64 cwnd;

	prague_adopt(ca, tp);
	ca->pub.flags |= CC_FULL_PIPE;
	ca->pub.w_max = tp->snd_cwnd;
	if (prague_virtual(ca, tp) && now - ca->reduced_us < rtt_virt_us)
		return tp->snd_cwnd;
	ca->reduced_us = now;
	cwnd = ca->cwnd - ((ca->cwnd >> PUBLIC_SHIFT) * ca->marks.alpha >>
			   (ALPHA_BITS + 1 - PUBLIC_SHIFT));
	ca->cwnd = max_u64(cwnd, (__u64)MIN_WINDOW << CWND_BITS);
	return prague_packets(ca);
}

static __always_inline void prague_loss(struct prague *ca, struct tcp_sock *tp, __u32 cwnd)
{
	tp->snd_ssthresh = max_u32(cwnd / 2, MIN_WINDOW);
}

SEC("struct_ops")
void BPF_PROG(prague_set_state, struct tcp_sock *tp, __u8 new_state)
{
	struct prague *ca = inet_csk_ca(tp);
	__u32 old = tcp_ca_state(tp);

	if (new_state == TCP_CA_CWR) {
		prague_set(ca, tp, ca->cwnd);
	} else if (new_state == TCP_CA_RECOVERY && old != TCP_CA_RECOVERY) {
		/* Marks of the same round trip were answered already: a half in total. */
		prague_loss(ca, tp, ca->pub.w_max);
		if (tp->snd_ssthresh < tp->snd_cwnd)
			prague_set(ca, tp, (__u64)tp->snd_ssthresh << CWND_BITS);
	}
}

SEC("struct_ops")
void BPF_PROG(prague_cwnd_event, struct tcp_sock *tp, int event)
{
	struct prague *ca = inet_csk_ca(tp);

	if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE)
		receiver_update(&ca->receiver, tp, event == CA_EVENT_ECN_IS_CE);
	else if (event == CA_EVENT_LOSS)
		prague_loss(ca, tp, ca->pub.w_max);
}

SEC("struct_ops")
__u32 BPF_PROG(prague_undo_cwnd, struct tcp_sock *tp)
{
	struct prague *ca = inet_csk_ca(tp);

	return max_u32(tp->snd_cwnd, ca->pub.w_max);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tcpilot_prague = {
	.init = (void *)prague_init,
	.in_ack_event = (void *)prague_in_ack_event,
	.cong_control = (void *)prague_cong_control,
	.ssthresh = (void *)prague_ssthresh,
	.set_state = (void *)prague_set_state,
	.cwnd_event = (void *)prague_cwnd_event,
	.undo_cwnd = (void *)prague_undo_cwnd,
	.flags = TCP_CONG_NEEDS_ECN,
	.name = "tcpilot_prague",
};

char _license[] SEC("license") = "Dual BSD/GPL";
