/* One token through the engine. Main thread, before the scheduler starts. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "dcpd/selftest.h"

struct tiny_plan {		/* arrays of a plan begin at multiples of 16 */
	struct dcpk_plan head;
	_Alignas(16) struct dcpk_row row;
	_Alignas(16) struct dcpk_req req;
	_Alignas(16) uint32_t page;
	_Alignas(16) struct dcpk_sample sample;
};

static void
fill(struct tiny_plan *p)
{
	memset(p, 0, sizeof *p);
	p->head = (struct dcpk_plan){
		.magic = DCPK_PLAN_MAGIC, .version = DCPK_PLAN_VERSION,
		.bytes = sizeof *p, .pass = DCPK_PREFILL, .way = DCPK_WAY_KV,
		.n_rows = 1, .n_reqs = 1, .n_pages = 1, .n_samples = 1,
		.rows_off = offsetof(struct tiny_plan, row),
		.reqs_off = offsetof(struct tiny_plan, req),
		.pages_off = offsetof(struct tiny_plan, page),
		.samples_off = offsetof(struct tiny_plan, sample),
		.adjusts_off = sizeof *p, .mask_off = sizeof *p,
	};
	p->req.rows = 1;
	p->req.pages = 1;
	p->sample.flags = DCPK_S_GREEDY;
	p->sample.top_p = 1;
	p->sample.repetition = 1;
}

int
dcpd_selftest(struct dcpd_engine *e, struct dcpd_err *err)
{
	struct dcpk_logprob out = { UINT32_MAX, NAN };
	struct dcpk_result r = { .out = &out, .out_cap = 1 };
	struct tiny_plan p;
	int rc;

	fill(&p);
	rc = e->step(e->self, &p.head, &r, err);
	if (rc != 0) {
		dcpd_fail_in(err, "self-test");
		return rc;
	}
	if (out.token >= e->vocab || !isfinite(out.logprob) ||
	    out.logprob > 0)
		return dcpd_fail(err, -EBADMSG, "self-test: the %s engine gave "
		    "token %u with logprob %g (vocabulary %u): the weights "
		    "are damaged, or this build is; run `make check`",
		    e->name, out.token, (double)out.logprob, e->vocab);
	return 0;
}
