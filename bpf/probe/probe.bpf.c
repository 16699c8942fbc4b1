// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Tries which options the kernel accepts at each hook, on connections of a network namespace
 * that was made for the purpose.
 */
#include "../include/tcp.bpf.h"

const volatile struct sock_option options[NUM_FIELDS];
const volatile __u64 probe_value[NUM_FIELDS];	/* a harmless value for each */
const volatile char probe_cc[MAX_CC][CC_NAME];
const volatile __u32 num_probe_cc;
const volatile __u64 probe_netns;		/* cookie; others are not touched */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NUM_HOOKS);
	__type(key, __u32);
	__type(value, struct probe_result);
} results SEC(".maps");

static __always_inline void try_field(struct bpf_sock_ops *skops, struct probe_result *r, __u32 f)
{
	__u32 value = probe_value[f];

	if (!options[f].valid)
		return;
	if ((options[f].level == SOL_IP && skops->family != AF_INET) ||
	    (options[f].level == SOL_IPV6 && skops->family != AF_INET6))
		return;		/* the other family's connection tries it */
	r->field[f] = bpf_setsockopt(skops, options[f].level, options[f].name, &value, sizeof(value));
}

static __always_inline void try_all(struct bpf_sock_ops *skops, __u32 hook)
{
	struct probe_result *r = bpf_map_lookup_elem(&results, &hook);
	char name[CC_NAME];

	if (!r)
		return;
	r->hits++;
	for (__u32 f = 0; f < NUM_FIELDS; f++)
		try_field(skops, r, f);
	for (__u32 i = 0; i < MAX_CC; i++) {
		if (i >= num_probe_cc)
			break;
		for (int j = 0; j < CC_NAME; j++)
			name[j] = probe_cc[i][j];
		r->cc[i] = bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	}
}

SEC("sockops")
int tcpilot_probe(struct bpf_sock_ops *skops)
{
	if (bpf_get_netns_cookie(skops) != probe_netns)
		return 1;
	switch (skops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		try_all(skops, HOOK_CONNECT);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		try_all(skops, HOOK_ACTIVE);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		try_all(skops, HOOK_PASSIVE);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
