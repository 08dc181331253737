/*
 * Weights out of thin air, from config.json alone: seeded, the same for every
 * layout (a tensor is made whole, then cut), and scaled so that activations
 * keep their size through the layers. In the formats that the config's
 * quantization_config names, so that memory and speed are those of the real
 * checkpoint. Main thread, at start.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/model/dummy.h"
#include "dcpd/model/place.h"
#include "dcpd/model/quant.h"
#include "dcpd/model/tensors.h"

struct dummy {
	struct dcpd_place place;
	void *data, *scale;
	size_t data_cap, scale_cap;
	struct dcpd_err *err;
};

/* splitmix64: a counter is enough state, any start gives a good stream. */
static uint64_t
next(uint64_t *s)
{
	uint64_t z = *s += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* One stream for each tensor, so that no other tensor shifts its values. */
static uint64_t
stream(uint64_t seed, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	uint64_t s = seed;

	s = next(&s) ^ layer;
	s = next(&s) ^ t;
	s = next(&s) ^ expert;
	return next(&s);
}

/* Uniform with mean 0 and variance 1, from 16 bits. */
static float
unit(uint16_t bits)
{
	return ((float)bits - 32767.5f) * (1.7320508f / 32768.0f);
}

static uint16_t
to_bf16(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* mean + spread * unit, F32 or BF16. */
static void
fill_float(uint64_t s, void *out, uint64_t n, bool bf16, float mean,
    float spread)
{
	uint16_t *b = out;
	float *f = out;
	uint64_t i, r = 0;

	for (i = 0; i < n; i++) {
		float v;

		r = i % 4 == 0 ? next(&s) : r >> 16;
		v = mean + spread * unit((uint16_t)r);
		if (bf16)
			b[i] = to_bf16(v);
		else
			f[i] = v;
	}
}

/* Random bytes; e4m3 has two NaN codes, 0x7f and 0xff, which are moved. */
static void
fill_bytes(uint64_t s, void *out, uint64_t n, bool e4m3)
{
	uint8_t *b = out;
	uint64_t i, r = 0;

	for (i = 0; i < n; i++) {
		r = i % 8 == 0 ? next(&s) : r >> 8;
		b[i] = (uint8_t)r;
		if (e4m3 && (b[i] & 0x7f) == 0x7f)
			b[i] ^= 1;
	}
}

/* Root mean square of what fill_bytes makes. */
static float
rms_of(enum dcpk_wfmt fmt)
{
	double sum = 0;
	int i;

	if (fmt == DCPK_W_INT4_PAIR || fmt == DCPK_W_INT4_WORD) {
		for (i = -8; i < 8; i++)
			sum += i * i;
		return (float)sqrt(sum / 16);
	}
	for (i = 0; i < 128; i++) {
		int code = i == 127 ? 126 : i;
		double v = code < 8 ? ldexp(code, -9) :
		    ldexp(8 + code % 8, code / 8 - 10);

		sum += v * v;
	}
	return (float)sqrt(sum / 128);
}

static int
grow(void **p, size_t *cap, uint64_t bytes, struct dcpd_err *err)
{
	if (bytes <= *cap)
		return 0;
	free(*p);
	*cap = 0;
	*p = malloc(bytes);
	if (*p == NULL)
		return dcpd_fail(err, -ENOMEM, "no memory for %llu bytes of "
		    "one dummy tensor", (unsigned long long)bytes);
	*cap = bytes;
	return 0;
}

/* How large the values are: what keeps y = Wx of the size of x. */
static void
fill(struct dummy *d, const struct dcpd_wform *f, struct dcpk_weight *w,
    uint64_t s, uint64_t scales)
{
	bool bias = w->tensor == DCPK_T_ROUTER_BIAS ||
	    w->tensor == DCPK_T_IDX_K_NORM_B;
	float spread = 1 / sqrtf((float)w->k);
	uint64_t n = (uint64_t)w->n * w->k, i;
	float *scale = d->scale;

	switch (f->fmt) {
	case DCPK_W_F32: case DCPK_W_BF16:
		if (dcpd_tensor_is_vector(w->tensor))
			fill_float(s, d->data, n, f->fmt == DCPK_W_BF16,
			    bias ? 0 : 1, bias ? 0.05f : 0.1f);
		else
			fill_float(s, d->data, n, f->fmt == DCPK_W_BF16, 0,
			    w->tensor == DCPK_T_EMBED ? 1 : spread);
		return;
	case DCPK_W_FP8_BLOCK: case DCPK_W_FP8_CHANNEL:
		fill_bytes(s, d->data, n, true);
		break;
	case DCPK_W_INT4_PAIR: case DCPK_W_INT4_WORD:
		fill_bytes(s, d->data, n / 2, false);
		break;
	}
	for (i = 0; i < scales; i++)
		scale[i] = spread / rms_of(f->fmt);
	w->scale = scale;
}

static uint64_t
n_scales(const struct dcpd_wform *f, uint64_t n, uint64_t k)
{
	uint64_t groups = f->block_k != 0 ? dcpd_div_up(k, f->block_k) : 1;

	switch (f->fmt) {
	case DCPK_W_FP8_BLOCK:
		return dcpd_div_up(n, f->block_n) * groups;
	case DCPK_W_FP8_CHANNEL:
		return f->block_n != 0 ? n : 1;
	case DCPK_W_INT4_PAIR: case DCPK_W_INT4_WORD:
		return n * groups;
	default:
		return 0;
	}
}

static int
make_tensor(void *arg, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	struct dummy *d = arg;
	const struct dcpd_model_config *cfg = d->place.cfg;
	struct dcpd_wform f = dcpd_quant_form(cfg, layer, t, expert);
	struct dcpk_weight w = { .layer = layer, .tensor = t,
	    .expert = dcpd_tensor_is_expert(t) ? expert : 0 };
	enum dcpk_tensor as = t == DCPK_T_LM_HEAD && cfg->tied ?
	    DCPK_T_EMBED : t;
	uint64_t bytes, scales;
	char name[160];
	int rc;

	dcpd_tensor_shape(&cfg->m, t, &w.n, &w.k);
	if (f.fmt == DCPK_W_INT4_WORD && f.block_k == 0)
		f.block_k = w.k;
	bytes = dcpd_wform_bytes(&f, w.n, w.k);
	scales = n_scales(&f, w.n, w.k);
	rc = grow(&d->data, &d->data_cap, bytes, d->err);
	if (rc == 0)
		rc = grow(&d->scale, &d->scale_cap, scales * 4, d->err);
	if (rc != 0)
		return rc;
	w.tensor = as;
	fill(d, &f, &w, stream(d->place.opt->seed, layer, as, w.expert),
	    scales);
	w.tensor = t;
	w.fmt = f.fmt;
	w.block_n = f.block_n;
	w.block_k = f.block_k;
	w.data = d->data;
	/* A static scale that no activation of size 1 saturates. */
	w.act_scale = f.fmt == DCPK_W_INT4_PAIR ? 0.05f : 0;
	dcpd_tensor_name(name, sizeof name, &cfg->m, layer, t, expert);
	rc = dcpd_place(&d->place, &w, name, d->err);
	if (rc == 0)
		dcpd_place_advance(&d->place, bytes);
	return rc;
}

static int
count_tensor(void *arg, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	struct dummy *d = arg;
	struct dcpd_wform f = dcpd_quant_form(d->place.cfg, layer, t, expert);
	uint32_t n, k;

	dcpd_tensor_shape(&d->place.cfg->m, t, &n, &k);
	if (f.fmt == DCPK_W_INT4_WORD && f.block_k == 0)
		f.block_k = k;
	d->place.total += dcpd_wform_bytes(&f, n, k);
	return 0;
}

int
dcpd_dummy_load(const struct dcpd_model_config *cfg,
    const struct dcpk_topo *topo, const struct dcpk_backend *be,
    struct dcpk_ctx *ctx, const struct dcpd_load_options *opt,
    struct dcpd_err *err)
{
	struct dummy d = {
		.place = { .cfg = cfg, .topo = topo, .be = be, .ctx = ctx,
		    .opt = opt },
		.err = err,
	};
	int rc;

	dcpd_tensors_each(&cfg->m, count_tensor, &d);
	dcpd_place_start(&d.place);
	rc = dcpd_tensors_each(&cfg->m, make_tensor, &d);
	if (rc != 0)
		dcpd_place_abort(&d.place);
	else
		dcpd_place_end(&d.place, "made up (dummy)");
	free(d.data);
	free(d.scale);
	return rc;
}
