/*
 * What a step costs beside its passes: the time from the end of one pass to
 * the beginning of the next, with N streams in decode and a prefix cache of M
 * pages that is full, so that every page a stream grows by is an eviction.
 *
 * usage: bench_sched [RUNNING [CACHED_PAGES [STEPS [PASS_US]]]]
 * PASS_US: how long a pass takes [5000]. The text workers have that long for
 * the tokens of the one before; with 0 they and the step thread are always at
 * it together, which no model does.
 * prints one line of JSON: nanoseconds of a step, at the median and so on; of
 * the steps that took a page and of those that did not; of the one that let in
 * a request of a whole cached prompt; and of a cancellation. cpu is what of a
 * step the step thread spent on a processor: the rest it waited, for a lock or
 * because others had the processors.
 *
 * No model and no clients' memory: events go to the fake of sched_fake.c.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "tests/unit/sched_fake.h"

#define TEXT_PAGES 1024u	/* of one cached text */
#define TEXT (TEXT_PAGES * DCPD_PAGE_TOKENS)
#define VOCAB 100000u

static struct dcpd_engine null_engine, engine;
static struct dcpd_sched *S;
static struct dcpd_client *client;
static uint64_t left, left_cpu, *gap, *cpu, evictions;
static uint8_t *evicted;	/* the step of this gap took a page */
static _Atomic uint32_t n_gap, cap_gap;
static _Atomic bool measure;

static uint64_t
cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Step thread. */
static int
step(void *self, const struct dcpk_plan *p, struct dcpk_result *r,
    struct dcpd_err *err)
{
	uint64_t now = dcpd_now_ns(), e = DCPD_COUNTER(evictions);
	int rc;

	if (measure && p->pass == DCPK_DECODE && left != 0 &&
	    n_gap < cap_gap) {
		gap[n_gap] = now - left;
		cpu[n_gap] = cpu_ns() - left_cpu;
		evicted[n_gap] = e != evictions;
		n_gap++;
	}
	evictions = e;
	rc = null_engine.step(null_engine.self, p, r, err);
	/* A pass behind this one would be measured, too. */
	left_cpu = cpu_ns();
	left = p->pass == DCPK_DECODE ? dcpd_now_ns() : 0;
	return rc;
}

static uint64_t
submit(const uint32_t *ids, uint32_t n, uint32_t max)
{
	struct fk_req q = { .ids = ids, .n = n, .max_tokens = max,
		.flags = DCP_IGNORE_EOS };
	struct dcpd_err err = { 0 };
	uint64_t id;

	if (fk_submit(S, client, &q, &id, &err) != 0) {
		fprintf(stderr, "bench_sched: %s\n", err.text);
		exit(1);
	}
	return id;
}

static int
by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void
print_gaps(const char *name, const uint64_t *of, int which)
{
	uint64_t *v = malloc((n_gap + 1u) * sizeof *v), n = 0;

	for (uint32_t i = 0; i < n_gap; i++)
		if (which < 0 || evicted[i] == which)
			v[n++] = of[i];
	qsort(v, n, sizeof *v, by_size);
	printf("\"%s\": {\"n\": %llu", name, (unsigned long long)n);
	if (n > 0)
		printf(", \"p10_ns\": %llu, \"p50_ns\": %llu, \"p99_ns\": %llu",
		    (unsigned long long)v[n / 10],
		    (unsigned long long)v[n / 2],
		    (unsigned long long)v[n * 99 / 100]);
	printf("}, ");
	free(v);
}

static void
start(uint32_t running, uint32_t pages, unsigned pass_us,
    struct dcpd_textpool **pool)
{
	struct dcpd_sched_config c = { .engine = &engine, .way = -1,
		.queue_max = 1000000 };
	struct dcpd_err err = { 0 };

	if (dcpd_null_engine(&null_engine, VOCAB, TEXT + 4096, pages, 1,
	    pass_us) ||
	    dcpd_textpool_start(2, pool, &err) != 0)
		exit(1);
	engine = null_engine;
	engine.step = step;
	engine.close = NULL;
	engine.chunk = 65536;
	engine.max_running = running + 1;
	c.pool = *pool;
	if (dcpd_sched_start(&c, &S, &err) != 0) {
		fprintf(stderr, "bench_sched: %s\n", err.text);
		exit(1);
	}
	client = fk_client(1);
}

static void
wait_for(const char *key, int64_t n)
{
	for (;;) {
		json_t *o = dcpd_sched_status(S);
		int64_t is = json_integer_value(json_object_get(o, key));

		json_decref(o);
		if (is >= n)
			return;
		usleep(20000);
	}
}

static uint64_t
cancel_ns(uint64_t id)
{
	uint64_t t = dcpd_now_ns();

	dcpd_sched_ipc_ops.cancel(S, client, id);
	return dcpd_now_ns() - t;
}

int
main(int argc, char **argv)
{
	uint32_t running = argc > 1 ? (uint32_t)atoi(argv[1]) : 256;
	uint32_t pages = argc > 2 ? (uint32_t)atoi(argv[2]) : 100000;
	uint32_t steps = argc > 3 ? (uint32_t)atoi(argv[3]) : 1000;
	unsigned pass_us = argc > 4 ? (unsigned)atoi(argv[4]) : 5000;
	uint32_t texts = pages / TEXT_PAGES, *ids = NULL;
	uint64_t *id = calloc(running, sizeof *id), t;
	struct dcpd_textpool *pool;

	if (running == 0 || texts == 0 || steps == 0) {
		fprintf(stderr, "usage: bench_sched [RUNNING [CACHED_PAGES, "
		    "%u or more [STEPS [PASS_US]]]]\n", TEXT_PAGES);
		return 2;
	}
	gap = calloc(steps, sizeof *gap);
	cpu = calloc(steps, sizeof *cpu);
	evicted = calloc(steps, 1);
	start(running, texts * TEXT_PAGES, pass_us, &pool);
	for (uint32_t i = 0; i < texts; i++) {
		free(ids);
		ids = fk_prompt(VOCAB, TEXT, i);
		fk_wait(submit(ids, TEXT, 1));
	}
	/* ids: the text that was used last, so the last to go. */
	for (uint32_t i = 0; i < running; i++)
		id[i] = submit(ids, 64 + i % 64, 4000);
	wait_for("running", running);
	cap_gap = steps;
	measure = true;
	while (n_gap < steps)
		usleep(1000);
	printf("{\"running\": %u, \"cached_pages\": %u, \"pass_us\": %u, ",
	    running, texts * TEXT_PAGES, pass_us);
	print_gaps("step", gap, -1);
	print_gaps("cpu", cpu, -1);
	print_gaps("with_eviction", gap, 1);
	print_gaps("without", gap, 0);
	/* A prompt that is all there: looked up and held in one step. */
	t = DCPD_COUNTER(prefix_hit_tokens);
	n_gap = 0;
	fk_wait(submit(ids, TEXT, 2));
	while (n_gap < steps)
		usleep(1000);
	qsort(gap, n_gap, sizeof *gap, by_size);
	printf("\"hit_tokens\": %llu, \"with_its_admission_ns\": %llu, ",
	    (unsigned long long)(DCPD_COUNTER(prefix_hit_tokens) - t),
	    (unsigned long long)gap[n_gap - 1]);
	t = cancel_ns(id[0]);
	printf("\"cancel_ns\": %llu}\n", (unsigned long long)t);
	fflush(stdout);
	_exit(0);	/* nothing of the rest is measured */
}
