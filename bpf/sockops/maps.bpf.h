/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps that more than one object of this folder uses. sockops.bpf.c creates them; iter.bpf.c,
 * limits.bpf.c, release.bpf.c and resume.bpf.c are loaded with them in place of their own (internal/datapath). A map
 * that one object alone uses is in its .bpf.c.
 */
#ifndef TCPILOT_MAPS_BPF_H
#define TCPILOT_MAPS_BPF_H

#include "track.bpf.h"

/* ---- maps that user space writes --------------------------------------- */

/* BPF_F_MMAPABLE where cache lines matter: the values of such an array begin at a page. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct runtime_config);
} runtime_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct path_key);
	__type(value, struct path_policy);
} path_policies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BANKS);
	__type(key, __u32);
	__type(value, struct rule_bank);
} rule_banks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BANKS * MAX_RULES);
	__type(key, __u32);
	__type(value, struct class_entry);
} classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_prefix);
	__type(value, struct rule_set);
} remote_rules SEC(".maps"), local_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BANKS * 2 * 65536);
	__type(key, __u32);
	__type(value, __u32);
} port_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BANKS * 2 * MAX_PORT_SETS);
	__type(key, __u32);
	__type(value, struct rule_set);
} port_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_id);
	__type(value, struct rule_set);
} cgroup_rules SEC(".maps"), netns_rules SEC(".maps");

/* When the rules of a network namespace became others, by its cookie (CLOCK_MONOTONIC), if later than runtime_config.rules_ns. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u64);
} netns_rules_ns SEC(".maps");

/* What each network namespace owns (fields and YIELD_CC), by its cookie. Read only if
 * runtime_config.yield is not 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u64);
} netns_yields SEC(".maps");

/* Rate limits of rules and of paths, whose keys are derived from names, and of network namespaces, by cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct limit);
} limits SEC(".maps");

/* Shares of the connections that were active lately, bytes per second, by cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} limit_shares SEC(".maps");

/* ---- maps that the programs write -------------------------------------- */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct limited);
} limited SEC(".maps");

/* Bytes sent by connections that have ended, by key of limits. User space adds the keys. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u64);
} limit_ended SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);	/* user space reads and frees them */
	__uint(max_entries, NUM_SLOTS);
	__type(key, __u32);
	__type(value, struct track);
} slots SEC(".maps");

/* Room for as many as path_policies; user space sets the number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);	/* user space reads, and corrects them */
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct flow_count);
} flow_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct live_conn);
} live SEC(".maps");

/* TCP_NOTSENT_LOWAT of the application, where a rule's value replaced it (notsent_lowat.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} own_lowat SEC(".maps");

/* By number of the CPU; user space sets how many there are. A per-CPU array would need another read of memory
 * for each look-up, to find its values. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);	/* user space reads them */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* Sockets on which tcpilot, and not another program, set the flag for the callback of header options
 * (peer_listen.bpf.h). Children of listeners inherit the flag and this entry. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u8);
} peer_callbacks SEC(".maps");

/* The window that a connection gets now. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, union resume_window);
} resume_windows SEC(".maps");

/* How much sockets of a network namespace can receive at a time, as binary logarithm of bytes, by cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} netns_receive SEC(".maps");

#endif
