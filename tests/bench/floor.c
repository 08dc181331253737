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
 * that is. The bytes are those of dcpd/model/floor.c for one rank on the CPU;
 * `dcpctl bench` has them for a daemon's layout, by the clock.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "dcpd/kv/memplan.h"
#include "dcpd/model/floor.h"

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

static void
step_bytes(const struct dcpd_model_config *cfg, enum dcpk_kv kv, double n,
    double L, double *weights, double *context)
{
	const struct dcpk_topo one = { 1, 1, 1, 1, 0 };
	struct dcpd_floor_of of = { cfg, &one, true, 0, kv,
		dcpd_index_format(kv, &cfg->m) };
	struct dcpd_pass pass = { n, 1, L - 1 };
	struct dcpk_speed none = { 0 };
	struct dcpd_floor f;

	dcpd_floor(&of, &none, &pass, &f);
	*weights = f.weights;
	*context = f.rows + f.keys;
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
	step_bytes(&cfg, kv, n, L, &w, &c);
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
