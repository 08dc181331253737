/*
 * The rounds of a block of 64 heads over bf16 rows, in place of attend(). Two
 * stages are all that fits beside 72 KB of q, so a round is one stage and the
 * other is on its way meanwhile: both warpgroups score the same 64 keys, each
 * against 32 of the heads, and each sums half of the output dimensions of all
 * heads, as elsewhere.
 */
#ifndef DCPG_ATTEND_WIDE_CUH
#define DCPG_ATTEND_WIDE_CUH

#include "kernels/cuda/attend.cuh"

namespace dcpg {
namespace {

constexpr int HALF = 32;	/* heads that a warpgroup scores */

/* A score grew: the new maxima of the thread's 32 heads to m; l, and o of all
 * 64 heads, rescaled. */
template <class S>
__device__ inline void
raise_wide(const float (&x)[HALF / 2], float (&m)[HALF / 4],
    float (&l)[HALF / 4], Acc<S> &a, const Place &p, uint32_t smem, bool first)
{
	uint32_t all = smem + S::ms_off, ms = all + p.wg * HALF * 4;
	float old[S::nh / 4];

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		old[j] = unordered(lds32(all + col_head(j, p.c) * 4));
	bar_sync(BAR_WIDE_MAX, S::work);	/* all have read */
#pragma unroll
	for (int j = 0; j < HALF / 4; j++) {
		float y = fmaxf(x[col_acc(j)], x[col_acc(j) + 2]);

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			y = fmaxf(y, __shfl_xor_sync(~0u, y, k));
		if (p.g == 0)
			max_s32(ms + col_head(j, p.c) * 4, ordered(y));
	}
	bar_sync(BAR_WIDE_MAX, S::work);
#pragma unroll
	for (int j = 0; j < HALF / 4; j++) {
		float y = unordered(lds32(ms + col_head(j, p.c) * 4));

		l[j] *= y == m[j] ? 1.0f : ex2(m[j] - y);
		m[j] = y;
	}
#pragma unroll
	for (int j = 0; j < S::nh / 4 && !first; j++) {
		float y = unordered(lds32(all + col_head(j, p.c) * 4));
		float k = y == old[j] ? 1.0f : ex2(old[j] - y);

#pragma unroll
		for (int i = 0; i < S::tiles; i++) {
			a.o[i][col_acc(j)] *= k;
			a.o[i][col_acc(j) + 2] *= k;
		}
	}
}

/* As softmax(), for the warpgroup's heads. */
template <class S>
__device__ inline void
softmax_wide(float (&x)[HALF / 2], float (&l)[HALF / 4], Acc<S> &a,
    const Place &p, uint32_t smem, uint32_t nk, bool first)
{
	bool in0 = 16 * p.w + p.g < nk, in1 = 16 * p.w + p.g + 8 < nk;
	uint32_t fs = smem + S::fs_off + p.wg * HALF * 4;
	uint32_t ms = smem + S::ms_off + p.wg * HALF * 4;
	uint32_t y[HALF / 4];
	float m[HALF / 4];
	bool over = false;

#pragma unroll
	for (int j = 0; j < HALF / 4; j++) {
		float f = ldsf(fs + col_head(j, p.c) * 4);
		float &x0 = x[col_acc(j)], &x1 = x[col_acc(j) + 2];

		m[j] = unordered(lds32(ms + col_head(j, p.c) * 4));
		x0 = in0 ? x0 * f : -INFINITY;
		x1 = in1 ? x1 * f : -INFINITY;
		over |= fmaxf(x0, x1) > m[j] + GROW;
	}
	/* The vote is where all have read the last round's p. */
	if (bar_any(BAR_WIDE_VOTE, S::work, over || first))
		raise_wide<S>(x, m, l, a, p, smem, first);
#pragma unroll
	for (int j = 0; j < HALF / 4; j += 2) {
		float z[4];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			int k = col_acc(j + i);

			z[i] = in0 ? ex2(x[k] - m[j + i]) : 0.0f;
			z[2 + i] = in1 ? ex2(x[k + 2] - m[j + i]) : 0.0f;
			l[j + i] += z[i] + z[2 + i];
		}
		y[j] = pack_bf16(z[0], z[1]);
		y[j + 1] = pack_bf16(z[2], z[3]);
	}
	store_p<Shape<true, HALF, 2>>(y, p, smem + S::p_off +
	    p.wg * HALF * 128);
	fence_async();
	bar_sync(BAR_WIDE_P, S::work);
}

/* share_l() for them; where p was. */
template <class S>
__device__ inline void
share_wide(const float (&l)[HALF / 4], const Place &p, uint32_t smem)
{
	bar_sync(BAR_WIDE_VOTE, S::work);	/* the last p is read */
#pragma unroll
	for (int j = 0; j < HALF / 4; j++) {
		float x = l[j];

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			x += __shfl_xor_sync(~0u, x, k);
		if (p.g == 0)
			sts32(smem + S::red_off + (p.wg * HALF + col_head(j,
			    p.c)) * S::rrow + p.w * 4, __float_as_uint(x));
	}
	bar_arrive(BAR_L, S::work + 128);
}

/* All rounds, and l. n: keys of the block. */
template <class S>
__device__ inline void
attend_wide(Acc<S> &a, const Place &p, const Team &team, uint32_t smem,
    uint32_t n)
{
	uint32_t s = 0, turn = 0;
	float l[HALF / 4] = { 0 };

	for (uint32_t i0 = 0; i0 < n; i0 += KEYS) {
		uint32_t st = smem + S::stage_off + s * S::stage;
		uint32_t left = n - i0;
		float x[HALF / 2];
		Values<S> v;

		mbar_wait(smem + S::bar_off + s * 8, turn);
		score_bf16<S, HALF>(x, p, st, smem + S::q_off +
		    p.wg * HALF * 128);
		softmax_wide<S>(x, l, a, p, smem, min(left, KEYS), i0 == 0);
		v.fetch(p, smem, s, 0);
		accumulate<S>(a, v, p, team, smem, s, left, left > S::stages *
		    KEYS, 0);
		wg_wait<0>();
		pin_o(a);
		if (++s == S::stages) {
			s = 0;
			turn ^= 1;
		}
	}
	share_wide<S>(l, p, smem);
}

}	/* namespace */
}	/* namespace dcpg */
#endif
