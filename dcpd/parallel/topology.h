/*
 * Which rank does what: checks of --tp, --attn-dp-size, --attn-cp-size,
 * --dcp-size against each other and the model, and the slices of each weight.
 */
#ifndef DCPD_TOPOLOGY_H
#define DCPD_TOPOLOGY_H

#include "dcpd/base/base.h"
#include "kernels/kernels.h"

struct dcpd_layout {		/* as given on the command line */
	uint32_t tp, dp, cp, dcp;
	enum dcpk_cp_strategy strategy;
};

/* The rule alone (doc/design.md 3); each refusal has its own text and flag. */
int dcpd_layout_check(const struct dcpd_layout *, struct dcpd_err *);
/* The rule, the model's heads, and what is not built (attention DP). */
int dcpd_topology(const struct dcpd_layout *, const struct dcpk_model *,
    struct dcpk_topo *, struct dcpd_err *);

struct dcpd_slice {
	uint64_t ranks;
	uint32_t n0, n1, k0, k1;
};
/*
 * The distinct slices of a tensor [n][k], each with the ranks that keep it.
 * slices[DCPK_MAX_RANKS]; returns how many. FFN and vocab sizes that W does not
 * divide are split as evenly as they go (sizes differ by one at most); with
 * fewer rows than ranks the last slices are empty, and still listed.
 */
uint32_t dcpd_slices(const struct dcpk_model *, const struct dcpk_topo *,
    enum dcpk_tensor, uint32_t n, uint32_t k, struct dcpd_slice *);

/* Predicted seconds of a prefill pass by each way; see doc/layouts.md. */
/*
 * Cached tokens per new one at which q and kv take the same, for passes long
 * enough that calls do not count, of rows that select topk keys. 0: q is the
 * faster however few they are. -1: there is no choice.
 */
double dcpd_way_break_even(const struct dcpk_model *, const struct dcpk_topo *,
    enum dcpk_kv kv, const struct dcpk_speed *);
void dcpd_way_predict(const struct dcpk_model *, const struct dcpk_topo *,
    enum dcpk_kv, const struct dcpk_speed *, const struct dcpk_plan *,
    double seconds[3]);

#endif
