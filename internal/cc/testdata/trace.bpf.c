/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The types of traces for bpf2go, in one object that is never loaded. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../bpf/include/abi.h"
#include "../../../bpf/cc/trace.h"

const struct {
	struct bbr3_transition bbr3_transition;
	enum bbr3_why bbr3_why;
	struct cubic_transition cubic_transition;
	enum cubic_why cubic_why;
} trace SEC(".rodata");

char LICENSE[] SEC("license") = "Dual BSD/GPL";
