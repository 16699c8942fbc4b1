/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Where the state of a connection (struct track) is between its start and its end.
 *
 * Creating socket storage costs 1.2 us a socket, twice as much as a report.
 * So the state of a young connection is in one of three slots, chosen by
 * its cookie. It is in socket storage if all three are in use, or once the iterator
 * finds the connection.
 */
#ifndef TCPILOT_TRACK_BPF_H
#define TCPILOT_TRACK_BPF_H

#include "totals.bpf.h"

#define SLOT_BITS 14
#define NUM_SLOTS (1 << SLOT_BITS)
#define NSEC_PER_USEC 1000ULL
#define NSEC_PER_MSEC 1000000ULL
#define NSEC_PER_SEC 1000000000ULL

enum more_flags {		/* track.more_flags: those that track.flags has no room for */
	PEER_RESERVED = 1 << 0,	/* there is room for the peer option in the SYN that is being built */
	PEER_SENT = 1 << 1,	/* the SYN or SYN-ACK had the option */
	PEER_RESENT = 1 << 2,	/* the SYN was sent again, without it */
	RULE_NAMED = 1 << 3,	/* CLASS_NAMED of its rule */
	CC_LEFT = 1 << 4,	/* its socket had a congestion control that tcpilot set for an earlier connection (reuse.bpf.h) */
};

struct peer_told {		/* what an option said, valid if delack_max_ms is not 0 */
	__u8 delack_max_ms;
	__u8 receive_log2;
};

struct peer_handshake {		/* key of peer_requests: the connection of a request socket */
	__u64 netns;		/* cookie: namespaces may have the same addresses */
	__u32 remote[4];
	__u32 local[4];
	__u16 remote_port;
	__u16 local_port;
	__u32 pad;
};

struct peer_request {
	__u64 at_ns;		/* CLOCK_MONOTONIC; when the SYN was answered first */
	struct peer_told peer;	/* by the SYN */
	__u8 told_ms;		/* for the SYN-ACK that is being built; 0: it has no option */
	__u8 sent;		/* 1: a SYN-ACK had the option */
	__u8 pad[4];
};

struct peer_address {		/* key of peer_hosts */
	__u64 netns;		/* cookie */
	__u32 remote[4];
};

struct peer_host {
	__u64 answered_ns;	/* CLOCK_MONOTONIC; when the host answered a SYN with the option */
	__u64 without_ns;	/* CLOCK_MONOTONIC; until then, SYNs to the host have no option */
};

struct ack_values {		/* what a connection got because it mostly receives (ack_marks.bpf.h) */
	__u32 priority;		/* SO_PRIORITY, with MARK_PRIORITY */
	__u8 dscp;		/* with MARK_DSCP */
	__u8 marks;		/* enum ack_marks */
	__u8 pad[2];
};

struct given {			/* what tcpilot set for the latest connection of a socket; 0: nothing */
	struct cc_words cc;
	__u32 notsent_lowat;	/* bytes */
	__u32 clamp;		/* packets */
	struct ack_values acks;
};

enum resume_phase {		/* track.resume_phase: phases of RFC 9959 */
	RESUME_NORMAL,		/* the window does not jump, or has */
	RESUME_RECONNAISSANCE,	/* it may jump at the end of a round trip */
	RESUME_UNVALIDATED,	/* it jumped less than a round trip ago */
	RESUME_VALIDATING,	/* what was sent in that round trip is being acknowledged */
	RESUME_RETREAT,		/* packets were lost: until they are recovered */
};

#define NO_SSTHRESH 0xffff	/* TCP_INFINITE_SSTHRESH in 16 bits */

/* For the init of the control in resume.bpf.c: one word, so that it is of one connection even if the CPU is interrupted for
 * another. */
union resume_window {
	struct {
		__u32 cookie;	/* lower half of the connection's; 0: done */
		__u16 cwnd;	/* packets; 0: it is left as it is */
		__u16 ssthresh;	/* the same, or NO_SSTHRESH */
	};
	__u64 word;
};

struct live_conn {
	struct track track;
	struct totals last;
	struct ack_values acks;
};

#endif
