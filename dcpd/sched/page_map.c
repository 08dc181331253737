/*
 * Which request holds which page, for those who draw the pool. Any thread; the
 * lock is held while the page tables of running requests are read through, 4
 * bytes a page, and only when somebody asks.
 *
 * A large pool is shown by some of its pages: a cell stands for 2^k of them
 * and shows the one in its middle.
 */
#include "config.h"

#include "dcpd/sched/sched_i.h"

#define CELLS_MAX 1024u

/* What a cell shows; else the id of the request that holds the page. */
enum { CELL_FREE = 0, CELL_CACHED = -1, CELL_SHARED = -2, CELL_PINNED = -3 };

struct map {
	uint32_t step;			/* pages of a cell: 2^k */
	uint32_t n;			/* cells */
	json_int_t cell[CELLS_MAX];
};

static void
lay_out(struct map *m, uint32_t pages)
{
	m->step = 1;
	while (pages / m->step > CELLS_MAX)
		m->step *= 2;
	/* Cells whose middle there is. */
	m->n = (pages - m->step / 2 + m->step - 1) / m->step;
	if (m->n > CELLS_MAX)
		m->n = CELLS_MAX;
	for (uint32_t i = 0; i < m->n; i++)
		m->cell[i] = CELL_FREE;
}

/* Lock held. */
static void
mark_running(struct map *m, const struct req *r)
{
	for (uint32_t i = 0; i < r->n_pages; i++) {
		uint32_t id = r->pages[i], cell = id / m->step;

		if (id % m->step != m->step / 2 || cell >= m->n)
			continue;
		m->cell[cell] = m->cell[cell] == CELL_FREE ?
		    (json_int_t)r->sub->id : CELL_SHARED;
	}
}

/* Lock held. Who has a page that no request holds: a pin, else the cache. */
static void
mark_kept(struct map *m, const struct dcpd_sched *s)
{
	for (uint32_t i = 0; i < m->n; i++) {
		uint32_t id = i * m->step + m->step / 2;

		if (m->cell[i] == CELL_FREE &&
		    dcpd_pages_refs(s->pages, id) > 0)
			m->cell[i] = s->pin_refs[id] > 0 ? CELL_PINNED :
			    CELL_CACHED;
	}
}

json_t *
dcpd_sched_page_map(struct dcpd_sched *s)
{
	json_t *runs = json_array();
	struct map m;

	DCPD_CHECK(s, SCHED_MAGIC);
	lay_out(&m, s->c.engine->pages);
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->n_run; i++)
		mark_running(&m, s->run[i]);
	mark_kept(&m, s);
	pthread_mutex_unlock(&s->lock);

	for (uint32_t i = 0, end; i < m.n; i = end) {
		end = i + 1;
		while (end < m.n && m.cell[end] == m.cell[i])
			end++;
		json_array_append_new(runs, json_integer(m.cell[i]));
		json_array_append_new(runs, json_integer(end - i));
	}
	return json_pack("{s:I, s:I, s:I, s:o}",
	    "pages", (json_int_t)s->c.engine->pages,
	    "pages_per_cell", (json_int_t)m.step,
	    "cells", (json_int_t)m.n, "runs", runs);
}
