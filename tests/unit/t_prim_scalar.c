/*
 * The scalar pieces: number formats against tables made here from their
 * definition, quantisation, RoPE, Hadamard, layer norm, the LSE merge with
 * the numbers it was specified by, the router against a plain reading of it.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/prim.h"
#define RND_SEED 424242
#include "tests/unit/rnd.h"

static float
from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

/* --- e4m3, bf16 -------------------------------------------------------- */

/* OCP E4M3: sign, 4 exponent bits of bias 7, 3 of mantissa; no infinity. */
static double
e4m3_value(int code)
{
	int e = code >> 3 & 15, m = code & 7;
	double v = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);

	if (e == 15 && m == 7)
		return NAN;
	return code & 0x80 ? -v : v;
}

START_TEST(e4m3_table_is_the_format)
{
	int i;

	for (i = 0; i < 256; i++) {
		if (isnan(e4m3_value(i))) {
			ck_assert_msg(isnan(dcpc_e4m3[i]), "code %d", i);
			continue;
		}
		ck_assert_msg(dcpc_e4m3[i] == e4m3_value(i) &&
		    !signbit(dcpc_e4m3[i]) == !(i >> 7), "code %d: %g", i,
		    dcpc_e4m3[i]);
		ck_assert_int_eq(dcpc_f32_to_e4m3(dcpc_e4m3[i]), i);
	}
	ck_assert_float_eq(dcpc_e4m3[0x7e], 448);
}
END_TEST

/* Nearest by search through the table, ties to the even code. */
static int
e4m3_nearest(double x)
{
	double d, best = INFINITY;
	int i, code = 0;

	for (i = 0; i < 0x7f; i++) {
		d = fabs(fabs(x) - e4m3_value(i));
		if (d < best || (d == best && i % 2 == 0)) {
			best = d;
			code = i;
		}
	}
	return signbit(x) ? code | 0x80 : code;
}

START_TEST(e4m3_rounds_to_nearest_even)
{
	uint32_t u, t;
	int i;
	float x;

	/* every value, every midpoint, and their neighbours in f32 */
	for (i = 0; i < 0x7e; i++) {
		double mid = (e4m3_value(i) + e4m3_value(i + 1)) / 2;
		float near[3] = { nextafterf((float)mid, 0), (float)mid,
		    nextafterf((float)mid, 1e9f) };

		for (t = 0; t < 3; t++) {
			ck_assert_int_eq(dcpc_f32_to_e4m3(near[t]),
			    e4m3_nearest(near[t]));
			ck_assert_int_eq(dcpc_f32_to_e4m3(-near[t]),
			    e4m3_nearest(-near[t]));
		}
	}
	for (u = 0; u < 0x7f800000; u += 98689) {	/* all magnitudes */
		x = from_bits(u);
		ck_assert_msg(dcpc_f32_to_e4m3(x) == e4m3_nearest(x),
		    "%.9g: %d, not %d", x, dcpc_f32_to_e4m3(x),
		    e4m3_nearest(x));
		ck_assert_int_eq(dcpc_f32_to_e4m3(-x), e4m3_nearest(-x));
	}
	ck_assert_int_eq(dcpc_f32_to_e4m3(1e30f), 0x7e);
	ck_assert_int_eq(dcpc_f32_to_e4m3(-INFINITY), 0xfe);
	ck_assert_int_eq(dcpc_f32_to_e4m3(NAN) & 0x7f, 0x7f);
}
END_TEST

START_TEST(bf16_is_the_upper_half_rounded)
{
	uint32_t i, lo;
	uint16_t b, want;
	float x;

	for (i = 0; i < 65536; i++) {
		x = dcpc_bf16_to_f32((uint16_t)i);
		if ((i & 0x7f80) == 0x7f80 && (i & 0x7f)) {
			ck_assert(isnan(x));
			ck_assert(isnan(dcpc_bf16_to_f32(
			    dcpc_f32_to_bf16(x))));
			continue;
		}
		ck_assert_float_eq(x, from_bits(i << 16));
		ck_assert_uint_eq(dcpc_f32_to_bf16(x), i);
		if ((i & 0x7f80) == 0x7f80)
			continue;
		/* halfway goes to even, past it goes up */
		for (lo = 0x7fff; lo <= 0x8001; lo++) {
			want = (uint16_t)(lo > 0x8000 ||
			    (lo == 0x8000 && i % 2) ? i + 1 : i);
			b = dcpc_f32_to_bf16(from_bits(i << 16 | lo));
			ck_assert_uint_eq(b, want);
		}
	}
	/* a NaN whose mantissa lies in the lower half alone */
	ck_assert(isnan(dcpc_bf16_to_f32(dcpc_f32_to_bf16(
	    from_bits(0x7f800001)))));
}
END_TEST

/* --- rows and keys ----------------------------------------------------- */

START_TEST(fp8_row_has_656_bytes_as_specified)
{
	float ckv[512], kpe[64], scale, max;
	uint8_t row[656 + 8];
	uint16_t b;
	uint32_t i, t;

	for (i = 0; i < 512; i++)
		ckv[i] = rndf() * (float)(1 + i / 128 * 10);
	memset(ckv + 256, 0, 128 * sizeof(float));	/* one tile of zeros */
	for (i = 0; i < 64; i++)
		kpe[i] = rndf();
	memset(row, 0xaa, sizeof(row));
	ck_assert_uint_eq(dcpk_row_bytes(DCPK_KV_FP8, 512, 64), 656);
	dcpc_pack_row(row, DCPK_KV_FP8, ckv, kpe, 512, 64);
	for (t = 0; t < 4; t++) {
		for (max = 0, i = 0; i < 128; i++)
			max = fmaxf(max, fabsf(ckv[t * 128 + i]));
		memcpy(&scale, row + 512 + t * 4, 4);
		ck_assert_float_eq(scale, max / 448);
		for (i = t * 128; i < (t + 1) * 128; i++)
			ck_assert_uint_eq(row[i], max == 0 ? 0 :
			    e4m3_nearest(ckv[i] / scale));
	}
	for (i = 0; i < 64; i++) {
		memcpy(&b, row + 528 + i * 2, 2);
		ck_assert_uint_eq(b, dcpc_f32_to_bf16(kpe[i]));
	}
	for (i = 656; i < sizeof(row); i++)
		ck_assert_uint_eq(row[i], 0xaa);
}
END_TEST

START_TEST(bf16_and_f32_rows)
{
	float ckv[37], kpe[7], got[44];
	uint16_t row[44];
	uint32_t i;

	for (i = 0; i < 37; i++)
		ckv[i] = rndf();
	for (i = 0; i < 7; i++)
		kpe[i] = rndf();
	dcpc_pack_row(row, DCPK_KV_BF16, ckv, kpe, 37, 7);
	for (i = 0; i < 44; i++)
		ck_assert_uint_eq(row[i], dcpc_f32_to_bf16(i < 37 ? ckv[i] :
		    kpe[i - 37]));
	dcpc_pack_row(got, DCPK_KV_F32, ckv, kpe, 37, 7);
	for (i = 0; i < 44; i++)
		ck_assert_float_eq(got[i], i < 37 ? ckv[i] : kpe[i - 37]);
}
END_TEST

START_TEST(keys_in_each_format)
{
	float k[128], f[128], scale, max = 0;
	uint8_t e[128];
	uint16_t b[128];
	uint32_t i;

	for (i = 0; i < 128; i++) {
		k[i] = rndf() * 3;
		max = fmaxf(max, fabsf(k[i]));
	}
	dcpc_pack_key(e, &scale, DCPK_KV_FP8, k, 128);
	ck_assert_float_eq(scale, max / 448);
	for (i = 0; i < 128; i++)
		ck_assert_uint_eq(e[i], e4m3_nearest(k[i] / scale));
	dcpc_pack_key(b, &scale, DCPK_KV_BF16, k, 128);
	ck_assert_float_eq(scale, 1);
	dcpc_pack_key(f, &scale, DCPK_KV_F32, k, 128);
	ck_assert_float_eq(scale, 1);
	ck_assert_mem_eq(f, k, sizeof(k));
	for (i = 0; i < 128; i++)
		ck_assert_uint_eq(b[i], dcpc_f32_to_bf16(k[i]));
	memset(k, 0, sizeof(k));
	dcpc_pack_key(e, &scale, DCPK_KV_FP8, k, 128);
	ck_assert_float_eq(scale, 0);
	for (i = 0; i < 128; i++)
		ck_assert_uint_eq(e[i], 0);
}
END_TEST

START_TEST(activations_are_quantised_per_block)
{
	float x[300], y[300], max, scale;
	uint32_t t, i, b, n;
	bool ue8m0;

	for (t = 0; t < 40; t++) {
		ue8m0 = t % 2;
		for (i = 0; i < 300; i++)
			y[i] = x[i] = rndf() * ldexpf(1, (int)(t / 2) - 10);
		if (t >= 38)
			memset(y + 128, 0, 128 * sizeof(float));
		memcpy(x, y, sizeof(x));
		dcpc_quant_act(y, 300, 128, ue8m0);
		for (b = 0; b < 300; b += 128) {
			n = 300 - b < 128 ? 300 - b : 128;
			for (max = 0, i = b; i < b + n; i++)
				max = fmaxf(max, fabsf(x[i]));
			if (ue8m0)
				scale = exp2f(ceilf(log2f(
				    fmaxf(max, 1e-4f) / 448)));
			else
				scale = max / 448;
			for (i = b; i < b + n; i++)
				ck_assert_float_eq(y[i], max == 0 ? 0 :
				    (float)e4m3_value(e4m3_nearest(
				    x[i] / scale)) * scale);
		}
	}
	/* amax of 448 * 2^e needs exactly 2^e, not the next power */
	for (i = 0; i < 4; i++)
		x[i] = i == 0 ? 448 * 0.25f : 0.25f * 0x1p-9f * (float)i;
	memcpy(y, x, 16);
	dcpc_quant_act(x, 4, 4, true);
	ck_assert_mem_eq(x, y, 16);
	x[0] = 3;
	x[1] = -1000;
	dcpc_quant_act_static(x, 2, 2);
	ck_assert_float_eq(x[0], 3);
	ck_assert_float_eq(x[1], -896);
	x[0] = 1;
	x[1] = -0.37f;
	ck_assert_float_eq(dcpc_quant_e4m3(x, 2), 1.0f / 448);
	ck_assert_float_eq(x[0], 448);
	ck_assert_float_eq(x[1], (float)e4m3_value(e4m3_nearest(-0.37f *
	    448)));
	x[0] = x[1] = 0;
	ck_assert_float_eq(dcpc_quant_e4m3(x, 2), 0);
	ck_assert_float_eq(x[0], 0);
}
END_TEST

/* --- rotations and norms ----------------------------------------------- */

START_TEST(rope_rotates_its_pairs)
{
	float x[64], y[64], c[32], s[32], inv[32];
	double a;
	uint32_t i, pos = 123457;

	for (i = 0; i < 32; i++)
		inv[i] = powf(8e6f, -(float)i / 32);
	dcpc_rope_table(c, s, pos, inv, 64, 1.5f);
	for (i = 0; i < 32; i++) {
		a = (float)pos * inv[i];	/* rounded to f32 */
		ck_assert_double_eq_tol(c[i], cos((float)a) * 1.5, 3e-7);
		ck_assert_double_eq_tol(s[i], sin((float)a) * 1.5, 3e-7);
	}
	for (i = 0; i < 64; i++)
		x[i] = rndf();
	memcpy(y, x, sizeof(y));
	dcpc_rope(y, c, s, 64, true);
	for (i = 0; i < 32; i++) {
		ck_assert_double_eq_tol(y[i], (double)x[2 * i] * c[i] -
		    (double)x[2 * i + 1] * s[i], 1e-6);
		ck_assert_double_eq_tol(y[32 + i], (double)x[2 * i + 1] *
		    c[i] + (double)x[2 * i] * s[i], 1e-6);
	}
	memcpy(y, x, sizeof(y));
	dcpc_rope(y, c, s, 64, false);
	for (i = 0; i < 32; i++) {
		ck_assert_double_eq_tol(y[i], (double)x[i] * c[i] -
		    (double)x[i + 32] * s[i], 1e-6);
		ck_assert_double_eq_tol(y[32 + i], (double)x[i + 32] * c[i] +
		    (double)x[i] * s[i], 1e-6);
	}
}
END_TEST

START_TEST(hadamard_is_the_matrix)
{
	float x[128], y[128];
	double sum;
	uint32_t n, i, j;

	for (n = 1; n <= 128; n *= 2) {
		for (i = 0; i < n; i++)
			y[i] = x[i] = rndf();
		dcpc_hadamard(y, n);
		for (i = 0; i < n; i++) {
			for (sum = 0, j = 0; j < n; j++)
				sum += __builtin_parity(i & j) ? -x[j] : x[j];
			ck_assert_double_eq_tol(y[i], sum / sqrt(n), 2e-6);
		}
	}
}
END_TEST

START_TEST(layernorm_matches_double)
{
	float x[100], w[100], b[100], y[100];
	double mean = 0, var = 0;
	uint32_t i;

	for (i = 0; i < 100; i++) {
		x[i] = rndf() + 5;
		w[i] = rndf();
		b[i] = rndf();
		mean += x[i] / 100.0;
	}
	for (i = 0; i < 100; i++)
		var += (x[i] - mean) * (x[i] - mean) / 100;
	dcpc_layernorm(y, x, w, b, 100, 1e-6f);
	for (i = 0; i < 100; i++)
		ck_assert_double_eq_tol(y[i], (x[i] - mean) /
		    sqrt(var + 1e-6) * w[i] + b[i], 2e-6);
}
END_TEST

/* --- merge ------------------------------------------------------------- */

static void
merge(float *o, float *lse, uint32_t n, const float *po, const float *plse)
{
	const float *ps[8], *ls[8];
	uint32_t i;

	for (i = 0; i < n; i++) {
		ps[i] = po + i;
		ls[i] = plse + i;
	}
	dcpc_merge(o, lse, ps, ls, n, 1, 1);
}

START_TEST(merge_has_the_specified_numbers)
{
	const float inf = INFINITY;
	float o, lse;

	merge(&o, &lse, 3, (float[]){ 1, 2, 3 }, (float[]){ 0, 1, 2 });
	ck_assert_float_eq_tol(o, 2.57521f, 1e-5f);
	ck_assert_float_eq_tol(lse, 2.407606f, 1e-6f);
	merge(&o, &lse, 3, (float[]){ NAN, NAN, NAN },
	    (float[]){ inf, -inf, NAN });
	ck_assert_float_eq(o, 0);
	ck_assert(isinf(lse) && lse < 0);
	merge(&o, &lse, 2, (float[]){ 3, NAN }, (float[]){ 1, inf });
	ck_assert_float_eq(o, 3);
	ck_assert_float_eq(lse, 1);
	merge(&o, &lse, 2, (float[]){ 2, 6 }, (float[]){ logf(2), logf(6) });
	ck_assert_float_eq_tol(o, 5, 1e-6f);
	ck_assert_float_eq_tol(lse, logf(8), 1e-6f);
	/* all shards empty: no NaN anywhere */
	merge(&o, &lse, 2, (float[]){ 0, 0 }, (float[]){ -inf, -inf });
	ck_assert_float_eq(o, 0);
	ck_assert(isinf(lse) && lse < 0);
	/* a weight that underflows to zero must not meet a NaN */
	merge(&o, &lse, 2, (float[]){ 7, NAN }, (float[]){ 0, -1000 });
	ck_assert_float_eq(o, 7);
	ck_assert_float_eq(lse, 0);
}
END_TEST

START_TEST(merge_of_shards_is_the_whole)
{
	enum { H = 5, C = 11, P = 4 };
	float po[P][H * C], plse[P][H], o[H * C], lse[H];
	const float *ps[P], *ls[P];
	double num, den;
	uint32_t p, h, i;

	for (p = 0; p < P; p++) {
		ps[p] = po[p];
		ls[p] = plse[p];
		for (i = 0; i < H * C; i++)
			po[p][i] = rndf();
		for (h = 0; h < H; h++)
			plse[p][h] = rndf() * 20;
	}
	dcpc_merge(o, lse, ps, ls, P, H, C);
	for (h = 0; h < H; h++) {
		for (den = 0, p = 0; p < P; p++)
			den += exp(plse[p][h]);
		ck_assert_double_eq_tol(lse[h], log(den), 1e-5);
		for (i = 0; i < C; i++) {
			for (num = 0, p = 0; p < P; p++)
				num += exp(plse[p][h]) * po[p][h * C + i];
			ck_assert_double_eq_tol(o[h * C + i], num / den, 1e-6);
		}
	}
}
END_TEST

/* --- router ------------------------------------------------------------ */

/* Experts in the order of choice, by counting who is better. */
static void
route_plain(uint32_t *ids, const double *ch, uint32_t E, uint32_t K)
{
	uint32_t e, f, better;

	for (e = 0; e < E; e++) {
		for (better = 0, f = 0; f < E; f++)
			better += ch[f] > ch[e] || (ch[f] == ch[e] && f < e);
		if (better < K)
			ids[better] = e;
	}
}

START_TEST(router_follows_its_definition)
{
	struct dcpk_model m = { .routed_scale = 2.5f };
	float logits[64], bias[64], tmp[128], w[8];
	double s[64], ch[64], gs[8], best, next, sum;
	uint32_t ids[8], want[8], t, e, g, f, n, better;

	for (t = 0; t < 500; t++) {
		m.groups = 1u << rnd(4);
		m.groups_kept = 1 + rnd(m.groups);
		m.experts = m.groups * (1 + rnd(8));
		n = m.experts / m.groups;
		m.experts_tok = 1 + rnd(m.groups_kept * n < 8 ?
		    m.groups_kept * n : 8);
		m.norm_topk = t % 3 != 0;
		for (e = 0; e < m.experts; e++) {
			logits[e] = t % 4 ? rndf() * 4 : (float)rnd(3);
			bias[e] = t % 4 ? rndf() * 0.3f : 0;
			/* as the router: f32 scores, so that ties are ties */
			s[e] = 1 / (1 + expf(-logits[e]));
			ch[e] = (float)s[e] + bias[e];
		}
		for (g = 0; g < m.groups; g++) {
			best = next = -INFINITY;
			for (e = g * n; e < (g + 1) * n; e++) {
				if (ch[e] > best) {
					next = best;
					best = ch[e];
				} else {
					next = fmax(next, ch[e]);
				}
			}
			gs[g] = n == 1 ? best : (float)best + (float)next;
		}
		for (g = 0; g < m.groups; g++) {
			for (better = 0, f = 0; f < m.groups; f++)
				better += gs[f] > gs[g] ||
				    (gs[f] == gs[g] && f < g);
			for (e = g * n; better >= m.groups_kept &&
			    e < (g + 1) * n; e++)
				ch[e] = -INFINITY;
		}
		route_plain(want, ch, m.experts, m.experts_tok);
		dcpc_route(ids, w, logits, bias, &m, tmp);
		ck_assert_mem_eq(ids, want, m.experts_tok * 4);
		for (sum = 0, e = 0; e < m.experts_tok; e++)
			sum += s[ids[e]];
		for (e = 0; e < m.experts_tok; e++)
			ck_assert_double_eq_tol(w[e], 2.5 * s[ids[e]] /
			    (m.norm_topk ? sum : 1), 1e-5);
	}
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("prim_scalar");
	TCase *t = tcase_create("scalar");
	SRunner *sr;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, e4m3_table_is_the_format);
	tcase_add_test(t, e4m3_rounds_to_nearest_even);
	tcase_add_test(t, bf16_is_the_upper_half_rounded);
	tcase_add_test(t, fp8_row_has_656_bytes_as_specified);
	tcase_add_test(t, bf16_and_f32_rows);
	tcase_add_test(t, keys_in_each_format);
	tcase_add_test(t, activations_are_quantised_per_block);
	tcase_add_test(t, rope_rotates_its_pairs);
	tcase_add_test(t, hadamard_is_the_matrix);
	tcase_add_test(t, layernorm_matches_double);
	tcase_add_test(t, merge_has_the_specified_numbers);
	tcase_add_test(t, merge_of_shards_is_the_whole);
	tcase_add_test(t, router_follows_its_definition);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
