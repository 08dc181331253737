/*
 * Indexer of decode: scores of all local keys with the first histogram. dcpg.h
 * says what is computed.
 *
 * The keys of all query rows are cut into tiles of 64, and one block an SM has
 * its even share of the tiles, maybe of several rows. Four warps bring them:
 * whole pages and their scales by bulk copies, up to 12 tiles ahead (20 are
 * slower); a tile is due every 400 cycles, too often for one warp. Four
 * warpgroups take the tiles in turn, as the long side of an fp8 product with
 * all heads: a thread reads 32 bytes of two keys, the product takes them from
 * its registers, and q is permuted in shared memory to match, so that rows need
 * no swizzle. A tile's place is free again as soon as it has been read. At the
 * end of a row its histogram goes to memory.
 *
 * Shared memory: 12 tiles 102 KB, q 8 KB (64 heads), histogram 8 KB. Bytes that
 * must move: 132 per key and query row, 4 per score out.
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
constexpr uint32_t RING = 12;		/* a multiple of WGS */

/* --- scores -------------------------------------------------------------- */

template <int H>
struct Shared {
	uint8_t tile[RING][TILE * 128];
	uint8_t q[H * 128];		/* aligned to 1024 bytes */
	float scale[2 * RING][TILE];
	float w[H];
	uint32_t hist[DCPG_BINS];
	uint64_t full[RING], empty[RING];
};

/*
 * q as the B operand: [heads][128 bytes], swizzled, dimensions permuted. Thread
 * c of a key reads its 16-byte chunks c and 4 + c, eight words; the product's
 * step s takes words 2s and 2s + 1: their bytes i stand at the step's places
 * 4c + i and 16 + 4c + i.
 */
template <int H>
__device__ inline void
load_q8(const uint8_t *q8, uint32_t at)
{
	for (uint32_t i = threadIdx.x; i < H * 32; i += WORK) {
		uint32_t h = i / 32, word = i % 32, c = word / 4 % 4;
		uint32_t n = word / 16 * 4 + word % 4;	/* of the thread's 8 */
		uint32_t chunk = n ^ h % 8;

		sts32(at + h * 128 + chunk * 16 + 4 * c,
		    ((const uint32_t *)q8)[i]);
	}
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

/* Rows of a warp at a time, as many of each lane, so that nothing waits for one
 * load after another. */
constexpr uint32_t SOME = 4;

struct Rows {
	uint32_t len[SOME], at[SOME];	/* keys, where the pages begin */
	uint32_t tiles;			/* of all SOME */
};

/* The lane's of the 128 rows from `row` on. */
__device__ inline Rows
lane_rows(const struct dcpg_index_score &g, uint32_t row)
{
	Rows x;

	x.tiles = 0;
	row += threadIdx.x % 32 * SOME;
#pragma unroll
	for (uint32_t k = 0; k < SOME; k++) {
		uint32_t r = min(row + k, g.rows - 1), n = g.len[r];

		x.len[k] = row + k < g.rows ? n : 0;
		x.at[k] = g.table_at[r];
		x.tiles += tiles_of(x.len[k]);
	}
	return x;
}

/* Which of a lane's rows the block begins in, `sum` tiles being before them:
 * its number; it becomes x's first. */
__device__ inline uint32_t
lane_row(Rows &x, uint32_t &sum, uint32_t begin)
{
	uint32_t k = 0;

#pragma unroll
	for (uint32_t j = 1; j < SOME; j++) {
		uint32_t n = tiles_of(x.len[0]);

		if (k != j - 1 || sum + n > begin)
			continue;
		sum += n;
		k = j;
		x.len[0] = x.len[j];
		x.at[0] = x.at[j];
	}
	return k;
}

/* Where a block begins. */
__device__ inline Place
block_place(const struct dcpg_index_score &g)
{
	uint32_t lane = threadIdx.x % 32, b = blockIdx.x, row = 0, sum = 0;
	Rows x = lane_rows(g, 0);
	uint32_t all = x.tiles, each, upto, i, k;
	Place p;

#pragma unroll 4
	for (uint32_t r = 32 * SOME + lane; r < g.rows; r += 32)
		all += tiles_of(g.len[r]);
	all = __reduce_add_sync(~0u, all);
	each = all / gridDim.x;
	all -= each * gridDim.x;	/* blocks with one more */

	uint32_t begin = b * each + min(b, all);

	p.end = each + (b < all);
	for (;;) {		/* 128 rows at a time, until they reach beyond */
		uint32_t some = __reduce_add_sync(~0u, x.tiles);

		if (sum + some > begin || row + 32 * SOME >= g.rows)
			break;
		sum += some;
		row += 32 * SOME;
		x = lane_rows(g, row);
	}
	upto = x.tiles;
#pragma unroll
	for (int n = 1; n < 32; n *= 2) {
		uint32_t y = __shfl_up_sync(~0u, upto, n);

		upto += lane >= n ? y : 0;
	}
	i = __popc(__ballot_sync(~0u, sum + upto <= begin)) % 32;
	sum += upto - x.tiles;
	k = lane_row(x, sum, begin);
	p.row = row + i * SOME + __shfl_sync(~0u, k, i);
	p.len = __shfl_sync(~0u, x.len[0], i);
	p.table = g.table + __shfl_sync(~0u, x.at[0], i);
	p.first = (int)(__shfl_sync(~0u, sum, i) - begin);
	p.last = p.first + (int)tiles_of(p.len);
	return p;
}

/* On to the row of tile t < end. */
__device__ inline void
move_to(Place &p, const struct dcpg_index_score &g, int t)
{
	while (t >= p.last) {
		p.len = g.len[++p.row];
		p.table = g.table + g.table_at[p.row];
		p.first = p.last;
		p.last += tiles_of(p.len);
	}
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

/* What the bringing warps do; each takes every fourth group of tiles. A lane
 * sees to two keys of a tile; where one begins a page, it copies the page. */
template <int H>
__device__ inline void
bring(Shared<H> &s, const struct dcpg_index_score &g, Place p)
{
	constexpr int AHEAD = 2;	/* tiles whose pages are looked up */
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
					bulk_load(dst + k * 128, g.keys +
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

/* 64 keys of one tile: r becomes their A operand. */
template <int H>
__device__ inline void
read_tile(uint32_t (&r)[16], float (&ks)[2], const Shared<H> &s, uint32_t t,
    uint32_t at, uint32_t c)
{
#pragma unroll
	for (int u = 0; u < 2; u++) {
		uint32_t p = smem_addr(s.tile[t % RING]) + (at + 8 * u) * 128 +
		    16 * c;
		uint4 a = lds128(p), b = lds128(p + 64);

		ks[u] = s.scale[t % (2 * RING)][at + 8 * u];
		r[0 + u] = a.x;
		r[2 + u] = a.y;
		r[4 + u] = a.z;
		r[6 + u] = a.w;
		r[8 + u] = b.x;
		r[10 + u] = b.y;
		r[12 + u] = b.z;
		r[14 + u] = b.w;
	}
}

/* A warpgroup's tiles t .. end - 1 of the row at p. */
template <int H>
__device__ inline void
work(Shared<H> &s, const struct dcpg_index_score &g, const Place &p, int t,
    int end)
{
	uint32_t lane = threadIdx.x % 32, c = lane % 4;
	uint32_t at = threadIdx.x / 32 % 4 * 16 + lane / 4;
	uint64_t desc = desc128(smem_addr(s.q));
	float *score = g.score + (size_t)p.row * g.stride;
	float d[H / 2];
	uint32_t r[16];

	for (; t < end; t += WGS) {
		uint32_t i = t % RING, key = (t - p.first) * TILE + at;
		float sum[2] = { 0, 0 }, ks[2];

		mbar_wait(smem_addr(&s.full[i]), (t / RING) & 1);
		read_tile<H>(r, ks, s, t, at, c);
		wg_ready<16>(r);
#pragma unroll
		for (int j = 0; j < H / 2; j++)
			d[j] = 0.0f;
		wg_pin(d);
		wg_fence();
#pragma unroll
		for (int k = 0; k < 4; k++)
			Mma8<H>::run(d, r + 4 * k, desc + 2 * k, k > 0);
		wg_commit();
		/* An arrival waits for no read that is under way: right after
		 * the reads it let the next tile come too early, about one of
		 * 10^7. The products have r, so its reads have ended; scales
		 * are not overwritten before this warpgroup's third next tile,
		 * and this one's are used by then. */
		__syncwarp();
		if (lane == 0)
			mbar_arrive(smem_addr(&s.empty[i]));
		wg_wait<0>();
		wg_pin(d);
#pragma unroll
		for (int j = 0; j < H / 8; j++) {
			uint2 x = lds64(smem_addr(s.w + 8 * j + 2 * c));

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
			float x = c == 0 ? sum[0] * ks[0] : sum[1] * ks[1];

			score[key + 8 * c] = x;
			if (g.hist != NULL)
				atomicAdd(&s.hist[score_digit(x)], 1);
		}
	}
}

/* The computing warpgroups, row by row. */
template <int H>
__device__ inline void
compute(Shared<H> &s, const struct dcpg_index_score &g, Place p)
{
	int wg = threadIdx.x / 128;

	for (int t = 0; t < p.end; t = p.last) {
		move_to(p, g, t);
		load_q8<H>(g.q8 + (size_t)p.row * H * 128, smem_addr(s.q));
		if (threadIdx.x < H)
			s.w[threadIdx.x] = g.w[(size_t)p.row * H + threadIdx.x];
		fence_async();
		bar_sync(1, WORK);
		/* Tile t is warpgroup t % WGS's. */
		work<H>(s, g, p, t + ((wg - t) & (WGS - 1)),
		    min(p.last, p.end));
		bar_sync(1, WORK);
		if (g.hist == NULL)
			continue;
		for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += WORK)
			if (s.hist[i] != 0) {
				atomicAdd(&g.hist[p.row * DCPG_BINS + i],
				    s.hist[i]);
				s.hist[i] = 0;
			}
	}
}

/* 80 registers leave room for a block of the selection. */
template <int H>
__global__ void __maxnreg__(80)
score_kernel(const struct dcpg_index_score g)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	Shared<H> &s = *(Shared<H> *)mem;
	Place p = block_place(g);

	if (threadIdx.x < RING) {
		/* Of small pages every lane brings scales by itself. */
		mbar_init(smem_addr(&s.full[threadIdx.x]), 1 + 32);
		mbar_init(smem_addr(&s.empty[threadIdx.x]), 4);
	}
	fence_async();
	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += THREADS)
		s.hist[i] = 0;
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
