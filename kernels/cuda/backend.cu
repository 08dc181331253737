/*
 * The CUDA backend's table: opening, its memory, the start and end of a step.
 *
 * Memory is taken in `open` and by `load`: per rank one allocation for KV rows,
 * one for index keys, one for their scales, and one workspace, laid out by the
 * same function (carve) that counts it. A step takes none, but for graphs when
 * they are captured.
 */
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"
#include "kernels/fail.h"
#include "kernels/comm.h"
#include "kernels/graphs.h"
#include "kernels/mirror.h"

static_assert(DCPK_FAST_KEYS == DCPG_MAX_SHARD, "graphs.h, dcpg.h");
enum { GUARD = 4096, GUARD_BYTE = 0xa5 };

int
dcpg_ok(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return 0;
	fprintf(stderr, "cuda: %s: %s\n", what, cudaGetErrorString(e));
	return -EIO;
}

struct dcpg_peer
dcpg_peer_of(dcpk_ctx *c, dcpg_rank *r, uint32_t lane)
{
	struct dcpg_peer p = {};

	for (uint32_t i = 0; i < c->W; i++)
		p.flags[i] = c->r[i].flags + lane * dcpg_peer_words(c->W);
	p.world = c->W;
	p.self = r->id;
	p.limit_ns = DCPG_LOST_NS;
	p.stuck = &c->stuck[r->id];
	return p;
}

/* By flags in peer memory: a kernel a rank. */
static int
meet_peers(dcpk_ctx *c)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		struct dcpg_peer p = dcpg_peer_of(c, &c->r[i], 0);

		cudaSetDevice(c->r[i].dev);
		if (dcpg_peer_meet(&p, c->r[i].st) != 0)
			rc = dcpg_ok(cudaErrorLaunchFailure, "meeting");
	}
	return rc;
}

int
dcpg_meet(dcpk_ctx *c)
{
	int rc = 0;

	if (c->W == 1)
		return 0;
	if (c->s.comm == DCPK_COMM_PEER)
		return meet_peers(c);
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaEventRecord(c->r[i].met, c->r[i].st),
		    "event");
	}
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		for (uint32_t o = 0; o < c->W; o++)
			if (o != i)
				rc |= dcpg_ok(cudaStreamWaitEvent(c->r[i].st,
				    c->r[o].met, 0), "wait");
	}
	return rc;
}

/* --- the side stream ----------------------------------------------------- */

int
dcpg_fork(dcpg_rank *r)
{
	int rc = dcpg_ok(cudaEventRecord(r->forked, r->st), "fork");

	return rc | dcpg_ok(cudaStreamWaitEvent(r->side, r->forked, 0),
	    "fork");
}

void
dcpg_aside(dcpg_rank *r)
{
	std::swap(r->st, r->side);
	std::swap(r->lt_ws, r->side_ws);
}

int
dcpg_joins(dcpg_rank *r)
{
	return dcpg_ok(cudaEventRecord(r->joined, r->side), "join");
}

int
dcpg_join(dcpk_ctx *c)
{
	int rc = 0;

	for (uint32_t i = 0; c->forked && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaStreamWaitEvent(c->r[i].st,
		    c->r[i].joined, 0), "join");
	}
	c->forked = false;
	return rc;
}

/* --- sizes ------------------------------------------------------------- */

static void
sizes(dcpk_ctx *c, const dcpk_setup *s)
{
	const dcpk_model *m = &s->model;

	c->s = *s;
	c->W = s->topo.world;
	c->D = s->topo.dcp;
	c->mirrored = dcpk_mirrored(s);
	c->M = std::max(s->max_rows, s->max_prefill);
	if (s->flags & DCPK_FP8_WEIGHTS)	/* cuBLASLt's rows */
		c->M = (c->M + 3) / 4 * 4;
	c->Hr = m->heads / c->W;
	c->Hp = m->heads / s->topo.attn_tp;
	c->Hg = c->Hr * c->D;
	c->page_rows = dcpk_page_rows(c->D);
	c->row_bytes = dcpk_row_bytes(s->kv, m->kv_lora, m->rope);
	c->key_bytes = dcpk_index_bytes(s->idx, m->idx_dim) -
	    (s->idx == DCPK_KV_FP8 ? 4 : 0);
	c->pool_rows = ((size_t)s->pages + 1) * c->page_rows;
	c->fast_attend = m->kv_lora == DCPG_LATENT && m->rope == DCPG_ROPE;
	c->full_layers = 0;
	for (uint32_t i = 0; i < m->layers; i++) {
		c->idx_slot[i] = c->full_layers;
		c->full_layers += m->full[i] != 0;
	}
	c->cap_samples = std::max(s->max_rows, 16u);
	if (s->flags & DCPK_KEEP_SELECT)
		c->cap_samples = std::max(c->cap_samples, c->M);
	c->plan_cap = sizeof(dcpk_plan) + c->M * (sizeof(dcpk_row) +
	    sizeof(dcpk_req) + sizeof(dcpk_sample)) + (1u << 20) +
	    4 * ((size_t)s->max_reqs * (s->max_ctx / DCPK_PAGE + 2)) +
	    16 * (size_t)s->max_ctx +
	    /* a mask for each request; a million adjustments, or the first
	     * request's, whatever they are */
	    4 * ((size_t)s->max_reqs * ((m->vocab + 31) / 32)) +
	    sizeof(dcpk_adjust) * ((1u << 20) + (size_t)m->vocab);
}

static size_t
rows_bytes(const dcpk_ctx *c)
{
	return c->s.model.layers * c->pool_rows * c->row_bytes;
}

static size_t
keys_bytes(const dcpk_ctx *c)
{
	return c->full_layers * c->pool_rows * c->key_bytes;
}

static size_t
scales_bytes(const dcpk_ctx *c)
{
	return c->s.idx == DCPK_KV_FP8 ? c->full_layers * c->pool_rows * 4 : 0;
}

static void *
take(char *base, size_t *at, size_t n, size_t el)
{
	void *p = base != NULL ? base + *at : NULL;

	*at += (n * el + 255) / 256 * 256;
	return p;
}
#define TAKE(n, type) ((type *)take(base, &at, (n), sizeof(type)))

static struct dcpg_codes
take_codes(const dcpk_ctx *c, char *base, size_t *at, size_t rows, uint32_t k)
{
	struct dcpg_codes y;

	y.code = (uint8_t *)take(base, at, rows * k, 1);
	y.scale = (float *)take(base, at, rows * (k / 128), 4);
	y.pow2 = c->s.model.act_ue8m0;
	return y;
}

/* Rows that a rank selects for in one prefill pass, at most. */
static size_t
prefill_share(const dcpk_ctx *c)
{
	size_t M = c->s.max_prefill;

	return c->s.topo.cp > 1 ? M : (M + c->W - 1) / c->W + 1;
}

/* Floats of the score buffer: decode rows x shard, prefill rows x context, the
 * latter in slices. */
static size_t
score_floats(const dcpk_ctx *c)
{
	size_t ctx = (c->s.max_ctx + 63) / 64 * 64;

	return std::max(c->s.max_rows * dcpk_shard_scores(&c->s), std::max(ctx,
	    std::min(DCPG_SCORES, prefill_share(c) * ctx)));
}

size_t
dcpg_score_bytes(const dcpk_ctx *c)
{
	return score_floats(c) * sizeof(float);
}

/* Of few rows norm.cu has its sums pushed. */
static bool
pushes_sums(const dcpk_ctx *c)
{
	return c->s.comm == DCPK_COMM_PEER && c->W > 1;
}

static size_t
sum_floats(const dcpk_ctx *c)
{
	return (size_t)2 * c->W * DCPG_PUSHED * c->s.model.hidden;
}

/* In decode lists come as pool rows, of which positions cannot be kept. */
static bool
can_fast_index(const dcpk_setup *s)
{
	return dcpk_fast_index(s) && (s->flags & DCPK_KEEP_SELECT) == 0;
}

static size_t
carve(dcpk_ctx *c, dcpg_rank *r, uint32_t id, char *base)
{
	const dcpk_model *m = &c->s.model;
	size_t at = 0, M = c->M, cr = m->kv_lora + m->rope, V = m->vocab;
	size_t slots = M * m->experts_tok, ctx = (c->s.max_ctx + 63) / 64 * 64;
	size_t cap = c->cap_samples, wide;
	size_t moe = (m->moe_inter + c->W - 1) / c->W;

	wide = std::max(M * ((m->inter + c->W - 1) / c->W),
	    std::max(slots * moe, M * moe * std::max(1u, m->shared_experts)));
	r->x = TAKE(M * m->hidden, float);
	r->h = TAKE(M * m->hidden, bf16);
	r->hf = TAKE(M * m->hidden, float);
	r->first = TAKE(M * dcpg_first_of(m, 0).ld, float);
	r->iw = TAKE(M * m->idx_heads, float);
	r->qr16 = TAKE(M * m->q_lora, bf16);
	r->qh = TAKE(M * c->Hp * (m->nope + m->rope), bf16);
	r->q = TAKE(M * c->Hp * cr, bf16);
	r->iq = TAKE(M * m->idx_heads * m->idx_dim, float);
	r->new_rows = TAKE(M * c->row_bytes, uint8_t);
	r->new_keys = TAKE(M * c->key_bytes, uint8_t);
	r->new_scales = TAKE(M, float);
	r->scores = TAKE(score_floats(c), float);
	r->list = TAKE(M * m->topk, uint32_t);
	r->count = TAKE(M, uint32_t);
	if (dcpk_fast_index(&c->s)) {
		size_t n = c->s.max_rows;

		r->iq8 = TAKE(M * m->idx_heads * 128, uint8_t);
		r->row_len = TAKE(M, uint32_t);
		r->table_at = TAKE(n, uint32_t);
		r->shard_n = TAKE(n, uint32_t);
		r->row_n = TAKE(n, uint32_t);
		r->hist = TAKE(std::max<size_t>(n, std::min<size_t>(
		    prefill_share(c), DCPG_SLICE)) * DCPG_BINS, uint32_t);
		if (c->D > 1) {
			r->offer = TAKE(c->D * n * DCPG_OFFER_CAP, uint64_t);
			r->window = TAKE(c->D * n, struct dcpg_window);
		}
	}
	if (c->fast_attend)
		r->attend_work = TAKE(DCPG_ATTEND_WORK, uint8_t);
	r->lse_unused = TAKE(M * c->Hp, float);
	r->sel = TAKE(M * m->topk, uint32_t);
	r->sel_n = TAKE(M, uint32_t);
	if (c->s.flags & DCPK_KEEP_SELECT) {
		r->keep = TAKE(m->layers * M * m->topk, uint32_t);
		r->keep_n = TAKE(m->layers * M, uint32_t);
	}
	if (pushes_sums(c))
		r->sums = TAKE(sum_floats(c), float);
	if (c->s.comm == DCPK_COMM_PEER)
		r->flags = TAKE(2 * dcpg_peer_words(c->W), uint32_t);
	if (c->D > 1) {
		r->qg = TAKE(M * c->Hg * cr, bf16);
		r->po = TAKE(M * c->Hg * m->kv_lora, float);
		r->plse = TAKE(2 * M * c->Hg, float);
		if (!c->mirrored)
			r->parts = TAKE(2 * c->D, struct dcpg_part);
		if (c->s.wire == DCPK_WIRE_FP8) {
			r->w8 = TAKE(M * c->Hg * m->kv_lora, uint8_t);
			r->w8_scale = TAKE(M * c->Hg * ((m->kv_lora +
			    DCPK_WIRE_TILE - 1) / DCPK_WIRE_TILE), float);
			r->w8_lse = TAKE(M * c->Hg, float);
		}
		r->gather = TAKE(ctx * c->row_bytes, uint8_t);
	}
	r->o = TAKE(M * c->Hp * m->kv_lora, bf16);
	r->ov = TAKE(M * c->Hp * m->vdim, bf16);
	r->ya = TAKE(M * m->hidden, float);
	r->yf = TAKE(M * m->hidden, float);
	r->gu = TAKE(2 * M * std::max((m->inter + c->W - 1) / c->W,
	    (uint32_t)moe * std::max(1u, m->shared_experts)), float);
	r->a16 = TAKE(wide, bf16);
	if (c->s.flags & DCPK_INT4_WEIGHTS)
		r->h4 = TAKE(M * m->hidden, uint8_t);
	if (c->s.flags & DCPK_FP8_WEIGHTS) {
		r->h8 = take_codes(c, base, &at, M, m->hidden);
		r->qr8 = take_codes(c, base, &at, M, m->q_lora);
		r->ov8 = take_codes(c, base, &at, M, c->Hp * m->vdim);
		r->a8 = take_codes(c, base, &at, M, std::max(
		    (m->inter + c->W - 1) / c->W,
		    (uint32_t)moe * std::max(1u, m->shared_experts)));
		r->e8 = take_codes(c, base, &at, slots, moe);
	}
	r->cos = TAKE(M * m->rope / 2, float);
	r->sin = TAKE(M * m->rope / 2, float);
	r->eid = TAKE(slots, uint32_t);
	r->ew = TAKE(slots, float);
	r->slot = TAKE(slots, uint32_t);
	r->slot_row = TAKE(slots, uint32_t);
	r->eslot0 = TAKE(m->experts + 1, uint32_t);
	r->tile0 = TAKE(m->experts + 1, uint32_t);
	r->tile_e = TAKE(slots / 16 + m->experts + 1, uint32_t);
	r->tile_m = TAKE(slots / 16 + m->experts + 1, uint32_t);
	r->ey = TAKE(slots * m->hidden, float);
	r->gkeys = TAKE(ctx * c->key_bytes, uint8_t);
	r->gscales = TAKE(ctx, float);
	r->hs = TAKE(cap * m->hidden, bf16);
	r->logits = TAKE(cap * ((V + c->W - 1) / c->W), float);
	r->probe_word = TAKE(1, uint32_t);
	r->plan = TAKE(c->plan_cap, char);
	if (c->s.topo.cp > 1)
		r->own_mem = TAKE(3 * M, uint32_t);
	if (c->mirrored)
		r->mirror = TAKE(dcpk_mirror_bytes(&c->s, id), char);
	r->lt_ws = TAKE(DCPG_LT_WS, char);
	r->side_ws = TAKE(DCPG_LT_WS, char);
	if (id != 0)
		return at;
	c->cap_top = (uint32_t)std::min<size_t>(M * V, 1u << 22);
	r->all_logits = TAKE(cap * V, float);
	r->z = TAKE(cap * V, float);
	r->z2 = TAKE(cap * V, float);
	r->ids = TAKE(cap * V, uint32_t);
	r->ids2 = TAKE(cap * V, uint32_t);
	r->lse = TAKE(cap, float);
	r->vocab_first = TAKE(c->W + 1, uint32_t);
	r->segment = TAKE(cap + 1, uint32_t);
	r->top_at = TAKE(M + 1, uint32_t);
	r->out = TAKE(M, dcpk_logprob);
	r->top = TAKE(c->cap_top, dcpk_logprob);
	r->ok = TAKE((V + 31) / 32, uint32_t);
	return at;
}

static int
cuda_bytes(const dcpk_setup *s, dcpk_bytes *b)
{
	dcpk_ctx *c = (dcpk_ctx *)calloc(1, sizeof *c);

	if (c == NULL)
		return -ENOMEM;
	sizes(c, s);
	memset(b, 0, c->W * sizeof *b);
	for (uint32_t i = 0; i < c->W; i++) {
		b[i].rows = rows_bytes(c);
		b[i].index = keys_bytes(c) + scales_bytes(c);
		b[i].workspace = carve(c, &c->r[i], i, NULL);
		b[i].graphs = dcpk_graph_bytes(s);
		b[i].comm = dcpk_comm_bytes(s);
	}
	b[0].workspace += dcpg_sort_bytes(s->model.vocab, c->cap_samples);
	b[0].host = dcpg_host_bytes(c);
	free(c);
	return 0;
}

/* --- open and close ---------------------------------------------------- */

/* GPUs that the ranks need, or an error that counts them. */
static int
devices(const dcpk_setup *s, int *per, int *used, dcpk_err *err)
{
	int n = 0;
	cudaError_t e = cudaGetDeviceCount(&n);

	/* another error may be gone when somebody tries again */
	if (e != cudaSuccess && e != cudaErrorNoDevice &&
	    e != cudaErrorInsufficientDriver)
		return fail(err, -EIO, "cuda: no GPU answers: %s",
		    cudaGetErrorString(e));
	if (e != cudaSuccess || n == 0)
		return fail(err, -ENODEV, "cuda: no GPU: %s; --device cpu "
		    "needs none", e != cudaSuccess ? cudaGetErrorString(e) :
		    "none is visible");
	*per = s->ranks_per_gpu ? (int)s->ranks_per_gpu : 1;
	*used = ((int)s->topo.world + *per - 1) / *per;
	if (*used > n)
		return fail(err, -ENODEV, "cuda: --tp %u needs %d GPUs with "
		    "--ranks-per-gpu %d, %d are visible", s->topo.world,
		    *used, *per, n);
	return 0;
}

/* Can every GPU in use map every other's memory? */
static bool
reach(int used)
{
	for (int a = 0; a < used; a++)
		for (int b = 0; b < used; b++) {
			int can = a == b;

			if (!can && (cudaDeviceCanAccessPeer(&can, a, b) !=
			    cudaSuccess || !can)) {
				cudaGetLastError();	/* is nobody else's */
				return false;
			}
		}
	return true;
}

static int
cuda_settle(dcpk_setup *s, dcpk_err *err)
{
	int per, used, rc = devices(s, &per, &used, err);

	if (rc != 0)
		return rc;
	if (used > 1 && !reach(used))
		s->flags |= DCPK_NO_PEERS;
	if (used > 1 && (s->flags & DCPK_NO_PEERS)) {
		if ((s->flags & DCPK_COMM_AUTO) && per == 1)
			s->comm = DCPK_COMM_NCCL;
		if (s->comm != DCPK_COMM_NCCL)
			return fail(err, -ENODEV, "--dcp-comm %s: the GPUs "
			    "cannot reach each other's memory; use --dcp-comm "
			    "nccl%s", s->comm == DCPK_COMM_PEER ? "peer" :
			    "p2p", per == 1 ? "" : " and a GPU for each rank");
	}
	if (s->comm == DCPK_COMM_NCCL)
		s->graph_rows = 0;
	return 0;
}

static int
cuda_memory(const dcpk_setup *s, uint64_t *bytes, dcpk_err *err)
{
	int per, used, rc = devices(s, &per, &used, err);
	uint64_t least = UINT64_MAX;

	for (int i = 0; rc == 0 && i < used; i++) {
		size_t free_b = 0, all = 0;

		if (cudaSetDevice(i) != cudaSuccess ||
		    cudaMemGetInfo(&free_b, &all) != cudaSuccess)
			return fail(err, -EIO, "cuda: GPU %d: %s", i,
			    cudaGetErrorString(cudaGetLastError()));
		least = std::min<uint64_t>(least, free_b);
	}
	if (rc == 0)
		*bytes = least / (uint64_t)per;
	return rc;
}

static int
check_setup(const dcpk_setup *s, dcpk_err *err)
{
	const dcpk_model *m = &s->model;
	const dcpk_topo *t = &s->topo;

	if (s->kv == DCPK_KV_F32 || s->idx == DCPK_KV_F32)
		return fail(err, -EINVAL, "cuda: f32 KV is for the CPU alone; "
		    "use --kv-cache-dtype bf16 or fp8_e4m3");
	if (t->dcp > 1 && s->wire == DCPK_WIRE_F32)
		return fail(err, -EINVAL, "cuda: --dcp-wire f32 is for the CPU "
		    "alone; use bf16 or fp8_e4m3");
	if (s->comm != DCPK_COMM_EVENT && s->ranks_per_gpu > 1)
		return fail(err, -EINVAL, "cuda: --dcp-comm peer and nccl "
		    "need a GPU for each rank; use p2p");
	/* rows of a pass, and their experts' tiles of 16, are the second
	 * dimension of some launches */
	if (m->experts != 0 && (uint64_t)std::max(s->max_prefill,
	    s->max_rows) * m->experts_tok / 16 + m->experts > 65535)
		return fail(err, -EINVAL, "cuda: %u rows of %u experts each "
		    "are too many for a pass; lower --chunked-prefill-size",
		    std::max(s->max_prefill, s->max_rows), m->experts_tok);
	if (s->max_prefill > 65535 || s->max_rows > 65535)
		return fail(err, -EINVAL, "cuda: a pass has 65535 rows at "
		    "most; lower --chunked-prefill-size");
	if (t->world == 0 || t->world > DCPK_MAX_RANKS || t->dcp == 0 ||
	    t->attn_tp * t->cp != t->world || t->world % t->dcp != 0 ||
	    DCPK_PAGE % t->dcp != 0 || m->heads % t->world != 0)
		return fail(err, -EINVAL, "cuda: bad topology");
	if (m->rope > 128 || m->rope % 8 != 0 || m->kv_lora % 8 != 0 ||
	    m->idx_dim > 128 || m->idx_dim % 4 != 0 || m->experts_tok > 32 ||
	    m->topk > DCPG_MAX_K || m->hidden % 4 != 0 || m->hidden > 16384 ||
	    m->q_lora % 4 != 0 || m->q_lora > 4096 || m->kv_lora > 4096 ||
	    m->idx_heads * m->idx_dim > 40960 ||	/* of score_keys */
	    m->nope % 2 != 0 || m->experts > 1024 ||
	    m->experts > m->experts_tok * m->hidden)
		return fail(err, -EINVAL, "cuda: model shape out of range");
	if ((s->kv == DCPK_KV_FP8 && (m->kv_lora != 512 || m->rope != 64)) ||
	    (s->idx == DCPK_KV_FP8 && m->idx_dim != 128))
		return fail(err, -EINVAL, "cuda: fp8 KV needs kv_lora_rank "
		    "512, qk_rope_head_dim 64, index_head_dim 128");
	return 0;
}

/* Peer access between every two devices in use; it must be there, unless
 * nothing reads through it. */
static int
peers(dcpk_ctx *c, dcpk_err *err)
{
	for (int a = 0; a < c->devices; a++)
		for (int b = 0; b < c->devices; b++) {
			int can = 0;
			cudaError_t e;

			if (a == b || c->mirrored)
				continue;
			cudaDeviceCanAccessPeer(&can, a, b);
			if (!can)
				return fail(err, -ENODEV, "cuda: GPU %d "
				    "cannot reach GPU %d's memory: peer "
				    "access is needed between all GPUs of "
				    "--tp", a, b);
			cudaSetDevice(a);
			e = cudaDeviceEnablePeerAccess(b, 0);
			if (e != cudaSuccess &&
			    e != cudaErrorPeerAccessAlreadyEnabled)
				return fail(err, -EIO, "cuda: peer access "
				    "from GPU %d to GPU %d: %s", a, b,
				    cudaGetErrorString(e));
			cudaGetLastError();
		}
	return 0;
}

static void *
pool(dcpk_ctx *c, size_t bytes)
{
	char *p = NULL;

	if (cudaMalloc(&p, bytes + 2 * GUARD) != cudaSuccess)
		return NULL;
	cudaMemset(p, GUARD_BYTE, GUARD);
	cudaMemset(p + GUARD, 0, bytes);
	cudaMemset(p + GUARD + bytes, GUARD_BYTE, GUARD);
	return p + GUARD;
}

static void
unpool(void *p)
{
	if (p != NULL)
		cudaFree((char *)p - GUARD);
}

static void
cuda_close(dcpk_ctx *c)
{
	/* What waits for a lost rank never ends: the process does. */
	if (c == NULL || c->lost)
		return;
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		if (r->side != NULL)
			cudaStreamSynchronize(r->side);
		if (r->st != NULL)
			cudaStreamSynchronize(r->st);
	}
	dcpg_graphs_close(c);
	dcpg_nccl_close(c);
	dcpg_mirror_close(c);
	dcpg_weights_free(c);
	dcpg_product_forget();
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		unpool(r->rows);
		unpool(r->keys);
		unpool(r->scales);
		cudaFree(r->ws);
		if (i == 0)
			cudaFree(r->sort_tmp);
		if (r->lt != NULL)
			cublasLtDestroy(r->lt);
		dcpg_lost_close(c, r);
		if (r->met != NULL)
			cudaEventDestroy(r->met);
		if (r->end != NULL)
			cudaEventDestroy(r->end);
		if (r->forked != NULL)
			cudaEventDestroy(r->forked);
		if (r->joined != NULL)
			cudaEventDestroy(r->joined);
		if (r->side != NULL)
			cudaStreamDestroy(r->side);
		if (r->st != NULL)
			cudaStreamDestroy(r->st);
	}
	dcpg_host_close(c);
	cudaFreeHost(c->plan_pinned);
	cudaFreeHost(c->out_pinned);
	cudaFreeHost(c->top_pinned);
	cudaFreeHost(c->top_at);
	cudaFreeHost(c->own_pinned);
	cudaFreeHost(c->stuck);
	free(c);
}

/* The main stream's blocks go first where both have some. */
static bool
streams(dcpg_rank *r)
{
	int least, greatest;

	return cudaDeviceGetStreamPriorityRange(&least, &greatest) ==
	    cudaSuccess && cudaStreamCreateWithPriority(&r->st,
	    cudaStreamNonBlocking, greatest) == cudaSuccess &&
	    cudaStreamCreateWithPriority(&r->side, cudaStreamNonBlocking,
	    least) == cudaSuccess;
}

static bool
event(cudaEvent_t *e)
{
	return cudaEventCreateWithFlags(e, cudaEventDisableTiming) ==
	    cudaSuccess;
}

static int
open_rank(dcpk_ctx *c, uint32_t i, dcpk_err *err)
{
	dcpg_rank *r = &c->r[i];
	size_t bytes;

	r->id = i;
	r->tp = i % c->s.topo.attn_tp;
	r->cp = i / c->s.topo.attn_tp;
	r->group = i / c->D;
	r->dr = i % c->D;
	cudaSetDevice(r->dev);
	if (dcpg_init() != 0 || dcpg_peer_init() != 0 ||
	    dcpg_norm_init() != 0 || dcpg_plain_init() != 0 ||
	    dcpg_merge_init() != 0 || dcpg_wire_init() != 0)
		return fail(err, -EIO, "cuda: GPU %d: %s", r->dev,
		    cudaGetErrorString(cudaGetLastError()));
	r->rows = (uint8_t *)pool(c, rows_bytes(c));
	r->keys = (uint8_t *)pool(c, keys_bytes(c));
	if (c->s.idx == DCPK_KV_FP8)
		r->scales = (float *)pool(c, scales_bytes(c));
	bytes = carve(c, r, i, NULL);
	if (r->rows == NULL || r->keys == NULL ||
	    (c->s.idx == DCPK_KV_FP8 && r->scales == NULL) ||
	    cudaMalloc(&r->ws, bytes) != cudaSuccess)
		return fail(err, -ENOMEM, "cuda: rank %u on GPU %d: pools of "
		    "%zu bytes and a workspace of %zu could not be had; lower "
		    "--mem-fraction-static, --kv-bytes-per-rank or "
		    "--chunked-prefill-size", i, r->dev, rows_bytes(c) +
		    keys_bytes(c) + scales_bytes(c), bytes);
	cudaMemset(r->ws, 0, bytes);
	carve(c, r, i, r->ws);
	dcpg_no_offers(c, r);
	if (c->fast_attend)
		cudaMemset(r->attend_work, 0xff, DCPG_ATTEND_WORK);
	if (pushes_sums(c))
		cudaMemset(r->sums, 0xff, sum_floats(c) * sizeof(float));
	c->got[i].rows = rows_bytes(c);
	c->got[i].index = keys_bytes(c) + scales_bytes(c);
	c->got[i].workspace = bytes;
	if (dcpg_lost_open(c, r) != 0 || !streams(r) || !event(&r->met) ||
	    !event(&r->end) || !event(&r->forked) || !event(&r->joined) ||
	    cublasLtCreate(&r->lt) != CUBLAS_STATUS_SUCCESS)
		return fail(err, -EIO, "cuda: rank %u on GPU %d: no stream or "
		    "cuBLASLt handle: %s", i, r->dev,
		    cudaGetErrorString(cudaGetLastError()));
	return 0;
}

/* What rank 0 needs to sample. */
static int
open_sampler(dcpk_ctx *c, dcpk_err *err)
{
	dcpg_rank *r = &c->r[0];
	uint32_t V = c->s.model.vocab, cap = c->cap_samples;
	std::vector<uint32_t> seg(cap + 1), ok((V + 31) / 32, ~0u);

	cudaSetDevice(r->dev);
	for (uint32_t i = 0; i <= cap; i++)
		seg[i] = i * V;
	if (c->s.token_ok != NULL)
		memcpy(ok.data(), c->s.token_ok, ok.size() * 4);
	c->s.token_ok = NULL;
	r->sort_bytes = dcpg_sort_bytes(V, cap);
	if (cudaMalloc(&r->sort_tmp, r->sort_bytes) != cudaSuccess ||
	    cudaMemcpy(r->segment, seg.data(), seg.size() * 4,
	    cudaMemcpyHostToDevice) != cudaSuccess ||
	    cudaMemcpy(r->ok, ok.data(), ok.size() * 4,
	    cudaMemcpyHostToDevice) != cudaSuccess)
		return fail(err, -ENOMEM, "cuda: no memory to sample");
	c->got[0].workspace += r->sort_bytes;
	return 0;
}

static int
cuda_open(const dcpk_setup *s, dcpk_ctx **out, dcpk_err *err)
{
	dcpk_ctx *c;
	int rc = check_setup(s, err), per = 1, used = 1;

	if (rc == 0)
		rc = devices(s, &per, &used, err);
	if (rc != 0)
		return rc;
	c = (dcpk_ctx *)calloc(1, sizeof *c);
	if (c == NULL)
		return fail(err, -ENOMEM, "cuda: out of memory");
	sizes(c, s);
	c->devices = used;
	for (uint32_t i = 0; i < c->W; i++)
		c->r[i].dev = (int)i / per;
	rc = peers(c, err);
	for (uint32_t i = 0; rc == 0 && i < c->W; i++)
		rc = open_rank(c, i, err);
	for (uint32_t i = 0; rc == 0 && i < c->W; i++)
		rc = dcpg_parts_open(c, &c->r[i]);
	if (rc == 0)
		rc = open_sampler(c, err);
	if (rc == 0)
		rc = dcpg_host_open(c, err);
	if (rc == 0)
		rc = dcpg_weights_alloc(c);
	if (rc == 0)
		rc = dcpg_graphs_open(c);
	if (rc == 0)
		rc = dcpg_nccl_open(c, err);
	if (rc == 0)
		rc = dcpg_mirror_open(c, err);
	if (rc == 0 && s->comm == DCPK_COMM_PEER &&
	    cudaHostAlloc(&c->stuck, c->W * sizeof *c->stuck,
	    cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
		rc = fail(err, -ENOMEM, "cuda: no pinned host memory");
	if (rc == 0 && s->comm == DCPK_COMM_PEER)
		memset(c->stuck, 0, c->W * sizeof *c->stuck);
	if (rc == 0 && (cudaMallocHost(&c->plan_pinned, c->plan_cap) !=
	    cudaSuccess || cudaMallocHost(&c->out_pinned,
	    c->M * sizeof(dcpk_logprob)) != cudaSuccess ||
	    cudaMallocHost(&c->top_pinned, c->cap_top *
	    sizeof(dcpk_logprob)) != cudaSuccess ||
	    cudaMallocHost(&c->top_at, (c->M + 1) * 4) != cudaSuccess ||
	    cudaMallocHost(&c->own_pinned, c->W * 3 * (size_t)c->M * 4) !=
	    cudaSuccess))
		rc = fail(err, -ENOMEM, "cuda: no pinned host memory");
	/* Memory was cleared on other streams than the ranks'. */
	for (int i = 0; rc == 0 && i < used; i++)
		if (cudaSetDevice(i) != cudaSuccess ||
		    cudaDeviceSynchronize() != cudaSuccess)
			rc = fail(err, -EIO, "cuda: GPU %d: %s", i,
			    cudaGetErrorString(cudaGetLastError()));
	if (rc != 0) {
		cuda_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

static void
cuda_actual(dcpk_ctx *c, dcpk_bytes *b)
{
	memcpy(b, c->got, c->W * sizeof *b);
}

/* --- a step ------------------------------------------------------------ */

static int
cuda_step_begin(dcpk_ctx *c, const dcpk_plan *p, dcpk_err *err)
{
	const dcpk_sample *s = DCPK_SAMPLES(p);
	uint32_t n_top = 0, cap;
	int rc = 0;

	cap = p->pass == DCPK_PREFILL ? c->s.max_prefill : c->s.max_rows;
	if (p->magic != DCPK_PLAN_MAGIC || p->version != DCPK_PLAN_VERSION ||
	    p->n_rows == 0 || p->n_rows > cap || p->n_samples > c->M ||
	    p->bytes > c->plan_cap)
		return fail(err, -E2BIG, "plan of version %u with %u rows, %u "
		    "samples and %u bytes; %u, %u and %zu at most",
		    p->version, p->n_rows, p->n_samples, p->bytes, cap, c->M,
		    c->plan_cap);
	for (uint32_t i = 0; i < p->n_samples; i++) {
		c->top_at[i] = n_top;
		n_top += s[i].n_top;
	}
	if (n_top > c->cap_top)
		return fail(err, -E2BIG, "%u top logprobs in one step, %u at "
		    "most", n_top, c->cap_top);
	if (!dcpg_graph_plan(c, p))
		memcpy(c->plan_pinned, p, p->bytes);
	c->plan = (const dcpk_plan *)c->plan_pinned;
	c->n_top = n_top;
	c->rows = c->plan->n_rows;
	c->prefill = p->pass == DCPK_PREFILL;
	c->gathered = c->prefill && c->D > 1 &&
	    (c->s.topo.cp > 1 || p->way != DCPK_WAY_Q);
	c->gather_layer = UINT32_MAX;
	c->longest = c->marks = 0;
	for (uint32_t i = 0; i < p->n_rows; i++)
		c->longest = std::max(c->longest, DCPK_ROWS(p)[i].pos + 1);
	c->fast_index = !c->prefill && can_fast_index(&c->s) &&
	    dcpk_shard_len(c->longest, 0, c->D) <= DCPK_FAST_KEYS;
	c->fast_rows = c->prefill && dcpk_fast_index(&c->s) &&
	    c->longest <= DCPG_MAX_SHARD;
	c->scores_ld = c->prefill ? (c->s.max_ctx + 63) / 64 * 64 :
	    dcpk_shard_scores(&c->s);
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		rc |= dcpg_ok(cudaMemcpyAsync(r->plan, c->plan_pinned,
		    c->plan->bytes, cudaMemcpyHostToDevice, r->st), "plan");
		r->m = c->rows;
		r->own = r->owner = r->jof = NULL;
	}
	cudaSetDevice(c->r[0].dev);
	if (p->n_samples != 0)
		rc |= dcpg_ok(cudaMemcpyAsync(c->r[0].top_at, c->top_at,
		    p->n_samples * 4, cudaMemcpyHostToDevice, c->r[0].st),
		    "samples");
	if (c->prefill && c->s.topo.cp > 1)
		rc |= dcpg_owners(c);
	for (uint32_t i = 0; c->fast_rows && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_row_ends(c, &c->r[i]);
	}
	rc |= dcpg_graph_begin(c);
	for (uint32_t i = 0; c->fast_index && !c->replay && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_row_shards(c, &c->r[i]);
	}
	return rc == 0 ? 0 : fail(err, -EIO, "cuda: %s",
	    cudaGetErrorString(cudaGetLastError()));
}

static int
cuda_ffn(dcpk_ctx *c, uint32_t layer)
{
	int rc = dcpg_ffn_op(c, layer);

	return rc == 0 ? dcpg_mark(c) : rc;	/* the layer's last operation */
}

static int
cuda_step_end(dcpk_ctx *c, dcpk_result *res)
{
	uint32_t n = c->plan->n_samples;
	int rc;

	if (n > res->out_cap || c->n_top > res->top_cap)
		return -ENOSPC;
	rc = dcpg_meet(c);	/* rank 0 waits for the others' last work too */
	cudaSetDevice(c->r[0].dev);
	if (n != 0)
		rc |= dcpg_ok(cudaMemcpyAsync(c->out_pinned, c->r[0].out,
		    n * sizeof(dcpk_logprob), cudaMemcpyDeviceToHost,
		    c->r[0].st), "tokens");
	if (c->n_top != 0)
		rc |= dcpg_ok(cudaMemcpyAsync(c->top_pinned, c->r[0].top,
		    c->n_top * sizeof(dcpk_logprob), cudaMemcpyDeviceToHost,
		    c->r[0].st), "logprobs");
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaEventRecord(c->r[i].end, c->r[i].st), "end");
	}
	c->ending = rc == 0;
	if (rc == 0)
		rc = dcpg_wait_end(c);
	c->ending = false;
	if (dcpg_lost_peer(c))
		c->lost = true;
	if (rc != 0 || c->lost)
		return -EIO;
	if (n != 0)
		memcpy(res->out, c->out_pinned, n * sizeof *res->out);
	if (c->n_top != 0)
		memcpy(res->top, c->top_pinned, c->n_top * sizeof *res->top);
	return 0;
}

/* --- check ------------------------------------------------------------- */

static bool
guard_ok(const void *p, size_t bytes)
{
	std::vector<uint8_t> g(2 * GUARD);

	if (cudaMemcpy(g.data(), (const char *)p - GUARD, GUARD,
	    cudaMemcpyDefault) != cudaSuccess ||
	    cudaMemcpy(g.data() + GUARD, (const char *)p + bytes, GUARD,
	    cudaMemcpyDefault) != cudaSuccess)
		return false;
	return std::all_of(g.begin(), g.end(),
	    [](uint8_t b) { return b == GUARD_BYTE; });
}

static int
cuda_check(dcpk_ctx *c, dcpk_err *err)
{
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		if (!guard_ok(r->rows, rows_bytes(c)) ||
		    !guard_ok(r->keys, keys_bytes(c)) ||
		    (r->scales && !guard_ok(r->scales, scales_bytes(c))))
			return fail(err, -EFAULT, "rank %u: guard bytes of a "
			    "pool were written", i);
	}
	return 0;
}

static const dcpk_backend table = {
	.abi = DCPK_ABI,
	.size = sizeof(dcpk_backend),
	.name = "cuda",
	.settle = cuda_settle,
	.memory = cuda_memory,
	.bytes = cuda_bytes,
	.open = cuda_open,
	.load = dcpg_load,
	.ready = dcpg_ready,
	.actual = cuda_actual,
	.measure = dcpg_measure,
	.step_begin = cuda_step_begin,
	.embed = dcpg_embed_op,
	.attn_in = dcpg_attn_in_op,
	.select = dcpg_select_op,
	.attend_merge = dcpg_attend_op,
	.attn_out = dcpg_attn_out_op,
	.ffn = cuda_ffn,
	.head = dcpg_head_op,
	.sample = dcpg_sample_op,
	.step_end = cuda_step_end,
	.move = dcpg_move,
	.peek = dcpg_peek,
	.fill = dcpg_fill,
	.check = cuda_check,
	.waits = dcpg_waits,
	.close = cuda_close,
};

extern "C" __attribute__((visibility("default"))) const dcpk_backend *
dcpk_backend_get(uint32_t abi)
{
	return abi == DCPK_ABI ? &table : NULL;
}
