/*
 * The scheduler when pages run out: who gives way, that answers are the same,
 * that nothing locks up and nobody starves. Where a test needs to know who
 * gives way, answers are shorter than a box: text that is late stops nobody.
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

static const struct fk_seen *
expect(uint64_t id, const struct fk_req *q)
{
	const struct fk_seen *f = fk_wait(id);
	uint32_t *want = calloc(q->max_tokens, sizeof *want);

	ck_assert_msg(f->error == 0, "%s", f->error_text);
	fk_expect(VOCAB, q->ids, q->n,
	    q->flags & DCP_SEED ? &q->p.seed : NULL, UINT32_MAX, want,
	    q->max_tokens);
	ck_assert_uint_eq(f->n, q->max_tokens);
	ck_assert_mem_eq(f->tokens, want, f->n * sizeof *want);
	ck_assert_uint_eq(f->usage.completion_tokens, q->max_tokens);
	ck_assert_uint_eq(f->after_end, 0);
	free(want);
	return f;
}

/* Long answers, given or not, are no reason to let fewer requests run. */
START_TEST(nothing_is_reserved_for_answers)
{
	uint32_t *p = fk_prompt(VOCAB, 40, 1);
	struct fk_req q[8];
	uint64_t id[8];

	fk_start(&F, (struct fk_spec){ .pages = 20 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < 8; i++) {
		q[i] = tokens(p + i, 10, i % 2 == 0 ? 1000 : 0);
		id[i] = submit(&q[i]);
	}
	wait_encoded(8);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	ck_assert_int_eq(fk_status(&F, "running"), 8);
	for (unsigned i = 0; i < 8; i++)
		dcpd_sched_ipc_ops.cancel(F.s, F.c, id[i]);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_uint_eq(fk_wait(id[i])->finish, DCP_FINISH_ABORT);
	free(p);
	finish();
}
END_TEST

/*
 * All together need several times the pool. Greedy and seeded answers, in
 * every order and at every chunk, as if each had run alone.
 */
START_TEST(outgrowing_the_pool_changes_no_answer)
{
	static const uint32_t chunk[] = { 512, 64, 100, 7 };
	enum { N = 8 };
	uint32_t *p[N];
	struct fk_req q[N];
	uint64_t id[N];

	fk_start(&F, (struct fk_spec){ .pages = 14, .chunk = chunk[_i],
	    .dcp = 1u << _i }, NULL);
	for (unsigned i = 0; i < N; i++) {
		p[i] = fk_prompt(VOCAB, 150 + 10 * i, i);
		q[i] = tokens(p[i], 150 + 10 * i, 400 - 20 * i);
		if (i % 2 == 1) {
			q[i].flags |= DCP_SEED | DCP_TEMPERATURE;
			q[i].p.temperature = 1;
			q[i].p.seed = 77 + i;
		}
		id[i] = submit(&q[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		expect(id[i], &q[i]);
		free(p[i]);
	}
	ck_assert_int_gt(fk_status(&F, "preemptions"), 0);
	finish();
}
END_TEST

/* The first is never held up: it takes as many passes as alone. */
START_TEST(the_first_in_order_runs_as_if_alone)
{
	enum { N = 5, OUT = 120 };
	uint32_t *p = fk_prompt(VOCAB, 200, 1);
	struct fk_req q[N];
	uint64_t id[N];
	uint32_t decodes = 0;

	/* Three fit at first; then each wants a fifth page. */
	fk_start(&F, (struct fk_spec){ .pages = 12 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < N; i++) {
		q[i] = tokens(p + i, 190, OUT);
		id[i] = submit(&q[i]);
		if (i == 0)	/* it is the first, then */
			ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	}
	wait_encoded(N);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < N; i++)
		expect(id[i], &q[i]);
	ck_assert_int_eq(fk_idle(&F), 0);
	/* From its prefill on, every decode pass has its row until the end. */
	for (size_t i = 1; i < F.e.n_log && decodes < OUT - 1; i++)
		if (F.e.log[i].pass == DCPK_DECODE) {
			ck_assert_uint_eq(F.e.log[i].first[0],
			    fk_wait(id[0])->tokens[decodes]);
			decodes++;
		}
	ck_assert_uint_eq(decodes, OUT - 1);
	ck_assert_int_gt(fk_status(&F, "preemptions"), 0);
	free(p);
	finish();
}
END_TEST

static int64_t
preempted(uint64_t id)
{
	json_t *list = dcpd_sched_requests(F.s), *o;
	int64_t n = -1;
	size_t i;

	json_array_foreach(list, i, o)
		if (json_integer_value(json_object_get(o, "id")) ==
		    (json_int_t)id)
			n = json_integer_value(json_object_get(o,
			    "preempted"));
	json_decref(list);
	return n;
}

START_TEST(the_youngest_gives_way)
{
	uint32_t *p = fk_prompt(VOCAB, 400, 1);
	static const uint32_t lens[2][3] = {
		{ 126, 100, 101 }, { 100, 126, 101 } };
	const uint32_t *len = lens[_i];
	struct fk_req q[3];
	uint64_t id[3];

	/* Three pages each; the longest is the first to want a fourth. */
	fk_start(&F, (struct fk_spec){ .pages = 9 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < 3; i++) {
		q[i] = tokens(p + 100 * i, len[i], 100);
		id[i] = submit(&q[i]);
	}
	wait_encoded(3);
	while (fk_status(&F, "preemptions") == 0) {
		fk_let(&F.e, 1);
		ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	}
	ck_assert_int_eq(fk_status(&F, "preemptions"), 1);
	ck_assert_uint_le(fk_passes(&F.e), 75);
	ck_assert_int_eq(preempted(id[0]), 0);
	ck_assert_int_eq(preempted(id[1]), 0);
	ck_assert_int_eq(preempted(id[2]), 1);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < 3; i++)
		expect(id[i], &q[i]);
	free(p);
	finish();
}
END_TEST

/*
 * The bound of admit.c: the k-th has ended when each of those before it, and
 * it, could have run alone: its prefill twice over (as it has half a chunk at
 * least), and a step for each token.
 */
START_TEST(nobody_starves)
{
	enum { N = 6, CHUNK = 64 };
	uint32_t *p[N], bound = 0;
	struct fk_req q[N];
	uint64_t id[N];

	fk_start(&F, (struct fk_spec){ .pages = 10, .chunk = CHUNK }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < N; i++) {
		p[i] = fk_prompt(VOCAB, 100, i);
		q[i] = tokens(p[i], 100, 500);	/* 10 pages: all there are */
		id[i] = submit(&q[i]);
		if (i == 0)
			ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	}
	wait_encoded(N);
	for (unsigned i = 0; i < N; i++) {
		/* Two passes a step. */
		bound += 2 * (2 * 600 / CHUNK + 1 + 500);
		/* An end is counted before the next pass. */
		while (fk_status(&F, "requests_finished") <= i) {
			ck_assert_uint_le(fk_passes(&F.e), bound);
			fk_let(&F.e, 1);
			while (fk_at_gate(&F.e, 10) != 0 &&
			    fk_status(&F, "requests_finished") < N)
				;
		}
	}
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < N; i++) {
		expect(id[i], &q[i]);
		free(p[i]);
	}
	ck_assert_int_gt(fk_status(&F, "preemptions"), 0);
	finish();
}
END_TEST

/* Counts of generated tokens go on where they were. */
START_TEST(penalties_of_a_resumed_request_go_on)
{
	enum { OUT = 100 };
	uint32_t *p = fk_prompt(VOCAB, 500, 1), out[VOCAB] = { 0 };
	struct fk_req a = tokens(p, 250, 110), b = tokens(p + 300, 190, OUT);
	uint64_t ida, idb;
	const struct fk_seen *f;

	/* b has its fifth page when a wants its sixth. */
	fk_start(&F, (struct fk_spec){ .pages = 10 }, NULL);
	b.p.frequency_penalty = 0.5f;
	fk_gate(&F.e);
	ida = submit(&a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idb = submit(&b);
	wait_encoded(2);
	fk_open_gate(&F.e);
	expect(ida, &a);
	f = expect(idb, &b);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_gt(fk_status(&F, "preemptions"), 0);
	ck_assert_uint_eq(F.e.last.index, OUT - 1);
	for (unsigned i = 0; i < OUT - 1; i++)
		out[f->tokens[i]]++;
	for (uint32_t i = 0; i < F.e.n_adj; i++) {
		ck_assert_uint_eq(F.e.adj[i].out_count,
		    out[F.e.adj[i].token]);
		out[F.e.adj[i].token] = 0;
	}
	for (uint32_t t = 0; t < VOCAB; t++)
		ck_assert_uint_eq(out[t], 0);
	/* Its hit is what it found first, not what it came back to. */
	ck_assert_uint_eq(f->usage.cached_tokens, 0);
	free(p);
	finish();
}
END_TEST

/* A prompt that is scored gives way in the middle: each token comes once. */
START_TEST(an_echoed_prompt_gives_way)
{
	static const uint32_t flags[] = {
		DCP_ECHO, DCP_ECHO | DCP_LOGPROBS };
	uint32_t *p = fk_prompt(VOCAB, 900, 1);
	struct fk_req b = tokens(p + 100, 500, 5), c = tokens(p, 60, 5);
	const struct fk_seen *f;
	uint64_t idb, idc;

	/* In the middle of its first page, and where the next token to score
	   is the first of the second. */
	fk_start(&F, (struct fk_spec){ .max_running = 1,
	    .chunk = _i < 4 ? 63 : 40 }, NULL);
	if (_i / 2 % 2 == 1)	/* all of it is cached */
		expect(submit(&b), &b);
	b.flags |= flags[_i % 2];
	c.p.priority = 1;
	fk_gate(&F.e);
	idb = submit(&b);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idc = submit(&c);
	wait_encoded(2);
	fk_open_gate(&F.e);
	expect(idc, &c);
	f = expect(idb, &b);
	ck_assert_int_eq(fk_status(&F, "preemptions"), 1);
	ck_assert_uint_eq(f->n_prompt, 500);
	ck_assert_mem_eq(f->prompt, b.ids, 500 * sizeof *p);
	for (uint32_t i = 1; i < 500 && _i % 2 == 1; i++)
		ck_assert_float_eq(f->prompt_lps[i],
		    fk_logprob(VOCAB, b.ids, i, b.ids[i]));
	free(p);
	finish();
}
END_TEST

/* A higher class takes a slot, and pages, from a lower one; it comes back. */
START_TEST(a_higher_class_does_not_wait_for_a_lower)
{
	uint32_t *p = fk_prompt(VOCAB, 900, 1);
	struct fk_req low = tokens(p, 300, 100), high = tokens(p + 301, 400, 9);
	struct fk_req same = tokens(p + 50, 300, 5);
	uint64_t idl, idh, ids;

	fk_start(&F, (struct fk_spec){ .pages = _i == 0 ? 256 : 9,
	    .max_running = _i == 0 ? 1 : 8 }, NULL);
	high.p.priority = 1;
	fk_gate(&F.e);
	idl = submit(&low);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	fk_let(&F.e, 5);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	ids = submit(&same);
	idh = submit(&high);
	wait_encoded(3);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	ck_assert_int_eq(preempted(idl), 1);
	fk_open_gate(&F.e);
	expect(idh, &high);
	expect(idl, &low);
	expect(ids, &same);
	ck_assert_int_eq(fk_idle(&F), 0);
	/* The pass after the one at the gate was high's, and the one that
	   only came later gave nobody a reason to. */
	ck_assert_uint_eq(F.e.log[6].first[0], high.ids[0]);
	ck_assert_int_eq(fk_status(&F, "preemptions"), 1);
	free(p);
	finish();
}
END_TEST

/* a and b until b has given way; false: its deadline came before. */
static bool
until_b_gave_way(const struct fk_req *a, const struct fk_req *b,
    uint64_t *ida, uint64_t *idb)
{
	unsigned text;

	fk_gate(&F.e);
	*ida = submit(a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	*idb = submit(b);
	/* Else a may end before b has begun. b's deadline may come first. */
	while (count_live(&text) > 1 && text > 0)
		usleep(100);
	while (fk_status(&F, "preemptions") == 0 && !fk_look(*idb).done) {
		fk_let(&F.e, 1);
		while (fk_at_gate(&F.e, 10) != 0 && !fk_look(*idb).done)
			;
	}
	return !fk_look(*idb).done;
}

/* It holds no pages while it waits; its end comes at once all the same. */
START_TEST(cancelled_and_past_its_deadline_after_giving_way)
{
	uint32_t *p = fk_prompt(VOCAB, 900, 1);
	struct fk_req a = tokens(p, 255, 300), b = tokens(p + 300, 191, 300);
	uint64_t ida, idb;

	fk_start(&F, (struct fk_spec){ .pages = 9 }, NULL);
	if (_i == 1)
		b.p.deadline_ms = 1000;
	while (!until_b_gave_way(&a, &b, &ida, &idb)) {
		ck_assert_int_eq(_i, 1);
		ck_assert_uint_le(b.p.deadline_ms *= 2, SOON);
		fk_open_gate(&F.e);
		expect(ida, &a);
		ck_assert_int_eq(fk_idle(&F), 0);
	}
	if (_i == 0)
		dcpd_sched_ipc_ops.cancel(F.s, F.c, idb);
	else
		usleep(b.p.deadline_ms * 1000);
	fk_let(&F.e, 1);
	ck_assert_uint_eq(fk_wait(idb)->finish, DCP_FINISH_ABORT);
	ck_assert_uint_gt(fk_wait(idb)->n, 0);
	ck_assert(!fk_look(ida).done);
	fk_open_gate(&F.e);
	expect(ida, &a);
	finish();
	free(p);
}
END_TEST

/* A short prompt behind a long one: at most the pass that runs, and its own. */
START_TEST(hi_behind_a_60k_prefill_answers_within_two_chunks)
{
	uint32_t *p = fk_prompt(VOCAB, 60100, 1);
	struct fk_req big = tokens(p, 60000, 5), hi = tokens(p + 60050, 3, 5);
	uint64_t idb, idh, passes;

	fk_start(&F, (struct fk_spec){ .pages = 1000, .max_ctx = 64000 }, NULL);
	fk_gate(&F.e);
	idb = submit(&big);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	fk_let(&F.e, 20);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idh = submit(&hi);
	wait_encoded(2);
	passes = fk_passes(&F.e);
	fk_let(&F.e, 2);
	ck_assert_int_eq(fk_wait_tokens(idh, 1, SOON), 0);
	ck_assert_uint_le(fk_passes(&F.e), passes + 2);
	fk_open_gate(&F.e);
	expect(idh, &hi);
	expect(idb, &big);
	free(p);
	finish();
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_preempt");
	TCase *t = tcase_create("preempt");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, nothing_is_reserved_for_answers);
	tcase_add_loop_test(t, outgrowing_the_pool_changes_no_answer, 0, 4);
	tcase_add_test(t, the_first_in_order_runs_as_if_alone);
	tcase_add_loop_test(t, the_youngest_gives_way, 0, 2);
	tcase_add_test(t, nobody_starves);
	tcase_add_test(t, penalties_of_a_resumed_request_go_on);
	tcase_add_loop_test(t, an_echoed_prompt_gives_way, 0, 8);
	tcase_add_loop_test(t, a_higher_class_does_not_wait_for_a_lower, 0, 2);
	tcase_add_loop_test(t, cancelled_and_past_its_deadline_after_giving_way,
	    0, 2);
	tcase_add_test(t, hi_behind_a_60k_prefill_answers_within_two_chunks);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
