/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The records of a trace of mode changes (trace_transitions), for the tests of
 * internal/cc. They are not part of the ABI: the product neither enables nor reads the
 * trace. Modes are those of the control's own source.
 */
#ifndef TCPILOT_TRACE_H
#define TCPILOT_TRACE_H

struct bbr3_transition {
	__u64 at_ns;		/* CLOCK_MONOTONIC */
	__u64 cookie;		/* 0: not yet assigned */
	__u64 bw;		/* bytes per second */
	__u64 pacing_rate;	/* bytes per second, as the old mode left it */
	__u32 min_rtt_us;
	__u32 inflight;		/* packets */
	__u32 inflight_hi;
	__u32 inflight_lo;
	__u32 cwnd;		/* packets */
	__u32 round;		/* of the connection */
	__u32 delivered;	/* packets */
	__u32 lost;		/* packets */
	__u32 reno_rounds;	/* since Down, without a queue of a BDP */
	__u32 srtt_us;
	__u8 from;		/* enum bbr3_mode */
	__u8 to;
	__u8 why;		/* enum bbr3_why */
	__u8 random_loss;	/* bbr3.random_loss, 1/1024 */
	__u16 local_port;
	__u16 remote_port;
};

enum bbr3_why {
	BBR3_INIT,
	/* after the colon: the modes that end for this reason */
	BBR3_FULL_BW,		/* bandwidth has stopped growing: Startup, Up */
	BBR3_HIGH_LOSS,		/* too many losses: Startup, Up */
	BBR3_HIGH_ECN,		/* too many marks: Startup, Up */
	BBR3_DRAINED,		/* in flight came down to the target: Drain, Down */
	BBR3_PROBE_TIME,	/* time to probe by the clock: Down, Cruise */
	BBR3_RENO_TIME,		/* time to probe by Reno's rounds: Down, Cruise */
	BBR3_REFILLED,		/* one round in Refill */
	BBR3_MIN_RTT_OLD,	/* time to measure the smallest RTT again: any but ProbeRTT */
	BBR3_PROBED_RTT,	/* the smallest RTT was measured: ProbeRTT */
	BBR3_PRECAUTION,	/* in flight reached a bound that was too high before: Up */
	BBR3_PROBE_SAFE,	/* nothing was lost at that bound, so Refill comes at once: Down */
	BBR3_SPURIOUS,		/* losses were spurious: any but ProbeRTT */
	BBR3_DRAIN_TIME,	/* three rounds in Drain were not enough: Drain */
};

struct cubic_transition {	/* from slow start, and to and from a freed path */
	__u64 at_ns;		/* CLOCK_MONOTONIC */
	__u32 cwnd;		/* packets */
	__u32 min_rtt_us;	/* least so far */
	__u32 round_min_us;	/* of this round */
	__u32 share;		/* packets; 0: unknown */
	__u32 inflight;		/* packets */
	__u32 retrans;		/* packets */
	__u32 srtt_us;
	__u32 delivered;	/* packets */
	__u16 local_port;
	__u16 remote_port;
	__u8 from;		/* enum cubic_mode */
	__u8 to;
	__u8 why;		/* enum cubic_why */
	__u8 calm_rounds;	/* without a queue */
};

enum cubic_why {
	CUBIC_DELAY,		/* round trips became longer: slow start, freed */
	CUBIC_TRAIN,		/* a train of ACKs as long as the path: slow start */
	CUBIC_NO_QUEUE,		/* round trips are short: to freed */
	CUBIC_LOSS,		/* a loss or a mark: slow start */
};

_Static_assert(sizeof(struct bbr3_transition) == 80, "trace");
_Static_assert(sizeof(struct cubic_transition) == 48, "trace");

#endif
