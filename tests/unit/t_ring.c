/*
 * The ring from end to end, one client and the real server side, both in
 * this process: requests, answers, wrap-around, full rings, slow readers,
 * cancellation, quotas, server info, forks.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libdcpclient/private.h"
#include "tests/unit/ring_server.h"

#define TIMEOUT 20000		/* ms; generous, for sanitizers on busy cores */

#define JOINED 2048		/* bytes of text that come joined, at most */

static struct ring_server *rs;
static struct dcp *d;

static void
start(struct ring_server_config cfg)
{
	const char *path = ring_temp_path("sock");

	cfg.ipc.path = path;
	rs = ring_server_start(&cfg);
	ck_assert_ptr_nonnull(rs);
	ck_assert_int_eq(dcp_connect(path, TIMEOUT, &d), 0);
}

static void
finish(void)
{
	dcp_close(d);
	ring_server_stop(rs);
}

static struct dcp_request
tokens(const uint32_t *ids, size_t n, uint32_t max_tokens)
{
	return (struct dcp_request){
		.size = sizeof(struct dcp_request), .input = DCP_INPUT_TOKENS,
		.data = ids, .len = n * 4, .max_tokens = max_tokens,
	};
}

static uint64_t
submit(uint32_t first, uint32_t max_tokens)
{
	struct dcp_request r = tokens(&first, 1, max_tokens);
	uint64_t id;
	int rc;

	r.user_data = first;
	rc = dcp_submit(d, &r, &id);
	ck_assert_msg(rc == 0, "%d %s", rc, dcp_error_text());
	return id;
}

/*
 * Take one request's whole answer, alone on the connection. Tokens may come
 * joined when they had to wait. Returns the number of events.
 */
static uint32_t
expect(uint64_t id, uint32_t first, uint32_t n)
{
	uint32_t got = 0, events = 0, i, type;
	const struct dcp_event *ev;
	char text[JOINED], *p;
	int rc;

	do {
		rc = dcp_next(d, TIMEOUT, &ev);
		ck_assert_msg(rc == 0, "token %u: %d %s", got, rc,
		    dcp_error_text());
		ck_assert_uint_eq(ev->request, id);
		ck_assert_uint_eq(ev->user_data, first);
		ck_assert_uint_eq(ev->seq, events);
		type = ev->type;
		p = text;
		*p = '\0';
		for (i = 0; i < ev->n_tokens; i++, got++) {
			ck_assert_uint_eq(ev->tokens[i], (first + got) % 1000);
			p += sprintf(p, "%u ", (first + got) % 1000);
		}
		ck_assert_str_eq(ev->text, text);
		ck_assert_uint_eq(ev->text_len, strlen(text));
		if (type != DCP_EV_DELTA) {
			ck_assert_uint_eq(type, DCP_EV_DONE);
			ck_assert_uint_eq(ev->finish, DCP_FINISH_LENGTH);
			ck_assert_uint_eq(ev->usage.prompt_tokens, 1);
			ck_assert_uint_eq(ev->usage.completion_tokens, n);
		}
		dcp_event_release(d, ev);
		events++;
	} while (type == DCP_EV_DELTA);
	ck_assert_uint_eq(got, n);
	return events;
}

START_TEST(one_request_gives_its_tokens_in_order)
{
	start((struct ring_server_config){ .reserve = true });
	expect(submit(7, 20), 7, 20);
	expect(submit(990, 20), 990, 20);
	finish();
}
END_TEST

/* Rings and stream wrap many times: 4096 entries, 4 MiB. */
START_TEST(indices_wrap_and_nothing_is_lost)
{
	struct dcp_request r;
	static uint32_t ids[300000];	/* 1.2 MB: the arena wraps too */
	const struct dcp_event *ev;
	uint32_t i, k;
	uint64_t id;

	start((struct ring_server_config){ 0 });
	expect(submit(1, 50000), 1, 50000);
	for (i = 0; i < 30; i++) {
		ids[0] = i;
		r = tokens(ids, 300000 - i * 1000, 600);
		r.flags = DCP_LOGPROBS;
		r.top_logprobs = 40;	/* 384 B a token: in the stream */
		ck_assert_int_eq(dcp_submit(d, &r, &id), 0);
		for (k = 0; k <= 600; k++) {
			ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
			if (k < 600) {
				ck_assert_uint_eq(ev->tokens[0], i + k);
				ck_assert_uint_eq(ev->n_logprobs, 1);
				ck_assert_uint_eq(
				    ev->logprobs[0].chosen.token, i + k);
				ck_assert_float_eq(
				    ev->logprobs[0].chosen.logprob,
				    -0.5f * (float)(k + 1));
				ck_assert_uint_eq(ev->logprobs[0].n_top, 40);
				ck_assert_uint_eq(
				    ev->logprobs[0].top[39].token, 39);
			} else {
				ck_assert_uint_eq(ev->usage.prompt_tokens,
				    300000 - i * 1000);
			}
			dcp_event_release(d, ev);
		}
	}
	finish();
}
END_TEST

START_TEST(full_submission_ring_says_eagain_and_recovers)
{
	uint32_t first = 1, done = 0, sent = 0;
	struct dcp_request r = tokens(&first, 1, 1);
	const struct dcp_event *ev;
	bool full = false;
	uint64_t id;
	int rc;

	/* Refusals pile up unread until the daemon stops listening. */
	start((struct ring_server_config){ 0 });
	r.options = "{\"refuse\":true}";
	while (!full && sent < 100000) {
		rc = dcp_submit(d, &r, &id);
		if (rc == 0)
			sent++;
		else if (rc == -EAGAIN) {
			usleep(20000);
			full = dcp_submit(d, &r, &id) == -EAGAIN;
			sent += !full;
		} else
			ck_abort_msg("%d %s", rc, dcp_error_text());
	}
	ck_assert(full);
	while (done < sent) {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		ck_assert_uint_eq(ev->type, DCP_EV_ERROR);
		ck_assert_int_eq(ev->error, -ENOSPC);
		ck_assert_str_eq(ev->text, "refused as asked");
		dcp_event_release(d, ev);
		done++;
	}
	expect(submit(5, 3), 5, 3);
	finish();
}
END_TEST

START_TEST(slow_reader_delays_only_itself)
{
	struct dcp *slow, *fast = NULL;
	uint32_t first = 0, n;
	struct dcp_request r = tokens(&first, 1, 30000);
	double t;
	uint64_t id;

	start((struct ring_server_config){ .reserve = true });
	slow = d;
	ck_assert_int_eq(dcp_submit(slow, &r, &id), 0);
	/* Far more than the ring holds is on its way; nobody reads it. */
	ck_assert_int_eq(dcp_connect(ring_temp_path("sock"), TIMEOUT, &fast),
	    0);
	d = fast;
	t = dcpd_now();
	expect(submit(3, 100), 3, 100);
	ck_assert_double_lt(dcpd_now() - t, 60);
	while (ring_server_jobs(rs) > 0)
		usleep(1000);
	d = slow;
	n = expect(id, 0, 30000);
	/* 4096 fill the ring; the others waited, many in one event. */
	ck_assert_uint_gt(n, 4096);
	ck_assert_uint_lt(n, 4096 + (30000 - 4096) / 32);
	dcp_close(fast);
	finish();
}
END_TEST

START_TEST(cancel_ends_a_running_request)
{
	const struct dcp_event *ev;
	uint32_t type, n = 0;
	uint64_t id;

	start((struct ring_server_config){ .step_us = 500 });
	id = submit(1, 1000000);
	ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
	dcp_event_release(d, ev);
	ck_assert_int_eq(dcp_cancel(d, id), 0);
	do {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		type = ev->type;
		if (type == DCP_EV_DONE)
			ck_assert_uint_eq(ev->finish, DCP_FINISH_ABORT);
		dcp_event_release(d, ev);
		n++;
	} while (type == DCP_EV_DELTA);
	ck_assert_uint_eq(type, DCP_EV_DONE);
	ck_assert_uint_lt(n, 100000);
	ck_assert_int_eq(dcp_cancel(d, id), -ENOENT);
	ck_assert_int_eq(dcp_cancel(d, id + (1ull << 32)), -ENOENT);
	finish();
}
END_TEST

/* A stream that nobody reads must not keep the cancel from arriving. */
START_TEST(cancel_arrives_though_the_stream_is_full)
{
	uint64_t id;
	double t;

	start((struct ring_server_config){ 0 });
	id = submit(1, 1000000);
	usleep(100000);
	ck_assert_int_eq(dcp_cancel(d, id), 0);
	for (t = dcpd_now(); ring_server_jobs(rs) > 0; usleep(1000))
		ck_assert_double_lt(dcpd_now() - t, 60);
	finish();
}
END_TEST

START_TEST(bad_fields_are_named_and_nothing_is_sent)
{
	static const char *const stop[] = { "" };
	static const struct dcp_logit_bias bias[] = { { 1000, 1 } };
	uint32_t id0 = 1, big = 1000, i;
	const struct { struct dcp_request r; const char *says; } bad[] = {
		{ { .input = DCP_INPUT_TOKENS, .data = &big, .len = 4 },
		    "below 1000" },
		{ { .input = DCP_INPUT_TOKENS, .data = &id0, .len = 3 },
		    "multiple of 4" },
		{ { .input = 9, .data = &id0, .len = 4 }, "input" },
		{ { .input = DCP_INPUT_TEXT }, "empty" },
		{ { .input = DCP_INPUT_TEXT, .len = 2 }, "NULL" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .top_p = 1.5f }, "top_p" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .flags = 1u << 30 }, "flags" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .flags = DCP_TEMPERATURE, .temperature = -1 },
		    "temperature" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .n_stop = 1, .stop = stop }, "stop string 0" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .n_stop_ids = 1, .stop_ids = &big }, "stop_ids[0]" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .n_logit_bias = 1, .logit_bias = bias }, "logit_bias[0]" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .top_logprobs = 2 }, "DCP_LOGPROBS" },
		{ { .input = DCP_INPUT_TEXT, .data = "a", .len = 1,
		    .max_tokens = 1, .min_tokens = 2 }, "min_tokens" },
	};
	struct dcp_request r;
	uint64_t id = 77;

	start((struct ring_server_config){ 0 });
	for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		r = bad[i].r;
		r.size = sizeof r;
		ck_assert_int_eq(dcp_submit(d, &r, &id), -EINVAL);
		ck_assert_msg(strstr(dcp_error_text(), bad[i].says) != NULL,
		    "%u: \"%s\" lacks \"%s\"", i, dcp_error_text(),
		    bad[i].says);
		ck_assert_uint_eq(id, 77);	/* untouched */
	}
	r = tokens(&id0, 1, 1);
	r.size = 0;
	ck_assert_int_eq(dcp_submit(d, &r, &id), -EINVAL);
	ck_assert_int_eq(dcp_submit(NULL, &r, &id), -EINVAL);
	ck_assert_int_eq(dcp_submit(d, NULL, &id), -EINVAL);
	expect(submit(1, 1), 1, 1);
	finish();
}
END_TEST

START_TEST(largest_request_fits_a_larger_one_is_emsgsize)
{
	const size_t arena = 8u << 20, n = (arena - 120) / 4;
	uint32_t *ids = calloc(arena / 4 + 1, 4);
	struct dcp_request r = tokens(ids, n, 1);
	const struct dcp_event *ev;
	uint64_t id;
	unsigned i;

	start((struct ring_server_config){ 0 });
	for (i = 0; i < 3; i++) {
		ck_assert_int_eq(dcp_submit(d, &r, &id), 0);
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		dcp_event_release(d, ev);
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		ck_assert_uint_eq(ev->usage.prompt_tokens, n);
		dcp_event_release(d, ev);
	}
	r.len = arena;
	ck_assert_int_eq(dcp_submit(d, &r, &id), -EMSGSIZE);
	r.len = SIZE_MAX & ~(size_t)3;
	ck_assert_int_eq(dcp_submit(d, &r, &id), -EMSGSIZE);
	free(ids);
	finish();
}
END_TEST

START_TEST(quotas_of_a_uid_refuse_by_event)
{
	static const uint32_t ids[1 << 18];
	const struct dcp_request large = { .size = sizeof large,
	    .input = DCP_INPUT_TOKENS, .data = ids, .len = sizeof ids,
	    .max_tokens = 1 };
	const struct dcp_event *ev;
	unsigned refused = 0, done = 0, i;
	uint64_t id;

	start((struct ring_server_config){ .step_us = 1000,
	    .ipc.max_requests_uid = 4, .ipc.own_times = 1 });
	for (i = 0; i < 10; i++)
		submit(i, 20);
	while (refused + done < 10) {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		if (ev->type == DCP_EV_ERROR) {
			ck_assert_int_eq(ev->error, -EAGAIN);
			ck_assert_ptr_nonnull(strstr(ev->text, "4 requests"));
			refused++;
		} else if (ev->type == DCP_EV_DONE)
			done++;
		dcp_event_release(d, ev);
	}
	ck_assert_uint_eq(refused, 6);
	finish();
	/* Bytes: an answer of 100,000 tokens has no room in 1 MiB. */
	start((struct ring_server_config){ .reserve = true,
	    .ipc.max_bytes_uid = 1 << 20, .ipc.own_times = 1 });
	for (i = 0; i < 3; i++) {
		submit(1, 100000);
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		ck_assert_uint_eq(ev->type, DCP_EV_ERROR);
		ck_assert_int_eq(ev->error, -EMSGSIZE);
		dcp_event_release(d, ev);
	}
	/* Nor does a request that is too large by itself ever fit. */
	ck_assert_int_eq(dcp_submit(d, &large, &id), 0);
	ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
	ck_assert_uint_eq(ev->type, DCP_EV_ERROR);
	ck_assert_int_eq(ev->error, -EMSGSIZE);
	dcp_event_release(d, ev);
	/* What was reserved is given back: many small ones pass in turn. */
	for (i = 0; i < 50; i++)
		expect(submit(i, 20000), i, 20000);
	finish();
	/* Two that fit alone do not fit together. */
	start((struct ring_server_config){ .reserve = true, .step_us = 100000,
	    .ipc.max_bytes_uid = 1 << 20, .ipc.own_times = 1 });
	submit(1, 20000);
	submit(2, 20000);
	do {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		refused = ev->type == DCP_EV_ERROR;
		if (refused) {
			ck_assert_uint_eq(ev->user_data, 2);
			ck_assert_int_eq(ev->error, -EDQUOT);
		}
		dcp_event_release(d, ev);
	} while (!refused);
	finish();
}
END_TEST

/*
 * A plugin inside the daemon speaks for many users: eight times the quotas,
 * and none of those of others under the same uid.
 */
START_TEST(client_in_the_daemons_process_has_larger_quotas)
{
	const struct dcp_event *ev;
	unsigned refused = 0, left;
	uint32_t i;

	start((struct ring_server_config){ .step_us = 20000, .reserve = true,
	    .ipc.max_requests_uid = 4, .ipc.max_bytes_uid = 1 << 20 });
	for (i = 0; i < 40; i++)
		submit(i, 10);
	for (left = 40; left > 0; left -= i) {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		i = ev->type != DCP_EV_DELTA;
		if (ev->type == DCP_EV_ERROR) {
			ck_assert_int_eq(ev->error, -EAGAIN);
			ck_assert_ptr_nonnull(strstr(ev->text, "32 requests"));
			refused++;
		}
		dcp_event_release(d, ev);
	}
	ck_assert_uint_eq(refused, 8);
	/* 100,000 tokens fit into 8 MiB, not into 1 MiB. */
	submit(1, 100000);
	ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
	ck_assert_uint_eq(ev->type, DCP_EV_DELTA);
	dcp_event_release(d, ev);
	finish();
}
END_TEST

/*
 * As after 4096 rings: the daemon never empties it. Some kernels wake the
 * reader even then, which must not be relied upon: the client empties it.
 */
START_TEST(daemon_is_woken_though_the_doorbell_is_full)
{
	uint32_t i;
	int n;

	start((struct ring_server_config){ .step_us = 0 });
	for (i = 0; i < 20; i++) {
		while (write(d->bell[1], "", 1) == 1)
			;
		usleep(5000);		/* it has looked, and sleeps */
		expect(submit(i, 3), i, 3);
		ck_assert_int_eq(ioctl(d->bell[0], FIONREAD, &n), 0);
		ck_assert_int_lt(n, 100);
	}
	finish();
}
END_TEST

START_TEST(poll_on_the_fd_misses_nothing)
{
	const struct dcp_event *ev;
	struct pollfd p;
	unsigned done = 0, next = 0, events = 0;
	int rc;

	/* One event per poll: the fd must stay readable while more wait. */
	start((struct ring_server_config){ .step_us = 50 });
	p = (struct pollfd){ .fd = dcp_fd(d), .events = POLLIN };
	ck_assert_int_ge(p.fd, 0);
	while (done < 200) {
		if (next < 200 && next < done + 4)
			submit(next++, 7);
		rc = poll(&p, 1, TIMEOUT);
		ck_assert_int_eq(rc, 1);
		rc = dcp_next(d, 0, &ev);
		if (rc == -EAGAIN)
			continue;
		ck_assert_int_eq(rc, 0);
		events++;
		done += ev->type == DCP_EV_DONE;
		dcp_event_release(d, ev);
	}
	ck_assert_uint_eq(events, 200 * 8);
	/* Nothing runs: quiet after the first look. */
	ck_assert_int_eq(dcp_next(d, 0, &ev), -EAGAIN);
	ck_assert_int_eq(poll(&p, 1, 20), 0);
	finish();
}
END_TEST

/* Emits a token and the end at once, from the intake thread. */
static int
answer_at_once(void *arg, struct dcpd_submit *s, struct dcpd_err *err)
{
	uint32_t token = 1;
	struct dcp_event ev = { .type = DCP_EV_DELTA, .tokens = &token,
	    .n_tokens = 1 };

	dcpd_ipc_emit(s->client, s->id, &ev);
	ev = (struct dcp_event){ .type = DCP_EV_DONE };
	dcpd_ipc_emit(s->client, s->id, &ev);
	dcpd_submit_free(s);
	return 0;
}

/*
 * Both events may come between dcp_next's first look and its second: then
 * the one it leaves behind has no byte of its own.
 */
START_TEST(poll_misses_no_event_that_came_during_a_look)
{
	static const struct dcpd_ipc_ops ops = { .submit = answer_at_once };
	struct dcpd_ipc_config cfg = { .path = ring_temp_path("s4"),
	    .vocab = 1000, .spin_us = 500 };
	struct pollfd p = { .events = POLLIN };
	const struct dcp_event *ev;
	struct dcpd_ipc *ipc;
	unsigned i, got;
	uint64_t t;

	ck_assert_int_eq(dcpd_ipc_start(&cfg, &ops, NULL, &ipc, NULL), 0);
	ck_assert_int_eq(dcp_connect(cfg.path, TIMEOUT, &d), 0);
	p.fd = dcp_fd(d);
	for (i = 0; i < 20000; i++) {
		submit(1, 1);
		for (t = dcpd_now_ns() + i % 64 * 100; dcpd_now_ns() < t; )
			;
		for (got = 0; got < 2; ) {
			if (dcp_next(d, 0, &ev) == 0) {
				dcp_event_release(d, ev);
				got++;
			}
			if (got < 2)
				ck_assert_int_eq(poll(&p, 1, TIMEOUT), 1);
		}
	}
	dcp_close(d);
	dcpd_ipc_stop(ipc);
}
END_TEST

START_TEST(server_info_arrives_among_events)
{
	const struct dcp_event *ev;
	struct pollfd p;
	char *json = NULL;
	unsigned n = 0;

	start((struct ring_server_config){ .info_bytes = 5000000 });
	p = (struct pollfd){ .fd = dcp_fd(d), .events = POLLIN };
	submit(1, 1000);
	usleep(20000);
	ck_assert_int_eq(dcp_server_info(d, &json), 0);
	ck_assert_uint_eq(strlen(json), 5000012);	/* rejoined */
	free(json);
	while (n < 1001) {	/* events queued on the way are not lost */
		ck_assert_int_eq(poll(&p, 1, TIMEOUT), 1);
		while (dcp_next(d, 0, &ev) == 0) {
			n++;
			dcp_event_release(d, ev);
		}
	}
	finish();
}
END_TEST

/* One event with more than a record holds goes out in several. */
static struct dcpd_submit *held;

static int
hold(void *arg, struct dcpd_submit *s, struct dcpd_err *err)
{
	__atomic_store_n(&held, s, __ATOMIC_SEQ_CST);
	return 0;
}

START_TEST(huge_event_is_split_between_tokens_and_characters)
{
	static const struct dcpd_ipc_ops ops = { .submit = hold };
	struct dcpd_ipc_config cfg = { .path = ring_temp_path("s2"),
	    .vocab = 1000 };
	const uint32_t n = 1500000;
	uint32_t *ids = malloc(n * 4ul), first = 1, got = 0, i, type;
	size_t len = 3 * 1000000, at = 0;
	char *text = malloc(len + 1);
	struct dcp_request r = tokens(&first, 1, 1);
	const struct dcp_event *ev;
	struct dcp_event big;
	struct dcpd_ipc *ipc;
	uint64_t id;

	for (i = 0; i < n; i++)
		ids[i] = i;
	for (i = 0; i < len; i += 3)
		memcpy(text + i, "\xe2\x82\xac", 3);	/* euro sign */
	ck_assert_int_eq(dcpd_ipc_start(&cfg, &ops, NULL, &ipc, NULL), 0);
	ck_assert_int_eq(dcp_connect(cfg.path, TIMEOUT, &d), 0);
	ck_assert_int_eq(dcp_submit(d, &r, &id), 0);
	while (__atomic_load_n(&held, __ATOMIC_SEQ_CST) == NULL)
		usleep(1000);
	big = (struct dcp_event){ .type = DCP_EV_DONE, .tokens = ids,
	    .n_tokens = n, .text = text, .text_len = len,
	    .finish = DCP_FINISH_STOP, .usage.prompt_tokens = 42 };
	ck_assert_int_eq(dcpd_ipc_emit(held->client, id, &big), 0);
	ck_assert_int_eq(dcpd_ipc_emit(held->client, id, &big), -ENOENT);
	do {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		type = ev->type;
		for (i = 0; i < ev->n_tokens; i++)
			ck_assert_uint_eq(ev->tokens[i], got++);
		ck_assert_uint_eq(ev->text_len % 3, 0);
		ck_assert_int_eq(memcmp(ev->text, text + at, ev->text_len), 0);
		at += ev->text_len;
		if (type == DCP_EV_DONE) {
			ck_assert_uint_eq(ev->finish, DCP_FINISH_STOP);
			ck_assert_uint_eq(ev->usage.prompt_tokens, 42);
		}
		dcp_event_release(d, ev);
	} while (type == DCP_EV_DELTA);
	ck_assert_uint_eq(got, n);
	ck_assert_uint_eq(at, len);
	dcpd_submit_free(held);
	dcp_close(d);
	dcpd_ipc_stop(ipc);
	free(ids);
	free(text);
}
END_TEST

/* What the daemon gets is what was sent, each part with its NUL. */
START_TEST(every_field_arrives)
{
	static const struct dcpd_ipc_ops ops = { .submit = hold };
	static const char *const stop[] = { "END", "\xc3\xa9" };
	static const uint32_t ids[] = { 3, 999 };
	static const struct dcp_logit_bias bias[] = { { 5, -1.5f } };
	struct dcpd_ipc_config cfg = { .path = ring_temp_path("s3"),
	    .vocab = 1000 };
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_CHAT,
		.flags = DCP_LOGPROBS | DCP_SEED | DCP_TEMPERATURE,
		.max_tokens = 9, .data = "[1]", .len = 3, .user_data = 1,
		.temperature = 0.7f, .top_p = 0.9f, .min_p = 0.1f,
		.repetition_penalty = 1.1f, .presence_penalty = 0.2f,
		.frequency_penalty = 0.3f, .top_k = 40, .min_tokens = 2,
		.top_logprobs = 5, .priority = -3, .seed = 1ull << 60,
		.deadline_ms = 1234, .n_stop = 2, .n_stop_ids = 2,
		.n_logit_bias = 1, .stop = stop, .stop_ids = ids,
		.logit_bias = bias, .options = "{\"tools\":[]}",
	};
	struct dcpd_submit *s;
	struct dcpd_ipc *ipc;
	uint64_t id;

	held = NULL;
	ck_assert_int_eq(dcpd_ipc_start(&cfg, &ops, NULL, &ipc, NULL), 0);
	ck_assert_int_eq(dcp_connect(cfg.path, TIMEOUT, &d), 0);
	ck_assert_int_eq(dcp_submit(d, &r, &id), 0);
	while ((s = __atomic_load_n(&held, __ATOMIC_SEQ_CST)) == NULL)
		usleep(1000);
	ck_assert_uint_eq(s->id, id);
	ck_assert_uint_eq(s->uid, getuid());
	ck_assert_uint_eq(s->input, DCP_INPUT_CHAT);
	ck_assert_uint_eq(s->flags, r.flags);
	ck_assert_uint_eq(s->len, 3);
	ck_assert_str_eq(s->data, "[1]");
	ck_assert_str_eq(s->stop[0], "END");
	ck_assert_str_eq(s->stop[1], "\xc3\xa9");
	ck_assert_uint_eq(s->stop_ids[1], 999);
	ck_assert_uint_eq(s->bias[0].token, 5);
	ck_assert_float_eq(s->bias[0].bias, -1.5f);
	ck_assert_str_eq(s->options, "{\"tools\":[]}");
	ck_assert_uint_eq(s->p.max_tokens, 9);
	ck_assert_uint_eq(s->p.min_tokens, 2);
	ck_assert_float_eq(s->p.temperature, 0.7f);
	ck_assert_float_eq(s->p.top_p, 0.9f);
	ck_assert_float_eq(s->p.min_p, 0.1f);
	ck_assert_float_eq(s->p.repetition_penalty, 1.1f);
	ck_assert_float_eq(s->p.presence_penalty, 0.2f);
	ck_assert_float_eq(s->p.frequency_penalty, 0.3f);
	ck_assert_int_eq(s->p.top_k, 40);
	ck_assert_uint_eq(s->p.top_logprobs, 5);
	ck_assert_int_eq(s->p.priority, -3);
	ck_assert_uint_eq(s->p.seed, 1ull << 60);
	ck_assert_uint_eq(s->p.deadline_ms, 1234);
	ck_assert_uint_eq(s->p.n_stop, 2);
	ck_assert_ptr_null(s->p.data);
	dcpd_submit_free(s);
	dcp_close(d);
	dcpd_ipc_stop(ipc);
}
END_TEST

START_TEST(stop_ends_every_request_with_eshutdown)
{
	const struct dcp_event *ev;
	unsigned ended = 0, i;
	int rc;

	start((struct ring_server_config){ .step_us = 1000 });
	for (i = 0; i < 5; i++)
		submit(i, 100000);
	usleep(20000);
	ring_server_stop(rs);
	while ((rc = dcp_next(d, TIMEOUT, &ev)) == 0) {
		if (ev->type == DCP_EV_ERROR) {
			ck_assert_int_eq(ev->error, -ESHUTDOWN);
			ended++;
		}
		dcp_event_release(d, ev);
	}
	ck_assert_int_eq(rc, -EPIPE);
	ck_assert_uint_eq(ended, 5);
	dcp_close(d);
}
END_TEST

START_TEST(forked_child_is_told_and_the_parent_goes_on)
{
	uint32_t one = 1;
	struct dcp_request r = tokens(&one, 1, 1);
	const struct dcp_event *ev;
	uint64_t id;
	pid_t pid;
	int status;

	start((struct ring_server_config){ 0 });
	pid = fork();
	if (pid == 0) {
		int bad = dcp_submit(d, &r, &id) != -ECHILD ||
		    dcp_next(d, 0, &ev) != -ECHILD || dcp_fd(d) != -ECHILD ||
		    strstr(dcp_error_text(), "parent") == NULL;

		dcp_close(d);
		_exit(bad);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	expect(submit(1, 5), 1, 5);
	finish();
}
END_TEST

START_TEST(connecting_fails_by_name)
{
	char longpath[200];
	struct dcp *x = NULL;
	FILE *f;

	ck_assert_int_eq(dcp_connect("/nonexistent/s", 100, &x), -ENOENT);
	ck_assert_ptr_nonnull(strstr(dcp_error_text(), "is dcpd running"));
	memset(longpath, 'a', sizeof longpath - 1);
	longpath[sizeof longpath - 1] = '\0';
	ck_assert_int_eq(dcp_connect(longpath, 100, &x), -ENAMETOOLONG);
	f = fopen(ring_temp_path("plain"), "w");
	fclose(f);
	ck_assert_int_eq(dcp_connect(ring_temp_path("plain"), 100, &x),
	    -ECONNREFUSED);
	ck_assert_ptr_null(x);
}
END_TEST

START_TEST(live_socket_is_refused_a_stale_one_replaced)
{
	struct dcpd_ipc_config cfg = { .vocab = 10 };
	struct dcpd_err err = { 0 };
	struct dcpd_ipc *ipc;
	static const struct dcpd_ipc_ops ops = { .submit = hold };
	FILE *f;

	start((struct ring_server_config){ 0 });
	cfg.path = ring_temp_path("sock");
	ck_assert_int_eq(dcpd_ipc_start(&cfg, &ops, NULL, &ipc, &err),
	    -EADDRINUSE);
	ck_assert_ptr_nonnull(strstr(err.text, "--socket"));
	finish();
	f = fopen(cfg.path, "w");
	fclose(f);
	ck_assert_int_eq(dcpd_ipc_start(&cfg, &ops, NULL, &ipc, &err),
	    -EEXIST);
	unlink(cfg.path);
	/* A server killed without a chance to unlink leaves its socket. */
	{
		struct ring_server_config sc = { .ipc.path = cfg.path };
		pid_t pid = ring_server_fork(&sc, NULL);

		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	ck_assert_int_eq(access(cfg.path, F_OK), 0);
	ck_assert_int_eq(dcpd_ipc_start(&cfg, &ops, NULL, &ipc, &err), 0);
	dcpd_ipc_stop(ipc);
	ck_assert_int_lt(access(cfg.path, F_OK), 0);
}
END_TEST

START_TEST(clients_json_names_each_client)
{
	char *json, pid[32];

	start((struct ring_server_config){ .step_us = 1000 });
	submit(1, 100000);
	usleep(50000);
	json = dcpd_ipc_clients_json(ring_server_ipc(rs));
	snprintf(pid, sizeof pid, "\"pid\":%d", getpid());
	ck_assert_msg(strstr(json, pid) != NULL, "%s", json);
	ck_assert_msg(strstr(json, "\"requests\":1") != NULL, "%s", json);
	free(json);
	finish();
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("ring");
	TCase *t = tcase_create("ring");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, one_request_gives_its_tokens_in_order);
	tcase_add_test(t, indices_wrap_and_nothing_is_lost);
	tcase_add_test(t, full_submission_ring_says_eagain_and_recovers);
	tcase_add_test(t, slow_reader_delays_only_itself);
	tcase_add_test(t, cancel_ends_a_running_request);
	tcase_add_test(t, cancel_arrives_though_the_stream_is_full);
	tcase_add_test(t, bad_fields_are_named_and_nothing_is_sent);
	tcase_add_test(t, largest_request_fits_a_larger_one_is_emsgsize);
	tcase_add_test(t, quotas_of_a_uid_refuse_by_event);
	tcase_add_test(t, client_in_the_daemons_process_has_larger_quotas);
	tcase_add_test(t, daemon_is_woken_though_the_doorbell_is_full);
	tcase_add_test(t, poll_on_the_fd_misses_nothing);
	tcase_add_test(t, poll_misses_no_event_that_came_during_a_look);
	tcase_add_test(t, server_info_arrives_among_events);
	tcase_add_test(t, huge_event_is_split_between_tokens_and_characters);
	tcase_add_test(t, every_field_arrives);
	tcase_add_test(t, stop_ends_every_request_with_eshutdown);
	tcase_add_test(t, forked_child_is_told_and_the_parent_goes_on);
	tcase_add_test(t, connecting_fails_by_name);
	tcase_add_test(t, live_socket_is_refused_a_stale_one_replaced);
	tcase_add_test(t, clients_json_names_each_client);
	suite_add_tcase(s, t);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed > 0;
}
