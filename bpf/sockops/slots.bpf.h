/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding, taking and freeing the slot of a young connection. */
#ifndef TCPILOT_SLOTS_BPF_H
#define TCPILOT_SLOTS_BPF_H

#include "maps.bpf.h"

/* The kernel gives cookies in sequence, to each CPU 4,096 at a time (COOKIE_LOCAL_BATCH in
 * include/linux/cookie.h). A connection has three slots to choose from: one of the first 32 of its batch, another one
 * of the 256 of its batch, and one of all. With up to some 20 connections at a time on a CPU, most get one of the same
 * 32, which stay in its own caches. The other two are for hosts with more. */
enum {
	SLOT_BATCH_SHIFT = 12,
	SLOTS_PER_BATCH = 256,
	NEAR_SLOTS = 32,
	SLOT_CHOICES = 3,
};

static __always_inline __u32 slot_choice(__u64 cookie, int choice)
{
	__u64 batch = (cookie >> SLOT_BATCH_SHIFT) * SLOTS_PER_BATCH;
	__u32 i = cookie & (SLOTS_PER_BATCH - 1);

	if (choice == 0)
		return (batch | (cookie & (NEAR_SLOTS - 1))) & (NUM_SLOTS - 1);
	if (choice == 1) {
		if (i < NEAR_SLOTS)	/* not the first choice once more */
			i += NEAR_SLOTS * (1 + (cookie / SLOTS_PER_BATCH & 3));
		return (batch | i) & (NUM_SLOTS - 1);
	}
	return cookie & (NUM_SLOTS - 1);
}

static __always_inline struct track *slot_find(__u64 cookie)
{
	for (int choice = 0; choice < SLOT_CHOICES; choice++) {
		__u32 i = slot_choice(cookie, choice);
		struct track *t = bpf_map_lookup_elem(&slots, &i);

		if (likely(t && t->cookie == cookie))
			return t;
	}
	return NULL;
}

/* Returns a slot that now belongs to the connection, or NULL. Only a free slot is taken:
 * an old one cannot be taken over here, because it may belong to a connection that lives
 * (the iterator may be slow, or missing) or to one whose end was missed. User space frees
 * the latter, after walks of all connections. */
static __always_inline struct track *slot_take(__u64 cookie)
{
	for (int choice = 0; choice < SLOT_CHOICES; choice++) {
		__u32 i = slot_choice(cookie, choice);
		struct track *t = bpf_map_lookup_elem(&slots, &i);

		if (likely(t && !t->cookie && __sync_bool_compare_and_swap(&t->cookie, 0, cookie)))
			return t;
	}
	return NULL;
}

static __always_inline void slot_free(struct track *t)
{
	t->flags = 0;	/* no flags until the next owner has written all of it */
	/* an exchange, so that no CPU sees the slot free before it sees the 0 */
	__sync_lock_test_and_set(&t->cookie, 0);
}

#endif
