/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The types shared by the BPF programs and user space, and nothing else.
 *
 * Fixed widths, explicit padding, host byte order unless a comment says otherwise. Any change raises
 * ABI_VERSION: maps are never migrated.
 */
#ifndef TCPILOT_ABI_H
#define TCPILOT_ABI_H

#include "limit.h"

enum abi_limits {
	ABI_VERSION = 24,	/* in the name of the directory with the pins */
	NUM_FIELDS = 35,	/* tcp.NumFields */
	MAX_ARMS = 8,		/* path.MaxArms */
	MAX_CC = 32,		/* congestion controls known at one time */
	CC_NAME = 16,		/* TCP_CA_NAME_MAX */
	MAX_RULES = 256,	/* class.MaxRules */
	SET_WORDS = 4,		/* MAX_RULES / 64 */
	MAX_SAME_PREFIX = 8,	/* class.MaxSamePrefix */
	MAX_FEW_PREFIX = 8,	/* prefixes of a dimension that are compared in line */
	MAX_PORT_SETS = 513,	/* 256 ranges cut 65536 ports into 513 runs at most */
	BANKS = 2,		/* rule tables: one in force, one being written */
	ARM_DEFAULT = 254,	/* what a connection would get without tcpilot */
	NO_ARM = 255,
	MAX_CLASS_COUNTS = 1024,
	MAX_INHERITED = 4,	/* runtime_config.inherited */
};

/* ---- rules ------------------------------------------------------------- */

struct rule_set {
	__u64 word[SET_WORDS];
};

enum dimension {		/* class.Dim */
	DIM_REMOTE = 1 << 0,
	DIM_LOCAL = 1 << 1,
	DIM_REMOTE_PORT = 1 << 2,
	DIM_LOCAL_PORT = 1 << 3,
	DIM_CGROUP = 1 << 4,
	DIM_NETNS = 1 << 5,
	DIM_DIRECTION = 1 << 6,
	DIM_SAME_PREFIX = 1 << 7,
};

struct rule_prefix {		/* key of the prefix dimensions */
	__u32 prefixlen;	/* 32 + bits of the v4-mapped address */
	__u32 bank;
	__u8 addr[16];
};

struct rule_id {		/* key of the cgroup and namespace dimensions */
	__u32 bank;
	__u32 pad;
	__u64 id;
};

struct same_prefix {
	struct rule_set rules;
	__u8 mask[16];		/* of the v4-mapped address */
	__u32 v4;		/* 1: IPv4 only, 0: IPv6 only */
	__u32 pad;
};

struct masked_prefix {
	__u8 addr[16];
	__u8 mask[16];
	struct rule_set rules;
};

enum {				/* index into rule_bank.few */
	FEW_REMOTE,
	FEW_LOCAL,
};

struct rule_bank {		/* the rest of one rule table; what most connections need first, in one cache line */
	__u32 dims;
	__u32 num_same;
	__u32 num_few[2];	/* 0: too many prefixes, they are in the trie */
	__u32 num_rules;
	__u32 pad;
	struct rule_set outgoing;
	struct rule_set incoming;
	struct rule_set any_cgroup;
	__u64 pad_few;
	struct masked_prefix few[2][MAX_FEW_PREFIX];	/* longest first; a cache line each */
	struct rule_set any_netns;
	struct rule_set any_same;
	struct same_prefix same[MAX_SAME_PREFIX];
};

enum class_flags {
	CLASS_LEAVE = 1 << 0,
	CLASS_OWN_SCOPE = 1 << 1,
	CLASS_NAMED = 1 << 2,	/* the rule names a network namespace or a cgroup */
	CLASS_TIMEOUTS = 1 << 3, /* timeouts of its connections are answered: timeout_answers */
	CLASS_PEER_ANY = 1 << 4, /* the rule names remote addresses: the peer option is sent to all of them */
	CLASS_FOLLOW_ALL = 1 << 5, /* all connections of the rule are followed, whatever their policy says (follow.bpf.h) */
	CLASS_SWITCH = 1 << 6,	/* running connections of the rule may get another congestion control (switch.bpf.h) */
	CLASS_UNDIRECTED = 1 << 7, /* neither the rule nor one before it tells who opens a connection */
};

struct class_entry {		/* the class of the rule that matched */
	__u32 id;		/* 0: no such rule */
	__u32 flags;
	__u32 cb_flags;		/* BPF_SOCK_OPS_*_CB_FLAG for watched connections */
	__u32 watch_share;	/* share of connections watched, in 1/65536 */
	__u64 limit;		/* key of limits: the rule has a rate limit; 0: none */
	__u64 pad;
};

struct timeout_answer {		/* to repeated retransmission timeouts of a connection */
	__u32 after;		/* number of timeouts */
	__u32 share;		/* share of connections, in 1/65536 */
	__u8 cc[CC_NAME];	/* what they get */
};

/* ---- path policies ----------------------------------------------------- */

struct path_key {		/* of a trie; its first 8 bytes decide between most paths, see policy.bpf.h */
	__u32 prefixlen;
	__u32 class;		/* and PATH_V4 or PATH_SCOPED */
	__u8 rest[24];		/* the address; PATH_SCOPED: the cookie of a network namespace, then the v4-mapped address */
};

enum {
	PATH_V4 = 1 << 24,	/* the trie's last bit of class: the first 31 bits are of the root, for both families */
	PATH_SCOPED = 1 << 25,
};

enum policy_flags {
	/* On a busy host, most of its connections are not followed (follow.bpf.h): they get the default congestion control,
	 * and no field but adapted timeouts of the handshake, which need no state. */
	POLICY_UNFOLLOWED = 1 << 0,
};

struct path_policy {		/* what most connections need first, in one cache line */
	__u64 expires_ns;	/* CLOCK_MONOTONIC; ignored from then on */
	__u64 set;		/* bit per field of value[] to set */
	__u32 id;
	__u32 flow;		/* index into flow_counts; 0: its connections are not counted */
	__u32 slice_shift;	/* an arm is drawn every 1 << this nanoseconds; 0: for each connection */
	__u32 hold_out_slices;	/* share of slices in the hold-out, in 1/65536; only with slice_shift */
	__u32 hold_out;		/* share of connections in the hold-out, in 1/65536 */
	__u32 window;		/* packets in flight that the path has shown to hold: with FIELD_INIT_CWND or FIELD_RESUME_CWND in adapted */
	/* Bit per field of set that no rule sets: computed from the path's metrics, or a default of the objective.
	 * FIELD_MAX_PACING_RATE also if it may be computed: then losses are watched (pacing.bpf.h). */
	__u64 adapted;
	__u16 num_arms;
	__u16 flags;		/* enum policy_flags */
	__u32 syn_timeout;	/* jiffies; FIELD_SYN_RTO, if it is adapted, which connections without state need as well; 0: none */
	__u8 arm[MAX_ARMS];	/* index into runtime_config.cc, or ARM_DEFAULT */
	__u32 weight[MAX_ARMS];	/* cumulative, in 1/65536 */
	__u64 value[NUM_FIELDS];
	__u64 window_expires_ns; /* CLOCK_MONOTONIC; window is not used from then on */
	__u32 switch_from;	/* bit per index into arm[]: running connections with it ... */
	__u32 switch_to;	/* ... get this congestion control, an index into runtime_config.cc */
};

/* Established connections of one path: begun less ended. */
struct flow_count {
	__u64 path;		/* by user space: id of the path (flowID in internal/datapath); 0: none */
	__u32 begun;
	__u32 ended;
	__u32 given_us;		/* CLOCK_MONOTONIC; update of the token bucket of initial windows (init_cwnd.bpf.h) */
	__u32 given;		/* packets that are missing in that bucket */
	__u32 clamp;		/* by user space: packets that its connections may have in flight together; 0: no clamp */
	__u32 least_clamp;	/* by user space: packets; the least share of a connection */
};

/* ---- fields ---------------------------------------------------------------- */

/* Fields that are answers to request ops (tcp.Field); the others are options. */
enum request_field {
	FIELD_SYN_RTO = 26,
	FIELD_SYNACK_RTO = 27,
	FIELD_INIT_RWND = 28,
	FIELD_ECN = 29,
	FIELD_BASE_RTT = 30,
	FIELD_PEER_OPTION = 33,	/* value: the RTO_MIN, in microseconds, for a peer that does not delay ACKs (peer.bpf.h) */
};

/* Fields that the iterator sets on connections that mostly receive (ack_marks.bpf.h). */
enum {
	FIELD_ACK_PRIORITY = 31,
	FIELD_ACK_DSCP = 32,
};

/* Options whose value, if adapted, depends on the connection (init_cwnd.bpf.h, rto_min.bpf.h,
 * delack.bpf.h, pacing.bpf.h, clamp.bpf.h); FIELD_NOTSENT_LOWAT is left as it is if the application
 * has set it (notsent_lowat.bpf.h). If FIELD_INIT_RWND is adapted, it is set as an option, not given as
 * an answer (init_rwnd.bpf.h). */
enum {
	FIELD_INIT_CWND = 0,
	FIELD_CWND_CLAMP = 1,
	FIELD_RTO_MIN = 2,
	FIELD_DELACK_MAX = 4,
	FIELD_NOTSENT_LOWAT = 8,
	FIELD_MAX_PACING_RATE = 10,
	FIELD_RESUME_CWND = 34,	/* set at the end of a round trip (resume.bpf.h) */
};

/* ---- runtime configuration ----------------------------------------------- */

#define YIELD_CC (1ULL << 63)
/* In requests: the answer to TIMEOUT_INIT for a SYN-ACK, or for a SYN, needs a look-up of the policy. That for a SYN whose
 * timeout is adapted does not (bpf/sockops/syn.bpf.h). If the timeouts of all SYN-ACKs are adapted, their look-ups are limited
 * (bpf/sockops/synack.bpf.h). */
#define REQUEST_SYNACK (1U << 31)
#define REQUEST_SYN (1U << 30)
#define REQUEST_ADAPTED_SYNACK (1U << 29)

struct runtime_config {		/* what each connection needs first, in one cache line */
	__u64 lease_ns;		/* CLOCK_MONOTONIC; programs do nothing after it */
	__u64 yield;		/* fields (and YIELD_CC) that some network namespace owns: see netns_yields */
	__u64 wall_offset_ns;	/* CLOCK_REALTIME less CLOCK_MONOTONIC */
	__u32 bank;		/* rule table in force */
	__u32 requests;		/* bit per BPF_SOCK_OPS op that some policy answers, and REQUEST_... */
	__u32 limits;		/* enum limit_flags */
	__u32 report_rate;	/* approximate number of ends reported a second, at most; 0: all */
	__u64 draw_key[2];	/* key of the draw of each incoming connection; of this host */
	__u32 num_inherited;	/* 0: every default may be replaced */
	__u32 num_cc;
	__u64 slice_key[2];	/* key of the draw of each slice; hosts may share it */
	__u64 interval_ns;	/* age from which the iterator reports; 0: never */
	__u64 rules_ns;		/* CLOCK_MONOTONIC; when the rules became others: see has_same_rule */
	__u8 inherited[MAX_INHERITED][CC_NAME];	/* defaults of new network namespaces */
	__u8 cc[MAX_CC][CC_NAME];
};

/* ---- congestion controls ------------------------------------------------- */

/* The first 32 bytes of icsk_ca_priv in every congestion control tcpilot_*: part of its
 * working state. Samples copy it, because struct_ops has no get_info. */
struct cc_state {
	__u64 bw;		/* bytes per second; 0: unknown or not modelled */
	__u32 min_rtt_us;	/* 0: unknown */
	__u32 inflight_hi;	/* packets; CC_NO_BOUND */
	__u32 inflight_lo;	/* packets; CC_NO_BOUND */
	__u32 alpha;		/* share of packets marked, smoothed, in 1/1024 */
	__u32 w_max;		/* packets; window before the last reduction */
	__u8 mode;		/* enum NAME_mode of its source */
	__u8 flags;		/* enum cc_flags */
	__u8 pad[2];
};

enum {
	CC_NO_BOUND = 0xffffffff,
};

enum cc_flags {
	CC_ECN = 1 << 0,	/* it responds to marks */
	CC_FULL_PIPE = 1 << 1,	/* startup is over: the path has been filled once */
	CC_KNOWN = 1 << 7,	/* in samples only: cc_state is valid */
};

/* ---- live connections --------------------------------------------------- */

/* State of a connection, in a slot or in socket storage. User space frees slots whose end was missed. */
struct track {
	__u64 cookie;		/* 0: slot is free */
	__u64 start_ns;		/* CLOCK_MONOTONIC */
	__u32 class;
	__u32 policy_id;
	__u32 connect_us;
	__u16 flags;		/* enum sample_flags */
	__u8 arm;		/* index into runtime_config.cc, ARM_DEFAULT, or NO_ARM */
	__u8 err;		/* sk_err that ends it: the socket loses it when the application reads it (SO_ERROR) */
	__u32 flow;		/* index into flow_counts, or 0; counted there if F_ESTABLISHED */
	__u16 init_cwnd;	/* packets; the initial window, if it was computed from the path's metrics */
	__u16 init_lost;	/* retransmissions of that window's packets, and of those sent in the round trip after a jump */
	/* Three values that were computed from the path's metrics and set on the socket; 0: none. */
	__u8 rto_min;		/* jiffies, 100 ms at most */
	__u8 delack_max;	/* jiffies, 16 ms at most */
	__u16 clamp;		/* packets; the clamp of the congestion window */
	__u32 loss_rtt_us;	/* smoothed round-trip time of the packets that were delivered when losses were found; 0: none */
	__u8 peer_delack_max_ms; /* the longest delay of ACKs, as the peer option told; 0: none */
	__u8 peer_receive_log2;	/* binary logarithm of the bytes that the peer can receive at a time; 0: unknown */
	__u8 told_ms;		/* the longest delay of this side's ACKs, as the peer is told; 0: it is told nothing */
	__u8 more_flags;	/* enum more_flags (track.bpf.h) */
	__u32 notsent_lowat;	/* the value that tcpilot gave the socket; 0: none */
	__u16 stands_for;	/* connections, itself included, if that was drawn at its beginning; else 0 */
	__u16 looked_at;	/* jiffies, modulo 2^16; when it looked for a better congestion control, or began; 0: its rule switches none */
	__u16 resume_cwnd;	/* packets; the congestion window that it jumped to (resume.bpf.h); 0: it did not */
	__u8 resume_phase;	/* enum resume_phase (track.bpf.h) */
	/* Retransmissions after timeouts that proved spurious (undo.bpf.h), since the latest sample; 255 at most. With it, a slot is
	 * one cache line. */
	__u8 undone;
};

/* ---- samples ----------------------------------------------------------- */

enum sample_kind {		/* tcp.Kind */
	SAMPLE_CLOSE = 1,
	SAMPLE_INTERVAL = 2,
	SAMPLE_FAILED_CONNECT = 3,
};

enum sample_flags {		/* tcp.Flags */
	F_OUTGOING = 1 << 0,
	F_HOLD_OUT = 1 << 1,
	F_APP_CC = 1 << 2,
	F_ARM_FAILED = 1 << 3,
	F_CC_CHANGED = 1 << 4,
	F_APP_LIMITED = 1 << 5,
	F_ECN = 1 << 6,
	F_ECN_SEEN = 1 << 7,
	F_ADOPTED = 1 << 8,
	F_DEFAULT_ARM = 1 << 9,	/* ARM_DEFAULT was drawn */
	F_HOLD_OUT_SLICE = 1 << 10, /* with F_HOLD_OUT: its whole slice is a hold-out */
	/* never leave the kernel */
	F_ESTABLISHED = 1 << 11,
	F_FIELDS = 1 << 12,	/* the policy sets fields, not only the arm */
	F_WATCH_RETRANS = 1 << 13, /* a rule counts its retransmissions */
	F_UNDOABLE = 1 << 14,	/* a timeout was the latest, and the kernel can undo its effect (undo.bpf.h) */
	F_WATCH_STATE = 1 << 15, /* a rule counts its changes of state */
	F_MASK = (1 << 11) - 1,
	/* in samples only */
	F_RCVBUF_MAX = 1 << 11,	/* its receive buffer has grown to the maximum of tcp_rmem */
	F_SNDBUF_MAX = 1 << 12,	/* its send buffer has grown to the maximum of tcp_wmem */
	F_LATER = 1 << 13,	/* not the first sample of the connection: a delta */
	F_PEER_SENT = 1 << 14,	/* PEER_SENT of enum more_flags */
	F_PEER_RESENT = 1 << 15, /* PEER_RESENT */
	F_SAMPLE = F_MASK | F_RCVBUF_MAX | F_SNDBUF_MAX | F_LATER | F_PEER_SENT | F_PEER_RESENT,
};

struct conn_sample {
	__u64 at_ns;		/* CLOCK_MONOTONIC */
	__u64 cookie;
	__u64 netns;
	__u64 cgroup;
	__u8 local[16];		/* v4-mapped */
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u16 flags;
	__u8 kind;
	__u8 state;		/* TCP state when taken */
	__u32 class;
	__u32 policy_id;
	__u8 cc[CC_NAME];
	__u32 arm;		/* index into runtime_config.cc, ARM_DEFAULT, or NO_ARM */
	__u32 stands_for;	/* connections that the sample stands for, itself included */
	__u64 duration_us;
	__u32 connect_us;
	__u16 err;		/* sk_err */
	__u16 closed;		/* enum closed_bits */
	__u64 busy_us;
	__u64 rwnd_limited_us;
	__u64 sndbuf_limited_us;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_retrans;
	__u64 delivery_rate;	/* bytes per second */
	__u32 segs_out;
	__u32 segs_in;
	__u32 data_segs_out;
	__u32 total_retrans;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 lost;
	__u32 rtos;
	__u32 min_rtt_us;
	__u32 srtt_us;
	__u32 rttvar_us;
	__u32 cwnd;
	__u32 ssthresh;
	__u32 mss;
	struct cc_state cc_state; /* all zero unless cc is a tcpilot_* */
	__u16 init_cwnd;	/* track.init_cwnd */
	__u16 init_lost;	/* in the first sample of a connection */
	__u32 flows;		/* connections of the path now, itself included; 0: not counted */
	__u32 dsacks;		/* segments that the peer got twice (tcp_sock.dsack_dups) */
	__u32 rto_min_us;	/* icsk_rto_min; a route may have another one */
	__u64 max_pacing_rate;	/* bytes per second; limit of the socket; 0: none */
	__u32 loss_rtt_us;	/* track.loss_rtt_us */
	__u32 delack_max_us;	/* icsk_delack_max */
	__u32 data_segs_in;
	__u32 peer_delack_us;	/* track.peer_delack_max_ms */
	__u64 peer_receive;	/* bytes, a power of two: track.peer_receive_log2; 0: unknown */
	__u16 resume_cwnd;	/* track.resume_cwnd, in the first sample of a connection */
	__s16 undone;		/* change in the number of retransmissions that the kernel found spurious and the peer has not reported */
	__u8 pad[4];
};

enum closed_bits {
	CLOSED_FIN_SEEN = 1 << 0,	/* the peer's FIN arrived */
	CLOSED_ALL_ACKED = 1 << 1,	/* everything sent, FIN included, was acknowledged */
	CLOSED_RST_SENT = 1 << 2,	/* this side gave up: close with unread data or SO_LINGER 0 */
};

/* ---- counters ---------------------------------------------------------- */

enum counter {
	/* Of most connections, in one cache line. */
	COUNT_SET,		/* policy applied */
	COUNT_CC_DEFAULT,	/* the default was drawn: not changed */
	COUNT_SLOT,		/* state is in a slot */
	COUNT_ENDS,		/* of connections that a sample may stand for; of some, their beginning */
	COUNT_THINNED,		/* ends not reported: samples of others stand for them */
	COUNT_NOT_FOLLOWED,	/* connections not followed: samples of others stand for them */
	COUNT_REPLIES,		/* request ops answered */
	COUNT_APP_CC,		/* congestion control left to the application */
	/* Of some. */
	COUNT_HOLD_OUT,
	COUNT_SAMPLES,		/* submitted to the ring */
	COUNT_SAMPLES_LOST,	/* the ring was full */
	COUNT_LEFT,		/* connections of rules with action leave */
	COUNT_NO_RULE_OUTGOING,	/* no rule matched */
	COUNT_NO_RULE_INCOMING,
	COUNT_NO_POLICY,	/* class without a policy for the path */
	COUNT_EXPIRED,		/* policy's lease was over */
	COUNT_CC_SET,
	COUNT_CC_SAME,		/* arm was already in use */
	COUNT_CC_FAILED,
	COUNT_UNTRACKED,	/* no room for the state of the connection */
	COUNT_STORAGE,		/* state is in socket storage */
	COUNT_FORGOTTEN,	/* socket began another connection before a sample was sent */
	COUNT_SWITCHED,		/* running connections that got a better arm */
	COUNT_BACKWARDS,	/* samples dropped because a counter was less than before */
	COUNT_PEER_SENT,	/* SYNs and SYN-ACKs with the peer option */
	COUNT_PEER_SEEN,	/* SYNs and SYN-ACKs received with it */
	COUNT_PEER_RESENT,	/* connections whose SYN was sent again without it */
	COUNT_PEER_BLOCKED,	/* connections without it, because the host did not answer a SYN with it */
	COUNT_LOSSY,		/* connections followed only since they lose packets */
	COUNT_RESUMED,		/* connections whose window jumped after a round trip */
	COUNT_RETREATED,	/* those that lost packets of it, and whose window was lowered */
	NUM_COUNTERS,
};

struct class_count {		/* connections classified */
	__u64 outgoing;
	__u64 incoming;
};

struct counters {		/* of one CPU, in cache lines of its own */
	__u64 n[(NUM_COUNTERS + 7) / 8 * 8];
	struct class_count classes[MAX_CLASS_COUNTS];	/* by class % MAX_CLASS_COUNTS; class 0 is in n */
};

struct event_key {		/* watched events */
	__u32 class;
	__u32 op;		/* BPF_SOCK_OPS_RTO_CB, RETRANS_CB, STATE_CB, or EVENT_ANSWERED */
};

enum event {
	EVENT_ANSWERED = 1000,	/* a timeout that was answered: not an op of the kernel */
};

/* ---- options ----------------------------------------------------------- */

struct sock_option {		/* how a field is set; index is the field */
	__u16 level;		/* SOL_* */
	__u16 name;
	__u8 valid;		/* 0: the field is not a socket option */
	__u8 pad[3];
};

/* ---- probe ------------------------------------------------------------- */

enum probe_hook {
	HOOK_CONNECT,
	HOOK_ACTIVE,
	HOOK_PASSIVE,
	NUM_HOOKS,
};

enum {
	PROBE_UNTRIED = 1,	/* the option was not tried; results of bpf_setsockopt are 0 or negative */
};

struct probe_result {
	__s32 field[NUM_FIELDS];
	__s32 cc[MAX_CC];
	__u32 hits;		/* times that the hook ran */
};

_Static_assert(sizeof(struct cc_state) == 32 && sizeof(struct path_key) == 32, "abi");
_Static_assert(sizeof(struct rule_prefix) == 24 && sizeof(struct rule_id) == 16, "abi");
_Static_assert(sizeof(struct rule_bank) % 64 == 0 && sizeof(struct class_entry) == 32, "cache lines");
_Static_assert(sizeof(struct counters) % 64 == 0 && sizeof(struct track) == 64, "cache lines");
_Static_assert(sizeof(struct path_policy) == 112 + 8 * NUM_FIELDS, "abi");
_Static_assert(sizeof(struct runtime_config) == 96 + (MAX_CC + MAX_INHERITED) * CC_NAME, "abi");
_Static_assert(sizeof(struct flow_count) == 32 && sizeof(struct timeout_answer) == 24, "abi");
_Static_assert(sizeof(struct conn_sample) == 320 && sizeof(struct sock_option) == 8, "abi");

#endif
