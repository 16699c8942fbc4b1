/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rate limits that several connections are under together: those of a rule or a network namespace, or
 * those of a path that has a policer.
 *
 * Each connection is paced at its share. User space divides a limit a few times a second among
 * the connections that need it (internal/limit), and writes each share by cookie. A connection
 * reads its share at the callback BPF_SOCK_OPS_RTT_CB, once a round trip (tcp_rtt_estimator).
 * A connection that has begun since the division is fresh: it has no share yet, and gets
 * rate / (base + fresh) of struct limit. As long as there are fresh connections, those with a share
 * get no more than this quotient either. A connection that was idle has no share: when it sends again, it
 * is fresh.
 */
#ifndef TCPILOT_LIMITS_BPF_H
#define TCPILOT_LIMITS_BPF_H

#include "maps.bpf.h"

#define NO_RATE (~0ULL)		/* sk_max_pacing_rate: no limit */
#define MOST_RATE 0xfffffffeU	/* bytes per second; the greatest that bpf_setsockopt can set, whose ~0 is no limit */

static __always_inline struct limit *limit_find(__u64 key)
{
	return key ? bpf_map_lookup_elem(&limits, &key) : NULL;
}

/* Whether it is one of loopback: in 127.0.0.0/8, or ::1. */
static __always_inline bool is_loopback(const __u32 addr[4])
{
	if (is_v4_mapped(addr))
		return (addr[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return !(addr[0] | addr[1] | addr[2]) && addr[3] == bpf_htonl(1);
}

/* The key of the limit of the connection's network namespace. 0: it is not under that limit, because its packets stay in the
 * namespace: one of its addresses is of loopback, or both are the same. */
static __always_inline __u64 limit_of_netns(struct tcp_sock *tp)
{
	struct sock_common *k = &tcp_sk_sock(tp)->__sk_common;
	__u32 local[4], remote[4];

	sock_addresses(k, local, remote);
	if (is_loopback(remote) || is_loopback(local))
		return 0;
	if (!((remote[0] ^ local[0]) | (remote[1] ^ local[1]) | (remote[2] ^ local[2]) | (remote[3] ^ local[3])))
		return 0;
	return k->skc_net.net->net_cookie;
}

/* Adds the key of the connection's network namespace, as the second one if the rule has a limit. A connection that comes under a
 * path's limit is under the namespace's already. */
static __always_inline void limit_keys(struct tcp_sock *tp, __u64 *rule, __u64 *path)
{
	if (*path)
		return;
	if (*rule)
		*path = limit_of_netns(tp);
	else
		*rule = limit_of_netns(tp);
}

static __always_inline void limit_count(struct limit *l, __s32 by)
{
	if (l)
		__sync_fetch_and_add(&l->fresh, by);
}

/* From this interval on between two segments and the next two (tcp_min_tso_segs), in nanoseconds, the intervals of fresh
 * connections are spread. */
#define SPREAD_INTERVAL (10 * 1000 * 1000ULL)
#define SPREAD_BELOW (2 * 1514 * 1000000000ULL / SPREAD_INTERVAL)	/* bytes per second */

/* The rate of a fresh connection. Connections that begin together would send in step: in each interval, all that they may
 * send in it at once. So a fresh one waits for 0.5 to 1.4 of its interval. */
static __always_inline __u64 limit_spread(__u64 rate, __u64 cookie)
{
	__u32 hash = (__u32)cookie * 0x9e3779b1U;	/* 2^32 by the golden ratio: the hashes of neighbours are far apart */

	return rate < SPREAD_BELOW ? (rate << 4) / (8 + (hash >> 28)) : rate;
}

/* The greatest rate of one connection under a limit, in bytes per second. A connection with a share is
 * bounded by the quotient only if others have begun since the division. */
static __always_inline __u64 limit_most(const struct limit *l, bool has_share, __u64 cookie)
{
	__u64 most = NO_RATE, sum, among;
	__s32 fresh;

	if (!l)
		return most;
	if (l->connection)
		most = l->connection;
	sum = l->rate;
	fresh = l->fresh;
	if (fresh < 0)		/* user space replaced the limit at the same time */
		fresh = 0;
	if (!sum || (has_share && !fresh))
		return most;
	among = l->base + ((__u64)fresh << 8);
	if (among < 1 << 8)
		among = 1 << 8;
	sum = (sum << 8) / among ?: 1;
	if (!has_share)
		sum = limit_spread(sum, cookie);
	return sum < most ? sum : most;
}

/* Gives the socket a limit. A lower one that the application set, or a rule as a fixed value, stays,
 * also if it was set after tcpilot's. */
static __always_inline void limit_set(void *ctx, struct tcp_sock *tp, struct limited *m, __u64 want)
{
	__u64 is = tcp_sk_sock(tp)->sk_max_pacing_rate;
	__u32 value = ~0U;

	if (is != m->given)
		m->own = is;
	if (want < m->own)
		value = want < MOST_RATE ? want : MOST_RATE;
	else if (m->own < ~0U)
		value = m->own;
	want = value == ~0U ? NO_RATE : value;
	/* An application's limit of more than 32 bits cannot be set again: it is left as it is. */
	if (want != is && !(want == NO_RATE && is == m->own) &&
	    bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value)))
		return;
	if (want != m->given)
		m->since_ns = bpf_ktime_get_ns();
	m->given = tcp_sk_sock(tp)->sk_max_pacing_rate;
}

/* What the connection has sent under its limits, in bytes; 0 if the kernel has reset its counters meanwhile (tcp_disconnect). */
static __always_inline __u64 limit_sent(struct tcp_sock *tp, const struct limited *m)
{
	return tp->bytes_sent > m->sent ? tp->bytes_sent - m->sent : 0;
}

/* Takes the connection out of the number of fresh ones. */
static __always_inline void limit_unfresh(struct limited *m)
{
	struct limit *rule = limit_find(m->rule), *path = limit_find(m->path);

	if (!m->fresh)
		return;
	m->fresh = 0;
	if (rule && rule->epoch == m->epoch)
		limit_count(rule, -1);
	if (path && path->epoch == m->epoch)
		limit_count(path, -1);
}

/* Paces the connection at its present share. If its limits have ended, or after the lease, it gets back
 * the limit that it had of its own. */
static __noinline int limit_follow(void *ctx, struct tcp_sock *tp, struct limited *m)
{
	struct limit *rule = limit_find(m->rule), *path = limit_find(m->path), *any;
	__u64 cookie = tcp_sk_sock(tp)->__sk_common.skc_cookie.counter;
	struct runtime_config *cfg;
	__u64 want = NO_RATE, most;
	__u32 zero = 0, *share;

	any = rule ?: path;
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!any || !cfg || bpf_ktime_get_ns() >= cfg->lease_ns) {
		limit_set(ctx, tp, m, NO_RATE);
		return 0;
	}
	if (m->epoch != any->epoch) {
		share = bpf_map_lookup_elem(&limit_shares, &cookie);
		m->epoch = any->epoch;
		m->share = share ? *share : 0;
		m->fresh = !m->share;
		if (m->fresh) {
			limit_count(rule, 1);
			limit_count(path, 1);
		}
	}
	if (m->share)
		want = m->share;
	most = limit_most(rule, m->share, cookie);
	if (most < want)
		want = most;
	most = limit_most(path, m->share, cookie);
	if (most < want)
		want = most;
	limit_set(ctx, tp, m, want);
	return 0;
}

/* A walk has found the connection. If it has no share, and nothing to send, it gets the rate with which it may begin to send, but
 * does not count as fresh until it does: limit_rtt notices that. */
static __always_inline void limit_walked(struct tcp_sock *tp, struct limited *m)
{
	limit_follow(tp, tp, m);
	if (m->fresh && tp->write_seq == tp->snd_una && (tp->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_RTT_CB_FLAG)) {
		limit_unfresh(m);
		m->epoch = 0;
	}
}

/* The connection comes under limits. */
static __always_inline struct limited *limit_join(struct tcp_sock *tp, __u64 rule, __u64 path)
{
	struct limited *m = bpf_sk_storage_get(&limited, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!m)
		return NULL;
	if (!m->given) {
		m->own = m->given = tcp_sk_sock(tp)->sk_max_pacing_rate;
		m->sent = tp->bytes_sent;
		m->since_ns = bpf_ktime_get_ns();
	}
	limit_unfresh(m);
	m->rule = rule ?: m->rule;
	m->path = path ?: m->path;
	if (m->path == m->rule)	/* the rule had a limit, beside that of the namespace */
		m->path = 0;
	m->epoch = 0;
	return m;
}

/* Global functions, so that each is verified once and not at every call. */

/* A connection begins under a limit of its rule (0: it has none, or no rule matches), its network namespace, or its path. */
__noinline int limit_begin(struct bpf_sock_ops *skops, __u64 rule, __u64 path)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct limited *m;

	if (!tp)
		return 0;
	limit_keys(tp, &rule, &path);
	if (!(limit_find(rule) ?: limit_find(path)))
		return 0;
	bpf_get_socket_cookie(skops);	/* shares are found by it; a connection without state has none yet */
	m = limit_join(tp, rule, path);
	if (!m)
		return 0;
	limit_follow(skops, tp, m);
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	return 0;
}

/* An ACK has shown a round-trip time. */
__noinline int limit_rtt(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct limited *m = tp ? bpf_sk_storage_get(&limited, tp, 0, 0) : NULL;

	if (m)
		limit_follow(skops, tp, m);
	return 0;
}

/* The socket begins another connection. */
__noinline int limit_forget(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct limited *m = tp ? bpf_sk_storage_get(&limited, tp, 0, 0) : NULL;

	if (!m)
		return 0;
	limit_unfresh(m);
	limit_set(skops, tp, m, NO_RATE);
	bpf_sk_storage_delete(&limited, tp);
	return 0;
}

#endif
