/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Careful resume (RFC 9959): once the first round trip of a connection has shown that the path is as it was, the
 * congestion window jumps to the connection's share of the packets in flight that the path has shown to hold, instead of
 * doubling for several round trips. If packets of the jump are lost, the window falls to what arrived.
 *
 * The kernel lets sock_ops programs set the window only before data is sent, and congestion controls in BPF at any
 * time. So the connection gets the control of resume.bpf.c for a moment, whose init sets the window, and then the one
 * that it had.
 *
 * Unlike in the RFC, the jump comes with the ACK of the first packets and not of the whole initial window, because the
 * program is called once a round trip. It is paced: if packets of the initial window turn out to be lost meanwhile, that
 * ends it as well.
 *
 * Until the packets of the jump are acknowledged, the window is capped by the slow start threshold: connections that jump to
 * their shares together fill the path, and would overflow it if all doubled their windows at the same time. Because of the
 * threshold, the kernel also paces the window over five sixths of a round trip (tcp_pacing_ca_ratio), and not over half of
 * one. bbr has no threshold.
 */
#ifndef TCPILOT_RESUME_BPF_H
#define TCPILOT_RESUME_BPF_H

#include "init_cwnd.bpf.h"
#include "policy.bpf.h"
#include "same_rule.bpf.h"

#define RESUME_BIT (1ULL << FIELD_RESUME_CWND)

/* The name under which user space has registered the control of resume.bpf.c. */
const volatile __u8 resume_cc[CC_NAME];

/* By user space: the control is registered. */
volatile __u32 resumes;

/* Sets the congestion window and the slow start threshold, in packets; 0 leaves one as it is, NO_SSTHRESH takes the threshold
 * away. The congestion control begins anew with them. */
static __always_inline bool set_window(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct track *t,
				       __u16 cwnd, __u16 ssthresh)
{
	union resume_window *shared, w = { .cookie = t->cookie, .cwnd = cwnd, .ssthresh = ssthresh };
	struct cc_words had = tcp_ca_name(tp);
	char reno[] = "reno";
	__u32 zero = 0;

	shared = bpf_map_lookup_elem(&resume_windows, &zero);
	if (!shared)
		return false;
	*(volatile __u64 *)&shared->word = w.word;
	if (bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, (void *)resume_cc, CC_NAME)) {
		count_failure(FIELD_RESUME_CWND);
		return false;
	}
	/* The kernel's dctcp without ECN cannot be set again: it is Reno by another name. */
	if (bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, &had, CC_NAME) &&
	    bpf_setsockopt(skops, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1)) {
		t->flags |= F_ARM_FAILED;
		count(COUNT_CC_FAILED);
	}
	return true;
}

/* Whether nothing speaks against a jump: nothing was lost, reordered or marked, no queue is building, the connection has no slow
 * start threshold (a route's, a clamp's, or one of the kernel's metrics, in which that of a jump would be saved), and no route
 * demands the congestion control. */
static __always_inline bool path_confirmed(struct tcp_sock *tp)
{
	__u32 least = tp->rtt_min.s[0].v, rtt = tp->rack.rtt_us;

	return !tp->total_retrans && !tp->sacked_out && !tp->lost_out && !tp->delivered_ce &&
	       tcp_ca_state(tp) == TCP_CA_OPEN && tp->snd_ssthresh == TCP_INFINITE_SSTHRESH &&
	       tcp_sk_sock(tp)->__sk_common.skc_net.net->ipv4.sysctl_tcp_no_ssthresh_metrics_save &&
	       rtt <= least + least / 4 + USEC_PER_SEC / 1000 &&
	       !BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_dst_locked);
}

/* The window to jump to, in packets, or 0. It is worth it from four times the present one on: slow start would overtake
 * a lower one, which is capped for two round trips, in the third. */
static __always_inline __u32 resume_share(struct tcp_sock *tp, const struct track *t)
{
	__u64 now = bpf_ktime_get_ns();
	const struct path_policy *p = conn_policy(tp, t->class, now);
	struct flow_count *n;
	__u32 want, least = 4 * tp->snd_cwnd;

	if (!p || !(p->set & RESUME_BIT))
		return 0;
	want = most_window(tp, p, FIELD_RESUME_CWND);
	if (p->adapted & RESUME_BIT) {
		n = flow_row(t->flow);
		if (!n || now >= p->window_expires_ns || p->flow != t->flow)
			return 0;
		want = window_share(p, t->flow, want);
		if (want > least)	/* the present window was given a round trip ago */
			want = tp->snd_cwnd + take_packets(n, p, now, tp->srtt_us >> 3, least - tp->snd_cwnd, want - tp->snd_cwnd);
	}
	return want > least ? want : 0;
}

/* A connection is established whose window may jump later. */
static __always_inline void await_resume(struct bpf_sock_ops *skops, struct track *t)
{
	if (!resumes)
		return;
	t->resume_phase = RESUME_RECONNAISSANCE;
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG |
				  BPF_SOCK_OPS_RETRANS_CB_FLAG);
}

static __always_inline bool recovers(struct tcp_sock *tp)
{
	return tcp_ca_state(tp) >= TCP_CA_RECOVERY;
}

/* Whether the connection is so young that its first sample is still to come, and it has the rule that it began with. */
static __always_inline bool begins_still(struct tcp_sock *tp, const struct track *t)
{
	struct runtime_config *cfg;
	__u32 zero = 0;

	cfg = bpf_map_lookup_elem(&runtime_config, &zero);
	return cfg && has_same_rule(tp, t, cfg) &&
	       (!cfg->interval_ns || bpf_ktime_get_ns() - t->start_ns < cfg->interval_ns);
}

/* The first round trip with more data than the window allows is over, and decides: a connection that sends little keeps its
 * window. */
static __always_inline void jump(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct track *t)
{
	__u32 want;

	if (tp->write_seq - tp->snd_nxt < tp->snd_cwnd / 2 * tp->mss_cache)
		return;
	t->resume_phase = RESUME_NORMAL;
	want = path_confirmed(tp) && begins_still(tp, t) ? resume_share(tp, t) : 0;
	if (!want)
		return;
	/* From then on the kernel takes the control for one that the application chose (cc_chosen). */
	if (t->arm >= MAX_CC && cc_chosen(tp, t))
		t->flags |= F_APP_CC;
	if (!set_window(skops, tp, t, want, want))
		return;
	turn_pacing_on(skops, tp);
	t->resume_cwnd = tp->snd_cwnd;
	t->resume_phase = RESUME_UNVALIDATED;
	count(COUNT_RESUMED);
}

/* What the connection did not use of the window is taken back, to what slow start would allow (tcp_is_cwnd_limited). Slow start
 * goes on from there, and otherwise once the jump is validated. */
static __always_inline void after_jump(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct track *t)
{
	__u32 used = 2 * tp->max_packets_out, ssthresh = 0;

	if (used < t->init_cwnd)
		used = t->init_cwnd;
	if (used < TCP_INIT_CWND)
		used = TCP_INIT_CWND;
	if (used >= tp->snd_cwnd / 2)
		used = 0;
	if (is_capped(tp, t) && (used || t->resume_phase == RESUME_VALIDATING))
		ssthresh = NO_SSTHRESH;
	if ((used || ssthresh) && set_window(skops, tp, t, used, ssthresh) && used)
		t->resume_cwnd = used;
}

/* Packets of the jump were lost or marked ("safe retreat"): the slow start threshold falls to what arrived of them, where the
 * kernel would leave 0.5 to 0.7 of the jump. The RFC leaves half of that: on a path with a tenth of the rate, 3 MB then took 1.5 times as
 * long as without a jump, and take 1.04 times with all of it. Controls without a threshold, as bbr, answer losses by themselves. */
static __always_inline void retreat(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct track *t)
{
	__u32 to = tp->rate_delivered;	/* in about the latest round trip (tcp_rate_gen) */

	t->resume_phase = RESUME_RETREAT;
	if (to < TCP_INIT_CWND)
		to = TCP_INIT_CWND;
	if (tp->snd_ssthresh < TCP_INFINITE_SSTHRESH && to < tp->snd_ssthresh && set_window(skops, tp, t, 0, to))
		count(COUNT_RETREATED);
}

/* A round trip of a connection is over.
 *
 * A global function, so that it is verified once and not at every call. */
__noinline int resume_cwnd(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct track *t = recall(skops, tp);

	if (!tp || !t)
		return 0;
	if (is_unvalidated(t) && tp->delivered_ce && tcp_ca_state(tp) == TCP_CA_CWR) {
		retreat(skops, tp, t);
		return 0;
	}
	switch (t->resume_phase) {
	case RESUME_RECONNAISSANCE:
		jump(skops, tp, t);
		break;
	case RESUME_UNVALIDATED:
		after_jump(skops, tp, t);
		t->resume_phase = RESUME_VALIDATING;
		break;
	case RESUME_VALIDATING:
		after_jump(skops, tp, t);
		if (!is_capped(tp, t))	/* else again, at the end of the next round trip */
			t->resume_phase = RESUME_NORMAL;
		break;
	default:
		if (!recovers(tp) && (!is_capped(tp, t) || set_window(skops, tp, t, 0, NO_SSTHRESH)))
			t->resume_phase = RESUME_NORMAL;
	}
	return 0;
}

/* Packets are retransmitted. */
static __always_inline void resume_lost(struct bpf_sock_ops *skops, struct tcp_sock *tp, struct track *t)
{
	if (is_unvalidated(t) && !skops->args[2] && recovers(tp))
		retreat(skops, tp, t);
}

#endif
