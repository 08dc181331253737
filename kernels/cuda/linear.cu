/*
 * Linear layers of few rows in FP8 (product.cu): one matrix that all rows meet.
 * dcpg.h says what is computed.
 *
 * As in experts.cu, the weights are the long side of wgmma, the rows of x the
 * short one, all of them at once: 8, 16, 32 or 64. A block owns 128 rows of the
 * matrix, P the first 64 of them and Q the others, and a share of the columns;
 * the blocks that share a matrix row are a cluster and add up in shared memory.
 * A stage is 128 columns: two tensor copies of weights, one of x, and x's
 * scales. One thread asks for all of that, several stages ahead, weights before
 * the kernel in front has ended. (Rows of x by 16-byte copies of a warp's lanes
 * held the weights up: doc/cuda.md.)
 *
 * The tensor cores add up the 128 columns of a scale, of which 128 x 128
 * weights have one; scaled sums are added in f32.
 *
 * Bytes that must move: the matrix.
 */
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/keep.h"

namespace dcpg {

int linear_init(void);

namespace {

constexpr uint32_t WORK = 128, THREADS = WORK + 32;
constexpr uint32_t MAX_STAGES = DCPK_FP8_EXPERT_K / 128;	/* of a block */

/* A row of y on its way out, 128 columns of f32: no bank twice. */
constexpr uint32_t OUT = 128 * 4 + 16;

/* N rows of x at most, RING stages; two blocks are to fit on an SM. */
template <int N_, int RING_>
struct Shape {
	static constexpr uint32_t N = N_, RING = RING_;
	static constexpr uint32_t STAGE = 2 * BOX + N * 128;
	/* Scales of x: of twice as many stages, see x_scales in experts.cu. */
	static constexpr uint32_t SCALES = 2 * RING * N * 4;
	/* What the cluster's other blocks send: a share of all sums each. */
	static constexpr uint32_t UNITS = N * 32, IN = (UNITS + 8) * 16;
	static constexpr uint32_t SHARED = 1024 + RING * STAGE + IN + SCALES +
	    MAX_STAGES * 4 + RING * 16 + 16;
	static_assert(2 * (SHARED + 1024) <= 228 * 1024, "room on an SM");
	static_assert(STAGE % 1024 == 0, "boxes are swizzled by address");
	static_assert(RING * STAGE >= N * OUT, "sums");
};

struct work {
	const float *x_scale, *scale;
	uint32_t x_scale_ld, scale_ld, rows, n, stages, split, y_ld;
	__nv_bfloat16 *y16;
	float *y;
	bool late;
	bool turn;		/* y is written 16 bytes at a time */
};

/* Where a block's things stand in shared memory, and which stages it has. */
struct place {
	uint32_t buf, in, xs, bars, came;
	uint32_t s0, n;		/* stages: the first, how many */
	uint32_t turned;	/* by how many it begins later */
	uint32_t n0;		/* row of the matrix */
};

template <class S>
__device__ inline uint32_t
x_scales(const place &p, const ring<S::RING> &r)
{
	return p.xs + (r.turn % 2 * S::RING + r.s) * S::N * 4;
}

/* The i-th stage that the block multiplies, counted from its first. Of many
 * rows blocks do not begin with the same one: all would ask for the same lines
 * of x at once. */
__device__ inline uint32_t
stage_of(const place &p, uint32_t i)
{
	return i + p.turned < p.n ? i + p.turned : i + p.turned - p.n;
}

/* What a copy will need of it. */
__device__ inline void
prefetch_map(const CUtensorMap *map)
{
	asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

/* --- bringing: one thread ------------------------------------------------ */

/* A stage's weights; `more` bytes will follow. */
template <class S>
__device__ inline void
bring_weights(const CUtensorMap *w, const place &p, uint32_t i, uint32_t s,
    uint32_t more)
{
	uint32_t at = p.buf + s * S::STAGE, full = p.bars + s * 16;
	uint32_t col = (p.s0 + stage_of(p, i)) * 128;

	mbar_expect(full, 2 * BOX + more);
	tensor_load(at, w, col, p.n0, 0, full);
	tensor_load(at + BOX, w, col, p.n0 + 64, 0, full);
}

template <class S>
__device__ inline void
bring(const CUtensorMap *w, const CUtensorMap *x, const work &a,
    const place &p)
{
	uint32_t scales = (a.rows + 3) / 4 * 16, more = S::N * 128 + scales;
	ring<S::RING> r;

	prefetch_map(x);
	for (uint32_t i = 0; i < p.n && i < S::RING; i++)
		bring_weights<S>(w, p, i, i, more);
	launch_wait();
	if (a.late)
		launch_next();
	for (uint32_t i = 0; i < p.n; i++, r.next()) {
		uint32_t full = p.bars + r.s * 16;
		uint32_t stage = p.s0 + stage_of(p, i);

		if (r.turn > 0) {
			mbar_wait(full + 8, (r.turn - 1) & 1);
			bring_weights<S>(w, p, i, r.s, more);
		}
		tensor_load(p.buf + r.s * S::STAGE + 2 * BOX, x, stage * 128, 0,
		    0, full);
		bulk_load(x_scales<S>(p, r), a.x_scale + (size_t)stage *
		    a.x_scale_ld, scales, full);
	}
}

/* --- multiplying --------------------------------------------------------- */

/* sum += d times the scales, two slots each eight columns. */
template <int N>
__device__ inline void
add_scaled(float (&sum)[N / 2], float (&d)[N / 2], const float (&s)[N / 4])
{
	wg_pin(d);
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		sum[i] += d[i] * s[i / 4 * 2 + i % 2];
}

__device__ inline void
sts_bf16(uint32_t a, float x)
{
	asm volatile("st.shared.b16 [%0], %1;" :: "r"(a), "h"(
	    __bfloat16_as_ushort(__float2bfloat16(x))) : "memory");
}

__device__ inline void
store(const work &a, uint32_t row, uint32_t n, float v)
{
	size_t at = (size_t)row * a.y_ld + n;

	if (row >= a.rows || n >= a.n)
		return;
	if (a.y16 != NULL)
		a.y16[at] = __float2bfloat16(v);
	else
		a.y[at] = v;
}

/* Sums of a thread into rows of bf16 or f32 that stand at buf. */
template <int N>
__device__ inline void
put_rows(const float (&sp)[N / 2], const float (&sq)[N / 2], uint32_t buf,
    bool bf16)
{
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		uint32_t slot, row, u = i / 2 * 128 + threadIdx.x;

		unit_at(u, &slot, &row);
		slot = buf + (slot + i % 2) * OUT;
		if (bf16) {
			sts_bf16(slot + row * 2, sp[i]);
			sts_bf16(slot + (row + 64) * 2, sq[i]);
		} else {
			sts32(slot + row * 4, __float_as_uint(sp[i]));
			sts32(slot + (row + 64) * 4, __float_as_uint(sq[i]));
		}
	}
}

/* A block's own sums are y's: whole lines a warp. */
template <int N>
__device__ inline void
write_rows(const work &a, const place &p, const float (&sp)[N / 2],
    const float (&sq)[N / 2])
{
	uint32_t el = a.y16 ? 2 : 4, each = 128 * el / 16;	/* a row's */
	uint8_t *y = a.y16 ? (uint8_t *)a.y16 : (uint8_t *)a.y;

	bar_sync(1, WORK);	/* nobody multiplies any more */
	put_rows<N>(sp, sq, p.buf, a.y16 != NULL);
	bar_sync(1, WORK);
	for (uint32_t i = threadIdx.x; i < a.rows * each; i += WORK) {
		uint32_t row = i / each, c = i % each * 16;

		if (p.n0 + c / el < a.n)
			*(uint4 *)(y + ((size_t)row * a.y_ld + p.n0) * el +
			    c) = lds128(p.buf + row * OUT + c);
	}
}

/*
 * Sums over the cluster's blocks, in the order of their columns. Each block has
 * a share of the units, and is sent that of all others.
 */
template <class S>
__device__ inline void
write_shared(const work &a, const place &p, const float (&sp)[S::N / 2],
    const float (&sq)[S::N / 2])
{
	uint32_t me = blockIdx.x % a.split, t = threadIdx.x;
	uint32_t most = (S::UNITS + a.split - 1) / a.split * 16;
	uint32_t u0 = S::UNITS * me / a.split;
	uint32_t u1 = S::UNITS * (me + 1) / a.split;

	bar_sync(1, WORK);	/* nobody multiplies any more */
#pragma unroll
	for (int j = 0; j < (int)S::N / 4; j++)
		sts128(p.buf + (j * 128 + t) * 16, make_uint4(
		    __float_as_uint(sp[2 * j]), __float_as_uint(sp[2 * j + 1]),
		    __float_as_uint(sq[2 * j]), __float_as_uint(sq[2 * j +
		    1])));
	fence_async();
	cluster_wait();		/* of its start */
	bar_sync(1, WORK);
	if (t < a.split && t != me) {
		uint32_t from = S::UNITS * t / a.split;
		uint32_t end = S::UNITS * (t + 1) / a.split;

		cluster_copy(cluster_map(p.in + me * most, t), p.buf + from *
		    16, (end - from) * 16, cluster_map(p.came, t));
	}
	__syncwarp();
	mbar_wait(p.came, 0);
	cluster_arrive();	/* to its end */
	for (uint32_t u = u0 + t; u < u1; u += WORK) {
		float4 s = make_float4(0, 0, 0, 0);
		uint32_t row, n;

#pragma unroll
		for (uint32_t r = 0; r < 8; r++) {
			if (r >= a.split)
				break;
			uint4 v = lds128(r == me ? p.buf + u * 16 : p.in + r *
			    most + (u - u0) * 16);

			s.x += __uint_as_float(v.x);
			s.y += __uint_as_float(v.y);
			s.z += __uint_as_float(v.z);
			s.w += __uint_as_float(v.w);
		}
		unit_at(u, &row, &n);
		n += p.n0;
		store(a, row, n, s.x);
		store(a, row + 1, n, s.y);
		store(a, row, n + 64, s.z);
		store(a, row + 1, n + 64, s.w);
	}
}

template <class S>
__device__ inline void
compute(const work &a, const place &p, const float *scale)
{
	constexpr int N = S::N;
	float sp[N / 2] = {}, sq[N / 2] = {}, d[N / 2] = {}, e[N / 2] = {};
	ring<S::RING> r;

	for (uint32_t i = 0; i < p.n; i++, r.next()) {
		uint32_t full = p.bars + r.s * 16, at = p.buf + r.s * S::STAGE;
		uint32_t xs = x_scales<S>(p, r) + threadIdx.x % 4 * 8;
		float s[N / 4], w = scale[stage_of(p, i)];

		mbar_wait(full, r.turn & 1);
		wg_pin(d);
		wg_pin(e);
		wg_fence();
		start8<N>(d, at, at + 2 * BOX);
		start8<N>(e, at + BOX, at + 2 * BOX);
#pragma unroll
		for (int j = 0; j < N / 8; j++) {
			uint2 v = lds64(xs + j * 32);

			s[2 * j] = __uint_as_float(v.x) * w;
			s[2 * j + 1] = __uint_as_float(v.y) * w;
		}
		wg_wait<1>();
		add_scaled<N>(sp, d, s);
		wg_wait<0>();
		add_scaled<N>(sq, e, s);
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			mbar_arrive(full + 8);
	}
	if (a.split > 1) {
		write_shared<S>(a, p, sp, sq);
	} else if (a.turn) {
		write_rows<N>(a, p, sp, sq);
	} else {
		each_unit<N, false>(sp, sq, 0, 1, [&](uint32_t row, uint32_t n,
		    float4 v) {
			store(a, row, p.n0 + n, v.x);
			store(a, row + 1, p.n0 + n, v.y);
			store(a, row, p.n0 + n + 64, v.z);
			store(a, row + 1, p.n0 + n + 64, v.w);
		});
	}
}

template <class S>
__global__ void __launch_bounds__(THREADS, 2)
linear_kernel(const __grid_constant__ CUtensorMap w,
    const __grid_constant__ CUtensorMap x, const __grid_constant__ work a)
{
	extern __shared__ uint8_t raw[];
	uint32_t part = blockIdx.x % a.split, sc = S::RING * S::STAGE + S::IN;
	place p;

	p.buf = (smem_addr(raw) + 1023) & ~1023u;
	float *scale = (float *)(raw + (p.buf - smem_addr(raw)) + sc);
	p.in = p.buf + S::RING * S::STAGE;
	p.xs = p.buf + sc + MAX_STAGES * 4;
	p.bars = p.xs + S::SCALES;
	p.came = p.bars + S::RING * 16;
	p.s0 = a.stages * part / a.split;
	p.n = a.stages * (part + 1) / a.split - p.s0;
	p.n0 = blockIdx.x / a.split * 128;
	p.turned = S::N < 32 ? 0 : blockIdx.x / a.split % p.n;
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < S::RING; i++) {
			mbar_init(p.bars + i * 16, 1);
			mbar_init(p.bars + i * 16 + 8, WORK / 32);
		}
		mbar_init(p.came, 1);
		fence_async();
		mbar_publish();
		mbar_expect(p.came, (S::UNITS * (part + 1) / a.split -
		    S::UNITS * part / a.split) * 16 * (a.split - 1));
	}
	__syncwarp();
	if (a.split > 1)	/* nobody sends before all are here */
		cluster_arrive();
	if (!a.late)
		launch_next();
	__syncthreads();
	if (threadIdx.x >= WORK) {
		if (threadIdx.x == WORK)
			bring<S>(&w, &x, a, p);
		__syncwarp();
		if (a.split > 1) {
			cluster_wait();
			cluster_arrive();
		}
	} else {
		const float *from = a.scale + (size_t)(p.n0 / 128) *
		    a.scale_ld + p.s0;

		/* as old as the weights */
		for (uint32_t i = threadIdx.x; i < p.n; i += WORK)
			scale[i] = from[i];
		bar_sync(1, WORK);
		launch_wait();
		compute<S>(a, p, scale);
	}
	if (a.split > 1)	/* what is under way is read from here */
		cluster_wait();
}

/* --- launching ----------------------------------------------------------- */

/* Blocks that share the columns: as many as still run at once, of more than two
 * stages each (measured). Clusters of five and seven leave SMs without one. */
uint32_t
split_of(uint32_t tiles, uint32_t stages)
{
	static const struct {
		uint32_t split, blocks;
	} most[] = { { 8, 150 }, { 6, 200 }, { 4, 230 }, { 3, 200 },
	    { 2, 230 } };
	uint32_t best = 1;

	for (const auto &m : most)
		if (tiles * m.split <= m.blocks && stages * 2 >= m.split * 5 &&
		    m.split > best)
			best = m.split;
	return best;
}

template <class S>
int
launch(const struct dcpg_linear *g, cudaStream_t st)
{
	uint32_t tiles = (g->n + 127) / 128;
	CUtensorMap w, x;
	work a = {};

	if (tensor_map(&w, g->w, true, g->k, g->n, 1, (uint64_t)g->n * g->k,
	    64) != 0 || tensor_map(&x, g->x, true, g->k, g->rows, 1,
	    (uint64_t)g->rows * g->k, S::N) != 0)
		return -EIO;
	a.x_scale = g->x_scale;
	a.scale = g->scale;
	a.x_scale_ld = g->x_scale_ld;
	a.scale_ld = dcpk_fp8_scale_ld(g->k);
	a.rows = g->rows;
	a.n = g->n;
	a.stages = g->k / 128;
	a.y_ld = g->y_ld ? g->y_ld : g->n;
	a.y16 = (__nv_bfloat16 *)g->y16;
	a.y = g->y;
	a.late = g->late;
	a.turn = (uintptr_t)(g->y ? g->y : g->y16) % 16 == 0 &&
	    (a.y_ld | g->n) % (g->y ? 4 : 8) == 0;
	a.split = g->split ? g->split : split_of(tiles, a.stages);
	if (a.split > a.stages)
		a.split = a.stages;
	return launch_clusters(linear_kernel<S>, dim3(tiles * a.split), THREADS,
	    S::SHARED, a.split, st, w, x, a) == cudaSuccess ? 0 : -EIO;
}

typedef Shape<8, 5> of8;
typedef Shape<16, 5> of16;
typedef Shape<32, 4> of32;
typedef Shape<64, 3> of64;

template <class S>
int
init(void)
{
	return cudaFuncSetAttribute(linear_kernel<S>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED) ==
	    cudaSuccess ? 0 : -EIO;
}

}	/* namespace */

int
linear_init(void)
{
	int rc = init<of8>();

	if (rc == 0)
		rc = init<of16>();
	if (rc == 0)
		rc = init<of32>();
	return rc != 0 ? rc : init<of64>();
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" bool
dcpg_linear_fit(uint32_t rows, uint32_t n, uint32_t k)
{
	return rows != 0 && rows <= 64 && n != 0 && k != 0 && k % 128 == 0 &&
	    k / 128 <= MAX_STAGES;
}

extern "C" int
dcpg_linear(const struct dcpg_linear *g, void *stream)
{
	cudaStream_t st = (cudaStream_t)stream;

	if (!dcpg_linear_fit(g->rows, g->n, g->k) || g->split > 8 ||
	    (g->y != NULL) == (g->y16 != NULL) || g->x_scale_ld % 4 != 0 ||
	    g->x_scale_ld < g->rows || (uintptr_t)g->x_scale % 16 != 0 ||
	    (g->y_ld != 0 && g->y_ld < g->n))
		return -EINVAL;
	if (g->rows <= 8)
		return launch<of8>(g, st);
	if (g->rows <= 16)
		return launch<of16>(g, st);
	return g->rows <= 32 ? launch<of32>(g, st) : launch<of64>(g, st);
}
