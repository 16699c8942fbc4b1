// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Samples of live connections, one walk over the opener's network namespace.
 *
 * A connection that has lived for an interval moves from its slot to socket
 * storage, which also keeps the counters of its last sample, so that each
 * sample is a delta. One that is older than tcpilot is adopted: it is reported
 * from now on, but belongs to no class.
 */
#include "tcp.bpf.h"
#include "track.bpf.h"

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

/* Owned by sockops.bpf.c, which says what they hold; replaced by its maps at load. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NUM_SLOTS);
	__type(key, __u32);
	__type(value, struct track);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct live_conn);
} live SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NUM_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

#include "slots.bpf.h"
#include "report.bpf.h"

/* Remembers a connection that no hook saw begin; its past is not ours to report. */
static __always_inline void adopt(struct tcp_sock *tp, __u64 cookie, __u64 now)
{
	struct live_conn *l = bpf_sk_storage_get(&live, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!l)
		return;
	l->track.cookie = cookie;
	l->track.start_ns = now;
	l->track.arm = NO_ARM;
	l->track.flags = F_ADOPTED | F_ESTABLISHED;
	totals_read(&l->last, tp, now);
}

static __always_inline struct live_conn *settle(struct tcp_sock *tp, struct track *t)
{
	struct live_conn *l = bpf_sk_storage_get(&live, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!l)
		return NULL;
	l->track = *t;
	slot_free(t);
	return l;
}

SEC("iter/tcp")
int tcpilot_live(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct totals now = {};
	struct live_conn *l;
	struct control *ctl;
	struct tcp_sock *tp;
	struct track *t;
	__u32 zero = 0;
	__u64 ns, cookie;

	if (!skc || skc->skc_state != TCP_ESTABLISHED)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	ctl = bpf_map_lookup_elem(&control, &zero);
	if (!tp || !ctl || !ctl->interval_ns)
		return 0;
	ns = bpf_ktime_get_ns();
	if (ns >= ctl->lease_ns)
		return 0;

	l = bpf_sk_storage_get(&live, tp, 0, 0);
	if (!l) {
		cookie = bpf_get_socket_cookie(tp);
		t = slot_find(cookie);
		if (!t) {
			adopt(tp, cookie, ns);
			return 0;
		}
		if (!(t->flags & F_ESTABLISHED) || ns - t->start_ns < ctl->interval_ns)
			return 0;
		l = settle(tp, t);
		if (!l)
			return 0;
	}
	totals_read(&now, tp, ns);
	if (now.bytes_acked == l->last.bytes_acked && now.total_retrans == l->last.total_retrans &&
	    now.bytes_received == l->last.bytes_received)
		return 0;		/* idle: nothing new about the path */
	report(tp, &l->track, &now, &l->last, ctl, SAMPLE_INTERVAL);
	l->last = now;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
