// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* tcpilot_ledbat: a scavenger, which uses spare capacity and gives way to other traffic.
 * LEDBAT (RFC 6817) with the corrections of LEDBAT++
 * (draft-irtf-iccrg-ledbat-plus-plus-01, "++" below).
 *
 * It keeps the delay that it adds to the path below a target. Below the target the
 * window grows by a part of a packet per round trip; above it the window shrinks in
 * proportion to the excess; at a loss it halves. Periodically it reduces its window to
 * the minimum for two round trips, to measure the base delay. Otherwise a later
 * connection would take the queue of an earlier one for base delay, and get more than
 * its share (++ 4.4).
 *
 * Departures:
 * - Delay is that of the round trip, not one way (++ 4.5): the peer's clock is not
 *   available in general, and timestamps tick at any rate. Queues of the return path
 *   count too.
 * - Base delay: five minima of two minutes instead of ten of one (RFC 6817 2.4.2), to
 *   save memory; both cover ten minutes.
 * - The window shrinks once per round trip, and grows with each ACK, so that it shrinks
 *   by at most a part of the window per round trip.
 * - Recovery, and the window of one packet after a timeout, are the kernel's.
 */
#include "cc.bpf.h"

/* Delay that it may add, in microseconds: ++ 4.2; at most 100 ms (RFC 6817 2.5). */
const volatile __u32 ledbat_target_us = 60000;

#define LEDBAT_INIT_CWND 2	/* packets; RFC 6817 2.4.1, INIT_CWND */
#define LEDBAT_MIN_CWND 2	/* packets; RFC 6817 2.4.1, MIN_CWND; ++ 4.4 */
#define LEDBAT_MAX_DIVISOR 16	/* GAIN is 1 / divisor of a packet; ++ 4.2 */
#define LEDBAT_SLOWDOWN_ROUNDS 2 /* round trips at MIN_CWND; ++ 4.4 */
#define LEDBAT_FIRST_SLOWDOWN_ROUNDS 2 /* after the first slow start; ++ 4.4 */
#define LEDBAT_SLOWDOWN_SHARE 9	/* time between slowdowns, in lengths of one; ++ 4.4 */
#define LEDBAT_BASE_SLOTS 5
#define LEDBAT_BASE_SLOT (120 * USEC_PER_SEC / 1024)	/* units of 1024 us */
#define LEDBAT_NO_RTT 0xffffffff

enum ledbat_mode {
	LEDBAT_START,
	LEDBAT_STEADY,
	LEDBAT_SLOWDOWN,	/* minimal window: draft-irtf-iccrg-ledbat-plus-plus 4.4 */
	LEDBAT_REGROW,		/* slow start to the window before the slowdown */
};

struct ledbat {
	struct cc_state s;	/* min_rtt_us: base delay; w_max: window before last cut */
	__u32 base[LEDBAT_BASE_SLOTS];	/* least RTT of each slot, in us; newest first */
	__u32 base_at;		/* start of the newest slot, 1024 us */
	__u32 rtt[4];		/* last samples, in us: CURRENT_FILTER of RFC 6817 2.4.2 */
	__u32 round_end;	/* snd_nxt when the round trip began */
	__u32 slowdown_at;	/* start of the last or next slowdown, 1024 us */
	__u8 rounds;		/* left at MIN_CWND, or until the first slowdown */
	bool waits;		/* slowdown_at is the start of the next */
	__u8 pad[2];
};

_Static_assert(sizeof(struct ledbat) <= 104, "icsk_ca_priv");

static __always_inline struct ledbat *ledbat_ca(struct tcp_sock *tp)
{
	return inet_csk_ca(tp);
}

/* Without a sample the delay is unknown, and counts as 0. */
static __always_inline __u32 ledbat_queue_us(const struct ledbat *ca)
{
	__u32 rtt = min_u32(min_u32(ca->rtt[0], ca->rtt[1]), min_u32(ca->rtt[2], ca->rtt[3]));

	if (rtt == LEDBAT_NO_RTT || rtt < ca->s.min_rtt_us)
		return 0;
	return rtt - ca->s.min_rtt_us;
}

/* ++ 4.2: the shorter the path, the slower the growth; never faster than Reno. */
static __always_inline __u32 ledbat_divisor(const struct ledbat *ca)
{
	__u32 base = ca->s.min_rtt_us;

	if (!base)
		return LEDBAT_MAX_DIVISOR;
	return min_u32((2 * ledbat_target_us + base - 1) / base, LEDBAT_MAX_DIVISOR);
}

static __always_inline void ledbat_base(struct ledbat *ca, __u32 rtt, __u32 now)
{
	if (now - ca->base_at >= LEDBAT_BASE_SLOT) {
		ca->base_at = now;
		ca->base[4] = ca->base[3];
		ca->base[3] = ca->base[2];
		ca->base[2] = ca->base[1];
		ca->base[1] = ca->base[0];
		ca->base[0] = rtt;
	} else if (rtt < ca->base[0]) {
		ca->base[0] = rtt;
	} else {
		return;
	}
	ca->s.min_rtt_us = min_u32(ca->base[0], min_u32(min_u32(ca->base[1], ca->base[2]),
							min_u32(ca->base[3], ca->base[4])));
}

SEC("struct_ops")
void BPF_PROG(ledbat_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct ledbat *ca = ledbat_ca(tp);

	if (sample->rtt_us <= 0)
		return;
	ca->rtt[3] = ca->rtt[2];
	ca->rtt[2] = ca->rtt[1];
	ca->rtt[1] = ca->rtt[0];
	ca->rtt[0] = sample->rtt_us;
	ledbat_base(ca, sample->rtt_us, tcp_now_1024us(tp));
}

static __always_inline void ledbat_begin_slowdown(struct tcp_sock *tp, struct ledbat *ca)
{
	ca->s.mode = LEDBAT_SLOWDOWN;
	ca->s.w_max = tp->snd_cwnd;
	ca->slowdown_at = tcp_now_1024us(tp);
	ca->waits = false;
	ca->rounds = LEDBAT_SLOWDOWN_ROUNDS;
	/* The kernel ends a recovery with a window of ssthresh: keep that at the
	 * minimum. */
	tp->snd_ssthresh = LEDBAT_MIN_CWND;
	tp->snd_cwnd = LEDBAT_MIN_CWND;
	tp->snd_cwnd_cnt = 0;
}

static __always_inline void ledbat_begin_regrow(struct tcp_sock *tp, struct ledbat *ca)
{
	ca->s.mode = LEDBAT_REGROW;
	tp->snd_ssthresh = max_u32(ca->s.w_max, LEDBAT_MIN_CWND);
}

static __always_inline bool ledbat_slowdown_due(struct tcp_sock *tp, struct ledbat *ca)
{
	if (ca->s.mode != LEDBAT_STEADY)
		return false;
	if (ca->waits)
		return !before(tcp_now_1024us(tp), ca->slowdown_at);
	return --ca->rounds == 0;
}

/* The window has regrown: wait nine times as long as the slowdown took. */
static __always_inline void ledbat_end_slowdown(struct tcp_sock *tp, struct ledbat *ca)
{
	__u32 now = tcp_now_1024us(tp);

	ca->s.mode = LEDBAT_STEADY;
	ca->slowdown_at = now + LEDBAT_SLOWDOWN_SHARE * (now - ca->slowdown_at);
	ca->waits = true;
}

/* ++ 4.3: each round trip above the target reduces the window in proportion to the
 * excess of delay, at most by half. The window grows at the same time, so that of two
 * connections that see the same delay the smaller one gains. */
static __always_inline void ledbat_shrink(struct tcp_sock *tp, __u32 queue_us)
{
	__u32 over = queue_us - ledbat_target_us;
	__u64 cut = (__u64)tp->snd_cwnd * over / ledbat_target_us;

	cut = min_u64(cut, tp->snd_cwnd / 2);
	tp->snd_cwnd = max_u32(tp->snd_cwnd - cut, LEDBAT_MIN_CWND);
	tp->snd_ssthresh = min_u32(tp->snd_ssthresh, tp->snd_cwnd); /* no slow start back */
}

/* Once per round trip. */
static __always_inline void ledbat_round(struct tcp_sock *tp, struct ledbat *ca)
{
	__u32 queue_us = ledbat_queue_us(ca);

	switch (ca->s.mode) {
	case LEDBAT_START:	/* ++ 4.1: leave it in time */
		if (tcp_in_slow_start(tp) && queue_us <= ledbat_target_us * 3 / 4)
			return;
		tp->snd_ssthresh = min_u32(tp->snd_ssthresh, tp->snd_cwnd);
		ca->s.mode = LEDBAT_STEADY;
		ca->s.flags |= CC_FULL_PIPE;
		ca->rounds = LEDBAT_FIRST_SLOWDOWN_ROUNDS;
		return;
	case LEDBAT_SLOWDOWN:
		if (--ca->rounds == 0)
			ledbat_begin_regrow(tp, ca);
		return;
	case LEDBAT_REGROW:	/* at any delay: otherwise it never regains its share */
		if (!tcp_in_slow_start(tp))
			ledbat_end_slowdown(tp, ca);
		return;
	}
	if (ledbat_slowdown_due(tp, ca))
		ledbat_begin_slowdown(tp, ca);
	else if (queue_us > ledbat_target_us)
		ledbat_shrink(tp, queue_us);
}

/* One packet for each `divisor` packets acknowledged: slow start at the pace of GAIN
 * (++ 4.1). */
static __always_inline void ledbat_start_grow(struct tcp_sock *tp, __u32 acked, __u32 divisor)
{
	__u32 cnt = tp->snd_cwnd_cnt + acked;
	__u32 cwnd = tp->snd_cwnd + cnt / divisor;

	tp->snd_cwnd_cnt = cnt % divisor;
	cwnd = min_u32(cwnd, max_u32(tp->snd_ssthresh, LEDBAT_MIN_CWND));
	tp->snd_cwnd = min_u32(cwnd, tp->snd_cwnd_clamp);
}

SEC("struct_ops")
void BPF_PROG(ledbat_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct ledbat *ca = ledbat_ca(tp);

	if (after(tp->snd_una, ca->round_end)) {
		ca->round_end = tp->snd_nxt;
		ledbat_round(tp, ca);
	}
	if (ca->s.mode == LEDBAT_SLOWDOWN) {
		tp->snd_cwnd = LEDBAT_MIN_CWND;
		return;
	}
	if (!tcp_is_cwnd_limited(tp))
		return;
	if (tcp_in_slow_start(tp))
		ledbat_start_grow(tp, acked, ledbat_divisor(ca));
	else
		tcp_cong_avoid_ai(tp, tp->snd_cwnd * ledbat_divisor(ca), acked);
}

/* RFC 6817 2.4.2: half the window, at most once per round trip, which the kernel
 * ensures. In a slowdown the window to return to is halved instead. */
SEC("struct_ops")
__u32 BPF_PROG(ledbat_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct ledbat *ca = ledbat_ca(tp);

	if (ca->s.mode == LEDBAT_SLOWDOWN) {
		ca->s.w_max /= 2;
		return LEDBAT_MIN_CWND;
	}
	ca->s.w_max = tp->snd_cwnd;
	return max_u32(tp->snd_cwnd / 2, LEDBAT_MIN_CWND);
}

SEC("struct_ops")
__u32 BPF_PROG(ledbat_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
void BPF_PROG(ledbat_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct ledbat *ca = ledbat_ca(tp);

	__builtin_memset(ca, 0, sizeof(*ca));	/* pkts_acked ran for the SYN's ACK */
	ca->s.inflight_hi = CC_NO_BOUND;
	ca->s.inflight_lo = CC_NO_BOUND;
	ca->s.w_max = tp->snd_cwnd;
	ca->base[0] = ca->base[1] = ca->base[2] = ca->base[3] = ca->base[4] = LEDBAT_NO_RTT;
	ca->rtt[0] = ca->rtt[1] = ca->rtt[2] = ca->rtt[3] = LEDBAT_NO_RTT;
	ca->base_at = tcp_now_1024us(tp);
	ca->round_end = tp->snd_nxt;
	tp->snd_cwnd = min_u32(tp->snd_cwnd, LEDBAT_INIT_CWND);
	tp->snd_cwnd_cnt = 0;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tcpilot_ledbat = {
	.init = (void *)ledbat_init,
	.ssthresh = (void *)ledbat_ssthresh,
	.cong_avoid = (void *)ledbat_cong_avoid,
	.pkts_acked = (void *)ledbat_pkts_acked,
	.undo_cwnd = (void *)ledbat_undo_cwnd,
	.name = "tcpilot_ledbat",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
