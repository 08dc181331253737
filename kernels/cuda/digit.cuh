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

/* The key of the f16 number with orderly bits h. */
__device__ inline uint32_t
half_key(uint32_t h)
{
	h = h & 0x8000u ? h & 0x7fffu : ~h & 0xffffu;
	return score_key(__half2float(__ushort_as_half((uint16_t)h)));
}

/* Keys of scores with digit d lie in [lo, hi]; not tight. */
__device__ inline void
digit_range(uint32_t d, uint32_t *lo, uint32_t *hi)
{
	/* The neighbours' f16 numbers; outside -inf..+inf there are none. */
	uint32_t a = d * 32, b = d * 32 + 32;

	*lo = a <= 0x0400 ? 0 : half_key(a - 1);
	*hi = b >= 0xfbff ? ~0u : half_key(b);
}

/* Total order of all keys: score descending, position ascending. */
__device__ inline uint64_t
composite(uint32_t key, uint32_t pos)
{
	return (uint64_t)key << 32 | (uint32_t)~pos;
}

}	/* namespace dcpg */
#endif
