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
	uint32_t stages = (n + KEYS - 1) / KEYS;
	Ring<S> ring = { 0, 0 };

	ring = ring.ahead(p.wg);
#pragma unroll 1
	for (uint32_t i = p.wg; i < stages; i += S::wgs) {
		score_stage<S>(a, p, smem, ring, i, stages, n);
		ring = ring.ahead(S::wgs);
	}
	share_l<S>(a, p, smem);
}

/* From p to a.o. */
template <class S>
__device__ inline void
sum_rounds(Acc<S> &a, const Place &p, const Team &team, uint32_t smem,
    uint32_t n)
{
	uint32_t stages = (n + KEYS - 1) / KEYS;
	Ring<S> ring = { 0, 0 };

	if (stages > 0)
		sum_stages<S>(a, p, team, smem, ring, 0, stages, stages, n);
}

}	/* namespace */
}	/* namespace dcpg */
#endif
