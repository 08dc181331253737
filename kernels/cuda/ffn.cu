/*
 * FFN: dense through cuBLASLt; routed experts grouped, without the host
 * knowing who goes where: rows are sorted by expert into slots on the device,
 * and one launch covers every expert's tiles. Every rank has a slice of every
 * expert; partial sums meet in dcpg_sum.
 */
#include <mma.h>

#include "kernels/cuda/rowops.cuh"

using namespace nvcuda;

/* y16 = silu(g) * u */
__global__ void
silu_mul(const float *g, const float *u, bf16 *y, size_t n)
{
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		y[i] = __float2bfloat16(g[i] / (1 + __expf(-g[i])) * u[i]);
}

struct route_args {
	const float *h, *w, *bias;	/* [M][hidden], [E][hidden], [E] */
	uint32_t hidden, E, K, groups, kept;
	bool norm;
	float scale;
	uint32_t *eid;
	float *ew;
};

/* One block of 256 a row: f32 logits, then the choice by one warp. */
__global__ void
route_rows(route_args a)
{
	extern __shared__ float sm[];
	float *s = sm, *ch = sm + a.E, *gs = ch + a.E;
	uint32_t i = blockIdx.x, lane = threadIdx.x % 32, w = threadIdx.x / 32;
	const float *h = a.h + (size_t)i * a.hidden;

	for (uint32_t e = w; e < a.E; e += blockDim.x / 32) {
		float d = 0;

		for (uint32_t k = lane; k < a.hidden; k += 32)
			d += h[k] * a.w[(size_t)e * a.hidden + k];
		d = warp_sum(d);
		if (lane == 0) {
			s[e] = 1 / (1 + expf(-d));
			ch[e] = s[e] + a.bias[e];
		}
	}
	__syncthreads();
	if (w != 0)
		return;
	uint32_t per = a.E / a.groups;

	if (a.kept < a.groups) {	/* groups by the sum of their two best */
		for (uint32_t g = lane; g < a.groups; g += 32) {
			float b1 = -INFINITY, b2 = -INFINITY;

			for (uint32_t e = g * per; e < (g + 1) * per; e++) {
				float v = ch[e];

				if (v > b1) {
					b2 = b1;
					b1 = v;
				} else if (v > b2) {
					b2 = v;
				}
			}
			gs[g] = b1 + (per > 1 ? b2 : 0);
		}
		__syncwarp();
		for (uint32_t g = lane; g < a.groups; g += 32) {
			uint32_t better = 0;

			for (uint32_t o = 0; o < a.groups; o++)
				better += gs[o] > gs[g] ||
				    (gs[o] == gs[g] && o < g);
			if (better >= a.kept)
				for (uint32_t e = 0; e < per; e++)
					ch[g * per + e] = -INFINITY;
		}
		__syncwarp();
	}
	float sum = 0;

	for (uint32_t k = 0; k < a.K; k++) {
		float best = -INFINITY;
		uint32_t id = 0xffffffffu;

		for (uint32_t e = lane; e < a.E; e += 32)
			if (ch[e] > best || (ch[e] == best && e < id)) {
				best = ch[e];
				id = e;
			}
		for (int o = 16; o > 0; o >>= 1) {
			float v = __shfl_xor_sync(DCPG_FULL, best, o);
			uint32_t x = __shfl_xor_sync(DCPG_FULL, id, o);

			if (v > best || (v == best && x < id)) {
				best = v;
				id = x;
			}
		}
		sum += s[id];
		if (lane == 0) {
			a.eid[(size_t)i * a.K + k] = id;
			a.ew[(size_t)i * a.K + k] = s[id];
			ch[id] = -INFINITY;
		}
		__syncwarp();
	}
	for (uint32_t k = lane; k < a.K; k += 32)
		a.ew[(size_t)i * a.K + k] *= a.scale /
		    (a.norm ? sum + 1e-20f : 1);
}

enum { TM = 16, TN = 64, TK = 32 };

/*
 * One block: count rows per expert, first slots, slots; then the list of row
 * tiles (expert, first slot), padded with expert E for blocks without work.
 */
__global__ void
sort_slots(const uint32_t *eid, uint32_t n, uint32_t K, uint32_t E,
    uint32_t max_tiles, uint32_t *slot, uint32_t *slot_row, uint32_t *first,
    uint32_t *tile_e, uint32_t *tile_m)
{
	extern __shared__ uint32_t cnt[];	/* [E], then [E] next */
	uint32_t *next = cnt + E;

	for (uint32_t e = threadIdx.x; e < E; e += blockDim.x)
		cnt[e] = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
		atomicAdd(&cnt[eid[i]], 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		uint32_t at = 0, t = 0;

		for (uint32_t e = 0; e < E; e++) {
			first[e] = next[e] = at;
			for (uint32_t m = 0; m < cnt[e]; m += TM, t++) {
				tile_e[t] = e;
				tile_m[t] = at + m;
			}
			at += cnt[e];
		}
		first[E] = at;
		for (; t < max_tiles; t++)
			tile_e[t] = E;
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
		uint32_t s = atomicAdd(&next[eid[i]], 1);

		slot[i] = s;
		slot_row[s] = i / K;
	}
}

struct group_args {
	const bf16 *x;		/* [rows][k] by slot_row, or [slots][k] */
	const uint32_t *slot_row;	/* NULL: x is by slot */
	const bf16 *w, *w2;	/* [E][n][k]; w2: y = silu(x w) * (x w2).
				   FP8: e4m3, an expert's scales behind it */
	uint32_t scale_ld;	/* FP8: floats of 128 rows' scales */
	size_t expert_bytes;	/* FP8: from one to the next */
	const uint32_t *tile_e, *tile_m, *first;
	uint32_t E, n, k;
	bf16 *y16;		/* [slots][n], or */
	float *y;
};

/* Element (n, k) of an expert as bf16: what the loader makes of it otherwise. */
template <bool FP8>
__device__ static inline bf16
weight_at(const group_args &a, const bf16 *w, uint32_t e, uint32_t n,
    uint32_t k)
{
	if (!FP8)
		return w[((size_t)e * a.n + n) * a.k + k];
	const uint8_t *at = (const uint8_t *)w + e * a.expert_bytes;
	const float *sc = (const float *)(at + (size_t)a.n * a.k);

	return __float2bfloat16(from_e4m3(at[(size_t)n * a.k + k]) *
	    sc[(size_t)(n / 128) * a.scale_ld + k / 128]);
}

/*
 * A block owns 16 slots of one expert x 64 columns, four warps of 16 columns.
 * Shared memory holds 32 k of x and of w (and w2); odd sizes are padded with
 * zeros there.
 */
template <bool FP8>
__global__ void
grouped_product(group_args a)
{
	__shared__ __align__(16) bf16 sx[TM][TK + 8], sw[2][TN][TK + 8];
	__shared__ __align__(16) float so[2][TM][TN + 4];
	uint32_t e = a.tile_e[blockIdx.y], m0, m1, n0 = blockIdx.x * TN;
	uint32_t w = threadIdx.x / 32, mats = a.w2 ? 2 : 1;
	wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[2];

	if (e >= a.E)
		return;
	m0 = a.tile_m[blockIdx.y];
	m1 = min(m0 + TM, a.first[e + 1]);
	for (uint32_t t = 0; t < mats; t++)
		wmma::fill_fragment(acc[t], 0.0f);
	for (uint32_t k0 = 0; k0 < a.k; k0 += TK) {
		for (uint32_t i = threadIdx.x; i < TM * TK; i += blockDim.x) {
			uint32_t r = i / TK, k = k0 + i % TK, s = m0 + r;

			sx[r][i % TK] = s < m1 && k < a.k ?
			    a.x[(size_t)(a.slot_row ? a.slot_row[s] : s) * a.k +
			    k] : __float2bfloat16(0);
		}
		for (uint32_t t = 0; t < mats; t++) {
			const bf16 *src = t ? a.w2 : a.w;

			for (uint32_t i = threadIdx.x; i < TN * TK;
			    i += blockDim.x) {
				uint32_t c = n0 + i / TK, k = k0 + i % TK;

				sw[t][i / TK][i % TK] = c < a.n && k < a.k ?
				    weight_at<FP8>(a, src, e, c, k) :
				    __float2bfloat16(0);
			}
		}
		__syncthreads();
		for (uint32_t kk = 0; kk < TK; kk += 16) {
			wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16,
			    wmma::row_major> fa;
			wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16,
			    wmma::col_major> fb;

			wmma::load_matrix_sync(fa, &sx[0][kk], TK + 8);
			for (uint32_t t = 0; t < mats; t++) {
				wmma::load_matrix_sync(fb, &sw[t][w * 16][kk],
				    TK + 8);
				wmma::mma_sync(acc[t], fa, fb, acc[t]);
			}
		}
		__syncthreads();
	}
	for (uint32_t t = 0; t < mats; t++)
		wmma::store_matrix_sync(&so[t][0][w * 16], acc[t], TN + 4,
		    wmma::mem_row_major);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < TM * TN; i += blockDim.x) {
		uint32_t r = i / TN, c = i % TN, s = m0 + r;
		float v = so[0][r][c];

		if (s >= m1 || n0 + c >= a.n)
			continue;
		if (a.w2)
			v = v / (1 + __expf(-v)) * so[1][r][c];
		if (a.y16)
			a.y16[(size_t)s * a.n + n0 + c] = __float2bfloat16(v);
		else
			a.y[(size_t)s * a.n + n0 + c] = v;
	}
}

/* y[i] (+)= sum of the row's experts, by ascending id; one block a row. */
__global__ void
combine_rows(const uint32_t *eid, const float *ew, const uint32_t *slot,
    const float *ey, uint32_t K, uint32_t n, bool add, float *y)
{
	__shared__ uint32_t order[32];
	uint32_t i = blockIdx.x;
	const uint32_t *id = eid + (size_t)i * K;

	if (threadIdx.x < K) {
		uint32_t k = threadIdx.x, before = 0;

		for (uint32_t o = 0; o < K; o++)
			before += id[o] < id[k];
		order[before] = k;
	}
	__syncthreads();
	for (uint32_t d = threadIdx.x; d < n; d += blockDim.x) {
		float v = 0;

		for (uint32_t k = 0; k < K; k++) {
			uint32_t at = i * K + order[k];

			v += ew[at] * ey[(size_t)slot[at] * n + d];
		}
		if (add)
			v += y[(size_t)i * n + d];
		y[(size_t)i * n + d] = v;
	}
}

/* gate, up, silu, down of a plain FFN into yf (columns of this rank). */
static int
plain_ffn(dcpk_ctx *c, dcpg_rank *r, const dcpg_mat *gate, const dcpg_mat *up,
    const dcpg_mat *down)
{
	uint32_t H = c->s.model.hidden;
	size_t n = (size_t)c->rows * gate->n;
	dcpg_prod p = {};
	int rc;

	if (gate->n == 0) {
		cudaMemsetAsync(r->yf, 0, (size_t)c->rows * H * 4, r->st);
		return 0;
	}
	p.w = gate->w;
	p.scale = gate->scale;
	p.pow2 = c->s.model.act_ue8m0;
	p.x = r->h;
	p.y = r->g;
	p.y_f32 = true;
	p.m = c->rows;
	p.n = gate->n;
	p.k = p.ldw = p.ldx = H;
	p.ldy = gate->n;
	rc = dcpg_product(r, &p);
	p.w = up->w;
	p.scale = up->scale;
	p.y = r->u;
	rc |= dcpg_product(r, &p);
	silu_mul<<<(uint32_t)((n + 255) / 256), 256, 0, r->st>>>(r->g, r->u,
	    r->a16, n);
	p.w = down->w;
	p.scale = down->scale;
	p.x = r->a16;
	p.y = r->yf;
	p.n = p.ldy = H;
	p.k = p.ldw = p.ldx = down->k;
	return rc | dcpg_product(r, &p);
}

static void
grouped(dcpg_rank *r, group_args *g, bool fp8, uint32_t tiles)
{
	dim3 grid((g->n + TN - 1) / TN, tiles);

	if (fp8) {
		g->scale_ld = dcpk_fp8_scale_ld(g->k);
		g->expert_bytes = dcpk_fp8_bytes(g->n, g->k);
		grouped_product<true><<<grid, 128, 0, r->st>>>(*g);
	} else {
		grouped_product<false><<<grid, 128, 0, r->st>>>(*g);
	}
}

static int
experts(dcpk_ctx *c, dcpg_rank *r, dcpg_layer *l, bool add)
{
	const dcpk_model *m = &c->s.model;
	uint32_t n = c->rows * m->experts_tok, tiles, H = m->hidden;
	route_args a = {};
	group_args g = {};

	a.h = r->hf;
	a.w = l->router;
	a.bias = l->router_bias;
	a.hidden = H;
	a.E = m->experts;
	a.K = m->experts_tok;
	a.groups = m->groups;
	a.kept = m->groups_kept;
	a.norm = m->norm_topk;
	a.scale = m->routed_scale;
	a.eid = r->eid;
	a.ew = r->ew;
	route_rows<<<c->rows, 256, (2 * a.E + a.groups) * sizeof(float),
	    r->st>>>(a);
	tiles = n / TM + (n < m->experts ? n : m->experts);
	sort_slots<<<1, 1024, 2 * m->experts * sizeof(uint32_t), r->st>>>(
	    r->eid, n, m->experts_tok, m->experts, tiles, r->slot,
	    r->slot_row, r->eslot0, r->tile_e, r->tile_m);
	if (l->e_slice == 0) {
		if (!add)
			cudaMemsetAsync(r->yf, 0, (size_t)c->rows * H * 4,
			    r->st);
		return DCPG_LAUNCHED("experts");
	}
	g.x = r->h;
	g.slot_row = r->slot_row;
	g.w = l->e_gate;
	g.w2 = l->e_up;
	g.tile_e = r->tile_e;
	g.tile_m = r->tile_m;
	g.first = r->eslot0;
	g.E = m->experts;
	g.n = l->e_slice;
	g.k = H;
	g.y16 = r->a16;
	grouped(r, &g, l->e_gate8, tiles);
	g.x = r->a16;
	g.slot_row = NULL;
	g.w = l->e_down;
	g.w2 = NULL;
	g.n = H;
	g.k = l->e_slice;
	g.y16 = NULL;
	g.y = r->ey;
	grouped(r, &g, l->e_down8, tiles);
	combine_rows<<<c->rows, 256, 0, r->st>>>(r->eid, r->ew, r->slot, r->ey,
	    m->experts_tok, H, add, r->yf);
	return DCPG_LAUNCHED("experts");
}

int
dcpg_ffn_op(dcpk_ctx *c, uint32_t rank, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	int rc = 0;

	if (c->replay)
		return 0;
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		dcpg_layer *l = &r->layer[layer];

		cudaSetDevice(r->dev);
		if (!m->sparse[layer]) {
			rc |= plain_ffn(c, r, &l->gate, &l->up, &l->down);
			continue;
		}
		if (m->shared_experts != 0)
			rc |= plain_ffn(c, r, &l->s_gate, &l->s_up,
			    &l->s_down);
		rc |= experts(c, r, l, m->shared_experts != 0);
	}
	rc |= dcpg_sum_norm(c, false, layer);
	return rc != 0 ? -EIO : 0;
}
