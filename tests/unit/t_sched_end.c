/*
 * Every way in which a request ends early: cancelled, its client gone, past
 * its deadline; the daemon drains or stops, the engine fails. Steps stand at a
 * gate where a test needs to know what is going on.
 */
#include "config.h"

#include <errno.h>
#include <semaphore.h>

#include "tests/unit/sched_life.h"

/* --- cancelled --------------------------------------------------------- */

static sem_t pool_busy, pool_go;

static void
hold(struct dcpd_job *job)
{
	sem_post(&pool_busy);
	sem_wait(&pool_go);
}

/* Both text workers are kept busy until pool_go is posted twice. */
static void
block_pool(struct dcpd_job jobs[2])
{
	sem_init(&pool_busy, 0, 0);
	sem_init(&pool_go, 0, 0);
	for (unsigned i = 0; i < 2; i++) {
		jobs[i].run = hold;
		dcpd_textpool_post(F.pool, 99, &jobs[i]);
	}
	sem_wait(&pool_busy);
	sem_wait(&pool_busy);
}

static void
unblock_pool(void)
{
	sem_post(&pool_go);
	sem_post(&pool_go);
}

START_TEST(cancelled_while_queued_for_text)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 5);
	struct dcpd_job jobs[2];
	uint64_t id[3];

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	block_pool(jobs);
	for (unsigned i = 0; i < 3; i++)
		id[i] = submit(&q);
	/* Its end comes although no text worker is free. */
	cancel(id[1]);
	expect_abort(id[1]);
	cancel(id[1]);
	ck_assert_int_eq(dcpd_sched_cancel(F.s, id[1]), -ENOENT);
	unblock_pool();
	expect_tokens(id[0], &q);
	expect_tokens(id[2], &q);
	expect_clean();
	ck_assert_uint_eq(fk_wait(id[1])->events, 1);
	fk_stop(&F);
}
END_TEST

START_TEST(cancelled_while_waiting)
{
	uint32_t *p = fk_prompt(1000, 600, 1);
	struct fk_req a = tokens(p, 600, 40), b = tokens(p, 500, 5);
	uint64_t ida, idb;

	fk_start(&F, (struct fk_spec){ .pages = 10 }, NULL);
	fk_gate(&F.e);
	ida = submit(&a);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idb = submit(&b);
	wait_encoded(2);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	ck_assert_int_eq(fk_status(&F, "waiting"), 1);
	cancel(idb);
	fk_let(&F.e, 1);
	expect_abort(idb);
	fk_open_gate(&F.e);
	expect_tokens(ida, &a);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/*
 * Once the pass that runs is through, a request that must go takes part in no
 * other, and its pages are free.
 */
static void
leave_in_prefill(void (*leave)(uint64_t id), bool ends)
{
	uint32_t *p = fk_prompt(1000, 3000, 1);
	struct fk_req q = tokens(p, 3000, 40);
	uint64_t id, passes;

	fk_start(&F, (struct fk_spec){ .chunk = 500 }, NULL);
	fk_gate(&F.e);
	id = submit(&q);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	ck_assert_int_eq(fk_status(&F, "pages_used"), 8);
	passes = fk_passes(&F.e);
	leave(id);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_uint_eq(fk_passes(&F.e), passes);
	ck_assert_int_eq(fk_status(&F, "requests_cancelled"), 1);
	if (ends)
		expect_abort(id);
	else
		ck_assert_uint_eq(fk_look(id).events, 0);
	fk_open_gate(&F.e);
	free(p);
}

static void
die(uint64_t id)
{
	struct dcpd_client *c = fk_look(id).client;

	dcpd_sched_ipc_ops.gone(F.s, c);
}

START_TEST(cancelled_in_prefill)
{
	leave_in_prefill(cancel, true);
	expect_clean();
	fk_stop(&F);
}
END_TEST

START_TEST(client_gone_in_prefill)
{
	leave_in_prefill(die, false);
	expect_clean();
	fk_stop(&F);
}
END_TEST

START_TEST(cancelled_in_decode_others_go_on)
{
	uint32_t *p = fk_prompt(1000, 100, 1);
	struct fk_req q = tokens(p, 100, 200);
	uint64_t id[3];

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	fk_gate(&F.e);
	for (unsigned i = 0; i < 3; i++)
		id[i] = submit(&q);
	wait_encoded(3);
	fk_let(&F.e, 40);
	ck_assert_int_eq(fk_wait_tokens(id[1], 20, SOON), 0);
	cancel(id[1]);
	fk_open_gate(&F.e);
	expect_abort(id[1]);
	ck_assert_uint_ge(fk_wait(id[1])->n, 20);
	ck_assert_uint_lt(fk_wait(id[1])->n, 200);
	expect_tokens(id[0], &q);
	expect_tokens(id[2], &q);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/* A client that does not read as fast as tokens come, then cancels. */
START_TEST(cancelled_after_its_end_is_no_second_end)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 5);
	uint64_t id;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	fk_block_emit(true);
	id = submit(&q);
	while (fk_status(&F, "requests_finished") == 0)
		usleep(1000);
	cancel(id);
	die(id);
	ck_assert_int_eq(dcpd_sched_cancel(F.s, id), -ENOENT);
	ck_assert_int_eq(fk_status(&F, "pages_used"), 0);
	fk_block_emit(false);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_uint_eq(fk_look(id).after_end, 0);
	expect_clean();
	fk_stop(&F);
}
END_TEST

/* ipc says -EPIPE before it says gone: the request ends all the same. */
START_TEST(a_broken_pipe_ends_the_request)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 4000);
	struct dcpd_client *c;
	uint64_t id;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	c = fk_client(2);
	fk_gate(&F.e);
	id = submit_as(c, &q);
	fk_let(&F.e, 3);
	ck_assert_int_eq(fk_wait_tokens(id, 3, SOON), 0);
	fk_gone(c);
	fk_open_gate(&F.e);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_status(&F, "requests_cancelled"), 1);
	expect_clean();
	fk_stop(&F);
}
END_TEST

/* A long prefill, cancelled: who waited for its pages answers in one chunk. */
START_TEST(hi_behind_a_cancelled_60k_prefill)
{
	uint32_t *p = fk_prompt(1000, 60000, 1);
	struct fk_req big = tokens(p, 60000, 100), hi = tokens(p, 3, 5000);
	uint64_t idb, idh, passes;

	fk_start(&F, (struct fk_spec){ .pages = 940, .max_ctx = 64000 }, NULL);
	fk_gate(&F.e);
	idb = submit(&big);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	fk_let(&F.e, 20);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	idh = submit(&hi);
	wait_encoded(2);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	ck_assert_int_eq(fk_status(&F, "waiting"), 1);
	passes = fk_passes(&F.e);
	cancel(idb);
	fk_let(&F.e, 2);	/* the pass at the gate, and one of hi's */
	ck_assert_int_eq(fk_wait_tokens(idh, 1, SOON), 0);
	ck_assert_uint_le(fk_passes(&F.e), passes + 2);
	expect_abort(idb);
	cancel(idh);
	fk_open_gate(&F.e);
	expect_abort(idh);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

START_TEST(aborted_and_sent_again_1000_times)
{
	uint32_t *p = fk_prompt(1000, 700, 1);
	struct fk_req q = tokens(p, 700, 30);
	uint64_t id = 0;

	fk_start(&F, (struct fk_spec){ .chunk = 100, .pages = 30 }, NULL);
	for (unsigned i = 0; i < 1000; i++) {
		id = submit(&q);
		if (i % 3 == 1)
			ck_assert_int_eq(fk_wait_tokens(id, i % 7, SOON), 0);
		if (i % 10 != 0)
			cancel(id);
	}
	id = submit(&q);
	expect_tokens(id, &q);
	/* The prefix is hit still. */
	ck_assert_uint_eq(fk_wait(id)->usage.cached_tokens, 640);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/* --- deadlines --------------------------------------------------------- */

START_TEST(deadline_while_queued_for_text)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 5);
	struct dcpd_job jobs[2];
	uint64_t id, t0;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	/* No text worker is free, and the step thread is asleep. */
	block_pool(jobs);
	t0 = dcpd_now_ns();
	q.p.deadline_ms = 30;
	id = submit(&q);
	expect_abort(id);
	ck_assert_uint_ge(fk_wait(id)->t_done - t0, 30000000);
	unblock_pool();
	expect_clean();
	fk_stop(&F);
}
END_TEST

START_TEST(deadline_while_waiting_for_pages)
{
	uint32_t *p = fk_prompt(1000, 600, 1);
	struct fk_req a = tokens(p, 600, 40), b = tokens(p, 500, 5);
	uint64_t ida, idb;

	fk_start(&F, (struct fk_spec){ .pages = 10 }, NULL);
	fk_gate(&F.e);
	a.p.deadline_ms = 3600000;	/* one that is kept does no harm */
	ida = submit(&a);
	fk_let(&F.e, 2);		/* its prompt */
	ck_assert_int_eq(fk_at_gate(&F.e, SOON), 0);
	b.p.deadline_ms = 30;
	idb = submit(&b);
	wait_encoded(2);
	usleep(31000);
	fk_let(&F.e, 1);
	expect_abort(idb);
	ck_assert_uint_eq(fk_wait(idb)->n, 0);
	ck_assert(!fk_look(ida).done);
	fk_open_gate(&F.e);
	expect_tokens(ida, &a);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

START_TEST(deadline_in_decode_leaves_what_there_was)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 4000);
	const struct fk_seen *f;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	F.e.step_us = 10000;
	/* On a busy machine it may pass before the first token. */
	q.p.deadline_ms = 100;
	do {
		ck_assert_uint_le(q.p.deadline_ms, SOON);
		f = fk_wait(submit(&q));
		q.p.deadline_ms *= 2;
	} while (f->n == 0);
	ck_assert_int_eq(f->error, 0);
	ck_assert_uint_eq(f->finish, DCP_FINISH_ABORT);
	ck_assert_uint_eq(f->usage.completion_tokens, f->n);
	ck_assert_uint_lt(f->n, 4000);
	F.e.step_us = 0;
	expect_clean();
	fk_stop(&F);
}
END_TEST

/* --- the daemon's side ------------------------------------------------- */

START_TEST(draining_refuses_and_finishes)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 50);
	struct dcpd_err err;
	uint64_t id, x;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	F.e.step_us = 200;
	id = submit(&q);
	dcpd_sched_drain(F.s, true);
	ck_assert_int_eq(fk_submit(F.s, F.c, &q, &x, &err), -ESHUTDOWN);
	ck_assert_ptr_nonnull(strstr(err.text, "draining"));
	expect_tokens(id, &q);
	ck_assert_int_eq(fk_idle(&F), 0);
	dcpd_sched_drain(F.s, false);
	expect_clean();
	fk_stop(&F);
}
END_TEST

START_TEST(stop_ends_every_request)
{
	uint32_t *p = fk_prompt(1000, 600, 1);
	struct fk_req a = tokens(p, 10, 3000), b = tokens(p, 600, 3000);
	uint64_t id[4];

	fk_start(&F, (struct fk_spec){ .chunk = 10, .pages = 100 }, NULL);
	F.e.step_us = 10000;
	id[0] = submit(&a);
	ck_assert_int_eq(fk_wait_tokens(id[0], 1, SOON), 0);
	id[1] = submit(&b);
	id[2] = submit(&b);
	id[3] = submit(&b);
	dcpd_sched_stop(F.s);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(fk_wait(id[i])->error, -ESHUTDOWN);
		ck_assert_ptr_nonnull(strstr(fk_wait(id[i])->error_text,
		    "stopping"));
	}
	dcpd_textpool_stop(F.pool);
	fk_engine_close(&F.e);
	fk_forget();
	free(p);
}
END_TEST

START_TEST(an_engine_that_fails_ends_every_request)
{
	uint32_t *p = fk_prompt(1000, 600, 1);
	struct fk_req a = tokens(p, 100, 300);
	struct dcpd_err err = { 0 };
	uint64_t id[5], x;

	fk_start(&F, (struct fk_spec){ .max_running = 2 }, NULL);
	ck_assert(!dcpd_sched_failed(F.s, &err));
	F.e.fail_at = 7;
	fk_gate(&F.e);
	for (unsigned i = 0; i < 5; i++)
		id[i] = submit(&a);
	fk_open_gate(&F.e);
	for (unsigned i = 0; i < 5; i++) {
		const struct fk_seen *f = fk_wait(id[i]);

		ck_assert_int_eq(f->error, -EIO);
		ck_assert_ptr_nonnull(strstr(f->error_text,
		    "rank 3 is lost"));
	}
	ck_assert(dcpd_sched_failed(F.s, &err));
	ck_assert_ptr_nonnull(strstr(err.text, "in step "));
	ck_assert_int_eq(fk_submit(F.s, F.c, &a, &x, &err), -EIO);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_uint_eq(fk_passes(&F.e), 7);
	free(p);
	fk_stop(&F);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_end");
	TCase *t = tcase_create("end");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, cancelled_while_queued_for_text);
	tcase_add_test(t, cancelled_while_waiting);
	tcase_add_test(t, cancelled_in_prefill);
	tcase_add_test(t, client_gone_in_prefill);
	tcase_add_test(t, cancelled_in_decode_others_go_on);
	tcase_add_test(t, cancelled_after_its_end_is_no_second_end);
	tcase_add_test(t, a_broken_pipe_ends_the_request);
	tcase_add_test(t, hi_behind_a_cancelled_60k_prefill);
	tcase_add_test(t, aborted_and_sent_again_1000_times);
	tcase_add_test(t, deadline_while_queued_for_text);
	tcase_add_test(t, deadline_while_waiting_for_pages);
	tcase_add_test(t, deadline_in_decode_leaves_what_there_was);
	tcase_add_test(t, draining_refuses_and_finishes);
	tcase_add_test(t, stop_ends_every_request);
	tcase_add_test(t, an_engine_that_fails_ends_every_request);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
