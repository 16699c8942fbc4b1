// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The types of abi.h for bpf2go, in an object that is never loaded. The type of the samples is here too,
 * and not a __type of the ring buffer: some loaders refuse a ring buffer with one. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

const struct {
	struct rule_set rule_set;
	struct rule_prefix rule_prefix;
	struct rule_id rule_id;
	struct masked_prefix masked_prefix;
	struct rule_bank rule_bank;
	struct class_entry class_entry;
	struct path_key path_key;
	struct path_policy path_policy;
	struct flow_count flow_count;
	struct limit limit;
	struct limited limited;
	struct limit_member limit_member;
	struct runtime_config runtime_config;
	struct cc_state cc_state;
	struct track track;
	struct conn_sample conn_sample;
	struct counters counters;
	struct class_count class_count;
	struct event_key event_key;
	struct timeout_answer timeout_answer;
	struct sock_option sock_option;
	struct probe_result probe_result;
	enum abi_limits limits;
	enum sample_flags flags;
	enum cc_flags cc_flags;
	enum closed_bits closed;
	enum class_flags class_flags;
	enum policy_flags policy_flags;
	enum limit_flags limit_flags;
	enum counter counter;
	enum event event;
	enum probe_hook hook;
} abi SEC(".rodata");

char LICENSE[] SEC("license") = "Dual BSD/GPL";
