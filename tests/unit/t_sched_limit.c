/*
 * What one user, one pass and one unread answer may take of the scheduler.
 */
#include "config.h"

#include <errno.h>

#include "tests/unit/sched_life.h"

/* --- limits ------------------------------------------------------------ */

START_TEST(ten_times_too_many_are_refused_at_once)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 5);
	struct dcpd_err err;
	uint64_t id[120], passes;
	unsigned in = 1;

	fk_start(&F, (struct fk_spec){ .queue_max = 10 }, NULL);
	fk_gate(&F.e);
	id[0] = submit(&q);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	passes = fk_passes(&F.e);
	for (unsigned i = 1; i < 120; i++) {
		int rc = fk_submit(F.s, F.c, &q, &id[in], &err);

		if (rc == 0) {
			in++;
			continue;
		}
		ck_assert_int_eq(rc, -EAGAIN);
		ck_assert(strstr(err.text, "1 requests run and 10 wait") !=
		    NULL);
	}
	/* At once: no step went by. */
	ck_assert_uint_eq(fk_passes(&F.e), passes);
	ck_assert_uint_eq(in, 11);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < in; i++)
		expect_tokens(id[i], &q);
	ck_assert_int_eq(fk_status(&F, "requests_refused"), 109);
	expect_clean();
	fk_stop(&F);
}
END_TEST

START_TEST(one_users_requests_are_limited)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 5);
	struct dcpd_err err;
	uint64_t id, x;

	fk_start(&F, (struct fk_spec){ .max_requests_uid = 3 }, NULL);
	fk_gate(&F.e);
	q.uid = 7;
	for (unsigned i = 0; i < 3; i++)
		submit(&q);
	ck_assert_int_eq(fk_submit(F.s, F.c, &q, &x, &err), -EAGAIN);
	ck_assert(strstr(err.text, "user 7 has 3 requests") != NULL);
	q.uid = 8;
	id = submit(&q);
	fk_open_gate(&F.e);
	expect_tokens(id, &q);
	expect_clean();
	fk_stop(&F);
}
END_TEST

/* The stream's room is promised at admission; its lack delays that uid only. */
START_TEST(a_full_quota_delays_its_user_only)
{
	uint32_t *p = fk_prompt(1000, 10, 1);
	struct fk_req a = tokens(p, 10, 80), b = tokens(p, 10, 50);
	struct fk_req c = tokens(p, 10, 20), d = tokens(p, 10, 101);
	uint64_t ida, idb, idc, idd;
	struct dcpd_client *other;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	other = fk_client(2);
	F.c->quota = 100;
	fk_gate(&F.e);
	a.uid = b.uid = d.uid = 1;
	c.uid = 2;
	ida = submit(&a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idb = submit(&b);
	idd = submit(&d);
	idc = submit_as(other, &c);
	wait_encoded(4);
	fk_let(&F.e, 30);		/* enough for c alone */
	expect_tokens(idc, &c);
	ck_assert(!fk_look(ida).done);
	fk_open_gate(&F.e);
	expect_tokens(ida, &a);
	expect_tokens(idb, &b);
	ck_assert_uint_gt(fk_wait(idb)->t_first, fk_wait(ida)->t_done);
	/* What no waiting can help is refused. */
	ck_assert_int_eq(fk_wait(idd)->error, -EMSGSIZE);
	ck_assert_ptr_nonnull(strstr(fk_wait(idd)->error_text, "101 tokens"));
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/*
 * Quota also comes back when answers are read, which the scheduler is not
 * told: a request that waits for nothing else gets its turn all the same.
 */
START_TEST(a_quota_that_is_read_free_is_noticed_when_idle)
{
	uint32_t *p = fk_prompt(1000, 10, 1);
	struct fk_req a = tokens(p, 10, 80);
	uint64_t id;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	F.c->quota = 100;
	fk_charge(F.c, 50);		/* answers that nobody has read yet */
	id = submit(&a);
	usleep(250000);
	ck_assert_uint_eq(fk_passes(&F.e), 0);
	ck_assert_uint_eq(fk_look(id).events, 0);
	fk_charge(F.c, -50);
	expect_tokens(id, &a);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/* The decode pass that was fed this token. */
static size_t
decode_of(uint32_t token)
{
	for (size_t i = 0; i < F.e.n_log; i++)
		for (uint32_t k = 0; k < F.e.log[i].n_reqs; k++)
			if (F.e.log[i].pass == DCPK_DECODE &&
			    F.e.log[i].first[k] == token)
				return i;
	ck_abort_msg("no decode pass was fed %u", token);
}

/*
 * Top logprobs of the whole vocabulary: passes stay bounded, and no request
 * is ahead of another by more than a few tokens.
 */
START_TEST(huge_top_logprobs_take_turns)
{
	uint32_t *p = fk_prompt(200000, 20, 1);
	struct fk_req q[8];
	uint64_t id[8];

	fk_start(&F, (struct fk_spec){ .vocab = 200000 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < 8; i++) {
		q[i] = tokens(p + i, 4, 6);
		q[i].flags |= DCP_LOGPROBS;
		q[i].p.top_logprobs = 200000;
		id[i] = submit(&q[i]);
	}
	wait_encoded(8);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < 8; i++) {
		expect_tokens(id[i], &q[i]);
		ck_assert_uint_eq(fk_wait(id[i])->n_top, 6 * 200000);
	}
	ck_assert_int_eq(fk_idle(&F), 0);
	for (size_t i = 0; i < F.e.n_log; i++)
		ck_assert_uint_le(F.e.log[i].n_reqs, 5);
	for (unsigned i = 0; i < 8; i++)
		for (unsigned k = 0; k < 8; k++)
			ck_assert_uint_lt(decode_of(fk_wait(id[i])->tokens[0]),
			    decode_of(fk_wait(id[k])->tokens[4]));
	free(p);
	fk_stop(&F);
}
END_TEST

/* Penalties over very many different tokens: the same. */
START_TEST(huge_adjustments_take_turns)
{
	enum { N = 270000 };
	uint32_t *p = malloc(N * sizeof *p);
	/* Long enough that the first still runs when the last begins. */
	struct fk_req q = tokens(p, N, 10);
	uint64_t id[5];

	for (uint32_t i = 0; i < N; i++)
		p[i] = i;
	fk_start(&F, (struct fk_spec){ .vocab = N, .max_ctx = N + 10,
	    .pages = 22000, .chunk = N }, NULL);
	q.p.repetition_penalty = 1.2f;
	for (unsigned i = 0; i < 5; i++)
		id[i] = submit(&q);
	for (unsigned i = 0; i < 5; i++)
		expect_tokens(id[i], &q);
	ck_assert_int_eq(fk_idle(&F), 0);
	for (size_t i = 0; i < F.e.n_log; i++)
		ck_assert_uint_le(F.e.log[i].n_reqs, 3);
	ck_assert_uint_ge(F.e.n_adj, N);
	free(p);
	fk_stop(&F);
}
END_TEST

/* --- the way out ------------------------------------------------------- */

START_TEST(output_that_nobody_takes_is_bounded)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req a = tokens(ids, 2, 4000), b = tokens(ids, 1, 20);
	uint64_t ida, idb, passes;
	json_t *list;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	fk_block_emit(true);
	ida = submit(&a);
	do {
		passes = fk_passes(&F.e);
		usleep(100000);
	} while (passes == 0 || passes != fk_passes(&F.e));
	list = dcpd_sched_requests(F.s);
	ck_assert_int_lt(json_integer_value(json_object_get(
	    json_array_get(list, 0), "generated")), 300);
	json_decref(list);
	idb = submit(&b);
	fk_block_emit(false);
	expect_tokens(ida, &a);
	expect_tokens(idb, &b);
	expect_clean();
	fk_stop(&F);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_limit");
	TCase *t = tcase_create("limit");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, ten_times_too_many_are_refused_at_once);
	tcase_add_test(t, one_users_requests_are_limited);
	tcase_add_test(t, a_full_quota_delays_its_user_only);
	tcase_add_test(t, a_quota_that_is_read_free_is_noticed_when_idle);
	tcase_add_test(t, huge_top_logprobs_take_turns);
	tcase_add_test(t, huge_adjustments_take_turns);
	tcase_add_test(t, output_that_nobody_takes_is_bounded);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
