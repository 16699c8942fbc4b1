/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the retransmissions after spurious timeouts, also if the peer does not report them (DSACK).
 *
 * The kernel finds that a timeout was spurious if an ACK echoes a timestamp from before the retransmission (Eifel, RFC 3522), or if
 * it acknowledges data that was not retransmitted (F-RTO, RFC 5682). Then it undoes what the timeout did to the window, and the
 * state goes from Loss to Open (tcp_try_undo_loss, tcp_try_undo_recovery). undo_marker is 0 then, and undo_retrans has the retransmissions
 * that the peer has not reported so far. After a timeout that was right, undo_marker stays as it was.
 *
 * Only DSACKs show that these were spurious:
 * - a timeout in the middle of a recovery whose effect the kernel has undone already: undo_marker is 0 from the beginning;
 * - a timeout of a single packet without timestamps;
 * - the first of two timeouts in a row, if the kernel does not end the recovery at once (no SACK);
 * - a retransmission that arrives before the peer has acknowledged the original packet: the ACK echoes the later
 *   timestamp (RFC 7323, 4.3);
 * - a tail loss probe, which is not a timeout.
 */
#ifndef TCPILOT_UNDO_BPF_H
#define TCPILOT_UNDO_BPF_H

#include "../include/tcp.bpf.h"
#include "totals.bpf.h"

/* Whether a change of state shows something: a timeout, or the end of the recovery from one. */
static __always_inline bool undo_shown(struct tcp_sock *tp, __u8 to)
{
	return to == TCP_CA_LOSS || (to == TCP_CA_OPEN && tcp_ca_state(tp) == TCP_CA_LOSS);
}

/* The state of a connection's congestion control is about to change. */
static __always_inline void undo_note(struct tcp_sock *tp, struct track *t, __u8 to)
{
	__u32 undone;

	if (to == TCP_CA_LOSS && (t->flags & F_ESTABLISHED) && tp->undo_marker) {
		t->flags |= F_UNDOABLE;
		return;
	}
	if (to == TCP_CA_OPEN && (t->flags & F_UNDOABLE) && !tp->undo_marker && tp->undo_retrans > 0) {
		undone = t->undone + (__u32)tp->undo_retrans;
		t->undone = undone < 255 ? undone : 255;
	}
	t->flags &= ~F_UNDOABLE;
}

/* Adds the spurious retransmissions that were found since l. If the peer reports them as well (DSACK), it does so a round trip later,
 * which may be after a sample: each is counted once, in undone until it is in dsacks. Not inlined: tcpilot_live has no room on its
 * stack. */
static __noinline void undo_add(struct totals *n, const struct totals *l, __u32 found)
{
	__u32 reported = n->dsacks - l->dsacks, undone = l->undone + found;

	undone = undone > reported ? undone - reported : 0;
	n->undone = undone < 0x7fff ? undone : 0x7fff;
}

#endif
