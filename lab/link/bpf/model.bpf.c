// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The model of one direction of a lab link, attached to the ingress of the
 * receiving device by tcx or cls_bpf. It decides at once what happens to each IP
 * packet; other frames pass. In order: the bottleneck (rate, queue, ECN), loss,
 * loss in bursts, the policer, the delay. A packet lost after the bottleneck has
 * used its share of the rate.
 *
 * The mark says when the packet leaves the bottleneck, the priority how long it is
 * delayed after that; user space holds it until then.
 *
 * There is one random draw for each packet, also for an aggregate of several segments.
 * For loss of single segments the sender's offloads must be off. Aggregates are
 * counted, so that user space can check that.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* A chance is compared with a 32-bit random number, so that 0 is never and 1 << 32
 * always. A cost is the time that one byte takes, in 1/2^20 ns.
 *
 * The bottleneck counts time in bits that it could have sent (served). When its rate
 * changes, packets that wait are then served at the new rate, and the ring stays
 * valid as it is. */
struct link_config {
	__u64 loss;
	__u64 to_bad;		/* bursts: chance that the state changes */
	__u64 to_good;
	__u64 loss_bad;		/* chance of loss in each state */
	__u64 loss_good;
	__u64 cost;		/* at the bottleneck; 0 is none */
	__u64 since;		/* ns: since when it has this cost */
	__u64 served;		/* bits, until since */
	__u64 queue_bytes;	/* 0 is no limit */
	__u64 queue_packets;
	__u64 ecn;		/* depth in bytes from which on packets are marked; 0 is never */
	__u64 police_cost;	/* 0 is no policer */
	__u64 police_burst;	/* ns: what the bucket holds, at the policer's rate */
	__u64 delay;		/* ns */
	__u64 jitter;		/* ns */
	__u64 reorder;		/* chance */
	__u32 hold;		/* the emulator holds packets: set mark and priority */
	__u32 generation;	/* of the cost; its last 3 bits go into the priority */
};

#define COST_SHIFT 20

/* A byte is 8 bits: (ns << BITS_SHIFT) / cost is bits. */
#define BITS_SHIFT (COST_SHIFT + 3)

/* The longest wait, in ns, that is written into a mark, which can express 18 minutes. When
 * the rate falls, a backlog may get this long; a Spec itself allows only Go's maxHold. */
#define LONGEST (1ULL << 39)

struct link_counters {
	__u64 passed;
	__u64 aggregates;	/* of passed, those of more than one segment */
	__u64 lost;
	__u64 lost_burst;
	__u64 policed;
	__u64 overflowed;
	__u64 failed;		/* had room in the queue, but not in the ring */
	__u64 marked;
	__u64 queue_max;	/* bytes */
};

/* The ring bounds the packets that wait for the bottleneck; Go's maxWaiting. */
#define RING (1 << 16)

/* A packet that was given a place at the bottleneck. */
struct waiting {
	__u64 finish;		/* it has left when so many bits are served */
	__u32 bytes;		/* of all packets before it; may wrap, as tail may */
	__u32 packets;
};

struct link_state {
	struct bpf_spin_lock lock;	/* packets arrive on several processors */
	__u32 bad;			/* the state of bursts */
	__u64 finish;			/* the bottleneck is empty when so many bits are served */
	__u64 policed_until;		/* when the policer's bucket is full again */
	__u32 head, tail;		/* ring[head] is the first that waits; none if head == tail */
	__u32 bytes, packets;		/* taken since the start */
	struct waiting ring[RING];
};

/* Written by user space only. A hash, because its elements are replaced as a whole:
 * no packet sees half of an old and half of a new configuration. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_config);
} link_configs SEC(".maps");

/* Written by BPF only, like the counters. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_state);
} link_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_counters);
} link_counts SEC(".maps");

enum fate { PASS, LOST, LOST_BURST, POLICED, OVERFLOWED, FAILED };

/* What the model knows of a packet, and what it decides. No helper may be called while
 * the state is locked, so time and random draws are taken before. Draws are bits, not
 * branches: the verifier would have to follow every branch. */
struct packet {
	__u64 now;
	__u64 bytes;
	__u32 segments;
	__u32 lost, to_bad, to_good, lost_good, lost_bad, overtakes;
	__u64 delay;	/* after the bottleneck, ns */

	__u64 depth;	/* of the queue on arrival, bytes */
	__u64 leaves;	/* when it leaves the bottleneck, ns */
};

/* served is the bits that the bottleneck could have sent until now. */
static __always_inline __u64 served(const struct link_config *c, __u64 now)
{
	__u64 spent = now - c->since;

	/* In two parts, because a long time may overflow when shifted. */
	return c->served + ((spent / c->cost) << BITS_SHIFT) + ((spent % c->cost) << BITS_SHIFT) / c->cost;
}

/* in_queue removes packets that have left from the ring, by bisection: the ring is
 * ordered by finish. It returns what is left. */
static __always_inline void in_queue(struct link_state *s, __u64 served, __u32 *bytes, __u32 *packets)
{
	__u32 low = s->head, high = s->tail;

	*bytes = *packets = 0;
	if (s->finish <= served) {
		s->head = high;
		return;
	}
	for (int i = 0; i < 17 && low != high; i++) {
		__u32 middle = low + (high - low) / 2;

		if (s->ring[middle % RING].finish <= served)
			low = middle + 1;
		else
			high = middle;
	}
	s->head = low;
	if (low == s->tail)
		return;
	*bytes = s->bytes - s->ring[low % RING].bytes;
	*packets = s->packets - s->ring[low % RING].packets;
}

/* bottleneck gives a packet its time to leave, or refuses it. */
static __always_inline enum fate bottleneck(struct link_state *s, const struct link_config *c, struct packet *p)
{
	__u64 until = served(c, p->now), backlog;
	__u32 bytes, packets;

	in_queue(s, until, &bytes, &packets);
	p->depth = bytes;
	if ((c->queue_bytes && bytes + p->bytes > c->queue_bytes) ||
	    (c->queue_packets && packets + p->segments > c->queue_packets))
		return OVERFLOWED;
	if (s->tail - s->head >= RING)
		return FAILED;
	if (s->finish < until)
		s->finish = until;
	s->finish += p->bytes * 8;

	struct waiting *w = &s->ring[s->tail % RING];

	w->finish = s->finish;
	w->bytes = s->bytes;
	w->packets = s->packets;
	s->tail++;
	s->bytes += p->bytes;
	s->packets += p->segments;
	backlog = s->finish - until;
	if (backlog > (LONGEST << BITS_SHIFT) / c->cost)
		p->leaves = p->now + LONGEST;
	else
		p->leaves = p->now + ((backlog * c->cost) >> BITS_SHIFT);
	return PASS;
}

/* police takes the packet's bytes out of the bucket, or drops the packet. The bucket is
 * stored as the time when it is full again: now + burst if it is empty. A later time
 * was set by an earlier policer with a larger bucket, and is reduced to that. */
static __always_inline bool police(struct link_state *s, const struct link_config *c, const struct packet *p)
{
	__u64 full = s->policed_until;

	if (full < p->leaves)
		full = p->leaves;
	if (full > p->leaves + c->police_burst)
		full = p->leaves + c->police_burst;
	s->policed_until = full;
	full += (p->bytes * c->police_cost) >> COST_SHIFT;
	if (full > p->leaves + c->police_burst)
		return false;
	s->policed_until = full;
	return true;
}

/* burst says whether the channel loses the packet, and advances its state: with each
 * packet, also with one that is lost anyway. */
static __always_inline __u32 burst(struct link_state *s, const struct packet *p)
{
	__u32 bad = s->bad & 1, good = bad ^ 1;

	s->bad = bad ^ ((bad & p->to_good) | (good & p->to_bad));
	return (bad & p->lost_bad) | (good & p->lost_good);
}

static __always_inline enum fate decide(struct link_state *s, const struct link_config *c, struct packet *p)
{
	enum fate fate = PASS;
	__u32 lost;

	p->leaves = p->now;
	if (c->cost)
		fate = bottleneck(s, c, p);
	if (fate != PASS)
		return fate;
	lost = burst(s, p);
	if (p->lost)
		return LOST;
	if (lost)
		return LOST_BURST;
	if (c->police_cost && !police(s, c, p))
		return POLICED;
	return PASS;
}

/* chance is 1 or 0: the sign of a difference, to avoid a branch. */
static __always_inline __u32 chance(__u64 c)
{
	return (bpf_get_prandom_u32() - c) >> 63;
}

static __always_inline void draw(const struct link_config *c, struct packet *p)
{
	p->lost = chance(c->loss);
	p->to_bad = chance(c->to_bad);
	p->to_good = chance(c->to_good);
	p->lost_bad = chance(c->loss_bad);
	p->lost_good = chance(c->loss_good);
	p->overtakes = chance(c->reorder);
	/* a 20-bit random number, so that the product fits */
	p->delay = c->delay - c->jitter + ((2 * c->jitter * (bpf_get_prandom_u32() >> 12)) >> 20);
	p->delay *= p->overtakes ^ 1;
}

/* headers returns the bytes before the payload, which each segment of an aggregate
 * has on the wire. */
static __always_inline __u32 headers(const struct __sk_buff *skb)
{
	const __u32 usual = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr) + 12;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip4 = data + sizeof(struct ethhdr);
	struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);
	__u32 network;
	__u8 protocol;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > end)
			return usual;
		network = ip4->ihl * 4;
		protocol = ip4->protocol;
	} else {
		if ((void *)(ip6 + 1) > end)
			return usual;
		network = sizeof(*ip6);
		protocol = ip6->nexthdr;
	}
	if (protocol == IPPROTO_UDP)
		return sizeof(struct ethhdr) + network + sizeof(struct udphdr);

	struct tcphdr *tcp = data + sizeof(struct ethhdr) + network;

	if (protocol != IPPROTO_TCP || (void *)(tcp + 1) > end)
		return usual;
	return sizeof(struct ethhdr) + network + tcp->doff * 4;
}

static __always_inline void measure(const struct __sk_buff *skb, struct packet *p)
{
	p->now = bpf_ktime_get_ns();
	p->segments = skb->gso_segs > 1 ? skb->gso_segs : 1;
	p->bytes = skb->len;
	if (p->segments > 1)
		p->bytes += (p->segments - 1) * (__u64)headers(skb);
}

/* The mark's unit is 1024 ns; 31 bits of it wrap after 36 minutes. The highest bit is
 * set for packets that leave before earlier ones. 0 is no mark. */
static __always_inline __u32 mark(const struct packet *p)
{
	__u32 m = ((p->leaves >> 10) & 0x7fffffff) | p->overtakes << 31;

	return m ? m : 1;
}

/* The priority's unit is 1024 ns too; 29 bits of it are 9 minutes. The highest 3 bits
 * say which rate the mark was computed with. */
static __always_inline __u32 priority(const struct link_config *c, const struct packet *p)
{
	return ((p->delay + 1023) >> 10 & 0x1fffffff) | c->generation << 29;
}

static __always_inline void count(struct link_counters *n, enum fate fate, const struct packet *p)
{
	switch (fate) {
	case PASS:
		n->passed++;
		n->aggregates += p->segments > 1;
		break;
	case LOST:
		n->lost++;
		break;
	case LOST_BURST:
		n->lost_burst++;
		break;
	case POLICED:
		n->policed++;
		break;
	case OVERFLOWED:
		n->overflowed++;
		break;
	case FAILED:
		n->failed++;
		break;
	}
}

SEC("tc")
int lab_link(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	const struct link_config *config = bpf_map_lookup_elem(&link_configs, &zero);
	struct link_state *state = bpf_map_lookup_elem(&link_states, &zero);
	struct link_counters *n = bpf_map_lookup_elem(&link_counts, &zero);
	struct packet p = {};
	enum fate fate;

	if (!config || !state || !n)
		return TC_ACT_UNSPEC;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	measure(skb, &p);
	draw(config, &p);

	bpf_spin_lock(&state->lock);
	fate = decide(state, config, &p);
	bpf_spin_unlock(&state->lock);

	count(n, fate, &p);
	if (config->cost && fate < OVERFLOWED && p.depth + p.bytes > n->queue_max)
		n->queue_max = p.depth + p.bytes;
	if (fate != PASS)
		return TC_ACT_SHOT;
	if (config->ecn && p.depth >= config->ecn && bpf_skb_ecn_set_ce(skb))
		n->marked++;
	if (config->hold) {
		skb->mark = mark(&p);
		skb->priority = priority(config, &p);
	}
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
