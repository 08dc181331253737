/*
 * The CPU backend: opening, its memory, the start and end of a step, peeks.
 *
 * Memory is taken in `open` and never after: per rank one mapping for KV rows
 * and one for index keys, and one workspace for the process, charged to rank
 * 0. The same function (carve) counts the workspace for the planner and lays
 * it out, so that planned and allocated cannot differ.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/ctx.h"
#include "kernels/fail.h"

enum { GUARD = 4096, GUARD_BYTE = 0xa5 };

/* --- sizes ------------------------------------------------------------- */

static uint32_t
max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static void
sizes(struct dcpk_ctx *c, const struct dcpk_setup *s)
{
	const struct dcpk_model *m = &s->model;
	uint32_t i;
	long n;

	c->s = *s;
	c->W = s->topo.world;
	c->D = s->topo.dcp;
	c->groups = c->W / c->D;
	c->M = max_u32(s->max_rows, s->max_prefill);
	c->page_rows = dcpk_page_rows(c->D);
	c->row_bytes = dcpk_row_bytes(s->kv, m->kv_lora, m->rope);
	c->key_bytes = dcpk_index_bytes(s->idx, m->idx_dim) -
	    (s->idx == DCPK_KV_FP8 ? 4 : 0);
	c->pool_rows = ((size_t)s->pages + 1) * c->page_rows;
	for (i = 0, c->full_layers = 0; i < m->layers; i++) {
		c->idx_slot[i] = c->full_layers;
		c->full_layers += m->full[i] != 0;
	}
	n = s->threads != 0 ? s->threads : sysconf(_SC_NPROCESSORS_ONLN);
	c->threads = n < 1 ? 1 : n > 256 ? 256 : (uint32_t)n;
	c->cap_samples = max_u32(max_u32(s->max_rows, 16),
	    s->flags & DCPK_KEEP_SELECT ? c->M : 0);
}

static size_t
rows_bytes(const struct dcpk_ctx *c)
{
	return c->s.model.layers * c->pool_rows * c->row_bytes;
}

static size_t
keys_bytes(const struct dcpk_ctx *c)
{
	return c->full_layers * c->pool_rows * c->key_bytes;
}

static size_t
scales_bytes(const struct dcpk_ctx *c)
{
	return c->s.idx == DCPK_KV_FP8 ?
	    c->full_layers * c->pool_rows * sizeof(float) : 0;
}

/* Take n elements of size el, 64-byte aligned; base NULL only counts. */
static void *
take(char *base, size_t *at, size_t n, size_t el)
{
	void *p = base != NULL ? base + *at : NULL;

	*at += (n * el + 63) / 64 * 64;
	return p;
}
#define TAKE(n, type) ((type *)take(base, at, (n), sizeof(type)))

/* Activations of a pass, as long as a pass can be. */
static void
carve_rows(struct dcpk_ctx *c, char *base, size_t *at)
{
	const struct dcpk_model *m = &c->s.model;
	size_t M = c->M, H = m->heads, cr = m->kv_lora + m->rope;
	size_t slots = M * m->experts_tok;

	c->x = TAKE(M * m->hidden, float);
	c->h = TAKE(M * m->hidden, float);
	c->qr = TAKE(M * m->q_lora, float);
	c->kv = TAKE(M * cr, float);
	c->ik = TAKE(M * m->idx_dim, float);
	c->iw = TAKE(M * m->idx_heads, float);
	c->q = TAKE(M * H * (m->nope + m->rope), float);
	c->ql = TAKE(M * H * cr, float);
	c->iq = TAKE(M * m->idx_heads * m->idx_dim, float);
	c->o = TAKE(M * H * m->kv_lora, float);
	c->ov = TAKE(M * H * m->vdim, float);
	c->cos = TAKE(M * m->rope / 2, float);
	c->sin = TAKE(M * m->rope / 2, float);
	c->act = TAKE(M * m->inter, float);
	c->sact = TAKE(M * m->moe_inter * m->shared_experts, float);
	c->eact = TAKE(slots * m->moe_inter, float);
	c->ey = TAKE(slots * m->hidden, float);
	c->ex = TAKE(slots * m->hidden, float);
	c->ys = TAKE(M * m->hidden, float);
	c->eid = TAKE(slots, uint32_t);
	c->ew = TAKE(slots, float);
	c->slot = TAKE(slots, uint32_t);
	c->eslot0 = TAKE(m->experts + 1, uint32_t);
	c->prods = TAKE((m->experts + 1) * (size_t)c->W, struct dcpc_prod);
	c->parts = TAKE((m->experts + 1) * (size_t)c->W, struct dcpc_part);
	c->hs = TAKE((size_t)c->cap_samples * m->hidden, float);
	c->logits = TAKE((size_t)c->cap_samples * m->vocab, float);
	if (c->s.flags & DCPK_KEEP_SELECT) {
		c->keep = TAKE(m->layers * M * m->topk, uint32_t);
		c->keep_n = TAKE(m->layers * M, uint32_t);
	}
}

/* Floats that hold something per key of a whole context, in full tiles. */
static size_t
key_tiles(const struct dcpk_ctx *c)
{
	return ((size_t)c->s.max_ctx + DCPK_PAGE - 1) / DCPK_PAGE *
	    DCPK_PAGE + 16;
}

/* Selection, partial outputs, and what prefill gathers. */
static void
carve_keys(struct dcpk_ctx *c, char *base, size_t *at)
{
	const struct dcpk_model *m = &c->s.model;
	size_t Hg = m->heads / c->groups;

	/* partial outputs of all ranks, a block of rows at a time */
	c->po_rows = max_u32(c->s.max_rows, 16);
	if (c->po_rows > 64)
		c->po_rows = 64;
	if (c->D > 1) {
		c->po = TAKE(c->po_rows * c->W * Hg * m->kv_lora, float);
		c->plse = TAKE(c->po_rows * c->W * Hg, float);
		c->gather = TAKE(key_tiles(c) * c->row_bytes, uint8_t);
	}
	c->list = TAKE((size_t)c->M * m->topk, uint32_t);
	c->count = TAKE((size_t)c->M * c->D, uint32_t);
	c->shard_ld = (dcpk_shard_len(c->s.max_ctx, 0, c->D) + 31) / 16 * 16;
	c->scores_ld = c->shard_ld * c->D;
	c->scores = TAKE(c->s.max_rows * c->scores_ld, float);
	c->packed = TAKE(key_tiles(c) * m->idx_dim, float);
	c->kscale = TAKE(key_tiles(c), float);
}

/* The longest row that a product reads. */
static uint32_t
longest_row(const struct dcpk_model *m)
{
	uint32_t k = max_u32(m->hidden, m->q_lora);

	k = max_u32(k, max_u32(m->inter,
	    m->moe_inter * max_u32(1, m->shared_experts)));
	k = max_u32(k, m->heads * m->vdim);
	return max_u32(k, max_u32(m->kv_lora, m->nope));
}

static void
carve_thread(struct dcpk_ctx *c, struct dcpc_thread *t, char *base,
    size_t *at)
{
	const struct dcpk_model *m = &c->s.model;

	t->attend = TAKE(dcpc_attend_tmp(m->heads, m->kv_lora, m->rope),
	    float);
	t->scores = TAKE(key_tiles(c), float);
	/* select: 1024 keys; products: 16 rows x 512 columns */
	t->packed = TAKE(max_u32(1024 * m->idx_dim, 16 * 512), float);
	t->kscale = TAKE(1024, float);
	t->x = TAKE(48 * (size_t)longest_row(m), float);
	t->route = TAKE(10 * (size_t)m->experts, float);
	t->topk = take(base, at, dcpc_topk_ws(c->D), 1);
	t->sample = take(base, at, dcpc_sample_ws(m->vocab), 1);
	t->list = TAKE((size_t)(c->D + 1) * m->topk, uint32_t);
}

/* Workspace: where each array is, or (base NULL) only how many bytes. */
static size_t
carve(struct dcpk_ctx *c, char *base)
{
	struct dcpc_thread counted;
	size_t end = 0, *at = &end;
	uint32_t i;

	carve_rows(c, base, at);
	carve_keys(c, base, at);
	c->thread = TAKE(c->threads, struct dcpc_thread);
	for (i = 0; i < c->threads; i++)
		carve_thread(c, base != NULL ? &c->thread[i] : &counted, base,
		    at);
	return end;
}

static int
cpu_bytes(const struct dcpk_setup *s, struct dcpk_bytes *b)
{
	struct dcpk_ctx *c = calloc(1, sizeof *c);
	uint32_t r;

	if (c == NULL)
		return -ENOMEM;
	sizes(c, s);
	memset(b, 0, c->W * sizeof *b);
	for (r = 0; r < c->W; r++) {
		b[r].rows = rows_bytes(c);
		b[r].index = keys_bytes(c) + scales_bytes(c);
	}
	b[0].workspace = carve(c, NULL);
	b[0].host = dcpc_host_bytes(c);
	free(c);
	return 0;
}

/* --- open and close ---------------------------------------------------- */

static int
check_setup(const struct dcpk_setup *s, struct dcpk_err *err)
{
	const struct dcpk_model *m = &s->model;
	const struct dcpk_topo *t = &s->topo;

	if (t->world == 0 || t->world > DCPK_MAX_RANKS || t->dcp == 0 ||
	    t->attn_tp * t->cp != t->world || t->world % t->dcp != 0 ||
	    DCPK_PAGE % t->dcp != 0 || m->heads % t->world != 0)
		return fail(err, -EINVAL, "cpu: bad topology: world %u, "
		    "attn_tp %u, cp %u, dcp %u, heads %u", t->world,
		    t->attn_tp, t->cp, t->dcp, m->heads);
	if (m->layers == 0 || m->layers + m->mtp_layers > DCPK_MAX_LAYERS ||
	    m->heads > 1024 || m->rope > 256 || m->idx_dim > 256 ||
	    m->topk == 0 || s->max_ctx == 0 || s->max_rows == 0 ||
	    s->pages == 0)
		return fail(err, -EINVAL, "cpu: model shape out of range");
	if ((s->kv == DCPK_KV_FP8 && (m->kv_lora != 512 || m->rope != 64)) ||
	    (s->idx == DCPK_KV_FP8 && m->idx_dim != 128))
		return fail(err, -EINVAL, "cpu: fp8 KV needs kv_lora_rank "
		    "512, qk_rope_head_dim 64, index_head_dim 128");
	return 0;
}

/* A zeroed mapping with guard bytes on both sides if asked. */
static uint8_t *
pool_map(const struct dcpk_ctx *c, size_t bytes)
{
	size_t all = bytes + 2 * GUARD;
	uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	if (c->s.flags & DCPK_GUARD) {
		memset(p, GUARD_BYTE, GUARD);
		memset(p + GUARD + bytes, GUARD_BYTE, GUARD);
	}
	return p + GUARD;
}

static void
pool_unmap(void *p, size_t bytes)
{
	if (p != NULL)
		munmap((uint8_t *)p - GUARD, bytes + 2 * GUARD);
}

/* The runs of neighbouring decode heads in each DCP group. */
static int
make_groups(struct dcpk_ctx *c)
{
	const struct dcpk_topo *t = &c->s.topo;
	uint32_t g, r, i, j;

	for (g = 0; g < c->groups; g++) {
		struct dcpc_group *q = &c->group[g];

		q->range = calloc(c->D, sizeof *q->range);
		if (q->range == NULL)
			return -ENOMEM;
		for (r = 0; r < c->D; r++) {
			struct dcpk_heads h = dcpk_decode_heads(g * c->D + r,
			    c->s.model.heads, t->attn_tp, t->cp);

			q->range[r] = (struct dcpc_range){ h.first, h.n };
			q->heads += h.n;
		}
		/* sort by first head, then join neighbours */
		for (i = 1; i < c->D; i++)
			for (j = i; j > 0 && q->range[j - 1].first >
			    q->range[j].first; j--) {
				struct dcpc_range x = q->range[j];

				q->range[j] = q->range[j - 1];
				q->range[j - 1] = x;
			}
		for (i = 0, j = 0; i < c->D; i++) {
			if (j > 0 && q->range[j - 1].first +
			    q->range[j - 1].n == q->range[i].first)
				q->range[j - 1].n += q->range[i].n;
			else
				q->range[j++] = q->range[i];
		}
		q->n_ranges = j;
	}
	return 0;
}

static void
cpu_close(struct dcpk_ctx *c)
{
	uint32_t r;

	if (c == NULL)
		return;
	dcpc_workers_free(c->workers);
	for (r = 0; r < c->W; r++) {
		pool_unmap(c->pool[r].rows, rows_bytes(c));
		pool_unmap(c->pool[r].index, keys_bytes(c));
		pool_unmap(c->pool[r].scales, scales_bytes(c));
		free(c->group[r].range);
	}
	dcpc_host_close(c);
	dcpc_weights_free(c);
	if (c->ws != NULL)
		munmap(c->ws, c->ws_bytes);
	free(c->token_ok);
	free(c->out);
	free(c->top);
	free(c->top_at);
	free(c);
}

/* What a rank holds, and what all share. */
static int
take_memory(struct dcpk_ctx *c)
{
	const struct dcpk_setup *s = &c->s;
	uint32_t r;

	for (r = 0; r < c->W; r++) {
		c->pool[r].rows = pool_map(c, rows_bytes(c));
		c->pool[r].index = pool_map(c, keys_bytes(c));
		if (c->pool[r].rows == NULL || c->pool[r].index == NULL)
			return -ENOMEM;
		if (s->idx == DCPK_KV_FP8) {
			c->pool[r].scales =
			    (float *)(void *)pool_map(c, scales_bytes(c));
			if (c->pool[r].scales == NULL)
				return -ENOMEM;
		}
		c->got[r].rows = rows_bytes(c);
		c->got[r].index = keys_bytes(c) + scales_bytes(c);
	}
	c->ws_bytes = carve(c, NULL);
	c->ws = mmap(NULL, c->ws_bytes, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->ws == MAP_FAILED) {
		c->ws = NULL;
		return -ENOMEM;
	}
	carve(c, c->ws);
	c->got[0].workspace = c->ws_bytes;
	return 0;
}

static int
copy_token_ok(struct dcpk_ctx *c)
{
	size_t bytes = (c->s.model.vocab + 31) / 32 * sizeof(uint32_t);

	if (c->s.token_ok == NULL)
		return 0;
	c->token_ok = malloc(bytes);
	if (c->token_ok == NULL)
		return -ENOMEM;
	memcpy(c->token_ok, c->s.token_ok, bytes);
	c->s.token_ok = c->token_ok;
	return 0;
}

static int
cpu_open(const struct dcpk_setup *s, struct dcpk_ctx **out,
    struct dcpk_err *err)
{
	struct dcpk_ctx *c;
	int rc = check_setup(s, err);

	if (rc != 0)
		return rc;
	if (dcpc_prims_pick() == NULL)
		return fail(err, -EINVAL, "cpu: DCPD_CPU_ISA=%s: must be "
		    "avx512, avx2 or portable, and one that this CPU has",
		    getenv("DCPD_CPU_ISA"));
	c = calloc(1, sizeof *c);
	if (c == NULL)
		return fail(err, -ENOMEM, "cpu: out of memory");
	sizes(c, s);
	c->gather_layer = UINT32_MAX;
	c->p = dcpc_prims_pick();
	if ((rc = copy_token_ok(c)) == 0 && (rc = take_memory(c)) == 0 &&
	    (rc = dcpc_host_open(c)) == 0 && (rc = make_groups(c)) == 0 &&
	    (rc = dcpc_weights_alloc(c)) == 0)
		rc = dcpc_workers_new(c->threads, &c->workers);
	if (rc == 0) {
		*out = c;
		return 0;
	}
	if (rc == -EAGAIN)
		fail(err, rc, "cpu: %u threads for the ranks: %s; lower "
		    "--cpu-threads", c->threads, strerror(-rc));
	else
		fail(err, rc, "cpu: rank pools of %zu bytes, a workspace of "
		    "%zu and %zu for pages outside could not be had: %s; lower "
		    "--kv-bytes-per-rank, --mem-fraction-static, "
		    "--host-cache-bytes or --chunked-prefill-size",
		    rows_bytes(c) + keys_bytes(c), c->ws_bytes,
		    dcpc_host_bytes(c), strerror(-rc));
	cpu_close(c);
	return rc;
}

static void
cpu_actual(struct dcpk_ctx *c, struct dcpk_bytes *b)
{
	memcpy(b, c->got, c->W * sizeof *b);
}

/* --- a step ------------------------------------------------------------ */

static int
check_plan(const struct dcpk_ctx *c, const struct dcpk_plan *p,
    struct dcpk_err *err)
{
	const struct dcpk_row *row = DCPK_ROWS(p);
	const struct dcpk_req *rq = DCPK_REQS(p);
	const uint32_t *page = DCPK_PAGES(p);
	uint32_t i, cap;

	if (p->magic != DCPK_PLAN_MAGIC || p->version != DCPK_PLAN_VERSION)
		return fail(err, -EPROTO, "plan of version %u, not %u",
		    p->version, DCPK_PLAN_VERSION);
	cap = p->pass == DCPK_PREFILL ? c->s.max_prefill : c->s.max_rows;
	if (p->n_rows == 0 || p->n_rows > cap)
		return fail(err, -E2BIG, "plan of %u rows, not 1 to %u",
		    p->n_rows, cap);
	for (i = 0; i < p->n_pages; i++)
		if (page[i] > c->s.pages)
			return fail(err, -ERANGE, "page %u of %u", page[i],
			    c->s.pages);
	for (i = 0; i < p->n_rows; i++)
		if (row[i].req >= p->n_reqs || row[i].page > c->s.pages ||
		    row[i].pos >= c->s.max_ctx ||
		    row[i].token >= c->s.model.vocab ||
		    row[i].pos / DCPK_PAGE >= rq[row[i].req].pages)
			return fail(err, -ERANGE, "row %u: request %u, "
			    "position %u, token %u, page %u", i, row[i].req,
			    row[i].pos, row[i].token, row[i].page);
	for (i = 0; i < p->n_samples; i++)
		if (DCPK_SAMPLES(p)[i].row >= p->n_rows)
			return fail(err, -ERANGE, "sample %u of row %u", i,
			    DCPK_SAMPLES(p)[i].row);
	return 0;
}

static int
room_for_results(struct dcpk_ctx *c, const struct dcpk_plan *p)
{
	uint32_t i, n = 0;
	void *v;

	if (p->n_samples > c->out_cap) {
		v = realloc(c->out, p->n_samples * sizeof *c->out);
		if (v == NULL)
			return -ENOMEM;
		c->out = v;
		v = realloc(c->top_at, p->n_samples * sizeof *c->top_at);
		if (v == NULL)
			return -ENOMEM;
		c->top_at = v;
		c->out_cap = p->n_samples;
	}
	for (i = 0; i < p->n_samples; i++) {
		c->top_at[i] = n;
		n += DCPK_SAMPLES(p)[i].n_top;
	}
	c->n_top = n;
	if (n > c->top_cap) {
		v = realloc(c->top, n * sizeof *c->top);
		if (v == NULL)
			return -ENOMEM;
		c->top = v;
		c->top_cap = n;
	}
	return 0;
}

static int
cpu_step_begin(struct dcpk_ctx *c, const struct dcpk_plan *p,
    struct dcpk_err *err)
{
	int rc = check_plan(c, p, err);

	if (rc != 0)
		return rc;
	rc = room_for_results(c, p);
	if (rc != 0)
		return fail(err, rc, "out of memory for results");
	c->plan = p;
	c->rows = p->n_rows;
	c->prefill = p->pass == DCPK_PREFILL;
	c->gathered = c->prefill && c->D > 1 &&
	    (c->s.topo.cp > 1 || p->way != DCPK_WAY_Q);
	c->gather_layer = UINT32_MAX;
	return 0;
}

static int
cpu_step_end(struct dcpk_ctx *c, struct dcpk_result *r)
{
	uint32_t n = c->plan->n_samples;

	if (n > r->out_cap || c->n_top > r->top_cap)
		return -ENOSPC;
	if (n != 0)
		memcpy(r->out, c->out, n * sizeof *r->out);
	if (c->n_top != 0)
		memcpy(r->top, c->top, c->n_top * sizeof *r->top);
	return 0;
}

/* --- peek and check ---------------------------------------------------- */

static int64_t
copy_out(void *buf, size_t cap, const void *src, size_t n)
{
	if (n > cap)
		return -ENOSPC;
	memcpy(buf, src, n);
	return (int64_t)n;
}

static int
by_position(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static int64_t
cpu_peek(struct dcpk_ctx *c, enum dcpk_peek what, uint32_t layer,
    uint32_t rank, uint32_t row, void *buf, size_t cap)
{
	size_t at;
	float *scales;
	uint8_t *keys;

	if (layer >= c->s.model.layers || rank >= c->W)
		return -EINVAL;
	switch (what) {
	case DCPK_PEEK_LOGITS:
		if (c->plan == NULL || c->plan->n_samples > c->cap_samples)
			return -EINVAL;
		return copy_out(buf, cap, c->logits, sizeof(float) *
		    c->plan->n_samples * c->s.model.vocab);
	case DCPK_PEEK_SELECT:
		if (c->keep == NULL || row >= c->rows)
			return -EINVAL;
		at = (size_t)layer * c->M + row;
		/* Kept rank by rank; ascending is what was promised. */
		qsort(c->keep + at * c->s.model.topk, c->keep_n[at],
		    sizeof(uint32_t), by_position);
		return copy_out(buf, cap, c->keep + at * c->s.model.topk,
		    c->keep_n[at] * sizeof(uint32_t));
	case DCPK_PEEK_POOL_ROW:
		if (row >= c->pool_rows)
			return -EINVAL;
		return copy_out(buf, cap, dcpc_pool_rows(c, rank, layer) +
		    (size_t)row * c->row_bytes, c->row_bytes);
	case DCPK_PEEK_INDEX_ROW:
		if (row >= c->pool_rows || !c->s.model.full[layer] ||
		    cap < c->key_bytes + 4)
			return -EINVAL;
		keys = dcpc_pool_keys(c, rank, layer, &scales);
		memcpy(buf, keys + (size_t)row * c->key_bytes, c->key_bytes);
		if (scales == NULL)
			return c->key_bytes;
		memcpy((char *)buf + c->key_bytes, &scales[row], 4);
		return c->key_bytes + 4;
	case DCPK_PEEK_GATHERED_ROW:
		if (layer != c->gather_layer || row >= c->s.max_ctx)
			return -EINVAL;
		return copy_out(buf, cap, c->gather +
		    (size_t)row * c->row_bytes, c->row_bytes);
	}
	return -EINVAL;
}

static bool
guard_ok(const void *pool, size_t bytes)
{
	const uint8_t *lo = (const uint8_t *)pool - GUARD;
	const uint8_t *hi = (const uint8_t *)pool + bytes;
	size_t i;

	for (i = 0; i < GUARD; i++)
		if (lo[i] != GUARD_BYTE || hi[i] != GUARD_BYTE)
			return false;
	return true;
}

static int
cpu_check(struct dcpk_ctx *c, struct dcpk_err *err)
{
	uint32_t r;

	if ((c->s.flags & DCPK_GUARD) == 0)
		return 0;
	for (r = 0; r < c->W; r++)
		if (!guard_ok(c->pool[r].rows, rows_bytes(c)) ||
		    !guard_ok(c->pool[r].index, keys_bytes(c)) ||
		    (c->pool[r].scales != NULL &&
		     !guard_ok(c->pool[r].scales, scales_bytes(c))))
			return fail(err, -EFAULT,
			    "rank %u: guard bytes of a pool were written", r);
	return 0;
}

static void
cpu_waits(struct dcpk_ctx *c, char *buf, size_t cap)
{
	dcpc_workers_waits(c->workers, buf, cap);
}

const struct dcpk_backend dcpk_cpu = {
	.abi = DCPK_ABI,
	.size = sizeof(struct dcpk_backend),
	.name = "cpu",
	.bytes = cpu_bytes,
	.open = cpu_open,
	.load = dcpc_load,
	.ready = dcpc_ready,
	.actual = cpu_actual,
	.measure = dcpc_measure,
	.step_begin = cpu_step_begin,
	.embed = dcpc_embed,
	.attn_in = dcpc_attn_in,
	.select = dcpc_select,
	.attend_merge = dcpc_attend_merge,
	.attn_out = dcpc_attn_out,
	.ffn = dcpc_ffn,
	.head = dcpc_head,
	.sample = dcpc_sample_op,
	.step_end = cpu_step_end,
	.move = dcpc_move,
	.peek = cpu_peek,
	.check = cpu_check,
	.waits = cpu_waits,
	.close = cpu_close,
};
