/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Limits of the bandwidth of a pod, in each direction.
 *
 * Each direction has a virtual clock: the time at which all that has passed would have been sent
 * at the limit (the theoretical arrival time of GCRA, ITU-T I.371). A packet moves it on by the time that
 * its bytes take. If the clock is ahead of CLOCK_MONOTONIC by more than a bound, the pod sends too fast:
 * packets are marked or dropped. There is no queue, so that nothing waits behind somebody else's packets,
 * and no lock. A sender that lost packets may catch up for the time in which it waited after that.
 *
 * The pod's own TCP is paced just below the limit (sockops/limits.bpf.h), so its packets are seldom
 * marked or dropped here. The clock is for everything else.
 */
#ifndef TCPILOT_BANDWIDTH_BPF_H
#define TCPILOT_BANDWIDTH_BPF_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bytes.bpf.h"
#include "maps.bpf.h"
#include "tunnel.bpf.h"

/* How far ahead of CLOCK_MONOTONIC, in nanoseconds, a clock may be before packets of transports with
 * ECN are marked (RFC 3168), and before packets are dropped. MOST_AHEAD is also the burst of a pod that
 * was idle: as many bytes as its limit has in that time. Of what a pod sends, DSCPs of low and high priority have bounds of
 * their own, so that each leaves some room to the higher ones. Of what it receives, short packets have the higher bound up to half of
 * the limit, and the lower one beyond that.
 * Measured: docs/design/0021-bandwidth.md. */
#define MARK_AHEAD (5 * 1000 * 1000)
#define MOST_AHEAD (50 * 1000 * 1000)
#define MOST_AHEAD_LOW (25 * 1000 * 1000)
#define MOST_AHEAD_HIGH (60 * 1000 * 1000)

/* Shorter packets, in bytes with the Ethernet header, are not those of bulk transfers: QUIC, too, uses datagrams of at least 1200
 * bytes for these (RFC 9000, section 14.1). */
#define SHORT_PACKET 1200

/* How far in the past a clock may be, in nanoseconds, if a packet was dropped in the last CATCH_UP_AFTER; otherwise it is set
 * to the present. TCP that lost all of its packets sends nothing for the least RTO (TCP_RTO_MIN, 200 ms) and a round trip, of which
 * the clock was ahead for MOST_AHEAD. CATCH_UP_AFTER is longer than the RTO is after it was doubled twice (RFC 6298, section 5.5). */
#define CATCH_UP (200 * 1000 * 1000)
#define CATCH_UP_AFTER (1000 * 1000 * 1000)

#define DSCP_LE 1	/* RFC 8622 */
#define DSCP_CS1 8	/* what LE was before (RFC 3662) */
#define DSCP_CS5 40	/* the least of signalling, telephony (EF) and network control (RFC 4594, figure 3) */

#define IPPROTO_ICMPV6 58	/* include/uapi/linux/in6.h */
#define ND_ROUTER_SOLICIT 133	/* RFC 4861; the others follow */
#define ND_NEIGHBOUR_ADVERT 136
#define NSEC_PER_SEC 1000000000ULL

/* How often a packet tries to move the clock on by compare-and-swap before it adds its time
 * unconditionally, and passes. */
#define CLOCK_TRIES 4

/* The bytes that a packet has on the wire, with the Ethernet header and without preamble, checksum and gap,
 * as qdisc_pkt_len_init computes them for qdiscs such as TBF. packets becomes the number of packets after
 * segmentation. */
static __always_inline __u32 wire_len(struct __sk_buff *skb, __u32 *packets)
{
	__u32 headers;

	*packets = 1;
	if (!skb->gso_size)
		return skb->len;
	headers = gso_headers(skb);
	*packets = segments_of(skb, headers);
	return skb->len + (*packets - 1) * headers;
}

/* Whether a packet resolves an address of the link: ARP, or neighbour and router discovery. Without these, nothing arrives at all. */
static __always_inline bool resolves_neighbours(struct __sk_buff *skb)
{
	__u8 protocol, type;

	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return true;
	return skb->protocol == bpf_htons(ETH_P_IPV6) && read_bytes(skb, ETH_HLEN + 6, &protocol, 1) && protocol == IPPROTO_ICMPV6 &&
	       read_bytes(skb, ETH_HLEN + 40, &type, 1) && type >= ND_ROUTER_SOLICIT && type <= ND_NEIGHBOUR_ADVERT;
}

/* Moves a clock on by the time that a packet takes, unless the clock would then be further ahead than most. A packet that finds
 * it less than MOST_AHEAD_LOW ahead passes however long it takes. ahead becomes how far ahead of now the clock was, in nanoseconds.
 * If the clock is further than behind in the past, that time is lost. If two CPUs do this at the same time, the time of both
 * packets counts. */
static __always_inline bool clock_advance(__u64 *clock, __u64 now, __u64 behind, __u64 cost, __u64 most, __u64 *ahead)
{
	for (int i = 0; i < CLOCK_TRIES; i++) {
		__u64 old = *(volatile __u64 *)clock, start = old > now - behind ? old : now - behind;

		*ahead = start > now ? start - now : 0;
		if (*ahead > MOST_AHEAD_LOW && *ahead + cost > most)
			return false;
		if (__sync_val_compare_and_swap(clock, old, start + cost) == old)
			return true;
	}
	__sync_fetch_and_add(clock, cost);
	*ahead = 0;
	return true;
}

/* How far ahead the clock may be for a packet that a pod receives. There are no bounds by DSCP, because its senders, who may be
 * anybody, choose that. They choose the length as well: so short packets have a clock of their own, at half of the limit. Those
 * beyond it have the lower bound. Otherwise whoever sends many of them would keep all longer packets out. */
static __always_inline __u64 most_ahead_received(struct __sk_buff *skb, struct pod_meter *m, __u64 now, __u64 cost)
{
	__u64 ahead;

	if (skb->len >= SHORT_PACKET)
		return MOST_AHEAD;
	return clock_advance(&m->short_ns, now, 0, 2 * cost, MOST_AHEAD, &ahead) ? MOST_AHEAD_HIGH : MOST_AHEAD_LOW;
}

/* How far ahead the clock may be for a packet that a pod sends. */
static __always_inline __u64 most_ahead_sent(struct __sk_buff *skb)
{
	__u8 byte[2], dscp;

	if (!read_bytes(skb, ETH_HLEN, byte, sizeof(byte)))
		return MOST_AHEAD;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		dscp = byte[1] >> 2;
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		dscp = (byte[0] & 0xf) << 2 | byte[1] >> 6;
	else
		return MOST_AHEAD;
	if (dscp >= DSCP_CS5)
		return MOST_AHEAD_HIGH;
	return dscp == DSCP_LE || dscp == DSCP_CS1 ? MOST_AHEAD_LOW : MOST_AHEAD;
}

/* How far ahead the clock may be for a packet. It is looked up only if the clock is far enough ahead already. */
static __always_inline __u64 most_ahead(struct __sk_buff *skb, enum pod_direction d, struct pod_meter *m, __u64 now, __u64 cost)
{
	__u64 clock = *(volatile __u64 *)&m->clock_ns;

	if (clock <= now + MOST_AHEAD_LOW)
		return MOST_AHEAD;
	return d == POD_EGRESS ? most_ahead_sent(skb) : most_ahead_received(skb, m, now, cost);
}

/* The longest packet without BIG TCP, from its IP header on (IP_MAX_MTU, include/net/ip.h). */
#define MAX_IP_LENGTH 0xffff

static __always_inline struct pod_meter *meter_of(const struct device *pod, enum pod_direction d)
{
	__u32 index = pod->index;	/* on the stack, as Linux 6.1 needs it */
	struct pod_meters *meters = bpf_map_lookup_elem(&pod_meters, &index);

	if (!meters)
		return NULL;
	return d == POD_EGRESS ? &meters->egress : &meters->ingress;
}

static __always_inline void count_big(struct __sk_buff *skb, const struct device *pod, enum pod_direction d)
{
	struct pod_meter *m;

	if (skb->len <= MAX_IP_LENGTH + ETH_HLEN || !(pod->flags & DEVICE_BIG))
		return;
	m = meter_of(pod, d);
	if (m)
		__sync_fetch_and_add(&m->big, 1);
}

/* Whether a packet that the usual clock refuses passes all the same, because it resolves an address. Such packets then have a clock
 * of their own, with the same limit: whoever sends very many of them keeps neither other packets out nor the first ones of others. */
static __always_inline bool neighbours_pass(struct __sk_buff *skb, struct pod_meter *m, __u64 now, __u64 cost)
{
	__u64 ahead;

	return resolves_neighbours(skb) && clock_advance(&m->neighbours_ns, now, 0, cost, MOST_AHEAD, &ahead);
}

/* The greatest former limit at which a clock's lead can be told in bytes in 64 bits, bytes per second: 34 Gbit/s. */
#define MOST_FORMER_RATE (1ULL << 32)

/* A clock at a new limit: as many bytes ahead of now as it was at the former one, but no further than it was, or than MOST_AHEAD. */
static __always_inline __u64 clock_at_rate(__u64 clock, __u64 now, __u64 former, __u64 rate)
{
	__u64 ahead = clock - now, most;

	if (clock <= now || !former || former > MOST_FORMER_RATE)
		return now;
	most = ahead > MOST_AHEAD ? ahead : MOST_AHEAD;
	ahead = ahead * former / rate;
	return now + (ahead < most ? ahead : most);
}

/* Sets the clocks to a limit that was changed: otherwise a packet that takes minutes at a low limit keeps all others out for as long,
 * also after the limit was raised. */
static __always_inline void follow_rate(struct pod_meter *m, __u64 rate, __u64 now)
{
	__u64 former = m->rate;

	if (former == rate)
		return;
	m->rate = rate;
	m->clock_ns = clock_at_rate(m->clock_ns, now, former, rate);
	m->neighbours_ns = clock_at_rate(m->neighbours_ns, now, former, rate);
	m->short_ns = clock_at_rate(m->short_ns, now, former, rate);
}

/* Whether a packet of a pod with a limit in a direction may pass. A global function, so that it is verified once, and not for
 * each state of its callers. */
__noinline int limit_pass(struct __sk_buff *skb, const struct device *pod, enum pod_direction d)
{
	struct pod_meter *m;
	__u32 packets, len;
	__u64 rate, ahead, cost, now, behind, most;

	if (!pod)
		return true;
	rate = d == POD_EGRESS ? pod->egress : pod->ingress;
	m = meter_of(pod, d);
	if (!m || !rate)
		return true;
	len = wire_len(skb, &packets);
	cost = len * NSEC_PER_SEC / rate;
	now = bpf_ktime_get_ns();
	follow_rate(m, rate, now);
	behind = now - m->dropped_ns < CATCH_UP_AFTER ? CATCH_UP : 0;
	most = most_ahead(skb, d, m, now, cost);
	if (!clock_advance(&m->clock_ns, now, behind, cost, most, &ahead) && !neighbours_pass(skb, m, now, cost)) {
		m->dropped_ns = now;
		__sync_fetch_and_add(&m->dropped, packets);
		__sync_fetch_and_add(&m->dropped_bytes, len);
		return false;
	}
	__sync_fetch_and_add(&m->bytes, len);
	if (ahead > MARK_AHEAD && bpf_skb_ecn_set_ce(skb))
		__sync_fetch_and_add(&m->marked, packets);
	return true;
}

/* Whether a packet of a pod, in a direction, may pass. */
static __always_inline bool bandwidth_pass(struct __sk_buff *skb, const struct device *pod, enum pod_direction d)
{
	return !(d == POD_EGRESS ? pod->egress : pod->ingress) || limit_pass(skb, pod, d);
}

#endif
