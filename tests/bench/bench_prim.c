/*
 * One core: what the CPU backend's arithmetic reaches, beside what the core
 * can do at all (multiply-adds from registers; a read of memory larger than
 * the caches). `bench_prim [seconds per line]`, DCPD_CPU_ISA chooses the set.
 * Run it on an idle machine; each line is the best of its repetitions. Long
 * jobs are timed in pieces, one after the other over all of their memory, so
 * that a busy machine's time slices do not hide the best.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/prim.h"

static const struct dcpc_prims *prims;
static double budget = 0.4;

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Seconds of the fastest call of fn(arg) within the budget. */
static double
best(void (*fn)(void *), void *arg)
{
	double end = now() + budget, t0, t, min = INFINITY;

	do {
		t0 = now();
		fn(arg);
		t = now();
		min = t - t0 < min ? t - t0 : min;
	} while (t < end);
	return min;
}

static void *
mem(size_t bytes)
{
	void *p = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);

	if (p == NULL) {
		fprintf(stderr, "bench_prim: no memory for %zu bytes\n",
		    bytes);
		exit(1);
	}
	return p;
}

static float *
floats(size_t n)
{
	float *x = mem(n * sizeof(*x));
	uint32_t u = 1;
	size_t i;

	for (i = 0; i < n; i++) {
		u = u * 1664525 + 1013904223;
		x[i] = (float)(u >> 8) * 0x1p-23f - 1;
	}
	return x;
}

/* --- limits of the core ------------------------------------------------ */

static volatile float sink;

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void
fma512(void *arg)
{
	__m512 a[16], x = _mm512_set1_ps(0.999f);
	int i, j;

	for (j = 0; j < 16; j++)
		a[j] = _mm512_set1_ps((float)j);
	for (i = 0; i < 1000000; i++) {
		_Pragma("GCC unroll 16") for (j = 0; j < 16; j++)
			a[j] = _mm512_fmadd_ps(a[j], x, x);
	}
	for (j = 1; j < 16; j++)
		a[0] = _mm512_add_ps(a[0], a[j]);
	sink = _mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx2,fma"))) static void
fma256(void *arg)
{
	__m256 a[12], x = _mm256_set1_ps(0.999f);
	int i, j;

	for (j = 0; j < 12; j++)
		a[j] = _mm256_set1_ps((float)j);
	for (i = 0; i < 1000000; i++) {
		_Pragma("GCC unroll 16") for (j = 0; j < 12; j++)
			a[j] = _mm256_fmadd_ps(a[j], x, x);
	}
	for (j = 1; j < 12; j++)
		a[0] = _mm256_add_ps(a[0], a[j]);
	sink = _mm256_cvtss_f32(a[0]);
}
#endif

static double
peak_flops(void)
{
#ifdef __x86_64__
	if (strcmp(prims->isa, "avx512") == 0)
		return 2.0 * 16 * 16 * 1e6 / best(fma512, NULL);
	if (strcmp(prims->isa, "avx2") == 0)
		return 2.0 * 12 * 8 * 1e6 / best(fma256, NULL);
#endif
	return NAN;
}

#define READ_BYTES ((size_t)256 << 20)
#define READ_PIECE ((size_t)4 << 20)

/* The next piece of the memory, by eight streams as gemm reads its rows. */
#ifdef __x86_64__
__attribute__((target("avx2")))
#endif
static void
read_piece(void *arg)
{
	typedef uint64_t v4 __attribute__((vector_size(32)));
	static size_t at;
	const size_t step = READ_PIECE / 8 / sizeof(v4);
	const v4 *p = (const v4 *)(const void *)((const char *)arg + at);
	v4 a = { 0 }, b = { 0 };
	size_t i;

	for (i = 0; i < step; i++) {
		a += p[i] + p[i + step] + p[i + 2 * step] + p[i + 3 * step];
		p += 4 * step;
		b += p[i] + p[i + step] + p[i + 2 * step] + p[i + 3 * step];
		p -= 4 * step;
	}
	a += b;
	sink = (float)a[0];
	at = (at + READ_PIECE) % READ_BYTES;
}

/* --- the lines --------------------------------------------------------- */

struct gemm_job {
	float *y, *x;
	uint32_t m, n0, piece;	/* columns from n0 */
	struct dcpc_mat w;
};

static void
run_gemm(void *arg)
{
	struct gemm_job *j = arg;

	prims->gemm(j->y, j->w.n, j->x, j->w.k, j->m, &j->w, j->n0,
	    j->n0 + j->piece, false);
	j->n0 = (j->n0 + j->piece) % j->w.n;
}

static void
bench_gemm(uint32_t m, uint32_t n, uint32_t k, bool bf16, double peak,
    double bw)
{
	struct gemm_job j = { floats((size_t)m * n), floats((size_t)m * k), m,
	    0, m > 8 ? 240 : 512, { NULL, n, k, k, bf16, false } };
	double t, bytes = (double)n * k * (bf16 ? 2 : 4);
	double flops = 2.0 * m * n * k;
	void *w = mem((size_t)bytes);

	memset(w, 0, (size_t)bytes);
	j.w.data = w;
	t = best(run_gemm, &j) * n / j.piece;
	printf("gemm m %4u n %5u k %5u %s %8.3f ms %7.1f GB/s (%3.0f%%) "
	    "%7.1f GFLOP/s (%3.0f%%)\n", m, n, k, bf16 ? "bf16" : "f32 ",
	    t * 1e3, bytes / t * 1e-9, bytes / t / bw * 100, flops / t * 1e-9,
	    flops / t / peak * 100);
	free(j.y);
	free(j.x);
	free(w);
}

struct attend_job {
	float *o, *lse, *q, *tmp;
	uint32_t heads, n, *list;
	struct dcpc_rows rows;
};

static void
run_attend(void *arg)
{
	struct attend_job *j = arg;

	prims->attend(j->o, j->lse, j->q, j->heads, &j->rows, j->list, j->n,
	    0.1f, j->tmp);
}

static void
bench_attend(uint32_t heads, uint32_t n, enum dcpk_kv fmt, double peak)
{
	static const char *const names[] = { "f32 ", "bf16", "fp8 " };
	const uint32_t c = 512, r = 64;
	struct attend_job j = { floats(heads * c), floats(heads),
	    floats((size_t)heads * (c + r)),
	    mem(dcpc_attend_tmp(heads, c, r) * 4), heads, n, mem(n * 4),
	    { NULL, fmt, c, r } };
	size_t bytes = dcpk_row_bytes(fmt, c, r);
	char *data = mem(n * 2 * bytes);
	double t, flops = 2.0 * heads * n * (2.0 * c + r);
	float *x = floats(c + r);
	uint32_t i;

	for (i = 0; i < 2 * n; i++)
		dcpc_pack_row(data + i * bytes, fmt, x, x + c, c, r);
	for (i = 0; i < n; i++)
		j.list[i] = 2 * i;
	j.rows.data = data;
	t = best(run_attend, &j);
	printf("attend heads %3u keys %4u %s      %8.3f ms "
	    "                    %7.1f GFLOP/s (%3.0f%%)\n", heads, n,
	    names[fmt], t * 1e3, flops / t * 1e-9, flops / t / peak * 100);
	free(j.o);
	free(j.lse);
	free(j.q);
	free(j.tmp);
	free(j.list);
	free(data);
	free(x);
}

struct index_job {
	float *s, *q, *w, *packed, *ks;
	uint32_t heads, dim, n;
	struct dcpc_keys keys;
};

static void
run_scores(void *arg)
{
	struct index_job *j = arg;

	prims->index_scores(j->s, j->q, j->w, j->heads, j->dim, j->packed,
	    j->ks, j->n);
}

static void
run_pack(void *arg)
{
	struct index_job *j = arg;

	prims->index_pack(j->packed, j->ks, 0, 1, &j->keys, 0, j->n);
}

static void
bench_index(uint32_t heads, uint32_t n, double peak)
{
	const uint32_t dim = 128;
	struct index_job j = { floats(n), floats(heads * dim), floats(heads),
	    floats((size_t)n * dim), floats(n), heads, dim, n,
	    { NULL, NULL, DCPK_KV_FP8, dim } };
	double t, flops = 2.0 * heads * n * dim;
	void *data = mem((size_t)n * dim);

	memset(data, 0x31, (size_t)n * dim);
	j.keys.data = data;
	j.keys.scale = floats(n);
	t = best(run_pack, &j);
	printf("index_pack keys %6u fp8           %8.3f ms %7.2f ns a key\n",
	    n, t * 1e3, t / n * 1e9);
	t = best(run_scores, &j);
	printf("index_scores heads %2u keys %6u   %8.3f ms "
	    "                    %7.1f GFLOP/s (%3.0f%%)\n", heads, n, t * 1e3,
	    flops / t * 1e-9, flops / t / peak * 100);
	free(j.s);
	free(j.q);
	free(j.w);
	free(j.packed);
	free(j.ks);
	free(data);
	free((void *)(uintptr_t)j.keys.scale);
}

struct topk_job {
	const float *s[8];
	uint32_t n[8], D, k, *out[8], count[8];
	void *ws;
};

static void
run_topk(void *arg)
{
	struct topk_job *j = arg;

	dcpc_topk(j->s, j->n, j->D, j->k, j->out, j->count, j->ws);
}

static void
bench_topk(uint32_t L, uint32_t D)
{
	struct topk_job j = { .D = D, .k = 2048, .ws = mem(dcpc_topk_ws(D)) };
	float *x = floats((size_t)L * 4);
	uint32_t r, i;
	float *s;
	double t;

	for (r = 0; r < D; r++) {
		j.n[r] = dcpk_shard_len(L, r, D);
		s = mem(j.n[r] * 4);
		for (i = 0; i < j.n[r]; i++)	/* about normal */
			s[i] = x[(i * D + r) * 4] + x[(i * D + r) * 4 + 1] +
			    x[(i * D + r) * 4 + 2] + x[(i * D + r) * 4 + 3];
		j.s[r] = s;
		j.out[r] = mem(j.n[r] * 4);
	}
	t = best(run_topk, &j);
	printf("topk k 2048 of %6u, D %u          %8.3f ms %7.2f ns a score, "
	    "all ranks on this core\n", L, D, t * 1e3, t / L * 1e9);
	for (r = 0; r < D; r++) {
		free((void *)(uintptr_t)j.s[r]);
		free(j.out[r]);
	}
	free(j.ws);
	free(x);
}

struct sample_job {
	struct dcpk_sample s;
	float *z;
	uint32_t V;
	void *ws;
};

static void
run_sample(void *arg)
{
	struct sample_job *j = arg;
	struct dcpk_logprob out;

	dcpc_sample(j->z, j->V, &j->s, NULL, NULL, NULL, &out, NULL, j->ws);
}

static void
bench_sample(uint32_t V, uint32_t flags, float top_p)
{
	struct sample_job j = { { .flags = flags, .temperature = 1,
	    .top_p = top_p, .repetition = 1 }, floats(V), V,
	    mem(dcpc_sample_ws(V)) };
	uint32_t i;

	for (i = 0; i < V; i++)		/* few are likely */
		j.z[i] *= 20 * j.z[i] * j.z[i];
	printf("sample V %6u %s top_p %.2f    %8.3f ms\n", V,
	    flags ? "greedy" : "drawn ", (double)top_p,
	    best(run_sample, &j) * 1e3);
	free(j.z);
	free(j.ws);
}

int
main(int argc, char **argv)
{
	static const uint32_t ms[] = { 1, 4, 32, 512 };
	double peak, bw;
	void *p;
	size_t i;

	prims = dcpc_prims_pick();
	if (prims == NULL) {
		fprintf(stderr, "bench_prim: DCPD_CPU_ISA names no set that "
		    "this CPU has\n");
		return 1;
	}
	if (argc > 1)
		budget = strtod(argv[1], NULL);
	p = mem(READ_BYTES);
	memset(p, 1, READ_BYTES);
	bw = (double)READ_PIECE / best(read_piece, p);
	free(p);
	peak = peak_flops();
	printf("%s: reads %.1f GB/s, multiply-adds %.1f GFLOP/s on one core\n",
	    prims->isa, bw * 1e-9, peak * 1e-9);
	for (i = 0; i < 4; i++)
		bench_gemm(ms[i], ms[i] > 100 ? 960 : 7680, 6144, true, peak,
		    bw);
	for (i = 0; i < 4; i++)
		bench_gemm(ms[i], ms[i] > 100 ? 960 : 7680, 2048, false, peak,
		    bw);
	bench_gemm(64, 2048, 192, false, peak, bw);
	bench_attend(8, 2048, DCPK_KV_BF16, peak);
	bench_attend(64, 256, DCPK_KV_FP8, peak);
	bench_attend(64, 2048, DCPK_KV_FP8, peak);
	bench_attend(64, 2048, DCPK_KV_F32, peak);
	bench_attend(128, 2048, DCPK_KV_FP8, peak);
	bench_index(32, 16384, peak);
	bench_index(64, 16384, peak);
	bench_topk(4096, 1);
	bench_topk(131072, 1);
	bench_topk(131072, 8);
	bench_sample(154880, DCPK_S_GREEDY, 1);
	bench_sample(154880, 0, 1);
	bench_sample(154880, 0, 0.95f);
	return 0;
}
