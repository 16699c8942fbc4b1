/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Creates, finds and removes the state of a socket's connection: in a slot, or in
 * socket storage.
 */
#ifndef TCPILOT_REMEMBER_BPF_H
#define TCPILOT_REMEMBER_BPF_H

#include "report.bpf.h"
#include "reuse.bpf.h"
#include "slots.bpf.h"

/* Stores the connection's state in a slot, or in socket storage if its slots are in use; false:
 * there is no room. */
static __always_inline bool remember(struct bpf_sock_ops *skops, const struct track *t,
				     struct counters *n)
{
	struct track *slot = slot_take(t->cookie);
	struct live_conn *l;

	if (likely(slot)) {
		*slot = *t;
		n->n[COUNT_SLOT]++;
		return true;
	}
	if (!skops->sk)
		return false;
	l = bpf_sk_storage_get(&live, skops->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!l) {
		count(COUNT_UNTRACKED);
		return false;
	}
	l->track = *t;
	count(COUNT_STORAGE);
	return true;
}

/* A socket begins a connection. Removes the state of an earlier one whose end no hook
 * saw (a tcp_disconnect that sends nothing), and takes back what tcpilot set for it. */
static __always_inline void forget(struct bpf_sock_ops *skops, struct tcp_sock *tp, const struct runtime_config *cfg)
{
	__u64 cookie = tcp_sk_sock(tp)->__sk_common.skc_cookie.counter;
	struct bpf_sock *sk = skops->sk;
	struct live_conn *l;
	struct track *t;

	if (likely(!cookie))	/* no hook has seen it */
		return;
	t = slot_find(cookie);
	if (t) {
		note_given(tp, t, NULL, cfg);
		flow_end_of(t);
		slot_free(t);
		count(COUNT_FORGOTTEN);
	}
	l = sk ? bpf_sk_storage_get(&live, sk, 0, 0) : NULL;
	if (l) {
		note_given(tp, &l->track, l, cfg);
		flow_end_of(&l->track);
		bpf_sk_storage_delete(&live, sk);
		count(COUNT_FORGOTTEN);
	}
	take_back(skops);
}

/* The state of a socket's connection; NULL if there is none. It does not give the socket a cookie: without one, there
 * is no state. */
static __always_inline struct track *recall(struct bpf_sock_ops *skops, struct tcp_sock *tp)
{
	__u64 cookie = tp ? tcp_sk_sock(tp)->__sk_common.skc_cookie.counter : 0;
	struct live_conn *l;
	struct track *t;

	if (!cookie)
		return NULL;
	t = slot_find(cookie);
	if (likely(t) || !skops->sk)
		return t;
	l = bpf_sk_storage_get(&live, skops->sk, 0, 0);
	return l ? &l->track : NULL;
}

#endif
