/*
 * The scheduler over a request's life: order, limits, and every way to end
 * early. Steps stand at a gate where a test needs to know what is going on.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "tests/unit/sched_fake.h"

static struct fk F;

static struct fk_req
tokens(const uint32_t *ids, uint32_t n, uint32_t max)
{
	return (struct fk_req){
		.ids = ids, .n = n, .max_tokens = max,
		.flags = DCP_IGNORE_EOS,
	};
}

static uint64_t
submit(struct dcpd_client *c, const struct fk_req *q)
{
	struct dcpd_err err = { 0 };
	uint64_t id;
	int rc = fk_submit(F.s, c, q, &id, &err);

	ck_assert_msg(rc == 0, "%s", err.text);
	return id;
}

/* Until n requests are live and none of them is with the text workers. */
static void
wait_encoded(unsigned n)
{
	unsigned live = 0, text = 1;

	while (live < n || text > 0) {
		json_t *list = dcpd_sched_requests(F.s), *o;
		size_t i;

		live = (unsigned)json_array_size(list);
		text = 0;
		json_array_foreach(list, i, o)
			text += strcmp(json_string_value(json_object_get(o,
			    "state")), "text") == 0;
		json_decref(list);
		usleep(100);
	}
}

static void
cancel(uint64_t id)
{
	dcpd_sched_ipc_ops.cancel(F.s, fk_look(id).client, id);
}

static void
expect_tokens(uint64_t id, const struct fk_req *q)
{
	const struct fk_seen *f = fk_wait(id);
	uint32_t *want = calloc(q->max_tokens, sizeof *want);

	ck_assert_msg(f->error == 0, "%s", f->error_text);
	fk_expect(F.e.e.vocab, q->ids, q->n, NULL, UINT32_MAX, want,
	    q->max_tokens);
	ck_assert_uint_eq(f->n, q->max_tokens);
	ck_assert_mem_eq(f->tokens, want, f->n * sizeof *want);
	free(want);
}

static void
expect_abort(uint64_t id)
{
	const struct fk_seen *f = fk_wait(id);

	ck_assert_int_eq(f->error, 0);
	ck_assert_uint_eq(f->finish, DCP_FINISH_ABORT);
	ck_assert_uint_eq(f->usage.completion_tokens, f->n);
}

/* Nothing is left of any request, and the scheduler still answers. */
static void
expect_clean(void)
{
	uint32_t ids[3] = { 1, 2, 3 };
	struct fk_req q = tokens(ids, 3, 4);
	struct dcpd_err err;

	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_msg(dcpd_sched_check(F.s, &err) == 0, "%s", err.text);
	ck_assert_int_eq(fk_status(&F, "pages_used"), 0);
	ck_assert_int_eq(fk_status(&F, "pages_free") +
	    fk_status(&F, "pages_cached"), F.e.e.pages);
	expect_tokens(submit(F.c, &q), &q);
}

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
		id[i] = submit(F.c, &q);
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
	ida = submit(F.c, &a);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	idb = submit(F.c, &b);
	wait_encoded(2);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
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
	id = submit(F.c, &q);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
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
	F.e.step_us = 500;
	for (unsigned i = 0; i < 3; i++)
		id[i] = submit(F.c, &q);
	ck_assert_int_eq(fk_wait_tokens(id[1], 20, 10000), 0);
	cancel(id[1]);
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
	id = submit(F.c, &q);
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

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	c = fk_client(2);
	F.e.step_us = 1000;
	ck_assert_int_eq(fk_wait_tokens(submit(c, &q), 3, 10000), 0);
	fk_block_emit(true);
	c->gone = true;
	fk_block_emit(false);
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
	idb = submit(F.c, &big);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	fk_let(&F.e, 20);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	idh = submit(F.c, &hi);
	wait_encoded(2);
	fk_let(&F.e, 1);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	ck_assert_int_eq(fk_status(&F, "waiting"), 1);
	passes = fk_passes(&F.e);
	cancel(idb);
	fk_let(&F.e, 2);	/* the pass at the gate, and one of hi's */
	ck_assert_int_eq(fk_wait_tokens(idh, 1, 5000), 0);
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
		id = submit(F.c, &q);
		if (i % 3 == 1)
			ck_assert_int_eq(fk_wait_tokens(id, i % 7, 10000), 0);
		if (i % 10 != 0)
			cancel(id);
	}
	id = submit(F.c, &q);
	expect_tokens(id, &q);
	/* The prefix is hit still. */
	ck_assert_uint_eq(fk_wait(id)->usage.cached_tokens, 640);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/* --- deadlines --------------------------------------------------------- */

START_TEST(deadline_in_every_state)
{
	uint32_t *p = fk_prompt(1000, 600, 1);
	struct fk_req a = tokens(p, 600, 40), b = tokens(p, 500, 5);
	struct dcpd_job jobs[2];
	uint64_t ida, idb, idc, t0;

	fk_start(&F, (struct fk_spec){ .pages = 10 }, NULL);
	/* Queued for text, and the step thread asleep. */
	block_pool(jobs);
	t0 = dcpd_now_ns();
	b.p.deadline_ms = 30;
	idc = submit(F.c, &b);
	expect_abort(idc);
	ck_assert_uint_ge(fk_wait(idc)->t_done - t0, 30000000);
	ck_assert_uint_lt(fk_wait(idc)->t_done - t0, 1000000000);
	unblock_pool();
	/* Waiting for pages; and in decode, with what it had. */
	F.e.step_us = 10000;
	a.p.deadline_ms = 200;
	ida = submit(F.c, &a);
	ck_assert_int_eq(fk_wait_tokens(ida, 1, 5000), 0);
	idb = submit(F.c, &b);
	expect_abort(idb);
	expect_abort(ida);
	ck_assert_uint_eq(fk_wait(idb)->n, 0);
	ck_assert_uint_gt(fk_wait(ida)->n, 0);
	ck_assert_uint_gt(fk_wait(ida)->t_done, fk_wait(idb)->t_done);
	/* One that is kept does no harm. */
	F.e.step_us = 0;
	a.p.deadline_ms = 60000;
	expect_tokens(submit(F.c, &a), &a);
	expect_clean();
	free(p);
	fk_stop(&F);
}
END_TEST

/* --- limits ------------------------------------------------------------ */

START_TEST(ten_times_too_many_are_refused_at_once)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 5);
	struct dcpd_err err;
	uint64_t id[120], t0;
	unsigned in = 1;

	fk_start(&F, (struct fk_spec){ .queue_max = 10 }, NULL);
	fk_gate(&F.e);
	id[0] = submit(F.c, &q);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	t0 = dcpd_now_ns();
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
	ck_assert_uint_lt(dcpd_now_ns() - t0, 1000000000);
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
		submit(F.c, &q);
	ck_assert_int_eq(fk_submit(F.s, F.c, &q, &x, &err), -EAGAIN);
	ck_assert(strstr(err.text, "user 7 has 3 requests") != NULL);
	q.uid = 8;
	id = submit(F.c, &q);
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
	F.e.step_us = 1000;
	a.uid = b.uid = d.uid = 1;
	c.uid = 2;
	ida = submit(F.c, &a);
	ck_assert_int_eq(fk_wait_tokens(ida, 1, 5000), 0);
	idb = submit(F.c, &b);
	idd = submit(F.c, &d);
	idc = submit(other, &c);
	expect_tokens(ida, &a);
	expect_tokens(idb, &b);
	expect_tokens(idc, &c);
	ck_assert_uint_gt(fk_wait(idb)->t_first, fk_wait(ida)->t_done);
	ck_assert_uint_lt(fk_wait(idc)->t_done, fk_wait(ida)->t_done);
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
	id = submit(F.c, &a);
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
		id[i] = submit(F.c, &q[i]);
		if (i == 0)
			ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
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
	F.e.step_us = 500;
	ida = submit(F.c, &a);
	ck_assert_int_eq(fk_wait_tokens(ida, 1, 5000), 0);
	idb = submit(F.c, &b);
	while (fk_status(&F, "waiting") == 0)
		usleep(100);
	idc = submit(F.c, &c);
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
		id[i] = submit(F.c, &q[i]);
		if (i == 0)
			ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
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
	ida = submit(F.c, &a);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	idb = submit(F.c, &b);
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
		id[i] = submit(F.c, &q[i]);
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
		id[i] = submit(F.c, &q);
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
	ida = submit(F.c, &a);
	do {
		passes = fk_passes(&F.e);
		usleep(100000);
	} while (passes == 0 || passes != fk_passes(&F.e));
	list = dcpd_sched_requests(F.s);
	ck_assert_int_lt(json_integer_value(json_object_get(
	    json_array_get(list, 0), "generated")), 300);
	json_decref(list);
	idb = submit(F.c, &b);
	fk_block_emit(false);
	expect_tokens(ida, &a);
	expect_tokens(idb, &b);
	expect_clean();
	fk_stop(&F);
}
END_TEST

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

/* --- the daemon's side ------------------------------------------------- */

START_TEST(draining_refuses_and_finishes)
{
	uint32_t ids[2] = { 1, 2 };
	struct fk_req q = tokens(ids, 2, 50);
	struct dcpd_err err;
	uint64_t id, x;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	F.e.step_us = 200;
	id = submit(F.c, &q);
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
	F.e.step_us = 1000;
	id[0] = submit(F.c, &a);
	ck_assert_int_eq(fk_wait_tokens(id[0], 1, 5000), 0);
	id[1] = submit(F.c, &b);
	id[2] = submit(F.c, &b);
	id[3] = submit(F.c, &b);
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
		id[i] = submit(F.c, &a);
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
	id = submit(F.c, &q);
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
	fk_let(&F.e, 3);	/* the prompt and two tokens: 133 rows */
	ck_assert_int_eq(fk_at_gate(&F.e, 5000), 0);
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
	expect_tokens(submit(F.c, &q), &q);
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
	Suite *s = suite_create("sched_life");
	TCase *t = tcase_create("life");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, cancelled_while_queued_for_text);
	tcase_add_test(t, cancelled_while_waiting);
	tcase_add_test(t, cancelled_in_prefill);
	tcase_add_test(t, client_gone_in_prefill);
	tcase_add_test(t, cancelled_in_decode_others_go_on);
	tcase_add_test(t, cancelled_after_its_end_is_no_second_end);
	tcase_add_test(t, a_broken_pipe_ends_the_request);
	tcase_add_test(t, hi_behind_a_cancelled_60k_prefill);
	tcase_add_test(t, aborted_and_sent_again_1000_times);
	tcase_add_test(t, deadline_in_every_state);
	tcase_add_test(t, ten_times_too_many_are_refused_at_once);
	tcase_add_test(t, one_users_requests_are_limited);
	tcase_add_test(t, a_full_quota_delays_its_user_only);
	tcase_add_test(t, a_quota_that_is_read_free_is_noticed_when_idle);
	tcase_add_test(t, first_come_first_served_but_for_priority);
	tcase_add_test(t, nobody_overtakes_who_waits_for_pages);
	tcase_add_test(t, a_prefill_pass_holds_several_prompts);
	tcase_add_test(t, decode_goes_on_beside_a_long_prefill);
	tcase_add_test(t, huge_top_logprobs_take_turns);
	tcase_add_test(t, huge_adjustments_take_turns);
	tcase_add_test(t, output_that_nobody_takes_is_bounded);
	tcase_add_test(t, idle_costs_nothing);
	tcase_add_test(t, draining_refuses_and_finishes);
	tcase_add_test(t, stop_ends_every_request);
	tcase_add_test(t, an_engine_that_fails_ends_every_request);
	tcase_add_test(t, status_tells_what_each_rank_holds);
	tcase_add_test(t, prefill_goes_the_way_that_is_predicted_fastest);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
