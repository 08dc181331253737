/* The page allocator: all or nothing, references, and a check that finds. */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "dcpd/kv/pages.h"

START_TEST(all_or_nothing)
{
	struct dcpd_pages *p;
	uint32_t ids[10], none[1] = { 77 };
	bool seen[10] = { false };

	ck_assert_int_eq(dcpd_pages_new(10, &p), 0);
	ck_assert_int_eq(dcpd_pages_get(p, 11, ids), -ENOSPC);
	ck_assert_uint_eq(dcpd_pages_n_free(p), 10);
	ck_assert_int_eq(dcpd_pages_get(p, 10, ids), 0);
	for (unsigned i = 0; i < 10; i++) {
		ck_assert_uint_lt(ids[i], 10);
		ck_assert(!seen[ids[i]]);
		seen[ids[i]] = true;
	}
	ck_assert_int_eq(dcpd_pages_get(p, 1, none), -ENOSPC);
	ck_assert_uint_eq(none[0], 77);
	ck_assert_int_eq(dcpd_pages_get(p, 0, none), 0);
	ck_assert_uint_eq(dcpd_pages_n_used(p), 10);
	dcpd_pages_put(p, ids, 10);
	ck_assert_uint_eq(dcpd_pages_n_free(p), 10);
	ck_assert_int_eq(dcpd_pages_check(p, NULL), 0);
	dcpd_pages_free(p);
}
END_TEST

START_TEST(a_page_is_free_after_its_last_reference)
{
	struct dcpd_pages *p;
	uint32_t ids[2];

	ck_assert_int_eq(dcpd_pages_new(2, &p), 0);
	ck_assert_int_eq(dcpd_pages_get(p, 2, ids), 0);
	dcpd_pages_ref(p, ids[0]);
	dcpd_pages_put(p, ids, 2);
	ck_assert_uint_eq(dcpd_pages_n_free(p), 1);
	ck_assert_uint_eq(dcpd_pages_n_used(p), 1);
	ck_assert_int_eq(dcpd_pages_check(p, NULL), 0);
	dcpd_pages_put(p, ids, 1);
	ck_assert_uint_eq(dcpd_pages_n_free(p), 2);
	dcpd_pages_free(p);
}
END_TEST

/* What comes back is what the same number of pages gets next. */
START_TEST(ids_come_back_in_order)
{
	struct dcpd_pages *p;
	uint32_t a[4], b[4];

	ck_assert_int_eq(dcpd_pages_new(8, &p), 0);
	ck_assert_int_eq(dcpd_pages_get(p, 4, a), 0);
	dcpd_pages_put(p, a, 4);
	ck_assert_int_eq(dcpd_pages_get(p, 4, b), 0);
	ck_assert_mem_eq(a, b, sizeof a);
	dcpd_pages_put(p, b, 4);
	dcpd_pages_free(p);
}
END_TEST

/* Against a plain model: an array of reference counts. */
START_TEST(random_use_agrees_with_a_plain_count)
{
	enum { N = 37 };
	struct dcpd_pages *p;
	uint32_t refs[N] = { 0 }, ids[N], used = 0;
	unsigned seed = 1;

	ck_assert_int_eq(dcpd_pages_new(N, &p), 0);
	for (unsigned i = 0; i < 20000; i++) {
		uint32_t n = (uint32_t)rand_r(&seed) % 5, id;
		int rc;

		switch (rand_r(&seed) % 3) {
		case 0:
			rc = dcpd_pages_get(p, n, ids);
			ck_assert_int_eq(rc, n <= N - used ? 0 : -ENOSPC);
			for (uint32_t k = 0; rc == 0 && k < n; k++) {
				ck_assert_uint_eq(refs[ids[k]], 0);
				refs[ids[k]] = 1;
				used++;
			}
			break;
		case 1:
			id = (uint32_t)rand_r(&seed) % N;
			if (refs[id] > 0) {
				dcpd_pages_ref(p, id);
				refs[id]++;
			}
			break;
		default:
			id = (uint32_t)rand_r(&seed) % N;
			if (refs[id] > 0) {
				dcpd_pages_put(p, &id, 1);
				used -= --refs[id] == 0;
			}
		}
		ck_assert_uint_eq(dcpd_pages_n_used(p), used);
		ck_assert_int_eq(dcpd_pages_check(p, NULL), 0);
	}
	dcpd_pages_free(p);
}
END_TEST

START_TEST(no_pages_is_refused)
{
	struct dcpd_pages *p = NULL;

	ck_assert_int_eq(dcpd_pages_new(0, &p), -EINVAL);
	ck_assert_ptr_null(p);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("pages");
	TCase *t = tcase_create("pages");
	SRunner *r;
	int failed;

	tcase_add_test(t, all_or_nothing);
	tcase_add_test(t, a_page_is_free_after_its_last_reference);
	tcase_add_test(t, ids_come_back_in_order);
	tcase_add_test(t, random_use_agrees_with_a_plain_count);
	tcase_add_test(t, no_pages_is_refused);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
