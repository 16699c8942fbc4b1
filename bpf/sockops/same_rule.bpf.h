/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether a running connection still has the rule that it began with. */
#ifndef TCPILOT_SAME_RULE_BPF_H
#define TCPILOT_SAME_RULE_BPF_H

#include "maps.bpf.h"

/* Under newer rules, a connection may have another class, or be left alone: it gets nothing new then. */
static __always_inline bool has_same_rule(struct tcp_sock *tp, const struct track *t, const struct runtime_config *cfg)
{
	__u64 netns, *since;

	if (t->start_ns < cfg->rules_ns)
		return false;
	netns = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	since = bpf_map_lookup_elem(&netns_rules_ns, &netns);
	return !since || t->start_ns >= *since;
}

#endif
