/*
 * From the residual stream to q, KV rows and index keys (doc/model.md
 * 1.2 to 1.4).
 *
 * q_nope is absorbed: ql[h] = [ W_UK[h]^T q_nope[h] | rope(q_pe[h]) ], so that
 * attention works on latent rows. A row and an index key are quantised once,
 * and the same bytes go to every pool that holds the token: rank p % D of each
 * DCP group.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/ctx.h"

static void
norm_in(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t i;

	for (i = r0; i < r1; i++)
		c->p->rmsnorm(c->h + (size_t)i * m->hidden,
		    c->x + (size_t)i * m->hidden, c->layer[layer].in_norm,
		    m->hidden, m->eps);
}

/* The token's bytes, once, into the pool of its rank in every group. */
static void
store_row(struct dcpk_ctx *c, const struct dcpk_row *row, uint32_t layer,
    const float *ckv, const float *kpe)
{
	uint8_t tmp[(512 + 64) * 4] __attribute__((aligned(64)));
	const struct dcpk_model *m = &c->s.model;
	size_t at = (size_t)dcpk_pool_row(row->page, row->pos, c->D) *
	    c->row_bytes;
	uint32_t g, r = row->pos % c->D;
	uint8_t *buf = c->row_bytes <= sizeof tmp ? tmp :
	    dcpc_pool_rows(c, r, layer) + at;

	c->p->pack_row(buf, c->s.kv, ckv, kpe, m->kv_lora, m->rope);
	for (g = 0; g < c->groups; g++) {
		uint8_t *dst = dcpc_pool_rows(c, g * c->D + r, layer) + at;

		if (dst != buf)
			memcpy(dst, buf, c->row_bytes);
	}
}

static void
store_key(struct dcpk_ctx *c, const struct dcpk_row *row, uint32_t layer,
    const float *k)
{
	uint8_t tmp[1024] __attribute__((aligned(64)));
	size_t at = dcpk_pool_row(row->page, row->pos, c->D);
	uint32_t g, r = row->pos % c->D;
	float scale = 1, *scales;
	uint8_t *keys;

	dcpc_pack_key(tmp, &scale, c->s.idx, k, c->s.model.idx_dim);
	for (g = 0; g < c->groups; g++) {
		keys = dcpc_pool_keys(c, g * c->D + r, layer, &scales);
		memcpy(keys + at * c->key_bytes, tmp, c->key_bytes);
		if (scales != NULL)
			scales[at] = scale;
	}
}

/* Latents normed and roped; the row and the index key go to the pools. */
static void
latents(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	const struct dcpc_layer *l = &c->layer[layer];
	const struct dcpk_row *row = DCPK_ROWS(c->plan);
	uint32_t i, half = m->rope / 2;
	float *kv, *qr, *ik;

	for (i = r0; i < r1; i++) {
		kv = c->kv + (size_t)i * (m->kv_lora + m->rope);
		qr = c->qr + (size_t)i * m->q_lora;
		c->p->rmsnorm(qr, qr, l->q_a_norm, m->q_lora, m->latent_eps);
		c->p->rmsnorm(kv, kv, l->kv_a_norm, m->kv_lora,
		    m->latent_eps);
		dcpc_rope(kv + m->kv_lora, c->cos + (size_t)i * half,
		    c->sin + (size_t)i * half, m->rope, true);
		store_row(c, &row[i], layer, kv, kv + m->kv_lora);
		if (!m->full[layer])
			continue;
		ik = c->ik + (size_t)i * m->idx_dim;
		dcpc_layernorm(ik, ik, l->k_norm_w, l->k_norm_b, m->idx_dim,
		    1e-6f);
		dcpc_rope(ik, c->cos + (size_t)i * half,
		    c->sin + (size_t)i * half, m->rope, m->idx_interleave);
		if (m->idx_hadamard && c->s.idx == DCPK_KV_FP8)
			dcpc_hadamard(ik, m->idx_dim);
		store_key(c, &row[i], layer, ik);
	}
}

/*
 * RoPE of q and of the index q; head weights get every constant factor:
 * idx_heads^-.5 (of the model), idx_dim^-.5, and the query's own scale if the
 * keys are fp8, since then the query is quantised too.
 */
static void
queries(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	uint32_t i, h, half = m->rope / 2, qd = m->nope + m->rope;
	uint32_t ld = m->kv_lora + m->rope;
	float f = 1 / sqrtf((float)m->idx_heads) / sqrtf((float)m->idx_dim);
	const float *cs, *sn;
	float *pe, *iq, *iw;

	for (i = r0; i < r1; i++) {
		cs = c->cos + (size_t)i * half;
		sn = c->sin + (size_t)i * half;
		for (h = 0; h < m->heads; h++) {
			pe = c->ql + ((size_t)i * m->heads + h) * ld +
			    m->kv_lora;
			memcpy(pe, c->q + ((size_t)i * m->heads + h) * qd +
			    m->nope, m->rope * sizeof *pe);
			dcpc_rope(pe, cs, sn, m->rope, true);
		}
		if (!m->full[layer])
			continue;
		iw = c->iw + (size_t)i * m->idx_heads;
		for (h = 0; h < m->idx_heads; h++) {
			iq = c->iq + ((size_t)i * m->idx_heads + h) *
			    m->idx_dim;
			dcpc_rope(iq, cs, sn, m->rope, m->idx_interleave);
			iw[h] *= f;
			if (c->s.idx != DCPK_KV_FP8)
				continue;
			if (m->idx_hadamard)
				dcpc_hadamard(iq, m->idx_dim);
			iw[h] *= dcpc_quant_e4m3(iq, m->idx_dim);
		}
	}
}

int
dcpc_attn_in(struct dcpk_ctx *c, uint32_t layer)
{
	const struct dcpk_model *m = &c->s.model;
	struct dcpc_layer *l = &c->layer[layer];
	uint32_t A = c->s.topo.attn_tp, M = c->rows, n = 0, t, h;
	uint32_t qd = m->nope + m->rope, ld = m->kv_lora + m->rope;
	bool full = m->full[layer];
	struct dcpc_prod p[DCPK_MAX_RANKS + 8];
	struct dcpc_prod ph[1024];

	dcpc_rows_and_products(c, M, norm_in, layer, NULL, 0);

	p[n++] = (struct dcpc_prod){ .w = &l->q_a, .x = c->h,
		.ldx = m->hidden, .y = c->qr, .ldy = m->q_lora, .m = M };
	p[n++] = (struct dcpc_prod){ .w = &l->kv_a, .x = c->h,
		.ldx = m->hidden, .y = c->kv, .ldy = ld, .m = M };
	if (full) {
		p[n++] = (struct dcpc_prod){ .w = &l->idx_k, .x = c->h,
			.ldx = m->hidden, .y = c->ik, .ldy = m->idx_dim,
			.m = M };
		p[n++] = (struct dcpc_prod){ .w = &l->idx_w, .x = c->h,
			.ldx = m->hidden, .y = c->iw, .ldy = m->idx_heads,
			.m = M };
	}
	dcpc_products(c, p, n);
	dcpc_rows_and_products(c, M, latents, layer, NULL, 0);

	n = 0;
	for (t = 0; t < A; t++)
		p[n++] = (struct dcpc_prod){ .w = &l->q_b[t], .x = c->qr,
			.ldx = m->q_lora, .ldy = (size_t)m->heads * qd,
			.y = c->q + (size_t)t * (m->heads / A) * qd, .m = M };
	if (full)
		p[n++] = (struct dcpc_prod){ .w = &l->idx_q_b, .x = c->qr,
			.ldx = m->q_lora, .y = c->iq,
			.ldy = (size_t)m->idx_heads * m->idx_dim, .m = M };
	dcpc_products(c, p, n);

	for (h = 0; h < m->heads; h++)
		ph[h] = (struct dcpc_prod){ .w = &l->uk[h],
			.x = c->q + (size_t)h * qd,
			.ldx = (size_t)m->heads * qd,
			.y = c->ql + (size_t)h * ld,
			.ldy = (size_t)m->heads * ld, .m = M };
	dcpc_rows_and_products(c, M, queries, layer, ph, m->heads);
	return 0;
}
