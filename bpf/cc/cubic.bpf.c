// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * CUBIC: RFC 9438; its slow start ends by HyStart, as in the kernel's own cubic.
 *
 * The window is a cubic function of the time since the last reduction: it grows fast while
 * far below the window of that time, slowly near it, and fast again beyond. If Reno would
 * have a larger window, the window is Reno's.
 *
 * It differs from the kernel's cubic where others have left the path. If a connection met the
 * queue of others when a delay ended its slow start, or at its last loss, its window says little
 * once they are gone: the kernel's takes many seconds to leave a window of 30 packets on an
 * empty path for 400. Here the round trips tell. If they show no queue for 0.6 s (or for 255 round
 * trips, if that is shorter), and the window is more than the connection's share of the path was at
 * that time, it grows by 12.5 % per round trip. This pauses with the first round that shows a queue,
 * so that little is taken from others.
 * After a loss without a queue (random loss, a shallow buffer, a mark for a short queue) the
 * window is the kernel's.
 *
 * Departures from RFC 9438 that it shares with the kernel's cubic:
 * - windows are whole packets; growth is the number of packets that must be acknowledged
 *   for one more packet of window, computed again every 32 ms or when the window changes
 * - the reduction is of cwnd, not of what is in flight: instead, the window does not grow
 *   while the application limits it (tcp_is_cwnd_limited; 9438 4.6 and 5.8)
 * - while w_max is unknown (after slow start without loss, or after a timeout) the
 *   window grows by 5 % per round trip at least; 9438 4.8 and 4.10 have only the
 *   cubic function, which takes seconds to leave a start that ended too early
 * - Reno's growth (4.3) stays 0.53 packets per round trip beyond cwnd_prior
 * - HyStart in place of HyStart++ (RFC 9406), which overflows queues: all by the RFCs, 13 %
 *   were sent again where the kernel's cubic had 0.2 (five objects of 1 MB at a time)
 * Where it follows the RFC, and the kernel's cubic does not:
 * - after an undo the whole curve is restored (9438 4.9), not only the window, so that on
 *   paths that reorder it has more goodput than the kernel's
 * - HyStart acts only before the first loss or timeout
 * - times more than four minutes from the plateau do not overflow
 */
#include "cc.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);	/* the largest page size */
} cubic_transitions SEC(".maps");

#include "cubic_hystart.bpf.h"

enum {
	BETA = 717,		/* 0.7 in 1/1024: RFC 9438 4.6 */
	MIN_WINDOW = 2,		/* packets: RFC 9438 4.6 */
	/* Packets acknowledged per packet of growth of Reno's estimate, divided by the
	 * window: 1 / alpha = (1 + beta) / (3 (1 - beta)) = 1.89, in eighths: RFC 9438 4.3,
	 * and the kernel's beta_scale. */
	RENO_ACKS_8TH = 15,
	MAX_GROWTH = 2,		/* acknowledged per packet of growth: 1.5, RFC 9438 4.2 */
	FLAT_GROWTH = 100,	/* windows per packet, at the plateau: bictcp_update */
	PROBE_GROWTH = 20,	/* acknowledged per packet of growth: 5 % per round trip, bictcp_update */
	STALE = 31,		/* 1024 us; HZ / 32; after it, growth is computed again */
	SETTLE = 977,		/* 1024 us; for 1 s after a reduction delays are ignored */
	/* Time is in units of 1024 us. C = 0.4 packets/s^3 (RFC 9438 4.1, 5) is 472 / 2^40
	 * in these. 2^18 of them, four minutes from the plateau, are the maximum: more
	 * would overflow, and would make no difference. */
	C_2POW40 = 472,
	MAX_TIME = 1 << 18,
};

#define CUBE_FACTOR ((1ULL << 40) / C_2POW40)

/* ---- the curve: RFC 9438 4.2 to 4.5 ---------------------------------------- */

/* The largest y with y^3 <= x, one bit at a time from the top; x below 2^63. Without a
 * branch, because the verifier would follow both sides of each. */
static __always_inline __u32 cube_root(__u64 x)
{
	__u64 y = 0;

	for (int shift = 63; shift >= 0; shift -= 3) {
		__u64 step = 6 * y * (2 * y + 1) + 1;	/* (2y + 1)^3 - (2y)^3 */
		__s64 rest = (x >> shift) - step, fits;

		barrier_var(rest);
		fits = ~(rest >> 63);
		x -= step << shift & fits;
		y = 2 * y - fits;
	}
	return y;
}

static __always_inline void cubic_begin(struct cubic *ca, __u32 cwnd, __u32 acked, __u32 now)
{
	struct curve *c = &ca->curve;

	c->epoch = now ? now : 1;
	c->w_est = cwnd;
	ca->acked = acked;
	if (!ca->pub.w_max)
		ca->probing = true;
	if (ca->pub.w_max <= cwnd) {
		ca->pub.w_max = cwnd;
		c->k = 0;
	} else {
		c->k = cube_root(CUBE_FACTOR * (ca->pub.w_max - cwnd));
	}
}

/* W_cubic one round trip from now (equation 1). */
static __always_inline __u32 cubic_target(struct cubic *ca, __u32 now)
{
	__u64 t = now - ca->curve.epoch + (ca->pub.min_rtt_us >> 10);
	__u64 k = ca->curve.k, off, delta;

	ca->pub.mode = t < k ? CUBIC_CONCAVE : CUBIC_CONVEX;
	off = min_u64(t < k ? k - t : t - k, MAX_TIME);
	delta = C_2POW40 * off * off * off >> 40;
	if (t < k)
		return ca->pub.w_max - min_u64(delta, ca->pub.w_max);
	return ca->pub.w_max + delta;
}

static __always_inline void cubic_growth(struct cubic *ca, __u32 cwnd, __u32 now)
{
	__u32 target = cubic_target(ca, now);

	ca->last_cwnd = cwnd;
	ca->last_time = now;
	ca->cnt = target > cwnd ? cwnd / (target - cwnd) : FLAT_GROWTH * cwnd;
	if (ca->probing)
		ca->cnt = min_u32(ca->cnt, PROBE_GROWTH);
}

/* Not less than Reno would have: equation 4. */
static __always_inline void cubic_reno(struct cubic *ca, __u32 cwnd)
{
	struct curve *c = &ca->curve;
	__u32 per_packet = cwnd * RENO_ACKS_8TH >> 3;

	if (ca->acked > per_packet) {
		__u32 n = ca->acked / per_packet;

		ca->acked -= n * per_packet;
		c->w_est += n;
	}
	if (c->w_est > cwnd && ca->cnt > cwnd / (c->w_est - cwnd)) {
		ca->cnt = cwnd / (c->w_est - cwnd);
		ca->pub.mode = CUBIC_RENO;
	}
}

static __always_inline void cubic_update(struct cubic *ca, struct tcp_sock *tp, __u32 acked)
{
	__u32 cwnd = max_u32(tp->snd_cwnd, 1), now = tcp_now_1024us(tp);

	ca->acked += acked;
	if (ca->curve.epoch && ca->last_cwnd == cwnd && now - ca->last_time <= STALE)
		return;
	if (!ca->curve.epoch)
		cubic_begin(ca, cwnd, acked, now);
	else if (ca->last_time == now)
		goto reno;
	cubic_growth(ca, cwnd, now);
reno:
	cubic_reno(ca, cwnd);
	if (ca->freed && ca->cnt >= FREED_GROWTH) {
		ca->cnt = FREED_GROWTH;
		ca->pub.mode = CUBIC_FREED;
	}
	ca->cnt = max_u32(ca->cnt, MAX_GROWTH);
}

/* ---- operations ------------------------------------------------------------ */

/* Nothing is known about the path: at the start and after a timeout (RFC 9438 4.8). */
static __always_inline void cubic_reset(struct cubic *ca)
{
	ca->pub.min_rtt_us = 0;
	ca->pub.w_max = 0;
	ca->pub.mode = CUBIC_SLOW_START;
	ca->curve.epoch = 0;
	ca->curve.k = 0;
	ca->cnt = 0;
	ca->acked = 0;
	ca->last_cwnd = 0;
	ca->probing = false;
	freed_begin(ca, 0, 0);
}

SEC("struct_ops")
void BPF_PROG(cubic_init, struct tcp_sock *tp)
{
	struct cubic *ca = inet_csk_ca(tp);

	__builtin_memset(ca, 0, sizeof(*ca));
	ca->pub.inflight_hi = CC_NO_BOUND;
	ca->pub.inflight_lo = CC_NO_BOUND;
	ca->round_min_us = ~0u;
	hystart_round(ca, tp);
}

/* RFC 9438 4.6, 4.7. */
SEC("struct_ops")
__u32 BPF_PROG(cubic_ssthresh, struct tcp_sock *tp)
{
	struct cubic *ca = inet_csk_ca(tp);
	__u32 cwnd = tp->snd_cwnd;

	ca->undo = ca->curve;
	ca->undo_w_max = ca->pub.w_max;
	ca->undo_probing = ca->probing;
	ca->undo_share = ca->share;

	ca->curve.epoch = 0;
	ca->probing = false;
	/* After a round without a queue, a long srtt comes from jitter or delayed ACKs. */
	freed_begin(ca, cwnd, ca->calm_rounds ? 0 : tp->srtt_us >> 3);
	if (trace_transitions && tp->snd_ssthresh >= TCP_INFINITE_SSTHRESH)
		trace_transition(tp, CUBIC_CONCAVE, CUBIC_LOSS);
	ca->pub.mode = CUBIC_SLOW_START;
	ca->pub.w_max = cwnd < ca->pub.w_max ? (__u64)cwnd * (1024 + BETA) / 2048 : cwnd;
	ca->pub.flags |= CC_FULL_PIPE;
	return max_u32((__u64)cwnd * BETA >> 10, MIN_WINDOW);
}

SEC("struct_ops")
void BPF_PROG(cubic_set_state, struct tcp_sock *tp, __u8 new_state)
{
	struct cubic *ca = inet_csk_ca(tp);

	if (new_state != TCP_CA_LOSS)
		return;
	cubic_reset(ca);
	ca->undo_share = 0;	/* an undo does not restore the least round trip */
}

/* The kernel found the reduction spurious: RFC 9438 4.9. It restores ssthresh itself. What is
 * known of the path's share is as before, too, but after a timeout. */
SEC("struct_ops")
__u32 BPF_PROG(cubic_undo_cwnd, struct tcp_sock *tp)
{
	struct cubic *ca = inet_csk_ca(tp);

	ca->curve = ca->undo;
	ca->pub.w_max = ca->undo_w_max;
	ca->probing = ca->undo_probing;
	ca->share = ca->undo_share;
	ca->last_cwnd = 0;
	return max_u32(tp->snd_cwnd, tp->prior_cwnd);
}

/* Time without data is excluded from the curve: RFC 9438 5.8. */
static __always_inline void cubic_tx_start(struct tcp_sock *tp)
{
	struct cubic *ca = inet_csk_ca(tp);
	__s32 idle = (__u32)bpf_jiffies64() - tp->lsndtime;
	__u32 epoch = ca->curve.epoch, now = tcp_now_1024us(tp);

	if (!epoch || idle <= 0)
		return;
	epoch += (__u64)idle * jiffy_us >> 10;
	ca->curve.epoch = after(epoch, now) ? now : epoch;
}

SEC("struct_ops")
void BPF_PROG(cubic_cwnd_event, struct tcp_sock *tp, int event)
{
	if (event == CA_EVENT_TX_START)
		cubic_tx_start(tp);
}

SEC("struct_ops")
void BPF_PROG(cubic_cwnd_event_tx_start, struct tcp_sock *tp)
{
	cubic_tx_start(tp);
}

SEC("struct_ops")
void BPF_PROG(cubic_pkts_acked, struct tcp_sock *tp, const struct ack_sample *sample)
{
	struct cubic *ca = inet_csk_ca(tp);
	__u32 rtt_us = max_u32(sample->rtt_us, 1);

	if (sample->rtt_us < 0)
		return;
	if (tp->snd_ssthresh < TCP_INFINITE_SSTHRESH && ca->pub.flags & CC_FULL_PIPE)
		freed_update(ca, tp, rtt_us);
	if (ca->curve.epoch && tcp_now_1024us(tp) - ca->curve.epoch < SETTLE)
		return;
	if (!ca->pub.min_rtt_us || ca->pub.min_rtt_us > rtt_us)
		ca->pub.min_rtt_us = rtt_us;
	if (tp->snd_ssthresh >= TCP_INFINITE_SSTHRESH)
		hystart_update(ca, tp, rtt_us);
}

SEC("struct_ops")
void BPF_PROG(cubic_cong_avoid, struct tcp_sock *tp, __u32 ack, __u32 acked)
{
	struct cubic *ca = inet_csk_ca(tp);

	if (!tcp_is_cwnd_limited(tp))
		return;
	if (tcp_in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	cubic_update(ca, tp, acked);
	tcp_cong_avoid_ai(tp, ca->cnt, acked);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tcpilot_cubic = {
	.init = (void *)cubic_init,
	.ssthresh = (void *)cubic_ssthresh,
	.cong_avoid = (void *)cubic_cong_avoid,
	.set_state = (void *)cubic_set_state,
	.undo_cwnd = (void *)cubic_undo_cwnd,
	.cwnd_event = (void *)cubic_cwnd_event,
	.cwnd_event_tx_start = (void *)cubic_cwnd_event_tx_start,
	.pkts_acked = (void *)cubic_pkts_acked,
	.name = "tcpilot_cubic",
};

char _license[] SEC("license") = "Dual BSD/GPL";
