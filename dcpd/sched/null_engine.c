/*
 * --engine null: no model. It tests everything around one: the ring, text,
 * the scheduler, the front ends.
 *
 * The next token after (token, position) is a hash of these two, so a stream
 * depends on nothing but its own prompt. Ids come from 19..93: in byte-level
 * vocabularies these are plain printable bytes and never an end token, so that
 * max_tokens decides where a request ends. The "distribution" falls by 1/8 per
 * id, counted upwards from the next token and round the vocabulary: logprobs
 * of the token, of the top list and of scored tokens agree with each other.
 * Sampling parameters do not act here: there are no logits to act on. A mask
 * does: the next token is the first from the hash on that it allows.
 *
 * Every plan is checked as a model would want it. Step thread only.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "dcpd/sched/plan.h"
#include "dcpd/sched/sched.h"

#define FIRST_ID 19u
#define LAST_ID 93u

struct null_engine {
	struct dcpd_plan_limits limits;
	unsigned step_us;
};

static uint32_t
next_token(uint32_t token, uint32_t pos, uint32_t vocab)
{
	uint32_t lo = vocab > LAST_ID ? FIRST_ID : 0;
	uint32_t n = vocab > LAST_ID ? LAST_ID + 1 - FIRST_ID : vocab;
	uint64_t h = ((uint64_t)token << 32 | pos) + 0x9e3779b97f4a7c15u;

	/* splitmix64 */
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	h ^= h >> 31;
	return lo + (uint32_t)(h % n);
}

bool
dcpd_null_gives(uint32_t token)
{
	return token >= FIRST_ID && token <= LAST_ID;
}

static float
logprob(uint32_t token, uint32_t best, uint32_t vocab)
{
	uint32_t place = token >= best ? token - best : token + vocab - best;

	return -0.125f * (float)(place + 1);
}

/* The first from t on, round the vocabulary, that a mask allows. */
static uint32_t
allowed(const uint32_t *bits, uint32_t t, uint32_t vocab)
{
	for (uint32_t i = 0; i < vocab; i++) {
		uint32_t id = t + i < vocab ? t + i : t + i - vocab;

		if (bits[id / 32] >> id % 32 & 1)
			return id;
	}
	return t;
}

static void
sample(const struct null_engine *e, const struct dcpk_plan *plan,
    struct dcpk_result *r)
{
	const struct dcpk_sample *s = DCPK_SAMPLES(plan);
	const struct dcpk_row *rows = DCPK_ROWS(plan);
	uint32_t vocab = e->limits.vocab, top = 0;

	for (uint32_t i = 0; i < plan->n_samples; i++, s++) {
		const struct dcpk_row *row = &rows[s->row];
		uint32_t best = next_token(row->token, row->pos, vocab);

		if (s->flags & DCPK_S_MASK)
			best = allowed(DCPK_MASK(plan) + s->mask, best, vocab);
		uint32_t t = s->flags & DCPK_S_SCORE ? s->given : best;

		r->out[i] = (struct dcpk_logprob){ t, logprob(t, best, vocab) };
		for (uint32_t k = 0; k < s->n_top; k++, top++) {
			t = (best + k) % vocab;
			r->top[top] = (struct dcpk_logprob){
				t, logprob(t, best, vocab) };
		}
	}
}

static int
null_step(void *self, const struct dcpk_plan *plan, struct dcpk_result *r,
    struct dcpd_err *err)
{
	struct null_engine *e = self;
	const struct dcpk_sample *s;
	uint64_t top = 0;
	int rc;

	rc = dcpd_plan_check(plan, &e->limits, err);
	if (rc != 0)
		return rc;
	s = DCPK_SAMPLES(plan);
	for (uint32_t i = 0; i < plan->n_samples; i++)
		top += s[i].n_top;
	if (plan->n_samples > r->out_cap || top > r->top_cap)
		return dcpd_fail(err, -ENOSPC, "null engine: %u samples and "
		    "%llu top logprobs do not fit a result of %u and %u",
		    plan->n_samples, (unsigned long long)top, r->out_cap,
		    r->top_cap);
	sample(e, plan, r);
	if (e->step_us > 0) {
		struct timespec ts = {
			e->step_us / 1000000, e->step_us % 1000000 * 1000 };

		while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
			;
	}
	return 0;
}

/* It has no rows. */
static int
null_move(void *self, const struct dcpk_move *m, uint32_t n, bool out,
    struct dcpd_err *err)
{
	return 0;
}

static void
null_close(void *self)
{
	free(self);
}

int
dcpd_null_engine(struct dcpd_engine *out, uint32_t vocab, uint32_t max_ctx,
    uint32_t pages, uint32_t dcp, unsigned step_us)
{
	struct null_engine *e;

	if (vocab == 0 || max_ctx < 2 || pages == 0 || dcp == 0)
		return -EINVAL;
	e = calloc(1, sizeof *e);
	if (e == NULL)
		return -ENOMEM;
	e->step_us = step_us;
	/*
	 * The caller may yet set chunk and max_running, so only what no
	 * scheduler may exceed is a limit here.
	 */
	e->limits = (struct dcpd_plan_limits){
		.vocab = vocab, .max_ctx = max_ctx, .pages = pages,
		.max_rows = UINT32_MAX, .max_reqs = UINT32_MAX,
	};
	*out = (struct dcpd_engine){
		.name = "null", .self = e, .step = null_step,
		.move = null_move,
		.close = null_close, .vocab = vocab, .max_ctx = max_ctx,
		.pages = pages, .dcp = dcp, .world = dcp, .chunk = 8192,
		.max_running = 256,
	};
	return 0;
}
