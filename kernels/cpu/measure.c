/*
 * The constants of the prefill choice, measured at start (about 60 ms): bytes
 * copied between ranks, attention's multiply-adds with many and few heads, and
 * the phase boundary that an exchange between ranks costs here.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/ctx.h"

enum { KEYS = 256 };
static const double BUDGET_S = 0.015;

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double
attend_rate(struct dcpk_ctx *c, uint32_t heads, const uint8_t *rows,
    const float *q, float *o, const uint32_t *list)
{
	const struct dcpk_model *m = &c->s.model;
	struct dcpc_rows r = { rows, c->s.kv, m->kv_lora, m->rope };
	float lse[1024];
	double t0 = now(), t;
	uint32_t n = 0;

	do {
		c->p->attend(o, lse, q, heads, &r, list, KEYS, m->attn_scale,
		    c->thread[0].attend);
		n++;
		t = now() - t0;
	} while (t < BUDGET_S);
	/* every worker does the same beside it */
	return (double)n * heads * KEYS * (2.0 * m->kv_lora + m->rope) * 2 /
	    t * c->threads;
}

static void
nothing(void *arg, uint32_t task, uint32_t thread)
{
}

static double
phase_seconds(struct dcpk_ctx *c)
{
	double t0 = now(), t;
	uint32_t n = 0;

	do {
		dcpc_workers_run(c->workers, 2 * c->threads, nothing, NULL);
		n++;
		t = now() - t0;
	} while (t < BUDGET_S);
	return t / n;
}

int
dcpc_measure(struct dcpk_ctx *c, struct dcpk_speed *s)
{
	const struct dcpk_model *m = &c->s.model;
	size_t bytes = (size_t)KEYS * c->row_bytes, n = 0, copy = 4u << 20;
	uint8_t *rows = calloc(1, bytes), *a = malloc(copy), *b = malloc(copy);
	float *q = calloc((size_t)m->heads * (m->kv_lora + m->rope), 4);
	float *o = calloc((size_t)m->heads * m->kv_lora, 4);
	uint32_t list[KEYS], i;
	double t0, t;
	int rc = -ENOMEM;

	if (rows == NULL || a == NULL || b == NULL || q == NULL || o == NULL)
		goto out;
	for (i = 0; i < KEYS; i++)
		list[i] = i;
	memset(a, 1, copy);
	memset(b, 1, copy);
	t0 = now();
	do {
		memcpy(n & 1 ? a : b, n & 1 ? b : a, copy);
		n++;
		t = now() - t0;
	} while (t < BUDGET_S);
	s->copy_bytes_s = (double)n * (double)copy / t;
	s->attend_flops_s = attend_rate(c, m->heads / c->groups, rows, q, o,
	    list);
	s->attend_own_flops_s = attend_rate(c,
	    m->heads / c->s.topo.attn_tp / c->s.topo.cp, rows, q, o, list);
	s->call_s = phase_seconds(c);
	rc = 0;
out:
	free(rows);
	free(a);
	free(b);
	free(q);
	free(o);
	return rc;
}
