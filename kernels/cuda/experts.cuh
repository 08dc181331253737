/*
 * What the products of routed experts share, whatever their weights are
 * (experts.cu, experts4.cu).
 */
#ifndef DCPG_EXPERTS_CUH
#define DCPG_EXPERTS_CUH

#include <stdint.h>

#include "kernels/cuda/ptx.cuh"

namespace dcpg {

/* silu(x) * y */
__device__ inline float
glu(float x, float y)
{
	return x / (1 + __expf(-x)) * y;
}

/* Where a warp is in a ring of N stages. */
template <uint32_t N>
struct ring {
	uint32_t s = 0;		/* the stage */
	uint32_t turn = 0;	/* how often it was round */

	__device__ inline void
	next(void)
	{
		if (++s == N) {
			s = 0;
			turn++;
		}
	}
};

/*
 * Sums of the cluster's blocks, of 128 threads each that multiply; each is left
 * with the elements i that it is to write: i % split == its rank. At buf stand
 * 512 bytes for each i of both.
 */
template <int N>
__device__ inline void
add_parts(float (&p)[N / 2], float (&q)[N / 2], uint32_t buf, uint32_t split)
{
	uint32_t me = blockIdx.x % split, at = buf + threadIdx.x * 4;

	bar_sync(1, 128);
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		sts32(at + i * 1024, __float_as_uint(p[i]));
		sts32(at + i * 1024 + 512, __float_as_uint(q[i]));
	}
	cluster_sync();
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		if (i % split != me)
			continue;
		p[i] = q[i] = 0;
		for (uint32_t r = 0; r < split; r++) {
			uint32_t from = cluster_map(at + i * 1024, r);
			float v, w;

			asm volatile("ld.shared::cluster.f32 %0, [%2];\n"
			    "ld.shared::cluster.f32 %1, [%2 + 512];"
			    : "=f"(v), "=f"(w) : "r"(from) : "memory");
			p[i] += v;
			q[i] += w;
		}
	}
}

}	/* namespace dcpg */
#endif
