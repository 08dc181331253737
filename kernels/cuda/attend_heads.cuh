/*
 * Sparse attention over bf16 rows, blocks of 64 heads: for many query rows, of
 * which blocks have an SM one after another. Here heads are the long side of
 * both products (attend.cuh has keys and dimensions there) and no operand goes
 * through registers, which reads the least of shared memory: S = q k^T takes 4
 * KB of it in 32 cycles, O = p v^T 12 KB in 128.
 *
 * Two warpgroups compute. Each scores every other stage of 64 keys and puts its
 * p into shared memory; each sums its 256 output dimensions over the keys of all
 * stages. Two more bring rows. A stage comes in halves of 256 dimensions, first
 * the one that who scores it sums, then the other: so each half is free as soon
 * as one warpgroup has summed it, and one half is scored while the other one is
 * still on its way. Between its two halves of scores a warpgroup sums the stage
 * before, if only to give its half back: the next stage's waits for that.
 *
 * Shared memory: q, places for four halves, rope of two stages, all as tiles of
 * 64 rows of 128 bytes, swizzled. Where a stage's rope was its p goes, once its
 * scores are there.
 *
 * Maxima move as in attend.cuh, only when a score is 2^8 above. A warp has all
 * keys of its 16 heads, so it asks no other; what the maxima are is told with p.
 */
#ifndef DCPG_ATTEND_HEADS_CUH
#define DCPG_ATTEND_HEADS_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_out.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace dcpg {
namespace {

struct Heads {
	static constexpr bool bf16 = true, swapped = false;
	static constexpr int nh = 64, splits = 1, max_team = 1;
	static constexpr size_t in_bytes = 0;
	static constexpr int computing = 256, work = 256, telling = work;
	static constexpr int threads = computing + 256;
	/* of one that computes, of one that brings rows */
	static constexpr int regs = 200, spare = 56;
	static_assert(256 * (regs + spare) <= 65536, "registers of a block");
	static constexpr int row = 1152, rope = 1024;	/* rope in a row */
	static constexpr int tile = 64 * 128, half = 4 * tile;
	static constexpr int q_off = 0;
	static constexpr int half_off = q_off + 9 * tile;
	static constexpr int rope_off = half_off + 4 * half;
	static constexpr int fs_off = rope_off + 2 * tile;
	static constexpr int m_off = fs_off + nh * 4;	/* [2][64]: of stages */
	static constexpr int l_off = m_off + 2 * nh * 4;	/* [2][64] */
	static constexpr int bar_off = l_off + 2 * nh * 4;
	static constexpr int bytes = bar_off + 14 * 8;
	static_assert(bytes <= SMEM_MAX, "shared memory of a block");
};

/*
 * Half t of all: of stage t / 2, first the one that who scores the stage sums.
 * Its dimensions begin at 256 h; its barriers tell that it is there and that it
 * may be overwritten, and have this parity.
 */
struct Half {
	uint32_t place, turn, h;

	__device__ inline
	Half(uint32_t t) : place(t % 4), turn(t / 4 & 1), h((t / 2 + t) % 2)
	{
	}
	__device__ inline uint32_t
	at(uint32_t smem) const
	{
		return smem + Heads::half_off + place * Heads::half;
	}
	__device__ inline uint32_t
	full(uint32_t smem) const
	{
		return smem + Heads::bar_off + place * 8;
	}
	__device__ inline uint32_t
	empty(uint32_t smem) const
	{
		return full(smem) + 32;
	}
};

/* The same of a stage's rope, and then p: rope is there, p is, and neither is
 * needed any more. */
struct Weights {
	uint32_t place, turn;

	__device__ inline
	Weights(uint32_t i) : place(i % 2), turn(i / 2 & 1)
	{
	}
	__device__ inline uint32_t
	at(uint32_t smem) const
	{
		return smem + Heads::rope_off + place * Heads::tile;
	}
	__device__ inline uint32_t
	rope(uint32_t smem) const
	{
		return smem + Heads::bar_off + 64 + place * 8;
	}
	__device__ inline uint32_t
	p(uint32_t smem) const
	{
		return rope(smem) + 16;
	}
	__device__ inline uint32_t
	done(uint32_t smem) const
	{
		return rope(smem) + 32;
	}
};

__device__ inline void
heads_barriers(uint32_t smem)
{
	for (uint32_t i = 0; i < 4; i++) {
		mbar_init(Half(i).full(smem), 128);
		mbar_init(Half(i).empty(smem), 4);
	}
	for (uint32_t i = 0; i < 2; i++) {
		mbar_init(Weights(i).rope(smem), 128);
		mbar_init(Weights(i).p(smem), 4);
		mbar_init(Weights(i).done(smem), 8);
	}
	mbar_publish();
}

/* A number that the compiler knows nothing of, so that it does not keep what
 * follows from it from one stage to the next: there are no registers for that. */
__device__ inline uint32_t
fresh(uint32_t x)
{
	asm volatile("" : "+r"(x));
	return x;
}

__device__ inline Place
fresh_place(void)
{
	uint32_t t = fresh(threadIdx.x), lane = t % 32;

	return { t / 128, t / 32 % 4, lane, lane / 4, lane % 4 };
}

/* --- the warps that bring rows ------------------------------------------- */

/* Of stage i of n keys the list's entry of the lane's key: the warp has 16. The
 * last key fills a stage up. */
__device__ inline uint32_t
entry(const uint32_t *list, uint32_t i, uint32_t n)
{
	return list[min(i * KEYS + threadIdx.x % 128 / 32 * 16 +
	    threadIdx.x % 16, n - 1)];
}

__device__ inline const uint8_t *
row_of(const Args &g, uint32_t entries, uint32_t key)
{
	return g.pool + (size_t)__shfl_sync(~0u, entries, key) * Heads::row;
}

/* One row at a time, 16 bytes a lane. */
__device__ inline void
bring_half(const Args &g, uint32_t smem, const Half &half, uint32_t entries)
{
	uint32_t lane = fresh(threadIdx.x % 32);
	uint32_t dst = half.at(smem) + lane / 8 * Heads::tile +
	    threadIdx.x % 128 / 32 * 2048 + lane % 8 * 16;

#pragma unroll
	for (uint32_t j = 0; j < 16; j++)
		copy16((dst ^ (j % 8 * 16)) + j * 128, row_of(g, entries, j) +
		    512 * half.h + lane * 16);
	mbar_arrive_copies(half.full(smem));
}

/* Four at a time. */
__device__ inline void
bring_rope(const Args &g, uint32_t smem, const Weights &to, uint32_t entries)
{
	uint32_t lane = fresh(threadIdx.x % 32), r = lane / 8, c = lane % 8;
	uint32_t dst = to.at(smem) + (threadIdx.x % 128 / 32 * 16 + r) * 128 +
	    ((c ^ r) << 4);

#pragma unroll
	for (uint32_t j = 0; j < 16; j += 4)
		copy16((dst ^ (j % 8 * 16)) + j * 128, row_of(g, entries, j +
		    r) + Heads::rope + c * 16);
	mbar_arrive_copies(to.rope(smem));
}

/* The first of these warpgroups brings the first half of each stage. */
__device__ inline void
bring_rows(const Args &g, uint32_t smem, const uint32_t *list, uint32_t n)
{
	uint32_t second = threadIdx.x / 128 % 2;
	uint32_t stages = (n + KEYS - 1) / KEYS, now = entry(list, 0, n), next;

#pragma unroll 1
	for (uint32_t i = 0; i < stages; i++, now = next) {
		Half half(2 * i + second);
		Weights to(i);

		next = entry(list, i + 1, n);
		if (i >= 2)
			mbar_wait(half.empty(smem), half.turn ^ 1);
		bring_half(g, smem, half, now);
		if (!second)
			continue;
		if (i >= 2)
			mbar_wait(to.done(smem), to.turn ^ 1);
		bring_rope(g, smem, to, now);
	}
	copies_wait();
}

/* --- the warps that compute ---------------------------------------------- */

/* Of a thread's heads, rows g and g + 8 of its warp's 16: o, twice 128
 * dimensions, and l over its own warpgroup's stages, in units of 2^m. */
struct HeadSums {
	float o[2][64], l[2], m[2];
};

__device__ inline void
pin(HeadSums &a)
{
	wg_pin(a.o[0]);
	wg_pin(a.o[1]);
}

/* The maxima as of stage i of the thread's two heads, 32 bytes apart. */
__device__ inline uint32_t
maxima_at(const Place &p, uint32_t smem, uint32_t i)
{
	return smem + Heads::m_off + (i % 2 * Heads::nh + 16 * p.w + p.g) * 4;
}

/* The sums in units of these. */
__device__ inline void
follow(HeadSums &a, float m0, float m1)
{
	float k[2];

	if (!__any_sync(~0u, m0 != a.m[0] || m1 != a.m[1]))
		return;
	k[0] = ex2(a.m[0] - m0);
	k[1] = ex2(a.m[1] - m1);
#pragma unroll
	for (int j = 0; j < 128; j++)
		a.o[j / 64][j % 64] *= k[j % 4 / 2];
	a.l[0] *= k[0];
	a.l[1] *= k[1];
	a.m[0] = m0;
	a.m[1] = m1;
}

/* s[64 heads][64 keys] (+)= N steps of 16 dimensions; the product is under way. */
template <int N>
__device__ inline void
score(float (&s)[32], uint32_t q, uint32_t k, bool keep)
{
	uint32_t qd = desc128_base(q), kd = desc128_base(k);

	fence_async();
	wg_fence();
#pragma unroll
	for (int x = 0; x < N; x++) {
		int off = x / 4 * Heads::tile + x % 4 * 32;

		mma_keys(s, desc128_at(qd, off), desc128_at(kd, off), keep ||
		    x > 0);
	}
	wg_commit();
}

__device__ inline void
score_half(float (&s)[32], uint32_t smem, const Half &half, bool keep)
{
	mbar_wait(half.full(smem), half.turn);
	score<16>(s, fresh(smem) + Heads::q_off + half.h * Heads::half,
	    half.at(fresh(smem)), keep);
}

__device__ inline void
score_rope(float (&s)[32], uint32_t smem, const Weights &of)
{
	mbar_wait(of.rope(smem), of.turn);
	score<4>(s, fresh(smem) + Heads::q_off + 2 * Heads::half,
	    of.at(fresh(smem)), true);
}

/* Scores of stage i, nk keys, to p and its maxima, in shared memory; l: sums of
 * p. */
__device__ inline void
weigh_keys(float (&s)[32], float (&l)[2], const HeadSums &a, const Place &p,
    uint32_t smem, uint32_t i, uint32_t nk)
{
	uint32_t fs = smem + Heads::fs_off + (16 * p.w + p.g) * 4;
	uint32_t row = p.lane % 8 + p.lane / 8 % 2 * 8 + 16 * p.w;
	uint32_t at = Weights(i).at(smem) + row * 128;

	if (nk < KEYS)
#pragma unroll
		for (int j = 0; j < 32; j++)
			if (j / 4 * 8 + 2 * p.c + j % 2 >= nk)
				s[j] = -INFINITY;
#pragma unroll
	for (int u = 0; u < 2; u++) {
		float f = ldsf(fs + 32 * u), x = -INFINITY, m = a.m[u];

#pragma unroll
		for (int j = 2 * u; j < 32; j += 4)
			x = fmaxf(x, fmaxf(s[j], s[j + 1]));
		x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
		x = fmaxf(x, __shfl_xor_sync(~0u, x, 2)) * f;
		if (x > m + GROW)
			m = x;
		l[u] = 0.0f;
#pragma unroll
		for (int j = 2 * u; j < 32; j += 4) {
			s[j] = ex2(fmaf(s[j], f, -m));
			s[j + 1] = ex2(fmaf(s[j + 1], f, -m));
			l[u] += s[j] + s[j + 1];
		}
		if (p.c == 0)
			sts32(maxima_at(p, smem, i) + 32 * u,
			    __float_as_uint(m));
	}
#pragma unroll
	for (uint32_t k = 0; k < 4; k++) {
		const float *x = s + 8 * k;

		stmatrix4(at + (((2 * k + p.lane / 16) ^ (row % 8)) << 4),
		    pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
		    pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
	}
	__syncwarp();
	if (p.lane == 0)
		mbar_arrive(Weights(i).p(smem));
}

/* o += p v of stage i, when its p is there. */
__device__ inline void
sum_stage(HeadSums &a, const Place &p, uint32_t smem, uint32_t i)
{
	Half half(2 * i + (i % 2 != p.wg));
	Weights of(i);
	uint32_t pd = desc128_base(of.at(fresh(smem)));
	uint32_t vd = desc_mn_base(half.at(fresh(smem)));
	uint32_t m = maxima_at(p, smem, i);

	mbar_wait(half.full(smem), half.turn);
	mbar_wait(of.p(smem), of.turn);
	fence_async();
	follow(a, ldsf(m), ldsf(m + 32));
	pin(a);
	wg_fence();
#pragma unroll
	for (int k = 0; k < 8; k++)
		mma_values(a.o[k / 4], desc128_at(pd, k % 4 * 32),
		    desc128_at(vd, k % 4 * 2048 + k / 4 * 2 * Heads::tile));
	wg_commit();
	wg_wait<0>();
	pin(a);
	__syncwarp();
	if (p.lane == 0) {
		mbar_arrive(half.empty(smem));
		mbar_arrive(of.done(smem));
	}
}

/* The stage before, and stage i, this warpgroup's own, of nk keys. */
__device__ inline void
head_stage(HeadSums &a, uint32_t smem, uint32_t i, uint32_t nk)
{
	Place p = fresh_place();
	float s[32], l[2];

	score_half(s, smem, Half(2 * i), false);
	wg_wait<0>();
	wg_pin(s);
	if (i > 0)
		sum_stage(a, p, smem, i - 1);
	score_half(s, smem, Half(2 * i + 1), true);
	score_rope(s, smem, Weights(i));
	wg_wait<0>();
	wg_pin(s);
	weigh_keys(s, l, a, p, smem, i, nk);
	sum_stage(a, p, smem, i);
	a.l[0] += l[0];
	a.l[1] += l[1];
}

/* l of all keys of the thread's two heads: both warpgroups have it in units of
 * the last stage. */
__device__ inline void
both_l(HeadSums &a, const Place &p, uint32_t smem)
{
	uint32_t at = smem + Heads::l_off + (16 * p.w + p.g) * 4;

#pragma unroll
	for (int u = 0; u < 2; u++) {
		a.l[u] += __shfl_xor_sync(~0u, a.l[u], 1);
		a.l[u] += __shfl_xor_sync(~0u, a.l[u], 2);
		if (p.c == 0)
			sts32(at + p.wg * Heads::nh * 4 + u * 32,
			    __float_as_uint(a.l[u]));
	}
	bar_sync(BAR_SUMS, Heads::work);
#pragma unroll
	for (int u = 0; u < 2; u++)
		a.l[u] = ldsf(at + u * 32) + ldsf(at + Heads::nh * 4 + u * 32);
}

/* o times k to where the heads go, dimensions 256 wg .. of the warp's 16; bf16
 * by way of where q was, in whole lines. */
__device__ inline void
write_heads(const Args &g, HeadSums &a, const float (&k)[2], const Place &p,
    uint32_t smem)
{
	uint32_t at = smem + Heads::q_off + (p.wg * 4 + p.w) * 8192;
	uint32_t row = p.lane % 8 + p.lane / 8 % 2 * 8;

#pragma unroll
	for (int j = 0; j < 128; j++)
		a.o[j / 64][j % 64] *= k[j % 4 / 2];
	if (g.out_f32) {
#pragma unroll
		for (uint32_t u = 0; u < 2; u++) {
			float *to = (float *)Dest<Heads>(g, 16 * p.w + p.g +
			    8 * u).o + 256 * p.wg + 2 * p.c;

#pragma unroll
			for (int j = 0; j < 32; j++) {
				const float *x = a.o[j / 16] + j % 16 * 4 +
				    2 * u;

				put(to + 8 * j, make_uint2(__float_as_uint(
				    x[0]), __float_as_uint(x[1])));
			}
		}
		return;
	}
#pragma unroll
	for (uint32_t j = 0; j < 16; j++) {
		const float *x = a.o[j / 8] + j % 8 * 8;

		stmatrix4(at + row * 512 + (((2 * j + p.lane / 16) ^
		    (row % 8)) << 4), pack_bf16(x[0], x[1]),
		    pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
		    pack_bf16(x[6], x[7]));
	}
	__syncwarp();
#pragma unroll 4
	for (uint32_t r = 0; r < 16; r++)
		put(Dest<Heads>(g, 16 * p.w + r).o + 256 * p.wg + 8 * p.lane,
		    lds128(at + r * 512 + ((p.lane ^ (r % 8)) << 4)));
}

/* n keys of one query row. */
__device__ inline void
compute_heads(const Args &g, const Place &p, uint32_t smem, uint32_t n)
{
	uint32_t stages = (n + KEYS - 1) / KEYS, i;
	HeadSums a;
	float k[2];

#pragma unroll
	for (int j = 0; j < 128; j++)
		a.o[j / 64][j % 64] = 0.0f;
#pragma unroll
	for (int u = 0; u < 2; u++) {
		a.l[u] = 0.0f;
		a.m[u] = -INFINITY;
	}
#pragma unroll 1
	for (i = p.wg; i < stages; i += 2)
		head_stage(a, smem, i, min(n - i * KEYS, KEYS));
	if (i == stages && stages > 0)	/* the last one is not its own */
		sum_stage(a, p, smem, i - 1);
	both_l(a, p, smem);
#pragma unroll
	for (int u = 0; u < 2; u++) {
		k[u] = a.l[u] == 0.0f ? 0.0f : __fdividef(1.0f, a.l[u]);
		if (p.wg == 0 && p.c == 0)
			put(Dest<Heads>(g, 16 * p.w + p.g + 8 * u).lse,
			    natural(a.m[u], a.l[u]));
	}
	write_heads(g, a, k, p, smem);
	if (g.arrive)
		tell_owners<Heads>(g);
}

/* grid: (1, heads / 64, rows). */
__global__ void __launch_bounds__(Heads::threads, 1)
heads_kernel(const Args g)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	const uint32_t *list = g.list + (size_t)blockIdx.z * g.list_stride;
	uint32_t smem = smem_addr(mem), lane = threadIdx.x % 32, n;
	Place p = { threadIdx.x / 128, threadIdx.x / 32 % 4, lane, lane / 4,
	    lane % 4 };

	if (p.wg == 2)
		fetch_list<Heads>(g);
	if (threadIdx.x == 0)
		heads_barriers(smem);
	__syncthreads();
	launch_wait();
	launch_next();
	n = min(g.count[blockIdx.z], g.max_count);
	if (p.wg >= 2) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::
		    "n"(Heads::spare));
		if (n > 0)
			bring_rows(g, smem, list, n);
		return;
	}
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(Heads::regs));
	load_q<Heads>(g, g.q + ((size_t)blockIdx.z * g.heads + blockIdx.y *
	    Heads::nh) * 1152, mem);
	fence_async();
	bar_sync(BAR_Q, Heads::computing);
	compute_heads(g, p, smem, n);
}

}	/* namespace */
}	/* namespace dcpg */
#endif
