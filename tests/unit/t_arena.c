/*
 * The client's arena against a daemon that takes submissions when it is told
 * to: no block is given out again before the entry that names it is taken.
 * The daemon here is the test itself, which writes sq_head by hand.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <fcntl.h>
#include <unistd.h>

#include "libdcpclient/dcp_ring.h"
#include "libdcpclient/dcpclient.h"
#include "tests/unit/ring_server.h"

#define ARENA 4096u
#define ENTRIES 8u
#define CLIENT_BYTES (DCPR_PAGE + ENTRIES * 64u + ARENA)
#define SERVER_BYTES (3 * DCPR_PAGE)

static struct dcpr_server_page *page;	/* of the fake daemon */
static const struct dcpr_sqe *sq;
static struct dcp *d;

static void *
region(size_t bytes, int *fd)
{
	void *p;

	*fd = memfd_create("t_arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_ge(*fd, 0);
	ck_assert_int_eq(ftruncate(*fd, (off_t)bytes), 0);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	return p;
}

static void
say_welcome(int sock)
{
	struct dcpr_welcome w = {
		.magic = DCPR_MAGIC, .major = DCPR_MAJOR, .client = 1,
		.client_bytes = CLIENT_BYTES, .server_bytes = SERVER_BYTES,
		.vocab = 1000,
	};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(4 * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { &w, sizeof w };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
	    .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int fds[4];

	sq = (void *)((char *)region(CLIENT_BYTES, &fds[0]) + DCPR_PAGE);
	page = region(SERVER_BYTES, &fds[1]);
	*page = (struct dcpr_server_page){
		.magic = DCPR_MAGIC, .major = DCPR_MAJOR,
		.sq_off = DCPR_PAGE, .sq_entries = ENTRIES,
		.arena_off = DCPR_PAGE + ENTRIES * 64u, .arena_size = ARENA,
		.cq_off = DCPR_PAGE, .cq_entries = 8,
		.stream_off = 2 * DCPR_PAGE, .stream_size = DCPR_PAGE,
	};
	ck_assert_int_eq(pipe2(&fds[2], O_CLOEXEC | O_NONBLOCK), 0);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fds);
	memcpy(CMSG_DATA(c), fds, sizeof fds);
	ck_assert_int_eq(sendmsg(sock, &m, 0), sizeof w);
}

static void *
connecting(void *path)
{
	ck_assert_int_eq(dcp_connect(path, 20000, &d), 0);
	return NULL;
}

/* A connection; returns the daemon's end of it. */
static int
start(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	const char *path = ring_temp_path("arena");
	struct dcpr_hello h;
	pthread_t t;
	int l, sock;

	strcpy(sa.sun_path, path);
	l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(l, (struct sockaddr *)&sa, sizeof sa), 0);
	ck_assert_int_eq(listen(l, 1), 0);
	ck_assert_int_eq(pthread_create(&t, NULL, connecting, (void *)path),
	    0);
	sock = accept(l, NULL, NULL);
	ck_assert_int_eq(recv(sock, &h, sizeof h, 0), sizeof h);
	say_welcome(sock);
	pthread_join(t, NULL);
	close(l);
	return sock;
}

/* Submit a request whose block has so many bytes. */
static int
submit(uint32_t block, uint64_t *id)
{
	static char text[ARENA];
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TEXT, .data = text,
		.len = block - sizeof(struct dcpr_request), .max_tokens = 1,
	};

	memset(text, 'x', sizeof text);
	return dcp_submit(d, &r, id);
}

static void
taken(uint32_t entries)
{
	__atomic_store_n(&page->sq_head, entries, __ATOMIC_RELEASE);
}

/*
 * A cancellation has no block, but its entry remembers where the arena stood.
 * With one still to be taken, an arena without blocks is not yet a new one.
 */
START_TEST(a_block_waits_for_its_own_entry)
{
	uint64_t a, b, c;
	int sock = start();

	ck_assert_int_eq(submit(3072, &a), 0);
	ck_assert_int_eq(dcp_cancel(d, a), 0);
	taken(1);				/* a; not the cancellation */
	ck_assert_int_eq(submit(2560, &b), 0);
	taken(2);				/* b is still to be taken */
	ck_assert_int_eq(submit(2048, &c), -EAGAIN);
	taken(3);
	ck_assert_int_eq(submit(2048, &c), 0);
	ck_assert_int_eq(submit(2048, &c), 0);
	ck_assert_int_eq(submit(8 + sizeof(struct dcpr_request), &c), -EAGAIN);
	close(sock);
	dcp_close(d);
}
END_TEST

/* Whatever the daemon takes and when: blocks that wait never overlap. */
START_TEST(blocks_that_wait_never_overlap)
{
	uint32_t head = 0, tail = 0, i, x = 12345, lo, hi;
	uint64_t id = 0;
	int sock = start();

	for (i = 0; i < 200000; i++) {
		x = x * 1664525u + 1013904223u;
		if (x >> 31 && head != tail) {
			taken(++head);
			continue;
		}
		if (tail - head == ENTRIES)
			continue;
		if (x >> 29 & 1 && tail > 0) {
			tail += dcp_cancel(d, id) == 0;
			continue;
		}
		if (submit(128 + (x >> 8) % 4000 / 8 * 8, &id) != 0)
			continue;
		lo = sq[tail % ENTRIES].off;
		hi = lo + sq[tail % ENTRIES].len;
		ck_assert_uint_le(hi, ARENA);
		for (uint32_t k = head; k != tail; k++) {
			const struct dcpr_sqe *o = &sq[k % ENTRIES];

			if (o->op == DCPR_OP_SUBMIT)
				ck_assert_msg(hi <= o->off ||
				    o->off + o->len <= lo, "%u..%u and %u..%u "
				    "at %u", lo, hi, o->off, o->off + o->len,
				    i);
		}
		tail++;
	}
	close(sock);
	dcp_close(d);
}
END_TEST

int
main(void)
{
	TCase *t = tcase_create("arena");
	Suite *s = suite_create("arena");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, a_block_waits_for_its_own_entry);
	tcase_add_test(t, blocks_that_wait_never_overlap);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
