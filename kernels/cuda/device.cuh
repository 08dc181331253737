/*
 * State of the CUDA backend: all ranks of one process.
 *
 * One host thread (the step thread) enqueues the work of every rank, each on
 * its own stream of its own device; ranks may share a device. Where ranks
 * exchange data, every stream waits for an event of every other, or for a flag
 * that every other writes into its memory (dcpg_meet): afterwards each may read
 * what the others wrote, through peer memory. The host waits for the sampled
 * tokens at a step's end, and inside a step only when it is four layers ahead
 * (lost.cu).
 *
 * A buffer that peers read is not written again before another meeting has
 * passed; that is why attention and FFN have partial sums of their own.
 */
#ifndef DCPG_DEVICE_CUH
#define DCPG_DEVICE_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <errno.h>
#include <string.h>
#include <stdint.h>

#include <atomic>
#include <utility>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/keep.h"

typedef __nv_bfloat16 bf16;

struct dcpg_mat {		/* [n][k] row-major on the device */
	bf16 *w;		/* or e4m3, where scale is not NULL */
	float *scale;		/* [ceil(n / 128)][dcpk_fp8_scale_ld(k)] */
	uint32_t n, k;
	bool loaded;
};

struct dcpg_layer {		/* of one rank */
	float *in_norm, *post_norm, *q_a_norm, *kv_a_norm;
	float *k_norm_w, *k_norm_b, *router_bias, *router;
	dcpg_mat q_a, kv_a, idx_q_b, idx_k, idx_w;
	dcpg_mat first;		/* those of q_a, idx_k, kv_a, idx_w that could
				   be stacked, whose w is then NULL */
	dcpg_mat q_b;		/* [heads of the attn_tp slice * (n+r)] */
	dcpg_mat uk, uv;	/* [heads][c][n], [heads][v][c] */
	dcpg_mat o;		/* [hidden][heads * v] */
	dcpg_mat gate, up, down;
	bf16 *e_gate, *e_up;	/* [E][moe slice][hidden] */
	bf16 *e_down;		/* [E][hidden][moe slice] */
	/* of the three: e4m3, each expert's scales behind it (keep.h) */
	bool e_gate8, e_up8, e_down8;
	/* or int4 (keep.h), x in units of these: of gate and up, of down */
	bool e_gate4, e_up4, e_down4;
	float e_unit[2];
	uint32_t e_loaded, e_slice;
	dcpg_mat s_gate, s_up, s_down;
	dcpg_mat gate_up, s_gate_up;	/* stacked likewise, if they could be */
};

/* A rank, or the host, that waits longer for another rank has lost it. */
#define DCPG_LOST_NS 20000000000ull

/* Bytes of a stream's workspace for cuBLASLt. */
static const size_t DCPG_LT_WS = 32u << 20;

/* Layers that the host may be ahead of the ranks. */
#define DCPG_AHEAD 4u

struct dcpg_rank {
	int dev;
	cudaStream_t st, side;	/* side: q beside the index, dcpg_fork */
	cudaEvent_t forked, joined;
	cudaEvent_t met;	/* what it had enqueued at the last meeting */
	cudaEvent_t end;	/* of the step */
	cudaStream_t probe;	/* for a piece of work that nobody waits for */
	uint32_t *probe_word;
	cublasLtHandle_t lt;
	void *lt_ws, *side_ws;
	uint32_t id, tp, cp, group, dr;	/* dr: rank inside its DCP group */

	dcpg_layer *layer;
	dcpg_mat embed, lm_head;
	float *final_norm;
	uint32_t vocab0;		/* first id of its lm_head slice */

	/* pools */
	uint8_t *rows, *keys;
	float *scales;

	/* workspace; M = rows of a pass, m = rows this rank computes */
	char *ws;
	float *x;		/* [M][hidden] residual stream */
	bf16 *h;		/* [M][hidden] normed */
	float *hf;		/* the same, f32, for the router */
	uint8_t *h4;		/* DCPK_INT4_WEIGHTS: e4m3, for their experts */
	float *first;		/* [m][ld]: products with h, see dcpg_first */
	bf16 *qr16;		/* [m][q_lora] normed */
	bf16 *qh;		/* [m][h][n+r] */
	bf16 *q;		/* [m][h][c+r] absorbed, roped */
	uint32_t *flags;	/* DCPK_COMM_PEER: peer.cu's words, two lanes */
	bf16 *qg;		/* [M][Hg][c+r] gathered over the group */
	float *iq;		/* [M][idx_heads][idx_dim] */
	float *iw;		/* [M][idx_heads] with every factor */
	uint8_t *new_rows, *new_keys;	/* [M] packed, of this rank's rows */
	float *new_scales;
	float *scores;		/* [rows][shard or context] */
	uint32_t *list, *count;	/* [M][k], [M]: local rows or positions; in
				   prefill by slot (dcpg_attend_deal) */
	/* the fast selection (fast_index, fast_rows) */
	uint8_t *iq8;		/* [M][idx_heads][128] e4m3 */
	uint32_t *row_len;	/* [M] prefill: keys that a row sees, by slot */
	uint32_t *table_at, *shard_n;	/* [rows]: page table, local keys */
	uint32_t *row_n;		/* [rows]: keys on all ranks */
	uint32_t *hist;			/* [rows][DCPG_BINS]; 0 between uses */
	float *sums;			/* [2][W][DCPG_PUSHED][hidden]: what
					   is pushed to norm.cu, ones */
	uint8_t *attend_work;		/* where splits of a list meet, ones */
	/* Keys near the boundary: of the group's ranks, written by them, or,
	 * with events, of this one (its dr); see dcpg_select. */
	uint64_t *offer;		/* [D][max_rows][cap] */
	struct dcpg_window *window;	/* [D][max_rows] */
	uint32_t *sel, *sel_n;	/* prefill: as selected, read by peers; by
				   slot (dcpg_select_deal) */
	uint32_t *keep, *keep_n;	/* DCPK_KEEP_SELECT: positions */
	float *po;		/* [M][Hg][c] partial */
	float *plse;		/* [2][M][Hg] */
	struct dcpg_part *parts;	/* [2][D]: po and plse of its group;
					   mirrored: NULL */
	/* DCPK_WIRE_FP8: what peers put here of this rank's heads, wire.cu */
	uint8_t *w8;		/* [D][rows][Hr][c] e4m3 */
	float *w8_scale;	/* [D][rows][Hr][tiles of c] */
	float *w8_lse;		/* [D][rows][Hr] */
	float *lse_unused;	/* [M][Hp], where nobody reads the LSE */
	bf16 *o;		/* [m][h][c] merged */
	bf16 *ov;		/* [m][h*v] */
	float *ya, *yf;		/* [M][hidden] partial sums */
	float *gu;		/* [M][2 * inter]: gate's columns, up's */
	bf16 *a16;
	/* DCPK_FP8_WEIGHTS: h, qr16, ov and a16, which has rows or experts'
	 * slots, once more where an FP8 matrix is multiplied with them */
	struct dcpg_codes h8, qr8, ov8, a8, e8;
	float *cos, *sin;	/* [M][rope/2] */
	uint32_t *eid;		/* [M*K] */
	float *ew;		/* [M*K] */
	uint32_t *slot, *slot_row, *eslot0, *tile0, *tile_e, *tile_m;
	float *ey;		/* [slots][hidden] */
	uint8_t *gather;	/* [ctx][row bytes] */
	uint8_t *gkeys;		/* [ctx][key bytes] */
	float *gscales;
	bf16 *hs;		/* [samples][hidden] */
	float *logits;		/* [samples][vocab slice] */
	char *mirror;		/* what peers have, mirror.cu */
	char *plan;		/* device copy */
	/* CP prefill only, else NULL: rows this rank computes; who computes
	 * row i, and as which of its rows */
	uint32_t *own_mem, *own, *owner, *jof;
	uint32_t m;		/* how many */
	/* rank 0 */
	float *all_logits;	/* [samples][vocab] */
	float *z;		/* adjusted, for drawing */
	uint32_t *ids, *ids2;
	float *z2;
	void *sort_tmp;
	size_t sort_bytes;
	dcpk_logprob *out, *top;
	uint32_t *ok;		/* token_ok */
	float *lse;		/* [samples] */
	uint32_t *vocab_first;	/* [W+1] */
	uint32_t *segment;	/* [samples+1] multiples of the vocabulary */
	uint32_t *top_at;	/* [samples of the step] first entry in top */
};

struct dcpk_ctx {
	dcpk_setup s;
	uint32_t W, D, M, Hr, Hp, Hg;	/* heads: rank, prefill, group */
	uint32_t page_rows, row_bytes, key_bytes, full_layers;
	uint32_t idx_slot[DCPK_MAX_LAYERS + 1];
	size_t pool_rows, scores_ld;
	uint32_t cap_samples, cap_top;
	int devices;
	bool mirrored;	/* no peer access: mirror.cu */
	dcpg_rank r[DCPK_MAX_RANKS];
	dcpk_bytes got[DCPK_MAX_RANKS];

	/* the step */
	const dcpk_plan *plan;
	char *plan_pinned;
	size_t plan_cap;
	bool prefill, gathered, fast_index, fast_rows, fast_attend;
	bool forked;	/* q of this layer is made beside its index */
	uint32_t rows, n_top, gather_layer, longest;
	dcpk_logprob *out_pinned, *top_pinned;
	uint32_t *top_at;	/* pinned, [samples] */
	uint32_t *own_pinned;

	/* graph.cu: the plan is filled up to a bucket; a graph has this pass's
	 * work up to the logits, so the operations enqueue nothing */
	bool padded, replay;
	struct dcpg_graphs *graphs;

	struct dcpg_stuck *stuck;	/* pinned, [W]; DCPK_COMM_PEER */
	struct dcpg_nccl *nccl;		/* DCPK_COMM_NCCL, W > 1 */
	struct dcpg_mirror *mirror;	/* mirrored */
	std::atomic<bool> ending;	/* the host waits for ranks' `end` */
	cudaEvent_t mark[DCPG_AHEAD];	/* rank 0: its last layers' ends */
	uint32_t marks;			/* layers enqueued in this step */
	bool lost;			/* a rank never came: nothing is waited
					   for any more, not even to close */

	uint8_t *host;		/* pinned: pages outside the pools, host.cu */
	dcpk_move *moves;	/* pinned: those of one launch */
};

/* Keys of a row that a rank can offer in decode, see dcpg_select. */
#define DCPG_OFFER_CAP 2048u

/* Floats of a rank's scores in prefill: more rows are done in slices. */
#define DCPG_SCORES ((size_t)64 << 20)
/* Rows of a slice that can have histograms. */
#define DCPG_SLICE 2048u
#define DCPG_PUSHED 64u		/* rows at most whose sums are pushed */

/*
 * How the rows of a pass are dealt out to ranks: under CP to their owners, else
 * every n-th of a request to one. A rank's rows of a request have neighbouring
 * slots, from the request's first row on, or under CP counted over the pass.
 */
struct dcpg_deal {
	const uint32_t *owner, *jof;	/* CP, else NULL */
	uint32_t n, self;
};

struct dcpg_span {		/* a rank's rows of one request */
	uint32_t slot0, n;
};

/* A pointer of every rank, passed to kernels by value. */
template <typename T> struct dcpg_peers {
	T *p[DCPK_MAX_RANKS];
};
#define DCPG_PEERS(c, self, T, member) ({ \
	dcpg_peers<T> ps_ = {}; \
	for (uint32_t r_ = 0; r_ < (c)->W; r_++) \
		ps_.p[r_] = dcpg_seen(c, self, r_, (T *)(c)->r[r_].member); \
	ps_; })

int dcpg_ok(cudaError_t e, const char *what);	/* 0 or -EIO, logged */
/* Every rank's stream waits for what all ranks have enqueued so far. */
int dcpg_meet(dcpk_ctx *c);
/* A rank's side of a meeting by flags in peer memory. Lane 0 is met on the main
 * stream, lane 1 on the side stream: each in an order of its own. */
struct dcpg_peer dcpg_peer_of(dcpk_ctx *, dcpg_rank *, uint32_t lane);
/*
 * Decode makes q beside the index and its selection, which need nothing of each
 * other: dcpg_fork lets the side stream begin after what the main one has,
 * dcpg_aside exchanges the two (r->st and what products need), dcpg_joins ends
 * the side's work, and dcpg_join lets the main streams wait for it.
 */
int dcpg_fork(dcpg_rank *);
void dcpg_aside(dcpg_rank *);
int dcpg_joins(dcpg_rank *);
int dcpg_join(dcpk_ctx *);

/* Where in a row of r->first the products stand: q's latent at 0, then the
 * index key, the KV latent and the heads' weights. */
struct dcpg_first {
	uint32_t k, kv, w, ld;
};

static inline dcpg_first
dcpg_first_of(const dcpk_model *m, uint32_t layer)
{
	dcpg_first f;

	f.k = m->q_lora;
	f.kv = f.k + (m->full[layer] ? m->idx_dim : 0);
	f.w = f.kv + m->kv_lora + m->rope;
	f.ld = (m->q_lora + m->idx_dim + m->kv_lora + m->rope + m->idx_heads +
	    3) / 4 * 4;
	return f;
}

/* lost.cu: the host waits for ranks, not for ever */
uint64_t dcpg_now_ns(void);
int dcpg_lost_open(dcpk_ctx *, dcpg_rank *);
void dcpg_lost_close(dcpk_ctx *, dcpg_rank *);
int dcpg_wait_event(dcpk_ctx *, cudaEvent_t, const char *what);
int dcpg_wait_end(dcpk_ctx *);	/* rank 0's `end`, the others' before it */
int dcpg_wait_rank(dcpk_ctx *, dcpg_rank *, const char *what);	/* its work */
int dcpg_mark(dcpk_ctx *);	/* a layer has been enqueued */
bool dcpg_lost_peer(const dcpk_ctx *);	/* a meeting by flags was in vain */
void dcpg_waits(dcpk_ctx *, char *buf, size_t cap);	/* any thread */

/* mirror.cu: what ranks read of each other where GPUs cannot map each other's
 * memory (c->mirrored); else a meeting, and pointers as they are */
enum dcpg_who {		/* who gets it: of all ranks, of its group; rank 0 */
	DCPG_ALL, DCPG_GROUP, DCPG_RANK0
};
struct dcpg_share {
	const void *of[DCPK_MAX_RANKS];	/* on each rank */
	size_t bytes;		/* of one rank; dcpg_meet_heads: of a column */
};
#define DCPG_SHARE(c, member, n) ({ \
	dcpg_share s_ = {}; \
	for (uint32_t r_ = 0; r_ < (c)->W; r_++) \
		s_.of[r_] = (c)->r[r_].member; \
	s_.bytes = (n); \
	s_; })
int dcpg_mirror_open(dcpk_ctx *, dcpk_err *);
void dcpg_mirror_close(dcpk_ctx *);
/* dcpg_meet, after which dcpg_seen knows these n; `used` bytes of each region
 * are what is sent */
int dcpg_meet_over(dcpk_ctx *, enum dcpg_who, const dcpg_share *, uint32_t n,
    size_t used);
int dcpg_meet_heads(dcpk_ctx *, const dcpg_share *, uint32_t n, uint32_t rows);
const void *dcpg_seen_at(const dcpk_ctx *, const dcpg_rank *r, uint32_t o,
    const void *);
template <typename T> static inline T *
dcpg_seen(const dcpk_ctx *c, const dcpg_rank *r, uint32_t o, T *p)
{
	return (T *)dcpg_seen_at(c, r, o, p);
}

/* nccl.cu */
struct dcpg_copy {
	uint32_t from, to;	/* ranks */
	const void *src;
	void *dst;
	size_t bytes;
};
int dcpg_nccl_copy(dcpk_ctx *, const dcpg_copy *, size_t n);
int dcpg_nccl_open(dcpk_ctx *, dcpk_err *);
void dcpg_nccl_close(dcpk_ctx *);
int dcpg_nccl_sum(dcpk_ctx *, float *const y[], size_t n);

/* graph.cu */
int dcpg_graphs_open(dcpk_ctx *);
void dcpg_graphs_close(dcpk_ctx *);
bool dcpg_graph_plan(dcpk_ctx *, const dcpk_plan *);
int dcpg_graph_begin(dcpk_ctx *);
int dcpg_graph_end(dcpk_ctx *);
bool dcpg_graph_captures(const dcpk_ctx *);	/* at this moment */

/* prefill.cu: a request's rows or index keys, in order of position */
int dcpg_gather(dcpk_ctx *, dcpg_rank *, uint32_t layer, uint32_t req,
    bool keys);
/* mirrored: the group's part of them to each rank, before it gathers */
int dcpg_bring(dcpk_ctx *, uint32_t layer, uint32_t req, bool keys);

/* row_shards of this step's rows, for the fast selection */
int dcpg_row_shards(dcpk_ctx *, dcpg_rank *);
void dcpg_no_offers(dcpk_ctx *, dcpg_rank *);

/* prefill.cu: who selects for which rows, who attends for which */
int dcpg_owners(dcpk_ctx *);
dcpg_deal dcpg_select_deal(const dcpk_ctx *, const dcpg_rank *);
dcpg_deal dcpg_attend_deal(const dcpk_ctx *, const dcpg_rank *);
dcpg_span dcpg_span_of(const dcpk_ctx *, const dcpg_rank *, const dcpg_deal &,
    uint32_t req);
int dcpg_row_ends(dcpk_ctx *, dcpg_rank *);
int dcpg_select_rows(dcpk_ctx *, dcpg_rank *, uint32_t layer, uint32_t req);
int dcpg_keep_rows(dcpk_ctx *, dcpg_rank *, uint32_t layer);
int dcpg_swap_lists(dcpk_ctx *);

/* product.cu: y[i*ldy+j] = sum_k x[i*ldx+k] w[j*ldw+k], f32 accumulation */
struct dcpg_prod {
	const bf16 *w, *x;
	const float *scale;		/* w is e4m3: dcpg_mat's; batch 0 */
	struct dcpg_codes x8;		/* and x is here too */
	void *y;			/* FP8: rows to a multiple of 4 */
	bool y_f32;
	uint32_t m, n, k, ldw, ldx, ldy;
	uint32_t batch;			/* 0 = 1 */
	bool late;			/* FP8 of few rows: see dcpg_linear */
	int64_t sw, sx, sy;		/* strides between them, elements */
};
int dcpg_product(dcpg_rank *r, const dcpg_prod *p);
/* x [m][k] as codes, where the kernel that makes x cannot write them */
int dcpg_quantise(dcpg_rank *r, const bf16 *x, uint32_t m, uint32_t k,
    const struct dcpg_codes *);
void dcpg_product_forget(void);

/* attend_op.cu: q to the group's ranks in decode */
bool dcpg_pushes_q(const dcpk_ctx *);
bool dcpg_by_query(const dcpk_ctx *);
void dcpg_query_to(dcpk_ctx *, dcpg_rank *, uint32_t layer,
    struct dcpg_query *);
bf16 *dcpg_own_q(const dcpk_ctx *, const dcpg_rank *);
int dcpg_push_q(dcpk_ctx *, dcpg_rank *);
/* norm.cu: h of a layer's attention; hs of n samples; attention's or the FFN's
 * partials of all ranks into x, and the h that comes next */
int dcpg_norm_init(void);
int dcpg_plain_init(void);	/* select_op.cu: the plain selection */
int dcpg_merge_init(void);	/* attend_op.cu */
int dcpg_parts_open(dcpk_ctx *, dcpg_rank *);	/* when all ranks are open */
int dcpg_wire_init(void);	/* wire.cu */
int dcpg_in_norm(dcpk_ctx *, dcpg_rank *, uint32_t layer);
int dcpg_final_norm(dcpk_ctx *, dcpg_rank *, uint32_t s0, uint32_t n);
int dcpg_sum_norm(dcpk_ctx *, bool attention, uint32_t layer);

/* wire.cu: the merge with partial outputs that cross as fp8 */
int dcpg_merge_fp8(dcpk_ctx *);

/* the operations */
int dcpg_embed_op(dcpk_ctx *);
int dcpg_attn_in_op(dcpk_ctx *, uint32_t layer);
int dcpg_select_op(dcpk_ctx *, uint32_t layer);
int dcpg_attend_op(dcpk_ctx *, uint32_t layer);
int dcpg_attn_out_op(dcpk_ctx *, uint32_t layer);
int dcpg_ffn_op(dcpk_ctx *, uint32_t layer);
int dcpg_head_op(dcpk_ctx *);
int dcpg_sample_op(dcpk_ctx *);
int dcpg_load(dcpk_ctx *, const dcpk_weight *, dcpk_err *);
int dcpg_ready(dcpk_ctx *, dcpk_err *);
size_t dcpg_score_bytes(const dcpk_ctx *);	/* of a rank's scores */
int dcpg_weights_alloc(dcpk_ctx *);
void dcpg_weights_free(dcpk_ctx *);
size_t dcpg_host_bytes(const dcpk_ctx *);
int dcpg_host_open(dcpk_ctx *, dcpk_err *);
void dcpg_host_close(dcpk_ctx *);
int dcpg_move(dcpk_ctx *, const dcpk_move *, uint32_t n, bool out,
    dcpk_err *);
int dcpg_fill(dcpk_ctx *, uint64_t seed);
/* measure.cu */
int dcpg_measure(dcpk_ctx *, dcpk_speed *);
/* peek.cu */
int64_t dcpg_peek(dcpk_ctx *, dcpk_peek, uint32_t layer, uint32_t rank,
    uint32_t row, void *buf, size_t cap);
size_t dcpg_sort_bytes(uint32_t n, uint32_t segments);

static inline uint8_t *
dcpg_pool_rows(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	return r->rows + layer * c->pool_rows * c->row_bytes;
}

static inline uint8_t *
dcpg_pool_keys(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, float **scales)
{
	size_t at = c->idx_slot[layer] * c->pool_rows;

	*scales = r->scales ? r->scales + at : NULL;
	return r->keys + at * c->key_bytes;
}

/* Device copies of the plan's parts. */
#define DCPG_PLAN(c, r, type, off) \
	((const type *)((r)->plan + (c)->plan->off))

#define DCPG_LAUNCHED(what) dcpg_ok(cudaGetLastError(), what)

/*
 * A launch that may begin before the kernel in front has ended, for which its
 * kernel waits (launch_wait). Some let the next one begin before they have waited
 * (latents, silu_codes, quantise_rows, linear.cu, experts.cu with early): what a
 * kernel reads before its own wait must be older than the last kernel in front
 * that lets others begin only behind its wait.
 */
template <typename... P, typename... A>
static inline int
dcpg_launch_early(const char *what, void (*kernel)(P...), dim3 grid,
    uint32_t threads, cudaStream_t st, A &&...args)
{
	return dcpg_ok(dcpg::launch_early(kernel, grid, threads, st,
	    std::forward<A>(args)...), what);
}

#endif
