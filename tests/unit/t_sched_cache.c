/*
 * The scheduler with its prefix cache: what a request need not compute, and
 * that its answer is the same. The engine's tokens depend on every row before
 * them, so a wrong page shows.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "tests/unit/sched_one.h"

/* The right answer, and so many prompt tokens from the cache. */
static const struct fk_seen *
expect(uint64_t id, const struct fk_req *q, uint32_t cached)
{
	const struct fk_seen *f = fk_wait(id);
	uint32_t *want = calloc(q->max_tokens, sizeof *want);

	ck_assert_msg(f->error == 0, "%s", f->error_text);
	fk_expect(VOCAB, q->ids, q->n, NULL, UINT32_MAX, want, q->max_tokens);
	ck_assert_uint_eq(f->n, q->max_tokens);
	ck_assert_mem_eq(f->tokens, want, f->n * sizeof *want);
	ck_assert_uint_eq(f->usage.prompt_tokens, q->n);
	ck_assert_uint_eq(f->usage.cached_tokens, cached);
	free(want);
	return f;
}

/* A session's next prompt: all so far, the answer, and something new. */
static uint32_t
next_turn(uint32_t *text, uint32_t n, const struct fk_seen *f, uint32_t more,
    uint32_t seed)
{
	uint32_t *p = fk_prompt(VOCAB, more, seed);

	memcpy(text + n, f->tokens, f->n * sizeof *text);
	memcpy(text + n + f->n, p, more * sizeof *text);
	free(p);
	return n + f->n + more;
}

/* What was generated is hit, too; in pages of 64, whatever D is. */
START_TEST(the_next_turn_hits_prompt_and_answer)
{
	static const uint32_t dcp[] = { 1, 2, 8, 64 };
	uint32_t *text = malloc(4000 * sizeof *text), *p, n = 130;
	struct fk_req q;
	uint64_t cached = 0, asked = 0;

	fk_start(&F, (struct fk_spec){ .dcp = dcp[_i], .chunk = 100 }, NULL);
	p = fk_prompt(VOCAB, n, 1);
	memcpy(text, p, n * sizeof *p);
	for (uint32_t turn = 0; turn < 8; turn++) {
		/* The last token of an answer has no row. */
		uint32_t known = turn == 0 ? 0 : (n - 20 - 1) / 64 * 64;
		const struct fk_seen *f;

		q = tokens(text, n, 100);
		f = expect(submit(&q), &q, known);
		cached += known;
		asked += n;
		n = next_turn(text, n, f, 20, turn + 2);
	}
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_status(&F, "prefix_hit_tokens"), (int64_t)cached);
	ck_assert_int_eq(fk_status(&F, "prefix_lookup_tokens"),
	    (int64_t)asked);
	/* And what was hit was not computed. */
	ck_assert_int_eq(fk_status(&F, "prefill_rows"),
	    (int64_t)(asked - cached));
	free(p);
	free(text);
	finish();
}
END_TEST

START_TEST(the_last_token_is_always_computed)
{
	static const uint32_t len[] = { 1, 64, 65, 128, 129, 192 };
	uint32_t *p = fk_prompt(VOCAB, 200, 1);
	struct fk_req q;

	fk_start(&F, (struct fk_spec){ .dcp = 8 }, NULL);
	q = tokens(p, 200, 1);
	expect(submit(&q), &q, 0);
	for (unsigned i = 0; i < sizeof len / sizeof len[0]; i++) {
		q = tokens(p, len[i], 3);
		expect(submit(&q), &q, (len[i] - 1) / 64 * 64);
	}
	/* One token in the middle differs: the pages before it. */
	p[130]++;
	q = tokens(p, 200, 3);
	expect(submit(&q), &q, 128);
	free(p);
	finish();
}
END_TEST

START_TEST(pages_of_a_cancelled_request_stay_usable)
{
	uint32_t *p = fk_prompt(VOCAB, 1000, 1);
	struct fk_req q = tokens(p, 1000, 5);
	uint64_t id;

	fk_start(&F, (struct fk_spec){ .chunk = 100 }, NULL);
	fk_gate(&F.e);
	id = submit(&q);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	fk_let(&F.e, 3);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	dcpd_sched_ipc_ops.cancel(F.s, F.c, id);
	fk_let(&F.e, 1);		/* 400 rows are there then */
	ck_assert_uint_eq(fk_wait(id)->finish, DCP_FINISH_ABORT);
	fk_open_gate(&F.e);
	expect(submit(&q), &q, 384);
	free(p);
	finish();
}
END_TEST

START_TEST(cache_salt_separates)
{
	uint32_t *p = fk_prompt(VOCAB, 200, 1);
	struct fk_req q = tokens(p, 200, 3), a = q, b = q, bad = q;
	char longer[400] = "{\"cache_salt\":\"";

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	a.options = "{\"cache_salt\":\"tenant a\"}";
	b.options = "{\"cache_salt\":\"tenant b\"}";
	expect(submit(&q), &q, 0);
	expect(submit(&a), &a, 0);
	expect(submit(&b), &b, 0);
	expect(submit(&a), &a, 192);
	expect(submit(&q), &q, 192);
	q.options = "{\"cache_salt\":\"\"}";	/* as none */
	expect(submit(&q), &q, 192);
	bad.options = "{\"cache_salt\":7}";
	ck_assert_int_eq(fk_wait(submit(&bad))->error, -EINVAL);
	memset(longer + strlen(longer), 'x', 257);
	strcat(longer, "\"}");
	bad.options = longer;
	ck_assert_ptr_nonnull(strstr(fk_wait(submit(&bad))->error_text,
	    "at most 256 bytes"));
	free(p);
	finish();
}
END_TEST

/* Rows whose logprobs are wanted are computed; the others need not be. */
START_TEST(echo_and_the_cache)
{
	uint32_t *p = fk_prompt(VOCAB, 200, 1);
	struct fk_req q = tokens(p, 200, 3);
	const struct fk_seen *f;

	fk_start(&F, (struct fk_spec){ .chunk = 70 }, NULL);
	expect(submit(&q), &q, 0);
	q.flags |= DCP_ECHO;
	f = expect(submit(&q), &q, 192);
	ck_assert_uint_eq(f->n_prompt, 200);
	ck_assert_mem_eq(f->prompt, p, 200 * sizeof *p);
	q.flags |= DCP_LOGPROBS;
	q.p.top_logprobs = 2;
	f = expect(submit(&q), &q, 0);
	ck_assert_uint_eq(f->n_prompt, 200);
	ck_assert_uint_eq(f->n_prompt_top, 199 * 2);
	ck_assert(isnan(f->prompt_lps[0]));
	for (uint32_t i = 1; i < 200; i++)
		ck_assert_float_eq(f->prompt_lps[i],
		    fk_logprob(VOCAB, p, i, p[i]));
	free(p);
	finish();
}
END_TEST

/* One computes a prompt, the others wait for its pages and share them. */
START_TEST(one_prompt_by_many_at_once_is_computed_once)
{
	enum { N = 8, LEN = 1000 };
	uint32_t *p = fk_prompt(VOCAB, LEN, 1);
	struct fk_req q = tokens(p, LEN, 4);
	uint64_t id[N];

	fk_start(&F, (struct fk_spec){ .chunk = 100 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < N; i++)
		id[i] = submit(&q);
	wait_encoded(N);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < N; i++) {
		const struct fk_seen *f = fk_wait(id[i]);

		expect(id[i], &q, f->usage.cached_tokens);
		ck_assert_uint_eq(f->usage.cached_tokens % 64, 0);
	}
	ck_assert_int_eq(fk_idle(&F), 0);
	/* 15 whole pages and a rest of 40 for each; a page may be begun by
	   two in the pass in which the first is done. */
	ck_assert_int_le(fk_status(&F, "prefill_rows"),
	    LEN + (N - 1) * (40 + 100));
	ck_assert_int_le(fk_status(&F, "pages_cached"), 15);
	free(p);
	finish();
}
END_TEST

/* The page that it had begun goes, and another's takes its place. */
START_TEST(a_page_that_another_finished_first_is_taken)
{
	uint32_t *p = fk_prompt(VOCAB, 150, 1);
	struct fk_req q = tokens(p, 150, 4);
	uint64_t id[2];

	fk_start(&F, (struct fk_spec){ .chunk = 100 }, NULL);
	fk_gate(&F.e);
	id[0] = submit(&q);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	id[1] = submit(&q);
	wait_encoded(2);
	fk_open_gate(&F.e);
	/* 100 rows; 50 and, behind the first page, 50; from 128 on. */
	expect(id[0], &q, 0);
	expect(id[1], &q, 64);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_status(&F, "prefill_rows"), 150 + 50 + 22);
	free(p);
	finish();
}
END_TEST

/* Two that fit together do not push each other out. */
START_TEST(alternating_sessions_keep_their_hits)
{
	uint32_t *text[2], n[2] = { 2000, 1900 };
	struct fk_req q;

	/* 60 pages each at the end, of 124. */
	fk_start(&F, (struct fk_spec){ .pages = 124, .dcp = 8 }, NULL);
	for (unsigned i = 0; i < 2; i++) {
		uint32_t *p = fk_prompt(VOCAB, n[i], 10 + i);

		text[i] = malloc(8000 * sizeof **text);
		memcpy(text[i], p, n[i] * sizeof *p);
		free(p);
	}
	for (uint32_t turn = 0; turn < 20; turn++)
		for (unsigned i = 0; i < 2; i++) {
			q = tokens(text[i], n[i], 50);
			n[i] = next_turn(text[i], n[i], expect(submit(&q), &q,
			    turn == 0 ? 0 : (n[i] - 30 - 1) / 64 * 64), 30,
			    turn + 100);
		}
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_status(&F, "evictions"), 0);
	free(text[0]);
	free(text[1]);
	finish();
}
END_TEST

/* What does not fit goes, oldest first, and comes again when computed. */
START_TEST(evicted_and_computed_again)
{
	uint32_t *p[3];
	struct fk_req q[3];

	fk_start(&F, (struct fk_spec){ .pages = 25, .dcp = 4 }, NULL);
	for (unsigned i = 0; i < 3; i++) {
		p[i] = fk_prompt(VOCAB, 640, 20 + i);
		q[i] = tokens(p[i], 640, 30);	/* 11 pages, 10 stay */
	}
	expect(submit(&q[0]), &q[0], 0);
	expect(submit(&q[1]), &q[1], 0);
	expect(submit(&q[0]), &q[0], 576);
	ck_assert_int_eq(fk_status(&F, "evictions"), 0);
	expect(submit(&q[2]), &q[2], 0);	/* 6 of session 1 go */
	ck_assert_int_eq(fk_status(&F, "evictions"), 6);
	expect(submit(&q[0]), &q[0], 576);
	expect(submit(&q[1]), &q[1], 256);	/* its beginning */
	expect(submit(&q[1]), &q[1], 576);
	for (unsigned i = 0; i < 3; i++)
		free(p[i]);
	finish();
}
END_TEST

/* Pushed out of the pool, both come back; the fake rows are moved for real. */
START_TEST(evicted_to_host_memory_and_hit_again)
{
	uint32_t *p[3];
	struct fk_req q[3];

	fk_start(&F, (struct fk_spec){ .pages = 16, .host_pages = 40,
	    .dcp = 1u << _i }, NULL);
	for (unsigned i = 0; i < 3; i++) {
		p[i] = fk_prompt(VOCAB, 641, i + 1);
		q[i] = tokens(p[i], 641, 70);
		expect(submit(&q[i]), &q[i], 0);
	}
	ck_assert_int_eq(fk_idle(&F), 0);
	/* 11 pages of each text; some of the third's are in the pool. */
	ck_assert_int_eq(fk_status(&F, "pages_host"),
	    fk_status(&F, "evictions"));
	ck_assert_int_eq(fk_status(&F, "pages_host") +
	    fk_status(&F, "pages_cached"), 33);
	for (unsigned i = 0; i < 3; i++)
		expect(submit(&q[i]), &q[i], 640);
	ck_assert_int_gt(fk_status(&F, "host_hit_tokens"), 640);
	ck_assert_int_eq(fk_status(&F, "host_hit_tokens"),
	    64 * fk_status(&F, "host_pages_in"));
	/* What is dropped is dropped there, too. */
	expect(submit(&q[0]), &q[0], 640);
	{
		struct dcpd_err err;
		uint32_t pages;

		ck_assert_int_eq(fk_idle(&F), 0);
		ck_assert_int_eq(dcpd_sched_cache_drop(F.s, &pages, &err), 0);
		ck_assert_uint_eq(pages, 33);
		ck_assert_int_eq(fk_status(&F, "pages_host"), 0);
	}
	expect(submit(&q[0]), &q[0], 0);
	for (unsigned i = 0; i < 3; i++)
		free(p[i]);
	finish();
}
END_TEST

/* Two pages a step, while another streams; who waits for them joins last. */
START_TEST(a_long_text_comes_back_beside_a_stream)
{
	uint32_t *p = fk_prompt(VOCAB, 641, 1), *o = fk_prompt(VOCAB, 641, 2);
	struct fk_req q = tokens(p, 641, 5), other = tokens(o, 641, 5);
	struct fk_req a = tokens(o + 300, 10, 300);
	uint64_t ida, id;
	int64_t back = 0, all;
	size_t i, begin;

	fk_start(&F, (struct fk_spec){ .pages = 16, .host_pages = 40,
	    .chunk = 128 }, NULL);
	expect(submit(&q), &q, 0);
	expect(submit(&other), &other, 0);
	expect(submit(&q), &q, 640);		/* alone, in as many steps */
	expect(submit(&other), &other, 640);
	ck_assert_int_eq(fk_idle(&F), 0);
	fk_gate(&F.e);
	begin = F.e.n_log;
	all = -fk_status(&F, "host_pages_in");
	ida = submit(&a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	id = submit(&q);
	wait_encoded(2);
	fk_open_gate(&F.e);
	expect(id, &q, 640);
	expect(ida, &a, 0);
	ck_assert_int_eq(fk_idle(&F), 0);
	all += fk_status(&F, "host_pages_in");
	ck_assert_int_ge(all, 5);	/* the rest was in the pool still */
	for (i = begin; back < all; i++) {
		ck_assert_uint_lt(i, F.e.n_log);
		ck_assert_uint_le(F.e.log[i].back, 2);
		back += F.e.log[i].back;
		/* a's, until all is there. */
		if (back < all)
			ck_assert_uint_eq(F.e.log[i].n_reqs, 1);
	}
	free(p);
	free(o);
	finish();
}
END_TEST

static int64_t
pinned(void)
{
	json_t *o = dcpd_sched_cache(F.s);
	int64_t n = json_integer_value(json_object_get(o, "pages_pinned"));

	json_decref(o);
	return n;
}

/* 20 pages, 5 of them pinned: whatever else runs, they are hit. */
START_TEST(pinned_pages_stay_and_unpinned_ones_go)
{
	uint32_t *p = fk_prompt(VOCAB, 330, 1), *x, pages = 0;
	struct fk_req q = tokens(p, 330, 3), other;
	struct dcpd_err err = { 0 };
	uint64_t pin, again;

	fk_start(&F, (struct fk_spec){ .pages = 20,
	    .host_pages = _i * 40 }, NULL);
	ck_assert_int_eq(dcpd_sched_pin(F.s, p, 330, NULL, 0, &pin, &pages,
	    &err), -ENOENT);	/* nothing of it is there */
	expect(submit(&q), &q, 0);
	ck_assert_msg(dcpd_sched_pin(F.s, p, 330, NULL, 0, &pin, &pages,
	    &err) == 0, "%s", err.text);
	ck_assert_uint_eq(pages, 5);
	ck_assert_int_eq(pinned(), 5);
	ck_assert_int_eq(dcpd_sched_pin(F.s, p, 330, "salt", 0, &again, &pages,
	    &err), -ENOENT);
	for (uint32_t i = 0; i < 6; i++) {
		x = fk_prompt(VOCAB, 700, 10 + i);
		other = tokens(x, 700, 60);
		expect(submit(&other), &other, 0);
		free(x);
	}
	ck_assert_int_gt(fk_status(&F, "evictions"), 30);
	expect(submit(&q), &q, 320);
	ck_assert_int_eq(dcpd_sched_cache_drop(F.s, &pages, &err), 0);
	expect(submit(&q), &q, 320);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_msg(dcpd_sched_check(F.s, &err) == 0, "%s", err.text);
	/* The same text again: no page more. */
	ck_assert_int_eq(dcpd_sched_pin(F.s, p, 200, NULL, 0, &again, &pages,
	    &err), 0);
	ck_assert_uint_eq(pages, 3);
	ck_assert_int_eq(pinned(), 5);
	ck_assert_int_eq(dcpd_sched_unpin(F.s, pin, &pages, &err), 0);
	ck_assert_uint_eq(pages, 5);
	ck_assert_int_eq(pinned(), 3);
	ck_assert_int_eq(dcpd_sched_unpin(F.s, pin, &pages, &err), -ENOENT);
	ck_assert_int_eq(dcpd_sched_unpin(F.s, 0, &pages, &err), 0);
	ck_assert_int_eq(pinned(), 0);
	ck_assert_int_eq(dcpd_sched_cache_drop(F.s, &pages, &err), 0);
	ck_assert_int_eq(fk_status(&F, "pages_free"), 20);
	expect(submit(&q), &q, 0);
	free(p);
	finish();
}
END_TEST

/* Of a request that runs; bounded; and never so that who is here must fail. */
START_TEST(pins_are_bounded_and_leave_room)
{
	uint32_t *p = fk_prompt(VOCAB, 700, 1), pages = 0;
	struct fk_req a = tokens(p, 330, 100), b = tokens(p, 640, 1);
	struct fk_req c = tokens(p, 600, 500);
	struct dcpd_err err = { 0 };
	const struct fk_seen *f;
	uint64_t id, pin, x;

	fk_start(&F, (struct fk_spec){ .pages = 18 }, NULL);
	F.e.step_us = 10000;
	id = submit(&a);
	ck_assert_int_eq(fk_wait_tokens(id, 1, SOON), 0);
	ck_assert_msg(dcpd_sched_pin(F.s, NULL, 0, NULL, id, &pin, &pages,
	    &err) == 0, "%s", err.text);
	ck_assert_uint_eq(pages, 5);
	F.e.step_us = 0;
	expect(id, &a, 0);
	ck_assert_int_eq(dcpd_sched_pin(F.s, NULL, 0, NULL, id, &x, &pages,
	    &err), -ENOENT);
	expect(submit(&b), &b, 320);
	/* 10 pages are more than half of 18. */
	ck_assert_int_eq(dcpd_sched_pin(F.s, p, 640, NULL, 0, &x, &pages,
	    &err), -ENOSPC);
	ck_assert_ptr_nonnull(strstr(err.text, "10 of 18: 9 may"));
	ck_assert_int_eq(pinned(), 5);
	/* What would need the pinned pages for itself is told so. */
	f = fk_wait(submit(&c));
	ck_assert_int_eq(f->error, -EMSGSIZE);
	ck_assert_ptr_nonnull(strstr(f->error_text, "5 are pinned"));
	/* And nothing is pinned that a live one will need. */
	ck_assert_int_eq(dcpd_sched_unpin(F.s, 0, &pages, &err), 0);
	F.e.step_us = 10000;
	id = submit(&c);
	ck_assert_int_eq(fk_wait_tokens(id, 1, SOON), 0);
	ck_assert_int_eq(dcpd_sched_pin(F.s, NULL, 0, NULL, id, &x, &pages,
	    &err), -EBUSY);
	F.e.step_us = 0;
	expect(id, &c, 576);
	free(p);
	finish();
}
END_TEST

START_TEST(dropped_by_the_admin)
{
	uint32_t *p = fk_prompt(VOCAB, 640, 1), pages = 0;
	struct fk_req q = tokens(p, 640, 3), longer = tokens(p, 320, 1000);
	struct dcpd_err err;
	uint64_t id;
	json_t *o;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	expect(submit(&q), &q, 0);
	ck_assert_int_eq(fk_idle(&F), 0);
	o = dcpd_sched_cache(F.s);
	ck_assert_int_eq(json_integer_value(json_object_get(o,
	    "pages_cached")), 10);
	ck_assert_int_eq(json_integer_value(json_object_get(o,
	    "pages_known")), 10);
	ck_assert_int_eq(json_integer_value(json_object_get(o,
	    "lookup_tokens")), 640);
	json_decref(o);
	/* What a running request holds stays. */
	F.e.step_us = 10000;	/* ten seconds, if we let it */
	id = submit(&longer);
	ck_assert_int_eq(fk_wait_tokens(id, 1, SOON), 0);
	ck_assert_int_eq(dcpd_sched_cache_drop(F.s, &pages, &err), 0);
	ck_assert_uint_eq(pages, 5);
	F.e.step_us = 0;
	expect(id, &longer, 256);
	expect(submit(&q), &q, 320);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(dcpd_sched_cache_drop(F.s, &pages, &err), 0);
	ck_assert_int_eq(fk_status(&F, "pages_free"), F.e.e.pages);
	expect(submit(&q), &q, 0);
	free(p);
	finish();
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_cache");
	TCase *t = tcase_create("cache");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, the_next_turn_hits_prompt_and_answer, 0, 4);
	tcase_add_test(t, the_last_token_is_always_computed);
	tcase_add_test(t, pages_of_a_cancelled_request_stay_usable);
	tcase_add_test(t, cache_salt_separates);
	tcase_add_test(t, echo_and_the_cache);
	tcase_add_test(t, one_prompt_by_many_at_once_is_computed_once);
	tcase_add_test(t, a_page_that_another_finished_first_is_taken);
	tcase_add_test(t, alternating_sessions_keep_their_hits);
	tcase_add_test(t, evicted_and_computed_again);
	tcase_add_loop_test(t, evicted_to_host_memory_and_hit_again, 0, 4);
	tcase_add_test(t, a_long_text_comes_back_beside_a_stream);
	tcase_add_loop_test(t, pinned_pages_stay_and_unpinned_ones_go, 0, 2);
	tcase_add_test(t, pins_are_bounded_and_leave_room);
	tcase_add_test(t, dropped_by_the_admin);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
