/*
 * From attention's outputs to values: the ranks' partial outputs are merged by
 * their LSE, and each head's 512 latent values multiplied by its W_UV. One
 * kernel for the few rows of decode, where either part is latency. dcpg.h has
 * the formula.
 *
 * A block owns one head and 64 of its values. It brings its weights (64 KB) to
 * shared memory while the kernel before it still runs and while it waits for
 * its peers. Then it works on 16 or 32 rows at a time: their partials are on
 * their way all at once, across the link where attention has not sent them, are
 * merged into the operand of the product, and multiplied (mma m16n8k16, a warp 8
 * values). Bytes that must move: the weights once, a row's partials of a head
 * once for each 64 values.
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
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

typedef __nv_bfloat16 bf16;

constexpr uint32_t C = DCPG_LATENT, N = 64, TILE = 16, THREADS = 256;
constexpr uint32_t LD = C + 8;	/* elements: rows fall on other banks */
constexpr uint32_t MOST = 2;	/* tiles of rows at a time */

constexpr uint32_t PARTS = 64;	/* rows of partials kept, of all ranks */
static_assert(PARTS >= DCPK_MAX_RANKS, "one row of each");

struct Shared {
	bf16 w[N * LD];
	float lse[PARTS], weight[PARTS];
	/* codes: of |y|, by the cluster's block and warp, of every second
	 * tile */
	float top[2][2][THREADS / 32][TILE];
	alignas(16) bf16 o[];	/* [rows][LD]; behind it [ranks][rows][C] */
};

/* A tile that is filled in several rounds stands alone. */
__host__ __device__ inline uint32_t
tiles_of(uint32_t rows, uint32_t ranks)
{
	return rows > TILE && ranks <= PARTS / TILE / MOST ? MOST : 1;
}

constexpr size_t MOST_SHARED = sizeof(Shared) + (MOST * TILE * LD + PARTS * C) *
    sizeof(bf16);

__host__ inline size_t
shared_size(uint32_t rows, uint32_t ranks)
{
	uint32_t parts = ranks > 1 ? min(rows, PARTS / ranks) * ranks : 0;

	return sizeof(Shared) + (tiles_of(rows, ranks) * TILE * LD +
	    parts * C) * sizeof(bf16);
}

/* The weights of the ranks' partials in the sums of n rows; 0: not to be read
 * as numbers. */
__device__ inline void
weigh(const struct dcpg_value &g, Shared &s, uint32_t r0, uint32_t n)
{
	uint32_t t = threadIdx.x, all = n * g.ranks;
	float l = -INFINITY, top = -INFINITY, den = 0;

	if (t < all) {
		l = g.lse[t / n][(size_t)(r0 + t % n) * g.row_heads +
		    blockIdx.x];
		if (!(l < INFINITY))
			l = -INFINITY;
		s.lse[t] = l;
	}
	__syncthreads();
	if (t >= all)
		return;
	for (uint32_t i = t % n; i < all; i += n)
		top = fmaxf(top, s.lse[i]);
	for (uint32_t i = t % n; i < all && top > -INFINITY; i += n)
		den += __expf(s.lse[i] - top);
	s.weight[t] = l > -INFINITY ? __expf(l - top) / den : 0;
}

/* Eight latent values of one of n rows, of all ranks together, whose partials
 * are `step` elements apart. */
__device__ inline uint4
merged(const Shared &s, const bf16 *part, uint32_t ranks, uint32_t step,
    uint32_t n, uint32_t row)
{
	float v[8] = {};
	uint4 out;
	bf16 *y = (bf16 *)&out;

	for (uint32_t e = 0; e < ranks; e++) {
		float w = s.weight[e * n + row];
		uint4 x = *(const uint4 *)(part + e * step);
		const bf16 *p = (const bf16 *)&x;

		if (w == 0)
			continue;
		for (uint32_t d = 0; d < 8; d++)
			v[d] += w * __bfloat162float(p[d]);
	}
	for (uint32_t d = 0; d < 8; d++)
		y[d] = __float2bfloat16(v[d]);
	return out;
}

/* n rows of this head, from r0 on, come to `to` as what is multiplied. */
__device__ inline void
bring(const struct dcpg_value &g, Shared &s, uint32_t r0, uint32_t n,
    bf16 *to, bf16 *part)
{
	constexpr uint32_t P = C / 8;	/* pieces of a row */
	uint32_t t = threadIdx.x, ld = g.ranks > 1 ? C : LD;

	if (g.ranks == 1)
		part = to;
	for (uint32_t e = 0; e < g.ranks; e++) {
		const bf16 *from = (const bf16 *)g.part[e] + ((size_t)r0 *
		    g.row_heads + blockIdx.x) * C + t % P * 8;

#pragma unroll 4
		for (uint32_t row = t / P; row < n; row += THREADS / P)
			copy16(smem_addr(part + (e * n + row) * ld +
			    t % P * 8), from + (size_t)row * g.row_heads * C);
	}
	if (g.ranks > 1)
		weigh(g, s, r0, n);
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncthreads();
	if (g.ranks == 1)
		return;
	for (uint32_t row = t / P; row < n; row += THREADS / P)
		*(uint4 *)(to + row * LD + t % P * 8) = merged(s, part +
		    row * C + t % P * 8, g.ranks, n * C, n, row);
	__syncthreads();
}

/* The product of one or two tiles of rows: this warp's 8 values, by k in two
 * sums. */
template <uint32_t TILES>
__device__ inline void
product(const Shared &s, float (&d)[MOST][4])
{
	uint32_t lane = threadIdx.x % 32, n0 = threadIdx.x / 32 * 8;
	uint32_t a = smem_addr(s.o + lane % 16 * LD + lane / 16 * 8);
	uint32_t b = smem_addr(s.w + (n0 + lane % 8) * LD + lane / 8 * 8);
	float odd[TILES][4] = {};

#pragma unroll 4
	for (uint32_t k = 0; k < C; k += 32) {
		uint32_t b0, b1, b2, b3;

		ldmatrix4(b + k * 2, b0, b1, b2, b3);
#pragma unroll
		for (uint32_t i = 0; i < TILES; i++) {
			uint32_t at = a + (i * TILE * LD + k) * 2;
			uint32_t a0, a1, a2, a3;

			ldmatrix4(at, a0, a1, a2, a3);
			mma(d[i], a0, a1, a2, a3, b0, b1);
			ldmatrix4(at + 32, a0, a1, a2, a3);
			mma(odd[i], a0, a1, a2, a3, b2, b3);
		}
	}
	for (uint32_t i = 0; i < TILES; i++)
		for (uint32_t j = 0; j < 4; j++)
			d[i][j] += odd[i][j];
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
	uint32_t half = blockIdx.y % 2, turn = r0 / TILE % 2;
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

/* A thread's share of a tile of values that begins at row r0, and its codes. */
__device__ inline void
put(const struct dcpg_value &g, Shared &s, uint32_t r0, uint32_t at,
    const float (&d)[4])
{
	uint32_t lane = threadIdx.x % 32;
	__nv_bfloat162 v[2];

	for (uint32_t i = 0; i < 2; i++) {
		uint32_t row = r0 + lane / 4 + i * 8;

		v[i] = __floats2bfloat162_rn(d[2 * i], d[2 * i + 1]);
		if (row < g.rows)
			*(__nv_bfloat162 *)((bf16 *)g.y + (size_t)row *
			    g.heads * g.values + at) = v[i];
	}
	if (g.y8.code)
		codes(g, s, r0, at, v);
}

/* grid: (heads, values / 64); codes: clusters of 2 in y. */
__global__ void __launch_bounds__(THREADS, 2)
value_kernel(const __grid_constant__ struct dcpg_value g)
{
	extern __shared__ __align__(16) uint8_t mem[];
	Shared &s = *(Shared *)mem;
	uint32_t h = blockIdx.x, n0 = blockIdx.y * N, t = threadIdx.x;
	const bf16 *w = (const bf16 *)g.w + ((size_t)h * g.values + n0) * C;
	uint32_t col = n0 + t / 32 * 8 + t % 4 * 2;
	uint32_t tiles = tiles_of(g.rows, g.ranks);

	for (uint32_t i = t; i < N * C / 8; i += THREADS)
		copy16(smem_addr(s.w + i / (C / 8) * LD + i % (C / 8) * 8),
		    w + i * 8);
	asm volatile("cp.async.commit_group;" ::: "memory");
	if (g.y8.code)		/* both run before one writes to the other */
		cluster_sync();
	if (g.arrivals > 0) {	/* .. then all before attention has ended */
		arrivals_in(g.peer, g.first, g.ranks, g.arrivals);
	} else {
		launch_wait();
		meet_in(g.peer, h == 0 && n0 == 0);
	}
	launch_next();
	for (uint32_t r0 = 0; r0 < g.rows; r0 += tiles * TILE) {
		uint32_t n = min(g.rows - r0, tiles * TILE), more;
		float d[MOST][4] = {};

		for (uint32_t i = n * LD / 8 + t; i < tiles * TILE * LD / 8;
		    i += THREADS)
			*(uint4 *)(s.o + i * 8) = make_uint4(0, 0, 0, 0);
		for (uint32_t i = 0; i < n; i += more) {
			more = min(n - i, PARTS / g.ranks);
			bring(g, s, r0 + i, more, s.o + i * LD, s.o +
			    tiles * TILE * LD);
		}
		if (tiles == 1)
			product<1>(s, d);
		else
			product<MOST>(s, d);
#pragma unroll
		for (uint32_t j = 0; j < MOST; j++)
			if (j * TILE < n)
				put(g, s, r0 + j * TILE, h * g.values + col,
				    d[j]);
		__syncthreads();
	}
	if (g.arrivals > 0) {
		arrivals_out(g.peer, g.arrivals, gridDim.x * gridDim.y);
		launch_wait();	/* who comes next waits for this kernel alone */
	} else {
		meet_out(g.peer, gridDim.x * gridDim.y);
	}
}

}	/* namespace */

int
value_init(void)
{
	return cudaFuncSetAttribute(value_kernel,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED) ==
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
	    (a->arrivals > 0 && (a->peer.world < a->ranks ||
	    a->first > a->peer.world - a->ranks)) ||
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
	cfg.dynamicSmemBytes = shared_size(a->rows, a->ranks);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = at;
	cfg.numAttrs = a->y8.code != NULL ? 2 : 1;
	return cudaLaunchKernelEx(&cfg, value_kernel, *a) == cudaSuccess ?
	    0 : -EIO;
}
