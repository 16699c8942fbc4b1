/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads bytes of a packet: without a call of the kernel if they are in its first buffer, as headers mostly are.
 *
 * Bytes are written by bpf_skb_store_bytes. If a program wrote directly, the kernel would make the first buffer of each packet that it
 * gets writable (bpf_unclone_prologue), which takes 170 instructions; a call takes 117. */
#ifndef TCPILOT_POD_BYTES_BPF_H
#define TCPILOT_POD_BYTES_BPF_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* len must be a constant. */
static __always_inline bool read_bytes(struct __sk_buff *skb, __u32 offset, void *to, __u32 len)
{
	const void *at = (void *)(long)skb->data + offset, *end = (void *)(long)skb->data_end;

	if (at + len > end)
		return !bpf_skb_load_bytes(skb, offset, to, len);
	/* Unaligned loads of packets are allowed where the CPU can do them. Without this, the compiler loads single bytes; it must
	 * not apply what it assumes of one place to another. */
	asm volatile("" : "+r"(at));
	__builtin_memcpy(to, __builtin_assume_aligned(at, 8), len);
	return true;
}

#endif
