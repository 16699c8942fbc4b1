/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fields whose value is the default of a rule's objective. Because the operator has not named them,
 * an application that has set one keeps its value.
 */
#ifndef TCPILOT_DEFAULTS_BPF_H
#define TCPILOT_DEFAULTS_BPF_H

#include "../include/tcp.bpf.h"

#define NOTSENT_LOWAT_BIT (1ULL << FIELD_NOTSENT_LOWAT)

/* A connection begins. Returns set without the fields that the application has set on the socket or on
 * its listener. notsent_lowat 0 stands for the sysctl (tcp_notsent_lowat in include/net/tcp.h). */
static __always_inline __u64 without_own(struct tcp_sock *tp, __u64 set, __u64 defaults)
{
	if ((set & defaults & NOTSENT_LOWAT_BIT) && tp->notsent_lowat)
		set &= ~NOTSENT_LOWAT_BIT;
	return set;
}

#endif
