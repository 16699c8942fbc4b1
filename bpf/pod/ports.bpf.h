/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether the routes of a network namespace depend on the ports of a packet. */
#ifndef TCPILOT_POD_PORTS_BPF_H
#define TCPILOT_POD_PORTS_BPF_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

struct netns_ipv4 {
	unsigned int fib_rules_require_fldissect;	/* how many rules ask for ports, or for the protocol above IP */
	__u8 sysctl_fib_multipath_hash_policy;		/* 0: the next hop depends on addresses alone */
} __attribute__((preserve_access_index));

struct net {
	struct netns_ipv4 ipv4;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
} __attribute__((preserve_access_index));

/* Linux 6.2. Weak, so that older kernels tell what they lack for host routing, which is more than this. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* Whether IPv4 routes of the packet's network namespace depend on ports. A kernel without policy routing, or without
 * multipath, does not have the field. */
static __always_inline bool v4_routes_depend_on_ports(struct __sk_buff *skb)
{
	const struct netns_ipv4 *ipv4;
	const struct sk_buff *packet;

	if (!bpf_cast_to_kern_ctx)
		return true;
	packet = bpf_cast_to_kern_ctx(skb);
	ipv4 = &packet->dev->nd_net.net->ipv4;
	return (bpf_core_field_exists(ipv4->fib_rules_require_fldissect) && ipv4->fib_rules_require_fldissect) ||
	       (bpf_core_field_exists(ipv4->sysctl_fib_multipath_hash_policy) && ipv4->sysctl_fib_multipath_hash_policy);
}

#endif
