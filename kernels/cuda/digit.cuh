/*
 * The order of scores, in integers: DESIGN "exact top-k by threshold". Shared
 * by the score kernel, which counts first digits, and the selection.
 */
#ifndef DCPG_DIGIT_CUH
#define DCPG_DIGIT_CUH

#include <cuda_fp16.h>
#include <stdint.h>

namespace dcpg {

/* Larger score, larger key; -0 is +0; NaN below -inf: 0. */
__device__ inline uint32_t
score_key(float x)
{
	uint32_t u = __float_as_uint(x + 0.0f);

	if (x != x)
		return 0;
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/*
 * First digit: the upper 11 bits of the score rounded to f16, made orderly.
 * Rounding is monotone, so a larger digit is a larger score; beyond f16 it
 * clamps to the infinities. NaN is 0, below -inf (31).
 */
__device__ inline uint32_t
score_digit(float x)
{
	uint32_t h = __half_as_ushort(__float2half_rn(x + 0.0f));

	if (x != x)
		return 0;
	return (h & 0x8000u ? ~h & 0xffffu : h | 0x8000u) >> 5;
}

/*
 * The least key whose digit is at least d. Its digit's least f16 number has the
 * magnitude h (in f16's bits), the next one towards zero h - 1, or, below zero,
 * the other way round; their middle m is exact in f32, and as h is even it
 * belongs to h. Past the largest f16 the next step, 65536, stands for infinity.
 */
__device__ inline uint32_t
digit_first_key(uint32_t d)
{
	uint32_t h = (d > 1024 ? d - 1024 : 1024 - d) * 32, m = 0;

	if (d <= 31)		/* -inf and less: all but NaN, then all */
		return d > 0 ? 1 : 0;
	if (d > 2016)		/* above +inf */
		return ~0u;
	if (h > 0x400)		/* h and h - 1 are f32's numbers 8192 apart */
		m = (h << 13) + 0x38000000 - 4096;
	else if (h > 0)		/* steps of 2^-24 */
		m = __float_as_uint(((float)h - 0.5f) * 0x1p-24f);
	return d < 1024 ? 0x80000000u - m : 0x80000000u + m;
}

/* The least score whose key is at least `key`, which is above NaN's. */
__device__ inline float
key_score(uint32_t key)
{
	return key < 0x007fffff ? -INFINITY : __uint_as_float(key >> 31 ?
	    key ^ 0x80000000u : ~key);
}

/* Total order of all keys: score descending, position ascending. */
__device__ inline uint64_t
composite(uint32_t key, uint32_t pos)
{
	return (uint64_t)key << 32 | (uint32_t)~pos;
}

}	/* namespace dcpg */
#endif
