/*
 * The rounds of a block whose warpgroups have roles, in place of attend(). There
 * the computing warps do the same thing at the same time, scores or sums, and
 * wait for it; here W warpgroups score and W others sum, so that a scheduler
 * has both kinds of work. Who scores is up to two rounds ahead: there are 2 W
 * places for what a stage's sums need (Shape::places). Who sums gives the stages
 * back.
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
