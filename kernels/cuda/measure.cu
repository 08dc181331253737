/*
 * What the choice of a prefill way rests on: copies between ranks are measured
 * once, at start; the rates of attention are those of kernel_bench.
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
	static const double fp8[] = { 71e12, 123e12, 274e12, 366e12, 392e12 };
	static const double bf16[] = { 43e12, 83e12, 157e12, 338e12, 365e12 };
	uint32_t lg = 3;

	while (lg < 7 && heads > 1u << lg)
		lg++;
	if (heads != 1u << lg || c->s.model.kv_lora != DCPG_LATENT ||
	    c->s.model.rope != DCPG_ROPE)
		return 4e12;
	return (c->s.kv == DCPK_KV_FP8 ? fp8 : bf16)[lg - 3];
}

int
dcpg_measure(dcpk_ctx *c, dcpk_speed *s)
{
	dcpg_rank *a = &c->r[0], *b = &c->r[c->W - 1];
	cudaEvent_t t0, t1;
	size_t bytes = std::min(c->got[a->id].rows, (size_t)64 << 20);
	float ms = 0;

	cudaSetDevice(a->dev);
	cudaEventCreate(&t0);
	cudaEventCreate(&t1);
	for (int i = 0; i < 2; i++) {
		cudaEventRecord(t0, a->st);
		cudaMemcpyAsync(a->rows, b->rows, bytes, cudaMemcpyDefault,
		    a->st);
		cudaEventRecord(t1, a->st);
		cudaEventSynchronize(t1);
	}
	cudaEventElapsedTime(&ms, t0, t1);
	cudaEventDestroy(t0);
	cudaEventDestroy(t1);
	s->copy_bytes_s = (double)bytes / (ms * 1e-3 + 1e-9);
	s->attend_flops_s = attend_rate(c, c->Hg);
	s->attend_own_flops_s = attend_rate(c, c->Hr);
	s->call_s = 10e-6;
	return dcpg_ok(cudaGetLastError(), "measure");
}
