/*
 * dcp_connect and dcp_close: the set-up on the socket, the mappings, and
 * their end.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libdcpclient/private.h"

#define DEFAULT_PATH "/run/dcpd/dcpd.sock"
#define DEFAULT_SPIN_US 50
#define N_FDS 4			/* with WELCOME */

/* ms left until end (ns), for poll; -1 when there is no end */
static int
ms_left(uint64_t end)
{
	uint64_t now;

	if (end == UINT64_MAX)
		return -1;
	now = dcp_now_ns();
	if (now >= end)
		return 0;
	return (int)((end - now + 999999) / 1000000);
}

static int
open_socket(const char *path, uint64_t end, int *out)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, rc;

	if (strlen(path) >= sizeof sa.sun_path)
		return dcp_fail(-ENAMETOOLONG, "%s: longer than the %zu bytes "
		    "a socket path may have", path, sizeof sa.sun_path - 1);
	memcpy(sa.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return dcp_fail(-errno, "socket: %s", strerror(errno));
	while (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0) {
		struct timespec ms = { .tv_nsec = 1000000 };

		if (errno == EINTR)
			continue;
		/* EAGAIN: the backlog is full; unix sockets do not queue. */
		if (errno == EAGAIN && ms_left(end) != 0) {
			nanosleep(&ms, NULL);
			continue;
		}
		rc = errno == EAGAIN ? -ETIMEDOUT : -errno;
		dcp_fail(rc, rc == -ENOENT || rc == -ECONNREFUSED ?
		    "%s: %s; is dcpd running with this --socket?" :
		    rc == -EACCES ?
		    "%s: %s; only its owner and its group may connect, the "
		    "group is dcpd's --socket-group" : "%s: %s",
		    path, strerror(-rc));
		close(fd);
		return rc;
	}
	/* From now on a call says itself when it must not wait. */
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	*out = fd;
	return 0;
}

/* Take the descriptors out of m; all or none. */
static int
take_fds(struct msghdr *m, int fds[N_FDS])
{
	struct cmsghdr *cm = CMSG_FIRSTHDR(m);
	size_t n = 0, i;
	int got[8];

	if (cm != NULL && cm->cmsg_level == SOL_SOCKET &&
	    cm->cmsg_type == SCM_RIGHTS) {
		n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		if (n > 8)
			n = 8;
		memcpy(got, CMSG_DATA(cm), n * sizeof(int));
	}
	if (n == N_FDS && !(m->msg_flags & MSG_CTRUNC)) {
		memcpy(fds, got, sizeof got[0] * N_FDS);
		return 0;
	}
	for (i = 0; i < n; i++)
		close(got[i]);
	return -EPROTO;
}

static int
handshake(int sock, uint64_t end, struct dcpr_welcome *w, int fds[N_FDS])
{
	struct dcpr_hello hello = {
		.magic = DCPR_MAGIC, .major = DCPR_MAJOR, .minor = DCPR_MINOR,
		.features = DCPR_FEATURES,
	};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(8 * sizeof(int))];
	} ctl;
	struct iovec iov = { w, sizeof *w };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
	    .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf };
	struct pollfd p = { .fd = sock, .events = POLLIN };
	unsigned reset = 0;
	ssize_t n;
	int rc;

	/* A daemon that refuses may have answered and shut its end already. */
	if (send(sock, &hello, sizeof hello, MSG_NOSIGNAL) < 0 &&
	    errno != EPIPE)
		return dcp_fail(-errno, "HELLO: %s", strerror(errno));
	do {
		rc = poll(&p, 1, ms_left(end));
	} while (rc < 0 && errno == EINTR);
	if (rc == 0)
		return dcp_fail(-ETIMEDOUT, "the daemon did not answer HELLO "
		    "in time; it may still be loading its model");
	/*
	 * A daemon that refuses does not wait for HELLO. Its end then shut
	 * with HELLO unread, which is reported before what it had sent.
	 */
	do {
		n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == ECONNRESET && !reset++);
	if (n == 0 || (n < 0 && errno == ECONNRESET))
		return dcp_fail(-EPIPE, "the daemon closed the connection");
	if (n < 0)
		return dcp_fail(-errno, "WELCOME: %s", strerror(errno));
	rc = take_fds(&m, fds);
	if (n != sizeof *w || w->magic != DCPR_MAGIC) {
		if (rc == 0)
			goto close_fds;
		return dcp_fail(-EPROTO, "this socket does not speak dcpd's "
		    "client protocol");
	}
	w->text[sizeof w->text - 1] = '\0';
	if (w->status != 0) {
		if (rc == 0)
			goto close_fds;
		return dcp_fail(w->status < 0 ? w->status : -EPROTO,
		    "refused: %s", w->text);
	}
	if (rc == 0 && w->major == DCPR_MAJOR)
		return 0;
	if (rc != 0)
		return dcp_fail(-EPROTO, "WELCOME lacks its descriptors");
close_fds:
	for (rc = 0; rc < N_FDS; rc++)
		close(fds[rc]);
	return dcp_fail(-EPROTO, "WELCOME is malformed or of version %u, "
	    "not %d", w->major, DCPR_MAJOR);
}

/* Map one region; sealed against shrinking, so that no access can fault. */
static int
map_region(int fd, uint64_t bytes, int prot, uint8_t **out)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);
	void *p;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 ||
	    bytes < DCPR_PAGE || bytes > UINT32_MAX ||
	    (uint64_t)st.st_size != bytes)
		return dcp_fail(-EPROTO, "shared memory is unsealed or has "
		    "another size than the daemon said");
	p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return dcp_fail(-errno, "mmap: %s", strerror(errno));
	madvise(p, bytes, MADV_DONTFORK);
	*out = p;
	return 0;
}

static bool
ring_fits(uint32_t off, uint32_t n, uint64_t each, size_t bytes)
{
	return n > 0 && (n & (n - 1)) == 0 && off % 8 == 0 &&
	    off >= DCPR_PAGE && off <= bytes && n * each <= bytes - off;
}

/* Find the rings in the regions. */
static int
lay_out(struct dcp *d)
{
	const struct dcpr_server_page *s = (const void *)d->srv;

	if (s->magic != DCPR_MAGIC || s->major != DCPR_MAJOR ||
	    !ring_fits(s->sq_off, s->sq_entries, sizeof *d->sq, d->cli_bytes) ||
	    !ring_fits(s->arena_off, s->arena_size, 1, d->cli_bytes) ||
	    !ring_fits(s->cq_off, s->cq_entries, sizeof *d->cq, d->srv_bytes) ||
	    !ring_fits(s->stream_off, s->stream_size, 1, d->srv_bytes))
		return dcp_fail(-EPROTO, "shared memory: layout is malformed");
	d->s = s;
	d->c = (void *)d->cli;
	d->sq = (void *)(d->cli + s->sq_off);
	d->arena = d->cli + s->arena_off;
	d->cq = (const void *)(d->srv + s->cq_off);
	d->stream = d->srv + s->stream_off;
	d->sq_entries = s->sq_entries;
	d->cq_entries = s->cq_entries;
	d->arena_size = s->arena_size;
	d->stream_size = s->stream_size;
	d->a_end = calloc(d->sq_entries, sizeof *d->a_end);
	if (d->a_end == NULL)
		return dcp_fail(-ENOMEM, "out of memory");
	return 0;
}

static uint64_t
spin_ns(void)
{
	const char *v = secure_getenv("DCP_SPIN_US");
	char *e;
	unsigned long us;

	if (v == NULL || *v < '0' || *v > '9')
		return DEFAULT_SPIN_US * 1000;
	us = strtoul(v, &e, 10);
	if (*e != '\0' || us > 1000000)
		return DEFAULT_SPIN_US * 1000;
	return us * 1000;
}

/* Locks, the fork mark and the descriptors behind dcp_fd(). */
static int
init(struct dcp *d)
{
	struct epoll_event e = { .events = EPOLLIN };
	pthread_condattr_t ca;

	pthread_mutex_init(&d->tx, NULL);
	pthread_mutex_init(&d->rx, NULL);
	pthread_mutex_init(&d->ids_lock, NULL);
	pthread_condattr_init(&ca);
	pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
	pthread_cond_init(&d->rx_cond, &ca);
	pthread_condattr_destroy(&ca);
	d->queue_end = &d->queue;
	d->spin_ns = spin_ns();
	/*
	 * The kernel zeroes this page in a forked child. That is what a
	 * getpid() in every call would tell, without the system call.
	 */
	d->fork_mark = mmap(NULL, DCPR_PAGE, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (d->fork_mark == MAP_FAILED)
		goto fail;
	if (madvise((void *)d->fork_mark, DCPR_PAGE, MADV_WIPEONFORK) < 0)
		goto fail;
	*d->fork_mark = 1;
	d->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	d->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (d->kick < 0 || d->epfd < 0 ||
	    epoll_ctl(d->epfd, EPOLL_CTL_ADD, d->kick, &e) < 0 ||
	    epoll_ctl(d->epfd, EPOLL_CTL_ADD, d->sock, &e) < 0)
		goto fail;
	return 0;
fail:
	return dcp_fail(-errno, "connection set-up: %s", strerror(errno));
}

static void
destroy(struct dcp *d)
{
	/* In a forked child the regions are not there: leave the range be. */
	bool child = d->fork_mark != MAP_FAILED && *d->fork_mark == 0;
	struct box *b;
	int i;

	while ((b = d->queue) != NULL) {
		d->queue = b->next;
		free(b);
	}
	if (d->cli != NULL && !child)
		munmap(d->cli, d->cli_bytes);
	if (d->srv != NULL && !child)
		munmap(d->srv, d->srv_bytes);
	if (d->fork_mark != MAP_FAILED)
		munmap((void *)d->fork_mark, DCPR_PAGE);
	if (d->epfd >= 0)
		close(d->epfd);
	if (d->kick >= 0)
		close(d->kick);
	for (i = 0; i < 2; i++)
		if (d->bell[i] >= 0)
			close(d->bell[i]);
	/* A forked child may hold it: closing alone would not be heard. */
	if (!child)
		shutdown(d->sock, SHUT_RDWR);
	close(d->sock);
	if (!child) {		/* there a lost thread may hold them */
		pthread_cond_destroy(&d->rx_cond);
		pthread_mutex_destroy(&d->ids_lock);
		pthread_mutex_destroy(&d->rx);
		pthread_mutex_destroy(&d->tx);
	}
	free(d->ids.slot);
	free(d->a_end);
	free(d);
}

int
dcp_connect(const char *path, int timeout_ms, struct dcp **out)
{
	uint64_t end = timeout_ms < 0 ? UINT64_MAX :
	    dcp_now_ns() + (uint64_t)timeout_ms * 1000000;
	struct dcpr_welcome w;
	int fds[N_FDS] = { -1, -1, -1, -1 }, rc;
	struct dcp *d;

	dcp_ok();
	if (out == NULL)
		return dcp_fail(-EINVAL, "dcp_connect: out is NULL");
	if (path == NULL)
		path = secure_getenv("DCPD_SOCKET");
	if (path == NULL || *path == '\0')
		path = DEFAULT_PATH;
	d = calloc(1, sizeof *d);
	if (d == NULL)
		return dcp_fail(-ENOMEM, "out of memory");
	d->bell[0] = d->bell[1] = d->kick = d->epfd = -1;
	d->fork_mark = MAP_FAILED;
	rc = open_socket(path, end, &d->sock);
	if (rc < 0) {
		free(d);
		return rc;
	}
	rc = init(d);
	if (rc == 0)
		rc = handshake(d->sock, end, &w, fds);
	if (rc < 0)
		goto out;
	d->bell[0] = fds[2];
	d->bell[1] = fds[3];
	d->client = w.client;
	d->vocab = w.vocab;
	d->cli_bytes = w.client_bytes;
	d->srv_bytes = w.server_bytes;
	rc = map_region(fds[0], w.client_bytes, PROT_READ | PROT_WRITE,
	    &d->cli);
	if (rc == 0)
		rc = map_region(fds[1], w.server_bytes, PROT_READ, &d->srv);
	if (rc == 0)
		rc = lay_out(d);
	close(fds[0]);
	close(fds[1]);
out:
	if (rc < 0) {
		destroy(d);
		return rc;
	}
	*out = d;
	return 0;
}

void
dcp_close(struct dcp *d)
{
	if (d != NULL)
		destroy(d);
}
