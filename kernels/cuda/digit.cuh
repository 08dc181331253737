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
 * The least key whose digit is at least d. Between the f16 numbers a and b on
 * both sides of the boundary it is their middle m, exact in f32: of m's two
 * neighbours the even one gets it, b above zero, a below. Past the largest f16
 * the next step, 65536, stands for infinity.
 */
__device__ inline uint32_t
digit_first_key(uint32_t d)
{
	float m[2];

	if (d <= 31)		/* -inf and less: all but NaN, then all */
		return d > 0 ? 1 : 0;
	if (d > 2016)		/* above +inf */
		return ~0u;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t h = d * 32 - 1 + i;	/* orderly bits of a, b */

		h = h & 0x8000u ? h & 0x7fffu : ~h & 0xffffu;
		m[i] = (h & 0x7fff) == 0x7c00 ? (h & 0x8000 ? -65536.0f :
		    65536.0f) : __half2float(__ushort_as_half((uint16_t)h));
	}
	m[0] = m[0] * 0.5f + m[1] * 0.5f;
	return score_key(m[0]) + (d < 1024);
}

/* Total order of all keys: score descending, position ascending. */
__device__ inline uint64_t
composite(uint32_t key, uint32_t pos)
{
	return (uint64_t)key << 32 | (uint32_t)~pos;
}

}	/* namespace dcpg */
#endif
