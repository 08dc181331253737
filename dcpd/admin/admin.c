/*
 * The admin socket's thread: accepts, reads lines, runs commands, writes
 * answers, all without waiting for any one client. A slow command runs in a
 * thread of its own, so that the others are answered while a step hangs.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dcpd/admin/admin.h"
#include "dcpd/base/thread.h"

#define CONNS 16
#define LINE_MAX_BYTES (4u << 20)	/* of one request: to pin a long text */
#define IDLE_S 60.0	/* neither read nor asked: it is closed */
#define PAUSE_MS 100	/* after a failed accept: no descriptors are left */

struct conn {
	int fd;			/* -1: free */
	char *in;		/* [LINE_MAX_BYTES] */
	size_t in_len;
	char *out;		/* malloc'd; NULL: nothing to write */
	size_t out_len, out_off;
	double moved;		/* last progress, dcpd_now() */
	bool slow;		/* its command runs in the slow thread */
};

/* One slow command at a time. */
struct slow {
	pthread_t thread;
	bool running;		/* admin thread only */
	_Atomic bool done;
	struct conn *conn;	/* NULL: it hung up meanwhile */
	const struct dcpd_admin_command *cmd;
	json_t *request;
	char *answer;
};

struct dcpd_admin {
	struct dcpd_run *run;
	int listen_fd, wake_fd;
	double accept_at;	/* dcpd_now(); till then none is accepted */
	_Atomic bool stop;
	pthread_t thread;
	struct conn conn[CONNS];
	struct slow slow;
};

static char *
answer_text(json_t *result, const struct dcpd_err *err)
{
	json_t *r;
	char *text, *line = NULL;
	size_t n;

	if (result != NULL)
		r = json_pack("{s:b,s:o}", "ok", 1, "result", result);
	else
		r = json_pack("{s:b,s:i,s:s}", "ok", 0, "code", err->code,
		    "error", err->text);
	text = r == NULL ? NULL : json_dumps(r, JSON_COMPACT);
	json_decref(r);
	if (text == NULL)
		return NULL;
	n = strlen(text);
	line = realloc(text, n + 2);
	if (line == NULL)
		free(text);
	else
		memcpy(line + n, "\n", 2);
	return line;
}

static char *
run_command(struct dcpd_run *run, const struct dcpd_admin_command *cmd,
    const json_t *request)
{
	struct dcpd_err err = { 0 };
	json_t *result;

	bool lock = cmd->run != dcpd_admin_reload;

	if (lock)
		pthread_rwlock_rdlock(&run->lock);
	result = cmd->run(run, request, &err);
	if (lock)
		pthread_rwlock_unlock(&run->lock);
	return answer_text(result, &err);
}

static void
conn_close(struct dcpd_admin *a, struct conn *c)
{
	if (a->slow.conn == c)
		a->slow.conn = NULL;
	close(c->fd);
	free(c->in);
	free(c->out);
	memset(c, 0, sizeof *c);
	c->fd = -1;
}

/* Takes text. */
static void
conn_answer(struct dcpd_admin *a, struct conn *c, char *text)
{
	if (text == NULL) {
		conn_close(a, c);
		return;
	}
	c->out = text;
	c->out_len = strlen(text);
	c->out_off = 0;
	c->moved = dcpd_now();
}

static void
conn_error(struct dcpd_admin *a, struct conn *c, const char *text)
{
	struct dcpd_err err = { .code = -EINVAL };

	snprintf(err.text, sizeof err.text, "%s", text);
	conn_answer(a, c, answer_text(NULL, &err));
}

static void *
slow_main(void *arg)
{
	struct dcpd_admin *a = arg;
	uint64_t one = 1;

	a->slow.answer = run_command(a->run, a->slow.cmd, a->slow.request);
	a->slow.done = true;
	if (write(a->wake_fd, &one, sizeof one) < 0)
		return NULL;	/* the admin thread looks once a second */
	return NULL;
}

/* Takes request. */
static void
slow_start(struct dcpd_admin *a, struct conn *c,
    const struct dcpd_admin_command *cmd, json_t *request)
{
	struct slow *s = &a->slow;

	if (s->running) {
		json_decref(request);
		conn_error(a, c, "another such command still waits for a step "
		    "to end; ask again later");
		return;
	}
	s->conn = c;
	s->cmd = cmd;
	s->request = request;
	s->answer = NULL;
	s->done = false;
	if (dcpd_thread_start(&s->thread, slow_main, a) != 0) {
		json_decref(request);
		conn_error(a, c, "no thread for this command");
		return;
	}
	s->running = true;
	c->slow = true;
}

static void
slow_finish(struct dcpd_admin *a)
{
	struct slow *s = &a->slow;

	if (!s->running || !s->done)
		return;
	pthread_join(s->thread, NULL);
	s->running = false;
	json_decref(s->request);
	if (s->conn != NULL) {
		s->conn->slow = false;
		conn_answer(a, s->conn, s->answer);
	} else {
		free(s->answer);
	}
	s->conn = NULL;
}

static void
handle_line(struct dcpd_admin *a, struct conn *c, const char *line, size_t len)
{
	const struct dcpd_admin_command *cmd;
	json_t *req = json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL);
	const char *name = json_string_value(json_object_get(req, "cmd"));

	cmd = name == NULL ? NULL : dcpd_admin_find(name);
	if (cmd == NULL) {
		conn_error(a, c, req == NULL ? "not JSON; one object a line" :
		    name == NULL ? "\"cmd\" is missing; {\"cmd\":\"help\"} "
		    "lists them" : "no such command; {\"cmd\":\"help\"} lists "
		    "them");
		json_decref(req);
	} else if (cmd->slow) {
		slow_start(a, c, cmd, req);
	} else {
		conn_answer(a, c, run_command(a->run, cmd, req));
		json_decref(req);
	}
}

/* One request of the input, if a whole one is there and none is under way. */
static void
conn_step(struct dcpd_admin *a, struct conn *c)
{
	char *line, *nl;
	size_t len;

	if (c->fd < 0 || c->out != NULL || c->slow || c->in_len == 0)
		return;
	nl = memchr(c->in, '\n', c->in_len);
	if (nl == NULL) {
		if (c->in_len == LINE_MAX_BYTES)
			conn_close(a, c);
		return;
	}
	len = (size_t)(nl - c->in);
	line = malloc(len + 1);
	if (line == NULL) {
		conn_close(a, c);
		return;
	}
	memcpy(line, c->in, len);
	c->in_len -= len + 1;
	memmove(c->in, nl + 1, c->in_len);
	handle_line(a, c, line, len);
	free(line);
}

static void
conn_write(struct dcpd_admin *a, struct conn *c)
{
	ssize_t n;

	n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off,
	    MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		conn_close(a, c);
		return;
	}
	c->moved = dcpd_now();
	c->out_off += (size_t)n;
	if (c->out_off == c->out_len) {
		free(c->out);
		c->out = NULL;
	}
}

static void
conn_read(struct dcpd_admin *a, struct conn *c)
{
	ssize_t n;

	n = recv(c->fd, c->in + c->in_len, LINE_MAX_BYTES - c->in_len,
	    MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		conn_close(a, c);
		return;
	}
	c->moved = dcpd_now();
	c->in_len += (size_t)n;
}

static bool
allowed(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof cred;

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 &&
	    (cred.uid == 0 || cred.uid == geteuid());
}

static void
accept_one(struct dcpd_admin *a)
{
	static const char refuse[] = "{\"ok\":false,\"code\":-13,\"error\":"
	    "\"only the daemon's user and root may use the admin socket\"}\n";
	struct conn *c = NULL;
	int fd;

	fd = accept4(a->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		/* Who waits stays in the backlog, and poll would not sleep. */
		a->accept_at = dcpd_now() + PAUSE_MS / 1e3;
		return;
	}
	for (unsigned i = 0; i < CONNS && c == NULL; i++)
		if (a->conn[i].fd < 0)
			c = &a->conn[i];
	if (!allowed(fd)) {
		/* A fresh socket's buffer takes it; if not, no harm. */
		if (send(fd, refuse, sizeof refuse - 1,
		    MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			dcpd_log(LOG_DEBUG, "admin: refusal not sent");
		close(fd);
		return;
	}
	if (c != NULL)
		c->in = malloc(LINE_MAX_BYTES);
	if (c == NULL || c->in == NULL) {
		close(fd);
		return;
	}
	c->fd = fd;
	c->moved = dcpd_now();
}

/*
 * Fills p; p[0] is the listening socket, p[1] the wake-up. Returns how many
 * milliseconds to wait.
 */
static int
poll_set(struct dcpd_admin *a, struct pollfd *p)
{
	bool paused = dcpd_now() < a->accept_at;

	p[0] = (struct pollfd){ a->listen_fd, paused ? 0 : POLLIN, 0 };
	p[1] = (struct pollfd){ a->wake_fd, POLLIN, 0 };
	for (unsigned i = 0; i < CONNS; i++) {
		struct conn *c = &a->conn[i];

		p[2 + i] = (struct pollfd){ c->fd, 0, 0 };
		if (c->out != NULL)
			p[2 + i].events = POLLOUT;
		else if (c->in_len < LINE_MAX_BYTES)
			p[2 + i].events = POLLIN;
	}
	return paused ? PAUSE_MS : 1000;
}

static void
serve_conn(struct dcpd_admin *a, struct conn *c, short revents)
{
	if (c->fd >= 0 && (revents & POLLOUT))
		conn_write(a, c);
	else if (c->fd >= 0 && (revents & (POLLIN | POLLHUP | POLLERR)))
		conn_read(a, c);
	conn_step(a, c);
	if (c->fd >= 0 && !c->slow && dcpd_now() - c->moved > IDLE_S)
		conn_close(a, c);
}

static void *
admin_main(void *arg)
{
	struct dcpd_admin *a = arg;
	struct pollfd p[2 + CONNS];
	uint64_t n;
	int ms;

	while (!a->stop) {
		ms = poll_set(a, p);
		if (poll(p, 2 + CONNS, ms) < 0 && errno != EINTR) {
			dcpd_log(LOG_ERR, "admin socket: poll: %s",
			    strerror(errno));
			break;
		}
		dcpd_page->admin_ns = dcpd_now_ns();
		if ((p[1].revents & POLLIN) &&
		    read(a->wake_fd, &n, sizeof n) < 0)
			dcpd_log(LOG_DEBUG, "admin: wake-up not read");
		/* Whether or not its wake-up came through. */
		slow_finish(a);
		for (unsigned i = 0; i < CONNS; i++)
			serve_conn(a, &a->conn[i], p[2 + i].revents);
		if (p[0].revents & POLLIN)
			accept_one(a);
	}
	return NULL;
}

int
dcpd_admin_start(int listen_fd, struct dcpd_run *run, struct dcpd_admin **out,
    struct dcpd_err *err)
{
	struct dcpd_admin *a = calloc(1, sizeof *a);
	int rc;

	if (a == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < CONNS; i++)
		a->conn[i].fd = -1;
	a->run = run;
	a->listen_fd = listen_fd;
	a->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->wake_fd < 0) {
		rc = dcpd_fail(err, -errno, "eventfd: %s", strerror(errno));
		goto out_free;
	}
	rc = dcpd_thread_start(&a->thread, admin_main, a);
	if (rc != 0) {
		rc = dcpd_fail(err, rc, "admin thread: %s", strerror(-rc));
		goto out_fd;
	}
	*out = a;
	return 0;
out_fd:
	close(a->wake_fd);
out_free:
	free(a);
	return rc;
}

void
dcpd_admin_stop(struct dcpd_admin *a)
{
	uint64_t one = 1;

	a->stop = true;
	if (write(a->wake_fd, &one, sizeof one) < 0)
		dcpd_log(LOG_DEBUG, "admin: wake-up not sent");
	pthread_join(a->thread, NULL);
	if (a->slow.running) {
		/* The scheduler is gone by now, so that this one ends. */
		pthread_join(a->slow.thread, NULL);
		json_decref(a->slow.request);
		free(a->slow.answer);
	}
	for (unsigned i = 0; i < CONNS; i++)
		if (a->conn[i].fd >= 0)
			conn_close(a, &a->conn[i]);
	close(a->wake_fd);
	free(a);
}
