/*
 * config.json and generation_config.json of a model folder: every key that
 * changes what is computed is read, checked and named when it is wrong; keys
 * that only describe training are left alone. Called by the main thread.
 *
 * Two keys are traps and are not read: head_dim (GLM-5.2 says 192; the rope
 * width is always qk_rope_head_dim) and modules_to_not_convert (GLM's list
 * names a module that does not exist; weights.c goes by what is stored).
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dcpd/model/keys.h"
#include "dcpd/model/model.h"
#include "dcpd/model/quant.h"
#include "dcpd/model/safetensors.h"

#define CONFIG_MAX (4u << 20)	/* bytes; real ones have a few thousand */

static const char *const served[] = { "glm_moe_dsa", "deepseek_v32" };

static void
read_type(struct dcpd_keys *k, struct dcpd_model_config *c)
{
	const char *type = dcpd_key_str_or(k, "model_type", NULL);
	size_t i;

	if (k->rc != 0)
		return;
	for (i = 0; type != NULL && i < sizeof served / sizeof *served; i++) {
		if (strcmp(type, served[i]) == 0) {
			strcpy(c->model_type, served[i]);
			return;
		}
	}
	dcpd_key_bad(k, "model_type", "\"glm_moe_dsa\" (GLM-5, 5.1, 5.2, 5.3) "
	    "or \"deepseek_v32\" (DeepSeek-V3.2); no other model is served");
}

static void
read_sizes(struct dcpd_keys *k, struct dcpk_model *m)
{
	m->layers = dcpd_key_uint(k, "num_hidden_layers", 1,
	    DCPK_MAX_LAYERS - 1);
	m->hidden = dcpd_key_uint(k, "hidden_size", 1, 1u << 16);
	m->vocab = dcpd_key_uint(k, "vocab_size", 1, 1u << 22);
	m->heads = dcpd_key_uint(k, "num_attention_heads", 1, 1024);
	m->nope = dcpd_key_uint(k, "qk_nope_head_dim", 1, 1024);
	m->rope = dcpd_key_uint(k, "qk_rope_head_dim", 2, 256);
	m->vdim = dcpd_key_uint(k, "v_head_dim", 1, 1024);
	m->q_lora = dcpd_key_uint(k, "q_lora_rank", 1, 1u << 16);
	m->kv_lora = dcpd_key_uint(k, "kv_lora_rank", 1, 1u << 14);
	m->inter = dcpd_key_uint(k, "intermediate_size", 1, 1u << 20);
	m->idx_heads = dcpd_key_uint(k, "index_n_heads", 1, 1024);
	m->idx_dim = dcpd_key_uint(k, "index_head_dim", 2, 256);
	m->topk = dcpd_key_uint(k, "index_topk", 1, 1u << 16);
	m->max_pos = dcpd_key_uint(k, "max_position_embeddings", 1, 1u << 26);
	if (m->rope % 2 != 0)
		dcpd_key_bad(k, "qk_rope_head_dim", "even");
	if (m->idx_dim < m->rope)
		dcpd_key_bad(k, "index_head_dim", "at least "
		    "qk_rope_head_dim, %u", m->rope);
	if (dcpd_key_uint_or(k, "num_key_value_heads", m->heads, 1, 1024) !=
	    m->heads)
		dcpd_key_bad(k, "num_key_value_heads",
		    "num_attention_heads, %u (MLA has one latent)", m->heads);
}

static void
read_moe(struct dcpd_keys *k, struct dcpk_model *m)
{
	uint32_t per;

	m->moe_inter = dcpd_key_uint(k, "moe_intermediate_size", 1, 1u << 20);
	m->experts = dcpd_key_uint(k, "n_routed_experts", 1, 4096);
	m->experts_tok = dcpd_key_uint(k, "num_experts_per_tok", 1,
	    m->experts < 256 ? m->experts : 256);
	m->shared_experts = dcpd_key_uint_or(k, "n_shared_experts", 1, 1, 64);
	m->groups = dcpd_key_uint_or(k, "n_group", 1, 1, m->experts);
	m->groups_kept = dcpd_key_uint_or(k, "topk_group", 1, 1, m->groups);
	if (k->rc != 0)
		return;
	per = m->experts / m->groups;
	if (m->experts % m->groups != 0)
		dcpd_key_bad(k, "n_group", "a divisor of n_routed_experts, %u",
		    m->experts);
	if (m->groups > 1 && per < 2)
		dcpd_key_bad(k, "n_group", "at most n_routed_experts / 2, %u "
		    "(a group is ranked by its two best)", m->experts / 2);
	if (m->experts_tok > m->groups_kept * per)
		dcpd_key_bad(k, "num_experts_per_tok",
		    "at most the %u experts of the %u groups kept",
		    m->groups_kept * per, m->groups_kept);
	m->norm_topk = dcpd_key_bool_or(k, "norm_topk_prob", true);
	m->routed_scale = (float)dcpd_key_num_or(k, "routed_scaling_factor",
	    2.5, 1e-6, 1e6);
	dcpd_key_only_str(k, "scoring_func", "sigmoid");
	dcpd_key_only_str(k, "topk_method", "noaux_tc");
	if (dcpd_key_uint_or(k, "moe_layer_freq", 1, 0, UINT32_MAX) != 1)
		dcpd_key_bad(k, "moe_layer_freq",
		    "1 (nothing else is built)");
}

/* A list with one string per layer, each one of two words. */
static bool
read_words(struct dcpd_keys *k, const char *name, uint32_t layers,
    const char *no, const char *yes, uint8_t *out)
{
	const json_t *v = dcpd_key(k, name);
	uint32_t i;

	if (v == NULL)
		return false;
	if (!json_is_array(v) || json_array_size(v) != layers) {
		dcpd_key_bad(k, name,
		    "a list of num_hidden_layers, %u, strings", layers);
		return true;
	}
	for (i = 0; i < layers; i++) {
		const char *s = json_string_value(json_array_get(v, i));

		if (s != NULL && strcmp(s, yes) == 0) {
			out[i] = 1;
		} else if (s != NULL && strcmp(s, no) == 0) {
			out[i] = 0;
		} else {
			dcpd_key_bad(k, name, "\"%s\" or \"%s\" for each "
			    "layer; layer %u is neither", yes, no, i);
			return true;
		}
	}
	return true;
}

/* "FSSF..", one letter per layer. */
static bool
read_pattern(struct dcpd_keys *k, struct dcpk_model *m)
{
	const json_t *v = dcpd_key(k, "index_topk_pattern");
	const char *s;
	uint32_t i;

	if (v == NULL)
		return false;
	if (json_is_array(v)) {
		uint8_t letters[DCPK_MAX_LAYERS + 1];
		const json_t *v0 = json_array_get(v, 0);
		bool full = json_is_string(v0) &&
		    strlen(json_string_value(v0)) > 1;

		read_words(k, "index_topk_pattern", m->layers,
		    full ? "shared" : "S", full ? "full" : "F", letters);
		if (k->rc == 0)
			memcpy(m->full, letters, m->layers);
		return true;
	}
	s = json_string_value(v);
	if (s == NULL || strlen(s) != m->layers ||
	    strspn(s, "FS") != m->layers) {
		dcpd_key_bad(k, "index_topk_pattern", "%u letters F (full) or "
		    "S (shared), one for each layer", m->layers);
		return true;
	}
	for (i = 0; i < m->layers; i++)
		m->full[i] = s[i] == 'F';
	return true;
}

/*
 * Which layers have their own indexer (GLM-5.2 shares: arXiv 2603.12201).
 * DeepSeek-V3.2 has one in every layer.
 */
static void
read_indexers(struct dcpd_keys *k, struct dcpd_model_config *c)
{
	struct dcpk_model *m = &c->m;
	uint32_t freq, off, i;
	const char *key;

	memset(m->full, 1, sizeof m->full);
	if (strcmp(c->model_type, "deepseek_v32") == 0 || k->rc != 0)
		return;
	if (read_words(k, "indexer_types", m->layers, "shared", "full",
	    m->full)) {
		key = "indexer_types";
	} else if (read_pattern(k, m)) {
		key = "index_topk_pattern";
	} else {
		key = "index_topk_freq";
		freq = dcpd_key_uint_or(k, key, 1, 0, UINT32_MAX);
		freq = freq == 0 ? 1 : freq;
		off = dcpd_key_uint_or(k, "index_skip_topk_offset", 2, 0,
		    DCPK_MAX_LAYERS);
		for (i = 0; i < m->layers; i++)
			m->full[i] = (i + 1 < off ? 0 : i + 1 - off) % freq ==
			    0;
		if (!m->full[0])
			key = "index_skip_topk_offset";
	}
	if (k->rc == 0 && !m->full[0])
		dcpd_key_bad(k, key, "such that layer 0 is full: it has no "
		    "layer before it whose index it could share");
	/* The MTP layer has its own indexer. */
	m->full[m->layers] = 1;
}

static void
read_layers(struct dcpd_keys *k, struct dcpd_model_config *c)
{
	struct dcpk_model *m = &c->m;
	uint32_t dense, i;

	read_indexers(k, c);
	if (!read_words(k, "mlp_layer_types", m->layers, "dense", "sparse",
	    m->sparse)) {
		dense = dcpd_key_uint_or(k, "first_k_dense_replace", 3, 0,
		    DCPK_MAX_LAYERS);
		for (i = 0; i < m->layers; i++)
			m->sparse[i] = i >= dense;
	}
	m->mtp_layers = dcpd_key_uint_or(k, "num_nextn_predict_layers", 0, 0,
	    16) > 0;
	m->sparse[m->layers] = 1;
}

/* --- RoPE --------------------------------------------------------------- */

static double
yarn_mscale(double factor, double m)
{
	return factor <= 1 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

struct yarn {
	double theta, factor, orig, fast, slow, mscale, mscale_all;
	double attention_factor;	/* 0 = not given */
	bool truncate;
};

/* Dimension whose wave turns `rot` times over the original context. */
static double
yarn_dim(const struct yarn *y, uint32_t r, double rot)
{
	return r * log(y->orig / (rot * 2 * M_PI)) / (2 * log(y->theta));
}

/*
 * Fast waves keep their frequency, slow ones are stretched by `factor`, a ramp
 * lies between (arXiv 2309.00071). float where transformers uses float32.
 */
static void
yarn_freq(struct dcpk_model *m, const struct yarn *y)
{
	double lo = yarn_dim(y, m->rope, y->fast);
	double hi = yarn_dim(y, m->rope, y->slow);
	uint32_t i;

	if (y->truncate) {
		lo = floor(lo);
		hi = ceil(hi);
	}
	lo = fmax(lo, 0);
	hi = fmin(hi, m->rope - 1);
	if (lo == hi)
		hi += 0.001;
	for (i = 0; i < m->rope / 2; i++) {
		float wave = (float)pow(y->theta,
		    (double)((float)(2 * i) / (float)m->rope));
		float ramp = ((float)i - (float)lo) / (float)(hi - lo);

		ramp = fminf(fmaxf(ramp, 0), 1);
		m->inv_freq[i] = 1.0f / ((float)y->factor * wave) * ramp +
		    1.0f / wave * (1.0f - ramp);
	}
}

static void
read_yarn(struct dcpd_keys *k, struct dcpk_model *m, double theta)
{
	struct yarn y = { .theta = theta };
	double s;

	if (dcpd_key(k, "factor") == NULL)
		dcpd_key_bad(k, "factor", "a number, with rope_type yarn");
	if (dcpd_key(k, "original_max_position_embeddings") == NULL)
		dcpd_key_bad(k, "original_max_position_embeddings",
		    "a number, with rope_type yarn");
	y.factor = dcpd_key_num_or(k, "factor", 1, 1, 65536);
	y.orig = dcpd_key_num_or(k, "original_max_position_embeddings", 1, 1,
	    1u << 26);
	y.fast = dcpd_key_num_or(k, "beta_fast", 32, 0, 1e6);
	y.slow = dcpd_key_num_or(k, "beta_slow", 1, 0, 1e6);
	y.fast = y.fast == 0 ? 32 : y.fast;
	y.slow = y.slow == 0 ? 1 : y.slow;
	y.mscale = dcpd_key_num_or(k, "mscale", 0, 0, 1000);
	y.mscale_all = dcpd_key_num_or(k, "mscale_all_dim", 0, 0, 1000);
	y.attention_factor = dcpd_key_num_or(k, "attention_factor", 0, 1e-6,
	    1000);
	y.truncate = dcpd_key_bool_or(k, "truncate", true);
	if (k->rc != 0)
		return;
	yarn_freq(m, &y);
	if (y.attention_factor != 0)
		m->rope_factor = (float)y.attention_factor;
	else if (y.mscale != 0 && y.mscale_all != 0)
		m->rope_factor = (float)(yarn_mscale(y.factor, y.mscale) /
		    yarn_mscale(y.factor, y.mscale_all));
	else
		m->rope_factor = (float)yarn_mscale(y.factor, 1);
	if (y.mscale_all != 0) {
		s = yarn_mscale(y.factor, y.mscale_all);
		m->attn_scale = (float)(pow(m->nope + m->rope, -0.5) * s * s);
	}
}

/* rope_parameters, or rope_scaling and rope_theta of older files. */
static void
read_rope(struct dcpd_keys *k, struct dcpk_model *m)
{
	const char *from = dcpd_key(k, "rope_parameters") != NULL ?
	    "rope_parameters" : "rope_scaling";
	const json_t *v = dcpd_key(k, from);
	struct dcpd_keys rk = *k;
	const char *type = "default";
	char prefix[32];
	double theta;
	uint32_t i;

	if (v != NULL && !json_is_object(v))
		dcpd_key_bad(k, from, "an object");
	if (k->rc != 0)
		return;
	if (v != NULL) {
		snprintf(prefix, sizeof prefix, "%s.", from);
		rk.o = v;
		rk.prefix = prefix;
		type = dcpd_key_str_or(&rk, "rope_type",
		    dcpd_key_str_or(&rk, "type", "default"));
	}
	if (v == NULL || dcpd_key(&rk, "rope_theta") == NULL) {
		if (dcpd_key(k, "rope_theta") == NULL)
			dcpd_key_bad(k, "rope_theta", "a number, here or in "
			    "rope_parameters");
		theta = dcpd_key_num_or(k, "rope_theta", 1e4, 1.5, 1e12);
		rk.rc = k->rc;
	} else {
		theta = dcpd_key_num_or(&rk, "rope_theta", 1e4, 1.5, 1e12);
	}
	for (i = 0; i < m->rope / 2; i++) {
		float e = (float)(2 * i) / (float)m->rope;

		m->inv_freq[i] = 1.0f / (float)pow(theta, (double)e);
	}
	m->rope_factor = 1;
	m->attn_scale = (float)pow(m->nope + m->rope, -0.5);
	if (rk.rc == 0 && strcmp(type, "yarn") == 0)
		read_yarn(&rk, m, theta);
	else if (rk.rc == 0 && strcmp(type, "default") != 0)
		dcpd_key_bad(&rk, dcpd_key(&rk, "rope_type") != NULL ?
		    "rope_type" : "type", "\"default\" or \"yarn\"");
	k->rc = rk.rc;
}

/* --- the rest ------------------------------------------------------------ */

/* "dtype", or "torch_dtype" of older files: of the tensors as stored. */
static void
read_dtype(struct dcpd_keys *k, struct dcpd_model_config *c)
{
	const char *key = dcpd_key(k, "dtype") != NULL ? "dtype" :
	    "torch_dtype";
	const char *s = dcpd_key_str_or(k, key, "bfloat16");

	c->plain = DCPK_W_BF16;
	/* F16 is widened as it is loaded. */
	if (strcmp(s, "float32") == 0 || strcmp(s, "float16") == 0)
		c->plain = DCPK_W_F32;
	else if (strcmp(s, "bfloat16") != 0)
		dcpd_key_bad(k, key, "\"bfloat16\", \"float16\" or "
		    "\"float32\"");
}

static void
read_rest(struct dcpd_keys *k, struct dcpd_model_config *c, bool latent_config)
{
	bool glm = strcmp(c->model_type, "glm_moe_dsa") == 0;
	struct dcpk_model *m = &c->m;

	m->eps = (float)dcpd_key_num_or(k, "rms_norm_eps", glm ? 1e-5 : 1e-6,
	    1e-12, 1e-2);
	/* transformers builds the latent norms with 1e-6 whatever the config
	 * says; serving engines use rms_norm_eps. */
	m->latent_eps = latent_config ? m->eps : 1e-6f;
	m->idx_interleave = dcpd_key_bool_or(k, "indexer_rope_interleave",
	    glm);
	/* Where the dimension is no power of two there is no such rotation. */
	m->idx_hadamard = !glm && (m->idx_dim & (m->idx_dim - 1)) == 0;
	c->tied = dcpd_key_bool_or(k, "tie_word_embeddings", false);
	read_dtype(k, c);
	dcpd_key_only_str(k, "hidden_act", "silu");
	dcpd_key_only_bool(k, "attention_bias", false);
	dcpd_key_only_bool(k, "rope_interleave", true);
}

/* eos_token_id: an id or a list of them. False if the key is absent. */
static bool
read_eos(struct dcpd_keys *k, struct dcpd_model_config *c)
{
	const json_t *v = dcpd_key(k, "eos_token_id");
	size_t n = json_is_array(v) ? json_array_size(v) : 1, i;

	if (v == NULL)
		return false;
	if (n > sizeof c->eos / sizeof *c->eos) {
		dcpd_key_bad(k, "eos_token_id", "at most %zu ids",
		    sizeof c->eos / sizeof *c->eos);
		return true;
	}
	for (i = 0; i < n; i++) {
		const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= c->m.vocab) {
			dcpd_key_bad(k, "eos_token_id", "an id below "
			    "vocab_size, %u, or a list of them", c->m.vocab);
			return true;
		}
		c->eos[i] = (uint32_t)json_integer_value(id);
	}
	c->n_eos = (uint32_t)n;
	return true;
}

/*
 * The model's own sampling defaults. do_sample false means greedy; a
 * temperature without do_sample is meant to be used.
 */
static int
read_generation(const char *dir, struct dcpd_model_config *c,
    struct dcpd_err *err)
{
	struct dcpd_keys k = { .prefix = "", .err = err };
	char path[4096];
	struct stat st;
	json_t *j = NULL;
	int rc;

	snprintf(path, sizeof path, "%s/generation_config.json", dir);
	if (stat(path, &st) != 0 && errno == ENOENT)
		return 0;
	rc = dcpd_json_file(path, CONFIG_MAX, &j, err);
	if (rc != 0)
		return rc;
	k.o = j;
	k.where = path;
	read_eos(&k, c);
	if (dcpd_key_bool_or(&k, "do_sample",
	    dcpd_key(&k, "temperature") != NULL)) {
		c->def_temperature = (float)dcpd_key_num_or(&k, "temperature",
		    1, 0, 100);
		c->def_top_p = (float)dcpd_key_num_or(&k, "top_p", 1, 1e-6, 1);
		c->def_top_k = (int32_t)dcpd_key_uint_or(&k, "top_k", 0, 0,
		    INT32_MAX);
	}
	json_decref(j);
	return k.rc;
}

/* "ORG/NAME", as model hubs have it? */
static bool
hub_name(const char *path)
{
	const char *slash = strchr(path, '/');

	return slash != NULL && slash != path && slash[1] != '\0' &&
	    strchr(slash + 1, '/') == NULL && path[0] != '.' && path[0] != '~';
}

/*
 * A service's folder is seldom that of who wrote the path: what follows "no
 * such file", malloc'd, or NULL where the path says it all.
 */
static char *
looked_from(const char *path)
{
	char *here = path[0] != '/' ? getcwd(NULL, 0) : NULL, *s = NULL;

	if (here != NULL && asprintf(&s, ", looked for from %s, where dcpd "
	    "was started", here) < 0)
		s = NULL;
	free(here);
	return s;
}

static int
not_there(const char *path, struct dcpd_err *err)
{
	char *from = looked_from(path);
	int rc;

	if (hub_name(path))
		rc = dcpd_fail(err, -ENOENT, "--model %s: no such folder%s, "
		    "and dcpd downloads nothing; `hf download %s --local-dir "
		    "DIR` does, then give --model DIR", path,
		    from != NULL ? from : "", path);
	else
		rc = dcpd_fail(err, -ENOENT, "--model %s: %s%s; give a folder "
		    "with config.json and *.safetensors", path,
		    strerror(ENOENT), from != NULL ? from : "");
	free(from);
	return rc;
}

/* path -> the folder and the config file. */
static int
find_config(const char *path, char *dir, char *file, size_t cap,
    struct dcpd_err *err)
{
	struct stat st;
	char *slash;

	if (strlen(path) + 32 > cap)
		return dcpd_fail(err, -ENAMETOOLONG, "--model: path too long");
	if (stat(path, &st) != 0 && errno == ENOENT)
		return not_there(path, err);
	if (stat(path, &st) != 0)
		return dcpd_fail(err, -errno, "--model %s: %s; give a folder "
		    "with config.json and *.safetensors", path,
		    strerror(errno));
	if (S_ISDIR(st.st_mode)) {
		strcpy(dir, path);
		snprintf(file, cap, "%s/config.json", path);
		if (stat(file, &st) != 0)
			return dcpd_fail(err, -errno, "%s: %s; --model needs "
			    "a folder in Hugging Face's form", file,
			    strerror(errno));
		return 0;
	}
	strcpy(file, path);
	strcpy(dir, path);
	slash = strrchr(dir, '/');
	if (slash == NULL)
		strcpy(dir, ".");
	else
		slash[slash == dir] = '\0';
	return 0;
}

/* The folder's name; of a lone FILE.json FILE. */
static void
set_name(struct dcpd_model_config *c, const char *dir, const char *file)
{
	char *real = realpath(dir, NULL);
	const char *s = real != NULL ? real : dir;
	const char *slash = strrchr(file, '/');
	const char *base = slash != NULL ? slash + 1 : file;
	size_t n = strlen(base);

	if (strcmp(base, "config.json") != 0) {
		n -= n > 5 && strcmp(base + n - 5, ".json") == 0 ? 5 : 0;
		snprintf(c->name, sizeof c->name, "%.*s", (int)n, base);
	} else {
		slash = strrchr(s, '/');
		snprintf(c->name, sizeof c->name, "%s",
		    slash != NULL && slash[1] != '\0' ? slash + 1 : s);
	}
	free(real);
}

/*
 * A checkpoint may leave out the MTP layer that its config mentions; a broken
 * one is the loader's to report.
 */
static void
drop_absent_mtp(const char *dir, struct dcpd_model_config *c)
{
	char prefix[40];

	snprintf(prefix, sizeof prefix, "model.layers.%u.", c->m.layers);
	if (c->m.mtp_layers == 0 || dcpd_st_has_prefix(dir, prefix) != 0)
		return;
	dcpd_log(LOG_INFO, "model: the checkpoint has no MTP layer (%s*)",
	    prefix);
	c->m.mtp_layers = 0;
}

int
dcpd_config_load(const char *path, bool latent_eps_config,
    struct dcpd_model_config *out, struct dcpd_err *err)
{
	struct dcpd_keys k = { .prefix = "", .err = err };
	struct dcpd_model_config c = { .def_top_p = 1 };
	char dir[4096], file[4096];
	json_t *j = NULL;
	int rc;

	rc = find_config(path, dir, file, sizeof dir, err);
	if (rc == 0)
		rc = dcpd_json_file(file, CONFIG_MAX, &j, err);
	if (rc != 0)
		return rc;
	k.o = j;
	k.where = file;
	read_type(&k, &c);
	read_sizes(&k, &c.m);
	read_moe(&k, &c.m);
	read_layers(&k, &c);
	read_rope(&k, &c.m);
	read_rest(&k, &c, latent_eps_config);
	read_eos(&k, &c);
	rc = k.rc;
	if (rc == 0)
		rc = dcpd_quant_read(&k, &c);
	if (rc == 0)
		rc = read_generation(dir, &c, err);
	json_decref(j);
	if (rc != 0) {
		dcpd_config_free(&c);
		return rc;
	}
	set_name(&c, dir, file);
	drop_absent_mtp(dir, &c);
	*out = c;
	return 0;
}

void
dcpd_config_free(struct dcpd_model_config *c)
{
	dcpd_quant_free(c);
}
