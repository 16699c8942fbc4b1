/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the network namespace of a connection owns; of one that begins, see owned in decide.bpf.h. */
#ifndef TCPILOT_OWNED_BPF_H
#define TCPILOT_OWNED_BPF_H

#include "maps.bpf.h"

/* The fields, and YIELD_CC, that the owner of a network namespace has set for it. */
static __always_inline __u64 netns_owns(__u64 cookie)
{
	__u64 *mask = bpf_map_lookup_elem(&netns_yields, &cookie);

	return mask ? *mask : 0;
}

/* The same of a running connection's namespace. Nothing if the connection's rule names the namespace, or a cgroup (named): such a rule overrides the
 * namespace's settings. */
static __always_inline __u64 owned_by_netns(struct tcp_sock *tp, const struct runtime_config *cfg, bool named)
{
	if (likely(!cfg->yield) || named)
		return 0;
	return netns_owns(tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie);
}

#endif
