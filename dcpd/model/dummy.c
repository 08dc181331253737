/*
 * Weights out of thin air, from config.json alone: seeded, the same for every
 * layout (a tensor is made whole, then cut), and scaled so that activations
 * keep their size through the layers. In the formats that the config's
 * quantization_config names, so that memory and speed are those of the real
 * checkpoint. Main thread, at start; large tensors are filled by several.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/base/thread.h"
#include "dcpd/model/dummy.h"
#include "dcpd/model/place.h"
#include "dcpd/model/quant.h"
#include "dcpd/model/tensors.h"

#define MAX_FILLERS 16
#define PER_FILLER (UINT64_C(1) << 20)	/* elements; fewer is one thread's */
#define GAMMA UINT64_C(0x9e3779b97f4a7c15)

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
	uint64_t z = *s += GAMMA;

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

/* Elements of a tensor, [first, end), first a multiple of 8: one thread's. */
struct share {
	void (*fill)(const struct share *);
	void *out;
	uint64_t stream, first, end;
	float mean, spread;
	bool bf16, e4m3;
};

/* mean + spread * unit, F32 or BF16; a draw makes four. */
static void
fill_float(const struct share *sh)
{
	uint64_t s = sh->stream + sh->first / 4 * GAMMA, i, r = 0;
	uint16_t *b = sh->out;
	float *f = sh->out;

	for (i = sh->first; i < sh->end; i++) {
		float v;

		r = i % 4 == 0 ? next(&s) : r >> 16;
		v = sh->mean + sh->spread * unit((uint16_t)r);
		if (sh->bf16)
			b[i] = to_bf16(v);
		else
			f[i] = v;
	}
}

/*
 * Random bytes, eight a draw; e4m3 has two NaN codes, 0x7f and 0xff, which are
 * moved.
 */
static void
fill_bytes(const struct share *sh)
{
	uint64_t s = sh->stream + sh->first / 8 * GAMMA, i, r = 0;
	uint8_t *b = sh->out;

	for (i = sh->first; i < sh->end; i++) {
		r = i % 8 == 0 ? next(&s) : r >> 8;
		b[i] = (uint8_t)r;
		if (sh->e4m3 && (b[i] & 0x7f) == 0x7f)
			b[i] ^= 1;
	}
}

static void *
filler(void *arg)
{
	const struct share *sh = arg;

	sh->fill(sh);
	return NULL;
}

/*
 * The n elements of `all` in shares; the values do not depend on how many. A
 * thread that cannot be had is this thread's work.
 */
static void
fill_all(const struct share *all, uint64_t n)
{
	struct share sh[MAX_FILLERS];
	pthread_t tid[MAX_FILLERS];
	bool runs[MAX_FILLERS] = { false };
	sigset_t set = dcpd_thread_signals(), old;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t parts = n / PER_FILLER, each, i;

	if (parts > (uint64_t)(cpus > 1 ? cpus : 1))
		parts = (uint64_t)(cpus > 1 ? cpus : 1);
	if (parts > MAX_FILLERS)
		parts = MAX_FILLERS;
	if (parts == 0)
		parts = 1;
	each = (n / parts + 7) / 8 * 8;
	pthread_sigmask(SIG_SETMASK, &set, &old);
	for (i = 0; i < parts; i++) {
		sh[i] = *all;
		sh[i].first = i * each;
		sh[i].end = i + 1 == parts ? n : (i + 1) * each;
		if (i + 1 < parts)
			runs[i] = dcpd_thread_start(&tid[i], filler,
			    &sh[i]) == 0;
		if (!runs[i])
			filler(&sh[i]);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	for (i = 0; i < parts; i++)
		if (runs[i])
			pthread_join(tid[i], NULL);
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

/*
 * How large the values are: what keeps y = Wx of the size of x. Scales are half
 * to one and a half times what they are on the mean, so that one from a wrong
 * place shows.
 */
static void
fill(struct dummy *d, const struct dcpd_wform *f, struct dcpk_weight *w,
    uint64_t s, uint64_t scales)
{
	bool bias = w->tensor == DCPK_T_ROUTER_BIAS ||
	    w->tensor == DCPK_T_IDX_K_NORM_B;
	float spread = 1 / sqrtf((float)w->k);
	uint64_t n = (uint64_t)w->n * w->k, i;
	float *scale = d->scale;
	struct share all = { .out = d->data, .stream = s };

	switch (f->fmt) {
	case DCPK_W_F32: case DCPK_W_BF16:
		all.fill = fill_float;
		all.bf16 = f->fmt == DCPK_W_BF16;
		if (dcpd_tensor_is_vector(w->tensor)) {
			all.mean = bias ? 0 : 1;
			all.spread = bias ? 0.05f : 0.1f;
		} else {
			all.spread = w->tensor == DCPK_T_EMBED ? 1 : spread;
		}
		fill_all(&all, n);
		return;
	case DCPK_W_FP8_BLOCK: case DCPK_W_FP8_CHANNEL:
		all.fill = fill_bytes;
		all.e4m3 = true;
		fill_all(&all, n);
		break;
	case DCPK_W_INT4_PAIR: case DCPK_W_INT4_WORD:
		all.fill = fill_bytes;
		fill_all(&all, n / 2);
		break;
	}
	s = ~s;		/* not the stream of the values */
	spread /= rms_of(f->fmt);
	for (i = 0; i < scales; i++)
		scale[i] = spread * (0.5f + (float)(next(&s) >> 40) *
		    0x1p-24f);
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
