/*
 * Indexer of decode: scores of all local keys with the first histogram. dcpg.h
 * says what is computed.
 *
 * The keys of all query rows are cut into tiles of 64, and one block an SM has
 * its even share of the tiles, maybe of several rows. Four warps bring them:
 * whole pages and their scales by bulk copies, up to 8 tiles ahead (12 are
 * slower); a tile is due every 400 cycles, too often for one warp. Four
 * warpgroups take the tiles in turn, as the long side of an fp8 product with
 * all heads: a thread reads 32 bytes of two keys, the product takes them from
 * its registers, and q is permuted in shared memory to match, so that rows need
 * no swizzle. A tile's place is free again when its product has been made. At
 * the end of a row its histogram goes to memory.
 *
 * While the kernel before still runs, the first tiles are fetched into the L2.
 *
 * Shared memory: 8 tiles 66 KB, q of two rows 16 KB (64 heads), two histograms
 * 16 KB. Bytes that must move: 132 per key and query row, 4 per score out.
 */
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr uint32_t TILE = 64;
constexpr uint32_t WGS = 4;
constexpr uint32_t WORK = WGS * 128;	/* computing threads */
constexpr uint32_t BRING = 4;		/* warps that bring tiles */
constexpr uint32_t THREADS = WORK + BRING * 32;
constexpr uint32_t SMS = 132;		/* an H200's */
constexpr int AHEAD = 2;		/* tiles of one that are looked up */
/* What they take in a round: a place is always the same warp's, which so cannot
 * be two rounds ahead of those who read. */
constexpr uint32_t RING = BRING * AHEAD;
static_assert(RING % WGS == 0, "a place is always the same warpgroup's, too");

/* --- scores -------------------------------------------------------------- */

template <int H>
struct Shared {
	uint8_t tile[RING][TILE * 128];
	/* of the row at hand and the next, or the one before */
	uint8_t q[2][H * 128];		/* aligned to 1024 bytes */
	float scale[2 * RING][TILE];	/* see work() */
	float w[2][H];
	uint32_t hist[2][DCPG_BINS];
	uint64_t full[RING], empty[RING];
};

/*
 * Begins to copy a row's q and w. q as the B operand: [heads][128 bytes],
 * swizzled, dimensions permuted. Thread c of a key reads its 16-byte chunks c
 * and 4 + c, eight words; the product's step s takes words 2s and 2s + 1: their
 * bytes i stand at the step's places 4c + i and 16 + 4c + i.
 */
template <int H>
__device__ inline void
fetch_row(Shared<H> &s, const struct dcpg_index_score &g, uint32_t row,
    uint32_t half)
{
	const uint32_t *q8 = (const uint32_t *)(g.q8 + (size_t)row * H * 128);
	uint32_t at = smem_addr(s.q[half]);

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < H * 32; i += WORK) {
		uint32_t h = i / 32, word = i % 32, c = word / 4 % 4;
		uint32_t n = word / 16 * 4 + word % 4;	/* of the thread's 8 */
		uint32_t chunk = n ^ h % 8;

		copy4(at + h * 128 + chunk * 16 + 4 * c, q8 + i);
	}
	if (threadIdx.x < H)
		copy4(smem_addr(&s.w[half][threadIdx.x]),
		    g.w + (size_t)row * H + threadIdx.x);
}

__host__ __device__ inline uint32_t
tiles_of(uint32_t len)
{
	return (len + TILE - 1) / TILE;
}

/*
 * The tiles of all rows, one row behind the other, are shared out evenly. Where
 * a warp is in those of its block: at row `row`, whose tiles are first ..
 * last - 1 of the block's numbering, which starts at 0.
 */
struct Place {
	uint32_t row, len;
	int first, last;	/* first < 0 where the row began before */
	int end;		/* tiles of the block */
	const uint32_t *table;
};

/* Where a block begins. */
__device__ inline Place
block_place(const struct dcpg_index_score &g)
{
	uint32_t lane = threadIdx.x % 32, b = blockIdx.x, row = 0, sum = 0, i;
	uint32_t r = min(lane, g.rows - 1), at = g.table_at[r], len = g.len[r];
	uint32_t n = lane < g.rows ? tiles_of(len) : 0, all = n, each, upto;
	Place p;

#pragma unroll 4
	for (r = lane + 32; r < g.rows; r += 32)
		all += tiles_of(g.len[r]);
	all = __reduce_add_sync(~0u, all);
	each = all / gridDim.x;
	all -= each * gridDim.x;	/* blocks with one more */

	uint32_t begin = b * each + min(b, all);

	p.end = each + (b < all);
	for (;;) {		/* 32 rows at a time, until they reach beyond */
		uint32_t some = __reduce_add_sync(~0u, n);

		if (sum + some > begin || row + 32 >= g.rows)
			break;
		sum += some;
		row += 32;
		r = min(row + lane, g.rows - 1);
		at = g.table_at[r];
		len = g.len[r];
		n = row + lane < g.rows ? tiles_of(len) : 0;
	}
	upto = n;
#pragma unroll
	for (int k = 1; k < 32; k *= 2) {
		uint32_t y = __shfl_up_sync(~0u, upto, k);

		upto += lane >= k ? y : 0;
	}
	i = __popc(__ballot_sync(~0u, sum + upto <= begin)) % 32;
	p.row = row + i;
	p.len = __shfl_sync(~0u, len, i);
	p.table = g.table + __shfl_sync(~0u, at, i);
	p.last = (int)(sum + __shfl_sync(~0u, upto, i) - begin);
	p.first = p.last - (int)__shfl_sync(~0u, n, i);
	return p;
}

/* On to the next row, of len keys. */
__device__ inline void
next_row(Place &p, const struct dcpg_index_score &g, uint32_t len)
{
	p.len = len;
	p.table = g.table + g.table_at[++p.row];
	p.first = p.last;
	p.last += tiles_of(len);
}

/* On to the row of tile t < end. */
__device__ inline void
move_to(Place &p, const struct dcpg_index_score &g, int t)
{
	while (t >= p.last)
		next_row(p, g, g.len[p.row + 1]);
}

/* What a lane needs to know of a tile to bring it: the pages of its keys `lane`
 * and `lane` + 32, and how many keys there are. */
struct Tile {
	uint32_t page[2], n;
};

/* (Nothing waits for the pages before they are used.) */
__device__ inline Tile
look_up(Place &p, const struct dcpg_index_score &g, int t)
{
	uint32_t lg = __ffs(g.page_rows) - 1, lane = threadIdx.x % 32;
	Tile r = { { 0, 0 }, 0 };

	if (t >= p.end)
		return r;
	move_to(p, g, t);

	uint32_t first = (t - p.first) * TILE;

	r.n = min(TILE, p.len - first);
	if (lane < r.n)
		r.page[0] = p.table[(first + lane) >> lg];
	if (lane + 32 < r.n)
		r.page[1] = p.table[(first + lane + 32) >> lg];
	return r;
}

/* A tile's keys and scales into the L2: that needs nothing of the kernel before,
 * not even that keys are written. */
__device__ inline void
prefetch(const struct dcpg_index_score &g, const Tile &x)
{
	uint32_t lane = threadIdx.x % 32, low = g.page_rows - 1;
	uint32_t lg = __ffs(g.page_rows) - 1;

#pragma unroll
	for (uint32_t v = 0; v < 2; v++) {
		uint32_t k = lane + 32 * v;
		size_t row = (size_t)x.page[v] << lg;

		if (k >= x.n || (k & low) != 0)
			continue;
		bulk_prefetch_once(g.keys + row * 128, g.page_rows * 128);
		if (low >= 3)
			bulk_prefetch_once(g.kscale + row, g.page_rows * 4);
	}
}

/* What the bringing warps do; each takes every fourth group of tiles. A lane
 * sees to two keys of a tile; where one begins a page, it copies the page. */
template <int H>
__device__ inline void
bring(Shared<H> &s, const struct dcpg_index_score &g, Place p)
{
	uint32_t lane = threadIdx.x % 32, low = g.page_rows - 1;
	uint32_t lg = __ffs(g.page_rows) - 1;
	int mine = (threadIdx.x - WORK) / 32 * AHEAD;
	Tile now[AHEAD], next[AHEAD];
	bool waited = false;

#pragma unroll
	for (int u = 0; u < AHEAD; u++)
		next[u] = look_up(p, g, mine + u);
	for (int t0 = mine; t0 < p.end; t0 += BRING * AHEAD) {
#pragma unroll
		for (int u = 0; u < AHEAD; u++) {
			now[u] = next[u];
			next[u] = look_up(p, g, t0 + BRING * AHEAD + u);
		}
		if (!waited) {
#pragma unroll
			for (int u = 0; u < AHEAD; u++)
				prefetch(g, now[u]);
			launch_wait();
			waited = true;
		}
#pragma unroll
		for (int u = 0; u < AHEAD; u++) {
			uint32_t t = t0 + u, i = t % RING, n = now[u].n;
			uint32_t bar = smem_addr(&s.full[i]);
			uint32_t dst = smem_addr(s.tile[i]);

			if (n == 0)
				break;
			if (t >= RING)
				mbar_wait(smem_addr(&s.empty[i]),
				    (t / RING - 1) & 1);
			if (lane == 0)
				mbar_expect(bar, ((n + low) & ~low) * (128 +
				    (low >= 3 ? 4 : 0)));
			__syncwarp();
#pragma unroll
			for (uint32_t v = 0; v < 2; v++) {
				uint32_t k = lane + 32 * v;
				uint32_t row = (now[u].page[v] << lg) +
				    (k & low);
				uint32_t to = smem_addr(&s.scale[t %
				    (2 * RING)][k]);

				if (k >= n)
					continue;
				if ((k & low) == 0) {
					bulk_load_once(dst + k * 128, g.keys +
					    (size_t)row * 128,
					    g.page_rows * 128, bar);
					if (low >= 3)
						bulk_load(to, g.kscale + row,
						    g.page_rows * 4, bar);
				}
				if (low < 3)	/* too small for a bulk copy */
					copy4(to, g.kscale + row);
			}
			if (low < 3)
				mbar_arrive_copies(bar);
			else
				mbar_arrive(bar);
		}
	}
}

/* 64 keys of one tile: r becomes their A operand. The scale of the one that the
 * lane will finish. */
template <int H>
__device__ inline float
read_tile(uint32_t (&r)[16], Shared<H> &s, uint32_t t, uint32_t at, uint32_t c)
{
	float ks = s.scale[t % (2 * RING)][at + c % 2 * 8];

#pragma unroll
	for (int u = 0; u < 2; u++) {
		uint32_t p = smem_addr(s.tile[t % RING]) + (at + 8 * u) * 128 +
		    16 * c;
		uint4 a = lds128(p), b = lds128(p + 64);

		r[0 + u] = a.x;
		r[2 + u] = a.y;
		r[4 + u] = a.z;
		r[6 + u] = a.w;
		r[8 + u] = b.x;
		r[10 + u] = b.y;
		r[12 + u] = b.z;
		r[14 + u] = b.w;
	}
	return ks;
}

/* Of a description the upper half, which no address changes. */
constexpr uint64_t DESC_HIGH = (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;

/* A warpgroup's tiles t .. end - 1 of the row at p. */
template <int H>
__device__ inline void
work(Shared<H> &s, const struct dcpg_index_score &g, const Place &p, int t,
    int end, uint32_t half)
{
	uint32_t lane = threadIdx.x % 32, c = lane % 4;
	uint32_t at = threadIdx.x / 32 % 4 * 16 + lane / 4;
	uint32_t desc = (uint32_t)desc128(smem_addr(s.q[half]));
	uint32_t w = smem_addr(s.w[half] + 2 * c), *hist = s.hist[half];
	float *score = g.score + (size_t)p.row * g.stride;
	float d[H / 2];
	uint32_t r[16];

	for (; t < end; t += WGS) {
		uint32_t i = t % RING, key = (t - p.first) * TILE + at;
		float sum[2] = { 0, 0 }, ks;

		mbar_wait(smem_addr(&s.full[i]), (t / RING) & 1);
		ks = read_tile<H>(r, s, t, at, c);
		wg_ready<16>(r);
#pragma unroll
		for (int j = 0; j < H / 2; j++)
			d[j] = 0.0f;
		wg_pin(d);
		wg_fence();
#pragma unroll
		for (int k = 0; k < 4; k++)
			Mma8<H>::run(d, r + 4 * k, DESC_HIGH | (desc + 2 * k),
			    k > 0);
		wg_commit();
		wg_wait<0>();
		wg_pin(d);
		/* Not before the product has ended, which took r from
		 * registers: an arrival does not wait for reads, and the next
		 * tile would overtake them, about one of 10^7. The scale is
		 * used later: its place is overwritten only when this warpgroup
		 * has given back the one after it in the ring, too. */
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem_addr(&s.empty[i]));
#pragma unroll
		for (int j = 0; j < H / 8; j++) {
			uint2 x = lds64(w + 32 * j);

#pragma unroll
			for (int u = 0; u < 2; u++) {
				sum[u] += __uint_as_float(x.x) *
				    fmaxf(d[4 * j + 2 * u], 0.0f);
				sum[u] += __uint_as_float(x.y) *
				    fmaxf(d[4 * j + 2 * u + 1], 0.0f);
			}
		}
#pragma unroll
		for (int u = 0; u < 2; u++) {
			sum[u] += __shfl_xor_sync(~0u, sum[u], 1);
			sum[u] += __shfl_xor_sync(~0u, sum[u], 2);
		}
		/* Lanes c = 0 and 1 finish one key each. */
		if (c < 2 && key + 8 * c < p.len) {
			float x = (c == 0 ? sum[0] : sum[1]) * ks;

			score[key + 8 * c] = x;
			if (g.hist != NULL)
				atomicAdd(&hist[score_digit(x)], 1);
		}
	}
}

/* A row's histogram to memory; its place is empty again. */
template <int H>
__device__ inline void
flush(Shared<H> &s, const struct dcpg_index_score &g, uint32_t row,
    uint32_t half)
{
	uint32_t *hist = s.hist[half];

	if (g.hist == NULL)
		return;
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += WORK)
		if (hist[i] != 0) {
			atomicAdd(&g.hist[row * DCPG_BINS + i], hist[i]);
			hist[i] = 0;
		}
}

/*
 * The computing warpgroups, row by row. q of the next row is on its way while
 * one is worked on, the length of the one behind it too, and the histogram of
 * the last goes to memory when others work already: a row's end must not keep
 * the tiles waiting.
 */
template <int H>
__device__ inline void
compute(Shared<H> &s, const struct dcpg_index_score &g, Place p)
{
	uint32_t wg = threadIdx.x / 128, half = 0, done = p.row, len;
	int end;

	if (p.end == 0)
		return;
	fetch_row(s, g, p.row, half);
	len = g.len[min(p.row + 1, g.rows - 1)];
	for (int t = 0; t < p.end; t = end, half ^= 1) {
		Place next = p;

		end = min(p.last, p.end);
		copies_wait();
		fence_async();
		bar_sync(1, WORK);
		if (end < p.end) {
			next_row(next, g, len);
			move_to(next, g, end);
			fetch_row(s, g, next.row, half ^ 1);
			len = g.len[min(next.row + 1, g.rows - 1)];
		}
		if (t > 0)
			flush(s, g, done, half ^ 1);
		/* Tile t is warpgroup t % WGS's. */
		work<H>(s, g, p, t + ((wg - t) & (WGS - 1)), end, half);
		done = p.row;
		p = next;
	}
	bar_sync(1, WORK);
	flush(s, g, done, half ^ 1);
}

/* 80 registers leave room for a block of the selection. */
template <int H>
__global__ void __maxnreg__(80)
score_kernel(const struct dcpg_index_score g)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	Shared<H> &s = *at_shared<Shared<H>>(smem_addr(mem));
	Place p = block_place(g);

	if (threadIdx.x < RING) {
		/* Of small pages every lane brings scales by itself. */
		mbar_init(smem_addr(&s.full[threadIdx.x]), 1 + 32);
		mbar_init(smem_addr(&s.empty[threadIdx.x]), 4);
	}
	fence_async();
	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += THREADS)
		s.hist[0][i] = s.hist[1][i] = 0;
	__syncthreads();
	if (threadIdx.x >= WORK) {
		bring<H>(s, g, p);
		return;
	}
	launch_wait();
	launch_next();
	compute<H>(s, g, p);
}

template <int H>
cudaError_t
launch_score(cudaLaunchConfig_t *cfg, const struct dcpg_index_score &g)
{
	cfg->dynamicSmemBytes = sizeof(Shared<H>);
	return cudaLaunchKernelEx(cfg, score_kernel<H>, g);
}

template <int H>
bool
prepare(void)
{
	return cudaFuncSetAttribute(score_kernel<H>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<H>)) ==
	    cudaSuccess && cudaFuncSetAttribute(score_kernel<H>,
	    cudaFuncAttributePreferredSharedMemoryCarveout, 100) ==
	    cudaSuccess;
}

}	/* namespace */

int
index_init(void)
{
	return prepare<8>() && prepare<16>() && prepare<32>() && prepare<64>() ?
	    0 : -EIO;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_index_score(const struct dcpg_index_score *a, void *stream)
{
	cudaLaunchAttribute at[1];
	cudaLaunchConfig_t cfg = {};
	uint64_t tiles;
	cudaError_t e;

	if (a->rows == 0 || a->rows > 65535 || a->max_len == 0 ||
	    a->max_len > a->stride || a->page_rows == 0 ||
	    64 % a->page_rows != 0)
		return -EINVAL;
	tiles = (uint64_t)a->rows * tiles_of(a->max_len);
	at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[0].val.programmaticStreamSerializationAllowed = 1;
	cfg.gridDim = dim3(tiles < SMS ? tiles : SMS);
	cfg.blockDim = dim3(THREADS);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = at;
	cfg.numAttrs = 1;
	switch (a->heads) {
	case 8:
		e = launch_score<8>(&cfg, *a);
		break;
	case 16:
		e = launch_score<16>(&cfg, *a);
		break;
	case 32:
		e = launch_score<32>(&cfg, *a);
		break;
	case 64:
		e = launch_score<64>(&cfg, *a);
		break;
	default:
		return -EINVAL;
	}
	return e == cudaSuccess ? 0 : -EIO;
}
