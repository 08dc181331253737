/*
 * The page map shows for every page who holds it: requests, several of them,
 * the cache, a pin, nobody. Counts are held against what the scheduler says otherwise.
 */
#include "config.h"

#include <check.h>
#include <stdlib.h>

#include "tests/unit/sched_one.h"

struct counted {
	json_int_t cells, step, free, cached, shared, pinned;
	json_int_t of[2];		/* of the two requests */
};

static json_int_t
number(const json_t *o, const char *key)
{
	ck_assert_msg(json_is_integer(json_object_get(o, key)), "%s", key);
	return json_integer_value(json_object_get(o, key));
}

static struct counted
count(const uint64_t id[2])
{
	json_t *o = dcpd_sched_page_map(F.s);
	const json_t *runs = json_object_get(o, "runs");
	struct counted c = { number(o, "cells"),
	    number(o, "pages_per_cell"), 0, 0, 0, 0, { 0, 0 } };
	json_int_t all = 0, last = INT64_MIN;

	ck_assert_int_eq(number(o, "pages"), F.e.e.pages);
	for (size_t i = 0; i < json_array_size(runs); i += 2) {
		json_int_t who = json_integer_value(json_array_get(runs, i));
		json_int_t n = json_integer_value(json_array_get(runs, i + 1));

		ck_assert_int_gt(n, 0);
		ck_assert_int_ne(who, last);	/* or it were one run */
		last = who;
		all += n;
		if (who == 0)
			c.free += n;
		else if (who == -1)
			c.cached += n;
		else if (who == -2)
			c.shared += n;
		else if (who == -3)
			c.pinned += n;
		else if (who == (json_int_t)id[0])
			c.of[0] += n;
		else if (who == (json_int_t)id[1])
			c.of[1] += n;
		else
			ck_abort_msg("a page of request %lld", (long long)who);
	}
	ck_assert_int_eq(all, c.cells);
	json_decref(o);
	return c;
}

/* "pages" of a request, as `requests` says. */
static json_int_t
pages_of(uint64_t id)
{
	json_t *list = dcpd_sched_requests(F.s), *o;
	json_int_t n = -1;
	size_t i;

	json_array_foreach(list, i, o)
		if (number(o, "id") == (json_int_t)id)
			n = number(o, "pages");
	json_decref(list);
	ck_assert_int_ge(n, 0);
	return n;
}

/* Two that share 5 pages run, at the gate; then they are gone. */
START_TEST(every_page_is_somebodys)
{
	static const uint32_t pages[] = { 124, 1024, 1025, 5000 };
	uint32_t *p = fk_prompt(VOCAB, 640, 1), *other = fk_prompt(VOCAB, 100,
	    2), *text = malloc(420 * sizeof *text), dropped;
	struct fk_req a = tokens(p, 640, 2000), b = tokens(text, 420, 2000);
	struct dcpd_err err;
	struct counted c;
	uint64_t id[2];
	bool each;

	memcpy(text, p, 320 * sizeof *text);
	memcpy(text + 320, other, 100 * sizeof *text);
	fk_start(&F, (struct fk_spec){ .pages = pages[_i], .dcp = 8 }, NULL);
	F.e.step_us = 1000;
	id[0] = submit(&a);
	ck_assert_int_eq(fk_wait_tokens(id[0], 1, 20000), 0);
	id[1] = submit(&b);
	wait_encoded(2);
	ck_assert_int_eq(fk_wait_tokens(id[1], 1, 20000), 0);
	fk_gate(&F.e);
	ck_assert_int_eq(fk_at_gate(&F.e, 20000), 0);
	c = count(id);
	each = c.step == 1;
	ck_assert_int_eq(c.step, pages[_i] <= 1024 ? 1 :
	    pages[_i] == 1025 ? 2 : 8);
	/* Cells whose middle page there is. */
	ck_assert_int_eq(c.cells, each ? pages[_i] :
	    pages[_i] == 1025 ? 512 : 625);
	if (each) {
		ck_assert_int_eq(c.shared, 5);
		ck_assert_int_eq(c.of[0] + 5, pages_of(id[0]));
		ck_assert_int_eq(c.of[1] + 5, pages_of(id[1]));
		ck_assert_int_eq(c.cached, 0);
	} else {
		/* A fresh pool fills from its start: 10 pages, then 2. */
		ck_assert_int_eq(c.shared, pages[_i] == 1025 ? 2 : 1);
		ck_assert_int_ge(c.of[0], pages[_i] == 1025 ? 3 : 0);
	}
	F.e.step_us = 0;
	for (unsigned i = 0; i < 2; i++)
		dcpd_sched_ipc_ops.cancel(F.s, F.c, id[i]);
	fk_open_gate(&F.e);
	ck_assert_int_eq(fk_idle(&F), 0);
	c = count(id);
	ck_assert_int_eq(c.of[0] + c.of[1] + c.shared, 0);
	if (each)
		ck_assert_int_eq(c.cached, fk_status(&F, "pages_cached"));
	ck_assert_int_gt(c.cached, 0);
	ck_assert_int_eq(dcpd_sched_cache_drop(F.s, &dropped, &err), 0);
	ck_assert_int_eq(count(id).free, c.cells);
	fk_stop(&F);
	free(text);
	free(other);
	free(p);
}
END_TEST

/* A pin's pages are its own until a request has them, too, and again after. */
START_TEST(pinned_pages_are_no_cached_ones)
{
	static const uint64_t none[2];
	uint32_t *p = fk_prompt(VOCAB, 640, 1), pages;
	struct fk_req q = tokens(p, 640, 1), again = tokens(p, 640, 2000);
	struct dcpd_err err;
	struct counted c;
	uint64_t pin, id[2] = { 0 };

	fk_start(&F, (struct fk_spec){ .pages = 124 }, NULL);
	ck_assert_int_eq(fk_wait(submit(&q))->error, 0);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(count(none).cached, 10);
	ck_assert_int_eq(dcpd_sched_pin(F.s, p, 320, NULL, 0, &pin, &pages,
	    &err), 0);
	c = count(none);
	ck_assert_int_eq(c.pinned, 5);
	ck_assert_int_eq(c.cached, 5);
	ck_assert_int_eq(c.cached, fk_status(&F, "pages_cached"));
	F.e.step_us = 1000;
	id[0] = submit(&again);
	ck_assert_int_eq(fk_wait_tokens(id[0], 1, 20000), 0);
	fk_gate(&F.e);
	ck_assert_int_eq(fk_at_gate(&F.e, 20000), 0);
	c = count(id);
	ck_assert_int_eq(c.pinned, 0);
	ck_assert_int_eq(c.of[0], pages_of(id[0]));
	F.e.step_us = 0;
	dcpd_sched_ipc_ops.cancel(F.s, F.c, id[0]);
	fk_open_gate(&F.e);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(count(none).pinned, 5);
	ck_assert_int_eq(dcpd_sched_unpin(F.s, pin, &pages, &err), 0);
	ck_assert_int_eq(count(none).pinned, 0);
	fk_stop(&F);
	free(p);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("page_map");
	TCase *t = tcase_create("map");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, every_page_is_somebodys, 0, 4);
	tcase_add_test(t, pinned_pages_are_no_cached_ones);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
