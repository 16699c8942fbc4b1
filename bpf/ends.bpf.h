/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The end of a connection: the last sample, then oblivion.
 *
 * Needs the maps control and live of the including object.
 */
#ifndef TCPILOT_ENDS_BPF_H
#define TCPILOT_ENDS_BPF_H

#include "report.bpf.h"
#include "slots.bpf.h"

/* A connection and where it is remembered. */
struct known {
	struct track *track;
	struct live_conn *live;	/* NULL: in a slot */
};

static __always_inline bool known_find(struct known *k, struct sock *sk)
{
	__u64 cookie = sk->__sk_common.skc_cookie.counter;

	if (!cookie)		/* never seen by us: nobody asked for its cookie */
		return false;
	k->live = NULL;
	k->track = slot_find(cookie);
	if (k->track)
		return true;
	k->live = bpf_sk_storage_get(&live, sk, 0, 0);
	if (!k->live)
		return false;
	k->track = &k->live->track;
	return true;
}

/* Not inlined: three programs end here, and none of them often enough to mind a call. */
static __noinline void connection_over(struct known *k, struct tcp_sock *tp, __u32 closed)
{
	static const struct totals none;
	struct totals now = {};
	struct control *ctl;
	__u32 zero = 0;

	ctl = bpf_map_lookup_elem(&control, &zero);
	if (tp && ctl) {
		totals_read(&now, tp, bpf_ktime_get_ns());
		report(tp, k->track, &now, k->live ? &k->live->last : &none, ctl,
		       k->track->flags & F_ESTABLISHED ? SAMPLE_CLOSE : SAMPLE_FAILED_CONNECT, closed);
	}
	if (!k->live)
		slot_free(k->track);
	else if (tp)
		bpf_sk_storage_delete(&live, tp);
}

#endif
