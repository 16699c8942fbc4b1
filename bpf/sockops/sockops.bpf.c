// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Classifies connections, applies their path's policy, and reports how they
 * went.
 *
 * sock_ops hooks set options; the destroy tracepoint reports. It runs once for every
 * connection, however it ends, while the counters are still valid.
 */
#include "maps.bpf.h"

/* ---- knobs, set before load -------------------------------------------- */

/* How each field is set. */
const volatile struct sock_option options[NUM_FIELDS];

/* Fields that are socket options: those that are set before the handshake, and those that are set after it. */
const volatile __u64 options_before;
const volatile __u64 options_after;

/* ---- maps of this object alone: user space writes ------------------------ */

/* Answers to repeated timeouts, by class (timeouts.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BANKS * MAX_RULES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct timeout_answer);
} timeout_answers SEC(".maps");

/* ---- maps of this object alone: the programs write ------------------------ */

/* Sockets whose number of SYN retransmissions tcpilot raised (syn.bpf.h): that number. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} raised_retries SEC(".maps");

/* Sockets whose connection is over, and that may begin another one (reuse.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct given);
} given_values SEC(".maps");

/* Incoming connections in their handshake whose SYN had the peer option (peer.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct peer_handshake);
	__type(value, struct peer_request);
} peer_requests SEC(".maps");

/* Whether hosts answer SYNs with the peer option, by network namespace and address (peer.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct peer_address);
	__type(value, struct peer_host);
} peer_hosts SEC(".maps");

/* Calls of bpf_setsockopt that failed: by field, then by congestion control. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NUM_FIELDS + MAX_CC);
	__type(key, __u32);
	__type(value, __u64);
} set_failures SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct event_key);
	__type(value, __u64);
} events SEC(".maps");

/* The program that sees the end of a subflow of MPTCP (ends.bpf.h). */
int tcpilot_mptcp_end(struct bpf_sock_ops *skops);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int (void *));
} mptcp_ends SEC(".maps") = { .values = { (void *)&tcpilot_mptcp_end } };

#include "classify.bpf.h"
#include "draws.bpf.h"
#include "decide.bpf.h"
#include "report.bpf.h"
#include "slots.bpf.h"
#include "remember.bpf.h"
#include "syn.bpf.h"
#include "synack.bpf.h"
#include "apply.bpf.h"
#include "init_cwnd.bpf.h"
#include "init_rwnd.bpf.h"
#include "rto_min.bpf.h"
#include "delack.bpf.h"
#include "notsent_lowat.bpf.h"
#include "pacing.bpf.h"
#include "peer.bpf.h"
#include "round_trip.bpf.h"
#include "policy.bpf.h"
#include "follow.bpf.h"
#include "events.bpf.h"
#include "ends.bpf.h"

/* ---- helpers ------------------------------------------------------------ */

static __always_inline const struct class_entry *conn_class(struct bpf_sock_ops *skops, __u32 bank,
							    struct tcp_sock *tp, struct conn *c)
{
	const struct rule_bank *b = rules_of(bank);

	if (!b)
		return NULL;
	conn_read(skops, c);
	return classify(c, b, bank, tp, unlikely(b->dims & DIM_NETNS) ? bpf_get_netns_cookie(skops) : 0);
}

/* ---- the hooks ----------------------------------------------------------- */

#define OP(name) (1U << BPF_SOCK_OPS_##name)

/* Sets the fields that act on the send side once the handshake is over. Not inlined: most
 * connections have none. */
static __noinline void apply_established(struct bpf_sock_ops *skops,
					 const struct conn_ctx *ctx, struct track *t)
{
	__u64 set = ctx->policy->set & ~ctx->yield, init_cwnd = 1ULL << FIELD_INIT_CWND;

	if (set & ctx->policy->adapted & init_cwnd) {
		set &= ~init_cwnd;
		t->init_cwnd = raise_init_cwnd(skops, ctx->policy, ctx->now, t->flow);
	}
	if (set & ctx->policy->adapted & (1ULL << FIELD_MAX_PACING_RATE))
		limit_pacing(skops, ctx->policy, t->flow);
	if (set & RESUME_BIT)
		await_resume(skops, t);
	if (set & ctx->policy->adapted & CLAMP_BIT) {
		set &= ~CLAMP_BIT;
		t->clamp = clamp_cwnd(skops, ctx->policy, t->flow);
	}
	apply_fields(skops, ctx->policy, set, true);
}

/* Fields that are only answers: nothing is set after the handshake. */
#define ANSWER_FIELDS (1ULL << FIELD_SYN_RTO | 1ULL << FIELD_SYNACK_RTO | 1ULL << FIELD_INIT_RWND | \
		       1ULL << FIELD_ECN | 1ULL << FIELD_BASE_RTT)

/* Whether an outgoing connection that begins gets an adapted timeout of its SYN, unless it is a hold-out. */
static __always_inline bool shortens_syn_timeout(const struct conn_ctx *ctx)
{
	const struct path_policy *p = ctx->policy;

	return p && p->syn_timeout && !(ctx->yield & (1ULL << FIELD_SYN_RTO)) && ctx->now < p->expires_ns &&
	       (ctx->cfg->requests & OP(TIMEOUT_INIT));
}

/* Sets the fields of the policy when a connection begins: of an outgoing one, those that affect
 * the handshake. Not inlined: most connections have none. */
static __noinline void apply_begin(struct bpf_sock_ops *skops, const struct conn_ctx *ctx,
				   struct track *t, bool outgoing)
{
	__u64 set = ctx->policy->set & ~ctx->yield;
	__u32 rto_min, lowat = ctx->tp->notsent_lowat;

	if (outgoing && shortens_syn_timeout(ctx))
		mark_syn_timeout(skops, ctx->tp, ctx->counters, ctx->policy->syn_timeout);
	if (outgoing && (set & ctx->policy->adapted & (1ULL << FIELD_INIT_RWND)))
		raise_init_rwnd(skops, ctx->tp, ctx->policy->value[FIELD_INIT_RWND]);
	if (!outgoing && (set & PEER_BIT))
		peer_remember(t, peer_accepted(skops));
	rto_min = rto_min_of(ctx->policy, ~ctx->yield, t);
	if (rto_min < KERNEL_TIMER_US)
		t->rto_min = lower_rto_min(skops, ctx->tp, rto_min, outgoing);
	set &= ~(ctx->policy->adapted & RTO_MIN_BIT);
	if (set & ctx->policy->adapted & DELACK_MAX_BIT) {
		set &= ~DELACK_MAX_BIT;
		t->delack_max = lower_delack_max(skops, ctx->tp, ctx->policy->value[FIELD_DELACK_MAX]);
	}
	set = without_own(ctx->tp, set, ctx->policy->adapted);
	/* limit_pacing divides it once the connection is counted */
	set &= ~(ctx->policy->adapted & (1ULL << FIELD_MAX_PACING_RATE));
	apply_fields(skops, ctx->policy, set, false);
	/* An equal value of the application stays its own. */
	if ((set & NOTSENT_LOWAT_BIT) && ctx->tp->notsent_lowat != lowat && skops->sk)
		note_lowat(skops->sk, t, lowat, ctx->tp->notsent_lowat);
	if (outgoing && (set & PEER_BIT))
		t->told_ms = peer_tells(skops, ctx->cls->flags);
	if (outgoing && !(ctx->policy->set & ~ANSWER_FIELDS))
		t->flags &= ~F_FIELDS;	/* no look-up after the handshake */
}

/* A connection begins. Outgoing: before the SYN; fields that affect the handshake are set
 * now, the others after it. Incoming: it is already established. */
static __always_inline void on_begin(struct bpf_sock_ops *skops, const struct conn_ctx *ctx,
				     const struct conn *c)
{
	bool outgoing = c->outgoing;
	__u64 number = begin_number(ctx->now, c);
	struct track t;
	__u32 stands_for;

	if (!ctx->tp)
		return;
	if (!follows(ctx, number, &stands_for)) {
		if (unlikely(outgoing && shortens_syn_timeout(ctx)) && !is_left_out(ctx, number))
			mark_syn_timeout(skops, ctx->tp, ctx->counters, ctx->policy->syn_timeout);
		if (unlikely(watches_losses(ctx->policy, ctx->now)))
			await_losses(skops);
		return;
	}
	t = (struct track){ .arm = NO_ARM, .start_ns = ctx->now, .class = ctx->cls->id, .stands_for = stands_for };
	t.flags = outgoing ? F_OUTGOING : F_ESTABLISHED;
	if (ctx->cls->flags & CLASS_NAMED)
		t.more_flags = RULE_NAMED;
	if (unlikely(tcp_ca_chosen(ctx->tp)) && was_seen(ctx->tp) && has_left_cc(skops))
		t.more_flags |= CC_LEFT;
	decide(ctx, &t, c, number);
	t.cookie = bpf_get_socket_cookie(skops);
	if (!outgoing)
		flow_begin(t.flow);
	/* The verifier does not know that fields come from a policy. */
	if (unlikely((t.flags & F_FIELDS) && ctx->policy)) {
		apply_begin(skops, ctx, &t, outgoing);
		/* Not called there: Linux before 6.5 allows 512 bytes of stack for all frames, each
		 * rounded up to 32 (check_max_stack_depth). */
		if (!outgoing)
			apply_established(skops, ctx, &t);
	}
	if (!outgoing && t.arm < MAX_CC)
		t.flags |= apply_cc(skops, ctx->tp, ctx->cfg, &t);
	t.flags |= watch(skops, ctx->cls);
	await_mptcp_end(skops, ctx->tp);
	if (unlikely(ctx->cls->flags & CLASS_TIMEOUTS))
		await_timeouts(skops, ctx->cls->id);
	if (unlikely(ctx->cls->flags & CLASS_SWITCH))
		await_switch(skops, &t);
	if (unlikely(watches_losses(ctx->policy, ctx->now)))
		await_losses(skops);
	if (unlikely(!remember(skops, &t, ctx->counters)))
		flow_end_of(&t);
	else if (unlikely(t.told_ms && outgoing))
		peer_set_flag(skops);
}

/* The handshake of an outgoing connection is over. Returns the connection if there is
 * something left to set. */
static __always_inline struct track *on_active_established(struct bpf_sock_ops *skops, struct tcp_sock *tp,
							   __u64 now)
{
	struct track *t = recall(skops, tp);

	if (!t)
		return NULL;
	/* The kernel has not read the clock for a connection that TCP_REPAIR restores: it has no handshake. */
	if (likely(now > t->start_ns))
		t->connect_us = (now - t->start_ns) / NSEC_PER_USEC;
	t->flags |= F_ESTABLISHED;
	flow_begin(t->flow);
	if (unlikely(t->told_ms))
		peer_answered(skops);
	if (likely(t->arm >= MAX_CC && !(t->flags & F_FIELDS)))	/* ARM_DEFAULT, or NO_ARM as a hold-out has */
		return NULL;
	return t->flags & F_HOLD_OUT ? NULL : t;
}

/* The kernel asks for a value during the handshake. A hold-out gets no answer. */
static __always_inline void on_request(struct bpf_sock_ops *skops, const struct conn_ctx *ctx,
				       const struct conn *c)
{
	bool full = ctx->tp;	/* else it is a request socket */
	const struct path_policy *p = ctx->policy;
	struct track *t;
	__u32 field;
	__u64 value;

	/* A program of a cgroup further down ran before this one and has answered. The kernel
	 * begins with 0 (tcp_call_bpf), and -1 is customary for no answer. */
	if ((__s32)skops->reply > 0)
		return;
	switch (skops->op) {
	case BPF_SOCK_OPS_TIMEOUT_INIT:
		field = full ? FIELD_SYN_RTO : FIELD_SYNACK_RTO;
		break;
	case BPF_SOCK_OPS_RWND_INIT:
		field = FIELD_INIT_RWND;
		break;
	case BPF_SOCK_OPS_NEEDS_ECN:
		field = FIELD_ECN;
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		field = FIELD_PEER_OPTION;
		break;
	default:
		field = FIELD_BASE_RTT;
	}
	if (!p || ctx->now >= p->expires_ns || !(p->set & ~ctx->yield & (1ULL << field)))
		return;
	if (field == FIELD_INIT_RWND && (p->adapted & (1U << field)))
		return;		/* not a bound: raise_init_rwnd */
	if (field == FIELD_SYN_RTO && (p->adapted & (1U << field)))
		return;		/* syn_timeout_taken */
	if (field == FIELD_SYNACK_RTO && (p->adapted & (1U << field)) && !may_shorten_synack(skops))
		return;
	t = full ? recall(skops, ctx->tp) : NULL;
	if (full ? t && (t->flags & F_HOLD_OUT) :
	    field == FIELD_SYNACK_RTO ? is_left_out(ctx, begin_number(ctx->now, c)) : request_is_hold_out(ctx, c))
		return;
	if (field == FIELD_PEER_OPTION) {
		value = p->set & ~ctx->yield & DELACK_MAX_BIT ? p->value[FIELD_DELACK_MAX] : ~0ULL;
		peer_reply(skops, ctx->cls->flags, peer_delack_ms(value));
		return;
	}
	value = p->value[field];
	if (field == FIELD_SYN_RTO)
		reply_syn_timeout(skops, value);
	else if (field == FIELD_SYNACK_RTO)
		skops->reply = ms_to_jiffies(value);
	else
		skops->reply = value;
	count(COUNT_REPLIES);
}

/* A connection that begins comes under the limit of its rule (0: none), and under that of its network namespace, also if no rule
 * matches, or if it is not followed. */
static __always_inline void begin_under_limits(struct bpf_sock_ops *skops, const struct runtime_config *cfg, __u64 rule)
{
	if (unlikely(rule || (cfg->limits & LIMITS_OF_NETNS)))
		limit_begin(skops, rule, 0);
}

enum {
	/* ops that are always handled; request ops only if some policy answers them */
	ALWAYS = OP(TCP_CONNECT_CB) | OP(PASSIVE_ESTABLISHED_CB) | OP(ACTIVE_ESTABLISHED_CB) |
		 OP(RTO_CB) | OP(RETRANS_CB) | OP(STATE_CB) | OP(RTT_CB) | OP(HDR_OPT_LEN_CB) | OP(WRITE_HDR_OPT_CB),
};

/* Classifies the connection and finds its policy. It is called in one place only, so
 * that the verifier processes it once. False: there is nothing to do. */
static __always_inline bool look_up(struct bpf_sock_ops *skops, struct conn_ctx *ctx,
				    struct conn *c, bool begins)
{
	ctx->cls = conn_class(skops, ctx->cfg->bank & 1, ctx->tp, c);
	if (begins)
		count_class(ctx->counters, ctx->cls ? ctx->cls->id : 0, c->outgoing);
	if (unlikely(!ctx->cls || !ctx->cls->id))
		return false;
	if (ctx->cls->flags & CLASS_LEAVE) {
		if (begins)
			count(COUNT_LEFT);
		return false;
	}
	ctx->policy = path_policy_find(ctx->cls->id, c->remote,
				       unlikely(ctx->cls->flags & CLASS_OWN_SCOPE) ? bpf_get_netns_cookie(skops) : 0);
	ctx->yield = owned(skops, ctx);
	return true;
}

/* Sets what must be set after an outgoing connection's handshake: fields first, because
 * a congestion control starts from the current window. */
static __always_inline void on_late(struct bpf_sock_ops *skops, const struct conn_ctx *ctx,
				    struct track *late)
{
	/* The policy may have expired during the handshake. Another class: rules changed meanwhile. */
	bool valid = ctx->policy && ctx->now < ctx->policy->expires_ns && ctx->cls && ctx->cls->id == late->class;

	if (valid)
		apply_established(skops, ctx, late);
	if (ctx->tp) {
		if (valid)
			peer_shorten_rto_min(skops, ctx->tp, late, ctx->policy, ~ctx->yield);
		late->flags |= apply_cc(skops, ctx->tp, ctx->cfg, late);
	}
}

/* The state of a connection's congestion control is about to change. */
SEC("tp_btf/tcp_cong_state_set")
int tcpilot_undone(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct known k;

	if (unlikely(tp && undo_shown(tp, ctx[1])) && known_find(&k, sk))
		undo_note(tp, k.track, ctx[1]);
	return 0;
}

SEC("sockops")
int tcpilot_sockops(struct bpf_sock_ops *skops)
{
	__u32 op = skops->op, zero = 0;
	struct track *late = NULL;
	struct conn_ctx ctx = {};
	struct conn c = {};
	bool begins;

	/* Most calls of a connection end here. */
	ctx.cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	if (!ctx.cfg || op > 31 || !((ALWAYS | ctx.cfg->requests) & (1U << op)))
		return 1;
	if (unlikely(op == BPF_SOCK_OPS_RTO_CB || op == BPF_SOCK_OPS_RETRANS_CB || op == BPF_SOCK_OPS_STATE_CB)) {
		on_event(skops);
		if (op == BPF_SOCK_OPS_STATE_CB && skops->args[1] == TCP_CLOSE) {
			ctx.tp = skops_tcp(skops);
			if (ctx.tp && tcp_is_mptcp(ctx.tp))
				bpf_tail_call(skops, &mptcp_ends, 0);
		}
		return 1;
	}
	if (op == BPF_SOCK_OPS_TIMEOUT_INIT) {
		if (skops->is_fullsock && (syn_timeout_taken(skops) || raise_syn_retries(skops)))
			return 1;
		if (!(ctx.cfg->requests & (skops->is_fullsock ? REQUEST_SYN : REQUEST_SYNACK | REQUEST_ADAPTED_SYNACK)))
			return 1;
		if (!skops->is_fullsock && !(ctx.cfg->requests & REQUEST_SYNACK) && !synack_affordable())
			return 1;
	}
	if (unlikely(op == BPF_SOCK_OPS_RTT_CB)) {
		limit_rtt(skops);
		on_round_trip(skops, bpf_ktime_get_ns() < ctx.cfg->lease_ns);
		return 1;
	}
	if (unlikely(op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)) {
		peer_write(skops);
		return 1;
	}
	if (unlikely(op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)) {
		if (skops->is_fullsock) {
			peer_reserve(skops);
			return 1;
		}
		if (!peer_asked(skops))
			return 1;
	}
	begins = op == BPF_SOCK_OPS_TCP_CONNECT_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
	ctx.tp = skops_tcp(skops);
	if (ctx.tp && (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB))
		ctx.now = established_ns(ctx.tp, op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB);
	else
		ctx.now = bpf_ktime_get_ns();
	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB) {
		if (ctx.tp && unlikely(tcp_ca_chosen(ctx.tp)))
			restore_cc(skops);
		late = on_active_established(skops, ctx.tp, ctx.now);
		if (!late)
			return 1;
	}
	ctx.counters = counters_here();
	if (!ctx.counters)
		return 1;
	if (begins && ctx.tp) {
		forget(skops, ctx.tp, ctx.cfg);
		if (unlikely(ctx.cfg->limits))
			limit_forget(skops);
		if (op == BPF_SOCK_OPS_TCP_CONNECT_CB)
			restore_syn_retries(skops, ctx.tp);
	}
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB &&
	    unlikely(skops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
		peer_clear_flag(skops);	/* it may have inherited the flag from its listener */
	/* Without a daemon the lease expires: then connections keep kernel defaults. */
	if (unlikely(ctx.now >= ctx.cfg->lease_ns))
		return 1;

	if (unlikely(op == BPF_SOCK_OPS_TCP_LISTEN_CB)) {
		peer_listen(skops);
		return 1;
	}
	c.outgoing = op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && ctx.tp;
	barrier_var(late);	/* otherwise clang tests op, and the verifier loses track */
	if ((!late || (late->flags & F_FIELDS)) && !look_up(skops, &ctx, &c, begins) && !late) {
		if (begins)
			begin_under_limits(skops, ctx.cfg, 0);
		return 1;
	}
	barrier_var(late);
	if (late) {
		on_late(skops, &ctx, late);
	} else if (begins) {
		on_begin(skops, &ctx, &c);
		begin_under_limits(skops, ctx.cfg, ctx.cls->limit);	/* last, because a rule may set the pacing rate as well */
	} else {
		on_request(skops, &ctx, &c);
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
