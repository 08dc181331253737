/*
 * Sparse decode attention, one block: from a part of a key list to the sums of
 * all its heads, o = sum p v, l = sum p, m the running maximum. attend.cu tells
 * what the blocks are for, attend_out.cuh what becomes of the sums.
 *
 * Four warps gather: 64 rows a stage, stages ahead (attend_gather.cuh). W
 * warpgroups compute, W stages at a time: each scores one stage against all NH
 * heads and puts its p into shared memory, and each sums its 512/W output
 * dimensions over the keys of all W stages, of each as soon as its p is there.
 * In some shapes others score than sum (attend_roles.cuh).
 *
 * Operands are swapped: keys and latent dimensions are the long side (M = 64)
 * of the warpgroup product, heads the short one (N = 8..64), so few heads cost
 * no padding. The long side comes from registers, which is where fp8 becomes
 * f16; a key's bytes are read from shared memory once for S = K q and once for
 * O = V^T p, and never written back.
 *
 * Numbers. e4m3 is exact in f16, and so is bf16 q once a power of two per head
 * has moved it into f16's range; the scales of the four tiles of a row are
 * applied to the f32 sums. For the values they go into f16, divided by C, a
 * power of two not below any scale seen so far. p is f16. So products see 11
 * significant bits where a bf16 dequantisation would see 8. The rope part, and
 * all of bf16 rows, are multiplied as bf16. The running maxima move only when a
 * score passes its head's by 2^8, or a scale passes C.
 */
#ifndef DCPG_ATTEND_CUH
#define DCPG_ATTEND_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/attend_gather.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

/*
 * 16 latent dimensions (x, y) of a head and 8 of its rope (z), times a power of
 * two that brings the head's largest latent to 2^7..2^8, which bf16 holds
 * exactly; returns its inverse, 0 for one of 2^127. Latents become f16 in the
 * order 0 1 4 5 8 9 12 13, 2 3 6 7 10 11 14 15: then the four bytes that a
 * thread reads from a row at 4c are just the elements k = 2c, 2c+1, 2c+8, 2c+9
 * of its operand.
 */
__device__ inline float
q_to_f16(uint4 &x, uint4 &y, uint4 &z)
{
	uint32_t w[8] = { x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w };
	uint32_t m = 0, e, f = 127, k;

#pragma unroll
	for (int i = 0; i < 8; i += 2)
		m = __vimax3_u16x2(m, w[i] & 0x7fff7fff, w[i + 1] & 0x7fff7fff);
	e = __reduce_max_sync(~0u, max(m >> 16, m & 0xffff)) >> 7;
	if (e > 0 && e < 255)
		f = min(max(261 - (int)e, 1), 254);
	k = f << 23 | f << 7;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		w[i] = mul_bf16x2(w[i], k);
		w[i] = pack_f16(bf16_lo(w[i]), bf16_hi(w[i]));
	}
	x = make_uint4(w[0], w[2], w[4], w[6]);
	y = make_uint4(w[1], w[3], w[5], w[7]);
	z.x = mul_bf16x2(z.x, k);
	z.y = mul_bf16x2(z.y, k);
	z.z = mul_bf16x2(z.z, k);
	z.w = mul_bf16x2(z.w, k);
	return __uint_as_float((254 - f) << 23);
}

/* A lane's share of a head's q from `at` on: word by word past the L1, where it
 * comes from another rank while this kernel runs. */
__device__ inline void
await_q(const Args &a, const uint4 *at, uint32_t head, uint4 &x, uint4 &y,
    uint4 &z)
{
	uint32_t lane = threadIdx.x % 32;
	uint64_t t0 = 0;

	while (has_ones(x) || has_ones(y) || has_ones(z)) {
		if (!peer_patience(a.peer, a.first + (head >> a.part_lg), t0))
			return;
		x = look_at_words(at + 2 * lane);
		y = look_at_words(at + 2 * lane + 1);
		z = look_at_words(at + 64 + lane % 8);
	}
}

/* q of the block's heads into 9 blocks of 64 dimensions, [heads][128 bytes],
 * swizzled; a warp takes a head at a time. fs[h] becomes the factor from the
 * product to log2 units. What another rank sends is in this GPU's L2 when it is
 * there, so the first look need not be as strong as await_q()'s. */
template <class S>
__device__ inline void
load_q(const Args &a, const uint8_t *q, uint8_t *smem)
{
	constexpr int WARPS = S::computing / 32;
	constexpr int PER = (S::nh + WARPS - 1) / WARPS;
	constexpr int AT_ONCE = PER < 4 ? PER : 4;	/* loads in flight */
	uint32_t lane = threadIdx.x % 32, base = smem_addr(smem) + S::q_off;
	uint32_t c = lane % 4 * 2, warp = threadIdx.x / 32;
	float *fs = (float *)(smem + S::fs_off);

#pragma unroll 1
	for (int i0 = 0; i0 < PER; i0 += AT_ONCE) {
		uint4 x[AT_ONCE], y[AT_ONCE], z[AT_ONCE];

#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			uint32_t h = (i0 + i) * WARPS + warp;
			const uint4 *src = (const uint4 *)(q +
			    (size_t)min(h, S::nh - 1) * 1152);

			x[i] = __ldcg(src + 2 * lane);
			y[i] = __ldcg(src + 2 * lane + 1);
			z[i] = __ldcg(src + 64 + lane % 8);
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			uint32_t h = (i0 + i) * WARPS + warp, sw = h % 8;
			uint32_t dst = base + lane / 4 * S::nh * 128 + h * 128;
			float k = 1.0f;

			if (h >= S::nh)
				break;
			if (a.q_ones) {
				await_q(a, (const uint4 *)(q + (size_t)h *
				    1152), blockIdx.y * S::nh + h, x[i], y[i],
				    z[i]);
				__syncwarp();
			}
			if (!S::bf16)
				k = q_to_f16(x[i], y[i], z[i]);
			sts128(dst + ((c ^ sw) << 4), x[i]);
			sts128(dst + (((c + 1) ^ sw) << 4), y[i]);
			if (lane < 8)
				sts128(base + 8 * S::nh * 128 + h * 128 +
				    ((lane ^ sw) << 4), z[i]);
			if (lane == 0)
				fs[h] = a.scale_log2 * k;
		}
	}
}

/* What a computing thread knows of its place. Fragment rows are g and g + 8
 * of the warp's 16, columns 2c and 2c + 1 of every 8. */
struct Place {
	uint32_t wg, w, lane, g, c;
};

/* Barriers: 0 is the block's, Q the computing warps', L to OUT also those of
 * the warps that gathered, ML theirs alone. VOTE + wg is a scoring warpgroup's
 * own, NEXT + wg where it waits for the one that scored the stage before. */
enum { BAR_Q = 1, BAR_L, BAR_SUMS, BAR_ML, BAR_WEIGHTS, BAR_OUT, BAR_VOTE,
    BAR_NEXT = BAR_VOTE + MAX_WGS, BAR_END = BAR_NEXT + MAX_WGS };
static_assert(BAR_END <= 16, "named barriers of a block");

/* Head of a thread's column j (0 .. NH/4 - 1) and its first accumulator; the
 * one of row g + 8 stands 2 further. */
__device__ inline uint32_t
col_head(int j, uint32_t c)
{
	return j / 2 * 8 + 2 * c + j % 2;
}

__device__ inline constexpr int
col_acc(int j)
{
	return j / 2 * 4 + j % 2;
}

/* Keys of a stage as A operand, 16 dimensions at byte `off` of the row; one
 * ldmatrix, for 16-bit elements. */
template <class S>
__device__ inline void
keys16(uint32_t *r, uint32_t st, const Place &p, uint32_t off)
{
	uint32_t row = 16 * p.w + p.lane % 16;

	ldmatrix4(st + row * S::pitch + off + p.lane / 16 * 16,
	    r[0], r[1], r[2], r[3]);
}

/* The same from e4m3, in two steps, so that a load is under way while the one
 * before it is converted: x[2] holds a thread's bytes of its two rows. */
template <class S>
__device__ inline void
fetch8(uint32_t *x, uint32_t st, const Place &p, uint32_t off)
{
	uint32_t at = st + (16 * p.w + p.g) * S::pitch + off + 4 * p.c;

	x[0] = lds32(at);
	x[1] = lds32(at + 8 * S::pitch);
}

__device__ inline void
keys8(uint32_t *r, const uint32_t *x)
{
	r[0] = e4m3x2_f16x2(x[0]);
	r[1] = e4m3x2_f16x2(x[1]);
	r[2] = e4m3x2_f16x2_hi(x[0]);
	r[3] = e4m3x2_f16x2_hi(x[1]);
}

/* n 32-bit words at a. */
template <int N>
__device__ inline void
lds(uint32_t (&v)[N], uint32_t a)
{
	static_assert(N == 1 || N == 2 || N == 4, "widths of a load");
	if (N == 1) {
		v[0] = lds32(a);
	} else if (N == 2) {
		uint2 x = lds64(a);

		v[0] = x.x;
		v[N - 1] = x.y;
	} else {
		uint4 x = lds128(a);

		v[0] = x.x;
		v[1 % N] = x.y;
		v[2 % N] = x.z;
		v[3 % N] = x.w;
	}
}

/*
 * Values as A operand: 16 keys, the 128/W dimensions that this warp owns, as
 * 8/W tiles. A thread's dimensions are neighbours: tile i holds the (2i)th as
 * its row g and the (2i+1)th as row g + 8, so its outputs are neighbours too.
 * Again in two steps: what a thread reads of keys k, k + 1 and k + 8, k + 9,
 * k = 2c, and of their scales / C; then the operand.
 */
template <class S>
struct Raw {
	static constexpr int n = S::bf16 ? S::tiles : S::tiles / 2;
	uint32_t x[2][n], y[2][n], scale[2];
};

/* st: the stage; key: the first of the 16; tab: f16 [4][64], scales / C. */
template <class S>
__device__ inline void
fetch_values(Raw<S> &v, uint32_t st, const Place &p, int key, uint32_t tab)
{
	constexpr int T = S::tiles;
	uint32_t k = key + 2 * p.c;
	uint32_t d = 64 * T * p.wg + 16 * T * p.w + 2 * T * p.g;

#pragma unroll
	for (int u = 0; u < 2; u++) {
		uint32_t at = st + (k + 8 * u) * S::pitch +
		    (S::bf16 ? 2 * d : d);

		lds<Raw<S>::n>(v.x[u], at);
		lds<Raw<S>::n>(v.y[u], at + S::pitch);
		if (!S::bf16)
			v.scale[u] = lds32(tab + (d / 128 * KEYS + k + 8 * u) *
			    2);
	}
}

/* S::together tiles, from i0 on. */
template <class S>
__device__ inline void
values(uint32_t *r, const Raw<S> &v, int i0)
{
	constexpr int N = Raw<S>::n;

#pragma unroll
	for (int u = 0; u < 2; u++)
#pragma unroll
		for (int i = i0; i < i0 + S::together; i++) {
			uint32_t &r0 = r[4 * (i - i0) + 2 * u], &r1 = (&r0)[1];
			uint32_t w;

			if (S::bf16) {
				r0 = __byte_perm(v.x[u][i % N], v.y[u][i % N],
				    0x5410);
				r1 = __byte_perm(v.x[u][i % N], v.y[u][i % N],
				    0x7632);
				continue;
			}
			w = __byte_perm(v.x[u][i / 2 % N], v.y[u][i / 2 % N],
			    i % 2 ? 0x7362 : 0x5140);
			r0 = mul_f16x2(e4m3x2_f16x2(w), v.scale[u]);
			r1 = mul_f16x2(e4m3x2_f16x2_hi(w), v.scale[u]);
		}
}

/* The accumulators of a thread. */
template <class S>
struct Acc {
	float o[S::tiles][S::nh / 2];	/* see values() */
	float l[S::nh / 4];	/* sums of p over the keys that it weighed */
	uint32_t seen;		/* stages whose maxima l is in units of */
};

/* Exponent of a power of two not below any scale of the stage's rows. */
template <class S>
__device__ inline uint32_t
scale_exp(uint32_t st, uint32_t lane, uint32_t filled)
{
	uint32_t m = 0;

#pragma unroll
	for (uint32_t u = 0; u < 2; u++)
		if (lane + 32 * u < filled) {
			uint4 s = lds128(st + (lane + 32 * u) * S::pitch + 512);

			m = max(m, max(max(s.x, s.y), max(s.z, s.w)));
		}
	m = __reduce_max_sync(~0u, m) & 0x7fffffff;
	return min(max((m + 0x7fffff) >> 23, 32u), 220u);
}

/* Multiply rows g and g + 8 of the scores. */
template <int N>
__device__ inline void
scale_rows(float (&s)[N], float k0, float k1)
{
#pragma unroll
	for (int j = 0; j < N; j++)
		s[j] *= j % 4 < 2 ? k0 : k1;
}

/*
 * Loops over stages, and for few heads those over tiles, are not unrolled
 * beyond what the registers need: a layer runs the kernel once, so that its
 * instructions come from the L2 or from memory, line by line.
 */

/* A batch of S::qb steps of 16 dimensions, of which the first is k: d += K q^T.
 * qd: of the step 0. */
template <class S, int N, bool BF16>
__device__ inline void
multiply(float (&d)[N / 2], uint32_t *x, uint32_t qd, int k, bool keep)
{
	wg_ready<4 * S::qb>(x);
	wg_fence();
#pragma unroll
	for (int i = 0; i < S::qb; i++)
		Mma<N, BF16>::run(d, x + 4 * i, desc128_at(qd, (k + i) / 4 *
		    S::nh * 128 + (k + i) % 4 * 32), keep || i > 0);
	wg_commit();
}

/* The scales of tile t of rows g and g + 8. */
template <class S>
__device__ inline void
tile_scales(float (&k)[2], const Place &p, uint32_t st, int t)
{
	uint32_t at = st + (16 * p.w + p.g) * S::pitch + 512 + 4 * t;

	k[0] = ldsf(at);
	k[1] = ldsf(at + 8 * S::pitch);
}

/* Steps k .. of rope, bf16, as operand. */
template <class S>
__device__ inline void
rope_keys(uint32_t *x, uint32_t st, const Place &p, int k)
{
#pragma unroll
	for (int i = 0; i < S::qb; i++)
		keys16<S>(x + 4 * i, st, p, 528 + 32 * (k + i));
}

/* The next batch of e4m3 as operand; the one after it, at byte `off`, is on
 * its way then. (The last one reads what stands behind the tiles.) */
template <class S>
__device__ inline void
next_keys(uint32_t *x, uint32_t *raw, uint32_t st, const Place &p,
    uint32_t off)
{
#pragma unroll
	for (int i = 0; i < S::qb; i++)
		keys8(x + 4 * i, raw + 2 * i);
#pragma unroll
	for (int i = 0; i < S::qb; i++)
		fetch8<S>(raw + 2 * i, st, p, off + 16 * i);
}

/* s += sum of a tile times its rows' scales. */
template <int N>
__device__ inline void
add_scaled(float (&s)[N], float (&sum)[N], const float (&k)[2])
{
	wg_pin(sum);
#pragma unroll
	for (int j = 0; j < N; j++)
		s[j] = fmaf(sum[j], k[j % 4 / 2], s[j]);
}

/*
 * s[64 keys][NH] = K q^T of one stage of fp8 rows. Each tile has a sum of its
 * own, which is scaled and added while the next is multiplied; two take turns.
 */
template <class S>
__device__ inline void
score_tiles(float (&s)[S::nh / 2], const Place &p, uint32_t st, uint32_t q)
{
	constexpr int B = S::qb, PER = 8 / B;	/* batches of a tile */
	uint32_t r[2][4 * B], raw[2 * B], qd = desc128_base(q);
	float sc[2], sum[2][S::nh / 2];

#pragma unroll
	for (int i = 0; i < B; i++)
		fetch8<S>(raw + 2 * i, st, p, 16 * i);
	next_keys<S>(r[0], raw, st, p, 16 * B);
#pragma unroll
	for (int j = 0; j < S::nh / 2; j++)
		s[j] = 0.0f;
#pragma unroll 1
	for (int t = 0; t < 4; t += 2)
#pragma unroll
		for (int b = 0; b < 2 * PER; b++) {
			int h = b / PER;	/* tile t + h */

			if (b % PER == 0 && t + h > 0)
				tile_scales<S>(sc, p, st, t + h - 1);
			multiply<S, S::nh, false>(sum[h], r[b % 2],
			    qd + t * (2 * S::nh * 8), b * B, b % PER > 0);
			wg_wait<1>();
			if (b % PER == 0 && t + h > 0)
				add_scaled(s, sum[1 - h], sc);
			next_keys<S>(r[(b + 1) % 2], raw, st, p, 128 * t +
			    16 * (b + 2) * B);
			if (b == 2 * PER - 1)
				wg_wait<0>();
		}
	tile_scales<S>(sc, p, st, 3);
#pragma unroll
	for (int b = 0; b < 4 / B; b++) {
		rope_keys<S>(r[b % 2], st, p, b * B);
		multiply<S, S::nh, true>(sum[0], r[b % 2], qd, 32 + b * B,
		    b > 0);
		wg_wait<1>();
		if (b == 0)
			add_scaled(s, sum[1], sc);
	}
	wg_wait<0>();
	wg_pin(sum[0]);
#pragma unroll
	for (int j = 0; j < S::nh / 2; j++)
		s[j] += sum[0][j];
}

/* The least that a scale of rows g and g + 8 is taken for. */
template <class S>
__device__ inline void
least_scales(float (&k)[2], const Place &p, uint32_t st)
{
#pragma unroll
	for (int u = 0; u < 2; u++) {
		uint4 x = lds128(st + (16 * p.w + p.g + 8 * u) * S::pitch +
		    512);

		k[u] = fmaxf(1e-30f, 0x1p-30f * __uint_as_float(max(
		    max(x.x, x.y), max(x.z, x.w))));
	}
}

/* Tile t's, none below that. */
template <class S>
__device__ inline void
raised_scales(float (&k)[2], const float (&least)[2], const Place &p,
    uint32_t st, int t)
{
	tile_scales<S>(k, p, st, t);
	k[0] = fmaxf(k[0], least[0]);
	k[1] = fmaxf(k[1], least[1]);
}

/*
 * The same where there are no registers for two sums. The sum over tile t is in
 * units of the row's scale t: it is brought to those of tile t + 1 before that
 * is added. A scale far below the row's largest, zero too, is raised to where
 * that loses nothing.
 */
template <class S>
__device__ inline void
score(float (&s)[S::nh / 2], const Place &p, uint32_t st, uint32_t q)
{
	constexpr int B = S::qb, PER = 8 / B;	/* batches of a tile */
	uint32_t r[2][4 * B], raw[2 * B], qd = desc128_base(q);
	float least[2], now[2], next[2], k[2];

#pragma unroll
	for (int i = 0; i < B; i++)
		fetch8<S>(raw + 2 * i, st, p, 16 * i);
	least_scales<S>(least, p, st);
	raised_scales<S>(now, least, p, st, 0);
	next_keys<S>(r[0], raw, st, p, 16 * B);
#pragma unroll
	for (int t = 0; t < 4; t++) {
		if (t > 0) {
			wg_pin(s);
			scale_rows(s, k[0], k[1]);
			wg_pin(s);
		}
#pragma unroll
		for (int b = 0; b < PER; b++) {
			multiply<S, S::nh, false>(s, r[b % 2],
			    qd + t * (2 * S::nh * 8), b * B, t + b > 0);
			wg_wait<1>();
			next_keys<S>(r[(b + 1) % 2], raw, st, p, 128 * t +
			    16 * (b + 2) * B);
			if (b > 0)	/* where there is time for it: */
				continue;
			/* t = 3: some number */
			raised_scales<S>(next, least, p, st, t + 1);
#pragma unroll
			for (int u = 0; u < 2; u++) {
				k[u] = __fdividef(now[u], next[u]);
				now[u] = t < 3 ? next[u] : now[u];
			}
		}
		wg_wait<0>();
	}
#pragma unroll
	for (int b = 0; b < 4 / B; b++) {
		rope_keys<S>(r[b % 2], st, p, b * B);
		if (b == 0) {
			wg_pin(s);
			scale_rows(s, now[0], now[1]);
			wg_pin(s);
		}
		multiply<S, S::nh, true>(s, r[b % 2], qd, 32 + b * B, true);
		wg_wait<1>();
	}
	wg_wait<0>();
	wg_pin(s);
}

/* The same of bf16 rows, against N heads. */
template <class S, int N>
__device__ inline void
score_bf16(float (&s)[N / 2], const Place &p, uint32_t st, uint32_t q)
{
	constexpr int B = S::qb;
	uint32_t r[2][4 * B], qd = desc128_base(q);

#pragma unroll
	for (int b = 0; b < 36 / B; b++) {
#pragma unroll
		for (int i = 0; i < B; i++)
			keys16<S>(r[b % 2] + 4 * i, st, p, 32 * (b * B + i));
		multiply<S, N, true>(s, r[b % 2], qd, b * B, b > 0);
		wg_wait<1>();
	}
	wg_wait<0>();
	wg_pin(s);
}

/* p of the warpgroup's stage to shared memory as the B operand: [NH][64 keys],
 * swizzled. x[2j + u]: keys g + 8u, heads 8j + 2c + {0, 1}. */
template <class S>
__device__ inline void
store_p(const uint32_t (&x)[S::nh / 4], const Place &p, uint32_t at)
{
	uint32_t r = p.lane % 8, m = p.lane / 8;
	uint32_t chunk = ((2 * p.w + m % 2) ^ r) << 4;

	if (S::nh == 8)
		stmatrix2_t(at + r * 128 + chunk, x[0], x[1]);
#pragma unroll
	for (int j = 0; j + 1 < S::nh / 8; j += 2)
		stmatrix4_t(at + (8 * (j + m / 2) + r) * 128 + chunk, x[2 * j],
		    x[2 * j + 1], x[2 * j + 2], x[2 * j + 3]);
}

/* The scales of the warpgroup's stage, / C, for values(). */
template <class S>
__device__ inline void
store_tab(const Place &p, uint32_t st, uint32_t tab, uint32_t cexp)
{
	float inv = __uint_as_float((254 - cexp) << 23);
	uint32_t t = threadIdx.x % 128 / 32, key = 2 * p.lane;
	uint32_t at = st + key * S::pitch + 512 + 4 * t;

	sts32(tab + (t * KEYS + key) * 2,
	    pack_f16(ldsf(at) * inv, ldsf(at + S::pitch) * inv));
}

/* What is told with the p of stage i. */
template <class S>
__device__ inline uint32_t
told_at(uint32_t smem, uint32_t i)
{
	return smem + S::told_off + i % S::places * S::told_place;
}

/* Barriers of its place: full; .. + 32: free. */
template <class S>
__device__ inline uint32_t
p_bar(uint32_t smem, uint32_t i)
{
	return smem + S::bar_off + 128 + i % S::places * 8;
}

/* A score or a scale of stage i grew: the new maximum of every head, the new C,
 * and for whoever summed before by what to multiply. x: the scores in log2
 * units; cexp: C = 2^(cexp-127), 0 before the first stage. */
template <class S>
__device__ inline void
raise(const float (&x)[S::nh / 2], float (&m)[S::nh / 4], Acc<S> &a,
    const Place &p, uint32_t smem, uint32_t e, uint32_t &cexp, uint32_t i)
{
	uint32_t ms = smem + S::ms_off, ce = smem + S::ce_off;
	uint32_t told = told_at<S>(smem, i);
	float co = 1.0f;

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float y = fmaxf(x[col_acc(j)], x[col_acc(j) + 2]);

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			y = fmaxf(y, __shfl_xor_sync(~0u, y, k));
		if (p.g == 0)
			max_s32(ms + col_head(j, p.c) * 4, ordered(y));
	}
	if (!S::bf16 && p.lane == 0)
		max_s32(ce, e);
	bar_sync(BAR_VOTE + p.wg, 128);
	if (!S::bf16) {
		uint32_t most = lds32(ce), old = cexp;

		if (most > old) {
			cexp = most + 2;	/* room: seldom moves again */
			if (old != 0)
				co = __uint_as_float(127 + old > cexp ?
				    (127 + old - cexp) << 23 : 0);
		}
	}
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float old = m[j], k;

		m[j] = unordered(lds32(ms + col_head(j, p.c) * 4));
		k = old == m[j] ? 1.0f : ex2(old - m[j]);
		a.l[j] *= k;
		if (p.w + p.g == 0)
			sts32(told + col_head(j, p.c) * 4, __float_as_uint(k));
	}
	if (p.w + p.lane == 0) {
		sts32(smem + S::unit_off, cexp);
		sts32(told + S::nh * 4 + 4, __float_as_uint(co));
	}
}

/* l in units of the maxima as of `end` stages. */
template <class S>
__device__ inline void
follow_l(Acc<S> &a, const Place &p, uint32_t smem, uint32_t end)
{
#pragma unroll 1
	for (; a.seen < end; a.seen++) {
		uint32_t told = told_at<S>(smem, a.seen);

		if (lds32(told + S::nh * 4) == 0)
			continue;
#pragma unroll
		for (int j = 0; j < S::nh / 4; j++)
			a.l[j] *= ldsf(told + col_head(j, p.c) * 4);
	}
}

/* o likewise, as stage i makes it, and in units of its C. */
template <class S>
__device__ inline void
follow_o(Acc<S> &a, const Place &p, uint32_t smem, uint32_t i)
{
	uint32_t told = told_at<S>(smem, i);
	uint2 x = lds64(told + S::nh * 4);

	if (x.x == 0)
		return;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float k = ldsf(told + col_head(j, p.c) * 4) *
		    __uint_as_float(x.y);

#pragma unroll
		for (int t = 0; t < S::tiles; t++) {
			a.o[t][col_acc(j)] *= k;
			a.o[t][col_acc(j) + 2] *= k;
		}
	}
}

/*
 * From the scores of stage i, nk keys, to p, in its place for all warpgroups.
 * Maxima and C go from stage to stage, so that an earlier stage is summed while
 * a later one is scored: a stage takes them from the one before, unless one of
 * its scores or scales is far above; then they become its own where these are
 * larger. last: no stage comes after.
 */
template <class S>
__device__ inline void
softmax(float (&x)[S::nh / 2], Acc<S> &a, const Place &p, uint32_t smem,
    uint32_t st, uint32_t nk, uint32_t i, bool last)
{
	bool in0 = 16 * p.w + p.g < nk, in1 = 16 * p.w + p.g + 8 < nk;
	uint32_t at = i % S::places, e = 0, cexp = 0, y[S::nh / 4];
	uint32_t bar = p_bar<S>(smem, i);
	float m[S::nh / 4];
	bool over = false;

	if (!S::bf16)
		e = scale_exp<S>(st, p.lane, nk);
	if (i >= S::places)
		mbar_wait(bar + 32, (i / S::places & 1) ^ 1);
	if (i > 0)
		bar_sync(BAR_NEXT + p.wg, 256);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c);
		float f = ldsf(smem + S::fs_off + h * 4);
		float &x0 = x[col_acc(j)], &x1 = x[col_acc(j) + 2];

		m[j] = unordered(lds32(smem + S::ms_off + h * 4));
		x0 = in0 ? x0 * f : -INFINITY;
		x1 = in1 ? x1 * f : -INFINITY;
		over |= fmaxf(x0, x1) > m[j] + GROW;
	}
	if (!S::bf16) {
		cexp = lds32(smem + S::unit_off);
		over |= e > cexp;
	}
	/* before NEXT: stage i + 1 may take the place of the oldest of these */
	follow_l<S>(a, p, smem, i);
	over = i == 0 || bar_any(BAR_VOTE + p.wg, 128, over);
	if (over)
		raise<S>(x, m, a, p, smem, e, cexp, i);
	a.seen = i + 1;
	if (p.w + p.lane == 0)
		sts32(told_at<S>(smem, i) + S::nh * 4, over && i > 0);
	if (!last)
		bar_arrive(BAR_NEXT + (p.wg + 1) % S::wgs, 256);
	if (!S::bf16)
		store_tab<S>(p, st, smem + S::tab_off + at * S::tab_place,
		    cexp);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j += 2) {
		float z[4];

#pragma unroll
		for (int k = 0; k < 2; k++) {
			int c = col_acc(j + k);

			z[k] = in0 ? ex2(x[c] - m[j + k]) : 0.0f;
			z[2 + k] = in1 ? ex2(x[c + 2] - m[j + k]) : 0.0f;
			a.l[j + k] += z[k] + z[2 + k];
		}
#pragma unroll
		for (int u = 0; u < 2; u++)
			y[j + u] = S::bf16 ? pack_bf16(z[2 * u], z[2 * u + 1])
			    : pack_f16(z[2 * u], z[2 * u + 1]);
	}
	store_p<S>(y, p, smem + S::p_off + at * S::p_place);
	fence_async();
	__syncwarp();
	if (p.lane == 0)
		mbar_arrive(bar);
}

/* l of each column over the keys that this warp weighed, for who adds them up,
 * finish() of attend_out.cuh: behind the warpgroup's last softmax(). */
template <class S>
__device__ inline void
share_l(const Acc<S> &a, const Place &p, uint32_t smem)
{
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float x = a.l[j];

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			x += __shfl_xor_sync(~0u, x, k);
		if (p.g == 0)
			sts32(smem + S::red_off + col_head(j, p.c) * S::rrow +
			    (p.wg * 4 + p.w) * 4, __float_as_uint(x));
	}
	bar_arrive(BAR_L, S::work + 128);
}

/* Where stage k of a round stands that begins at place s0. */
template <class S>
__device__ inline uint32_t
place(uint32_t s0, uint32_t k)
{
	return s0 + k < S::stages ? s0 + k : s0 + k - S::stages;
}

/* o += V^T p over 16 keys, in these tiles; pd: of p of the stage's. */
template <class S>
__device__ inline void
add16(Acc<S> &a, uint32_t *r, uint32_t pd, int k, int i0)
{
	wg_ready<4 * S::together>(r);
	wg_fence();
#pragma unroll
	for (int i = 0; i < S::together; i++)
		Mma<S::nh, S::bf16>::run(a.o[i0 + i], r + 4 * i,
		    desc128_at(pd, k * 32), 1);
	wg_commit();
}

template <class S>
__device__ inline void
pin_o(Acc<S> &a)
{
#pragma unroll
	for (int i = 0; i < S::tiles; i++)
		wg_pin(a.o[i]);
}

/* Team mate i may overwrite the stage. */
__device__ inline void
release(const Team &team, uint32_t i, uint32_t empty)
{
	if (team.n == 1)
		mbar_arrive(empty);
	else
		cluster_mbar_arrive(cluster_map(empty, i));
}

/* A stage of rows: where it is, and which parity its barrier has then. */
template <class S>
struct Ring {
	uint32_t s, phase;

	__device__ inline Ring
	ahead(uint32_t k) const
	{
		Ring r = { place<S>(s, k), phase };

		r.phase ^= s + k >= S::stages;
		return r;
	}
};

/* Wait for the rows of the stage. */
template <class S>
__device__ inline void
await_rows(uint32_t smem, const Ring<S> &at)
{
	mbar_wait(smem + S::bar_off + at.s * 8, at.phase);
}

/* The scores of stage i of `stages`, and p; n: keys of the block. */
template <class S>
__device__ inline void
score_stage(Acc<S> &a, const Place &p, uint32_t smem, const Ring<S> &at,
    uint32_t i, uint32_t stages, uint32_t n)
{
	uint32_t st = smem + S::stage_off + at.s * S::stage;
	float x[S::nh / 2];

	await_rows(smem, at);
	if constexpr (S::bf16)
		score_bf16<S, S::nh>(x, p, st, smem + S::q_off);
	else if constexpr (S::nh <= 16)
		score_tiles<S>(x, p, st, smem + S::q_off);
	else
		score<S>(x, p, st, smem + S::q_off);
	softmax<S>(x, a, p, smem, st, min(KEYS, n - i * KEYS), i,
	    i + 1 == stages);
}

/* Value operands: one in use, the next being made, and what it is made of. */
template <class S>
struct Values {
	static constexpr int per = S::tiles / S::together; /* of 16 keys */
	uint32_t r[2][4 * S::together];
	Raw<S> raw;

	/* The first ones of stage i, when its rows, p and scales are there. */
	__device__ inline void
	begin(const Place &p, uint32_t smem, const Ring<S> &at, uint32_t i)
	{
		uint32_t st = smem + S::stage_off + at.s * S::stage;
		uint32_t tab = smem + S::tab_off + i % S::places * S::tab_place;

		mbar_wait(p_bar<S>(smem, i), i / S::places & 1);
		await_rows(smem, at);
		fetch_values<S>(raw, st, p, 0, tab);
		values<S>(r[0], raw, 0);
		if (per == 1)
			fetch_values<S>(raw, st, p, 16, tab);
	}
};

/* o += V^T p over the keys of that stage, of which and later ones `left` are
 * left; the last product is still under way then. Its p and scales are in place
 * i. The stage is given back if it is `wanted`. */
template <class S>
__device__ inline void
accumulate(Acc<S> &a, Values<S> &v, const Place &p, const Team &team,
    uint32_t smem, uint32_t s, uint32_t left, bool wanted, uint32_t i)
{
	uint32_t st = smem + S::stage_off + s * S::stage;
	uint32_t tab = smem + S::tab_off + i * S::tab_place;
	uint32_t pd = desc128_base(smem + S::p_off + i * S::p_place);
	uint32_t empty = smem + S::bar_off + 64;
	constexpr int PER = Values<S>::per;
	bool half = filled(left) < KEYS;

	pin_o(a);
#pragma unroll
	for (int j = 0; j < 4 * PER; j++) {
		int next = (j + 1) % PER, k = j / PER;

		add16<S>(a, v.r[j % 2], pd, k, j % PER * S::together);
		wg_wait<1>();
		if (j == 4 * PER - 1 || (next == 0 && k == 1 && half))
			break;
		values<S>(v.r[(j + 1) % 2], v.raw, next * S::together);
		if (next == PER - 1 && (j + 1) / PER < 3)
			fetch_values<S>(v.raw, st, p, 16 * ((j + 1) / PER + 1),
			    tab);
	}
	/* All of the stage is read: the product has it. */
	if (wanted && p.lane < team.n)
		release(team, p.lane, empty + s * 8);
}

/* o over stages i .. end - 1, the first of which is at `at`. */
template <class S>
__device__ inline void
sum_stages(Acc<S> &a, const Place &p, const Team &team, uint32_t smem,
    Ring<S> &at, uint32_t i, uint32_t end, uint32_t stages, uint32_t n)
{
	Values<S> v;

	v.begin(p, smem, at, i);
#pragma unroll 1
	for (; i < end; i++) {
		follow_o<S>(a, p, smem, i);
		accumulate<S>(a, v, p, team, smem, at.s, n - i * KEYS,
		    i + S::stages < stages, i % S::places);
		at = at.ahead(1);
		if (S::ahead && i + 1 < end)
			v.begin(p, smem, at, i + 1);
		wg_wait<0>();
		pin_o(a);
		__syncwarp();
		if (i + S::places < stages && p.lane == 0)
			mbar_arrive(p_bar<S>(smem, i) + 32);
		if (!S::ahead && i + 1 < end)
			v.begin(p, smem, at, i + 1);
	}
}

/* All rounds. n: keys of the block. */
template <class S>
__device__ inline void
attend(Acc<S> &a, const Place &p, const Team &team, uint32_t smem, uint32_t n)
{
	uint32_t stages = (n + KEYS - 1) / KEYS;
	Ring<S> ring = { 0, 0 };

	if (stages <= p.wg)
		share_l<S>(a, p, smem);
	for (uint32_t i = 0; i < stages; i += S::wgs) {
		uint32_t mine = i + p.wg;

		if (mine < stages) {
			score_stage<S>(a, p, smem, ring.ahead(p.wg), mine,
			    stages, n);
			if (mine + S::wgs >= stages)
				share_l<S>(a, p, smem);
		}
		sum_stages<S>(a, p, team, smem, ring, i, min(i + S::wgs,
		    stages), stages, n);
	}
}

}	/* namespace */
}	/* namespace dcpg */
#endif
