// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Programs on the network devices of pods, attached from the host's side, so that a pod can neither
 * see nor remove them. What a pod sends arrives at the ingress of the host's end of its pair; what
 * the host's stack sends to the pod leaves by the egress of that end. Packets from other hosts arrive
 * at the ingress of an outer device.
 *
 * Programs and filters of others that run before these see packets unchanged. A packet that is left to the
 * stack goes on to those that run after these.
 */
#include "maps.bpf.h"
#include "bandwidth.bpf.h"

/* What happens to each packet for a pod, whichever way it comes. */
static __always_inline int to_pod(struct __sk_buff *skb, const struct device *pod)
{
	if (!bandwidth_pass(skb, pod, POD_INGRESS))
		return TCX_DROP;
	count_big(skb, pod, POD_INGRESS);
	return TCX_NEXT;
}

#include "route.bpf.h"

/* What happens to each packet that a pod sent. */
static __always_inline int from_pod(struct __sk_buff *skb, const struct device *pod)
{
	if (!bandwidth_pass(skb, pod, POD_EGRESS))
		return TCX_DROP;
	count_big(skb, pod, POD_EGRESS);
	if (pod->flags & DEVICE_ROUTED)
		return route_from_pod(skb);
	return TCX_NEXT;
}

static __always_inline const struct device *device_of(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	return bpf_map_lookup_elem(&pod_devices, &ifindex);
}

SEC("tcx/ingress")
int tcpilot_pod_out(struct __sk_buff *skb)
{
	const struct device *pod = device_of(skb);

	return pod ? from_pod(skb, pod) : TCX_NEXT;
}

SEC("tcx/egress")
int tcpilot_pod_in(struct __sk_buff *skb)
{
	const struct device *pod = device_of(skb);

	return pod ? to_pod(skb, pod) : TCX_NEXT;
}

SEC("tcx/ingress")
int tcpilot_wire_in(struct __sk_buff *skb)
{
	return route_from_wire(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
