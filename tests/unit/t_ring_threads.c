/*
 * Many threads on one connection: each event reaches exactly one of them,
 * none is lost, whatever mixture of calls they make.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/ring_server.h"

#define THREADS 6
#define REQUESTS 40u		/* of each thread */
#define TOKENS 25u
#define TIMEOUT 20000

static struct ring_server *rs;
static struct dcp *d;
static _Atomic uint32_t done, deltas, cancelled;
/* By user_data: the next seq that must come, counted by all threads. */
static _Atomic uint64_t seen[THREADS * REQUESTS];

static void
account(const struct dcp_event *ev)
{
	uint64_t bit = 1ull << ev->seq;

	ck_assert_uint_lt(ev->user_data, THREADS * REQUESTS);
	/* Each seq once, whichever thread took it. */
	ck_assert_uint_eq(atomic_fetch_or(&seen[ev->user_data], bit) & bit, 0);
	if (ev->type == DCP_EV_DELTA)
		atomic_fetch_add(&deltas, 1);
	else
		atomic_fetch_add(&done, 1);
	if (ev->finish == DCP_FINISH_ABORT)
		atomic_fetch_add(&cancelled, 1);
}

/* Take what there is; any thread may get any request's events. */
static void
take(int timeout_ms)
{
	const struct dcp_event *ev;
	int rc = dcp_next(d, timeout_ms, &ev);

	if (rc == -EAGAIN)
		return;
	ck_assert_msg(rc == 0, "%d %s", rc, dcp_error_text());
	account(ev);
	dcp_event_release(d, ev);
}

static void *
mixed(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg, i = 0;
	struct pollfd p = { .events = POLLIN };
	uint32_t first = me;
	struct dcp_request r = { .size = sizeof r, .data = &first, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = TOKENS };
	char *json;
	uint64_t id;
	int rc;

	while (atomic_load(&done) < THREADS * REQUESTS) {
		if (i < REQUESTS) {
			r.user_data = me * REQUESTS + i;
			rc = dcp_submit(d, &r, &id);
			if (rc == -EAGAIN) {
				take(1);
				continue;
			}
			ck_assert_int_eq(rc, 0);
			i++;
			if (i % 7 == 0) {
				rc = dcp_cancel(d, id);
				ck_assert(rc == 0 || rc == -ENOENT ||
				    rc == -EAGAIN);
			}
		}
		if (me == 1 && i % 8 == 1) {
			ck_assert_int_eq(dcp_server_info(d, &json), 0);
			ck_assert_str_eq(json, "{\"model\":\"counter\"}");
			free(json);
		}
		if (me == 2) {
			p.fd = dcp_fd(d);
			poll(&p, 1, 5);
			take(0);
		} else {
			take(me == 3 ? 0 : 20);
		}
	}
	return NULL;
}

START_TEST(each_event_reaches_one_thread_once)
{
	struct ring_server_config cfg = { .ipc.path = ring_temp_path("s"),
	    .step_us = 20, .ipc.max_requests_uid = 1000 };
	pthread_t t[THREADS];
	uintptr_t i;
	uint64_t all;

	rs = ring_server_start(&cfg);
	ck_assert_int_eq(dcp_connect(cfg.ipc.path, TIMEOUT, &d), 0);
	for (i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, mixed, (void *)i);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	/* No hole: the set of seqs of each request is 0..n. */
	for (i = 0; i < THREADS * REQUESTS; i++) {
		all = atomic_load(&seen[i]);
		ck_assert_msg(all != 0 && (all & (all + 1)) == 0,
		    "request %u: seqs %#llx", (unsigned)i,
		    (unsigned long long)all);
	}
	ck_assert_uint_eq(done, THREADS * REQUESTS);
	ck_assert_uint_gt(deltas, 0);
	dcp_close(d);
	ring_server_stop(rs);
}
END_TEST

static void *
one_waiter(void *arg)
{
	const struct dcp_event *ev;
	_Atomic uint32_t *got = arg;

	/* For ever: a missed wake-up hangs the test. */
	ck_assert_int_eq(dcp_next(d, -1, &ev), 0);
	dcp_event_release(d, ev);
	atomic_fetch_add(got, 1);
	return NULL;
}

START_TEST(every_waiter_is_woken)
{
	struct ring_server_config cfg = { .ipc.path = ring_temp_path("s") };
	_Atomic uint32_t got = 0;
	uint32_t first = 1;
	struct dcp_request r = { .size = sizeof r, .data = &first, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = 7 };
	pthread_t t[8];
	unsigned round, i;
	uint64_t id;

	rs = ring_server_start(&cfg);
	ck_assert_int_eq(dcp_connect(cfg.ipc.path, TIMEOUT, &d), 0);
	for (round = 0; round < 50; round++) {
		for (i = 0; i < 8; i++)
			pthread_create(&t[i], NULL, one_waiter, &got);
		usleep(round % 5 * 200);
		ck_assert_int_eq(dcp_submit(d, &r, &id), 0);
		for (i = 0; i < 8; i++)		/* 7 tokens and the end */
			pthread_join(t[i], NULL);
	}
	ck_assert_uint_eq(got, 400);
	dcp_close(d);
	ring_server_stop(rs);
}
END_TEST

static void *
own_connection(void *arg)
{
	const char *path = arg;
	const struct dcp_event *ev;
	uint32_t first = 5, n, k, type;
	struct dcp_request r = { .size = sizeof r, .data = &first, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = 3000 };
	struct dcp *mine;
	uint64_t id;
	unsigned i;

	for (i = 0; i < 4; i++) {
		ck_assert_int_eq(dcp_connect(path, TIMEOUT, &mine), 0);
		ck_assert_int_eq(dcp_submit(mine, &r, &id), 0);
		n = 0;
		do {
			ck_assert_int_eq(dcp_next(mine, TIMEOUT, &ev), 0);
			for (k = 0; k < ev->n_tokens; k++, n++)
				ck_assert_uint_eq(ev->tokens[k],
				    (5 + n) % 1000);
			type = ev->type;
			dcp_event_release(mine, ev);
		} while (type == DCP_EV_DELTA);
		ck_assert_uint_eq(n, 3000);
		dcp_close(mine);
	}
	return NULL;
}

START_TEST(connections_of_many_threads_do_not_mix)
{
	const char *path = ring_temp_path("s");
	struct ring_server_config cfg = { .ipc.path = path };
	pthread_t t[8];
	unsigned i;

	rs = ring_server_start(&cfg);
	for (i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, own_connection, (void *)path);
	for (i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	ring_server_stop(rs);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("ring threads");
	TCase *t = tcase_create("threads");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_set_timeout(t, 180);
	tcase_add_test(t, each_event_reaches_one_thread_once);
	tcase_add_test(t, every_waiter_is_woken);
	tcase_add_test(t, connections_of_many_threads_do_not_mix);
	suite_add_tcase(s, t);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed > 0;
}
