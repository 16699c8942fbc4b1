/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The types shared by the programs on pods' devices and user space, and nothing else. Rules as in
 * ../include/abi.h; any change raises POD_ABI_VERSION. */
#ifndef TCPILOT_POD_ABI_H
#define TCPILOT_POD_ABI_H

enum pod_limits {
	POD_ABI_VERSION = 8,	/* in the name of the directory with the pinned maps */
	MAX_DEVICES = 8192,
	MAX_ADDRESSES = 65536,
	MAX_NETWORKS = 1024,
};

enum device_flags {
	DEVICE_ROUTED = 1 << 0,	/* packets may be routed here without the host's stack */
	DEVICE_OUTER = 1 << 1,	/* leads to other hosts; otherwise it is the host's end of a pod's pair */
	DEVICE_BIG = 1 << 2,	/* may have packets above 64 KB (BIG TCP), which are counted */
};

/* A device of the host, by its interface index. */
struct device {
	__u32 flags;		/* enum device_flags */
	__u8 mac[6];		/* of the pod's end */
	__u8 host_mac[6];	/* of the host's end */
	__u32 index;		/* the key */
	__u32 pad;
	/* Limits of the pod's bandwidth, as it sees it, in bytes per second on the wire; 0: none. */
	__u64 egress, ingress;
};

enum pod_direction {
	POD_EGRESS,
	POD_INGRESS,
};

/* Counts of one direction: of packets under a limit, and of packets above 64 KB. */
struct pod_meter {
	__u64 clock_ns;		/* CLOCK_MONOTONIC: when all that has passed would have been sent at the limit */
	__u64 bytes;		/* passed, on the wire */
	__u64 marked;		/* packets, after segmentation, that passed with a mark of congestion */
	__u64 dropped;		/* packets, after segmentation */
	__u64 dropped_bytes;	/* on the wire */
	__u64 big;		/* packets above 64 KB, before segmentation, that passed */
	__u64 neighbours_ns;	/* like clock_ns, of ARP and neighbour discovery for which clock_ns is too far ahead */
	__u64 short_ns;		/* like clock_ns, at half of the limit, of short packets received while clock_ns is far ahead */
	__u64 dropped_ns;	/* CLOCK_MONOTONIC: when a packet was dropped last */
	__u64 rate;		/* the limit of the clocks, in bytes per second */
};

struct pod_meters {
	struct pod_meter egress, ingress;
};

/* Addresses are IPv6, IPv4 ones mapped (RFC 4291, section 2.5.5.2). */
struct network {		/* key of the longest-prefix match */
	__u32 prefixlen;
	__u8 addr[16];
};

/* Packets of pods, by what became of them. A packet of several segments (GSO) is one. */
enum pod_count {
	/* routed by the programs */
	ROUTED_POD_TO_POD,
	ROUTED_POD_TO_WIRE,
	ROUTED_WIRE_TO_POD,
	/* left to the host's stack, because ... */
	LEFT_LINK,		/* not IP, not for the device's own MAC address, or of a VLAN */
	LEFT_MALFORMED,		/* lengths that do not fit; IPv4 addresses in an IPv6 header */
	LEFT_OPTIONS,		/* it has IP options */
	LEFT_FRAGMENT,
	LEFT_PROTOCOL,		/* neither TCP nor UDP, nor an ICMP error about them; or IPv6 extension headers */
	LEFT_TTL,		/* it must not be forwarded any further */
	LEFT_SOURCE,		/* not the pod's address; from the wire: not of the networks without NAT */
	LEFT_DESTINATION,	/* neither a pod's address nor of the networks without NAT; an ICMP error that does
				 * not go to the sender of the packet that it is about */
	LEFT_NAT,		/* its connection is translated */
	LEFT_NOT_FORWARDED,	/* the route is local, or there is none */
	LEFT_NO_FORWARDING,	/* forwarding is off */
	LEFT_BLACKHOLE,
	LEFT_UNREACHABLE,
	LEFT_PROHIBIT,
	LEFT_ENCAP,		/* the route encapsulates */
	LEFT_TOO_LONG,		/* for the route's MTU: the stack fragments, or answers */
	LEFT_DEVICE,		/* the route leads to a device that is not in pod_devices, or back */
	LEFT_LOOKUP,		/* the route could not be looked up */
	NUM_POD_COUNTS,
};

struct pod_counters {
	__u64 n[NUM_POD_COUNTS];
};

_Static_assert(sizeof(struct device) == 40, "device");
_Static_assert(sizeof(struct pod_meters) == 160, "pod_meters");
_Static_assert(sizeof(struct network) == 20, "network");

#endif
