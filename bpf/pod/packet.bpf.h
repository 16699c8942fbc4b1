/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parses what host routing must know of a packet. Packets that it does not understand are left to the
 * host's stack. */
#ifndef TCPILOT_POD_PACKET_BPF_H
#define TCPILOT_POD_PACKET_BPF_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bytes.bpf.h"
#include "pod_abi.h"
#include "tunnel.bpf.h"

#define AF_INET 2
#define AF_INET6 10
#define IP_MF 0x2000		/* include/net/ip.h */
#define IP_OFFSET 0x1fff
#define NEXTHDR_HOP 0		/* include/net/ipv6.h */
#define IPV6_TLV_JUMBO 194	/* include/uapi/linux/in6.h */
#define JUMBO_OPTION 8		/* bytes: include/net/ipv6.h, struct hop_jumbo_hdr */
#define ICMP_HEADER 8		/* bytes before the packet that an error is about */
#define ICMP_DEST_UNREACH 3	/* RFC 792, as the next two */
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMP6_INFO_MASK 0x80	/* types of errors do not have this bit (RFC 4443, section 2.1) */

union address {
	__u8 byte[16];
	__be32 word[4];
};

struct ports {
	__be16 source, destination;
};

/* The beginning of a TCP header (RFC 9293, section 3.1). */
struct tcp_begin {
	struct ports ports;
	__be32 seq, ack_seq;
	__u8 data_offset;	/* in the upper half, in words of 4 bytes */
	__u8 flags;
};

#define TCP_SYN 0x02
#define TCP_ACK 0x10

/* What the route of a packet depends on, apart from its length. An ICMP error belongs to the connection of the packet
 * which it is about, and is in the direction opposite to that one. */
union flow_key {
	struct {
		union address source, destination;
		struct ports ports;
		__u32 transport;	/* IPPROTO_TCP or IPPROTO_UDP */
		__u32 ifindex;		/* where it arrived */
		__be32 flowinfo;	/* DSCP, and for IPv6 the flow label; without ECN */
	};
	__u64 word[6];
};

_Static_assert(sizeof(union flow_key) == 48, "flow_key has no padding");

/* A packet at a device with Ethernet headers, which begins at the MAC header. */
struct packet {
	union flow_key flow;
	__u64 until;		/* jiffies; until when its route is known */
	__u16 length;		/* bytes from the IP header on, of the longest packet after segmentation */
	__u8 family;
	__u8 protocol;		/* that of its own header: differs from flow.transport if it is an ICMP error */
	bool begins;		/* its sender asks for a TCP connection, or accepts it (SYN) */
	bool accepts;		/* it accepts one (SYN and ACK) */
	bool by_router;		/* it is an ICMP error that another host than the connection's end sent */
	bool tracked;		/* netfilter's connection tracking knows its connection */
	bool shares_route;	/* with other connections between the same addresses (flow.bpf.h) */
};

static __always_inline void map_v4(union address *a, __be32 v4)
{
	a->word[0] = a->word[1] = 0;
	a->word[2] = bpf_htonl(0xffff);
	a->word[3] = v4;
}

static __always_inline void copy_v6(union address *a, const struct in6_addr *v6)
{
	__builtin_memcpy(a, v6, sizeof(*a));
}

/* Whether it is an IPv4 address, mapped. */
static __always_inline bool is_v4(const union address *a)
{
	return !a->word[0] && !a->word[1] && a->word[2] == bpf_htonl(0xffff);
}

static __always_inline bool is_equal(const union address *a, const union address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* The result of parsing. NUM_POD_COUNTS stands for a packet that was understood, another value for
 * why it is left to the stack. */
#define UNDERSTOOD NUM_POD_COUNTS

/* Parses the packet that an ICMP error is about, at offset, to find its connection. Addresses and ports are
 * exchanged, because the error goes to the sender of that packet (RFC 792; RFC 4443, section 2.2). For the
 * same reason, checks of the connection hold for the error. */
static __always_inline enum pod_count parse_error(struct __sk_buff *skb, __u32 offset, struct packet *p)
{
	union address sender, receiver;
	struct ports about;

	if (p->family == AF_INET) {
		struct iphdr ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)))
			return LEFT_MALFORMED;
		if (ip.version != 4 || ip.ihl != 5 || (ip.frag_off & bpf_htons(IP_OFFSET)) || !has_ports(ip.protocol))
			return LEFT_PROTOCOL;
		map_v4(&sender, ip.saddr);
		map_v4(&receiver, ip.daddr);
		p->flow.transport = ip.protocol;
		offset += sizeof(ip);
	} else {
		struct ipv6hdr ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)))
			return LEFT_MALFORMED;
		if (ip.version != 6 || !has_ports(ip.nexthdr))
			return LEFT_PROTOCOL;
		copy_v6(&sender, &ip.saddr);
		copy_v6(&receiver, &ip.daddr);
		p->flow.transport = ip.nexthdr;
		offset += sizeof(ip);
	}
	if (!is_equal(&sender, &p->flow.destination))
		return LEFT_DESTINATION;
	p->by_router = !is_equal(&receiver, &p->flow.source);
	p->flow.source = receiver;
	if (!read_bytes(skb, offset, &about, sizeof(about)))
		return LEFT_MALFORMED;
	p->flow.ports.source = about.destination;
	p->flow.ports.destination = about.source;
	return UNDERSTOOD;
}

static __always_inline bool is_error(__u8 family, __u8 type)
{
	if (family == AF_INET)
		return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
	return !(type & ICMP6_INFO_MASK);
}

/* What follows the IP header, at offset. */
static __always_inline enum pod_count parse_transport(struct __sk_buff *skb, __u32 offset, struct packet *p)
{
	__u32 header = sizeof(struct udphdr), segment;
	struct tcp_begin tcp;
	__u8 type;

	if (p->protocol == (p->family == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
		if (!read_bytes(skb, offset, &type, sizeof(type)))
			return LEFT_MALFORMED;
		if (!is_error(p->family, type))
			return LEFT_PROTOCOL;
		return parse_error(skb, offset + ICMP_HEADER, p);
	}
	if (!has_ports(p->protocol))
		return LEFT_PROTOCOL;
	p->flow.transport = p->protocol;
	if (p->protocol == IPPROTO_TCP) {
		if (!read_bytes(skb, offset, &tcp, sizeof(struct tcp_begin)))
			return LEFT_MALFORMED;
		p->flow.ports = tcp.ports;
		p->begins = tcp.flags & TCP_SYN;
		p->accepts = p->begins && (tcp.flags & TCP_ACK);
		header = (tcp.data_offset >> 4) * 4;
	} else if (!read_bytes(skb, offset, &p->flow.ports, sizeof(p->flow.ports))) {
		return LEFT_MALFORMED;
	}
	if (!skb->gso_size)
		return UNDERSTOOD;
	if (p->protocol == IPPROTO_UDP) {
		segment = tunnel_gso_headers(skb);
		if (segment)
			header = segment - offset;
	}
	segment = offset - ETH_HLEN + header + skb->gso_size;
	if (segment > 0xffff)
		return LEFT_TOO_LONG;
	p->length = segment;
	return UNDERSTOOD;
}

static __always_inline enum pod_count parse_v4(struct __sk_buff *skb, struct packet *p)
{
	struct iphdr ip;

	if (!read_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return LEFT_MALFORMED;
	/* A packet above 64 KB (BIG TCP) has the length 0. */
	if (ip.version != 4 || ip.ihl < 5 || bpf_ntohs(ip.tot_len) > skb->len - ETH_HLEN)
		return LEFT_MALFORMED;
	if (ip.ihl != 5)
		return LEFT_OPTIONS;
	if (ip.frag_off & bpf_htons(IP_MF | IP_OFFSET))
		return LEFT_FRAGMENT;
	if (ip.ttl <= 1)
		return LEFT_TTL;
	p->family = AF_INET;
	p->protocol = ip.protocol;
	map_v4(&p->flow.source, ip.saddr);
	map_v4(&p->flow.destination, ip.daddr);
	p->flow.flowinfo = ip.tos & 0xfc;	/* DSCP */
	return parse_transport(skb, ETH_HLEN + sizeof(ip), p);
}

/* A packet above 64 KB (BIG TCP) has its length in a hop-by-hop option header of 8 bytes (RFC 2675), which
 * the kernel removes at segmentation. */
static __always_inline bool has_jumbo_option(struct __sk_buff *skb, __u32 offset, __u8 *next)
{
	struct {
		__u8 next, length, type, size;
		__be32 payload;
	} option;

	if (!read_bytes(skb, offset, &option, sizeof(option)))
		return false;
	*next = option.next;
	return option.length == 0 && option.type == IPV6_TLV_JUMBO;
}

static __always_inline enum pod_count parse_v6(struct __sk_buff *skb, struct packet *p)
{
	__u32 offset = ETH_HLEN + sizeof(struct ipv6hdr);
	enum pod_count result;
	struct ipv6hdr ip;

	if (!read_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return LEFT_MALFORMED;
	if (ip.version != 6 || bpf_ntohs(ip.payload_len) > skb->len - ETH_HLEN - sizeof(ip))
		return LEFT_MALFORMED;
	if (ip.hop_limit <= 1)
		return LEFT_TTL;
	p->family = AF_INET6;
	p->protocol = ip.nexthdr;
	copy_v6(&p->flow.source, &ip.saddr);
	copy_v6(&p->flow.destination, &ip.daddr);
	/* The maps hold IPv4 addresses in this form. A packet must not have it (ip6_rcv_core drops such packets). */
	if (is_v4(&p->flow.source) || is_v4(&p->flow.destination))
		return LEFT_MALFORMED;
	__builtin_memcpy(&p->flow.flowinfo, &ip, sizeof(p->flow.flowinfo));
	p->flow.flowinfo &= bpf_htonl(0x0fcfffff);
	if (!ip.payload_len && ip.nexthdr == NEXTHDR_HOP && has_jumbo_option(skb, offset, &p->protocol))
		offset += JUMBO_OPTION;
	result = parse_transport(skb, offset, p);
	if (offset != ETH_HLEN + sizeof(ip))
		p->length -= JUMBO_OPTION;
	return result;
}

/* p must be zeroed. */
static __always_inline enum pod_count parse(struct __sk_buff *skb, struct packet *p)
{
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return LEFT_LINK;
	p->flow.ifindex = skb->ifindex;
	p->length = skb->gso_size ? 0 : skb->len - ETH_HLEN;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return parse_v4(skb, p);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return parse_v6(skb, p);
	return LEFT_LINK;
}

#endif
