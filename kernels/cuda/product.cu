/*
 * Linear layers: bf16 in, f32 accumulation, through cuBLASLt. A plan is found
 * once per shape and kept. Shapes that cuBLASLt has no algorithm for (slices
 * of a few columns, rows that are not 16-byte aligned) take a plain kernel.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/device.cuh"

static const size_t WS_BYTES = 32u << 20;

typedef std::tuple<int, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
    uint32_t, uint32_t, int64_t, int64_t, int64_t, bool> shape;

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
	uint32_t align = 16;
	int n = 0;

	cublasLtMatmulDescCreate(&f.op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	cublasLtMatmulDescSetAttribute(f.op, CUBLASLT_MATMUL_DESC_TRANSA, &t,
	    sizeof t);
	f.a = layout(CUDA_R_16BF, p->k, p->n, p->ldw, batch, p->sw);
	f.b = layout(CUDA_R_16BF, p->k, p->m, p->ldx, batch, p->sx);
	f.d = layout(yt, p->n, p->m, p->ldy, batch, p->sy);
	cublasLtMatmulPreferenceCreate(&pref);
	cublasLtMatmulPreferenceSetAttribute(pref,
	    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WS_BYTES,
	    sizeof WS_BYTES);
	cublasLtMatmulPreferenceSetAttribute(pref,
	    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align);
	cublasLtMatmulPreferenceSetAttribute(pref,
	    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align);
	f.ok = cublasLtMatmulAlgoGetHeuristic(r->lt, f.op, f.a, f.b, f.d, f.d,
	    pref, 1, &res, &n) == CUBLAS_STATUS_SUCCESS && n > 0;
	if (f.ok)
		f.algo = res.algo;
	cublasLtMatmulPreferenceDestroy(pref);
	return f;
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
			    __bfloat162float(w[(size_t)(n0 + j) * p.ldw + k0 +
			    k]) : 0;
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
dcpg_product(dcpg_rank *r, const dcpg_prod *p)
{
	uint32_t batch = p->batch ? p->batch : 1;
	const float one = 1, zero = 0;

	if (p->m == 0 || p->n == 0)
		return 0;
	if (p->k != 0 && aligned(p)) {
		shape key(r->dev, p->m, p->n, p->k, p->ldw, p->ldx, p->ldy,
		    batch, p->sw, p->sx, p->sy, p->y_f32);
		std::lock_guard<std::mutex> hold(plans_lock);
		auto it = plans.find(key);

		if (it == plans.end())
			it = plans.emplace(key, find(r, p, batch)).first;
		const found &f = it->second;
		if (f.ok) {
			cublasStatus_t st = cublasLtMatmul(r->lt, f.op, &one,
			    p->w, f.a, p->x, f.b, &zero, p->y, f.d, p->y, f.d,
			    &f.algo, r->lt_ws, WS_BYTES, r->st);

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

	for (auto &e : plans) {
		cublasLtMatrixLayoutDestroy(e.second.a);
		cublasLtMatrixLayoutDestroy(e.second.b);
		cublasLtMatrixLayoutDestroy(e.second.d);
		cublasLtMatmulDescDestroy(e.second.op);
	}
	plans.clear();
}
