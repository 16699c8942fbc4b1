/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The peer option: two hosts with tcpilot tell each other in SYN and SYN-ACK by how long they delay ACKs
 * at most, and how much they can receive at a time. A sender that knows the former may
 * have a shorter RTO_MIN (docs/design/0023-peer-option.md).
 *
 * It is an experimental option (RFC 6994), which other hosts ignore. Only the first SYN of a
 * connection and the first SYN-ACK have it. The kernel asks for options only on sockets with
 * BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG. An outgoing connection has this flag from its beginning until it is
 * established. A listener has it for its SYN-ACKs (peer_listen.bpf.h); its children inherit it, and lose
 * it when they are established.
 *
 * Needs the maps peer_requests and peer_hosts of the including object.
 */
#ifndef TCPILOT_PEER_BPF_H
#define TCPILOT_PEER_BPF_H

#include "decide.bpf.h"
#include "remember.bpf.h"
#include "peer_listen.bpf.h"
#include "rto_min.bpf.h"

enum {
	PEER_KIND = 254,	/* for experiments (RFC 4727); bpf_load_hdr_opt compares the identifier as well */
	PEER_EXID = 0x5450,	/* experiment identifier (RFC 6994, 3.1); not registered at IANA */
	PEER_VERSION = 1 << 4,	/* in the upper four bits; the lower ones are sent as 0, and ignored */
	PEER_DELACK_MS = 40,	/* TCP_DELACK_MIN: the longest delay of an ACK, unless round trips take longer */
	PEER_MOST_MS = 200,	/* TCP_DELACK_MAX: the longest delay that is believed */
	PEER_MOST_LOG2 = 30,	/* the largest window (RFC 7323, 2.3) */
	TCP_FLAG_SYN = 2,	/* of bpf_sock_ops.skb_tcp_flags */
	/* flags of programs that read options */
	PEER_PARSERS = BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG,
};

/* A handshake takes no longer than this on the side of the server: 63 s with 5 retransmissions
 * (tcp_synack_retries). */
#define PEER_HANDSHAKE_NS (64 * NSEC_PER_SEC)

/* If a host answers only the SYN that was sent again without the option, its SYNs have no option for a
 * day; for a minute if it answered one with the option within the last day, because then the SYN was
 * probably lost by chance. That it answers is noted once an hour. */
#define PEER_DAY_NS (86400 * NSEC_PER_SEC)
#define PEER_MINUTE_NS (60 * NSEC_PER_SEC)
#define PEER_HOUR_NS (3600 * NSEC_PER_SEC)

struct peer_option {		/* on the wire: two words of 32 bits */
	__u8 kind;
	__u8 len;
	__be16 exid;
	__u8 version;
	__u8 receive_log2;	/* 0: unknown */
	__be16 delack_max_ms;
};

/* ---- the option ---------------------------------------------------------- */

/* Reads the option of the packet that is being processed, or of the SYN (BPF_LOAD_HDR_OPT_TCP_SYN). An option
 * of another length or version, or with a delay of 0, counts as none; values that are too large are
 * bounded. */
static __always_inline struct peer_told peer_load(struct bpf_sock_ops *skops, __u64 flags)
{
	struct peer_option o = { .kind = PEER_KIND, .len = 4, .exid = bpf_htons(PEER_EXID) };
	struct peer_told t = {};
	__u16 ms;

	if (bpf_load_hdr_opt(skops, &o, sizeof(o), flags) != sizeof(o) || (o.version & 0xf0) != PEER_VERSION)
		return t;
	ms = bpf_ntohs(o.delack_max_ms);
	if (!ms)
		return t;
	t.delack_max_ms = ms > PEER_MOST_MS ? PEER_MOST_MS : ms;
	t.receive_log2 = o.receive_log2 > PEER_MOST_LOG2 ? PEER_MOST_LOG2 : o.receive_log2;
	return t;
}

static __always_inline bool peer_store(struct bpf_sock_ops *skops, __u8 told_ms, __u8 receive_log2)
{
	struct peer_option o = {
		.kind = PEER_KIND,
		.len = sizeof(o),
		.exid = bpf_htons(PEER_EXID),
		.version = PEER_VERSION,
		.receive_log2 = receive_log2,
		.delack_max_ms = bpf_htons(told_ms),
	};

	if (bpf_store_hdr_opt(skops, &o, sizeof(o), 0))
		return false;
	count(COUNT_PEER_SENT);
	return true;
}

/* The longest delay of ACKs to tell the peer, in milliseconds, if DELACK_MAX is `us`. With round trips
 * longer than PEER_DELACK_MS the kernel delays ACKs for longer; but then the retransmission timeout does
 * not depend on RTO_MIN. */
static __always_inline __u8 peer_delack_ms(__u64 us)
{
	return us >= PEER_DELACK_MS * 1000 ? PEER_DELACK_MS : (us + 999) / 1000;
}

/* ---- whom it is sent to -------------------------------------------------- */

/* Whether the remote address is private, loopback or link-local, or in the same network as the local one
 * (/24, /64). */
static __always_inline bool peer_near(const struct conn *c)
{
	__u32 a = bpf_ntohl(c->remote[0]), v4;

	if (!is_v4_mapped(c->remote))
		return (a & 0xfe000000) == 0xfc000000 || (a & 0xffc00000) == 0xfe800000 ||
		       (c->remote[0] == c->local[0] && c->remote[1] == c->local[1]);
	v4 = bpf_ntohl(c->remote[3]);
	return v4 >> 24 == 10 || v4 >> 24 == 127 || v4 >> 20 == 0xac1 || v4 >> 16 == 0xc0a8 ||
	       v4 >> 16 == 0xa9fe || v4 >> 22 == 0x6440 >> 6 || /* RFC 1918, 1122, 3927, 6598 */
	       !((c->remote[3] ^ c->local[3]) & bpf_htonl(0xffffff00));
}

static __always_inline bool peer_wanted(__u32 class_flags, const struct conn *c)
{
	return (class_flags & CLASS_PEER_ANY) || peer_near(c);
}

/* ---- the client's side --------------------------------------------------- */

static __always_inline void peer_address(struct peer_address *a, struct tcp_sock *tp, const __u32 remote[4])
{
	a->netns = tcp_sk_sock(tp)->__sk_common.skc_net.net->net_cookie;
	__builtin_memcpy(a->remote, remote, sizeof(a->remote));
}

/* An outgoing connection begins. Returns track.told_ms.
 *
 * This and the following __noinline functions are global, so that they are verified once. */
__noinline int peer_tells(struct bpf_sock_ops *skops, __u32 class_flags)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct peer_address to;
	const struct peer_host *h;
	struct conn c = {};

	conn_read(skops, &c);
	if (!tp || !peer_wanted(class_flags, &c) || tcp_is_mptcp(tp))
		return 0;
	peer_address(&to, tp, c.remote);
	h = bpf_map_lookup_elem(&peer_hosts, &to);
	if (h && bpf_ktime_get_ns() < h->without_ns) {
		count(COUNT_PEER_BLOCKED);
		return 0;
	}
	return peer_delack_ms(jiffies_us(tp->inet_conn.icsk_delack_max));
}

/* Sets the flag, unless another program has set it: that program's flag must not be taken back later. */
static __always_inline void peer_set_flag(struct bpf_sock_ops *skops)
{
	__u32 flags = skops->bpf_sock_ops_cb_flags, flag = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	struct bpf_sock *sk = skops->sk;

	if (sk && !(flags & flag) && peer_mark(sk))
		bpf_sock_ops_cb_flags_set(skops, flags | flag);
}

/* A connection is established, or sends something else than a SYN. Takes the flag back if tcpilot set it,
 * unless another program reads options: that one may rely on the flag by now. */
__noinline int peer_clear_flag(struct bpf_sock_ops *skops)
{
	__u32 flags = skops->bpf_sock_ops_cb_flags;
	struct bpf_sock *sk = skops->sk;

	if (!sk || bpf_sk_storage_delete(&peer_callbacks, sk))
		return 0;
	if (!(flags & PEER_PARSERS))
		bpf_sock_ops_cb_flags_set(skops, flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	return 0;
}

/* A full socket (not a request socket) is about to send. Reserves room in the first SYN, and in no other
 * packet: it would be taken from data. */
__noinline int peer_reserve(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct track *t;

	if (skops->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS)
		return 0;
	if (!(skops->skb_tcp_flags & TCP_FLAG_SYN))
		return peer_clear_flag(skops);
	t = recall(skops, tp);
	if (!tp || !t || !t->told_ms)
		return 0;
	t->more_flags &= ~PEER_RESERVED;
	if (tp->total_retrans) {
		if ((t->more_flags & PEER_SENT) && !(t->more_flags & PEER_RESENT)) {
			t->more_flags |= PEER_RESENT;
			count(COUNT_PEER_RESENT);
		}
		return 0;
	}
	if (!bpf_reserve_hdr_opt(skops, sizeof(struct peer_option), 0))
		t->more_flags |= PEER_RESERVED;
	return 0;
}

/* Remembers whether a host answers SYNs with the option. */
static __always_inline void peer_host_answered(const struct track *t, const struct peer_address *from, __u64 now)
{
	const struct peer_host *was = bpf_map_lookup_elem(&peer_hosts, from);
	struct peer_host h = {};

	if (was)
		h = *was;
	if (t->peer_delack_max_ms || !(t->more_flags & PEER_RESENT)) {
		if (h.answered_ns && now - h.answered_ns < PEER_HOUR_NS)
			return;
		h.answered_ns = now;
	} else {
		h.without_ns = now + (h.answered_ns && now - h.answered_ns < PEER_DAY_NS ? PEER_MINUTE_NS : PEER_DAY_NS);
	}
	bpf_map_update_elem(&peer_hosts, from, &h, BPF_ANY);
}

/* The SYN-ACK has arrived. */
__noinline int peer_answered(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);
	struct track *t = recall(skops, tp);
	struct peer_address from;
	struct peer_told peer;
	struct conn c = {};

	if (!tp || !t)
		return 0;
	peer_clear_flag(skops);
	if (!(t->more_flags & PEER_SENT))
		return 0;
	peer = peer_load(skops, 0);
	if (peer.delack_max_ms)
		count(COUNT_PEER_SEEN);
	t->peer_delack_max_ms = peer.delack_max_ms;
	t->peer_receive_log2 = peer.receive_log2;
	conn_read(skops, &c);
	peer_address(&from, tp, c.remote);
	peer_host_answered(t, &from, bpf_ktime_get_ns());
	return 0;
}

/* ---- the server's side --------------------------------------------------- */

/* A socket begins to listen, and some rule has the option. */
__noinline int peer_listen(struct bpf_sock_ops *skops)
{
	struct tcp_sock *tp = skops_tcp(skops);

	if (!tp)
		return 0;
	netns_receive_note(tp);
	peer_set_flag(skops);
	return 0;
}

static __always_inline void peer_key(struct peer_handshake *k, struct bpf_sock_ops *skops, const struct conn *c)
{
	k->netns = bpf_get_netns_cookie(skops);
	__builtin_memcpy(k->remote, c->remote, sizeof(k->remote));
	__builtin_memcpy(k->local, c->local, sizeof(k->local));
	k->remote_port = c->remote_port;
	k->local_port = c->local_port;
}

/* What the option of the SYN told that a request socket answers, as delack_max_ms << 8 | receive_log2; 0:
 * nothing. args[0] is not 0 for a SYN cookie, with which nothing can be kept. The kernel has the SYN only for
 * the first SYN-ACK, unless the application has it saved (TCP_SAVE_SYN). */
__noinline int peer_asked(struct bpf_sock_ops *skops)
{
	struct peer_told t;

	if (skops->args[0])
		return 0;
	t = peer_load(skops, BPF_LOAD_HDR_OPT_TCP_SYN);
	return t.delack_max_ms << 8 | t.receive_log2;
}

/* Reserves room in a SYN-ACK for the option, with the delay told_ms, which follows from the policy. */
__noinline int peer_reply(struct bpf_sock_ops *skops, __u32 class_flags, __u32 told_ms)
{
	struct peer_request r = { .at_ns = bpf_ktime_get_ns() };
	struct peer_handshake k = {};
	struct peer_request *was;
	struct conn c = {};
	__u32 asked;

	conn_read(skops, &c);
	if (!peer_wanted(class_flags, &c))
		return 0;
	peer_key(&k, skops, &c);
	was = bpf_map_lookup_elem(&peer_requests, &k);
	if (was && r.at_ns - was->at_ns < PEER_HANDSHAKE_NS) {
		was->told_ms = 0;	/* sent again: without it */
		return 0;
	}
	asked = peer_asked(skops);
	r.peer.delack_max_ms = asked >> 8;
	r.peer.receive_log2 = asked;
	count(COUNT_PEER_SEEN);
	if (!bpf_reserve_hdr_opt(skops, sizeof(struct peer_option), 0))
		r.told_ms = told_ms;
	bpf_map_update_elem(&peer_requests, &k, &r, BPF_ANY);
	return 0;
}

/* Writes the option into the SYN or SYN-ACK in which there is room for it. */
__noinline int peer_write(struct bpf_sock_ops *skops)
{
	struct peer_handshake k = {};
	struct peer_request *r;
	struct conn c = {};
	struct track *t;

	if (skops->is_fullsock) {
		struct tcp_sock *tp = skops_tcp(skops);

		t = recall(skops, tp);
		if (tp && t && (t->more_flags & PEER_RESERVED) && peer_store(skops, t->told_ms, receive_log2(tp)))
			t->more_flags |= PEER_SENT;
		return 0;
	}
	conn_read(skops, &c);
	peer_key(&k, skops, &c);
	r = bpf_map_lookup_elem(&peer_requests, &k);
	if (r && r->told_ms && !r->sent)
		r->sent = peer_store(skops, r->told_ms, netns_receive_log2(k.netns));
	return 0;
}

/* An incoming connection of a rule with the option is established. Returns what its peer told, as peer_asked
 * does, and in the upper 16 bits what the peer was told, in milliseconds. */
__noinline __u32 peer_accepted(struct bpf_sock_ops *skops)
{
	struct peer_handshake k = {};
	const struct peer_request *r;
	struct conn c = {};
	__u32 told = 0;

	conn_read(skops, &c);
	peer_key(&k, skops, &c);
	r = bpf_map_lookup_elem(&peer_requests, &k);
	if (!r)
		return 0;
	if (bpf_ktime_get_ns() - r->at_ns < PEER_HANDSHAKE_NS)
		told = r->peer.delack_max_ms << 8 | r->peer.receive_log2 | (r->sent ? r->told_ms : 0) << 16;
	bpf_map_delete_elem(&peer_requests, &k);
	return told;
}

static __always_inline void peer_remember(struct track *t, __u32 told)
{
	t->peer_receive_log2 = told;
	t->peer_delack_max_ms = told >> 8;
	t->told_ms = told >> 16;
	if (t->told_ms)
		t->more_flags |= PEER_SENT;
}

#endif
