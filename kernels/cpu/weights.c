/*
 * Weights of the CPU backend. bf16 matrices stay bf16 (exact, half the bytes);
 * everything else is dequantised to f32 as it is loaded. A slice that several
 * ranks keep is kept once. kv_b_proj is taken apart into W_UK (transposed) and
 * W_UV, head by head, for the absorbed form (doc/model.md 1.2).
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ctx.h"
#include "kernels/fail.h"

static struct dcpc_w *
many(uint32_t n)
{
	return calloc(n ? n : 1, sizeof(struct dcpc_w));
}

int
dcpc_weights_alloc(struct dcpk_ctx *c)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t W = c->W, A = c->s.topo.attn_tp, E = m->experts, i;
	uint32_t n = m->layers + m->mtp_layers;
	struct dcpc_layer *l;
	bool ok = true;

	c->lm_head = many(W);
	c->layer = calloc(n, sizeof *c->layer);
	if (c->layer == NULL || c->lm_head == NULL)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		l = &c->layer[i];
		ok = ok && (l->q_b = many(A)) && (l->o = many(A)) &&
		    (l->uk = many(m->heads)) && (l->uv = many(m->heads)) &&
		    (l->gate = many(W)) && (l->up = many(W)) &&
		    (l->down = many(W)) && (l->s_gate = many(W)) &&
		    (l->s_up = many(W)) && (l->s_down = many(W)) &&
		    (l->e_gate = many(E * W)) && (l->e_up = many(E * W)) &&
		    (l->e_down = many(E * W));
	}
	return ok ? 0 : -ENOMEM;
}

static void
drop(struct dcpc_w *w, uint32_t n)
{
	uint32_t i;

	for (i = 0; w != NULL && i < n; i++)
		free((void *)w[i].m.data);
}

void
dcpc_layer_mats(const struct dcpk_ctx *c, struct dcpc_layer *l,
    struct dcpc_mats out[DCPC_LAYER_MATS])
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t W = c->W, A = c->s.topo.attn_tp, EW = m->experts * W;
	const struct dcpc_mats all[DCPC_LAYER_MATS] = {
		{ l->q_b, A }, { l->o, A }, { l->uk, m->heads },
		{ l->uv, m->heads }, { l->gate, W }, { l->up, W },
		{ l->down, W }, { l->s_gate, W }, { l->s_up, W },
		{ l->s_down, W }, { l->e_gate, EW }, { l->e_up, EW },
		{ l->e_down, EW },
		{ &l->q_a, 1 }, { &l->kv_a, 1 }, { &l->idx_q_b, 1 },
		{ &l->idx_k, 1 }, { &l->idx_w, 1 }, { &l->router, 1 },
		{ &l->eh_proj, 1 },
	};

	memcpy(out, all, sizeof all);
}

void
dcpc_weights_free(struct dcpk_ctx *c)
{
	const struct dcpk_model *m = &c->s.model;
	struct dcpc_mats mats[DCPC_LAYER_MATS];
	struct dcpc_layer *l;
	uint32_t i;

	for (i = 0; c->layer != NULL && i < m->layers + m->mtp_layers; i++) {
		l = &c->layer[i];
		float *vec[] = { l->in_norm, l->post_norm, l->q_a_norm,
			l->kv_a_norm, l->k_norm_w, l->k_norm_b,
			l->router_bias, l->e_norm, l->h_norm, l->sh_norm };
		size_t j;

		dcpc_layer_mats(c, l, mats);
		for (j = 0; j < DCPC_LAYER_MATS; j++)
			drop(mats[j].w, mats[j].n);
		for (j = 0; j < DCPC_LAYER_ARRAYS; j++)
			free(mats[j].w);
		for (j = 0; j < sizeof vec / sizeof *vec; j++)
			free(vec[j]);
	}
	free(c->layer);
	drop(&c->embed, 1);
	drop(c->lm_head, c->W);
	free(c->lm_head);
	free(c->final_norm);
}

/* --- load -------------------------------------------------------------- */

static uint32_t
lowest_rank(uint64_t mask)
{
	return (uint32_t)__builtin_ctzll(mask);
}

/* Which line of the memory plan a tensor belongs to. */
static void
charge(struct dcpk_ctx *c, const struct dcpk_weight *w, uint64_t bytes)
{
	uint64_t m;

	if (w->layer >= c->s.model.layers && c->s.model.mtp_layers != 0) {
		c->got[lowest_rank(w->ranks)].weights_mtp += bytes;
		return;
	}
	if (__builtin_popcountll(w->ranks) == (int)c->W && c->W > 1) {
		bool attn = w->tensor == DCPK_T_Q_B ||
		    w->tensor == DCPK_T_KV_B || w->tensor == DCPK_T_O;

		if (attn)
			c->got[0].weights_attn += bytes;
		else
			c->got[0].weights_rep += bytes;
		return;
	}
	m = w->ranks;
	if (m & (m - 1))
		c->got[lowest_rank(m)].weights_attn += bytes;
	else
		c->got[lowest_rank(m)].weights += bytes;
}

static enum dcpc_act
act_of(const struct dcpk_ctx *c, const struct dcpk_weight *w)
{
	if ((c->s.flags & DCPK_QUANT_ACT) == 0)
		return DCPC_ACT_NONE;
	switch (w->fmt) {
	case DCPK_W_FP8_BLOCK:
		return DCPC_ACT_BLOCK;
	case DCPK_W_INT4_PAIR:
		return w->act_scale > 0 ? DCPC_ACT_STATIC : DCPC_ACT_NONE;
	default:
		return DCPC_ACT_NONE;
	}
}

/* The slice as bf16 where it is bf16, else f32; rows tightly packed. */
static int
keep_matrix(struct dcpk_ctx *c, struct dcpc_w *out,
    const struct dcpk_weight *w, struct dcpk_err *err)
{
	uint32_t n = w->n1 - w->n0, k = w->k1 - w->k0, i;
	size_t el = w->fmt == DCPK_W_BF16 ? 2 : 4;
	char *data;
	int rc;

	if (out->loaded)
		return fail(err, -EEXIST, "layer %u, tensor %d: given twice",
		    w->layer, (int)w->tensor);
	out->m = (struct dcpc_mat){ NULL, n, k, k, el == 2, false };
	out->act = act_of(c, w);
	out->act_scale = w->act_scale;
	out->loaded = true;
	if (n == 0 || k == 0)
		return 0;
	data = aligned_alloc(64, ((size_t)n * k * el + 127) / 64 * 64);
	if (data == NULL)
		return fail(err, -ENOMEM, "out of memory for weights");
	if (el == 2) {
		for (i = 0; i < n; i++)
			memcpy(data + (size_t)i * k * 2,
			    (const char *)w->data +
			    ((size_t)(w->n0 + i) * w->k + w->k0) * 2,
			    (size_t)k * 2);
	} else {
		rc = dcpc_dequant((float *)(void *)data, k, w, err);
		if (rc != 0) {
			free(data);
			return rc;
		}
	}
	out->m.data = data;
	charge(c, w, (uint64_t)n * k * el);
	return 0;
}

/* Into the packed order, if the shape allows it and memory is there. */
static void
pack(struct dcpc_w *w)
{
	struct dcpc_mat *m = &w->m;
	char *d;

	if (m->data == NULL || m->n % DCPC_PACK != 0)
		return;
	d = aligned_alloc(64, ((size_t)m->n * m->k * (m->bf16 ? 2 : 4) + 127) /
	    64 * 64);
	if (d == NULL)
		return;
	dcpc_pack_mat(d, m->data, m->n, m->k, m->bf16);
	free((void *)m->data);
	m->data = d;
	m->packed = true;
}

static int
keep_f32(struct dcpk_ctx *c, float **out, const struct dcpk_weight *w,
    struct dcpk_err *err)
{
	size_t n = (size_t)(w->n1 - w->n0) * (w->k1 - w->k0);
	float *v;
	int rc;

	if (*out != NULL)
		return fail(err, -EEXIST, "layer %u, tensor %d: given twice",
		    w->layer, (int)w->tensor);
	v = aligned_alloc(64, (n * 4 + 127) / 64 * 64);
	if (v == NULL)
		return fail(err, -ENOMEM, "out of memory for weights");
	rc = dcpc_dequant(v, w->k1 - w->k0, w, err);
	if (rc != 0) {
		free(v);
		return rc;
	}
	*out = v;
	charge(c, w, n * 4);
	return 0;
}

static int
keep_router(struct dcpk_ctx *c, struct dcpc_w *out,
    const struct dcpk_weight *w, struct dcpk_err *err)
{
	float *v = (float *)(uintptr_t)out->m.data;
	int rc = keep_f32(c, &v, w, err);

	if (rc != 0)
		return rc;
	out->m = (struct dcpc_mat){ v, w->n1 - w->n0, w->k1 - w->k0,
		w->k1 - w->k0, false, false };
	out->loaded = true;
	return 0;
}

/* One head's W_UK [n][c] -> [c][n], or W_UV as it is. */
static int
keep_head(struct dcpc_w *out, const struct dcpc_mat *all, uint32_t row0,
    uint32_t rows, bool transpose)
{
	size_t el = all->bf16 ? 2 : 4, c = all->k, i, j;
	char *d = aligned_alloc(64, (rows * c * el + 127) / 64 * 64);
	const char *s = (const char *)all->data + row0 * c * el;

	if (d == NULL)
		return -ENOMEM;
	if (transpose) {
		for (i = 0; i < rows; i++)
			for (j = 0; j < c; j++)
				memcpy(d + (j * rows + i) * el,
				    s + (i * c + j) * el, el);
		out->m = (struct dcpc_mat){ d, (uint32_t)c, rows, rows,
			all->bf16, false };
	} else {
		memcpy(d, s, rows * c * el);
		out->m = (struct dcpc_mat){ d, rows, (uint32_t)c, c,
			all->bf16, false };
	}
	out->loaded = true;
	pack(out);
	return 0;
}

static int
keep_kv_b(struct dcpk_ctx *c, struct dcpc_layer *l,
    const struct dcpk_weight *w, struct dcpk_err *err)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t per = m->nope + m->vdim, h, h0 = w->n0 / per;
	struct dcpc_w all = { 0 };
	int rc;

	if (w->n0 % per != 0 || w->n1 % per != 0)
		return fail(err, -EINVAL, "kv_b_proj is not cut by heads");
	if (l->uk[h0].loaded)
		return fail(err, -EEXIST, "layer %u: kv_b_proj given twice",
		    w->layer);
	rc = keep_matrix(c, &all, w, err);
	for (h = 0; rc == 0 && h < (w->n1 - w->n0) / per; h++) {
		rc = keep_head(&l->uk[h0 + h], &all.m, h * per, m->nope, true);
		if (rc == 0)
			rc = keep_head(&l->uv[h0 + h], &all.m,
			    h * per + m->nope, m->vdim, false);
		if (rc != 0)
			fail(err, rc, "out of memory for weights");
	}
	free((void *)all.m.data);
	return rc;
}

static float **
vector_of(struct dcpk_ctx *c, struct dcpc_layer *l, enum dcpk_tensor t)
{
	switch (t) {
	case DCPK_T_FINAL_NORM: return &c->final_norm;
	case DCPK_T_IN_NORM: return &l->in_norm;
	case DCPK_T_POST_NORM: return &l->post_norm;
	case DCPK_T_Q_A_NORM: return &l->q_a_norm;
	case DCPK_T_KV_A_NORM: return &l->kv_a_norm;
	case DCPK_T_IDX_K_NORM_W: return &l->k_norm_w;
	case DCPK_T_IDX_K_NORM_B: return &l->k_norm_b;
	case DCPK_T_ROUTER_BIAS: return &l->router_bias;
	case DCPK_T_E_NORM: return &l->e_norm;
	case DCPK_T_H_NORM: return &l->h_norm;
	case DCPK_T_SH_NORM: return &l->sh_norm;
	default: return NULL;
	}
}

/* Where the slice of rank r goes; kv_b_proj is taken apart, see keep_kv_b. */
static struct dcpc_w *
matrix_of(struct dcpk_ctx *c, struct dcpc_layer *l,
    const struct dcpk_weight *w, uint32_t r)
{
	uint32_t tp = r % c->s.topo.attn_tp, e = w->expert * c->W + r;

	switch (w->tensor) {
	case DCPK_T_EMBED: return &c->embed;
	case DCPK_T_LM_HEAD: return &c->lm_head[r];
	case DCPK_T_Q_A: return &l->q_a;
	case DCPK_T_Q_B: return &l->q_b[tp];
	case DCPK_T_KV_A: return &l->kv_a;
	case DCPK_T_O: return &l->o[tp];
	case DCPK_T_IDX_Q_B: return &l->idx_q_b;
	case DCPK_T_IDX_K: return &l->idx_k;
	case DCPK_T_IDX_W: return &l->idx_w;
	case DCPK_T_GATE: return &l->gate[r];
	case DCPK_T_UP: return &l->up[r];
	case DCPK_T_DOWN: return &l->down[r];
	case DCPK_T_E_GATE: return &l->e_gate[e];
	case DCPK_T_E_UP: return &l->e_up[e];
	case DCPK_T_E_DOWN: return &l->e_down[e];
	case DCPK_T_S_GATE: return &l->s_gate[r];
	case DCPK_T_S_UP: return &l->s_up[r];
	case DCPK_T_S_DOWN: return &l->s_down[r];
	case DCPK_T_EH_PROJ: return &l->eh_proj;
	default: return NULL;
	}
}

int
dcpc_load(struct dcpk_ctx *c, const struct dcpk_weight *w,
    struct dcpk_err *err)
{
	const struct dcpk_model *m = &c->s.model;
	struct dcpc_layer *l;
	struct dcpc_w *mat;
	float **vec;
	uint32_t r;
	int rc;

	if (w->layer >= m->layers + m->mtp_layers || w->ranks == 0 ||
	    w->n1 > w->n || w->k1 > w->k || w->n0 > w->n1 || w->k0 > w->k1 ||
	    (w->tensor >= DCPK_T_E_GATE && w->tensor <= DCPK_T_E_DOWN &&
	     w->expert >= m->experts))
		return fail(err, -EINVAL, "layer %u, tensor %d: bad slice",
		    w->layer, (int)w->tensor);
	r = lowest_rank(w->ranks);
	if (r >= c->W)
		return fail(err, -EINVAL, "no rank %u", r);
	l = &c->layer[w->layer];
	if (w->tensor == DCPK_T_KV_B)
		return keep_kv_b(c, l, w, err);
	if (w->tensor == DCPK_T_ROUTER)
		return keep_router(c, &l->router, w, err);
	vec = vector_of(c, l, w->tensor);
	if (vec != NULL)
		return keep_f32(c, vec, w, err);
	mat = matrix_of(c, l, w, r);
	if (mat == NULL)
		return fail(err, -EINVAL, "unknown tensor %d",
		    (int)w->tensor);
	rc = keep_matrix(c, mat, w, err);
	if (rc == 0 && w->tensor != DCPK_T_EMBED)	/* read by rows */
		pack(mat);
	return rc;
}

/* --- ready ------------------------------------------------------------- */

static bool
all_there(const struct dcpc_w *w, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (!w[i].loaded)
			return false;
	return true;
}

static const char *
missing(const struct dcpk_ctx *c, uint32_t i)
{
	const struct dcpk_model *m = &c->s.model;
	const struct dcpc_layer *l = &c->layer[i];
	uint32_t W = c->W, A = c->s.topo.attn_tp;

	if (!l->in_norm || !l->post_norm)
		return "layer norms";
	if (!l->q_a.loaded || !l->q_a_norm || !all_there(l->q_b, A))
		return "q_a_proj, q_a_layernorm or q_b_proj";
	if (!l->kv_a.loaded || !l->kv_a_norm || !all_there(l->uk, m->heads))
		return "kv_a_proj, kv_a_layernorm or kv_b_proj";
	if (!all_there(l->o, A))
		return "o_proj";
	if (m->full[i] && (!l->idx_q_b.loaded || !l->idx_k.loaded ||
	    !l->idx_w.loaded || !l->k_norm_w || !l->k_norm_b))
		return "indexer";
	if (!m->sparse[i] && (!all_there(l->gate, W) ||
	    !all_there(l->up, W) || !all_there(l->down, W)))
		return "mlp";
	if (m->sparse[i] && (!l->router.loaded || !l->router_bias ||
	    !all_there(l->e_gate, m->experts * W) ||
	    !all_there(l->e_up, m->experts * W) ||
	    !all_there(l->e_down, m->experts * W)))
		return "mlp.gate or mlp.experts";
	if (m->sparse[i] && m->shared_experts != 0 &&
	    (!all_there(l->s_gate, W) || !all_there(l->s_up, W) ||
	     !all_there(l->s_down, W)))
		return "mlp.shared_experts";
	return NULL;
}

int
dcpc_ready(struct dcpk_ctx *c, struct dcpk_err *err)
{
	const char *what;
	uint32_t i;

	if (!c->embed.loaded || !c->final_norm || !all_there(c->lm_head, c->W))
		return fail(err, -ENOENT,
		    "embed_tokens, norm or lm_head was not loaded");
	for (i = 0; i < c->s.model.layers; i++) {
		what = missing(c, i);
		if (what != NULL)
			return fail(err, -ENOENT,
			    "layer %u: %s was not loaded", i, what);
	}
	return 0;
}
