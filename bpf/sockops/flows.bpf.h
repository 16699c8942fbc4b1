/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts the established connections of a path, in the row of flow_counts that its policy
 * names. A connection is counted in the same row at its beginning and at its end, whatever
 * happens to the policy meanwhile. If no hook saw a connection end, user space corrects the
 * count (Walk in internal/datapath).
 */
#ifndef TCPILOT_FLOWS_BPF_H
#define TCPILOT_FLOWS_BPF_H

#include "maps.bpf.h"

/* flow is the index of a row; 0: the connection is not counted. */
static __always_inline struct flow_count *flow_row(__u32 flow)
{
	return flow ? bpf_map_lookup_elem(&flow_counts, &flow) : NULL;
}

/* How many connections of the path there are; 0: they are not counted. */
static __always_inline __u32 flow_active(__u32 flow)
{
	struct flow_count *n = flow_row(flow);
	__s32 now = n ? n->begun - n->ended : 0;

	return now > 0 ? now : 0;
}

static __always_inline void flow_begin(__u32 flow)
{
	struct flow_count *n = flow_row(flow);

	if (n)
		__sync_fetch_and_add(&n->begun, 1);
}

static __always_inline void flow_end(__u32 flow)
{
	struct flow_count *n = flow_row(flow);

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
