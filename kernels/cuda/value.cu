/*
 * From attention's outputs to values: the ranks' partial outputs are merged by
 * their LSE, and each head's 512 latent values multiplied by its W_UV. One
 * kernel for the few rows of decode, where either part is latency. dcpg.h has
 * the formula.
 *
 * A block owns one head and 64 of its values. It brings its weights (64 KB) to
 * shared memory while the kernel before it still runs and while it waits for
 * its peers; 16 rows at a time are merged, mostly from peers' memory, into
 * the operand of the product (mma m16n8k16, a warp 8 values). Bytes that must
 * move: the weights once, a row's partials of a head once for each 64 values.
 *
 * Codes have a scale for 128 values: two blocks, then a cluster, tell each
 * other their maxima.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

typedef __nv_bfloat16 bf16;

constexpr uint32_t C = DCPG_LATENT, N = 64, ROWS = 16, THREADS = 256;
constexpr uint32_t LD = C + 8;	/* elements: rows fall on other banks */

struct Shared {
	bf16 w[N * LD], o[ROWS * LD];
	/* codes: of |y|, by the cluster's block and warp, of every second 16
	 * rows */
	float top[2][2][THREADS / 32][ROWS];
};

__device__ inline void
copy16(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to),
	    "l"(from) : "memory");
}

__device__ inline void
ldmatrix2(uint32_t a, uint32_t &r0, uint32_t &r1)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
	    : "=r"(r0), "=r"(r1) : "r"(a));
}

__device__ inline void
mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
	    "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0),
	    "r"(b1));
}

/* Eight latent values of a row and head, of all ranks together. */
__device__ inline uint4
merged(const struct dcpg_value &g, uint32_t row, uint32_t head, uint32_t col)
{
	size_t at = (size_t)row * g.row_heads + head;

	if (g.ranks == 1)
		return *(const uint4 *)((const bf16 *)g.part[0] + at * C +
		    col);
	return merge_eight((const bf16 *const *)g.part, g.lse, g.ranks, at, C,
	    col);
}

/* The product of 16 rows: this warp's 8 values, by k in two sums. */
__device__ inline void
product(const Shared &s, float (&d)[4])
{
	uint32_t lane = threadIdx.x % 32, n0 = threadIdx.x / 32 * 8;
	uint32_t a = smem_addr(s.o + lane % 16 * LD + lane / 16 * 8);
	uint32_t b = smem_addr(s.w + (n0 + lane % 8) * LD + lane / 8 % 2 * 8);
	float odd[4] = {};

#pragma unroll 4
	for (uint32_t k = 0; k < C; k += 32) {
		uint32_t a0, a1, a2, a3, b0, b1;

		ldmatrix4(a + k * 2, a0, a1, a2, a3);
		ldmatrix2(b + k * 2, b0, b1);
		mma(d, a0, a1, a2, a3, b0, b1);
		ldmatrix4(a + k * 2 + 32, a0, a1, a2, a3);
		ldmatrix2(b + k * 2 + 32, b0, b1);
		mma(odd, a0, a1, a2, a3, b0, b1);
	}
	for (int i = 0; i < 4; i++)
		d[i] += odd[i];
}

/* The largest of four neighbouring lanes. */
__device__ inline float
quad_max(float v)
{
	v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
	return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}

/* This thread's values as codes: two of row r0 + lane / 4, two of the row eight
 * further. What fills up the rows is 0 here. */
__device__ inline void
codes(const struct dcpg_value &g, Shared &s, uint32_t r0, uint32_t at,
    const __nv_bfloat162 *v)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t half = blockIdx.y % 2, turn = r0 / ROWS % 2;
	uint32_t m4 = dcpg_rows4(g.rows), k = g.heads * g.values;

	for (uint32_t i = 0; i < 2; i++) {
		float2 f = __bfloat1622float2(v[i]);
		float top = quad_max(fmaxf(fabsf(f.x), fabsf(f.y)));

		if (lane % 4 < 2)	/* one lane for each block */
			cluster_st32(cluster_map(smem_addr(&s.top[turn][half]
			    [warp][lane / 4 + i * 8]), lane % 4), top);
	}
	cluster_sync();
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t row = lane / 4 + i * 8, c = lane % 4 * 4;
		float2 f = __bfloat1622float2(v[i]);
		float top = 0, scale;

		for (uint32_t e = c; e < c + 4; e++)
			top = fmaxf(top, s.top[turn][e / 8][e % 8][row]);
		scale = code_scale(quad_max(top), g.y8.pow2);
		row += r0;
		if (row >= m4)
			continue;
		*(uint16_t *)(g.y8.code + (size_t)row * k + at) = scale > 0 ?
		    to_e4m3(f.x / scale) | to_e4m3(f.y / scale) << 8 : 0;
		if (at % 128 == 0)
			g.y8.scale[(size_t)(at / 128) * m4 + row] = scale;
	}
}

/* grid: (heads, values / 64); codes: clusters of 2 in y. */
__global__ void __launch_bounds__(THREADS, 2)
value_kernel(const __grid_constant__ struct dcpg_value g)
{
	extern __shared__ __align__(16) uint8_t mem[];
	Shared &s = *(Shared *)mem;
	uint32_t h = blockIdx.x, n0 = blockIdx.y * N, t = threadIdx.x;
	const bf16 *w = (const bf16 *)g.w + ((size_t)h * g.values + n0) * C;
	uint32_t lane = t % 32, col = n0 + t / 32 * 8 + lane % 4 * 2;

	for (uint32_t i = t; i < N * C / 8; i += THREADS)
		copy16(smem_addr(s.w + i / (C / 8) * LD + i % (C / 8) * 8),
		    w + i * 8);
	asm volatile("cp.async.commit_group;" ::: "memory");
	if (g.y8.code)		/* both run before one writes to the other */
		cluster_sync();
	launch_wait();
	launch_next();
	meet_in(g.peer, h == 0 && n0 == 0);
	for (uint32_t r0 = 0; r0 < g.rows; r0 += ROWS) {
		float d[4] = {};
		__nv_bfloat162 v[2];

#pragma unroll
		for (uint32_t i = t; i < ROWS * C / 8; i += THREADS) {
			uint32_t row = i / (C / 8), c = i % (C / 8) * 8;

			*(uint4 *)(s.o + row * LD + c) = r0 + row < g.rows ?
			    merged(g, r0 + row, h, c) : make_uint4(0, 0, 0, 0);
		}
		asm volatile("cp.async.wait_all;" ::: "memory");
		__syncthreads();
		product(s, d);
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t row = r0 + lane / 4 + i * 8;
			bf16 *y = (bf16 *)g.y + ((size_t)row * g.heads + h) *
			    g.values + col;

			v[i] = __floats2bfloat162_rn(d[2 * i], d[2 * i + 1]);
			if (row < g.rows)
				*(__nv_bfloat162 *)y = v[i];
		}
		if (g.y8.code)
			codes(g, s, r0, h * g.values + col, v);
		__syncthreads();
	}
	meet_out(g.peer, gridDim.x * gridDim.y);
}

}	/* namespace */

int
value_init(void)
{
	return cudaFuncSetAttribute(value_kernel,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)) ==
	    cudaSuccess ? 0 : -EIO;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_value(const struct dcpg_value *a, void *stream)
{
	cudaLaunchAttribute at[2];
	cudaLaunchConfig_t cfg = {};

	if (a->rows == 0 || a->heads == 0 || a->values == 0 ||
	    a->values % N != 0 || a->values / N > 65535 || a->ranks == 0 ||
	    a->ranks > DCPK_MAX_RANKS || a->row_heads < a->heads ||
	    (a->y8.code != NULL && a->values % 128 != 0))
		return -EINVAL;
	at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[0].val.programmaticStreamSerializationAllowed = 1;
	at[1].id = cudaLaunchAttributeClusterDimension;
	at[1].val.clusterDim.x = 1;
	at[1].val.clusterDim.y = 2;
	at[1].val.clusterDim.z = 1;
	cfg.gridDim = dim3(a->heads, a->values / N);
	cfg.blockDim = dim3(THREADS);
	cfg.dynamicSmemBytes = sizeof(Shared);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = at;
	cfg.numAttrs = a->y8.code != NULL ? 2 : 1;
	return cudaLaunchKernelEx(&cfg, value_kernel, *a) == cudaSuccess ?
	    0 : -EIO;
}
