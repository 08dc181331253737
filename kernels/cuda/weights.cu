/*
 * Weights on the device, in the forms of kernels/keep.h: matrices as bf16 (FP8,
 * W4AFP8 and compressed-tensors are dequantised on the way), as e4m3 or int4
 * with scales, norms and router as f32. A slice goes to every rank of its mask.
 * kv_b_proj is taken apart into W_UK (transposed) and W_UV.
 * The MTP layer is read past: nothing runs it yet.
 */
#include <stdlib.h>

#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/fail.h"

extern "C" {
#include "kernels/cpu/prim.h"
}

int
dcpg_weights_alloc(dcpk_ctx *c)
{
	for (uint32_t i = 0; i < c->W; i++) {
		c->r[i].layer = (dcpg_layer *)calloc(c->s.model.layers,
		    sizeof(dcpg_layer));
		if (c->r[i].layer == NULL)
			return -ENOMEM;
	}
	return 0;
}

void
dcpg_weights_free(dcpk_ctx *c)
{
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		if (r->layer == NULL)
			continue;
		cudaSetDevice(r->dev);
		for (uint32_t k = 0; k < c->s.model.layers; k++) {
			dcpg_layer *l = &r->layer[k];
			void *all[] = { l->in_norm, l->post_norm, l->q_a_norm,
				l->kv_a_norm, l->k_norm_w, l->k_norm_b,
				l->router_bias, l->router, l->q_a.w, l->kv_a.w,
				l->first.w, l->gate_up.w, l->s_gate_up.w,
				l->idx_q_b.w, l->idx_k.w, l->idx_w.w,
				l->q_b.w, l->uk.w, l->uv.w, l->o.w, l->gate.w,
				l->up.w, l->down.w, l->e_gate, l->e_up,
				l->e_down, l->s_gate.w, l->s_up.w,
				l->s_down.w };

			for (void *p : all)
				cudaFree(p);
		}
		cudaFree(r->embed.w);
		cudaFree(r->lm_head.w);
		cudaFree(r->final_norm);
		free(r->layer);
		r->layer = NULL;
	}
}

/* One tensor on its way: the slice as f32 on the host. */
struct slice {
	dcpk_ctx *c;
	const dcpk_weight *w;
	uint32_t n, k;
	std::vector<float> f;
	std::vector<uint16_t> b;
	std::unique_ptr<uint8_t[]> e;	/* or as FP8 (codes, then scales), or
					   as an int4 expert: e_n bytes */
	size_t e_n;
	bool fp8, int4;
	dcpk_err *err;
};

static float
scale_of(const dcpk_weight *w, size_t i)
{
	uint16_t b;
	float f;

	if (!w->scale_bf16) {
		memcpy(&f, (const char *)w->scale + i * 4, 4);
		return f;
	}
	memcpy(&b, (const char *)w->scale + i * 2, 2);
	return dcpc_bf16_to_f32(b);
}

/* Not cleared: threads will touch it first. */
static void
take_bytes(slice *s, size_t n)
{
	s->e.reset(new uint8_t[n]);
	s->e_n = n;
}

/* The slice as it is stored; its scales in rows of cuBLASLt's length. */
static void
take_fp8(slice *s)
{
	const dcpk_weight *w = s->w;
	uint32_t ld = dcpk_fp8_scale_ld(s->k), in = (w->k + 127) / 128;
	float *to;

	take_bytes(s, dcpk_fp8_bytes(s->n, s->k));
	for (uint32_t i = 0; i < s->n; i++)
		memcpy(&s->e[(size_t)i * s->k], (const char *)w->data +
		    (size_t)(w->n0 + i) * w->k + w->k0, s->k);
	to = (float *)&s->e[(size_t)s->n * s->k];
	memset(to, 0, s->e_n - (size_t)s->n * s->k);
	for (uint32_t i = 0; i < (s->n + 127) / 128; i++)
		for (uint32_t j = 0; j < s->k / 128; j++)
			to[(size_t)i * ld + j] = scale_of(w,
			    (size_t)(w->n0 / 128 + i) * in + w->k0 / 128 + j);
}

static int
up_bytes(slice *s, dcpg_rank *r, void **dst, const void *src, size_t bytes)
{
	cudaSetDevice(r->dev);
	if (*dst == NULL && cudaMalloc(dst, bytes ? bytes : 16) != cudaSuccess)
		return fail(s->err, -ENOMEM, "cuda: rank %u: no memory for "
		    "%zu bytes of weights", r->id, bytes);
	if (bytes != 0 && cudaMemcpy(*dst, src, bytes,
	    cudaMemcpyHostToDevice) != cudaSuccess)
		return fail(s->err, -EIO, "cuda: rank %u: weights could not "
		    "be copied", r->id);
	if (__builtin_popcountll(s->w->ranks) == 1 || s->c->W == 1)
		s->c->got[r->id].weights += bytes;
	else if (s->w->tensor == DCPK_T_Q_B || s->w->tensor == DCPK_T_KV_B ||
	    s->w->tensor == DCPK_T_O)
		s->c->got[r->id].weights_attn += bytes;
	else
		s->c->got[r->id].weights_rep += bytes;
	return 0;
}

static int
up_f32(slice *s, dcpg_rank *r, float **dst)
{
	void *p = NULL;
	int rc;

	if (*dst != NULL)
		return fail(s->err, -EEXIST, "layer %u, tensor %d: given "
		    "twice", s->w->layer, (int)s->w->tensor);
	rc = up_bytes(s, r, &p, s->f.data(), s->f.size() * 4);
	*dst = (float *)p;
	return rc;
}

static int
up_mat(slice *s, dcpg_rank *r, dcpg_mat *m)
{
	void *p = NULL;
	int rc;

	if (m->loaded)
		return fail(s->err, -EEXIST, "layer %u, tensor %d: given "
		    "twice", s->w->layer, (int)s->w->tensor);
	if (s->fp8)
		rc = up_bytes(s, r, &p, s->e.get(), s->e_n);
	else
		rc = up_bytes(s, r, &p, s->b.data(), s->b.size() * 2);
	m->w = (bf16 *)p;
	m->scale = s->fp8 ?
	    (float *)((uint8_t *)p + (size_t)s->n * s->k) : NULL;
	m->n = s->n;
	m->k = s->k;
	m->loaded = rc == 0;
	return rc;
}

/* The scale of an int4 layer's activations: one for all experts. */
static int
up_unit(slice *s, float *unit)
{
	if (!(s->w->act_scale > 0))
		return fail(s->err, -EINVAL, "layer %u: int4 experts without "
		    "an input_scale; use --fp8-gemm-backend bf16",
		    s->w->layer);
	if (*unit > 0 && *unit != s->w->act_scale)
		return fail(s->err, -EINVAL, "layer %u: input scales %g and "
		    "%g", s->w->layer, *unit, s->w->act_scale);
	*unit = s->w->act_scale;
	return 0;
}

/* An expert's slice into its place in the layer's block of experts. */
static int
up_expert(slice *s, dcpg_rank *r, dcpg_layer *l, bf16 **dst, bool *fp8,
    bool *int4)
{
	size_t per = s->fp8 || s->int4 ? s->e_n : s->b.size() * 2;
	size_t E = s->c->s.model.experts;
	const void *src = s->fp8 || s->int4 ? (void *)s->e.get() :
	    (void *)s->b.data();
	int rc = s->int4 ? up_unit(s, &l->e_unit[s->w->tensor ==
	    DCPK_T_E_DOWN]) : 0;

	if (rc != 0)
		return rc;

	cudaSetDevice(r->dev);
	if (*dst == NULL) {
		if (cudaMalloc(dst, per * E + 16) != cudaSuccess)
			return fail(s->err, -ENOMEM, "cuda: rank %u: no "
			    "memory for %zu bytes of experts", r->id,
			    per * E);
		s->c->got[r->id].weights += per * E;
		*fp8 = s->fp8;
		*int4 = s->int4;
	} else if (*fp8 != s->fp8 || *int4 != s->int4) {
		return fail(s->err, -EINVAL, "layer %u: some experts are kept "
		    "as they are stored (FP8 in blocks of 128, int4 in groups "
		    "of 128) and some are not; use --fp8-gemm-backend bf16",
		    s->w->layer);
	}
	l->e_slice = s->w->tensor == DCPK_T_E_DOWN ? s->k : s->n;
	l->e_loaded++;
	if (cudaMemcpy((char *)*dst + per * s->w->expert, src, per,
	    cudaMemcpyHostToDevice) != cudaSuccess)
		return fail(s->err, -EIO, "cuda: rank %u: weights could not "
		    "be copied", r->id);
	return 0;
}

static int
up_kv_b(slice *s, dcpg_rank *r, dcpg_layer *l)
{
	const dcpk_model *m = &s->c->s.model;
	uint32_t per = m->nope + m->vdim, heads = s->n / per, C = m->kv_lora;
	std::vector<uint16_t> uk((size_t)heads * C * m->nope);
	std::vector<uint16_t> uv((size_t)heads * m->vdim * C);
	void *p = NULL, *q = NULL;
	int rc;

	if (l->uk.loaded || s->w->n0 % per != 0 || s->n % per != 0)
		return fail(s->err, -EINVAL, "layer %u: kv_b_proj given "
		    "twice or not cut by heads", s->w->layer);
	for (uint32_t h = 0; h < heads; h++) {
		const uint16_t *b = s->b.data() + (size_t)h * per * C;

		for (uint32_t i = 0; i < m->nope; i++)
			for (uint32_t j = 0; j < C; j++)
				uk[((size_t)h * C + j) * m->nope + i] =
				    b[(size_t)i * C + j];
		memcpy(&uv[(size_t)h * m->vdim * C], b + (size_t)m->nope * C,
		    (size_t)m->vdim * C * 2);
	}
	rc = up_bytes(s, r, &p, uk.data(), uk.size() * 2);
	if (rc == 0)
		rc = up_bytes(s, r, &q, uv.data(), uv.size() * 2);
	l->uk.w = (bf16 *)p;
	l->uv.w = (bf16 *)q;
	l->uk.loaded = l->uv.loaded = rc == 0;
	return rc;
}

static int
place(slice *s, dcpg_rank *r, dcpg_layer *l)
{
	switch (s->w->tensor) {
	case DCPK_T_EMBED: return up_mat(s, r, &r->embed);
	case DCPK_T_FINAL_NORM: return up_f32(s, r, &r->final_norm);
	case DCPK_T_LM_HEAD:
		r->vocab0 = s->w->n0;
		return up_mat(s, r, &r->lm_head);
	case DCPK_T_IN_NORM: return up_f32(s, r, &l->in_norm);
	case DCPK_T_POST_NORM: return up_f32(s, r, &l->post_norm);
	case DCPK_T_Q_A: return up_mat(s, r, &l->q_a);
	case DCPK_T_Q_A_NORM: return up_f32(s, r, &l->q_a_norm);
	case DCPK_T_Q_B: return up_mat(s, r, &l->q_b);
	case DCPK_T_KV_A: return up_mat(s, r, &l->kv_a);
	case DCPK_T_KV_A_NORM: return up_f32(s, r, &l->kv_a_norm);
	case DCPK_T_KV_B: return up_kv_b(s, r, l);
	case DCPK_T_O: return up_mat(s, r, &l->o);
	case DCPK_T_IDX_Q_B: return up_mat(s, r, &l->idx_q_b);
	case DCPK_T_IDX_K: return up_mat(s, r, &l->idx_k);
	case DCPK_T_IDX_K_NORM_W: return up_f32(s, r, &l->k_norm_w);
	case DCPK_T_IDX_K_NORM_B: return up_f32(s, r, &l->k_norm_b);
	case DCPK_T_IDX_W: return up_mat(s, r, &l->idx_w);
	case DCPK_T_GATE: return up_mat(s, r, &l->gate);
	case DCPK_T_UP: return up_mat(s, r, &l->up);
	case DCPK_T_DOWN: return up_mat(s, r, &l->down);
	case DCPK_T_ROUTER: return up_f32(s, r, &l->router);
	case DCPK_T_ROUTER_BIAS: return up_f32(s, r, &l->router_bias);
	case DCPK_T_E_GATE: return up_expert(s, r, l, &l->e_gate,
	    &l->e_gate8, &l->e_gate4);
	case DCPK_T_E_UP: return up_expert(s, r, l, &l->e_up,
	    &l->e_up8, &l->e_up4);
	case DCPK_T_E_DOWN: return up_expert(s, r, l, &l->e_down,
	    &l->e_down8, &l->e_down4);
	case DCPK_T_S_GATE: return up_mat(s, r, &l->s_gate);
	case DCPK_T_S_UP: return up_mat(s, r, &l->s_up);
	case DCPK_T_S_DOWN: return up_mat(s, r, &l->s_down);
	default: return 0;		/* the MTP layer's own */
	}
}

int
dcpg_load(dcpk_ctx *c, const dcpk_weight *w, dcpk_err *err)
{
	slice s = { c, w, w->n1 - w->n0, w->k1 - w->k0, {}, {}, {}, 0, false,
	    false, err };
	size_t n = (size_t)s.n * s.k;
	int rc = 0;

	if (w->layer >= c->s.model.layers)
		return 0;
	s.fp8 = dcpk_keeps_fp8(c->s.flags, c->s.topo.cp, w->tensor, w->fmt,
	    w->block_n, w->block_k, w->n0, w->n1, w->k0, w->k1);
	s.int4 = dcpk_keeps_int4(c->s.flags, w->tensor, w->fmt, w->block_k,
	    w->n0, w->n1, w->k0, w->k1);
	if (s.fp8) {
		take_fp8(&s);
	} else if (s.int4) {
		take_bytes(&s, dcpk_int4_bytes(s.n, s.k));
		dcpc_take_int4(s.e.get(), w, 0);
	} else {
		s.f.resize(n);
		if (n != 0)
			rc = dcpc_dequant(s.f.data(), s.k, w, err);
		if (rc != 0)
			return rc;
		s.b.resize(n);
		for (size_t i = 0; i < n; i++)
			s.b[i] = dcpc_f32_to_bf16(s.f[i]);
	}
	for (uint32_t i = 0; i < c->W && rc == 0; i++)
		if (w->ranks >> i & 1)
			rc = place(&s, &c->r[i], &c->r[i].layer[w->layer]);
	return rc;
}

/* Its codes or values, and its scales, from row `at` of the stack. */
static int
stack_part(char *to, const dcpg_mat *s, const dcpg_mat *p, uint32_t at)
{
	size_t el = p->scale ? 1 : sizeof(bf16);
	uint32_t ld = dcpk_fp8_scale_ld(p->k);
	int rc = dcpg_ok(cudaMemcpy(to + (size_t)at * s->k * el, p->w,
	    (size_t)p->n * p->k * el, cudaMemcpyDefault), "stack");

	if (p->scale)
		rc |= dcpg_ok(cudaMemcpy(to + (size_t)s->n * s->k +
		    (size_t)at / 128 * ld * 4, p->scale,
		    (size_t)(p->n + 127) / 128 * ld * 4, cudaMemcpyDefault),
		    "stack");
	return rc;
}

/*
 * Matrices that one x is multiplied with, one below the other, for one product
 * instead of several: in the order given, as far as they are of one form and,
 * where that is e4m3, begin at a block of scales. Bytes stay what they were,
 * at every moment, since the plan counts no more: they wait where the scores of
 * a step will be, or on the host, while the parts make room for the stack.
 */
static int
stack(dcpk_ctx *c, dcpg_rank *r, std::initializer_list<dcpg_mat *> all,
    dcpg_mat *to, dcpk_err *err)
{
	dcpg_mat *part[4], s = {};
	std::vector<char> host;
	uint32_t n = 0, at = 0;
	bool fp8 = (*all.begin())->scale != NULL;
	char *aside = (char *)r->scores;
	size_t bytes;
	int rc = 0;

	for (dcpg_mat *p : all) {
		if (!p->loaded)		/* a layer without an indexer */
			continue;
		if ((p->scale != NULL) != fp8 || (fp8 && s.n % 128 != 0))
			break;
		part[n++] = p;
		s.n += p->n;
	}
	if (n < 2 || s.n == 0)
		return 0;
	s.k = part[0]->k;
	bytes = fp8 ? dcpk_fp8_bytes(s.n, s.k) : (size_t)s.n * s.k * 2;
	if (bytes > dcpg_score_bytes(c)) {
		host.resize(bytes);
		aside = host.data();
	}
	cudaSetDevice(r->dev);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		rc = stack_part(aside, &s, part[i], at);
		at += part[i]->n;
	}
	if (rc == 0)
		rc = dcpg_ok(cudaDeviceSynchronize(), "stack");
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		cudaFree(part[i]->w);
		part[i]->w = NULL;
		part[i]->scale = NULL;
	}
	if (rc == 0 && cudaMalloc(&s.w, bytes) != cudaSuccess)
		return fail(err, -ENOMEM, "cuda: rank %u: no memory for %zu "
		    "bytes of weights", r->id, bytes);
	if (rc == 0)
		rc = dcpg_ok(cudaMemcpy(s.w, aside, bytes, cudaMemcpyDefault),
		    "stack");
	if (rc == 0)
		rc = dcpg_ok(cudaDeviceSynchronize(), "stack");
	if (fp8)
		s.scale = (float *)((uint8_t *)s.w + (size_t)s.n * s.k);
	*to = s;
	return rc == 0 ? 0 : fail(err, -EIO, "cuda: rank %u: weights could "
	    "not be stacked", r->id);
}

/* What h is multiplied with before attention, in the order of dcpg_first's
 * columns, and in the FFN. */
static int
stacks(dcpk_ctx *c, dcpg_rank *r, dcpg_layer *l, dcpk_err *err)
{
	int rc = stack(c, r, { &l->q_a, &l->idx_k, &l->kv_a, &l->idx_w },
	    &l->first, err);

	if (rc == 0)
		rc = stack(c, r, { &l->gate, &l->up }, &l->gate_up, err);
	if (rc == 0)
		rc = stack(c, r, { &l->s_gate, &l->s_up }, &l->s_gate_up,
		    err);
	return rc;
}

int
dcpg_ready(dcpk_ctx *c, dcpk_err *err)
{
	const dcpk_model *m = &c->s.model;
	int rc;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		if (!r->embed.loaded || !r->final_norm || !r->lm_head.loaded)
			return fail(err, -ENOENT, "rank %u: embed_tokens, "
			    "norm or lm_head was not loaded", i);
		for (uint32_t k = 0; k < m->layers; k++) {
			const dcpg_layer *l = &r->layer[k];
			bool ok = l->in_norm && l->post_norm && l->q_a.loaded &&
			    l->q_a_norm && l->q_b.loaded && l->kv_a.loaded &&
			    l->kv_a_norm && l->uk.loaded && l->o.loaded;

			if (m->full[k])
				ok = ok && l->idx_q_b.loaded &&
				    l->idx_k.loaded && l->idx_w.loaded &&
				    l->k_norm_w && l->k_norm_b;
			if (m->sparse[k])
				ok = ok && l->router && l->router_bias &&
				    l->e_loaded == 3 * m->experts &&
				    (m->shared_experts == 0 ||
				    (l->s_gate.loaded && l->s_up.loaded &&
				    l->s_down.loaded));
			else
				ok = ok && l->gate.loaded && l->up.loaded &&
				    l->down.loaded;
			if (!ok)
				return fail(err, -ENOENT, "rank %u, layer %u: "
				    "a tensor was not loaded", i, k);
			/* gate and up share x, and make down's */
			if (l->e_gate8 != l->e_up8 || l->e_gate4 != l->e_up4 ||
			    (l->e_down4 && !l->e_gate4))
				return fail(err, -EINVAL, "layer %u: some "
				    "experts' matrices are kept as they are "
				    "stored and some are not; use "
				    "--fp8-gemm-backend bf16", k);
			rc = stacks(c, r, &r->layer[k], err);
			if (rc != 0)
				return rc;
		}
	}
	/* where each rank's columns of the logits begin, for rank 0 */
	std::vector<uint32_t> first(c->W + 1);

	for (uint32_t i = 0; i < c->W; i++)
		first[i + 1] = first[i] + c->r[i].lm_head.n;
	cudaSetDevice(c->r[0].dev);
	if (first[c->W] != m->vocab || cudaMemcpy(c->r[0].vocab_first,
	    first.data(), first.size() * 4, cudaMemcpyHostToDevice) !=
	    cudaSuccess)
		return fail(err, -EINVAL, "lm_head slices do not make up the "
		    "vocabulary");
	return 0;
}
