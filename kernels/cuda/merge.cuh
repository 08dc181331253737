/*
 * Partial attention outputs of several ranks, made one by their LSE, for
 * attend_op.cu. value.cu, whose few rows are all under way at once, merges by
 * itself.
 */
#ifndef DCPG_MERGE_CUH
#define DCPG_MERGE_CUH

#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>

namespace dcpg {

/*
 * Eight values, sum_e exp(l_e - max l) p_e / sum_e exp(l_e - max l) as bf16, or
 * 0 where no rank has any (-inf; NaN and +inf are empty too). Rank e's are at
 * part[e] + at * c + col, its LSE at lse[e] + at. In rank order; what four
 * ranks have is under way at once, since most of it comes from peers' memory.
 */
__device__ inline uint4
merge_eight(const __nv_bfloat16 *const *part, const float *const *lse,
    uint32_t ranks, size_t at, uint32_t c, uint32_t col)
{
	float m = -INFINITY, den = 0, v[8] = {};
	uint4 out;
	__nv_bfloat16 *y = (__nv_bfloat16 *)&out;

#pragma unroll 1
	for (uint32_t e0 = 0; e0 < ranks; e0 += 4) {
		float l[4], top = m;
		uint4 x[4];

#pragma unroll
		for (uint32_t e = 0; e < 4; e++) {
			l[e] = -INFINITY;
			if (e0 + e >= ranks)
				continue;
			l[e] = lse[e0 + e][at];
			x[e] = *(const uint4 *)(part[e0 + e] + at * c + col);
		}
#pragma unroll
		for (uint32_t e = 0; e < 4; e++) {
			if (!(l[e] < INFINITY))
				l[e] = -INFINITY;
			top = fmaxf(top, l[e]);
		}
		if (top == -INFINITY)
			continue;
		for (uint32_t d = 0; d < 8; d++)
			v[d] *= __expf(m - top);
		den *= __expf(m - top);
		m = top;
#pragma unroll
		for (uint32_t e = 0; e < 4; e++) {
			const __nv_bfloat16 *p = (const __nv_bfloat16 *)&x[e];
			float w = __expf(l[e] - m);

			if (w == 0)
				continue;
			den += w;
			for (uint32_t d = 0; d < 8; d++)
				v[d] += w * __bfloat162float(p[d]);
		}
	}
	for (uint32_t d = 0; d < 8; d++)
		y[d] = __float2bfloat16(den > 0 ? v[d] / den : 0);
	return out;
}

}	/* namespace dcpg */

#endif
