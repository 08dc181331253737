/*
 * Checkpoints for tests, tensor by tensor, in every format. What is stored
 * under a name follows from the name, so any mix-up is seen. The table is the
 * test's own: it says in plain words what dcpd/model/tensors.c must agree to.
 */
#ifndef TESTS_CHECKPOINT_H
#define TESTS_CHECKPOINT_H

#include "tests/unit/st_util.h"

/* Layer 0 dense, 1 sparse, 2 sparse with a shared index; 3 is MTP's. */
static const char config[] = "{\"model_type\": \"glm_moe_dsa\", "
    "\"num_hidden_layers\": 3, \"hidden_size\": 128, \"vocab_size\": 40, "
    "\"num_attention_heads\": 4, \"qk_nope_head_dim\": 8, "
    "\"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"q_lora_rank\": 16, "
    "\"kv_lora_rank\": 24, \"intermediate_size\": 136, "
    "\"moe_intermediate_size\": 128, \"n_routed_experts\": 3, "
    "\"num_experts_per_tok\": 2, \"index_n_heads\": 2, "
    "\"index_head_dim\": 8, \"index_topk\": 4, "
    "\"max_position_embeddings\": 64, \"first_k_dense_replace\": 1, "
    "\"indexer_types\": [\"full\", \"full\", \"shared\"], "
    "\"num_nextn_predict_layers\": 1, \"rope_theta\": 10000}";

enum mode { BF16, F32, F16, FP8_BLOCK, FP8_CHANNEL, FP8_ONE, W4AFP8, CT4,
	CT4_ASYM, MODES };
static const char *const quant[MODES] = {
	[FP8_BLOCK] = "{\"quantization_config\": {\"quant_method\": \"fp8\", "
	    "\"weight_block_size\": [32, 64]}}",
	[W4AFP8] = "{\"quantization_config\": {\"quant_method\": \"w4afp8\", "
	    "\"weight_block_size\": [32, 64]}}",
};

static struct tensor {
	const char *name;	/* in the file, after its layer's prefix */
	int n, k;		/* k 0: a vector of n */
	char kind;		/* L linear, P plain, f f32 always */
	const char *where;	/* layers it is in; "" = no layer */
} tensors[DCPK_T_N] = {
	[DCPK_T_EMBED] = { "model.embed_tokens.weight", 40, 128, 'P', "" },
	[DCPK_T_FINAL_NORM] = { "model.norm.weight", 128, 0, 'P', "" },
	[DCPK_T_LM_HEAD] = { "lm_head.weight", 40, 128, 'P', "" },
	[DCPK_T_IN_NORM] = { "input_layernorm.weight", 128, 0, 'P', "0123" },
	[DCPK_T_POST_NORM] = { "post_attention_layernorm.weight", 128, 0, 'P',
	    "0123" },
	[DCPK_T_Q_A] = { "self_attn.q_a_proj.weight", 16, 128, 'L', "0123" },
	[DCPK_T_Q_A_NORM] = { "self_attn.q_a_layernorm.weight", 16, 0, 'P',
	    "0123" },
	[DCPK_T_Q_B] = { "self_attn.q_b_proj.weight", 64, 16, 'L', "0123" },
	[DCPK_T_KV_A] = { "self_attn.kv_a_proj_with_mqa.weight", 32, 128, 'L',
	    "0123" },
	[DCPK_T_KV_A_NORM] = { "self_attn.kv_a_layernorm.weight", 24, 0, 'P',
	    "0123" },
	[DCPK_T_KV_B] = { "self_attn.kv_b_proj.weight", 96, 24, 'L', "0123" },
	[DCPK_T_O] = { "self_attn.o_proj.weight", 128, 64, 'L', "0123" },
	[DCPK_T_IDX_Q_B] = { "self_attn.indexer.wq_b.weight", 16, 16, 'L',
	    "013" },
	[DCPK_T_IDX_K] = { "self_attn.indexer.wk.weight", 8, 128, 'L', "013" },
	[DCPK_T_IDX_K_NORM_W] = { "self_attn.indexer.k_norm.weight", 8, 0,
	    'P', "013" },
	[DCPK_T_IDX_K_NORM_B] = { "self_attn.indexer.k_norm.bias", 8, 0, 'P',
	    "013" },
	[DCPK_T_IDX_W] = { "self_attn.indexer.weights_proj.weight", 2, 128,
	    'P', "013" },
	[DCPK_T_GATE] = { "mlp.gate_proj.weight", 136, 128, 'L', "0" },
	[DCPK_T_UP] = { "mlp.up_proj.weight", 136, 128, 'L', "0" },
	[DCPK_T_DOWN] = { "mlp.down_proj.weight", 128, 136, 'L', "0" },
	[DCPK_T_ROUTER] = { "mlp.gate.weight", 3, 128, 'P', "123" },
	[DCPK_T_ROUTER_BIAS] = { "mlp.gate.e_score_correction_bias", 3, 0,
	    'f', "123" },
	[DCPK_T_E_GATE] = { "mlp.experts.%d.gate_proj.weight", 128, 128, 'L',
	    "123" },
	[DCPK_T_E_UP] = { "mlp.experts.%d.up_proj.weight", 128, 128, 'L',
	    "123" },
	[DCPK_T_E_DOWN] = { "mlp.experts.%d.down_proj.weight", 128, 128, 'L',
	    "123" },
	[DCPK_T_S_GATE] = { "mlp.shared_experts.gate_proj.weight", 128, 128,
	    'L', "123" },
	[DCPK_T_S_UP] = { "mlp.shared_experts.up_proj.weight", 128, 128, 'L',
	    "123" },
	[DCPK_T_S_DOWN] = { "mlp.shared_experts.down_proj.weight", 128, 128,
	    'L', "123" },
	[DCPK_T_E_NORM] = { "enorm.weight", 128, 0, 'P', "3" },
	[DCPK_T_H_NORM] = { "hnorm.weight", 128, 0, 'P', "3" },
	[DCPK_T_EH_PROJ] = { "eh_proj.weight", 128, 256, 'P', "3" },
	[DCPK_T_SH_NORM] = { "shared_head.norm.weight", 128, 0, 'P', "3" },
};

static void
full_name(char *buf, size_t cap, int layer, int t, int expert)
{
	char tail[100];

	snprintf(tail, sizeof tail, tensors[t].name, expert);
	if (tensors[t].where[0] == '\0')
		snprintf(buf, cap, "%s", tail);
	else
		snprintf(buf, cap, "model.layers.%d.%s", layer, tail);
}

static bool
is_expert(int t)
{
	return t == DCPK_T_E_GATE || t == DCPK_T_E_UP || t == DCPK_T_E_DOWN;
}

/* Byte i of what is stored under a name: never that of a NaN or infinity, which
 * have bit 2 set in the byte of the exponent, whatever the type. */
static unsigned char
byte_of(const char *name, size_t i)
{
	uint32_t h = 2166136261u;

	for (; *name != '\0'; name++)
		h = (h ^ (unsigned char)*name) * 16777619u;
	h = (h ^ (uint32_t)i) * 2654435761u;
	return (unsigned char)(h >> 24) & ~4u;
}

/* --- writing ------------------------------------------------------------- */

/* What the writer of a checkpoint does differently. */
static struct twist {
	const char *skip;		/* leaves out names that contain it */
	const char *shape;		/* this one gets one row more */
	const char *dtype_of, *dtype;	/* this one gets another dtype */
	const char *extra;		/* one more tensor */
	const char *not_finite;		/* this one's last number is a NaN */
	bool packed, no_lm_head, mtp_copies;
	float act_scale;		/* for all, if it is not 0 */
} twist;

static size_t
dtype_bytes(const char *d)
{
	return strchr(d, '6') != NULL && strcmp(d, "I64") != 0 ? 2 :
	    strcmp(d, "I64") == 0 ? 8 : strstr(d, "32") != NULL ? 4 : 1;
}

static void
store(struct su *s, const char *name, const char *dtype, int rank, uint64_t a,
    uint64_t b, uint64_t c)
{
	uint64_t shape[3] = { a, b, c };
	unsigned char *data;
	size_t n, i;

	if (twist.skip != NULL && strstr(name, twist.skip) != NULL)
		return;
	if (twist.shape != NULL && strcmp(name, twist.shape) == 0)
		shape[0]++;
	if (twist.dtype_of != NULL && strcmp(name, twist.dtype_of) == 0)
		dtype = twist.dtype;
	n = dtype_bytes(dtype);
	for (i = 0; i < (size_t)rank; i++)
		n *= shape[i];
	data = malloc(n + 1);
	for (i = 0; i < n; i++)
		data[i] = byte_of(name, i);
	if (twist.not_finite != NULL && strcmp(name, twist.not_finite) == 0)
		memset(data + n - dtype_bytes(dtype), 0xff, dtype_bytes(dtype));
	su_add(s, name, dtype, rank, shape, data, n);
	free(data);
}

/* A number of its own for each tensor, from 0.5 to 1.5. */
static float
act_scale_of(const char *name)
{
	return 0.5f + (float)byte_of(name, 0) / 256;
}

static void
store_act_scale(struct su *s, const char *name)
{
	float v = act_scale_of(name);

	if (twist.act_scale != 0)
		v = twist.act_scale;
	if (twist.dtype_of != NULL && strcmp(name, twist.dtype_of) == 0)
		store(s, name, "F32", 0, 0, 0, 0);
	else
		su_add(s, name, "F32", 0, NULL, &v, 4);
}

static void
store_linear(struct su *s, const char *name, int n, int k, enum mode mode,
    bool expert)
{
	char base[160], leaf[200];
	int64_t shape[2] = { n, k };
	uint64_t two = 2;

	snprintf(base, sizeof base, "%.*s", (int)strlen(name) - 7, name);
#define LEAF(x) (snprintf(leaf, sizeof leaf, "%s" x, base), leaf)
	if (mode == W4AFP8 && expert) {
		store(s, name, "I8", 2, n, k / 2, 0);
		store(s, LEAF(".weight_scale_inv"), "F32", 2, n, k / 128, 0);
		store_act_scale(s, LEAF(".input_scale"));
	} else if (mode == FP8_BLOCK || mode == W4AFP8) {
		store(s, name, "F8_E4M3", 2, n, k, 0);
		store(s, LEAF(".weight_scale_inv"), "F32", 2, (n + 31) / 32,
		    (k + 63) / 64, 0);
	} else if (mode == FP8_CHANNEL) {
		store(s, name, "F8_E4M3", 2, n, k, 0);
		store(s, LEAF(".weight_scale"), "BF16", 2, n, 1, 0);
	} else if (mode == FP8_ONE) {
		store(s, name, "F8_E4M3", 2, n, k, 0);
		store(s, LEAF(".weight_scale"), "F32", 1, 1, 0, 0);
	} else {
		store(s, LEAF(".weight_packed"), "I32", 2, n, k / 8, 0);
		store(s, LEAF(".weight_scale"), "BF16", 2, n, k / 8, 0);
		su_add(s, LEAF(".weight_shape"), "I64", 1, &two, shape,
		    sizeof shape);
		if (mode == CT4_ASYM)
			store(s, LEAF(".weight_zero_point"), "I32", 2,
			    (n + 7) / 8, k / 8, 0);
		if (mode == CT4_ASYM)
			store(s, LEAF(".weight_g_idx"), "I32", 1, k, 0, 0);
	}
}

static void
store_packed(struct su *s, int layer, enum mode mode)
{
	const char *d = mode == FP8_BLOCK ? "F8_E4M3" : "BF16";
	char name[160];

	snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj",
	    layer);
	store(s, name, d, 3, 3, 256, 128);
	snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj",
	    layer);
	store(s, name, d, 3, 3, 128, 128);
	if (mode != FP8_BLOCK)
		return;
	snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj"
	    "_scale_inv", layer);
	store(s, name, "F32", 3, 3, 8, 2);
	snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj"
	    "_scale_inv", layer);
	store(s, name, "F32", 3, 3, 4, 2);
}

static void
store_tensor(struct su *s, int layer, int t, int expert, enum mode mode)
{
	const struct tensor *x = &tensors[t];
	const char *d = mode == F32 || x->kind == 'f' ? "F32" :
	    mode == F16 ? "F16" : "BF16";
	char name[160];

	full_name(name, sizeof name, layer, t, expert);
	if (x->kind == 'L' && mode > F16)
		store_linear(s, name, x->n, x->k, mode, is_expert(t));
	else
		store(s, name, d, x->k == 0 ? 1 : 2, x->n, x->k, 0);
}

static void
write_checkpoint(const char *dir, enum mode mode)
{
	struct su s = { 0 };
	json_t *j = mu_config(config);
	int layer, t, e;

	if (quant[mode] != NULL)
		mu_change(j, quant[mode]);
	if (twist.no_lm_head)
		json_object_set_new(j, "tie_word_embeddings", json_true());
	mu_write_json(dir, "config.json", j);
	json_decref(j);
	for (t = 0; t < 3; t++)
		if (t != DCPK_T_LM_HEAD || !twist.no_lm_head)
			store_tensor(&s, 0, t, 0, mode);
	for (layer = 0; layer < 4; layer++) {
		for (t = 3; t < DCPK_T_N; t++) {
			if (strchr(tensors[t].where, '0' + layer) == NULL ||
			    (is_expert(t) && twist.packed))
				continue;
			for (e = 0; e < (is_expert(t) ? 3 : 1); e++)
				store_tensor(&s, layer, t, e, mode);
		}
		if (twist.packed && layer > 0)
			store_packed(&s, layer, mode);
	}
	if (twist.mtp_copies) {
		store(&s, "model.layers.3.embed_tokens.weight", "BF16", 2, 40,
		    128, 0);
		store(&s, "model.layers.3.shared_head.head.weight", "BF16", 2,
		    40, 128, 0);
	}
	if (twist.extra != NULL)
		store(&s, twist.extra, "U8", 1, 1, 0, 0);
	su_write(&s, dir, "model.safetensors");
}

#endif
