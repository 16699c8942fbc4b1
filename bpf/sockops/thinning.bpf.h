/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* On a busy host, draws the connections that are reported, which stand for the others. */
#ifndef TCPILOT_THINNING_BPF_H
#define TCPILOT_THINNING_BPF_H

#include "draws.bpf.h"

/* Above runtime_config.report_rate ends a second, over all CPUs, one of `stands_for` connections is
 * reported, drawn at random: at its beginning if it gets nothing (follow.bpf.h), else at its end. Its sample counts for that many, so that sums over samples
 * are unbiased. stands_for follows from the rate of the last window (thin_share). A CPU adds
 * to the shared count once in THIN_BATCH ends, without a lock. If two CPUs close a window at
 * once, only one succeeds. */
#define THIN_WINDOW_NS (100 * NSEC_PER_MSEC)
#define THIN_LEAST_NS NSEC_PER_MSEC
#define THIN_BATCH 16	/* a power of two */
#define THIN_FLOOR 4	/* at least report_rate / THIN_FLOOR ends a second are reported */
#define THIN_MOST 65535	/* connections that one stands for, at most: track.stands_for */

static struct {
	__u64 begun_ns;		/* of the window */
	__u64 ends;		/* counted in it */
	__u64 stands_for;	/* 0, 1: all are reported */
} thinning;

/* Returns the number of ends for which one is reported, if there are `ends` a second; rounded up. A
 * report is the most expensive part of an end. So twice as many ends get half as many reports:
 * rate * rate / ends a second, but at least rate / THIN_FLOOR. */
static __always_inline __u64 thin_share(__u64 ends, __u64 rate)
{
	__u64 bounded_ends = ends > THIN_FLOOR * rate ? THIN_FLOOR * rate : ends;
	__u64 share = (ends * bounded_ends + rate * rate - 1) / (rate * rate);

	return share < THIN_MOST ? share : THIN_MOST;
}

/* A window also closes after a number of ends, so that a burst counts within milliseconds. It lasts a millisecond at least:
 * the times of callers differ, and the rate of a shorter one would be wrong. */
static __always_inline void thin_close(__u64 now, __u32 rate)
{
	__u64 begun = thinning.begun_ns, ends = thinning.ends;
	__s64 took = now - begun;

	if (took < (__s64)THIN_LEAST_NS || (took < (__s64)THIN_WINDOW_NS && ends < rate / 16))
		return;
	if (!__sync_bool_compare_and_swap(&thinning.begun_ns, begun, now))
		return;
	__sync_fetch_and_add(&thinning.ends, -ends);
	thinning.stands_for = thin_share(ends * NSEC_PER_SEC / (__u64)took, rate ?: 1);
}

/* Counts one connection, once in its life: at its beginning or at its end. `now` is CLOCK_MONOTONIC, in nanoseconds; it
 * may be some milliseconds old, and so before the window that another CPU has begun. */
static __always_inline void thin_count(struct counters *c, __u64 now, __u32 rate)
{
	if (!rate)
		return;
	if (!(++c->n[COUNT_ENDS] & (THIN_BATCH - 1))) {
		__sync_fetch_and_add(&thinning.ends, THIN_BATCH);
		thin_close(now, rate);
	} else if ((__s64)(now - thinning.begun_ns) >= (__s64)THIN_WINDOW_NS) {
		thin_close(now, rate);	/* so that the share of a burst does not outlast it */
	}
}

/* How many connections this one stands for; 0: it is not reported. */
static __always_inline __u32 thin_draw(__u64 draw, __u32 rate)
{
	__u64 k = thinning.stands_for;

	if (!rate || k <= 1)
		return 1;
	return (draw >> 32) * k >> 32 ? 0 : k;
}

#endif
