/* The choice of the prefill way: crossovers by bytes, and that it follows
 * what changes. */
#include "config.h"

#include <math.h>

#include "dcpd/parallel/topology.h"
#include "tests/unit/model_util.h"

static const struct dcpk_model glm = {
	.layers = 78, .heads = 64, .kv_lora = 512, .rope = 64, .topk = 2048,
};
static const struct dcpk_model v32 = {
	.layers = 61, .heads = 128, .kv_lora = 512, .rope = 64, .topk = 2048,
};
static const struct dcpk_topo dcp8 = { 8, 8, 1, 8, 0 };
/* Bytes are all that costs. */
static const struct dcpk_speed bytes_only = {
	1e9, INFINITY, INFINITY, 0, 0, 0
};

/* One request: T new tokens after a prefix of P. */
static void
predict(const struct dcpk_model *m, const struct dcpk_topo *t,
    enum dcpk_kv kv, const struct dcpk_speed *v, uint32_t T, uint32_t P,
    double s[3])
{
	size_t bytes = sizeof(struct dcpk_plan) + sizeof(struct dcpk_req) +
	    T * sizeof(struct dcpk_row);
	struct dcpk_plan *p = calloc(1, bytes);
	struct dcpk_row *row;
	struct dcpk_req *req;
	uint32_t i;

	ck_assert_ptr_nonnull(p);
	p->n_rows = T;
	p->n_reqs = 1;
	p->reqs_off = sizeof *p;
	p->rows_off = p->reqs_off + (uint32_t)sizeof *req;
	req = (struct dcpk_req *)(void *)((char *)p + p->reqs_off);
	row = (struct dcpk_row *)(void *)((char *)p + p->rows_off);
	req->rows = T;
	req->prefix = P;
	for (i = 0; i < T; i++)
		row[i].pos = P + i;
	dcpd_way_predict(m, t, kv, v, p, s);
	free(p);
}

static int
best(const double s[3])
{
	int w, b = 0;

	for (w = 1; w < 3; w++)
		if (s[w] < s[b])
			b = w;
	return b;
}

/* doc/design.md 3: q beats kv beyond P/T = 212 (GLM fp8), 425 (V3.2 fp8). */
START_TEST(crossover_by_bytes)
{
	double s[3];

	predict(&glm, &dcp8, DCPK_KV_FP8, &bytes_only, 100, 21200, s);
	ck_assert_double_lt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	predict(&glm, &dcp8, DCPK_KV_FP8, &bytes_only, 100, 21300, s);
	ck_assert_double_gt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	predict(&v32, &dcp8, DCPK_KV_FP8, &bytes_only, 100, 42400, s);
	ck_assert_double_lt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	predict(&v32, &dcp8, DCPK_KV_FP8, &bytes_only, 100, 42600, s);
	ck_assert_double_gt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	/* bf16 rows are larger: 64 * 2176 / 1152 = 120.9 */
	predict(&glm, &dcp8, DCPK_KV_BF16, &bytes_only, 100, 12000, s);
	ck_assert_double_lt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	predict(&glm, &dcp8, DCPK_KV_BF16, &bytes_only, 100, 12100, s);
	ck_assert_double_gt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
}
END_TEST

/* T = 1000, P = 10000, GLM fp8, D = 8, 1 GB/s: by hand. */
START_TEST(bytes_and_calls_by_hand)
{
	struct dcpk_speed v = { 1e9, INFINITY, INFINITY, 1e-3, 0, 0 };
	double s[3], q = 1000.0 * 64 * (576 + 512) * 2 * 7 / 8 / 1e9;
	double kv = 10000.0 * 656 * 7 / 8 / 1e9;

	predict(&glm, &dcp8, DCPK_KV_FP8, &v, 1000, 10000, s);
	ck_assert_double_eq_tol(s[DCPK_WAY_Q], 78 * (q + 2e-3), 1e-9);
	ck_assert_double_eq_tol(s[DCPK_WAY_KV], 78 * (kv + 1e-3), 1e-9);
	ck_assert_double_eq_tol(s[DCPK_WAY_A2A], 78 * (q / 8 + kv + 3e-3),
	    1e-9);
}
END_TEST

/* Rows see all of their first 2048 positions, then 2048. */
START_TEST(multiply_adds_by_hand)
{
	struct dcpk_speed v = { INFINITY, 1e12, 5e11, 0, 0, 0 };
	double s[3], keys = 0, flops;
	int i;

	for (i = 0; i < 3000; i++)
		keys += i < 2048 ? i + 1 : 2048;
	flops = 2 * keys * 64 * (576 + 512) / 8;
	predict(&glm, &dcp8, DCPK_KV_FP8, &v, 3000, 0, s);
	ck_assert_double_eq_tol(s[DCPK_WAY_Q], 78 * flops / 1e12, 1e-9);
	ck_assert_double_eq_tol(s[DCPK_WAY_A2A], 78 * flops / 1e12, 1e-9);
	ck_assert_double_eq_tol(s[DCPK_WAY_KV], 78 * flops / 5e11, 1e-9);
}
END_TEST

/* A tile that is mostly empty with own heads moves the choice off kv. */
START_TEST(an_empty_tile_decides)
{
	struct dcpk_speed even = { 2e11, 4e14, 4e14, 5e-6, 0, 0 };
	struct dcpk_speed waste = { 2e11, 4e14, 5e13, 5e-6, 0, 0 };
	double s[3];

	predict(&glm, &dcp8, DCPK_KV_FP8, &even, 4096, 30000, s);
	ck_assert_int_eq(best(s), DCPK_WAY_KV);
	predict(&glm, &dcp8, DCPK_KV_FP8, &waste, 4096, 30000, s);
	ck_assert_int_eq(best(s), DCPK_WAY_A2A);
	predict(&glm, &dcp8, DCPK_KV_FP8, &waste, 8, 200000, s);
	ck_assert_int_eq(best(s), DCPK_WAY_Q);
}
END_TEST

START_TEST(more_work_is_never_cheaper)
{
	struct dcpk_speed v = { 2e11, 4e14, 5e13, 5e-6, 0, 0 };
	static const uint32_t T[] = { 1, 64, 512, 4096 };
	static const uint32_t P[] = { 0, 64, 4096, 131072 };
	double s[3], more[3];
	int i, j, w;

	for (i = 0; i < 4; i++) {
		for (j = 0; j < 4; j++) {
			predict(&glm, &dcp8, DCPK_KV_FP8, &v, T[i], P[j], s);
			predict(&glm, &dcp8, DCPK_KV_FP8, &v, T[i] + 1, P[j],
			    more);
			for (w = 0; w < 3; w++) {
				ck_assert_double_gt(s[w], 0);
				ck_assert_double_gt(more[w], s[w]);
			}
			predict(&glm, &dcp8, DCPK_KV_FP8, &v, T[i],
			    P[j] + 5000, more);
			ck_assert_double_gt(more[DCPK_WAY_KV],
			    s[DCPK_WAY_KV]);
			ck_assert_double_gt(more[DCPK_WAY_A2A],
			    s[DCPK_WAY_A2A]);
			ck_assert_double_ge(more[DCPK_WAY_Q], s[DCPK_WAY_Q]);
		}
	}
}
END_TEST

START_TEST(layouts_that_leave_no_choice)
{
	static const struct dcpk_topo tp = { 8, 8, 1, 1, 0 };
	static const struct dcpk_topo cp = { 8, 1, 8, 8, 0 };
	double s[3];

	/* D = 1: nothing moves, so only bytes and calls would differ */
	predict(&glm, &tp, DCPK_KV_FP8, &bytes_only, 64, 4096, s);
	ck_assert_double_eq(s[0], 0);
	ck_assert_double_eq(s[1], 0);
	ck_assert_double_eq(s[2], 0);
	predict(&glm, &cp, DCPK_KV_FP8, &bytes_only, 64, 400000, s);
	ck_assert_int_eq(best(s), DCPK_WAY_KV);
	ck_assert(isfinite(s[DCPK_WAY_KV]));
}
END_TEST

/* 64 * 2176 / 656 = 212.29 by bytes; with speeds where predict() says so. */
START_TEST(break_even_is_where_the_two_meet)
{
	struct dcpk_speed waste = { 2e11, 4e14, 2e14, 0, 0, 0 };
	struct dcpk_speed half = { 2e11, 4e14, 2e13, 0, 0, 0 };
	struct dcpk_topo one = { 8, 8, 1, 1, 0 }, cp = { 8, 1, 8, 8, 0 };
	double s[3], x = dcpd_way_break_even(&glm, &dcp8, DCPK_KV_FP8,
	    &bytes_only);

	ck_assert_double_eq_tol(x, 64 * 2176 / 656., 1e-6);
	x = dcpd_way_break_even(&glm, &dcp8, DCPK_KV_FP8, &waste);
	ck_assert_double_gt(x, 50);
	ck_assert_double_lt(x, 212);
	predict(&glm, &dcp8, DCPK_KV_FP8, &waste, 1000,
	    (uint32_t)(1000 * x) - 2, s);
	ck_assert_double_lt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	predict(&glm, &dcp8, DCPK_KV_FP8, &waste, 1000,
	    (uint32_t)(1000 * x) + 2, s);
	ck_assert_double_gt(s[DCPK_WAY_KV], s[DCPK_WAY_Q]);
	/* q is the faster even with nothing cached. */
	ck_assert_double_eq(dcpd_way_break_even(&glm, &dcp8, DCPK_KV_FP8,
	    &half), 0);
	ck_assert_double_eq(dcpd_way_break_even(&glm, &one, DCPK_KV_FP8,
	    &bytes_only), -1);
	ck_assert_double_eq(dcpd_way_break_even(&glm, &cp, DCPK_KV_FP8,
	    &bytes_only), -1);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("way");
	TCase *t = tcase_create("way");
	SRunner *r;
	int failed;

	tcase_add_test(t, crossover_by_bytes);
	tcase_add_test(t, bytes_and_calls_by_hand);
	tcase_add_test(t, multiply_adds_by_hand);
	tcase_add_test(t, an_empty_tile_decides);
	tcase_add_test(t, more_work_is_never_cheaper);
	tcase_add_test(t, layouts_that_leave_no_choice);
	tcase_add_test(t, break_even_is_where_the_two_meet);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
