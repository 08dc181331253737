/*
 * Sparse decode attention: a few query rows, each with its own list of pool
 * rows, against packed fp8 or bf16 rows. dcpg.h says what is computed.
 *
 * Who does what. A block owns NH heads of one query row and one split of its
 * key list; the blocks of a cluster share a list and merge their results
 * through each other's shared memory, so one launch does all and no state
 * outlives it. In a block four warps gather: 64 rows a stage, each by one bulk
 * copy, stages ahead. W warpgroups compute, W stages at a time: each scores
 * one stage against all NH heads, all put their p into shared memory, and each
 * sums its 512/W output dimensions over the keys of all W stages.
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
 * all of bf16 rows, are multiplied as bf16. The running maximum moves only
 * when a score passes it by 2^8.
 *
 * Shared memory, NH = 64, fp8: q 72 KB, 3 stages of 41 KB, p 16 KB, the rest
 * 8 KB. After the last key q and the stages become the place where the
 * cluster's blocks put each other's shares of the output.
 *
 * Bytes that must move: rows*count*656 (1152), + rows*heads*(1152 + 1024).
 * Flops: rows*heads*count*2176.
 */
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr int KEYS = 64;		/* of one stage */
constexpr int MAX_SPLITS = DCPG_MAX_SPLITS;
constexpr int SMEM_MAX = 232448;	/* 227 KB a block */
constexpr float GROW = 8.0f;		/* log2: how far p may pass 1 */

struct Args {
	const uint8_t *q, *pool;
	const uint32_t *list, *count;
	void *out;
	float *lse;
	uint32_t heads, list_stride, max_count;
	float scale_log2;	/* scale * log2(e) */
	bool out_f32;
};

/* BF16: rows are bf16, else packed fp8. NH heads, W computing warpgroups. */
template <bool BF16, int NH, int W>
struct Shape {
	static constexpr bool bf16 = BF16;
	static constexpr int nh = NH, wgs = W;
	static constexpr int work = W * 128;	/* computing threads */
	static constexpr int threads = work + 128;
	/* Registers of a computing thread: what the gathering warps leave. */
	static constexpr int regs = W == 2 ? 240 : 112;
	static constexpr int row = BF16 ? 1152 : 656;
	/* 4 banks from row to row, whatever the format: no conflicts. */
	static constexpr int pitch = BF16 ? 1168 : 656;
	static constexpr int stage = KEYS * pitch;
	/* Scores: steps of 16 dimensions per batch of products. */
	static constexpr int qb = NH == 64 ? 2 : 4;
	static constexpr int tiles = 8 / W;	/* of 64 output dimensions */
	static constexpr int depth = 2;	/* value operands in flight */

	static constexpr int q_bytes = 9 * NH * 128;
	static constexpr int p_bytes = W * NH * 128;
	static constexpr int tab_bytes = BF16 ? 0 : W * 4 * KEYS * 2;
	/* 64 heads would leave no room for the exchange: never split. */
	static constexpr int splits = NH == 64 ? 1 : MAX_SPLITS;
	static constexpr int ml_bytes = splits * NH * 8;
	static constexpr int ms_bytes = NH * 4;		/* running maximum */
	static constexpr int fs_bytes = NH * 4;
	/* [head][W * 4 warps], 4 words of padding spread the banks. */
	static constexpr int rrow = (W * 4 + 4) * 4;
	static constexpr int red_bytes = NH * rrow;
	static constexpr int fixed = q_bytes + p_bytes + tab_bytes +
	    ml_bytes + ms_bytes + fs_bytes + red_bytes + 32 + 18 * 8;
	static constexpr int fit = (SMEM_MAX - fixed) / stage;
	static constexpr int stages = fit > 8 ? 8 : fit;

	static constexpr int q_off = 0;
	static constexpr int stage_off = q_off + q_bytes;
	static constexpr int p_off = stage_off + stages * stage;
	static constexpr int tab_off = p_off + p_bytes;
	static constexpr int ml_off = tab_off + tab_bytes;
	static constexpr int ms_off = ml_off + ml_bytes;
	static constexpr int fs_off = ms_off + ms_bytes;
	static constexpr int red_off = fs_off + fs_bytes;
	static constexpr int ce_off = red_off + red_bytes;
	static constexpr int bar_off = ce_off + 32;
	static constexpr int ml_bar = bar_off + 16 * 8, o_bar = ml_bar + 8;
	static constexpr int bytes = bar_off + 18 * 8;

	/* Exchange, where q and the stages were: what comes in, [splits][own
	 * heads][516] f32, then what goes out, [NH][516]; 4 floats of padding
	 * spread the heads over the banks. */
	static constexpr int xrow = (512 + 4) * 4;
	static_assert(stages >= W, "all stages of a round are held at once");
	static_assert(splits == 1 || (2 * NH + splits - 1) * xrow <= p_off,
	    "exchange fits");
	static_assert(p_off % 1024 == 0 && q_bytes % 1024 == 0, "swizzle");
};

/* The part of the key list that one block owns. */
struct Part {
	uint32_t first, n;
};

__device__ inline Part
my_part(uint32_t count, uint32_t split, uint32_t splits)
{
	uint32_t per = ((count + splits - 1) / splits + 15) & ~15u;
	Part p;

	p.first = min(count, split * per);
	p.n = min(count, p.first + per) - p.first;
	return p;
}

/* The gathering warps, 16 rows of a stage each. Rows are filled up to a
 * multiple of 16 with copies of the last key: finite values, which p = 0 takes
 * out again. */
template <class S>
__device__ inline void
gather(const Args &a, const uint32_t *list, uint32_t n, uint32_t smem)
{
	uint32_t me = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32;
	uint32_t full = smem + S::bar_off, empty = full + 64;
	uint32_t stages = (n + KEYS - 1) / KEYS, row = 0;
	bool mine = threadIdx.x % 32 < 16;

	if (n > 0)
		row = list[min(me, n - 1)];
	for (uint32_t i = 0; i < stages; i++) {
		uint32_t s = i % S::stages, nk = min(KEYS, n - i * KEYS);
		uint32_t fill = (nk + 15) & ~15u, next = 0;
		uint32_t dst = smem + S::stage_off + s * S::stage;
		uint32_t bar = full + s * 8;

		if (i + 1 < stages)
			next = list[min((i + 1) * KEYS + me, n - 1)];
		if (i >= S::stages)
			mbar_wait_idle(empty + s * 8,
			    (i / S::stages - 1) & 1);
		if (threadIdx.x % 128 == 0)
			mbar_expect(bar, fill * S::row);
		if (mine && me < fill)
			bulk_load(dst + me * S::pitch,
			    a.pool + (size_t)row * S::row, S::row, bar);
		row = next;
	}
}

/*
 * 16 latent dimensions (x, y) of a head and 8 of its rope (z), times a power of
 * two that brings the head's largest latent to 2^7..2^8; returns it. Latents
 * become f16 in the order 0 1 4 5 8 9 12 13, 2 3 6 7 10 11 14 15: then the four
 * bytes that a thread reads from a row at 4c are just the elements k = 2c,
 * 2c+1, 2c+8, 2c+9 of its operand.
 */
__device__ inline float
q_to_f16(uint4 &x, uint4 &y, uint4 &z)
{
	uint32_t w[8] = { x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w };
	uint32_t m = 0, e, f = 0x3f800000;
	float k;

#pragma unroll
	for (int i = 0; i < 8; i++)
		m = max(m, max(w[i] & 0x7fff, w[i] >> 16 & 0x7fff));
	e = __reduce_max_sync(~0u, m) >> 7;
	if (e > 0 && e < 255)
		f = min(max(261 - (int)e, 1), 254) << 23;
	k = __uint_as_float(f);
#pragma unroll
	for (int i = 0; i < 8; i++)
		w[i] = pack_f16(bf16_lo(w[i]) * k, bf16_hi(w[i]) * k);
	x = make_uint4(w[0], w[2], w[4], w[6]);
	y = make_uint4(w[1], w[3], w[5], w[7]);
	z.x = pack_bf16(bf16_lo(z.x) * k, bf16_hi(z.x) * k);
	z.y = pack_bf16(bf16_lo(z.y) * k, bf16_hi(z.y) * k);
	z.z = pack_bf16(bf16_lo(z.z) * k, bf16_hi(z.z) * k);
	z.w = pack_bf16(bf16_lo(z.w) * k, bf16_hi(z.w) * k);
	return k;
}

/* q of the block's heads into 9 blocks of 64 dimensions, [heads][128 bytes],
 * swizzled; a warp takes a head at a time. fs[h] becomes the factor from the
 * product to log2 units. */
template <class S>
__device__ inline void
load_q(const Args &a, const uint8_t *q, uint8_t *smem)
{
	constexpr int PER = (S::nh + S::wgs * 4 - 1) / (S::wgs * 4);
	constexpr int AT_ONCE = PER < 4 ? PER : 4;	/* loads in flight */
	uint32_t lane = threadIdx.x % 32, base = smem_addr(smem) + S::q_off;
	uint32_t c = lane % 4 * 2, warp = threadIdx.x / 32;
	float *fs = (float *)(smem + S::fs_off);

#pragma unroll 1
	for (int i0 = 0; i0 < PER; i0 += AT_ONCE) {
		uint4 x[AT_ONCE], y[AT_ONCE], z[AT_ONCE];

#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			uint32_t h = (i0 + i) * S::wgs * 4 + warp;
			const uint4 *src = (const uint4 *)(q +
			    (size_t)min(h, S::nh - 1) * 1152);

			x[i] = src[2 * lane];
			y[i] = src[2 * lane + 1];
			z[i] = src[64 + lane % 8];
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			uint32_t h = (i0 + i) * S::wgs * 4 + warp, sw = h % 8;
			uint32_t dst = base + lane / 4 * S::nh * 128 + h * 128;
			float k = 1.0f;

			if (h >= S::nh)
				break;
			if (!S::bf16)
				k = q_to_f16(x[i], y[i], z[i]);
			sts128(dst + ((c ^ sw) << 4), x[i]);
			sts128(dst + (((c + 1) ^ sw) << 4), y[i]);
			if (lane < 8)
				sts128(base + 8 * S::nh * 128 + h * 128 +
				    ((lane ^ sw) << 4), z[i]);
			if (lane == 0)
				fs[h] = a.scale_log2 / k;
		}
	}
}

/* What a computing thread knows of its place. Fragment rows are g and g + 8
 * of the warp's 16, columns 2c and 2c + 1 of every 8. */
struct Place {
	uint32_t wg, w, lane, g, c;
};

/* Barriers: 0 is the block's, these are the computing warps'. */
enum { BAR_Q = 1, BAR_VOTE, BAR_MAX, BAR_P, BAR_L, BAR_OUT };

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
	r[2] = e4m3x2_f16x2(x[0] >> 16);
	r[3] = e4m3x2_f16x2(x[1] >> 16);
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

template <class S>
__device__ inline void
values(uint32_t *r, const Raw<S> &v)
{
	constexpr int N = Raw<S>::n;

#pragma unroll
	for (int u = 0; u < 2; u++)
#pragma unroll
		for (int i = 0; i < S::tiles; i++) {
			uint32_t &r0 = r[4 * i + 2 * u], &r1 = (&r0)[1], w;

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
			r1 = mul_f16x2(e4m3x2_f16x2(w >> 16), v.scale[u]);
		}
}

/* The accumulators of a thread. */
template <class S>
struct Acc {
	float o[S::tiles][S::nh / 2];	/* see values() */
	float l[S::nh / 4];	/* sums of p over the keys that it weighed */
	uint32_t cexp;		/* C = 2^(cexp-127); 0 before the first round */
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
 * s[64 keys][NH] = K q^T of one stage. The sum over tile t is in units of the
 * row's scale t: it is brought to those of tile t + 1 before that is added. A
 * scale far below the row's largest, zero too, is raised to where that loses
 * nothing.
 */
template <class S>
__device__ inline void
score(float (&s)[S::nh / 2], const Place &p, uint32_t st, uint32_t q)
{
	constexpr int B = S::qb, PER = 8 / B;	/* batches of a tile */
	uint32_t r[2][4 * B], raw[2 * B];
	float sc[2][4];

#pragma unroll
	for (int i = 0; i < B && !S::bf16; i++)
		fetch8<S>(raw + 2 * i, st, p, 16 * i);

#pragma unroll
	for (int u = 0; u < 2 && !S::bf16; u++) {
		uint32_t key = 16 * p.w + p.g + 8 * u, x[4];
		float least;

		lds<4>(x, st + key * S::pitch + 512);
		least = 0x1p-30f * __uint_as_float(max(max(x[0], x[1]),
		    max(x[2], x[3])));
		least = fmaxf(least, 1e-30f);
#pragma unroll
		for (int t = 0; t < 4; t++)
			sc[u][t] = fmaxf(__uint_as_float(x[t]), least);
	}
#pragma unroll
	for (int b = 0; b < 36 / B; b++) {
		uint32_t *x = r[b % 2];
		bool rope = S::bf16 || b >= 4 * PER;

#pragma unroll
		for (int i = 0; i < B; i++) {
			int k = b * B + i;	/* which 16 dimensions */

			if (S::bf16)
				keys16<S>(x + 4 * i, st, p, 32 * k);
			else if (rope)
				keys16<S>(x + 4 * i, st, p,
				    528 + 32 * (k - 32));
			else
				keys8(x + 4 * i, raw + 2 * i);
		}
#pragma unroll
		for (int i = 0; i < B; i++)
			if (!S::bf16 && b + 1 < 4 * PER)
				fetch8<S>(raw + 2 * i, st, p,
				    16 * ((b + 1) * B + i));
		if (!S::bf16 && b > 0 && b % PER == 0 && b <= 4 * PER) {
			int t = b / PER;	/* the tile that begins */

			wg_wait<0>();
			wg_pin(s);
			scale_rows(s, t == 4 ? sc[0][3] :
			    __fdividef(sc[0][t - 1], sc[0][t % 4]),
			    t == 4 ? sc[1][3] :
			    __fdividef(sc[1][t - 1], sc[1][t % 4]));
			wg_pin(s);
		}
		wg_ready<4 * B>(x);
		wg_fence();
#pragma unroll
		for (int i = 0; i < B; i++) {
			int k = b * B + i;
			uint64_t d = desc128(q + k / 4 * S::nh * 128 +
			    k % 4 * 32);

			if (rope)
				Mma<S::nh, true>::run(s, x + 4 * i, d, k > 0);
			else
				Mma<S::nh, false>::run(s, x + 4 * i, d, k > 0);
		}
		wg_commit();
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

/* A score or a scale grew: agree on the new maximum of every head and on C,
 * rescale what was summed. x: the scores in log2 units. */
template <class S>
__device__ inline void
raise(const float (&x)[S::nh / 2], float (&m)[S::nh / 4], Acc<S> &a,
    const Place &p, uint32_t smem, uint32_t e)
{
	uint32_t red = smem + S::red_off, ce = smem + S::ce_off;
	uint32_t most = 0;
	float co = 1.0f;

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float y = fmaxf(x[col_acc(j)], x[col_acc(j) + 2]);

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			y = fmaxf(y, __shfl_xor_sync(~0u, y, k));
		if (p.g == 0)
			sts32(red + col_head(j, p.c) * S::rrow +
			    (p.wg * 4 + p.w) * 4, __float_as_uint(y));
	}
	if (threadIdx.x % 128 == 0)
		sts32(ce + 4 * p.wg, e);
	bar_sync(BAR_MAX, S::work);
	if (!S::bf16) {
#pragma unroll
		for (int i = 0; i < S::wgs; i++)
			most = max(most, lds32(ce + 4 * i));
		if (most > a.cexp) {
			uint32_t old = a.cexp;

			a.cexp = most + 2;	/* room: seldom moves again */
			if (old != 0)
				co = __uint_as_float(127 + old > a.cexp ?
				    (127 + old - a.cexp) << 23 : 0);
		}
	}
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c);
		float old = m[j], k;
		uint32_t y[S::wgs / 2];

		lds<S::wgs / 2>(y, red + h * S::rrow + p.g * 2 * S::wgs);
		k = fmaxf(__uint_as_float(y[0]),
		    __uint_as_float(y[S::wgs / 2 - 1]));
#pragma unroll
		for (int i = 4; i < 32; i *= 2)
			k = fmaxf(k, __shfl_xor_sync(~0u, k, i));
		m[j] = fmaxf(old, k);
		k = old == m[j] ? 1.0f : ex2(old - m[j]);
		a.l[j] *= k;
#pragma unroll
		for (int i = 0; i < S::tiles; i++) {
			a.o[i][col_acc(j)] *= k * co;
			a.o[i][col_acc(j) + 2] *= k * co;
		}
		if (p.g == 0)		/* all warps write the same */
			sts32(smem + S::ms_off + h * 4, __float_as_uint(m[j]));
	}
}

/*
 * From the scores of a stage to p, in shared memory for all warpgroups. nk: its
 * keys, may be 0. The vote is also the point where all have read the last
 * round's p and scales.
 */
template <class S>
__device__ inline void
softmax(float (&x)[S::nh / 2], Acc<S> &a, const Place &p, uint32_t smem,
    uint32_t st, uint32_t nk, bool first)
{
	bool in0 = 16 * p.w + p.g < nk, in1 = 16 * p.w + p.g + 8 < nk;
	uint32_t tab = smem + S::tab_off + p.wg * 4 * KEYS * 2, e = 0;
	uint32_t y[S::nh / 4];
	float m[S::nh / 4];
	bool over = first;

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c);
		float f = ldsf(smem + S::fs_off + h * 4);
		float &x0 = x[col_acc(j)], &x1 = x[col_acc(j) + 2];

		m[j] = ldsf(smem + S::ms_off + h * 4);
		x0 = in0 ? x0 * f : -INFINITY;
		x1 = in1 ? x1 * f : -INFINITY;
		over |= fmaxf(x0, x1) > m[j] + GROW;
	}
	if (!S::bf16 && nk > 0) {
		e = scale_exp<S>(st, p.lane, (nk + 15) & ~15u);
		over |= e > a.cexp;
	}
	if (bar_any(BAR_VOTE, S::work, over))
		raise<S>(x, m, a, p, smem, e);
	if (!S::bf16 && nk > 0)
		store_tab<S>(p, st, tab, a.cexp);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j += 2) {
		float z[4];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			int k = col_acc(j + i);

			z[i] = in0 ? ex2(x[k] - m[j + i]) : 0.0f;
			z[2 + i] = in1 ? ex2(x[k + 2] - m[j + i]) : 0.0f;
			a.l[j + i] += z[i] + z[2 + i];
		}
#pragma unroll
		for (int u = 0; u < 2; u++)
			y[j + u] = S::bf16 ? pack_bf16(z[2 * u], z[2 * u + 1])
			    : pack_f16(z[2 * u], z[2 * u + 1]);
	}
	store_p<S>(y, p, smem + S::p_off + p.wg * S::nh * 128);
	fence_async();
	bar_sync(BAR_P, S::work);
}

/* The kth 16 keys of a round that begins with stage i0. */
template <class S>
__device__ inline void
fetch16(Raw<S> &v, const Place &p, uint32_t smem, uint32_t i0, uint32_t k)
{
	uint32_t st = smem + S::stage_off + (i0 + k / 4) % S::stages * S::stage;

	fetch_values<S>(v, st, p, k % 4 * 16,
	    smem + S::tab_off + k / 4 * 4 * KEYS * 2);
}

/* o += V^T p over these keys. */
template <class S>
__device__ inline void
add16(Acc<S> &a, uint32_t *r, uint32_t smem, uint32_t k)
{
	uint64_t d = desc128(smem + S::p_off + k / 4 * S::nh * 128 +
	    k % 4 * 32);

	wg_ready<4 * S::tiles>(r);
	wg_fence();
#pragma unroll
	for (int i = 0; i < S::tiles; i++)
		Mma<S::nh, S::bf16>::run(a.o[i], r + 4 * i, d, 1);
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

/* The same over all keys of the round. */
template <class S>
__device__ inline void
accumulate(Acc<S> &a, const Place &p, uint32_t smem, uint32_t i0, uint32_t n)
{
	constexpr int D = S::depth;
	uint32_t r[D][4 * S::tiles], empty = smem + S::bar_off + 64;
	Raw<S> v;

	fetch16<S>(v, p, smem, i0, 0);
	pin_o(a);
	if (n - i0 * KEYS >= S::wgs * KEYS) {
#pragma unroll
		for (int k = 0; k < S::wgs * 4; k++) {
			values<S>(r[k % D], v);
			if (k + 1 < S::wgs * 4)
				fetch16<S>(v, p, smem, i0, k + 1);
			add16<S>(a, r[k % D], smem, k);
			wg_wait<D - 1>();
			if (k % 4 == 3 && p.lane == 0)	/* all read */
				mbar_arrive(empty + (i0 + k / 4) % S::stages *
				    8);
		}
		wg_wait<0>();
		pin_o(a);
	} else {	/* the last keys of the list: nobody waits for empty */
		for (uint32_t k = 0; k * 16 < n - i0 * KEYS; k++) {
			values<S>(r[0], v);
			if ((k + 1) * 16 < n - i0 * KEYS)
				fetch16<S>(v, p, smem, i0, k + 1);
			add16<S>(a, r[0], smem, k);
			wg_wait<0>();
			pin_o(a);
		}
	}
}

/* All rounds. n: keys of the block. */
template <class S>
__device__ inline void
attend(Acc<S> &a, const Place &p, uint32_t smem, uint32_t n)
{
	uint32_t full = smem + S::bar_off;
	uint32_t stages = (n + KEYS - 1) / KEYS;

	for (uint32_t i0 = 0; i0 < stages; i0 += S::wgs) {
		uint32_t i = i0 + p.wg, s = i % S::stages, nk = 0;
		uint32_t st = smem + S::stage_off + s * S::stage;
		float x[S::nh / 2];

		if (i < stages) {
			nk = min(KEYS, n - i * KEYS);
			mbar_wait(full + s * 8, (i / S::stages) & 1);
			score<S>(x, p, st, smem + S::q_off);
		}
		softmax<S>(x, a, p, smem, st, nk, i0 == 0);
		for (i = i0; i < min(i0 + S::wgs, stages); i++)
			mbar_wait(full + i % S::stages * 8,
			    (i / S::stages) & 1);
		accumulate<S>(a, p, smem, i0, n);
	}
}

/* l of each column over all of the block's keys, known to every thread. */
template <class S>
__device__ inline void
sum_l(Acc<S> &a, const Place &p, uint32_t red)
{
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float x = a.l[j];

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			x += __shfl_xor_sync(~0u, x, k);
		if (p.g == 0)
			sts32(red + col_head(j, p.c) * S::rrow +
			    (p.wg * 4 + p.w) * 4, __float_as_uint(x));
	}
	bar_sync(BAR_L, S::work);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t y[S::wgs / 2];
		float x;

		lds<S::wgs / 2>(y, red + col_head(j, p.c) * S::rrow +
		    p.g * 2 * S::wgs);
		x = __uint_as_float(y[0]);
		if (S::wgs == 4)
			x += __uint_as_float(y[S::wgs / 2 - 1]);
#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			x += __shfl_xor_sync(~0u, x, k);
		a.l[j] = x;
	}
}

/* N neighbouring outputs of one head. */
template <int N>
__device__ inline void
put(void *out, bool f32, size_t at, const float (&v)[N])
{
#pragma unroll
	for (int i = 0; i < N; i += 4)
		if (f32)
			*(float4 *)((float *)out + at + i) = make_float4(v[i],
			    v[i + 1], v[i + 2], v[i + 3]);
		else
			*(uint2 *)((uint16_t *)out + at + i) = make_uint2(
			    pack_bf16(v[i], v[i + 1]),
			    pack_bf16(v[i + 2], v[i + 3]));
}

/* A thread's outputs of column j, times k; they begin at first_dim(). */
template <class S>
__device__ inline void
column(float (&v)[2 * S::tiles], const Acc<S> &a, int j, float k)
{
#pragma unroll
	for (int i = 0; i < S::tiles; i++) {
		v[2 * i] = a.o[i][col_acc(j)] * k;
		v[2 * i + 1] = a.o[i][col_acc(j) + 2] * k;
	}
}

template <class S>
__device__ inline uint32_t
first_dim(const Place &p)
{
	return S::tiles * (64 * p.wg + 16 * p.w + 2 * p.g);
}

/* C: the unit of o. */
template <class S>
__device__ inline float
unit(const Acc<S> &a)
{
	return S::bf16 ? 1.0f : __uint_as_float(a.cexp << 23);
}

__device__ inline float
natural(float m, float l)
{
	return l > 0.0f ? m * 0.6931471805599453f + logf(l) :
	    l == 0.0f ? -INFINITY : l;
}

/* The block had all keys: straight from registers. */
template <class S>
__device__ inline void
write_all(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem,
    size_t head0)
{
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c);
		float k = a.l[j] == 0.0f ? 0.0f : unit(a) / a.l[j];
		float v[2 * S::tiles];

		column<S>(v, a, j, k);
		put(g.out, g.out_f32, (head0 + h) * 512 + first_dim<S>(p), v);
		if (threadIdx.x < 4)
			g.lse[head0 + h] = natural(ldsf(smem + S::ms_off +
			    h * 4), a.l[j]);
	}
}

/* Block r of a cluster owns heads r*per .. of the output; the last may own
 * fewer, or none. */
template <class S>
struct Owned {
	uint32_t per, first, n;

	__device__ inline
	Owned(uint32_t r, uint32_t splits)
	{
		per = (S::nh + splits - 1) / splits;
		first = min((uint32_t)S::nh, r * per);
		n = min((uint32_t)S::nh, first + per) - first;
	}
};

/* Tell all blocks of the cluster the (m, l) of this block's keys. */
template <class S>
__device__ inline void
push_ml(const Acc<S> &a, const Place &p, uint32_t smem, uint32_t split,
    uint32_t splits)
{
	uint32_t at = smem + S::ml_off + split * S::nh * 8;

	if (p.w != 0 || p.wg != 0)
		return;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c);
		float m = ldsf(smem + S::ms_off + h * 4);

		for (uint32_t to = p.g; to < splits; to += 8)
			cluster_st64(cluster_map(at + h * 8, to), m, a.l[j],
			    cluster_map(smem + S::ml_bar, to));
	}
}

/* o of this block's keys, not yet divided by l, to where it is copied from. */
template <class S>
__device__ inline void
stage_o(const Acc<S> &a, const Place &p, uint32_t out)
{
	uint32_t swap = S::tiles == 4 && p.c % 2;	/* spreads the banks */

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t at = out + col_head(j, p.c) * S::xrow +
		    first_dim<S>(p) * 4;
		float v[2 * S::tiles];

		column<S>(v, a, j, unit(a));
#pragma unroll
		for (int i = 0; i < S::tiles / 2; i++) {
			uint32_t u = i ^ swap;
			float4 x = make_float4(v[0], v[1], v[2], v[3]);

			if (u == 1)
				x = make_float4(v[4 % (2 * S::tiles)],
				    v[5 % (2 * S::tiles)],
				    v[6 % (2 * S::tiles)],
				    v[7 % (2 * S::tiles)]);
			sts128(at + 16 * u, make_uint4(__float_as_uint(x.x),
			    __float_as_uint(x.y), __float_as_uint(x.z),
			    __float_as_uint(x.w)));
		}
	}
}

/*
 * out = sum_r exp(m_r - m) o_r / sum_r exp(m_r - m) l_r of the heads that this
 * block owns, in split order. A split without keys has l = 0, sent no o and has
 * no share.
 */
template <class S>
__device__ inline void
write_owned(const Args &g, uint32_t smem, uint32_t out, uint32_t split,
    uint32_t splits, size_t head0)
{
	Owned<S> own(split, splits);

	for (uint32_t i = threadIdx.x; i < own.n * 128; i += S::work) {
		uint32_t h = i / 128, hb = own.first + h;
		uint32_t ml = smem + S::ml_off + hb * 8;
		float v[4] = { 0 }, m = -INFINITY, l = 0.0f, inv;

		for (uint32_t r = 0; r < splits; r++) {
			uint2 x = lds64(ml + r * S::nh * 8);

			if (x.y != 0)
				m = fmaxf(m, __uint_as_float(x.x));
		}
		for (uint32_t r = 0; r < splits; r++) {
			uint32_t at = smem + (r * own.per + h) * S::xrow +
			    i % 128 * 16, y[4];
			uint2 x = lds64(ml + r * S::nh * 8);
			float k;

			if (x.y == 0)
				continue;
			if (r == split)		/* its own never moved */
				at = out + hb * S::xrow + i % 128 * 16;
			k = ex2(__uint_as_float(x.x) - m);
			l += k * __uint_as_float(x.y);
			lds<4>(y, at);
#pragma unroll
			for (int u = 0; u < 4; u++)
				v[u] += k * __uint_as_float(y[u]);
		}
		inv = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
		for (int u = 0; u < 4; u++)
			v[u] *= inv;
		put(g.out, g.out_f32, (head0 + hb) * 512 + i % 128 * 4, v);
		if (i % 128 == 0)
			g.lse[head0 + hb] = natural(m, l);
	}
}

/*
 * The splits become one. Two barriers count bytes: (m, l) of all splits, which
 * also says that they are done with their q and stages, so that those may be
 * overwritten; then o of the heads that this block owns. Splits that had keys
 * send o of all heads, one copy for each owner. Nobody leaves before all that
 * is sent has arrived.
 */
template <class S>
__device__ inline void
merge(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem,
    size_t head0)
{
	uint32_t split = blockIdx.x, splits = gridDim.x, full = 0;
	uint32_t me = threadIdx.x;
	Owned<S> mine(split, splits), to(me, splits);
	uint32_t out = smem + splits * mine.per * S::xrow;

	cluster_wait();		/* everyone's barriers are set up */
	if (me == 0)
		mbar_expect(smem + S::ml_bar, splits * S::nh * 8);
	push_ml<S>(a, p, smem, split, splits);
	stage_o<S>(a, p, out);
	fence_async();
	bar_sync(BAR_OUT, S::work);
	mbar_wait(smem + S::ml_bar, 0);
	for (uint32_t r = 0; r < splits; r++)
		full += r != split &&
		    lds32(smem + S::ml_off + r * S::nh * 8 + 4) != 0;
	if (me == 0)
		mbar_expect(smem + S::o_bar, full * mine.n * S::xrow);
	if (me < splits && me != split && to.n > 0 && a.l[0] != 0.0f)
		cluster_copy(cluster_map(smem + split * to.per * S::xrow, me),
		    out + to.first * S::xrow, to.n * S::xrow,
		    cluster_map(smem + S::o_bar, me));
	__syncwarp();
	mbar_wait(smem + S::o_bar, 0);
	cluster_arrive();
	write_owned<S>(g, smem, out, split, splits, head0);
	__syncwarp();
	cluster_wait();
}

/* What the computing warps do. */
template <class S>
__device__ inline void
compute(const Args &g, uint8_t *mem, const Part &part, size_t head0)
{
	uint32_t smem = smem_addr(mem), lane = threadIdx.x % 32;
	Place p = { threadIdx.x / 128, threadIdx.x / 32 % 4, lane, lane / 4,
	    lane % 4 };
	Acc<S> a;

	load_q<S>(g, g.q + head0 * 1152, mem);
	fence_async();
#pragma unroll
	for (int i = 0; i < S::tiles; i++)
#pragma unroll
		for (int j = 0; j < S::nh / 2; j++)
			a.o[i][j] = 0.0f;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		a.l[j] = 0.0f;
	a.cexp = 0;
	bar_sync(BAR_Q, S::work);
	attend<S>(a, p, smem, part.n);
	sum_l<S>(a, p, smem + S::red_off);
	if (S::splits == 1 || gridDim.x == 1)
		write_all<S>(g, a, p, smem, head0);
	else
		merge<S>(g, a, p, smem, head0);
}

/* grid: (splits, heads / NH, rows), clusters of (splits, 1, 1). */
template <class S>
__global__ void __launch_bounds__(S::threads, 1)
attend_kernel(const Args g)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	uint32_t smem = smem_addr(mem);
	size_t head0 = (size_t)blockIdx.z * g.heads + blockIdx.y * S::nh;
	const uint32_t *list = g.list + (size_t)blockIdx.z * g.list_stride;
	Part part;

	if (threadIdx.x == 0)
		for (int i = 0; i < S::stages; i++) {
			mbar_init(smem + S::bar_off + i * 8, 1);
			mbar_init(smem + S::bar_off + 64 + i * 8, S::wgs * 4);
		}
	if (threadIdx.x == 0) {
		mbar_init(smem + S::ml_bar, 1);
		mbar_init(smem + S::o_bar, 1);
		mbar_publish();
	}
	fence_async();
	if (threadIdx.x < S::nh)
		sts32(smem + S::ms_off + threadIdx.x * 4, 0xff800000);
	__syncthreads();
	if (gridDim.x > 1)
		cluster_arrive();
	launch_wait();
	launch_next();
	part = my_part(min(g.count[blockIdx.z], g.max_count), blockIdx.x,
	    gridDim.x);

	if (threadIdx.x >= S::work) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
		gather<S>(g, list + part.first, part.n, smem);
		__syncwarp();
		if (gridDim.x > 1) {
			cluster_wait();
			cluster_arrive();
			cluster_wait();
		}
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::
		    "n"(S::regs));
		compute<S>(g, mem, part, head0);
	}
}

/* --- host ---------------------------------------------------------------- */

template <class S>
void
configure(cudaLaunchConfig_t *cfg, cudaLaunchAttribute at[2], dim3 grid)
{
	at[0].id = cudaLaunchAttributeClusterDimension;
	at[0].val.clusterDim.x = grid.x;
	at[0].val.clusterDim.y = 1;
	at[0].val.clusterDim.z = 1;
	at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[1].val.programmaticStreamSerializationAllowed = 1;
	*cfg = {};
	cfg->gridDim = grid;
	cfg->blockDim = dim3(S::threads);
	cfg->dynamicSmemBytes = S::bytes;
	cfg->attrs = at;
	cfg->numAttrs = 2;
}

template <class S>
int
launch(const Args &g, uint32_t rows, uint32_t splits, cudaStream_t stream)
{
	cudaLaunchAttribute at[2];
	cudaLaunchConfig_t cfg;

	configure<S>(&cfg, at, dim3(splits, g.heads / S::nh, rows));
	cfg.stream = stream;
	return cudaLaunchKernelEx(&cfg, attend_kernel<S>, g) == cudaSuccess ?
	    0 : -EIO;
}

/* fit[n]: how many clusters of n blocks run at once; above 8 blocks a device
 * may have none. */
template <class S>
cudaError_t
prepare(int fit[MAX_SPLITS + 1])
{
	cudaError_t e = cudaFuncSetAttribute(attend_kernel<S>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes);

	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(attend_kernel<S>,
		    cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
	for (int n = 1; n <= MAX_SPLITS && e == cudaSuccess; n++) {
		cudaLaunchAttribute at[2];
		cudaLaunchConfig_t cfg;

		fit[n] = 0;
		if (n > S::splits || n > S::nh)
			continue;
		configure<S>(&cfg, at, dim3(n, 1, 1));
		cfg.numAttrs = 1;
		e = cudaOccupancyMaxActiveClusters(&fit[n], attend_kernel<S>,
		    &cfg);
		if (e != cudaSuccess && n > 8) {
			fit[n] = 0;
			e = cudaSuccess;
			cudaGetLastError();
		}
	}
	return e;
}

/*
 * One compiled shape. The three figures predict a launch: every wave of blocks
 * costs `fixed`, plus `stage` per 64 keys of a block, plus `merge` when keys
 * are split; us, fitted to kernel_bench sweep on an H200 (doc/cuda.md). They
 * only choose; any choice is right.
 */
struct Entry {
	struct dcpg_attend_shape shape;
	int (*launch)(const Args &, uint32_t, uint32_t, cudaStream_t);
	cudaError_t (*prepare)(int [MAX_SPLITS + 1]);
	double fixed, stage, merge;
	int fit[MAX_SPLITS + 1];
};

#define ENTRY(bf16, nh, w, fixed, stage, merge) {			\
	{ nh, w }, launch<Shape<bf16, nh, w>>, prepare<Shape<bf16, nh, w>>, \
	fixed, stage, merge, { 0 } }

Entry fp8_entries[] = {
	ENTRY(false, 64, 2, 10.0, 2.7, 0), ENTRY(false, 32, 2, 6.2, 1.85, 2.5),
	ENTRY(false, 16, 4, 4.9, 1.75, 1.5), ENTRY(false, 8, 4, 4.1, 1.45, 1.0),
};
Entry bf16_entries[] = {
	ENTRY(true, 32, 2, 6.4, 1.9, 2.5), ENTRY(true, 16, 2, 5.4, 1.75, 1.5),
	ENTRY(true, 8, 2, 4.1, 1.45, 1.0),
};

template <class T, size_t N>
constexpr uint32_t
len(const T (&)[N])
{
	return N;
}

Entry *
entries(enum dcpk_kv kv, uint32_t *n)
{
	*n = kv == DCPK_KV_BF16 ? len(bf16_entries) : len(fp8_entries);
	return kv == DCPK_KV_BF16 ? bf16_entries : fp8_entries;
}

double
predict(const Entry &e, const struct dcpg_attend *a, uint32_t splits)
{
	uint32_t clusters = a->rows * (a->heads / e.shape.heads), waves, keys;
	double merge = splits > 8 ? e.merge + 2.4 : splits > 1 ? e.merge : 0;

	if (e.fit[splits] == 0)
		return INFINITY;
	waves = (clusters + e.fit[splits] - 1) / e.fit[splits];
	keys = (a->max_count + splits - 1) / splits;
	return waves * (e.fixed + e.stage * (keys < 64 ? 1 : keys / 64.0) +
	    merge);
}

/* What the caller forces stays; the rest is the fastest by prediction. */
Entry *
choose(const struct dcpg_attend *a, uint32_t *splits)
{
	uint32_t n;
	Entry *e = entries(a->kv, &n), *best = NULL;
	double t = INFINITY;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t s = 1; s <= MAX_SPLITS; s++) {
			double x;

			if (e[i].shape.heads > a->heads ||
			    (a->shape > 0 && a->shape != i + 1) ||
			    (a->splits > 0 && a->splits != s))
				continue;
			x = predict(e[i], a, s);
			if (x < t) {
				t = x;
				best = &e[i];
				*splits = s;
			}
		}
	return best;
}

}	/* namespace */

int
attend_init(void)
{
	for (int b = 0; b < 2; b++) {
		uint32_t n;
		Entry *e = entries(b ? DCPK_KV_BF16 : DCPK_KV_FP8, &n);

		for (uint32_t i = 0; i < n; i++)
			if (e[i].prepare(e[i].fit) != cudaSuccess)
				return -EIO;
	}
	return 0;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" bool
dcpg_attend_shape(enum dcpk_kv kv, uint32_t i, struct dcpg_attend_shape *out)
{
	uint32_t n;
	const Entry *e = entries(kv, &n);

	if (i >= n)
		return false;
	*out = e[i].shape;
	for (int s = 1; s <= MAX_SPLITS; s++)
		out->fit[s] = e[i].fit[s];
	return true;
}

extern "C" int
dcpg_attend(const struct dcpg_attend *a, void *stream)
{
	uint32_t splits;
	const Entry *e;
	Args g;

	if ((a->kv != DCPK_KV_FP8 && a->kv != DCPK_KV_BF16) || a->rows == 0 ||
	    a->rows > 65535 || a->heads < 8 || a->heads > 128 ||
	    (a->heads & (a->heads - 1)) != 0 || a->list_stride < a->max_count)
		return -EINVAL;
	e = choose(a, &splits);
	if (e == NULL)
		return -EINVAL;
	g.q = (const uint8_t *)a->q;
	g.pool = (const uint8_t *)a->pool;
	g.list = a->list;
	g.count = a->count;
	g.out = a->out;
	g.lse = a->lse;
	g.heads = a->heads;
	g.list_stride = a->list_stride;
	g.max_count = a->max_count;
	g.scale_log2 = a->scale * 1.4426950408889634f;
	g.out_f32 = a->out_f32;
	return e->launch(g, a->rows, splits, (cudaStream_t)stream);
}
