/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Every difference between kernels that the programs care about, in one place, with the
 * date after which it can be removed. */
#ifndef TCPILOT_COMPAT_BPF_H
#define TCPILOT_COMPAT_BPF_H

#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Keeps what is rarely executed out of the way of what always is: programs run once in a few
 * microseconds at most, so each line of their code is likely to be fetched from a slower cache.
 * In bpf_helpers.h since libbpf 1.6. */
#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

/* Length of a jiffy in microseconds. Not the kconfig extern CONFIG_HZ, which needs
 * a configuration file that many kernels do not carry: user space reads the
 * resolution of CLOCK_MONOTONIC_COARSE, which is one tick. */
const volatile __u32 jiffy_us = 4000;

/* Rounded up. */
static __always_inline __u32 ms_to_jiffies(__u32 ms)
{
	return (ms * 1000 + jiffy_us - 1) / jiffy_us;
}

/* tcp_sock.total_rto came with Linux 6.7; drop when 6.1 and 6.6 are out of
 * support (December 2027). */
#define tcp_total_rto(tp) \
	(bpf_core_field_exists((tp)->total_rto) ? (tp)->total_rto : 0)

/* Keeps clang from checking one copy of an index and using another, which
 * verifiers before Linux 6.3 do not see through; drop when 6.1 is out of support
 * (December 2027). */
#define bounded(i, n) (({ asm volatile("" : "+r"(i)); (i) < (n); }))

#endif
