/*
 * The scheduler: the only writer of pages and requests. One step thread:
 * takes submissions, cancellations and deaths, composes a plan, runs it on the
 * engine, hands tokens to the text workers, and so on.
 */
#ifndef DCPD_SCHED_H
#define DCPD_SCHED_H

#include <jansson.h>

#include "dcpd/ipc/ipc.h"
#include "dcpd/text/text.h"
#include "kernels/kernels.h"

struct dcpd_pass;
struct dcpd_floor;

/* What runs a plan: a model on a backend, or the null engine. */
struct dcpd_engine {
	const char *name;
	void *self;
	/* Step thread. Fills r; an error is fatal for the process. */
	int (*step)(void *self, const struct dcpk_plan *, struct dcpk_result *r,
	    struct dcpd_err *);
	/* Predicted seconds of a prefill pass by each way; NULL: always kv. */
	void (*predict)(void *self, const struct dcpk_plan *, double s[3]);
	/* What predict is about, as it was so far: step thread; or NULL. */
	const uint64_t *attend_ns;
	/* Any thread: cached tokens a new one at which q and kv are predicted
	   to take the same; 0: q always is faster, -1: no choice. Or NULL. */
	double (*break_even)(void *self);
	/* Any thread: what such a pass takes at least; or NULL. floor.h */
	void (*floor)(void *self, const struct dcpd_pass *,
	    struct dcpd_floor *);
	int (*check)(void *self, struct dcpd_err *);	/* or NULL */
	/* Any thread: who the step waits for, or "". NULL: cannot say. */
	void (*waits)(void *self, char *buf, size_t cap);
	/* Step thread, between steps: as the backend's, with host_pages > 0. */
	int (*move)(void *self, const struct dcpk_move *, uint32_t n, bool out,
	    struct dcpd_err *);
	void (*close)(void *self);
	uint32_t vocab, max_ctx, pages, dcp, world, chunk, max_running;
	uint32_t host_pages;		/* that may leave the pool; 0: none */
	const uint32_t *eos;
	uint32_t n_eos;
};

/*
 * --engine null: token i of a request is a hash of its last token and
 * position, so the stream is deterministic and independent of the batch.
 */
int dcpd_null_engine(struct dcpd_engine *, uint32_t vocab, uint32_t max_ctx,
    uint32_t pages, uint32_t dcp, unsigned step_us);
bool dcpd_null_gives(uint32_t token);	/* of a usual vocabulary, unmasked */

struct dcpd_sched_config {
	struct dcpd_engine *engine;
	const struct dcpd_tokenizer *tok;	/* NULL: token ids only */
	enum dcpd_chat chat;
	enum dcpd_parser parser;
	struct dcpd_textpool *pool;
	int way;			/* -1: by prediction; or dcpk_way */
	uint32_t queue_max;		/* requests waiting; more: -EAGAIN */
	uint32_t max_requests_uid;
	float def_temperature, def_top_p;
	int32_t def_top_k;
	double pin_fraction;		/* of the pool that pins may hold */
	bool check_steps;		/* plans and the invariant, each step;
					   sanitizer builds always do */
};

struct dcpd_sched;
int dcpd_sched_start(const struct dcpd_sched_config *, struct dcpd_sched **,
    struct dcpd_err *);
extern const struct dcpd_ipc_ops dcpd_sched_ipc_ops;	/* arg: the sched */

/* Admin thread. */
json_t *dcpd_sched_status(struct dcpd_sched *);		/* counters, ranks */
json_t *dcpd_sched_requests(struct dcpd_sched *);
/*
 * page_map.c: what the pool holds, the same on every rank. "runs" is owner,
 * cells, owner, cells, ...: a request's id, 0 free, -1 the prefix cache alone,
 * -2 several requests, -3 a pin and no request. A cell is "pages_per_cell"
 * pages, shown by one of them.
 */
json_t *dcpd_sched_page_map(struct dcpd_sched *);
int dcpd_sched_cancel(struct dcpd_sched *, uint64_t id);
void dcpd_sched_drain(struct dcpd_sched *, bool on);	/* refuse new ones */
/* Every live request gets an ERROR, new ones are refused; for good. */
void dcpd_sched_end(struct dcpd_sched *);
/* As in the config, from now on. */
void dcpd_sched_limits(struct dcpd_sched *, uint32_t queue_max,
    uint32_t max_requests_uid);
bool dcpd_sched_idle(struct dcpd_sched *);
int dcpd_sched_check(struct dcpd_sched *, struct dcpd_err *);	/* invariant */
json_t *dcpd_sched_cache(struct dcpd_sched *);		/* its numbers */
/* Frees every cached page that no request holds; *pages: how many. */
int dcpd_sched_cache_drop(struct dcpd_sched *, uint32_t *pages,
    struct dcpd_err *);
/* The same without waiting, any thread: what is submitted later finds nothing
 * of it. *pages: how many those are. */
void dcpd_sched_cache_flush(struct dcpd_sched *, uint32_t *pages);
/*
 * Keep the pages that the cache has of tokens [n], or with n 0 of a running
 * request's prompt, in the pool until unpin. *id names the pin.
 */
int dcpd_sched_pin(struct dcpd_sched *, const uint32_t *tokens, uint32_t n,
    const char *salt, uint64_t request, uint64_t *id, uint32_t *pages,
    struct dcpd_err *);
int dcpd_sched_unpin(struct dcpd_sched *, uint64_t id /* 0: all */,
    uint32_t *pages, struct dcpd_err *);
/*
 * As dcpd_sched_end; joins, frees. After ipc, which calls in
 * here, has stopped, and before the text pool, which this waits for.
 */
void dcpd_sched_stop(struct dcpd_sched *);
/* Set by the step thread when the engine failed: the process must end. */
bool dcpd_sched_failed(struct dcpd_sched *, struct dcpd_err *);

#endif
