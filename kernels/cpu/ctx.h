/*
 * State of the CPU backend: all ranks of one process. A rank owns its pools
 * and its slices of the split weights; what is the same on every rank
 * (replicated weights and activations) is kept once.
 *
 * Everything here is touched by the step thread and, during a phase, by the
 * workers on disjoint parts.
 */
#ifndef DCPC_CTX_H
#define DCPC_CTX_H

#include "kernels/cpu/prim.h"
#include "kernels/cpu/workers.h"

enum dcpc_act { DCPC_ACT_NONE, DCPC_ACT_BLOCK, DCPC_ACT_STATIC };

struct dcpc_w {			/* one matrix (slice) and its input format */
	struct dcpc_mat m;	/* m.data NULL: not loaded, or an empty slice */
	enum dcpc_act act;	/* with DCPK_QUANT_ACT */
	float act_scale;
	bool loaded;
};

struct dcpc_layer {
	float *in_norm, *post_norm, *q_a_norm, *kv_a_norm;
	float *k_norm_w, *k_norm_b, *router_bias;
	struct dcpc_w q_a, kv_a, idx_q_b, idx_k, idx_w, router;
	struct dcpc_w *q_b;	/* [attn_tp]: [heads*(n+r)][q_lora] */
	struct dcpc_w *o;	/* [attn_tp]: [hidden][heads*v] */
	struct dcpc_w *uk;	/* [H]: W_UK transposed [c][n] */
	struct dcpc_w *uv;	/* [H]: W_UV [v][c] */
	struct dcpc_w *gate, *up, *down;	/* [W], dense layers */
	struct dcpc_w *e_gate, *e_up, *e_down;	/* [E][W] */
	struct dcpc_w *s_gate, *s_up, *s_down;	/* [W], shared experts */
	float *e_norm, *h_norm, *sh_norm;	/* MTP */
	struct dcpc_w eh_proj;
};

struct dcpc_pools {		/* of one rank */
	uint8_t *rows, *index;	/* all layers, one after another */
	float *scales;		/* fp8 index keys */
};

struct dcpc_range {
	uint32_t first, n;	/* heads */
};

struct dcpc_group {		/* DCP group: ranks g*D .. g*D+D-1 */
	uint32_t n_ranges, heads;
	struct dcpc_range *range;	/* its decode heads, as runs */
};

/* One of the addends of a product that is summed over ranks. */
struct dcpc_part {
	const struct dcpc_w *w;
	uint32_t k0, k;		/* columns of w: a strided view */
	uint32_t xoff;		/* where they begin in a row of x */
};

struct dcpc_thread {		/* scratch of one worker */
	float *attend, *scores, *packed, *kscale, *x, *route;
	void *topk, *sample;
	uint32_t *list;
};

struct dcpk_ctx {
	struct dcpk_setup s;
	uint32_t *token_ok;		/* owned copy, or NULL */
	const struct dcpc_prims *p;
	struct dcpc_workers *workers;
	uint32_t threads, W, D, groups, M;	/* M: rows a pass can have */
	uint32_t page_rows;		/* 64/D */
	uint32_t row_bytes, key_bytes;	/* key without its scale */
	size_t pool_rows;		/* rows of one layer: (pages+1)*64/D */
	uint32_t full_layers;
	uint32_t idx_slot[DCPK_MAX_LAYERS + 1];	/* layer -> index pool */
	struct dcpc_pools pool[DCPK_MAX_RANKS];
	uint8_t *host;			/* host_pages slots; see host.c */
	struct dcpc_group group[DCPK_MAX_RANKS];
	struct dcpc_layer *layer;	/* [layers + mtp] */
	struct dcpc_w embed, *lm_head;	/* lm_head [W] */
	float *final_norm;
	struct dcpk_bytes got[DCPK_MAX_RANKS];

	/* workspace: one block; [M] rows unless said otherwise */
	void *ws;
	size_t ws_bytes;
	float *x, *h;			/* [hidden] */
	float *qr, *kv;			/* [q_lora], [c+r] */
	float *ik, *iw;			/* [idx_dim], [idx_heads] */
	float *q, *ql;			/* [H][n+r], [H][c+r] */
	float *iq;			/* [idx_heads][idx_dim] */
	float *o, *ov;			/* [H][c], [H][v] */
	float *cos, *sin;		/* [rope/2] */
	float *act, *sact;		/* FFN: [inter], shared [moe*shared] */
	float *eact, *ey, *ex;		/* [M*K]: [moe], [hidden], [hidden] */
	float *ys;			/* [hidden] */
	uint32_t *eid;			/* [K] */
	float *ew;			/* [K] */
	uint32_t *slot;			/* [M*K] slot of (row, k) */
	uint32_t *eslot0;		/* [E+1] first slot of an expert */
	float *po, *plse;		/* decode partials, see attend.c */
	uint32_t po_rows;
	uint32_t *list, *count;		/* selection: [k], [D] */
	float *scores;			/* [max_rows] x D shards, decode */
	size_t scores_ld, shard_ld;	/* floats per row, per shard */
	float *packed, *kscale;		/* index keys of one request, prefill */
	uint8_t *gather;		/* KV rows of one request, prefill */
	float *hs, *logits;		/* [cap_samples] x [hidden], [V] */
	uint32_t cap_samples;
	struct dcpc_thread *thread;
	struct dcpc_prod *prods;	/* [experts+1][W]: a phase of experts */
	struct dcpc_part *parts;	/* the same */

	/* DCPK_KEEP_SELECT */
	uint32_t *keep, *keep_n;	/* [layers][M][k], [layers][M] */

	/* the step */
	const struct dcpk_plan *plan;
	uint32_t rows;
	bool prefill, gathered;	/* gathered: lists hold positions */
	uint32_t gather_layer;		/* last layer gathered, or UINT32_MAX */
	struct dcpk_logprob *out, *top;	/* results until step_end */
	uint32_t *top_at;		/* [n_samples] first entry in top */
	uint32_t out_cap, top_cap, n_top;	/* entries there is room for */
};

/* First pool row (index key) of a layer on a rank. */
static inline uint8_t *
dcpc_pool_rows(struct dcpk_ctx *c, uint32_t rank, uint32_t layer)
{
	return c->pool[rank].rows + layer * c->pool_rows * c->row_bytes;
}

static inline uint8_t *
dcpc_pool_keys(struct dcpk_ctx *c, uint32_t rank, uint32_t layer,
    float **scales)
{
	size_t at = c->idx_slot[layer] * c->pool_rows;

	*scales = c->pool[rank].scales ? c->pool[rank].scales + at : NULL;
	return c->pool[rank].index + at * c->key_bytes;
}

/* weights.c */
int dcpc_weights_alloc(struct dcpk_ctx *);
void dcpc_weights_free(struct dcpk_ctx *);
struct dcpc_mats {
	struct dcpc_w *w;
	uint32_t n;
};
/* All matrices of a layer: first the arrays, then single ones. */
#define DCPC_LAYER_ARRAYS 13u
#define DCPC_LAYER_MATS 20u
void dcpc_layer_mats(const struct dcpk_ctx *, struct dcpc_layer *,
    struct dcpc_mats out[DCPC_LAYER_MATS]);
int dcpc_load(struct dcpk_ctx *, const struct dcpk_weight *,
    struct dcpk_err *);
int dcpc_ready(struct dcpk_ctx *, struct dcpk_err *);

/* product.c: phases of matrix products */
struct dcpc_prod {
	const struct dcpc_w *w;		/* or parts */
	const struct dcpc_part *part;
	uint32_t parts;			/* 0: w */
	const float *x;
	size_t ldx;
	float *y;
	size_t ldy;
	uint32_t m;
	bool add;
	const struct dcpc_w *up;	/* then y = silu(x w) * (x up) */
};
#define DCPC_MAX_PROD 1024u
/* Run products that do not depend on each other as one phase. */
void dcpc_products(struct dcpk_ctx *, const struct dcpc_prod *, uint32_t n);
/* The same, with n_rows row tasks (in tiles of 8) run in the same phase. */
typedef void dcpc_rows_fn(struct dcpk_ctx *, uint32_t row0, uint32_t row1,
    uint32_t layer, uint32_t thread);
void dcpc_rows_and_products(struct dcpk_ctx *, uint32_t rows,
    dcpc_rows_fn *fn, uint32_t layer, const struct dcpc_prod *, uint32_t n);

/* the operations */
int dcpc_embed(struct dcpk_ctx *);
int dcpc_attn_in(struct dcpk_ctx *, uint32_t layer);
int dcpc_select(struct dcpk_ctx *, uint32_t layer);
int dcpc_attend_merge(struct dcpk_ctx *, uint32_t layer);
int dcpc_attn_out(struct dcpk_ctx *, uint32_t layer);
int dcpc_ffn(struct dcpk_ctx *, uint32_t layer);
int dcpc_head(struct dcpk_ctx *);
int dcpc_sample_op(struct dcpk_ctx *);

/* host.c */
size_t dcpc_host_bytes(const struct dcpk_ctx *);
int dcpc_host_open(struct dcpk_ctx *);
void dcpc_host_close(struct dcpk_ctx *);
int dcpc_move(struct dcpk_ctx *, const struct dcpk_move *, uint32_t n,
    bool out, struct dcpk_err *);

/* measure.c */
int dcpc_measure(struct dcpk_ctx *, struct dcpk_speed *);

#endif
