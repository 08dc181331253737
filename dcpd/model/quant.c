/*
 * quantization_config: fp8 (DeepSeek's form), w4afp8 (SGLang's) and
 * compressed-tensors (llm-compressor's). Main thread, at start.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "dcpd/model/quant.h"
#include "dcpd/model/tensors.h"

/* A pattern of targets or ignore: a module's name, its class, or "re:...". */
struct rule {
	char *name;
	pcre2_code *re;
};

struct rules {
	struct rule *v;
	size_t n;
};

struct group {
	struct dcpd_wform form;
	struct rules targets;
};

struct quant {			/* config's priv; compressed-tensors only */
	struct group *groups;
	size_t n_groups;
	struct rules ignore;
};

static void
rules_free(struct rules *r)
{
	size_t i;

	for (i = 0; i < r->n; i++) {
		free(r->v[i].name);
		pcre2_code_free(r->v[i].re);
	}
	free(r->v);
}

void
dcpd_quant_free(struct dcpd_model_config *c)
{
	struct quant *q = c->priv;
	size_t i;

	if (q == NULL)
		return;
	for (i = 0; i < q->n_groups; i++)
		rules_free(&q->groups[i].targets);
	free(q->groups);
	rules_free(&q->ignore);
	free(q);
	c->priv = NULL;
}

static void
read_rules(struct dcpd_keys *k, const char *name, struct rules *r)
{
	const json_t *list = dcpd_key(k, name);
	PCRE2_SIZE where;
	size_t i, n = json_array_size(list);
	int error;

	if (list != NULL && !json_is_array(list))
		dcpd_key_bad(k, name, "a list of strings");
	if (n == 0 || k->rc != 0)
		return;
	r->v = calloc(n, sizeof *r->v);
	if (r->v == NULL) {
		k->rc = dcpd_fail(k->err, -ENOMEM, "%s: no memory", k->where);
		return;
	}
	for (i = 0; i < n && k->rc == 0; i++) {
		const char *s = json_string_value(json_array_get(list, i));
		struct rule *u = &r->v[i];

		if (s == NULL) {
			dcpd_key_bad(k, name, "a list of strings");
			break;
		}
		r->n = i + 1;
		u->name = strdup(s);
		if (u->name == NULL)
			k->rc = dcpd_fail(k->err, -ENOMEM, "%s: no memory",
			    k->where);
		if (strncmp(s, "re:", 3) != 0)
			continue;
		u->re = pcre2_compile((PCRE2_SPTR)s + 3, PCRE2_ZERO_TERMINATED,
		    PCRE2_ANCHORED | PCRE2_UTF, &error, &where, NULL);
		if (u->re == NULL)
			dcpd_key_bad(k, name, "made of names and valid "
			    "regular expressions; \"%.60s\" is none", s);
	}
}

static bool
rules_match(const struct rules *r, const char *module)
{
	pcre2_match_context *limits = pcre2_match_context_create(NULL);
	bool hit = false;
	size_t i;

	if (limits != NULL)
		pcre2_set_match_limit(limits, 100000);
	for (i = 0; i < r->n && !hit; i++) {
		const struct rule *u = &r->v[i];
		pcre2_match_data *d;

		if (u->re == NULL) {
			hit = strcmp(u->name, module) == 0 ||
			    strcmp(u->name, "Linear") == 0;
			continue;
		}
		d = pcre2_match_data_create_from_pattern(u->re, NULL);
		hit = d != NULL && pcre2_match(u->re, (PCRE2_SPTR)module,
		    strlen(module), 0, 0, d, limits) >= 0;
		pcre2_match_data_free(d);
	}
	pcre2_match_context_free(limits);
	return hit;
}

/* "weight_block_size": [rows, columns] */
static void
read_block(struct dcpd_keys *k, const char *name, uint32_t *bn, uint32_t *bk)
{
	const json_t *v = dcpd_key(k, name);
	json_int_t n = json_integer_value(json_array_get(v, 0));
	json_int_t kk = json_integer_value(json_array_get(v, 1));

	if (v == NULL)
		return;
	if (json_array_size(v) != 2 || n < 1 || n > 65536 || kk < 1 ||
	    kk > 65536) {
		dcpd_key_bad(k, name, "two integers from 1 to 65536");
		return;
	}
	*bn = (uint32_t)n;
	*bk = (uint32_t)kk;
}

static void
read_fp8(struct dcpd_keys *k, struct dcpd_model_config *c, bool w4)
{
	const char *fmt = dcpd_key_str_or(k, "scale_fmt", "float");

	dcpd_key_only_str(k, "fmt", "e4m3");
	c->ue8m0 = strcmp(fmt, "ue8m0") == 0;
	if (!c->ue8m0 && strcmp(fmt, "float") != 0)
		dcpd_key_bad(k, "scale_fmt", "\"ue8m0\" or absent");
	if (!w4)
		dcpd_key_only_str(k, "activation_scheme", "dynamic");
	read_block(k, "weight_block_size", &c->block_n, &c->block_k);
	if (w4 && c->block_n == 0)
		c->block_n = c->block_k = 128;
	if (w4 && dcpd_key_uint_or(k, "group_size", 128, 1, 65536) != 128)
		dcpd_key_bad(k, "group_size", "128");
}

/* One entry of config_groups. */
static void
read_group(struct dcpd_keys *gk, const char *format, struct group *g)
{
	const json_t *w = dcpd_key(gk, "weights");
	struct dcpd_keys wk = *gk;
	const char *type, *strategy;
	uint32_t bits;

	format = dcpd_key_str_or(gk, "format", format);
	if (!json_is_object(w)) {
		dcpd_key_bad(gk, "weights", "an object");
		return;
	}
	wk.o = w;
	type = dcpd_key_str_or(&wk, "type", "int");
	strategy = dcpd_key_str_or(&wk, "strategy", "tensor");
	bits = dcpd_key_uint(&wk, "num_bits", 1, 64);
	gk->rc = wk.rc;
	if (gk->rc != 0)
		return;
	if (strcmp(format, "pack-quantized") == 0) {
		if (strcmp(type, "int") != 0 || bits != 4)
			dcpd_key_bad(gk, "weights", "num_bits 4 and type int "
			    "with format pack-quantized");
		g->form.fmt = DCPK_W_INT4_WORD;
		if (strcmp(strategy, "group") == 0)
			g->form.block_k = dcpd_key_uint(&wk, "group_size", 1,
			    65536);
	} else if (strcmp(format, "float-quantized") == 0) {
		if (strcmp(type, "float") != 0 || bits != 8)
			dcpd_key_bad(gk, "weights", "num_bits 8 and type "
			    "float with format float-quantized");
		g->form.fmt = DCPK_W_FP8_CHANNEL;
		g->form.block_n = strcmp(strategy, "tensor") != 0;
		if (strcmp(strategy, "block") == 0) {
			g->form.fmt = DCPK_W_FP8_BLOCK;
			g->form.block_n = g->form.block_k = 128;
			read_block(&wk, "block_structure", &g->form.block_n,
			    &g->form.block_k);
		}
	} else {
		dcpd_key_bad(gk, "format",
		    "\"pack-quantized\" or \"float-quantized\"");
	}
	if (gk->rc == 0)
		gk->rc = wk.rc;
	read_rules(gk, "targets", &g->targets);
}

static void
read_compressed(struct dcpd_keys *k, struct dcpd_model_config *c)
{
	const json_t *groups = dcpd_key(k, "config_groups");
	const char *format = dcpd_key_str_or(k, "format", "dense");
	size_t n = json_object_size(groups);
	struct quant *q = calloc(1, sizeof *q);
	const char *name;
	json_t *v;

	c->priv = q;
	if (q != NULL)
		q->groups = calloc(n + 1, sizeof *q->groups);
	if (q == NULL || q->groups == NULL) {
		k->rc = dcpd_fail(k->err, -ENOMEM, "%s: no memory", k->where);
		return;
	}
	if (!json_is_object(groups) || n == 0)
		dcpd_key_bad(k, "config_groups", "an object of groups");
	json_object_foreach((json_t *)(uintptr_t)groups, name, v) {
		struct dcpd_keys gk = *k;
		char prefix[120];

		snprintf(prefix, sizeof prefix, "%sconfig_groups.%.60s.",
		    k->prefix, name);
		if (!json_is_object(v))
			dcpd_key_bad(k, "config_groups",
			    "an object of objects");
		if (k->rc != 0)
			return;
		gk.o = v;
		gk.prefix = prefix;
		read_group(&gk, format, &q->groups[q->n_groups++]);
		k->rc = gk.rc;
	}
	read_rules(k, "ignore", &q->ignore);
}

int
dcpd_quant_read(struct dcpd_keys *top, struct dcpd_model_config *c)
{
	const json_t *q = dcpd_key(top, "quantization_config");
	struct dcpd_keys k = *top;
	const char *method;

	if (q == NULL)
		return 0;
	if (!json_is_object(q)) {
		dcpd_key_bad(top, "quantization_config", "an object");
		return top->rc;
	}
	k.o = q;
	k.prefix = "quantization_config.";
	method = dcpd_key_str_or(&k, "quant_method", "");
	if (strcmp(method, "fp8") == 0) {
		strcpy(c->quant_method, "fp8");
		read_fp8(&k, c, false);
	} else if (strstr(method, "w4afp8") != NULL) {
		strcpy(c->quant_method, "w4afp8");
		read_fp8(&k, c, true);
	} else if (strcmp(method, "compressed-tensors") == 0) {
		strcpy(c->quant_method, "compressed-tensors");
		read_compressed(&k, c);
	} else {
		dcpd_key_bad(&k, "quant_method", "\"fp8\", \"w4afp8\" or "
		    "\"compressed-tensors\"");
	}
	c->m.act_ue8m0 = c->ue8m0;
	return k.rc;
}

struct dcpd_wform
dcpd_quant_form(const struct dcpd_model_config *c, uint32_t layer,
    enum dcpk_tensor t, uint32_t expert)
{
	struct dcpd_wform f = { c->plain, 0, 0 };
	const struct quant *q = c->priv;
	char module[128];
	size_t i;

	if (t == DCPK_T_ROUTER_BIAS)
		f.fmt = DCPK_W_F32;
	if (!dcpd_tensor_is_linear(t) || c->quant_method[0] == '\0')
		return f;
	if (q == NULL) {
		f.block_n = c->block_n;
		f.block_k = c->block_k;
		f.fmt = f.block_n != 0 ? DCPK_W_FP8_BLOCK : DCPK_W_FP8_CHANNEL;
		if (dcpd_tensor_is_expert(t) &&
		    strcmp(c->quant_method, "w4afp8") == 0)
			f = (struct dcpd_wform){ DCPK_W_INT4_PAIR, 1, 128 };
		return f;
	}
	dcpd_tensor_name(module, sizeof module, &c->m, layer, t, expert);
	*strrchr(module, '.') = '\0';
	if (rules_match(&q->ignore, module))
		return f;
	for (i = 0; i < q->n_groups; i++)
		if (rules_match(&q->groups[i].targets, module))
			return q->groups[i].form;
	return f;
}

uint64_t
dcpd_wform_bytes(const struct dcpd_wform *f, uint64_t n, uint64_t k)
{
	uint64_t groups = f->block_k != 0 ? dcpd_div_up(k, f->block_k) : 1;

	switch (f->fmt) {
	case DCPK_W_F32:
		return n * k * 4;
	case DCPK_W_BF16:
		return n * k * 2;
	case DCPK_W_FP8_BLOCK:
		return n * k + dcpd_div_up(n, f->block_n) * groups * 4;
	case DCPK_W_FP8_CHANNEL:
		return n * k + (f->block_n != 0 ? n : 1) * 4;
	case DCPK_W_INT4_PAIR:
		return n * dcpd_div_up(k, 2) + n * groups * 4;
	case DCPK_W_INT4_WORD:
		return n * dcpd_div_up(k, 8) * 4 + n * groups * 2;
	}
	return 0;
}
