/*
 * The floor of a decode step: every weight that the step needs and every row
 * and index key that it reads, once each, at the memory bandwidth measured
 * here, in the readers' own processor time. A step that reaches it does
 * nothing but read. A small model stays in the caches between steps, so a
 * second floor is printed: the same bytes at the bandwidth of a buffer of just
 * that size, read again and again.
 *
 *   floor --model DIR [--streams N] [--context L] [--kv f32|bf16|fp8]
 *         [--threads N] [--step-ms MS]
 *
 * With --step-ms (a measured step) it also prints how many times the floor
 * that is. Weights count as the CPU keeps them: bf16 matrices as bf16, norms
 * and the router as f32. Of the experts a step of N streams reads
 * E * (1 - (1 - K/E)^N), as if every stream chose at random.
 */
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "dcpd/kv/memplan.h"
#include "dcpd/model/model.h"

#define BUF ((size_t)1 << 30)		/* per thread: beyond large caches */

struct reader {
	pthread_t thread;
	pthread_barrier_t *go;
	uint64_t *buf, sum;
	size_t bytes;
	int rounds;
	double seconds;
};

__attribute__((target_clones("avx512f", "avx2", "default")))
static uint64_t
read_all(const uint64_t *p, size_t n)
{
	uint64_t a = 0;

	for (size_t i = 0; i < n; i++)
		a += p[i];
	return a;
}

/* Of this thread: what other programs take is not in it. */
static double
own_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *
reader_run(void *arg)
{
	struct reader *r = arg;
	double t;

	pthread_barrier_wait(r->go);
	r->sum = read_all(r->buf, r->bytes / 8);	/* warm TLBs */
	pthread_barrier_wait(r->go);
	t = own_seconds();
	for (int i = 0; i < r->rounds; i++) {
		__asm__ volatile("" ::: "memory");
		r->sum += read_all(r->buf, r->bytes / 8);
	}
	r->seconds = own_seconds() - t;
	return NULL;
}

/* Bytes a second of `threads` readers of `bytes` each, together. */
static double
bandwidth(unsigned threads, size_t bytes)
{
	int rounds = (int)(4 * BUF / bytes);
	struct reader *r = calloc(threads, sizeof(*r));
	pthread_barrier_t go;
	double slowest = 0;

	if (r == NULL || pthread_barrier_init(&go, NULL, threads) != 0)
		exit(1);
	for (unsigned i = 0; i < threads; i++) {
		r[i].go = &go;
		r[i].bytes = bytes;
		r[i].rounds = rounds;
		r[i].buf = malloc(bytes);
		if (r[i].buf == NULL)
			exit(1);
		memset(r[i].buf, (int)i + 1, bytes);
		if (pthread_create(&r[i].thread, NULL, reader_run, &r[i]) != 0)
			exit(1);
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(r[i].thread, NULL);
		if (r[i].seconds > slowest)
			slowest = r[i].seconds;
		free(r[i].buf);
	}
	pthread_barrier_destroy(&go);
	free(r);
	return (double)threads * rounds * (double)bytes / slowest;
}

/* Bytes of weights that a step of n streams reads. */
static double
weight_bytes(const struct dcpk_model *m, double n)
{
	double H = m->hidden, heads = m->heads, total = 0;
	double expert = 3.0 * m->moe_inter * H * 2;
	double hit = m->experts == 0 ? 0 : m->experts * (1 -
	    pow(1 - (double)m->experts_tok / m->experts, n));

	for (uint32_t l = 0; l < m->layers; l++) {
		total += 2 * H * m->q_lora + 2.0 * m->q_lora * heads *
		    (m->nope + m->rope);
		total += 2 * H * (m->kv_lora + m->rope);
		total += 2.0 * m->kv_lora * heads * (m->nope + m->vdim);
		total += 2 * heads * m->vdim * H;
		if (m->full[l])
			total += 2.0 * m->q_lora * m->idx_heads * m->idx_dim +
			    2 * H * (m->idx_dim + m->idx_heads);
		if (m->sparse[l])
			total += hit * expert + m->shared_experts * expert +
			    4.0 * H * m->experts;
		else
			total += 3.0 * 2 * H * m->inter;
		total += 4 * (2 * H + m->q_lora + m->kv_lora);
	}
	return total + 2 * H * m->vocab + n * 2 * H;
}

/* Bytes of rows and index keys that one stream's token reads. */
static double
context_bytes(const struct dcpk_model *m, enum dcpk_kv kv, double L)
{
	enum dcpk_kv idx = dcpd_index_format(kv, m);
	double rows = fmin(L, m->topk), total = 0;

	for (uint32_t l = 0; l < m->layers; l++) {
		total += rows * dcpk_row_bytes(kv, m->kv_lora, m->rope);
		if (m->full[l] && L > m->topk)
			total += L * dcpk_index_bytes(idx, m->idx_dim);
	}
	return total;
}

static enum dcpk_kv
kv_of(const char *s)
{
	if (strcmp(s, "f32") == 0)
		return DCPK_KV_F32;
	if (strcmp(s, "bf16") == 0)
		return DCPK_KV_BF16;
	if (strcmp(s, "fp8") == 0)
		return DCPK_KV_FP8;
	fprintf(stderr, "floor: --kv %s: f32, bf16 or fp8\n", s);
	exit(2);
}

int
main(int argc, char **argv)
{
	static const struct option opts[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "streams", required_argument, NULL, 'n' },
		{ "context", required_argument, NULL, 'l' },
		{ "kv", required_argument, NULL, 'k' },
		{ "threads", required_argument, NULL, 't' },
		{ "step-ms", required_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 }
	};
	const char *model = NULL;
	double n = 1, L = 128, step_ms = 0, w, c, bw[2], ms[2];
	enum dcpk_kv kv = DCPK_KV_BF16;
	long threads = sysconf(_SC_NPROCESSORS_ONLN);
	struct dcpd_model_config cfg;
	struct dcpd_err err;
	int o;

	while ((o = getopt_long(argc, argv, "", opts, NULL)) != -1)
		switch (o) {
		case 'm': model = optarg; break;
		case 'n': n = atof(optarg); break;
		case 'l': L = atof(optarg); break;
		case 'k': kv = kv_of(optarg); break;
		case 't': threads = atol(optarg); break;
		case 's': step_ms = atof(optarg); break;
		default: return 2;
		}
	if (model == NULL || n < 1 || L < 1 || threads < 1 ||
	    optind != argc) {
		fprintf(stderr, "floor: give --model DIR; see the head of "
		    "tests/bench/floor.c\n");
		return 2;
	}
	if (dcpd_config_load(model, false, &cfg, &err) != 0) {
		fprintf(stderr, "floor: %s\n", err.text);
		return 1;
	}
	w = weight_bytes(&cfg.m, n);
	c = n * context_bytes(&cfg.m, kv, L);
	bw[0] = bandwidth((unsigned)threads, BUF);
	bw[1] = bandwidth((unsigned)threads, (size_t)((w + c) /
	    (double)threads) & ~(size_t)63);
	printf("step of %.0f streams at context %.0f: weights %.2f MB, rows "
	    "and index keys %.2f MB\n", n, L, w / 1e6, c / 1e6);
	for (int i = 0; i < 2; i++) {
		ms[i] = (w + c) / bw[i] * 1e3;
		printf("%s: %.1f GB/s with %ld threads, floor %.3f ms",
		    i == 0 ? "memory" : "these bytes kept in caches",
		    bw[i] / 1e9, threads, ms[i]);
		if (step_ms > 0)
			printf(", the step's %.3f ms are %.2f times that",
			    step_ms, step_ms / ms[i]);
		printf("\n");
	}
	dcpd_config_free(&cfg);
	return 0;
}
