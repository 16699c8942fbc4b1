/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of the programs on pods' devices. User space writes them; programs write only counters and flows. */
#ifndef TCPILOT_POD_MAPS_BPF_H
#define TCPILOT_POD_MAPS_BPF_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "packet.bpf.h"
#include "pod_abi.h"

/* Verdicts of tcx programs (enum tcx_action_base in linux/bpf.h, Linux 6.6). */
#define TCX_NEXT (-1)
#define TCX_DROP 2

/* Pods' devices and the outer ones, by interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct device);
} pod_devices SEC(".maps");

/* From a pod's address to its device's interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ADDRESSES);
	__uint(key_size, 16);
	__type(value, __u32);
} pod_addresses SEC(".maps");

/* The networks that pods reach, and are reached from, without NAT. The value is the network's family (AF_INET,
 * AF_INET6): ::/0 contains all mapped addresses, and must not match IPv4. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NETWORKS);
	__type(key, struct network);
	__type(value, __u8);
} pod_networks SEC(".maps");

/* Meters of the pods that have a limit, or may have packets above 64 KB, by the index of their device on the
 * host. User space adds the keys. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct pod_meters);
} pod_meters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pod_counters);
} pod_counts SEC(".maps");

#define FLOW_BITS 12	/* 4,096 flows, 688 KB */

/* The way of a packet. */
struct route {
	struct device from;	/* that of the pod which sent it */
	struct device to;
	union address next_hop;	/* as bpf_fib_lookup returns it */
	__u16 mtu;		/* bytes from the IP header on */
	__u8 next_family;
	__u8 pad[5];
};

struct flow {
	struct bpf_spin_lock lock;
	__u32 begun;		/* not 0: it is that of a SYN, whose answer did not come yet */
	__u64 until;		/* jiffies; when the route ends to be known; 0: it is not */
	union flow_key key;
	struct route route;
};

/* A cache of routes by flow. It is not pinned: each process begins with an empty one. A flow's place depends on
 * its addresses and ports. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << FLOW_BITS);
	__type(key, __u32);
	__type(value, struct flow);
} pod_flows SEC(".maps");

/* False: there is none with this interface index. */
static __always_inline bool find_device(__u32 ifindex, struct device *d)
{
	const struct device *found = bpf_map_lookup_elem(&pod_devices, &ifindex);

	if (found)
		*d = *found;
	return found;
}

static __always_inline void count(enum pod_count what)
{
	__u32 zero = 0;
	struct pod_counters *c = bpf_map_lookup_elem(&pod_counts, &zero);

	if (c && what < NUM_POD_COUNTS)
		c->n[what]++;
}

#endif
