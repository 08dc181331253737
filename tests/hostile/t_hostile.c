/*
 * Clients that lie in shared memory or misuse the socket. Each is dropped
 * with one line in the log that says why; an honest client on the same server
 * is served all the while; the server ends with what it held before.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/hostile/raw.h"
#include "tests/unit/ring_probe.h"
#include "tests/unit/ring_server.h"

#define VOCAB 1000u

static const char *path, *logfile;
static pid_t server;
static struct holdings base;
static struct probe *probe;

static void
set_up(void)
{
	struct ring_server_config cfg = { .reserve = true,
	    .ipc.hello_timeout_ms = 300, .ipc.max_clients_uid = 40,
	    .ipc.vocab = VOCAB };

	path = ring_temp_path("sock");
	logfile = log_make();
	cfg.ipc.path = path;
	server = ring_server_fork(&cfg, logfile);
	ck_assert_int_gt(server, 0);
	probe = probe_start(path, server);
	usleep(20000);
	base = holdings_of(server);
	probe_reset(probe);
}

static void
tear_down(void)
{
	ck_assert(probe_fine(probe));
	ck_assert(holdings_back(server, base));
	probe_stop(probe);
	ring_server_end(server);
}

/* --- lies in shared memory: one row each --- */

static void
tail_jump(struct raw *r)
{
	raw_publish(r, 1000000);
}

static void
tail_rewind(struct raw *r)
{
	raw_request(r, 0, 1);
	raw_submit(r, 0, RAW_REQUEST_LEN);
	while (__atomic_load_n(&r->s->sq_head, __ATOMIC_ACQUIRE) != 1)
		usleep(100);
	raw_publish(r, 0);
}

static void
head_jump(struct raw *r)
{
	r->c->cq_head = 5;
	raw_publish(r, 0);
}

static void
head_rewind(struct raw *r)
{
	raw_request(r, 0, 1);
	raw_submit(r, 0, RAW_REQUEST_LEN);
	while (__atomic_load_n(&r->s->cq_tail, __ATOMIC_ACQUIRE) != 2)
		usleep(100);
	r->c->cq_head = 2;
	raw_publish(r, 1);
	usleep(50000);
	r->c->cq_head = 1;
	raw_publish(r, 1);
}

static void
offset_overflow(struct raw *r)
{
	raw_submit(r, 0xfffffff8u, 0x100);
}

static void
offset_at_the_end(struct raw *r)
{
	raw_submit(r, r->s->arena_size - 64, RAW_REQUEST_LEN);
}

static void
short_block(struct raw *r)
{
	raw_request(r, 0, 1);
	raw_submit(r, 0, 64);
}

static void
section_overflow(struct raw *r)
{
	raw_request(r, 0, 1)->data = (struct dcpr_section){
	    0xfffffff8u, 0x10 };
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
count_overflow(struct raw *r)
{
	struct dcpr_request *q = raw_request(r, 0, 1);

	q->n_stop_ids = 0x40000001;	/* times 4 is 4 in 32 bits */
	q->stop_ids = (struct dcpr_section){ sizeof *q, 4 };
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
token_is_vocab(struct raw *r)
{
	raw_request(r, 0, VOCAB);
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
stop_without_nul(struct raw *r)
{
	struct dcpr_request *q = raw_request(r, 0, 1);

	memset(q + 1, 'a', 8);
	q->input = DCP_INPUT_TEXT;
	q->n_stop = 1;
	q->stop = (struct dcpr_section){ sizeof *q, 8 };
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
not_a_number(struct raw *r)
{
	raw_request(r, 0, 1)->top_p = NAN;
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
too_many_logprobs(struct raw *r)
{
	struct dcpr_request *q = raw_request(r, 0, 1);

	q->flags = DCP_LOGPROBS;
	q->top_logprobs = 0xffffffffu;
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
unknown_op(struct raw *r)
{
	raw_entry(r, (struct dcpr_sqe){ .op = 77 });
	raw_publish(r, 1);
}

static void
reserved_set(struct raw *r)
{
	raw_entry(r, (struct dcpr_sqe){ .op = DCPR_OP_INFO,
	    .reserved = { 0, 0, 0, 1 } });
	raw_publish(r, 1);
}

static void
id_of_the_future(struct raw *r)
{
	raw_request(r, 0, 1);
	r->next = 9;
	raw_submit(r, 0, RAW_REQUEST_LEN);
}

static void
cancel_of_another(struct raw *r)
{
	raw_entry(r, (struct dcpr_sqe){ .op = DCPR_OP_CANCEL,
	    .id = (uint64_t)(r->w.client - 1) << 32 });
	raw_publish(r, 1);
}

static void
talk_on_the_socket(struct raw *r)
{
	raw_send(r->sock, "hello?", 6, 0);
}

static void
descriptors_on_the_socket(struct raw *r)
{
	unsigned i;

	for (i = 0; i < 100; i++)
		raw_send(r->sock, "x", 1, 250);
}

static const struct lie {
	void (*tell)(struct raw *);
	const char *log;
} lies[] = {
	{ tail_jump, "sq_tail is further ahead" },
	{ tail_rewind, "sq_tail" },
	{ head_jump, "cq_head is not between" },
	{ head_rewind, "cq_head is not between" },
	{ offset_overflow, "offset and length are outside the arena" },
	{ offset_at_the_end, "offset and length are outside the arena" },
	{ short_block, "offset and length are outside the arena" },
	{ section_overflow, "a section is outside" },
	{ count_overflow, "section's length is not its count's" },
	{ token_is_vocab, "token id is not below the vocabulary" },
	{ stop_without_nul, "stop strings are not as many" },
	{ not_a_number, "top_p" },
	{ too_many_logprobs, "top_logprobs is larger" },
	{ unknown_op, "op is unknown" },
	{ reserved_set, "reserved fields" },
	{ id_of_the_future, "request id is not the next" },
	{ cancel_of_another, "another client's request" },
	{ talk_on_the_socket, "sent data on its socket" },
	{ descriptors_on_the_socket, "sent file descriptors" },
};

START_TEST(lying_client_is_dropped_with_one_line)
{
	const struct lie *lie = &lies[_i];
	struct raw r;
	int i;

	raw_join(&r, path);
	usleep(5000);
	lie->tell(&r);
	ck_assert(raw_dropped(&r, 2000));
	/* Its doorbell still works; it must not be heard any more. */
	for (i = 0; i < 5; i++) {
		usleep(1000);
		raw_ring(&r);
	}
	raw_close(&r);
	ck_assert_int_eq(log_count(logfile, "dropped: "), 1);
	ck_assert_int_eq(log_count(logfile, lie->log), 1);
}
END_TEST

/* --- what is changed while the daemon reads it --- */

static atomic_bool stop_flipping;

/* Racing is its purpose. */
static void * __attribute__((no_sanitize("thread")))
flip(void *arg)
{
	struct raw *r = arg;
	struct dcpr_request *q = (void *)r->arena;
	uint32_t i = 0;

	while (!atomic_load(&stop_flipping)) {
		volatile struct dcpr_request *v = q;
		volatile struct dcpr_sqe *e =
		    &r->sq[r->c->sq_tail % r->s->sq_entries];

		v->data.len = i & 1 ? 0x7ffffff8u : 4;
		v->n_stop_ids = i & 2 ? 0x3fffffffu : 0;
		v->data.off = i & 4 ? 0xfffffff8u : sizeof *q;
		e->len = i & 8 ? 0xffffffffu : RAW_REQUEST_LEN;
		*(volatile uint32_t *)(void *)(q + 1) = i & 16 ? VOCAB : 1;
		i++;
	}
	return NULL;
}

START_TEST(request_changed_after_submit_harms_nobody)
{
	double end = dcpd_now() + 1.5;
	unsigned rounds = 0, i;
	struct raw r;
	pthread_t t;

	while (dcpd_now() < end) {
		raw_join(&r, path);
		raw_request(&r, 0, 1);
		atomic_store(&stop_flipping, false);
		pthread_create(&t, NULL, flip, &r);
		for (i = 0; i < 200 && !raw_dropped(&r, 0); i++)
			raw_submit(&r, 0, RAW_REQUEST_LEN);
		atomic_store(&stop_flipping, true);
		pthread_join(t, NULL);
		raw_close(&r);
		rounds++;
	}
	ck_assert_uint_gt(rounds, 1);
}
END_TEST

/* --- connections --- */

START_TEST(ten_thousand_connects_harm_nobody)
{
	struct dcpr_hello h = { DCPR_MAGIC, DCPR_MAJOR, DCPR_MINOR, 0 };
	unsigned i;
	int fd;

	for (i = 0; i < 10000; i++) {
		do {
			fd = raw_socket(path);
		} while (fd == -EAGAIN || fd == -EINTR);
		ck_assert_int_ge(fd, 0);
		if (i % 3 == 0)
			raw_send(fd, &h, sizeof h, 0);
		close(fd);
	}
	/* However many were refused, the log stays readable. */
	usleep(100000);
	ck_assert_int_lt(log_count(logfile, "refused"), 1000);
}
END_TEST

START_TEST(silent_connections_are_dropped_in_time)
{
	struct pollfd p = { .events = 0 };
	int fd[30], i;
	double t = dcpd_now();

	for (i = 0; i < 30; i++) {
		fd[i] = raw_socket(path);
		ck_assert_int_ge(fd[i], 0);
	}
	for (i = 0; i < 30; i++) {
		p.fd = fd[i];
		ck_assert_int_eq(poll(&p, 1, 3000), 1);
		close(fd[i]);
	}
	ck_assert_double_gt(dcpd_now() - t, 0.25);
	ck_assert_int_gt(log_count(logfile, "no HELLO in 300 ms"), 0);
}
END_TEST

START_TEST(connections_of_a_uid_are_limited)
{
	struct raw r[39], one;
	const struct dcpr_hello h = { DCPR_MAGIC, DCPR_MAJOR, DCPR_MINOR, 0 };
	int i;

	for (i = 0; i < 39; i++)	/* and the honest one */
		raw_join(&r[i], path);
	ck_assert_int_eq(raw_hello(&one, path, &h), -EAGAIN);
	ck_assert_ptr_nonnull(strstr(one.w.text, "40 connections"));
	raw_close(&one);
	raw_close(&r[0]);
	usleep(50000);
	raw_join(&r[0], path);
	for (i = 0; i < 39; i++)
		raw_close(&r[i]);
}
END_TEST

START_TEST(hello_with_descriptors_keeps_none)
{
	const struct dcpr_hello h = { DCPR_MAGIC, DCPR_MAJOR, DCPR_MINOR, 0 };
	struct pollfd p = { .events = 0 };
	int i, fd;

	for (i = 0; i < 20; i++) {
		fd = raw_socket(path);
		ck_assert_int_ge(fd, 0);
		raw_send(fd, &h, sizeof h, 250);
		p.fd = fd;
		ck_assert_int_eq(poll(&p, 1, 2000), 1);
		close(fd);
	}
	ck_assert_int_gt(log_count(logfile, "sent file descriptors"), 0);
}
END_TEST

START_TEST(wrong_hello_is_answered_or_dropped)
{
	struct dcpr_hello h = { DCPR_MAGIC, DCPR_MAJOR + 1, 0, 0 };
	struct raw r;

	ck_assert_int_eq(raw_hello(&r, path, &h), -EPROTO);
	ck_assert_ptr_nonnull(strstr(r.w.text, "version 2"));
	raw_close(&r);
	h = (struct dcpr_hello){ DCPR_MAGIC, DCPR_MAJOR, 0, 1ull << 40 };
	ck_assert_int_eq(raw_hello(&r, path, &h), -EPROTO);
	ck_assert_ptr_nonnull(strstr(r.w.text, "features"));
	raw_close(&r);
	h = (struct dcpr_hello){ 0x47455420, 1, 0, 0 };	/* "GET " */
	ck_assert_int_eq(raw_hello(&r, path, &h), -EPIPE);
	raw_close(&r);
	ck_assert_int_eq(log_count(logfile, "is not HELLO"), 1);
}
END_TEST

/* --- the doorbell and the memory --- */

START_TEST(full_and_blocking_doorbell_blocks_nobody)
{
	unsigned before;
	struct raw r;
	int flags, i;

	raw_join(&r, path);
	while (write(r.fds[3], "", 1) == 1)
		;
	for (i = 2; i < 4; i++) {
		flags = fcntl(r.fds[i], F_GETFL);
		ck_assert_int_eq(fcntl(r.fds[i], F_SETFL,
		    flags & ~O_NONBLOCK), 0);
	}
	ck_assert(!raw_dropped(&r, 200));
	before = probe_trips(probe);
	usleep(300000);
	ck_assert_uint_gt(probe_trips(probe), before);	/* it is served */
	raw_close(&r);
}
END_TEST

START_TEST(doorbell_flood_delays_nobody)
{
	double end = dcpd_now() + 1;
	struct raw r;

	raw_join(&r, path);
	while (dcpd_now() < end)
		raw_ring(&r);
	raw_close(&r);
}
END_TEST

/* Ends of the pipe shut, one by one; then an end that hangs up. */
START_TEST(doorbell_without_ends_harms_nobody)
{
	unsigned before;
	struct raw r;
	int i;

	for (i = 2; i < 4; i++) {
		raw_join(&r, path);
		close(r.fds[i]);
		r.fds[i] = -1;
		ck_assert(!raw_dropped(&r, 100));
		before = probe_trips(probe);
		usleep(100000);
		ck_assert_uint_gt(probe_trips(probe), before);
		raw_close(&r);
	}
}
END_TEST

/*
 * Ask for wake-up bytes without end and read none: the daemon's end of the
 * socket fills up, and must not block it.
 */
START_TEST(full_socket_blocks_nobody)
{
	unsigned before;
	struct raw r;
	int i;

	raw_join(&r, path);
	for (i = 0; i < 2000; i++) {
		__atomic_add_fetch(&r.c->cq_bell, 1, __ATOMIC_SEQ_CST);
		raw_request(&r, 0, 1);
		raw_submit(&r, 0, RAW_REQUEST_LEN);
		while (__atomic_load_n(&r.s->sq_head, __ATOMIC_ACQUIRE) !=
		    r.next)
			usleep(100);
	}
	ck_assert(!raw_dropped(&r, 200));
	before = probe_trips(probe);
	usleep(300000);
	ck_assert_uint_gt(probe_trips(probe), before);	/* it is served */
	raw_close(&r);
}
END_TEST

START_TEST(regions_are_sealed)
{
	struct raw r;
	int i;

	raw_join(&r, path);
	for (i = 0; i < 2; i++) {
		ck_assert_int_lt(ftruncate(r.fds[i], 0), 0);
		ck_assert_int_lt(ftruncate(r.fds[i], 1 << 30), 0);
		ck_assert_int_lt(fcntl(r.fds[i], F_ADD_SEALS, F_SEAL_WRITE),
		    0);
	}
	/* What the daemon wrote nobody else can change. */
	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
	    r.fds[1], 0), MAP_FAILED);
	ck_assert_int_lt(mprotect((void *)r.srv, 4096,
	    PROT_READ | PROT_WRITE), 0);
	ck_assert_int_lt((int)pwrite(r.fds[1], "x", 1, 0), 0);
	ck_assert_int_lt(fallocate(r.fds[1],
	    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
	/* A hole in its own region reads as zeros, and faults nobody. */
	ck_assert_int_eq(fallocate(r.fds[0], FALLOC_FL_PUNCH_HOLE |
	    FALLOC_FL_KEEP_SIZE, 0, (off_t)r.w.client_bytes), 0);
	raw_publish(&r, 1);		/* op 0 */
	ck_assert(raw_dropped(&r, 2000));
	raw_close(&r);
}
END_TEST

/* Memory held for one who never reads has an end. */
START_TEST(unread_answers_stop_the_intake_not_the_daemon)
{
	uint32_t tail = 0, head = 0, last, still = 0;
	struct raw r;

	raw_join(&r, path);
	while (still < 50) {
		last = head;
		head = __atomic_load_n(&r.s->sq_head, __ATOMIC_ACQUIRE);
		while (tail - head < r.s->sq_entries) {
			r.sq[tail++ % r.s->sq_entries] = (struct dcpr_sqe){
			    .op = DCPR_OP_INFO };
		}
		raw_publish(&r, tail);
		usleep(2000);
		still = head == last ? still + 1 : 0;
		ck_assert_uint_lt(head, 100000);
	}
	ck_assert_uint_gt(head, 4096);	/* the ring, and then a little */
	ck_assert_uint_lt(head, 4096 + 4000);
	ck_assert(!raw_dropped(&r, 0));
	raw_close(&r);
}
END_TEST

/* Others hold all the descriptors that the daemon may have. */
START_TEST(daemon_out_of_descriptors_recovers)
{
	struct ring_server_config cfg = { 0 };
	struct rlimit was, few;
	struct dcp *d[40], *last;
	unsigned n = 0;

	cfg.ipc.path = ring_temp_path("few");
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	few = (struct rlimit){ 40, was.rlim_max };
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	server = ring_server_fork(&cfg, NULL);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	ck_assert_int_gt(server, 0);
	while (n < 40 && dcp_connect(cfg.ipc.path, 500, &d[n]) == 0)
		n++;
	ck_assert_uint_gt(n, 2);
	ck_assert_uint_lt(n, 40);
	/* Room again when they leave. */
	while (n > 0)
		dcp_close(d[--n]);
	ck_assert_int_eq(dcp_connect(cfg.ipc.path, 5000, &last), 0);
	dcp_close(last);
	ring_server_end(server);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("hostile");
	TCase *t = tcase_create("hostile"), *few = tcase_create("descriptors");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, set_up, tear_down);
	tcase_add_loop_test(t, lying_client_is_dropped_with_one_line, 0,
	    (int)(sizeof lies / sizeof lies[0]));
	tcase_add_test(t, request_changed_after_submit_harms_nobody);
	tcase_add_test(t, ten_thousand_connects_harm_nobody);
	tcase_add_test(t, silent_connections_are_dropped_in_time);
	tcase_add_test(t, connections_of_a_uid_are_limited);
	tcase_add_test(t, hello_with_descriptors_keeps_none);
	tcase_add_test(t, wrong_hello_is_answered_or_dropped);
	tcase_add_test(t, full_and_blocking_doorbell_blocks_nobody);
	tcase_add_test(t, doorbell_flood_delays_nobody);
	tcase_add_test(t, doorbell_without_ends_harms_nobody);
	tcase_add_test(t, full_socket_blocks_nobody);
	tcase_add_test(t, regions_are_sealed);
	tcase_add_test(t, unread_answers_stop_the_intake_not_the_daemon);
	tcase_set_timeout(few, 60);
	tcase_add_test(few, daemon_out_of_descriptors_recovers);
	suite_add_tcase(s, t);
	suite_add_tcase(s, few);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed > 0;
}
