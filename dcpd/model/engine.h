/*
 * The engine of a real model: a backend with its weights and pools, as the
 * scheduler sees it. Built by main in steps, so that each can be logged and
 * timed: plan (memplan.h), open, load, measure, graphs.
 */
#ifndef DCPD_ENGINE_H
#define DCPD_ENGINE_H

#include "dcpd/model/model.h"
#include "dcpd/sched/sched.h"

struct dcpd_model_engine {
	const struct dcpk_backend *backend;
	struct dcpk_ctx *ctx;
	const struct dcpd_model_config *cfg;	/* borrowed */
	struct dcpk_setup setup;
	struct dcpk_speed speed;
	uint64_t attend_ns;		/* step thread: in attend_merge */
};

/* Open the device and take its memory. setup.model is filled from cfg. */
int dcpd_engine_open(struct dcpd_model_engine *, const struct dcpk_backend *,
    const struct dcpd_model_config *, const struct dcpk_setup *,
    struct dcpd_err *);
/* Load the weights (dir). */
int dcpd_engine_load(struct dcpd_model_engine *, const char *dir,
    const struct dcpd_load_options *, struct dcpd_err *);
/* Check that all weights are there (dir: for the error), bring them into form,
 * and measure the device: choices rest on how fast it is. */
int dcpd_engine_ready(struct dcpd_model_engine *, const char *dir,
    struct dcpd_err *);
/* Run what --cuda-graph-max-bs will have captured; *made: how many kinds. */
int dcpd_engine_graphs(struct dcpd_model_engine *, uint32_t *made,
    struct dcpd_err *);
/* What the scheduler runs; valid while e is. close() closes the backend. */
void dcpd_engine_make(struct dcpd_model_engine *e, struct dcpd_engine *out);
void dcpd_engine_close(struct dcpd_model_engine *);

#endif
