/*
 * The vector arithmetic of every instruction set this CPU has, against double
 * precision written out here, and the rule of prim.h: one element, one order
 * of summation, so the same bits from any sub-call.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/prim.h"
#define RND_SEED 88172645463325252ull
#include "tests/unit/rnd.h"

static const struct dcpc_prims *isas[3];
static int n_isas;
static float *
random_floats(size_t n)
{
	float *x = malloc(n * sizeof(*x) + 64);
	size_t i;

	ck_assert_ptr_nonnull(x);
	for (i = 0; i < n; i++)
		x[i] = rndf();
	return x;
}

static uint16_t *
random_bf16(size_t n)
{
	uint16_t *x = malloc(n * sizeof(*x) + 64);
	size_t i;

	ck_assert_ptr_nonnull(x);
	for (i = 0; i < n; i++)
		x[i] = dcpc_f32_to_bf16(rndf());
	return x;
}

static double
weight_at(const struct dcpc_mat *w, uint32_t j, uint32_t k)
{
	return w->bf16 ?
	    dcpc_bf16_to_f32(((const uint16_t *)w->data)[j * w->ld + k]) :
	    ((const float *)w->data)[j * w->ld + k];
}

static void
check_gemm(const struct dcpc_prims *p, uint32_t m, uint32_t n, uint32_t k,
    bool bf16)
{
	size_t ldx = k + rnd(5), ldy = n + rnd(5), i, j, l;
	struct dcpc_mat w = { NULL, n, k, k + rnd(5), bf16, false };
	float *x = random_floats(m * ldx), *y = random_floats(m * ldy);
	float *old = malloc(m * ldy * sizeof(*y));
	uint32_t n0 = rnd(n), n1 = n0 + 1 + rnd(n - n0);
	bool add = rnd(2);
	double sum, mag;

	w.data = bf16 ? (void *)random_bf16(n * w.ld) :
	    (void *)random_floats(n * w.ld);
	memcpy(old, y, m * ldy * sizeof(*y));
	p->gemm(y, ldy, x, ldx, m, &w, n0, n1, add);
	for (i = 0; i < m; i++)
		for (j = 0; j < ldy; j++) {
			if (j < n0 || j >= n1) {
				ck_assert_float_eq(y[i * ldy + j],
				    old[i * ldy + j]);
				continue;
			}
			sum = mag = add ? old[i * ldy + j] : 0;
			for (l = 0; l < k; l++) {
				sum += x[i * ldx + l] * weight_at(&w, j, l);
				mag += fabs(x[i * ldx + l] *
				    weight_at(&w, j, l));
			}
			ck_assert_msg(fabs(y[i * ldy + j] - sum) <=
			    1e-6 * (1 + fabs(mag)), "%s m %u n %u k %u bf16 "
			    "%d: y[%zu][%zu] %.9g, not %.9g", p->isa, m, n, k,
			    bf16, i, j, y[i * ldy + j], sum);
		}
	free((void *)(uintptr_t)w.data);
	free(old);
	free(x);
	free(y);
}

START_TEST(gemm_matches_double)
{
	const struct dcpc_prims *p = isas[_i];
	int i;

	for (i = 0; i < 300; i++)
		check_gemm(p, 1 + rnd(20), 1 + rnd(40), 1 + rnd(90), i % 2);
	check_gemm(p, 70, 100, 600, true);
	check_gemm(p, 70, 100, 600, false);
	check_gemm(p, 9, 300, 2048, true);	/* more than one block */
	check_gemm(p, 9, 300, 2048, false);
}
END_TEST

/* Any rows, any columns, any split of the call: the same bits. */
START_TEST(gemm_is_the_same_in_any_tile)
{
	const struct dcpc_prims *p = isas[_i];
	const uint32_t m = 37, n = 301;
	uint32_t k, t, m0, mm, n0, n1, i;
	float *x, *all, *part;
	struct dcpc_mat w = { .n = n };

	for (t = 0; t < 400; t++) {
		k = t % 10 == 0 ? 1 + rnd(1500) : 1 + rnd(100);
		w.k = k;
		w.ld = k;
		w.bf16 = t % 2;
		w.data = w.bf16 ? (void *)random_bf16((size_t)n * k) :
		    (void *)random_floats((size_t)n * k);
		x = random_floats((size_t)m * k);
		all = random_floats((size_t)m * n);
		part = random_floats((size_t)m * n);
		p->gemm(all, n, x, k, m, &w, 0, n, false);
		m0 = rnd(m);
		mm = 1 + rnd(m - m0);
		n0 = rnd(n);
		n1 = n0 + 1 + rnd(n - n0);
		p->gemm(part, n, x + (size_t)m0 * k, k, mm, &w, n0, n1, false);
		for (i = 0; i < mm; i++)
			ck_assert_msg(memcmp(part + i * n + n0,
			    all + (m0 + i) * n + n0, (n1 - n0) * 4) == 0,
			    "%s k %u rows %u+%u columns %u..%u bf16 %d",
			    p->isa, k, m0, mm, n0, n1, w.bf16);
		free((void *)(uintptr_t)w.data);
		free(x);
		free(all);
		free(part);
	}
}
END_TEST

/*
 * Packed weights: columns k0..k0+kk of a matrix (a strided view), against
 * double sums over the plain matrix; any part of the call gives the same bits.
 */
static void
check_packed(const struct dcpc_prims *p, uint32_t m, uint32_t tiles,
    uint32_t k, bool bf16)
{
	uint32_t n = tiles * DCPC_PACK, k0 = rnd(k), kk = 1 + rnd(k - k0);
	uint32_t n0 = rnd(tiles) * DCPC_PACK, mm, m0 = rnd(m);
	uint32_t n1 = n0 + (1 + rnd(tiles - n0 / DCPC_PACK)) * DCPC_PACK;
	size_t el = bf16 ? 2 : 4, ldx = kk + rnd(5), ldy = n + rnd(5), i, j, l;
	struct dcpc_mat plain = { NULL, n, k, k, bf16, false }, w;
	float *x = random_floats(m * ldx), *y = random_floats(m * ldy);
	float *old = malloc(m * ldy * 4), *part = malloc(m * ldy * 4);
	char *packed = malloc(n * k * el);
	bool add = rnd(2);

	plain.data = bf16 ? (void *)random_bf16((size_t)n * k) :
	    (void *)random_floats((size_t)n * k);
	dcpc_pack_mat(packed, plain.data, n, k, bf16);
	w = plain;
	w.packed = true;
	w.data = packed + k0 * DCPC_PACK * el;
	w.k = kk;
	memcpy(old, y, m * ldy * 4);
	memcpy(part, y, m * ldy * 4);
	p->gemm(y, ldy, x, ldx, m, &w, 0, n, add);
	for (i = 0; i < m; i++)
		for (j = 0; j < ldy; j++) {
			double sum = add || j >= n ? old[i * ldy + j] : 0;
			double mag = fabs(sum);

			for (l = 0; j < n && l < kk; l++) {
				double t = x[i * ldx + l] *
				    weight_at(&plain, j, k0 + l);

				sum += t;
				mag += fabs(t);
			}
			ck_assert_msg(fabs(y[i * ldy + j] - sum) <=
			    2e-6 * (1 + mag), "%s m %u n %u k %u+%u bf16 %d: "
			    "y[%zu][%zu] %.9g, not %.9g", p->isa, m, n, k0, kk,
			    bf16, i, j, y[i * ldy + j], sum);
		}
	mm = 1 + rnd(m - m0);
	p->gemm(part + m0 * ldy, ldy, x + m0 * ldx, ldx, mm, &w, n0, n1, add);
	for (i = 0; i < m; i++)
		for (j = 0; j < n; j++) {
			bool in = i >= m0 && i < m0 + mm && j >= n0 && j < n1;
			const float *want = in ? y : old;

			ck_assert_msg(memcmp(&part[i * ldy + j],
			    &want[i * ldy + j], 4) == 0,
			    "%s: row %zu column %zu in a part", p->isa, i, j);
		}
	free((void *)(uintptr_t)plain.data);
	free(packed);
	free(old);
	free(part);
	free(x);
	free(y);
}

START_TEST(packed_gemm_is_the_same_product)
{
	const struct dcpc_prims *p = isas[_i];
	int i;

	for (i = 0; i < 300; i++)
		check_packed(p, 1 + rnd(20), 1 + rnd(20), 1 + rnd(90), i % 2);
	check_packed(p, 1, 19, 700, true);
	check_packed(p, 50, 9, 700, false);
}
END_TEST

/* --- attend ------------------------------------------------------------ */

struct shape {
	uint32_t c, r;
	enum dcpk_kv fmt;
};

static const struct shape shapes[] = {
	{ 32, 16, DCPK_KV_F32 }, { 32, 16, DCPK_KV_BF16 },
	{ 64, 32, DCPK_KV_F32 }, { 512, 64, DCPK_KV_F32 },
	{ 512, 64, DCPK_KV_BF16 }, { 512, 64, DCPK_KV_FP8 },
	{ 37, 7, DCPK_KV_F32 }, { 5, 3, DCPK_KV_BF16 },
};
#define N_SHAPES (sizeof(shapes) / sizeof(*shapes))

/* The row as the format defines it, from its bytes, without unpack_row. */
static void
row_value(double *v, const struct shape *s, const uint8_t *b)
{
	uint16_t h;
	float f;
	uint32_t i;

	for (i = 0; i < s->c + s->r; i++) {
		if (s->fmt == DCPK_KV_F32) {
			memcpy(&f, b + i * 4, 4);
			v[i] = f;
		} else if (s->fmt == DCPK_KV_BF16) {
			memcpy(&h, b + i * 2, 2);
			v[i] = dcpc_bf16_to_f32(h);
		} else if (i < s->c) {
			memcpy(&f, b + s->c + i / 128 * 4, 4);
			v[i] = (double)dcpc_e4m3[b[i]] * f;
		} else {
			memcpy(&h, b + s->c + s->c / 128 * 4 +
			    (i - s->c) * 2, 2);
			v[i] = dcpc_bf16_to_f32(h);
		}
	}
}

static uint8_t *
random_rows(const struct shape *s, uint32_t n)
{
	size_t bytes = dcpk_row_bytes(s->fmt, s->c, s->r);
	uint8_t *b = malloc(n * bytes);
	float *x;
	uint32_t i;

	ck_assert_ptr_nonnull(b);
	for (i = 0; i < n; i++) {
		x = random_floats(s->c + s->r);
		dcpc_pack_row(b + i * bytes, s->fmt, x, x + s->c, s->c, s->r);
		free(x);
	}
	return b;
}

static void
check_attend(const struct dcpc_prims *p, const struct shape *s, uint32_t heads,
    uint32_t n, float scale, float sharp)
{
	const uint32_t d = s->c + s->r, pool = n + 10;
	const size_t bytes = dcpk_row_bytes(s->fmt, s->c, s->r);
	uint8_t *b = random_rows(s, pool);
	struct dcpc_rows rows = { b, s->fmt, s->c, s->r };
	float *q = random_floats((size_t)heads * d);
	float *o = random_floats((size_t)heads * s->c), lse[128];
	float *tmp = malloc(dcpc_attend_tmp(heads, s->c, s->r) * 4);
	uint32_t *list = malloc((n + 1) * 4), h, j, i;
	double *kv = malloc((size_t)(n + 1) * d * sizeof(*kv));
	double *e = malloc((n + 1) * sizeof(*e)), max, sum, out;

	for (j = 0; j < n; j++) {
		list[j] = rnd(pool);
		row_value(kv + (size_t)j * d, s, b + list[j] * bytes);
	}
	for (i = 0; i < heads * d; i++)
		q[i] *= sharp;
	p->attend(o, lse, q, heads, &rows, list, n, scale, tmp);
	for (h = 0; h < heads; h++) {
		max = -INFINITY;
		for (j = 0; j < n; j++) {
			for (e[j] = 0, i = 0; i < d; i++)
				e[j] += q[h * d + i] * kv[(size_t)j * d + i];
			e[j] *= scale;
			max = fmax(max, e[j]);
		}
		for (sum = 0, j = 0; j < n; j++)
			sum += e[j] = exp(e[j] - max);
		ck_assert_double_eq_tol(lse[h], max + log(sum),
		    1e-5 * (1 + fabs(max)));
		for (i = 0; i < s->c; i++) {
			for (out = 0, j = 0; j < n; j++)
				out += e[j] / sum * kv[(size_t)j * d + i];
			ck_assert_msg(fabs(o[h * s->c + i] - out) < 2e-5 *
			    (1 + sharp), "%s c %u r %u fmt %d heads %u n %u: "
			    "o[%u][%u] %.9g, not %.9g", p->isa, s->c, s->r,
			    s->fmt, heads, n, h, i, o[h * s->c + i], out);
		}
	}
	free(b);
	free(q);
	free(o);
	free(tmp);
	free(list);
	free(kv);
	free(e);
}

START_TEST(attend_matches_double)
{
	static const uint32_t ns[] = { 1, 2, 15, 16, 63, 64, 65, 128, 200 };
	static const uint32_t hs[] = { 1, 2, 3, 4, 7, 8, 11, 13 };
	const struct dcpc_prims *p = isas[_i];
	uint32_t i, j;

	for (i = 0; i < N_SHAPES; i++)
		for (j = 0; j < 9; j++)
			check_attend(p, shapes + i, hs[rnd(8)], ns[j], 0.25f,
			    1);
	check_attend(p, shapes + 5, 128, 300, 0.135f, 1);
	check_attend(p, shapes + 3, 64, 257, 0.135f, 30);
	check_attend(p, shapes + 0, 8, 150, 1, 100);	/* one key wins */
}
END_TEST

START_TEST(attend_of_nothing)
{
	const struct dcpc_prims *p = isas[_i];
	float o[3 * 32], lse[3], q[3 * 48] = { 0 };
	float tmp[64 * 48 + 3 * 67];
	struct dcpc_rows rows = { NULL, DCPK_KV_F32, 32, 16 };
	uint32_t i;

	memset(o, 0xff, sizeof(o));
	p->attend(o, lse, q, 3, &rows, NULL, 0, 1, tmp);
	for (i = 0; i < 3 * 32; i++)
		ck_assert_float_eq(o[i], 0);
	for (i = 0; i < 3; i++)
		ck_assert(isinf(lse[i]) && lse[i] < 0);
}
END_TEST

/* A head's result does not know the other heads of the call. */
START_TEST(attend_is_the_same_for_any_heads)
{
	const struct dcpc_prims *p = isas[_i];
	const struct shape *s = shapes + 3;
	const uint32_t H = 19, n = 150, d = s->c + s->r;
	uint8_t *b = random_rows(s, n);
	struct dcpc_rows rows = { b, s->fmt, s->c, s->r };
	float *q = random_floats(H * d), *o = random_floats(H * s->c);
	float *o1 = random_floats(H * s->c), lse[19], lse1[19];
	float *tmp = malloc(dcpc_attend_tmp(H, s->c, s->r) * 4);
	uint32_t list[150], t, h0, m;

	for (t = 0; t < n; t++)
		list[t] = n - 1 - t;
	p->attend(o, lse, q, H, &rows, list, n, 0.1f, tmp);
	for (t = 0; t < 60; t++) {
		h0 = rnd(H);
		m = 1 + rnd(H - h0);
		p->attend(o1, lse1, q + h0 * d, m, &rows, list, n, 0.1f, tmp);
		ck_assert_mem_eq(lse1, lse + h0, m * 4);
		ck_assert_mem_eq(o1, o + h0 * s->c, (size_t)m * s->c * 4);
	}
	free(b);
	free(q);
	free(o);
	free(o1);
	free(tmp);
}
END_TEST

/* --- index ------------------------------------------------------------- */

static struct dcpc_keys
random_keys(enum dcpk_kv fmt, uint32_t dim, uint32_t n)
{
	struct dcpc_keys k = { NULL, NULL, fmt, dim };
	size_t bytes = fmt == DCPK_KV_FP8 ? dim : dcpk_index_bytes(fmt, dim);
	char *data = malloc(n * bytes);
	float *scale = malloc(n * sizeof(*scale)), *x;
	uint32_t i;

	for (i = 0; i < n; i++) {
		x = random_floats(dim);
		dcpc_pack_key(data + i * bytes, scale + i, fmt, x, dim);
		free(x);
	}
	k.data = data;
	k.scale = scale;
	return k;
}

static double
key_at(const struct dcpc_keys *k, uint32_t row, uint32_t d)
{
	size_t i = (size_t)row * k->dim + d;

	return k->fmt == DCPK_KV_F32 ? ((const float *)k->data)[i] :
	    k->fmt == DCPK_KV_BF16 ?
	    dcpc_bf16_to_f32(((const uint16_t *)k->data)[i]) :
	    dcpc_e4m3[((const uint8_t *)k->data)[i]];
}

/* Keys of D shards packed in position order, as a gather does, and scored. */
static void
check_index(const struct dcpc_prims *p, enum dcpk_kv fmt, uint32_t heads,
    uint32_t dim, uint32_t n, uint32_t D)
{
	uint32_t per = (n + D - 1) / D + 3, r, j, h, d, row0 = rnd(3);
	uint32_t tiles = (n + 15) / 16;
	float *packed = calloc((size_t)tiles * 16 * dim, 4);
	float *ks = calloc(tiles * 16, 4), *s = calloc(tiles * 16, 4);
	float *q = random_floats((size_t)heads * dim);
	float *w = random_floats(heads);
	struct dcpc_keys k[8];
	double sum, sum1, dot, mag;

	for (r = 0; r < D; r++) {
		k[r] = random_keys(fmt, dim, per);
		p->index_pack(packed, ks, r, D, k + r, row0,
		    dcpk_shard_len(n, r, D));
	}
	p->index_scores(s, q, w, heads, dim, packed, ks, n);
	for (j = 0; j < n; j++) {
		for (sum = mag = 0, h = 0; h < heads; h++) {
			for (dot = 0, d = 0; d < dim; d++) {
				sum1 = q[h * dim + d] *
				    key_at(k + j % D, row0 + j / D, d);
				dot += sum1;
				mag += fabs(w[h] * sum1);
			}
			sum += w[h] * fmax(dot, 0);
		}
		r = row0 + j / D;
		if (fmt == DCPK_KV_FP8) {
			sum *= k[j % D].scale[r];
			mag *= k[j % D].scale[r];
		}
		ck_assert_msg(fabs(s[j] - sum) < 3e-6 * (1e-3 + mag),
		    "%s fmt %d heads %u dim %u n %u D %u: s[%u] %.9g, "
		    "not %.9g", p->isa, fmt, heads, dim, n, D, j, s[j], sum);
	}
	for (r = 0; r < D; r++) {
		free((void *)(uintptr_t)k[r].data);
		free((void *)(uintptr_t)k[r].scale);
	}
	free(packed);
	free(ks);
	free(s);
	free(q);
	free(w);
}

START_TEST(index_scores_match_double)
{
	const struct dcpc_prims *p = isas[_i];
	uint32_t t;

	for (t = 0; t < 60; t++)
		check_index(p, (enum dcpk_kv)(t % 3), 1 + rnd(14),
		    1 + rnd(70), 1 + rnd(150), 1u << rnd(4));
	for (t = 0; t < 3; t++) {
		check_index(p, (enum dcpk_kv)t, 64, 128, 200, 1);
		check_index(p, (enum dcpk_kv)t, 32, 128, 100, 8);
		check_index(p, (enum dcpk_kv)t, 12, 32, 77, 4);
	}
}
END_TEST

/* A key's score does not know its place, its neighbours or their number. */
START_TEST(index_scores_are_the_same_in_any_place)
{
	const struct dcpc_prims *p = isas[_i];
	const uint32_t n = 203, dim = 48, heads = 13;
	struct dcpc_keys k = random_keys(DCPK_KV_FP8, dim, n);
	float *a = calloc(dim * 208, 4), *b = calloc(dim * 1024, 4);
	float ka[208], kb[1024], sa[208], sb[1024];
	float *q = random_floats(heads * dim), *w = random_floats(heads);
	uint32_t t, j, r0, m, at, step, span;

	memset(kb, 0, sizeof(kb));
	p->index_pack(a, ka, 0, 1, &k, 0, n);
	p->index_scores(sa, q, w, heads, dim, a, ka, n);
	for (t = 0; t < 200; t++) {
		r0 = rnd(n);
		m = 1 + rnd(n - r0);
		step = 1 + rnd(4);
		at = rnd(100);
		span = at + (m - 1) * step + 1;
		p->index_pack(b, kb, at, step, &k, r0, m);
		p->index_scores(sb, q, w, heads, dim, b, kb, span);
		for (j = 0; j < m; j++)
			ck_assert_mem_eq(sb + at + j * step, sa + r0 + j, 4);
	}
	free((void *)(uintptr_t)k.data);
	free((void *)(uintptr_t)k.scale);
	free(a);
	free(b);
	free(q);
	free(w);
}
END_TEST

/* --- the small ones ---------------------------------------------------- */

START_TEST(small_ones_match_double)
{
	const struct dcpc_prims *p = isas[_i];
	uint32_t n, i;
	float *x, *w, *y, eps = 1e-5f;
	double ss, want;

	for (n = 1; n < 300; n = n < 70 ? n + 1 : n + 37) {
		x = random_floats(n);
		w = random_floats(n);
		y = random_floats(n + 1);
		y[n] = 7;
		p->rmsnorm(y, x, w, n, eps);
		for (ss = 0, i = 0; i < n; i++)
			ss += (double)x[i] * x[i];
		for (i = 0; i < n; i++) {
			want = x[i] / sqrt(ss / n + eps) * w[i];
			ck_assert_double_eq_tol(y[i], want, 1e-6);
		}
		for (i = 0; i < n; i++)
			x[i] *= 20;
		p->silu_mul(y, x, w, n);
		for (i = 0; i < n; i++) {
			want = x[i] / (1 + exp(-(double)x[i])) * w[i];
			ck_assert_double_eq_tol(y[i], want,
			    4e-7 * fabs(want) + 1e-12);
		}
		memcpy(y, w, n * sizeof(*y));
		p->axpy(y, 0.3f, x, n);
		for (i = 0; i < n; i++)
			ck_assert_double_eq_tol(y[i], w[i] + 0.3f *
			    (double)x[i], 2e-6);
		memcpy(y, x, n * sizeof(*y));
		p->silu_mul(y, y, w, n);	/* in place */
		for (i = 0; i < n; i++) {
			want = x[i] / (1 + exp(-(double)x[i])) * w[i];
			ck_assert_double_eq_tol(y[i], want,
			    4e-7 * fabs(want) + 1e-12);
		}
		ck_assert_float_eq(y[n], 7);	/* nothing past the end */
		free(x);
		free(w);
		free(y);
	}
}
END_TEST

/* silu carries the vector exp over its whole range: x / (1 + e^-x). */
START_TEST(exp_is_within_2e7)
{
	const struct dcpc_prims *p = isas[_i];
	float x[256], one[256], y[256];
	double t = 0.001, want, worst = 0, err, sig;
	uint32_t i;

	for (i = 0; i < 256; i++)
		one[i] = 1;
	while (t < 80) {
		for (i = 0; i < 256; i++, t *= 1.0003)
			x[i] = (float)-t;
		p->silu_mul(y, x, one, 256);
		for (i = 0; i < 256; i++) {
			/* far below 0 silu is x e^x: exp's error, no more */
			sig = 1 / (1 + exp(-(double)x[i]));
			want = x[i] * sig;
			err = fabs(y[i] / want - 1);
			worst = err > worst ? err : worst;
		}
	}
	ck_assert_msg(worst < 3.5e-7, "%s: %g", p->isa, worst);
	x[0] = -1e30f;
	x[1] = 1e30f;
	x[2] = NAN;
	x[3] = 0;
	p->silu_mul(y, x, one, 4);
	ck_assert(fabsf(y[0]) < 1e-6f);
	ck_assert_float_eq(y[1], 1e30f);
	ck_assert(isnan(y[2]));
	ck_assert_float_eq(y[3], 0);
}
END_TEST

START_TEST(unpack_row_gives_the_bytes_values)
{
	const struct dcpc_prims *p = isas[_i];
	const struct shape *s;
	uint8_t *b;
	float out[600];
	double v[600];
	uint32_t i, j, t;

	for (i = 0; i < N_SHAPES; i++) {
		s = shapes + i;
		for (t = 0; t < 20; t++) {
			b = random_rows(s, 1);
			for (j = 0; s->fmt == DCPK_KV_FP8 && t == 0 &&
			    j < 256; j++)	/* all codes */
				b[j] = (uint8_t)j;
			row_value(v, s, b);
			out[s->c + s->r] = 42;
			p->unpack_row(out, s->fmt, b, s->c, s->r);
			for (j = 0; j < s->c + s->r; j++)
				ck_assert(out[j] == (float)v[j] ||
				    (isnan(out[j]) && isnan(v[j])));
			ck_assert_float_eq(out[s->c + s->r], 42);
			free(b);
		}
	}
}
END_TEST

/* Every fp8 code through the packing of eight keys and of one. */
START_TEST(packed_keys_are_the_codes)
{
	const struct dcpc_prims *p = isas[_i];
	uint8_t code[8 * 256];
	float scale[8], ks[16], packed[16 * 256], want, got;
	struct dcpc_keys k = { code, scale, DCPK_KV_FP8, 256 };
	uint32_t at, n, i, d;

	for (i = 0; i < 8; i++) {
		scale[i] = (float)i;
		for (d = 0; d < 256; d++)
			code[i * 256 + d] = (uint8_t)(d * 3 + i);
	}
	for (at = 0; at < 9; at++)
		for (n = 1; n <= 8 && at + n <= 16; n++) {
			for (i = 0; i < 16 * 256; i++)
				packed[i] = -7;
			p->index_pack(packed, ks, at, 1, &k, 8 - n, n);
			for (i = 0; i < 16; i++)
				for (d = 0; d < 256; d++) {
					want = i < at || i >= at + n ? -7 :
					    dcpc_e4m3[code[(8 - n + i - at) *
					    256 + d]];
					got = packed[d * 16 + i];
					ck_assert(got == want ||
					    (isnan(got) && isnan(want)));
				}
			for (i = 0; i < n; i++)
				ck_assert_float_eq(ks[at + i],
				    (float)(8 - n + i));
		}
}
END_TEST

START_TEST(isa_can_be_chosen)
{
	ck_assert_int_eq(setenv("DCPD_CPU_ISA", "portable", 1), 0);
	ck_assert_ptr_eq(dcpc_prims_pick(), &dcpc_portable);
	ck_assert_int_eq(setenv("DCPD_CPU_ISA", "mmx", 1), 0);
	ck_assert_ptr_null(dcpc_prims_pick());
	ck_assert_int_eq(unsetenv("DCPD_CPU_ISA"), 0);
	ck_assert_ptr_eq(dcpc_prims_pick(), isas[n_isas - 1]);
}
END_TEST

int
main(void)
{
	static const char *const names[] = { "portable", "avx2", "avx512" };
	Suite *s = suite_create("prim");
	TCase *t = tcase_create("isa");
	SRunner *sr;
	int i, failed;

	for (i = 0; i < 3; i++) {
		setenv("DCPD_CPU_ISA", names[i], 1);
		if (dcpc_prims_pick() != NULL)
			isas[n_isas++] = dcpc_prims_pick();
	}
	unsetenv("DCPD_CPU_ISA");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, gemm_matches_double, 0, n_isas);
	tcase_add_loop_test(t, gemm_is_the_same_in_any_tile, 0, n_isas);
	tcase_add_loop_test(t, packed_gemm_is_the_same_product, 0, n_isas);
	tcase_add_loop_test(t, attend_matches_double, 0, n_isas);
	tcase_add_loop_test(t, attend_of_nothing, 0, n_isas);
	tcase_add_loop_test(t, attend_is_the_same_for_any_heads, 0, n_isas);
	tcase_add_loop_test(t, index_scores_match_double, 0, n_isas);
	tcase_add_loop_test(t, index_scores_are_the_same_in_any_place, 0,
	    n_isas);
	tcase_add_loop_test(t, small_ones_match_double, 0, n_isas);
	tcase_add_loop_test(t, exp_is_within_2e7, 0, n_isas);
	tcase_add_loop_test(t, unpack_row_gives_the_bytes_values, 0, n_isas);
	tcase_add_loop_test(t, packed_keys_are_the_codes, 0, n_isas);
	tcase_add_test(t, isa_can_be_chosen);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
