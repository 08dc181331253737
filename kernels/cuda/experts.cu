/*
 * Products of the routed experts: rows sorted by expert into slots, each slot
 * times its expert's matrix. dcpg.h says what is computed.
 *
 * The weights are the long side of wgmma, the slots of one expert the short
 * one, so that a block reads weights once whatever few rows meet there. A block
 * owns `tile` slots of an expert and 64 rows of gate and of up for each of its
 * warpgroups (or 128 of down). Weights come by tensor copies of 64 rows x 128
 * bytes, rows of x by 16-byte copies of the threads that bring; both stand in
 * shared memory with the 128-byte swizzle. Gate and up of an element end in one
 * thread, which applies SiLU and the product. Where there are too few blocks, a
 * cluster shares the columns and adds up in shared memory, in the same order
 * whoever else is in the batch; in how many parts follows from the number of
 * rows.
 *
 * e4m3 times e4m3: a stage is 128 columns, so one scale for each 64 rows of
 * weights and one for each slot. The tensor cores add up a stage (they keep
 * some 14 bits, too few for more), scaled sums are added in f32. Of many slots
 * these are the long side, 64 for each warpgroup: then a thread's sums have two
 * scales instead of 32.
 *
 * Bytes that must move: the matrices of the experts that have a slot; for few
 * rows nothing else counts. Operations: 2 n k a slot (twice that for gate and
 * up), which counts from some 200 slots an expert on.
 */
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/keep.h"

namespace dcpg {

int experts4_run(const struct dcpg_experts *, cudaStream_t);

namespace {

constexpr uint32_t MAX_SCALES = DCPK_FP8_EXPERT_K / 128;	/* of a row */

/* --- shapes -------------------------------------------------------------- */

/*
 * TILE slots, WG warpgroups that multiply, RING stages of U x 128 bytes of a
 * weight's row; BLOCKS are to fit on an SM.
 */
template <int TILE_, int WG_, int U_, int RING_, int BLOCKS_, bool FP8_>
struct Shape {
	static constexpr uint32_t TILE = TILE_, WG = WG_, U = U_, RING = RING_;
	static constexpr uint32_t BLOCKS = BLOCKS_;
	static constexpr bool FP8 = FP8_;
	/* slots may be the long side; between P and Q, between warpgroups */
	static constexpr bool BY_SLOT = FP8 && WG == 2;
	static constexpr uint32_t DOWN_Q = BY_SLOT ? 128 : 64;
	static constexpr uint32_t DOWN_W = BY_SLOT ? 64 : 128;
	static constexpr uint32_t EL = FP8 ? 1 : 2;	/* bytes of one */
	static constexpr uint32_t COLS = 128 / EL;	/* of a box */
	static constexpr uint32_t K = U * COLS;		/* of a stage */
	static constexpr uint32_t WORK = WG * 128;
	static constexpr uint32_t BRING = WG == 1 ? 32 : 128;
	static constexpr uint32_t THREADS = WORK + BRING;
	/* P boxes of all warpgroups, then Q boxes; for each of U */
	static constexpr uint32_t W = U * 2 * WG * BOX;
	static constexpr uint32_t X1 = TILE * 128;	/* COLS of x */
	static constexpr uint32_t X = U * X1;
	static constexpr uint32_t STAGE = W + X;
	static constexpr uint32_t RED = TILE * 512;	/* of a split */
	static constexpr uint32_t BUF = RING * STAGE > RED ? RING * STAGE : RED;
	static constexpr uint32_t SCALES = FP8 ? 2 * WG * MAX_SCALES * 4 : 0;
	static constexpr uint32_t XSCALES = FP8 ? 2 * RING * TILE * 4 : 0;
	static constexpr uint32_t SHARED = 1024 + BUF + SCALES + XSCALES +
	    RING * 16;
	static_assert(BLOCKS * (SHARED + 1024) <= 228 * 1024, "room on an SM");
};

/* Where a stage's scales of slots stand: for twice the ring's stages. An arrival
 * waits for no read that is under way (doc/cuda.md), so what is read last before
 * one is overwritten only when the stage's next turn has been read, too. */
template <class S>
__device__ inline uint32_t
x_scales(uint32_t xs, const ring<S::RING> &r)
{
	return xs + (r.turn % 2 * S::RING + r.s) * S::TILE * 4;
}

struct work {
	const uint8_t *x;	/* x_ld bytes a row */
	const float *x_scale;	/* [k / 128][x_scale_ld] */
	const uint32_t *slot_row, *tile_e, *tile0, *first;
	const float *scale[2];	/* of expert 0 */
	size_t expert_floats;	/* from one's scales to the next's */
	__nv_bfloat16 *y16;
	float *y;
	uint32_t E, n, k, x_ld, x_scale_ld, scale_ld, n_tiles, split;
	bool early;
	bool turn;		/* y16 is written 16 bytes at a time */
	struct dcpg_codes y8;	/* instead of y16 */
	uint32_t m4;		/* its rows */
};

/* What the block does. */
struct place {
	uint32_t e, n0, m0, cnt;	/* expert, matrix row, slot, slots */
	uint32_t s0, s1;		/* stages */
};

template <class S, bool GLU>
__device__ inline bool
find(const work &a, place &p)
{
	constexpr uint32_t rows = S::WG * (GLU ? 64 : 128), per = 128 / S::COLS;
	uint32_t part = blockIdx.x % a.split, b = blockIdx.x / a.split;
	uint32_t f, t, have, tiles, all = (a.k + 127) / 128;

	p.e = a.tile_e[b / a.n_tiles];
	if (p.e >= a.E)
		return false;
	f = a.first[p.e];
	have = a.first[p.e + 1] - f;
	t = b - a.tile0[p.e] * a.n_tiles;
	tiles = (have + S::TILE - 1) / S::TILE;
	p.m0 = f + t % tiles * S::TILE;
	p.cnt = min(S::TILE, f + have - p.m0);
	p.n0 = t / tiles * rows;
	p.s0 = all * part / a.split * per / S::U;
	p.s1 = all * (part + 1) / a.split * per;
	p.s1 = min((p.s1 + S::U - 1) / S::U, (a.k + S::K - 1) / S::K);
	return true;
}

/* --- bringing ------------------------------------------------------------ */

template <class S, bool GLU>
__device__ inline void
bring_weights(const CUtensorMap *m0, const CUtensorMap *m1, const place &p,
    uint32_t stage, uint32_t at, uint32_t full)
{
	mbar_expect(full, S::W);
#pragma unroll
	for (uint32_t u = 0; u < S::U; u++)
#pragma unroll
		for (uint32_t q = 0; q < 2; q++)
#pragma unroll
			for (uint32_t w = 0; w < S::WG; w++)
				tensor_load(at + ((u * 2 + q) * S::WG + w) *
				    BOX, GLU && q ? m1 : m0,
				    (stage * S::U + u) * S::COLS, p.n0 +
				    (GLU ? w * 64 : w * S::DOWN_W + q *
				    S::DOWN_Q), p.e, full);
}

template <class S, bool GLU>
__device__ inline void
bring(const CUtensorMap *m0, const CUtensorMap *m1, const work &a,
    const place &p, uint32_t buf, uint32_t xs, uint32_t bars)
{
	constexpr uint32_t PASS = S::BRING / 8, N = S::TILE / PASS;
	constexpr uint32_t SN = (S::TILE + S::BRING - 1) / S::BRING;
	uint32_t tid = threadIdx.x - S::WORK, chunk = tid % 8, r0 = tid / 8;
	uint32_t n = p.s1 - p.s0;
	uint32_t row[N], scale[SN];	/* numbers: registers are few here */
	ring<S::RING> r;

	if (tid == 0)
		for (uint32_t i = 0; i < n && i < S::RING; i++)
			bring_weights<S, GLU>(m0, m1, p, p.s0 + i, buf + i *
			    S::STAGE, bars + i * 16);
	if (a.early)
		launch_wait();
#pragma unroll
	for (uint32_t i = 0; i < N; i++) {
		uint32_t s = p.m0 + min(r0 + i * PASS, p.cnt - 1);

		row[i] = a.slot_row ? a.slot_row[s] : s;
	}
#pragma unroll
	for (uint32_t i = 0; S::FP8 && i < SN; i++) {
		uint32_t s = p.m0 + min(tid + i * S::BRING, p.cnt - 1);

		scale[i] = a.slot_row ? a.slot_row[s] : s;
	}
	for (uint32_t i = 0; i < n; i++, r.next()) {
		uint32_t at = buf + r.s * S::STAGE, full = bars + r.s * 16;
		uint32_t k = (p.s0 + i) * S::K * S::EL + chunk * 16;

		if (r.turn > 0) {
			mbar_wait(full + 8, (r.turn - 1) & 1);
			if (tid == 0)
				bring_weights<S, GLU>(m0, m1, p, p.s0 + i, at,
				    full);
		}
#pragma unroll
		for (uint32_t u = 0; u < S::U; u++) {
			bool there = k + u * 128 < a.x_ld;

#pragma unroll
			for (uint32_t j = 0; j < N; j++) {
				uint32_t to = r0 + j * PASS;

				if (to < p.cnt)
					copy16(at + S::W + u * S::X1 + to *
					    128 + ((chunk ^ to % 8) * 16), a.x +
					    (size_t)row[j] * a.x_ld + (there ?
					    k + u * 128 : 0), there);
			}
		}
#pragma unroll
		for (uint32_t j = 0; S::FP8 && j < SN; j++)
			if (tid + j * S::BRING < S::TILE)
				copy4(x_scales<S>(xs, r) + (tid + j *
				    S::BRING) * 4, a.x_scale + scale[j] +
				    (size_t)(p.s0 + i) * a.x_scale_ld);
		mbar_arrive_copies(full);
	}
}

/* --- multiplying --------------------------------------------------------- */

/* A stage of bf16: one group of products. */
template <class S, int N>
__device__ inline void
multiply(float (&p)[N / 2], float (&q)[N / 2], uint32_t at, uint32_t wg)
{
	wg_fence();
#pragma unroll
	for (uint32_t u = 0; u < S::U; u++) {
		uint32_t w = at + (u * 2 * S::WG + wg) * BOX;
		uint64_t dp = desc128(w), dq = desc128(w + S::WG * BOX);
		uint64_t dx = desc128(at + S::W + u * S::X1);

#pragma unroll
		for (int s = 0; s < 4; s++) {	/* 32 bytes on */
			Wide<N>::bf16(p, dp + 2 * s, dx + 2 * s);
			Wide<N>::bf16(q, dq + 2 * s, dx + 2 * s);
		}
	}
	wg_commit();
}

/* sum += d * the scales of weights and slots, whose scales are at xs. */
template <int N>
__device__ inline void
add_scaled(float (&sum)[N / 2], float (&d)[N / 2], uint32_t xs, float w)
{
	wg_pin(d);
#pragma unroll
	for (int i = 0; i < N / 2; i += 4) {
		float lo = ldsf(xs + i * 8) * w;
		float hi = ldsf(xs + i * 8 + 4) * w;

		sum[i] += d[i] * lo;
		sum[i + 1] += d[i + 1] * hi;
		sum[i + 2] += d[i + 2] * lo;
		sum[i + 3] += d[i + 3] * hi;
	}
}

/* A stage of e4m3: while one's sums are scaled the other is multiplied. */
template <class S, int N>
__device__ inline void
multiply8(float (&p)[N / 2], float (&q)[N / 2], float (&d)[N / 2],
    float (&e)[N / 2], uint32_t at, uint32_t xs, uint32_t wg, float sp,
    float sq)
{
	uint32_t wp = at + wg * BOX, wq = wp + S::WG * BOX, x = at + S::W;

	xs += threadIdx.x % 4 * 8;
	wg_pin(d);
	wg_pin(e);
	wg_fence();
	start8<N>(d, wp, x);
	start8<N>(e, wq, x);
	wg_wait<1>();
	add_scaled<N>(p, d, xs, sp);
	wg_wait<0>();
	add_scaled<N>(q, e, xs, sq);
}

/* Scales of the block's 64-row runs, P and Q of each warpgroup; BY_SLOT: both
 * have the same. */
template <class S, bool GLU>
__device__ inline void
load_scales(const work &a, const place &p, float *sc)
{
	for (uint32_t i = threadIdx.x; i < 2 * S::WG * (p.s1 - p.s0);
	    i += S::WORK) {
		uint32_t s = i / (2 * S::WG), r = i % (2 * S::WG);
		uint32_t q = r % 2, w = r / 2;
		uint32_t n = p.n0 + (GLU ? w * 64 : w * S::DOWN_W + q *
		    S::DOWN_Q);

		sc[r * MAX_SCALES + s] = n < a.n ? a.scale[GLU ? q : 0][
		    p.e * a.expert_floats + (size_t)(n / 128) * a.scale_ld +
		    p.s0 + s] : 0;
	}
	bar_sync(1, S::WORK);
}

/* Of one slot, P's row n and Q's. */
template <class S, bool GLU>
__device__ inline void
store(const work &a, uint32_t slot, uint32_t n, float p, float q)
{
	size_t at = (size_t)slot * a.n + n;

	if (GLU) {
		if (n < a.n)
			a.y16[at] = __float2bfloat16(glu(p, q));
	} else if (a.y16 != NULL) {
		if (n < a.n)
			a.y16[at] = __float2bfloat16(p);
		if (n + S::DOWN_Q < a.n)
			a.y16[at + S::DOWN_Q] = __float2bfloat16(q);
	} else {
		if (n < a.n)
			a.y[at] = p;
		if (n + S::DOWN_Q < a.n)
			a.y[at + S::DOWN_Q] = q;
	}
}

/* Eight columns of a slot as codes: what put_codes makes of them. */
__device__ inline uint2
codes8(uint4 x, float s)
{
	return make_uint2(codes4(make_float4(bf16_lo(x.x), bf16_hi(x.x),
	    bf16_lo(x.y), bf16_hi(x.y)), s), codes4(make_float4(bf16_lo(x.z),
	    bf16_hi(x.z), bf16_lo(x.w), bf16_hi(x.w)), s));
}

__device__ inline float
most8(uint4 x)
{
	uint32_t v[4] = { x.x, x.y, x.z, x.w };
	float m = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		m = fmaxf(m, fmaxf(fabsf(bf16_lo(v[i])), fabsf(bf16_hi(v[i]))));
	return m;
}

/* A tile of 128 columns that stands turned in shared memory, as codes. */
__device__ inline void
store_codes(const work &a, const place &pl, uint32_t buf, uint32_t pitch,
    uint32_t threads)
{
	uint32_t c = threadIdx.x % 16;

	for (uint32_t t = threadIdx.x / 16; t < (pl.cnt + 1) / 2 * 2;
	    t += threads / 16) {	/* whole warps */
		uint4 x = lds128(buf + t * pitch + c * 16);
		uint32_t at = pl.m0 + t;
		float m = most8(x), s;

		for (int o = 8; o > 0; o >>= 1)
			m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
		s = code_scale(m, a.y8.pow2);
		if (t >= pl.cnt)
			continue;
		*(uint2 *)(a.y8.code + (size_t)at * a.n + pl.n0 + c * 8) =
		    codes8(x, s);
		if (c == 0)
			a.y8.scale[(size_t)(pl.n0 / 128) * a.m4 + at] = s;
	}
}

/* From where it stands in shared memory, a row a slot, when all have written
 * there: whole lines a warp. */
template <class S, bool GLU>
__device__ inline void
write_turned(const work &a, const place &pl, uint32_t buf)
{
	constexpr uint32_t COLS = S::WG * (GLU ? 64 : 128);
	constexpr uint32_t PITCH = COLS * 2 + 16;

	bar_sync(1, S::WORK);
	if (GLU && a.y8.code != NULL) {
		store_codes(a, pl, buf, PITCH, S::WORK);
		return;
	}
	for (uint32_t i = threadIdx.x; i < pl.cnt * (COLS / 8); i += S::WORK) {
		uint32_t t = i / (COLS / 8), c = i % (COLS / 8) * 8;

		if (pl.n0 + c < a.n)
			*(uint4 *)(a.y16 + (size_t)(pl.m0 + t) * a.n +
			    pl.n0 + c) = lds128(buf + t * PITCH + c * 2);
	}
}

/*
 * bf16 of many slots: turned in shared memory, where the stages were, so
 * that a slot's columns leave 16 bytes a thread and whole lines a warp. Both
 * warpgroups.
 */
template <class S, bool GLU, int N>
__device__ inline void
store_turned(const work &a, const place &pl, uint32_t buf,
    const float (&p)[N / 2], const float (&q)[N / 2])
{
	constexpr uint32_t COLS = S::WG * (GLU ? 64 : 128);
	constexpr uint32_t PITCH = COLS * 2 + 16;
	static_assert(S::TILE * PITCH <= S::BUF, "the tile has room");
	uint32_t lane = threadIdx.x % 32, wg = threadIdx.x / 128;
	uint32_t at = buf + (lane / 16 * 8 + lane % 8) * PITCH + (wg * (GLU ?
	    64 : S::DOWN_W) + threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8) *
	    2;

	bar_sync(1, S::WORK);	/* nobody multiplies any more */
#pragma unroll
	for (int i = 0; i < N / 2; i += 8) {
		uint32_t r[4], to = at + i / 4 * 8 * PITCH;

#pragma unroll
		for (int j = 0; j < 4; j++) {
			int k = i + 2 * j;

			r[j] = GLU ? pack_bf16(glu(p[k], q[k]), glu(p[k + 1],
			    q[k + 1])) : pack_bf16(p[k], p[k + 1]);
		}
		stmatrix4_t(to, r[0], r[1], r[2], r[3]);
		if constexpr (!GLU) {
#pragma unroll
			for (int j = 0; j < 4; j++)
				r[j] = pack_bf16(q[i + 2 * j], q[i + 2 * j +
				    1]);
			stmatrix4_t(to + S::DOWN_Q * 2, r[0], r[1], r[2],
			    r[3]);
		}
	}
	write_turned<S, GLU>(a, pl, buf);
}

template <class S, bool GLU, int N>
__device__ inline void
compute(const work &a, const place &pl, uint32_t buf, uint32_t xs,
    uint32_t bars, float *sc)
{
	float p[N / 2], q[N / 2];
	float d[S::FP8 ? N / 2 : 1] = {}, e[S::FP8 ? N / 2 : 1] = {};
	uint32_t wg = threadIdx.x / 128, n = pl.s1 - pl.s0;
	bool one = threadIdx.x % 32 == 0;
	ring<S::RING> r;

#pragma unroll
	for (int i = 0; i < N / 2; i++)
		p[i] = q[i] = 0;
	for (uint32_t i = 0; i < n; i++, r.next()) {
		uint32_t full = bars + r.s * 16, at = buf + r.s * S::STAGE;

		mbar_wait(full, r.turn & 1);
		fence_async();		/* x came by ordinary copies */
		if constexpr (S::FP8) {
			multiply8<S, N>(p, q, d, e, at, x_scales<S>(xs, r), wg,
			    sc[2 * wg * MAX_SCALES + i],
			    sc[(2 * wg + 1) * MAX_SCALES + i]);
			__syncwarp();
			if (one)
				mbar_arrive(full + 8);
		} else {
			multiply<S, N>(p, q, at, wg);
			wg_wait<1>();
			if (i > 0 && one)	/* the stage before */
				mbar_arrive(bars + (r.s == 0 ? S::RING - 1 :
				    r.s - 1) * 16 + 8);
		}
	}
	wg_wait<0>();
	wg_pin(p);
	wg_pin(q);
	if (S::WG > 1 && a.turn) {
		store_turned<S, GLU, N>(a, pl, buf, p, q);
		return;
	}
	each_unit<N, S::WG == 1>(p, q, buf, a.split, [&](uint32_t t,
	    uint32_t row, float4 v) {
		uint32_t to = pl.n0 + wg * (GLU ? 64 : S::DOWN_W) + row;

		if (t < pl.cnt)
			store<S, GLU>(a, pl.m0 + t, to, v.x, v.z);
		if (t + 1 < pl.cnt)
			store<S, GLU>(a, pl.m0 + t + 1, to, v.y, v.w);
	});
}

/* sum += d, of which a thread has two slots. */
__device__ inline void
add_scaled2(float (&sum)[64], float (&d)[64], float lo, float hi)
{
	wg_pin(d);
#pragma unroll
	for (int i = 0; i < 64; i += 4) {
		sum[i] += d[i] * lo;
		sum[i + 1] += d[i + 1] * lo;
		sum[i + 2] += d[i + 2] * hi;
		sum[i + 3] += d[i + 3] * hi;
	}
}

/* Four 8x8 tiles, lane l names the row l%8 of tile l/8. */
__device__ inline void
stmatrix4(uint32_t a, const uint32_t (&r)[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], "
	    "{%1, %2, %3, %4};" :: "r"(a), "r"(r[0]), "r"(r[1]), "r"(r[2]),
	    "r"(r[3]) : "memory");
}

/* Two adjacent columns of a slot, where rows are no multiple of 16 bytes. */
__device__ inline void
store2(const work &a, uint32_t slot, uint32_t n, float x, float y)
{
	size_t at = (size_t)slot * a.n + n;

	if (a.y16 != NULL) {
		if (n < a.n)
			a.y16[at] = __float2bfloat16(x);
		if (n + 1 < a.n)
			a.y16[at + 1] = __float2bfloat16(y);
	} else {
		if (n < a.n)
			a.y[at] = x;
		if (n + 1 < a.n)
			a.y[at + 1] = y;
	}
}

/* A warp's sums as bf16 to shared memory, or each to where it belongs. */
template <bool GLU>
__device__ inline void
put_slots(const work &a, const place &pl, uint32_t buf, float (&p)[64],
    const float (&q)[64])
{
	constexpr uint32_t PITCH = (GLU ? 128 : 256) * 2 + 16;
	uint32_t lane = threadIdx.x % 32, t = threadIdx.x / 32 * 16;
	uint32_t to = buf + (t + lane % 16) * PITCH + lane / 16 * 16;

#pragma unroll
	for (uint32_t i = 0; GLU && i < 64; i++)
		p[i] = glu(p[i], q[i]);
#pragma unroll
	for (uint32_t m = 0; m < (GLU ? 1 : 2); m++)
#pragma unroll
		for (uint32_t i = 0; i < 64; i += 8) {
			const float *v = (m ? q : p) + i;
			uint32_t r[4], n = pl.n0 + m * 128 + i * 2;
			uint32_t slot = t + lane / 4;

			if (a.turn) {
				for (uint32_t j = 0; j < 4; j++)
					r[j] = pack_bf16(v[2 * j],
					    v[2 * j + 1]);
				stmatrix4(to + m * 256 + i * 4, r);
				continue;
			}
			for (uint32_t j = 0; j < 4; j++)
				if (slot + j % 2 * 8 < pl.cnt)
					store2(a, pl.m0 + slot + j % 2 * 8, n +
					    j / 2 * 8 + lane % 4 * 2,
					    v[2 * j], v[2 * j + 1]);
		}
}

/*
 * BY_SLOT: a warpgroup has 64 slots and 128 rows of gate and of up, or 2 * 128
 * of down. Thread's sums: slots lane / 4 and 8 on, of every eight columns two.
 */
template <class S, bool GLU>
__device__ inline void
compute_slots(const work &a, const place &pl, uint32_t buf, uint32_t xs,
    uint32_t bars, float *sc)
{
	uint32_t lane = threadIdx.x % 32, n = pl.s1 - pl.s0;
	uint32_t t = threadIdx.x / 32 * 16 + lane / 4;	/* its first slot */
	bool mine = threadIdx.x / 128 * 64 < pl.cnt;
	float p[64], q[64], d[64] = {};
	ring<S::RING> r;

#pragma unroll
	for (int i = 0; i < 64; i++)
		p[i] = q[i] = 0;
	for (uint32_t i = 0; i < n; i++, r.next()) {
		uint32_t full = bars + r.s * 16, at = buf + r.s * S::STAGE;
		uint32_t x = at + S::W + threadIdx.x / 128 * 64 * 128;
		uint32_t scales = x_scales<S>(xs, r) + t * 4;

		mbar_wait(full, r.turn & 1);
		fence_async();		/* x came by ordinary copies */
		if (mine) {
			float lo, hi, w;

			wg_pin(d);
			wg_fence();
			start8<128>(d, x, at);
			lo = ldsf(scales);
			hi = ldsf(scales + 32);
			w = sc[i];
			wg_wait<0>();
			add_scaled2(p, d, lo * w, hi * w);
			wg_pin(d);
			wg_fence();
			start8<128>(d, x, at + S::WG * BOX);
			w = sc[MAX_SCALES + i];
			wg_wait<0>();
			add_scaled2(q, d, lo * w, hi * w);
		}
		__syncwarp();
		if (lane == 0)
			mbar_arrive(full + 8);
	}
	bar_sync(1, S::WORK);	/* nobody multiplies any more */
	if (t / 16 * 16 < pl.cnt)	/* a warp has 16 slots */
		put_slots<GLU>(a, pl, buf, p, q);
	if (a.turn)
		write_turned<S, GLU>(a, pl, buf);
}

template <class S, bool GLU>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
expert_kernel(const __grid_constant__ CUtensorMap m0,
    const __grid_constant__ CUtensorMap m1, const __grid_constant__ work a)
{
	extern __shared__ uint8_t raw[];
	uint32_t buf = (smem_addr(raw) + 1023) & ~1023u;
	float *sc = (float *)(raw + (buf - smem_addr(raw)) + S::BUF);
	uint32_t xs = buf + S::BUF + S::SCALES, bars = xs + S::XSCALES;
	place p;

	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < S::RING; i++) {
			mbar_init(bars + i * 16, S::BRING + 1);
			mbar_init(bars + i * 16 + 8, S::WORK / 32);
		}
		fence_async();
		mbar_publish();
	}
	if (!a.early)
		launch_wait();
	launch_next();
	if (!find<S, GLU>(a, p)) {
		if (a.early)
			launch_wait();
		return;
	}
	__syncthreads();
	if (threadIdx.x >= S::WORK) {
		if (S::WG > 1)
			asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		bring<S, GLU>(&m0, &m1, a, p, buf, xs, bars);
		if (a.split > 1)
			cluster_sync();
	} else {
		if (S::WG > 1)
			asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
		if (S::FP8)	/* as old as the weights */
			load_scales<S, GLU>(a, p, sc);
		if (a.early)
			launch_wait();
		if (S::TILE == 16 || p.cnt <= 16)
			compute<S, GLU, 16>(a, p, buf, xs, bars, sc);
		else if (S::TILE > 16 && p.cnt <= S::TILE / 2)
			compute<S, GLU, S::TILE == 16 ? 16 :
			    S::TILE / 2>(a, p, buf, xs, bars, sc);
		else if constexpr (S::BY_SLOT)
			compute_slots<S, GLU>(a, p, buf, xs, bars, sc);
		else
			compute<S, GLU, S::TILE>(a, p, buf, xs, bars, sc);
	}
	if (a.split > 1)	/* others read this block's shared memory */
		cluster_sync();
}

/* --- launching ----------------------------------------------------------- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t,
    void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_fn encode;	/* the driver's; set by experts_init */

int
make_map(CUtensorMap *map, const struct dcpg_experts *g, const void *w)
{
	return tensor_map(map, w, g->fp8, g->k, g->n, g->experts, g->fp8 ?
	    dcpk_fp8_bytes(g->n, g->k) : (uint64_t)g->n * g->k * 2, 64);
}

/* Blocks to be had of the experts that meet `rows` rows: at most. */
uint32_t
tiles_of(const struct dcpg_experts *g, uint32_t tile)
{
	return dcpg_expert_tiles(g->rows, g->each, g->experts, tile);
}

const float *
scales_of(const struct dcpg_experts *g, const void *w)
{
	return (const float *)((const uint8_t *)w + (size_t)g->n * g->k);
}

/* Enough blocks for every SM. */
uint32_t
split_of(uint32_t blocks)
{
	uint32_t s = 1;

	while (s < 4 && blocks * s * 2 <= 136)
		s *= 2;
	return s;
}

template <class S, bool GLU>
int
launch(const struct dcpg_experts *g, cudaStream_t st)
{
	constexpr uint32_t rows = S::WG * (GLU ? 64 : 128);
	CUtensorMap m[2];
	work a = {};

	if (make_map(&m[0], g, g->w) != 0 ||
	    make_map(&m[1], g, GLU ? g->w2 : g->w) != 0)
		return -EIO;
	a.x = (const uint8_t *)g->x;
	a.slot_row = g->slot_row;
	a.tile_e = g->tile_e;
	a.tile0 = g->tile0;
	a.first = g->first;
	a.E = g->experts;
	a.n = g->n;
	a.k = g->k;
	a.x_ld = g->k * S::EL;
	a.x_scale = g->x_scale;
	a.x_scale_ld = g->x_scale_ld;
	a.scale_ld = dcpk_fp8_scale_ld(g->k);
	a.expert_floats = dcpk_fp8_bytes(g->n, g->k) / 4;
	a.scale[0] = scales_of(g, g->w);
	a.scale[1] = GLU ? scales_of(g, g->w2) : NULL;
	a.y16 = (__nv_bfloat16 *)g->y16;
	a.y = g->y;
	a.turn = a.y16 != NULL && a.n % 8 == 0 && (uintptr_t)a.y16 %
	    16 == 0;
	if (g->y8.code != NULL) {
		if (!GLU || S::WG != 2 || g->n % 128 != 0)
			return -EINVAL;
		a.y8 = g->y8;
		a.m4 = dcpg_rows4(g->rows * g->each);
		a.turn = true;
	}
	a.n_tiles = (g->n + rows - 1) / rows;
	a.early = g->early;
	a.split = S::WG > 1 ? 1 : g->split;
	if (a.split == 0)
		a.split = split_of(tiles_of(g, S::TILE) * a.n_tiles);
	while (a.split > (g->k + 127) / 128)
		a.split /= 2;
	return launch_clusters(expert_kernel<S, GLU>, dim3(tiles_of(g,
	    S::TILE) * a.n_tiles * a.split), S::THREADS, S::SHARED, a.split,
	    st, m[0], m[1], a) == cudaSuccess ? 0 : -EIO;
}

struct entry {
	uint32_t tile;
	int (*init)(void);
	int (*run)(const struct dcpg_experts *, cudaStream_t);
};

template <class S>
int
shape_init(void)
{
	cudaError_t e = cudaFuncSetAttribute(expert_kernel<S, true>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);

	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(expert_kernel<S, false>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
	return e == cudaSuccess ? 0 : -EIO;
}

template <class S>
int
shape_run(const struct dcpg_experts *g, cudaStream_t st)
{
	return g->w2 != NULL ? launch<S, true>(g, st) :
	    launch<S, false>(g, st);
}

template <class S>
constexpr entry
shape(void)
{
	static_assert(S::K <= 128, "a split begins at 128 columns");
	return { S::TILE, shape_init<S>, shape_run<S> };
}

/* TILE, WG, U, RING, BLOCKS. Two blocks an SM, no more: with room for three,
 * some SMs get three and others one. The fourth and the last are for e4m3 down,
 * where columns are few. */
const entry shapes[][2] = {
	{ shape<Shape<16, 1, 2, 3, 2, false>>(),
	    shape<Shape<16, 1, 1, 5, 2, true>>() },
	{ shape<Shape<64, 1, 1, 4, 2, false>>(),
	    shape<Shape<64, 1, 1, 4, 2, true>>() },
	{ shape<Shape<128, 2, 1, 4, 1, false>>(),
	    shape<Shape<128, 2, 1, 4, 1, true>>() },
	{ shape<Shape<16, 1, 1, 4, 3, false>>(),
	    shape<Shape<16, 1, 1, 3, 3, true>>() },
	{ shape<Shape<32, 1, 1, 5, 2, false>>(),
	    shape<Shape<32, 1, 1, 5, 2, true>>() },
	{ shape<Shape<32, 1, 1, 3, 3, false>>(),
	    shape<Shape<32, 1, 1, 3, 3, true>>() },
};
constexpr uint32_t SHAPES = sizeof shapes / sizeof shapes[0];

uint32_t
choose(uint32_t rows, uint32_t each, uint32_t experts)
{
	if (rows <= 16)
		return 0;
	if (rows <= 32 || (rows <= 64 && rows * each <= 8 * experts))
		return 4;
	return (uint64_t)rows * each <= 32ull * experts || rows <= 64 ? 1 : 2;
}

}	/* namespace */

int
tensor_map(CUtensorMap *map, const void *p, bool bytes, uint64_t cols,
    uint64_t rows, uint64_t count, uint64_t each, uint32_t box_rows)
{
	uint64_t el = bytes ? 1 : 2;
	cuuint64_t dim[3] = { cols, rows, count };
	cuuint64_t step[2] = { cols * el, each };
	cuuint32_t box[3] = { (cuuint32_t)(128 / el), box_rows, 1 };
	cuuint32_t one[3] = { 1, 1, 1 };

	return encode(map, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 :
	    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p, dim, step, box,
	    one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
	    CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS ? 0 : -EIO;
}

int
experts_init(void)
{
	cudaDriverEntryPointQueryResult r;
	void *f = NULL;
	int rc = 0;

	if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f,
	    12000, cudaEnableDefault, &r) != cudaSuccess || f == NULL)
		return -EIO;
	encode = (encode_fn)f;
	for (uint32_t i = 0; i < SHAPES && rc == 0; i++)
		for (int q = 0; q < 2 && rc == 0; q++)
			rc = shapes[i][q].init();
	return rc;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" uint32_t
dcpg_expert_tile(uint32_t rows, uint32_t each, uint32_t experts, uint32_t shape)
{
	if (shape > SHAPES)
		return 0;
	return shapes[shape ? shape - 1 : choose(rows, each, experts)][0].tile;
}

extern "C" uint32_t
dcpg_expert_tiles(uint32_t rows, uint32_t each, uint32_t experts,
    uint32_t tile)
{
	uint32_t slots = rows * each, one = slots < experts ? slots : experts;

	/* an expert meets a row once: one tile each while rows fit in it */
	return rows <= tile ? one : slots / tile + one;
}

extern "C" bool
dcpg_experts_fit(uint32_t n, uint32_t k, bool fp8)
{
	return n != 0 && k != 0 && (fp8 ? k % 128 == 0 && n % 16 == 0 &&
	    k / 128 <= MAX_SCALES : k % 8 == 0);
}

extern "C" int
dcpg_experts(const struct dcpg_experts *g, void *stream)
{
	uint32_t i = g->shape ? g->shape - 1 : choose(g->rows, g->each,
	    g->experts);

	if (g->shape == 0 && g->fp8 && g->w2 == NULL && (i == 0 || i == 4))
		i = i == 0 ? 3 : 5;
	if (i >= SHAPES || g->rows == 0 || (g->y != NULL) + (g->y16 != NULL) +
	    (g->y8.code != NULL) != 1 || (g->w2 != NULL && g->y != NULL) ||
	    (g->int4 && g->y8.code != NULL) || g->split > 8)
		return -EINVAL;
	if (g->int4)
		return experts4_run(g, (cudaStream_t)stream);
	if (!dcpg_experts_fit(g->n, g->k, g->fp8) ||
	    g->fp8 != (g->x_scale != NULL))
		return -EINVAL;
	return shapes[i][g->fp8].run(g, (cudaStream_t)stream);
}
