/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sets a policy's fields and congestion control on a socket.
 *
 * Needs the map set_failures and the constants options, options_before and options_after of the including object.
 */
#ifndef TCPILOT_APPLY_BPF_H
#define TCPILOT_APPLY_BPF_H

#include "report.bpf.h"

static __always_inline void count_failure(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&set_failures, &which);

	if (n)
		(*n)++;
}

/* Sets the fields that must be set before the handshake, or those that must be set after
 * it. IPv4 options are skipped on IPv6 sockets, and the reverse: that is not an error.
 *
 * A global function, so that its loop is verified once and not at every call. */
__noinline int apply_fields(struct bpf_sock_ops *skops, const struct path_policy *p, __u64 set,
			    bool established)
{
	set &= established ? options_after : options_before;
	if (!p)
		return 0;
	for (int f = 0; f < NUM_FIELDS && set >> f; f++) {
		const volatile struct sock_option *o = &options[f];
		__u32 value;	/* every option that programs may set is a C int */

		if (!(set & (1ULL << f)))
			continue;
		if ((o->level == SOL_IP && skops->family != AF_INET) ||
		    (o->level == SOL_IPV6 && skops->family != AF_INET6))
			continue;
		value = p->value[f];
		if (bpf_setsockopt(skops, o->level, o->name, &value, sizeof(value)))
			count_failure(f);
	}
	return 0;
}

/* Gives the socket the congestion control that was drawn. Returns flags to remember. */
static __noinline __u16 apply_cc(struct bpf_sock_ops *skops, struct tcp_sock *tp,
				 const struct runtime_config *cfg, const struct track *t)
{
	__u32 arm = t->arm;

	if (!bounded(arm, MAX_CC))
		return 0;
	if (cc_chosen(tp, t) || !tcp_ca_default(tp)) {
		count(COUNT_APP_CC);
		return F_APP_CC;
	}
	if (cc_is(tcp_ca_name(tp), cfg->cc[arm])) {
		count(COUNT_CC_SAME);
		return 0;
	}
	if (bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, (void *)cfg->cc[arm], CC_NAME)) {
		count_failure(NUM_FIELDS + arm);
		count(COUNT_CC_FAILED);
		return F_ARM_FAILED;
	}
	count(COUNT_CC_SET);
	return 0;
}

/* Draws an arm from the cumulative weights. r is uniform in 0..65535. */
static __always_inline __u8 draw_arm(const struct path_policy *p, __u32 r)
{
	for (int i = 0; i < MAX_ARMS; i++) {
		if (i >= p->num_arms)
			break;
		if (r < p->weight[i])
			return p->arm[i];
	}
	return NO_ARM;
}

#endif
