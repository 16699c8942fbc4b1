/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding, taking and freeing the slot of a young connection.
 *
 * Needs the map slots of the including object, and count of report.bpf.h.
 */
#ifndef TCPILOT_SLOTS_BPF_H
#define TCPILOT_SLOTS_BPF_H

#include "report.bpf.h"
#include "track.bpf.h"

static __always_inline __u32 slot_index(__u64 cookie)
{
	/* Fibonacci hashing: cookies are nearly sequential. */
	return (cookie * 0x9e3779b97f4a7c15ULL) >> (64 - SLOT_BITS);
}

static __always_inline struct track *slot_find(__u64 cookie)
{
	__u32 i = slot_index(cookie);
	struct track *t = bpf_map_lookup_elem(&slots, &i);

	if (t && t->cookie == cookie)
		return t;
	i ^= 1;
	t = bpf_map_lookup_elem(&slots, &i);
	if (t && t->cookie == cookie)
		return t;
	return NULL;
}

/* Taking a slot that is not free goes through start_ns, which is 0 while a slot is
 * being written: so no two connections ever take the same one. */
static __always_inline bool slot_claim(struct track *t, __u64 cookie, __u64 now)
{
	__u64 owner = t->cookie, start;

	if (!owner)
		return __sync_bool_compare_and_swap(&t->cookie, 0, cookie);
	start = t->start_ns;
	if (!start || now - start < SLOT_STALE_NS ||
	    !__sync_bool_compare_and_swap(&t->start_ns, start, 0) ||
	    !__sync_bool_compare_and_swap(&t->cookie, owner, cookie))
		return false;
	count(COUNT_FORGOTTEN);
	return true;
}

/* Returns a slot that is now the connection's own, or NULL. A socket that begins
 * another connection without having ended the one before gets its slot again. */
static __always_inline struct track *slot_take(__u64 cookie, __u64 now)
{
	struct track *t = slot_find(cookie);
	__u32 i = slot_index(cookie);

	if (t) {
		count(COUNT_FORGOTTEN);
		return t;
	}
	t = bpf_map_lookup_elem(&slots, &i);
	if (t && slot_claim(t, cookie, now))
		return t;
	i ^= 1;
	t = bpf_map_lookup_elem(&slots, &i);
	if (t && slot_claim(t, cookie, now))
		return t;
	return NULL;
}

static __always_inline void slot_free(struct track *t)
{
	t->start_ns = 0;
	/* an exchange, so that no CPU sees the slot free before it sees the 0 */
	__sync_lock_test_and_set(&t->cookie, 0);
}

#endif
