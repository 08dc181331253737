/*
 * FFN: dense through dcpg_product; routed experts grouped, without the host
 * knowing who goes where: rows are sorted by expert into slots on the device
 * (route.cu), and one launch covers every expert's tiles (experts.cu). Every
 * rank has a slice of every expert; partial sums meet in dcpg_sum_norm.
 */
#include <mma.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rowops.cuh"

using namespace nvcuda;

/* y [m][n] = silu(g) * u; gu [m][2n]: g, then u. */
__global__ void __launch_bounds__(256)
silu_mul(const float *gu, bf16 *y, uint32_t n)
{
	uint32_t row = blockIdx.x, j = blockIdx.y * 256 + threadIdx.x;
	const float *g = gu + (size_t)row * 2 * n + j;

	dcpg::launch_wait();
	dcpg::launch_next();
	if (j < n)
		y[(size_t)row * n + j] =
		    __float2bfloat16(dcpg::glu(g[0], g[n]));
}

/* The same and as codes, n a multiple of 128: four columns a thread. Early:
 * down's weights may come while gate and up still run. */
__global__ void __launch_bounds__(256)
silu_codes(const float *gu, bf16 *y, struct dcpg_codes y8, uint32_t m,
    uint32_t n, bool early)
{
	uint32_t row = blockIdx.x, q = blockIdx.y * 256 + threadIdx.x;
	const float4 *g = (const float4 *)(gu + (size_t)row * 2 * n) + q;

	if (early)
		dcpg::launch_next();
	dcpg::launch_wait();
	dcpg::launch_next();
	if (q >= n / 4)
		return;
	float4 a = g[0], b = g[n / 4];
	bf16x4 v = bf16_of(make_float4(dcpg::glu(a.x, b.x),
	    dcpg::glu(a.y, b.y), dcpg::glu(a.z, b.z), dcpg::glu(a.w, b.w)));
	((bf16x4 *)(y + (size_t)row * n))[q] = v;
	put_codes(y8, m, n, row, q, v);
}

/* --- grouped products of any shape, slowly; experts.cu has the usual ones */

enum { TM = 16, TN = 64, TK = 32 };

struct group_args {
	const bf16 *x;		/* [rows][k] by slot_row, or [slots][k] */
	const uint32_t *slot_row;	/* NULL: x is by slot */
	const bf16 *w, *w2;	/* [E][n][k]; w2: y = silu(x w) * (x w2) */
	const uint32_t *tile_e, *tile_m, *first;
	uint32_t E, n, k;
	bf16 *y16;		/* [slots][n], or */
	float *y;
};

/*
 * A block owns 16 slots of one expert x 64 columns, four warps of 16 columns.
 * Shared memory holds 32 k of x and of w (and w2); odd sizes are padded with
 * zeros there.
 */
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
				    src[((size_t)e * a.n + c) * a.k + k] :
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
			v = dcpg::glu(v, so[1][r][c]);
		if (a.y16)
			a.y16[(size_t)s * a.n + n0 + c] = __float2bfloat16(v);
		else
			a.y[(size_t)s * a.n + n0 + c] = v;
	}
}

/* gu = h w, from column `at` on. */
static int
of_h(dcpk_ctx *c, dcpg_rank *r, const dcpg_mat *w, uint32_t at, uint32_t ld)
{
	dcpg_prod p = {};

	p.w = w->w;
	p.scale = w->scale;
	p.x = r->h;
	p.x8 = r->h8;
	p.y = r->gu + at;
	p.y_f32 = true;
	p.m = c->rows;
	p.n = w->n;
	p.k = p.ldw = p.ldx = c->s.model.hidden;
	p.ldy = ld;
	return dcpg_product(r, &p);
}

/* Of a slice without columns. */
static int
no_ffn(dcpk_ctx *c, dcpg_rank *r)
{
	return dcpg_ok(cudaMemsetAsync(r->yf, 0, (size_t)c->rows *
	    c->s.model.hidden * 4, r->st), "ffn");
}

/* gate, up (stacked or not), silu, down of a plain FFN into yf (columns of this
 * rank). */
static int
plain_ffn(dcpk_ctx *c, dcpg_rank *r, const dcpg_mat *stack,
    const dcpg_mat *gate, const dcpg_mat *up, const dcpg_mat *down, bool early)
{
	uint32_t H = c->s.model.hidden, n = gate->n;
	dcpg_prod p = {};
	int rc;

	if (n == 0)
		return no_ffn(c, r);
	if (stack->w != NULL)
		rc = of_h(c, r, stack, 0, 2 * n);
	else
		rc = of_h(c, r, gate, 0, 2 * n) | of_h(c, r, up, n, 2 * n);
	if (down->scale != NULL)
		rc |= dcpg_launch_early("silu_codes", silu_codes, dim3(c->rows,
		    (n + 1023) / 1024), 256, r->st, r->gu, r->a16, r->a8,
		    c->rows, n, early);
	else
		rc |= dcpg_launch_early("silu_mul", silu_mul, dim3(c->rows,
		    (n + 255) / 256), 256, r->st, r->gu, r->a16, n);
	p.w = down->w;
	p.scale = down->scale;
	p.x = r->a16;
	p.x8 = r->a8;
	p.y = r->yf;
	p.y_f32 = true;
	p.m = c->rows;
	p.n = p.ldy = H;
	p.k = p.ldw = p.ldx = down->k;
	return rc | dcpg_product(r, &p);
}

static void
grouped(dcpg_rank *r, const group_args *g, uint32_t tiles)
{
	dim3 grid((g->n + TN - 1) / TN, tiles);

	grouped_product<<<grid, 128, 0, r->st>>>(*g);
}

/* Whether experts.cu or experts4.cu have the layer's products. */
static bool
fits(const dcpk_ctx *c, const dcpg_layer *l)
{
	uint32_t H = c->s.model.hidden;

	return (l->e_gate4 || dcpg_experts_fit(l->e_slice, H, l->e_gate8)) &&
	    (l->e_down4 || dcpg_experts_fit(H, l->e_slice, l->e_down8));
}

/* Slots of a tile: both products are to have the same. */
static uint32_t
tile_of(const dcpk_ctx *c, const dcpg_layer *l)
{
	const dcpk_model *m = &c->s.model;
	uint32_t tile;

	if (!fits(c, l))
		return TM;
	if (l->e_gate4 && l->e_down4)
		return dcpg_expert_tile4(c->rows, m->experts_tok, m->experts);
	tile = dcpg_expert_tile(c->rows, m->experts_tok, m->experts, 0);
	/* experts4.cu has none of 32 */
	return l->e_gate4 != l->e_down4 && tile == 32 ? 64 : tile;
}

/* Who goes where: eid, ew, and the slots in tiles. */
static int
route(dcpk_ctx *c, dcpg_rank *r, const dcpg_layer *l)
{
	const dcpk_model *m = &c->s.model;
	struct dcpg_route a = {};
	struct dcpg_slots s = {};
	int rc;

	a.h = r->hf;
	a.w = l->router;
	a.bias = l->router_bias;
	a.rows = s.rows = c->rows;
	a.hidden = m->hidden;
	a.experts = s.experts = m->experts;
	a.each = s.each = m->experts_tok;
	a.groups = m->groups;
	a.kept = m->groups_kept;
	a.norm = m->norm_topk;
	a.scale = m->routed_scale;
	a.eid = r->eid;
	a.ew = r->ew;
	a.part = r->ey;		/* free until the experts' own sums */
	a.part_floats = (size_t)c->rows * m->experts_tok * m->hidden;
	rc = dcpg_route(&a, r->st);
	s.eid = r->eid;
	s.tile = tile_of(c, l);
	s.slot = r->slot;
	s.slot_row = r->slot_row;
	s.first = r->eslot0;
	s.tile0 = r->tile0;
	s.tile_e = r->tile_e;
	s.tile_m = fits(c, l) ? NULL : r->tile_m;
	return rc != 0 ? rc : dcpg_slots(&s, r->st);
}

/*
 * Of many rows the experts' outputs are written as bf16: they are most of the
 * bytes that move then. Every sum over a row's experts is f32.
 */
static bool
many(const dcpk_ctx *c, const dcpg_layer *l)
{
	return c->rows > 64 && c->s.model.hidden % 8 == 0 && !l->e_down4;
}

/* a16 or e8 = silu(h gate) * (h up), ey = that times down: by slot. */
static int
fast_experts(dcpk_ctx *c, dcpg_rank *r, const dcpg_layer *l, uint32_t tile)
{
	const dcpk_model *m = &c->s.model;
	struct dcpg_experts a = {};
	uint32_t slots = c->rows * m->experts_tok;
	/* the first product writes what the second reads */
	bool at_once = l->e_down8 && !l->e_gate4 && tile == 128;
	int rc;

	a.x = l->e_gate4 ? (const void *)r->h4 : r->h;
	if (l->e_gate8) {
		a.x = r->h8.code;
		a.x_scale = r->h8.scale;
		a.x_scale_ld = dcpg_rows4(c->rows);
	}
	a.slot_row = r->slot_row;
	a.w = l->e_gate;
	a.w2 = l->e_up;
	a.first = r->eslot0;
	a.tile0 = r->tile0;
	a.tile_e = r->tile_e;
	a.rows = c->rows;
	a.each = m->experts_tok;
	a.experts = m->experts;
	a.n = l->e_slice;
	a.k = m->hidden;
	a.fp8 = l->e_gate8;
	a.int4 = l->e_gate4;
	a.tile = tile;
	if (l->e_gate4 != l->e_down4 && tile == 64)
		a.shape = 2;	/* of experts.cu: of 64 slots */
	a.x_unit = l->e_unit[0];
	a.y_unit = l->e_down4 ? l->e_unit[1] : 0;
	if (at_once)
		a.y8 = r->e8;
	else
		a.y16 = r->a16;
	rc = dcpg_experts(&a, r->st);
	a.y8.code = NULL;
	a.x = r->a16;
	a.x_scale = NULL;
	if (l->e_down8) {
		if (!at_once)
			rc |= dcpg_quantise(r, r->a16, slots, l->e_slice,
			    &r->e8);
		a.x = r->e8.code;
		a.x_scale = r->e8.scale;
		a.x_scale_ld = dcpg_rows4(slots);
	}
	a.slot_row = NULL;
	a.w = l->e_down;
	a.w2 = NULL;
	a.n = m->hidden;
	a.k = l->e_slice;
	a.fp8 = l->e_down8;
	a.int4 = l->e_down4;
	a.x_unit = l->e_unit[1];
	a.early = true;
	a.y16 = many(c, l) ? r->ey : NULL;
	a.y = many(c, l) ? NULL : r->ey;
	return rc != 0 ? rc : dcpg_experts(&a, r->st);
}

/* The same where rows of bf16 are no multiple of 16 bytes (FP8 always are);
 * tiles are of TM slots. */
static int
plain_experts(dcpk_ctx *c, dcpg_rank *r, const dcpg_layer *l)
{
	const dcpk_model *m = &c->s.model;
	uint32_t tiles = dcpg_expert_tiles(c->rows, m->experts_tok, m->experts,
	    TM);
	group_args g = {};

	g.x = r->h;
	g.slot_row = r->slot_row;
	g.w = l->e_gate;
	g.w2 = l->e_up;
	g.tile_e = r->tile_e;
	g.tile_m = r->tile_m;
	g.first = r->eslot0;
	g.E = m->experts;
	g.n = l->e_slice;
	g.k = m->hidden;
	g.y16 = r->a16;
	grouped(r, &g, tiles);
	g.x = r->a16;
	g.slot_row = NULL;
	g.w = l->e_down;
	g.w2 = NULL;
	g.n = m->hidden;
	g.k = l->e_slice;
	g.y16 = NULL;
	g.y = r->ey;
	grouped(r, &g, tiles);
	return DCPG_LAUNCHED("experts");
}

static int
experts(dcpk_ctx *c, dcpg_rank *r, const dcpg_layer *l, bool add)
{
	const dcpk_model *m = &c->s.model;
	bool fit = fits(c, l);
	struct dcpg_combine y = {};
	int rc;

	if (l->e_slice == 0)
		return add ? 0 : no_ffn(c, r);
	rc = fit ? fast_experts(c, r, l, tile_of(c, l)) :
	    plain_experts(c, r, l);
	y.eid = r->eid;
	y.slot = r->slot;
	y.ew = r->ew;
	y.x = r->ey;
	y.x_bf16 = fit && many(c, l);
	y.rows = c->rows;
	y.each = m->experts_tok;
	y.n = m->hidden;
	y.add = add;
	y.y = r->yf;
	return rc != 0 ? rc : dcpg_combine(&y, r->st);
}

static int
shared_expert(dcpk_ctx *c, dcpg_rank *r, const dcpg_layer *l, bool early)
{
	return plain_ffn(c, r, &l->s_gate_up, &l->s_gate, &l->s_up,
	    &l->s_down, early);
}

/*
 * A layer of experts. In decode who goes where is found out on the side stream,
 * beside the shared expert: that one reads weights, the other waits most of
 * its time. With events each meeting has all of a rank's work before it.
 */
static int
sparse_ffn(dcpk_ctx *c, dcpg_rank *r, const dcpg_layer *l)
{
	bool shared = c->s.model.shared_experts != 0;
	bool aside = shared && c->rows <= 64 && l->e_slice != 0 &&
	    (c->W == 1 || c->s.comm == DCPK_COMM_PEER);
	int rc = 0;

	if (aside)
		rc |= dcpg_fork(r);
	if (shared)
		/* beside the router down's blocks would be in its way */
		rc |= shared_expert(c, r, l, !aside);
	if (aside)
		dcpg_aside(r);
	if (l->e_slice != 0)
		rc |= route(c, r, l);
	if (aside) {
		dcpg_aside(r);
		rc |= dcpg_joins(r);
		rc |= dcpg_ok(cudaStreamWaitEvent(r->st, r->joined, 0),
		    "join");
	}
	return rc != 0 ? rc : experts(c, r, l, shared);
}

int
dcpg_ffn_op(dcpk_ctx *c, uint32_t layer)
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
			rc |= plain_ffn(c, r, &l->gate_up, &l->gate, &l->up,
			    &l->down, true);
			continue;
		}
		rc |= sparse_ffn(c, r, l);
	}
	rc |= dcpg_sum_norm(c, false, layer);
	return rc != 0 ? -EIO : 0;
}
