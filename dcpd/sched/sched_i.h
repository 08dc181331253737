/*
 * Inside the scheduler: its state, a request's state, and who may touch what.
 *
 * Threads
 *   intake   dcpd_sched_ipc_ops: links a request in, posts its encode job
 *   text     encode job (request.c), then the output job (output.c); never two
 *            jobs of one request at a time
 *   step     everything else (sched.c: the loop; admit.c: who runs; step.c:
 *            plans and results; cache.c, pin.c: pages)
 *   admin    dcpd_sched_status() and the like (status.c)
 *   any      the requests that are live (live.c), under the lock
 *
 * One lock, s->lock, never held while the engine runs, while text is worked on
 * or while ipc is called (ipc may call us with locks of its own held). Fields
 * marked
 *   [step]   are written by the step thread with the lock held: the step
 *            thread reads them freely, others with the lock;
 *   [lock]   need the lock for everything;
 *   [text]   belong to the request's text job, and to the step thread only
 *            while none can run (before it is posted);
 *   [const]  do not change once the request is in the inbox.
 */
#ifndef DCPD_SCHED_I_H
#define DCPD_SCHED_I_H

#include <pthread.h>
#include <stdatomic.h>

#include "dcpd/kv/pages.h"
#include "dcpd/kv/prefix.h"
#include "dcpd/sched/plan.h"
#include "dcpd/sched/sched.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DCPD_SCHED_DEBUG true
#else
#define DCPD_SCHED_DEBUG false
#endif

#define SCHED_MAGIC 0x53434844u
#define REQ_MAGIC 0x52455153u

/* A request sits a pass out while so much of its output waits for text. */
#define BOX_TOKENS_MAX 128u
#define BOX_TOPS_MAX (1u << 18)
/* Top logprobs of one pass, 8 bytes each; adjustments, 16. */
#define PASS_TOPS_MAX (1u << 20)
#define PASS_ADJUSTS_MAX (1u << 20)

#define RATE_BINS 16u		/* seconds of the token rate that are kept */

enum req_state { R_TEXT, R_WAIT, R_PREFILL, R_DECODE, R_ENDED };

/* Why a request must end; found at the next step boundary. */
enum {
	CTL_CANCEL = 1 << 0,
	CTL_GONE = 1 << 1,
	CTL_STOPPED = 1 << 2,	/* a stop string; DONE is out already */
	CTL_DEADLINE = 1 << 3,
};

enum {
	OUT_PROMPT = 1,		/* DCP_ECHO */
	OUT_HIDDEN = 2,		/* a stop id: a token without text */
	OUT_LOGPROB = 4,
};

struct out_token {
	uint32_t token, flags;	/* OUT_* */
	float logprob;
	uint32_t n_top;		/* its part of the box's tops, in order */
};

struct outbox {			/* from the step thread to the text job */
	struct out_token *v;
	struct dcp_logprob *top;
	uint32_t n, cap, n_top, cap_top;
};

/* What penalties, bias and bans need: one entry per token that matters. */
struct adjusts {
	struct dcpk_adjust *v;
	uint32_t n, cap;
	uint32_t *map;		/* [map_cap] 1 + index into v, 0 = empty */
	uint32_t map_cap;	/* a power of two, or 0 */
	uint32_t *ban;		/* [n_ban] indices: banned until min_tokens */
	uint32_t n_ban;
	uint32_t *hush;		/* [n_hush] banned while a request reasons that
				   is to give a constrained answer */
	uint32_t n_hush;
};

/*
 * In the order of who touches it in a step, for with a thousand streams a step
 * is little more than bringing these lines to the step thread: first what it
 * alone needs, then what goes between it and the text job, then the rest.
 */
struct req {
	unsigned magic;
	enum req_state state;		/* [step] */
	bool skip;			/* step thread: sits this step out */
	bool masked;			/* [step] its tokens need a mask */
	bool penalties;			/* [const] outputs must be counted */
	bool admitted;			/* [step] it ran; stays set after */
	uint32_t flags;			/* [const] sub->flags */
	uint32_t min_tokens;		/* [const] of sub->p */
	uint32_t n_stop_ids;		/* [const] of sub->p */
	uint32_t *stop_ids;		/* [const] of sub */
	uint32_t n_prompt;		/* [const] */
	uint32_t max_tokens;		/* [const] never 0 */
	uint32_t pages_max;		/* [const] for the last token too */
	uint32_t n_pages;		/* [step] held */
	uint32_t n_shared;		/* [step] its first: cache nodes */
	uint32_t n_kv;			/* [step] tokens that have rows */
	uint32_t n_out;			/* [step] tokens generated */
	uint32_t n_echo;		/* [step] ECHO: prompt tokens out */
	uint32_t *pages;		/* [step] [pages_max] page table */
	struct dcpd_ids ids;		/* [step] prompt, then output */
	uint32_t share;			/* step thread: rows of next chunk */
	bool restoring;			/* step thread: more comes back yet */
	uint32_t think_end;		/* [const] token that turns masked on */
	struct dcpk_sample params;	/* [const] what every sample says */
	uint64_t seed;			/* [const] */
	struct adjusts adj;		/* step thread */
	struct dcpd_sched *s;
	const char *salt;		/* [const] of the prefix cache, or NULL;
					   a string of options */
	/*
	 * Constrained decoding. The text job takes the answer's tokens into
	 * gram and makes the mask of the next one, into mask; the step thread
	 * reads mask once mask_n is n_out, and the request sits steps out until
	 * then. While it reasons, and unless masked, nothing is waited for.
	 */
	struct dcpd_gram *gram;		/* [text] NULL: anything goes */
	uint32_t *mask;			/* words of the vocabulary */
	uint32_t mask_words;		/* [const] */

	/* The way out. */
	uint32_t mask_n;		/* [lock] tokens that mask is after */
	bool mask_all;			/* [lock] with mask_n: any may come */
	bool busy;			/* [lock] the output job is posted */
	bool stalled;			/* [lock] box is full; wake the step */
	bool end;			/* [lock] the box gets nothing more */
	unsigned ctl;			/* [lock] CTL_* */
	struct outbox box;		/* [lock] */
	struct dcpd_job job;		/* encode, then output */
	struct req *pnext;		/* step thread: jobs to post */
	bool direct;			/* step thread: it emits the end */
	uint32_t finish;		/* with end: DCP_FINISH_* */

	struct outbox work;		/* [text] the box that was taken */
	bool closed;			/* [text] final event is out, or no one
					   is there to read it */
	uint32_t n_done;		/* [text] output tokens delivered */
	uint64_t t_token;		/* [text] ns, when the last were */
	uint32_t n_gram;		/* [text] tokens in gram */
	uint32_t channel0;		/* [const] where the answer begins */
	uint32_t channel, call;		/* [text] of the last event */
	struct dcpd_out *out;		/* [text] NULL: no text */
	struct dcpd_out *echo;		/* [text] of the prompt */

	/* Its coming and going. */
	struct dcpd_submit *sub;	/* [const] but for .data */
	struct req *prev, *next;	/* [lock] all live requests */
	struct req *inext;		/* [lock] of a like id */
	struct req *anext;		/* [lock] something was asked of them */
	bool in_asked;			/* [lock] it is among these */
	bool encoded;			/* [lock] the encode job is done */
	struct req *qnext;		/* [lock] inbox */
	uint64_t seq;			/* [const] order of arrival */
	uint64_t t_submit, t_deadline;	/* [const] ns; 0 = none */
	unsigned refs;			/* [lock] */
	json_t *options;		/* [const] */
	uint32_t n_match;		/* step thread: waiting, found so far */
	uint64_t match_serial;		/* of the last of these */
	uint32_t n_cached;		/* [step] prompt tokens of a hit */
	bool reserved;			/* step thread: room in its stream */
	uint32_t preempted;		/* [step] times that it gave way */
	struct dcpd_err err;		/* [const] encode failed */
	struct dcpd_err end_err;	/* with end: code 0, or an ERROR */
};

/* Prefill passes by one way, to compare what was predicted. */
struct way_stat {
	uint64_t passes;
	double seconds, predicted;
};

struct dcpd_sched {
	unsigned magic;
	struct dcpd_sched_config c;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t kick_cv;		/* step thread sleeps here */
	pthread_cond_t event_cv;	/* its callers wait here */

	struct req *live;		/* [lock] live.c */
	uint32_t n_live;		/* [lock] */
	uint32_t n_freed;		/* [lock] being freed, live no more */
	struct req **by_id;		/* [lock] [n_by_id] */
	uint32_t n_by_id;		/* a power of two */
	struct uid_use **by_uid;	/* [lock] */
	struct req *asked;		/* [lock] have ctl, to be swept */
	struct req *inbox;		/* [lock] encoded; newest first */
	bool kick;			/* [lock] look again */
	uint64_t next_deadline;		/* [lock] ns, UINT64_MAX = none */
	uint64_t retry_at;		/* [lock] ns; a quota may have room */
	uint64_t seq;			/* [lock] */
	bool draining, ending, stopping; /* [lock] */
	pthread_mutex_t grams_lock;	/* only for the next */
	struct dcpd_grams *grams;	/* made when first asked for */
	bool failed;			/* [step] */
	struct dcpd_err fail;		/* [step] */
	struct dcpd_pin_ask *pin_ask;	/* [lock] what an admin waits for */
	uint64_t pin_want, pin_done;	/* [lock] */
	uint64_t check_want, check_done;	/* [lock] */
	struct dcpd_err check_err;	/* [lock] of check_done */
	uint64_t drop_want, drop_done;	/* [lock] */
	uint32_t dropped;		/* [lock] pages, by drop_done */

	/* Step thread. */
	struct dcpd_pages *pages;	/* [step] */
	struct dcpd_prefix *prefix;	/* [step] */
	uint64_t evicted;		/* step thread: counted so far */
	struct req **wait;		/* [step] by priority, then arrival */
	uint32_t n_wait, cap_wait;	/* [step] room for all of run, too */
	struct req **run;		/* [step] [max_running], same order */
	uint32_t n_run;			/* [step] */
	struct req *post, **post_tail;	/* output jobs to post after unlock */
	struct dcpd_planb plan;
	struct req **in_pass;		/* [max_running] the plan's */
	struct dcpk_result result;
	struct pin *pins;		/* [step] */
	uint32_t *pin_refs;		/* step thread: [pages] pins of each */
	uint32_t n_pinned;		/* [step] pages of them, each once */
	uint64_t pin_id;		/* step thread */
	uint32_t n_restored;		/* step thread: pages, in this step */
	struct dcpk_move *move;		/* [cap_move] one call's */
	uint32_t cap_move;
	uint64_t step;
	uint32_t turn;			/* decode pass begins at run[turn] */

	struct way_stat way[3];		/* [step] */
	/* Any thread: tokens, below the second (mod 2^32) they left in. */
	_Atomic uint64_t rate[RATE_BINS];
};

/* What an admin asks of the pins (pin.c), and what came of it. */
struct dcpd_pin_ask {
	bool unpin;
	uint64_t id;		/* unpin: which, 0 all; pin: comes back */
	uint64_t request;	/* pin, if n is 0 */
	const uint32_t *tokens;	/* [n] pin */
	uint32_t n;
	const char *salt;	/* or NULL */
	uint32_t pages;		/* comes back */
	int rc;
	struct dcpd_err err;
};

/* live.c; the lock is held */
int dcpd_live_open(struct dcpd_sched *);
void dcpd_live_close(struct dcpd_sched *);
int dcpd_live_add(struct dcpd_sched *, struct req *);
void dcpd_live_remove(struct dcpd_sched *, struct req *);
uint32_t dcpd_live_of_uid(const struct dcpd_sched *, uid_t);
/* Of one client, or (NULL) of any. */
struct req *dcpd_live_find(const struct dcpd_sched *,
    const struct dcpd_client *, uint64_t id);
void dcpd_live_ask(struct dcpd_sched *, struct req *);
struct req *dcpd_live_asked(struct dcpd_sched *);	/* one less; or NULL */

/* request.c */
void dcpd_req_encode(struct dcpd_job *);	/* text */
int dcpd_adjusts_count(struct adjusts *, uint32_t token);
void dcpd_req_free(struct req *);

/* output.c */
void dcpd_req_output(struct dcpd_job *);	/* text */
int dcpd_box_push(struct outbox *, const struct out_token *,
    const struct dcpk_logprob *top);
/* The final event, if anyone is there. */
void dcpd_req_emit_end(struct req *, const struct dcp_usage *);

/* sched.c; the lock is held */
void dcpd_sched_kick(struct dcpd_sched *);
void dcpd_req_ctl(struct req *, unsigned ctl);
void dcpd_req_wake_output(struct req *);
void dcpd_sched_gauges(struct dcpd_sched *);
/* Of wait or run, which are in order: priority, then arrival. */
void dcpd_reqs_insert(struct req **, uint32_t *n, struct req *);
void dcpd_reqs_remove(struct req **, uint32_t *n, struct req *);
/* Step thread. Pages go back now; the final event follows the box. */
void dcpd_req_end(struct req *, uint32_t finish, const struct dcpd_err *);
/* sched.c; the lock is not held */
bool dcpd_req_counts(const struct req *);	/* in metrics of requests */
void dcpd_req_put(struct req *);		/* the last one frees it */
void dcpd_sched_flush_posts(struct dcpd_sched *);

/*
 * cache.c: step thread. A request's page table; what is behind n_shared pages
 * of it is the request's own. match: how many pages the cache has of its text,
 * put into table; the lock is not needed.
 */
bool dcpd_req_scores_prompt(const struct req *);
uint32_t dcpd_req_match(const struct req *, uint32_t *table);
uint32_t dcpd_req_match_waiting(struct req *);	/* into its own table */
void dcpd_req_hit_late(struct req *);
void dcpd_req_hit(struct req *, uint32_t n);		/* lock held */
void dcpd_req_restore(struct req *);			/* lock held */
void dcpd_req_publish(struct req *);			/* lock held */
void dcpd_req_give_back(struct req *);			/* lock held */
int dcpd_req_grow(struct req *, uint32_t pages);	/* lock held */
int dcpd_sched_move(struct dcpd_sched *, struct dcpd_err *);
int dcpd_sched_verify(struct dcpd_sched *, struct dcpd_err *);

/* pin.c: step thread; the lock is held, but for the first. */
int dcpd_pin_leaves_room(const struct dcpd_sched *, const struct req *,
    struct dcpd_err *);
void dcpd_pin_answer(struct dcpd_sched *);
void dcpd_pins_free(struct dcpd_sched *);
void dcpd_pins_count(const struct dcpd_sched *, uint32_t *refs);
json_t *dcpd_pins_json(const struct dcpd_sched *);

/* admit.c: step thread, the lock is not held */
void dcpd_sched_admit(struct dcpd_sched *);
/*
 * Pages for run[i]'s next n rows; if there are too few, who comes after it
 * gives way. False: nobody is left, it must sit out.
 */
bool dcpd_sched_secure(struct dcpd_sched *, uint32_t i, uint32_t n);

/* step.c: step thread, the lock is not held */
bool dcpd_sched_step(struct dcpd_sched *);	/* true: a pass ran */

#endif
