/*
 * The constants of the prefill choice, measured at start (about 60 ms): bytes
 * copied between ranks, attention's multiply-adds with many and few heads, and
 * the phase boundary that an exchange between ranks costs here.
 *
 * Each is the best of many trials, every one as short as can be told: a trial
 * in which others had the processor, or its caches, is longer and does not
 * count. They take turns, so that what slows the machine for longer slows all:
 * the choice rests on what they are to each other.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/ctx.h"

enum { KEYS = 256, TRIALS_MIN = 8, PHASES = 8 };
#define COPY_BYTES (1u << 20)
/* Of this thread's processor time; on a busy machine, of the clock's. */
static const double BUDGET_S = 0.06, BUDGET_MOST_S = 0.5;

struct trial {
	struct dcpk_ctx *c;
	uint32_t heads, own;		/* of a group; of a rank */
	uint8_t *rows;			/* [KEYS] of the pool's form */
	float *q, *o;			/* [heads][kv_lora + rope], [kv_lora] */
	uint8_t *from, *to;		/* [COPY_BYTES] */
	uint32_t list[KEYS];
};

static double
seconds_of(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double
now(void)
{
	return seconds_of(CLOCK_MONOTONIC);
}

static double
used(void)
{
	return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static double
least(double a, double b)
{
	return b < a ? b : a;
}

/* One trial each; seconds. */

static double
attend_seconds(struct trial *t, uint32_t heads)
{
	const struct dcpk_model *m = &t->c->s.model;
	struct dcpc_rows r = { t->rows, t->c->s.kv, m->kv_lora, m->rope };
	float lse[1024];
	double t0 = now();

	t->c->p->attend(t->o, lse, t->q, heads, &r, t->list, KEYS,
	    m->attn_scale, t->c->thread[0].attend);
	return now() - t0;
}

static double
copy_seconds(struct trial *t)
{
	uint8_t *from = t->from;
	double t0 = now();

	memcpy(t->to, from, COPY_BYTES);
	t->from = t->to;
	t->to = from;
	return now() - t0;
}

static void
nothing(void *arg, uint32_t task, uint32_t thread)
{
}

/* In a row, as a pass has them: the first finds the workers asleep. */
static double
phase_seconds(struct trial *t)
{
	double best = INFINITY, t0, t1;

	t0 = now();
	for (uint32_t i = 0; i < PHASES; i++, t0 = t1) {
		dcpc_workers_run(t->c->workers, 2 * t->c->threads, nothing,
		    NULL);
		t1 = now();
		best = least(best, t1 - t0);
	}
	return best;
}

static void
measure(struct trial *t, struct dcpk_speed *s)
{
	const struct dcpk_model *m = &t->c->s.model;
	/* Of one head; every worker does the same beside this one. */
	double flops = KEYS * (2.0 * m->kv_lora + m->rope) * 2 *
	    t->c->threads;
	double until = used() + BUDGET_S, end = now() + BUDGET_MOST_S;
	double full = INFINITY, own = INFINITY, copy = INFINITY;
	double call = INFINITY;

	for (uint32_t n = 0; n < TRIALS_MIN || (used() < until &&
	    now() < end); n++) {
		full = least(full, attend_seconds(t, t->heads));
		own = least(own, attend_seconds(t, t->own));
		copy = least(copy, copy_seconds(t));
		call = least(call, phase_seconds(t));
	}
	s->attend_flops_s = t->heads * flops / full;
	s->attend_own_flops_s = t->own * flops / own;
	s->copy_bytes_s = COPY_BYTES / copy;
	s->call_s = call;
}

int
dcpc_measure(struct dcpk_ctx *c, struct dcpk_speed *s)
{
	const struct dcpk_model *m = &c->s.model;
	struct trial t = {
		.c = c, .heads = m->heads / c->groups,
		.own = m->heads / c->s.topo.attn_tp / c->s.topo.cp,
		.rows = calloc(KEYS, c->row_bytes),
		.q = calloc((size_t)m->heads * (m->kv_lora + m->rope),
		    sizeof *t.q),
		.o = calloc((size_t)m->heads * m->kv_lora, sizeof *t.o),
		.from = malloc(COPY_BYTES), .to = malloc(COPY_BYTES),
	};
	int rc = -ENOMEM;

	if (t.rows == NULL || t.q == NULL || t.o == NULL || t.from == NULL ||
	    t.to == NULL)
		goto out;
	for (uint32_t i = 0; i < KEYS; i++)
		t.list[i] = i;
	memset(t.from, 1, COPY_BYTES);
	memset(t.to, 1, COPY_BYTES);
	measure(&t, s);
	rc = 0;
out:
	free(t.to);
	free(t.from);
	free(t.o);
	free(t.q);
	free(t.rows);
	return rc;
}
