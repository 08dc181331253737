/*
 * What the checkpoint loader and the dummy loader share: cutting a tensor for
 * the ranks, and telling people how far the load is.
 */
#ifndef DCPD_MODEL_PLACE_H
#define DCPD_MODEL_PLACE_H

#include "dcpd/model/model.h"

struct dcpd_place {
	const struct dcpd_model_config *cfg;
	const struct dcpk_topo *topo;
	const struct dcpk_backend *be;
	struct dcpk_ctx *ctx;
	const struct dcpd_load_options *opt;
	uint64_t done, total;		/* bytes of the checkpoint */
	double start, shown;		/* dcpd_now() */
	bool bar;			/* a terminal is watching */
};

void dcpd_place_start(struct dcpd_place *);
/* w: everything but ranks and the slice, which are filled in here. */
int dcpd_place(struct dcpd_place *, struct dcpk_weight *w, const char *name,
    struct dcpd_err *);
void dcpd_place_advance(struct dcpd_place *, uint64_t bytes);
/* Clears the bar and logs `what`, bytes, seconds and GB/s. */
void dcpd_place_end(struct dcpd_place *, const char *what);
/* After a failure: clears the bar, logs nothing. */
void dcpd_place_abort(struct dcpd_place *);

#endif
