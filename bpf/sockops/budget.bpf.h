/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Bounds how often a CPU does something that takes a look-up. */
#ifndef TCPILOT_BUDGET_BPF_H
#define TCPILOT_BUDGET_BPF_H

#include "../include/compat.bpf.h"

enum {
	BUDGET_WINDOW_MS = 100,
	BUDGET_CPUS = 256,	/* CPUs with a higher number share a row, and their number */
};

/* How often a CPU has done it since a time. */
struct budget {
	__u64 begun;	/* jiffies */
	__u64 n;
	__u64 own_line[6];
};

/* Whether this CPU may do it once more: `most` times in a window. */
static __always_inline bool budget_take(struct budget of_cpus[BUDGET_CPUS], __u32 most)
{
	struct budget *b = &of_cpus[bpf_get_smp_processor_id() % BUDGET_CPUS];
	__u64 now = bpf_jiffies64();

	if (now - b->begun >= ms_to_jiffies(BUDGET_WINDOW_MS)) {
		b->begun = now;
		b->n = 0;
	}
	return b->n++ < most;
}

#endif
