/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Look-ups of the policy of a path. */
#ifndef TCPILOT_POLICY_BPF_H
#define TCPILOT_POLICY_BPF_H

#include "classify.bpf.h"

/* Longest match of the remote address among the class's paths: of the given scope, else of scope 0.
 *
 * At each node of the trie, the kernel compares the first 8 bytes of two keys at once, and what follows in steps of 4
 * (longest_prefix_match in kernel/bpf/lpm_trie.c). So a class and an IPv4 address are 8 bytes. */
static __always_inline const struct path_policy *path_policy_find(__u32 class, const __u32 remote[4], __u64 scope)
{
	struct path_key key = { .class = class };
	const struct path_policy *p;

	if (unlikely(scope)) {
		key.prefixlen = 32 + 64 + 128;
		key.class |= PATH_SCOPED;
		__builtin_memcpy(key.rest, &scope, 8);
		__builtin_memcpy(key.rest + 8, remote, 16);
		p = bpf_map_lookup_elem(&path_policies, &key);
		if (p)
			return p;
		key = (struct path_key){ .class = class };
	}
	if (likely(is_v4_mapped(remote))) {
		key.prefixlen = 32 + 32;
		key.class |= PATH_V4;
		__builtin_memcpy(key.rest, &remote[3], 4);
	} else {
		key.prefixlen = 32 + 128;
		__builtin_memcpy(key.rest, remote, 16);
	}
	return bpf_map_lookup_elem(&path_policies, &key);
}

/* The policy that a connection of the class would get if it began now; a namespace may have one of its own. */
static __always_inline const struct path_policy *conn_policy(struct tcp_sock *tp, __u32 class,
							     __u64 now)
{
	const struct path_policy *p;
	struct conn c = {};

	conn_read_sock(tp, &c);
	p = path_policy_find(class, c.remote, tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie);
	return p && now < p->expires_ns ? p : NULL;
}

#endif
