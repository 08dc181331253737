/* config.json: what is read, and that each wrong key is refused by name. */
#include "config.h"

#include "tests/unit/golden_rope.h"
#include "tests/unit/model_util.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))

static struct dcpd_model_config cfg;
static struct dcpd_err err;

/* base with changes, as DIR/config.json; loads it into cfg. */
static int
load(const char *base, const char *change, const char *generation)
{
	json_t *j = mu_config(base);
	char dir[MU_PATH];
	int rc;

	mu_change(j, change);
	mu_mkdir(dir);
	mu_write_json(dir, "config.json", j);
	json_decref(j);
	if (generation != NULL)
		mu_write(dir, "generation_config.json", generation,
		    strlen(generation));
	memset(&err, 0, sizeof err);
	memset(&cfg, 0, sizeof cfg);
	rc = dcpd_config_load(dir, false, &cfg, &err);
	mu_rmdir(dir);
	return rc;
}

static void
load_ok(const char *base, const char *change)
{
	int rc = load(base, change, NULL);

	ck_assert_msg(rc == 0, "%s %s: %s", base, change, err.text);
}

START_TEST(published_configs_are_read)
{
	uint32_t i, full = 0;

	load_ok("glm-5.2", "{}");
	ck_assert_str_eq(cfg.model_type, "glm_moe_dsa");
	ck_assert_uint_eq(cfg.m.layers, 78);
	ck_assert_uint_eq(cfg.m.mtp_layers, 1);
	ck_assert_uint_eq(cfg.m.hidden, 6144);
	ck_assert_uint_eq(cfg.m.vocab, 154880);
	ck_assert_uint_eq(cfg.m.heads, 64);
	ck_assert_uint_eq(cfg.m.nope, 192);
	ck_assert_uint_eq(cfg.m.rope, 64);	/* head_dim says 192 */
	ck_assert_uint_eq(cfg.m.vdim, 256);
	ck_assert_uint_eq(cfg.m.q_lora, 2048);
	ck_assert_uint_eq(cfg.m.kv_lora, 512);
	ck_assert_uint_eq(cfg.m.inter, 12288);
	ck_assert_uint_eq(cfg.m.moe_inter, 2048);
	ck_assert_uint_eq(cfg.m.experts, 256);
	ck_assert_uint_eq(cfg.m.experts_tok, 8);
	ck_assert_uint_eq(cfg.m.shared_experts, 1);
	ck_assert_uint_eq(cfg.m.idx_heads, 32);
	ck_assert_uint_eq(cfg.m.idx_dim, 128);
	ck_assert_uint_eq(cfg.m.topk, 2048);
	ck_assert_uint_eq(cfg.m.max_pos, 1048576);
	ck_assert(cfg.m.idx_interleave && !cfg.m.idx_hadamard);
	ck_assert(cfg.m.norm_topk);
	ck_assert_float_eq(cfg.m.routed_scale, 2.5f);
	ck_assert_float_eq(cfg.m.eps, 1e-5f);
	ck_assert_float_eq(cfg.m.latent_eps, 1e-6f);
	ck_assert_uint_eq(cfg.n_eos, 3);
	ck_assert_uint_eq(cfg.eos[2], 154829);
	ck_assert_str_eq(cfg.quant_method, "");
	for (i = 0; i < 78; i++)
		full += cfg.m.full[i];
	ck_assert_uint_eq(full, 21);
	ck_assert(cfg.m.full[0] && cfg.m.full[2] && cfg.m.full[6] &&
	    cfg.m.full[74] && !cfg.m.full[3] && !cfg.m.full[75]);
	ck_assert(cfg.m.full[78] && cfg.m.sparse[78]);	/* MTP */
	ck_assert(!cfg.m.sparse[2] && cfg.m.sparse[3]);
	dcpd_config_free(&cfg);

	load_ok("deepseek-v3.2", "{}");
	ck_assert_str_eq(cfg.model_type, "deepseek_v32");
	ck_assert_uint_eq(cfg.m.layers, 61);
	ck_assert_uint_eq(cfg.m.groups, 8);
	ck_assert_uint_eq(cfg.m.groups_kept, 4);
	ck_assert(!cfg.m.idx_interleave && cfg.m.idx_hadamard);
	ck_assert_float_eq(cfg.m.eps, 1e-6f);
	ck_assert_str_eq(cfg.quant_method, "fp8");
	ck_assert_uint_eq(cfg.block_n, 128);
	ck_assert_uint_eq(cfg.block_k, 128);
	ck_assert(cfg.ue8m0 && cfg.m.act_ue8m0);
	ck_assert_uint_eq(cfg.n_eos, 1);
	ck_assert_uint_eq(cfg.eos[0], 1);
	for (i = 0; i < 61; i++)
		ck_assert(cfg.m.full[i]);
	dcpd_config_free(&cfg);
}
END_TEST

/* Golden numbers of the numpy reference; float32 up to its last bit. */
START_TEST(rope_is_the_references)
{
	const struct golden_rope *g = &golden_rope[_i];
	json_t *j = mu_config(g->base);
	json_t *rope = json_object_get(j, "rope_parameters");
	char *text;
	int i;

	if (rope == NULL)
		rope = json_object_get(j, "rope_scaling");
	mu_change(rope, g->change);
	text = json_dumps(j, 0);
	load_ok(text, "{}");
	free(text);
	json_decref(j);
	ck_assert_float_eq_tol(cfg.m.attn_scale, g->attn_scale,
	    g->attn_scale * 1e-7f);
	ck_assert_float_eq_tol(cfg.m.rope_factor, g->factor, 2e-7f);
	for (i = 0; i < 32; i++)
		ck_assert_float_eq_tol(cfg.m.inv_freq[i], g->inv_freq[i],
		    g->inv_freq[i] * 1.3e-7f);
	dcpd_config_free(&cfg);
}
END_TEST

/* rope_parameters and the older rope_scaling + rope_theta say the same. */
START_TEST(both_spellings_of_rope)
{
	struct dcpk_model old;

	load_ok("deepseek-v3.2", "{}");
	old = cfg.m;
	dcpd_config_free(&cfg);
	load_ok("deepseek-v3.2", "{\"rope_scaling\": null, \"rope_theta\": "
	    "null, \"rope_parameters\": {\"rope_type\": \"yarn\", "
	    "\"rope_theta\": 10000, \"factor\": 40, \"mscale\": 1, "
	    "\"mscale_all_dim\": 1, \"beta_fast\": 32, \"beta_slow\": 1, "
	    "\"original_max_position_embeddings\": 4096}}");
	ck_assert_mem_eq(cfg.m.inv_freq, old.inv_freq, sizeof old.inv_freq);
	ck_assert_float_eq(cfg.m.attn_scale, old.attn_scale);
	dcpd_config_free(&cfg);
}
END_TEST

/* doc/model.md 1.5: indexer_types, the pattern, or freq and offset. */
START_TEST(index_sharing)
{
	static const struct {
		const char *change, *full;	/* F or S per layer */
	} c[] = {
		{ "{\"indexer_types\": [\"full\", \"shared\", \"full\", "
		  "\"shared\", \"shared\", \"full\"]}", "FSFSSF" },
		{ "{\"index_topk_pattern\": \"FFSSSF\"}", "FFSSSF" },
		{ "{\"index_topk_pattern\": [\"F\", \"S\", \"S\", \"F\", "
		  "\"S\", \"S\"]}", "FSSFSS" },
		{ "{\"indexer_types\": [\"full\", \"full\", \"full\", "
		  "\"full\", \"full\", \"shared\"], \"index_topk_pattern\": "
		  "\"FSSSSS\"}", "FFFFFS" },
		/* max(i - off + 1, 0) % freq == 0 */
		{ "{\"index_topk_freq\": 3}", "FFSSFS" },
		{ "{\"index_topk_freq\": 4, \"index_skip_topk_offset\": 3}",
		  "FFFSSS" },
		{ "{\"index_topk_freq\": 2, \"index_skip_topk_offset\": 1}",
		  "FSFSFS" },
		{ "{\"index_topk_freq\": 0}", "FFFFFF" },
		{ "{}", "FFFFFF" },
	};
	json_t *j = mu_config("glm-5");
	char *text;
	int i, l;

	mu_change(j, "{\"num_hidden_layers\": 6}");
	text = json_dumps(j, 0);
	for (i = 0; i < LEN(c); i++) {
		load_ok(text, c[i].change);
		for (l = 0; l < 6; l++)
			ck_assert_msg(cfg.m.full[l] == (c[i].full[l] == 'F'),
			    "%s: layer %d", c[i].change, l);
		dcpd_config_free(&cfg);
	}
	free(text);
	json_decref(j);
}
END_TEST

START_TEST(other_keys)
{
	load_ok("glm-5.2", "{\"indexer_rope_interleave\": false, "
	    "\"tie_word_embeddings\": true, \"dtype\": \"float32\", "
	    "\"mlp_layer_types\": null, \"first_k_dense_replace\": 0, "
	    "\"num_nextn_predict_layers\": 0}");
	ck_assert(!cfg.m.idx_interleave && cfg.tied);
	ck_assert_int_eq(cfg.plain, DCPK_W_F32);
	ck_assert(cfg.m.sparse[0]);
	ck_assert_uint_eq(cfg.m.mtp_layers, 0);
	dcpd_config_free(&cfg);
	load_ok("glm-5", "{\"num_hidden_layers\": 3, \"mlp_layer_types\": "
	    "[\"sparse\", \"dense\", \"sparse\"]}");
	ck_assert(cfg.m.sparse[0] && !cfg.m.sparse[1] && cfg.m.sparse[2]);
	dcpd_config_free(&cfg);
}
END_TEST

START_TEST(latent_norm_eps_by_flag)
{
	char path[MU_PATH];

	mu_src("tests/data/configs/glm-5.2.json", path);
	ck_assert_int_eq(dcpd_config_load(path, true, &cfg, &err), 0);
	ck_assert_float_eq(cfg.m.latent_eps, 1e-5f);
	ck_assert_str_eq(cfg.name, "glm-5.2");
	dcpd_config_free(&cfg);
}
END_TEST

START_TEST(sampling_defaults_of_the_model)
{
	static const struct {
		const char *text;
		float temperature, top_p;
		int top_k, n_eos, eos0;
	} c[] = {
		{ "{}", 0, 1, 0, 3, 154820 },
		{ "{\"do_sample\": false, \"temperature\": 0.6, \"top_p\": "
		  "0.9}", 0, 1, 0, 3, 154820 },
		{ "{\"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": 20}",
		  0.6f, 0.95f, 20, 3, 154820 },
		{ "{\"do_sample\": true, \"eos_token_id\": 7}", 1, 1, 0, 1,
		  7 },
		{ "{\"eos_token_id\": [9, 8]}", 0, 1, 0, 2, 9 },
	};
	int i;

	for (i = 0; i < LEN(c); i++) {
		ck_assert_int_eq(load("glm-5.2", "{}", c[i].text), 0);
		ck_assert_float_eq(cfg.def_temperature, c[i].temperature);
		ck_assert_float_eq(cfg.def_top_p, c[i].top_p);
		ck_assert_int_eq(cfg.def_top_k, c[i].top_k);
		ck_assert_int_eq((int)cfg.n_eos, c[i].n_eos);
		ck_assert_int_eq((int)cfg.eos[0], c[i].eos0);
		dcpd_config_free(&cfg);
	}
	ck_assert_int_ne(load("glm-5.2", "{}", "{\"top_p\": 2, "
	    "\"do_sample\": true}"), 0);
	ck_assert_ptr_nonnull(strstr(err.text, "generation_config.json"));
	ck_assert_ptr_nonnull(strstr(err.text, "\"top_p\" is 2"));
}
END_TEST

/* Each is refused, and the text has the key, its value and a legal one. */
static const struct bad {
	const char *change, *key, *must;
} bad[] = {
	{ "{\"model_type\": \"glm5_next\"}", "\"glm5_next\"", "glm_moe_dsa" },
	{ "{\"model_type\": \"llama\"}", "\"llama\"", "deepseek_v32" },
	{ "{\"model_type\": null}", "\"model_type\" is missing", "glm" },
	{ "{\"num_hidden_layers\": 0}", "\"num_hidden_layers\" is 0",
	  "from 1 to 255" },
	{ "{\"num_hidden_layers\": 256}", "is 256", "from 1 to 255" },
	{ "{\"hidden_size\": \"x\"}", "\"hidden_size\" is \"x\"", "integer" },
	{ "{\"hidden_size\": 6144.0}", "\"hidden_size\" is 6144.0",
	  "integer" },
	{ "{\"hidden_size\": -1}", "\"hidden_size\" is -1", "from 1" },
	{ "{\"vocab_size\": null}", "\"vocab_size\" is missing", "from 1" },
	{ "{\"num_attention_heads\": 100000, \"num_key_value_heads\": null}",
	  "\"num_attention_heads\"", "1024" },
	{ "{\"num_key_value_heads\": 8}", "\"num_key_value_heads\" is 8",
	  "64" },
	{ "{\"qk_nope_head_dim\": 0}", "\"qk_nope_head_dim\"", "from 1" },
	{ "{\"qk_rope_head_dim\": 63}", "\"qk_rope_head_dim\" is 63", "even" },
	{ "{\"qk_rope_head_dim\": 258}", "\"qk_rope_head_dim\"", "256" },
	{ "{\"v_head_dim\": 0}", "\"v_head_dim\"", "from 1" },
	{ "{\"q_lora_rank\": null}", "\"q_lora_rank\" is missing", "from 1" },
	{ "{\"kv_lora_rank\": 0}", "\"kv_lora_rank\"", "from 1" },
	{ "{\"intermediate_size\": 0}", "\"intermediate_size\"", "from 1" },
	{ "{\"moe_intermediate_size\": 0}", "\"moe_intermediate_size\"",
	  "from 1" },
	{ "{\"n_routed_experts\": 0}", "\"n_routed_experts\"", "from 1" },
	{ "{\"num_experts_per_tok\": 257}", "\"num_experts_per_tok\"",
	  "256" },
	{ "{\"n_shared_experts\": 65}", "\"n_shared_experts\"", "64" },
	{ "{\"n_group\": 7}", "\"n_group\" is 7", "divisor" },
	{ "{\"n_group\": 256}", "\"n_group\" is 256", "128" },
	{ "{\"n_group\": 64, \"topk_group\": 1}", "\"num_experts_per_tok\"",
	  "at most the 4" },
	{ "{\"topk_group\": 2}", "\"topk_group\" is 2", "from 1 to 1" },
	{ "{\"index_n_heads\": 0}", "\"index_n_heads\"", "from 1" },
	{ "{\"index_head_dim\": 32}", "\"index_head_dim\" is 32",
	  "qk_rope_head_dim, 64" },
	{ "{\"index_topk\": 0}", "\"index_topk\"", "from 1" },
	{ "{\"max_position_embeddings\": 0}", "\"max_position_embeddings\"",
	  "from 1" },
	{ "{\"norm_topk_prob\": 1}", "\"norm_topk_prob\" is 1", "true or" },
	{ "{\"routed_scaling_factor\": 0}", "\"routed_scaling_factor\"",
	  "1e-06" },
	{ "{\"scoring_func\": \"softmax\"}", "\"scoring_func\"", "sigmoid" },
	{ "{\"topk_method\": \"greedy\"}", "\"topk_method\"", "noaux_tc" },
	{ "{\"moe_layer_freq\": 2}", "\"moe_layer_freq\" is 2", "1" },
	{ "{\"indexer_types\": [\"full\"]}", "\"indexer_types\"", "78" },
	{ "{\"indexer_types\": null, \"index_topk_pattern\": \"FX\"}",
	  "\"index_topk_pattern\" is \"FX\"", "78 letters" },
	{ "{\"indexer_types\": null, \"index_topk_freq\": 2, "
	  "\"index_skip_topk_offset\": 0}", "\"index_skip_topk_offset\"",
	  "layer 0 is full" },
	{ "{\"mlp_layer_types\": \"dense\"}", "\"mlp_layer_types\"",
	  "list of num_hidden_layers" },
	{ "{\"rms_norm_eps\": 1}", "\"rms_norm_eps\"", "0.01" },
	{ "{\"hidden_act\": \"gelu\"}", "\"hidden_act\" is \"gelu\"",
	  "silu" },
	{ "{\"attention_bias\": true}", "\"attention_bias\" is true",
	  "false" },
	{ "{\"rope_interleave\": false}", "\"rope_interleave\" is false",
	  "true" },
	{ "{\"eos_token_id\": [1, 154880]}", "\"eos_token_id\"",
	  "below vocab_size, 154880" },
	{ "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}", "\"eos_token_id\"",
	  "at most 8" },
	{ "{\"dtype\": \"int8\"}", "\"dtype\" is \"int8\"", "bfloat16" },
	{ "{\"rope_parameters\": {\"rope_type\": \"default\"}}",
	  "\"rope_theta\" is missing", "number" },
	{ "{\"rope_parameters\": {\"rope_theta\": 1}}",
	  "\"rope_parameters.rope_theta\" is 1", "from 1.5" },
	{ "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": "
	  "1e4}}", "\"rope_parameters.rope_type\" is \"llama3\"", "yarn" },
	{ "{\"rope_parameters\": 5}", "\"rope_parameters\" is 5", "object" },
	{ "{\"rope_parameters\": {\"type\": \"yarn\", \"rope_theta\": 1e4}}",
	  "\"rope_parameters.factor\" is missing", "number" },
	{ "{\"rope_parameters\": {\"type\": \"yarn\", \"rope_theta\": 1e4, "
	  "\"factor\": 0.5, \"original_max_position_embeddings\": 4096}}",
	  "\"rope_parameters.factor\" is 0.5", "from 1" },
	{ "{\"quantization_config\": {\"quant_method\": \"awq\"}}",
	  "\"quantization_config.quant_method\" is \"awq\"", "w4afp8" },
	{ "{\"quantization_config\": {\"quant_method\": \"fp8\", "
	  "\"weight_block_size\": [128]}}",
	  "quantization_config.weight_block_size", "two integers" },
	{ "{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": "
	  "\"e5m2\"}}", "quantization_config.fmt", "e4m3" },
	{ "{\"quantization_config\": {\"quant_method\": \"fp8\", "
	  "\"activation_scheme\": \"static\"}}", "activation_scheme",
	  "dynamic" },
	{ "{\"quantization_config\": {\"quant_method\": \"fp8\", "
	  "\"scale_fmt\": \"x\"}}", "scale_fmt", "ue8m0" },
	{ "{\"quantization_config\": {\"quant_method\": "
	  "\"compressed-tensors\"}}", "config_groups", "object" },
	{ "{\"quantization_config\": {\"quant_method\": \"compressed-"
	  "tensors\", \"format\": \"pack-quantized\", \"config_groups\": "
	  "{\"group_0\": {\"targets\": [\"Linear\"], \"weights\": "
	  "{\"num_bits\": 8, \"type\": \"int\"}}}}}",
	  "config_groups.group_0.weights", "num_bits 4" },
	{ "{\"quantization_config\": {\"quant_method\": \"compressed-"
	  "tensors\", \"format\": \"nvfp4-pack-quantized\", "
	  "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "
	  "\"weights\": {\"num_bits\": 4}}}}}",
	  "config_groups.group_0.format", "pack-quantized" },
	{ "{\"quantization_config\": {\"quant_method\": \"compressed-"
	  "tensors\", \"format\": \"pack-quantized\", \"ignore\": [\"re:(\"], "
	  "\"config_groups\": {\"g\": {\"targets\": [\"Linear\"], "
	  "\"weights\": {\"num_bits\": 4}}}}}", "ignore",
	  "regular expressions" },
};

START_TEST(wrong_keys_are_refused_by_name)
{
	ck_assert_int_eq(load("glm-5.2", bad[_i].change, NULL), -EINVAL);
	ck_assert_msg(strstr(err.text, "/config.json: ") != NULL &&
	    strstr(err.text, bad[_i].key) != NULL &&
	    strstr(err.text, bad[_i].must) != NULL, "%s gave: %s",
	    bad[_i].change, err.text);
	ck_assert_ptr_null(cfg.priv);
}
END_TEST

static int
load_text(const char *text, size_t n)
{
	char dir[MU_PATH];
	int rc;

	mu_mkdir(dir);
	mu_write(dir, "config.json", text, n);
	rc = dcpd_config_load(dir, false, &cfg, &err);
	mu_rmdir(dir);
	return rc;
}

START_TEST(files_that_are_no_config)
{
	static const char *const text[] = {
		"", "[]", "{\"a\": 1, \"a\": 2}", "{\"a\": \"\\ud800\"}",
		"{\"a\": \"\xff\"}", "{",
	};
	static const char *const says[] = {
		"bad JSON", "must be a JSON object", "duplicate", "bad JSON",
		"bad JSON", "bad JSON",
	};
	char deep[4000], path[MU_PATH];
	int i;

	for (i = 0; i < LEN(text); i++) {
		ck_assert_int_eq(load_text(text[i], strlen(text[i])), -EINVAL);
		ck_assert_msg(strstr(err.text, says[i]) != NULL, "%s: %s",
		    text[i], err.text);
	}
	memset(deep, '[', sizeof deep);
	ck_assert_int_eq(load_text(deep, sizeof deep), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "nested deeper"));
	mu_mkdir(path);
	ck_assert_int_eq(dcpd_config_load(path, false, &cfg, &err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.text, "config.json"));
	mu_rmdir(path);
	ck_assert_int_eq(dcpd_config_load(path, false, &cfg, &err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.text, "--model"));
}
END_TEST

/* Brackets inside strings do not nest. */
START_TEST(depth_counts_brackets_outside_of_strings)
{
	char key[200];

	snprintf(key, sizeof key, "{\"note\": \"%s\\\"%s\"}",
	    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
	    "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{");
	load_ok("glm-5", key);
	dcpd_config_free(&cfg);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("config");
	TCase *t = tcase_create("config");
	SRunner *r;
	int failed;

	tcase_add_test(t, published_configs_are_read);
	tcase_add_loop_test(t, rope_is_the_references, 0, LEN(golden_rope));
	tcase_add_test(t, both_spellings_of_rope);
	tcase_add_test(t, index_sharing);
	tcase_add_test(t, other_keys);
	tcase_add_test(t, latent_norm_eps_by_flag);
	tcase_add_test(t, sampling_defaults_of_the_model);
	tcase_add_loop_test(t, wrong_keys_are_refused_by_name, 0, LEN(bad));
	tcase_add_test(t, files_that_are_no_config);
	tcase_add_test(t, depth_counts_brackets_outside_of_strings);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
