/*
 * A new connection: who it is, HELLO, and the shared memory that the daemon
 * makes for it. Intake thread only.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dcpd/ipc/ipc_internal.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U		/* Linux 6.3 */
#endif

#define ACCEPT_BATCH 32
#define LISTEN_PAUSE_NS 100000000ull	/* when descriptors run out */

/* --- shared memory --- */

/*
 * A sealed region: it can neither shrink under us nor grow, nor its seals
 * change; when read_only, it can be mapped writable by nobody after us.
 */
static int
make_region(const char *name, size_t bytes, bool read_only, int *fd_out,
    uint8_t **map_out)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW, fd, rc;
	uint8_t *p = MAP_FAILED;

	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING |
	    MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) < 0)
		goto fail;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		goto fail;
	madvise(p, bytes, MADV_DONTFORK);
	if (read_only)
		seals |= F_SEAL_FUTURE_WRITE;
	if (fcntl(fd, F_ADD_SEALS, seals) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0)
		goto fail;
	*fd_out = fd;
	*map_out = p;
	return 0;
fail:
	rc = -errno;
	if (p != MAP_FAILED)
		munmap(p, bytes);
	close(fd);
	return rc;
}

/*
 * The doorbell: [0] is the end that we watch, [1] the one that the client
 * writes. A pipe and not an eventfd, because a write to a pipe wakes its
 * reader on the writer's processor: no other has to be fetched from its sleep.
 */
static int
make_bell(int fds[2])
{
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	fcntl(fds[0], F_SETPIPE_SZ, DCPR_PAGE);	/* else it is larger */
	return 0;
}

/*
 * Each write to a doorbell must be an edge, though nobody reads it. Linux 5.5
 * to 5.13 told only of a write to an empty pipe (5.14 and their later releases
 * tell of every one again): there a client's second ring would be lost.
 */
static int
try_bell(int ep, const int fds[2])
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET };
	int rung;

	if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[0], &e) < 0)
		return -errno;
	for (rung = 0; rung < 2; rung++) {
		if (write(fds[1], "", 1) != 1)
			return -errno;
		if (epoll_wait(ep, &e, 1, 0) != 1)
			return -ENOTSUP;
	}
	return 0;
}

int
ipc_bell_check(struct dcpd_err *err)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), fds[2] = { -1, -1 };
	int rc = ep < 0 ? -errno : make_bell(fds);

	if (rc == 0)
		rc = try_bell(ep, fds);
	if (fds[0] >= 0) {
		close(fds[0]);
		close(fds[1]);
	}
	if (ep >= 0)
		close(ep);
	if (rc == -ENOTSUP)
		return dcpd_fail(err, rc, "the kernel does not tell epoll of a "
		    "write to a pipe that is not empty, as Linux 5.5 to 5.13 "
		    "at first did not: start dcpd under Linux 5.14 or later");
	return rc == 0 ? 0 : dcpd_fail(err, rc, "doorbell: %s",
	    strerror(-rc));
}

static void
write_header(const struct dcpd_ipc *ipc, uint8_t *srv)
{
	struct dcpr_server_page *s = (void *)srv;

	*s = (struct dcpr_server_page){
		.magic = DCPR_MAGIC,
		.major = DCPR_MAJOR, .minor = DCPR_MINOR,
		.features = DCPR_FEATURES, .epoch = ipc->epoch,
		.sq_off = DCPR_PAGE, .sq_entries = SQ_ENTRIES,
		.arena_off = DCPR_PAGE + SQ_ENTRIES * 64u,
		.arena_size = ARENA_BYTES,
		.cq_off = DCPR_PAGE, .cq_entries = CQ_ENTRIES,
		.stream_off = DCPR_PAGE + CQ_ENTRIES * 64u,
		.stream_size = STREAM_BYTES,
		.sq_bell = 1,		/* the first submission rings */
	};
}

/* --- WELCOME --- */

static int
welcome(int sock, const struct dcpr_welcome *w, const int *fds, unsigned n)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(4 * sizeof(int))];
	} ctl = { 0 };
	struct iovec iov = { (void *)w, sizeof *w };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cm;

	if (n > 0) {
		m.msg_control = ctl.buf;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		cm = CMSG_FIRSTHDR(&m);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, n * sizeof(int));
	}
	if (sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return -errno;
	return 0;
}

static void __attribute__((format(printf, 3, 4)))
refuse(int sock, int code, const char *fmt, ...)
{
	struct dcpr_welcome w = {
		.magic = DCPR_MAGIC, .major = DCPR_MAJOR, .minor = DCPR_MINOR,
		.status = code, .features = DCPR_FEATURES,
	};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(w.text, sizeof w.text, fmt, ap);
	va_end(ap);
	welcome(sock, &w, NULL, 0);
}

/* --- accepting --- */

void
pending_free(struct dcpd_ipc *ipc, struct pending *p)
{
	*p->prev = p->next;
	if (p->next != NULL)
		p->next->prev = p->prev;
	else
		ipc->pending_end = p->prev;
	ipc->n_pending--;
	if (p->sock >= 0) {
		close(p->sock);
		p->use->clients--;
	}
	free(p);
}

static bool
in_group(const struct dcpd_ipc *ipc, int sock, const struct ucred *cred)
{
	gid_t groups[256];
	socklen_t len = sizeof groups;
	unsigned i;

	if (!ipc->cfg.check_group || cred->uid == 0 ||
	    cred->uid == geteuid() || cred->gid == ipc->cfg.group)
		return true;
	if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
		return false;
	for (i = 0; i < len / sizeof groups[0]; i++)
		if (groups[i] == ipc->cfg.group)
			return true;
	return false;
}

/* May it go on to say HELLO? If not it has been told. */
static bool
may_enter(struct dcpd_ipc *ipc, int sock, const struct ucred *cred,
    struct uid_use **use)
{
	const struct dcpd_ipc_config *cfg = &ipc->cfg;

	if (!in_group(ipc, sock, cred)) {
		ipc_complain(ipc, "pid %d (uid %u) refused: not in group %u",
		    cred->pid, cred->uid, cfg->group);
		refuse(sock, -EACCES, "uid %u is not in group %u, which may "
		    "connect", cred->uid, cfg->group);
		return false;
	}
	*use = uid_find(ipc, cred);
	if (*use == NULL)
		return false;
	if ((*use)->clients >= (*use)->max_clients) {
		ipc_complain(ipc, "pid %d refused: uid %u has %u connections, "
		    "the most it may have", cred->pid, cred->uid,
		    (*use)->max_clients);
		refuse(sock, -EAGAIN, "uid %u has %u connections, the most it "
		    "may have", cred->uid, (*use)->max_clients);
		return false;
	}
	if (ipc->n_clients + ipc->n_pending >= cfg->max_clients) {
		ipc_complain(ipc, "pid %d (uid %u) refused: %u connections, "
		    "the most there may be", cred->pid, cred->uid,
		    cfg->max_clients);
		refuse(sock, -EAGAIN, "the daemon has %u connections, the "
		    "most it takes", cfg->max_clients);
		return false;
	}
	return true;
}

static void
add_pending(struct dcpd_ipc *ipc, int sock)
{
	struct epoll_event e = { .events = EPOLLIN };
	socklen_t len = sizeof(struct ucred);
	struct pending *p = calloc(1, sizeof *p);

	if (p == NULL || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &p->cred,
	    &len) < 0 || !may_enter(ipc, sock, &p->cred, &p->use))
		goto fail;
	p->ipc = ipc;
	p->sock = sock;
	p->src = (struct source){ SRC_PENDING, p };
	p->deadline = dcpd_now_ns() + ipc->cfg.hello_timeout_ms * 1000000ull;
	e.data.ptr = &p->src;
	if (epoll_ctl(ipc->epfd, EPOLL_CTL_ADD, sock, &e) < 0)
		goto fail;
	p->use->clients++;
	p->prev = ipc->pending_end;
	*ipc->pending_end = p;
	ipc->pending_end = &p->next;
	ipc->n_pending++;
	return;
fail:
	free(p);
	close(sock);
}

void
hello_accept(struct dcpd_ipc *ipc)
{
	struct epoll_event e = { .events = 0, .data.ptr = &ipc->src_listen };
	int i, sock;

	for (i = 0; i < ACCEPT_BATCH; i++) {
		sock = accept4(ipc->listen.fd, NULL, NULL,
		    SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (sock >= 0) {
			add_pending(ipc, sock);
			continue;
		}
		if (errno == ECONNABORTED || errno == EINTR)
			continue;
		if (errno == EAGAIN)
			return;
		/* No descriptors: they wait in the backlog. */
		ipc_complain(ipc, "accept: %s; trying again in 100 ms",
		    strerror(errno));
		ipc->listen_off = dcpd_now_ns() + LISTEN_PAUSE_NS;
		epoll_ctl(ipc->epfd, EPOLL_CTL_MOD, ipc->listen.fd, &e);
		return;
	}
}

/* --- HELLO --- */

/* From a checked HELLO to a client. 0, or -errno and nothing is left over. */
static int
admit(struct dcpd_ipc *ipc, struct pending *p)
{
	struct dcpr_welcome w = {
		.magic = DCPR_MAGIC, .major = DCPR_MAJOR, .minor = DCPR_MINOR,
		.client = ipc->next_client, .features = DCPR_FEATURES,
		.client_bytes = CLIENT_BYTES, .server_bytes = SERVER_BYTES,
		.vocab = ipc->cfg.vocab,
	};
	/* client region, server region, doorbell: to be read, written */
	int fds[4] = { -1, -1, -1, -1 }, pidfd, rc;
	uint8_t *cli = NULL, *srv = NULL;
	struct dcpd_client *c = NULL;

	/*
	 * The end of the process, even when a forked child still holds the
	 * socket. Had the pid been reused by now, its socket would be shut.
	 */
	pidfd = (int)syscall(SYS_pidfd_open, p->cred.pid, 0);
	if (pidfd < 0)
		return -errno;
	fcntl(pidfd, F_SETFD, FD_CLOEXEC);
	rc = make_region("dcpd-client", CLIENT_BYTES, false, &fds[0], &cli);
	if (rc == 0)
		rc = make_region("dcpd-server", SERVER_BYTES, true, &fds[1],
		    &srv);
	if (rc < 0)
		goto out;
	write_header(ipc, srv);
	rc = make_bell(&fds[2]);
	if (rc < 0)
		goto out;
	c = client_new(ipc, p, pidfd, fds[2], cli, srv);
	if (c == NULL) {
		rc = -ENOMEM;
		goto out;
	}
	p->sock = -1;			/* the client's now */
	rc = welcome(c->sock, &w, fds, 4);
	close(fds[0]);
	close(fds[1]);
	close(fds[3]);
	if (rc < 0)
		client_drop(c, NULL);
	return 0;
out:
	if (fds[3] >= 0) {
		close(fds[3]);
		close(fds[2]);
	}
	if (srv != NULL)
		munmap(srv, SERVER_BYTES);
	if (cli != NULL)
		munmap(cli, CLIENT_BYTES);
	if (fds[1] >= 0)
		close(fds[1]);
	if (fds[0] >= 0)
		close(fds[0]);
	close(pidfd);
	return rc;
}

/* NULL, or why this HELLO is none; the client has been told. */
static const char *
check_hello(int sock, const struct dcpr_hello *h, ssize_t n, int flags)
{
	/* With no room for descriptors the kernel drops any that came. */
	if (flags & MSG_CTRUNC)
		return "it sent file descriptors";
	if (n != sizeof *h || flags & MSG_TRUNC || h->magic != DCPR_MAGIC)
		return "its first message is not HELLO";
	if (h->major != DCPR_MAJOR) {
		refuse(sock, -EPROTO, "the client speaks version %u of the "
		    "ring, the daemon %d: install the matching libdcpclient",
		    h->major, DCPR_MAJOR);
		return "another major version";
	}
	if (h->features & ~DCPR_FEATURES) {
		refuse(sock, -EPROTO, "the client needs features %#llx that "
		    "the daemon lacks", (unsigned long long)
		    (h->features & ~DCPR_FEATURES));
		return "it needs unknown features";
	}
	return NULL;
}

void
hello_read(struct pending *p)
{
	struct dcpd_ipc *ipc = p->ipc;
	struct dcpr_hello h = { 0 };
	struct iovec iov = { &h, sizeof h };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	const char *why;
	ssize_t n;
	int rc;

	n = recvmsg(p->sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0) {
		why = check_hello(p->sock, &h, n, m.msg_flags);
		if (why != NULL)
			ipc_complain(ipc, "pid %d (uid %u) dropped: %s",
			    p->cred.pid, p->cred.uid, why);
		rc = why == NULL ? admit(ipc, p) : 0;
		if (rc < 0) {
			ipc_complain(ipc, "pid %d (uid %u) refused: %s",
			    p->cred.pid, p->cred.uid, rc == -ESRCH ?
			    "it has ended before" : strerror(-rc));
			refuse(p->sock, rc, "the daemon could not set up the "
			    "connection: %s", strerror(-rc));
		}
	}
	pending_free(ipc, p);
}

int
hello_expire(struct dcpd_ipc *ipc)
{
	struct epoll_event e = { .events = EPOLLIN,
	    .data.ptr = &ipc->src_listen };
	uint64_t now = dcpd_now_ns(), next;
	struct pending *p;

	while ((p = ipc->pending) != NULL && p->deadline <= now) {
		ipc_complain(ipc, "pid %d (uid %u) dropped: no HELLO in %u ms",
		    p->cred.pid, p->cred.uid, ipc->cfg.hello_timeout_ms);
		pending_free(ipc, p);
	}
	if (ipc->listen_off != 0 && ipc->listen_off <= now) {
		ipc->listen_off = 0;
		epoll_ctl(ipc->epfd, EPOLL_CTL_MOD, ipc->listen.fd, &e);
	}
	next = p != NULL ? p->deadline : UINT64_MAX;
	if (ipc->listen_off != 0)
		next = dcpd_min64(next, ipc->listen_off);
	if (next == UINT64_MAX)
		return -1;
	return (int)((next - now + 999999) / 1000000);
}
