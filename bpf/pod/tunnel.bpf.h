/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The headers of a GSO packet, also of one in a tunnel that begins in the pod (VXLAN, Geneve, GRE, IP in IP): the kernel segments the
 * packet in it, and each segment has the headers of the tunnel as well.
 *
 * Programs cannot read where the kernel has noted the inner headers, nor of which type the GSO packet is (Linux before 6.2 has no
 * bpf_cast_to_kern_ctx). So they are read from the packet. UDP ports do not say what is in a datagram: what looks like a
 * tunnel's header is one only if the IP packet behind it has exactly the length that is left, and if the kernel counts as many segments.
 */
#ifndef TCPILOT_TUNNEL_BPF_H
#define TCPILOT_TUNNEL_BPF_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bytes.bpf.h"

#define IPPROTO_HOPOPTS 0	/* include/uapi/linux/in6.h */

#define VXLAN_HAS_VNI 0x08	/* the first byte (RFC 7348, section 5) */
#define VXLAN_LEN 8
#define GENEVE_LEN 8		/* without options (RFC 8926, section 3.4) */
#define GENEVE_OPTIONS 0x3f	/* the first byte; in units of 4 bytes */
#define GRE_LEN 4		/* RFC 2784, RFC 2890 */
#define GRE_CSUM 0x80		/* the first byte */
#define GRE_KEY 0x20
#define GRE_SEQ 0x10

/* An IP packet. The members have 64 bits because of narrower ones on the stack the verifier does not know the bounds. */
struct ip_packet {
	__u64 transport;	/* where the header of the transport begins */
	__u64 end;
	__u64 protocol;
};

/* False: it is none. */
static __always_inline bool read_ip(struct __sk_buff *skb, __u32 at, __u32 ethertype, struct ip_packet *ip)
{
	__u8 h[10];

	if (!read_bytes(skb, at, h, sizeof(h)))
		return false;
	if (ethertype == ETH_P_IP && h[0] >> 4 == 4) {
		ip->transport = at + (h[0] & 0xf) * 4;
		ip->end = at + (h[2] << 8 | h[3]);
		ip->protocol = h[9];
		return true;
	}
	if (ethertype != ETH_P_IPV6 || h[0] >> 4 != 6)
		return false;
	ip->transport = at + 40;
	ip->end = ip->transport + (h[4] << 8 | h[5]);
	ip->protocol = h[6];
	if (ip->protocol != IPPROTO_HOPOPTS)
		return true;
	if (!read_bytes(skb, at + 40, h, 1))
		return false;
	/* BIG TCP: not on the wire */
	ip->transport += 8;
	ip->protocol = h[0];
	return true;
}

/* Where the payload of the transport begins; 0: it is neither TCP nor UDP. */
static __always_inline __u32 payload_at(struct __sk_buff *skb, const struct ip_packet *ip)
{
	__u8 byte;

	if (ip->protocol == IPPROTO_UDP)
		return ip->transport + 8;
	if (ip->protocol != IPPROTO_TCP || !read_bytes(skb, ip->transport + 12, &byte, 1))
		return 0;
	return ip->transport + (byte >> 4) * 4;
}

/* Where the packet in a tunnel begins, if a packet is one of a tunnel, and of which Ethernet type it is; 0: it cannot be one. */
static __always_inline __u32 tunnelled_at(struct __sk_buff *skb, const struct ip_packet *ip, __u32 *ethertype)
{
	__u32 at = ip->transport;
	__u8 h[4];

	if (ip->protocol == IPPROTO_IPIP || ip->protocol == IPPROTO_IPV6) {
		*ethertype = ip->protocol == IPPROTO_IPIP ? ETH_P_IP : ETH_P_IPV6;
		return at;
	}
	if (ip->protocol == IPPROTO_UDP)
		at += 8;
	else if (ip->protocol != IPPROTO_GRE)
		return 0;
	if (!read_bytes(skb, at, h, sizeof(h)))
		return 0;
	*ethertype = h[2] << 8 | h[3];
	if (ip->protocol == IPPROTO_GRE)
		return at + GRE_LEN + 4 * (!!(h[0] & GRE_CSUM) + !!(h[0] & GRE_KEY) + !!(h[0] & GRE_SEQ));
	if (*ethertype == ETH_P_TEB || *ethertype == ETH_P_IP || *ethertype == ETH_P_IPV6)
		return at + GENEVE_LEN + 4 * (h[0] & GENEVE_OPTIONS);
	*ethertype = ETH_P_TEB;
	return h[0] & VXLAN_HAS_VNI ? at + VXLAN_LEN : 0;
}

/* The bytes of the headers up to the payload in a tunnel, from the outer Ethernet header on; 0: there is no tunnel. A global function,
 * so that it is verified once. */
__noinline int tunnel_headers(struct __sk_buff *skb)
{
	__u32 at, ethertype = bpf_ntohs(skb->protocol);
	struct ip_packet ip;
	__be16 inner;

	if (!read_ip(skb, ETH_HLEN, ethertype, &ip))
		return 0;
	at = tunnelled_at(skb, &ip, &ethertype);
	if (!at)
		return 0;
	if (ethertype == ETH_P_TEB) {
		if (!read_bytes(skb, at + ETH_HLEN - 2, &inner, sizeof(inner)))
			return 0;
		ethertype = bpf_ntohs(inner);
		at += ETH_HLEN;
	}
	if (!read_ip(skb, at, ethertype, &ip) || ip.end != skb->len)
		return 0;
	return payload_at(skb, &ip);
}

static __always_inline __u32 segments_of(struct __sk_buff *skb, __u32 headers)
{
	__u32 len = skb->len, size = skb->gso_size;

	return headers < len && size ? (len - headers + size - 1) / size : 1;
}

/* The bytes of the headers of each packet that a GSO packet in a tunnel becomes; 0: there is no tunnel. */
static __always_inline __u32 tunnel_gso_headers(struct __sk_buff *skb)
{
	__u32 headers = tunnel_headers(skb), segments = skb->gso_segs;

	/* 0 segments: whoever made the packet left them to the kernel (SKB_GSO_DODGY) */
	return !segments || segments_of(skb, headers) == segments ? headers : 0;
}

/* The bytes of the headers of each packet that a GSO packet becomes; 0 if they are not known. */
static __always_inline __u32 gso_headers(struct __sk_buff *skb)
{
	struct ip_packet ip;
	__u32 inner;

	if (!read_ip(skb, ETH_HLEN, bpf_ntohs(skb->protocol), &ip))
		return 0;
	if (ip.protocol != IPPROTO_TCP) {
		inner = tunnel_gso_headers(skb);
		if (inner)
			return inner;
	}
	return payload_at(skb, &ip);
}

#endif
