/*
 * Selection of the k best scores of every query row: the threshold by sums of
 * histograms, then the winners compacted to a list of pool rows. dcpg.h says
 * what is computed; digit.cuh orders the scores.
 *
 * A cluster of 1..16 blocks owns one query row, each block a run of its keys.
 * The score kernel's histogram names the bin of the k-th best. One pass over
 * the scores finds the keys above the bin, which win, and the bin's own, the
 * boundary keys. The blocks send each other theirs; so every block has all of
 * them, finds the last winner by histograms of its own, and knows how many
 * winners the blocks before it have: the cluster meets once.
 *
 * Of D ranks each holds nearly the same share of the winners, as its keys are
 * every D-th. A rank offers, by its own histogram, those of its keys that stand
 * within six standard deviations of its k/D-th best: the window. Keys above it
 * win, and the offers of all ranks are the boundary keys. The last winner is
 * right if it lies in the windows of all.
 *
 * Where ranks meet by flags, offers need none: they are written into the memory
 * of each rank of the group, to places that hold DCPG_NO_OFFER, and a row's
 * cluster waits for its own row's window (of which lo and hi are such a word)
 * and for as many keys as it announces. Who takes a word puts DCPG_NO_OFFER
 * back; what another rank writes there next is behind attention's meeting. A
 * cluster offers before it waits, and clusters start in order of their rows on
 * every rank, so the first row that is not done can always be. With events,
 * offers stay where they are made, and a launch of its own takes them.
 *
 * Where it does not, or boundary keys do not fit (many equal scores), keys are
 * counted where they are, by all blocks together.
 *
 * For few rows all is latency, of instructions one after the other: hence loops
 * that are not unrolled, barriers without fences, and blocks small enough to
 * wait beside a score block for the last score.
 *
 * Shared memory: boundary keys 16 or 32 KB, histogram 8 KB, two bits per key, 4
 * bytes per winner. Bytes that must move: 4 per score, 8 KB of histogram, 4 per
 * winner; over ranks 8 per offered key.
 */
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include "kernels/cuda/bins.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t BLOCKS = 16;	/* most of a cluster */
constexpr uint32_t RUN = DCPG_MAX_SHARD / 8;	/* most keys of a block */
constexpr uint32_t PAGES = 256;	/* page ids of a run kept there */
constexpr uint32_t GROUP = 128;	/* keys of a warp at a time, 4 of a lane */
constexpr uint32_t STEP = WARPS * GROUP;	/* .. of all warps */
constexpr uint32_t DEEP = 4;	/* such loads of a thread under way */

/* What a block tells the others before they meet. */
struct Tally {
	uint32_t sure, edges;	/* winners by their digit; boundary keys */
};

struct Shared {
	uint32_t hist[DCPG_BINS];
	struct dcpg_window window[DCPK_MAX_RANKS];
	struct Tally tally[16];
	uint32_t total[16];	/* winners of every block, counted late */
	uint32_t page[PAGES];
	uint32_t offer;		/* where the block's offers begin */
	uint64_t meet;
	Scan scan;
	alignas(16) uint64_t edge[];	/* a part for every block's, EDGES in
				   all; behind them the bits */
};

/* Boundary keys of a row that are kept: four blocks an SM have room. */
__host__ __device__ inline uint32_t
edges(uint32_t ranks)
{
	return ranks > 1 ? 4096 : 2048;
}

/* The keys that a block owns, and where their scores are. */
struct Run {
	uint32_t first, n;
	const float *score;	/* [n] */
};

/*
 * A bit for every key of the run, of those that win and of those at the
 * boundary; behind them the local keys of the winners. A warp takes four
 * neighbours a lane and votes on the first of all lanes, the second, ..: key j
 * has bit j % 128 / 4 of word j / 128 * 4 + j % 4.
 */
struct Marks {
	uint32_t *win, *on, *won;
};

__device__ inline uint32_t
words_of(uint32_t n)
{
	return (n + GROUP - 1) / GROUP * 4;
}

__device__ inline Marks
marks(Shared &s, const struct dcpg_select &g, const Run &run)
{
	Marks m;

	m.win = at_shared<uint32_t>(smem_addr(s.edge) + edges(g.ranks) * 8);
	m.on = m.win + words_of(run.n);
	m.won = m.on + words_of(run.n);
	return m;
}

/* The key of bit b of word i. */
__device__ inline uint32_t
key_of(uint32_t i, uint32_t b)
{
	return i / 4 * GROUP + b * 4 + i % 4;
}

__device__ inline void
mark_key(const Marks &m, uint32_t j)
{
	atomicOr(m.win + j / GROUP * 4 + j % 4, 1u << j % GROUP / 4);
}

/* The boundary: keys from hi on win, and `need` of the in_bin between lo and
 * hi. */
struct Edge {
	uint32_t need, in_bin;
	uint32_t lo, hi;
};

/*
 * All threads of the cluster have come here, and see what the others wrote into
 * shared memory before. One barrier in every block; once per phase. (The
 * cluster's own barrier would also wait for what is on its way to memory.)
 */
__device__ inline void
meet(Shared &s, uint32_t &phase)
{
	__syncthreads();
	if (gridDim.x == 1)
		return;
	if (threadIdx.x < gridDim.x)
		asm volatile("mbarrier.arrive.release.cluster.shared::cluster"
		    ".b64 _, [%0];" :: "r"(cluster_map(smem_addr(&s.meet),
		    threadIdx.x)) : "memory");
	asm volatile("{\n"
	    ".reg .pred p;\n"
	    "again:\n"
	    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
	    "[%0], %1;\n"
	    "@!p bra again;\n"
	    "}\n" :: "r"(smem_addr(&s.meet)), "r"(phase) : "memory");
	phase ^= 1;
}

/* The boundary as far as the first digit tells. Fewer than k keys: all win. */
__device__ inline Edge
first_edge(Scan &s, Bins b, uint32_t k)
{
	Edge e = { 0, 0, 0, 0 };

	find_bin(s, b, k);
	if (s.in_bin != 0) {
		e.need = s.need;
		e.in_bin = s.in_bin;
		e.lo = digit_first_key(s.bin);
		e.hi = digit_first_key(s.bin + 1);
	}
	return e;
}

/* --- one pass over the scores --------------------------------------------- */

/* The scores from key i on, if there are any; in the order that is written. */
__device__ inline void
load_four(float (&v)[4], const Run &run, uint32_t i)
{
	asm volatile("{\n"
	    ".reg .pred p;\n"
	    "setp.lt.u32 p, %4, %5;\n"
	    "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%6];\n"
	    "}\n" : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
	    : "r"(i), "r"(run.n), "l"(run.score + i) : "memory");
}

/*
 * A key wins by its digit alone, or is at the boundary when only some of those
 * win. Scores compare as their keys do, but for NaN.
 */
struct Cut {
	float least, low;	/* of those that win, of the boundary's */
	float nan;		/* in place of NaN, where it is there */
	bool nan_wins;
};

__device__ inline Cut
cut_at(const Edge &e)
{
	bool part = e.need < e.in_bin, nan = e.lo == 0;
	Cut c = { key_score(part ? e.hi : e.lo), part ? key_score(e.lo) : NAN,
	    nan ? -INFINITY : NAN, nan && !part };

	/* Computed here, not at every use. */
	asm volatile("" : "+f"(c.least), "+f"(c.low), "+f"(c.nan));
	return c;
}

/* Words of the warp's keys from i on, of which a lane has four. */
__device__ inline void
split_group(const Marks &m, const Run &run, const Cut &c, const float (&v)[4],
    uint32_t i)
{
	uint32_t w[4], b[4];

#pragma unroll
	for (uint32_t t = 0; t < 4; t++) {
		w[t] = __ballot_sync(~0u, v[t] >= c.least || c.nan_wins);
		b[t] = __ballot_sync(~0u, fmaxf(v[t], c.nan) >= c.low) & ~w[t];
	}
	if (i + GROUP > run.n)
#pragma unroll
		for (uint32_t t = 0; t < 4; t++) {
			uint32_t lanes = (run.n - i + 3 - t) / 4;
			uint32_t in = lanes < 32 ? (1u << lanes) - 1 : ~0u;

			w[t] &= in;
			b[t] &= in;
		}
	if (threadIdx.x % 32 == 0) {
		*(uint4 *)(m.win + i / 32) = make_uint4(w[0], w[1], w[2], w[3]);
		*(uint4 *)(m.on + i / 32) = make_uint4(b[0], b[1], b[2], b[3]);
	}
}

/* Of the run; v: its first loads. Each is begun as soon as its place is free. */
__device__ inline void
split(const Marks &m, const Run &run, const Edge &e, float (&v)[DEEP][4])
{
	uint32_t lane = threadIdx.x % 32;
	Cut c = cut_at(e);

#pragma unroll 1
	for (uint32_t i = threadIdx.x / 32 * GROUP; i < run.n; i += DEEP * STEP)
#pragma unroll
		for (uint32_t u = 0; u < DEEP; u++) {
			uint32_t at = i + u * STEP;

			if (at >= run.n)
				break;
			split_group(m, run, c, v[u], at);
			load_four(v[u], run, at + DEEP * STEP + lane * 4);
		}
	__syncthreads();
}

/* Counts the winners, and puts the boundary's keys into the block's part of
 * s.edge, which has room for so many. */
__device__ inline void
collect(Shared &s, const Marks &m, const Run &run, uint32_t room)
{
	struct Tally *mine = &s.tally[blockIdx.x];
	uint64_t *edge = s.edge + blockIdx.x * room;
	uint32_t words = words_of(run.n), sure = 0;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
		sure += __popc(m.win[i]);
#pragma unroll 1
		for (uint32_t b = m.on[i]; b != 0; b &= b - 1) {
			uint32_t j = key_of(i, __ffs(b) - 1);
			uint32_t at = atomicAdd(&mine->edges, 1);

			if (at < room)
				edge[at] = composite(score_key(run.score[j]),
				    run.first + j);
		}
	}
	sure = __reduce_add_sync(~0u, sure);
	if (threadIdx.x % 32 == 0 && sure != 0)
		atomicAdd(&mine->sure, sure);
	__syncthreads();
}

/*
 * What this block found, to all others, and what they found to this one. Stores
 * that count their bytes on the barrier where they arrive need no fence, which
 * would take longer than all of this.
 */
__device__ inline void
exchange(Shared &s, uint32_t room, uint32_t &phase)
{
	uint32_t blocks = gridDim.x, lg = __ffs(blocks) - 1;
	uint32_t me = blockIdx.x, t = threadIdx.x, bar = smem_addr(&s.meet);
	struct Tally *mine = &s.tally[me];
	uint32_t n = min(mine->edges, room);

	if (blocks == 1)
		return;
	if (t == me) {
		mbar_arrive(bar);
	} else if (t < blocks) {
		cluster_expect(cluster_map(bar, t), 8 * (1 + n));
		cluster_st64(cluster_map(smem_addr(mine), t),
		    __uint_as_float(mine->sure), __uint_as_float(mine->edges),
		    cluster_map(bar, t));
	}
#pragma unroll 1
	for (uint32_t i = t; i < n << lg; i += THREADS) {
		uint32_t r = i & (blocks - 1);
		uint64_t *c = s.edge + me * room + (i >> lg);

		if (r != me)
			cluster_st64(cluster_map(smem_addr(c), r),
			    __uint_as_float((uint32_t)*c),
			    __uint_as_float((uint32_t)(*c >> 32)),
			    cluster_map(bar, r));
	}
	mbar_wait(bar, phase);
	phase ^= 1;
}

/* --- ranks: what one offers, and what all did ----------------------------- */

/* The window around a rank's k/D-th best: not more than `few` of its keys stand
 * above it, and at least `many` above its end. */
__device__ inline struct dcpg_window
find_window(Scan &s, const uint32_t *hist, uint32_t len, uint32_t few,
    uint32_t many)
{
	struct dcpg_window w = { 0, ~0u, 0, len };
	Bins b = my_bins(hist);

	find_bin(s, b, few + 1);
	if (few > 0 && s.in_bin != 0) {
		w.hi = digit_first_key(s.bin + 1);
		w.above = few + 1 - s.need;
	}
	__syncthreads();
	find_bin(s, b, many);
	if (s.in_bin != 0) {
		w.lo = digit_first_key(s.bin);
		w.n = many - s.need + s.in_bin;
	}
	w.n -= w.above;
	return w;
}

/* To rank threadIdx.x. Its scores are there for whoever sees the window. */
__device__ inline void
send_window(const struct dcpg_select &g, const struct dcpg_window &w)
{
	uint32_t e = threadIdx.x;
	struct dcpg_window *to = e < g.ranks ? g.to_window[e] : NULL;

	if (blockIdx.x != 0 || to == NULL)
		return;
	to[blockIdx.y].above = w.above;
	to[blockIdx.y].n = w.n;
	peer_put((uint64_t *)&to[blockIdx.y].lo, (uint64_t)w.hi << 32 | w.lo);
}

/* Counts the winners; puts the keys in the window to where ranks take them. The
 * histogram has said how many all blocks will find. */
__device__ inline void
offer(Shared &s, const struct dcpg_select &g, const Marks &m, const Run &run,
    bool put)
{
	uint32_t words = words_of(run.n), sure = 0, n = 0, at;
	size_t row = blockIdx.y;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
		sure += __popc(m.win[i]);
		n += __popc(m.on[i]);
	}
	sure = __reduce_add_sync(~0u, sure);
	if (threadIdx.x % 32 == 0 && sure != 0)
		atomicAdd(&s.tally[blockIdx.x].sure, sure);
	at = block_sum(n, s.scan.warp);
	if (threadIdx.x == THREADS - 1)
		s.offer = put && at > 0 ? atomicAdd(&g.offered[row], at) : 0;
	__syncthreads();
	at += s.offer - n;
#pragma unroll 1
	for (uint32_t i = threadIdx.x; put && i < words; i += THREADS)
#pragma unroll 1
		for (uint32_t b = m.on[i]; b != 0; b &= b - 1, at++) {
			uint32_t j = key_of(i, __ffs(b) - 1);
			uint64_t c = composite(score_key(run.score[j]),
			    (run.first + j) * g.ranks + g.rank);

#pragma unroll 1
			for (uint32_t e = 0; at < g.cap && e < g.ranks; e++)
				if (g.to[e] != NULL)
					g.to[e][row * g.cap + at] = c;
		}
}

/* What the ranks offered: this block's share, to its part of s.edge. */
__device__ inline void
take_offers(Shared &s, const struct dcpg_select &g, uint32_t room)
{
	uint32_t row = blockIdx.y, all = 0, per, i, end;
	uint32_t first = g.peer.self - g.rank;	/* of the group */

	if (threadIdx.x < g.ranks) {
		uint32_t r = threadIdx.x;
		const struct dcpg_window *w = g.from_window[r] + row;
		uint64_t x = peer_take(g.peer, first + r,
		    (const uint64_t *)&w->lo);

		s.window[r] = { (uint32_t)x, (uint32_t)(x >> 32),
		    *(volatile const uint32_t *)&w->above,
		    *(volatile const uint32_t *)&w->n };
	}
	__syncthreads();
#pragma unroll 1
	for (uint32_t r = 0; r < g.ranks; r++)
		all += s.window[r].n;
	per = (all + gridDim.x - 1) / gridDim.x;
	i = min(all, blockIdx.x * per);
	end = min(all, i + per);
	if (threadIdx.x == 0)
		s.tally[blockIdx.x].edges = end - i;
#pragma unroll 1
	for (uint32_t at = threadIdx.x; i + at < end; at += THREADS) {
		uint32_t r = 0, j = i + at;
		uint64_t *p, c;

		while (j >= s.window[r].n)
			j -= s.window[r++].n;
		if (s.window[r].n > g.cap)	/* nothing was written */
			continue;
		p = g.from[r] + (size_t)row * g.cap + j;
		c = peer_take(g.peer, first + r, p);
		if (g.peer.world != 0)
			*p = DCPG_NO_OFFER;
		if (at < room)
			s.edge[blockIdx.x * room + at] =
			    c != DCPG_NO_OFFER ? c : 0;
	}
	__syncthreads();
}

/* For the next layer, when all blocks of the row have read. */
__device__ inline void
offers_done(const struct dcpg_select &g)
{
	uint32_t t = threadIdx.x;

	if (blockIdx.x != 0)
		return;
	if (t == 0)
		g.offered[blockIdx.y] = 0;
	if (g.peer.world != 0 && t < g.ranks)
		*(uint64_t *)&g.from_window[t][blockIdx.y].lo = DCPG_NO_OFFER;
}

/* --- the last winner among the boundary keys ------------------------------ */

/* It is the need-th best of those of [lo, hi]: composite keys. What was found,
 * lo in the end, holds if it is at least `least` and below `below`. */
struct Search {
	uint64_t lo, hi;
	uint32_t need, shift;
	uint64_t least, below;
};

__device__ inline Search
search_edge(const Edge &e)
{
	return (Search){ (uint64_t)e.lo << 32, ((uint64_t)e.hi << 32) - 1,
	    e.need, 0, 0, ~0ull };
}

/* Among the offers: what wins by itself is not needed of them. need 0: they do
 * not do. */
__device__ inline Search
search_offers(const Shared &s, const struct dcpg_select &g)
{
	uint32_t most = 0, least = ~0u, low = 0, high = ~0u, all = 0;
	uint32_t need = g.k;
	bool ok = true;

#pragma unroll 1
	for (uint32_t r = 0; r < g.ranks; r++) {
		struct dcpg_window w = s.window[r];

		ok = ok && w.n <= g.cap && w.above <= need;
		need -= w.above;
		all += w.n;
		most = max(most, w.hi);
		high = min(high, w.hi);
		least = min(least, w.lo);
		low = max(low, w.lo);
	}
	if (ok && low == 0 && need >= all)	/* no more than k keys: all */
		return (Search){ 0, 0, 1, 0, 0, ~0ull };
	if (!ok || need > all || all > edges(g.ranks))
		need = 0;
	return (Search){ (uint64_t)least << 32, ((uint64_t)most << 32) - 1,
	    need, 0, (uint64_t)low << 32, (uint64_t)high << 32 };
}

/* A step: s.hist counts the keys by their next bits, 11 at most. */
__device__ inline void
step_begin(Search &q)
{
	uint32_t bits = 64 - __clzll((long long)(q.hi - q.lo));

	q.shift = bits > 11 ? bits - 11 : 0;
}

/* False when all that is left wins, from q.lo on. */
__device__ inline bool
step_end(Search &q, Shared &s)
{
	find_bin(s.scan, my_bins(s.hist), q.need);
	q.need = s.scan.need;
	q.lo += (uint64_t)s.scan.bin << q.shift;
	if (q.hi - q.lo >= 1ull << q.shift)
		q.hi = q.lo + ((1ull << q.shift) - 1);
	return q.need != s.scan.in_bin && q.shift != 0;
}

__device__ inline void
clear_hist(Shared &s)
{
#pragma unroll 1
	for (uint32_t i = threadIdx.x * 4; i < DCPG_BINS; i += THREADS * 4)
		*(uint4 *)(s.hist + i) = make_uint4(0, 0, 0, 0);
}

/* The boundary keys that this thread sees to: from[first], then every step-th
 * of n: of a block's part. */
struct Share {
	const uint64_t *from;
	uint32_t first, step, n;
};

__device__ inline Share
my_share(const Shared &s, uint32_t room)
{
	uint32_t part = threadIdx.x * gridDim.x / THREADS;
	uint32_t step = THREADS / gridDim.x;

	return (Share){ s.edge + part * room, threadIdx.x & (step - 1), step,
	    s.tally[part].edges };
}

/* Where the winners begin, by the keys of all blocks. */
__device__ inline void
narrow(Shared &s, const Share &m, Search &q)
{
#pragma unroll 1
	for (;;) {
		step_begin(q);
#pragma unroll 1
		for (uint32_t i = m.first; i < m.n; i += m.step) {
			uint64_t c = m.from[i];

			if (c >= q.lo && c <= q.hi)
				atomicAdd(&s.hist[(c - q.lo) >> q.shift], 1);
		}
		__syncthreads();
		if (!step_end(q, s))
			return;
		clear_hist(s);
		__syncthreads();
	}
}

/* Bits for those of the boundary's keys that win; how many of this rank's win
 * before the run. */
__device__ inline uint32_t
mark(const Marks &bits, const struct dcpg_select &g, const Run &run,
    const Share &m, uint64_t from)
{
	uint32_t before = 0, lg = __ffs(g.ranks) - 1;

#pragma unroll 1
	for (uint32_t i = m.first; i < m.n; i += m.step) {
		uint64_t c = m.from[i];
		uint32_t pos = ~(uint32_t)c, j = pos >> lg;

		if (c < from || (pos & (g.ranks - 1)) != g.rank)
			continue;
		before += j < run.first;
		j -= run.first;
		if (j < run.n)
			mark_key(bits, j);
	}
	__syncthreads();
	return before;
}

/* --- the same by all scores of all ranks ---------------------------------- */

/* Count a key, in every block of the cluster, if it lies in the interval. */
__device__ inline void
count_key(uint64_t c, const Search &q, uint32_t hist)
{
	uint32_t at;

	if (c < q.lo || c > q.hi)
		return;
	at = hist + (uint32_t)((c - q.lo) >> q.shift) * 4;
#pragma unroll 1
	for (uint32_t r = 0; r < gridDim.x; r++)
		asm volatile("red.relaxed.cluster.shared::cluster.add.u32 "
		    "[%0], 1;" :: "r"(cluster_map(at, r)) : "memory");
}

/* This block's share of the scores of all ranks. */
__device__ inline void
count_scores(const struct dcpg_select &g, const Run &run, const Search &q,
    uint32_t hist)
{
	uint32_t row = blockIdx.y, all = g.ranks > 1 ? g.total[row] : 0;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; g.ranks == 1 && i < run.n; i += THREADS)
		count_key(composite(score_key(run.score[i]), run.first + i), q,
		    hist);
#pragma unroll 1
	for (uint32_t r = 0; g.ranks > 1 && r < g.ranks; r++) {
		const float *score = g.scores[r] + (size_t)row * g.stride;
		uint32_t n = all / g.ranks + (r < all % g.ranks);

#pragma unroll 1
		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n;
		    i += gridDim.x * THREADS)
			count_key(composite(score_key(score[i]), i * g.ranks +
			    r), q, hist);
	}
}

__device__ inline void
narrow_long(Shared &s, const struct dcpg_select &g, const Run &run, Search &q,
    uint32_t &phase)
{
	clear_hist(s);
	meet(s, phase);
#pragma unroll 1
	for (;;) {
		step_begin(q);
		count_scores(g, run, q, smem_addr(s.hist));
		meet(s, phase);
		if (!step_end(q, s))
			return;
		clear_hist(s);
		meet(s, phase);
	}
}

/* All bits anew; how many keys win before the run. */
__device__ inline uint32_t
mark_long(Shared &s, const struct dcpg_select &g, const Marks &m,
    const Run &run, uint64_t from, uint32_t &phase)
{
	uint32_t words = words_of(run.n), n = 0, before = 0;

#pragma unroll 1
	for (uint32_t i = threadIdx.x / 32; i < words; i += WARPS) {
		uint32_t j = key_of(i, threadIdx.x % 32);
		bool win = j < run.n && composite(score_key(run.score[j]),
		    (run.first + j) * g.ranks + g.rank) >= from;
		uint32_t w = __ballot_sync(~0u, win);

		n += win;
		if (threadIdx.x % 32 == 0)
			m.win[i] = w;
	}
	n = block_sum(n, s.scan.warp);
	if (threadIdx.x == THREADS - 1)
#pragma unroll 1
		for (uint32_t r = 0; r < gridDim.x; r++)
			asm volatile("st.shared::cluster.u32 [%0], %1;" ::
			    "r"(cluster_map(smem_addr(&s.total[blockIdx.x]),
			    r)), "r"(n) : "memory");
	meet(s, phase);
#pragma unroll 1
	for (uint32_t r = 0; r < blockIdx.x; r++)
		before += s.total[r];
	return before;
}

/* --- the list ------------------------------------------------------------- */

/* Bit k of the low 8 to bit 4 k. */
__device__ inline uint32_t
spread(uint32_t x)
{
	x &= 0xff;
	x = (x | x << 12) & 0x000f000f;
	x = (x | x << 6) & 0x03030303;
	return (x | x << 3) & 0x11111111;
}

/* Who wins of the keys 32 i .. 32 i + 31, in their order. */
__device__ inline uint32_t
in_order(const Marks &m, uint32_t i)
{
	uint4 x = *(const uint4 *)(m.win + i / 4 * 4);
	uint32_t at = i % 4 * 8;

	return spread(x.x >> at) | spread(x.y >> at) << 1 |
	    spread(x.z >> at) << 2 | spread(x.w >> at) << 3;
}

/*
 * The bits become rows, from list[base + the sum of `before`] on. A thread
 * takes 32 neighbouring keys, or several such, so the list is ascending (their
 * bits in order take the place of the boundary's); pages are looked up when all
 * winners are known, by all threads at once.
 */
__device__ inline void
emit(Shared &s, const struct dcpg_select &g, const Marks &m, const Run &run,
    const uint32_t *table, uint32_t base, uint32_t before)
{
	uint32_t row = blockIdx.y, words = (run.n + 31) / 32, n = 0, at;
	uint32_t per = (words + THREADS - 1) / THREADS;
	uint32_t first = min(words, threadIdx.x * per);
	uint32_t end = min(words, first + per);
	uint32_t lg = __ffs(g.page_rows) - 1, low = g.page_rows - 1;
	uint32_t *list = g.list + (size_t)row * g.list_stride;

#pragma unroll 1
	for (uint32_t i = first; i < end; i++) {
		uint32_t x = in_order(m, i);

		m.on[i] = x;
		n += __popc(x);
	}
	/* Both sums are at most DCPG_MAX_K. */
	at = block_sum(n | before << 16, s.scan.warp);
	if (threadIdx.x == THREADS - 1)
		s.total[0] = at;
	at = (at & 0xffff) - n;
#pragma unroll 1
	for (uint32_t i = first; i < end; i++)
#pragma unroll 1
		for (uint32_t b = m.on[i]; b != 0; b &= b - 1)
			m.won[at++] = run.first + i * 32 + __ffs(b) - 1;
	__syncthreads();
	n = s.total[0] & 0xffff;
	base += s.total[0] >> 16;
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
		uint32_t j = m.won[i];

		list[base + i] = table == NULL ? j :
		    (table[j >> lg] << lg) + (j & low);
	}
	if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
		g.count[row] = base + n;
}

__device__ inline Run
my_run(const struct dcpg_select &g)
{
	uint32_t len = g.len[blockIdx.y];
	uint32_t per = (len + gridDim.x - 1) / gridDim.x;
	Run run;

	per = (per + GROUP - 1) / GROUP * GROUP;

	run.first = min(len, blockIdx.x * per);
	run.n = min(len, run.first + per) - run.first;
	run.score = g.score + (size_t)blockIdx.y * g.stride + run.first;
	return run;
}

/* The pages of a row by number, those of the run at hand if they are few. */
__device__ inline const uint32_t *
my_pages(Shared &s, const struct dcpg_select &g, const Run &run)
{
	const uint32_t *table = g.table == NULL ? NULL :
	    g.table + g.table_at[blockIdx.y];
	uint32_t lg = __ffs(g.page_rows) - 1, first = run.first >> lg;
	uint32_t n = ((run.first + run.n + g.page_rows - 1) >> lg) - first;

	if (g.table == NULL)
		return NULL;
	if (n > PAGES)
		return table;
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
		s.page[i] = table[first + i];
	return s.page - first;
}

/* The cluster's blocks have told each other what they found: the bits are
 * completed. How many keys win before the run, in all and beside those as far
 * as this thread knows. */
__device__ inline uint2
settle(Shared &s, const struct dcpg_select &g, const Marks &bits,
    const Run &run, const Edge &e, uint32_t room, uint32_t &phase)
{
	uint32_t lane = threadIdx.x % 32;
	Tally t = s.tally[lane % 16];	/* 0 where there is no block */
	uint32_t base = __reduce_add_sync(~0u, lane < blockIdx.x ? t.sure : 0);
	Search q = g.ranks > 1 ? search_offers(s, g) : search_edge(e);

	if (g.ranks == 1 && e.need == e.in_bin)
		return make_uint2(base, 0);
	if (q.need > 0 && !__any_sync(~0u, t.edges > room)) {
		Share m = my_share(s, room);

		if (q.lo < q.hi)
			narrow(s, m, q);
		if (q.lo >= q.least && q.lo < q.below)
			return make_uint2(base, mark(bits, g, run, m,
			    q.lo));
	}
	if (g.ranks > 1)
		q = (Search){ 0, ~0ull, g.k, 0, 0, ~0ull };
	if (g.ranks == 1 || g.total[blockIdx.y] > g.k)
		narrow_long(s, g, run, q, phase);
	return make_uint2(mark_long(s, g, bits, run, q.lo, phase), 0);
}

enum { OFFER = 1, TAKE = 2 };	/* what a launch does, of D > 1 ranks */

struct Steps {
	uint32_t what, few, many;	/* few, many: of find_window */
};

/* grid: (blocks of a cluster, rows). RANKS: more than one. */
template <bool RANKS>
__global__ void __launch_bounds__(THREADS, RANKS ? 4 : 5)
select_kernel(const __grid_constant__ struct dcpg_select g,
    const __grid_constant__ Steps to)
{
	extern __shared__ __align__(16) uint8_t mem[];
	Shared &s = *at_shared<Shared>(smem_addr(mem));
	uint32_t row = blockIdx.y, phase = 0, room;
	const uint32_t *hist = g.hist + (size_t)row * DCPG_BINS, *table;
	float v[DEEP][4] = {};
	uint2 before;
	Marks m;
	Edge e;
	Run run;

	room = edges(g.ranks) / gridDim.x;
	clear_hist(s);
	if (threadIdx.x < 16)
		s.tally[threadIdx.x] = { 0, 0 };
	if (threadIdx.x == 0)
		mbar_init(smem_addr(&s.meet), gridDim.x);
	/* All is cleared and set up, everywhere. */
	asm volatile("barrier.cluster.arrive.release.aligned;\n"
	    "barrier.cluster.wait.acquire.aligned;" ::: "memory");
	/* Lengths and pages are older than the kernel before this one. */
	run = my_run(g);
	m = marks(s, g, run);
	table = my_pages(s, g, run);
	launch_wait();
	launch_next();
#pragma unroll
	for (uint32_t u = 0; u < DEEP; u++)
		load_four(v[u], run, u * STEP + threadIdx.x * 4);
	if (!RANKS) {
		e = first_edge(s.scan, my_bins(hist), g.k);
		split(m, run, e, v);
		collect(s, m, run, room);
	} else {
		struct dcpg_window w = find_window(s.scan, hist, g.len[row],
		    to.few, to.many);

		if (to.what & OFFER)
			send_window(g, w);
		e = (Edge){ 0, 1, w.lo, w.hi };
		split(m, run, e, v);
		offer(s, g, m, run, (to.what & OFFER) != 0 && w.n <= g.cap);
		if ((to.what & TAKE) == 0)
			return;
		take_offers(s, g, room);
	}
	exchange(s, room, phase);
	if (RANKS)
		offers_done(g);
	before = settle(s, g, m, run, e, room, phase);
	emit(s, g, m, run, table, before.x, before.y);
	/* All blocks have read the histogram: they have met. */
	if (g.clear != NULL)
#pragma unroll 1
		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x;
		    i < DCPG_BINS; i += gridDim.x * THREADS)
			g.clear[(size_t)row * DCPG_BINS + i] = 0;
}

bool
power_of_2(uint32_t n)
{
	return n > 0 && (n & (n - 1)) == 0;
}

bool
valid(const struct dcpg_select *a)
{
	return a->rows > 0 && a->rows <= 65535 && a->k > 0 &&
	    a->k <= DCPG_MAX_K &&
	    a->k <= a->list_stride && a->max_len > 0 &&
	    a->max_len <= a->stride && a->stride % 4 == 0 &&
	    a->max_len <= DCPG_MAX_SHARD &&
	    power_of_2(a->page_rows) && a->page_rows <= 64 &&
	    power_of_2(a->ranks) && a->rank < a->ranks && (a->ranks == 1 ||
	    (a->offered != NULL && a->total != NULL &&
	    a->ranks <= DCPK_MAX_RANKS));
}

/* Bits of a run and its winners stand behind the rest. */
size_t
shared_size(const struct dcpg_select *a, uint32_t blocks)
{
	uint32_t per = (a->max_len + blocks - 1) / blocks;

	per = (per + GROUP - 1) / GROUP * GROUP;
	return sizeof(Shared) + edges(a->ranks) * 8 + per / 4 + (per < a->k ?
	    per : a->k) * 4;
}

}	/* namespace */

int
select_init(void)
{
	bool ok = true;

	for (auto k : { select_kernel<false>, select_kernel<true> })
		ok = ok && cudaFuncSetAttribute(k,
		    cudaFuncAttributeMaxDynamicSharedMemorySize,
		    sizeof(Shared) + edges(2) * 8 + RUN / 4 + DCPG_MAX_K * 4)
		    == cudaSuccess && cudaFuncSetAttribute(k,
		    cudaFuncAttributePreferredSharedMemoryCarveout, 100) ==
		    cudaSuccess && cudaFuncSetAttribute(k,
		    cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
		    cudaSuccess;
	return ok ? 0 : -EIO;
}

}	/* namespace dcpg */

using namespace dcpg;

static int
launch(const struct dcpg_select *a, uint32_t what, void *stream)
{
	cudaLaunchAttribute at[2];
	cudaLaunchConfig_t cfg = {};
	uint32_t blocks = BLOCKS, share, more;
	Steps to = { what, 0, 0 };

	if (!valid(a))
		return -EINVAL;
	/* One wave, four blocks an SM; no block with less than 1024 keys. */
	while (blocks > 1 && a->max_len <= blocks / 2 * RUN &&
	    (a->rows * blocks > (blocks == 16 ? 7 * 16 * 2 : 512) ||
	    a->max_len < blocks * 1024))
		blocks /= 2;
	if (a->ranks > 1) {
		share = a->k / a->ranks;
		more = (uint32_t)ceil(6 * sqrt((double)a->k / a->ranks *
		    (1 - 1.0 / a->ranks))) + 1;
		to.few = share > more ? share - more : 0;
		to.many = share + more;
	}
	at[0].id = cudaLaunchAttributeClusterDimension;
	at[0].val.clusterDim.x = blocks;
	at[0].val.clusterDim.y = 1;
	at[0].val.clusterDim.z = 1;
	at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[1].val.programmaticStreamSerializationAllowed = 1;
	cfg.gridDim = dim3(blocks, a->rows);
	cfg.blockDim = dim3(THREADS);
	cfg.dynamicSmemBytes = shared_size(a, blocks);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = at;
	cfg.numAttrs = 2;
	return cudaLaunchKernelEx(&cfg, a->ranks > 1 ? select_kernel<true> :
	    select_kernel<false>, *a, to) == cudaSuccess ? 0 : -EIO;
}

extern "C" int
dcpg_select(const struct dcpg_select *a, void *stream)
{
	return launch(a, a->peer.world != 0 ? OFFER | TAKE : TAKE, stream);
}

extern "C" int
dcpg_select_offer(const struct dcpg_select *a, void *stream)
{
	if (a->ranks == 1 || a->peer.world != 0)
		return -EINVAL;
	return launch(a, OFFER, stream);
}
