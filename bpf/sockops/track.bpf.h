/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Where the state of a connection (struct track) is between its start and its end.
 *
 * Creating socket storage costs 1.2 us a socket, twice as much as a report.
 * So the state of a young connection is in one of two slots, chosen by
 * its cookie. It is in socket storage if both slots are in use, or once the iterator
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

struct live_conn {
	struct track track;
	struct totals last;
	__u32 ack_priority;	/* SO_PRIORITY that was given (ack_marks.bpf.h), with MARK_PRIORITY */
	__u8 ack_dscp;		/* DSCP that was given, with MARK_DSCP */
	__u8 marks;		/* enum ack_marks */
	__u8 pad[2];
};

#endif
