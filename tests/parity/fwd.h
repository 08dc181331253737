/* What the two files of fwd share: a job, its requests and their pages. */
#ifndef FWD_H
#define FWD_H

#include <stdio.h>

#include <jansson.h>

#include "dcpd/model/model.h"
#include "kernels/kernels.h"

#define MAX_BATCH 256u

struct seq {
	uint32_t id;		/* index in the job's prompts */
	uint32_t *ids;		/* [prompt + decode]: prompt, then output */
	uint32_t prompt, target;	/* tokens; target = prompt + decode */
	uint32_t have;		/* ids known */
	uint32_t cached;	/* positions in the pools */
	uint32_t forced;	/* ids known from the start (>= prompt) */
	uint32_t *pages, n_pages;	/* its table */
	uint32_t n_own;		/* pages that are its alone; less if stretched */
};

struct job {
	const char *model;
	struct dcpd_layout layout;
	enum dcpk_kv kv, idx;
	enum dcpk_way way;
	uint32_t chunk, batch, decode, decode_rows, flags, threads, seed;
	uint32_t pages, max_ctx, ranks_per_gpu, graph_rows, stretch;
	enum dcpk_comm comm;
	enum dcpk_wire wire;
	bool all_logits, select, dummy, any_number, latent_eps_config;
	bool check_gather, check_replicas, keep_all_pages, rehouse, fill;
	bool stop_at_eos;	/* a request ends at the model's end tokens */
	json_t *prompts, *forced, *allowed;
	const char *out;
};

struct run {
	struct job j;
	struct dcpd_model_config cfg;
	struct dcpk_topo topo;
	struct dcpk_ctx *ctx;
	struct seq *seqs;
	uint32_t n_seqs, next, n_active;
	struct seq *active[MAX_BATCH];
	uint32_t *free_pages, n_free;
	char *plan;
	float *logits;		/* [max samples][vocab] of one pass */
	struct dcpk_logprob *res;
	uint32_t max_rows;
	uint32_t *mask, mask_words;	/* of `allowed`, or NULL */
	FILE *f_logits, *f_select;
	json_t *entries, *gaps;
	json_t *decode_ms, *prefill_ms;		/* [[rows, ms]] of every pass */
	uint64_t gathered, gathered_differ, replicas, replicas_differ;
	double prefill_s, decode_s;
	uint64_t prefill_rows, decode_rows, prefill_passes, decode_passes;
};

void *fwd_alloc(size_t n);	/* zeroed; ends the program without memory */

/* fwd_pages.c: a shuffled list, requests that come and go, host memory */
void fwd_pages_shuffle(struct run *);
uint32_t fwd_pages_wanted(const struct run *);
void fwd_admit(struct run *);
void fwd_retire(struct run *);
int fwd_rehouse(struct run *, const struct dcpk_backend *, struct dcpd_err *);

#endif
