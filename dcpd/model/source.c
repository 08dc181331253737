/*
 * Where a tensor of the model lies in a checkpoint, and in which format: by
 * the dtype stored and by what lies beside it.
 *
 *   X.weight BF16, F32, F16                         as it is
 *   X.weight F8_E4M3 + X.weight_scale_inv [n/b][k/b]  FP8, blocks
 *   X.weight F8_E4M3 + X.weight_scale [n], [n][1], [1]  FP8, rows or whole
 *   X.weight I8 [n][k/2] + X.weight_scale_inv [n][k/g]  W4AFP8
 *   X.weight_packed I32 [n][k/8] + X.weight_scale [n][k/g]  compressed-tensors
 *
 * Routed experts may lie apart or packed: mlp.experts.gate_up_proj [E][2i][h]
 * (gate's rows first) and mlp.experts.down_proj [E][h][i].
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dcpd/model/source.h"
#include "dcpd/model/tensors.h"

struct want {			/* what is being looked for */
	const struct dcpd_st *st;
	const struct dcpd_model_config *cfg;
	enum dcpk_tensor t;
	uint32_t n, k;
	char base[160];		/* name without ".weight" */
	struct dcpd_source *s;
	struct dcpd_err *err;
};

static struct dcpd_st_tensor *
beside(const struct want *w, const char *leaf)
{
	char name[200];

	snprintf(name, sizeof name, "%s%s", w->base, leaf);
	return dcpd_st_find(w->st, name);
}

static bool
has_shape(const struct dcpd_st_tensor *t, uint32_t rank, uint64_t a,
    uint64_t b, uint64_t c)
{
	uint64_t want[3] = { a, b, c };
	uint32_t i;

	if (t->rank != rank)
		return false;
	for (i = 0; i < rank; i++)
		if (t->shape[i] != want[i])
			return false;
	return true;
}

static int
bad_tensor(const struct want *w, const struct dcpd_st_tensor *t,
    const char *expected)
{
	char shape[200];

	return dcpd_fail(w->err, -EINVAL, "%s: tensor %s: expected %s, got %s "
	    "%s; the checkpoint and config.json do not belong together",
	    w->st->files[t->file].path, t->name, expected,
	    dcpd_st_dtype_name(t->dtype),
	    dcpd_st_shape(shape, sizeof shape, t));
}

static int
lacks(const struct want *w, const struct dcpd_st_tensor *t, const char *what)
{
	return dcpd_fail(w->err, -EINVAL, "%s: tensor %s is %s, but %s%s is "
	    "missing", w->st->files[t->file].path, t->name,
	    dcpd_st_dtype_name(t->dtype), w->base, what);
}

static void
take(struct want *w, struct dcpd_extent *x, struct dcpd_st_tensor *t,
    uint64_t off, uint64_t bytes)
{
	t->used = true;
	*x = (struct dcpd_extent){ t, off, bytes };
	w->s->bytes += bytes;
}

static void
take_all(struct want *w, struct dcpd_extent *x, struct dcpd_st_tensor *t)
{
	take(w, x, t, 0, t->bytes);
}

/* F32 and BF16 scales of any shape that `ok` was true for. */
static int
take_scale(struct want *w, struct dcpd_st_tensor *t, bool ok,
    const char *expected)
{
	if (!ok || (t->dtype != DCPD_ST_F32 && t->dtype != DCPD_ST_BF16))
		return bad_tensor(w, t, expected);
	w->s->scale_bf16 = t->dtype == DCPD_ST_BF16;
	take_all(w, &w->s->scale, t);
	return 0;
}

/* --- one matrix or vector ------------------------------------------------ */

static int
find_fp8_block(struct want *w, struct dcpd_st_tensor *scale)
{
	uint32_t bn = w->cfg->block_n, bk = w->cfg->block_k;
	char expected[80];
	uint64_t rows, cols;

	if (bn == 0)
		return dcpd_fail(w->err, -EINVAL, "%s has block scales, but "
		    "config.json has no quantization_config."
		    "weight_block_size", w->base);
	rows = dcpd_div_up(w->n, bn);
	cols = dcpd_div_up(w->k, bk);
	snprintf(expected, sizeof expected, "F32 [%llu, %llu]",
	    (unsigned long long)rows, (unsigned long long)cols);
	w->s->form = (struct dcpd_wform){ DCPK_W_FP8_BLOCK, bn, bk };
	return take_scale(w, scale, has_shape(scale, 2, rows, cols, 0),
	    expected);
}

/* compressed-tensors: one scale for each row, for all, or for each block. */
static int
find_fp8_channel(struct want *w, struct dcpd_st_tensor *scale, uint32_t layer,
    uint32_t expert)
{
	struct dcpd_wform f = dcpd_quant_form(w->cfg, layer, w->t, expert);
	bool one = scale->bytes == (scale->dtype == DCPD_ST_BF16 ? 2 : 4);
	bool rows = has_shape(scale, 1, w->n, 0, 0) ||
	    has_shape(scale, 2, w->n, 1, 0);
	char expected[80];

	if (f.fmt == DCPK_W_FP8_BLOCK && has_shape(scale, 2,
	    dcpd_div_up(w->n, f.block_n), dcpd_div_up(w->k, f.block_k), 0)) {
		w->s->form = f;
		return take_scale(w, scale, true, "F32");
	}
	snprintf(expected, sizeof expected, "F32 or BF16 [%u, 1] or [1]",
	    w->n);
	w->s->form = (struct dcpd_wform){ DCPK_W_FP8_CHANNEL, !one || rows,
	    0 };
	return take_scale(w, scale, one || rows, expected);
}

static int
find_fp8(struct want *w, struct dcpd_st_tensor *t, uint32_t layer,
    uint32_t expert)
{
	struct dcpd_st_tensor *inv = beside(w, ".weight_scale_inv");
	struct dcpd_st_tensor *scale = beside(w, ".weight_scale");

	take_all(w, &w->s->data, t);
	if (inv != NULL)
		return find_fp8_block(w, inv);
	if (scale != NULL)
		return find_fp8_channel(w, scale, layer, expert);
	return lacks(w, t, ".weight_scale_inv or .weight_scale");
}

/* W4AFP8; t is known to be I8. */
static int
find_int4_pair(struct want *w, struct dcpd_st_tensor *t)
{
	struct dcpd_st_tensor *scale = beside(w, ".weight_scale_inv");
	struct dcpd_st_tensor *input = beside(w, ".input_scale");
	char expected[80];
	uint64_t groups;

	snprintf(expected, sizeof expected, "I8 [%u, %u] (two 4-bit values a "
	    "byte)", w->n, w->k / 2);
	if (w->k % 2 != 0 || !has_shape(t, 2, w->n, w->k / 2, 0))
		return bad_tensor(w, t, expected);
	if (scale == NULL)
		return lacks(w, t, ".weight_scale_inv");
	groups = scale->rank == 2 ? scale->shape[1] : 0;
	snprintf(expected, sizeof expected, "F32 or BF16 [%u, groups of %u]",
	    w->n, w->k);
	if (groups == 0 || groups > w->k || w->k % groups != 0)
		return bad_tensor(w, scale, expected);
	if (input != NULL)
		input->used = true;
	take_all(w, &w->s->data, t);
	w->s->form = (struct dcpd_wform){ DCPK_W_INT4_PAIR, 1,
	    (uint32_t)(w->k / groups) };
	return take_scale(w, scale, scale->shape[0] == w->n, expected);
}

/* weight_shape repeats [n, k]; a checkpoint where it differs is broken. */
static int
check_stored_shape(struct want *w, struct dcpd_st_tensor *t)
{
	struct dcpd_st_tensor *shape = beside(w, ".weight_shape");
	int64_t v[2];
	int rc;

	if (shape == NULL)
		return 0;
	if (shape->dtype != DCPD_ST_I64 || !has_shape(shape, 1, 2, 0, 0))
		return bad_tensor(w, shape, "I64 [2]");
	if (!shape->used) {
		rc = dcpd_st_read(w->st, shape, 0, sizeof v, v, w->err);
		if (rc != 0)
			return rc;
		if (v[0] != w->n || v[1] != w->k)
			return dcpd_fail(w->err, -EINVAL, "%s: tensor %s says "
			    "[%lld, %lld], config.json [%u, %u]",
			    w->st->files[t->file].path, shape->name,
			    (long long)v[0], (long long)v[1], w->n, w->k);
	}
	shape->used = true;
	return 0;
}

static int
find_int4_word(struct want *w, struct dcpd_st_tensor *t)
{
	struct dcpd_st_tensor *scale = beside(w, ".weight_scale");
	struct dcpd_st_tensor *zero = beside(w, ".weight_zero_point");
	struct dcpd_st_tensor *g_idx = beside(w, ".weight_g_idx");
	char expected[80];
	uint64_t groups;
	int rc;

	snprintf(expected, sizeof expected, "I32 [%u, %u] (eight 4-bit values "
	    "a word)", w->n, w->k / 8);
	if (t->dtype != DCPD_ST_I32 || w->k % 8 != 0 ||
	    !has_shape(t, 2, w->n, w->k / 8, 0))
		return bad_tensor(w, t, expected);
	if (scale == NULL)
		return lacks(w, t, ".weight_scale");
	groups = scale->rank == 2 ? scale->shape[1] : 0;
	snprintf(expected, sizeof expected, "BF16 or F32 [%u, groups of %u]",
	    w->n, w->k);
	if (groups == 0 || groups > w->k || w->k % groups != 0)
		return bad_tensor(w, scale, expected);
	rc = check_stored_shape(w, t);
	if (rc != 0)
		return rc;
	snprintf(expected, sizeof expected, "I32 [%llu, %llu]",
	    (unsigned long long)dcpd_div_up(w->n, 8),
	    (unsigned long long)groups);
	if (zero != NULL && (zero->dtype != DCPD_ST_I32 ||
	    !has_shape(zero, 2, dcpd_div_up(w->n, 8), groups, 0)))
		return bad_tensor(w, zero, expected);
	snprintf(expected, sizeof expected, "I32 [%u]", w->k);
	if (g_idx != NULL && (g_idx->dtype != DCPD_ST_I32 ||
	    !has_shape(g_idx, 1, w->k, 0, 0)))
		return bad_tensor(w, g_idx, expected);
	take_all(w, &w->s->data, t);
	if (zero != NULL)
		take_all(w, &w->s->zero, zero);
	if (g_idx != NULL)
		take_all(w, &w->s->g_idx, g_idx);
	w->s->form = (struct dcpd_wform){ DCPK_W_INT4_WORD, 1,
	    (uint32_t)(w->k / groups) };
	return take_scale(w, scale, scale->shape[0] == w->n,
	    "BF16 or F32 with one row of scales for each row");
}

static bool
plain_form(enum dcpd_st_dtype d, struct dcpd_source *s)
{
	s->half = d == DCPD_ST_F16;
	s->form = (struct dcpd_wform){ d == DCPD_ST_BF16 ? DCPK_W_BF16 :
	    DCPK_W_F32, 0, 0 };
	return d == DCPD_ST_BF16 || d == DCPD_ST_F16 || d == DCPD_ST_F32;
}

static int
find_vector(struct want *w, const char *name)
{
	struct dcpd_st_tensor *t = dcpd_st_find(w->st, name);
	char expected[80];

	if (t == NULL)
		return -ENOENT;
	snprintf(expected, sizeof expected, "BF16, F16 or F32 [%u]", w->k);
	if (!plain_form(t->dtype, w->s) || !has_shape(t, 1, w->k, 0, 0))
		return bad_tensor(w, t, expected);
	take_all(w, &w->s->data, t);
	return 0;
}

static int
find_matrix(struct want *w, const char *name, uint32_t layer, uint32_t expert)
{
	struct dcpd_st_tensor *t = dcpd_st_find(w->st, name);
	struct dcpd_st_tensor *packed = beside(w, ".weight_packed");
	char expected[80];

	if (t == NULL && packed != NULL)
		return find_int4_word(w, packed);
	if (t == NULL)
		return -ENOENT;
	if (t->dtype == DCPD_ST_I8)
		return find_int4_pair(w, t);
	snprintf(expected, sizeof expected,
	    "BF16, F16, F32, F8_E4M3 or I8 [%u, %u]", w->n, w->k);
	if (!has_shape(t, 2, w->n, w->k, 0))
		return bad_tensor(w, t, expected);
	if (t->dtype == DCPD_ST_F8_E4M3)
		return find_fp8(w, t, layer, expert);
	if (!plain_form(t->dtype, w->s))
		return bad_tensor(w, t, expected);
	take_all(w, &w->s->data, t);
	return 0;
}

/* --- packed experts ------------------------------------------------------ */

/*
 * Expert e's rows of [E][rows][k], from row `first` on. FP8 needs its scale
 * blocks to begin with a block where `up` begins.
 */
static int
find_packed(struct want *w, uint32_t layer, uint32_t e)
{
	const struct dcpk_model *m = &w->cfg->m;
	bool down = w->t == DCPK_T_E_DOWN;
	uint32_t rows = down ? w->n : 2 * w->n;
	uint32_t first = w->t == DCPK_T_E_UP ? w->n : 0;
	uint32_t bn = w->cfg->block_n, bk = w->cfg->block_k;
	struct dcpd_st_tensor *t, *scale;
	char expected[80];
	uint64_t el, sr, sc;

	dcpd_tensor_name(w->base, sizeof w->base, m, layer, w->t,
	    DCPD_NO_EXPERT);
	t = beside(w, "");
	if (t == NULL)
		return -ENOENT;
	snprintf(expected, sizeof expected,
	    "BF16, F16, F32 or F8_E4M3 [%u, %u, %u]", m->experts, rows, w->k);
	if (!has_shape(t, 3, m->experts, rows, w->k))
		return bad_tensor(w, t, expected);
	el = t->bytes / m->experts / rows / w->k;
	if (plain_form(t->dtype, w->s)) {
		take(w, &w->s->data, t, ((uint64_t)e * rows + first) * w->k *
		    el, (uint64_t)w->n * w->k * el);
		return 0;
	}
	scale = beside(w, "_scale_inv");
	if (t->dtype != DCPD_ST_F8_E4M3)
		return bad_tensor(w, t, expected);
	if (scale == NULL)
		return lacks(w, t, "_scale_inv");
	if (bn == 0 || first % bn != 0)
		return dcpd_fail(w->err, -ENOTSUP, "tensor %s: packed FP8 "
		    "experts need weight_block_size and a "
		    "moe_intermediate_size that its %u rows divide", t->name,
		    bn);
	sr = dcpd_div_up(rows, bn);
	sc = dcpd_div_up(w->k, bk);
	snprintf(expected, sizeof expected, "F32 or BF16 [%u, %llu, %llu]",
	    m->experts, (unsigned long long)sr, (unsigned long long)sc);
	w->s->form = (struct dcpd_wform){ DCPK_W_FP8_BLOCK, bn, bk };
	if (take_scale(w, scale, has_shape(scale, 3, m->experts, sr, sc),
	    expected) != 0)
		return -EINVAL;
	el = w->s->scale_bf16 ? 2 : 4;
	w->s->bytes = 0;
	take(w, &w->s->scale, scale, (e * sr + first / bn) * sc * el,
	    dcpd_div_up(w->n, bn) * sc * el);
	take(w, &w->s->data, t, ((uint64_t)e * rows + first) * w->k,
	    (uint64_t)w->n * w->k);
	return 0;
}

/* --- entry points -------------------------------------------------------- */

int
dcpd_source_find(const struct dcpd_st *st, const struct dcpd_model_config *cfg,
    uint32_t layer, enum dcpk_tensor t, uint32_t expert, struct dcpd_source *s,
    struct dcpd_err *err)
{
	struct want w = { .st = st, .cfg = cfg, .t = t, .s = s, .err = err };
	char name[160];
	int rc;

	memset(s, 0, sizeof *s);
	if (t == DCPK_T_LM_HEAD && cfg->tied)
		t = DCPK_T_EMBED;
	dcpd_tensor_shape(&cfg->m, t, &w.n, &w.k);
	dcpd_tensor_name(name, sizeof name, &cfg->m, layer, t, expert);
	if (dcpd_tensor_is_vector(t))
		return find_vector(&w, name);
	snprintf(w.base, sizeof w.base, "%.*s", (int)(strlen(name) - 7), name);
	rc = find_matrix(&w, name, layer, expert);
	if (rc == -ENOENT && dcpd_tensor_is_expert(t))
		rc = find_packed(&w, layer, expert);
	return rc;
}

int
dcpd_source_act_scale(const struct dcpd_st *st, const struct dcpk_model *m,
    uint32_t layer, enum dcpk_tensor t, uint32_t expert, float *out,
    struct dcpd_err *err)
{
	struct want w = { .st = st, .t = t, .err = err };
	const struct dcpd_st_tensor *in;
	uint16_t half;
	uint32_t bits;
	float v;
	int rc;

	dcpd_tensor_name(w.base, sizeof w.base, m, layer, t, expert);
	w.base[strlen(w.base) - 7] = '\0';
	in = beside(&w, ".input_scale");
	if (in == NULL)
		return 0;
	if ((in->dtype != DCPD_ST_F32 && in->dtype != DCPD_ST_BF16) ||
	    (in->rank != 0 && !has_shape(in, 1, 1, 0, 0)))
		return bad_tensor(&w, in, "F32 or BF16 [] or [1]");
	if (in->dtype == DCPD_ST_F32) {
		rc = dcpd_st_read(st, in, 0, 4, &bits, err);
	} else {
		rc = dcpd_st_read(st, in, 0, 2, &half, err);
		bits = (uint32_t)half << 16;
	}
	if (rc != 0)
		return rc;
	memcpy(&v, &bits, 4);
	if (!(v > 0 && v < INFINITY))
		return dcpd_fail(err, -EINVAL, "%s: tensor %s is %g: must be "
		    "above 0 and finite", st->files[in->file].path, in->name,
		    (double)v);
	*out = v;
	return 0;
}
