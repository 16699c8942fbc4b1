/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A queueing priority and a DSCP for connections that mostly receive: what they send are ACKs,
 * which delay a download if they wait behind an upload. Called by the iterator, which holds
 * the socket's lock.
 */
#ifndef TCPILOT_ACK_MARKS_BPF_H
#define TCPILOT_ACK_MARKS_BPF_H

#include "report.bpf.h"

#define ACK_MARK_BITS (1ULL << FIELD_ACK_PRIORITY | 1ULL << FIELD_ACK_DSCP)

enum ack_marks {
	MARK_PRIORITY = 1 << 0,
	MARK_DSCP = 1 << 1,
};

enum {
	/* A connection is marked if it received at least 16 times as much as it sent, and
	 * 64 KiB, since the last sample; until it received less than 4 times as much. */
	MARK_RECEIVED = 65536,
	MARK_RATIO = 16,
	UNMARK_RATIO = 4,
	ECN_BITS = 3,		/* of the type of service and the traffic class */
};

/* Whether the connection should be marked from now on. */
static __always_inline bool mostly_receives(const struct live_conn *l, const struct totals *now)
{
	__u64 received = now->bytes_received - l->last.bytes_received;
	__u64 sent = now->bytes_acked - l->last.bytes_acked;

	if (l->marks)
		return received >= UNMARK_RATIO * sent;
	return received >= MARK_RECEIVED && received >= MARK_RATIO * sent;
}

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

/* Sets the DSCP, or takes it back. IP_TOS changes the priority as well, which therefore is set
 * again. */
static __always_inline void mark_dscp(struct tcp_sock *tp, struct live_conn *l, __u32 dscp)
{
	struct inet_sock *inet = &tp->inet_conn.icsk_inet;
	int level = dscp_level(&inet->sk.__sk_common), value = dscp << 2;
	__u32 priority = inet->sk.sk_priority;

	if (level < 0)
		return;
	if (dscp_of(inet, level) != (l->marks & MARK_DSCP ? l->ack_dscp : 0)) {
		l->marks &= ~MARK_DSCP;	/* the application has chosen one */
		return;
	}
	if (dscp == dscp_of(inet, level))
		return;
	if (level == SOL_IP) {
		if (bpf_setsockopt(tp, SOL_IP, IP_TOS, &value, sizeof(value)))
			return;
		bpf_setsockopt(tp, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	} else if (bpf_setsockopt(tp, SOL_IPV6, IPV6_TCLASS, &value, sizeof(value))) {
		return;
	}
	l->ack_dscp = dscp;
	l->marks = dscp ? l->marks | MARK_DSCP : l->marks & ~MARK_DSCP;
}

/* Sets the priority, or takes it back. */
static __always_inline void mark_priority(struct tcp_sock *tp, struct live_conn *l, __u32 priority)
{
	__u32 has = tcp_sk_sock(tp)->sk_priority;

	if (has != (l->marks & MARK_PRIORITY ? l->ack_priority : 0)) {
		l->marks &= ~MARK_PRIORITY;	/* the application has chosen one */
		return;
	}
	if (priority == has ||
	    bpf_setsockopt(tp, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)))
		return;
	l->ack_priority = priority;
	l->marks = priority ? l->marks | MARK_PRIORITY : l->marks & ~MARK_PRIORITY;
}

/* Marks a connection as its rule says and its traffic since the last sample asks for. p may be
 * NULL: then marks are taken back. */
static __noinline void mark_acks(struct tcp_sock *tp, struct live_conn *l, const struct totals *now,
				 const struct runtime_config *cfg, const struct path_policy *p)
{
	const struct track *t = &l->track;
	__u32 priority = 0, dscp = 0;
	__u64 set = 0;

	if (t->flags & (F_HOLD_OUT | F_ADOPTED))
		return;
	/* Under newer rules, the connection may have another class, or be left alone. */
	if (p && p->hold_out < 1 << 16 && t->start_ns >= cfg->rules_ns && mostly_receives(l, now))
		set = p->set & ~cfg->yield;
	if (set & (1ULL << FIELD_ACK_PRIORITY))
		priority = p->value[FIELD_ACK_PRIORITY];
	if (set & (1ULL << FIELD_ACK_DSCP))
		dscp = p->value[FIELD_ACK_DSCP];
	mark_dscp(tp, l, dscp);
	mark_priority(tp, l, priority);
}

#endif
