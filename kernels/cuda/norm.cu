/*
 * The residual stream: the ranks' partial products summed into it, and the
 * norms. One kernel does both, so that between a layer's attention and its FFN,
 * and between that and the next layer, there is one launch.
 *
 * With --dcp-comm peer it is also where ranks meet. Of few rows each pushes its
 * partials into the others' memory, which takes one way over the link where a
 * flag and a read take three. They are there when they are no longer ones; who
 * has read them puts ones back. There are two places, for the sums behind
 * attention and those behind the FFN, so that who writes to one has had from
 * all others what they sent to the other later than they read the first. To
 * have had words of all others is a meeting like those by flags, and counts as
 * one (peer.cu). Block j waits for the peers' blocks j, which have pushed
 * before they wait and begin in the same order on every rank.
 */
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rowops.cuh"

namespace cg = cooperative_groups;

enum { SHARE = 4 };		/* blocks of a cluster, which share a row */

struct norm_args {
	float *x;		/* [rows][n] residual stream */
	/* T = 0: nothing is added */
	dcpg_peers<float> y;
	const uint32_t *owner, *jof;	/* NULL: all W ranks, row by row */
	uint32_t T;
	struct dcpg_peer peer;	/* world 0: they have met */
	/* This sum's place in every rank's memory, [T][DCPG_PUSHED][n]. Not
	 * pushed: partials are read where they are, after a meeting by flags. */
	dcpg_peers<float> place;
	bool push;
	const float *w;		/* NULL: no norm */
	/* the rows: these, or those of samples, or (both NULL) all */
	const uint32_t *own;
	const dcpk_sample *samples;
	float eps;
	bf16 *h;
	float *hf;		/* or NULL */
	struct dcpg_codes h8;
	uint8_t *h4;		/* e4m3 in units of h4_unit, or NULL */
	float h4_unit;
	uint32_t n;
	const char *next;	/* what is read soon: into the L2 */
	uint64_t next_bytes;
};

/* A block's share of a row's n / 4 float4: whole warps, for put_codes. */
__host__ __device__ static inline uint32_t
share(uint32_t n4)
{
	return (n4 + SHARE * 32 - 1) / (SHARE * 32) * 32;
}

__device__ static inline float4
operator+(float4 a, float4 b)
{
	return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Four columns of the sum over ranks, in rank order; eight loads under way. */
__device__ static inline float4
parts(const norm_args &a, uint32_t i, uint32_t at)
{
	uint32_t r0 = a.owner ? a.owner[i] * a.T : 0;
	size_t from = (size_t)(a.jof ? a.jof[i] : i) * (a.n / 4) + at;
	float4 s = make_float4(0, 0, 0, 0), p[8];

	for (uint32_t t = 0; t < a.T; t += 8) {
#pragma unroll
		for (uint32_t k = 0; k < 8; k++)
			if (t + k < a.T)
				p[k] = __ldcg((const float4 *)
				    a.y.p[r0 + t + k] + from);
#pragma unroll
		for (uint32_t k = 0; k < 8; k++)
			if (t + k < a.T)
				s = s + p[k];
	}
	return s;
}

/* The same by pushes; `j`: the row among those of the launch. Ones, which are
 * NaN, become another NaN. */
__device__ static inline float4
pushed(const norm_args &a, uint32_t i, uint32_t j, uint32_t at)
{
	constexpr uint32_t U = 4;	/* under way at once; 8 spill */
	uint32_t n4 = a.n / 4, self = a.peer.self;
	size_t from = (size_t)j * n4 + at, rank = (size_t)DCPG_PUSHED * n4;
	const float4 own = __ldcg((const float4 *)a.y.p[self] +
	    (size_t)i * n4 + at);
	float4 s = make_float4(0, 0, 0, 0);

	for (uint32_t e = 0; e < a.T; e++)
		if (e != self)
			dcpg::send_words((uint4 *)a.place.p[e] + self * rank +
			    from, dcpg::no_ones(own));
	for (uint32_t e0 = 0; e0 < a.T; e0 += U) {
		uint4 p[U];
		uint64_t t0 = 0;
		uint32_t lost;

		do {
			lost = ~0u;
#pragma unroll
			for (uint32_t k = 0; k < U; k++)
				if (e0 + k < a.T && e0 + k != self)
					p[k] = dcpg::look_at_words((uint4 *)
					    a.place.p[self] + (e0 + k) * rank +
					    from);
#pragma unroll
			for (uint32_t k = 0; k < U; k++)
				if (e0 + k < a.T && e0 + k != self &&
				    dcpg::has_ones(p[k]))
					lost = e0 + k;
		} while (lost != ~0u && dcpg::peer_patience(a.peer, lost, t0));
#pragma unroll
		for (uint32_t k = 0; k < U; k++) {
			uint32_t e = e0 + k;

			if (e == self) {
				s = s + own;
			} else if (e < a.T) {
				((uint4 *)a.place.p[self])[e * rank + from] =
				    make_uint4(~0u, ~0u, ~0u, ~0u);
				s = s + make_float4(__uint_as_float(p[k].x),
				    __uint_as_float(p[k].y),
				    __uint_as_float(p[k].z),
				    __uint_as_float(p[k].w));
			}
		}
	}
	return s;
}

/* All blocks but the first, which, where nothing is pushed, tells the peers. */
__device__ static void
fetch_next(const norm_args &a)
{
	uint64_t step = (uint64_t)(gridDim.x - 1) * blockDim.x * 128;
	uint64_t at = ((uint64_t)(blockIdx.x - 1) * blockDim.x + threadIdx.x) *
	    128;

	for (; at < a.next_bytes; at += step)
		dcpg::prefetch_l2(a.next + at);
}

/* Over the cluster; every thread gets it. */
__device__ static float
cluster_sum(float v)
{
	__shared__ float part[SHARE][32];
	cg::cluster_group cl = cg::this_cluster();
	uint32_t warps = blockDim.x / 32, lane = threadIdx.x % 32;
	float s = 0;

	v = warp_sum(v);
	if (lane < SHARE)
		*cl.map_shared_rank(&part[cl.block_rank()][threadIdx.x / 32],
		    lane) = v;
	cl.sync();
	for (uint32_t b = 0; b < SHARE; b++)
		s += lane < warps ? part[b][lane] : 0;
	return warp_sum(s);
}

/* Four columns of a row of `rows`, in all its forms. */
__device__ static inline void
put_normed(const norm_args &a, uint32_t rows, uint32_t j, uint32_t at, float s,
    float4 v, float4 w)
{
	w = make_float4(v.x * s * w.x, v.y * s * w.y, v.z * s * w.z,
	    v.w * s * w.w);
	((bf16x4 *)(a.h + (size_t)j * a.n))[at] = bf16_of(w);
	if (a.h8.code)
		put_codes(a.h8, rows, a.n, j, at, bf16_of(w));
	if (a.hf)
		((float4 *)(a.hf + (size_t)j * a.n))[at] = w;
	if (a.h4)
		((uint32_t *)(a.h4 + (size_t)j * a.n))[at] = e4m3x4(w,
		    a.h4_unit);
}

/*
 * A cluster a row, four columns a thread:
 *   x[i] += sum over ranks of y[i]
 *   h[j] = x[i] * rsqrt(mean x[i]^2 + eps) * w
 * Moves n * (4 T + 8 + 4 + 2, 4 more with hf, 1 with h8, 1 with h4) bytes a
 * row.
 */
__global__ void __cluster_dims__(SHARE, 1, 1) __launch_bounds__(1024)
sum_norm(const __grid_constant__ norm_args a)
{
	uint32_t j = blockIdx.x / SHARE, i = a.own ? a.own[j] :
	    a.samples ? a.samples[j].row : j;
	uint32_t n4 = a.n / 4, per = share(n4);
	uint32_t at = blockIdx.x % SHARE * per + threadIdx.x;
	bool mine = threadIdx.x < per && at < n4;
	float4 *x = (float4 *)(a.x + (size_t)i * a.n) + at;
	float4 v = make_float4(0, 0, 0, 0), w = v;
	float s;

	if (mine && a.w)
		w = ((const float4 *)a.w)[at];
	if (a.w)
		dcpg::cluster_arrive();
	dcpg::launch_wait();
	dcpg::launch_next();	/* a product's weights may come meanwhile */
	if (blockIdx.x != 0 && a.next_bytes != 0)
		fetch_next(a);	/* while peers are waited for */
	if (mine)
		v = *x;
	if (a.push) {
		if (mine)
			v = v + pushed(a, i, j, at);
	} else if (a.T != 0) {
		dcpg::meet_in(a.peer, blockIdx.x == 0);
		if (mine)
			v = v + parts(a, i, at);
	}
	if (a.w) {
		/* all blocks run before one writes to another; what is stored
		 * before the sum its barrier would wait for */
		dcpg::cluster_wait();
		s = cluster_sum(dot4(v));
		s = rsqrtf(s / (float)a.n + a.eps);
		if (mine)
			put_normed(a, gridDim.x / SHARE, j, at, s, v, w);
	}
	if (mine && a.T != 0)
		*x = v;
	if (a.push)
		dcpg::count_meeting(a.peer);
	else if (a.T != 0)
		dcpg::meet_out(a.peer, gridDim.x);
}

/*
 * The same of many rows whose partials are one rank's, a block a row: nothing
 * waits for a cluster, and all of a row is under way at once.
 */
enum { MANY_THREADS = 256, MANY_EACH = 8 };	/* float4 of a thread */

__global__ void __launch_bounds__(MANY_THREADS)
sum_norm_many(const __grid_constant__ norm_args a)
{
	uint32_t j = blockIdx.x, i = a.own ? a.own[j] : j, n4 = a.n / 4;
	float4 *x = (float4 *)(a.x + (size_t)i * a.n), v[MANY_EACH];
	float s = 0;

	dcpg::launch_wait();
	dcpg::launch_next();
#pragma unroll
	for (uint32_t k = 0; k < MANY_EACH; k++) {
		uint32_t at = k * MANY_THREADS + threadIdx.x;

		v[k] = at < n4 ? x[at] : make_float4(0, 0, 0, 0);
	}
	if (a.T != 0) {
		const float4 *y = (const float4 *)a.y.p[0] + (size_t)i * n4;
		float4 p[MANY_EACH];

#pragma unroll
		for (uint32_t k = 0; k < MANY_EACH; k++) {
			uint32_t at = k * MANY_THREADS + threadIdx.x;

			p[k] = at < n4 ? __ldcg(y + at) :
			    make_float4(0, 0, 0, 0);
		}
#pragma unroll
		for (uint32_t k = 0; k < MANY_EACH; k++) {
			uint32_t at = k * MANY_THREADS + threadIdx.x;

			v[k] = v[k] + p[k];
			if (at < n4)
				x[at] = v[k];
		}
	}
	if (a.w == NULL)
		return;
#pragma unroll
	for (uint32_t k = 0; k < MANY_EACH; k++)
		s += dot4(v[k]);
	s = rsqrtf(block_sum(s) / (float)a.n + a.eps);
#pragma unroll
	for (uint32_t k = 0; k < MANY_EACH; k++) {
		uint32_t at = k * MANY_THREADS + threadIdx.x;

		if (at < n4)
			put_normed(a, gridDim.x, j, at, s, v[k],
			    ((const float4 *)a.w)[at]);
	}
}

/* On the device before a peer spins in it there, as dcpg_peer_init's. */
int
dcpg_norm_init(void)
{
	cudaFuncAttributes f;

	return cudaFuncGetAttributes(&f, sum_norm) == cudaSuccess ? 0 : -EIO;
}

static int
launch(dcpg_rank *r, const norm_args *a, uint32_t rows)
{
	/* a meeting takes a thread for each rank */
	uint32_t per = std::max(share(a->n / 4), DCPK_MAX_RANKS + 0u);

	if (rows == 0)
		return 0;
	cudaSetDevice(r->dev);
	if (rows > 64 && a->T <= 1 && a->peer.world == 0 &&
	    a->owner == NULL && a->samples == NULL &&
	    a->n <= MANY_THREADS * MANY_EACH * 4)
		return dcpg_launch_early("sum_norm_many", sum_norm_many, rows,
		    MANY_THREADS, r->st, *a);
	return dcpg_launch_early("sum_norm", sum_norm, rows * SHARE, per, r->st,
	    *a);
}

/* Whether the sum before a layer has already made its h. */
static bool
normed(const dcpk_ctx *c, uint32_t layer)
{
	return layer != 0 && c->r[0].own == NULL;
}

/* h as codes, if an FP8 matrix of the layer's attention or FFN reads it. */
static struct dcpg_codes
codes(const dcpg_rank *r, uint32_t layer, bool attention)
{
	const dcpg_layer *l = &r->layer[layer];
	bool read = attention ? l->first.scale || l->q_a.scale ||
	    l->kv_a.scale || l->idx_k.scale || l->idx_w.scale :
	    l->gate_up.scale || l->gate.scale || l->up.scale ||
	    l->s_gate_up.scale || l->s_gate.scale || l->s_up.scale ||
	    l->e_gate8 || l->e_up8;

	return read ? r->h8 : dcpg_codes {};
}

int
dcpg_in_norm(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	norm_args a = {};

	if (normed(c, layer))
		return 0;
	a.x = r->x;
	a.w = r->layer[layer].in_norm;
	a.own = r->own;
	a.eps = c->s.model.eps;
	a.h = r->h;
	a.h8 = codes(r, layer, true);
	a.n = c->s.model.hidden;
	return launch(r, &a, r->m);
}

int
dcpg_final_norm(dcpk_ctx *c, dcpg_rank *r, uint32_t s0, uint32_t n)
{
	norm_args a = {};

	a.x = r->x;
	a.w = r->final_norm;
	a.samples = DCPG_PLAN(c, r, dcpk_sample, samples_off) + s0;
	a.eps = c->s.model.eps;
	a.h = r->hs;
	a.n = c->s.model.hidden;
	return launch(r, &a, n);
}

/* The norm that follows: the FFN's, or the next layer's. */
static void
next_norm(dcpk_ctx *c, dcpg_rank *r, bool attention, uint32_t layer,
    norm_args *a)
{
	const dcpk_model *m = &c->s.model;

	a->eps = m->eps;
	a->h = r->h;
	if (attention) {
		a->w = r->layer[layer].post_norm;
		a->h8 = codes(r, layer, false);
		a->hf = m->sparse[layer] ? r->hf : NULL;
		if (m->sparse[layer] && m->experts_tok != 0) {
			a->next = (const char *)r->layer[layer].router;
			a->next_bytes = (uint64_t)m->experts * m->hidden * 4;
		}
		if (r->layer[layer].e_gate4) {
			a->h4 = r->h4;
			a->h4_unit = r->layer[layer].e_unit[0];
		}
	} else if (layer + 1 < m->layers && normed(c, layer + 1)) {
		a->w = r->layer[layer + 1].in_norm;
		a->h8 = codes(r, layer + 1, true);
	}
}

/* Through NCCL, where all ranks have partials of the same rows. */
static int
sum_nccl(dcpk_ctx *c, bool attention)
{
	float *y[DCPK_MAX_RANKS];

	for (uint32_t i = 0; i < c->W; i++)
		y[i] = attention ? c->r[i].ya : c->r[i].yf;
	return dcpg_nccl_sum(c, y, (size_t)c->rows * c->s.model.hidden);
}

/* Own rows where all ranks have them, the others' zero: a block a row. */
__global__ void
spread(const float *own, const uint32_t *owner, const uint32_t *jof,
    uint32_t cp, uint32_t n, float *y)
{
	uint32_t i = blockIdx.x;
	const float *s = own + (size_t)jof[i] * n;

	for (uint32_t d = threadIdx.x; d < n; d += blockDim.x)
		y[(size_t)i * n + d] = owner[i] == cp ? s[d] : 0;
}

/* CP without peer access: attention's partials into yf, which is free here. */
static int
spread_rows(dcpk_ctx *c)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		spread<<<c->rows, 256, 0, r->st>>>(r->ya, r->owner, r->jof,
		    r->cp, c->s.model.hidden, r->yf);
		rc |= DCPG_LAUNCHED("spread");
	}
	return rc;
}

int
dcpg_sum_norm(dcpk_ctx *c, bool attention, uint32_t layer)
{
	bool by_owner = attention && c->r[0].owner != NULL;
	bool spread = by_owner && c->mirrored;
	bool nccl = c->nccl != NULL && (!by_owner || spread);
	bool from_ya = attention && !spread;
	bool inside = c->W > 1 && !nccl && c->s.comm == DCPK_COMM_PEER;
	int rc = 0;

	if (spread)
		rc |= spread_rows(c);
	if (nccl)
		rc |= sum_nccl(c, from_ya);
	else if (!inside)
		rc = dcpg_meet(c);
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		norm_args a = {};

		a.x = r->x;
		a.n = c->s.model.hidden;
		if (nccl) {
			a.y.p[0] = from_ya ? r->ya : r->yf;
			a.T = 1;
		} else {
			if (attention)
				a.y = DCPG_PEERS(c, r, float, ya);
			else
				a.y = DCPG_PEERS(c, r, float, yf);
			a.T = c->W;
		}
		if (!nccl && attention && r->own != NULL) {
			a.owner = r->owner;
			a.jof = r->jof;
			a.T = c->s.topo.attn_tp;
		}
		if (inside)
			a.peer = dcpg_peer_of(c, r, 0);
		if (inside && a.owner == NULL && c->rows <= DCPG_PUSHED) {
			a.push = true;
			a.place = DCPG_PEERS(c, r, float, sums);
			for (uint32_t e = 0; !attention && e < c->W; e++)
				a.place.p[e] += (size_t)c->W * DCPG_PUSHED *
				    a.n;
		}
		next_norm(c, r, attention, layer, &a);
		rc |= launch(r, &a, c->rows);
	}
	return rc;
}
