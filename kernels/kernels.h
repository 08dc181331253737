/*
 * The backend table: what a device must be able to do, and nothing of how.
 * kernels/cpu and kernels/cuda implement it. Plain C, nothing of dcpd.
 *
 * A step is: step_begin(plan), embed, then per layer attn_in, select (layers
 * with their own indexer), attend_merge, attn_out, ffn; then head, sample,
 * step_end(result). The walk is written once, in dcpd/model/forward.c.
 *
 * Ranks. A rank is state, not a thread: an operation runs for all of them. On
 * the CPU phase by phase, a collective being a phase boundary; on CUDA it
 * enqueues every rank's work and returns.
 *
 * Functions return 0 or -errno and put one line into err->text on failure.
 */
#ifndef DCPK_KERNELS_H
#define DCPK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#define DCPK_ABI 8u
#define DCPK_MAX_LAYERS 256u
#define DCPK_MAX_RANKS 64u

struct dcpk_err {
	char text[400];
};

/* Formats of pool rows and of index keys. */
enum dcpk_kv {
	DCPK_KV_F32 = 0,	/* (c+r)*4 bytes a row; CPU only, for parity */
	DCPK_KV_BF16 = 1,	/* (c+r)*2 */
	DCPK_KV_FP8 = 2,	/* 656: 512 e4m3, 4 f32 scales, 64 bf16 rope */
};

/*
 * Shape of a model; names as in doc/model.md 2 (HF config key in the comment).
 * Filled by dcpd/model/config.c.
 */
struct dcpk_model {
	uint32_t layers;		/* num_hidden_layers, without MTP */
	uint32_t mtp_layers;		/* num_nextn_predict_layers: 0, 1 */
	uint32_t hidden, vocab, heads;
	uint32_t nope, rope, vdim;	/* qk_nope/qk_rope/v_head_dim */
	uint32_t q_lora, kv_lora;
	uint32_t inter, moe_inter;
	uint32_t experts, experts_tok, shared_experts;
	uint32_t groups, groups_kept;	/* n_group, topk_group */
	uint32_t idx_heads, idx_dim, topk;
	uint32_t max_pos;
	bool norm_topk, idx_interleave;	/* indexer RoPE: GLM true, V3.2 false */
	bool act_ue8m0;			/* FP8 activation scales: 2^n */
	bool idx_hadamard;		/* rotate index q, k before fp8 */
	float routed_scale, eps, latent_eps;
	float attn_scale;		/* (nope+rope)^-.5, times mscale^2 */
	float rope_factor;		/* cos, sin are multiplied by it */
	float inv_freq[128];		/* [rope/2] */
	uint8_t full[DCPK_MAX_LAYERS + 1];	/* layer has its own indexer */
	uint8_t sparse[DCPK_MAX_LAYERS + 1];	/* MoE layer */
};

struct dcpk_topo {
	uint32_t world;			/* --tp: ranks in all */
	uint32_t attn_tp, cp;		/* world = attn_tp * cp (dp = 1) */
	uint32_t dcp;			/* D; a group is D neighbouring ranks */
	enum dcpk_cp_strategy strategy;
};

/* --- weights ----------------------------------------------------------- */

enum dcpk_tensor {
	DCPK_T_EMBED,		/* [V][hidden]; whole, on every rank */
	DCPK_T_FINAL_NORM,	/* [hidden] */
	DCPK_T_LM_HEAD,		/* [V][hidden]; rows split over ranks */
	/* per layer; "rep" = whole on every rank */
	DCPK_T_IN_NORM, DCPK_T_POST_NORM,		/* [hidden] rep */
	DCPK_T_Q_A, DCPK_T_Q_A_NORM,			/* rep */
	DCPK_T_Q_B,		/* [H*(nope+rope)][q_lora]; rows by head */
	DCPK_T_KV_A, DCPK_T_KV_A_NORM,			/* rep */
	DCPK_T_KV_B,		/* [H*(nope+v)][kv_lora]; rows by head */
	DCPK_T_O,		/* [hidden][H*v]; columns by head */
	DCPK_T_IDX_Q_B, DCPK_T_IDX_K,			/* rep */
	DCPK_T_IDX_K_NORM_W, DCPK_T_IDX_K_NORM_B, DCPK_T_IDX_W,	/* rep */
	DCPK_T_GATE, DCPK_T_UP,	/* dense FFN; rows split over all ranks */
	DCPK_T_DOWN,		/* columns split */
	DCPK_T_ROUTER, DCPK_T_ROUTER_BIAS,		/* rep, f32 on load */
	DCPK_T_E_GATE, DCPK_T_E_UP, DCPK_T_E_DOWN,	/* one expert; as FFN */
	DCPK_T_S_GATE, DCPK_T_S_UP, DCPK_T_S_DOWN,	/* shared; as FFN */
	/* MTP layer only (layer index = model.layers), rep */
	DCPK_T_E_NORM, DCPK_T_H_NORM, DCPK_T_EH_PROJ, DCPK_T_SH_NORM,
	DCPK_T_N
};

enum dcpk_wfmt {
	DCPK_W_F32, DCPK_W_BF16,
	DCPK_W_FP8_BLOCK,	/* e4m3 [N][K]; f32 per block_n x block_k */
	DCPK_W_FP8_CHANNEL,	/* e4m3 [N][K]; scale [N] or [1] (block_n 0) */
	DCPK_W_INT4_PAIR,	/* W4AFP8: i8 [N][K/2], low nibble = even k,
				   two's complement; scale [N][K/block_k] */
	DCPK_W_INT4_WORD,	/* compressed-tensors: i32 [N][K/8], nibble i at
				   bits 4i, offset 8; scale [N][K/block_k] */
};

/*
 * One tensor of the checkpoint and the part of it that the ranks in the mask
 * keep. The pointers are the whole tensor's and are valid during the call
 * only; rows n0..n1 and columns k0..k1 may cut through a scale block.
 */
struct dcpk_weight {
	uint32_t layer;			/* 0 for tensors without a layer */
	enum dcpk_tensor tensor;
	uint32_t expert;		/* E_* only */
	uint64_t ranks;			/* bit r: rank r keeps this slice */
	enum dcpk_wfmt fmt;
	uint32_t n, k;			/* whole tensor; a vector has n = 1 */
	uint32_t n0, n1, k0, k1;	/* slice */
	const void *data;		/* row-major, packed, any alignment */
	const void *scale;		/* NULL if the format has none */
	bool scale_bf16;		/* else f32 */
	uint32_t block_n, block_k;
	const int32_t *zero_point;	/* INT4_WORD asymmetric: packed along n,
					   i32 [N/8][K/block_k]; or NULL */
	const int32_t *g_idx;		/* INT4_WORD: column's group, or NULL */
	float act_scale;		/* W4AFP8: the layer's max, else 0 */
};

/* --- plan: plain data, no pointers, offsets from its first byte -------- */

#define DCPK_PLAN_MAGIC 0x44435050u	/* "DCPP" */
#define DCPK_PLAN_VERSION 1u

enum dcpk_pass { DCPK_DECODE = 0, DCPK_PREFILL = 1 };
enum dcpk_way { DCPK_WAY_Q = 0, DCPK_WAY_KV = 1, DCPK_WAY_A2A = 2 };

struct dcpk_row {		/* one query row */
	uint32_t req;		/* index into the plan's requests */
	uint32_t pos;		/* position in its request; sees keys 0..pos */
	uint32_t token;
	uint32_t page;		/* page id that holds pos */
};

struct dcpk_req {
	uint32_t row0, rows;	/* its rows are neighbours, positions ascending;
				   in a decode pass there may be several */
	uint32_t page0, pages;	/* its part of the page table */
	uint32_t prefix;	/* tokens cached before row0, its pos */
	uint32_t pad[3];
};

enum {
	DCPK_S_GREEDY = 1,	/* arg max, lowest id on ties; rest unused */
	DCPK_S_SCORE = 2,	/* no sampling: the logprob of .given */
	DCPK_S_MASK = 4,	/* only ids whose bit is set in mask words */
};

struct dcpk_sample {		/* one row whose logits are wanted */
	uint32_t row;
	uint32_t flags;
	uint32_t n_top;		/* top_logprobs wanted, 0 = none */
	uint32_t given;
	float temperature, top_p, min_p;	/* top_p 1, min_p 0 = off */
	uint32_t top_k;				/* 0 = off */
	float repetition, presence, frequency;	/* 1, 0, 0 = off */
	uint32_t adj0, adjs;	/* its part of the adjustments */
	uint32_t mask;		/* index of its first u32 mask word */
	uint64_t seed;		/* of the request; with `index` the only source
				   of randomness, so the batch cannot matter */
	uint32_t index;		/* how many tokens it generated before */
	uint32_t pad;
};

struct dcpk_adjust {		/* penalties, logit_bias, banned ids */
	uint32_t token;
	float bias;		/* added; -INFINITY bans */
	uint32_t out_count;	/* times generated: presence, frequency */
	uint32_t seen;		/* in prompt or output: repetition */
};

struct dcpk_plan {
	uint32_t magic, version;
	uint32_t bytes;			/* header and arrays */
	uint32_t pass;			/* enum dcpk_pass */
	uint32_t way;			/* enum dcpk_way; prefill under DCP */
	uint32_t n_rows, n_reqs, n_pages, n_samples, n_adjusts, n_mask;
	uint32_t rows_off, reqs_off, pages_off, samples_off, adjusts_off;
	uint32_t mask_off;		/* u32 words, (vocab+31)/32 each */
	uint32_t pad;
	uint64_t step;
};

#define DCPK_PLAN_AT(plan, type, off) \
	((const type *)(const void *)((const char *)(plan) + (plan)->off))
#define DCPK_ROWS(p) DCPK_PLAN_AT(p, struct dcpk_row, rows_off)
#define DCPK_REQS(p) DCPK_PLAN_AT(p, struct dcpk_req, reqs_off)
#define DCPK_PAGES(p) DCPK_PLAN_AT(p, uint32_t, pages_off)
#define DCPK_SAMPLES(p) DCPK_PLAN_AT(p, struct dcpk_sample, samples_off)
#define DCPK_ADJUSTS(p) DCPK_PLAN_AT(p, struct dcpk_adjust, adjusts_off)
#define DCPK_MASK(p) DCPK_PLAN_AT(p, uint32_t, mask_off)

struct dcpk_logprob {
	uint32_t token;
	float logprob;		/* natural log; of the model's own logits:
				   before temperature, penalties, bias, mask */
};

/* Filled by step_end; the caller owns the arrays. */
struct dcpk_result {
	struct dcpk_logprob *out;	/* [n_samples] */
	struct dcpk_logprob *top;	/* the n_top of each sample, one after
					   another, best first */
	uint32_t out_cap, top_cap;
};

/* --- set-up ------------------------------------------------------------ */

enum {
	DCPK_QUANT_ACT = 1,	/* CPU: quantise activations of FP8 and W4AFP8
				   products as the GPU will */
	DCPK_KEEP_SELECT = 2,	/* keep selections for peek (tests) */
	DCPK_GUARD = 4,		/* guard bytes round pools, see check() */
	DCPK_FP8_WEIGHTS = 8,	/* CUDA: FP8 weights stay what they are, see
				   keep.h */
	DCPK_INT4_WEIGHTS = 16,	/* and W4AFP8's experts; with the above */
	DCPK_NO_PEERS = 32,	/* CUDA: GPUs cannot map each other's memory, or
				   shall not; set by settle() as well */
	DCPK_COMM_AUTO = 64,	/* CUDA: settle() may change comm */
};

/* CUDA: how the ranks of a host wait for each other. */
enum dcpk_comm {
	DCPK_COMM_EVENT = 0,	/* events between the ranks' streams */
	DCPK_COMM_PEER = 1,	/* flags in peer memory, kernels that spin */
	DCPK_COMM_NCCL = 2,	/* events; the sums of partials by NCCL. With
				   DCPK_NO_PEERS all exchanges */
};

/*
 * DCP: what a partial output is rounded to before it crosses ranks. A rank's
 * own heads stay as they are; the LSE is f32 in any case. FP8: e4m3, and an f32
 * scale, amax/448, for each DCPK_WIRE_TILE columns of a row and head (fewer in
 * the last).
 */
enum dcpk_wire {
	DCPK_WIRE_F32 = 0,
	DCPK_WIRE_BF16 = 1,
	DCPK_WIRE_FP8 = 2,
};
#define DCPK_WIRE_TILE 128u

struct dcpk_setup {
	struct dcpk_model model;
	struct dcpk_topo topo;
	enum dcpk_kv kv, idx;		/* formats of rows and of index keys */
	uint32_t pages;			/* per rank, without the sink page; page
					   id `pages` is the sink (padding) */
	uint32_t host_pages;		/* that host memory holds beside */
	uint32_t max_rows;		/* of one decode pass */
	uint32_t max_prefill;		/* rows of one prefill pass */
	uint32_t max_reqs;
	uint32_t max_ctx;		/* longest request, tokens */
	uint32_t threads;		/* CPU workers; 0 = cores online */
	uint32_t ranks_per_gpu;		/* CUDA; 0 = 1 */
	enum dcpk_comm comm;		/* CUDA */
	enum dcpk_wire wire;		/* D > 1 */
	uint32_t graph_rows;		/* CUDA: decode passes of up to so many
					   rows are replayed as graphs; or 0 */
	uint32_t flags;
	const uint32_t *token_ok;	/* bitmask [vocab]: ids that may be
					   sampled; NULL = all. Copied. */
};

/* Bytes of one rank, exactly as allocated. */
struct dcpk_bytes {
	uint64_t weights;	/* split over ranks */
	uint64_t weights_attn;	/* attention, replicated under CP */
	uint64_t weights_rep;	/* the same on every rank; the CPU keeps one
				   copy for all and charges it to rank 0 */
	uint64_t weights_mtp;
	uint64_t rows, index;	/* pools, sink page included */
	uint64_t workspace;
	uint64_t graphs;	/* CUDA graphs: planned by graphs.h, measured
				   as they are captured */
	uint64_t comm;		/* NCCL's own: planned by comm.h, measured when
				   it is opened */
	uint64_t host;		/* pages outside the pools, of all ranks: rank
				   0's entry; no device memory */
};

struct dcpk_move {		/* a page of the pools, a slot outside */
	uint32_t page, slot;	/* below setup.pages, setup.host_pages */
};

/* Measured at start: for the choice of the prefill way, and for floors. */
struct dcpk_speed {
	double copy_bytes_s;	/* gather or all-to-all between ranks */
	double attend_flops_s;	/* with all heads of a group on one rank */
	double attend_own_flops_s;	/* with one rank's own heads only */
	double call_s;		/* fixed price of one collective */
	/* Of all ranks together, the best there is; 0: not measured. */
	double read_bytes_s;	/* weights, each once */
	double flops_s;		/* multiply-adds count two */
};

enum dcpk_peek {
	DCPK_PEEK_LOGITS,	/* f32 [n_samples][vocab] of the last step */
	DCPK_PEEK_SELECT,	/* u32 positions of `row`, ascending, of the
				   last step and `layer` (DCPK_KEEP_SELECT) */
	DCPK_PEEK_POOL_ROW,	/* bytes of pool row `row` of `rank`, `layer` */
	DCPK_PEEK_INDEX_ROW,	/* index key bytes, then its f32 scale if fp8 */
	DCPK_PEEK_GATHERED_ROW,	/* bytes of position `row` in the last gather
				   buffer: of the pass's last request */
};

struct dcpk_ctx;		/* one open device: all ranks */

struct dcpk_backend {
	uint32_t abi, size;	/* DCPK_ABI, sizeof(struct dcpk_backend) */
	const char *name;	/* "cpu", "cuda" */

	/* What the device decides of a set-up: flags, comm, graph_rows. Before
	 * it is planned or opened. NULL: nothing. */
	int (*settle)(struct dcpk_setup *, struct dcpk_err *);
	/* Free bytes of each rank's device, the least of all ranks; ranks that
	 * share one have an equal part. NULL: ranks live in host memory. */
	int (*memory)(const struct dcpk_setup *, uint64_t *bytes,
	    struct dcpk_err *);
	/* Needs no open device. bytes[world]. weights* are left 0. */
	int (*bytes)(const struct dcpk_setup *, struct dcpk_bytes *);
	int (*open)(const struct dcpk_setup *, struct dcpk_ctx **,
	    struct dcpk_err *);
	int (*load)(struct dcpk_ctx *, const struct dcpk_weight *,
	    struct dcpk_err *);
	/* After the last load: every tensor the model needs is there. */
	int (*ready)(struct dcpk_ctx *, struct dcpk_err *);
	void (*actual)(struct dcpk_ctx *, struct dcpk_bytes *);
	int (*measure)(struct dcpk_ctx *, struct dcpk_speed *);

	int (*step_begin)(struct dcpk_ctx *, const struct dcpk_plan *,
	    struct dcpk_err *);
	int (*embed)(struct dcpk_ctx *);
	int (*attn_in)(struct dcpk_ctx *, uint32_t layer);
	int (*select)(struct dcpk_ctx *, uint32_t layer);
	int (*attend_merge)(struct dcpk_ctx *, uint32_t layer);
	int (*attn_out)(struct dcpk_ctx *, uint32_t layer);
	int (*ffn)(struct dcpk_ctx *, uint32_t layer);
	int (*head)(struct dcpk_ctx *);
	int (*sample)(struct dcpk_ctx *);
	int (*step_end)(struct dcpk_ctx *, struct dcpk_result *);

	/*
	 * Between two steps: the rows, index keys and scales of n pages, in all
	 * layers, from the pools to host memory (out) or back. No page and no
	 * slot is in a call twice. Of groups, which hold the same, one copy is
	 * kept and all get it back. When it returns, both may be reused.
	 */
	int (*move)(struct dcpk_ctx *, const struct dcpk_move *, uint32_t n,
	    bool out, struct dcpk_err *);

	/* Tests and `dcpctl check`: bytes copied, or -errno. */
	int64_t (*peek)(struct dcpk_ctx *, enum dcpk_peek, uint32_t layer,
	    uint32_t rank, uint32_t row, void *buf, size_t cap);
	/* Benchmarks: random rows and index keys in every page, as if requests
	 * had left them, the same in every group. NULL: it cannot. */
	int (*fill)(struct dcpk_ctx *, uint64_t seed);
	/* Our own invariants: guard bytes, pool bounds. */
	int (*check)(struct dcpk_ctx *, struct dcpk_err *);
	/* Any thread, while an operation runs: whom it waits for, or "". NULL:
	 * cannot say. */
	void (*waits)(struct dcpk_ctx *, char *buf, size_t cap);
	void (*close)(struct dcpk_ctx *);
};

extern const struct dcpk_backend dcpk_cpu;	/* linked in */
/* Exported by libdcp_cuda.so. */
typedef const struct dcpk_backend *dcpk_backend_get_fn(uint32_t abi);

/* --- bytes of a row, for the planner and the pools alike --------------- */

static inline uint32_t
dcpk_row_bytes(enum dcpk_kv kv, uint32_t kv_lora, uint32_t rope)
{
	return kv == DCPK_KV_FP8 ? kv_lora + kv_lora / 128 * 4 + rope * 2 :
	    (kv_lora + rope) * (kv == DCPK_KV_BF16 ? 2u : 4u);
}

/* Index key with its scale: 132 for fp8 of 128. */
static inline uint32_t
dcpk_index_bytes(enum dcpk_kv idx, uint32_t dim)
{
	return idx == DCPK_KV_FP8 ? dim + 4 :
	    dim * (idx == DCPK_KV_BF16 ? 2u : 4u);
}

#endif
