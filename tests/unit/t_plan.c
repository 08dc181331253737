/* Plans: what the builder makes is valid, and the check finds what is not. */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/sched/plan.h"

static const struct dcpd_plan_limits limits = {
	.vocab = 100, .max_ctx = 1000, .pages = 50, .max_rows = 300,
	.max_reqs = 4,
};
static uint32_t table[2][8] = {
	{ 3, 4, 5, 6 }, { 49, 0, 1, 2, 9 },
};
static uint32_t ids[300];

/* Two requests: rows 100..199 of one, row 130 of another; three samples. */
static struct dcpk_plan *
build(struct dcpd_planb *b)
{
	struct dcpk_sample *s;
	struct dcpk_adjust *a;
	struct dcpk_plan *p;

	for (uint32_t i = 0; i < 300; i++)
		ids[i] = i % 100;
	ck_assert_int_eq(dcpd_planb_req(b, table[0], 100, ids + 100, 100), 0);
	s = dcpd_planb_sample(b, 98, 0, NULL);
	ck_assert_ptr_nonnull(s);
	s->flags = DCPK_S_SCORE;
	s->given = 99;
	s = dcpd_planb_sample(b, 99, 2, &a);
	ck_assert_ptr_nonnull(s);
	s->temperature = s->top_p = s->repetition = 1;
	a[0] = (struct dcpk_adjust){ .token = 7, .bias = -INFINITY };
	a[1] = (struct dcpk_adjust){ .token = 8, .seen = 1 };
	ck_assert_int_eq(dcpd_planb_req(b, table[1], 130, ids + 130, 1), 0);
	s = dcpd_planb_sample(b, 0, 0, NULL);
	ck_assert_ptr_nonnull(s);
	s->flags = DCPK_S_GREEDY;
	p = dcpd_planb_finish(b, DCPK_PREFILL, 17);
	ck_assert_ptr_nonnull(p);
	return p;
}

START_TEST(a_built_plan_says_what_was_asked)
{
	struct dcpd_planb b = { 0 };
	struct dcpd_err err = { 0 };
	struct dcpk_plan *p;

	for (unsigned again = 0; again < 3; again++) {
		dcpd_planb_clear(&b);
		p = build(&b);
		ck_assert_msg(dcpd_plan_check(p, &limits, &err) == 0, "%s",
		    err.text);
		ck_assert_uint_eq(p->n_rows, 101);
		ck_assert_uint_eq(p->n_reqs, 2);
		ck_assert_uint_eq(p->n_pages, 4 + 3);
		ck_assert_uint_eq(p->n_samples, 3);
		ck_assert_uint_eq(p->step, 17);
		ck_assert_uint_eq(DCPK_ROWS(p)[27].pos, 127);
		ck_assert_uint_eq(DCPK_ROWS(p)[27].page, 4);
		ck_assert_uint_eq(DCPK_ROWS(p)[28].page, 5);
		ck_assert_uint_eq(DCPK_ROWS(p)[99].page, 6);
		ck_assert_uint_eq(DCPK_ROWS(p)[100].req, 1);
		ck_assert_uint_eq(DCPK_ROWS(p)[100].page, 1);
		ck_assert_uint_eq(DCPK_ROWS(p)[100].token, 30);
		ck_assert_uint_eq(DCPK_SAMPLES(p)[0].row, 98);
		ck_assert_uint_eq(DCPK_SAMPLES(p)[1].row, 99);
		ck_assert_uint_eq(DCPK_SAMPLES(p)[2].row, 100);
		ck_assert_uint_eq(DCPK_SAMPLES(p)[1].adjs, 2);
		ck_assert_uint_eq(DCPK_ADJUSTS(p)[1].token, 8);
		ck_assert_uint_eq(DCPK_PAGES(p)[4], 49);
	}
	dcpd_planb_free(&b);
}
END_TEST

#define ROW(p) ((struct dcpk_row *)DCPK_ROWS(p))
#define REQ(p) ((struct dcpk_req *)DCPK_REQS(p))
#define PAGE(p) ((uint32_t *)DCPK_PAGES(p))
#define SAMPLE(p) ((struct dcpk_sample *)DCPK_SAMPLES(p))
#define ADJUST(p) ((struct dcpk_adjust *)DCPK_ADJUSTS(p))

#define BREAK(stmt) \
	do { \
		struct dcpd_planb b = { 0 }; \
		struct dcpk_plan *p = build(&b); \
		struct dcpd_err err = { 0 }; \
		\
		stmt; \
		ck_assert_msg(dcpd_plan_check(p, &limits, &err) == \
		    -EINVAL, "not found: %s", #stmt); \
		ck_assert_int_eq(err.code, -EINVAL); \
		dcpd_planb_free(&b); \
	} while (0)

START_TEST(the_check_finds_each_fault)
{
	BREAK(p->magic++);
	BREAK(p->version++);
	BREAK(p->bytes -= 64);
	BREAK(p->rows_off += 4);
	BREAK(p->rows_off = 0);
	BREAK(p->samples_off = p->bytes + 16);
	BREAK(p->n_adjusts = UINT32_MAX);
	BREAK(p->n_mask = 1);
	BREAK(p->pass = 2);
	BREAK(p->way = 3);
	BREAK(p->n_rows = 0);
	BREAK(p->n_rows--);
	BREAK(p->n_reqs--);
	BREAK(REQ(p)[1].row0 = 99);
	BREAK(REQ(p)[0].rows = 0);
	BREAK(REQ(p)[0].rows = 102);
	BREAK(REQ(p)[0].prefix = 950);
	BREAK(REQ(p)[0].prefix = 99);
	BREAK(REQ(p)[0].pages = 3);
	BREAK(REQ(p)[1].page0 = 5);
	BREAK(REQ(p)[1].pages = UINT32_MAX);
	BREAK(PAGE(p)[0] = 50);
	BREAK(ROW(p)[5].req = 1);
	BREAK(ROW(p)[5].pos++);
	BREAK(ROW(p)[5].token = 100);
	BREAK(ROW(p)[5].page = 49);
	BREAK(SAMPLE(p)[2].row = 101);
	BREAK(SAMPLE(p)[1].row = 90);
	BREAK(SAMPLE(p)[0].given = 100);
	BREAK(SAMPLE(p)[0].n_top = 101);
	BREAK(SAMPLE(p)[1].adjs = 3);
	BREAK(SAMPLE(p)[1].temperature = 0);
	BREAK(SAMPLE(p)[1].top_p = NAN);
	BREAK(SAMPLE(p)[1].min_p = 2);
	BREAK(SAMPLE(p)[1].repetition = 0);
	BREAK(ADJUST(p)[0].token = 100);
	BREAK(ADJUST(p)[1].bias = NAN);
}
END_TEST

START_TEST(limits_hold)
{
	struct dcpd_planb b = { 0 };
	struct dcpk_plan *p = build(&b);
	struct dcpd_plan_limits l = limits;

	l.max_rows = 101;
	l.max_reqs = 2;
	ck_assert_int_eq(dcpd_plan_check(p, &l, NULL), 0);
	l.max_rows = 100;
	ck_assert_int_eq(dcpd_plan_check(p, &l, NULL), -EINVAL);
	l.max_rows = 101;
	l.max_reqs = 1;
	ck_assert_int_eq(dcpd_plan_check(p, &l, NULL), -EINVAL);
	dcpd_planb_free(&b);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("plan");
	TCase *t = tcase_create("plan");
	SRunner *r;
	int failed;

	tcase_add_test(t, a_built_plan_says_what_was_asked);
	tcase_add_test(t, the_check_finds_each_fault);
	tcase_add_test(t, limits_hold);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
