/*
 * Who comes when: classes, arrival, and what a step's two passes hold.
 */
#include "config.h"

#include "tests/unit/sched_life.h"

/* --- order ------------------------------------------------------------- */

/* The pass in which a prompt that begins with this token was begun. */
static size_t
pass_of(uint32_t first)
{
	for (size_t i = 0; i < F.e.n_log; i++)
		for (uint32_t k = 0; k < F.e.log[i].n_reqs; k++)
			if (F.e.log[i].pass == DCPK_PREFILL &&
			    F.e.log[i].first[k] == first)
				return i;
	ck_abort_msg("no prefill pass begins with %u", first);
}

START_TEST(first_come_first_served_but_for_priority)
{
	static const unsigned order[] = { 0, 4, 1, 3, 5, 2 };
	uint32_t *p = fk_prompt(1000, 110, 1);
	struct fk_req q[6];
	uint64_t id[6];

	fk_start(&F, (struct fk_spec){ .max_running = 1 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < 6; i++) {
		q[i] = tokens(p + i, 100, 5);
		q[i].p.priority = i == 4 ? 5 : i == 2 ? -1 : 0;
		id[i] = submit(&q[i]);
		if (i == 0)
			ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	}
	wait_encoded(6);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < 6; i++)
		expect_tokens(id[i], &q[i]);
	ck_assert_int_eq(fk_idle(&F), 0);
	for (unsigned i = 1; i < 6; i++)
		ck_assert_uint_lt(pass_of(p[order[i - 1]]),
		    pass_of(p[order[i]]));
	free(p);
	fk_stop(&F);
}
END_TEST

/* Small ones that would fit do not keep a large one waiting for ever. */
START_TEST(nobody_overtakes_who_waits_for_pages)
{
	uint32_t *p = fk_prompt(1000, 610, 1);
	struct fk_req a = tokens(p, 320, 60), b = tokens(p + 1, 600, 20);
	struct fk_req c = tokens(p + 2, 10, 20);
	uint64_t ida, idb, idc;

	fk_start(&F, (struct fk_spec){ .pages = 10 }, NULL);
	fk_gate(&F.e);
	ida = submit(&a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idb = submit(&b);
	idc = submit(&c);
	wait_encoded(3);
	fk_open_gate(&F.e);
	expect_tokens(ida, &a);
	expect_tokens(idb, &b);
	expect_tokens(idc, &c);
	ck_assert_int_eq(fk_idle(&F), 0);
	/* a's prefill and its 59 decode passes come first. */
	ck_assert_uint_ge(pass_of(p[1]), 60);
	ck_assert_uint_gt(pass_of(p[2]), pass_of(p[1]));
	free(p);
	fk_stop(&F);
}
END_TEST

/* A step: the decode batch, then one prefill pass with what the chunk holds. */
START_TEST(a_prefill_pass_holds_several_prompts)
{
	uint32_t *p = fk_prompt(1000, 1400, 1);
	static const uint32_t len[] = { 100, 30, 40, 1000 };
	uint64_t id[4];
	struct fk_req q[4];
	const struct fk_pass *l;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < 4; i++) {
		q[i] = tokens(p + 101 * i, len[i], 3);
		id[i] = submit(&q[i]);
		if (i == 0)
			ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	}
	wait_encoded(4);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < 4; i++)
		expect_tokens(id[i], &q[i]);
	ck_assert_int_eq(fk_idle(&F), 0);
	l = F.e.log;
	ck_assert_uint_eq(l[0].pass, DCPK_PREFILL);
	ck_assert_uint_eq(l[0].n_rows, 100);
	ck_assert_uint_eq(l[1].pass, DCPK_DECODE);
	ck_assert_uint_eq(l[1].n_rows, 1);
	ck_assert_uint_eq(l[2].pass, DCPK_PREFILL);
	ck_assert_uint_eq(l[2].n_reqs, 3);
	ck_assert_uint_eq(l[2].rows[0], 30);
	ck_assert_uint_eq(l[2].rows[1], 40);
	ck_assert_uint_eq(l[2].rows[2], 442);
	ck_assert_uint_eq(l[3].pass, DCPK_DECODE);
	ck_assert_uint_eq(l[3].n_rows, 3);
	ck_assert_uint_eq(l[4].pass, DCPK_PREFILL);
	ck_assert_uint_eq(l[4].n_rows, 512);
	free(p);
	fk_stop(&F);
}
END_TEST

/* Tokens keep coming while a long prompt is computed. */
START_TEST(decode_goes_on_beside_a_long_prefill)
{
	uint32_t *p = fk_prompt(1000, 3000, 1);
	struct fk_req a = tokens(p, 10, 100), b = tokens(p + 1, 2900, 3);
	uint64_t ida, idb;
	unsigned prefills = 0, decodes = 0;

	fk_start(&F, (struct fk_spec){ .chunk = 100 }, NULL);
	fk_gate(&F.e);
	ida = submit(&a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idb = submit(&b);
	wait_encoded(2);
	fk_open_gate(&F.e);
	expect_tokens(ida, &a);
	expect_tokens(idb, &b);
	ck_assert_int_eq(fk_idle(&F), 0);
	for (size_t i = 1; i < F.e.n_log && prefills < 29; i++) {
		if (F.e.log[i].pass == DCPK_PREFILL)
			prefills++;
		else
			decodes++;
		ck_assert_uint_le(prefills, decodes + 1);
		ck_assert_uint_le(decodes, prefills + 1);
	}
	ck_assert_uint_eq(prefills, 29);
	free(p);
	fk_stop(&F);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_order");
	TCase *t = tcase_create("order");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, first_come_first_served_but_for_priority);
	tcase_add_test(t, nobody_overtakes_who_waits_for_pages);
	tcase_add_test(t, a_prefill_pass_holds_several_prompts);
	tcase_add_test(t, decode_goes_on_beside_a_long_prefill);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
