// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Gives running connections back what they had before tcpilot: the kernel's DELACK_MAX, clamp of the congestion
 * window, priority and DSCP, the TCP_NOTSENT_LOWAT and the pacing rate of their application, and the kernel's RTO_MIN if that lengthens the timeout. What
 * others have chosen since is kept. Listeners lose the flag for the peer option. Loaded only for walks over all sockets when a daemon
 * stops, or to detach what an earlier one left.
 *
 * The lease must be over, so that the hooks, which are still attached, set nothing again.
 */
#include "ack_marks.bpf.h"
#include "clamp.bpf.h"
#include "delack.bpf.h"
#include "limits.bpf.h"
#include "notsent_lowat.bpf.h"
#include "peer_listen.bpf.h"
#include "rto_min.bpf.h"
#include "slots.bpf.h"

struct bpf_iter__tcp {
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

/* Connections that kept their clamp, because they recover from losses (follow_share), since user space cleared it. */
__u32 clamps_left;

static __always_inline void release_clamp(struct tcp_sock *tp, struct track *t)
{
	follow_share(tp, tp, t, 0);
	if (t->clamp && tp->snd_cwnd_clamp == t->clamp)
		clamps_left++;
}

/* Unlike samples of live connections, this includes connections in their handshake, and young ones, whose state is in a slot. */
SEC("iter/tcp")
int tcpilot_release(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct runtime_config *cfg;
	struct live_conn *l;
	struct limited *m;
	struct tcp_sock *tp;
	struct track *t;
	__u32 zero = 0;
	__u64 cookie;

	tp = skc ? bpf_skc_to_tcp_sock(skc) : NULL;
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!tp || !cfg)
		return 0;
	if (bpf_sk_storage_get(&peer_callbacks, tp, 0, 0))
		peer_change_flag(tp, false);
	if (skc->skc_state == TCP_LISTEN)
		return 0;
	m = bpf_sk_storage_get(&limited, tp, 0, 0);
	if (m)
		limit_follow(tp, tp, m);
	cookie = skc->skc_cookie.counter;	/* 0: no hook has seen it */
	l = bpf_sk_storage_get(&live, tp, 0, 0);
	t = l ? &l->track : cookie ? slot_find(cookie) : NULL;
	if (!t)
		return 0;
	/* As if its path had no policy any more. */
	follow_rto_min(tp, t, cfg, NULL);
	follow_delack_max(tp, t, cfg, NULL);
	release_clamp(tp, t);
	if (lowat_may_change(tp, t))
		give_lowat(tp, t, 0);
	if (l)
		mark_acks(tp, l, NULL, cfg, NULL);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
