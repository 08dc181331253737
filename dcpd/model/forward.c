/*
 * One step on any backend: the list of operations, written once. On the CPU
 * the caller walks it for all ranks. Backends with a thread per rank walk the
 * same list in each of them.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/model/model.h"

static int
walk(const struct dcpk_backend *b, struct dcpk_ctx *c,
    const struct dcpk_model *m, const struct dcpk_plan *p, uint32_t rank,
    const char **where, uint32_t *layer)
{
	int rc;

	*where = "embed";
	rc = b->embed(c, rank);
	for (*layer = 0; rc == 0 && *layer < m->layers; ++*layer) {
		*where = "attn_in";
		rc = b->attn_in(c, rank, *layer);
		if (rc == 0 && m->full[*layer]) {
			*where = "select";
			rc = b->select(c, rank, *layer);
		}
		if (rc == 0) {
			*where = "attend_merge";
			rc = b->attend_merge(c, rank, *layer);
		}
		if (rc == 0) {
			*where = "attn_out";
			rc = b->attn_out(c, rank, *layer);
		}
		if (rc == 0) {
			*where = "ffn";
			rc = b->ffn(c, rank, *layer);
		}
		if (rc != 0)
			return rc;
	}
	if (rc == 0 && p->n_samples != 0) {
		*where = "head";
		rc = b->head(c, rank);
		if (rc == 0) {
			*where = "sample";
			rc = b->sample(c, rank);
		}
	}
	return rc;
}

int
dcpd_forward(const struct dcpk_backend *b, struct dcpk_ctx *c,
    const struct dcpk_model *m, const struct dcpk_plan *p,
    struct dcpk_result *r, struct dcpd_err *err)
{
	struct dcpk_err ke = { "" };
	const char *where = "";
	uint32_t layer = 0;
	int rc;

	rc = b->step_begin(c, DCPK_ALL_RANKS, p, &ke);
	if (rc != 0)
		return dcpd_fail(err, rc, "step %llu: %s",
		    (unsigned long long)p->step, ke.text);
	rc = walk(b, c, m, p, DCPK_ALL_RANKS, &where, &layer);
	if (rc == 0) {
		where = "step_end";
		rc = b->step_end(c, DCPK_ALL_RANKS, r);
	}
	if (rc != 0)
		return dcpd_fail(err, rc, "step %llu, layer %u, %s: %s",
		    (unsigned long long)p->step, layer, where, strerror(-rc));
	return 0;
}
