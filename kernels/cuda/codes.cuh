/*
 * e4m3, and activations as codes (dcpg_codes): what the kernels that make an
 * FP8 product's x share.
 */
#ifndef DCPG_CODES_CUH
#define DCPG_CODES_CUH

#include <cuda_fp8.h>

#include "kernels/cuda/dcpg.h"

__device__ static inline uint8_t
to_e4m3(float x)
{
	return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

__device__ static inline float
from_e4m3(uint8_t b)
{
	__half_raw h = __nv_cvt_fp8_to_halfraw(b, __NV_E4M3);

	return __half2float(__half(h));
}

/* v / scale as four codes in order of address; scale 0: zeros. */
__device__ static inline uint32_t
e4m3x4(float4 v, float scale)
{
	if (!(scale > 0))
		return 0;
	return to_e4m3(v.x / scale) | to_e4m3(v.y / scale) << 8 |
	    to_e4m3(v.z / scale) << 16 | (uint32_t)to_e4m3(v.w / scale) << 24;
}

/*
 * x / s, rounded as a division does, by = 1 / s: 4 instructions where that is
 * known. No quotient may be out of range.
 */
__device__ static inline float
quotient(float x, float s, float by)
{
	float q = x * by;

	return x == 0 ? x : fmaf(fmaf(-q, s, x), by, q);	/* -0 too */
}

/* e4m3x4 of values within 448 scales. */
__device__ static inline uint32_t
codes4(float4 v, float scale)
{
	float by = 1 / scale;

	if (!(scale > 1e-30f))	/* 1 / scale, or what is left, too small */
		return e4m3x4(v, scale);
	return e4m3x4(make_float4(quotient(v.x, scale, by), quotient(v.y,
	    scale, by), quotient(v.z, scale, by), quotient(v.w, scale, by)), 1);
}

/* The rows of a dcpg_codes that has m of its own. */
__host__ __device__ static inline uint32_t
dcpg_rows4(uint32_t m)
{
	return (m + 3) / 4 * 4;
}

/* Of 128 values, none beyond `top`, as dcpc_quant_act has it on the CPU. */
__device__ static inline float
code_scale(float top, bool pow2)
{
	float s = top / 448.0f;

	if (pow2)	/* up to the next power of two */
		s = __uint_as_float((__float_as_uint(fmaxf(s, 1e-4f /
		    448.0f)) + 0x7fffff) & 0x7f800000);
	return s;
}

#endif
