/*
 * The selection's block, for select.cu: what it keeps in shared memory, its one
 * pass over the scores, and how the blocks of a cluster tell each other what
 * they found.
 */
#ifndef DCPG_SELECT_CUH
#define DCPG_SELECT_CUH

#include <stdint.h>

#include "kernels/cuda/bins.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t BLOCKS = 16;	/* most of a cluster */
constexpr uint32_t SMS = 132;	/* an H200's */
constexpr uint32_t RUN = DCPG_MAX_SHARD / 8;	/* most keys of a block */
constexpr uint32_t PAGES = 256;	/* page ids of a run kept there */
constexpr uint32_t GROUP = 128;	/* keys of a warp at a time, 4 of a lane */
constexpr uint32_t STEP = WARPS * GROUP;	/* .. of all warps */
constexpr uint32_t DEEP = 4;	/* such loads of a thread under way */

/* What a block tells the others before they meet. */
struct Tally {
	uint32_t sure, edges;	/* winners by their digit; boundary keys */
};

/* What a rank offers of a row: keys with lo <= key < hi. */
struct Window {
	uint32_t lo, hi;
	uint32_t above, n;	/* how many are above, and in it */
};

struct Shared {
	uint32_t hist[DCPG_BINS];
	struct Window window[DCPK_MAX_RANKS];
	struct Tally tally[16];
	uint32_t total[16];	/* winners of every block, counted late */
	uint32_t gathered;	/* of gather() */
	uint32_t page[PAGES];
	uint32_t offered;	/* first block: keys of the row, up to now */
	uint32_t listed;	/* .. of the block's, where marked first */
	uint32_t few;		/* the last keys of a search */
	uint64_t meet;
	uint64_t taken;		/* all blocks have all offers */
	Scan scan;
	/* edges() boundary keys, a part for every block's; over ranks what a
	 * block offers, then what all do. Behind them the bits. */
	alignas(16) uint64_t edge[];
};

/* Boundary keys of a row that are kept: four blocks an SM have room. */
__host__ __device__ constexpr uint32_t
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
 * has bit j % 128 / 4 of word j / 128 * 4 + j % 4. (In the end those of `on`
 * are winners, too, in the order of their keys.)
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

/* Boundary keys of a lane's four, of which `mask` tells, to the block's part of
 * s.edge, which has room for so many. */
__device__ inline void
put_edges(Shared &s, const float (&v)[4], uint32_t mask, uint32_t pos,
    uint32_t room)
{
	uint64_t *edge = s.edge + blockIdx.x * room;
	uint32_t at = atomicAdd(&s.tally[blockIdx.x].edges, __popc(mask));

#pragma unroll
	for (uint32_t t = 0; t < 4; t++) {
		if ((mask >> t & 1) == 0)
			continue;
		if (at < room)
			edge[at] = composite(score_key(v[t]), pos + t);
		at++;
	}
}

/* What becomes of boundary keys: they get words of bits, too; go to the block's
 * part of s.edge; or, over ranks, to the warp's, of LISTED keys. */
enum { MARKED, PARTED, OFFERED };

constexpr uint32_t LISTED = DEEP * GROUP;
static_assert(WARPS * LISTED <= edges(2), "room for all warps");

/* A warp's boundary keys, of which b tells, behind the `n` that it has. */
__device__ inline void
list_offers(Shared &s, const struct dcpg_select &g, const float (&v)[4],
    const uint32_t (&b)[4], uint32_t pos, uint32_t &n)
{
	uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1;
	uint64_t *list = s.edge + threadIdx.x / 32 * LISTED;
	uint32_t at = n;

#pragma unroll
	for (uint32_t t = 0; t < 4; t++) {
		at += __popc(b[t] & before);
		n += __popc(b[t]);
	}
#pragma unroll
	for (uint32_t t = 0; t < 4; t++)
		if (b[t] >> lane & 1)
			list[at++] = composite(score_key(v[t]), (pos + t) *
			    g.ranks + g.rank);
}

/* Words of the warp's keys from i on, of which a lane has four; `listed`: see
 * list_offers(). How many win. */
template <int BOUNDARY>
__device__ inline uint32_t
split_group(Shared &s, const struct dcpg_select &g, const Marks &m,
    const Run &run, const Cut &c, const float (&v)[4], uint32_t i,
    uint32_t room, uint32_t &listed)
{
	uint32_t lane = threadIdx.x % 32, w[4], b[4];

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
	if (lane == 0)
		*(uint4 *)(m.win + i / 32) = make_uint4(w[0], w[1], w[2], w[3]);
	if (BOUNDARY == MARKED) {
		if (lane == 0)
			*(uint4 *)(m.on + i / 32) = make_uint4(b[0], b[1],
			    b[2], b[3]);
	} else if (BOUNDARY == OFFERED) {
		if ((b[0] | b[1] | b[2] | b[3]) != 0)
			list_offers(s, g, v, b, run.first + i + lane * 4,
			    listed);
	} else if ((b[0] | b[1] | b[2] | b[3]) >> lane & 1) {
		uint32_t mask = 0;

#pragma unroll
		for (uint32_t t = 0; t < 4; t++)
			mask |= (b[t] >> lane & 1) << t;
		put_edges(s, v, mask, run.first + i + lane * 4, room);
	}
	return __popc(w[0]) + __popc(w[1]) + __popc(w[2]) + __popc(w[3]);
}

/* Of the run; v: its first loads. Each is begun as soon as its place is free.
 * Not MARKED: winners are counted, too. How many keys the warp has listed. */
template <int BOUNDARY>
__device__ inline uint32_t
split(Shared &s, const struct dcpg_select &g, const Marks &m, const Run &run,
    const Edge &e, float (&v)[DEEP][4], uint32_t room)
{
	constexpr bool MORE = BOUNDARY == MARKED;	/* than were loaded */
	uint32_t lane = threadIdx.x % 32, sure = 0, listed = 0;
	uint32_t i = threadIdx.x / 32 * GROUP;
	Cut c = cut_at(e);

#pragma unroll 1
	do {
#pragma unroll
		for (uint32_t u = 0; u < DEEP; u++) {
			uint32_t at = i + u * STEP;

			if (at >= run.n)
				break;
			sure += split_group<BOUNDARY>(s, g, m, run, c, v[u],
			    at, room, listed);
			if (MORE)
				load_four(v[u], run, at + DEEP * STEP +
				    lane * 4);
		}
		i += DEEP * STEP;
	} while (MORE && i < run.n);
	if (BOUNDARY != MARKED && lane == 0 && sure != 0)
		atomicAdd(&s.tally[blockIdx.x].sure, sure);
	return listed;
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
 * What this block found, to all others. Stores that count their bytes on the
 * barrier where they arrive need no fence, which would take longer than all of
 * this.
 */
__device__ inline void
tell(Shared &s, uint32_t room)
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
}

/* The same at the end: this block has all offers. Nothing is ordered by it but
 * that the others write there later. */
__device__ inline void
tell_taken(Shared &s)
{
	if (threadIdx.x < gridDim.x)
		cluster_tell(cluster_map(smem_addr(&s.taken), threadIdx.x));
}

/* What the others found is here. */
__device__ inline void
told(Shared &s, uint32_t &phase)
{
	if (gridDim.x == 1)
		return;
	mbar_wait(smem_addr(&s.meet), phase);
	phase ^= 1;
}

}	/* namespace */
}	/* namespace dcpg */

#endif
