/*
 * Pages of fwd's requests: handed out from a shuffled list, used again, sent
 * through host memory. One thread.
 */
#include <stdlib.h>

#include "tests/parity/fwd.h"

void
fwd_pages_shuffle(struct run *r)
{
	uint64_t x = 0x9e3779b97f4a7c15u * (r->j.seed + 1);

	r->free_pages = fwd_alloc(r->j.pages * sizeof(uint32_t));
	for (uint32_t i = 0; i < r->j.pages; i++)
		r->free_pages[i] = i;
	for (uint32_t i = r->j.pages; i > 1; i--) {
		uint32_t k, t;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		k = (uint32_t)(x % i);
		t = r->free_pages[i - 1];
		r->free_pages[i - 1] = r->free_pages[k];
		r->free_pages[k] = t;
	}
	r->n_free = r->j.pages;
}

/* The pages of the largest `batch` requests, when the job names no number. */
uint32_t
fwd_pages_wanted(const struct run *r)
{
	uint32_t most = 0, total = 0;

	for (uint32_t i = 0; i < r->n_seqs; i++) {
		total += r->seqs[i].n_own;
		if (r->seqs[i].n_own > most)
			most = r->seqs[i].n_own;
	}
	if (!r->j.keep_all_pages && total > most * r->j.batch)
		total = most * r->j.batch;
	return total + r->j.rehouse;
}

/* A stretched request has its prompt's pages again and again, then its own;
 * with `fill` it has pages of its own throughout. */
static void
pages_take(struct run *r, struct seq *s)
{
	uint32_t cycle = s->prompt / DCPK_PAGE;
	uint32_t from = r->j.fill ? 0 : r->j.stretch / DCPK_PAGE;

	for (uint32_t i = 0; i < s->n_pages; i++)
		s->pages[i] = from != 0 && i >= cycle && i < from ?
		    s->pages[i % cycle] : r->free_pages[--r->n_free];
}

void
fwd_admit(struct run *r)
{
	while (r->n_active < r->j.batch && r->next < r->n_seqs) {
		struct seq *s = &r->seqs[r->next];

		if (s->n_own > r->n_free)
			return;
		pages_take(r, s);
		r->active[r->n_active++] = s;
		r->next++;
	}
}

void
fwd_retire(struct run *r)
{
	uint32_t n = 0;

	for (uint32_t a = 0; a < r->n_active; a++) {
		struct seq *s = r->active[a];

		/* The last token's own row is never needed. */
		if (s->have < s->target || s->cached + 1 < s->target ||
		    s->cached < s->prompt) {
			r->active[n++] = s;
			continue;
		}
		for (uint32_t i = 0; !r->j.keep_all_pages &&
		    r->j.stretch == 0 && i < s->n_pages; i++)
			r->free_pages[r->n_free++] = s->pages[i];
	}
	r->n_active = n;
}

/*
 * Every page in use goes to host memory, and comes back as another: to the next
 * one's place, the first to that of a free page. Nothing else may change.
 */
int
fwd_rehouse(struct run *r, const struct dcpk_backend *be,
    struct dcpd_err *err)
{
	struct dcpk_move *m = fwd_alloc(r->j.pages * sizeof(*m));
	uint32_t n = 0, spare = r->free_pages[0], k = 0;
	struct dcpk_err ke = { "" };
	int rc = 0;

	for (uint32_t a = 0; a < r->n_active; a++)
		for (uint32_t i = 0; i < r->active[a]->n_pages; i++, n++)
			m[n] = (struct dcpk_move){ r->active[a]->pages[i],
			    r->j.pages - 1 - n };
	if (n > 0)
		rc = be->move(r->ctx, m, n, true, &ke);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t was = m[i].page;

		m[i].page = spare;
		spare = was;
	}
	if (n > 0 && rc == 0)
		rc = be->move(r->ctx, m, n, false, &ke);
	for (uint32_t a = 0; a < r->n_active; a++)
		for (uint32_t i = 0; i < r->active[a]->n_pages; i++)
			r->active[a]->pages[i] = m[k++].page;
	r->free_pages[0] = spare;
	free(m);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "move: %s", ke.text);
}
