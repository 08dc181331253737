/*
 * Linear layers: bf16 in, f32 accumulation, through cuBLASLt. A plan is found
 * once per shape and kept. Shapes that cuBLASLt has no algorithm for (slices
 * of a few columns, rows that are not 16-byte aligned) take a plain kernel.
 *
 * FP8: the weight is e4m3 with a scale for each 128 x 128, in rows of a
 * multiple of four; x comes as dcpg_codes, which nearly always the kernel that
 * made x has written. cuBLASLt wants the number of rows to be a multiple of
 * four too: what fills up is zero.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rowops.cuh"
#include "kernels/keep.h"

/* Of prefill every number of rows has its own: all start anew at so many. */
static const size_t MOST_PLANS = 4096;

typedef std::tuple<int, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
    uint32_t, uint32_t, int64_t, int64_t, int64_t, bool, bool> shape;

struct found {
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t a, b, d;
	cublasLtMatmulAlgo_t algo;
	bool ok;
};

static std::map<shape, found> plans;
static std::mutex plans_lock;

static cublasLtMatrixLayout_t
layout(cudaDataType_t t, uint64_t rows, uint64_t cols, int64_t ld,
    int32_t batch, int64_t stride)
{
	cublasLtMatrixLayout_t l;

	cublasLtMatrixLayoutCreate(&l, t, rows, cols, ld);
	if (batch > 1) {
		cublasLtMatrixLayoutSetAttribute(l,
		    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
		cublasLtMatrixLayoutSetAttribute(l,
		    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
		    sizeof stride);
	}
	return l;
}

static void
scale_pointers(const found *f, const void *ws, const void *xs)
{
	cublasLtMatmulDescSetAttribute(f->op,
	    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ws, sizeof ws);
	cublasLtMatmulDescSetAttribute(f->op,
	    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &xs, sizeof xs);
}

/* Without pointers the heuristic finds nothing: it checks that they are set. */
static void
block_scales(const found *f, const void *ws, const void *xs)
{
	int32_t w = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
	int32_t x = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;

	cublasLtMatmulDescSetAttribute(f->op,
	    CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w, sizeof w);
	cublasLtMatmulDescSetAttribute(f->op,
	    CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x, sizeof x);
	scale_pointers(f, ws, xs);
}

/* Four columns of a row a thread, four times. */
__global__ void __launch_bounds__(256)
quantise_rows(const bf16 *x, uint32_t m, uint32_t k, struct dcpg_codes y)
{
	uint32_t row = blockIdx.x, q = blockIdx.y * 1024 + threadIdx.x;
	const bf16x4 *from = (const bf16x4 *)(x + (size_t)row * k);
	bf16x4 v[4];

	dcpg::launch_next();	/* a product's weights may come meanwhile */
	dcpg::launch_wait();
#pragma unroll
	for (uint32_t i = 0; i < 4; i++)
		if (q + i * 256 < k / 4)
			v[i] = from[q + i * 256];
#pragma unroll
	for (uint32_t i = 0; i < 4; i++)
		if (q + i * 256 < k / 4)
			put_codes(y, m, k, row, q + i * 256, v[i]);
}

/*
 * cuBLASLt is column-major: y^T [n][m] = w^T-as-stored [k][n], transposed,
 * times x as stored [k][m].
 */
static found
find(dcpg_rank *r, const dcpg_prod *p, uint32_t batch)
{
	found f = {};
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t res;
	cublasOperation_t t = CUBLAS_OP_T;
	cudaDataType_t yt = p->y_f32 ? CUDA_R_32F : CUDA_R_16BF;
	cudaDataType_t xt = p->scale ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
	uint32_t align = 16, m = p->scale ? dcpg_rows4(p->m) : p->m;
	int n = 0;

	cublasLtMatmulDescCreate(&f.op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	cublasLtMatmulDescSetAttribute(f.op, CUBLASLT_MATMUL_DESC_TRANSA, &t,
	    sizeof t);
	if (p->scale)
		block_scales(&f, p->scale, p->x8.scale);
	f.a = layout(xt, p->k, p->n, p->ldw, batch, p->sw);
	f.b = layout(xt, p->k, m, p->scale ? p->k : p->ldx, batch, p->sx);
	f.d = layout(yt, p->n, m, p->ldy, batch, p->sy);
	cublasLtMatmulPreferenceCreate(&pref);
	cublasLtMatmulPreferenceSetAttribute(pref,
	    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &DCPG_LT_WS,
	    sizeof DCPG_LT_WS);
	cublasLtMatmulPreferenceSetAttribute(pref,
	    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align);
	cublasLtMatmulPreferenceSetAttribute(pref,
	    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align);
	f.ok = cublasLtMatmulAlgoGetHeuristic(r->lt, f.op, f.a, f.b, f.d, f.d,
	    pref, 1, &res, &n) == CUBLAS_STATUS_SUCCESS && n > 0;
	if (f.ok)
		f.algo = res.algo;
	else if (p->scale)
		fprintf(stderr, "cuda: cuBLASLt has no FP8 product for m %u "
		    "n %u k %u: a slow kernel does it\n", m, p->n, p->k);
	cublasLtMatmulPreferenceDestroy(pref);
	return f;
}

__device__ static inline float
weight_at(const dcpg_prod &p, const bf16 *w, uint32_t n, uint32_t k)
{
	uint32_t ld = (p.k / 128 + 3) / 4 * 4;

	if (p.scale == NULL)
		return __bfloat162float(w[(size_t)n * p.ldw + k]);
	return from_e4m3(((const uint8_t *)w)[(size_t)n * p.ldw + k]) *
	    p.scale[(size_t)(n / 128) * ld + k / 128];
}

/* A block owns a 16 x 64 tile of y; shared memory holds 16 k of both. */
__global__ void
plain_product(dcpg_prod p)
{
	__shared__ float sx[16][17], sw[64][17];
	const bf16 *x = p.x + blockIdx.z * p.sx, *w = p.w + blockIdx.z * p.sw;
	uint32_t m0 = blockIdx.y * 16, n0 = blockIdx.x * 64;
	uint32_t tx = threadIdx.x % 64, ty = threadIdx.x / 64;	/* 64 x 4 */
	float acc[4] = { 0, 0, 0, 0 };

	for (uint32_t k0 = 0; k0 < p.k; k0 += 16) {
		for (uint32_t e = threadIdx.x; e < 256; e += 256) {
			uint32_t i = e / 16, k = e % 16;

			sx[i][k] = m0 + i < p.m && k0 + k < p.k ?
			    __bfloat162float(x[(size_t)(m0 + i) * p.ldx + k0 +
			    k]) : 0;
		}
		for (uint32_t e = threadIdx.x; e < 1024; e += 256) {
			uint32_t j = e / 16, k = e % 16;

			sw[j][k] = n0 + j < p.n && k0 + k < p.k ?
			    weight_at(p, w, n0 + j, k0 + k) : 0;
		}
		__syncthreads();
		for (uint32_t k = 0; k < 16; k++)
			for (uint32_t i = 0; i < 4; i++)
				acc[i] += sx[ty * 4 + i][k] * sw[tx][k];
		__syncthreads();
	}
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t row = m0 + ty * 4 + i, col = n0 + tx;
		size_t at = (size_t)row * p.ldy + col;

		if (row >= p.m || col >= p.n)
			continue;
		if (p.y_f32)
			((float *)p.y + blockIdx.z * p.sy)[at] = acc[i];
		else
			((bf16 *)p.y + blockIdx.z * p.sy)[at] =
			    __float2bfloat16(acc[i]);
	}
}

static bool
aligned(const dcpg_prod *p)
{
	uint32_t ye = p->y_f32 ? 4 : 8;

	return (((uintptr_t)p->w | (uintptr_t)p->x | (uintptr_t)p->y) & 15) ==
	    0 && p->ldw % 8 == 0 && p->ldx % 8 == 0 && p->ldy % ye == 0 &&
	    p->sw % 8 == 0 && p->sx % 8 == 0 && p->sy % ye == 0;
}

int
dcpg_quantise(dcpg_rank *r, const bf16 *x, uint32_t m, uint32_t k,
    const struct dcpg_codes *y)
{
	return m == 0 ? 0 : dcpg_launch_early("quantise_rows", quantise_rows,
	    dim3(m, (k / 4 + 1023) / 1024), 256, r->st, x, m, k, *y);
}

/*
 * FP8 of few rows: a kernel that reads weights as fast as they come, which
 * cuBLASLt's of 128 x 128 tiles do not.
 */
static int
few_rows(dcpg_rank *r, const dcpg_prod *p)
{
	struct dcpg_linear a = {};

	a.x = p->x8.code;
	a.x_scale = p->x8.scale;
	a.x_scale_ld = dcpg_rows4(p->m);
	a.w = p->w;
	a.scale = p->scale;
	a.rows = p->m;
	a.n = p->n;
	a.k = p->k;
	a.late = p->late;
	if (p->y_f32)
		a.y = (float *)p->y;
	else
		a.y16 = p->y;
	a.y_ld = p->ldy;
	return dcpg_linear(&a, r->st);
}

static void
drop_plans(void)
{
	for (auto &e : plans) {
		cublasLtMatrixLayoutDestroy(e.second.a);
		cublasLtMatrixLayoutDestroy(e.second.b);
		cublasLtMatrixLayoutDestroy(e.second.d);
		cublasLtMatmulDescDestroy(e.second.op);
	}
	plans.clear();
}

int
dcpg_product(dcpg_rank *r, const dcpg_prod *p)
{
	uint32_t batch = p->batch ? p->batch : 1;
	const void *x = p->scale ? (const void *)p->x8.code : p->x;
	const float one = 1, zero = 0;

	if (p->m == 0 || p->n == 0)
		return 0;
	if (p->scale != NULL && batch == 1 && p->ldw == p->k &&
	    dcpg_linear_fit(p->m, p->n, p->k))
		return few_rows(r, p);
	if (p->k != 0 && aligned(p)) {
		shape key(r->dev, p->m, p->n, p->k, p->ldw, p->ldx, p->ldy,
		    batch, p->sw, p->sx, p->sy, p->y_f32, p->scale != NULL);
		std::lock_guard<std::mutex> hold(plans_lock);
		auto it = plans.find(key);

		if (it == plans.end() && plans.size() >= MOST_PLANS)
			drop_plans();
		if (it == plans.end())
			it = plans.emplace(key, find(r, p, batch)).first;
		const found &f = it->second;
		if (f.ok) {
			if (p->scale)
				scale_pointers(&f, p->scale, p->x8.scale);
			cublasStatus_t st = cublasLtMatmul(r->lt, f.op, &one,
			    p->w, f.a, x, f.b, &zero, p->y, f.d, p->y, f.d,
			    &f.algo, r->lt_ws, DCPG_LT_WS, r->st);

			if (st == CUBLAS_STATUS_SUCCESS)
				return 0;
			fprintf(stderr, "cuda: cuBLASLt status %d for m %u n "
			    "%u k %u\n", (int)st, p->m, p->n, p->k);
			return -EIO;
		}
	}
	plain_product<<<dim3((p->n + 63) / 64, (p->m + 15) / 16, batch), 256,
	    0, r->st>>>(*p);
	return DCPG_LAUNCHED("plain_product");
}

/* Plans hold handles of one process-wide library: drop them at close. */
void
dcpg_product_forget(void)
{
	std::lock_guard<std::mutex> hold(plans_lock);

	drop_plans();
}
