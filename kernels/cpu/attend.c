/*
 * Sparse attention over the selected rows, the merge by LSE, and the way back
 * to the residual stream.
 *
 * Where the work is done (doc/design.md 3):
 * - from pools: each rank of a DCP group attends to its own tokens with all
 *   heads of the group (q is gathered: on the CPU a phase boundary), then the
 *   partial outputs are merged in rank order. Decode, prefill by `q`, D = 1.
 * - from a gather buffer: the request's rows are copied together in order of
 *   position. Prefill by `kv`: each rank attends with its own heads; by `a2a`:
 *   each rank takes a share of the query rows with all heads of the group.
 *   CP prefill: the rank that owns the row attends with all its heads.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/ctx.h"

struct att {
	struct dcpk_ctx *c;
	uint32_t layer, req, row0, rows;
};

static struct dcpc_rows
rows_of(const struct dcpk_ctx *c, const void *data)
{
	return (struct dcpc_rows){ data, c->s.kv, c->s.model.kv_lora,
		c->s.model.rope };
}

/* Attend with heads first..first+n of row i over a list into o and lse. */
static void
attend(struct dcpk_ctx *c, uint32_t thread, uint32_t i, uint32_t first,
    uint32_t n, const struct dcpc_rows *rows, const uint32_t *list,
    uint32_t count, float *o, float *lse)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t ld = m->kv_lora + m->rope;

	c->p->attend(o, lse, c->ql + ((size_t)i * m->heads + first) * ld, n,
	    rows, list, count, m->attn_scale, c->thread[thread].attend);
}

static float *
out_of(struct dcpk_ctx *c, uint32_t i, uint32_t head)
{
	return c->o + ((size_t)i * c->s.model.heads + head) *
	    c->s.model.kv_lora;
}

/* --- from the pools ---------------------------------------------------- */

/* Partial of `rank` for row i: group heads one after another. */
static float *
part_o(struct dcpk_ctx *c, uint32_t i, uint32_t rank)
{
	uint32_t Hg = c->group[0].heads;

	return c->po + ((size_t)i * c->W + rank) * Hg * c->s.model.kv_lora;
}

static float *
part_lse(struct dcpk_ctx *c, uint32_t i, uint32_t rank)
{
	return c->plse + ((size_t)i * c->W + rank) * c->group[0].heads;
}

/*
 * Heads first.. of a partial that `rank` computed, as the ranks that own them
 * receive them. Its own heads are not sent.
 */
static void
send_heads(const struct dcpk_ctx *c, uint32_t rank, struct dcpc_range hr,
    float *o)
{
	const struct dcpk_topo *t = &c->s.topo;
	uint32_t n = c->s.model.kv_lora, h;
	struct dcpk_heads own = dcpk_decode_heads(rank, c->s.model.heads,
	    t->attn_tp, t->cp);

	for (h = 0; h < hr.n; h++, o += n)
		if (hr.first + h - own.first >= own.n)
			dcpc_wire_round(o, n, c->s.wire);
}

/* One rank, one row (row0 + task / W) of the block. */
static void
attend_shard(void *arg, uint32_t task, uint32_t thread)
{
	struct att *a = arg;
	struct dcpk_ctx *c = a->c;
	uint32_t b = task / c->W, rank = task % c->W, i = a->row0 + b;
	uint32_t r = rank % c->D, at = 0, j, h = 0;
	const struct dcpc_group *g = &c->group[rank / c->D];
	const uint32_t *count = c->count + (size_t)i * c->D;
	const uint32_t *list = c->list + (size_t)i * c->s.model.topk;
	struct dcpc_rows rows = rows_of(c, dcpc_pool_rows(c, rank, a->layer));
	float lse[1024];

	for (j = 0; j < r; j++)
		at += count[j];
	for (j = 0; j < g->n_ranges; j++) {
		struct dcpc_range hr = g->range[j];

		if (c->D == 1) {
			attend(c, thread, i, hr.first, hr.n, &rows, list,
			    count[0], out_of(c, i, hr.first), lse);
		} else {
			float *o = part_o(c, b, rank) +
			    (size_t)h * c->s.model.kv_lora;

			attend(c, thread, i, hr.first, hr.n, &rows, list + at,
			    count[r], o, part_lse(c, b, rank) + h);
			send_heads(c, rank, hr, o);
		}
		h += hr.n;
	}
}

static void
merge_group(void *arg, uint32_t task, uint32_t thread)
{
	struct att *a = arg;
	struct dcpk_ctx *c = a->c;
	uint32_t b = task / c->groups, gi = task % c->groups, r, j, h = 0;
	const struct dcpc_group *g = &c->group[gi];
	const float *po[DCPK_MAX_RANKS], *pl[DCPK_MAX_RANKS];
	float lse[1024];

	for (j = 0; j < g->n_ranges; j++) {
		struct dcpc_range hr = g->range[j];

		for (r = 0; r < c->D; r++) {
			po[r] = part_o(c, b, gi * c->D + r) +
			    (size_t)h * c->s.model.kv_lora;
			pl[r] = part_lse(c, b, gi * c->D + r) + h;
		}
		dcpc_merge(out_of(c, a->row0 + b, hr.first), lse, po, pl,
		    c->D, hr.n, c->s.model.kv_lora);
		h += hr.n;
	}
}

static void
from_pools(struct dcpk_ctx *c, uint32_t layer)
{
	struct att a = { .c = c, .layer = layer };
	uint32_t step = c->D == 1 ? c->rows : c->po_rows;

	for (a.row0 = 0; a.row0 < c->rows; a.row0 += step) {
		a.rows = c->rows - a.row0 < step ? c->rows - a.row0 : step;
		dcpc_workers_run(c->workers, a.rows * c->W, attend_shard, &a);
		if (c->D > 1)
			dcpc_workers_run(c->workers, a.rows * c->groups,
			    merge_group, &a);
	}
}

/* --- from a gather buffer ---------------------------------------------- */

/* The rows of one logical page, as bytes, from the ranks of group 0. */
static void
gather_page(void *arg, uint32_t page, uint32_t thread)
{
	struct att *a = arg;
	struct dcpk_ctx *c = a->c;
	const struct dcpk_req *rq = &DCPK_REQS(c->plan)[a->req];
	uint32_t id = DCPK_PAGES(c->plan)[rq->page0 + page];
	uint32_t pos = page * DCPK_PAGE, end = rq->prefix + rq->rows;

	if (end > pos + DCPK_PAGE)
		end = pos + DCPK_PAGE;
	for (; pos < end; pos++)
		memcpy(c->gather + (size_t)pos * c->row_bytes,
		    dcpc_pool_rows(c, pos % c->D, a->layer) +
		    (size_t)dcpk_pool_row(id, pos, c->D) * c->row_bytes,
		    c->row_bytes);
}

/*
 * One (row, rank) of the request. CP: the row's owner, which has the heads of
 * its attn_tp slice, so a row has attn_tp tasks. kv: W ranks, own heads each.
 * a2a: one task, all heads of the group (groups are the same rows' replicas).
 */
static void
attend_gathered(void *arg, uint32_t task, uint32_t thread)
{
	struct att *a = arg;
	struct dcpk_ctx *c = a->c;
	const struct dcpk_req *rq = &DCPK_REQS(c->plan)[a->req];
	struct dcpc_rows rows = rows_of(c, c->gather);
	uint32_t per = a->rows, i = rq->row0 + task / per, u = task % per, j;
	const uint32_t *list = c->list + (size_t)i * c->s.model.topk;
	uint32_t n = c->count[(size_t)i * c->D];
	float lse[1024];

	if (c->s.topo.cp > 1 || c->plan->way == DCPK_WAY_KV) {
		struct dcpk_heads h = dcpk_prefill_heads(u,
		    c->s.model.heads, c->s.topo.attn_tp);

		attend(c, thread, i, h.first, h.n, &rows, list, n,
		    out_of(c, i, h.first), lse);
		return;
	}
	for (j = 0; j < c->group[u].n_ranges; j++) {
		struct dcpc_range h = c->group[u].range[j];

		attend(c, thread, i, h.first, h.n, &rows, list, n,
		    out_of(c, i, h.first), lse);
	}
}

static void
from_gathered(struct dcpk_ctx *c, uint32_t layer)
{
	struct att a = { .c = c, .layer = layer };
	const struct dcpk_req *rq = DCPK_REQS(c->plan);

	/* a.rows: tasks per row */
	a.rows = c->s.topo.cp > 1 || c->plan->way == DCPK_WAY_KV ?
	    c->s.topo.attn_tp : c->groups;
	for (a.req = 0; a.req < c->plan->n_reqs; a.req++) {
		uint32_t len = rq[a.req].prefix + rq[a.req].rows;

		dcpc_workers_run(c->workers,
		    (len + DCPK_PAGE - 1) / DCPK_PAGE, gather_page, &a);
		dcpc_workers_run(c->workers, rq[a.req].rows * a.rows,
		    attend_gathered, &a);
	}
	c->gather_layer = layer;
}

/* CP prefill at D = 1: the owner has every row in its own pool. */
static void
attend_owner(void *arg, uint32_t task, uint32_t thread)
{
	struct att *a = arg;
	struct dcpk_ctx *c = a->c;
	const struct dcpk_topo *t = &c->s.topo;
	uint32_t i = task / t->attn_tp, u = task % t->attn_tp, owner;
	const struct dcpk_row *row = &DCPK_ROWS(c->plan)[i];
	const struct dcpk_req *rq = &DCPK_REQS(c->plan)[row->req];
	struct dcpk_heads h = dcpk_prefill_heads(u, c->s.model.heads,
	    t->attn_tp);
	struct dcpc_rows rows;
	float lse[1024];

	owner = dcpk_cp_owner(t->strategy, i - rq->row0, rq->rows,
	    rq->prefix, t->cp);
	rows = rows_of(c, dcpc_pool_rows(c, owner * t->attn_tp + u,
	    a->layer));
	attend(c, thread, i, h.first, h.n, &rows,
	    c->list + (size_t)i * c->s.model.topk, c->count[i],
	    out_of(c, i, h.first), lse);
}

int
dcpc_attend_merge(struct dcpk_ctx *c, uint32_t layer)
{
	struct att a = { .c = c, .layer = layer };

	if (c->gathered)
		from_gathered(c, layer);
	else if (c->prefill && c->s.topo.cp > 1)
		dcpc_workers_run(c->workers, c->rows * c->s.topo.attn_tp,
		    attend_owner, &a);
	else
		from_pools(c, layer);
	return 0;
}

/* --- back to the residual stream --------------------------------------- */

int
dcpc_attn_out(struct dcpk_ctx *c, uint32_t layer)
{
	const struct dcpk_model *m = &c->s.model;
	const struct dcpk_topo *t = &c->s.topo;
	struct dcpc_layer *l = &c->layer[layer];
	struct dcpc_prod p[1024];
	struct dcpc_part part[DCPK_MAX_RANKS];
	uint32_t h, r, n, per = m->heads / t->attn_tp;

	for (h = 0; h < m->heads; h++)
		p[h] = (struct dcpc_prod){ .w = &l->uv[h],
			.x = c->o + (size_t)h * m->kv_lora,
			.ldx = (size_t)m->heads * m->kv_lora,
			.y = c->ov + (size_t)h * m->vdim,
			.ldy = (size_t)m->heads * m->vdim, .m = c->rows };
	dcpc_products(c, p, m->heads);

	/*
	 * Sum over ranks in rank order: in decode (and TP) every rank has its
	 * decode heads, strided views of o_proj under CP; in CP prefill the
	 * rows' owner has its whole slice.
	 */
	n = c->prefill ? t->attn_tp : c->W;
	for (r = 0; r < n; r++) {
		struct dcpk_heads d = c->prefill ?
		    dcpk_prefill_heads(r, m->heads, t->attn_tp) :
		    dcpk_decode_heads(r, m->heads, t->attn_tp, t->cp);

		part[r] = (struct dcpc_part){ &l->o[r % t->attn_tp],
			d.first % per * m->vdim, d.n * m->vdim,
			d.first * m->vdim };
	}
	p[0] = (struct dcpc_prod){ .part = part, .parts = n, .x = c->ov,
		.ldx = (size_t)m->heads * m->vdim, .y = c->x,
		.ldy = m->hidden, .m = c->rows, .add = true };
	dcpc_products(c, p, 1);
	return 0;
}
