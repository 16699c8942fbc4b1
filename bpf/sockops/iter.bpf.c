// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Samples of live connections: one walk over the sockets of the network namespace of the thread that
 * opened the iterator.
 *
 * A connection that has lived for an interval moves from its slot to socket
 * storage, which also keeps the counters of its last sample, so that each
 * sample is a delta. A connection that is older than tcpilot is adopted, and sometimes one that was
 * not followed (adopts): it is sampled from then on, but has no class, because it is not known which end opened it.
 *
 * Settings of live connections follow their path: the adapted values of RTO_MIN, DELACK_MAX and the clamp of
 * the congestion window, the marks of ACKs (ack_marks.bpf.h), and, by a program of its own, TCP_NOTSENT_LOWAT.
 *
 * Linux 6.12 omits the connections of one bucket of its hash table (one of thousands) if it is the namespace's first with
 * any, and its number is one above that of the last bucket of listening sockets, or 0 without those:
 * tcp_seek_last_pos, which goes on from the listening sockets with an offset that it has decremented below 0.
 */
#include "attached.bpf.h"
#include "classify.bpf.h"
#include "report.bpf.h"
#include "slots.bpf.h"
#include "rto_min.bpf.h"
#include "delack.bpf.h"
#include "ack_marks.bpf.h"
#include "clamp.bpf.h"
#include "notsent_lowat.bpf.h"
#include "peer_listen.bpf.h"
#include "policy.bpf.h"
#include "same_rule.bpf.h"
#include "undo.bpf.h"

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

/* Established connections found since user space cleared it, by index into flow_counts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} flows_found SEC(".maps");

/* Whether connections without state are adopted. User space sets it before each walk: on a busy host, most of
 * them are not followed (follow.bpf.h). */
__u32 adopts = 1;

/* Whether some rule sets TCP_NOTSENT_LOWAT. User space sets it. */
__u32 sets_lowat;

/* Connections without a policy that no row of flow_counts counts, found since user space cleared it. */
__u32 uncounted;

/* Error of the latest listener whose flag could not be set (follow_listener); 0: none. */
__s32 listeners_err;

/* ---- adoption ------------------------------------------------------------ */

/* Whether a connection is to be adopted: a rule matches it as incoming or as outgoing, and neither of
 * the two rules has the action leave. */
static __always_inline bool wanted(struct tcp_sock *tp, __u32 bank)
{
	__u64 netns = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	const struct rule_bank *b = rules_of(bank);
	const struct class_entry *cls;
	struct conn c = {};
	bool any = false;

	if (!b)
		return false;
	conn_read_sock(tp, &c);
	for (int i = 0; i < 2; i++) {
		c.outgoing = i;
		cls = classify(&c, b, bank, tp, netns);
		if (!cls || !cls->id)
			continue;
		if (cls->flags & CLASS_LEAVE)
			return false;
		any = true;
	}
	return any;
}

/* Adds state for a connection that no hook saw begin. Its past is not reported. */
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

/* Moves the state of a connection from its slot to socket storage. */
static __always_inline struct live_conn *move_to_storage(struct tcp_sock *tp, struct track *t)
{
	struct live_conn *l = bpf_sk_storage_get(&live, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!l)
		return NULL;
	l->track = *t;
	slot_free(t);
	return l;
}

/* Counts a connection in the row of its present policy: the path may have had none of its own
 * when the connection began. */
static __always_inline void flow_follow(struct track *t, const struct path_policy *p)
{
	if (!p->flow || p->flow == t->flow || !(t->flags & F_ESTABLISHED))
		return;
	flow_end(t->flow);
	flow_begin(p->flow);
	t->flow = p->flow;
}

static __always_inline void flow_found(const struct track *t)
{
	__u32 flow = t->flow;
	__u64 *n;

	if (!(t->flags & F_ESTABLISHED) || !flow)
		return;
	n = bpf_map_lookup_elem(&flows_found, &flow);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Gives a connection its share of the clamp also if it is older than the clamp, because then it has no
 * call each round trip (clamp.bpf.h). p is NULL if the path has no policy any more. */
static __always_inline void follow_clamp(struct tcp_sock *tp, struct track *t,
					 const struct runtime_config *cfg,
					 const struct path_policy *p)
{
	struct flow_count *n = p && p->flow == t->flow ? flow_row(t->flow) : NULL;
	__u32 share = n ? clamp_share(n) : 0;

	if (share == t->clamp)
		return;
	if (!t->clamp && ((cfg->yield & CLAMP_BIT) || (t->flags & (F_HOLD_OUT | F_ADOPTED)) ||
			  !has_same_rule(tp, t, cfg)))
		return;
	follow_share(tp, tp, t, share);
}

/* Sets the flag by which the kernel asks a listener for the options of SYN-ACKs if some rule has the peer
 * option, and takes it back if none has it any more (peer_listen.bpf.h). */
static __always_inline void follow_listener(struct tcp_sock *tp, const struct runtime_config *cfg)
{
	bool wanted = cfg->requests & PEER_OPS, ours = bpf_sk_storage_get(&peer_callbacks, tp, 0, 0);
	bool has = tp->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	int err;

	if (wanted)
		netns_receive_note(tp);
	if (wanted == ours || (wanted && (has || !attached_to(tp))))
		return;
	err = peer_change_flag(tp, wanted);
	if (err)
		listeners_err = err;
}

SEC("iter/tcp")
int tcpilot_live(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	const struct path_policy *p;
	struct totals now = {};
	struct live_conn *l;
	struct runtime_config *cfg;
	struct tcp_sock *tp;
	struct track *t;
	__u32 zero = 0;
	__u64 ns, cookie;
	bool active;

	if (!skc || !(1U << (skc->skc_state & 31) & (FLOW_STATES | 1 << TCP_LISTEN)))
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	if (skc->skc_state == TCP_LISTEN) {
		cfg = bpf_map_lookup_elem(&runtime_config, &zero);
		if (cfg && bpf_ktime_get_ns() < cfg->lease_ns)
			follow_listener(tp, cfg);
		return 0;
	}
	ns = bpf_ktime_get_ns();
	cookie = skc->skc_cookie.counter;	/* 0: no hook has seen it */
	l = bpf_sk_storage_get(&live, tp, 0, 0);
	t = l ? &l->track : cookie ? slot_find(cookie) : NULL;
	p = l && t->class ? conn_policy(tp, t->class, ns) : NULL;
	if (p)
		flow_follow(t, p);
	else if (l && !t->flow)
		uncounted++;
	if (t)
		flow_found(t);
	if (!(1U << (skc->skc_state & 31) & LIVE_STATES))
		return 0;
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!cfg || !cfg->interval_ns)
		return 0;
	if (ns >= cfg->lease_ns)
		return 0;

	if (!l) {
		if (!t) {
			if (adopts && attached_to(tp) && wanted(tp, cfg->bank & 1)) {
				adopt(tp, bpf_get_socket_cookie(tp), ns);
				uncounted++;
			}
			return 0;
		}
		if (adopts && t->stands_for)
			t->stands_for = 1;	/* the others have state of their own now */
		if (!(t->flags & F_ESTABLISHED) || ns - t->start_ns < cfg->interval_ns)
			return 0;
		l = move_to_storage(tp, t);
		if (!l)
			return 0;
		if (!l->track.flow)
			uncounted++;
	}
	totals_read(&now, tp, ns);
	undo_add(&now, &l->last, l->track.undone);
	/* An idle connection is not sampled: it shows nothing new about the path. */
	active = now.bytes_acked != l->last.bytes_acked || now.total_retrans != l->last.total_retrans ||
		 now.bytes_received != l->last.bytes_received;
	if (active)
		report(tp, &l->track, &now, &l->last, cfg, SAMPLE_INTERVAL, 0,
		       l->track.stands_for ?: 1);
	if (adopts && l->track.stands_for)
		l->track.stands_for = 1;
	/* After the sample, which has the values that were in use during its interval; from the second sample on, because the
	 * policy of a young connection is not looked up. */
	if (l->last.at_ns) {
		follow_rto_min(tp, &l->track, cfg, p);
		follow_delack_max(tp, &l->track, cfg, p);
		follow_clamp(tp, &l->track, cfg, p);
	}
	if (!active)
		return 0;
	if (l->acks.marks || (p && (p->set & ACK_MARK_BITS)))
		mark_acks(tp, l, &now, cfg, p);
	l->last = now;
	l->track.undone = 0;
	return 0;
}

/* The class that a connection would get if it began now; NULL: none. Of an adopted one it is not known
 * which end opened it: NULL if that matters. */
static __always_inline const struct class_entry *class_now(struct tcp_sock *tp, __u32 bank, __u32 flags)
{
	__u64 netns = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	const struct rule_bank *b = rules_of(bank);
	const struct class_entry *cls = NULL;
	struct conn c = {};
	__u32 id = 0;

	if (!b)
		return NULL;
	conn_read_sock(tp, &c);
	for (int i = 0; i < 2; i++) {
		c.outgoing = flags & F_ADOPTED ? i : (flags & F_OUTGOING) != 0;
		cls = classify(&c, b, bank, tp, netns);
		if (!cls || !cls->id || (i && cls->id != id))
			return NULL;
		id = cls->id;
	}
	return cls;
}

/* Counts connections that no hook counted: those that are older than tcpilot, and those that began
 * when their path had no row. It classifies them again, because classes of an earlier daemon do not
 * exist any more. A separate program, because it is rarely needed. */
SEC("iter/tcp")
int tcpilot_join(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	const struct path_policy *p;
	struct runtime_config *cfg;
	struct live_conn *l;
	struct tcp_sock *tp;
	const struct class_entry *cls;
	__u32 zero = 0;

	if (!skc || !(1U << (skc->skc_state & 31) & FLOW_STATES))
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	l = bpf_sk_storage_get(&live, tp, 0, 0);
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!l || l->track.flow || !cfg)
		return 0;
	cls = class_now(tp, cfg->bank & 1, l->track.flags);
	if (!cls)
		return 0;
	p = conn_policy(tp, cls->id, bpf_ktime_get_ns());
	if (!p)
		return 0;
	flow_follow(&l->track, p);
	flow_found(&l->track);
	return 0;
}

/* TCP_NOTSENT_LOWAT that a connection would begin with now; 0: that of the application, or of the sysctl. It classifies
 * again: under newer rules, the connection may have another class, or be left alone. */
static __always_inline __u32 lowat_now(struct tcp_sock *tp, const struct track *t, const struct runtime_config *cfg)
{
	const struct class_entry *cls = class_now(tp, cfg->bank & 1, t->flags);
	const struct path_policy *p;
	__u32 *own;

	if (!cls || (cls->flags & CLASS_LEAVE) ||
	    (owned_by_netns(tp, cfg, cls->flags & CLASS_NAMED) & NOTSENT_LOWAT_BIT))
		return 0;
	p = conn_policy(tp, cls->id, bpf_ktime_get_ns());
	if (!p || p->hold_out >= 1 << 16 || !(p->set & NOTSENT_LOWAT_BIT))
		return 0;
	/* An objective's value does not replace the application's. */
	own = p->adapted & NOTSENT_LOWAT_BIT ? bpf_sk_storage_get(&own_lowat, tp, 0, 0) : NULL;
	if (own && *own != SUBFLOW_LOWAT)
		return 0;
	return p->value[FIELD_NOTSENT_LOWAT];
}

/* Gives running connections the TCP_NOTSENT_LOWAT of the rules that they match now. A separate program, because few hosts
 * have such a rule, and because the stack of tcpilot_live has no room for it. */
SEC("iter/tcp")
int tcpilot_lowat(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct runtime_config *cfg;
	struct live_conn *l;
	struct tcp_sock *tp;
	struct track *t;
	__u32 zero = 0;

	if (!skc || !(1U << (skc->skc_state & 31) & FLOW_STATES))
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!tp || !skc->skc_cookie.counter || !cfg || bpf_ktime_get_ns() >= cfg->lease_ns)
		return 0;
	l = bpf_sk_storage_get(&live, tp, 0, 0);
	t = l ? &l->track : slot_find(skc->skc_cookie.counter);
	if (!t || (t->flags & (F_HOLD_OUT | F_ADOPTED)))
		return 0;
	if ((sets_lowat || t->notsent_lowat) && lowat_may_change(tp, t))
		give_lowat(tp, t, sets_lowat ? lowat_now(tp, t, cfg) : 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
