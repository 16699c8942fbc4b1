/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sets the priority and the DSCP of a connection's packets, unless the application has chosen others, and takes
 * them back.
 */
#ifndef TCPILOT_ACK_VALUES_BPF_H
#define TCPILOT_ACK_VALUES_BPF_H

#include "track.bpf.h"

enum ack_marks {
	MARK_PRIORITY = 1 << 0,
	MARK_DSCP = 1 << 1,
};

/* Where the DSCP of the connection's packets is: its level of options, or -1 if programs cannot
 * set it, as that of IPv4 packets of an IPv6 socket. */
static __always_inline int dscp_level(const struct sock_common *c)
{
	if (c->skc_family == AF_INET)
		return SOL_IP;
	if (c->skc_family != AF_INET6 ||
	    (!c->skc_v6_daddr.in6_u.u6_addr32[0] && !c->skc_v6_daddr.in6_u.u6_addr32[1] &&
	     c->skc_v6_daddr.in6_u.u6_addr32[2] == bpf_htonl(0xffff)))
		return -1;
	return SOL_IPV6;
}

static __always_inline __u8 dscp_of(struct inet_sock *inet, int level)
{
	struct ipv6_pinfo *np;

	if (level == SOL_IP)
		return inet->tos >> 2;
	np = bpf_core_field_exists(inet->pinet6) ? inet->pinet6 : NULL;
	return np ? np->tclass >> 2 : 0;
}

/* Sets the DSCP, or takes it back. ctx is the context of sock_ops or, in an iterator, the socket. IP_TOS changes the priority as well, which therefore is set
 * again. */
static __always_inline void mark_dscp(void *ctx, struct tcp_sock *tp, struct ack_values *a, __u32 dscp)
{
	struct inet_sock *inet = &tp->inet_conn.icsk_inet;
	int level = dscp_level(&inet->sk.__sk_common), value = dscp << 2;
	__u32 priority = inet->sk.sk_priority;

	if (level < 0)
		return;
	if (dscp_of(inet, level) != (a->marks & MARK_DSCP ? a->dscp : 0)) {
		a->marks &= ~MARK_DSCP;	/* the application has chosen one */
		return;
	}
	if (dscp == dscp_of(inet, level))
		return;
	if (level == SOL_IP) {
		if (bpf_setsockopt(ctx, SOL_IP, IP_TOS, &value, sizeof(value)))
			return;
		bpf_setsockopt(ctx, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	} else if (bpf_setsockopt(ctx, SOL_IPV6, IPV6_TCLASS, &value, sizeof(value))) {
		return;
	}
	a->dscp = dscp;
	a->marks = dscp ? a->marks | MARK_DSCP : a->marks & ~MARK_DSCP;
}

/* Sets the priority, or takes it back. */
static __always_inline void mark_priority(void *ctx, struct tcp_sock *tp, struct ack_values *a, __u32 priority)
{
	__u32 has = tcp_sk_sock(tp)->sk_priority;

	if (has != (a->marks & MARK_PRIORITY ? a->priority : 0)) {
		a->marks &= ~MARK_PRIORITY;	/* the application has chosen one */
		return;
	}
	if (priority == has ||
	    bpf_setsockopt(ctx, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)))
		return;
	a->priority = priority;
	a->marks = priority ? a->marks | MARK_PRIORITY : a->marks & ~MARK_PRIORITY;
}

#endif
