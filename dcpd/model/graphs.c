/*
 * Decode passes as they will come, once at start, so that a device that keeps
 * them as graphs has captured them before it serves: nobody waits for that
 * later, and what the graphs take stands beside what was planned. Main thread,
 * before the scheduler starts.
 *
 * Each row is a request of its own that decodes the last token of a long
 * context, all of it in the sink page, which no request reads.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/model/engine.h"
#include "dcpd/sched/plan.h"
#include "kernels/graphs.h"

/* Beyond, a pass may take seconds: such graphs are made when they come up. */
static bool
too_long(const struct dcpk_setup *s, uint32_t bound)
{
	return bound > (dcpk_fast_index(s) ? (uint64_t)DCPK_FAST_KEYS *
	    s->topo.dcp : 32768);
}

/* A pass of `rows` rows at the end of contexts of `bound` tokens, in b. */
static struct dcpk_plan *
build(struct dcpd_planb *b, const uint32_t *table, uint32_t rows,
    uint32_t bound)
{
	static const uint32_t token = 0;
	struct dcpk_sample *sample;
	uint32_t i;

	dcpd_planb_clear(b);
	for (i = 0; i < rows; i++) {
		if (dcpd_planb_req(b, table, bound - 1, &token, 1) != 0 ||
		    (sample = dcpd_planb_sample(b, 0, 0, NULL)) == NULL)
			return NULL;
		sample->flags = DCPK_S_GREEDY;
		sample->top_p = sample->repetition = 1;
	}
	return dcpd_planb_finish(b, DCPK_DECODE, 0);
}

/* The first time it runs as ever, the second it is captured. */
static int
run_twice(struct dcpd_model_engine *e, struct dcpd_planb *b,
    const uint32_t *table, uint32_t rows, uint32_t bound,
    struct dcpk_result *r, struct dcpd_err *err)
{
	const struct dcpk_plan *p = build(b, table, rows, bound);
	int rc = 0, i;

	if (p == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	for (i = 0; rc == 0 && i < 2; i++)
		rc = dcpd_forward(e->backend, e->ctx, &e->setup.model, p, r,
		    NULL, err);
	return rc;
}

int
dcpd_engine_graphs(struct dcpd_model_engine *e, uint32_t *made,
    struct dcpd_err *err)
{
	const struct dcpk_setup *s = &e->setup;
	uint32_t pages = s->max_ctx / DCPK_PAGE + 1, rows = 0, bound = 0, i;
	uint32_t *table = malloc(pages * sizeof *table);
	struct dcpk_result r = { .out_cap = s->max_rows };
	struct dcpd_planb b = { 0 };
	int rc = 0;

	*made = 0;
	r.out = calloc(s->max_rows, sizeof *r.out);
	if (table == NULL || r.out == NULL) {
		rc = dcpd_fail(err, -ENOMEM, "out of memory");
		goto out;
	}
	for (i = 0; i < pages; i++)
		table[i] = s->pages;
	while (rc == 0 && dcpk_graph_next(s, &rows, &bound) &&
	    !too_long(s, bound)) {
		rc = run_twice(e, &b, table, rows, bound, &r, err);
		++*made;
	}
out:
	dcpd_planb_free(&b);
	free(r.out);
	free(table);
	return rc;
}
