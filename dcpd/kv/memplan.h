/*
 * The memory plan: what each rank will hold, before anything is loaded. The
 * daemon prints it at start beside what was allocated; `dcpctl plan` prints it
 * from a config.json alone.
 */
#ifndef DCPD_MEMPLAN_H
#define DCPD_MEMPLAN_H

#include <jansson.h>

#include "dcpd/model/model.h"

struct dcpd_memplan_in {
	const struct dcpd_model_config *cfg;
	struct dcpd_layout layout;
	enum dcpk_kv kv, idx;
	const char *device;		/* "cpu", "cuda" */
	const struct dcpk_backend *backend;	/* NULL: the CPU's own; for
					   CUDA the workspace is estimated */
	uint64_t kv_bytes_per_rank;	/* 0: from the fraction */
	double mem_fraction;		/* of device_bytes (per rank) */
	uint64_t host_cache_bytes;	/* of the whole machine; 0: none */
	uint64_t device_bytes;		/* of one rank's device; 0: unknown */
	uint32_t chunk, max_running, max_ctx;
	/* as in struct dcpk_setup */
	uint32_t threads, flags, ranks_per_gpu, graph_rows;
	enum dcpk_comm comm;
	enum dcpk_wire wire;
	bool report_only;		/* what does not fit is told in `misfit`
					   instead of being an error */
};

struct dcpd_memplan {
	uint32_t world, D;
	struct dcpk_bytes rank[DCPK_MAX_RANKS];
	/* of one rank, all layers */
	uint64_t page_bytes_rows, page_bytes_index;
	uint32_t pages;			/* without the sink */
	uint64_t tokens;		/* pages * 64 */
	uint64_t tokens_tp;		/* from the same bytes at dcp 1 */
	uint32_t host_pages;		/* that host memory holds beside */
	uint64_t host_bytes;		/* just for these */
	uint64_t budget;		/* KV bytes of one rank; 0: not known */
	bool workspace_estimated;	/* the device's code was not asked */
	char misfit[400];		/* report_only; "" if it fits */
};

/*
 * Refuses what does not fit: numbers, the rank, the flag to change. Without
 * kv_bytes_per_rank and device_bytes there is no budget: pages is 0.
 */
int dcpd_memplan(const struct dcpd_memplan_in *, struct dcpd_memplan *,
    struct dcpd_err *);
/* What to open the backend with, so that it allocates what was planned. */
void dcpd_memplan_setup(const struct dcpd_memplan_in *,
    const struct dcpk_topo *, uint32_t pages, uint32_t host_pages,
    struct dcpk_setup *);
/* A table for people. actual may be NULL. malloc'd. */
char *dcpd_memplan_text(const struct dcpd_memplan_in *,
    const struct dcpd_memplan *, const struct dcpk_bytes *actual);
json_t *dcpd_memplan_json(const struct dcpd_memplan_in *,
    const struct dcpd_memplan *, const struct dcpk_bytes *actual);
/* f32 -> f32; bf16 -> fp8 where the index dim is 128, else bf16; fp8 -> fp8. */
enum dcpk_kv dcpd_index_format(enum dcpk_kv kv, const struct dcpk_model *);
/* fp8 rows need kv_lora 512, rope 64, index dim 128: refused by that rule. */
int dcpd_kv_format_check(enum dcpk_kv kv, const struct dcpk_model *,
    struct dcpd_err *);

#endif
