/*
 * Selection of the k best scores of every query row: the threshold by sums of
 * histograms, then the winners compacted to a list of pool rows. dcpg.h says
 * what is computed; digit.cuh orders the scores.
 *
 * A cluster of 1..16 blocks owns one query row, each block a run of its keys.
 * The score kernel's histogram names the bin of the k-th best. One pass over
 * the scores, four neighbours a lane, finds the keys above the bin, which win,
 * and the bin's own, the boundary keys. The blocks send each other theirs; so
 * every block has all of them, finds the last winner by histograms of its own,
 * and knows how many winners the blocks before it have: the cluster meets once.
 *
 * Of D ranks each holds nearly the same share of the winners, as its keys are
 * every D-th. A rank offers, by its own histogram, those of its keys that stand
 * within six standard deviations of its k/D-th best: the window. Keys above it
 * win, and the offers of all ranks are the boundary keys. The last winner is
 * right if it lies in the windows of all.
 *
 * Where it does not, or boundary keys do not fit (many equal scores), keys are
 * counted where they are, by all blocks together.
 *
 * A rank lists what is above its window while offers are on their way, and its
 * winners among them behind.
 *
 * Where ranks meet by flags, offers need none: they are written into the
 * memory of each rank of the group, to places that hold DCPG_NO_OFFER, and a
 * row's cluster waits for its own row's window and for as many keys as it
 * announces. Each of these is one word that says all by itself, so that no
 * store waits for another; only where peers' scores have to be read, which all
 * ranks find out by themselves, each waits for a flag that the others store
 * behind theirs. Every block takes all offers, and when all have them, they
 * put DCPG_NO_OFFER back; what another rank writes there next is behind the
 * meeting of attention's sum. A cluster offers before it waits, and clusters
 * start in order of their rows on every rank, so the first row that is not
 * done can always be. With events, offers stay where they are made, and a
 * launch of its own takes them.
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

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/offers.cuh"
#include "kernels/cuda/select.cuh"

namespace dcpg {
namespace {

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
		Window w = s.window[r];

		ok = ok && w.n <= g.cap && w.above <= need;
		need -= w.above;
		all += w.n;
		most = max(most, w.hi);
		high = min(high, w.hi);
		least = min(least, w.lo);
		low = max(low, w.lo);
	}
	ok = ok && all <= edges(g.ranks);
	if (ok && low == 0 && need >= all)	/* no more than k keys: all */
		return (Search){ 0, 0, 1, 0, 0, ~0ull };
	if (!ok || need > all)
		return (Search){ 0, 0, 0, 0, 0, 0 };
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

/* Above all keys: where winners begin when there are too few keys, as when a
 * rank is lost. */
constexpr uint64_t NOTHING = ~0ull;

/* False when all that is left wins, from q.lo on. */
__device__ inline bool
step_end(Search &q, Shared &s)
{
	find_bin(s.scan, my_bins(s.hist), q.need);
	q.need = s.scan.need;
	q.lo += (uint64_t)s.scan.bin << q.shift;
	if (q.hi - q.lo >= 1ull << q.shift)
		q.hi = q.lo + ((1ull << q.shift) - 1);
	if (q.need == 0)
		q.lo = NOTHING;
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

__device__ inline void
count_offer(Shared &s, const Search &q, uint64_t c)
{
	if (c >= q.lo && c <= q.hi)
		atomicAdd(&s.hist[(c - q.lo) >> q.shift], 1);
}

/* The last step, when no more than FEW keys are left: each warp ranks them. */
constexpr uint32_t FEW = 32;

__device__ inline void
rank_few(Shared &s, const Share &m, Search &q)
{
	uint64_t *list = (uint64_t *)s.hist, c;
	uint32_t lane = threadIdx.x % 32, n, above = 0, at;

#pragma unroll 1
	for (uint32_t i = m.first; i < m.n; i += m.step) {
		c = m.from[i];
		if (c >= q.lo && c <= q.hi)
			list[atomicAdd(&s.few, 1)] = c;
	}
	__syncthreads();
	n = s.few;
	c = lane < n ? list[lane] : 0;
#pragma unroll 1
	for (uint32_t i = 0; i < n; i++)
		above += list[i] > c;
	at = __ballot_sync(~0u, lane < n && above == q.need - 1);
	c = __shfl_sync(~0u, c, __ffs(at) - 1);
	q.lo = at != 0 ? c : NOTHING;	/* equal keys: a lost rank's zeros */
}

/* Where the winners begin, by the keys of all blocks. counted: the first step
 * is begun, and its histogram there. */
__device__ inline void
narrow(Shared &s, const Share &m, Search &q, bool counted)
{
#pragma unroll 1
	for (;; counted = false) {
		if (!counted) {
			step_begin(q);
#pragma unroll 1
			for (uint32_t i = m.first; i < m.n; i += m.step)
				count_offer(s, q, m.from[i]);
			__syncthreads();
		}
		if (!step_end(q, s))
			return;
		if (s.scan.in_bin <= FEW) {
			rank_few(s, m, q);
			return;
		}
		clear_hist(s);
		__syncthreads();
	}
}

/* Bits for those of the boundary's keys that win; how many of this rank's win
 * before the run. Over ranks, bits of their own, in the order of keys. */
template <bool RANKS>
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
		if (j < run.n && RANKS)
			atomicOr(bits.on + j / 32, 1u << j % 32);
		else if (j < run.n)
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

/* This thread's words of 32 neighbouring keys: one, or several such. */
struct Words {
	uint32_t first, end;
};

__device__ inline Words
my_words(const Run &run)
{
	uint32_t words = (run.n + 31) / 32;
	uint32_t per = (words + THREADS - 1) / THREADS;
	uint32_t first = min(words, threadIdx.x * per);

	return (Words){ first, min(words, first + per) };
}

/* m.on: the bits of m.win in the order of keys. */
__device__ inline void
order_bits(const Marks &m, const Run &run)
{
	Words w = my_words(run);

#pragma unroll 1
	for (uint32_t i = w.first; i < w.end; i++)
		m.on[i] = in_order(m, i);
}

/* The local keys of m.on's bits, which become zero, to m.won, ascending. How
 * many, and the sum of `before`: both at most DCPG_MAX_K. */
__device__ inline uint2
gather(Shared &s, const Marks &m, const Run &run, uint32_t before)
{
	Words w = my_words(run);
	uint32_t n = 0, at;

#pragma unroll 1
	for (uint32_t i = w.first; i < w.end; i++)
		n += __popc(m.on[i]);
	at = block_sum(n | before << 16, s.scan.warp);
	if (threadIdx.x == THREADS - 1)
		s.gathered = at;
	at = (at & 0xffff) - n;
#pragma unroll 1
	for (uint32_t i = w.first; i < w.end; i++) {
#pragma unroll 1
		for (uint32_t b = m.on[i]; b != 0; b &= b - 1)
			m.won[at++] = run.first + i * 32 + __ffs(b) - 1;
		m.on[i] = 0;
	}
	__syncthreads();
	return make_uint2(s.gathered & 0xffff, s.gathered >> 16);
}

/* The first n of m.won as rows, from list[base] on. All threads look up pages
 * at once. */
__device__ inline void
put_rows(const struct dcpg_select &g, const Marks &m, const uint32_t *table,
    uint32_t base, uint32_t n)
{
	uint32_t lg = __ffs(g.page_rows) - 1, low = g.page_rows - 1;
	uint32_t *list = g.list + (size_t)blockIdx.y * g.list_stride + base;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
		uint32_t j = m.won[i];

		list[i] = table == NULL ? j : (table[j >> lg] << lg) +
		    (j & low);
	}
}

/* The last block's, of which `all` is where its rows end. */
__device__ inline void
put_count(const struct dcpg_select &g, uint32_t all)
{
	if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
		g.count[blockIdx.y] = all;
}

/* m.win's winners, behind `base` and the sum of `before`. */
__device__ inline void
emit(Shared &s, const struct dcpg_select &g, const Marks &m, const Run &run,
    const uint32_t *table, uint32_t base, uint32_t before)
{
	uint2 n;

	order_bits(m, run);
	n = gather(s, m, run, before);
	put_rows(g, m, table, base + n.y, n.x);
	put_count(g, base + n.y + n.x);
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

/* Winners by their digit in the first n blocks. */
__device__ inline uint32_t
sure_of(const Shared &s, uint32_t n)
{
	uint32_t lane = threadIdx.x % 32;	/* 0 where there is no block */

	return __reduce_add_sync(~0u, lane < n ? s.tally[lane].sure : 0);
}

/*
 * The cluster's blocks tell each other what they found, and the bits are
 * completed. How many keys win before the run, in all and beside those as far
 * as this thread knows.
 */
__device__ inline uint2
settle(Shared &s, const struct dcpg_select &g, const Marks &bits,
    const Run &run, const Edge &e, uint32_t room, uint32_t &phase)
{
	Search q;
	Share m;
	bool fit;

	tell(s, room);
	told(s, phase);
	if (e.need == e.in_bin)
		return make_uint2(sure_of(s, blockIdx.x), 0);
	q = search_edge(e);
	fit = !__any_sync(~0u, s.tally[threadIdx.x % 16].edges > room);
	m = my_share(s, room);
	if (fit) {
		narrow(s, m, q, false);
		return make_uint2(sure_of(s, blockIdx.x), mark<false>(bits, g,
		    run, m, q.lo));
	}
	narrow_long(s, g, run, q, phase);
	return make_uint2(mark_long(s, g, bits, run, q.lo, phase), 0);
}

/* What the ranks offered, to s.edge; the first step of the search has begun
 * and counted it. */
__device__ inline Search
take_offers(Shared &s, const struct dcpg_select &g, uint64_t early,
    uint32_t &all)
{
	constexpr uint32_t U = 4;	/* under way at once */
	uint32_t t = threadIdx.x;
	Search q;

	take_windows(s, g, early);
	q = search_offers(s, g);
	step_begin(q);
	all = offers(s, g);
#pragma unroll 1
	for (uint32_t i0 = t; i0 < all; i0 += U * THREADS) {
		uint64_t v[U];
		uint32_t r;

#pragma unroll
		for (uint32_t u = 0; u < U; u++)
			if (i0 + u * THREADS < all)
				v[u] = peer_get(offer_at(s, g, i0 + u *
				    THREADS, r));
#pragma unroll
		for (uint32_t u = 0; u < U; u++) {
			uint32_t i = i0 + u * THREADS;

			if (i >= all)
				break;
			if (v[u] == DCPG_NO_OFFER)
				v[u] = await_offer(s, g, i);
			if (i < edges(g.ranks))
				s.edge[i] = v[u];
			count_offer(s, q, v[u]);
		}
	}
	__syncthreads();
	return q;
}

/*
 * Behind the block's own offers. What wins by itself is listed first, while
 * those of others are on their way, so the list is not ascending: behind it
 * stand the winners among the offers.
 */
__device__ inline void
settle_ranks(Shared &s, const struct dcpg_select &g, const Marks &bits,
    const Run &run, const uint32_t *table, uint64_t early)
{
	uint32_t phase = 0, before, all;
	Search q;
	uint2 n;

	__syncthreads();
	tell(s, 0);
	order_bits(bits, run);
	n = gather(s, bits, run, 0);
	told(s, phase);
	put_rows(g, bits, table, sure_of(s, blockIdx.x), n.x);
	q = take_offers(s, g, early, all);
	tell_taken(s);
	if (q.need > 0) {
		Share m = { s.edge, threadIdx.x, THREADS, all };

		if (q.lo < q.hi)
			narrow(s, m, q, true);
		if (q.lo >= q.least && q.lo < q.below) {
			before = mark<true>(bits, g, run, m, q.lo);
			n = gather(s, bits, run, before);
			n.y += sure_of(s, gridDim.x);
			put_rows(g, bits, table, n.y, n.x);
			put_count(g, n.y + n.x);
			return;
		}
	}
	/* All anew. All ranks come here, since they know the same offers. */
	__syncthreads();	/* s.hist may be a list until here */
	q = (Search){ 0, ~0ull, g.k, 0, 0, ~0ull };
	if (blockIdx.x == 0 && threadIdx.x == THREADS - 1)
		scores_there(g);
	await_scores(g);
	if (g.total[blockIdx.y] > g.k)
		narrow_long(s, g, run, q, phase);
	before = mark_long(s, g, bits, run, q.lo, phase);
	emit(s, g, bits, run, table, before, 0);
}

enum { OFFER = 1, TAKE = 2 };	/* what a launch does, of D > 1 ranks */

struct Steps {
	uint32_t what, few, many;	/* few, many: of find_window */
};

/* RANKS: more than one. ASIDE: boundary keys are put aside while scores are
 * read, faster where a thread has few of those. */
template <bool RANKS, bool ASIDE>
__device__ inline void
select_row(const struct dcpg_select &g, const Steps &to)
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
	if (threadIdx.x == 0) {
		s.offered = s.listed = s.few = 0;
		mbar_init(smem_addr(&s.meet), gridDim.x);
		mbar_init(smem_addr(&s.taken), gridDim.x);
	}
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
		split<ASIDE ? PARTED : MARKED>(s, g, m, run, e, v, room);
		__syncthreads();
		if (!ASIDE)
			collect(s, m, run, room);
		before = settle(s, g, m, run, e, room, phase);
		emit(s, g, m, run, table, before.x, before.y);
	} else {
		uint64_t word = find_window(s.scan, hist, g.len[row], to.few,
		    to.many);
		Window w = window_of(word);
		bool put = (to.what & OFFER) != 0 && w.n <= g.cap;
		uint32_t n, list = smem_addr(s.edge) + threadIdx.x / 32 *
		    LISTED * 8;
		uint64_t early;

		if (to.what & OFFER)
			send_window(g, word);
		e = (Edge){ 0, 1, w.lo, w.hi };
		n = split<ASIDE ? OFFERED : MARKED>(s, g, m, run, e, v, room);
		early = to.what & TAKE ? look_at_window(g) : 0;
		if (!ASIDE)
			n = list_marked(s, g, m, run, put, list);
		else if (!put)
			n = 0;
		push_offers(s, g, list, n);
		if ((to.what & TAKE) == 0) {	/* who counts is still there */
			cluster_sync();
			return;
		}
		settle_ranks(s, g, m, run, table, early);
		mbar_wait(smem_addr(&s.taken), 0);
		offers_done(s, g);
	}
	/* All blocks have read the histogram: they have met. */
	if (g.clear != NULL)
#pragma unroll 1
		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x;
		    i < DCPG_BINS; i += gridDim.x * THREADS)
			g.clear[(size_t)row * DCPG_BINS + i] = 0;
}

/* grid: (blocks of a cluster, rows). 56 registers fit beside a score block,
 * over ranks as well; with 48 there is room for five blocks an SM. */
template <bool ASIDE>
__global__ void __maxnreg__(ASIDE ? 56 : 48)
select_kernel(const __grid_constant__ struct dcpg_select g,
    const __grid_constant__ Steps to)
{
	select_row<false, ASIDE>(g, to);
}

template <bool ASIDE>
__global__ void __maxnreg__(56)
select_ranks_kernel(const __grid_constant__ struct dcpg_select g,
    const __grid_constant__ Steps to)
{
	select_row<true, ASIDE>(g, to);
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
	    (a->total != NULL && a->ranks <= DCPK_MAX_RANKS &&
	    a->cap <= edges(a->ranks)));
}

/*
 * Blocks of a row, by what was measured. One an SM in all, if none gets more
 * than 16384 keys: those wait beside the score blocks, and the next score
 * blocks beside them. Else four an SM, and of many rows so many that a block
 * has no more than 65536 keys. No block with less than 1024. (Of several ranks
 * neither the first nor the last was tried.)
 */
uint32_t
choose_blocks(const struct dcpg_select *a)
{
	uint32_t most = BLOCKS, keys = a->ranks > 1 ? RUN : 65536, n;

	while (most > 1 && a->max_len < most * 1024)
		most /= 2;
	for (n = most; n > 1 && a->rows * n > SMS; n /= 2)
		;
	if (a->ranks == 1 && a->rows * n <= SMS && a->max_len <= n * 16384)
		return n;
	if (a->ranks > 1 && most == 16 && a->rows * 16 > 7 * 16 * 2)
		most = 8;
	for (n = most; n > 1 && a->rows * n > 512 &&
	    a->max_len <= n / 2 * keys; n /= 2)
		;
	return n;
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

	for (auto k : { select_kernel<false>, select_kernel<true>,
	    select_ranks_kernel<false>, select_ranks_kernel<true> })
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
	uint32_t blocks, share, more;
	auto kernel = select_kernel<false>;
	Steps to = { what, 0, 0 };
	bool aside;

	if (!valid(a))
		return -EINVAL;
	blocks = choose_blocks(a);
	aside = a->max_len <= blocks * DEEP * STEP;
	if (a->ranks == 1) {
		if (aside)
			kernel = select_kernel<true>;
	} else {
		kernel = aside ? select_ranks_kernel<true> :
		    select_ranks_kernel<false>;
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
	return cudaLaunchKernelEx(&cfg, kernel, *a, to) == cudaSuccess ? 0 :
	    -EIO;
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
