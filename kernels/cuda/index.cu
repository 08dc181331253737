/*
 * Indexer: quantisation of index queries, and scores of all local keys with
 * the first histogram. dcpg.h says what is computed.
 *
 * Scores. A block owns a run of keys of one query row; its warpgroups take 64
 * keys at a time as the long side of an fp8 product with all heads. Keys go
 * from memory straight into the registers that the product reads: a thread
 * takes 32 neighbouring bytes of two keys, whole sectors, and q is permuted in
 * shared memory to match, so keys never pass shared memory and nothing waits
 * for a barrier. A warpgroup computes on one tile while the next, 8 KB, comes.
 *
 * Shared memory: q 8 KB (64 heads), histogram 8 KB. Bytes that must move: 132
 * per key and query row, 4 per score out.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr int TILE = 64;
constexpr int WGS = 2;
constexpr int THREADS = WGS * 128;

/* --- queries ------------------------------------------------------------- */

/* One warp per head; lane l holds dimensions 4l .. 4l + 3. */
__device__ inline void
hadamard(float (&x)[4], uint32_t lane)
{
	float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];

	x[0] = a + c;
	x[1] = b + d;
	x[2] = a - c;
	x[3] = b - d;
#pragma unroll
	for (int k = 1; k < 32; k *= 2)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float y = __shfl_xor_sync(~0u, x[i], k);

			x[i] = lane & k ? y - x[i] : x[i] + y;
		}
#pragma unroll
	for (int i = 0; i < 4; i++)
		x[i] *= 0.08838834764831845f;	/* 128^-0.5 */
}

__global__ void __launch_bounds__(256)
quant_kernel(const struct dcpg_index_quant g)
{
	uint32_t i = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
	float x[4], m, s, inv;
	uint16_t lo, hi;
	uint2 v;

	if (i >= g.rows * g.heads)
		return;
	v = *((const uint2 *)g.q + (size_t)i * 32 + lane);
	x[0] = bf16_lo(v.x);
	x[1] = bf16_hi(v.x);
	x[2] = bf16_lo(v.y);
	x[3] = bf16_hi(v.y);
	if (g.hadamard)
		hadamard(x, lane);
	m = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])),
	    fmaxf(fabsf(x[2]), fabsf(x[3])));
	m = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(m)));
	s = fmaxf(m, 1e-4f) / 448.0f;
	if (g.pow2)	/* up to the next power of two */
		s = __uint_as_float((__float_as_uint(s) + 0x7fffff) &
		    0x7f800000);
	inv = 1.0f / s;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) :
	    "f"(x[1] * inv), "f"(x[0] * inv));
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) :
	    "f"(x[3] * inv), "f"(x[2] * inv));
	((uint32_t *)g.q8)[(size_t)i * 32 + lane] = lo | (uint32_t)hi << 16;
	if (lane == 0)
		g.w_out[i] = g.w[i] * s * g.scale;
}

/* --- scores -------------------------------------------------------------- */

/*
 * q as the B operand: [heads][128 bytes], swizzled, dimensions permuted: the
 * product's step s takes, at place 4c + i, dimension 32c + 8s + i and, at 16 +
 * 4c + i, dimension 32c + 8s + 4 + i; these are the words 2s and 2s + 1 of the
 * 32 bytes that thread c of a key reads.
 */
template <int H>
__device__ inline void
load_q8(const uint8_t *q8, uint32_t at)
{
	for (uint32_t i = threadIdx.x; i < H * 32; i += THREADS) {
		uint32_t h = i / 32, word = i % 32, c = word / 8;
		uint32_t s = word % 8 / 2, odd = word % 2;
		uint32_t chunk = (2 * s + odd) ^ h % 8;

		sts32(at + h * 128 + chunk * 16 + 4 * c,
		    ((const uint32_t *)q8)[i]);
	}
}

/* What a thread holds of a tile on its way: two keys' 32 bytes, scales. */
struct Piece {
	uint4 a[2], b[2];
	float scale[2];
};

__device__ inline void
fetch(Piece &x, const struct dcpg_index_score &g, const uint32_t *table,
    uint32_t first, uint32_t end, uint32_t c)
{
#pragma unroll
	for (int u = 0; u < 2; u++) {
		uint32_t j = min(first + 8 * u, end - 1);
		uint32_t row = table[j / g.page_rows] * g.page_rows +
		    j % g.page_rows;
		const uint4 *p = (const uint4 *)(g.keys + (size_t)row * 128) +
		    2 * c;

		x.a[u] = __ldg(p);
		x.b[u] = __ldg(p + 1);
		x.scale[u] = __ldg(g.kscale + row);
	}
}

/* The words in the order of the product's operand: step s is r[4s..4s+3]. */
__device__ inline void
operand(uint32_t (&r)[16], const Piece &x)
{
#pragma unroll
	for (int u = 0; u < 2; u++) {
		r[0 + u] = x.a[u].x;
		r[2 + u] = x.a[u].y;
		r[4 + u] = x.a[u].z;
		r[6 + u] = x.a[u].w;
		r[8 + u] = x.b[u].x;
		r[10 + u] = x.b[u].y;
		r[12 + u] = x.b[u].z;
		r[14 + u] = x.b[u].w;
	}
}

/* grid: (runs, rows). */
template <int H>
__global__ void __launch_bounds__(THREADS, 3)
score_kernel(const struct dcpg_index_score g, uint32_t run)
{
	__shared__ __align__(1024) uint8_t q[H * 128];
	__shared__ uint32_t hist[DCPG_BINS];
	__shared__ __align__(16) float wt[H];
	uint32_t row = blockIdx.y, lane = threadIdx.x % 32;
	uint32_t wg = threadIdx.x / 128, w = threadIdx.x / 32 % 4;
	uint32_t c = lane % 4, at = 16 * w + lane / 4;
	uint32_t first, end;
	const uint32_t *table;
	float d[H / 2];
	uint32_t r[16];
	uint64_t desc = desc128(smem_addr(q));
	Piece next;

	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += THREADS)
		hist[i] = 0;
	launch_wait();
	launch_next();
	first = blockIdx.x * run;
	end = min(first + run, g.len[row]);
	if (first >= end)
		return;
	table = g.table + g.table_at[row];
	first += wg * TILE;
	if (first < end)
		fetch(next, g, table, first + at, end, c);
	load_q8<H>(g.q8 + (size_t)row * H * 128, smem_addr(q));
	if (threadIdx.x < H)
		wt[threadIdx.x] = g.w[(size_t)row * H + threadIdx.x];
	fence_async();
	__syncthreads();

	for (; first < end; first += WGS * TILE) {
		float sum[2] = { 0, 0 }, ks[2] = { next.scale[0],
		    next.scale[1] };

		operand(r, next);
		if (first + WGS * TILE < end)
			fetch(next, g, table, first + WGS * TILE + at, end, c);
#pragma unroll
		for (int i = 0; i < H / 2; i++)
			d[i] = 0.0f;
		wg_pin(d);
		wg_fence();
#pragma unroll
		for (int s = 0; s < 4; s++)
			Mma8<H>::run(d, r + 4 * s, desc + 2 * s, s > 0);
		wg_commit();
		wg_wait<0>();
		wg_pin(d);
#pragma unroll
		for (int j = 0; j < H / 8; j++) {
			uint2 x = lds64(smem_addr(wt + 8 * j + 2 * c));

#pragma unroll
			for (int u = 0; u < 2; u++) {
				sum[u] += __uint_as_float(x.x) *
				    fmaxf(d[4 * j + 2 * u], 0.0f);
				sum[u] += __uint_as_float(x.y) *
				    fmaxf(d[4 * j + 2 * u + 1], 0.0f);
			}
		}
#pragma unroll
		for (int u = 0; u < 2; u++) {
			sum[u] += __shfl_xor_sync(~0u, sum[u], 1);
			sum[u] += __shfl_xor_sync(~0u, sum[u], 2);
		}
		/* Lanes c = 0 and 1 finish one key each. */
		if (c < 2 && first + at + 8 * c < end) {
			float x = c == 0 ? sum[0] * ks[0] : sum[1] * ks[1];

			g.score[(size_t)row * g.stride + first + at + 8 * c] =
			    x;
			if (g.hist != NULL)
				atomicAdd(&hist[score_digit(x)], 1);
		}
	}
	if (g.hist == NULL)
		return;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += THREADS)
		if (hist[i] != 0)
			atomicAdd(&g.hist[row * DCPG_BINS + i], hist[i]);
}

/* Runs of whole rounds such that all blocks run at once, 3 an SM, nearly the
 * same each. */
uint32_t
choose_run(const struct dcpg_index_score *a)
{
	uint32_t runs = 132 * 3 / a->rows, run;

	runs = runs < 1 ? 1 : runs;
	run = (a->max_len + runs - 1) / runs;
	return (run + WGS * TILE - 1) / (WGS * TILE) * (WGS * TILE);
}

}	/* namespace */
}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_index_quant(const struct dcpg_index_quant *a, void *stream)
{
	uint32_t n = a->rows * a->heads;

	if (n == 0)
		return -EINVAL;
	quant_kernel<<<(n + 7) / 8, 256, 0, (cudaStream_t)stream>>>(*a);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

extern "C" int
dcpg_index_score(const struct dcpg_index_score *a, void *stream)
{
	cudaLaunchAttribute at[1];
	cudaLaunchConfig_t cfg = {};
	uint32_t run;
	cudaError_t e;

	if (a->rows == 0 || a->rows > 65535 || a->max_len == 0 ||
	    a->max_len > a->stride || a->page_rows == 0 ||
	    64 % a->page_rows != 0)
		return -EINVAL;
	run = choose_run(a);
	at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[0].val.programmaticStreamSerializationAllowed = 1;
	cfg.gridDim = dim3((a->max_len + run - 1) / run, a->rows);
	cfg.blockDim = dim3(THREADS);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = at;
	cfg.numAttrs = 1;
	switch (a->heads) {
	case 8:
		e = cudaLaunchKernelEx(&cfg, score_kernel<8>, *a, run);
		break;
	case 16:
		e = cudaLaunchKernelEx(&cfg, score_kernel<16>, *a, run);
		break;
	case 32:
		e = cudaLaunchKernelEx(&cfg, score_kernel<32>, *a, run);
		break;
	case 64:
		e = cudaLaunchKernelEx(&cfg, score_kernel<64>, *a, run);
		break;
	default:
		return -EINVAL;
	}
	return e == cudaSuccess ? 0 : -EIO;
}
