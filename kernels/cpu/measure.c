/*
 * What is measured at start. The constants of the prefill choice (about 60 ms):
 * bytes copied between ranks, attention's multiply-adds with many and few
 * heads, and the phase boundary that an exchange between ranks costs here. Then
 * what a floor rests on (about 30 ms): all workers read the weights, each once,
 * and all do nothing but multiply-adds.
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

/* --- floors -------------------------------------------------------------- */

#define PIECE_BYTES ((size_t)256 << 10)
#define READ_MOST ((size_t)256 << 20)	/* beyond caches */
enum { FMA_ROUNDS = 8192, SHARES = 8, FLOOR_TRIALS_MIN = 3 };
static const double FLOOR_BUDGET_S = 0.03;

typedef uint64_t words __attribute__((vector_size(16)));

struct piece {
	const char *data;
	size_t bytes;			/* a multiple of 64 */
};

struct pieces {
	const struct dcpc_prims *p;
	struct piece *v;
	size_t n, cap, bytes;
	uint32_t shares;		/* tasks of one reading */
};

static int
add_piece(struct pieces *s, const char *data, size_t bytes)
{
	struct piece *v = s->v;

	if (s->n == s->cap) {
		s->cap = s->cap * 2 + 64;
		v = realloc(v, s->cap * sizeof *v);
		if (v == NULL)
			return -ENOMEM;
		s->v = v;
	}
	v[s->n++] = (struct piece){ data, bytes };
	s->bytes += bytes;
	return 0;
}

static int
add_mat(struct pieces *s, const struct dcpc_mat *m)
{
	size_t left = (size_t)m->n * m->k * (m->bf16 ? 2 : 4) / 64 * 64;
	const char *data = m->data;
	size_t bytes;
	int rc = 0;

	while (rc == 0 && data != NULL && left > 0 && s->bytes < READ_MOST) {
		bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
		rc = add_piece(s, data, bytes);
		data += bytes;
		left -= bytes;
	}
	return rc;
}

static int
add_weights(struct pieces *s, struct dcpk_ctx *c)
{
	struct dcpc_mats mats[DCPC_LAYER_MATS];
	uint32_t l, i, j;
	int rc = 0;

	for (l = 0; l < c->s.model.layers; l++) {
		dcpc_layer_mats(c, &c->layer[l], mats);
		for (i = 0; i < DCPC_LAYER_MATS; i++)
			for (j = 0; rc == 0 && j < mats[i].n; j++)
				rc = add_mat(s, &mats[i].w[j].m);
	}
	for (j = 0; rc == 0 && j < c->W; j++)
		rc = add_mat(s, &c->lm_head[j].m);
	return rc;
}

static void
read_share(void *arg, uint32_t task, uint32_t thread)
{
	const struct pieces *s = arg;
	size_t i = s->n * task / s->shares, end = s->n * (task + 1) / s->shares;
	words a = { 0 }, b = a, c = a, d = a;
	volatile uint64_t sink;

	for (; i < end; i++) {
		const char *p = __builtin_assume_aligned(s->v[i].data, 64);
		const char *to = p + s->v[i].bytes;

		for (; p < to; p += 64) {
			const words *w = (const void *)p;

			a += w[0];
			b += w[1];
			c += w[2];
			d += w[3];
		}
	}
	a += b + c + d;
	sink = a[0] + a[1];		/* needed, so all of it is read */
	(void)sink;
}

static void
fma_share(void *arg, uint32_t task, uint32_t thread)
{
	const struct pieces *s = arg;
	volatile float sink = s->p->fma((float)task, FMA_ROUNDS);

	(void)sink;
}

static double
run_seconds(struct dcpk_ctx *c, struct pieces *s, dcpc_task_fn *fn)
{
	double t0 = now();

	dcpc_workers_run(c->workers, s->shares, fn, s);
	return now() - t0;
}

static int
measure_floors(struct dcpk_ctx *c, struct dcpk_speed *v)
{
	struct pieces s = { .p = c->p, .shares = SHARES * c->threads };
	double until = used() + FLOOR_BUDGET_S, end = now() + BUDGET_MOST_S;
	double read = INFINITY, fma = INFINITY;
	int rc = add_weights(&s, c);

	for (uint32_t n = 0; rc == 0 && (n < FLOOR_TRIALS_MIN ||
	    (used() < until && now() < end)); n++) {
		read = least(read, run_seconds(c, &s, read_share));
		fma = least(fma, run_seconds(c, &s, fma_share));
	}
	free(s.v);
	if (rc != 0)
		return rc;
	v->read_bytes_s = (double)s.bytes / read;
	v->flops_s = 2.0 * FMA_ROUNDS * c->p->fma_round * s.shares / fma;
	return 0;
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
	rc = measure_floors(c, s);
out:
	free(t.to);
	free(t.from);
	free(t.o);
	free(t.q);
	free(t.rows);
	return rc;
}
