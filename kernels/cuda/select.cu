/*
 * Selection of the k best scores of every query row: the threshold by sums of
 * histograms, then the winners compacted to a list of pool rows. dcpg.h says
 * what is computed; digit.cuh orders the scores.
 *
 * A cluster of 1..8 blocks owns one query row, each block a run of its keys.
 * The score kernel's histogram names the bin of the k-th best. One pass over
 * the scores sets a bit for every key above the bin and keeps the bin's own.
 * Those are narrowed down by their composite key, 11 bits a round over the
 * interval that is left: rounds rarely exceed two, and ties, which the position
 * decides, only add rounds. Counts of a round are added in every block's shared
 * memory, so all blocks take the same branches. Winners get their bits, and the
 * bits become the list.
 *
 * Shared memory: bits 32 KB, boundary keys 32 KB, two histograms 16 KB. Bytes
 * that must move: 4 per score, 8 KB of histogram, 4 per winner.
 */
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t THREADS = 512, WARPS = THREADS / 32;
constexpr uint32_t RUN = DCPG_MAX_SHARD / 8;	/* most keys of a block */
constexpr uint32_t KEPT = DCPG_MAX_K / 2;	/* boundary keys kept there */

struct Scan {
	uint32_t warp[WARPS];
	uint32_t bin, need, in_bin;	/* what find_bin found */
};

struct Shared {
	uint32_t bits[RUN / 32];
	union {
		uint64_t edge[KEPT];
		uint32_t won[2 * KEPT];	/* then: local keys that won */
	};
	uint32_t hist[2][DCPG_BINS];
	uint32_t edges;			/* found, maybe more than KEPT */
	uint32_t offered[DCPK_MAX_RANKS];
	uint32_t total[8];		/* winners of every block */
	uint64_t meet;
	Scan scan;
};

/* The boundary: keys from hi on win, those of the bin from composite key `from`
 * on; need of the bin's in_bin keys win. */
struct Edge {
	uint32_t need, in_bin;
	uint32_t lo, hi;	/* the bin's keys: lo <= key < hi */
	uint64_t from;
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

/* Inclusive sum over the block's threads, in thread order. */
__device__ inline uint32_t
block_sum(uint32_t x, uint32_t *warp)
{
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32, before = 0;

#pragma unroll
	for (int k = 1; k < 32; k *= 2) {
		uint32_t y = __shfl_up_sync(~0u, x, k);

		x += lane >= k ? y : 0;
	}
	if (lane == 31)
		warp[w] = x;
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < WARPS; i++)
		before += i < w ? warp[i] : 0;
	__syncthreads();
	return x + before;
}

/*
 * The bin where the counts, summed from the highest bin down, reach need; how
 * many of it are needed and how many it holds. False if all bins hold fewer.
 * x: the counts of this thread's four bins, see my_bins().
 */
__device__ inline bool
find_bin(Scan &s, uint4 x, uint32_t need)
{
	uint32_t first = DCPG_BINS - 4 - 4 * threadIdx.x;
	uint32_t n[4] = { x.w, x.z, x.y, x.x }, mine = x.x + x.y + x.z + x.w;
	uint32_t sum;

	if (threadIdx.x == 0)
		s.in_bin = 0;
	sum = block_sum(mine, s.warp);
	if (sum >= need && sum - mine < need) {
		uint32_t above = sum - mine;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (above < need && above + n[i] >= need) {
				s.bin = first + 3 - i;
				s.need = need - above;
				s.in_bin = n[i];
			}
			above += n[i];
		}
	}
	__syncthreads();
	return s.in_bin != 0;
}

__device__ inline uint4
my_bins(const uint32_t *hist)
{
	return *(const uint4 *)(hist + DCPG_BINS - 4 - 4 * threadIdx.x);
}

/* The boundary as far as the first digit tells. Fewer than k keys: all win. */
__device__ inline Edge
first_edge(Scan &s, uint4 bins, uint32_t k)
{
	Edge e = { 0, 0, 0, 0, 0 };

	if (find_bin(s, bins, k)) {
		e.need = s.need;
		e.in_bin = s.in_bin;
		e.lo = digit_first_key(s.bin);
		e.hi = digit_first_key(s.bin + 1);
	}
	return e;
}

/* The keys that a block owns, and where their scores are. */
struct Run {
	uint32_t first, n;
	const float *score;	/* [n] */
};

/*
 * One pass over the run: a bit for every key that wins by its digit alone, and
 * the boundary's keys to s.edge when only some of them win. A thread takes 4
 * neighbours; 8 lanes make a word of bits.
 */
__device__ inline void
collect(Shared &s, const struct dcpg_select &g, const Run &run, const Edge &e)
{
	constexpr uint32_t DEEP = 4;		/* loads in flight */
	bool some = e.need < e.in_bin && g.ranks == 1;
	uint32_t least = e.need < e.in_bin ? e.hi : e.lo;
	uint32_t lane = threadIdx.x % 32;

	for (uint32_t i0 = threadIdx.x * 4; i0 - lane * 4 < run.n;
	    i0 += THREADS * 4 * DEEP) {
		float4 v[DEEP];

#pragma unroll
		for (uint32_t u = 0; u < DEEP; u++) {
			uint32_t i = i0 + u * THREADS * 4;

			/* Scores of a row are padded to a multiple of 4. */
			if (i < run.n)
				v[u] = *(const float4 *)(run.score + i);
		}
#pragma unroll
		for (uint32_t u = 0; u < DEEP; u++) {
			uint32_t i = i0 + u * THREADS * 4, bits = 0;
			float x[4] = { v[u].x, v[u].y, v[u].z, v[u].w };

#pragma unroll
			for (uint32_t t = 0; t < 4; t++) {
				uint32_t key = score_key(x[t]), at;

				if (i + t >= run.n)
					continue;
				bits |= (key >= least) << t;
				if (!some || key < e.lo || key >= e.hi)
					continue;
				at = atomicAdd(&s.edges, 1);
				if (at < KEPT)
					s.edge[at] = composite(key, (run.first +
					    i + t) * g.ranks + g.rank);
			}
			bits <<= lane % 8 * 4;
			bits |= __shfl_xor_sync(~0u, bits, 1);
			bits |= __shfl_xor_sync(~0u, bits, 2);
			bits |= __shfl_xor_sync(~0u, bits, 4);
			if (lane % 8 == 0 && i < run.n)
				s.bits[i / 32] = bits;
		}
	}
	__syncthreads();
}

/* Count a boundary key, in every block of the cluster, if it lies in
 * [lo, hi]. */
__device__ inline void
count_key(uint64_t c, uint64_t lo, uint64_t hi, uint32_t shift, uint32_t hist,
    uint32_t blocks)
{
	uint32_t at;

	if (c < lo || c > hi)
		return;
	at = hist + (uint32_t)((c - lo) >> shift) * 4;
	for (uint32_t r = 0; r < blocks; r++)
		asm volatile("red.relaxed.cluster.shared::cluster.add.u32 "
		    "[%0], 1;" :: "r"(cluster_map(at, r)) : "memory");
}

/*
 * D > 1: this block's share of the keys that the ranks offered, to s.edge. False
 * where a rank had more than its offer holds, or all have more than fit here;
 * every block of the cluster sees the same numbers.
 */
__device__ inline bool
take_offers(Shared &s, const struct dcpg_select &g)
{
	uint32_t row = blockIdx.y, all = 0;
	bool fits = true;

	if (threadIdx.x < g.ranks)
		s.offered[threadIdx.x] = g.offered[threadIdx.x][row];
	__syncthreads();
	for (uint32_t r = 0; r < g.ranks; r++) {
		all += s.offered[r];
		fits = fits && s.offered[r] <= g.cap;
	}
	if (!fits || all > KEPT * gridDim.x)
		return false;
	for (uint32_t n = threadIdx.x;; n += THREADS) {
		uint32_t i = blockIdx.x + n * gridDim.x, r = 0;

		if (i >= all)
			break;
		while (i >= s.offered[r])
			i -= s.offered[r++];
		s.edge[n] = g.offers[r][(size_t)row * g.cap + i];
	}
	if (threadIdx.x == 0)
		s.edges = (all + gridDim.x - 1 - blockIdx.x) / gridDim.x;
	__syncthreads();
	return true;
}

/* Count the scores of all ranks that lie in [lo, hi]. */
__device__ inline void
count_scores(const struct dcpg_select &g, uint64_t lo, uint64_t hi,
    uint32_t shift, uint32_t hist)
{
	uint32_t row = blockIdx.y, blocks = gridDim.x, total = g.total[row];

	for (uint32_t r = 0; r < g.ranks; r++) {
		const float *score = g.scores[r] + (size_t)row * g.stride;
		uint32_t n = total / g.ranks + (r < total % g.ranks);

		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n;
		    i += blocks * THREADS)
			count_key(composite(score_key(score[i]), i * g.ranks +
			    r), lo, hi, shift, hist, blocks);
	}
}

/* Count this block's part of the boundary keys. kept: they are in s.edge. */
__device__ inline void
count_keys(Shared &s, const struct dcpg_select &g, const Run &run, bool kept,
    uint64_t lo, uint64_t hi, uint32_t shift, uint32_t *hist)
{
	uint32_t h = smem_addr(hist), blocks = gridDim.x;

	if (kept) {
		for (uint32_t i = threadIdx.x; i < s.edges; i += THREADS)
			count_key(s.edge[i], lo, hi, shift, h, blocks);
	} else if (g.ranks > 1) {
		count_scores(g, lo, hi, shift, h);
	} else {
		for (uint32_t i = threadIdx.x; i < run.n; i += THREADS)
			count_key(composite(score_key(run.score[i]),
			    run.first + i), lo, hi, shift, h, blocks);
	}
}

/* Find where in the boundary bin the winners begin. */
__device__ inline void
narrow(Shared &s, const struct dcpg_select &g, const Run &run, Edge &e,
    uint32_t &phase)
{
	uint32_t need = e.need;
	uint64_t lo = (uint64_t)e.lo << 32, hi = ((uint64_t)e.hi << 32) - 1;
	bool kept = g.ranks > 1 ? take_offers(s, g) : s.edges <= KEPT;

	for (uint32_t round = 0;; round++) {
		uint32_t *hist = s.hist[round % 2];
		uint32_t bits = 64 - __clzll((long long)(hi - lo));
		uint32_t shift = bits > 11 ? bits - 11 : 0;

		count_keys(s, g, run, kept, lo, hi, shift, hist);
		meet(s, phase);
		find_bin(s.scan, my_bins(hist), need);
		need = s.scan.need;
		lo += (uint64_t)s.scan.bin << shift;
		if (hi - lo >= 1ull << shift)
			hi = lo + ((1ull << shift) - 1);
		if (need == s.scan.in_bin || shift == 0)
			break;
		/* Next used in two rounds, after a barrier. */
		for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += THREADS)
			hist[i] = 0;
		__syncthreads();
	}
	e.from = lo;
}

/* Bits for those of the boundary's keys that win. */
__device__ inline void
mark(Shared &s, const struct dcpg_select &g, const Run &run, const Edge &e)
{
	if (g.ranks == 1 && s.edges <= KEPT) {
		for (uint32_t i = threadIdx.x; i < s.edges; i += THREADS) {
			uint32_t j = ~(uint32_t)s.edge[i] - run.first;

			if (s.edge[i] >= e.from)
				atomicOr(&s.bits[j / 32], 1u << j % 32);
		}
	} else {
		for (uint32_t i = threadIdx.x; i < run.n; i += THREADS) {
			uint32_t key = score_key(run.score[i]);

			if (key >= e.lo && key < e.hi && composite(key,
			    (run.first + i) * g.ranks + g.rank) >= e.from)
				atomicOr(&s.bits[i / 32], 1u << i % 32);
		}
	}
	__syncthreads();
}

/* The bits become rows, behind those of the blocks before. A thread takes
 * neighbouring words, so the list is ascending; pages are looked up when all
 * winners are known, by all threads at once. */
__device__ inline void
emit(Shared &s, const struct dcpg_select &g, const Run &run, uint32_t phase)
{
	uint32_t row = blockIdx.y, words = (run.n + 31) / 32, n = 0, at, all;
	uint32_t per = (words + THREADS - 1) / THREADS, base = 0;
	uint32_t first = min(words, threadIdx.x * per);
	uint32_t end = min(words, first + per);
	uint32_t lg = __ffs(g.page_rows) - 1, low = g.page_rows - 1;
	const uint32_t *table = g.table + g.table_at[row];
	uint32_t *list = g.list + (size_t)row * g.list_stride;

	for (uint32_t i = first; i < end; i++)
		n += __popc(s.bits[i]);
	at = block_sum(n, s.scan.warp);
	if (threadIdx.x == THREADS - 1)
		for (uint32_t r = 0; r < gridDim.x; r++)
			asm volatile("st.shared::cluster.u32 [%0], %1;" ::
			    "r"(cluster_map(smem_addr(&s.total[blockIdx.x]),
			    r)), "r"(at) : "memory");
	at -= n;
	for (uint32_t i = first; i < end; i++)
		for (uint32_t b = s.bits[i]; b != 0; b &= b - 1)
			s.won[at++] = run.first + i * 32 + __ffs(b) - 1;
	meet(s, phase);
	for (uint32_t r = 0; r < blockIdx.x; r++)
		base += s.total[r];
	n = s.total[blockIdx.x];
	for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
		uint32_t j = s.won[i];

		list[base + i] = (table[j >> lg] << lg) + (j & low);
	}
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		all = 0;
		for (uint32_t r = 0; r < gridDim.x; r++)
			all += s.total[r];
		g.count[row] = all;
	}
	/* All blocks have read the histogram: they have counted. */
	if (g.clear != NULL && blockIdx.x == 0)
		for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += THREADS)
			g.clear[(size_t)row * DCPG_BINS + i] = 0;
}

/* The boundary that the offers were made for. */
__device__ inline Edge
offered_edge(const struct dcpg_select &g, uint32_t row)
{
	uint4 x = ((const uint4 *)g.edge)[row];

	return (Edge){ x.x, x.y, x.z, x.w, 0 };
}

/* grid: (blocks of a cluster, rows). */
__global__ void __launch_bounds__(THREADS, 2)
select_kernel(const __grid_constant__ struct dcpg_select g)
{
	extern __shared__ __align__(16) uint8_t mem[];
	Shared &s = *(Shared *)mem;
	uint32_t row = blockIdx.y, phase = 0, len, per;
	Edge e;
	Run run;

	for (uint32_t i = threadIdx.x; i < 2 * DCPG_BINS; i += THREADS)
		s.hist[0][i] = 0;
	if (threadIdx.x == 0) {
		s.edges = 0;
		mbar_init(smem_addr(&s.meet), gridDim.x);
	}
	/* All histograms are clear, all barriers set up. */
	asm volatile("barrier.cluster.arrive.release.aligned;\n"
	    "barrier.cluster.wait.acquire.aligned;" ::: "memory");
	launch_wait();
	launch_next();
	len = g.len[row];
	per = ((len + gridDim.x - 1) / gridDim.x + 31) & ~31u;
	run.first = min(len, blockIdx.x * per);
	run.n = min(len, run.first + per) - run.first;
	run.score = g.score + (size_t)row * g.stride + run.first;
	e = g.ranks > 1 ? offered_edge(g, row) : first_edge(s.scan,
	    my_bins(g.hist + (size_t)row * DCPG_BINS), g.k);
	collect(s, g, run, e);
	meet_in(g.peer, row == 0 && blockIdx.x == 0);
	if (e.need < e.in_bin) {
		narrow(s, g, run, e, phase);
		mark(s, g, run, e);
	}
	emit(s, g, run, phase);
	meet_out(g.peer, gridDim.x * gridDim.y);
}

/* The group's histogram of a row, this thread's four bins of it. */
__device__ inline uint4
group_bins(const struct dcpg_select &g, uint32_t row)
{
	uint4 sum = { 0, 0, 0, 0 };

	for (uint32_t r = 0; r < g.ranks; r++) {
		uint4 x = my_bins(g.hists[r] + (size_t)row * DCPG_BINS);

		sum.x += x.x;
		sum.y += x.y;
		sum.z += x.z;
		sum.w += x.w;
	}
	return sum;
}

/* grid: (runs, rows). */
__global__ void __launch_bounds__(THREADS, 2)
offer_kernel(const __grid_constant__ struct dcpg_select g)
{
	__shared__ Scan s;
	uint32_t row = blockIdx.y, len = g.len[row], at;
	uint64_t *offer = g.offers[g.rank] + (size_t)row * g.cap;
	Edge e;

	meet_in(g.peer, row == 0 && blockIdx.x == 0);
	e = first_edge(s, group_bins(g, row), g.k);
	if (blockIdx.x == 0 && threadIdx.x == 0)
		((uint4 *)g.edge)[row] = make_uint4(e.need, e.in_bin, e.lo,
		    e.hi);
	if (e.need == e.in_bin)
		len = 0;
	for (uint32_t j = blockIdx.x * THREADS + threadIdx.x; j < len;
	    j += gridDim.x * THREADS) {
		uint32_t key = score_key(g.score[(size_t)row * g.stride + j]);

		if (key < e.lo || key >= e.hi)
			continue;
		at = atomicAdd(&g.offered[g.rank][row], 1);
		if (at < g.cap)
			offer[at] = composite(key, j * g.ranks + g.rank);
	}
	meet_out(g.peer, gridDim.x * gridDim.y);
}

bool
valid(const struct dcpg_select *a)
{
	return a->rows > 0 && a->rows <= 65535 && a->k > 0 &&
	    a->k <= DCPG_MAX_K &&
	    a->k <= a->list_stride && a->max_len > 0 &&
	    a->max_len <= a->stride && a->stride % 4 == 0 &&
	    a->max_len <= DCPG_MAX_SHARD &&
	    a->page_rows > 0 && 64 % a->page_rows == 0 && a->ranks > 0 &&
	    a->rank < a->ranks && (a->ranks == 1 || (a->edge != NULL &&
	    a->total != NULL && a->ranks <= DCPK_MAX_RANKS));
}

}	/* namespace */

int
select_init(void)
{
	return cudaFuncSetAttribute(select_kernel,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)) ==
	    cudaSuccess ? 0 : -EIO;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_select(const struct dcpg_select *a, void *stream)
{
	cudaLaunchAttribute at[2];
	cudaLaunchConfig_t cfg = {};
	uint32_t blocks = 8;

	if (!valid(a))
		return -EINVAL;
	/* One wave where possible, two blocks an SM: an H200 has room for 30,
	 * 60, 132 clusters of 8, 4, 2. No block with less than 1024 keys. */
	while (blocks > 1 && a->max_len <= blocks / 2 * RUN &&
	    (a->rows > (blocks == 8 ? 30 : blocks == 4 ? 60 : 132) ||
	    a->max_len < blocks * 1024))
		blocks /= 2;
	at[0].id = cudaLaunchAttributeClusterDimension;
	at[0].val.clusterDim.x = blocks;
	at[0].val.clusterDim.y = 1;
	at[0].val.clusterDim.z = 1;
	at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[1].val.programmaticStreamSerializationAllowed = 1;
	cfg.gridDim = dim3(blocks, a->rows);
	cfg.blockDim = dim3(THREADS);
	cfg.dynamicSmemBytes = sizeof(Shared);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = at;
	cfg.numAttrs = 2;
	return cudaLaunchKernelEx(&cfg, select_kernel, *a) == cudaSuccess ?
	    0 : -EIO;
}

extern "C" int
dcpg_select_offer(const struct dcpg_select *a, void *stream)
{
	uint32_t runs, most;

	if (!valid(a) || a->ranks == 1)
		return -EINVAL;
	/* Every block reads the peers' histograms: no more than two an SM. */
	runs = (a->max_len + 4 * THREADS - 1) / (4 * THREADS);
	most = a->rows < 264 ? 264 / a->rows : 1;
	offer_kernel<<<dim3(runs < most ? runs : most, a->rows), THREADS, 0,
	    (cudaStream_t)stream>>>(*a);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}
