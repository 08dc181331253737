/*
 * Random numbers of a test: the same in each run. Define RND_SEED, not 0,
 * before including this; every test begins anew with it, being a process.
 */
#ifndef TESTS_RND_H
#define TESTS_RND_H

#include <stdint.h>

static uint64_t rng = RND_SEED;

/* 0..n-1 */
static inline uint32_t
rnd(uint32_t n)
{
	rng ^= rng << 13;	/* xorshift64 */
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng >> 32) % n;
}

/* Uniform in -1..1. */
static inline float
rndf(void)
{
	return (float)rnd(1u << 24) / (float)(1u << 23) - 1;
}

#endif
