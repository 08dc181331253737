/*
 * What the scheduler says of itself, what it costs idle, and which way a
 * prefill pass goes.
 */
#include "config.h"

#include <time.h>

#include "dcpd/admin/counters.h"
#include "tests/unit/sched_life.h"

START_TEST(idle_costs_nothing)
{
	struct timespec a, b;
	uint64_t passes;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	expect_clean();
	ck_assert_int_eq(fk_idle(&F), 0);
	passes = fk_passes(&F.e);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	usleep(300000);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	ck_assert_uint_eq(fk_passes(&F.e), passes);
	ck_assert_int_lt((b.tv_sec - a.tv_sec) * 1000 +
	    (b.tv_nsec - a.tv_nsec) / 1000000, 20);
	fk_stop(&F);
}
END_TEST

static int64_t
field(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	ck_assert_msg(json_is_integer(v), "no integer %s", key);
	return json_integer_value(v);
}

/* While a step is stuck, too. */
START_TEST(status_tells_what_each_rank_holds)
{
	uint32_t *p = fk_prompt(1000, 200, 1);
	struct fk_req q = tokens(p, 131, 50);
	json_t *o, *ranks, *list;
	uint64_t id;

	fk_start(&F, (struct fk_spec){ .dcp = 4, .world = 8 }, NULL);
	fk_gate(&F.e);
	q.uid = 42;
	id = submit(&q);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	fk_let(&F.e, 3);	/* the prompt and two tokens: 133 rows */
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	o = dcpd_sched_status(F.s);
	ck_assert_str_eq(json_string_value(json_object_get(o, "engine")),
	    "fake");
	ck_assert_str_eq(json_string_value(json_object_get(o, "state")),
	    "serving");
	ck_assert_int_eq(field(o, "running"), 1);
	ck_assert_int_eq(field(o, "waiting"), 0);
	ranks = json_object_get(o, "ranks");
	ck_assert_uint_eq(json_array_size(ranks), 8);
	for (unsigned i = 0; i < 8; i++) {
		const json_t *r = json_array_get(ranks, i);

		ck_assert_int_eq(field(r, "rank"), i);
		ck_assert_int_eq(field(r, "dcp_rank"), i % 4);
		ck_assert_int_eq(field(r, "tokens"), i % 4 == 0 ? 34 : 33);
		ck_assert_int_eq(field(r, "pages_used"), 3);
		ck_assert_int_eq(field(r, "pages_total"), 256);
	}
	list = dcpd_sched_requests(F.s);
	ck_assert_uint_eq(json_array_size(list), 1);
	ck_assert_int_eq(field(json_array_get(list, 0), "id"), (int64_t)id);
	ck_assert_int_eq(field(json_array_get(list, 0), "uid"), 42);
	ck_assert_int_eq(field(json_array_get(list, 0), "prompt"), 131);
	ck_assert_int_eq(field(json_array_get(list, 0), "prefilled"), 131);
	ck_assert_int_eq(field(json_array_get(list, 0), "generated"), 3);
	ck_assert_int_eq(field(json_array_get(list, 0), "pages"), 3);
	ck_assert_str_eq(json_string_value(json_object_get(
	    json_array_get(list, 0), "state")), "decode");
	json_decref(list);
	json_decref(o);
	fk_open_gate(&F.e);
	expect_tokens(id, &q);
	free(p);
	fk_stop(&F);
}
END_TEST

static int64_t
way_taken(struct fk_spec sp, const double s[3])
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 2);
	int64_t way;

	fk_start(&F, sp, NULL);
	if (s != NULL)
		memcpy(F.e.predict, s, sizeof F.e.predict);
	expect_tokens(submit(&q), &q);
	ck_assert_int_eq(fk_idle(&F), 0);
	way = F.e.log[0].way;
	ck_assert_int_eq(fk_status(&F, "prefill_way_q"),
	    sp.dcp > 1 && way == DCPK_WAY_Q);
	ck_assert_int_eq(fk_status(&F, "prefill_way_kv"),
	    sp.dcp > 1 && way == DCPK_WAY_KV);
	ck_assert_int_eq(fk_status(&F, "prefill_way_a2a"),
	    sp.dcp > 1 && way == DCPK_WAY_A2A);
	fk_stop(&F);
	for (unsigned i = 0; i < DCPD_CNT_N; i++)
		atomic_store(&dcpd_counters[i], 0);
	return way;
}

START_TEST(prefill_goes_the_way_that_is_predicted_fastest)
{
	static const double a2a[3] = { 3, 2, 1 }, q[3] = { 1, 2, 3 };

	ck_assert_int_eq(way_taken((struct fk_spec){ .dcp = 2, .way = -1,
	    .predict = true }, a2a), DCPK_WAY_A2A);
	ck_assert_int_eq(way_taken((struct fk_spec){ .dcp = 2, .way = -1,
	    .predict = true }, q), DCPK_WAY_Q);
	ck_assert_int_eq(way_taken((struct fk_spec){ .dcp = 2, .way = -1 },
	    NULL), DCPK_WAY_KV);
	ck_assert_int_eq(way_taken((struct fk_spec){ .dcp = 2,
	    .way = DCPK_WAY_Q, .predict = true }, a2a), DCPK_WAY_Q);
	ck_assert_int_eq(way_taken((struct fk_spec){ .dcp = 1, .way = -1,
	    .predict = true }, a2a), DCPK_WAY_KV);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_status");
	TCase *t = tcase_create("status");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, idle_costs_nothing);
	tcase_add_test(t, status_tells_what_each_rank_holds);
	tcase_add_test(t, prefill_goes_the_way_that_is_predicted_fastest);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
