/*
 * Indexer of prefill: scores of many query rows against one context, and the
 * histograms that the selection starts from. dcpg.h says what is computed.
 *
 * Scores. A block owns a run of keys and some query rows. Each of its three
 * computing warpgroups holds 128 keys in registers, as the long side of fp8
 * products, for as long as the block lives; queries stream by, 8 KB a step (one
 * row of 64 heads, two of 32, ..), brought by one warp and read by all
 * warpgroups from shared memory. A product's 64 x 64 results are cut at zero,
 * weighted and added up, two instructions a result, while other warpgroups have
 * the tensor cores. Keys behind a row's end are computed and not written; rows
 * that end before the block's first key are passed over.
 *
 * Shared memory: STAGES steps of 8.25 KB, ends of rows 2 KB. Bytes that must
 * move: a block's keys once, 8 KB (from the L2) a step and block, 4 a score.
 * Flops: rows * keys * heads * 256.
 */
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t WGS = 3;		/* computing warpgroups */
constexpr int T = 2;			/* tiles of 64 keys that each holds */
constexpr uint32_t RUN = WGS * T * 64;	/* keys of a block */
constexpr uint32_t WORK = WGS * 128;	/* computing threads */
constexpr uint32_t THREADS = WORK + 32;	/* and a warp that brings queries */
constexpr uint32_t STEP = 64;		/* (row, head) pairs of a step */
constexpr uint32_t STAGES = 6;
constexpr uint32_t CHUNK = 512;		/* most query rows of a block */

struct Shared {
	uint8_t q[STAGES][STEP * 128];	/* aligned to 1024 bytes */
	float w[STAGES][STEP];
	uint32_t len[CHUNK + 32];	/* zero behind the last row */
	uint64_t full[STAGES], empty[STAGES];
};

/* What a block works on: query rows row0 .. row0 + rows - 1, in `steps` steps
 * (the last may be part of one), against keys from key0 on. */
struct Job {
	uint32_t row0, rows, steps, key0;
};

/* The bringing warp's one thread: q and weights of every step. */
template <int H>
__device__ inline void
bring(Shared &s, const struct dcpg_index_rows &g, const Job &job)
{
	constexpr uint32_t R = STEP / H;

	for (uint32_t i = 0; i < job.steps; i++) {
		uint32_t st = i % STAGES, n = min(R, job.rows - i * R);
		uint32_t bar = smem_addr(&s.full[st]);

		if (i >= STAGES)
			mbar_wait(smem_addr(&s.empty[st]),
			    (i / STAGES - 1) & 1);
		mbar_expect(bar, n * H * (128 + 4));
		for (uint32_t r = 0; r < n; r++) {
			size_t row = (size_t)(job.row0 + i * R + r) * g.q_step;

			bulk_load(smem_addr(s.q[st]) + r * H * 128,
			    g.q8 + row * H * 128, H * 128, bar);
			bulk_load(smem_addr(s.w[st]) + r * H * 4,
			    g.w + row * H, H * 4, bar);
		}
	}
}

/* Tile t of this warpgroup's keys as the A operand; ks is the scale of the key
 * that this lane will write. */
__device__ inline void
load_keys(uint32_t (&a)[16], float &ks, const struct dcpg_index_rows &g,
    uint32_t key)
{
	uint32_t c = threadIdx.x % 4, lg = __ffs(g.page_rows) - 1;

	ks = 0;
#pragma unroll
	for (uint32_t u = 0; u < 2; u++) {
		uint32_t k = key + 8 * u;
		const uint32_t *p;
		size_t at = k;

#pragma unroll
		for (int i = 0; i < 4; i++)
			a[4 * i + u] = a[4 * i + 2 + u] = 0;
		if (k >= g.keys_n)
			continue;
		if (g.table != NULL)
			at = (g.table[k >> lg] << lg) +
			    (k & (g.page_rows - 1));
		p = (const uint32_t *)(g.keys + at * 128) + c;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			a[4 * i + u] = p[8 * i];
			a[4 * i + 2 + u] = p[8 * i + 4];
		}
		if (c % 2 == u)
			ks = g.kscale[at];
	}
}

/* Starts d = a . q of one step. */
__device__ inline void
start(float (&d)[32], const uint32_t (&a)[16], uint64_t q)
{
	wg_fence();
#pragma unroll
	for (int i = 0; i < 4; i++)
		Mma8<STEP>::run(d, a + 4 * i, q + 2 * i, i > 0);
	wg_commit();
}

template <int N>
__device__ inline void
load_weights(float (&w)[N], uint32_t at)
{
	if constexpr (N == 2) {
		uint2 x = lds64(at);

		w[0] = __uint_as_float(x.x);
		w[1] = __uint_as_float(x.y);
	} else
#pragma unroll
	for (int i = 0; i < N; i += 4) {
		uint4 x = lds128(at + 4 * i);

		w[i] = __uint_as_float(x.x);
		w[i + 1] = __uint_as_float(x.y);
		w[i + 2] = __uint_as_float(x.z);
		w[i + 3] = __uint_as_float(x.w);
	}
}

/* A value of each of two kinds, spread over lanes that differ in bit `b`: the
 * lane with the bit keeps `odd`, the other `even`, each the sum of both. */
__device__ inline float
halve(float even, float odd, uint32_t b)
{
	bool o = threadIdx.x & b;

	return (o ? odd : even) + __shfl_xor_sync(~0u, o ? even : odd, b);
}

/*
 * The scores of one product: 64 keys with the R rows of a step. w and len are
 * addresses of this lane's weights and of its first row's end; score is where
 * that row's score goes, of which `key` says whether it exists.
 */
template <int H>
__device__ inline void
finish(const float (&d)[32], uint32_t w_at, uint32_t len, uint32_t key,
    float ks, float *score, size_t stride)
{
	constexpr int R = STEP / H;
	float y[R];

#pragma unroll
	for (int r = 0; r < R; r++) {
		float w[H / 4], v[2] = { 0, 0 };

		load_weights<H / 4>(w, w_at + r * H * 4);
#pragma unroll
		for (int j = 0; j < H / 8; j++)
#pragma unroll
			for (int u = 0; u < 2; u++) {
				const float *x = d + 4 * (r * H / 8 + j) +
				    2 * u;

				v[u] += w[2 * j] * fmaxf(x[0], 0.0f);
				v[u] += w[2 * j + 1] * fmaxf(x[1], 0.0f);
			}
		y[r] = halve(v[0], v[1], 1);
	}
	if constexpr (R == 1) {
		y[0] += __shfl_xor_sync(~0u, y[0], 2);
		if (key < lds32(len))
			*score = y[0] * ks;
	} else
#pragma unroll
	for (int r = 0; r < R; r += 2) {
		float x = halve(y[r], y[r + 1], 2);

		if (key < lds32(len + r * 4))
			score[r * stride] = x * ks;
	}
}

/* A computing warpgroup. All tiles' products of a step are under way at once;
 * while the last are weighted, other warpgroups have the tensor cores. */
template <int H>
__device__ inline void
work(Shared &s, const struct dcpg_index_rows &g, const Job &job, uint32_t skip)
{
	constexpr uint32_t R = STEP / H;
	uint32_t lane = threadIdx.x % 32, wg = threadIdx.x / 128, c = lane % 4;
	uint32_t key = job.key0 + wg * T * 64 + threadIdx.x / 32 % 4 * 16 +
	    lane / 4;
	uint32_t w = smem_addr(s.w) + c * H, len = smem_addr(s.len + skip);
	uint32_t a[T][16], at = 0, phase = 0;
	uint64_t q = desc128(smem_addr(s.q));
	float ks[T], d[T][32], *score;

#pragma unroll
	for (int t = 0; t < T; t++) {
		load_keys(a[t], ks[t], g, key + t * 64);
		wg_ready<16>(a[t]);
#pragma unroll
		for (int i = 0; i < 32; i++)
			d[t][i] = 0;
	}
	/* Of a key's four lanes, two finish it and the one 8 on; with several
	 * rows in a step the other two do the same for every second row. */
	key += c % 2 * 8;
	score = g.score + (size_t)job.row0 * g.stride + key;
	if (R > 1) {
		score += c / 2 * (size_t)g.stride;
		len += c / 2 * 4;
	} else if (c > 1)
		key = 0x80000000u;	/* behind any row's end */
	for (uint32_t i = 0; i < job.steps; i++) {
		mbar_wait(smem_addr(&s.full[at]), phase);
#pragma unroll
		for (int t = 0; t < T; t++) {
			wg_pin(d[t]);
			start(d[t], a[t], q + at * (STEP * 128 / 16));
		}
#pragma unroll
		for (int t = 0; t < T; t++) {
			if (t == 0)
				wg_wait<T - 1>();
			else
				wg_wait<0>();
			wg_pin(d[t]);
			finish<H>(d[t], w + at * STEP * 4, len, key + t * 64,
			    ks[t], score + t * 64, g.stride);
		}
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem_addr(&s.empty[at]));
		score += R * (size_t)g.stride;
		len += R * 4;
		if (++at == STAGES) {
			at = 0;
			phase ^= 1;
		}
	}
}

/* grid: (runs of keys, chunks of rows). */
template <int H>
__global__ void __launch_bounds__(THREADS, 1)
score_kernel(const struct dcpg_index_rows g, uint32_t chunk)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	Shared &s = *(Shared *)mem;
	Job job = { blockIdx.y * chunk, 0, 0, blockIdx.x * RUN };
	uint32_t skip = 0, least = max(job.key0, g.least);

	job.rows = min(chunk, g.rows - job.row0);
	if (g.len[job.row0 + job.rows - 1] <= least)
		return;
	if (threadIdx.x < STAGES) {
		mbar_init(smem_addr(&s.full[threadIdx.x]), 1);
		mbar_init(smem_addr(&s.empty[threadIdx.x]), WGS * 4);
	}
	fence_async();
	for (uint32_t i0 = 0; i0 < CHUNK + 32; i0 += THREADS) {
		uint32_t i = i0 + threadIdx.x, n = 0;

		if (i < job.rows)
			n = g.len[job.row0 + i];
		if (i < CHUNK + 32)
			s.len[i] = n;
		skip += __syncthreads_count(i < job.rows && n <= least);
	}
	job.row0 += skip;
	job.rows -= skip;
	job.steps = (job.rows + STEP / H - 1) / (STEP / H);
	if (threadIdx.x < WORK)
		work<H>(s, g, job, skip);
	else if (threadIdx.x == WORK)
		bring<H>(s, g, job);
}

/* --- first digits -------------------------------------------------------- */

constexpr uint32_t COUNTERS = 512;

/* grid: rows. Scores of a row are padded to a multiple of 4. */
__global__ void __launch_bounds__(COUNTERS)
count_kernel(const struct dcpg_index_rows g)
{
	__shared__ __align__(16) uint32_t hist[DCPG_BINS];
	uint32_t row = blockIdx.x, len = g.len[row];
	const float4 *p = (const float4 *)(g.score + (size_t)row * g.stride);
	uint4 *out = (uint4 *)(g.hist + (size_t)row * DCPG_BINS);

	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += COUNTERS)
		hist[i] = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; len > g.least && i * 4 < len;
	    i += COUNTERS) {
		float4 v = p[i];
		float x[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
		for (uint32_t t = 0; t < 4; t++)
			if (i * 4 + t < len)
				atomicAdd(&hist[score_digit(x[t])], 1);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < DCPG_BINS / 4; i += COUNTERS)
		out[i] = ((const uint4 *)hist)[i];
}

/* --- host ---------------------------------------------------------------- */

template <int H>
cudaError_t
launch(const struct dcpg_index_rows &g, uint32_t chunk, cudaStream_t st)
{
	dim3 grid((g.keys_n + RUN - 1) / RUN, (g.rows + chunk - 1) / chunk);

	score_kernel<H><<<grid, THREADS, sizeof(Shared), st>>>(g, chunk);
	return cudaGetLastError();
}

template <int H>
bool
prepare(void)
{
	return cudaFuncSetAttribute(score_kernel<H>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)) ==
	    cudaSuccess;
}

/* Rows of a block: enough blocks that the last wave is a small part of all,
 * enough rows that reading the keys is a small part of a block. From 128 on
 * more rows gain nothing (measured). */
uint32_t
choose_chunk(const struct dcpg_index_rows *a)
{
	uint32_t runs = (a->keys_n + RUN - 1) / RUN, chunk = 128;

	while (chunk > 32 && runs * ((a->rows + chunk - 1) / chunk) < 4 * 132)
		chunk /= 2;
	return chunk;
}

}	/* namespace */

int
index_rows_init(void)
{
	return prepare<8>() && prepare<16>() && prepare<32>() && prepare<64>() ?
	    0 : -EIO;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_index_rows(const struct dcpg_index_rows *a, void *stream)
{
	cudaStream_t st = (cudaStream_t)stream;
	uint32_t chunk;
	cudaError_t e;

	if (a->rows == 0 || a->keys_n == 0 || a->keys_n > a->stride ||
	    a->q_step == 0 || a->chunk > CHUNK || (a->table != NULL &&
	    (a->page_rows == 0 || 64 % a->page_rows != 0)))
		return -EINVAL;
	chunk = a->chunk > 0 ? a->chunk : choose_chunk(a);
	if ((a->rows + chunk - 1) / chunk > 65535)
		return -EINVAL;
	switch (a->heads) {
	case 8:
		e = launch<8>(*a, chunk, st);
		break;
	case 16:
		e = launch<16>(*a, chunk, st);
		break;
	case 32:
		e = launch<32>(*a, chunk, st);
		break;
	case 64:
		e = launch<64>(*a, chunk, st);
		break;
	default:
		return -EINVAL;
	}
	return e == cudaSuccess ? 0 : -EIO;
}

extern "C" int
dcpg_index_count(const struct dcpg_index_rows *a, void *stream)
{
	if (a->rows == 0 || a->stride % 4 != 0 || a->hist == NULL)
		return -EINVAL;
	count_kernel<<<a->rows, COUNTERS, 0, (cudaStream_t)stream>>>(*a);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}
