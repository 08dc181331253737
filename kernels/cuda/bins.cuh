/*
 * A block's sums and histograms, for the selection: all 256 threads call
 * together. What is used more than once is not inlined: time goes by in
 * instructions here, not in bytes.
 */
#ifndef DCPG_BINS_CUH
#define DCPG_BINS_CUH

#include <stdint.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32;
constexpr uint32_t EACH = DCPG_BINS / THREADS;	/* bins of a thread */

struct Bin {
	uint32_t bin, need, in_bin;
};

struct Scan {
	uint32_t warp[WARPS];
	uint32_t bin, need, in_bin;	/* what find_bin found */
	Bin two[2];			/* .. find_bins */
};

/* Inclusive sum over the block's threads, in thread order. A barrier must lie
 * between two calls. */
__device__ inline uint32_t
sum_inline(uint32_t x, uint32_t *warp)
{
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;

#pragma unroll
	for (int k = 1; k < 32; k *= 2) {
		uint32_t y = __shfl_up_sync(~0u, x, k);

		x += lane >= k ? y : 0;
	}
	if (lane == 31)
		warp[w] = x;
	__syncthreads();
	return x + __reduce_add_sync(~0u, lane < w ? warp[lane] : 0);
}

__device__ __noinline__ uint32_t
sum_at(uint32_t x, uint32_t warp)
{
	return sum_inline(x, at_shared<uint32_t>(warp));
}

__device__ inline uint32_t
block_sum(uint32_t x, uint32_t *warp)
{
	return sum_at(x, smem_addr(warp));
}

/* A thread's share of a histogram: thread 0 has the highest bins. */
struct Bins {
	uint32_t n[EACH];
};

__device__ inline Bins
my_bins(const uint32_t *hist)
{
	Bins b;

#pragma unroll
	for (uint32_t i = 0; i < EACH; i += 4) {
		uint4 x = *(const uint4 *)(hist + DCPG_BINS - EACH * (1 +
		    threadIdx.x) + i);

		b.n[i] = x.x;
		b.n[i + 1] = x.y;
		b.n[i + 2] = x.z;
		b.n[i + 3] = x.w;
	}
	return b;
}

/* The bin of this thread's where the sum, `above` before it, reaches need. */
__device__ inline Bin
reach(const Bins &b, uint32_t above, uint32_t need)
{
	Bin at = { 0, 0, 0 };

#pragma unroll
	for (int i = EACH - 1; i >= 0; i--) {
		if (above < need) {
			at.bin = DCPG_BINS - EACH * (1 + threadIdx.x) + i;
			at.need = need - above;
			at.in_bin = b.n[i];
		}
		above += b.n[i];
	}
	return at;
}

__device__ inline uint32_t
sum_of(const Bins &b)
{
	uint32_t mine = 0;

#pragma unroll
	for (uint32_t i = 0; i < EACH; i++)
		mine += b.n[i];
	return mine;
}

/*
 * The bin where the counts, summed from the highest bin down, reach need; how
 * many of it are needed and how many it holds: all 0 if all bins hold fewer.
 */
__device__ __noinline__ void
find_bin_at(uint32_t scan, Bins b, uint32_t need)
{
	Scan &s = *at_shared<Scan>(scan);
	uint32_t mine = sum_of(b), sum;

	if (threadIdx.x == 0)
		s.bin = s.need = s.in_bin = 0;
	sum = sum_inline(mine, s.warp);
	if (sum >= need && sum - mine < need) {
		Bin at = reach(b, sum - mine, need);

		s.bin = at.bin;
		s.need = at.need;
		s.in_bin = at.in_bin;
	}
	__syncthreads();
}

__device__ inline void
find_bin(Scan &s, Bins b, uint32_t need)
{
	find_bin_at(smem_addr(&s), b, need);
}

/* The same for two numbers at once. */
__device__ inline void
find_bins(Scan &s, const Bins &b, uint32_t need0, uint32_t need1)
{
	uint32_t mine = sum_of(b), sum;

	if (threadIdx.x < 2)
		s.two[threadIdx.x].in_bin = 0;
	sum = sum_inline(mine, s.warp);
	if (sum >= need0 && sum - mine < need0)
		s.two[0] = reach(b, sum - mine, need0);
	if (sum >= need1 && sum - mine < need1)
		s.two[1] = reach(b, sum - mine, need1);
	__syncthreads();
}

}	/* namespace */
}	/* namespace dcpg */
#endif
