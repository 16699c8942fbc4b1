/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The end of a connection: emits its last sample and frees its state. These are
 * programs of the object that includes this.
 */
#ifndef TCPILOT_ENDS_BPF_H
#define TCPILOT_ENDS_BPF_H

#include "thinning.bpf.h"
#include "report.bpf.h"
#include "reuse.bpf.h"
#include "slots.bpf.h"
#include "limits.bpf.h"
#include "undo.bpf.h"

/* A connection and where its state is. */
struct known {
	struct track *track;
	struct live_conn *live;	/* NULL: in a slot */
};

static __always_inline bool known_find(struct known *k, struct sock *sk)
{
	__u64 cookie = sk->__sk_common.skc_cookie.counter;

	if (!cookie)		/* no hook has seen it, or it would have a cookie */
		return false;
	k->live = NULL;
	k->track = slot_find(cookie);
	if (k->track)
		return true;
	k->live = bpf_sk_storage_get(&live, sk, 0, 0);
	if (!k->live)
		return false;
	k->track = &k->live->track;
	return true;
}

/* A failed arm is always reported, because the policy may have to change. So is the
 * last sample of a connection with earlier ones, because samples are deltas. */
static __always_inline __u32 end_stands_for(const struct known *k, const struct runtime_config *cfg,
					    struct counters *c)
{
	__u32 drawn = k->track->stands_for;

	if ((k->track->flags & F_ARM_FAILED) || (k->live && k->live->last.at_ns))
		return drawn ?: 1;
	if (drawn > 1 || (drawn && k->track->loss_rtt_us))	/* those that lose packets are all followed (follow.bpf.h) */
		return drawn;
	if (!drawn)
		thin_count(c, bpf_ktime_get_ns(), cfg->report_rate);
	/* Also if it began when there were few: many that have long been idle may end at once. */
	return thin_draw(conn_draw(k->track->cookie, cfg->draw_key[1]), cfg->report_rate);
}

/* ---- rate limits --------------------------------------------------------- */

static __always_inline void limit_add_sent(__u64 key, __u64 bytes)
{
	__u64 *sum = key ? bpf_map_lookup_elem(&limit_ended, &key) : NULL;

	if (sum)
		__sync_fetch_and_add(sum, bytes);
}

/* The connection of a socket that is under a rate limit is over. */
static __noinline int limit_end(struct tcp_sock *tp)
{
	struct limited *m = bpf_sk_storage_get(&limited, tp, 0, 0);

	if (!m)
		return 0;
	limit_unfresh(m);
	limit_add_sent(m->rule, limit_sent(tp, m));
	limit_add_sent(m->path, limit_sent(tp, m));
	m->rule = m->path = 0;	/* another program may see the same end */
	return 0;
}

/* ---- the end ------------------------------------------------------------- */

/* Not inlined: a host with many ends reports few of them, and the others need not clear this
 * function's stack. */
static __noinline void report_end(struct known *k, struct tcp_sock *tp, __u32 closed,
				  __u32 stands_for, const struct runtime_config *cfg)
{
	static const struct totals none;
	const struct totals *last = k->live ? &k->live->last : &none;
	struct totals now = {};

	totals_read(&now, tp, bpf_ktime_get_ns());
	undo_add(&now, last, k->track->undone);
	report(tp, k->track, &now, last, cfg,
	       k->track->flags & F_ESTABLISHED ? SAMPLE_CLOSE : SAMPLE_FAILED_CONNECT,
	       closed, stands_for);
}

/* Whether the socket of a connection that is over may begin another one: it is not being closed. */
static __always_inline bool may_be_reused(struct sock *sk, __u32 closed)
{
	if (sk->__sk_common.skc_flags & (1 << SOCK_DEAD_BIT))
		return false;
	/* Without a RST from here, the kernel has shut down both sides (tcp_done). */
	return !(closed & CLOSED_RST_SENT) || sk->sk_shutdown != SHUTDOWN_MASK;
}

/* Not inlined: several programs call it. */
static __noinline void connection_over(struct known *k, struct sock *sk, __u32 closed)
{
	struct counters *c = counters_here();
	__u32 zero = 0, stands_for;
	struct runtime_config *cfg;
	struct tcp_sock *tp;

	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (cfg && c) {
		stands_for = end_stands_for(k, cfg, c);
		if (likely(!stands_for))
			c->n[COUNT_THINNED]++;
		if (unlikely(stands_for || cfg->limits)) {
			tp = bpf_skc_to_tcp_sock(sk);
			if (tp && stands_for)
				report_end(k, tp, closed, stands_for, cfg);
			if (tp && cfg->limits)
				limit_end(tp);
		}
		if (unlikely(may_be_reused(sk, closed))) {
			tp = bpf_skc_to_tcp_sock(sk);
			if (tp)
				note_given(tp, k->track, k->live, cfg);
		}
	}
	flow_end_of(k->track);
	if (!k->live)
		slot_free(k->track);
	else
		bpf_sk_storage_delete(&live, sk);
}

/* A connection without state may have come under a limit while it ran (join_later in limits.bpf.c). It has got a cookie then. */
static __noinline int unknown_over(struct sock *sk)
{
	struct runtime_config *cfg;
	struct tcp_sock *tp;
	__u32 zero = 0;

	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!cfg || !cfg->limits)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	return tp ? limit_end(tp) : 0;
}

static __always_inline void socket_over(struct sock *sk, __u32 closed)
{
	struct known k;

	if (known_find(&k, sk))
		connection_over(&k, sk, closed);
	else if (unlikely(sk->__sk_common.skc_cookie.counter))
		unknown_over(sk);
}

/* tcp_v4_destroy_sock, before anything is torn down; for IPv6 as well. */
SEC("tp_btf/tcp_destroy_sock")
int tcpilot_report(__u64 *ctx)
{
	socket_over((struct sock *)ctx[0], 0);
	return 0;
}

/* A second copy, for kernels on which the tracepoint can be interrupted (seen on 7.2):
 * the kernel skips a program that would interrupt itself, but runs another one. It is
 * attached only after that happened, and usually finds nothing to do. */
SEC("tp_btf/tcp_destroy_sock")
int tcpilot_spare(__u64 *ctx)
{
	socket_over((struct sock *)ctx[0], 0);
	return 0;
}

/* A RST was sent. If the socket is closed (close with unread data, SO_LINGER 0, or
 * connect to AF_UNSPEC), the kernel resets addresses and counters next, so the sample is
 * taken now. A socket that is not closed may continue to exist. */
SEC("tp_btf/tcp_send_reset")
int tcpilot_reset(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp;

	/* sk may be missing, or be a request or time-wait socket, which is smaller than
	 * struct sock. Neither is TCP_CLOSE. */
	if (!sk || sk->__sk_common.skc_state != TCP_CLOSE)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		socket_over(tcp_sk_sock(tp), CLOSED_RST_SENT);
	return 0;
}

/* The socket got an error, which the application is about to read. A connection that is over with it
 * is reported now: its socket may stay open for long, and a call of connect that returns the error
 * resets addresses and counters first (tcp_disconnect); the socket may then begin another connection. */
SEC("tp_btf/inet_sk_error_report")
int tcpilot_error(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	int err = sk->sk_err;
	struct tcp_sock *tp;
	struct known k;

	if (!err)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	if (!known_find(&k, sk)) {
		if (sk->__sk_common.skc_state == TCP_CLOSE && sk->__sk_common.skc_cookie.counter)
			unknown_over(sk);
		return 0;
	}
	if (!(k.track->flags & F_ESTABLISHED)) {
		connection_over(&k, sk, 0);
		return 0;
	}
	/* Before Linux 6.10, the state of a connection that ends changes after this. With another error than these two, it goes on, or the
	 * error is of ICMP and takes the place of ETIMEDOUT (tcp_write_err): then the socket keeps it, or the application has read it,
	 * and report finds out that nothing was answered. */
	if (sk->__sk_common.skc_state == TCP_CLOSE || err == TIMED_OUT || err == CONN_ABORTED)
		k.track->err = err;	/* every errno of TCP fits into 8 bits */
	if (sk->__sk_common.skc_state == TCP_CLOSE)
		connection_over(&k, sk, 0);
	else if (err == TIMED_OUT)
		flow_end_of(k.track);
	return 0;
}

/* ---- subflows of MPTCP ---------------------------------------------------- */

/* MPTCP keeps the socket of an end's first subflow until that end is closed. If the subflow is over before, or at that time, the
 * kernel resets its addresses and counters (__mptcp_subflow_disconnect) and destroys the socket later. What shows
 * such an end is the change of its state, while the counters are complete. */
static __always_inline void await_mptcp_end(struct bpf_sock_ops *skops, struct tcp_sock *tp)
{
	if (unlikely(tcp_is_mptcp(tp)))
		bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* A subflow is about to be in the state TCP_CLOSE. With an error or a RST, the tracepoints above see the end, and what ended it. A
 * program of its own: with that of the other callbacks, a report needs more than the 512 bytes of stack. */
SEC("sockops")
int tcpilot_mptcp_end(struct bpf_sock_ops *skops)
{
	__u32 both_fins = 1 << TCP_FIN_WAIT2 | 1 << TCP_CLOSING | 1 << TCP_LAST_ACK;
	struct tcp_sock *tp = skops_tcp(skops);
	struct sock *sk;

	if (!tp)
		return 1;
	sk = tcp_sk_sock(tp);
	if ((1U << (sk->__sk_common.skc_state & 31) & both_fins) && !sk->sk_err)
		socket_over(sk, 0);
	return 1;
}

#endif
