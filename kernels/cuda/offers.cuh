/*
 * Selection over ranks: what a rank offers of a row, and what all did. See
 * select.cu.
 */
#ifndef DCPG_OFFERS_CUH
#define DCPG_OFFERS_CUH

#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/select.cuh"

namespace dcpg {
namespace {

/* A window is one word: the digits where it begins and ends, above, n. */
__device__ inline Window
window_of(uint64_t word)
{
	return (Window){ digit_first_key(word & 2047), digit_first_key(
	    word >> 11 & 4095), (uint32_t)(word >> 23) & 16383,
	    DCPG_WINDOW_N(word) };
}

/* The window around a rank's k/D-th best: not more than `few` of its keys stand
 * above it, and at least `many` above its end. */
__device__ inline uint64_t
find_window(Scan &s, const uint32_t *hist, uint32_t len, uint32_t few,
    uint32_t many)
{
	uint32_t lo = 0, hi = DCPG_BINS, above = 0, n = len;

	find_bins(s, my_bins(hist), few + 1, many);
	if (few > 0 && s.two[0].in_bin != 0) {
		hi = s.two[0].bin + 1;
		above = few + 1 - s.two[0].need;
	}
	if (s.two[1].in_bin != 0) {
		lo = s.two[1].bin;
		n = many - s.two[1].need + s.two[1].in_bin;
	}
	return lo | hi << 11 | (uint64_t)above << 23 | (uint64_t)(n - above) <<
	    37;
}

/* To rank threadIdx.x. */
__device__ inline void
send_window(const struct dcpg_select &g, uint64_t word)
{
	uint32_t e = threadIdx.x;

	if (blockIdx.x == 0 && e < g.ranks && g.to_window[e] != NULL)
		peer_put(&g.to_window[e][blockIdx.y].word, word);
}

/* What was there before. */
__device__ inline uint32_t
add_in_first_block(uint32_t *p, uint32_t n)
{
	uint32_t before;

	asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], "
	    "%2;" : "=r"(before) : "r"(cluster_map(smem_addr(p), 0)), "r"(n) :
	    "memory");
	return before;
}

/* A warp's `n` keys, listed at `list`, to where ranks take them, in
 * neighbouring places: by the histogram all know how many all blocks have. */
__device__ inline void
push_offers(Shared &s, const struct dcpg_select &g, uint32_t list, uint32_t n)
{
	uint32_t lane = threadIdx.x % 32, at = 0;

	__syncwarp();
	if (n == 0)
		return;
	if (lane == 0)
		at = blockIdx.y * g.cap + add_in_first_block(&s.offered, n);
	at = __shfl_sync(~0u, at, 0);
#pragma unroll 1
	for (uint32_t i = lane; i < n; i += 32) {
		uint2 x = lds64(list + 8 * i);
		uint64_t c = (uint64_t)x.y << 32 | x.x;

#pragma unroll 1
		for (uint32_t e = 0; e < g.ranks; e++)
			if (g.to[e] != NULL)
				peer_put(&g.to[e][at + i], c);
	}
}

/*
 * Counts the winners; a warp lists, in s.edge, the keys in the window of which
 * it has made the words: a lane has one of four words of every eighth group.
 * How many, and where they begin; none if they are not to be put. Keys are few
 * among many, so they are listed before their scores are read, all at once.
 */
__device__ inline uint32_t
list_marked(Shared &s, const struct dcpg_select &g, const Marks &m,
    const Run &run, bool put, uint32_t &list)
{
	uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * GROUP +
	    lane / 4 * STEP;
	uint32_t sure = 0, n = 0, upto, all;

	__syncwarp();
#pragma unroll 1
	for (uint32_t i = first; i < run.n; i += 8 * STEP) {
		sure += __popc(m.win[i / 32 + lane % 4]);
		n += __popc(m.on[i / 32 + lane % 4]);
	}
	sure = __reduce_add_sync(~0u, sure);
	if (lane == 0 && sure != 0)
		atomicAdd(&s.tally[blockIdx.x].sure, sure);
	upto = n;
#pragma unroll
	for (int k = 1; k < 32; k *= 2) {
		uint32_t y = __shfl_up_sync(~0u, upto, k);

		upto += lane >= k ? y : 0;
	}
	all = __shfl_sync(~0u, upto, 31);
	if (!put)		/* there may be too many */
		return 0;
	list = 0;
	if (lane == 0)
		list = atomicAdd(&s.listed, all);
	list = smem_addr(s.edge) + 8 * __shfl_sync(~0u, list, 0);
	upto = list + 8 * (upto - n);
#pragma unroll 1
	for (uint32_t i = first; i < run.n; i += 8 * STEP)
#pragma unroll 1
		for (uint32_t b = m.on[i / 32 + lane % 4]; b != 0;
		    b &= b - 1, upto += 8)
			sts32(upto, i + (__ffs(b) - 1) * 4 + lane % 4);
	__syncwarp();
#pragma unroll 1
	for (uint32_t i = lane; i < all; i += 32) {
		uint32_t j = lds32(list + 8 * i);
		uint64_t c = composite(score_key(run.score[j]), (run.first + j) *
		    g.ranks + g.rank);

		sts64(list + 8 * i, (uint32_t)c, (uint32_t)(c >> 32));
	}
	return all;
}

/* Who has to read them sees all scores of this rank's row behind this. */
__device__ inline void
scores_there(const struct dcpg_select &g)
{
	uint32_t begun;

	if (g.peer.world == 0)
		return;
	begun = *(volatile uint32_t *)peer_word(g.peer, PEER_BEGUN);
	asm volatile("fence.acq_rel.sys;" ::: "memory");
	for (uint32_t e = 0; e < g.ranks; e++)
		if (g.to_window[e] != NULL)
			*(volatile uint32_t *)&g.to_window[e][blockIdx.y].scores
			    = begun;
}

/* Waits until rank threadIdx.x has said so, of this very meeting: what stands
 * there may be so old that it looks newer. */
__device__ inline void
await_scores(const struct dcpg_select &g)
{
	uint32_t e = threadIdx.x, at;
	const uint32_t *word;

	if (g.peer.world == 0 || e >= g.ranks)
		return;
	at = *(volatile uint32_t *)peer_word(g.peer, PEER_BEGUN);
	word = &g.from_window[e][blockIdx.y].scores;
	for (uint64_t t0 = now_ns(); peer_acquire(word) != at;) {
		if (*(volatile uint32_t *)peer_word(g.peer, PEER_LOST) != 0)
			return;
		if (now_ns() - t0 > g.peer.limit_ns) {
			peer_give_up(g.peer, g.peer.self - g.rank + e, at);
			return;
		}
	}
}

/* Keys that were offered of a row: of a rank that has too many, none. */
__device__ inline uint32_t
offers(const Shared &s, const struct dcpg_select &g)
{
	uint32_t all = 0;

#pragma unroll 1
	for (uint32_t r = 0; r < g.ranks; r++)
		all += s.window[r].n <= g.cap ? s.window[r].n : 0;
	return all;
}

/* Which rank offered the i-th of them, and where it is. */
__device__ inline uint64_t *
offer_at(const Shared &s, const struct dcpg_select &g, uint32_t i, uint32_t &r)
{
	for (r = 0; s.window[r].n > g.cap || i >= s.window[r].n; r++)
		i -= s.window[r].n <= g.cap ? s.window[r].n : 0;
	return g.from[r] + (size_t)blockIdx.y * g.cap + i;
}

/* Of rank threadIdx.x, which may be there or not. */
__device__ inline uint64_t
look_at_window(const struct dcpg_select &g)
{
	uint32_t t = threadIdx.x;

	return t < g.ranks ? peer_get(&g.from_window[t][blockIdx.y].word) : 0;
}

/* The windows of all ranks. early: look_at_window(). */
__device__ inline void
take_windows(Shared &s, const struct dcpg_select &g, uint64_t early)
{
	uint32_t t = threadIdx.x;

	if (t < g.ranks)
		s.window[t] = window_of(peer_take(g.peer, g.peer.self - g.rank +
		    t, &g.from_window[t][blockIdx.y].word, early));
	__syncthreads();
}

/* The i-th offer, which was not there; 0 if its rank is lost. */
__device__ inline uint64_t
await_offer(const Shared &s, const struct dcpg_select &g, uint32_t i)
{
	uint32_t r;
	const uint64_t *at = offer_at(s, g, i, r);
	uint64_t v = peer_take(g.peer, g.peer.self - g.rank + r, at,
	    DCPG_NO_OFFER);

	return v != DCPG_NO_OFFER ? v : 0;
}

/* For the next layer, when all blocks of the row have read. */
__device__ inline void
offers_done(const Shared &s, const struct dcpg_select &g)
{
	uint32_t t = blockIdx.x * THREADS + threadIdx.x, r;
	uint32_t all = offers(s, g);

	if (g.peer.world == 0)
		return;
	if (t < g.ranks)
		g.from_window[t][blockIdx.y].word = DCPG_NO_OFFER;
#pragma unroll 1
	for (uint32_t i = t; i < all; i += gridDim.x * THREADS)
		*offer_at(s, g, i, r) = DCPG_NO_OFFER;
}

}	/* namespace */
}	/* namespace dcpg */

#endif
