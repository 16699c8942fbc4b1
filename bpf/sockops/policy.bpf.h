/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The policy of a running connection. */
#ifndef TCPILOT_POLICY_BPF_H
#define TCPILOT_POLICY_BPF_H

#include "classify.bpf.h"

/* The policy that a connection of the class would get if it began now. */
static __always_inline const struct path_policy *conn_policy(struct tcp_sock *tp, __u32 class,
							     __u64 now)
{
	struct path_key key = { .prefixlen = PATH_FIXED_BITS + 128, .class = class };
	const struct path_policy *p;
	struct conn c = {};

	conn_read_sock(tp, &c);
	__builtin_memcpy(key.addr, c.remote, sizeof(key.addr));
	/* first a policy of its namespace alone */
	key.scope = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	p = bpf_map_lookup_elem(&path_policies, &key);
	if (!p) {
		key.scope = 0;
		p = bpf_map_lookup_elem(&path_policies, &key);
	}
	return p && now < p->expires_ns ? p : NULL;
}

#endif
