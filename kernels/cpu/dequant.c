/*
 * Slices of checkpoint weights as f32: every format of enum dcpk_wfmt
 * (doc/model.md 3: FP8 block and channel, W4AFP8 pairs, compressed-tensors
 * words). And W4AFP8's as GPUs keep it. Any thread. Checkpoint data may be
 * unaligned, so it is copied out.
 */
#include "config.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/base/thread.h"
#include "kernels/fail.h"
#include "kernels/cpu/prim.h"
#include "kernels/keep.h"

static uint32_t
load_u32(const void *base, size_t i)
{
	uint32_t u;

	memcpy(&u, (const char *)base + i * 4, 4);
	return u;
}

static float
load_f32(const void *base, size_t i)
{
	float f;

	memcpy(&f, (const char *)base + i * 4, 4);
	return f;
}

static float
load_bf16(const void *base, size_t i)
{
	uint16_t b;

	memcpy(&b, (const char *)base + i * 2, 2);
	return dcpc_bf16_to_f32(b);
}

static float
load_scale(const struct dcpk_weight *w, size_t i)
{
	return w->scale_bf16 ? load_bf16(w->scale, i) : load_f32(w->scale, i);
}

static uint32_t
div_up(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

/* Scale groups along k; block_k 0 is one for the row. */
static uint32_t
groups(const struct dcpk_weight *w)
{
	return w->block_k == 0 ? 1 : div_up(w->k, w->block_k);
}

static uint32_t
group_of(const struct dcpk_weight *w, uint32_t k)
{
	if (w->g_idx != NULL)
		return load_u32(w->g_idx, k);
	return w->block_k == 0 ? 0 : k / w->block_k;
}

/* --- one row of the slice, k0..k1 -------------------------------------- */

static void
row_plain(float *dst, const struct dcpk_weight *w, uint32_t n)
{
	size_t at = (size_t)n * w->k;
	uint32_t k;

	if (w->fmt == DCPK_W_F32) {
		memcpy(dst, (const char *)w->data + (at + w->k0) * 4,
		    (size_t)(w->k1 - w->k0) * 4);
		return;
	}
	for (k = w->k0; k < w->k1; k++)
		*dst++ = load_bf16(w->data, at + k);
}

static void
row_fp8(float *dst, const struct dcpk_weight *w, uint32_t n)
{
	const uint8_t *q = (const uint8_t *)w->data + (size_t)n * w->k;
	uint32_t k, end;
	float s;

	for (k = w->k0; k < w->k1;) {
		if (w->fmt == DCPK_W_FP8_CHANNEL) {
			s = load_scale(w, w->block_n == 0 ? 0 : n);
			end = w->k1;
		} else {
			s = load_scale(w, (size_t)(n / w->block_n) *
			    groups(w) + k / w->block_k);
			end = w->k1 - k > w->block_k - k % w->block_k ?
			    k + w->block_k - k % w->block_k : w->k1;
		}
		for (; k < end; k++)
			*dst++ = dcpc_e4m3[q[k]] * s;
	}
}

static void
row_pair(float *dst, const struct dcpk_weight *w, uint32_t n)
{
	const uint8_t *q = (const uint8_t *)w->data + (size_t)n * (w->k / 2);
	const size_t s = (size_t)n * groups(w);
	uint32_t k, nib;

	for (k = w->k0; k < w->k1; k++) {
		nib = q[k / 2] >> (k % 2 * 4) & 15;
		*dst++ = (float)((int)(nib ^ 8) - 8) *
		    load_scale(w, s + group_of(w, k));
	}
}

static void
row_word(float *dst, const struct dcpk_weight *w, uint32_t n)
{
	const size_t at = (size_t)n * div_up(w->k, 8), ng = groups(w);
	uint32_t k, g, nib, zero = 8;

	for (k = w->k0; k < w->k1; k++) {
		g = group_of(w, k);
		nib = load_u32(w->data, at + k / 8) >> (k % 8 * 4) & 15;
		if (w->zero_point != NULL)
			zero = load_u32(w->zero_point, n / 8 * ng + g) >>
			    (n % 8 * 4) & 15;
		*dst++ = (float)((int)nib - (int)zero) *
		    load_scale(w, n * ng + g);
	}
}

/* --- checks ------------------------------------------------------------ */

static int
check_groups(const struct dcpk_weight *w, struct dcpk_err *err)
{
	uint32_t k, g;

	for (k = w->k0; w->g_idx != NULL && k < w->k1; k++) {
		g = load_u32(w->g_idx, k);
		if (g >= groups(w))
			return fail(err, -EINVAL, "g_idx of column %u is %d, "
			    "but there are %u scale groups", k, (int)g,
			    groups(w));
	}
	return 0;
}

static int
check(const struct dcpk_weight *w, struct dcpk_err *err)
{
	const bool plain = w->fmt == DCPK_W_F32 || w->fmt == DCPK_W_BF16;

	if (w->n0 > w->n1 || w->n1 > w->n || w->k0 > w->k1 || w->k1 > w->k)
		return fail(err, -EINVAL, "rows %u..%u, columns %u..%u are not "
		    "within %u x %u", w->n0, w->n1, w->k0, w->k1, w->n, w->k);
	if (w->data == NULL || (!plain && w->scale == NULL))
		return fail(err, -EINVAL, "the weight has no %s",
		    w->data == NULL ? "data" : "scale");
	if ((w->zero_point != NULL || w->g_idx != NULL) &&
	    w->fmt != DCPK_W_INT4_WORD)
		return fail(err, -EINVAL, "zero points and g_idx belong to "
		    "packed int4 words only");
	switch (w->fmt) {
	case DCPK_W_F32:
	case DCPK_W_BF16:
		return 0;
	case DCPK_W_FP8_BLOCK:
		return w->block_n > 0 && w->block_k > 0 ? 0 : fail(err, -EINVAL,
		    "an fp8 block of %u x %u", w->block_n, w->block_k);
	case DCPK_W_FP8_CHANNEL:
		return w->block_n <= 1 ? 0 : fail(err, -EINVAL, "one fp8 "
		    "scale for %u rows; must be 1 (each its own) or 0 (one for "
		    "all)", w->block_n);
	case DCPK_W_INT4_PAIR:
		return w->k % 2 == 0 ? 0 : fail(err, -EINVAL, "int4 pairs "
		    "along an odd number of columns, %u", w->k);
	case DCPK_W_INT4_WORD:
		return check_groups(w, err);
	}
	return fail(err, -EINVAL, "unknown weight format %d", (int)w->fmt);
}

int
dcpc_dequant(float *dst, size_t ld, const struct dcpk_weight *w,
    struct dcpk_err *err)
{
	uint32_t n;
	int rc;

	rc = check(w, err);
	if (rc != 0)
		return rc;
	for (n = w->n0; n < w->n1; n++, dst += ld) {
		switch (w->fmt) {
		case DCPK_W_F32:
		case DCPK_W_BF16:
			row_plain(dst, w, n);
			break;
		case DCPK_W_FP8_BLOCK:
		case DCPK_W_FP8_CHANNEL:
			row_fp8(dst, w, n);
			break;
		case DCPK_W_INT4_PAIR:
			row_pair(dst, w, n);
			break;
		case DCPK_W_INT4_WORD:
			row_word(dst, w, n);
			break;
		}
	}
	return 0;
}

/* --- int4 as it is kept (kernels/keep.h) ------------------------------- */

#define MAX_TAKERS 16
#define PER_TAKER (UINT64_C(1) << 19)	/* elements; fewer is one thread's */

/* Sixteen nibbles of two's complement as dcpk_int4_code. */
static uint64_t
int4_codes(uint64_t v)
{
	const uint64_t ones = UINT64_C(0x1111111111111111);

	return (v & 7 * ones) << 1 ^ (v >> 3 & ones) * 15;
}

/* Eight nibbles in the low halves of eight bytes. */
static uint64_t
spread(uint64_t v)
{
	v = (v | v << 16) & UINT64_C(0x0000ffff0000ffff);
	v = (v | v << 8) & UINT64_C(0x00ff00ff00ff00ff);
	return (v | v << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
}

/* A row's 128 columns of a tile: 16 bytes for each of four threads. */
static void
take_row(uint8_t *to, const uint8_t *from)
{
	uint32_t s, c;
	uint64_t v[2], w;

	for (s = 0; s < 4; s++) {	/* 32 columns: the first 16, the rest */
		memcpy(v, from + 16 * s, 16);
		v[0] = int4_codes(v[0]);
		v[1] = int4_codes(v[1]);
		for (c = 0; c < 4; c += 2) {
			w = spread(v[0] >> 16 * c & 0xffffffff) |
			    spread(v[1] >> 16 * c & 0xffffffff) << 4;
			memcpy(to + 16 * c + 4 * s, &w, 4);
			w >>= 32;
			memcpy(to + 16 * c + 16 + 4 * s, &w, 4);
		}
	}
}

/* Rows i0 .. i1 of a slice: what one thread does. */
struct share {
	uint8_t *out;
	const struct dcpk_weight *w;
	uint32_t i0, i1;
};

static void *
take_rows(void *arg)
{
	const struct share *sh = arg;
	const struct dcpk_weight *w = sh->w;
	uint32_t k = w->k1 - w->k0, i, j;
	const uint8_t *row;
	uint64_t at;
	float s;

	for (i = sh->i0; i < sh->i1; i++) {
		row = (const uint8_t *)w->data + (size_t)(w->n0 + i) *
		    (w->k / 2) + w->k0 / 2;
		for (j = 0; j < k; j += 128) {
			s = load_scale(w, (size_t)(w->n0 + i) * groups(w) +
			    (w->k0 + j) / 128);
			at = dcpk_int4_scale_at(k, i, j);
			memcpy(sh->out + at, &s, 4);
			at = dcpk_int4_at(k, i, j) / 2;
			take_row(sh->out + at, row + j / 2);
		}
	}
	return NULL;
}

/* How many threads a slice is worth; each has whole tiles of 64 rows. */
static uint32_t
takers(uint32_t n, uint32_t k, uint32_t most)
{
	uint64_t parts = (uint64_t)n * k / PER_TAKER;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (most == 0)
		most = cpus > 1 ? (uint32_t)cpus : 1;
	if (parts > most)
		parts = most;
	if (parts > MAX_TAKERS)
		parts = MAX_TAKERS;
	if (parts > n / 64)
		parts = n / 64;
	return parts == 0 ? 1 : (uint32_t)parts;
}

/* The bytes are the same however many threads there are; one that cannot be had
 * is this thread's work. */
void
dcpc_take_int4(uint8_t *out, const struct dcpk_weight *w, uint32_t threads)
{
	uint32_t n = w->n1 - w->n0, i;
	uint32_t parts = takers(n, w->k1 - w->k0, threads);
	struct share sh[MAX_TAKERS];
	pthread_t tid[MAX_TAKERS];
	bool runs[MAX_TAKERS] = { false };
	sigset_t set = dcpd_thread_signals(), old;

	pthread_sigmask(SIG_SETMASK, &set, &old);
	for (i = 0; i < parts; i++) {
		sh[i] = (struct share){ out, w, n / 64 * i / parts * 64,
		    i + 1 == parts ? n : n / 64 * (i + 1) / parts * 64 };
		if (i + 1 < parts)
			runs[i] = dcpd_thread_start(&tid[i], take_rows,
			    &sh[i]) == 0;
		if (!runs[i])
			take_rows(&sh[i]);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	for (i = 0; i < parts; i++)
		if (runs[i])
			pthread_join(tid[i], NULL);
}
