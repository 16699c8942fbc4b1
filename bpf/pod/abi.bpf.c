// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The types of pod_abi.h for bpf2go, in an object that is never loaded. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "pod_abi.h"

const struct {
	struct device device;
	struct network network;
	struct pod_counters counters;
	struct pod_meters meters;
	enum pod_limits limits;
	enum device_flags flags;
	enum pod_count count;
} abi SEC(".rodata");

char LICENSE[] SEC("license") = "Dual BSD/GPL";
