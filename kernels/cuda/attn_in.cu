/*
 * From the residual stream to q, KV rows and index keys. Each row and key is
 * quantised once, by the rank that computes it, into new_rows / new_keys; the
 * ranks that hold the token copy those bytes into their pools.
 */
#include <algorithm>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rowops.cuh"

/*
 * Vectors of the index, at most 128 values: a warp has one in registers, lane l
 * its values 4l .. 4l+3.
 */
__device__ static inline float4
from_lane(float4 v, uint32_t l)
{
	return make_float4(__shfl_sync(DCPG_FULL, v.x, l),
	    __shfl_sync(DCPG_FULL, v.y, l), __shfl_sync(DCPG_FULL, v.z, l),
	    __shfl_sync(DCPG_FULL, v.w, l));
}

/* Four of the sines or cosines of a row: those of the pairs this lane makes. */
__device__ static inline float4
angles(const float *of_row, uint32_t half)
{
	return ((const float4 *)of_row)[threadIdx.x % 32 % (half / 4)];
}

/* RoPE of the first 2 * half values; half is a multiple of 4. */
__device__ static float4
rope_warp(float4 v, float4 cs, float4 sn, uint32_t half, bool inter)
{
	uint32_t lane = threadIdx.x % 32, q = half / 4, m = lane % q;
	float4 a = from_lane(v, inter ? 2 * m : m);
	float4 b = from_lane(v, inter ? 2 * m + 1 : m + q);

	if (lane >= 2 * q)
		return v;
	if (inter) {	/* pairs stand side by side */
		float4 t = a;

		a = make_float4(t.x, t.z, b.x, b.z);
		b = make_float4(t.y, t.w, b.y, b.w);
	}
	if (lane < q)
		return make_float4(a.x * cs.x - b.x * sn.x,
		    a.y * cs.y - b.y * sn.y, a.z * cs.z - b.z * sn.z,
		    a.w * cs.w - b.w * sn.w);
	return make_float4(b.x * cs.x + a.x * sn.x, b.y * cs.y + a.y * sn.y,
	    b.z * cs.z + a.z * sn.z, b.w * cs.w + a.w * sn.w);
}

/* Times the orthonormal Hadamard matrix of n, a power of two from 4 on. */
__device__ static float4
hadamard_warp(float4 v, uint32_t n)
{
	float f = rsqrtf((float)n);

	v = make_float4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
	v = make_float4(v.x + v.z, v.y + v.w, v.x - v.z, v.y - v.w);
	for (uint32_t o = 1; o < n / 4; o *= 2) {
		float4 p = from_lane(v, threadIdx.x % 32 ^ o);

		if (threadIdx.x & o)
			v = make_float4(p.x - v.x, p.y - v.y, p.z - v.z,
			    p.w - v.w);
		else
			v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z,
			    v.w + p.w);
	}
	return make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
}

struct latent_args {
	uint32_t m;		/* rows */
	dcpk_kv kv, idx;
	uint32_t q_lora, c, r, dim, row_bytes, key_bytes;
	float eps;
	bool interleave, hadamard;
	const uint32_t *own;
	const float *first;	/* [m][ld]: see dcpg_first */
	uint32_t ld, kv_at, k_at;
	const float *cos, *sin;
	const float *qw, *kvw, *kw, *kb;
	bf16 *qr16;
	struct dcpg_codes qr8;
	uint8_t *rows, *keys;
	float *scales;
	/* index_weights, if they are made here */
	const bf16 *h, *iww;	/* [m][hidden], [hi][hidden] */
	uint32_t hidden, hi;
	float *wx;		/* [m][wx_ld]: [PARTS][hi] */
	uint32_t wx_ld;
	/* NULL: rows, keys and scales are by row; else they are the pools */
	const dcpk_row *row;
	uint32_t D, dr;
};

__device__ static inline size_t
pool_row(const dcpk_row &row, uint32_t D)
{
	return (size_t)row.page * (DCPK_PAGE / D) + row.pos % DCPK_PAGE / D;
}

/* Where row i and its key go; false: another rank keeps them. */
__device__ static inline bool
place(const latent_args &a, uint32_t i, size_t *at)
{
	dcpk_row row;

	*at = i;
	if (a.row == NULL)
		return true;
	row = a.row[i];
	*at = pool_row(row, a.D);
	return row.pos % a.D == a.dr;
}

/* The latent of q: four columns a thread. */
__device__ static void
q_latent(const latent_args &a, uint32_t j, const float *first)
{
	bool mine = threadIdx.x < a.q_lora / 4;
	float4 v = make_float4(0, 0, 0, 0), w = v;
	float s;

	if (mine)
		w = ((const float4 *)a.qw)[threadIdx.x];
	dcpg::launch_wait();
	if (mine)
		v = ((const float4 *)first)[threadIdx.x];
	s = rsqrtf(block_sum(dot4(v)) / (float)a.q_lora + a.eps);
	bf16x4 y = bf16_of(make_float4(v.x * s * w.x, v.y * s * w.y,
	    v.z * s * w.z, v.w * s * w.w));
	if (mine)
		((bf16x4 *)(a.qr16 + (size_t)j * a.q_lora))[threadIdx.x] = y;
	if (mine && a.qr8.code)		/* whole warps: q_lora is of 128 */
		put_codes(a.qr8, a.m, a.q_lora, j, threadIdx.x, y);
}

/* A KV row: four columns of the latent a thread, and a pair to rotate. */
__device__ static void
kv_row(const latent_args &a, uint32_t i, const float *kv)
{
	uint32_t t = threadIdx.x, half = a.r / 2;
	bool mine = t < a.c / 4, pair = t < half;
	float4 v = make_float4(0, 0, 0, 0), w = v;
	float x = 0, y = 0, cs = 0, sn = 0, s;
	size_t at;
	bool here = place(a, i, &at);

	if (mine)
		w = ((const float4 *)a.kvw)[t];
	if (pair) {
		cs = a.cos[(size_t)i * half + t];
		sn = a.sin[(size_t)i * half + t];
	}
	dcpg::launch_wait();
	if (mine)
		v = ((const float4 *)kv)[t];
	if (pair) {
		x = kv[a.c + 2 * t];
		y = kv[a.c + 2 * t + 1];
	}
	s = rsqrtf(block_sum(dot4(v)) / (float)a.c + a.eps);
	v = make_float4(v.x * s * w.x, v.y * s * w.y, v.z * s * w.z,
	    v.w * s * w.w);
	if (!here)
		return;

	uint8_t *row = a.rows + at * a.row_bytes;
	bf16 *tail = (bf16 *)row + a.c;
	if (a.kv == DCPK_KV_FP8) {	/* 128 columns, a scale: a warp */
		float m = warp_max(max4(v)) / 448.0f;

		if (mine)
			((uint32_t *)row)[t] = e4m3x4(v, m);
		if (mine && t % 32 == 0)
			((float *)(row + a.c))[t / 32] = m;
		tail = (bf16 *)(row + a.c + a.c / 128 * 4);
	} else if (mine) {
		((bf16x4 *)row)[t] = bf16_of(v);
	}
	if (pair) {
		tail[t] = __float2bfloat16(x * cs - y * sn);
		tail[t + half] = __float2bfloat16(y * cs + x * sn);
	}
}

/* An index key, by one warp; all that it reads is under way at once. */
__device__ static void
index_key(const latent_args &a, uint32_t i, const float *k)
{
	uint32_t lane = threadIdx.x % 32, half = a.r / 2;
	float4 cs = angles(a.cos + (size_t)i * half, half);
	float4 sn = angles(a.sin + (size_t)i * half, half);
	float4 v = make_float4(0, 0, 0, 0), w = v, b = v;
	bool mine = lane < a.dim / 4;
	float s;
	size_t at;
	bool here = place(a, i, &at);

	if (mine) {
		w = ((const float4 *)a.kw)[lane];
		b = ((const float4 *)a.kb)[lane];
	}
	dcpg::launch_wait();
	if (mine)
		v = ((const float4 *)k)[lane];
	s = warp_sum(v.x + v.y + v.z + v.w) / (float)a.dim;
	v = make_float4(v.x - s, v.y - s, v.z - s, v.w - s);
	s = warp_sum(mine ? dot4(v) : 0);
	s = rsqrtf(s / (float)a.dim + 1e-6f);
	v = make_float4(v.x * s * w.x + b.x, v.y * s * w.y + b.y,
	    v.z * s * w.z + b.z, v.w * s * w.w + b.w);
	v = rope_warp(v, cs, sn, half, a.interleave);
	if (!here)
		return;

	uint8_t *key = a.keys + at * a.key_bytes;
	if (a.idx != DCPK_KV_FP8) {
		if (mine)
			((bf16x4 *)key)[lane] = bf16_of(v);
		return;
	}
	if (a.hadamard)
		v = hadamard_warp(v, a.dim);
	s = warp_max(mine ? max4(v) : 0) / 448.0f;
	if (mine)
		((uint32_t *)key)[lane] = e4m3x4(v, s);
	if (lane == 0)
		a.scales[at] = s;
}

/* 16 bytes of a row, or zeros behind its end. Volatile, so that a batch of them
 * is under way at once. */
__device__ static inline uint4
chunk(const bf16 *row, uint32_t k, uint32_t n)
{
	uint4 v;

	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
	    "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\n"
	    "mov.b32 %3, 0;\n"
	    "@p ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
	    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	    : "l"(row + k), "r"((uint32_t)(k < n)));
	return v;
}

/*
 * The index heads' weights where they could not be stacked (bf16 beside FP8):
 * while the product with the stack still runs, which began when h was there. A block owns 16 heads, 8 rows and one of PARTS of the
 * columns, a warp a part of those, 32 columns at a time, of which a thread has
 * eight; parts are added up by the kernel of the index queries.
 */
enum { PARTS = 8, HEADS = 16, ROWS = 8, STEPS = 3 };

__device__ static void
index_weights(const latent_args &a, uint32_t b)
{
	__shared__ float sum[512 / 32][HEADS * ROWS];
	uint32_t t = threadIdx.x, lane = t % 32, warps = blockDim.x / 32;
	uint32_t heads = (a.hi + HEADS - 1) / HEADS, part = b % PARTS;
	uint32_t h0 = b / PARTS % heads * HEADS, j0 = b / PARTS / heads * ROWS;
	uint32_t at = part * warps + t / 32, all = (a.hidden + 31) / 32;
	uint32_t s1 = all * (at + 1) / (PARTS * warps);
	const bf16 *h = a.h + (size_t)min(j0 + lane / 4, a.m - 1) * a.hidden;
	const bf16 *w = a.iww + (size_t)min(h0 + lane / 4, a.hi - 1) *
	    a.hidden;
	const bf16 *v = a.iww + (size_t)min(h0 + lane / 4 + 8, a.hi - 1) *
	    a.hidden;
	float d[4] = { 0, 0, 0, 0 }, y = 0;

	for (uint32_t s = all * at / (PARTS * warps); s < s1; s += STEPS) {
		uint4 x[STEPS], p[STEPS], q[STEPS];

#pragma unroll
		for (uint32_t i = 0; i < STEPS; i++) {
			uint32_t k = (s + i) * 32 + lane % 4 * 8;
			uint32_t end = s + i < s1 ? a.hidden : 0;

			p[i] = chunk(w, k, end);
			q[i] = chunk(v, k, end);
			x[i] = chunk(h, k, end);
		}
		__syncwarp();	/* else the assembler moves loads down */
#pragma unroll
		for (uint32_t i = 0; i < STEPS; i++) {
			dcpg::mma(d, p[i].x, q[i].x, p[i].y, q[i].y, x[i].x,
			    x[i].y);
			dcpg::mma(d, p[i].z, q[i].z, p[i].w, q[i].w, x[i].z,
			    x[i].w);
		}
	}
#pragma unroll
	for (uint32_t i = 0; i < 4; i++)
		sum[t / 32][(lane % 4 * 2 + i % 2) * HEADS + lane / 4 +
		    i / 2 * 8] = d[i];
	__syncthreads();
	for (t = threadIdx.x; t < HEADS * ROWS; t += blockDim.x) {
		uint32_t j = j0 + t / HEADS, head = h0 + t % HEADS;

		y = 0;
		for (uint32_t i = 0; i < warps; i++)
			y += sum[i][t];
		if (j < a.m && head < a.hi)
			a.wx[(size_t)j * a.wx_ld + part * a.hi + head] = y;
	}
}

/* How many blocks of it. */
__host__ __device__ static inline uint32_t
weight_blocks(uint32_t m, uint32_t hi)
{
	return (m + ROWS - 1) / ROWS * ((hi + HEADS - 1) / HEADS) * PARTS;
}

/*
 * Three blocks a row: the latent of q, the KV row, the index key; in front of
 * them those of the index heads' weights. Rows and keys go where they stay, if
 * that is here, or where the ranks that keep them find them.
 */
template <bool WEIGHTS>
__global__ void __launch_bounds__(WEIGHTS ? 512 : 1024)
latents(const __grid_constant__ latent_args a)
{
	uint32_t skip = WEIGHTS ? weight_blocks(a.m, a.hi) : 0;
	uint32_t b = blockIdx.x - skip, j = b % a.m;
	uint32_t i = a.own && blockIdx.x >= skip ? a.own[j] : j;
	const float *first = a.first + (size_t)j * a.ld;

	dcpg::launch_next();	/* a product's weights may come meanwhile */
	if (WEIGHTS && blockIdx.x < skip) {
		index_weights(a, blockIdx.x);
		return;
	}
	/* Each reads weights, angles and places before it waits: they come from
	 * memory, where the next product's weights already queue. */
	if (b / a.m == 0)
		q_latent(a, j, first);
	else if (b / a.m == 1)
		kv_row(a, i, first + a.kv_at);
	else if (threadIdx.x < 32)
		index_key(a, i, first + a.k_at);
}

struct store_args {
	dcpg_peers<uint8_t> rows, keys;
	dcpg_peers<float> scales;
	const dcpk_row *row;
	const uint32_t *owner;	/* [rows] CP owner */
	uint32_t D, dr, attn_tp, tp, row_bytes, key_bytes;
	uint8_t *pool, *kpool;
	float *spool;
	bool full;
};

/* CP prefill. One block a row: into this rank's pool, if it lives here. */
__global__ void
store_rows(store_args a)
{
	uint32_t i = blockIdx.x, from;
	dcpk_row row = a.row[i];
	size_t at;

	if (row.pos % a.D != a.dr)
		return;
	from = a.owner[i] * a.attn_tp + a.tp;
	at = pool_row(row, a.D);
	const uint32_t *s = (const uint32_t *)(a.rows.p[from] +
	    (size_t)i * a.row_bytes);
	uint32_t *d = (uint32_t *)(a.pool + at * a.row_bytes);

	for (uint32_t e = threadIdx.x; e < a.row_bytes / 4; e += blockDim.x)
		d[e] = s[e];
	if (!a.full)
		return;
	s = (const uint32_t *)(a.keys.p[from] + (size_t)i * a.key_bytes);
	d = (uint32_t *)(a.kpool + at * a.key_bytes);
	for (uint32_t e = threadIdx.x; e < a.key_bytes / 4; e += blockDim.x)
		d[e] = s[e];
	if (a.spool && threadIdx.x == 0)
		a.spool[at] = a.scales.p[from][i];
}

enum { QUERY_THREADS = 256 };

struct query_args {
	const uint32_t *own;
	const bf16 *qh;		/* [m][heads][n+r] */
	bf16 *q;		/* [m][heads][c+r], rows q_step apart */
	uint32_t q_step;
	const float *cos, *sin;
	uint32_t heads, n, r, c;
	/* indexer */
	float *iq;		/* [m][hi][dim] */
	const float *wx;	/* [m][ld] the heads' weights, as multiplied: */
	uint32_t ld, parts;	/* sums of [parts][hi], 32 at most */
	float *iw;		/* [m][hi] with every factor */
	uint8_t *iq8;		/* the e4m3 codes instead of iq, or NULL */
	uint32_t hi, dim;
	bool interleave, hadamard, fp8;
	bool tiled;		/* codes stand where prefill wants them */
};

/* RoPE tail of each head: a thread a pair. */
__global__ void __launch_bounds__(QUERY_THREADS)
rope_queries(const __grid_constant__ query_args a)
{
	uint32_t j = blockIdx.x, i = a.own ? a.own[j] : j, half = a.r / 2;
	uint32_t e = blockIdx.y * QUERY_THREADS + threadIdx.x;
	uint32_t h = e / half, p = e % half;

	dcpg::launch_wait();
	dcpg::launch_next();
	if (h >= a.heads)
		return;
	const __nv_bfloat162 *x = (const __nv_bfloat162 *)(a.qh +
	    ((size_t)j * a.heads + h) * (a.n + a.r) + a.n);
	bf16 *y = a.q + (size_t)j * a.q_step + h * (a.c + a.r) + a.c;
	float cs = a.cos[(size_t)i * half + p];
	float sn = a.sin[(size_t)i * half + p];
	float2 v = __bfloat1622float2(x[p]);

	y[p] = __float2bfloat16(v.x * cs - v.y * sn);
	y[p + half] = __float2bfloat16(v.y * cs + v.x * sn);
}

/*
 * An index query a warp. The head's weight gets hi^-.5, dim^-.5 and, for fp8
 * keys, the query's own scale.
 */
__global__ void __launch_bounds__(QUERY_THREADS)
index_queries(const __grid_constant__ query_args a)
{
	uint32_t j = blockIdx.x, i = a.own ? a.own[j] : j, half = a.r / 2;
	uint32_t h = blockIdx.y * (QUERY_THREADS / 32) + threadIdx.x / 32;
	uint32_t lane = threadIdx.x % 32;
	size_t at = (size_t)j * a.hi + h;
	bool mine = lane < a.dim / 4;
	float4 *q = (float4 *)(a.iq + at * a.dim) + lane;
	float f = rsqrtf((float)a.hi) * rsqrtf((float)a.dim), wx, s;
	float4 v = make_float4(0, 0, 0, 0), cs, sn;

	dcpg::launch_wait();
	dcpg::launch_next();
	if (h >= a.hi)
		return;
	if (mine)
		v = *q;
	wx = lane < a.parts ? a.wx[(size_t)j * a.ld + lane * a.hi + h] : 0;
	wx = warp_sum(wx);
	cs = angles(a.cos + (size_t)i * half, half);
	sn = angles(a.sin + (size_t)i * half, half);
	v = rope_warp(v, cs, sn, half, a.interleave);
	if (a.fp8) {
		if (a.hadamard)
			v = hadamard_warp(v, a.dim);
		s = warp_max(mine ? max4(v) : 0) / 448.0f;
		f *= s;
		uint32_t codes = e4m3x4(v, s);

		if (mine && a.iq8)
			*(uint32_t *)(a.iq8 + (size_t)j * a.hi * a.dim +
			    (a.tiled ? dcpg_q8_place(a.hi, h, 4 * lane) :
			    h * a.dim + 4 * lane)) = codes;
		v = make_float4(from_e4m3(codes), from_e4m3(codes >> 8),
		    from_e4m3(codes >> 16), from_e4m3(codes >> 24));
	}
	if (mine && !(a.fp8 && a.iq8))
		*q = v;
	if (lane == 0)
		a.iw[at] = wx * f;
}

static int
linear(dcpg_rank *r, const dcpg_mat *w, const bf16 *x,
    const struct dcpg_codes *x8, void *y, bool f32, uint32_t ldy,
    bool late = false)
{
	dcpg_prod p = {};

	p.late = late;
	p.w = w->w;
	p.scale = w->scale;
	p.x = x;
	p.x8 = *x8;
	p.y = y;
	p.y_f32 = f32;
	p.m = r->m;
	p.n = w->n;
	p.k = w->k;
	p.ldw = w->k;
	p.ldx = w->k;
	p.ldy = ldy;
	return dcpg_product(r, &p);
}

/* Threads of latents: four columns each, or a pair. */
static uint32_t
latent_threads(const dcpk_model *m)
{
	uint32_t n = std::max({ m->q_lora / 4, m->kv_lora / 4, m->rope / 2,
	    32u });

	return (n + 31) / 32 * 32;
}

/* Few rows, and the heads' weights could not be stacked: index_weights. */
static bool
weights_by_latents(const dcpk_ctx *c, const dcpg_rank *r, const dcpg_layer *l)
{
	const dcpk_model *m = &c->s.model;

	return l->idx_w.w != NULL && l->idx_w.scale == NULL && r->m <= 64 &&
	    m->hidden % 8 == 0 && latent_threads(m) <= 512 &&
	    m->idx_heads * PARTS <= m->hidden;
}

/* What h is multiplied with, side by side in r->first: the stack (weights.cu)
 * and what is not part of it. Late: latents read h before they wait. */
static int
first_products(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	dcpg_layer *l = &r->layer[layer];
	dcpg_first f = dcpg_first_of(&c->s.model, layer);
	int rc = dcpg_in_norm(c, r, layer);

	if (l->first.w != NULL)
		rc |= linear(r, &l->first, r->h, &r->h8, r->first, true, f.ld,
		    true);
	if (l->q_a.w != NULL)
		rc |= linear(r, &l->q_a, r->h, &r->h8, r->first, true, f.ld,
		    true);
	if (l->kv_a.w != NULL)
		rc |= linear(r, &l->kv_a, r->h, &r->h8, r->first + f.kv, true,
		    f.ld, true);
	if (l->idx_k.w != NULL)
		rc |= linear(r, &l->idx_k, r->h, &r->h8, r->first + f.k, true,
		    f.ld, true);
	if (l->idx_w.w != NULL && !weights_by_latents(c, r, l))
		rc |= linear(r, &l->idx_w, r->h, &r->h8, r->first + f.w, true,
		    f.ld, true);
	return rc;
}

/* norm, first products, latents: everything before rows change hands */
static int
first_half(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	dcpg_first f = dcpg_first_of(m, layer);
	dcpg_layer *l = &r->layer[layer];
	latent_args a = {};
	uint32_t blocks;
	int rc;

	if (r->m == 0)
		return 0;
	rc = first_products(c, r, layer);
	a.kv = c->s.kv;
	a.idx = c->s.idx;
	a.q_lora = m->q_lora;
	a.c = m->kv_lora;
	a.r = m->rope;
	a.dim = m->idx_dim;
	a.row_bytes = c->row_bytes;
	a.key_bytes = c->key_bytes;
	a.eps = m->latent_eps;
	a.interleave = m->idx_interleave;
	a.hadamard = m->idx_hadamard;
	a.own = r->own;
	a.first = r->first;
	a.ld = f.ld;
	a.kv_at = f.kv;
	a.k_at = f.k;
	a.cos = r->cos;
	a.sin = r->sin;
	a.qw = l->q_a_norm;
	a.kvw = l->kv_a_norm;
	a.kw = l->k_norm_w;
	a.kb = l->k_norm_b;
	a.qr16 = r->qr16;
	if (l->q_b.scale != NULL || l->idx_q_b.scale != NULL)
		a.qr8 = r->qr8;
	a.rows = r->new_rows;
	a.keys = r->new_keys;
	a.scales = r->new_scales;
	if (r->owner == NULL) {		/* every rank has every row */
		a.rows = dcpg_pool_rows(c, r, layer);
		a.keys = dcpg_pool_keys(c, r, layer, &a.scales);
		a.row = DCPG_PLAN(c, r, dcpk_row, rows_off);
		a.D = c->D;
		a.dr = r->dr;
	}
	a.m = r->m;
	blocks = r->m * (m->full[layer] ? 3 : 2);
	if (!m->full[layer] || !weights_by_latents(c, r, l))
		return rc | dcpg_launch_early("latents", latents<false>,
		    blocks, latent_threads(m), r->st, a);
	a.h = r->h;
	a.iww = l->idx_w.w;
	a.hidden = m->hidden;
	a.hi = m->idx_heads;
	a.wx = r->ya;		/* free until the output's product */
	a.wx_ld = m->hidden;
	blocks += weight_blocks(r->m, a.hi);
	return rc | dcpg_launch_early("latents", latents<true>, blocks,
	    latent_threads(m), r->st, a);
}

static int
store(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	store_args a = {};

	a.rows = DCPG_PEERS(c, r, uint8_t, new_rows);
	a.keys = DCPG_PEERS(c, r, uint8_t, new_keys);
	a.scales = DCPG_PEERS(c, r, float, new_scales);
	a.row = DCPG_PLAN(c, r, dcpk_row, rows_off);
	a.owner = r->owner;
	a.D = c->D;
	a.dr = r->dr;
	a.attn_tp = c->s.topo.attn_tp;
	a.tp = r->tp;
	a.row_bytes = c->row_bytes;
	a.key_bytes = c->key_bytes;
	a.full = c->s.model.full[layer] != 0;
	a.pool = dcpg_pool_rows(c, r, layer);
	a.kpool = dcpg_pool_keys(c, r, layer, &a.spool);
	store_rows<<<c->rows, 128, 0, r->st>>>(a);
	return DCPG_LAUNCHED("store_rows");
}

static int
share_rows(dcpk_ctx *c)
{
	const dcpg_share s[] = {
	    DCPG_SHARE(c, new_rows, (size_t)c->rows * c->row_bytes),
	    DCPG_SHARE(c, new_keys, (size_t)c->rows * c->key_bytes),
	    DCPG_SHARE(c, new_scales, (size_t)c->rows * 4) };

	return dcpg_meet_over(c, DCPG_ALL, s, 3, 0);
}

static const bf16 *
uk_of(const dcpk_ctx *c, const dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	uint32_t h0 = c->prefill ? 0 : r->cp * c->Hr;	/* decode slice */

	return r->layer[layer].uk.w + (size_t)h0 * m->kv_lora * m->nope;
}

/* q absorbed, then RoPE; where it is pushed, in this rank's place among its
 * group's */
static int
absorb(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, uint32_t heads)
{
	const dcpk_model *m = &c->s.model;
	uint32_t qd = m->nope + m->rope, ld = m->kv_lora + m->rope;
	dcpg_prod p = {};
	query_args a = {};
	int rc;

	a.q = dcpg_pushes_q(c) ? dcpg_own_q(c, r) : r->q;
	a.q_step = (dcpg_pushes_q(c) ? c->D : 1) * heads * ld;
	p.w = uk_of(c, r, layer);
	p.x = r->qh;
	p.y = a.q;
	p.m = r->m;
	p.n = m->kv_lora;
	p.k = m->nope;
	p.ldw = m->nope;
	p.ldx = heads * qd;
	p.ldy = a.q_step;
	p.batch = heads;
	p.sw = (int64_t)m->kv_lora * m->nope;
	p.sx = qd;
	p.sy = ld;
	rc = dcpg_product(r, &p);
	a.own = r->own;
	a.qh = r->qh;
	a.cos = r->cos;
	a.sin = r->sin;
	a.heads = heads;
	a.n = m->nope;
	a.r = m->rope;
	a.c = m->kv_lora;
	return rc | dcpg_launch_early("rope_queries", rope_queries, dim3(r->m,
	    (heads * (a.r / 2) + QUERY_THREADS - 1) / QUERY_THREADS),
	    QUERY_THREADS, r->st, a);
}

/* q of the heads of this pass, but for what finish_queries does */
static int
queries(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	uint32_t heads = c->prefill ? c->Hp : c->Hr, qd = m->nope + m->rope;
	dcpg_mat qb = r->layer[layer].q_b;
	int rc;

	if (r->m == 0)
		return 0;
	/* FP8: this is 0, see keep.h */
	qb.w += (size_t)(c->prefill ? 0 : r->cp * c->Hr) * qd * m->q_lora;
	qb.n = heads * qd;
	rc = linear(r, &qb, r->qr16, &r->qr8, r->qh, false, qb.n);
	return dcpg_by_query(c) ? rc : rc | absorb(c, r, layer, heads);
}

/* What waits for peers, so is enqueued when all ranks have what is before it:
 * loading a kernel's code may wait for the device. */
static int
finish_queries(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	struct dcpg_query a = {};

	if (!dcpg_by_query(c))
		return dcpg_pushes_q(c) ? dcpg_push_q(c, r) : 0;
	a.x = r->qh;
	a.w = uk_of(c, r, layer);
	a.cos = r->cos;
	a.sin = r->sin;
	a.rows = r->m;
	a.heads = c->Hr;
	a.nope = c->s.model.nope;
	dcpg_query_to(c, r, layer, &a);
	return dcpg_query(&a, r->st) == 0 ? 0 :
	    dcpg_ok(cudaErrorLaunchFailure, "queries");
}

static int
index_product(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpg_mat *w = &r->layer[layer].idx_q_b;

	if (r->m == 0 || !c->s.model.full[layer])
		return 0;
	return linear(r, w, r->qr16, &r->qr8, r->iq, true, w->n);
}

static int
index_query(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	dcpg_first f = dcpg_first_of(m, layer);
	uint32_t heads = QUERY_THREADS / 32;	/* of a block */
	query_args a = {};

	if (r->m == 0 || !m->full[layer])
		return 0;
	a.own = r->own;
	a.cos = r->cos;
	a.sin = r->sin;
	a.r = m->rope;
	a.iq = r->iq;
	a.wx = r->first + f.w;
	a.ld = f.ld;
	a.parts = 1;
	if (weights_by_latents(c, r, &r->layer[layer])) {
		a.wx = r->ya;
		a.ld = m->hidden;
		a.parts = PARTS;
	}
	a.iw = r->iw;
	a.iq8 = c->fast_index || c->fast_rows ? r->iq8 : NULL;
	a.tiled = c->fast_rows;
	a.hi = m->idx_heads;
	a.dim = m->idx_dim;
	a.interleave = m->idx_interleave;
	a.hadamard = m->idx_hadamard;
	a.fp8 = c->s.idx == DCPK_KV_FP8;
	return dcpg_launch_early("index_queries", index_queries, dim3(r->m,
	    (a.hi + heads - 1) / heads), QUERY_THREADS, r->st, a);
}

/*
 * Decode: q on the side stream, its way to the group included, and behind the
 * index query's product: beside each other both take their whole bytes' time,
 * and the index is what attention waits for longest.
 */
static int
queries_aside(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		rc |= index_product(c, r, layer);
		rc |= dcpg_fork(r);
		dcpg_aside(r);
		rc |= queries(c, r, layer);
		dcpg_aside(r);
		rc |= index_query(c, r, layer);
	}
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		dcpg_aside(r);
		rc |= finish_queries(c, r, layer);
		dcpg_aside(r);
		rc |= dcpg_joins(r);
	}
	c->forked = true;
	return rc;
}

int
dcpg_attn_in_op(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	if (c->replay)
		return 0;
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= first_half(c, &c->r[i], layer);
	}
	if (c->r[0].owner != NULL)	/* CP prefill: rows change hands */
		rc |= share_rows(c);
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		if (c->r[i].owner != NULL)
			rc |= store(c, &c->r[i], layer);
	}
	/* With events each meeting has all of a rank's work before it. */
	if (!c->prefill && c->s.model.full[layer] &&
	    (c->W == 1 || c->s.comm == DCPK_COMM_PEER)) {
		rc |= queries_aside(c, layer);
		return rc != 0 ? -EIO : 0;
	}
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= queries(c, &c->r[i], layer);
		rc |= index_product(c, &c->r[i], layer);
		rc |= index_query(c, &c->r[i], layer);
	}
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= finish_queries(c, &c->r[i], layer);
	}
	return rc != 0 ? -EIO : 0;
}
