/*
 * Phases of matrix products: independent products are cut into tiles that the
 * workers take one by one. A product may be a sum over ranks (row-parallel
 * linear layers): its addends are added in rank order, which is the all-reduce.
 *
 * How a product is cut never changes a result: see the rule in prim.h.
 */
#include "config.h"

#include <string.h>

#include "kernels/cpu/ctx.h"

enum { MAX_TASKS = 2048, M_TILE = 48, ROW_TILE = 8 };

struct tile {
	const struct dcpc_prod *p;
	uint32_t m0, m1, n0, n1;
};

struct phase {
	struct dcpk_ctx *c;
	uint32_t n_tiles, row_tasks, rows, layer;
	dcpc_rows_fn *fn;
	struct tile tile[MAX_TASKS];
};

static uint32_t
prod_n(const struct dcpc_prod *p)
{
	return p->parts != 0 ? p->part[0].w->m.n : p->w->m.n;
}

static uint32_t
prod_k(const struct dcpc_prod *p)
{
	uint32_t i, k = 0;

	if (p->parts == 0)
		return p->w->m.k * (p->up != NULL ? 2 : 1);
	for (i = 0; i < p->parts; i++)
		k += p->part[i].k;
	return k;
}

/* x as the quantised product would see it; rows m0..m1 into scratch. */
static const float *
quantised(struct dcpk_ctx *c, const struct dcpc_w *w, const float *x,
    size_t *ldx, uint32_t m, uint32_t k, float *tmp)
{
	uint32_t i;

	for (i = 0; i < m; i++) {
		memcpy(tmp + (size_t)i * k, x + i * *ldx, k * sizeof *x);
		if (w->act == DCPC_ACT_BLOCK)
			dcpc_quant_act(tmp + (size_t)i * k, k, 128,
			    c->s.model.act_ue8m0);
		else
			dcpc_quant_act_static(tmp + (size_t)i * k, k,
			    w->act_scale);
	}
	*ldx = k;
	return tmp;
}

static void
one(struct dcpk_ctx *c, const struct dcpc_w *w, uint32_t k0, uint32_t k,
    const float *x, size_t ldx, float *y, size_t ldy, const struct tile *t,
    bool add, float *tmp)
{
	struct dcpc_mat m = w->m;
	uint32_t rows = t->m1 - t->m0;

	if (m.n == 0 || k == 0)
		return;
	m.data = (const char *)m.data + (size_t)k0 * (m.bf16 ? 2 : 4) *
	    (m.packed ? DCPC_PACK : 1);
	m.k = k;
	if (w->act != DCPC_ACT_NONE)
		x = quantised(c, w, x, &ldx, rows, k, tmp);
	c->p->gemm(y, ldy, x, ldx, rows, &m, t->n0, t->n1, add);
}

/* y = silu(x gate^T) * (x up^T) for one tile, row by row through scratch. */
static void
gate_up(struct dcpk_ctx *c, const struct tile *t, uint32_t thread)
{
	const struct dcpc_prod *p = t->p;
	float *tmp = c->thread[thread].x;
	float *up = c->thread[thread].packed;	/* idle in this phase */
	uint32_t n = t->n1 - t->n0, i, m0, m;
	struct tile u = *t;

	/* The scratch holds 16 rows of a tile's columns at most. */
	for (m0 = t->m0; m0 < t->m1; m0 += m) {
		m = t->m1 - m0 < 16 ? t->m1 - m0 : 16;
		u.m0 = m0;
		u.m1 = m0 + m;
		one(c, p->w, 0, p->w->m.k, p->x + m0 * p->ldx, p->ldx,
		    p->y + m0 * p->ldy, p->ldy, &u, false, tmp);
		/* columns n0..n1 land at up + n0 */
		one(c, p->up, 0, p->up->m.k, p->x + m0 * p->ldx, p->ldx,
		    up - t->n0, n, &u, false, tmp);
		for (i = 0; i < m; i++) {
			float *y = p->y + (m0 + i) * p->ldy + t->n0;

			c->p->silu_mul(y, y, up + (size_t)i * n, n);
		}
	}
}

static void
run_tile(void *arg, uint32_t task, uint32_t thread)
{
	struct phase *ph = arg;
	struct dcpk_ctx *c = ph->c;
	const struct dcpc_prod *p;
	const struct tile *t;
	float *tmp = c->thread[thread].x;
	uint32_t i, r0, r1;

	if (task < ph->row_tasks) {
		r0 = task * ROW_TILE;
		r1 = r0 + ROW_TILE < ph->rows ? r0 + ROW_TILE : ph->rows;
		ph->fn(c, r0, r1, ph->layer, thread);
		return;
	}
	t = &ph->tile[task - ph->row_tasks];
	p = t->p;
	if (p->up != NULL) {
		gate_up(c, t, thread);
	} else if (p->parts == 0) {
		one(c, p->w, 0, p->w->m.k, p->x + t->m0 * p->ldx, p->ldx,
		    p->y + t->m0 * p->ldy, p->ldy, t, p->add, tmp);
	} else {
		for (i = 0; i < p->parts; i++)
			one(c, p->part[i].w, p->part[i].k0, p->part[i].k,
			    p->x + t->m0 * p->ldx + p->part[i].xoff, p->ldx,
			    p->y + t->m0 * p->ldy, p->ldy, t,
			    p->add || i > 0, tmp);
	}
}

static void
flush(struct phase *ph)
{
	dcpc_workers_run(ph->c->workers, ph->row_tasks + ph->n_tiles, run_tile,
	    ph);
	ph->row_tasks = 0;
	ph->n_tiles = 0;
}

/* Cut one product so that a tile costs about `cost` multiply-adds. */
static void
cut(struct phase *ph, const struct dcpc_prod *p, uint64_t cost)
{
	uint32_t n = prod_n(p), k = prod_k(p), mt, nt, m0, n0, max_nt;

	if (n == 0 || p->m == 0)
		return;
	mt = p->m < M_TILE ? p->m : M_TILE;
	nt = (uint32_t)(cost / ((uint64_t)mt * (k ? k : 1)));
	/* gate_up's scratch: 16 rows of nt columns */
	max_nt = p->up != NULL ? 512 : n;
	nt = nt < 16 ? 16 : nt / 16 * 16;
	if (nt > max_nt)
		nt = max_nt;
	for (m0 = 0; m0 < p->m; m0 += mt)
		for (n0 = 0; n0 < n; n0 += nt) {
			if (ph->n_tiles == MAX_TASKS)
				flush(ph);
			ph->tile[ph->n_tiles++] = (struct tile){
				p, m0, m0 + mt < p->m ? m0 + mt : p->m,
				n0, n0 + nt < n ? n0 + nt : n };
		}
}

void
dcpc_rows_and_products(struct dcpk_ctx *c, uint32_t rows, dcpc_rows_fn *fn,
    uint32_t layer, const struct dcpc_prod *p, uint32_t n)
{
	struct phase ph;
	uint64_t total = 0, cost;
	uint32_t i;

	ph.c = c;
	ph.n_tiles = 0;
	ph.rows = rows;
	ph.fn = fn;
	ph.layer = layer;
	ph.row_tasks = (rows + ROW_TILE - 1) / ROW_TILE;
	for (i = 0; i < n; i++)
		total += (uint64_t)p[i].m * prod_n(&p[i]) * prod_k(&p[i]);
	/* A few tiles a thread; none so small that taking it costs more. */
	cost = total / (c->threads * 4u);
	if (cost < 32768)
		cost = 32768;
	if (cost > 8u << 20)
		cost = 8u << 20;
	for (i = 0; i < n; i++)
		cut(&ph, &p[i], cost);
	flush(&ph);
}

void
dcpc_products(struct dcpk_ctx *c, const struct dcpc_prod *p, uint32_t n)
{
	dcpc_rows_and_products(c, 0, NULL, 0, p, n);
}
