/*
 * Decode's queries: each head's nope part multiplied by its W_UK, its rope part
 * turned, and both put where attention reads them: into this rank's memory, or
 * into that of every rank of its group. dcpg.h has the formula.
 *
 * A block owns one head and N of its 512 latent values. It brings its weights
 * (N * nope, bf16) to shared memory while the kernel before it still runs,
 * then works on up to 64 rows at a time: their nope parts come to shared
 * memory while the rope parts of some of these rows are turned (the blocks of
 * a head share the rows), and are multiplied (mma m16n8k16): a warp has 32
 * values of every second 16 rows. Bytes that must move: the weights once, x of
 * a head once for each N values, q once to each rank.
 *
 * Sums pass through shared memory, so that N neighbouring values leave
 * together: a link takes 64 bytes at a time half as fast as 128. Weights stand
 * there in such an order that a thread's sums are eight neighbouring values.
 *
 * Ranks know of what they sent each other by arrivals (peer.cuh): each block
 * tells all of what it has written for them, the first waits until all have
 * told. That takes a way there and back before the word is sent. Or by what is
 * sent: where a place was set to ones, which no two sums are, attention looks
 * at q itself, so that it brings rows, and begins with what this rank has
 * made, meanwhile. That the place is ready, and free, all know by the meetings
 * in between.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

typedef __nv_bfloat16 bf16;

constexpr uint32_t C = DCPG_LATENT, R = DCPG_ROPE, TILE = 16;
constexpr uint32_t ROWS = 64;	/* at a time */
constexpr uint32_t WIDE = 32;	/* values of a warp */

/* A row of K values: neighbouring rows fall on other banks. */
template <uint32_t K>
constexpr uint32_t LD = K + 8;

/* A row of N sums: of two, what eight threads write falls on other banks. */
template <uint32_t N>
constexpr uint32_t LDY = N + 32;

template <uint32_t N>
constexpr uint32_t THREADS = N / WIDE * 2 * 32;

template <uint32_t N, uint32_t K>
uint32_t
shared_size(uint32_t rows)
{
	uint32_t x = rows < ROWS ? (rows + TILE - 1) / TILE * TILE : ROWS;

	return ((N + x) * LD<K> + x * LDY<N>) * sizeof(bf16);
}

/* Where value n of a block stands among its weights: the columns that one thread
 * has of four products of eight are neighbours. */
__device__ inline uint32_t
place(uint32_t n)
{
	return n / WIDE * WIDE + n % 8 / 2 * 8 + n % WIDE / 8 * 2 + n % 2;
}

/* Eight values of q, to every rank. */
__device__ inline void
put(const struct dcpg_query &g, size_t at, uint4 v)
{
	for (uint32_t e = 0; e < g.ranks; e++)
		send_words((uint4 *)((bf16 *)g.to[e] + at), v);
}

/* n rows of K values, `step` apart, to shared memory. */
template <uint32_t K, uint32_t T>
__device__ inline void
bring(bf16 *to, const bf16 *from, size_t step, uint32_t n)
{
	constexpr uint32_t P = K / 8;	/* pieces of a row */

	for (uint32_t i = threadIdx.x; i < n * P; i += T)
		copy16(smem_addr(to + i / P * LD<K> + i % P * 8),
		    from + i / P * step + i % P * 8);
}

/* Eight neighbours of a turned rope part: of its first half, or its second. */
__device__ inline uint4
turned(const bf16 *x, const float *cos, const float *sin, uint32_t piece)
{
	uint32_t p = piece * 8 % (R / 2);
	uint4 x0 = ((const uint4 *)(x + 2 * p))[0];
	uint4 x1 = ((const uint4 *)(x + 2 * p))[1];
	float4 c0 = ((const float4 *)(cos + p))[0];
	float4 c1 = ((const float4 *)(cos + p))[1];
	float4 s0 = ((const float4 *)(sin + p))[0];
	float4 s1 = ((const float4 *)(sin + p))[1];
	uint32_t w[8] = { x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w };
	float cs[8] = { c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w };
	float sn[8] = { s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w };
	float y[8];

#pragma unroll
	for (int i = 0; i < 8; i++) {
		float a = bf16_lo(w[i]), b = bf16_hi(w[i]);

		y[i] = piece * 8 < R / 2 ? a * cs[i] - b * sn[i] :
		    b * cs[i] + a * sn[i];
	}
	return make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]),
	    pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
}

/* This block's share of the rope parts of n rows from r0 on. */
__device__ inline void
turn(const struct dcpg_query &g, uint32_t r0, uint32_t n)
{
	constexpr uint32_t P = R / 8;
	uint32_t h = blockIdx.x, each = blockDim.x / P * gridDim.y;
	uint32_t i = threadIdx.x / P * gridDim.y + blockIdx.y;

	for (; i < n; i += each) {
		size_t row = r0 + i;
		const bf16 *x = (const bf16 *)g.x + (row * g.heads + h) *
		    (g.nope + R) + g.nope;

		put(g, row * g.step + h * (C + R) + C + threadIdx.x % P * 8,
		    turned(x, g.cos + row * (R / 2), g.sin + row * (R / 2),
		    threadIdx.x % P));
	}
}

/* A tile of rows, this warp's 32 values. */
template <uint32_t K>
__device__ inline void
product(const bf16 *w, const bf16 *x, float (&d)[4][4])
{
	uint32_t lane = threadIdx.x % 32;
	uint32_t a = smem_addr(x + lane % 16 * LD<K> + lane / 16 * 8);
	uint32_t b = smem_addr(w + lane % 8 * LD<K> + lane / 8 * 8);

#pragma unroll
	for (uint32_t k = 0; k < K; k += 32) {
		uint32_t a0[4], a1[4], b0, b1, b2, b3;

		ldmatrix4(a + k * 2, a0[0], a0[1], a0[2], a0[3]);
		ldmatrix4(a + k * 2 + 32, a1[0], a1[1], a1[2], a1[3]);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			ldmatrix4(b + (j * 8 * LD<K> + k) * 2, b0, b1, b2, b3);
			mma(d[j], a0[0], a0[1], a0[2], a0[3], b0, b1);
			mma(d[j], a1[0], a1[1], a1[2], a1[3], b2, b3);
		}
	}
}

/* This warp's values of n rows, to y. */
template <uint32_t N, uint32_t K>
__device__ inline void
multiply(const bf16 *w, const bf16 *x, uint32_t n, bf16 *y)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t wide = warp % (N / WIDE) * WIDE, i = warp / (N / WIDE) * TILE;

	for (; i < n; i += 2 * TILE) {
		uint32_t at = smem_addr(y + (i + lane / 4) * LDY<N> + wide +
		    lane % 4 * 8);
		float d[4][4] = {};

		product<K>(w + wide * LD<K>, x + i * LD<K>, d);
		sts128(at, make_uint4(pack_bf16(d[0][0], d[0][1]),
		    pack_bf16(d[1][0], d[1][1]), pack_bf16(d[2][0], d[2][1]),
		    pack_bf16(d[3][0], d[3][1])));
		sts128(at + 8 * LDY<N> * sizeof(bf16),
		    make_uint4(pack_bf16(d[0][2], d[0][3]),
		    pack_bf16(d[1][2], d[1][3]), pack_bf16(d[2][2], d[2][3]),
		    pack_bf16(d[3][2], d[3][3])));
	}
}

/* f(where) for each eight values of this block that this thread has to see to. */
template <uint32_t N, class F>
__device__ inline void
each_piece(const struct dcpg_query &g, F f)
{
	constexpr uint32_t P = N / 8, PR = R / 8;
	uint32_t i = threadIdx.x / PR * gridDim.y + blockIdx.y;
	size_t head = (size_t)blockIdx.x * (C + R);

	for (; i < g.rows; i += THREADS<N> / PR * gridDim.y)
		f((size_t)i * g.step + head + C + threadIdx.x % PR * 8);
#pragma unroll 4
	for (i = threadIdx.x; i < g.rows * P; i += THREADS<N>)
		f(i / P * (size_t)g.step + head + blockIdx.y * N + i % P * 8);
}

/* Ones, where the others' next queries come. */
template <uint32_t N>
__device__ inline void
clear(const struct dcpg_query &g)
{
	uint32_t self = g.peer.self - g.first;

	for (uint32_t e = 0; e < g.ranks; e++)
		if (e != self)
			each_piece<N>(g, [&](size_t at) {
				*(uint4 *)((bf16 *)g.clear + (size_t)e *
				    g.heads * (C + R) + at) =
				    make_uint4(~0u, ~0u, ~0u, ~0u);
			});
}

/* What is here of all ranks; by the first block. */
__device__ inline void
await_all(const struct dcpg_query &g, uint32_t blocks)
{
	arrivals_in(g.peer, g.first, g.ranks, blocks);
	if (threadIdx.x == 0)
		*(volatile uint32_t *)peer_word(g.peer, PEER_TAKEN) += blocks;
}

/* grid: (heads, 512 / N) */
template <uint32_t N, uint32_t K>
__global__ void __launch_bounds__(THREADS<N>, 512 / THREADS<N>)
query_kernel(const __grid_constant__ struct dcpg_query g)
{
	extern __shared__ __align__(16) uint8_t mem[];
	uint32_t h = blockIdx.x, n0 = blockIdx.y * N, most = min(ROWS,
	    (g.rows + TILE - 1) / TILE * TILE);
	bf16 *w = (bf16 *)mem, *x = w + N * LD<K>, *y = x + most * LD<K>;
	const bf16 *from = (const bf16 *)g.w + ((size_t)h * C + n0) * K;

	for (uint32_t i = threadIdx.x; i < N * K / 8; i += THREADS<N>)
		copy16(smem_addr(w + place(i / (K / 8)) * LD<K> +
		    i % (K / 8) * 8), from + i * 8);
	launch_wait();
	launch_next();
	for (uint32_t r0 = 0; r0 < g.rows; r0 += ROWS) {
		uint32_t n = min(g.rows - r0, ROWS);

		bring<K, THREADS<N>>(x, (const bf16 *)g.x + ((size_t)r0 *
		    g.heads + h) * (K + R), (size_t)g.heads * (K + R), n);
		turn(g, r0, n);
		copies_wait();
		__syncthreads();
		multiply<N, K>(w, x, n, y);
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < n * N / 8; i += THREADS<N>)
			put(g, (size_t)(r0 + i / (N / 8)) * g.step +
			    h * (C + R) + n0 + i % (N / 8) * 8,
			    *(const uint4 *)(y + i / (N / 8) * LDY<N> +
			    i % (N / 8) * 8));
	}
	if (g.peer.world == 0)
		return;
	if (g.clear != NULL)
		clear<N>(g);
	if (g.ones)
		return;
	__syncthreads();
	if (threadIdx.x < g.ranks)
		peer_arrive(peer_arrivals(g.peer, g.first + threadIdx.x,
		    g.peer.self));
	if (h == 0 && n0 == 0)
		await_all(g, gridDim.x * gridDim.y);
}

template <uint32_t N, uint32_t K>
int
launch(const struct dcpg_query *a, cudaStream_t st)
{
	cudaLaunchAttribute at = {};
	cudaLaunchConfig_t cfg = {};

	at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at.val.programmaticStreamSerializationAllowed = 1;
	cfg.gridDim = dim3(a->heads, C / N);
	cfg.blockDim = dim3(THREADS<N>);
	cfg.dynamicSmemBytes = shared_size<N, K>(a->rows);
	cfg.stream = st;
	cfg.attrs = &at;
	cfg.numAttrs = 1;
	return cudaLaunchKernelEx(&cfg, query_kernel<N, K>, *a) ==
	    cudaSuccess ? 0 : -EIO;
}

struct shape {
	uint32_t cols, nope, shared;
	int (*launch)(const struct dcpg_query *, cudaStream_t);
	void (*kernel)(struct dcpg_query);
};

template <uint32_t N, uint32_t K>
shape
shape_of(void)
{
	return { N, K, shared_size<N, K>(ROWS), launch<N, K>,
	    query_kernel<N, K> };
}

const shape shapes[] = {
	shape_of<128, 64>(), shape_of<64, 64>(),
	shape_of<128, 128>(), shape_of<64, 128>(),
	shape_of<128, 192>(), shape_of<64, 192>(),
};

}	/* namespace */

/* They are on the device before any of them spins there. */
int
query_init(void)
{
	for (const shape &s : shapes)
		if (cudaFuncSetAttribute(s.kernel,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, s.shared) !=
		    cudaSuccess)
			return -EIO;
	return 0;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" bool
dcpg_query_fits(uint32_t latent, uint32_t rope, uint32_t nope)
{
	for (const shape &s : shapes)
		if (s.nope == nope)
			return latent == C && rope == R;
	return false;
}

extern "C" int
dcpg_query(const struct dcpg_query *a, void *stream)
{
	/* enough blocks for all SMs */
	uint32_t cols = a->cols != 0 ? a->cols : a->heads >= 32 ? 128 : 64;

	if (a->rows == 0 || a->heads == 0 || a->step % 8 != 0 ||
	    a->step < a->heads * (C + R) || a->ranks == 0 ||
	    a->ranks > DCPK_MAX_RANKS || (a->peer.world == 0 ? a->ranks != 1 :
	    a->peer.world < a->ranks || a->peer.self >= a->peer.world ||
	    a->first > a->peer.world - a->ranks ||
	    a->peer.self - a->first >= a->ranks))
		return -EINVAL;
	for (const shape &s : shapes)
		if (s.cols == cols && s.nope == a->nope)
			return s.launch(a, (cudaStream_t)stream);
	return -EINVAL;
}
