/*
 * The scheduler behind the real ring: real clients, in this process and in
 * others that are killed. The engine is the one of sched_fake.h; no model.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/sched_fake.h"

#define TIMEOUT SOON
#define VOCAB 1000u

static struct fk_engine E;
static struct dcpd_textpool *pool;
static struct dcpd_sched *S;
static struct dcpd_ipc *ipc;
static char dir[64], path[96];
static const char *self;	/* argv[0] */
static _Atomic unsigned n_gone;

/* dcpd_ipc_ops, to see when the scheduler was told. */
static void
gone(void *arg, struct dcpd_client *c)
{
	dcpd_sched_ipc_ops.gone(arg, c);
	n_gone++;
}

static void
start(struct fk_spec sp)
{
	struct dcpd_sched_config c = {
		.queue_max = 100, .way = -1, .check_steps = true };
	struct dcpd_ipc_config ic = { .listen_fd = -1, .max_clients = 16,
	    .max_clients_uid = 16, .max_requests_uid = 200, .vocab = VOCAB };
	struct dcpd_ipc_ops ops = dcpd_sched_ipc_ops;
	struct dcpd_err err = { 0 };

	ops.gone = gone;
	sp.vocab = VOCAB;
	sp.max_ctx = 16384;
	sp.dcp = sp.world = 4;
	sp.max_running = 8;
	fk_engine_open(&E, &sp);
	c.engine = &E.e;
	ck_assert_int_eq(dcpd_textpool_start(2, &pool, &err), 0);
	c.pool = pool;
	ck_assert_msg(dcpd_sched_start(&c, &S, &err) == 0, "%s", err.text);
	strcpy(dir, "/tmp/t_sched_ring.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/sock", dir);
	ic.path = path;
	ck_assert_msg(dcpd_ipc_start(&ic, &ops, S, &ipc, &err) == 0, "%s",
	    err.text);
}

static void
finish(void)
{
	dcpd_ipc_stop(ipc);
	dcpd_sched_stop(S);
	dcpd_textpool_stop(pool);
	fk_engine_close(&E);
	unlink(path);
	rmdir(dir);
}

static void
wait_idle(void)
{
	struct dcpd_err err;

	for (int i = 0; !dcpd_sched_idle(S); i++) {
		ck_assert_int_lt(i, TIMEOUT);
		usleep(1000);
	}
	ck_assert_msg(dcpd_sched_check(S, &err) == 0, "%s", err.text);
}

static int64_t
status(const char *key)
{
	json_t *o = dcpd_sched_status(S);
	json_t *v = json_object_get(o, key);
	int64_t n;

	if (v == NULL)
		v = json_object_get(json_object_get(o, "counters"), key);
	ck_assert(json_is_integer(v));
	n = json_integer_value(v);
	json_decref(o);
	return n;
}

static uint64_t
submit(struct dcp *d, const uint32_t *ids, uint32_t n, uint32_t max)
{
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TOKENS,
		.flags = DCP_IGNORE_EOS | DCP_LOGPROBS, .data = ids,
		.len = n * 4, .max_tokens = max, .user_data = n,
		.top_logprobs = 2,
	};
	uint64_t id;
	int rc = dcp_submit(d, &r, &id);

	ck_assert_msg(rc == 0, "%d %s", rc, dcp_error_text());
	return id;
}

struct answer {
	uint64_t id;
	uint32_t *v, n;
	bool done;
};

static void
take(struct answer *a, const struct dcp_event *ev)
{
	ck_assert_uint_ne(ev->type, DCP_EV_ERROR);
	ck_assert_uint_eq(ev->n_logprobs, ev->n_tokens);
	for (uint32_t i = 0; i < ev->n_tokens; i++) {
		ck_assert_uint_eq(ev->logprobs[i].n_top, 2);
		ck_assert_uint_eq(ev->logprobs[i].top[0].token,
		    ev->tokens[i]);
		a->v[a->n++] = ev->tokens[i];
	}
	if (ev->type != DCP_EV_DONE)
		return;
	ck_assert_uint_eq(ev->finish, DCP_FINISH_LENGTH);
	ck_assert_uint_eq(ev->usage.completion_tokens, a->n);
	ck_assert_uint_eq(ev->usage.prompt_tokens, ev->user_data);
	a->done = true;
}

static void
expect(const struct answer *a, const uint32_t *ids, uint32_t n, uint32_t max)
{
	uint32_t *want = calloc(max, sizeof *want);

	ck_assert(a->done);
	fk_expect(VOCAB, ids, n, NULL, UINT32_MAX, want, max);
	ck_assert_uint_eq(a->n, max);
	ck_assert_mem_eq(a->v, want, max * sizeof *want);
	free(want);
}

/* One more request by this client is answered, and rightly. */
static void
expect_served(struct dcp *d)
{
	uint32_t *p = fk_prompt(VOCAB, 70, 77), v[20];
	struct answer a = { .v = v };
	const struct dcp_event *ev;

	a.id = submit(d, p, 70, 20);
	while (!a.done) {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		if (ev->request == a.id)
			take(&a, ev);
		dcp_event_release(d, ev);
	}
	expect(&a, p, 70, 20);
	free(p);
}

START_TEST(many_requests_of_two_clients)
{
	enum { N = 40 };
	uint32_t *p = fk_prompt(VOCAB, 700, 3);
	struct answer a[2][N] = { 0 };
	const struct dcp_event *ev;
	struct dcp *d[2];
	unsigned done = 0;
	int rc;

	start((struct fk_spec){ .pages = 100, .chunk = 64 });
	for (unsigned c = 0; c < 2; c++)
		ck_assert_int_eq(dcp_connect(path, TIMEOUT, &d[c]), 0);
	for (unsigned i = 0; i < N; i++)
		for (unsigned c = 0; c < 2; c++) {
			a[c][i].v = calloc(100, 4);
			a[c][i].id = submit(d[c], p + i, 1 + 15 * i, 1 + 2 * i);
		}
	for (unsigned c = 0; done < 2 * N; c = !c) {
		rc = dcp_next(d[c], 1, &ev);
		if (rc == -EAGAIN)
			continue;
		ck_assert_int_eq(rc, 0);
		for (unsigned i = 0; i < N; i++)
			if (a[c][i].id == ev->request)
				take(&a[c][i], ev);
		done += ev->type == DCP_EV_DONE;
		dcp_event_release(d[c], ev);
	}
	for (unsigned i = 0; i < N; i++)
		for (unsigned c = 0; c < 2; c++) {
			expect(&a[c][i], p + i, 1 + 15 * i, 1 + 2 * i);
			free(a[c][i].v);
		}
	wait_idle();
	ck_assert_int_eq(status("pages_used"), 0);
	dcp_close(d[0]);
	dcp_close(d[1]);
	free(p);
	finish();
}
END_TEST

/* --- clients that die -------------------------------------------------- */

/* In a process of its own: submit, say so, never read, wait to be killed. */
static int
victim(char **argv)
{
	uint32_t n = (uint32_t)atoi(argv[3]), max = (uint32_t)atoi(argv[4]);
	uint32_t *p = fk_prompt(VOCAB, n, 5);
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TOKENS,
		.flags = DCP_IGNORE_EOS, .data = p, .len = n * 4,
		.max_tokens = max,
	};
	struct dcp *d;
	uint64_t id;

	if (dcp_connect(argv[2], TIMEOUT, &d) != 0)
		return 1;
	if (n > 0 && dcp_submit(d, &r, &id) != 0)
		return 2;
	if (write(STDOUT_FILENO, "x", 1) != 1)
		return 3;
	for (;;)
		pause();
}

static pid_t
spawn(unsigned n, unsigned max)
{
	char a[16], b[16], c;
	int fd[2];
	pid_t pid;

	snprintf(a, sizeof a, "%u", n);
	snprintf(b, sizeof b, "%u", max);
	ck_assert_int_eq(pipe(fd), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		dup2(fd[1], STDOUT_FILENO);
		close(fd[0]);
		close(fd[1]);
		execl("/proc/self/exe", self, "victim", path, a, b, NULL);
		_exit(127);
	}
	close(fd[1]);
	ck_assert_int_eq(read(fd[0], &c, 1), 1);
	close(fd[0]);
	return pid;
}

static void
kill9(pid_t pid)
{
	int st;

	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, &st, 0), pid);
	ck_assert(WIFSIGNALED(st));
}

static void
wait_for(const char *key, int64_t want)
{
	for (int i = 0; status(key) != want; i++) {
		ck_assert_msg(i < TIMEOUT, "%s is not %lld", key,
		    (long long)want);
		usleep(1000);
	}
}

/* The daemon knows of a death within 2 s; then one step is all it takes. */
static void
killed_at_the_gate(unsigned passes)
{
	struct dcp *d;
	uint64_t before;
	pid_t pid;

	start((struct fk_spec){ .pages = 100, .chunk = 64 });
	ck_assert_int_eq(dcp_connect(path, TIMEOUT, &d), 0);
	fk_gate(&E);
	pid = spawn(300, 3000);
	ck_assert_int_eq(fk_at_gate(&E, TIMEOUT), 0);
	fk_let(&E, passes);
	ck_assert_int_eq(fk_at_gate(&E, TIMEOUT), 0);
	ck_assert_int_gt(status("pages_used"), 0);
	before = fk_passes(&E);
	kill9(pid);
	wait_for("clients", 1);
	while (n_gone == 0)		/* follows the count */
		usleep(1000);
	fk_let(&E, 1);
	wait_idle();
	ck_assert_uint_le(fk_passes(&E), before + 1);
	ck_assert_int_eq(status("pages_used"), 0);
	ck_assert_int_eq(status("requests_cancelled"), 1);
	fk_open_gate(&E);
	expect_served(d);
	dcp_close(d);
	finish();
}

START_TEST(killed_in_prefill)
{
	killed_at_the_gate(2);		/* of five chunks */
}
END_TEST

START_TEST(killed_in_decode)
{
	killed_at_the_gate(30);
}
END_TEST

/* Never reads: its stream fills, its answer waits in the daemon; then dies. */
START_TEST(killed_with_a_full_stream)
{
	struct dcp *d;
	pid_t pid;

	start((struct fk_spec){ .pages = 250, .chunk = 512 });
	ck_assert_int_eq(dcp_connect(path, TIMEOUT, &d), 0);
	pid = spawn(100, 15000);
	while (status("output_tokens") < 14000)
		expect_served(d);
	wait_for("requests_finished", status("requests_total"));
	ck_assert_int_eq(status("pages_used"), 0);
	kill9(pid);
	wait_for("clients", 1);
	wait_for("queue_bytes", 0);
	expect_served(d);
	wait_idle();
	dcp_close(d);
	finish();
}
END_TEST

START_TEST(killed_while_waiting_or_with_nothing_asked)
{
	struct dcp *d;
	pid_t a, b, c;

	start((struct fk_spec){ .pages = 60, .chunk = 64 });
	ck_assert_int_eq(dcp_connect(path, TIMEOUT, &d), 0);
	E.step_us = 2000;	/* killed long before it ends */
	a = spawn(300, 3500);		/* takes all pages */
	b = spawn(300, 3500);		/* waits for them */
	c = spawn(0, 0);
	wait_for("waiting", 1);
	kill9(c);
	kill9(b);
	wait_for("waiting", 0);
	ck_assert_int_eq(status("running"), 1);
	kill9(a);
	wait_idle();
	ck_assert_int_eq(status("pages_used"), 0);
	expect_served(d);
	dcp_close(d);
	finish();
}
END_TEST

START_TEST(cancel_and_info_through_the_ring)
{
	uint32_t ids[2] = { 1, 2 };
	const struct dcp_event *ev;
	json_t *info;
	struct dcp *d;
	uint64_t id;
	char *text;

	start((struct fk_spec){ .pages = 250, .chunk = 512 });
	E.step_us = 500;
	ck_assert_int_eq(dcp_connect(path, TIMEOUT, &d), 0);
	id = submit(d, ids, 2, 10000);
	ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
	ck_assert_uint_eq(ev->type, DCP_EV_DELTA);
	dcp_event_release(d, ev);
	ck_assert_int_eq(dcp_cancel(d, id), 0);
	for (;;) {
		ck_assert_int_eq(dcp_next(d, TIMEOUT, &ev), 0);
		if (ev->type != DCP_EV_DELTA)
			break;
		dcp_event_release(d, ev);
	}
	ck_assert_uint_eq(ev->type, DCP_EV_DONE);
	ck_assert_uint_eq(ev->finish, DCP_FINISH_ABORT);
	dcp_event_release(d, ev);
	wait_idle();
	ck_assert_int_eq(status("pages_used"), 0);
	ck_assert_int_eq(dcp_server_info(d, &text), 0);
	info = json_loads(text, 0, NULL);
	ck_assert_int_eq(json_integer_value(json_object_get(info,
	    "max_context")), 16384);
	ck_assert_int_eq(json_integer_value(json_object_get(info, "dcp")), 4);
	json_decref(info);
	free(text);
	dcp_close(d);
	finish();
}
END_TEST

int
main(int argc, char **argv)
{
	Suite *s;
	TCase *t;
	SRunner *r;
	int failed;

	self = argv[0];
	if (argc == 5 && strcmp(argv[1], "victim") == 0)
		return victim(argv);
	s = suite_create("sched_ring");
	t = tcase_create("ring");
	tcase_set_timeout(t, 300);
	tcase_add_test(t, many_requests_of_two_clients);
	tcase_add_test(t, killed_in_prefill);
	tcase_add_test(t, killed_in_decode);
	tcase_add_test(t, killed_with_a_full_stream);
	tcase_add_test(t, killed_while_waiting_or_with_nothing_asked);
	tcase_add_test(t, cancel_and_info_through_the_ring);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
