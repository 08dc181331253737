/*
 * The tensors of a model, in one table: name, shape and where they occur. Pure
 * functions, any thread. Names are those of the checkpoints on the hub
 * (transformers modeling_deepseek_v32, modeling_glm_moe_dsa; the MTP layer as
 * DeepSeek's own files have it).
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "dcpd/base/base.h"
#include "dcpd/model/tensors.h"

enum where {
	ONCE,			/* no layer in its name */
	EVERY,			/* layer, MTP too */
	FULL,			/* layer with its own indexer */
	DENSE, SPARSE,		/* by the layer's kind of FFN */
	EXPERT,			/* sparse, one for each expert */
	MTP,			/* MTP layer only */
};

static const struct {
	const char *name;	/* after "model.layers.N.", without ".weight" */
	const char *leaf;	/* NULL: "weight" */
	enum where where;
} table[DCPK_T_N] = {
	[DCPK_T_EMBED] = { "model.embed_tokens", NULL, ONCE },
	[DCPK_T_FINAL_NORM] = { "model.norm", NULL, ONCE },
	[DCPK_T_LM_HEAD] = { "lm_head", NULL, ONCE },
	[DCPK_T_IN_NORM] = { "input_layernorm", NULL, EVERY },
	[DCPK_T_POST_NORM] = { "post_attention_layernorm", NULL, EVERY },
	[DCPK_T_Q_A] = { "self_attn.q_a_proj", NULL, EVERY },
	[DCPK_T_Q_A_NORM] = { "self_attn.q_a_layernorm", NULL, EVERY },
	[DCPK_T_Q_B] = { "self_attn.q_b_proj", NULL, EVERY },
	[DCPK_T_KV_A] = { "self_attn.kv_a_proj_with_mqa", NULL, EVERY },
	[DCPK_T_KV_A_NORM] = { "self_attn.kv_a_layernorm", NULL, EVERY },
	[DCPK_T_KV_B] = { "self_attn.kv_b_proj", NULL, EVERY },
	[DCPK_T_O] = { "self_attn.o_proj", NULL, EVERY },
	[DCPK_T_IDX_Q_B] = { "self_attn.indexer.wq_b", NULL, FULL },
	[DCPK_T_IDX_K] = { "self_attn.indexer.wk", NULL, FULL },
	[DCPK_T_IDX_K_NORM_W] = { "self_attn.indexer.k_norm", NULL, FULL },
	[DCPK_T_IDX_K_NORM_B] = { "self_attn.indexer.k_norm", "bias", FULL },
	[DCPK_T_IDX_W] = { "self_attn.indexer.weights_proj", NULL, FULL },
	[DCPK_T_GATE] = { "mlp.gate_proj", NULL, DENSE },
	[DCPK_T_UP] = { "mlp.up_proj", NULL, DENSE },
	[DCPK_T_DOWN] = { "mlp.down_proj", NULL, DENSE },
	[DCPK_T_ROUTER] = { "mlp.gate", NULL, SPARSE },
	[DCPK_T_ROUTER_BIAS] = { "mlp.gate", "e_score_correction_bias",
	    SPARSE },
	[DCPK_T_E_GATE] = { "gate_proj", NULL, EXPERT },
	[DCPK_T_E_UP] = { "up_proj", NULL, EXPERT },
	[DCPK_T_E_DOWN] = { "down_proj", NULL, EXPERT },
	[DCPK_T_S_GATE] = { "mlp.shared_experts.gate_proj", NULL, SPARSE },
	[DCPK_T_S_UP] = { "mlp.shared_experts.up_proj", NULL, SPARSE },
	[DCPK_T_S_DOWN] = { "mlp.shared_experts.down_proj", NULL, SPARSE },
	[DCPK_T_E_NORM] = { "enorm", NULL, MTP },
	[DCPK_T_H_NORM] = { "hnorm", NULL, MTP },
	[DCPK_T_EH_PROJ] = { "eh_proj", NULL, MTP },
	[DCPK_T_SH_NORM] = { "shared_head.norm", NULL, MTP },
};

int
dcpd_tensor_name(char *buf, size_t cap, const struct dcpk_model *m,
    uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	const char *leaf = table[t].leaf != NULL ? table[t].leaf : "weight";

	if (table[t].where == ONCE)
		return snprintf(buf, cap, "%s.%s", table[t].name, leaf);
	/* Packed experts keep gate and up in one tensor, without a leaf. */
	if (table[t].where == EXPERT && expert == DCPD_NO_EXPERT)
		return snprintf(buf, cap, "model.layers.%u.mlp.experts.%s",
		    layer, t == DCPK_T_E_DOWN ? "down_proj" : "gate_up_proj");
	if (table[t].where == EXPERT)
		return snprintf(buf, cap,
		    "model.layers.%u.mlp.experts.%u.%s.%s", layer, expert,
		    table[t].name, leaf);
	return snprintf(buf, cap, "model.layers.%u.%s.%s", layer,
	    table[t].name, leaf);
}

void
dcpd_tensor_shape(const struct dcpk_model *m, enum dcpk_tensor t, uint32_t *n,
    uint32_t *k)
{
	uint32_t shared = m->moe_inter * m->shared_experts;

#define SHAPE(N, K) do { *n = (N); *k = (K); return; } while (0)
	switch (t) {
	case DCPK_T_EMBED: case DCPK_T_LM_HEAD:
		SHAPE(m->vocab, m->hidden);
	case DCPK_T_FINAL_NORM: case DCPK_T_IN_NORM: case DCPK_T_POST_NORM:
	case DCPK_T_E_NORM: case DCPK_T_H_NORM: case DCPK_T_SH_NORM:
		SHAPE(1, m->hidden);
	case DCPK_T_Q_A: SHAPE(m->q_lora, m->hidden);
	case DCPK_T_Q_A_NORM: SHAPE(1, m->q_lora);
	case DCPK_T_Q_B:
		SHAPE(m->heads * (m->nope + m->rope), m->q_lora);
	case DCPK_T_KV_A: SHAPE(m->kv_lora + m->rope, m->hidden);
	case DCPK_T_KV_A_NORM: SHAPE(1, m->kv_lora);
	case DCPK_T_KV_B:
		SHAPE(m->heads * (m->nope + m->vdim), m->kv_lora);
	case DCPK_T_O: SHAPE(m->hidden, m->heads * m->vdim);
	case DCPK_T_IDX_Q_B: SHAPE(m->idx_heads * m->idx_dim, m->q_lora);
	case DCPK_T_IDX_K: SHAPE(m->idx_dim, m->hidden);
	case DCPK_T_IDX_K_NORM_W: case DCPK_T_IDX_K_NORM_B:
		SHAPE(1, m->idx_dim);
	case DCPK_T_IDX_W: SHAPE(m->idx_heads, m->hidden);
	case DCPK_T_GATE: case DCPK_T_UP: SHAPE(m->inter, m->hidden);
	case DCPK_T_DOWN: SHAPE(m->hidden, m->inter);
	case DCPK_T_ROUTER: SHAPE(m->experts, m->hidden);
	case DCPK_T_ROUTER_BIAS: SHAPE(1, m->experts);
	case DCPK_T_E_GATE: case DCPK_T_E_UP: SHAPE(m->moe_inter, m->hidden);
	case DCPK_T_E_DOWN: SHAPE(m->hidden, m->moe_inter);
	case DCPK_T_S_GATE: case DCPK_T_S_UP: SHAPE(shared, m->hidden);
	case DCPK_T_S_DOWN: SHAPE(m->hidden, shared);
	case DCPK_T_EH_PROJ: SHAPE(m->hidden, 2 * m->hidden);
	case DCPK_T_N: break;
	}
#undef SHAPE
	DCPD_ASSERT(!"a tensor of the table");
}

bool
dcpd_tensor_is_vector(enum dcpk_tensor t)
{
	switch (t) {
	case DCPK_T_FINAL_NORM: case DCPK_T_IN_NORM: case DCPK_T_POST_NORM:
	case DCPK_T_E_NORM: case DCPK_T_H_NORM: case DCPK_T_SH_NORM:
	case DCPK_T_Q_A_NORM: case DCPK_T_KV_A_NORM: case DCPK_T_IDX_K_NORM_W:
	case DCPK_T_IDX_K_NORM_B: case DCPK_T_ROUTER_BIAS:
		return true;
	default:
		return false;
	}
}

bool
dcpd_tensor_is_expert(enum dcpk_tensor t)
{
	return table[t].where == EXPERT;
}

bool
dcpd_tensor_by_head(enum dcpk_tensor t)
{
	return t == DCPK_T_Q_B || t == DCPK_T_KV_B || t == DCPK_T_O;
}

bool
dcpd_tensor_is_linear(enum dcpk_tensor t)
{
	switch (t) {
	case DCPK_T_EMBED: case DCPK_T_LM_HEAD: case DCPK_T_ROUTER:
	case DCPK_T_IDX_W: case DCPK_T_EH_PROJ:
		return false;
	default:
		return !dcpd_tensor_is_vector(t);
	}
}

static bool
in_layer(const struct dcpk_model *m, uint32_t layer, enum dcpk_tensor t)
{
	switch (table[t].where) {
	case ONCE: return false;
	case EVERY: return true;
	case FULL: return m->full[layer];
	case DENSE: return !m->sparse[layer];
	case SPARSE: case EXPERT: return m->sparse[layer];
	case MTP: return layer >= m->layers;
	}
	return false;
}

int
dcpd_tensors_each(const struct dcpk_model *m, dcpd_tensor_fn *fn, void *arg)
{
	uint32_t layer, e;
	int t, rc;

	rc = fn(arg, 0, DCPK_T_EMBED, 0);
	for (layer = 0; rc == 0 && layer < m->layers + m->mtp_layers; layer++) {
		for (t = 0; rc == 0 && t < DCPK_T_N; t++) {
			uint32_t n = table[t].where == EXPERT ? m->experts : 1;

			if (!in_layer(m, layer, t))
				continue;
			for (e = 0; rc == 0 && e < n; e++)
				rc = fn(arg, layer, t, e);
		}
	}
	if (rc == 0)
		rc = fn(arg, 0, DCPK_T_FINAL_NORM, 0);
	if (rc == 0)
		rc = fn(arg, 0, DCPK_T_LM_HEAD, 0);
	return rc;
}
