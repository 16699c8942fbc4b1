/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding, taking and freeing the slot of a young connection. */
#ifndef TCPILOT_SLOTS_BPF_H
#define TCPILOT_SLOTS_BPF_H

#include "maps.bpf.h"

/* The kernel gives cookies in sequence, to each CPU 4,096 at a time (COOKIE_LOCAL_BATCH in
 * include/linux/cookie.h). The first of a connection's two slots is one of 32 for each such
 * batch, so that connections that begin on one CPU use the same few cache lines again and again: with 256, the
 * connections between two uses of a slot push it out of the CPU's own caches.
 * The second may be any slot, so that many connections find room as well. */
enum {
	SLOT_BATCH_SHIFT = 12,
	SLOTS_PER_BATCH = 32,
};

static __always_inline __u32 first_slot(__u64 cookie)
{
	return ((cookie >> SLOT_BATCH_SHIFT) * SLOTS_PER_BATCH | (cookie & (SLOTS_PER_BATCH - 1))) &
	       (NUM_SLOTS - 1);
}

static __always_inline __u32 second_slot(__u64 cookie)
{
	return cookie & (NUM_SLOTS - 1);
}

static __always_inline struct track *slot_find(__u64 cookie)
{
	__u32 i = first_slot(cookie);
	struct track *t = bpf_map_lookup_elem(&slots, &i);

	if (likely(t && t->cookie == cookie))
		return t;
	i = second_slot(cookie);
	t = bpf_map_lookup_elem(&slots, &i);
	if (t && t->cookie == cookie)
		return t;
	return NULL;
}

/* Returns a slot that now belongs to the connection, or NULL. Only a free slot is taken:
 * an old one cannot be taken over here, because it may belong to a connection that lives
 * (the iterator may be slow, or missing) or to one whose end was missed. User space frees
 * the latter, after walks of all connections. */
static __always_inline struct track *slot_take(__u64 cookie)
{
	__u32 i = first_slot(cookie);
	struct track *t = bpf_map_lookup_elem(&slots, &i);

	if (likely(t && !t->cookie && __sync_bool_compare_and_swap(&t->cookie, 0, cookie)))
		return t;
	i = second_slot(cookie);
	t = bpf_map_lookup_elem(&slots, &i);
	if (t && !t->cookie && __sync_bool_compare_and_swap(&t->cookie, 0, cookie))
		return t;
	return NULL;
}

static __always_inline void slot_free(struct track *t)
{
	t->flags = 0;	/* no flags until the next owner has written all of it */
	/* an exchange, so that no CPU sees the slot free before it sees the 0 */
	__sync_lock_test_and_set(&t->cookie, 0);
}

#endif
