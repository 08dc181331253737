/*
 * One step on any backend: the list of operations, written once.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/admin/stats.h"
#include "dcpd/model/model.h"

static int
walk(const struct dcpk_backend *b, struct dcpk_ctx *c,
    const struct dcpk_model *m, const struct dcpk_plan *p, uint64_t *attend_ns)
{
	uint32_t layer;
	uint64_t t;
	int rc;

	dcpd_stats_at(DCPD_OP_embed, 0);
	rc = b->embed(c);
	for (layer = 0; rc == 0 && layer < m->layers; layer++) {
		dcpd_stats_at(DCPD_OP_attn_in, layer);
		rc = b->attn_in(c, layer);
		if (rc == 0 && m->full[layer]) {
			dcpd_stats_at(DCPD_OP_select, layer);
			rc = b->select(c, layer);
		}
		if (rc == 0) {
			dcpd_stats_at(DCPD_OP_attend_merge, layer);
			t = dcpd_now_ns();
			rc = b->attend_merge(c, layer);
			*attend_ns += dcpd_now_ns() - t;
		}
		if (rc == 0) {
			dcpd_stats_at(DCPD_OP_attn_out, layer);
			rc = b->attn_out(c, layer);
		}
		if (rc == 0) {
			dcpd_stats_at(DCPD_OP_ffn, layer);
			rc = b->ffn(c, layer);
		}
		if (rc != 0)
			return rc;
	}
	if (rc == 0 && p->n_samples != 0) {
		dcpd_stats_at(DCPD_OP_head, m->layers);
		rc = b->head(c);
		if (rc == 0) {
			dcpd_stats_at(DCPD_OP_sample, m->layers);
			rc = b->sample(c);
		}
	}
	return rc;
}

int
dcpd_forward(const struct dcpk_backend *b, struct dcpk_ctx *c,
    const struct dcpk_model *m, const struct dcpk_plan *p,
    struct dcpk_result *r, uint64_t *attend_ns, struct dcpd_err *err)
{
	const struct dcps_pass *at = &dcpd_page->pass;
	struct dcpk_err ke = { "" };
	uint64_t unused = 0;
	int rc;

	dcpd_stats_at(DCPD_OP_step_begin, 0);
	rc = b->step_begin(c, p, &ke);
	if (rc != 0)
		return dcpd_fail(err, rc, "step %llu: %s",
		    (unsigned long long)p->step, ke.text);
	rc = walk(b, c, m, p, attend_ns != NULL ? attend_ns : &unused);
	if (rc == 0) {
		dcpd_stats_at(DCPD_OP_step_end, m->layers);
		rc = b->step_end(c, r);
	}
	if (rc != 0)
		return dcpd_fail(err, rc, "step %llu, layer %u, %s: %s",
		    (unsigned long long)p->step, at->layer,
		    dcpd_page->op_name[at->op], strerror(-rc));
	return 0;
}
