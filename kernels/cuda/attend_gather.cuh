/*
 * Sparse decode attention: the shape of a block and its four gathering warps,
 * which bring the rows that the list names into stages of shared memory, ahead
 * of the warps that compute (attend.cuh).
 */
#ifndef DCPG_ATTEND_GATHER_CUH
#define DCPG_ATTEND_GATHER_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

constexpr int KEYS = 64;		/* of one stage */
constexpr int MAX_SPLITS = DCPG_MAX_SPLITS;
constexpr int MAX_TEAM = DCPG_MAX_TEAM;
constexpr int MAX_WGS = 4;		/* that score */
constexpr int MAX_PLACES = 4;		/* of p, on their barriers */
constexpr int SMEM_MAX = 232448;	/* 227 KB a block */
constexpr float GROW = 8.0f;		/* log2: how far p may pass 1 */

struct Args {
	const uint8_t *q, *pool;
	const uint32_t *list, *count;
	void *out;
	float *lse;
	const struct dcpg_part *to;
	uint8_t *work;		/* where splits meet: attend_out.cuh */
	uint32_t self;
	uint32_t heads, list_stride, max_count;
	uint32_t share;		/* of a split, of as many as are expected */
	uint32_t split_magic;	/* 2^32 / splits, rounded up; 0: one split */
	uint32_t part_lg;	/* log2 of a part's heads */
	uint32_t team;		/* blocks that share rows */
	uint32_t per, per_magic; /* heads that a split owns; 65536 / per + 1 */
	float scale_log2;	/* scale * log2(e) */
	bool out_f32, arrive;
	bool q_ones;
	uint32_t first;		/* rank that has q's first heads */
	struct dcpg_peer peer;
};

/* BF16: rows are bf16, else packed fp8. NH heads, W warpgroups that sum. */
template <bool BF16, int NH, int W>
struct Shape {
	static constexpr bool bf16 = BF16;
	static constexpr int nh = NH, wgs = W;
	static constexpr int work = W * 128;	/* threads that sum */
	/* W more score: attend_roles.cuh. */
	static constexpr bool roles = W == 2 && (NH == 32 || NH == 16);
	static constexpr int computing = work * (roles ? 2 : 1);
	static constexpr int threads = computing + 128;
	static constexpr int telling = work + 128;	/* tell_owners() */
	static constexpr int max_team = MAX_TEAM;
	/* Registers of a summing and of a gathering thread; a block starts with
	 * the same for all, which one that only scores keeps, and would wait
	 * for ever for more in sum. */
	static constexpr int at_first = 65536 / threads & ~7;
	static constexpr int regs = roles ? 128 : W == 4 ? 112 : NH == 64 ? 240 :
	    232;
	static constexpr int spare = roles || W == 4 ? 32 : NH == 64 ? 24 : 40;
	static_assert(work * regs + (computing - work) * at_first +
	    128 * spare <= at_first * threads, "registers of a block");
	static constexpr int row = BF16 ? 1152 : 656;
	/* 4 banks from row to row, whatever the format: no conflicts. */
	static constexpr int pitch = BF16 ? 1168 : 656;
	static constexpr int stage = KEYS * pitch;
	/* Scores: steps of 16 dimensions per batch of products. */
	static constexpr int qb = !BF16 && NH >= 16 ? 2 : 4;
	static constexpr int tiles = 8 / W;	/* of 64 output dimensions */
	/* Value operands of so many tiles at a time, two in flight. */
	static constexpr int together = roles ? tiles / 2 : tiles;
	/* A stage's first ones are made while the last of the one before are
	 * multiplied; where many registers are taken that is no faster. */
	static constexpr bool ahead = NH < 64;

	static constexpr int q_bytes = 9 * NH * 128;
	static_assert(!BF16 || NH < 64, "attend_heads.cuh has these");
	/* A stage's p and what goes with it stand in one of so many places in
	 * turn: scales for the values, and what became of the maxima: a factor
	 * for each head, whether there are any, one more for all heads. */
	static constexpr int places = roles ? 2 * W : W;
	static constexpr int p_place = NH * 128;
	static constexpr int p_bytes = places * p_place;
	static constexpr int tab_place = BF16 ? 0 : 4 * KEYS * 2;
	static constexpr int tab_bytes = places * tab_place;
	static constexpr int told_place = NH * 4 + 16;
	static constexpr int told_bytes = places * told_place;
	/* 64 heads are for many rows, of which there are enough without. */
	static constexpr int splits = NH == 64 ? 1 : MAX_SPLITS;
	static_assert(splits <= NH, "each owns a head");
	/* What splits tell of the heads that a block owns. */
	static constexpr int in_rows = NH + 2 * MAX_SPLITS;
	static constexpr int ml_bytes = splits == 1 ? 0 : in_rows * 16;
	static constexpr int wt_bytes = splits == 1 ? 0 : in_rows * 4;
	static constexpr int ms_bytes = NH * 4;	/* maxima, ordered() */
	static constexpr int fs_bytes = NH * 4;
	/* [head][W * 4 warps], 4 words of padding spread the banks. */
	static constexpr int rrow = (W * 4 + 4) * 4;
	static constexpr int red_bytes = NH * rrow;
	static constexpr int fixed = q_bytes + p_bytes + tab_bytes +
	    ml_bytes + wt_bytes + ms_bytes + fs_bytes + red_bytes +
	    told_bytes + 32 + 24 * 8;
	static constexpr int fit = (SMEM_MAX - fixed) / stage;
	static constexpr int stages = fit > 8 ? 8 : fit;

	static constexpr int q_off = 0;
	static constexpr int stage_off = q_off + q_bytes;
	static constexpr int p_off = stage_off + stages * stage;
	static constexpr int tab_off = p_off + p_bytes;
	static constexpr int ml_off = tab_off + tab_bytes;
	static constexpr int wt_off = ml_off + ml_bytes;
	static constexpr int ms_off = wt_off + wt_bytes;
	static constexpr int fs_off = ms_off + ms_bytes;
	static constexpr int red_end = fs_off + fs_bytes + red_bytes;
	static constexpr int red_off = fs_off + fs_bytes;
	static constexpr int told_off = red_end;
	static constexpr int ce_off = told_off + told_bytes;
	static constexpr int unit_off = ce_off + 4, busy_off = ce_off + 8;
	static constexpr int out_off = ce_off + 16;
	static constexpr int bar_off = ce_off + 32;
	/* Barriers: 8 by which a stage is full, 8 empty, and 4 by which the
	 * place of a stage's p is full, 4 free. */
	static constexpr int bytes = bar_off + 24 * 8;

	/* What splits send each other, in Args::work: of each block that owns
	 * heads (m, l, unit, 0) and 512 values a head and split, f16 or, of
	 * bf16 rows, f32. A thread has in_words of them, of `at_once` splits
	 * and two heads at a time. */
	static constexpr int in_row = 512 * (BF16 ? 4 : 2);
	static constexpr size_t in_bytes = in_rows * (16 + in_row);
	static constexpr int in_words = BF16 ? 2 * tiles : tiles;
	static constexpr int at_once = in_words == 2 ? 4 : in_words == 4 ? 3 :
	    2;
	static_assert(stages >= W, "all stages of a round are held at once, and "
	    "Ring::ahead() goes round once");
	static_assert(W <= MAX_WGS && places <= MAX_PLACES &&
	    places % W == 0, "who follows maxima finds them all");
	static_assert(p_off % 1024 == 0 && q_bytes % 1024 == 0, "swizzle");
};

/* The part of the key list that one block owns. */
struct Part {
	uint32_t first, n;
};

/* Keys of a split, a multiple of 16; the last ones may have fewer. `magic`
 * (Args::split_magic) stands for a division by splits, right below 2^28. */
__host__ __device__ inline uint32_t
share_of(uint32_t count, uint32_t splits, uint32_t magic)
{
	uint32_t keys = (uint64_t)(count + splits - 1) * magic >> 32;

	return magic == 0 ? count : (keys + 15) & ~15u;
}

__device__ inline Part
my_part(const Args &a, uint32_t count)
{
	uint32_t per = share_of(count, gridDim.x, a.split_magic);
	Part p;

	p.first = min(count, blockIdx.x * per);
	p.n = min(count, p.first + per) - p.first;
	return p;
}

/*
 * Blocks of one list part and several head groups need the same rows: each
 * fetches every n-th of them for all n. They are a cluster, of which a block's
 * number is its number in the team.
 */
struct Team {
	uint32_t n, me;		/* blocks that share rows; which one this is */

	__device__ inline
	Team(uint32_t blocks) : n(blocks), me(blockIdx.y % blocks)
	{
	}
	__device__ inline uint16_t
	mask(void) const
	{
		return (uint16_t)((1u << n) - 1);
	}
};

/* The gathering warps, while the kernel before still runs: the part of the list
 * that is expected, up to 4064 entries, and its count into the L2, from which
 * the weights of other layers drive a list that several layers share. */
template <class S>
__device__ inline void
fetch_list(const Args &a)
{
	constexpr uint32_t LINE = 128 / sizeof(uint32_t);
	const uint32_t *list = a.list + (size_t)blockIdx.z * a.list_stride;
	uint32_t i = threadIdx.x - S::computing, first = blockIdx.x * a.share;
	uint32_t at = first / LINE * LINE + i * LINE;

	if (i == 127)
		prefetch_l2(a.count + blockIdx.z);
	else if (at < min(first + a.share, a.max_count))
		prefetch_l2(list + at);
}

/* How many rows of a stage are there when n keys are left: copies of the last
 * key, finite values, fill it up, and p = 0 takes them out again. */
__device__ inline uint32_t
filled(uint32_t n)
{
	return n > KEYS / 2 ? KEYS : KEYS / 2;
}

/*
 * The gathering warps, 16 rows of a stage each. A lane holds an entry of the
 * list: the lower half those of an even stage, the upper half those of the
 * next. The first entries are read as if the list had as many as expected,
 * while its count is still on the way. Returns how many keys there were.
 */
template <class S>
__device__ inline uint32_t
gather(const Args &a, const Team &team, uint32_t smem)
{
	const uint32_t *list = a.list + (size_t)blockIdx.z * a.list_stride;
	uint32_t lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
	uint32_t me = first + lane % 16 + lane / 16 * KEYS;
	uint32_t full = smem + S::bar_off, empty = full + 64;
	uint32_t guess = blockIdx.x * a.share + me, s = 0, turn = 0;
	uint32_t row = 0, next = 0, n, stages;
	uint16_t all = team.mask();
	Part part;

	if (guess < a.max_count)
		next = list[guess];
	part = my_part(a, min(a.count[blockIdx.z], a.max_count));
	n = part.n;
	stages = (n + KEYS - 1) / KEYS;
	list += part.first;
	if (n > 0 && (me >= n || part.first + me != guess))
		next = list[min(me, n - 1)];
	if (team.n > 1)
		cluster_wait();		/* all mates' barriers are set up */
	for (uint32_t i = 0; i < stages; i++) {
		uint32_t fill = filled(n - i * KEYS);
		uint32_t dst = smem + S::stage_off + s * S::stage;
		uint32_t bar = full + s * 8, at = first + lane % 16;

		if (i % 2 == 0) {
			row = next;
			if (i + 2 < stages)
				next = list[min((i + 2) * KEYS + me, n - 1)];
		}
		if (i >= S::stages)
			mbar_wait(empty + s * 8, turn ^ 1);
		if (threadIdx.x % 128 == 0)
			mbar_expect(bar, fill * S::row);
		if (lane / 16 == i % 2 && at < fill &&
		    at % team.n == team.me) {
			const uint8_t *src = a.pool + (size_t)row * S::row;

			if (team.n > 1)
				bulk_load_all(dst + at * S::pitch, src,
				    S::row, bar, all);
			else
				bulk_load(dst + at * S::pitch, src, S::row,
				    bar);
		}
		if (++s == S::stages) {
			s = 0;
			turn ^= 1;
		}
	}
	return n;
}

}	/* namespace */
}	/* namespace dcpg */
#endif
