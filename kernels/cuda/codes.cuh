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
