/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The counters of a socket. A sample has their increase since the previous sample. User space does not see
 * struct totals; but it is in a pinned map (live, in maps.bpf.h), so a change of it must raise
 * ABI_VERSION too.
 */
#ifndef TCPILOT_TOTALS_BPF_H
#define TCPILOT_TOTALS_BPF_H

#include "../include/tcp.bpf.h"

enum {				/* chrono_stat[], enum tcp_chrono less one */
	CHRONO_BUSY = 0,
	CHRONO_RWND = 1,
	CHRONO_SNDBUF = 2,
};

struct totals {			/* values at one time */
	__u64 at_ns;
	__u64 busy_us;
	__u64 rwnd_limited_us;
	__u64 sndbuf_limited_us;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_retrans;
	__u32 segs_out;
	__u32 segs_in;
	__u32 data_segs_out;
	__u32 total_retrans;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 lost;
	__u32 dsacks;
	__u32 data_segs_in;
	__u16 rtos;		/* tcp_sock.total_rto */
	__u16 undone;		/* spurious retransmissions (undo.bpf.h) that the peer has not reported yet */
};

static __always_inline __u64 jiffies_us(__u64 jiffies)
{
	return jiffies * jiffy_us;
}

/* Time in a chrono state, as tcp_get_info_chrono_stats counts it: the state that
 * is running now is added up to this moment. */
static __always_inline __u64 chrono_us(struct tcp_sock *tp, int which)
{
	__u32 j = tp->chrono_stat[which];

	/* a bit-field before Linux 6.18 */
	if (BPF_CORE_READ_BITFIELD(tp, chrono_type) == which + 1)
		j += (__u32)bpf_jiffies64() - tp->chrono_start;
	return jiffies_us(j);
}

static __always_inline void totals_read(struct totals *n, struct tcp_sock *tp, __u64 now)
{
	__u64 rwnd = chrono_us(tp, CHRONO_RWND), sndbuf = chrono_us(tp, CHRONO_SNDBUF);

	n->at_ns = now;
	/* tcpi_busy_time holds the limited times as well. */
	n->busy_us = chrono_us(tp, CHRONO_BUSY) + rwnd + sndbuf;
	n->rwnd_limited_us = rwnd;
	n->sndbuf_limited_us = sndbuf;
	n->bytes_acked = tp->bytes_acked;
	n->bytes_received = tp->bytes_received;
	n->bytes_retrans = tp->bytes_retrans;
	n->segs_out = tp->segs_out;
	n->segs_in = tp->segs_in;
	n->data_segs_out = tp->data_segs_out;
	n->total_retrans = tp->total_retrans;
	n->delivered = tp->delivered;
	n->delivered_ce = tp->delivered_ce;
	n->lost = tp->lost;
	n->rtos = tcp_total_rto(tp);
	n->dsacks = tp->dsack_dups;
	n->data_segs_in = tp->data_segs_in;
}

static __always_inline void report_totals(struct conn_sample *s, const struct totals *n,
					  const struct totals *l)
{
	s->busy_us = n->busy_us - l->busy_us;
	s->rwnd_limited_us = n->rwnd_limited_us - l->rwnd_limited_us;
	s->sndbuf_limited_us = n->sndbuf_limited_us - l->sndbuf_limited_us;
	s->bytes_acked = n->bytes_acked - l->bytes_acked;
	s->bytes_received = n->bytes_received - l->bytes_received;
	s->bytes_retrans = n->bytes_retrans - l->bytes_retrans;
	s->segs_out = n->segs_out - l->segs_out;
	s->segs_in = n->segs_in - l->segs_in;
	s->data_segs_out = n->data_segs_out - l->data_segs_out;
	s->total_retrans = n->total_retrans - l->total_retrans;
	s->delivered = n->delivered - l->delivered;
	s->delivered_ce = n->delivered_ce - l->delivered_ce;
	s->lost = n->lost - l->lost;
	s->rtos = (__u16)(n->rtos - l->rtos);
	s->dsacks = n->dsacks - l->dsacks;
	s->data_segs_in = n->data_segs_in - l->data_segs_in;
	s->undone = n->undone - l->undone;
}

/* Whether counters are less than before: a tcp_disconnect that no hook saw reset them.
 * The 32-bit ones may also wrap around, but not without data. */
static __always_inline bool shrank(const struct totals *n, const struct totals *l)
{
	__u64 bytes = n->bytes_acked + n->bytes_received - l->bytes_acked - l->bytes_received;

	return n->bytes_acked < l->bytes_acked || n->bytes_received < l->bytes_received ||
	       n->bytes_retrans < l->bytes_retrans || n->busy_us < l->busy_us ||
	       ((n->segs_out < l->segs_out || n->segs_in < l->segs_in) && bytes < 1ULL << 31);
}

#endif
