/*
 * What stands around the scheduler in its tests: clients and events without a
 * ring, and an engine whose every token depends on the whole text before it.
 *
 * The engine keeps, in a pool addressed as a model's, a running hash of each
 * request's tokens: row p = mix(row p-1, token p), where row p-1 is found
 * through the page table. A wrong page, a lost row, a page given to two
 * requests or freed too early changes every token after it. What the tokens
 * must be, fk_expect() computes from the text alone.
 */
#ifndef SCHED_FAKE_H
#define SCHED_FAKE_H

#include <pthread.h>
#include <sys/types.h>

#include "dcpd/sched/sched.h"

/* --- engine ------------------------------------------------------------ */

#define FK_EOS 5u

struct fk_pass {		/* what one pass held */
	uint32_t pass, way, n_rows, n_reqs;
	uint32_t back;		/* pages from host memory just before it */
	uint32_t rows[64];	/* of the first 64 requests */
	uint32_t first[64];	/* token of their first row */
};

struct fk_engine {
	struct dcpd_engine e;
	uint32_t eos[1];
	uint64_t *pool;			/* [pages * 64] */
	uint64_t *host;			/* [host_pages * 64] */
	pthread_mutex_t lock;
	pthread_cond_t cv;
	bool gated;			/* passes wait to be let through */
	uint64_t entered, allowed;	/* passes */
	_Atomic unsigned step_us;
	_Atomic uint64_t fail_at;	/* pass that fails; 0 = never */
	double predict[3];
	const uint32_t *script;		/* [n_script] what it says instead, in
					   every answer; then the end token */
	uint32_t n_script;
	uint32_t back;			/* pages, since the last pass */
	struct fk_pass *log;		/* [n_log] */
	size_t n_log, cap_log;
	struct dcpk_adjust *adj;	/* of the last sample that had any */
	uint32_t n_adj;
	struct dcpk_sample last;	/* the last sample that was drawn */
};

struct fk_spec {			/* engine and scheduler */
	uint32_t vocab, max_ctx, pages, dcp, world, chunk, max_running;
	uint32_t host_pages;
	uint32_t queue_max, max_requests_uid;
	int way;
	bool predict;
};

void fk_engine_open(struct fk_engine *, const struct fk_spec *);
void fk_engine_close(struct fk_engine *);
/* From now on each pass stops before it computes, until it is let through. */
void fk_gate(struct fk_engine *);
void fk_let(struct fk_engine *, uint64_t passes);
void fk_open_gate(struct fk_engine *);
/* What must happen, happens within this many ms on the busiest machine. */
#define SOON 120000
/* Until a pass stands at the gate; -1 if none comes within ms. */
int fk_at_gate(struct fk_engine *, int ms);
uint64_t fk_passes(struct fk_engine *);

/*
 * The engine's next tokens after a text. seed counts only for a request that
 * is not greedy. ban: this id never (UINT32_MAX: none).
 */
void fk_expect(uint32_t vocab, const uint32_t *prompt, uint32_t n,
    const uint64_t *seed, uint32_t ban, uint32_t *out, uint32_t n_out);
/* Its logprob of `token` after the text. */
float fk_logprob(uint32_t vocab, const uint32_t *text, uint32_t n,
    uint32_t token);

/* A prompt of n ids that depends on seed; malloc'd. */
uint32_t *fk_prompt(uint32_t vocab, uint32_t n, uint32_t seed);
/* For pthread_cond_timedwait. */
void fk_after_ms(struct timespec *, int ms);

/* --- clients ----------------------------------------------------------- */

struct dcpd_client {
	uint32_t refs;
	uint64_t id;
	bool gone;
	/* Quota of dcpd_ipc_reserve, in tokens: 0 = none. */
	uint64_t quota, reserved;
};

struct fk_seen {			/* a request, as its client saw it */
	struct fk_seen *next;
	uint64_t id;
	struct dcpd_client *client;
	uint32_t reserved;
	uint32_t *tokens, n, cap;
	float *lps;
	struct dcp_logprob *top;	/* of all tokens, one after another */
	uint32_t n_top, cap_top;
	uint32_t *prompt, n_prompt;	/* DCP_CH_PROMPT */
	float *prompt_lps;
	uint32_t n_prompt_top;
	char *text[5];			/* per channel; NULL = nothing came */
	uint32_t events, deltas;
	bool done;
	uint32_t finish;
	uint32_t stop;			/* which stop string, from 1 */
	int error;
	char error_text[512];
	struct dcp_usage usage;
	uint64_t t_first, t_done;
	uint32_t after_end;		/* events after the last one */
};

struct dcpd_client *fk_client(uint64_t id);

struct fk_req {				/* what a test sends */
	const uint32_t *ids;		/* TOKENS; or */
	const char *text;		/* TEXT, or CHAT if chat is set */
	bool chat;
	uint32_t n, max_tokens, flags;
	uid_t uid;
	struct dcp_request p;		/* sampling fields */
	const char *stop[4];
	uint32_t stop_ids[4], n_stop_ids;
	struct dcp_logit_bias bias[4];
	uint32_t n_bias;
	const char *options;
};

/* 0: *id is its id; else what submit said (err may be NULL). */
int fk_submit(struct dcpd_sched *, struct dcpd_client *, const struct fk_req *,
    uint64_t *id, struct dcpd_err *err);
/* The request when it has ended; aborts the test after SOON. */
const struct fk_seen *fk_wait(uint64_t id);
/* As it is now. */
struct fk_seen fk_look(uint64_t id);
/* Until it has so many tokens; -1 if it has not within ms. */
int fk_wait_tokens(uint64_t id, uint32_t n, int ms);
/* Tokens that something else takes of its quota. */
void fk_charge(struct dcpd_client *, int64_t tokens);
/* From now on -EPIPE; ops.gone is the caller's to call. */
void fk_gone(struct dcpd_client *);
/* Emission blocks (as no real one may), to make output pile up. */
void fk_block_emit(bool on);
void fk_forget(void);			/* all requests seen, all clients */

/* --- the scheduler ----------------------------------------------------- */

struct fk {				/* one of everything */
	struct fk_engine e;
	struct dcpd_textpool *pool;
	struct dcpd_sched *s;
	struct dcpd_client *c;
};

/* Zero fields of spec get a default. cfg may be NULL. */
void fk_start(struct fk *, struct fk_spec spec,
    const struct dcpd_sched_config *cfg);
void fk_stop(struct fk *);
/* Wait until nothing is live; -1 after SOON. */
int fk_idle(struct fk *);
int64_t fk_status(struct fk *, const char *key);	/* integer of status */

#endif
