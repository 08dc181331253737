/*
 * Selection: which keys each query row attends to. The indexer's formulas are
 * in doc/model.md 1.4, the threshold's in doc/design.md 5.
 *
 * Decode: every rank scores its own keys; only sums of histograms and the
 * boundary bin cross ranks (dcpc_topk). Prefill: the index keys are gathered
 * and the query rows are split over all ranks, in every layout; no histogram
 * is exchanged.
 *
 * The result per row is a compact list and D counts. `gathered` passes: one
 * list of positions, ascending. Else: for each DCP rank, one after another,
 * its pool rows in ascending position. Layers with a shared index reuse it.
 */
#include "config.h"

#include <string.h>

#include "kernels/cpu/ctx.h"

struct sel {
	struct dcpk_ctx *c;
	uint32_t layer, req;
};

static const uint32_t *
table_of(const struct dcpk_ctx *c, const struct dcpk_row *row)
{
	return DCPK_PAGES(c->plan) + DCPK_REQS(c->plan)[row->req].page0;
}

static void
keep(struct dcpk_ctx *c, uint32_t layer, uint32_t i, uint32_t at,
    uint32_t pos)
{
	if (c->keep != NULL)
		c->keep[((size_t)layer * c->M + i) * c->s.model.topk + at] =
		    pos;
}

static void
keep_count(struct dcpk_ctx *c, uint32_t layer, uint32_t i, uint32_t n)
{
	if (c->keep_n != NULL)
		c->keep_n[(size_t)layer * c->M + i] = n;
}

/* Row i's winners, local indices of each rank, into its list and counts. */
static void
put_local(struct dcpk_ctx *c, uint32_t layer, uint32_t i,
    const uint32_t *const *local, const uint32_t *n)
{
	const struct dcpk_row *row = &DCPK_ROWS(c->plan)[i];
	const uint32_t *table = table_of(c, row);
	uint32_t R = c->page_rows, k = c->s.model.topk, r, j, at = 0;
	uint32_t *list = c->list + (size_t)i * k;

	for (r = 0; r < c->D; r++) {
		c->count[(size_t)i * c->D + r] = n[r];
		for (j = 0; j < n[r]; j++) {
			uint32_t x = local[r] ? local[r][j] : j;

			keep(c, layer, i, at, x * c->D + r);
			list[at++] = table[x / R] * R + x % R;
		}
	}
	keep_count(c, layer, i, at);
}

/* Everything is visible and selected: n <= k keys. */
static void
put_all(struct dcpk_ctx *c, uint32_t layer, uint32_t i)
{
	uint32_t n[DCPK_MAX_RANKS], r, len, p;
	const uint32_t *local[DCPK_MAX_RANKS] = { NULL };

	len = DCPK_ROWS(c->plan)[i].pos + 1;
	if (!c->gathered) {
		for (r = 0; r < c->D; r++)
			n[r] = dcpk_shard_len(len, r, c->D);
		put_local(c, layer, i, local, n);
		return;
	}
	for (p = 0; p < len; p++) {
		c->list[(size_t)i * c->s.model.topk + p] = p;
		keep(c, layer, i, p, p);
	}
	c->count[(size_t)i * c->D] = len;
	keep_count(c, layer, i, len);
}

static void
query(struct dcpk_ctx *c, uint32_t i, const float **q, const float **w)
{
	const struct dcpk_model *m = &c->s.model;

	*q = c->iq + (size_t)i * m->idx_heads * m->idx_dim;
	*w = c->iw + (size_t)i * m->idx_heads;
}

static struct dcpc_keys
keys_of(struct dcpk_ctx *c, uint32_t rank, uint32_t layer)
{
	struct dcpc_keys k = { .fmt = c->s.idx, .dim = c->s.model.idx_dim };
	float *scale;

	k.data = dcpc_pool_keys(c, rank, layer, &scale);
	k.scale = scale;
	return k;
}

/* --- decode ------------------------------------------------------------ */

enum { BLOCK = 1024 };	/* keys packed and scored at a time */

/* One rank scores its own keys for one row. */
static void
score_shard(void *arg, uint32_t task, uint32_t thread)
{
	struct sel *s = arg;
	struct dcpk_ctx *c = s->c;
	const struct dcpk_model *m = &c->s.model;
	uint32_t i = task / c->D, r = task % c->D, R = c->page_rows;
	const struct dcpk_row *row = &DCPK_ROWS(c->plan)[i];
	const uint32_t *table = table_of(c, row);
	uint32_t n = dcpk_shard_len(row->pos + 1, r, c->D), b, j, run;
	struct dcpc_keys keys = keys_of(c, r, s->layer);
	struct dcpc_thread *t = &c->thread[thread];
	float *out = c->scores + i * c->scores_ld + r * c->shard_ld;
	const float *q, *w;

	if (row->pos + 1 <= m->topk)
		return;
	query(c, i, &q, &w);
	for (b = 0; b < n; b += BLOCK) {
		uint32_t end = n - b < BLOCK ? n : b + BLOCK;

		for (j = b; j < end; j += run) {
			run = R - j % R;
			if (run > end - j)
				run = end - j;
			c->p->index_pack(t->packed, t->kscale, j - b, 1,
			    &keys, table[j / R] * R + j % R, run);
		}
		c->p->index_scores(out + b, q, w, m->idx_heads, m->idx_dim,
		    t->packed, t->kscale, end - b);
	}
}

static void
pick_row(void *arg, uint32_t i, uint32_t thread)
{
	struct sel *s = arg;
	struct dcpk_ctx *c = s->c;
	struct dcpc_thread *t = &c->thread[thread];
	uint32_t k = c->s.model.topk, r, len, at = 0;
	uint32_t n[DCPK_MAX_RANKS], count[DCPK_MAX_RANKS];
	const float *score[DCPK_MAX_RANKS];
	uint32_t *out[DCPK_MAX_RANKS];

	len = DCPK_ROWS(c->plan)[i].pos + 1;
	if (len <= k) {
		put_all(c, s->layer, i);
		return;
	}
	for (r = 0; r < c->D; r++) {
		n[r] = dcpk_shard_len(len, r, c->D);
		score[r] = c->scores + i * c->scores_ld + r * c->shard_ld;
		out[r] = t->list + at;
		at += n[r] < k ? n[r] : k;
	}
	dcpc_topk(score, n, c->D, k, out, count, t->topk);
	put_local(c, s->layer, i, (const uint32_t *const *)out, count);
}

/* --- prefill ----------------------------------------------------------- */

/* Gather the keys of one logical page from the ranks of group 0. */
static void
pack_page(void *arg, uint32_t page, uint32_t thread)
{
	struct sel *s = arg;
	struct dcpk_ctx *c = s->c;
	const struct dcpk_req *rq = &DCPK_REQS(c->plan)[s->req];
	uint32_t id = DCPK_PAGES(c->plan)[rq->page0 + page];
	uint32_t len = rq->prefix + rq->rows - page * DCPK_PAGE, r, n;
	struct dcpc_keys keys;

	if (len > DCPK_PAGE)
		len = DCPK_PAGE;
	for (r = 0; r < c->D; r++) {
		n = dcpk_shard_len(len, r, c->D);
		if (n == 0)
			continue;
		keys = keys_of(c, r, s->layer);
		c->p->index_pack(c->packed, c->kscale, page * DCPK_PAGE + r,
		    c->D, &keys, id * c->page_rows, n);
	}
}

static void
select_row(void *arg, uint32_t task, uint32_t thread)
{
	struct sel *s = arg;
	struct dcpk_ctx *c = s->c;
	const struct dcpk_model *m = &c->s.model;
	const struct dcpk_req *rq = &DCPK_REQS(c->plan)[s->req];
	struct dcpc_thread *t = &c->thread[thread];
	/* The longest rows first: the phase ends with small tasks. */
	uint32_t i = rq->row0 + rq->rows - 1 - task, k = m->topk, j, r;
	uint32_t len = DCPK_ROWS(c->plan)[i].pos + 1, n, at, cap;
	uint32_t *pos = t->list, *sorted[DCPK_MAX_RANKS];
	uint32_t count[DCPK_MAX_RANKS] = { 0 };
	const float *q, *w, *sc = t->scores;

	if (len <= k) {
		put_all(c, s->layer, i);
		return;
	}
	query(c, i, &q, &w);
	c->p->index_scores(t->scores, q, w, m->idx_heads, m->idx_dim,
	    c->packed, c->kscale, len);
	dcpc_topk(&sc, &len, 1, k, &pos, &n, t->topk);
	if (c->gathered) {
		memcpy(c->list + (size_t)i * k, pos, n * sizeof *pos);
		c->count[(size_t)i * c->D] = n;
		for (j = 0; j < n; j++)
			keep(c, s->layer, i, j, pos[j]);
		keep_count(c, s->layer, i, n);
		return;
	}
	/* Sort the positions by rank, each as a local index. */
	for (j = 0; j < n; j++)
		count[pos[j] % c->D]++;
	cap = n;
	for (r = 0, at = 0; r < c->D; r++) {
		sorted[r] = t->list + cap + at;
		at += count[r];
		count[r] = 0;
	}
	for (j = 0; j < n; j++) {
		r = pos[j] % c->D;
		sorted[r][count[r]++] = pos[j] / c->D;
	}
	put_local(c, s->layer, i, (const uint32_t *const *)sorted, count);
}

int
dcpc_select(struct dcpk_ctx *c, uint32_t layer)
{
	struct sel s = { c, layer, 0 };
	const struct dcpk_req *rq = DCPK_REQS(c->plan);
	uint32_t q, len;

	if (!c->prefill) {
		dcpc_workers_run(c->workers, c->rows * c->D, score_shard, &s);
		dcpc_workers_run(c->workers, c->rows, pick_row, &s);
		return 0;
	}
	for (q = 0; q < c->plan->n_reqs; q++) {
		s.req = q;
		len = rq[q].prefix + rq[q].rows;
		if (len > c->s.model.topk)
			dcpc_workers_run(c->workers,
			    (len + DCPK_PAGE - 1) / DCPK_PAGE, pack_page, &s);
		dcpc_workers_run(c->workers, rq[q].rows, select_row, &s);
	}
	return 0;
}
