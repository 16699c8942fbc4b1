/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the established connections of a path, in the row of flow_counts that its policy
 * names. A connection is counted in the same row at its beginning and at its end, whatever
 * happens to the policy meanwhile, so that no count drifts.
 *
 * Needs the map flow_counts of the including object.
 */
#ifndef TCPILOT_FLOWS_BPF_H
#define TCPILOT_FLOWS_BPF_H

#include "maps.bpf.h"

/* Returns how many connections of the path there are now, this one included. */
static __always_inline __u32 flow_begin(__u32 flow)
{
	struct flow_count *n = flow ? bpf_map_lookup_elem(&flow_counts, &flow) : NULL;
	__u32 now;

	if (!n)
		return 1;
	now = __sync_fetch_and_add(&n->begun, 1) + 1 - n->ended;
	return (__s32)now > 0 ? now : 1;	/* an end was counted in between */
}

static __always_inline void flow_end(__u32 flow)
{
	struct flow_count *n = flow ? bpf_map_lookup_elem(&flow_counts, &flow) : NULL;

	if (n)
		__sync_fetch_and_add(&n->ended, 1);
}

/* The connection of t is over, or its end was missed and is noticed now. */
static __always_inline void flow_end_of(struct track *t)
{
	if (t->flags & F_ESTABLISHED)
		flow_end(t->flow);
	t->flow = 0;
}

#endif
