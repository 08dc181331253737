/*
 * The CUDA kernels as plain C calls: what each computes, in which shapes and
 * units. No state of its own; every call only enqueues work on a stream, may
 * be captured in a graph, and may be made from any thread whose current device
 * owns the pointers. Pointers are device memory unless a line says otherwise.
 *
 * Calls return 0 or -errno: -EINVAL for a shape that the kernels do not have
 * (the caller was told the rule by dcpk_setup), -EIO for an error of CUDA,
 * whose text is cudaGetLastError()'s.
 */
#ifndef DCPG_H
#define DCPG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCPG_LATENT 512u	/* kv_lora_rank: what a row's value is */
#define DCPG_ROPE 64u

/* Once per device, before the first launch or capture on it. */
int dcpg_init(void);

/*
 * Activations of an FP8 product, as cuBLASLt reads them: each row and 128
 * columns have a scale, and rows are filled up to m4, a multiple of four, with
 * code 0. Made of the values as bf16: scale = max|x| / 448, code = x / scale.
 */
struct dcpg_codes {
	uint8_t *code;		/* [m4][k] e4m3, k a multiple of 128; or NULL */
	float *scale;		/* [k / 128][m4] */
	bool pow2;		/* scales of 2^n */
};

/* --- ranks that meet (peer.cu) ------------------------------------------- */

/* A wait that ended in vain, in pinned host memory. */
struct dcpg_stuck {
	uint32_t set;		/* written last */
	uint32_t peer;		/* who did not come */
	uint32_t meeting;	/* to its how many-th; or arrivals waited for */
};

/*
 * A rank's side of meetings with world - 1 others, each on a GPU of its own
 * (two that share one could wait for a kernel that has no room to start).
 * flags[r] is rank r's memory, dcpg_peer_words() u32, zero at first. All ranks
 * make the same calls in the same order, each on one stream.
 */
struct dcpg_peer {
	uint32_t *flags[DCPK_MAX_RANKS];
	uint32_t world, self;
	uint64_t limit_ns;	/* of one wait; then *stuck is set, and neither
				   this nor a later meeting waits */
	struct dcpg_stuck *stuck;
};

/* --- sparse decode attention (attend.cu) -------------------------------- */

/*
 * For every query row i and head h, over the keys j < count[i]:
 *   s_j = scale * q[i][h] . row[list[i][j]],  p = softmax(s)
 *   out[i][h] = sum_j p_j * row[list[i][j]][0..511]
 *   lse[i][h] = ln sum_j exp(s_j)
 * No key: out 0, lse -inf. Lists hold local pool rows, each valid; what stands
 * behind count[i] is never read as a row.
 *
 * Heads may go to several places (`to`), heads / parts neighbouring ones to
 * each, in the memory of the rank that owns them: there [parts][rows][heads
 * / parts] from each of the `parts` ranks that send, this one being `self`. No
 * word of these outputs and LSEs is ever all ones, by which who waits for them
 * can tell that they are there; or by `arrive`.
 */
#define DCPG_MAX_SPLITS 8
#define DCPG_MAX_TEAM 4
/* Bytes at `work`: of 144 SMs a place each for what splits send one block. */
#define DCPG_ATTEND_WORK (144u * 99072u)

struct dcpg_part {
	void *out;
	float *lse;
	uint32_t *arrived;	/* see `arrive` */
};

struct dcpg_attend {
	const void *q;		/* [rows][heads][576] bf16: latent, then rope */
	bool q_ones;		/* it comes from the ranks from `first` on, heads /
				   parts each, to where ones were, which no two
				   values are */
	uint32_t first;
	struct dcpg_peer peer;	/* of whom they are */
	const void *pool;	/* [pool rows][656] FP8 or [1152] BF16 */
	const uint32_t *list;	/* [rows][list_stride] local pool rows */
	const uint32_t *count;	/* [rows], each <= max_count */
	void *out;		/* [rows][heads][512] bf16, or f32 (out_f32) */
	float *lse;		/* [rows][heads] natural log */
	const struct dcpg_part *to;	/* [parts] instead, or NULL */
	uint32_t parts, self;	/* parts: a power of two */
	void *work;		/* DCPG_ATTEND_WORK bytes, all ones, as they are
				   again after each launch, of which one at a
				   time may use them; NULL: no list is split */
	bool arrive;		/* each block adds 1 to its parts' `arrived` when
				   its share is there (peer.cuh) */
	uint32_t rows, heads;	/* heads: 8, 16, 32, 64, 128 */
	uint32_t list_stride, max_count;
	uint32_t expected;	/* of a list, mostly, what is best for so many
				   is chosen; 0: max_count */
	enum dcpk_kv kv;	/* DCPK_KV_FP8 or DCPK_KV_BF16 */
	bool out_f32;
	float scale;
	/* 0: chosen. Tests and the benchmark force them. */
	uint32_t shape;		/* 1 + index of a compiled shape */
	uint32_t splits;	/* 1 .. 8: blocks that share a list */
	uint32_t team;		/* 1, 2, 4: blocks of heads that fetch their
				   rows together */
};

int dcpg_attend(const struct dcpg_attend *, void *stream);

/* How many blocks of such a launch add to `arrived` of a part. */
uint32_t dcpg_attend_arrivals(const struct dcpg_attend *);

struct dcpg_attend_shape {
	uint32_t heads;		/* of one block */
	uint32_t groups;	/* its warpgroups that sum */
	uint32_t splits;	/* at most */
	int fit[DCPG_MAX_TEAM + 1];	/* [n]: teams of n blocks that run at
					   once on this device */
};

/* The ith compiled shape of a format; false: there is none. */
bool dcpg_attend_shape(enum dcpk_kv, uint32_t i, struct dcpg_attend_shape *);

/* --- indexer: scores (index.cu) ------------------------------------------ */

#define DCPG_BINS 2048u		/* of the first digit: 11 bits */

/*
 * score[i][j] = kscale[r] * sum_h w[i][h] * max(0, q8[i][h] . keys[r]) for
 * the local keys j < len[i] of query row i; r = table[i][j / P] * P + j % P
 * is key j's pool row. Where hist is not NULL, counts of dcpg_digit(score)
 * are added to hist[i], which the caller has zeroed. max_len is a bound.
 *
 * `table`, `table_at` and `len` are older than the kernel before: read early.
 * Keys are fetched into the L2 as early, whether they are written yet or not.
 */
struct dcpg_index_score {
	const uint8_t *q8;	/* [rows][heads][128] e4m3 */
	const float *w;		/* [rows][heads] */
	const uint8_t *keys;	/* [pool rows][128] e4m3 */
	const float *kscale;	/* [pool rows] */
	const uint32_t *table;	/* page ids; row i's begin at table_at[i] */
	const uint32_t *table_at, *len;	/* [rows] */
	float *score;		/* [rows][stride] */
	uint32_t *hist;		/* [rows][DCPG_BINS] or NULL */
	uint32_t rows, heads;	/* heads: 8, 16, 32, 64 */
	uint32_t stride, max_len;
	uint32_t page_rows;	/* P = 64 / D */
};

int dcpg_index_score(const struct dcpg_index_score *, void *stream);

/* --- routed experts (route.cu, experts.cu) ------------------------------- */

/*
 * Which experts a row goes to (MODEL: noaux_tc): s = sigmoid(h w^T) in f32;
 * by s + bias the `kept` groups of the largest sums of their two best, in them
 * the `each` best, of equals the smaller id; the weight of one is its s, over
 * the sum of the chosen (norm), times scale.
 */
struct dcpg_route {
	const float *h;		/* [rows][hidden] */
	const float *w, *bias;	/* [experts][hidden], [experts] */
	uint32_t rows, hidden;	/* hidden: a multiple of 4 */
	uint32_t experts;	/* to 1024, a multiple of groups */
	uint32_t each, groups, kept;
	bool norm;
	float scale;
	uint32_t *eid;		/* [rows][each] */
	float *ew;
	float *part;		/* scratch of part_floats, rows * experts at
				   least; best for few rows 32 times that, for
				   many (experts to a multiple of 256) *
				   (hidden + 1) more */
	size_t part_floats;
	uint32_t way;		/* 0: chosen. Tests and the benchmark force one
				   for few rows (1), many (2) */
};

int dcpg_route(const struct dcpg_route *, void *stream);

/* Rows sorted by expert, the host not knowing who goes where. */
struct dcpg_slots {
	const uint32_t *eid;	/* [rows][each] */
	uint32_t rows, each, experts;	/* experts: to 1024 */
	uint32_t tile;		/* slots of one tile of dcpg_experts */
	uint32_t *slot;		/* [rows][each]: its place */
	uint32_t *slot_row;	/* [slots]: whose place it is */
	uint32_t *first;	/* [experts + 1] first slot */
	uint32_t *tile0;	/* [experts + 1] first tile, or NULL */
	uint32_t *tile_e;	/* [dcpg_expert_tiles()] its expert; `experts`
				   for those that no slot needs */
	uint32_t *tile_m;	/* the same: its first slot; or NULL */
};

int dcpg_slots(const struct dcpg_slots *, void *stream);

/* Slots of a tile (0: no such shape), the same where all products are of int4,
 * tiles that may be needed. */
uint32_t dcpg_expert_tile(uint32_t rows, uint32_t each, uint32_t experts,
    uint32_t shape);
uint32_t dcpg_expert_tile4(uint32_t rows, uint32_t each, uint32_t experts);
uint32_t dcpg_expert_tiles(uint32_t rows, uint32_t each, uint32_t experts,
    uint32_t tile);

/*
 * For each slot s of expert e: y[s] = silu(x w[e]^T) * (x w2[e]^T) where w2 is
 * not NULL, else y[s] = x w[e]^T; x is row slot_row[s], or s.
 */
struct dcpg_experts {
	const void *x;		/* [..][k] bf16; fp8: e4m3 */
	const float *x_scale;	/* fp8: [k / 128][x_scale_ld], by row of x */
	uint32_t x_scale_ld;
	const uint32_t *slot_row;	/* NULL: x is by slot */
	const void *w, *w2;	/* [experts][n][k] bf16; fp8: each expert's
				   e4m3, then its scales (keep.h) */
	const uint32_t *first, *tile0, *tile_e;	/* of dcpg_slots */
	uint32_t rows, each, experts, n, k;
	bool fp8;
	bool int4;		/* w, w2 as dcpk_int4_at has them, x [..][k] e4m3
				   in units of x_unit */
	float x_unit;
	float y_unit;		/* int4: y16 is e4m3 in such units; 0: bf16 */
	uint32_t tile;		/* int4: the slots', 16, 64 or 128 */
	bool early;		/* the kernel before this one on the stream ran
				   behind dcpg_slots: weights may be fetched
				   while it still runs */
	void *y16;		/* [slots][n] bf16, or, without w2, */
	float *y;		/* [slots][n] */
	struct dcpg_codes y8;	/* or, with w2, tiles of 128 slots and n of 128
				   columns: bf16's codes alone */
	/* 0: chosen. Tests and the benchmark force them. */
	uint32_t shape;		/* 1 + index; slots' tile is of the same; int4
				   has none */
	uint32_t split;		/* 1, 2, 4, 8: blocks that share the columns */
};

/* bf16: k a multiple of 8; fp8: of 128, and n of 16; int4: n of 64. */
bool dcpg_experts_fit(uint32_t n, uint32_t k, bool fp8);
int dcpg_experts(const struct dcpg_experts *, void *stream);

/* --- linear layers of few rows in FP8 (linear.cu) ------------------------ */

/* y = x w^T, x and w as e4m3 with scales (dcpg_codes, keep.h). */
struct dcpg_linear {
	const void *x;		/* [rows][k] e4m3 */
	const float *x_scale;	/* [k / 128][x_scale_ld], aligned to 16 bytes */
	uint32_t x_scale_ld;	/* a multiple of 4 */
	const void *w;		/* [n][k] e4m3 */
	const float *scale;	/* [ceil(n / 128)][dcpk_fp8_scale_ld(k)] */
	uint32_t rows, n, k;
	void *y16;		/* [rows][y_ld] bf16, or */
	float *y;
	uint32_t y_ld;		/* 0: n */
	bool late;		/* the next kernel may begin when the one before
				   this has ended, not yet while that runs */
	uint32_t split;		/* 1 .. 8: blocks that share the columns; 0:
				   chosen. Tests and the benchmark force it */
};

/* Up to 64 rows; k a multiple of 128. */
bool dcpg_linear_fit(uint32_t rows, uint32_t n, uint32_t k);
int dcpg_linear(const struct dcpg_linear *, void *stream);

/*
 * y[i] (+)= sum over a row's experts by ascending id of ew * x[slot]. All but x
 * is older than the kernel before this one on the stream, or that one's own
 * stream has waited for it: read while that kernel still runs.
 */
struct dcpg_combine {
	const uint32_t *eid, *slot;	/* [rows][each] */
	const float *ew;
	const void *x;		/* [slots][n] f32, or bf16: n a multiple of 8 */
	bool x_bf16;
	uint32_t rows, each, n;	/* each: to 32 */
	bool add;
	float *y;		/* [rows][n] */
};

int dcpg_combine(const struct dcpg_combine *, void *stream);

/* --- indexer: scores of many rows (index_rows.cu) ------------------------ */

/*
 * Prefill: query rows of one request against its keys. The same scores as
 * above, for keys j < len[i]; len ascends. Rows with len[i] <= least are left
 * out: their score is not written, and they count as no key. A row's q8 stands
 * as the kernel wants it in shared memory: dcpg_q8_place.
 */
struct dcpg_index_rows {
	const uint8_t *q8;	/* row i at i * q_step * heads * 128 */
	const float *w;		/* row i at i * q_step * heads */
	const uint8_t *keys;	/* [pool rows][128] e4m3 */
	const float *kscale;	/* [pool rows] */
	const uint32_t *table;	/* page ids, or NULL: key j is row j */
	const uint32_t *len;	/* [rows], each <= keys_n */
	float *score;		/* [rows][stride] */
	uint32_t *hist;		/* dcpg_index_count: [rows][DCPG_BINS] */
	uint32_t rows, heads;	/* heads: 8, 16, 32, 64 */
	uint32_t q_step, stride, keys_n, page_rows, least;
	uint32_t chunk;		/* query rows of a block, 512 at most, or 0:
				   chosen. Tests and the benchmark force it */
};

int dcpg_index_rows(const struct dcpg_index_rows *, void *stream);

/* hist[i]: how often each first digit stands in row i's scores. */
int dcpg_index_count(const struct dcpg_index_rows *, void *stream);

/*
 * Where the byte of (head, dimension d) stands in such a row: heads * 128 bytes
 * whose 16-byte chunks are swizzled, heads ordered so that a thread of the
 * product gets neighbouring ones.
 */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline uint32_t
dcpg_q8_place(uint32_t heads, uint32_t head, uint32_t d)
{
	uint32_t per = heads / 4, i = head % per;
	uint32_t n = i / 2 * 8 + head / per * 2 + i % 2;

	return n * 128 + ((d / 16) ^ (n % 8)) * 16 + d % 16;
}

/* --- ranks that meet: calls (peer.cu) ------------------------------------ */

int dcpg_peer_init(void);	/* once per device, before the first meeting */
size_t dcpg_peer_words(uint32_t world);

/* What any rank enqueued before is visible to what all enqueue after. */
int dcpg_peer_meet(const struct dcpg_peer *, void *stream);

/*
 * Copies `rows` runs of `bytes` (multiples of 16) to each of the n ranks from
 * `first` on, its own place among them or NULL; when the launch ends, what those
 * ranks sent by the same call is here.
 */
struct dcpg_push {
	const void *from;
	void *to[DCPK_MAX_RANKS];
	uint32_t first, n, rows;
	uint64_t bytes, from_step, to_step;
};

int dcpg_peer_push(const struct dcpg_peer *, const struct dcpg_push *,
    void *stream);

/* --- queries of decode (query.cu) ---------------------------------------- */

/*
 * For every row i and head h of this rank, with x[i][h] what q_b gives, nope
 * first:
 *   q[i][h][c] = sum_n w[h][c][n] * x[i][h][n]
 *   q[i][h][512 + p] = a * cos[i][p] - b * sin[i][p],
 *   q[i][h][544 + p] = b * cos[i][p] + a * sin[i][p] of a, b = x's pair p
 * to each of the ranks; when the launch ends, what those ranks sent by the same
 * call is here, or, with `ones`, on its way. No peers: to one place of this
 * rank's own.
 */
struct dcpg_query {
	const void *x;		/* [rows][heads][nope + 64] bf16 */
	const void *w;		/* [heads][512][nope] bf16 */
	const float *cos, *sin;	/* [rows][32] */
	void *to[DCPK_MAX_RANKS]; /* by rank from `first` on: [rows][step] bf16;
				   heads * 576 of a row are written */
	uint32_t rows, heads, nope, step;
	uint32_t first, ranks;
	struct dcpg_peer peer;	/* world 0: no peers */
	bool ones;		/* the others' places in this rank's memory held
				   ones before the last meeting: who reads q
				   waits for it */
	void *clear;		/* other places to be set so: the first rank's,
				   or NULL */
	uint32_t cols;		/* of a block; 0: chosen. Tests and the
				   benchmark force 64, 128 */
};

bool dcpg_query_fits(uint32_t latent, uint32_t rope, uint32_t nope);
int dcpg_query(const struct dcpg_query *, void *stream);

/* --- indexer: selection (select.cu) -------------------------------------- */

#define DCPG_MAX_K 8192u
#define DCPG_MAX_SHARD (8u * 262144u)	/* most keys of a row on one rank */

/*
 * The rows of the k best scores, by (score desc, position asc); -0 equals +0,
 * NaN is below -inf. Local key j of rank r stands at position j * D + r. The
 * list holds pool rows, ascending in j; of D > 1 ranks in at most two such
 * parts, which are the same whenever the scores are.
 *
 * D > 1: a rank offers those of its keys that are near the boundary, and takes
 * what all offered. Where that does not do, it reads all ranks' scores. With
 * `peer` dcpg_select does both: offers go to[e], into rank e's memory, and come
 * from[e], in this rank's; a key, or the word of a window, that is not there
 * yet is DCPG_NO_OFFER, so they must all be before the first call (and `scores`
 * 2^32 - 1), and are after each. Ranks must meet between two calls. With events
 * two calls: dcpg_select_offer (to of the rank itself alone), then, when the
 * ranks have met, dcpg_select (from[e] is where rank e put them).
 *
 * `table`, `table_at` and `len` are older than the kernel before: read early.
 */
struct dcpg_window {	/* of a rank's row: what it offers */
	uint64_t word;		/* see offers.cuh */
	uint32_t scores;	/* meetings its rank had begun when its scores
				   were there for all */
	uint32_t unused;
};

#define DCPG_NO_OFFER UINT64_C(0xffffffffffffffff)	/* no key has it */

/* How many keys lie in a window: cap or fewer are offered, of more none. */
#define DCPG_WINDOW_N(word) ((uint32_t)((word) >> 37))

struct dcpg_select {
	const float *score;	/* [rows][stride], aligned to 16 bytes; stride a
				   multiple of 4 */
	const uint32_t *hist;	/* [rows][DCPG_BINS] */
	const uint32_t *table, *table_at, *len;	/* as for the scores; table
				   NULL: the list holds the keys j themselves */
	uint32_t *list;		/* [rows][list_stride] */
	uint32_t *count;	/* [rows] */
	uint32_t rows, stride, max_len, list_stride, page_rows;
	uint32_t k, rank, ranks;
	uint32_t *clear;	/* set to zero when read, for the next scores:
				   the histogram to which they add, or NULL */
	/* D > 1; arrays by rank of the group */
	uint32_t cap;		/* keys that an offer holds, 4096 at most */
	const uint32_t *total;	/* [rows]: keys of all ranks together */
	const float *scores[DCPK_MAX_RANKS];	/* [rows][stride], its own */
	uint64_t *to[DCPK_MAX_RANKS], *from[DCPK_MAX_RANKS]; /* [rows][cap] */
	struct dcpg_window *to_window[DCPK_MAX_RANKS],	/* [rows] */
	    *from_window[DCPK_MAX_RANKS];
	struct dcpg_peer peer;	/* world 0: with events */
};

int dcpg_select(const struct dcpg_select *, void *stream);
int dcpg_select_offer(const struct dcpg_select *, void *stream);

/* --- outputs to values (value.cu) ---------------------------------------- */

/*
 * For every row i and head h of this rank, with p_e, l_e rank e's partial
 * output and LSE of it (NaN, +inf, -inf: none):
 *   o = sum_e exp(l_e - max l) p_e / sum_e exp(l_e - max l), or 0; as bf16
 *   y[i][h][n] = sum_c w[h][n][c] * o[c]
 * One rank: o is its output. Arrays by rank of the group, in this rank's
 * memory or that one's; ranks meet before they are read, by events or inside
 * (peer), or each says when its part is there (arrivals), or it says so itself
 * (ones).
 */
struct dcpg_value {
	/* [rows][row_heads][512] bf16, of which the first `heads` are read */
	const void *part[DCPK_MAX_RANKS];
	const float *lse[DCPK_MAX_RANKS]; /* [rows][row_heads] */
	const void *w;		/* [heads][values][512] bf16 */
	void *y;		/* [rows][heads][values] bf16 */
	struct dcpg_codes y8;	/* the same once more; values: of 128 */
	uint32_t rows, heads, values;	/* heads of one rank; values: of 64 */
	uint32_t row_heads, ranks;
	struct dcpg_peer peer;	/* world 0: they have met */
	uint32_t first;		/* rank of part[0]; with what follows */
	uint32_t arrivals;	/* not 0: no meeting; the partials are there
				   after so many arrivals from each rank */
	bool ones;		/* neither: their places, and those of the LSEs,
				   held ones before the last meeting, and what
				   is not ones is there */
	/* Places like part[] and lse[], the ranks' behind each other, that are
	 * set to ones for the next call; or NULL. */
	void *clear;
	float *clear_lse;
};

int dcpg_value(const struct dcpg_value *, void *stream);

#ifdef __cplusplus
}
#endif
#endif
