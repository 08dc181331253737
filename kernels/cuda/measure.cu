/*
 * What the choice of a prefill way rests on: copies between ranks are measured
 * once, at start; the rates of attention are those of kernel_bench. And what
 * floors rest on (dcpd/model/floor.c): how fast each device reads its memory,
 * and how fast it multiplies.
 */
#include <algorithm>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"

/* Flops a second of attention with so many heads, 128 rows and 2048 keys
 * (doc/cuda.md); of the plain kernel, for what attend.cu does not have, an
 * assumption. */
static double
attend_rate(const dcpk_ctx *c, uint32_t heads)
{
	static const double fp8[] = { 74e12, 170e12, 313e12, 382e12, 415e12 };
	static const double bf16[] = { 44e12, 114e12, 207e12, 413e12, 474e12 };
	uint32_t lg = 3;

	while (lg < 7 && heads > 1u << lg)
		lg++;
	if (heads != 1u << lg || c->s.model.kv_lora != DCPG_LATENT ||
	    c->s.model.rope != DCPG_ROPE)
		return 4e12;
	return (c->s.kv == DCPK_KV_FP8 ? fp8 : bf16)[lg - 3];
}

/* --- floors --- */

enum { THREADS = 512, DEEP = 8, TRIALS = 5 };
static const size_t READ_MOST = (size_t)1 << 30;	/* 20 times the L2 */
static const float LONG_MS = 1;		/* a product that loads the device */
static const double SM_FLOPS = 4096;	/* of an SM of sm_90 a clock, bf16 */

/* n blocks' worth of 16 bytes each; `never` makes the loads needed. */
__global__ void __launch_bounds__(THREADS)
read_all(const uint4 *p, size_t n, uint32_t *never)
{
	const size_t step = (size_t)gridDim.x * THREADS * DEEP;
	size_t i = (size_t)blockIdx.x * THREADS * DEEP + threadIdx.x;
	uint4 v[DEEP];
	uint32_t a = 0, b = 0;

	for (; i + (DEEP - 1) * THREADS < n; i += step) {
#pragma unroll
		for (int j = 0; j < DEEP; j++)
			v[j] = __ldcs(p + i + j * THREADS);
#pragma unroll
		for (int j = 0; j < DEEP; j++) {
			a += v[j].x ^ v[j].y;
			b += v[j].z ^ v[j].w;
		}
	}
	if (a == 0x9e3779b9 && b == 0x7f4a7c15)
		*never = a;
}

static int
enqueue_read(dcpk_ctx *c, dcpg_rank *r, size_t *work)
{
	/* whole rounds of a block */
	size_t round = (size_t)THREADS * DEEP;
	size_t n = std::min(c->got[r->id].rows, (uint64_t)READ_MOST) / 16 /
	    round * round;
	int sms = 0;

	cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r->dev);
	*work = n * 16;
	read_all<<<4 * sms, THREADS, 0, r->st>>>((const uint4 *)r->rows, n,
	    (uint32_t *)r->ya);
	return DCPG_LAUNCHED("read_all");
}

/*
 * The head, as much of it as y has room for, with rows of the embedding, which
 * are there and no zeros: bf16 whatever the others are kept in. Flops.
 */
static int
enqueue_product(dcpk_ctx *c, dcpg_rank *r, size_t *work)
{
	const dcpk_model *m = &c->s.model;
	dcpg_prod p = {};

	p.w = r->lm_head.w;
	p.x = r->embed.w;
	p.y = r->ya;			/* [M][hidden] f32 */
	p.m = std::min(c->s.max_prefill, m->vocab);
	p.n = std::min(r->lm_head.n, 2 * m->hidden) / 8 * 8;
	p.k = p.ldw = p.ldx = m->hidden;
	p.ldy = p.n;
	*work = (size_t)2 * p.m * p.n * p.k;
	return dcpg_product(r, &p);
}

/* What the tensor cores do at most, by the device's clock. */
static double
peak(int dev)
{
	int sms = 0, khz = 0;

	cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, dev);
	cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, dev);
	return SM_FLOPS * sms * khz * 1e3;
}

/* Work a second, the best of some trials, which took *best ms; 0: there is
 * nothing to do. */
static int
rate_of(dcpk_ctx *c, dcpg_rank *r, double *rate, float *best,
    int (*enqueue)(dcpk_ctx *, dcpg_rank *, size_t *work))
{
	cudaEvent_t t0, t1;
	size_t work = 0;
	float ms;
	int rc = 0;

	*rate = *best = 0;
	cudaEventCreate(&t0);
	cudaEventCreate(&t1);
	for (int i = 0; rc == 0 && i < TRIALS; i++) {
		cudaEventRecord(t0, r->st);
		rc = enqueue(c, r, &work);
		cudaEventRecord(t1, r->st);
		if (rc == 0)
			rc = dcpg_wait_event(c, t1, "measuring");
		if (rc == 0 &&
		    cudaEventElapsedTime(&ms, t0, t1) == cudaSuccess &&
		    ms > 0 && work / (ms * 1e-3) > *rate) {
			*rate = work / (ms * 1e-3);
			*best = ms;
		}
	}
	if (rc != 0)		/* nothing is closed then */
		return rc;
	cudaEventDestroy(t0);
	cudaEventDestroy(t1);
	return dcpg_ok(cudaGetLastError(), "measure");
}

/* The first rank of each device measures it; together is their sum. A small
 * model's product says nothing of the device: then it is the most it can do. */
static int
floor_rates(dcpk_ctx *c, dcpk_speed *s)
{
	double read = 0, flops = 0;
	float ms = 0;
	int rc = 0;

	s->read_bytes_s = s->flops_s = 0;
	for (uint32_t i = 0; rc == 0 && i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		bool seen = false;

		for (uint32_t j = 0; j < i; j++)
			seen = seen || c->r[j].dev == r->dev;
		if (seen)
			continue;
		cudaSetDevice(r->dev);
		rc = rate_of(c, r, &read, &ms, enqueue_read);
		if (rc == 0)
			rc = rate_of(c, r, &flops, &ms, enqueue_product);
		if (ms < LONG_MS)
			flops = std::max(flops, peak(r->dev));
		if (rc == 0) {
			s->read_bytes_s += read;
			s->flops_s += flops;
		}
	}
	return rc;
}

int
dcpg_measure(dcpk_ctx *c, dcpk_speed *s)
{
	dcpg_rank *a = &c->r[0], *b = &c->r[c->W - 1];
	cudaEvent_t t0, t1;
	size_t bytes = std::min(c->got[a->id].rows, (size_t)64 << 20);
	float ms = 0;
	int rc = 0;

	cudaSetDevice(a->dev);
	cudaEventCreate(&t0);
	cudaEventCreate(&t1);
	for (int i = 0; rc == 0 && i < 2; i++) {
		dcpg_copy one = { b->id, a->id, b->rows, a->rows, bytes };

		cudaSetDevice(a->dev);
		cudaEventRecord(t0, a->st);
		rc = c->mirrored ? dcpg_nccl_copy(c, &one, 1) :
		    dcpg_ok(cudaMemcpyAsync(a->rows, b->rows, bytes,
		    cudaMemcpyDefault, a->st), "measuring a copy");
		cudaEventRecord(t1, a->st);
		rc |= dcpg_wait_event(c, t1, "measuring a copy");
	}
	if (rc != 0)		/* nothing is closed then */
		return rc;
	cudaEventElapsedTime(&ms, t0, t1);
	cudaEventDestroy(t0);
	cudaEventDestroy(t1);
	s->copy_bytes_s = (double)bytes / (ms * 1e-3 + 1e-9);
	s->attend_flops_s = attend_rate(c, c->Hg);
	s->attend_own_flops_s = attend_rate(c, c->Hr);
	s->call_s = 10e-6;
	return floor_rates(c, s);
}
