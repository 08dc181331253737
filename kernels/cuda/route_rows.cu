/*
 * Routed experts: a router's logits of many rows (route.cu has those of few,
 * and the choice). dcpg.h says what is computed.
 *
 * Products are those of f32: each factor is split into two f16 (22 bits), in
 * units that make the largest of an expert's weights some 2^14, and three of
 * the four products are summed. The router is split by a launch of its own. A
 * block owns 128 rows, 128 or 256 experts and a share of the columns: two
 * warpgroups of 64 rows, which stand in shared memory as f32 and are split into
 * registers, and one that brings. After WHILE stages at most a block writes a
 * partial sum and begins anew: the tensor cores cut sums off instead of
 * rounding them, which is most of what a logit is off by. Partial sums:
 * [share][run][rows][experts].
 *
 * Bytes that must move: 4 an element of h, which for each 128 rows the L2 gives
 * 4 an element of the router; operations: 6 experts * hidden a row.
 */
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t SHARES = 32;		/* partial sums, at most */
constexpr uint32_t SMS = 132;
constexpr uint32_t ROWS = 128;		/* of a block */
constexpr uint32_t STEP = 32;		/* columns of a stage */
constexpr uint32_t WHILE = 28;		/* stages of a partial sum, at most */
constexpr uint32_t H_BYTES = ROWS * STEP * 4;
constexpr uint32_t MANY_WORK = 256, MANY_THREADS = 384;

/* x, y as f16 in one register, and what they are off by in another. */
__device__ inline void
split_f16(float x, float y, uint32_t &hi, uint32_t &lo)
{
	hi = pack_f16(x, y);
	lo = pack_f16(x - f16_lo(hi), y - f16_hi(hi));
}

/* N experts of a block. */
template <uint32_t N> struct Bed {
	static constexpr uint32_t W = N * 128;	/* bytes of a stage */
	static constexpr uint32_t STAGE = H_BYTES + W;
	static constexpr uint32_t RING = N == 256 ? 4 : 6;
	static constexpr uint32_t SHARED = 1024 + RING * (STAGE + 16);
};

struct many {
	const float *h;
	const uint8_t *w;	/* split_kernel's */
	const float *unit;	/* [experts, filled up] */
	float *part;		/* [shares][runs][rows][experts] */
	uint32_t rows, hidden, experts, runs;
};

/*
 * The router for many_kernel: [groups of n experts][stages][n], each 128 bytes:
 * 16 columns' higher halves, the next 16's, then their lower halves, swizzled
 * as desc128 wants it; within 16 columns in the order in which the threads of a
 * product hold them. A block an expert; past the last there are zeros.
 */
__global__ void __launch_bounds__(256)
split_kernel(const float *w, uint32_t experts, uint32_t hidden, uint32_t n,
    uint8_t *to, float *unit)
{
	__shared__ float top[8];
	uint32_t e = blockIdx.x, row = e % n, steps = hidden / STEP, u;
	const float4 *x = (const float4 *)(w + (size_t)e * hidden);
	float most = 0, by;

	if (e < experts)
		for (uint32_t i = threadIdx.x; i < hidden / 4; i += 256) {
			float4 v = x[i];

			most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x),
			    fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
		}
	for (int o = 16; o > 0; o >>= 1)
		most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
	if (threadIdx.x % 32 == 0)
		top[threadIdx.x / 32] = most;
	__syncthreads();
	for (int i = 0; i < 8; i++)
		most = fmaxf(most, top[i]);
	u = max(__float_as_uint(most) >> 23, 15u);
	by = __uint_as_float((268 - u) << 23);	/* most * by: 2^14 to 2^15 */
	launch_wait();		/* `to` was somebody's before */
	launch_next();
	if (threadIdx.x == 0)
		unit[e] = __uint_as_float((u - 14) << 23);
	for (uint32_t i = threadIdx.x; i < hidden / 16; i += 256) {
		uint8_t *at = to + (((size_t)(e / n) * steps + i / 2) * n +
		    row) * 128;
		uint32_t hi[2][4], lo[2][4];

		for (uint32_t c = 0; c < 4; c++) {
			float4 v = e < experts ? x[i * 4 + c] : float4 {};

			split_f16(v.x * by, v.y * by, hi[0][c], lo[0][c]);
			split_f16(v.z * by, v.w * by, hi[1][c], lo[1][c]);
		}
		for (uint32_t k = 0; k < 2; k++) {
			uint32_t c = i % 2 * 2 + k;

			*(uint4 *)(at + (c ^ row % 8) * 16) = make_uint4(
			    hi[k][0], hi[k][1], hi[k][2], hi[k][3]);
			*(uint4 *)(at + ((c + 4) ^ row % 8) * 16) = make_uint4(
			    lo[k][0], lo[k][1], lo[k][2], lo[k][3]);
		}
	}
}

#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(i) ACC4(i), ACC4(i + 4), ACC4(i + 8), ACC4(i + 12)
#define ACC64(i) ACC16(i), ACC16(i + 16), ACC16(i + 32), ACC16(i + 48)
#define REGS64 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN("1") ", "	\
	TEN("2") ", " TEN("3") ", " TEN("4") ", " TEN("5") ", "		\
	"%60, %61, %62, %63"
#define TEN(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, "		\
	"%" t "5, %" t "6, %" t "7, %" t "8, %" t "9"

/* d[64][N] (+)= a[64][16] * b[N][16]^T of f16, a in registers. */
__device__ inline void
mma_f16(float (&d)[64], const uint32_t *a, uint64_t b, int keep)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
	    "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" REGS64 "}, "
	    "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
	    : ACC64(0)
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

__device__ inline void
mma_f16(float (&d)[128], const uint32_t *a, uint64_t b, int keep)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
	    "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" REGS64 ", "
	    "%64, %65, %66, %67, %68, %69, " TEN("7") ", " TEN("8") ", "
	    TEN("9") ", " TEN("10") ", " TEN("11") ", "
	    "%120, %121, %122, %123, %124, %125, %126, %127}, "
	    "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}\n"
	    : ACC64(0), ACC64(64)
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
#undef REGS64
#undef TEN
#undef ACC4
#undef ACC16
#undef ACC64

/* 16 bytes of h for each thread and 16 rows; the bulk copy of w beside. */
template <uint32_t N>
__device__ inline void
many_bring(const many &g, uint32_t s0, uint32_t s1, uint32_t buf, uint32_t bars)
{
	constexpr uint32_t STAGE = Bed<N>::STAGE, W = Bed<N>::W;
	uint32_t tid = threadIdx.x - MANY_WORK, chunk = tid % 8;
	uint32_t row = tid / 8, r0 = blockIdx.z * ROWS, steps = g.hidden / STEP;
	/* the chunks of odd rows are in halves exchanged: no two of eight
	 * threads of a product that read at once meet in a bank */
	uint32_t to = row * 128 + (chunk ^ row % 2 * 4) * 16;
	const uint8_t *w = g.w + (size_t)blockIdx.x * steps * W;
	const float *h[8];

#pragma unroll
	for (uint32_t j = 0; j < 8; j++)
		h[j] = g.h + (size_t)min(r0 + row + j * 16, g.rows - 1) *
		    g.hidden + chunk * 4;
	for (uint32_t i = s0, s = 0, turn = 0; i < s1; i++) {
		uint32_t at = buf + s * STAGE, full = bars + s * 16;

		if (turn > 0)
			mbar_wait(full + 8, (turn - 1) & 1);
		if (tid == 0) {
			mbar_expect(full, W);
			bulk_load(at + H_BYTES, w + (size_t)i * W, W, full);
		}
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			copy16(at + to + j * 2048, h[j] + i * STEP);
		mbar_arrive_copies(full);
		if (++s == Bed<N>::RING) {
			s = 0;
			turn++;
		}
	}
}

/* A stage of h, of this thread: both halves of 2 x 16 columns. */
__device__ inline void
many_split(uint32_t at, uint32_t (&a)[16])
{
	uint32_t lane = threadIdx.x % 32;
	uint32_t row = threadIdx.x / 32 * 16 + lane / 4, odd = row % 2 * 4;

#pragma unroll
	for (uint32_t k = 0; k < 2; k++)
#pragma unroll
		for (uint32_t x = 0; x < 2; x++) {
			uint4 v = lds128(at + (row + x * 8) * 128 + ((k * 4 +
			    lane % 4) ^ odd) * 16);

			split_f16(__uint_as_float(v.x), __uint_as_float(v.y),
			    a[k * 8 + x], a[k * 8 + 4 + x]);
			split_f16(__uint_as_float(v.z), __uint_as_float(v.w),
			    a[k * 8 + 2 + x], a[k * 8 + 6 + x]);
		}
}

/* Partial sums of a run, by whoever has them. */
template <uint32_t N>
__device__ inline void
many_store(const many &g, const float (&d)[N / 2], uint32_t run)
{
	uint32_t lane = threadIdx.x % 32, e0 = blockIdx.x * N + lane % 4 * 2;
	uint32_t r0 = blockIdx.z * ROWS + threadIdx.x / 32 * 16 + lane / 4;
	float *to = g.part + (size_t)(blockIdx.y * g.runs + run) * g.rows *
	    g.experts;

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i += 4) {
		uint32_t e = e0 + i * 2;
		float2 u;

		if (e >= g.experts)
			continue;
		u = *(const float2 *)(g.unit + e);
#pragma unroll
		for (uint32_t x = 0; x < 2; x++)
			if (r0 + x * 8 < g.rows)
				*(float2 *)(to + (size_t)(r0 + x * 8) *
				    g.experts + e) = make_float2(d[i + x * 2] *
				    u.x, d[i + x * 2 + 1] * u.y);
	}
}

/* One stage. The tensor cores read `a` until the next wait, and the compiler
 * does not know: two arrays take turns. */
template <uint32_t N>
__device__ inline void
many_stage(float (&d)[N / 2], uint32_t (&a)[16], uint32_t buf, uint32_t bars,
    uint32_t &s, uint32_t &odd, bool first)
{
	constexpr uint32_t RING = Bed<N>::RING;
	uint32_t at = buf + s * Bed<N>::STAGE;

	mbar_wait(bars + s * 16, odd);
	many_split(at, a);
	wg_wait<0>();
	wg_pin(d);
	if (!first && threadIdx.x % 32 == 0)	/* the stage before */
		mbar_arrive(bars + (s == 0 ? RING - 1 : s - 1) * 16 + 8);
	wg_ready<16>(a);
	wg_fence();
#pragma unroll
	for (uint32_t k = 0; k < 2; k++) {
		uint64_t w = desc128(at + H_BYTES) + 2 * k;

		mma_f16(d, a + k * 8 + 4, w, k > 0 || !first);
		mma_f16(d, a + k * 8, w + 4, 1);
		mma_f16(d, a + k * 8, w, 1);
	}
	wg_commit();
	if (++s == RING) {
		s = 0;
		odd ^= 1;
	}
}

template <uint32_t N>
__device__ inline void
many_compute(const many &g, uint32_t s0, uint32_t s1, uint32_t buf,
    uint32_t bars)
{
	uint32_t s = 0, odd = 0, a[16], b[16];
	float d[N / 2];

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++)
		d[i] = 0;
	for (uint32_t run = 0; run < g.runs; run++) {
		uint32_t from = s0 + (s1 - s0) * run / g.runs, i = from;
		uint32_t end = s0 + (s1 - s0) * (run + 1) / g.runs;

		for (; i + 1 < end; i += 2) {
			many_stage<N>(d, a, buf, bars, s, odd, i == from);
			many_stage<N>(d, b, buf, bars, s, odd, false);
		}
		if (i < end)
			many_stage<N>(d, a, buf, bars, s, odd, i == from);
		wg_wait<0>();
		wg_pin(d);
		if (threadIdx.x % 32 == 0)
			mbar_arrive(bars + (s == 0 ? Bed<N>::RING - 1 : s - 1) *
			    16 + 8);
		many_store<N>(g, d, run);
	}
}

/* Grid: groups of N experts, shares, runs of 128 rows. No run is empty. */
template <uint32_t N>
__global__ void __launch_bounds__(MANY_THREADS, 1)
many_kernel(const __grid_constant__ many g)
{
	extern __shared__ uint8_t raw[];
	constexpr uint32_t RING = Bed<N>::RING;
	uint32_t buf = (smem_addr(raw) + 1023) & ~1023u;
	uint32_t bars = buf + RING * Bed<N>::STAGE;
	uint32_t all = g.hidden / STEP;
	uint32_t s0 = all * blockIdx.y / gridDim.y;
	uint32_t s1 = all * (blockIdx.y + 1) / gridDim.y;

	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < RING; i++) {
			mbar_init(bars + i * 16, MANY_THREADS - MANY_WORK + 1);
			mbar_init(bars + i * 16 + 8, MANY_WORK / 32);
		}
		fence_async();
		mbar_publish();
	}
	launch_wait();
	launch_next();
	__syncthreads();
	if (threadIdx.x >= MANY_WORK) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		many_bring<N>(g, s0, s1, buf, bars);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
		many_compute<N>(g, s0, s1, buf, bars);
	}
}

/* --- launching ----------------------------------------------------------- */

/*
 * Of `n` experts a block, in so many shares that the SMs end together. Their
 * partial sums stand first in g->part, behind them the router as split_kernel
 * leaves it. False: not in this shape or memory.
 */
bool
plan_many(const struct dcpg_route *g, struct many *m, uint32_t *n,
    uint32_t *shares)
{
	uint32_t steps = g->hidden / STEP, blocks, filled, best = ~0u;
	size_t part;

	if (g->hidden % STEP != 0 || g->experts % 2 != 0 ||
	    (((uintptr_t)g->h | (uintptr_t)g->w | (uintptr_t)g->part) & 15))
		return false;
	*n = (g->experts + 127) / 128 % 2 ? 128 : 256;
	filled = (g->experts + *n - 1) / *n * *n;
	blocks = filled / *n * ((g->rows + ROWS - 1) / ROWS);
	for (uint32_t s = 1; s <= SHARES && s <= steps; s++) {
		uint32_t each = (steps + s - 1) / s;
		uint32_t runs = (each + WHILE - 1) / WHILE;
		uint32_t cost = (blocks * s + SMS - 1) / SMS * (each + 8);

		if (s * runs > SHARES || cost >= best)
			continue;
		best = cost;
		*shares = s;
		m->runs = runs;
	}
	if (best == ~0u)
		return false;
	part = ((size_t)*shares * m->runs * g->rows * g->experts + 31) / 32 *
	    32;
	if (part + (size_t)filled * (g->hidden + 1) > g->part_floats)
		return false;
	m->h = g->h;
	m->w = (const uint8_t *)(g->part + part);
	m->unit = g->part + part + (size_t)filled * g->hidden;
	m->part = g->part;
	m->rows = g->rows;
	m->hidden = g->hidden;
	m->experts = g->experts;
	return true;
}

template <uint32_t N>
int
run_many(const struct dcpg_route *g, const struct many *m, uint32_t *shares,
    void *stream)
{
	dim3 grid((g->experts + N - 1) / N, *shares, (g->rows + ROWS - 1) /
	    ROWS);
	cudaStream_t st = (cudaStream_t)stream;
	cudaError_t e = launch_early(split_kernel, dim3(grid.x * N), 256, st,
	    g->w, g->experts, g->hidden, N, (uint8_t *)m->w, (float *)m->unit);

	*shares *= m->runs;
	if (e == cudaSuccess)
		e = launch_clusters(many_kernel<N>, grid, MANY_THREADS,
		    Bed<N>::SHARED, 1, st, *m);
	return e == cudaSuccess ? 0 : -EIO;
}

}	/* namespace */

/* Once per device. */
int
route_rows_init(void)
{
	cudaError_t e = cudaFuncSetAttribute(many_kernel<128>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, Bed<128>::SHARED);

	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(many_kernel<256>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize,
		    Bed<256>::SHARED);
	return e == cudaSuccess ? 0 : -EIO;
}

/* Logits as *shares partial sums in g->part; -EINVAL: not in this shape, or not
 * in so little memory. */
int
route_rows(const struct dcpg_route *g, uint32_t *shares, void *stream)
{
	struct many m;
	uint32_t n;

	if (!plan_many(g, &m, &n, shares))
		return -EINVAL;
	return n == 256 ? run_many<256>(g, &m, shares, stream) :
	    run_many<128>(g, &m, shares, stream);
}

}	/* namespace dcpg */
