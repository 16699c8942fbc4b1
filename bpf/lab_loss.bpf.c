// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A lossy wire for the lab: drops each packet that arrives at a device with a
 * given probability. Attached to the device's ingress by tcx or cls_bpf.
 *
 * One packet is one draw, also when it is an aggregate of several segments:
 * whoever asks for faithful loss turns the sender's offloads off, and the
 * aggregates are counted so that he can see that he has.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* Written by BPF only. */
struct loss_counters {
	__u64 passed;
	__u64 dropped;
	__u64 aggregates; /* of both, those of more than one segment */
};

/* Written by user space only: a packet is dropped when a 32-bit random number is
 * below this, so that 0 drops nothing and 1 << 32 everything. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} loss_threshold SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct loss_counters);
} loss_count SEC(".maps");

SEC("tc")
int lab_loss(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	const __u64 *threshold = bpf_map_lookup_elem(&loss_threshold, &zero);
	struct loss_counters *count = bpf_map_lookup_elem(&loss_count, &zero);

	if (!threshold || !count)
		return TC_ACT_UNSPEC;
	if (skb->gso_segs > 1)
		count->aggregates++;
	if (bpf_get_prandom_u32() < *threshold) {
		count->dropped++;
		return TC_ACT_SHOT;
	}
	count->passed++;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
