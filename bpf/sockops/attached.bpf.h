/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether a socket that an iterator finds belongs to the cgroup that the hooks are attached to. */
#ifndef TCPILOT_ATTACHED_BPF_H
#define TCPILOT_ATTACHED_BPF_H

#include "classify.bpf.h"

/* Set before load: only connections of this cgroup and below are handled; 0: of any. */
const volatile __u64 attached_cgroup;

static __always_inline bool attached_to(struct tcp_sock *tp)
{
	struct cgroup *cg = tcp_sk_sock(tp)->sk_cgrp_data.cgroup;
	int level = cg ? cg->level : -1;

	if (!attached_cgroup)
		return true;
	for (int i = 0; i < MAX_CGROUP_LEVELS; i++) {
		struct kernfs_node *kn;
		struct cgroup *up;
		__u64 id;

		if (i > level)
			break;
		bpf_core_read(&up, sizeof(up), &cg->ancestors[i]);
		bpf_core_read(&kn, sizeof(kn), &up->kn);
		bpf_core_read(&id, sizeof(id), &kn->id);
		if (id == attached_cgroup)
			return true;
	}
	return false;
}

#endif
