/*
 * A checkpoint onto the ranks: each tensor the model needs is found, its
 * format recognised and its shape checked (all of them before the first byte
 * of data is read), then read, cut and handed to the backend one at a time.
 * So the memory taken is what the backend keeps plus the largest tensor. Main
 * thread, at start.
 *
 * The format is decided by what is stored (dtype and the scales beside it),
 * never by the lists in config.json, which are wrong in published checkpoints.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/model/dummy.h"
#include "dcpd/model/finite.h"
#include "dcpd/model/place.h"
#include "dcpd/model/source.h"
#include "dcpd/model/tensors.h"

#define MISSING_SHOWN 4u

struct buffer {
	void *p;
	size_t cap;
};

struct loader {
	struct dcpd_place place;
	struct dcpd_st *st;
	struct buffer data, wide, scale, zero, g_idx;
	char missing[400];		/* the first few names */
	uint32_t n_missing;
	uint32_t act_layer;		/* of act; UINT32_MAX = none */
	float act[2];			/* of gate and up, of down */
	struct dcpd_err *err;
};

/* --- first pass: what is where ------------------------------------------- */

static void
note_missing(struct loader *l, const char *name)
{
	size_t n = strlen(l->missing);

	if (l->n_missing++ < MISSING_SHOWN)
		snprintf(l->missing + n, sizeof l->missing - n, "%s%.90s",
		    n == 0 ? "" : ", ", name);
}

static int
find_tensor(void *arg, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	struct loader *l = arg;
	struct dcpd_source s;
	char name[160];
	int rc;

	rc = dcpd_source_find(l->st, l->place.cfg, layer, t, expert, &s,
	    l->err);
	if (rc == -ENOENT) {
		dcpd_tensor_name(name, sizeof name, &l->place.cfg->m, layer, t,
		    expert);
		note_missing(l, name);
		return 0;
	}
	if (rc == 0)
		l->place.total += s.bytes;
	return rc;
}

/* Tensors that nobody asked for: harmless, but worth a line. */
static void
report_extra(const struct loader *l)
{
	const char *first = NULL;
	uint32_t n = 0, i;

	for (i = 0; i < l->st->n_tensors; i++) {
		if (l->st->tensors[i].used)
			continue;
		if (first == NULL)
			first = l->st->tensors[i].name;
		n++;
	}
	if (n > 0)
		dcpd_log(LOG_NOTICE, "weights: tensors of the checkpoint that "
		    "are not used (%u): %s%s", n, first, n > 1 ? ", ..." : "");
}

/* The MTP layer of some checkpoints repeats embed and lm_head. */
static void
use_mtp_copies(struct loader *l)
{
	static const char *const copies[] = {
		"embed_tokens.weight", "shared_head.head.weight",
	};
	char name[160];
	size_t i;

	for (i = 0; i < sizeof copies / sizeof *copies; i++) {
		struct dcpd_st_tensor *t;

		snprintf(name, sizeof name, "model.layers.%u.%s",
		    l->place.cfg->m.layers, copies[i]);
		t = dcpd_st_find(l->st, name);
		if (t != NULL)
			t->used = true;
	}
}

static int
find_all(struct loader *l, const char *dir)
{
	double start = dcpd_now();
	int rc;

	rc = dcpd_st_open(dir, &l->st, l->err);
	if (rc == 0)
		rc = dcpd_tensors_each(&l->place.cfg->m, find_tensor, l);
	if (rc != 0)
		return rc;
	if (l->n_missing > 0)
		return dcpd_fail(l->err, -ENOENT, "%s: tensors that the config "
		    "asks for are missing (%u): %s%s; fetch the checkpoint "
		    "again, or fix config.json", dir, l->n_missing,
		    l->missing, l->n_missing > MISSING_SHOWN ? ", ..." : "");
	use_mtp_copies(l);
	report_extra(l);
	dcpd_log(LOG_INFO, "weights: %u tensors in %u file%s checked in %.2f s",
	    l->st->n_tensors, l->st->n_files, l->st->n_files == 1 ? "" : "s",
	    dcpd_now() - start);
	return 0;
}

/* --- second pass: read and hand over ------------------------------------- */

static int
grow(struct buffer *b, uint64_t bytes, struct dcpd_err *err)
{
	void *p;

	if (bytes <= b->cap)
		return 0;
	/* No realloc: the old bytes need not be copied. */
	free(b->p);
	b->p = NULL;
	b->cap = 0;
	p = bytes > SIZE_MAX ? NULL : malloc(bytes);
	if (p == NULL)
		return dcpd_fail(err, -ENOMEM, "no memory for %llu bytes of "
		    "one tensor", (unsigned long long)bytes);
	b->p = p;
	b->cap = bytes;
	return 0;
}

static int
check_finite(struct loader *l, const struct dcpd_extent *x, const void *p)
{
	uint64_t at = dcpd_first_not_finite(x->t->dtype, p, x->bytes);

	return at == UINT64_MAX ? 0 : dcpd_fail(l->err, -EINVAL, "%s: tensor "
	    "%s: the number at its byte %llu is NaN or infinite; fetch the "
	    "checkpoint again, or ask who made it",
	    l->st->files[x->t->file].path, x->t->name,
	    (unsigned long long)(x->off + at));
}

/* The part of a source into its buffer; NULL if the source has none. */
static int
fetch(struct loader *l, const struct dcpd_extent *x, struct buffer *b,
    const void **out)
{
	int rc;

	*out = NULL;
	if (x->t == NULL)
		return 0;
	rc = grow(b, x->bytes, l->err);
	if (rc == 0)
		rc = dcpd_st_read(l->st, x->t, x->off, x->bytes, b->p, l->err);
	if (rc == 0 && !l->place.opt->any_number)
		rc = check_finite(l, x, b->p);
	if (rc == 0) {
		*out = b->p;
		dcpd_place_advance(&l->place, x->bytes);
	}
	return rc;
}

static float
half_to_float(uint16_t h)
{
	float m = (float)(h & 0x3ff), v;
	int e = h >> 10 & 31;

	if (e == 31)
		v = m == 0 ? INFINITY : NAN;
	else
		v = e == 0 ? ldexpf(m, -24) : ldexpf(m + 1024, e - 25);
	return h & 0x8000 ? -v : v;
}

/* F16 is no format of the backends: as F32, which holds every half. */
static int
widen(struct loader *l, const void *half, uint64_t n, const void **out)
{
	int rc = grow(&l->wide, n * 4, l->err);
	const unsigned char *in = half;
	float *f = l->wide.p;
	uint64_t i;

	for (i = 0; rc == 0 && i < n; i++)
		f[i] = half_to_float((uint16_t)(in[2 * i] |
		    in[2 * i + 1] << 8));
	*out = f;
	return rc;
}

/*
 * W4AFP8 quantises activations by one static scale per layer: the largest of
 * all experts, one for gate and up, one for down (SGLang's w4afp8.py).
 */
static int
act_scales(struct loader *l, uint32_t layer)
{
	const struct dcpk_model *m = &l->place.cfg->m;
	uint32_t e;
	int t, rc;

	if (l->act_layer == layer)
		return 0;
	l->act[0] = l->act[1] = 0;
	for (e = 0; e < m->experts; e++) {
		for (t = DCPK_T_E_GATE; t <= DCPK_T_E_DOWN; t++) {
			float v = 0, *max = &l->act[t == DCPK_T_E_DOWN];

			rc = dcpd_source_act_scale(l->st, m, layer, t, e, &v,
			    l->err);
			if (rc != 0)
				return rc;
			*max = v > *max ? v : *max;
		}
	}
	l->act_layer = layer;
	return 0;
}

static int
load_tensor(void *arg, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	struct loader *l = arg;
	struct dcpd_source s;
	struct dcpk_weight w = { .layer = layer, .tensor = t,
	    .expert = dcpd_tensor_is_expert(t) ? expert : 0 };
	const void *zero = NULL, *g_idx = NULL;
	int rc;

	rc = dcpd_source_find(l->st, l->place.cfg, layer, t, expert, &s,
	    l->err);
	if (rc == 0)
		rc = fetch(l, &s.data, &l->data, &w.data);
	if (rc == 0 && s.half)
		rc = widen(l, w.data, s.data.bytes / 2, &w.data);
	if (rc == 0)
		rc = fetch(l, &s.scale, &l->scale, &w.scale);
	if (rc == 0)
		rc = fetch(l, &s.zero, &l->zero, &zero);
	if (rc == 0)
		rc = fetch(l, &s.g_idx, &l->g_idx, &g_idx);
	if (rc == 0 && s.form.fmt == DCPK_W_INT4_PAIR)
		rc = act_scales(l, layer);
	if (rc != 0)
		return rc;
	if (s.form.fmt == DCPK_W_INT4_PAIR)
		w.act_scale = l->act[t == DCPK_T_E_DOWN];
	w.fmt = s.form.fmt;
	w.block_n = s.form.block_n;
	w.block_k = s.form.block_k;
	w.scale_bf16 = s.scale_bf16;
	w.zero_point = zero;
	w.g_idx = g_idx;
	dcpd_tensor_shape(&l->place.cfg->m, t, &w.n, &w.k);
	return dcpd_place(&l->place, &w, s.data.t->name, l->err);
}

static int
load_all(struct loader *l)
{
	int rc;

	dcpd_place_start(&l->place);
	rc = dcpd_tensors_each(&l->place.cfg->m, load_tensor, l);
	if (rc != 0)
		dcpd_place_abort(&l->place);
	else
		dcpd_place_end(&l->place, "read and placed");
	return rc;
}

static void
loader_free(struct loader *l)
{
	free(l->data.p);
	free(l->wide.p);
	free(l->scale.p);
	free(l->zero.p);
	free(l->g_idx.p);
	dcpd_st_close(l->st);
}

int
dcpd_weights_load(const char *dir, const struct dcpd_model_config *cfg,
    const struct dcpk_topo *topo, const struct dcpk_backend *be,
    struct dcpk_ctx *ctx, const struct dcpd_load_options *opt,
    struct dcpd_err *err)
{
	struct loader l = {
		.place = { .cfg = cfg, .topo = topo, .be = be, .ctx = ctx,
		    .opt = opt },
		.act_layer = UINT32_MAX, .err = err,
	};
	int rc;

	if (opt->format == DCPD_LOAD_DUMMY)
		return dcpd_dummy_load(cfg, topo, be, ctx, opt, err);
	rc = find_all(&l, dir);
	if (rc == 0)
		rc = load_all(&l);
	loader_free(&l);
	return rc;
}
