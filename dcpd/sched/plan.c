/*
 * Building and checking plans. The builder keeps one growing array per kind
 * and copies them behind a header at the end: a plan is a few kilobytes, a
 * step is milliseconds. Step thread only; the check may run anywhere.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/sched/plan.h"

#define ALIGN 16u

/* Room for n more elements of *v; sizes stay below 4 GiB. */
static int
room(void *v, uint32_t have, uint32_t n, uint32_t *cap, size_t elem)
{
	void **vp = v, *p;
	uint64_t want = (uint64_t)have + n, c = *cap;

	if (want <= c)
		return 0;
	while (c < want)
		c = c == 0 ? 64 : 2 * c;
	if (c * elem > UINT32_MAX / 2)
		return -ENOMEM;
	p = realloc(*vp, c * elem);
	if (p == NULL)
		return -ENOMEM;
	*vp = p;
	*cap = (uint32_t)c;
	return 0;
}

#define ROOM(b, what, n) \
	room(&(b)->what, (b)->n_##what, (n), &(b)->cap_##what, \
	    sizeof *(b)->what)

void
dcpd_planb_free(struct dcpd_planb *b)
{
	free(b->rows);
	free(b->reqs);
	free(b->pages);
	free(b->samples);
	free(b->adjusts);
	free(b->masks);
	free(b->buf);
	memset(b, 0, sizeof *b);
}

void
dcpd_planb_clear(struct dcpd_planb *b)
{
	b->n_rows = b->n_reqs = b->n_pages = b->n_samples = b->n_adjusts = 0;
	b->n_masks = 0;
	b->n_top = 0;
}

int
dcpd_planb_req(struct dcpd_planb *b, const uint32_t *table, uint32_t prefix,
    const uint32_t *tokens, uint32_t n)
{
	uint32_t pages = (prefix + n - 1) / DCPK_PAGE + 1;

	DCPD_ASSERT(n > 0);
	if (ROOM(b, reqs, 1) != 0 || ROOM(b, rows, n) != 0 ||
	    ROOM(b, pages, pages) != 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		b->rows[b->n_rows + i] = (struct dcpk_row){
			.req = b->n_reqs, .pos = prefix + i,
			.token = tokens[i],
			.page = table[(prefix + i) / DCPK_PAGE],
		};
	memcpy(b->pages + b->n_pages, table, pages * sizeof *table);
	b->reqs[b->n_reqs] = (struct dcpk_req){
		.row0 = b->n_rows, .rows = n, .page0 = b->n_pages,
		.pages = pages, .prefix = prefix,
	};
	b->n_reqs++;
	b->n_rows += n;
	b->n_pages += pages;
	return 0;
}

struct dcpk_sample *
dcpd_planb_sample(struct dcpd_planb *b, uint32_t i, uint32_t adjs,
    struct dcpk_adjust **adj)
{
	const struct dcpk_req *req;
	struct dcpk_sample *s;

	DCPD_ASSERT(b->n_reqs > 0);
	req = &b->reqs[b->n_reqs - 1];
	DCPD_ASSERT(i < req->rows);
	if (ROOM(b, samples, 1) != 0 || ROOM(b, adjusts, adjs) != 0)
		return NULL;
	s = &b->samples[b->n_samples++];
	memset(s, 0, sizeof *s);
	s->row = req->row0 + i;
	s->adj0 = b->n_adjusts;
	s->adjs = adjs;
	b->n_adjusts += adjs;
	if (adj != NULL)
		*adj = b->adjusts + s->adj0;
	return s;
}

int
dcpd_planb_mask(struct dcpd_planb *b, struct dcpk_sample *s,
    const uint32_t *bits, uint32_t words)
{
	if (ROOM(b, masks, words) != 0)
		return -ENOMEM;
	memcpy(b->masks + b->n_masks, bits, words * sizeof *bits);
	s->flags |= DCPK_S_MASK;
	s->mask = b->n_masks;
	b->n_masks += words;
	b->mask_words = words;
	return 0;
}

/* Reserve bytes at the end of the plan; returns their offset. */
static uint32_t
place(uint64_t *end, uint64_t bytes)
{
	uint64_t off = (*end + ALIGN - 1) / ALIGN * ALIGN;

	*end = off + bytes;
	return (uint32_t)off;
}

/* A plan without elements of a kind has no array to copy from. */
static void
put(char *buf, uint32_t off, const void *v, size_t bytes)
{
	if (bytes > 0)
		memcpy(buf + off, v, bytes);
}

struct dcpk_plan *
dcpd_planb_finish(struct dcpd_planb *b, enum dcpk_pass pass, uint64_t step)
{
	struct dcpk_plan h = {
		.magic = DCPK_PLAN_MAGIC, .version = DCPK_PLAN_VERSION,
		.pass = pass, .way = DCPK_WAY_KV, .step = step,
		.n_rows = b->n_rows, .n_reqs = b->n_reqs,
		.n_pages = b->n_pages, .n_samples = b->n_samples,
		.n_adjusts = b->n_adjusts,
		.n_mask = b->n_masks == 0 ? 0 : b->n_masks / b->mask_words,
	};
	uint64_t end = sizeof h;
	char *p;

#define BYTES(what) ((size_t)b->n_##what * sizeof *b->what)
	h.rows_off = place(&end, BYTES(rows));
	h.reqs_off = place(&end, BYTES(reqs));
	h.pages_off = place(&end, BYTES(pages));
	h.samples_off = place(&end, BYTES(samples));
	h.adjusts_off = place(&end, BYTES(adjusts));
	h.mask_off = place(&end, BYTES(masks));
	end = (end + ALIGN - 1) / ALIGN * ALIGN;
	if (end > UINT32_MAX)
		return NULL;
	h.bytes = (uint32_t)end;
	if (end > b->cap_buf) {
		p = realloc(b->buf, end * 2);
		if (p == NULL)
			return NULL;
		b->buf = p;
		b->cap_buf = end * 2;
	}
	memset(b->buf, 0, end);
	memcpy(b->buf, &h, sizeof h);
	put(b->buf, h.rows_off, b->rows, BYTES(rows));
	put(b->buf, h.reqs_off, b->reqs, BYTES(reqs));
	put(b->buf, h.pages_off, b->pages, BYTES(pages));
	put(b->buf, h.samples_off, b->samples, BYTES(samples));
	put(b->buf, h.adjusts_off, b->adjusts, BYTES(adjusts));
	put(b->buf, h.mask_off, b->masks, BYTES(masks));
#undef BYTES
	return (struct dcpk_plan *)(void *)b->buf;
}

/* --- checking ---------------------------------------------------------- */

static bool
inside(const struct dcpk_plan *p, uint32_t off, uint32_t n, size_t elem)
{
	return off % ALIGN == 0 && off >= sizeof *p && off <= p->bytes &&
	    n <= (p->bytes - off) / elem;
}

static int
check_reqs(const struct dcpk_plan *p, const struct dcpd_plan_limits *l,
    struct dcpd_err *err)
{
	const struct dcpk_req *q = DCPK_REQS(p);
	const uint32_t *pages = DCPK_PAGES(p);
	uint32_t row = 0;

	for (uint32_t i = 0; i < p->n_reqs; i++, q++) {
		uint64_t len = (uint64_t)q->prefix + q->rows;

		if (q->rows == 0 || q->row0 != row ||
		    q->rows > p->n_rows - row)
			return dcpd_fail(err, -EINVAL, "plan: request %u has "
			    "rows %u+%u, its first must be %u of %u", i,
			    q->row0, q->rows, row, p->n_rows);
		if (len > l->max_ctx)
			return dcpd_fail(err, -EINVAL, "plan: request %u ends "
			    "at %llu, the context at %u", i,
			    (unsigned long long)len, l->max_ctx);
		if (q->page0 > p->n_pages || q->pages > p->n_pages - q->page0 ||
		    q->pages < dcpd_div_up(len, DCPK_PAGE))
			return dcpd_fail(err, -EINVAL, "plan: request %u has "
			    "pages %u+%u of %u for %llu tokens", i, q->page0,
			    q->pages, p->n_pages, (unsigned long long)len);
		for (uint32_t k = 0; k < q->pages; k++)
			if (pages[q->page0 + k] >= l->pages)
				return dcpd_fail(err, -EINVAL, "plan: request "
				    "%u: page id %u of %u", i,
				    pages[q->page0 + k], l->pages);
		row += q->rows;
	}
	if (row != p->n_rows)
		return dcpd_fail(err, -EINVAL, "plan: %u rows belong to no "
		    "request", p->n_rows - row);
	return 0;
}

static int
check_rows(const struct dcpk_plan *p, const struct dcpd_plan_limits *l,
    struct dcpd_err *err)
{
	const struct dcpk_req *q = DCPK_REQS(p);
	const struct dcpk_row *r = DCPK_ROWS(p);
	const uint32_t *pages = DCPK_PAGES(p);
	uint32_t req = 0;

	for (uint32_t i = 0; i < p->n_rows; i++, r++) {
		if (i == q[req].row0 + q[req].rows)
			req++;
		if (r->req != req || r->token >= l->vocab ||
		    r->pos != q[req].prefix + (i - q[req].row0) ||
		    r->page != pages[q[req].page0 + r->pos / DCPK_PAGE])
			return dcpd_fail(err, -EINVAL, "plan: row %u is "
			    "(request %u, position %u, token %u, page %u), "
			    "request %u begins at row %u, position %u", i,
			    r->req, r->pos, r->token, r->page, req,
			    q[req].row0, q[req].prefix);
	}
	return 0;
}

static int
check_samples(const struct dcpk_plan *p, const struct dcpd_plan_limits *l,
    struct dcpd_err *err)
{
	const struct dcpk_sample *s = DCPK_SAMPLES(p);
	const struct dcpk_adjust *a = DCPK_ADJUSTS(p);
	uint32_t words = (l->vocab + 31) / 32;

	for (uint32_t i = 0; i < p->n_samples; i++, s++) {
		if ((s->flags & DCPK_S_MASK) && (s->mask % words != 0 ||
		    s->mask / words >= p->n_mask))
			return dcpd_fail(err, -EINVAL, "plan: sample %u: mask "
			    "at word %u of %u masks of %u words", i, s->mask,
			    p->n_mask, words);
		if (s->row >= p->n_rows || s->n_top > l->vocab ||
		    s->adj0 > p->n_adjusts || s->adjs > p->n_adjusts - s->adj0)
			return dcpd_fail(err, -EINVAL, "plan: sample %u: row "
			    "%u of %u, top %u, adjustments %u+%u of %u", i,
			    s->row, p->n_rows, s->n_top, s->adj0, s->adjs,
			    p->n_adjusts);
		if (i > 0 && s->row < s[-1].row)
			return dcpd_fail(err, -EINVAL, "plan: sample %u: row "
			    "%u after row %u", i, s->row, s[-1].row);
		if ((s->flags & DCPK_S_SCORE) ? s->given >= l->vocab :
		    !(s->flags & DCPK_S_GREEDY) &&
		    !(s->temperature > 0 && s->top_p > 0 && s->top_p <= 1 &&
		    s->min_p >= 0 && s->min_p <= 1 && s->repetition > 0))
			return dcpd_fail(err, -EINVAL, "plan: sample %u: "
			    "parameters out of range", i);
	}
	for (uint32_t i = 0; i < p->n_adjusts; i++)
		if (a[i].token >= l->vocab || isnan(a[i].bias))
			return dcpd_fail(err, -EINVAL, "plan: adjustment %u: "
			    "token %u, bias %g", i, a[i].token, a[i].bias);
	return 0;
}

int
dcpd_plan_check(const struct dcpk_plan *p, const struct dcpd_plan_limits *l,
    struct dcpd_err *err)
{
	int rc;

	if (p->magic != DCPK_PLAN_MAGIC || p->version != DCPK_PLAN_VERSION)
		return dcpd_fail(err, -EINVAL, "plan: magic %#x, version %u",
		    p->magic, p->version);
	if (!inside(p, p->rows_off, p->n_rows, sizeof(struct dcpk_row)) ||
	    !inside(p, p->reqs_off, p->n_reqs, sizeof(struct dcpk_req)) ||
	    !inside(p, p->pages_off, p->n_pages, sizeof(uint32_t)) ||
	    !inside(p, p->samples_off, p->n_samples,
	    sizeof(struct dcpk_sample)) ||
	    !inside(p, p->adjusts_off, p->n_adjusts,
	    sizeof(struct dcpk_adjust)) ||
	    !inside(p, p->mask_off, p->n_mask, (l->vocab + 31) / 32 * 4))
		return dcpd_fail(err, -EINVAL,
		    "plan: an array leaves its %u bytes", p->bytes);
	if (p->pass > DCPK_PREFILL || p->way > DCPK_WAY_A2A)
		return dcpd_fail(err, -EINVAL, "plan: pass %u, way %u",
		    p->pass, p->way);
	if (p->n_rows == 0 || p->n_rows > l->max_rows ||
	    p->n_reqs > l->max_reqs)
		return dcpd_fail(err, -EINVAL, "plan: %u rows of at most %u, "
		    "%u requests of at most %u", p->n_rows, l->max_rows,
		    p->n_reqs, l->max_reqs);
	rc = check_reqs(p, l, err);
	if (rc == 0)
		rc = check_rows(p, l, err);
	return rc == 0 ? check_samples(p, l, err) : rc;
}
