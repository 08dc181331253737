/*
 * The rounds of a block of 32 heads over fp8 rows, in place of attend(). There
 * the computing warps do the same thing at the same time, scores or sums, and
 * wait for it; here 2 warpgroups score and 2 others sum, so that a scheduler
 * has both kinds of work. Who scores is up to two rounds ahead: p, the scales
 * for the values and how o is to be rescaled stand in one of two places in turn
 * (Shape::turns). BAR_FULL + turn: it is all there; BAR_FREE + turn: it has
 * been read. Who sums gives the stages back.
 */
#ifndef DCPG_ATTEND_ROLES_CUH
#define DCPG_ATTEND_ROLES_CUH

#include "kernels/cuda/attend.cuh"

namespace dcpg {
namespace {

/* From the keys to p and a.l. n: keys of the block. */
template <class S>
__device__ inline void
score_rounds(Acc<S> &a, const Place &p, uint32_t smem, uint32_t n)
{
	constexpr uint32_t ROUND = S::wgs * KEYS;
	uint32_t full = smem + S::bar_off, s0 = 0, phase = 0, turn = 0;

	for (uint32_t i0 = 0; i0 < n; i0 += ROUND) {
		uint32_t i = i0 + p.wg * KEYS, s = place<S>(s0, p.wg), nk = 0;
		uint32_t st = smem + S::stage_off + s * S::stage;
		float x[S::nh / 2];

		if (i < n) {
			nk = min(KEYS, n - i);
			mbar_wait(full + s * 8, phase ^ (s < s0));
			score<S>(x, p, st, smem + S::q_off);
		}
		if (i0 >= 2 * ROUND)
			bar_sync(BAR_FREE + turn, S::computing);
		softmax<S>(x, a, p, smem, st, nk, i0 == 0, turn);
		s = place<S>(s0, S::wgs);
		phase ^= s <= s0;
		s0 = s;
		turn ^= 1;
	}
	share_l<S>(a, p, smem);
}

/* o in the units of the round: its maxima, its C. */
template <class S>
__device__ inline void
follow(Acc<S> &a, const Place &p, uint32_t told)
{
	uint2 x = lds64(told + S::nh * 4);

	a.cexp = x.y;
	if (x.x == 0)
		return;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float k = ldsf(told + col_head(j, p.c) * 4);

#pragma unroll
		for (int i = 0; i < S::tiles; i++) {
			a.o[i][col_acc(j)] *= k;
			a.o[i][col_acc(j) + 2] *= k;
		}
	}
}

/* From p to a.o. */
template <class S>
__device__ inline void
sum_rounds(Acc<S> &a, const Place &p, const Team &team, uint32_t smem,
    uint32_t n)
{
	constexpr uint32_t ROUND = S::wgs * KEYS;
	uint32_t full = smem + S::bar_off, s0 = 0, phase = 0, turn = 0, s;

	for (uint32_t i0 = 0; i0 < n; i0 += ROUND) {
		bar_sync(BAR_FULL + turn, S::computing);
		follow<S>(a, p, smem + S::told_off + turn * S::told_turn);
#pragma unroll
		for (uint32_t w = 0; w < S::wgs; w++)
			if (i0 + w * KEYS < n) {
				s = place<S>(s0, w);
				mbar_wait(full + s * 8, phase ^ (s < s0));
			}
		accumulate<S>(a, p, team, smem, s0, min(n - i0, ROUND),
		    n - i0 < ROUND, turn);
		if (i0 + 2 * ROUND < n)
			bar_arrive(BAR_FREE + turn, S::computing);
		s = place<S>(s0, S::wgs);
		phase ^= s <= s0;
		s0 = s;
		turn ^= 1;
	}
}

}	/* namespace */
}	/* namespace dcpg */
#endif
