/* Small device pieces that several kernels share. */
#ifndef DCPG_ROWOPS_CUH
#define DCPG_ROWOPS_CUH

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/device.cuh"

#define DCPG_FULL 0xffffffffu

/* Which of the ranks row i of a request falls to, and as which of theirs. */
__device__ static inline uint32_t
dealt_to(const dcpg_deal &d, uint32_t i, uint32_t row0)
{
	return d.owner ? d.owner[i] : (i - row0) % d.n;
}

__device__ static inline uint32_t
slot_of(const dcpg_deal &d, uint32_t i, uint32_t row0)
{
	return d.jof ? d.jof[i] : row0 + (i - row0) / d.n;
}

__device__ static inline float
warp_sum(float v)
{
	for (int o = 16; o > 0; o >>= 1)
		v += __shfl_xor_sync(DCPG_FULL, v, o);
	return v;
}

__device__ static inline float
warp_max(float v)
{
	for (int o = 16; o > 0; o >>= 1)
		v = fmaxf(v, __shfl_xor_sync(DCPG_FULL, v, o));
	return v;
}

/* Over the whole block (<= 1024 threads, whole warps); every thread gets it. */
__device__ static inline float
block_sum(float v)
{
	__shared__ float part[32];
	uint32_t warps = blockDim.x / 32, w = threadIdx.x / 32;

	v = warp_sum(v);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		part[w] = v;
	__syncthreads();
	v = threadIdx.x % 32 < warps ? part[threadIdx.x % 32] : 0;
	return warp_sum(v);
}

__device__ static inline float
block_max(float v)
{
	__shared__ float part[32];
	uint32_t warps = blockDim.x / 32, w = threadIdx.x / 32;

	v = warp_max(v);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		part[w] = v;
	__syncthreads();
	v = threadIdx.x % 32 < warps ? part[threadIdx.x % 32] : -INFINITY;
	return warp_max(v);
}

/* Four values, for one access. */
struct alignas(8) bf16x4 {
	__nv_bfloat162 a, b;
};

__device__ static inline bf16x4
bf16_of(float4 v)
{
	return { __floats2bfloat162_rn(v.x, v.y),
		__floats2bfloat162_rn(v.z, v.w) };
}

/* In one order, whatever the compiler makes of what is around it. */
__device__ static inline float
dot4(float4 v)
{
	return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

__device__ static inline float
max4(float4 v)
{
	return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)),
	    fmaxf(fabsf(v.z), fabsf(v.w)));
}

/*
 * Columns 4q .. 4q+3 of row `row` of m as codes, by a thread of a warp that has
 * 128 of them in order. The warp of the last row writes those that fill up.
 */
__device__ static inline void
put_codes(const struct dcpg_codes &y, uint32_t m, uint32_t k, uint32_t row,
    uint32_t q, bf16x4 x)
{
	float2 a = __bfloat1622float2(x.a), b = __bfloat1622float2(x.b);
	float4 v = make_float4(a.x, a.y, b.x, b.y);
	float s = code_scale(warp_max(max4(v)), y.pow2);
	uint32_t codes = codes4(v, s), m4 = dcpg_rows4(m);
	uint32_t end = row + 1 == m ? m4 : row + 1;

	for (; row < end; row++, codes = 0, s = code_scale(0, y.pow2)) {
		((uint32_t *)(y.code + (size_t)row * k))[q] = codes;
		if (q % 32 == 0)
			y.scale[(size_t)(q / 32) * m4 + row] = s;
	}
}

/* The end of SplitMix64. */
__device__ static inline uint64_t
mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Element d of a KV row (c + r elements). */
__device__ static inline float
row_at(const uint8_t *row, enum dcpk_kv kv, uint32_t c, uint32_t d)
{
	if (kv == DCPK_KV_FP8) {
		if (d < c)
			return from_e4m3(row[d]) *
			    *(const float *)(row + c + d / 128 * 4);
		return __bfloat162float(*(const bf16 *)(row + c + c / 128 * 4 +
		    (d - c) * 2));
	}
	return __bfloat162float(((const bf16 *)row)[d]);
}

/* Element d of an index key, without its scale. */
__device__ static inline float
key_at(const uint8_t *key, enum dcpk_kv fmt, uint32_t d)
{
	return fmt == DCPK_KV_FP8 ? from_e4m3(key[d]) :
	    __bfloat162float(((const bf16 *)key)[d]);
}

#endif
