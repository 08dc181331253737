/*
 * Every weight format, whole and in slices that cut through scale blocks. The
 * expected value of an element is worked out here from its bits, one by one.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/prim.h"
#include "kernels/keep.h"
#define RND_SEED 77777
#include "tests/unit/rnd.h"

/* Random bytes at an odd address, as in a checkpoint file. */
static void *
odd_bytes(size_t n)
{
	uint8_t *p = malloc(n + 1);
	size_t i;

	ck_assert_ptr_nonnull(p);
	for (i = 0; i <= n; i++)
		p[i] = (uint8_t)rnd(256);
	return p + 1;
}

static void
odd_free(const void *p)
{
	if (p != NULL)
		free((uint8_t *)(uintptr_t)p - 1);
}

/* n scales in -1..1, f32 or bf16, at an odd address. */
static void *
scales(size_t n, bool bf16)
{
	uint8_t *p = odd_bytes(n * 4);
	size_t i;
	uint32_t u;
	float f;

	for (i = 0; i < n; i++) {
		f = ((float)rnd(20001) - 10000) / 10000;
		memcpy(&u, &f, 4);
		if (bf16)
			memcpy(p + i * 2, (uint8_t *)&u + 2, 2);
		else
			memcpy(p + i * 4, &u, 4);
	}
	return p;
}

static double
scale_at(const struct dcpk_weight *w, size_t i)
{
	uint32_t u = 0;
	float f;

	if (w->scale_bf16)
		memcpy((uint8_t *)&u + 2, (const uint8_t *)w->scale + i * 2,
		    2);
	else
		memcpy(&u, (const uint8_t *)w->scale + i * 4, 4);
	memcpy(&f, &u, 4);
	return f;
}

static double
e4m3(uint8_t b)
{
	int e = b >> 3 & 15, m = b & 7;
	double v = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);

	return b & 0x80 ? -v : v;
}

static int
nibble(const void *base, size_t word, uint32_t i)
{
	uint32_t u;

	memcpy(&u, (const uint8_t *)base + word * 4, 4);
	return (int)(u >> (4 * i) & 15);
}

static double
expected(const struct dcpk_weight *w, uint32_t n, uint32_t k)
{
	const uint8_t *d = w->data;
	size_t at = (size_t)n * w->k + k, g;
	uint32_t ng = w->block_k ? (w->k + w->block_k - 1) / w->block_k : 1;
	uint32_t u = 0;
	float f;
	int q, z = 8;

	g = w->g_idx != NULL ? (size_t)w->g_idx[k] :
	    w->block_k ? k / w->block_k : 0;
	switch (w->fmt) {
	case DCPK_W_F32:
		memcpy(&f, d + at * 4, 4);
		return f;
	case DCPK_W_BF16:
		memcpy((uint8_t *)&u + 2, d + at * 2, 2);
		memcpy(&f, &u, 4);
		return f;
	case DCPK_W_FP8_BLOCK:
		return e4m3(d[at]) * scale_at(w, n / w->block_n * ng + g);
	case DCPK_W_FP8_CHANNEL:
		return e4m3(d[at]) * scale_at(w, w->block_n ? n : 0);
	case DCPK_W_INT4_PAIR:
		q = d[(size_t)n * (w->k / 2) + k / 2];
		q = k % 2 ? q >> 4 : q & 15;
		return (q < 8 ? q : q - 16) * scale_at(w, n * ng + g);
	case DCPK_W_INT4_WORD:
		q = nibble(d, (size_t)n * ((w->k + 7) / 8) + k / 8, k % 8);
		if (w->zero_point != NULL)
			z = nibble(w->zero_point, n / 8 * ng + g, n % 8);
		return (q - z) * scale_at(w, n * ng + g);
	}
	return NAN;
}

static void
check_slice(struct dcpk_weight *w)
{
	size_t ld = w->k1 - w->k0 + rnd(4), i;
	uint32_t rows = w->n1 - w->n0, n, k;
	float *dst = malloc((rows * ld + 1) * sizeof(*dst));
	struct dcpk_err err = { "" };
	double want;

	for (i = 0; i <= rows * ld; i++)
		dst[i] = 12345;
	ck_assert_msg(dcpc_dequant(dst, ld, w, &err) == 0, "%s", err.text);
	for (n = 0; n < rows; n++)
		for (k = 0; k < ld; k++) {
			want = k < w->k1 - w->k0 ?
			    expected(w, w->n0 + n, w->k0 + k) : 12345;
			ck_assert_msg(dst[n * ld + k] == (float)want ||
			    (isnan(want) && isnan(dst[n * ld + k])),
			    "fmt %d %ux%u block %ux%u slice %u+%u, %u+%u: "
			    "%.9g, not %.9g", w->fmt, w->n, w->k, w->block_n,
			    w->block_k, w->n0, n, w->k0, k, dst[n * ld + k],
			    want);
		}
	ck_assert_float_eq(dst[rows * ld], 12345);
	free(dst);
}

static void
make(struct dcpk_weight *w, enum dcpk_wfmt fmt, uint32_t n, uint32_t k,
    uint32_t bn, uint32_t bk)
{
	const uint32_t ng = bk ? (k + bk - 1) / bk : 1;
	size_t bytes = (size_t)n * k * 4, i, nscale = (size_t)n * ng + n;
	uint8_t *d = odd_bytes(bytes);
	int32_t *g;

	*w = (struct dcpk_weight){ .fmt = fmt, .n = n, .k = k, .data = d,
	    .block_n = bn, .block_k = bk, .scale_bf16 = rnd(2) };
	/* no NaN codes: they would hide a wrong scale */
	for (i = 0; i < bytes; i++)
		if ((fmt == DCPK_W_FP8_BLOCK || fmt == DCPK_W_FP8_CHANNEL) &&
		    (d[i] & 0x7f) == 0x7f)
			d[i] = 0x7e;
	if (fmt != DCPK_W_F32 && fmt != DCPK_W_BF16)
		w->scale = scales(nscale, w->scale_bf16);
	if (fmt == DCPK_W_INT4_WORD && rnd(2))
		w->zero_point = odd_bytes(((size_t)n / 8 + 1) * ng * 4);
	if (fmt == DCPK_W_INT4_WORD && rnd(2)) {
		g = malloc(k * sizeof(*g));
		for (i = 0; i < k; i++)
			g[i] = (int32_t)rnd(ng);
		w->g_idx = g;
	}
}

static void
drop(struct dcpk_weight *w)
{
	odd_free(w->data);
	odd_free(w->scale);
	odd_free(w->zero_point);
	free((int32_t *)(uintptr_t)w->g_idx);
}

START_TEST(every_format_in_any_slice)
{
	struct dcpk_weight w;
	uint32_t t, n, k, bn, bk, i;
	enum dcpk_wfmt fmt;

	for (t = 0; t < 600; t++) {
		fmt = (enum dcpk_wfmt)(t % 6);
		n = 1 + rnd(40);
		k = 1 + rnd(60);
		bn = fmt == DCPK_W_FP8_CHANNEL ? rnd(2) : 1 + rnd(20);
		bk = 1 + rnd(30);
		if (fmt == DCPK_W_INT4_PAIR)
			k += k % 2;
		if ((fmt == DCPK_W_INT4_PAIR || fmt == DCPK_W_INT4_WORD) &&
		    rnd(4) == 0)
			bk = 0;
		make(&w, fmt, n, k, bn, bk);
		w.n1 = n;
		w.k1 = k;
		check_slice(&w);
		for (i = 0; i < 5; i++) {
			w.n0 = rnd(n);
			w.n1 = w.n0 + 1 + rnd(n - w.n0);
			w.k0 = rnd(k);
			w.k1 = w.k0 + 1 + rnd(k - w.k0);
			check_slice(&w);
		}
		drop(&w);
	}
}
END_TEST

/* kv_a: 576 rows in blocks of 128, the last 64 high, split in two by rows. */
START_TEST(real_block_sizes)
{
	struct dcpk_weight w;

	make(&w, DCPK_W_FP8_BLOCK, 576, 320, 128, 128);
	w.n0 = 100;
	w.n1 = 576;
	w.k0 = 120;
	w.k1 = 320;
	check_slice(&w);
	drop(&w);
	make(&w, DCPK_W_INT4_PAIR, 64, 384, 0, 128);
	w.n1 = 64;
	w.k0 = 127;
	w.k1 = 257;
	check_slice(&w);
	drop(&w);
}
END_TEST

/* Each element and scale of what is kept, from where keep.h says it stands. */
static void
check_kept(const struct dcpk_weight *w)
{
	uint32_t n = w->n1 - w->n0, k = w->k1 - w->k0, i, j;
	uint64_t bytes = dcpk_int4_bytes(n, k), at;
	uint8_t *kept = malloc(bytes + 1);
	int code, q;
	double want;
	float scale;

	memset(kept, 0xa5, bytes + 1);
	dcpc_take_int4(kept, w, 1);
	for (i = 0; i < n; i++)
		for (j = 0; j < k; j++) {
			at = dcpk_int4_at(k, i, j);
			ck_assert_uint_lt(at / 2, bytes);
			code = kept[at / 2] >> 4 * (at % 2) & 15;
			q = code % 2 ? -(code + 1) / 2 : code / 2;
			ck_assert_int_eq(dcpk_int4_code(q), code);
			at = dcpk_int4_scale_at(k, i, j);
			ck_assert_uint_lt(at + 4, bytes);
			memcpy(&scale, kept + at, 4);
			want = expected(w, w->n0 + i, w->k0 + j);
			ck_assert_msg(q * (double)scale == want, "row %u, "
			    "column %u of %ux%u: %g, not %g", i, j, n, k, q *
			    (double)scale, want);
		}
	ck_assert_uint_eq(kept[bytes], 0xa5);
	free(kept);
}

START_TEST(int4_is_kept_as_it_is)
{
	struct dcpk_weight w;
	uint32_t t;

	for (t = 0; t < 12; t++) {
		make(&w, DCPK_W_INT4_PAIR, 64 + rnd(200), 128 * (1 + rnd(5)),
		    1, 128);
		w.tensor = DCPK_T_E_DOWN;
		w.n0 = rnd(w.n - 63);
		w.n1 = w.n0 + 64 * (1 + rnd((w.n - w.n0) / 64));
		w.k0 = 128 * rnd(w.k / 128);
		w.k1 = w.k0 + 128 * (1 + rnd((w.k - w.k0) / 128));
		ck_assert(dcpk_keeps_int4(DCPK_INT4_WEIGHTS, w.tensor, w.fmt,
		    128, w.n0, w.n1, w.k0, w.k1));
		ck_assert(!dcpk_keeps_int4(0, w.tensor, w.fmt, 128, w.n0, w.n1,
		    w.k0, w.k1));
		check_kept(&w);
		drop(&w);
	}
}
END_TEST

/* Against one thread, whose elements the test above looks at: large enough for
 * all there may be, in tiles that they do not share out evenly. */
START_TEST(int4_by_threads_is_the_same)
{
	struct dcpk_weight w;
	uint8_t *one, *many;
	uint64_t bytes;
	uint32_t t;

	make(&w, DCPK_W_INT4_PAIR, 64 * 37, 128 * 32, 1, 128);
	w.tensor = DCPK_T_E_UP;
	w.n0 = 17;
	w.n1 = w.n0 + 64 * 35;
	w.k0 = 128;
	w.k1 = 128 * 31;
	bytes = dcpk_int4_bytes(w.n1 - w.n0, w.k1 - w.k0);
	one = malloc(bytes + 1);
	many = malloc(bytes + 1);
	dcpc_take_int4(one, &w, 1);
	for (t = 0; t <= 17; t++) {
		memset(many, 0xa5, bytes + 1);
		dcpc_take_int4(many, &w, t);
		ck_assert_msg(memcmp(one, many, bytes) == 0, "%u threads", t);
		ck_assert_uint_eq(many[bytes], 0xa5);
	}
	free(one);
	free(many);
	drop(&w);
}
END_TEST

static void
check_refused(const struct dcpk_weight *w, const char *word)
{
	struct dcpk_err err = { "" };
	float dst[4] = { 1, 2, 3, 4 }, old[4] = { 1, 2, 3, 4 };

	ck_assert_int_eq(dcpc_dequant(dst, 2, w, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" lacks \"%s\"",
	    err.text, word);
	ck_assert_mem_eq(dst, old, sizeof(dst));
	ck_assert_int_eq(dcpc_dequant(dst, 2, w, NULL), -EINVAL);
}

START_TEST(parts_that_do_not_fit)
{
	static const uint8_t data[64], scale[64];
	static const int32_t g_idx[8] = { 0, 0, 0, 7, -1, 0, 0, 0 };
	const struct dcpk_weight ok = { .fmt = DCPK_W_FP8_BLOCK, .n = 2,
	    .k = 8, .n1 = 1, .k1 = 2, .data = data, .scale = scale,
	    .block_n = 2, .block_k = 4 };
	struct dcpk_weight w = ok;
	float dst[4];

	ck_assert_int_eq(dcpc_dequant(dst, 2, &w, NULL), 0);
	w.k1 = 9;
	check_refused(&w, "within 2 x 8");
	w = ok;
	w.n0 = 2;
	check_refused(&w, "rows 2..1");
	w = ok;
	w.scale = NULL;
	check_refused(&w, "no scale");
	w = ok;
	w.data = NULL;
	check_refused(&w, "no data");
	w = ok;
	w.block_k = 0;
	check_refused(&w, "block of 2 x 0");
	w = ok;
	w.g_idx = g_idx;
	check_refused(&w, "g_idx");
	w = ok;
	w.fmt = DCPK_W_FP8_CHANNEL;
	check_refused(&w, "for 2 rows");
	w = ok;
	w.fmt = DCPK_W_INT4_PAIR;
	w.k = 7;
	check_refused(&w, "odd");
	w = ok;
	w.fmt = DCPK_W_INT4_WORD;
	w.g_idx = g_idx;
	w.k0 = 3;
	w.k1 = 4;
	check_refused(&w, "column 3 is 7");
	w.k0 = 4;
	w.k1 = 5;
	check_refused(&w, "column 4 is -1");
	w = ok;
	w.fmt = (enum dcpk_wfmt)77;
	check_refused(&w, "77");
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("dequant");
	TCase *t = tcase_create("dequant");
	SRunner *sr;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, every_format_in_any_slice);
	tcase_add_test(t, real_block_sizes);
	tcase_add_test(t, int4_is_kept_as_it_is);
	tcase_add_test(t, int4_by_threads_is_the_same);
	tcase_add_test(t, parts_that_do_not_fit);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
