// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Programs on the network devices of pods, attached from the host's side, so that a pod can neither
 * see nor remove them. What a pod sends arrives at the ingress of the host's end of its pair, or is seen before if the
 * pair is netkit; what the host's stack sends to the pod leaves by the egress of that end. Packets from other hosts
 * arrive at the ingress of an outer device.
 *
 * Programs and filters of others that run before these see packets unchanged. A packet that is left to the
 * stack goes on to those that run after these.
 */
#include "maps.bpf.h"
#include "bandwidth.bpf.h"

/* Whether a packet for a pod may pass, whichever way it comes. */
static __always_inline bool to_pod(struct __sk_buff *skb, const struct device *pod)
{
	if (!bandwidth_pass(skb, pod, POD_INGRESS))
		return false;
	count_big(skb, pod, POD_INGRESS);
	return true;
}

/* Whether a packet that a pod sent may pass. */
static __always_inline bool from_pod(struct __sk_buff *skb, const struct device *pod)
{
	if (!bandwidth_pass(skb, pod, POD_EGRESS))
		return false;
	count_big(skb, pod, POD_EGRESS);
	return true;
}

#include "route.bpf.h"

SEC("tcx/ingress")
int tcpilot_pod_out(struct __sk_buff *skb)
{
	return route_from_pod(skb, HOOK_TCX);
}

/* The same for a pod with a netkit pair: while the pod transmits, before the packet waits for the host to receive it. The
 * kernel has set the packet's device to the host's end already (netkit_xmit). */
SEC("netkit/peer")
int tcpilot_nk_out(struct __sk_buff *skb)
{
	return route_from_pod(skb, HOOK_NETKIT);
}

SEC("tcx/egress")
int tcpilot_pod_in(struct __sk_buff *skb)
{
	struct device pod;

	return find_device(skb->ifindex, &pod) && !to_pod(skb, &pod) ? TCX_DROP : TCX_NEXT;
}

SEC("tcx/ingress")
int tcpilot_wire_in(struct __sk_buff *skb)
{
	return route_from_wire(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
