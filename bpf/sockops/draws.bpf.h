/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The pseudo-random draws of connections and of slices of time. */
#ifndef TCPILOT_DRAWS_BPF_H
#define TCPILOT_DRAWS_BPF_H

#include "classify.bpf.h"

/* SipHash-1-3 (Aumasson and Bernstein, 2012; one round a word, three at the end) of
 * three words, without the length because that is constant. Linux and others use it for
 * hash tables: without the key, nobody can predict or choose its result, as they could
 * that of a multiplication by a secret. It takes about 20 ns. */
struct sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate(__u64 x, int by)
{
	return x << by | x >> (64 - by);
}

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = rotate(s->v1, 13) ^ s->v0;
	s->v3 = rotate(s->v3, 16) ^ s->v2;
	s->v0 = rotate(s->v0, 32) + s->v3;
	s->v2 += s->v1;
	s->v3 = rotate(s->v3, 21) ^ s->v0;
	s->v1 = rotate(s->v1, 17) ^ s->v2;
	s->v2 = rotate(s->v2, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	s->v0 ^= word;
}

/* A global function, so that it is verified once and not at every call. */
__noinline __u64 siphash(__u64 k0, __u64 k1, __u64 a, __u64 b, __u64 c)
{
	struct sip s = {
		.v0 = k0 ^ 0x736f6d6570736575ULL,
		.v1 = k1 ^ 0x646f72616e646f6dULL,
		.v2 = k0 ^ 0x6c7967656e657261ULL,
		.v3 = k1 ^ 0x7465646279746573ULL,
	};

	sip_word(&s, a);
	sip_word(&s, b);
	sip_word(&s, c);
	s.v2 ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* The draw of an incoming connection for the hold-out, 0 to 65535. Unlike a random
 * number it is the same for the request socket and for the socket that follows, so
 * that the handshake of a hold-out connection is not changed either. The peer can
 * choose all of the input, but does not know the key. */
static __always_inline __u32 incoming_draw(const struct conn *c, const __u64 key[2])
{
	return siphash(key[0], key[1], (__u64)c->remote[0] << 32 | c->remote[1],
		       (__u64)c->remote[2] << 32 | c->remote[3],
		       (__u64)c->remote_port << 16 | c->local_port) & 0xffff;
}

/* The draw of one connection, from a number that no other connection has and no peer chooses: the finalizer of
 * MurmurHash3 (Appleby, public domain). It takes 2 ns, a tenth of bpf_get_prandom_u32. Draws with different
 * keys are independent. */
static __always_inline __u64 conn_draw(__u64 number, __u64 key)
{
	__u64 x = number ^ key;

	x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

/* A number for conn_draw of a connection that begins, and that may have no cookie yet: the time in nanoseconds, which
 * hardly any two connections of one host to one remote port have in common. */
static __always_inline __u64 begin_number(__u64 now, const struct conn *c)
{
	return now ^ (__u64)c->remote_port << 48 ^ (__u64)c->local_port << 32;
}

/* The draw of one slice of time for one network (/24, or /48 of IPv6). It is the same on
 * all hosts with the same key and correct clocks, because connections of several hosts may
 * share a queue: then an arm must not gain at the expense of another one. Both members are uniform in
 * 0..65535, and independent of each other: they are different bits of one hash. */
struct slice {
	__u32 arm;
	__u32 hold_out;
};

static __always_inline struct slice slice_draw(const struct conn *c, const __u64 key[2],
					       __u64 wall_ns, __u32 shift)
{
	__u64 net = (__u64)c->remote[0] << 32 | (c->remote[1] & bpf_htonl(0xffff0000)), h;

	if (!net)	/* v4-mapped */
		net = c->remote[3] & bpf_htonl(0xffffff00);
	h = siphash(key[0], key[1], wall_ns >> (shift & 63), net, 0);
	return (struct slice){ .arm = h & 0xffff, .hold_out = h >> 48 };
}

#endif
