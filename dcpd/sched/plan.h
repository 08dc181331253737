/*
 * Building a plan (kernels.h: plain data, offsets, no pointers) and checking
 * one. A builder is owned by the step thread and used again for each pass.
 */
#ifndef DCPD_PLAN_H
#define DCPD_PLAN_H

#include "dcpd/base/base.h"
#include "kernels/kernels.h"

struct dcpd_planb {
	struct dcpk_row *rows;
	struct dcpk_req *reqs;
	uint32_t *pages;
	struct dcpk_sample *samples;
	struct dcpk_adjust *adjusts;
	uint32_t *masks;		/* words */
	uint32_t n_rows, n_reqs, n_pages, n_samples, n_adjusts, n_masks;
	uint32_t cap_rows, cap_reqs, cap_pages, cap_samples, cap_adjusts;
	uint32_t cap_masks;
	uint32_t mask_words;		/* of one mask */
	uint64_t n_top;			/* top logprobs wanted, all samples */
	char *buf;			/* the plan, of cap_buf bytes */
	size_t cap_buf;
};

void dcpd_planb_free(struct dcpd_planb *);
void dcpd_planb_clear(struct dcpd_planb *);
/*
 * A request's next n tokens, positions prefix.. on; table is its page table.
 * Only the pages that hold its tokens up to the last of these go in.
 */
int dcpd_planb_req(struct dcpd_planb *, const uint32_t *table, uint32_t prefix,
    const uint32_t *tokens, uint32_t n);
/*
 * A zeroed sample of the last request's row i (from its first of this pass),
 * with room for adjs adjustments, to be filled in by the caller. NULL: no
 * memory. Pointers are good until the next call.
 */
struct dcpk_sample *dcpd_planb_sample(struct dcpd_planb *, uint32_t i,
    uint32_t adjs, struct dcpk_adjust **);
/* Only tokens whose bits are set may come for s; words of one mask, all of a
   pass the same. */
int dcpd_planb_mask(struct dcpd_planb *, struct dcpk_sample *s,
    const uint32_t *bits, uint32_t words);
/* The plan, good until the next call; NULL: no memory. */
struct dcpk_plan *dcpd_planb_finish(struct dcpd_planb *, enum dcpk_pass,
    uint64_t step);

/* What an engine may rely on. */
struct dcpd_plan_limits {
	uint32_t vocab, max_ctx, pages, max_rows, max_reqs;
};
/* -EINVAL: which rule does not hold, where. */
int dcpd_plan_check(const struct dcpk_plan *, const struct dcpd_plan_limits *,
    struct dcpd_err *);

#endif
