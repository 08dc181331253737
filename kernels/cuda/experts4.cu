/*
 * Products of the routed experts of W4AFP8: int4 weights with a scale for each
 * row and 128 columns (kernels/keep.h has their form), x as e4m3 in units of
 * one scale a layer. As experts.cu, weights are the long side of wgmma, the
 * slots of one expert the short one.
 *
 * A block is four warps that multiply and one that brings. It owns, one after
 * another, items: up to TILE slots of an expert and 64 rows of gate and of up
 * (or 128 of down), whose tiles of 64 x 128 lie one after another, so that a
 * stage is two copies of U tiles each, scales in front of their codes; the ring
 * of stages goes on from item to item. Rows of x are brought by 16-byte copies
 * and stand with the 128-byte swizzle. Where there are too few items for all
 * SMs, a cluster shares the columns and adds up in shared memory; in how many
 * parts follows from the number of rows.
 *
 * Numbers. A code z is q as 0, -1, 1, -2, 2 ..: z + 129 (z & 1), put in a byte,
 * is q as e4m3, times 2^-8: a byte 0 .. 16 counts in units of 2^-9, and twice
 * |q| is at most 16. So products are exact up to the tensor core's sum over the
 * 128 columns of a scale, which is then multiplied and added in f32.
 *
 * Bytes that must move: 34 for 64 elements of the experts that have a slot.
 */
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/keep.h"

namespace dcpg {

int experts4_init(void);
int experts4_run(const struct dcpg_experts *, cudaStream_t);

namespace {

constexpr uint32_t TILE4 = DCPK_INT4_TILE;
constexpr uint32_t WORK = 128, BRING = 32, THREADS = WORK + BRING;

/* TILE slots, RING stages of U x 128 columns, BLOCKS to fit on an SM. */
template <int TILE_, int U_, int RING_, int BLOCKS_>
struct Shape {
	static constexpr uint32_t TILE = TILE_, U = U_, RING = RING_;
	static constexpr uint32_t BLOCKS = BLOCKS_;
	static constexpr uint32_t W = 2 * U * TILE4;
	static constexpr uint32_t X1 = TILE * 128;	/* 128 columns of x */
	static constexpr uint32_t STAGE = W + U * X1;
	static constexpr uint32_t SHARED = 1024 + RING * STAGE + RING * 32;
	static_assert(W % 1024 == 0, "x is swizzled by its address");
	static_assert(RING * STAGE >= TILE * 512, "sums of a split");
};

struct work {
	const uint8_t *x;		/* e4m3, k bytes a row */
	const uint32_t *slot_row, *tile_e, *tile0, *first;
	const uint8_t *w[2];
	uint64_t each;			/* bytes of an expert */
	void *y16;
	float *y;
	float x_unit, y_unit;
	uint32_t E, n, groups;		/* groups: of 128 columns */
	uint32_t n_tiles, per;		/* per: items of a tile of slots */
	uint32_t items, split;
	bool early;
};

struct item {
	uint32_t e, n0, m0, cnt;	/* expert, matrix row, slot, slots */
};

/* This block's columns, of any item. */
struct columns {
	uint32_t g0, n, stages;
};

template <class S>
__device__ inline columns
columns_of(const work &a)
{
	uint32_t part = blockIdx.x % a.split;
	columns c;

	c.g0 = a.groups * part / a.split;
	c.n = a.groups * (part + 1) / a.split - c.g0;
	c.stages = (c.n + S::U - 1) / S::U;
	return c;
}

/* Item number `at`; cnt 0: there is none, and with e = E none behind it. */
template <class S, bool GLU>
__device__ inline item
look(const work &a, uint32_t at)
{
	item p = { a.E, 0, 0, 0 };
	uint32_t f, t, have, tiles;

	if (at >= a.items)
		return p;
	p.e = a.tile_e[at / a.per];
	if (p.e >= a.E)
		return p;
	f = a.first[p.e];
	have = a.first[p.e + 1] - f;
	t = at - a.tile0[p.e] * a.per;
	tiles = (have + S::TILE - 1) / S::TILE;
	if (t >= tiles * a.n_tiles)	/* the tile of slots is not full */
		return p;
	p.m0 = f + t % tiles * S::TILE;
	p.cnt = min(S::TILE, f + have - p.m0);
	p.n0 = t / tiles * (GLU ? 64 : 128);
	return p;
}

/*
 * The block's items, one after another, for a warp: its lanes look up 32 at a
 * time, since a look-up takes as long as an item of few columns.
 */
template <class S, bool GLU>
struct walk {
	const work &a;
	uint32_t at, step, j;
	item mine;

	__device__ inline
	walk(const work &w) : a(w), at(blockIdx.x / w.split +
	    threadIdx.x % 32 * (gridDim.x / w.split)), step(32 * (gridDim.x /
	    w.split)), j(0), mine(look<S, GLU>(w, at))
	{
	}

	__device__ inline bool
	next(item &p)
	{
		do {
			if (j == 32) {
				at += step;
				mine = look<S, GLU>(a, at);
				j = 0;
			}
			p.e = __shfl_sync(0xffffffff, mine.e, j);
			p.n0 = __shfl_sync(0xffffffff, mine.n0, j);
			p.m0 = __shfl_sync(0xffffffff, mine.m0, j);
			p.cnt = __shfl_sync(0xffffffff, mine.cnt, j);
			j++;
		} while (p.cnt == 0 && p.e < a.E);
		return p.cnt != 0;
	}
};

/* --- bringing ------------------------------------------------------------ */

/*
 * A stage's weights, and which item they are of, for those who multiply. Rows
 * past the matrix are read as those before them, and not written.
 */
template <class S, bool GLU>
__device__ inline void
bring_weights(const work &a, const item &p, const columns &c, uint32_t stage,
    uint32_t at, uint32_t of, uint32_t full)
{
	uint32_t g = stage * S::U, n = min(S::U, c.n - g) * TILE4;
	size_t row = (size_t)a.groups * TILE4, from = p.e * a.each +
	    p.n0 / 64 * row + (size_t)(c.g0 + g) * TILE4;

	sts128(of, make_uint4(p.cnt, p.n0, p.m0, 0));
	mbar_expect(full, 2 * n);
	bulk_load(at, a.w[0] + from, n, full);
	bulk_load(at + S::U * TILE4, GLU ? a.w[1] + from : a.w[0] + from +
	    (p.n0 + 64 < a.n ? row : 0), n, full);
}

template <class S>
__device__ inline void
bring_x(const work &a, const item &p, const columns &c, uint32_t stage,
    uint32_t at, const uint8_t *const *row)
{
	constexpr uint32_t PASS = BRING / 8, N = S::TILE / PASS;
	uint32_t lane = threadIdx.x % 32, chunk = lane % 8, r0 = lane / 8;

#pragma unroll
	for (uint32_t u = 0; u < S::U; u++) {
		uint32_t g = stage * S::U + u;

		if (g >= c.n)
			break;
#pragma unroll
		for (uint32_t j = 0; j < N; j++) {
			uint32_t r = r0 + j * PASS;

			if (r < p.cnt)
				copy16(at + u * S::X1 + r * 128 + ((chunk ^
				    r % 8) * 16), row[j] + (c.g0 + g) * 128);
		}
	}
}

/* True: there was an item. */
template <class S, bool GLU>
__device__ inline bool
bring(const work &a, uint32_t buf, uint32_t bars, uint32_t of)
{
	constexpr uint32_t PASS = BRING / 8, N = S::TILE / PASS;
	uint32_t lane = threadIdx.x % 32, ahead = 0;
	columns c = columns_of<S>(a);
	walk<S, GLU> now(a), then = now;
	const uint8_t *row[N];
	ring<S::RING> r;
	bool any = false;
	item p;

	/* the weights of the first stages need nothing of the kernel before */
	while (ahead < S::RING && then.next(p))
		for (uint32_t i = 0; i < c.stages && ahead < S::RING;
		    i++, ahead++)
			if (lane == 0)
				bring_weights<S, GLU>(a, p, c, i, buf + ahead *
				    S::STAGE, of + ahead * 16, bars + ahead *
				    16);
	if (a.early)
		launch_wait();
	for (; now.next(p); any = true) {
#pragma unroll
		for (uint32_t j = 0; j < N; j++) {
			uint32_t m = p.m0 + min(lane / 8 + j * PASS,
			    p.cnt - 1);

			row[j] = a.x + (size_t)(a.slot_row ? a.slot_row[m] :
			    m) * a.groups * 128 + lane % 8 * 16;
		}
		for (uint32_t i = 0; i < c.stages; i++, r.next()) {
			uint32_t to = buf + r.s * S::STAGE;
			uint32_t full = bars + r.s * 16;

			if (r.turn > 0) {
				mbar_wait(full + 8, (r.turn - 1) & 1);
				if (lane == 0)
					bring_weights<S, GLU>(a, p, c, i, to,
					    of + r.s * 16, full);
			}
			bring_x<S>(a, p, c, i, to + S::W, row);
			mbar_arrive_copies(full);
		}
	}
	if (r.turn > 0)
		mbar_wait(bars + r.s * 16 + 8, (r.turn - 1) & 1);
	if (lane == 0) {	/* no item: the end */
		sts128(of + r.s * 16, make_uint4(0, 0, 0, 0));
		mbar_arrive(bars + r.s * 16);
	}
	mbar_arrive(bars + r.s * 16);
	return any;
}

/* --- multiplying --------------------------------------------------------- */

/* Four codes, one in the low half of each byte, as e4m3. */
__device__ inline uint32_t
e4m3_of(uint32_t z)
{
	return (z & 0x01010101) * 129 + (z & 0x0f0f0f0f);
}

/* The thread's share of a tile: fragments of four products of 32 columns, and
 * the scales of its two rows. */
__device__ inline float2
fragments(uint32_t *f, uint32_t tile)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t at = tile + DCPK_INT4_SCALES + warp * 1024 + lane * 16;
	uint4 x = lds128(at), y = lds128(at + 512);
	uint2 sc = lds64(tile + (warp * 8 + lane / 4) * 8);
	uint32_t xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };

#pragma unroll
	for (int s = 0; s < 4; s++) {
		f[4 * s] = e4m3_of(xs[s]);
		f[4 * s + 1] = e4m3_of(ys[s]);
		f[4 * s + 2] = e4m3_of(xs[s] >> 4);
		f[4 * s + 3] = e4m3_of(ys[s] >> 4);
	}
	wg_ready<16>(f);	/* made here, not behind the next wait */
	return make_float2(__uint_as_float(sc.x), __uint_as_float(sc.y));
}

/* y += t times the scales of the two rows; t is there. */
template <int N>
__device__ inline void
add_scaled(float (&y)[N / 2], float (&t)[N / 2], float2 scale)
{
	wg_wait<0>();
	wg_pin(t);
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		y[i] += t[i] * (i / 2 % 2 ? scale.y : scale.x);
}

/* t = the product of 128 columns: starts. */
template <int N>
__device__ inline void
start(float (&t)[N / 2], const uint32_t *f, uint64_t x)
{
	wg_fence();
#pragma unroll
	for (int s = 0; s < 4; s++)
		Mma8<N>::run(t, f + 4 * s, x + 2 * s, s != 0);
	wg_commit();
}

/*
 * U x 128 columns of both matrices, P's tiles at w, Q's a half stage further:
 * the fragments of the next product are made while one is computed.
 */
template <class S, int U, int N>
__device__ inline void
multiply(float (&p)[N / 2], float (&q)[N / 2], uint32_t w, uint32_t x)
{
	uint32_t f[2][16];
	float t[N / 2];
	float2 scale[2];

	scale[0] = fragments(f[0], w);
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		t[i] = 0;
#pragma unroll
	for (int u = 0; u < U; u++) {
		uint64_t dx = desc128(x + u * S::X1);

		start<N>(t, f[0], dx);
		scale[1] = fragments(f[1], w + (S::U + u) * TILE4);
		add_scaled<N>(p, t, scale[0]);
		start<N>(t, f[1], dx);
		if (u + 1 < U)
			scale[0] = fragments(f[0], w + (u + 1) * TILE4);
		add_scaled<N>(q, t, scale[1]);
	}
}

/* Of one slot, P's row n and Q's, 64 further. */
template <bool GLU>
__device__ inline void
store(const work &a, const item &p, uint32_t t, uint32_t n, float x, float y)
{
	float unit = a.x_unit * 256;	/* e4m3_of */
	size_t at = (size_t)(p.m0 + t) * a.n + n;
	float u = x * unit, v = y * unit;

	if (t >= p.cnt)
		return;
	if (GLU) {
		u = glu(u, v);
		if (a.y_unit > 0)
			((uint8_t *)a.y16)[at] = __nv_cvt_float_to_fp8(u /
			    a.y_unit, __NV_SATFINITE, __NV_E4M3);
		else
			((__nv_bfloat16 *)a.y16)[at] = __float2bfloat16(u);
	} else {
		a.y[at] = u;
		if (p.n0 + 64 < a.n)
			a.y[at + 64] = v;
	}
}

/* One item, from stage s of the ring on. */
template <class S, bool GLU, int N>
__device__ inline void
compute(const work &a, const item &pl, const columns &c, uint32_t buf,
    uint32_t bars, ring<S::RING> &r)
{
	bool one = threadIdx.x % 32 == 0;
	float p[N / 2], q[N / 2];

#pragma unroll
	for (int i = 0; i < N / 2; i++)
		p[i] = q[i] = 0;
	for (uint32_t i = 0; i < c.stages; i++, r.next()) {
		uint32_t full = bars + r.s * 16, at = buf + r.s * S::STAGE;
		uint32_t n = min(S::U, c.n - i * S::U);

		mbar_wait(full, r.turn & 1);
		fence_async();		/* x came by ordinary copies */
		if (n == S::U)
			multiply<S, S::U, N>(p, q, at, at + S::W);
		for (uint32_t u = 0; n < S::U && u < n; u++)
			multiply<S, 1, N>(p, q, at + u * TILE4, at + S::W +
			    u * S::X1);
		__syncwarp();
		if (one)
			mbar_arrive(full + 8);
	}
	each_unit<N, S::TILE == 16, S::BLOCKS == 4 ? 4 : 8>(p, q, buf, a.split,
	    [&](uint32_t t, uint32_t row, float4 v) {
		store<GLU>(a, pl, t, pl.n0 + row, v.x, v.z);
		store<GLU>(a, pl, t + 1, pl.n0 + row, v.y, v.w);
	});
}

template <class S, bool GLU>
__global__ void __launch_bounds__(THREADS, S::BLOCKS)
experts4(const __grid_constant__ work a)
{
	extern __shared__ uint8_t raw[];
	uint32_t buf = (smem_addr(raw) + 1023) & ~1023u;
	uint32_t bars = buf + S::RING * S::STAGE, of = bars + S::RING * 16;
	ring<S::RING> r;

	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < S::RING; i++) {
			mbar_init(bars + i * 16, BRING + 1);
			mbar_init(bars + i * 16 + 8, WORK / 32);
		}
		fence_async();
		mbar_publish();
	}
	if (!a.early)
		launch_wait();
	launch_next();
	__syncthreads();
	if (threadIdx.x >= WORK) {
		if (bring<S, GLU>(a, buf, bars, of) && a.split > 1)
			cluster_sync();		/* as in each_unit */
	} else {
		columns c = columns_of<S>(a);

		if (a.early)
			launch_wait();
		for (;;) {
			mbar_wait(bars + r.s * 16, r.turn & 1);
			uint4 v = lds128(of + r.s * 16);
			item p = { 0, v.y, v.z, v.x };

			if (p.cnt == 0)
				break;
			if (S::TILE == 16 || p.cnt <= 16)
				compute<S, GLU, 16>(a, p, c, buf, bars, r);
			else if (S::TILE == 32 || p.cnt <= 32)
				compute<S, GLU, S::TILE == 16 ? 16 : 32>(a, p,
				    c, buf, bars, r);
			else
				compute<S, GLU, S::TILE>(a, p, c, buf, bars,
				    r);
		}
	}
	if (a.split > 1)	/* others read this block's shared memory */
		cluster_sync();
}

/* --- launching ----------------------------------------------------------- */

uint32_t sms;		/* of a device; all are alike */

/* [i]: clusters of 2 << i blocks that run at once. */
template <class S, bool GLU> uint32_t fit[3];

template <class S, bool GLU>
int
launch(const struct dcpg_experts *g, cudaStream_t st)
{
	uint32_t most = sms * S::BLOCKS;
	work a = {};

	a.x = (const uint8_t *)g->x;
	a.slot_row = g->slot_row;
	a.tile_e = g->tile_e;
	a.tile0 = g->tile0;
	a.first = g->first;
	a.w[0] = (const uint8_t *)g->w;
	a.w[1] = (const uint8_t *)g->w2;
	a.each = dcpk_int4_bytes(g->n, g->k);
	a.y16 = g->y16;
	a.y = g->y;
	a.x_unit = g->x_unit;
	a.y_unit = g->y_unit;
	a.E = g->experts;
	a.n = g->n;
	a.groups = g->k / 128;
	a.n_tiles = (g->n + (GLU ? 63 : 127)) / (GLU ? 64 : 128);
	a.per = a.n_tiles * (g->tile / S::TILE);
	a.items = dcpg_expert_tiles(g->rows, g->each, g->experts, g->tile) *
	    a.per;
	a.early = g->early;
	a.split = S::TILE > 16 ? 1 : g->split;
	if (a.split == 0) {	/* as many blocks as there is room for */
		a.split = 1;
		for (int i = 0; i < 3 && a.items <= fit<S, GLU>[i]; i++)
			a.split *= 2;
	}
	while (a.split > a.groups)
		a.split /= 2;
	/* a split block has one item: its sums stand where stages would */
	return launch_clusters(experts4<S, GLU>, dim3(a.split > 1 ||
	    a.items < most ? a.items * a.split : most), THREADS, S::SHARED,
	    a.split, st, a) == cudaSuccess ? 0 : -EIO;
}

template <class S, bool GLU>
int
init(void)
{
	if (cudaFuncSetAttribute(experts4<S, GLU>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED) !=
	    cudaSuccess)
		return -EIO;
	for (uint32_t i = 0; i < 3; i++) {
		cudaLaunchAttribute at = {};
		cudaLaunchConfig_t cfg = {};
		int n = 0;

		at.id = cudaLaunchAttributeClusterDimension;
		at.val.clusterDim.x = 2 << i;
		at.val.clusterDim.y = at.val.clusterDim.z = 1;
		cfg.gridDim = dim3(sms * 8);
		cfg.blockDim = dim3(THREADS);
		cfg.dynamicSmemBytes = S::SHARED;
		cfg.attrs = &at;
		cfg.numAttrs = 1;
		if (cudaOccupancyMaxActiveClusters(&n, experts4<S, GLU>,
		    &cfg) != cudaSuccess)
			return -EIO;
		fit<S, GLU>[i] = (uint32_t)n;
	}
	return 0;
}

/*
 * Gate and up of few rows: two blocks an SM have 139 KB under way. Three are
 * better where there are items for all of them, four for down, whose items are
 * short (measured).
 */
typedef Shape<16, 2, 4, 2> few;
typedef Shape<16, 2, 3, 3> more;
typedef Shape<16, 2, 2, 4> down;
typedef Shape<64, 2, 3, 2> many;

}	/* namespace */

int
experts4_init(void)
{
	int dev = 0, n = 0, rc;

	if (cudaGetDevice(&dev) != cudaSuccess || cudaDeviceGetAttribute(&n,
	    cudaDevAttrMultiProcessorCount, dev) != cudaSuccess)
		return -EIO;
	sms = (uint32_t)n;
	rc = init<few, true>();
	if (rc == 0)
		rc = init<more, true>();
	if (rc == 0)
		rc = init<down, false>();
	if (rc == 0)
		rc = init<many, true>();
	return rc != 0 ? rc : init<many, false>();
}

int
experts4_run(const struct dcpg_experts *g, cudaStream_t st)
{
	if (g->n % 64 != 0 || g->k % 128 != 0 || !(g->x_unit > 0) ||
	    (g->w2 == NULL && g->y == NULL))
		return -EINVAL;
	if (g->tile == 64 || g->tile == 128)
		return g->w2 != NULL ? launch<many, true>(g, st) :
		    launch<many, false>(g, st);
	if (g->tile != 16)
		return -EINVAL;
	if (g->w2 == NULL)
		return launch<down, false>(g, st);
	return dcpg_expert_tiles(g->rows, g->each, g->experts, 16) *
	    (g->n / 64) >= 3 * sms ? launch<more, true>(g, st) :
	    launch<few, true>(g, st);
}

}	/* namespace dcpg */

/* Of 16 while an expert has few, or cannot have more. */
extern "C" uint32_t
dcpg_expert_tile4(uint32_t rows, uint32_t each, uint32_t experts)
{
	return rows <= 16 || rows * each <= 4 * experts ? 16 : 64;
}
