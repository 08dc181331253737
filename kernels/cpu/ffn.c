/*
 * FFN: dense, or routed experts with shared experts (doc/model.md 1.6). Every
 * rank has a slice of every expert (tensor parallel over all W ranks); sums
 * over ranks are in rank order, a row's experts are added in ascending id.
 *
 * Rows are sorted by expert into slots, so that an expert is one product.
 */
#include "config.h"

#include <string.h>

#include "kernels/cpu/ctx.h"

static void
norm_ffn(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	struct dcpc_layer *l = &c->layer[layer];
	float *logits = c->thread[thread].route, *tmp = logits + 8 * m->experts;
	uint32_t i;

	for (i = r0; i < r1; i++)
		c->p->rmsnorm(c->h + (size_t)i * m->hidden,
		    c->x + (size_t)i * m->hidden, l->post_norm, m->hidden,
		    m->eps);
	if (!m->sparse[layer])
		return;
	c->p->gemm(logits, m->experts, c->h + (size_t)r0 * m->hidden,
	    m->hidden, r1 - r0, &l->router.m, 0, m->experts, false);
	for (i = r0; i < r1; i++)
		dcpc_route(c->eid + (size_t)i * m->experts_tok,
		    c->ew + (size_t)i * m->experts_tok,
		    logits + (size_t)(i - r0) * m->experts, l->router_bias, m,
		    tmp);
}

/* First output column of rank r's slice of a gate or up projection. */
static uint32_t
first_col(const struct dcpc_w *w, uint32_t r)
{
	uint32_t i, n = 0;

	for (i = 0; i < r; i++)
		n += w[i].m.n;
	return n;
}

/* gate and up of one FFN: a product per rank, each into its own columns. */
static uint32_t
gate_up(struct dcpk_ctx *c, struct dcpc_prod *p, const struct dcpc_w *gate,
    const struct dcpc_w *up, const float *x, float *y, size_t ldy, uint32_t m)
{
	uint32_t r, n = 0;

	for (r = 0; r < c->W; r++) {
		if (gate[r].m.n == 0)
			continue;
		p[n++] = (struct dcpc_prod){ .w = &gate[r], .up = &up[r],
			.x = x, .ldx = c->s.model.hidden,
			.y = y + first_col(gate, r), .ldy = ldy, .m = m };
	}
	return n;
}

/* down: the sum over ranks, each with its own columns of x. */
static struct dcpc_prod
down(struct dcpk_ctx *c, struct dcpc_part *part, const struct dcpc_w *gate,
    const struct dcpc_w *w, const float *x, size_t ldx, float *y, uint32_t m,
    bool add)
{
	uint32_t r, n = 0;

	for (r = 0; r < c->W; r++) {
		if (w[r].m.k == 0)
			continue;
		part[n++] = (struct dcpc_part){ &w[r], 0, w[r].m.k,
			first_col(gate, r) };
	}
	return (struct dcpc_prod){ .part = part, .parts = n, .x = x,
		.ldx = ldx, .y = y, .ldy = c->s.model.hidden, .m = m,
		.add = add };
}

/* Sort (row, k) by expert: slot numbers, and each expert's first slot. */
static void
sort_rows(struct dcpk_ctx *c)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t n = c->rows * m->experts_tok, e, i, at = 0, cnt;
	uint32_t *first = c->eslot0;

	memset(first, 0, (m->experts + 1) * sizeof *first);
	for (i = 0; i < n; i++)
		first[c->eid[i]]++;
	for (e = 0; e <= m->experts; e++) {
		cnt = first[e];
		first[e] = at;
		at += cnt;
	}
	for (i = 0; i < n; i++)
		c->slot[i] = first[c->eid[i]]++;
	for (e = m->experts; e > 0; e--)
		first[e] = first[e - 1];
	first[0] = 0;
}

static void
scatter(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t i, k, K = m->experts_tok;

	for (i = r0; i < r1; i++)
		for (k = 0; k < K; k++)
			memcpy(c->ex + (size_t)c->slot[i * K + k] * m->hidden,
			    c->h + (size_t)i * m->hidden,
			    m->hidden * sizeof *c->ex);
}

static void
combine(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t i, j, k, best, K = m->experts_tok;
	int64_t last;
	float *x;

	for (i = r0; i < r1; i++) {
		const uint32_t *id = c->eid + (size_t)i * K;

		x = c->x + (size_t)i * m->hidden;
		for (k = 0, last = -1; k < K; k++, last = id[best]) {
			for (j = 0, best = K; j < K; j++)
				if (id[j] > last && (best == K ||
				    id[j] < id[best]))
					best = j;
			c->p->axpy(x, c->ew[(size_t)i * K + best], c->ey +
			    (size_t)c->slot[i * K + best] * m->hidden,
			    m->hidden);
		}
		if (m->shared_experts != 0)
			c->p->axpy(x, 1, c->ys + (size_t)i * m->hidden,
			    m->hidden);
	}
}

static int
dense(struct dcpk_ctx *c, struct dcpc_layer *l)
{
	const struct dcpk_model *m = &c->s.model;
	struct dcpc_part part[DCPK_MAX_RANKS];
	struct dcpc_prod p[DCPK_MAX_RANKS];
	uint32_t n;

	n = gate_up(c, p, l->gate, l->up, c->h, c->act, m->inter, c->rows);
	dcpc_products(c, p, n);
	p[0] = down(c, part, l->gate, l->down, c->act, m->inter, c->x,
	    c->rows, true);
	dcpc_products(c, p, 1);
	return 0;
}

static int
sparse(struct dcpk_ctx *c, struct dcpc_layer *l, uint32_t layer)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t W = c->W, e, n = 0, cnt, si = m->moe_inter * m->shared_experts;
	struct dcpc_prod *p = c->prods;
	struct dcpc_part *part = c->parts;

	sort_rows(c);
	dcpc_rows_and_products(c, c->rows, scatter, layer, NULL, 0);
	for (e = 0; e < m->experts; e++) {
		cnt = c->eslot0[e + 1] - c->eslot0[e];
		if (cnt != 0)
			n += gate_up(c, p + n, l->e_gate + (size_t)e * W,
			    l->e_up + (size_t)e * W, c->ex +
			    (size_t)c->eslot0[e] * m->hidden, c->eact +
			    (size_t)c->eslot0[e] * m->moe_inter,
			    m->moe_inter, cnt);
	}
	if (si != 0)
		n += gate_up(c, p + n, l->s_gate, l->s_up, c->h, c->sact, si,
		    c->rows);
	dcpc_products(c, p, n);

	n = 0;
	for (e = 0; e < m->experts; e++) {
		cnt = c->eslot0[e + 1] - c->eslot0[e];
		if (cnt == 0)
			continue;
		p[n] = down(c, part + (size_t)n * W, l->e_gate + (size_t)e * W,
		    l->e_down + (size_t)e * W, c->eact +
		    (size_t)c->eslot0[e] * m->moe_inter, m->moe_inter, c->ey +
		    (size_t)c->eslot0[e] * m->hidden, cnt, false);
		n++;
	}
	if (si != 0) {
		p[n] = down(c, part + (size_t)n * W, l->s_gate, l->s_down,
		    c->sact, si, c->ys, c->rows, false);
		n++;
	}
	dcpc_products(c, p, n);
	dcpc_rows_and_products(c, c->rows, combine, layer, NULL, 0);
	return 0;
}

int
dcpc_ffn(struct dcpk_ctx *c, uint32_t layer)
{
	struct dcpc_layer *l = &c->layer[layer];

	dcpc_rows_and_products(c, c->rows, norm_ffn, layer, NULL, 0);
	return c->s.model.sparse[layer] ? sparse(c, l, layer) : dense(c, l);
}
