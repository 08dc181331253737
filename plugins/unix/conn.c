/*
 * One connection: lines in, lines out, and its ring in between. What a client
 * does not read stops its ring from being read, and in the end closes it.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/base/bigjson.h"
#include "plugins/unix/unix.h"

#define CONNECT_MS 900		/* within the daemon: at once, or it hangs */
#define EVENTS_AT_ONCE 64	/* then the others have their turn */
#define LINES_AT_ONCE 16

static void settle(struct conn *);

static size_t
unread(const struct conn *c)
{
	return evbuffer_get_length(bufferevent_get_output(c->bev));
}

void
conn_send(struct conn *c, json_t *line)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);
	char *text = line == NULL ? NULL : json_dumps(line, JSON_COMPACT);

	json_decref(line);
	if (unread(c) == 0)
		c->moved = unix_now();
	if (text == NULL || evbuffer_add(out, text, strlen(text)) != 0 ||
	    evbuffer_add(out, "\n", 1) != 0)
		c->closing = true;	/* no memory for an answer */
	free(text);
}

static void
send_error(struct conn *c, json_t *id, int error, const char *text)
{
	conn_send(c, unix_error(id, error, text));
}

/* An error after which the connection cannot go on. */
static void
fail(struct conn *c, int error, const char *text)
{
	send_error(c, NULL, error, text);
	bufferevent_disable(c->bev, EV_READ);
	c->closing = true;
}

/* --- its ring ------------------------------------------------------------ */

static void
drop_asked(struct conn *c, struct asked *a)
{
	TAILQ_REMOVE(&c->asked, a, link);
	c->n_asked--;
	c->server->n_requests--;
	asked_free(a);
}

static struct asked *
find_asked(struct conn *c, const json_t *id)
{
	struct asked *a;

	TAILQ_FOREACH(a, &c->asked, link)
		if (json_equal(a->id, id))
			return a;
	return NULL;
}

static void
handle_event(struct conn *c, const struct dcp_event *ev)
{
	struct asked *a = (struct asked *)(uintptr_t)ev->user_data;
	json_t *line = NULL;

	if (ev->type == DCP_EV_DELTA || (ev->type == DCP_EV_DONE &&
	    (ev->text_len > 0 || ev->n_tokens > 0)))
		line = asked_delta(a, ev);
	if (line != NULL)
		conn_send(c, line);
	if (ev->type == DCP_EV_DONE || ev->type == DCP_EV_ERROR) {
		conn_send(c, asked_last(a, ev));
		drop_asked(c, a);
	}
}

static void
on_ring(evutil_socket_t fd, short what, void *arg)
{
	struct conn *c = arg;
	const struct dcp_event *ev;
	int rc = 0;

	for (unsigned i = 0; i < EVENTS_AT_ONCE; i++) {
		if (unread(c) >= UNIX_OUTPUT_STOP) {
			event_del(c->ring_ev);
			c->paused = true;
			break;
		}
		if ((rc = dcp_next(c->ring, 0, &ev)) != 0)
			break;
		handle_event(c, ev);
		dcp_event_release(c->ring, ev);
	}
	if (rc != 0 && rc != -EAGAIN)
		conn_end(c);
	settle(c);
}

static int
open_ring(struct conn *c)
{
	struct server *s = c->server;
	int rc;

	if (c->ring != NULL)
		return 0;
	rc = dcp_connect(s->host->socket, CONNECT_MS, &c->ring);
	if (rc != 0)
		return rc;
	c->ring_ev = event_new(s->base, dcp_fd(c->ring), EV_READ | EV_PERSIST,
	    on_ring, c);
	if (c->ring_ev != NULL && event_add(c->ring_ev, NULL) == 0)
		return 0;
	if (c->ring_ev != NULL)
		event_free(c->ring_ev);
	c->ring_ev = NULL;
	dcp_close(c->ring);
	c->ring = NULL;
	return -ENOMEM;
}

/* --- lines --------------------------------------------------------------- */

/* The library's own line, or the errno's. */
static const char *
ring_why(int rc)
{
	const char *text = dcp_error_text();

	return text[0] != '\0' ? text : strerror(-rc);
}

static void
submit(struct conn *c, json_t *id, struct submit *s)
{
	struct asked *a = asked_new(id, s->stream);
	int rc = a == NULL ? -ENOMEM : 0;

	if (rc != 0) {
		send_error(c, id, rc, "out of memory");
		return;
	}
	rc = open_ring(c);
	if (rc == 0) {
		s->r.user_data = (uintptr_t)a;
		rc = dcp_submit(c->ring, &s->r, &a->request);
	}
	if (rc != 0) {
		send_error(c, id, rc, ring_why(rc));
		asked_free(a);
		return;
	}
	TAILQ_INSERT_TAIL(&c->asked, a, link);
	c->n_asked++;
	c->server->n_requests++;
	c->server->requests_total++;
}

static void
op_submit(struct conn *c, json_t *line, json_t *id)
{
	struct submit s;
	char *why = NULL;
	int rc;

	if (c->n_asked >= c->server->cfg->max_requests) {
		send_error(c, id, -EAGAIN, "this connection has as many "
		    "requests under way as it may; ask again when one has "
		    "ended");
		return;
	}
	if (id != NULL && find_asked(c, id) != NULL) {
		send_error(c, id, -EEXIST, "a request of this id is under "
		    "way");
		return;
	}
	rc = submit_parse(line, &s, &why);
	if (rc != 0) {
		send_error(c, id, rc, why != NULL ? why : "out of memory");
		free(why);
		return;
	}
	/* The ring would take it for the daemon's user's. */
	if (s.r.priority > 0 && c->uid != 0 && c->uid != geteuid())
		send_error(c, id, -EPERM, "priority: only root and the "
		    "daemon's own user may go above 0");
	else
		submit(c, id, &s);
	submit_free(&s);
}

static void
op_cancel(struct conn *c, json_t *line, json_t *id)
{
	struct asked *a = id == NULL ? NULL : find_asked(c, id);

	/* That it was cancelled is said by its own last line. */
	if (a == NULL || dcp_cancel(c->ring, a->request) != 0)
		send_error(c, id, -ENOENT, id == NULL ? "id: missing; want "
		    "that of the request" : "no request of this id is under "
		    "way");
}

static void
op_status(struct conn *c, json_t *line, json_t *id)
{
	char *text = c->server->host->status(c->server->host->ctx);
	json_t *status = text == NULL ? NULL : json_loads(text, 0, NULL);

	free(text);
	if (status == NULL)
		send_error(c, id, -ENOMEM, "out of memory");
	else
		conn_send(c, json_pack("{s:O?,s:s,s:o}", "id", id, "event",
		    "status", "status", status));
}

static const struct op {
	const char *name;
	void (*run)(struct conn *, json_t *line, json_t *id);
} ops[] = {
	{ "submit", op_submit }, { "cancel", op_cancel },
	{ "status", op_status },
};

static const struct op *
find_op(const json_t *line)
{
	const json_t *op = json_object_get(line, "op");

	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
		if (op == NULL || (json_is_string(op) &&
		    strcmp(json_string_value(op), ops[i].name) == 0))
			return &ops[i];
	return NULL;
}

/* A model that still loads: requests wait for it where they are. */
static bool
must_wait(const struct conn *c)
{
	const struct dcp_host *h = c->server->host;

	return c->ring == NULL && h->state(h->ctx) == DCP_HOST_LOADING;
}

/* False: not now, the line stays. */
static bool
handle_line(struct conn *c, const char *text, size_t len)
{
	json_error_t je;
	json_t *line = dcpd_bigjson_loadb(text, len, JSON_REJECT_DUPLICATES,
	    &je), *id;
	const struct op *op = find_op(line);
	char *why = NULL;
	bool done = true;

	id = json_object_get(line, "id");
	if (json_is_null(id))
		id = NULL;
	if (!json_is_object(line))
		why = line == NULL ? unix_why("not JSON: %s", je.text) :
		    unix_why("want an object, {\"prompt\": TEXT}");
	else if (id != NULL && !json_is_string(id) && !json_is_integer(id))
		why = unix_why("id: want a string or a whole number");
	if (why != NULL)
		send_error(c, NULL, -EINVAL, why);
	else if (op == NULL)
		send_error(c, id, -EINVAL, "op: want submit, cancel or "
		    "status");
	else if (op->run == op_submit && must_wait(c))
		done = false;
	else
		op->run(c, line, id);
	free(why);
	json_decref(line);
	return done;
}

/* The next line's length without its end; -1: it is not all there. */
static ssize_t
line_length(struct conn *c, struct evbuffer *in)
{
	struct evbuffer_ptr at;

	/* Where the last search ended, or long lines would cost squares. */
	if (evbuffer_ptr_set(in, &at, c->scanned, EVBUFFER_PTR_SET) != 0)
		return -1;
	at = evbuffer_search(in, "\n", 1, &at);
	if (at.pos < 0)
		c->scanned = evbuffer_get_length(in);
	return at.pos;
}

static bool
blank(const char *text, size_t len)
{
	while (len > 0 && strchr(" \t\r", text[len - 1]) != NULL)
		len--;
	return len == 0;
}

/* False: there is none to work on now. */
static bool
one_line(struct conn *c)
{
	struct evbuffer *in = bufferevent_get_input(c->bev);
	ssize_t len = line_length(c, in);
	size_t room = evbuffer_get_length(in);
	const char *text;

	if (len > (ssize_t)UNIX_LINE_MAX || (len < 0 && room > UNIX_LINE_MAX)) {
		fail(c, -EMSGSIZE, "a line longer than 8 MiB");
		return false;
	}
	if (len < 0)
		return false;
	text = len == 0 ? "" : (char *)evbuffer_pullup(in, len);
	if (text == NULL) {
		fail(c, -ENOMEM, "out of memory");
		return false;
	}
	if (!blank(text, (size_t)len) && !handle_line(c, text, (size_t)len)) {
		c->waiting = true;
		return false;
	}
	evbuffer_drain(in, (size_t)len + 1);
	c->scanned = 0;
	return true;
}

/* --- the socket ---------------------------------------------------------- */

/*
 * After whatever happened: read on, wait for the client to read, or close.
 * May free it.
 */
static void
settle(struct conn *c)
{
	size_t out = unread(c);

	if (c->ended && !c->waiting && !c->more && c->n_asked == 0)
		c->closing = true;
	if (c->closing && out == 0) {
		conn_free(c);
		return;
	}
	if (c->closing || c->ended || out >= UNIX_OUTPUT_STOP)
		bufferevent_disable(c->bev, EV_READ);
	else
		bufferevent_enable(c->bev, EV_READ);
	if (c->paused && out < UNIX_OUTPUT_STOP && c->ring_ev != NULL) {
		c->paused = false;
		event_add(c->ring_ev, NULL);
	}
}

static void
read_lines(struct conn *c)
{
	unsigned n = 0;

	c->more = false;
	while (!c->closing && !c->waiting && unread(c) < UNIX_OUTPUT_STOP &&
	    n < LINES_AT_ONCE && one_line(c))
		n++;
	if (n == LINES_AT_ONCE || unread(c) >= UNIX_OUTPUT_STOP) {
		/* The others first; or when the client has read. */
		c->more = true;
		if (n == LINES_AT_ONCE)
			bufferevent_trigger(c->bev, EV_READ,
			    BEV_TRIG_IGNORE_WATERMARKS |
			    BEV_TRIG_DEFER_CALLBACKS);
	} else if (c->ended && !c->waiting && !c->closing &&
	    evbuffer_get_length(bufferevent_get_input(c->bev)) > 0) {
		fail(c, -EINVAL, "the last line has no end");
	}
}

static void
on_read(struct bufferevent *bev, void *arg)
{
	read_lines(arg);
	settle(arg);
}

/* Less than half of what stops the ring waits to be read. */
static void
on_written(struct bufferevent *bev, void *arg)
{
	struct conn *c = arg;

	if (c->more)
		read_lines(c);
	settle(c);
}

/* Is the other end closed, and not only for writing? */
static bool
hung_up(const struct conn *c)
{
	struct pollfd p = { .fd = bufferevent_getfd(c->bev) };

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

static void
on_end(struct bufferevent *bev, short what, void *arg)
{
	struct conn *c = arg;

	if (!(what & BEV_EVENT_EOF) || hung_up(c)) {
		conn_free(c);
		return;
	}
	/* `printf ... | socat - UNIX:...`: it still wants its answers. */
	c->ended = true;
	read_lines(c);
	settle(c);
}

static void
on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
	struct conn *c = arg;

	if (info->n_deleted > 0)
		c->moved = unix_now();
}

void
conn_tick(struct conn *c, double now)
{
	if (c->ended && hung_up(c)) {
		conn_free(c);
		return;
	}
	if (unread(c) > 0 && now - c->moved > c->server->cfg->stall_s) {
		char *line = unix_why("user %u, process %d: nothing read for "
		    "%u s: closed", c->uid, (int)c->pid,
		    c->server->cfg->stall_s);

		if (line != NULL)
			c->server->host->log(c->server->host->ctx, LOG_NOTICE,
			    line);
		free(line);
		conn_free(c);
		return;
	}
	if (c->waiting && !must_wait(c)) {
		c->waiting = false;
		read_lines(c);
	}
	settle(c);
}

/* --- its life ------------------------------------------------------------ */

static void
close_ring(struct conn *c)
{
	if (c->ring_ev != NULL)
		event_free(c->ring_ev);
	c->ring_ev = NULL;
	dcp_close(c->ring);
	c->ring = NULL;
	while (!TAILQ_EMPTY(&c->asked))
		drop_asked(c, TAILQ_FIRST(&c->asked));
}

void
conn_end(struct conn *c)
{
	struct asked *a;

	TAILQ_FOREACH(a, &c->asked, link)
		send_error(c, a->id, -ESHUTDOWN, "the daemon is ending");
	close_ring(c);
	bufferevent_disable(c->bev, EV_READ);
	c->closing = true;
}

struct conn *
conn_new(struct server *s, int fd, uid_t uid, pid_t pid)
{
	struct conn *c = calloc(1, sizeof *c);

	if (c == NULL)
		goto fail;
	c->bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (c->bev == NULL)
		goto fail;
	c->server = s;
	c->uid = uid;
	c->pid = pid;
	c->moved = unix_now();
	TAILQ_INIT(&c->asked);
	bufferevent_setcb(c->bev, on_read, on_written, on_end, c);
	bufferevent_setwatermark(c->bev, EV_READ, 0, UNIX_LINE_MAX + 65536);
	bufferevent_setwatermark(c->bev, EV_WRITE, UNIX_OUTPUT_STOP / 2, 0);
	evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c);
	bufferevent_enable(c->bev, EV_READ | EV_WRITE);
	TAILQ_INSERT_TAIL(&s->conns, c, link);
	s->n_conns++;
	s->conns_total++;
	return c;
fail:
	close(fd);
	free(c);
	return NULL;
}

void
conn_free(struct conn *c)
{
	close_ring(c);
	TAILQ_REMOVE(&c->server->conns, c, link);
	c->server->n_conns--;
	bufferevent_free(c->bev);
	free(c);
}
