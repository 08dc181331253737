/* A client without the library: it sends and writes whatever it likes. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "libdcpclient/dcpclient.h"
#include "tests/hostile/raw.h"

int
raw_socket(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	DCPD_ASSERT(fd >= 0 && strlen(path) < sizeof sa.sun_path);
	memcpy(sa.sun_path, path, strlen(path) + 1);
	if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0) {
		close(fd);
		return -errno;
	}
	return fd;
}

int
raw_send(int sock, const void *p, size_t len, unsigned n_fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(250 * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { (void *)p, len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cm;
	unsigned i;
	int one = STDIN_FILENO;

	if (n_fds > 0) {
		m.msg_control = ctl.buf;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cm = CMSG_FIRSTHDR(&m);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		for (i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(cm) + i * sizeof(int), &one,
			    sizeof(int));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int
raw_hello(struct raw *r, const char *path, const struct dcpr_hello *h)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(4 * sizeof(int))];
	} ctl;
	struct iovec iov = { &r->w, sizeof r->w };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1,
	    .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf };

	unsigned reset = 0;
	ssize_t n;

	memset(r, 0, sizeof *r);
	r->sock = raw_socket(path);
	DCPD_ASSERT(r->sock >= 0);
	raw_send(r->sock, h, sizeof *h, 0);
	/* ECONNRESET once: refused before HELLO, the answer comes after it */
	while ((n = recvmsg(r->sock, &m, MSG_CMSG_CLOEXEC)) < 0 &&
	    errno == ECONNRESET && !reset++)
		;
	if (n != sizeof r->w)
		return -EPIPE;
	if (r->w.status == 0)
		memcpy(r->fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof r->fds);
	return r->w.status;
}

void
raw_join(struct raw *r, const char *path)
{
	const struct dcpr_hello h = { DCPR_MAGIC, DCPR_MAJOR, DCPR_MINOR, 0 };

	DCPD_ASSERT(raw_hello(r, path, &h) == 0);
	r->cli = mmap(NULL, r->w.client_bytes, PROT_READ | PROT_WRITE,
	    MAP_SHARED, r->fds[0], 0);
	r->srv = mmap(NULL, r->w.server_bytes, PROT_READ, MAP_SHARED,
	    r->fds[1], 0);
	DCPD_ASSERT(r->cli != MAP_FAILED && r->srv != MAP_FAILED);
	r->c = (void *)r->cli;
	r->s = (const void *)r->srv;
	r->sq = (void *)(r->cli + r->s->sq_off);
	r->arena = r->cli + r->s->arena_off;
}

void
raw_close(struct raw *r)
{
	int i;

	if (r->cli != NULL) {
		munmap(r->cli, r->w.client_bytes);
		munmap((void *)r->srv, r->w.server_bytes);
		for (i = 0; i < 4; i++)
			close(r->fds[i]);
	}
	close(r->sock);
}

struct dcpr_request *
raw_request(struct raw *r, uint32_t off, uint32_t token)
{
	struct dcpr_request *q = (void *)(r->arena + off);

	memset(q, 0, RAW_REQUEST_LEN);
	q->input = DCP_INPUT_TOKENS;
	q->max_tokens = 1;
	q->data = (struct dcpr_section){ sizeof *q, 4 };
	memcpy(q + 1, &token, sizeof token);
	return q;
}

void
raw_entry(struct raw *r, struct dcpr_sqe e)
{
	r->sq[r->c->sq_tail % r->s->sq_entries] = e;
}

void
raw_publish(struct raw *r, uint32_t tail)
{
	__atomic_store_n(&r->c->sq_tail, tail, __ATOMIC_SEQ_CST);
	raw_ring(r);
}

void
raw_ring(struct raw *r)
{
	char junk[512];

	if (write(r->fds[3], "", 1) == 1)
		return;
	while (read(r->fds[2], junk, sizeof junk) > 0)
		;
	DCPD_ASSERT(write(r->fds[3], "", 1) == 1);
}

void
raw_submit(struct raw *r, uint32_t off, uint32_t len)
{
	raw_entry(r, (struct dcpr_sqe){ .op = DCPR_OP_SUBMIT, .off = off,
	    .len = len, .id = (uint64_t)r->w.client << 32 | r->next++ });
	raw_publish(r, r->c->sq_tail + 1);
}

bool
raw_dropped(const struct raw *r, int ms)
{
	double end = dcpd_now() + ms * 1e-3;
	struct pollfd p = { .fd = r->sock, .events = 0 };

	/* Bytes that wake us may lie before the end: look for the end only. */
	do {
		if (poll(&p, 1, 1) > 0 && p.revents & POLLHUP)
			return true;
	} while (dcpd_now() < end);
	return false;
}
