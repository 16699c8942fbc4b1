/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The part of the ABI (abi.h) that rate limits use. */
#ifndef TCPILOT_LIMIT_H
#define TCPILOT_LIMIT_H

enum limit_flags {		/* runtime_config.limits */
	LIMITS_ANY = 1 << 0,	/* some connections may be in the map limited */
	LIMITS_OF_NETNS = 1 << 1, /* some network namespaces have limits */
};

/* A rate limit of connections together. User space replaces it whenever it has divided it
 * among them, with a new epoch. */
struct limit {
	__u64 rate;		/* bytes per second, of all of them; 0: only each is limited */
	__u64 connection;	/* bytes per second, of each; 0: no bound */
	__u32 base;		/* connections, in 1/256: among how many a connection that begins now shares it */
	__u32 fresh;		/* by programs: connections that have begun, or have become active, in this epoch */
	__u32 epoch;		/* not 0 */
	__u32 pad;
};

/* A connection under limits: socket storage, written by programs. */
struct limited {
	__u64 rule;		/* key of limits, of its rule; 0: none */
	__u64 path;		/* key of limits, of its path or network namespace; 0: none */
	__u64 own;		/* bytes per second; limit that the application or a rule set; ~0: none */
	__u64 given;		/* bytes per second; limit that tcpilot set on the socket; ~0: none; 0: it is new */
	__u64 since_ns;		/* CLOCK_MONOTONIC; since when given has this value */
	__u64 sent;		/* bytes sent before it came under the limit */
	__u32 share;		/* bytes per second, by user space; 0: none */
	__u32 epoch;		/* limit.epoch for which share was read */
	__u32 fresh;		/* 1: counted in limit.fresh of that epoch */
	__u32 pad;
};

/* A connection under limits, as user space reads it. */
struct limit_member {
	__u64 cookie;
	__u64 rule;
	__u64 path;
	__u64 own;
	__u64 given;
	__u64 since_ns;
	__u64 sent;		/* bytes, retransmissions included, since it came under the limit */
	__u32 unsent;		/* bytes that wait to be sent */
	__u32 state;		/* TCP state (include/net/tcp_states.h) */
};

_Static_assert(sizeof(struct limit) == 32 && sizeof(struct limited) == 64, "abi");
_Static_assert(sizeof(struct limit_member) == 64, "abi");

#endif
