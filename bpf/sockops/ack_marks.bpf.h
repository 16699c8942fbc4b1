/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A queueing priority and a DSCP for connections that mostly receive: what they send are ACKs,
 * which delay a download if they wait behind an upload. Called by the iterator, which holds
 * the socket's lock.
 */
#ifndef TCPILOT_ACK_MARKS_BPF_H
#define TCPILOT_ACK_MARKS_BPF_H

#include "ack_values.bpf.h"
#include "report.bpf.h"
#include "same_rule.bpf.h"

#define ACK_MARK_BITS (1ULL << FIELD_ACK_PRIORITY | 1ULL << FIELD_ACK_DSCP)

enum {
	/* A connection is marked if it received at least 16 times as much as it sent, and
	 * 64 KiB, since the last sample; until it received less than 4 times as much. */
	MARK_RECEIVED = 65536,
	MARK_RATIO = 16,
	UNMARK_RATIO = 4,
};

/* Whether the connection should be marked from now on. */
static __always_inline bool mostly_receives(const struct live_conn *l, const struct totals *now)
{
	__u64 received = now->bytes_received - l->last.bytes_received;
	__u64 sent = now->bytes_acked - l->last.bytes_acked;

	if (l->acks.marks)
		return received >= UNMARK_RATIO * sent;
	return received >= MARK_RECEIVED && received >= MARK_RATIO * sent;
}

/* Marks a connection as its rule says and its traffic since the last sample asks for. p may be
 * NULL: then marks are taken back. */
static __noinline void mark_acks(struct tcp_sock *tp, struct live_conn *l, const struct totals *now,
				 const struct runtime_config *cfg, const struct path_policy *p)
{
	const struct track *t = &l->track;
	__u32 priority = 0, dscp = 0;
	__u64 set = 0;

	if (t->flags & (F_HOLD_OUT | F_ADOPTED))
		return;
	if (p && p->hold_out < 1 << 16 && has_same_rule(tp, t, cfg) && mostly_receives(l, now))
		set = p->set & ~cfg->yield;
	if (set & (1ULL << FIELD_ACK_PRIORITY))
		priority = p->value[FIELD_ACK_PRIORITY];
	if (set & (1ULL << FIELD_ACK_DSCP))
		dscp = p->value[FIELD_ACK_DSCP];
	mark_dscp(tp, tp, &l->acks, dscp);
	mark_priority(tp, tp, &l->acks, priority);
}

#endif
