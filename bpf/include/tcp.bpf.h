/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's own structs, cut down to the members that are read (relocated by
 * CO-RE at load), and small accessors that keep the kernel's names. */
#ifndef TCPILOT_TCP_BPF_H
#define TCPILOT_TCP_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "compat.bpf.h"

#define AF_INET 2
#define AF_INET6 10
#define SOL_IP 0
#define SOL_SOCKET 1
#define SOL_TCP 6
#define SOL_IPV6 41
#define SO_MAX_PACING_RATE 47
#define SO_PRIORITY 12
#define IP_TOS 1
#define IPV6_TCLASS 67
#define TCP_SYNCNT 7
#define TCP_CONGESTION 13
#define TCP_NOTSENT_LOWAT 25
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008	/* since Linux 6.12; older headers lack it */

enum {				/* include/net/tcp_states.h */
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT = 2,
	TCP_SYN_RECV = 3,
	TCP_FIN_WAIT1 = 4,
	TCP_FIN_WAIT2 = 5,
	TCP_CLOSE = 7,
	TCP_CLOSE_WAIT = 8,
	TCP_LAST_ACK = 9,
	TCP_LISTEN = 10,
	TCP_CLOSING = 11,
};

enum {				/* sets of them */
	/* in which data may flow at least in one direction */
	LIVE_STATES = 1 << TCP_ESTABLISHED | 1 << TCP_FIN_WAIT1 | 1 << TCP_FIN_WAIT2 |
		      1 << TCP_CLOSE_WAIT,
	/* in which a connection counts as one of its path: until its socket is unhashed */
	FLOW_STATES = LIVE_STATES | 1 << TCP_LAST_ACK | 1 << TCP_CLOSING |
		      1 << TCP_SYN_RECV, /* TCP Fast Open */
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct netns_ipv4 {
	const struct tcp_congestion_ops *tcp_congestion_control;
	__u8 sysctl_tcp_syn_retries;
	__u8 sysctl_tcp_synack_retries;
	__u8 sysctl_tcp_no_ssthresh_metrics_save;
	__u8 sysctl_tcp_moderate_rcvbuf;
	int sysctl_tcp_wmem[3];
	int sysctl_tcp_rmem[3];
};

struct net {
	__u64 net_cookie;
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned int skc_hash;	/* of addresses and ports, with a secret key */
	possible_net_t skc_net;
	struct sock *skc_listener;	/* of a request socket */
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	struct {
		__s64 counter;
	} skc_cookie;
	unsigned long skc_flags;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[];
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_common __sk_common;
	__u32 sk_priority;
	__u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	unsigned int sk_gso_max_size;
	int sk_rcvbuf;
	int sk_sndbuf;
	__u8 sk_userlocks : 4;
	int sk_rcvlowat;
	int sk_err;
	__u8 sk_shutdown;
	struct sock_cgroup_data sk_cgrp_data;
};

struct ipv6_pinfo {
	__u8 tclass;
};

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	__be16 inet_sport;
	__u8 tos;
};

struct rate_sample {		/* what an ACK shows about the packet it acknowledges */
	__u64 prior_mstamp;
	__u32 prior_delivered;
	__u32 prior_delivered_ce;
	__s32 delivered;
	__s32 delivered_ce;
	long interval_us;
	__u32 snd_interval_us;
	__u32 rcv_interval_us;
	long rtt_us;
	int losses;
	__u32 acked_sacked;
	__u32 prior_in_flight;
	bool is_app_limited;
	bool is_retrans;
	bool is_ack_delayed;
};

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
	__u32 in_flight;
};

/* A program's arguments are typed by the kernel's prototypes, not by these: that
 * of cong_control changed with Linux 6.10 (see cc.bpf.h). */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, int event);
	void (*cwnd_event_tx_start)(struct sock *sk);	/* since Linux 7.1 */
	void (*in_ack_event)(struct sock *sk, __u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*min_tso_segs)(struct sock *sk);
	void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
	__u32 (*undo_cwnd)(struct sock *sk);
	__u32 (*sndbuf_expand)(struct sock *sk);
	char name[16];
	__u32 flags;
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u32 icsk_rto;
	__u32 icsk_rto_min;	/* jiffies */
	__u32 icsk_delack_max;	/* jiffies */
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u8 icsk_ca_state : 5, icsk_ca_initialized : 1, icsk_ca_setsockopt : 1,
		icsk_ca_dst_locked : 1;
	struct {
		__u8 rskq_defer_accept;
	} icsk_accept_queue;
	__u8 icsk_syn_retries;	/* set by TCP_SYNCNT; 0: the sysctl applies */
	__u8 icsk_backoff;	/* how often icsk_rto was doubled */
	__u8 icsk_retransmits;	/* retransmission timeouts without an answer */
	__u8 icsk_probes_out;	/* keepalive or zero-window probes without an answer */
	struct {
		__u8 pending;
	} icsk_ack;
	__u32 icsk_user_timeout; /* TCP_USER_TIMEOUT, milliseconds; 0: none */
	__u64 icsk_ca_priv[13];
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	__u16 sack_ok : 3;	/* SACK was agreed */
};

struct tcp_rack {
	__u32 rtt_us;		/* of the packet that was sent last among those delivered */
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_rack rack;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u32 window_clamp;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 retrans_out;
	__u8 is_cwnd_limited : 1;
	__u32 mdev_us;
	__u32 rttvar_us;
	__u32 lost;
	__u32 snd_ssthresh;
	struct minmax rtt_min;
	__u32 segs_out;
	__u32 segs_in;
	__u32 data_segs_in;
	__u32 data_segs_out;
	__u8 chrono_type : 2;
	__u32 chrono_start;
	__u32 chrono_stat[3];
	__u32 write_seq;
	__u32 lsndtime;
	__u32 notsent_lowat;
	__u64 tcp_wstamp_ns;
	__u64 tcp_clock_cache;
	__u64 tcp_mstamp;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u8 ecn_flags;
	__u8 rate_app_limited : 1;
	__u32 srtt_us;
	__u32 packets_out;
	__u32 max_packets_out;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 app_limited;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u64 bytes_retrans;
	__u64 bytes_sent;
	__u8 bpf_sock_ops_cb_flags;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u64 delivered_mstamp;
	__u32 snd_cwnd_cnt;
	__u32 snd_cwnd_clamp;
	__u32 snd_cwnd_stamp;
	__u32 prior_cwnd;
	__u32 prior_ssthresh;
	__u32 undo_marker;	/* snd_una when the window was reduced; 0: that cannot be undone, or has been */
	int undo_retrans;	/* segments retransmitted since then, less those that the peer reported as received twice */
	__u32 total_retrans;
	__u32 dsack_dups;
	struct tcp_options_received rx_opt;
	__u16 total_rto;
	bool is_mptcp;
	void *fastopen_rsk;
};

#pragma clang attribute pop

#define TCP_INFINITE_SSTHRESH 0x7fffffff	/* include/net/tcp.h */

enum {				/* include/uapi/linux/tcp.h, enum tcp_ca_state */
	TCP_CA_OPEN,
	TCP_CA_DISORDER,
	TCP_CA_CWR,
	TCP_CA_RECOVERY,
	TCP_CA_LOSS,
};

static __always_inline struct sock *tcp_sk_sock(struct tcp_sock *tp)
{
	return &tp->inet_conn.icsk_inet.sk;
}

static __always_inline struct tcp_sock *skops_tcp(struct bpf_sock_ops *skops)
{
	struct bpf_sock *sk = skops->sk;

	return sk ? bpf_skc_to_tcp_sock(sk) : NULL;
}

/* The time at which the kernel began to process the segment that completes a handshake: it has just
 * read CLOCK_MONOTONIC (tcp_mstamp_refresh in tcp_rcv_state_process). An incoming connection that a SYN with
 * data opens has the time of its listener instead (tcp_fastopen_create_child). An outgoing one that TCP_REPAIR
 * restores has an old time or 0 (tcp_connect). */
static __always_inline __u64 established_ns(struct tcp_sock *tp, bool outgoing)
{
	if (!outgoing && unlikely(tp->fastopen_rsk))
		return bpf_ktime_get_ns();
	return tp->tcp_clock_cache;
}

/* MPTCP counts retransmissions and windows over all subflows. */
static __always_inline bool tcp_is_mptcp(struct tcp_sock *tp)
{
	return bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

static __always_inline bool tcp_has_sack(struct tcp_sock *tp)
{
	return BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.sack_ok);
}

/* The name of the congestion control in use, as two words to compare or copy. */
struct cc_words {
	__u64 w[2];
};

static __always_inline bool cc_is(struct cc_words a, const __u8 name[CC_NAME])
{
	const __u64 *b = (const __u64 *)name;

	return a.w[0] == b[0] && a.w[1] == b[1];
}

static __always_inline struct cc_words ca_ops_name(const struct tcp_congestion_ops *ops)
{
	struct cc_words name = {};

	if (ops) {
		name.w[0] = *(const __u64 *)&ops->name[0];
		name.w[1] = *(const __u64 *)&ops->name[8];
	}
	return name;
}

static __always_inline struct cc_words tcp_ca_name(struct tcp_sock *tp)
{
	return ca_ops_name(tp->inet_conn.icsk_ca_ops);
}

/* The default congestion control of the socket's network namespace. */
static __always_inline struct cc_words tcp_ca_default_name(struct tcp_sock *tp)
{
	struct net *net = tcp_sk_sock(tp)->__sk_common.skc_net.net;

	return ca_ops_name(net->ipv4.tcp_congestion_control);
}

/* Whether this is one of tcpilot's own congestion controls, whose private state begins with
 * struct cc_state. The number is the first word of its name, "tcpilot_", in the little-endian
 * byte order of all objects here. */
static __always_inline bool cc_ours(struct cc_words name)
{
	return name.w[0] == 0x5f746f6c69706374ULL;
}

static __always_inline __u32 tcp_ca_state(struct tcp_sock *tp)
{
	return BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
}

/* The application asked for its congestion control (or inherited it from a
 * listener that did), or the route demands one. */
static __always_inline bool tcp_ca_chosen(struct tcp_sock *tp)
{
	return BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_setsockopt) ||
	       BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_dst_locked);
}

/* Whether the congestion control is the default of the namespace. A route may name
 * another one without the lock that tcp_ca_chosen checks. */
static __always_inline bool tcp_ca_default(struct tcp_sock *tp)
{
	struct net *net = tcp_sk_sock(tp)->__sk_common.skc_net.net;

	return tp->inet_conn.icsk_ca_ops == net->ipv4.tcp_congestion_control;
}

static __always_inline __u64 sock_cgroup_id(struct sock *sk)
{
	struct cgroup *cg = sk->sk_cgrp_data.cgroup;
	struct kernfs_node *kn = cg ? cg->kn : NULL;

	return kn ? kn->id : 0;
}

/* Writes addr as a v4-mapped IPv6 address (RFC 4291, 2.5.5.2). */
static __always_inline void map_v4(__u32 out[4], __be32 addr)
{
	out[0] = 0;
	out[1] = 0;
	out[2] = bpf_htonl(0xffff);
	out[3] = addr;
}

static __always_inline bool is_v4_mapped(const __u32 addr[4])
{
	return !(addr[0] | addr[1]) && addr[2] == bpf_htonl(0xffff);
}

static __always_inline void sock_addresses(struct sock_common *c, __u32 local[4], __u32 remote[4])
{
	remote[0] = remote[1] = remote[2] = remote[3] = 0;
	if (c->skc_family == AF_INET6)
		for (int i = 0; i < 4; i++) {
			remote[i] = c->skc_v6_daddr.in6_u.u6_addr32[i];
			local[i] = c->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
		}
	if (!(remote[0] | remote[1] | remote[2] | remote[3])) {
		map_v4(remote, c->skc_daddr);
		map_v4(local, c->skc_rcv_saddr);
	}
}

#endif
