/*
 * The listening socket and the intake thread. The thread owns connections and
 * submissions; it serves each active client a bounded turn, round robin, and
 * sleeps in epoll_wait when none is active.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/thread.h"
#include "dcpd/ipc/ipc_internal.h"

#define EVENTS 64
#define LOG_LINES_A_SECOND 10
#define STOP_FLUSH_MS 200

void
ipc_kick(struct dcpd_ipc *ipc)
{
	uint64_t one = 1;

	if (write(ipc->kick, &one, sizeof one) < 0)
		return;			/* full: readable already */
}

void
ipc_complain(struct dcpd_ipc *ipc, const char *fmt, ...)
{
	uint64_t now = dcpd_now_ns() / 1000000000u;
	char line[400];
	va_list ap;

	if (now != ipc->log_second) {
		if (ipc->log_hidden > 0)
			dcpd_log(LOG_WARNING, "%u more lines about clients "
			    "not shown", ipc->log_hidden);
		ipc->log_second = now;
		ipc->log_lines = ipc->log_hidden = 0;
	}
	if (ipc->log_lines++ >= LOG_LINES_A_SECOND) {
		ipc->log_hidden++;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	dcpd_log(LOG_WARNING, "%s", line);
}

void
ipc_unref(struct dcpd_ipc *ipc)
{
	struct uid_use *u;

	if (atomic_fetch_sub(&ipc->refs, 1) > 1)
		return;
	while ((u = ipc->uids) != NULL) {
		ipc->uids = u->next;
		free(u);
	}
	pthread_mutex_destroy(&ipc->list_lock);
	close(ipc->kick);
	free(ipc);
}

/* --- the intake thread --- */

void
ipc_activate(struct dcpd_client *c)
{
	struct dcpd_ipc *ipc = c->ipc;

	if (c->active || c->dropped)
		return;
	c->active = true;
	c->last_work = dcpd_now_ns();
	c->act_next = NULL;
	*ipc->act_end = c;
	ipc->act_end = &c->act_next;
}

/* The client rang: it submitted, or it read and there is space again. */
static void
on_bell(struct dcpd_client *c)
{
	pthread_mutex_lock(&c->lock);
	/* Also with nothing queued: it has answered, and will not again. */
	c->space_asked = false;
	if (!c->gone && emit_refresh(c) && c->out != NULL)
		emit_pump(c);
	pthread_mutex_unlock(&c->lock);
	ipc_activate(c);
}

/* After HELLO a client has nothing to say on its socket but its end. */
static void
on_sock(struct dcpd_client *c)
{
	char junk[64];
	struct iovec iov = { junk, sizeof junk };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n = recvmsg(c->sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	client_drop(c, n <= 0 ? NULL : m.msg_flags & MSG_CTRUNC ?
	    "it sent file descriptors" : "it sent data on its socket");
}

static void
on_kick(struct dcpd_ipc *ipc)
{
	struct dcpd_client *c, *next;
	const char *fault;
	uint64_t n;

	if (read(ipc->kick, &n, sizeof n) < 0)
		return;
	if (atomic_exchange(&ipc->relimit, false))
		uid_relimit(ipc);
	if (!atomic_exchange(&ipc->fault, false))
		return;
	for (c = ipc->clients; c != NULL; c = next) {
		next = c->next;
		pthread_mutex_lock(&c->lock);
		fault = c->fault;
		pthread_mutex_unlock(&c->lock);
		if (fault != NULL)
			client_drop(c, fault);
	}
}

static void
dispatch(struct dcpd_ipc *ipc, const struct source *s)
{
	struct dcpd_client *c = s->owner;

	switch (s->kind) {
	case SRC_LISTEN:
		hello_accept(ipc);
		return;
	case SRC_KICK:
		on_kick(ipc);
		return;
	case SRC_PENDING:
		hello_read(s->owner);
		return;
	case SRC_SOCK:
		if (!c->dropped)
			on_sock(c);
		return;
	case SRC_BELL:
		if (!c->dropped)
			on_bell(c);
		return;
	case SRC_PIDFD:
		if (!c->dropped)
			client_drop(c, NULL);
		return;
	}
}

/* One turn for each active client. true: one of them had work. */
static bool
serve(struct dcpd_ipc *ipc)
{
	struct dcpd_client *c, **p = &ipc->act;
	bool worked = false, keep;

	while ((c = *p) != NULL) {
		keep = !c->dropped;
		if (keep && intake_turn(c)) {
			c->last_work = dcpd_now_ns();
			worked = true;
		} else if (keep && !c->dropped) {
			keep = (ipc->cfg.spin_us > 0 && dcpd_now_ns() -
			    c->last_work < ipc->cfg.spin_us * 1000ull) ||
			    !intake_arm(c);
		} else {
			keep = false;
		}
		if (keep) {
			p = &c->act_next;
			continue;
		}
		c->active = false;
		*p = c->act_next;
		if (*p == NULL)
			ipc->act_end = p;
	}
	return worked;
}

/* No event and no list names the dropped any more. */
static void
bury(struct dcpd_ipc *ipc)
{
	struct dcpd_client *c;

	while ((c = ipc->dead) != NULL) {
		ipc->dead = c->dead_next;
		DCPD_ASSERT(!c->active);
		dcpd_client_unref(c);
	}
}

/* End every live request, and give readers a moment to make space. */
static void
shut_down(struct dcpd_ipc *ipc)
{
	static const char why[] = "the daemon is shutting down";
	struct dcp_event ev = {
		.type = DCP_EV_ERROR, .error = -ESHUTDOWN,
		.text = why, .text_len = sizeof why - 1,
	};
	struct timespec ms = { .tv_nsec = 1000000 };
	struct dcpd_client *c;
	unsigned i, waited;
	bool busy;

	for (c = ipc->clients; c != NULL; c = c->next) {
		pthread_mutex_lock(&c->lock);
		for (i = 0; i < LIVE_BUCKETS; i++)
			while (c->fault == NULL && c->live[i] != NULL)
				emit_locked(c, c->live[i], &ev);
		pthread_mutex_unlock(&c->lock);
	}
	for (waited = 0; waited < STOP_FLUSH_MS; waited++) {
		busy = false;
		for (c = ipc->clients; c != NULL; c = c->next) {
			pthread_mutex_lock(&c->lock);
			emit_pump(c);
			busy |= c->out != NULL && c->fault == NULL;
			pthread_mutex_unlock(&c->lock);
		}
		if (!busy)
			break;
		nanosleep(&ms, NULL);
	}
	/* No gone(): the daemon has stopped whoever would hear it. */
	ipc->ops.gone = NULL;
	while (ipc->pending != NULL)
		pending_free(ipc, ipc->pending);
	for (c = ipc->act; c != NULL; c = c->act_next)
		c->active = false;
	while (ipc->clients != NULL)
		client_drop(ipc->clients, NULL);
	bury(ipc);
}

static void *
intake(void *arg)
{
	struct dcpd_ipc *ipc = arg;
	struct epoll_event ev[EVENTS];
	unsigned idle = 0;
	int i, n, wait;

	while (!atomic_load(&ipc->stop)) {
		wait = hello_expire(ipc);
		if (ipc->act != NULL)
			wait = 0;
		n = epoll_wait(ipc->epfd, ev, EVENTS, wait);
		for (i = 0; i < n; i++)
			dispatch(ipc, ev[i].data.ptr);
		/*
		 * Rings are looked at more often than descriptors: a look at
		 * a ring costs no system call.
		 */
		for (idle = 0; ipc->act != NULL && idle < 64; )
			idle += serve(ipc) ? 8 : 1;
		bury(ipc);
	}
	shut_down(ipc);
	return NULL;
}

/* --- start and stop --- */

static int
check_config(const struct dcpd_ipc_config *in, struct dcpd_ipc_config *cfg,
    struct dcpd_err *err)
{
	*cfg = *in;
	if (cfg->vocab == 0)
		return dcpd_fail(err, -EINVAL, "ipc: vocab is 0");
	if (cfg->max_clients == 0)
		cfg->max_clients = 256;
	if (cfg->max_clients_uid == 0)
		cfg->max_clients_uid = 64;
	if (cfg->max_requests_uid == 0)
		cfg->max_requests_uid = 256;
	if (cfg->max_bytes_uid == 0)
		cfg->max_bytes_uid = 256u << 20;
	if (cfg->own_times == 0)
		cfg->own_times = 8;
	if (cfg->hello_timeout_ms == 0)
		cfg->hello_timeout_ms = 2000;
	return 0;
}

static int
add_source(struct dcpd_ipc *ipc, int fd, struct source *s)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = s };

	return epoll_ctl(ipc->epfd, EPOLL_CTL_ADD, fd, &e);
}

static int
open_fds(struct dcpd_ipc *ipc, struct dcpd_err *err)
{
	int rc;

	ipc->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ipc->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (ipc->kick < 0 || ipc->epfd < 0)
		return dcpd_fail(err, -errno, "epoll: %s", strerror(errno));
	rc = ipc_bell_check(err);
	if (rc < 0)
		return rc;
	if (ipc->cfg.path != NULL) {
		rc = dcpd_listen_open(ipc->cfg.path, SOCK_SEQPACKET,
		    ipc->cfg.mode != 0 ? ipc->cfg.mode : 0660, "--socket",
		    &ipc->listen, err);
		if (rc < 0)
			return rc;
	} else {
		ipc->listen.fd = ipc->cfg.listen_fd;
		rc = fcntl(ipc->listen.fd, F_GETFL);
		if (rc < 0 || fcntl(ipc->listen.fd, F_SETFL,
		    rc | O_NONBLOCK) < 0)
			return dcpd_fail(err, -errno, "listening socket "
			    "%d: %s", ipc->listen.fd, strerror(errno));
	}
	ipc->src_listen = (struct source){ SRC_LISTEN, ipc };
	ipc->src_kick = (struct source){ SRC_KICK, ipc };
	if (add_source(ipc, ipc->listen.fd, &ipc->src_listen) < 0 ||
	    add_source(ipc, ipc->kick, &ipc->src_kick) < 0)
		return dcpd_fail(err, -errno, "epoll: %s", strerror(errno));
	return 0;
}

static void
close_fds(struct dcpd_ipc *ipc)
{
	dcpd_listen_close(&ipc->listen);
	if (ipc->epfd >= 0)
		close(ipc->epfd);
	/* kick stays for emitting threads until the last reference goes */
}

void
dcpd_ipc_limits(struct dcpd_ipc *ipc, const struct dcpd_ipc_limits *l)
{
	atomic_store(&ipc->cfg.max_clients, l->max_clients);
	atomic_store(&ipc->cfg.max_clients_uid, l->max_clients_uid);
	atomic_store(&ipc->cfg.max_requests_uid, l->max_requests_uid);
	atomic_store(&ipc->cfg.max_bytes_uid, l->max_bytes_uid);
	atomic_store(&ipc->relimit, true);
	ipc_kick(ipc);
}

int
dcpd_ipc_start(const struct dcpd_ipc_config *cfg,
    const struct dcpd_ipc_ops *ops, void *arg, struct dcpd_ipc **out,
    struct dcpd_err *err)
{
	struct dcpd_ipc *ipc = calloc(1, sizeof *ipc);
	int rc;

	if (ipc == NULL)
		return dcpd_fail(err, -ENOMEM, "ipc: out of memory");
	DCPD_ASSERT(ops->submit != NULL);
	atomic_store(&ipc->refs, 1);
	ipc->listen.fd = ipc->epfd = ipc->kick = -1;
	ipc->ops = *ops;
	ipc->arg = arg;
	ipc->epoch = dcpd_now_ns() ^ (uint64_t)getpid() << 48;
	ipc->next_client = 1;
	ipc->pending_end = &ipc->pending;
	ipc->act_end = &ipc->act;
	pthread_mutex_init(&ipc->list_lock, NULL);
	rc = check_config(cfg, &ipc->cfg, err);
	if (rc == 0)
		rc = open_fds(ipc, err);
	if (rc == 0) {
		rc = dcpd_thread_start(&ipc->thread, intake, ipc);
		if (rc < 0)
			dcpd_fail(err, rc, "intake thread: %s", strerror(-rc));
	}
	if (rc < 0) {
		close_fds(ipc);
		ipc_unref(ipc);
		return rc;
	}
	*out = ipc;
	return 0;
}

void
dcpd_ipc_stop(struct dcpd_ipc *ipc)
{
	if (ipc == NULL)
		return;
	atomic_store(&ipc->stop, true);
	ipc_kick(ipc);
	pthread_join(ipc->thread, NULL);
	close_fds(ipc);
	ipc_unref(ipc);
}

char *
dcpd_ipc_clients_json(struct dcpd_ipc *ipc)
{
	json_t *list = json_array();
	struct dcpd_client *c;
	char *text;

	pthread_mutex_lock(&ipc->list_lock);
	for (c = ipc->clients; c != NULL; c = c->next) {
		pthread_mutex_lock(&c->lock);
		json_array_append_new(list, json_pack(
		    "{s:I, s:i, s:i, s:i, s:I, s:f}",
		    "id", (json_int_t)c->id, "pid", (int)c->cred.pid,
		    "uid", (int)c->cred.uid, "requests", (int)c->n_live,
		    "queued_bytes", (json_int_t)c->out_bytes,
		    "age_s", dcpd_now() - c->since));
		pthread_mutex_unlock(&c->lock);
	}
	pthread_mutex_unlock(&ipc->list_lock);
	text = json_dumps(list, JSON_COMPACT);
	json_decref(list);
	return text;
}
