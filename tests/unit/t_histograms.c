/* Histograms: what falls where, the sum, and the form that /metrics reads. */
#include "config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/histograms.h"

/* Of the histogram `name`: up to its bound number i; the last is all. */
static json_int_t
up_to(const json_t *list, const char *name, size_t i)
{
	const json_t *m;
	size_t k;

	json_array_foreach(list, k, m)
		if (strcmp(json_string_value(json_object_get(m, "name")),
		    name) == 0)
			return json_integer_value(json_array_get(
			    json_object_get(m, "buckets"), i));
	ck_abort_msg("no histogram %s", name);
}

START_TEST(an_observation_is_below_every_bound_that_it_is_not_above)
{
	json_t *list = json_array(), *m;
	size_t n;

	dcpd_observe(DCPD_HIST_itl, 0, 1);
	dcpd_observe(DCPD_HIST_itl, 1000000, 2);	/* the first bound */
	dcpd_observe(DCPD_HIST_itl, 1000001, 4);
	dcpd_observe(DCPD_HIST_itl, 600000000000, 8);	/* above the last */
	dcpd_observe(DCPD_HIST_e2e, 3000000000, 1);
	dcpd_histograms_json(list);
	ck_assert_uint_eq(json_array_size(list), DCPD_HIST_N);
	json_array_foreach(list, n, m) {
		const json_t *b = json_object_get(m, "bounds");
		size_t bounds = json_array_size(b);

		ck_assert_uint_ge(bounds, 10);
		ck_assert_uint_eq(json_array_size(json_object_get(m,
		    "buckets")), bounds + 1);
		for (size_t i = 1; i < bounds; i++)
			ck_assert_double_gt(json_number_value(json_array_get(b,
			    i)), json_number_value(json_array_get(b, i - 1)));
	}
	m = json_array_get(list, DCPD_HIST_itl);
	n = json_array_size(json_object_get(m, "bounds"));
	ck_assert_double_eq_tol(json_number_value(json_array_get(
	    json_object_get(m, "bounds"), 0)), .001, 1e-12);
	ck_assert_int_eq(up_to(list, "itl", 0), 3);
	ck_assert_int_eq(up_to(list, "itl", 1), 7);
	ck_assert_int_eq(up_to(list, "itl", n - 1), 7);
	ck_assert_int_eq(up_to(list, "itl", n), 15);
	ck_assert_double_eq_tol(json_number_value(json_object_get(m, "sum")),
	    .002 + .004000004 + 4800, 1e-6);
	ck_assert_int_eq(up_to(list, "ttft", n), 0);
	ck_assert_int_eq(up_to(list, "e2e", n), 1);
	json_decref(list);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("histograms");
	TCase *t = tcase_create("histograms");
	SRunner *r;
	int failed;

	tcase_add_test(t,
	    an_observation_is_below_every_bound_that_it_is_not_above);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
