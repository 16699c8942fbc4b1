/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Look-ups of the policy of a path. */
#ifndef TCPILOT_POLICY_BPF_H
#define TCPILOT_POLICY_BPF_H

#include "classify.bpf.h"

/* Longest match of the remote address among the class's paths: of the given scope, else of scope 0. */
static __always_inline const struct path_policy *path_policy_find(__u32 class, const __u32 remote[4], __u64 scope)
{
	struct path_key key = { .prefixlen = PATH_FIXED_BITS + 128, .class = class, .scope = scope };
	const struct path_policy *p;

	__builtin_memcpy(key.addr, remote, sizeof(key.addr));
	if (scope) {
		p = bpf_map_lookup_elem(&path_policies, &key);
		if (p)
			return p;
		key.scope = 0;
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
