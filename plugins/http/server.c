/*
 * Sockets, limits and deadlines: the only file that calls evhttp. The event
 * thread's.
 *
 * evhttp parses and frames; what it lacks is done here, per connection:
 * - While a request is answered evhttp does not look at its socket, so a client
 *   that leaves would never be noticed. We read on with no read callback:
 *   evhttp's would end the process on pipelined bytes.
 * - What is read meanwhile is bounded by a watermark, off before the next
 *   request.
 * - evhttp's timeout begins anew with each byte. Ours are absolute: the bytes
 *   of a head are followed on their way through the input buffer.
 * - What a client does not take piles up. Whoever writes asks server_unread()
 *   and waits for ops->room; a client that takes nothing is dropped.
 */
#include "config.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>

#include "plugins/http/call.h"
#include "plugins/http/listen.h"
#include "plugins/http/scan.h"
#include "plugins/http/words.h"

#define BEAT_S 5.0		/* of silence in a stream */
#define TRIM_S 1.0		/* from one malloc_trim() to the next */
#define TRIM_BODY (1u << 20)	/* bytes that make it worth its time */
#define BUSY_INPUT (64u << 10)	/* bytes read ahead while answering */
#define SPARE_CONNS 32u		/* above the cap, to say 503 */
#define WARN_S 10.0		/* from one line of a kind to the next */
#define TLS_GREETING 0x16	/* its first byte; no request begins so */

enum state {
	C_IDLE,			/* no byte of a request is here */
	C_HEAD, C_BODY,		/* one comes in */
	C_BUSY,			/* a handler has it */
	C_WRITING,		/* the answer goes out */
};

struct conn {
	struct server *server;
	struct bufferevent *bev;
	struct evhttp_connection *evcon;
	struct event *start;	/* runs once: evcon is known then */
	struct call *call;
	enum state state;
	double since;		/* of the state; BODY: of the last byte */
	double t_progress;	/* the client last took a byte */
	struct scan scan;	/* HEAD, BODY: of what came in so far */
	size_t held;		/* bytes of its request, until they are freed */
	bool spare;		/* above the cap */
	bool broken;		/* to be dropped by the next tick */
	bool too_large;		/* so it is, for others' sake */
	bool reworded;		/* evhttp's last words are replaced */
	bool whole;		/* what goes out is no stream, and counted: */
	uint64_t leaving;	/* so many bytes of it are not taken yet */
	LIST_ENTRY(conn) link;
};

struct server {
	struct http *http;
	struct evhttp *evhttp;
	struct listeners *listeners;
	struct evconnlistener **ev;	/* [listeners_n] */
	LIST_HEAD(, conn) conns;
	struct conn **by_fd;
	size_t n_fd;
	uint32_t n_conns;
	uint32_t most_conns;	/* that the process has descriptors for */
	double t_warned;	/* that there were none */
	double t_tls;		/* said that there is no TLS here */
	uint64_t held;		/* sum of those of the connections */
	uint64_t going;		/* of it, of those that the sweep drops */
	struct event *sweep;	/* drops who is broken, once all have read */
	uint64_t n_requests;
	bool trim;		/* a large body is gone, its memory not */
	double t_trim;
	bool paused;		/* listeners are off: too many, or no fd */
	bool ended;
};

double
http_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* As of the last reload. */
static uint32_t
max_conns(const struct server *s)
{
	return s->http->cfg.max_connections < s->most_conns ?
	    s->http->cfg.max_connections : s->most_conns;
}

static void
listeners_on(struct server *s, bool on)
{
	size_t i;

	if (s->paused == !on || (on && s->ended))
		return;
	s->paused = !on;
	for (i = 0; i < listeners_n(s->listeners); i++) {
		if (on)
			evconnlistener_enable(s->ev[i]);
		else
			evconnlistener_disable(s->ev[i]);
	}
}

/* --- connections ------------------------------------------------------- */

/* From now on, so that slow readers of whole answers are bounded in all. */
static void
count(struct conn *c)
{
	c->whole = true;
	c->leaving = evbuffer_get_length(bufferevent_get_output(c->bev));
	c->server->http->answers += c->leaving;
}

/* What goes out is counted no longer. */
static void
uncount(struct conn *c)
{
	c->server->http->answers -= c->leaving;
	c->leaving = 0;
	c->whole = false;
}

/* Its request's bytes are in memory no longer. */
static void
let_go(struct conn *c)
{
	c->server->held -= c->held;
	c->server->trim |= c->held >= TRIM_BODY;
	if (c->too_large)
		c->server->going -= c->held;
	c->held = 0;
}

static void
enter(struct conn *c, enum state state)
{
	c->state = state;
	c->since = http_now();
	if (state == C_IDLE || state == C_WRITING)
		let_go(c);
}

/* The sweep drops it, and until then nothing more is read of it. */
static void
end_too_large(struct conn *c)
{
	c->broken = c->too_large = true;
	c->server->going += c->held;
	bufferevent_disable(c->bev, EV_READ);
	event_active(c->server->sweep, 0, 0);
}

/*
 * Bodies come in before anything is known of who sends them, and some stay
 * until their answer is out, so that what they take in all is bounded, too. The
 * largest that still comes in pays for it, not whoever happens to be the last
 * straw: a few bytes from somebody else are no reason to drop him.
 */
static void
hold(struct conn *c, size_t n)
{
	struct server *s = c->server;
	struct conn *k, *most = c;

	if (c->state != C_HEAD && c->state != C_BODY)
		return;
	c->held += n;
	s->held += n;
	s->going += c->too_large ? n : 0;
	if (s->held - s->going <= s->http->cfg.max_input || c->broken)
		return;
	LIST_FOREACH(k, &s->conns, link)
		if ((k->state == C_HEAD || k->state == C_BODY) && !k->broken &&
		    k->held > most->held)
			most = k;
	http_log(s->http, LOG_WARNING, "requests of %llu bytes are in memory "
	    "at once, more than max_input: the largest that comes in is "
	    "dropped, %zu bytes", (unsigned long long)s->held, most->held);
	end_too_large(most);
}

/* evhttp would wait for the end of its line, and the client for an answer. */
static void
refuse_tls(struct conn *c)
{
	struct server *s = c->server;

	c->broken = true;
	if (http_now() - s->t_tls < WARN_S)
		return;
	s->t_tls = http_now();
	http_log(s->http, LOG_NOTICE, "a client speaks TLS, which this port "
	    "does not: say http://, or put a proxy in front");
}

/* Follow a request's bytes. */
static void
scan(struct conn *c, const char *p, size_t n)
{
	if (n > 0 && c->state == C_IDLE) {
		enter(c, C_HEAD);
		scan_begin(&c->scan);
		if (*p == TLS_GREETING)
			refuse_tls(c);
	}
	scan_bytes(&c->scan, p, n);
	/* If evhttp has refused it, it looks at these bytes no more. */
	if (c->scan.endless && !c->too_large && !c->reworded)
		end_too_large(c);
	if (c->state == C_HEAD && c->scan.head_over)
		enter(c, C_BODY);
	if (n > 0 && c->state == C_BODY)
		c->since = http_now();
}

/* The last n bytes of what was read. */
static void
scan_tail(struct conn *c, struct evbuffer *in, size_t n)
{
	struct evbuffer_iovec v;
	struct evbuffer_ptr at;

	if (c->state > C_BODY || n == 0)
		return;
	if (c->state == C_BODY && scan_pass(&c->scan, n)) {
		c->since = http_now();
		return;
	}
	if (evbuffer_ptr_set(in, &at, evbuffer_get_length(in) - n,
	    EVBUFFER_PTR_SET) != 0)
		return;
	while (n > 0 && evbuffer_peek(in, -1, &at, &v, 1) > 0) {
		scan(c, v.iov_base, v.iov_len);
		n -= v.iov_len;
		if (n > 0 && evbuffer_ptr_set(in, &at, v.iov_len,
		    EVBUFFER_PTR_ADD) != 0)
			return;
	}
}

static void
on_input(struct evbuffer *in, const struct evbuffer_cb_info *info, void *arg)
{
	scan_tail(arg, in, info->n_added);
	hold(arg, info->n_added);
}

static void
on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
	struct conn *c = arg;

	if (c->whole) {
		c->leaving += info->n_added - info->n_deleted;
		c->server->http->answers += info->n_added - info->n_deleted;
	}
	/* What begins to wait now has waited for nobody before. */
	if (info->n_deleted > 0 || info->orig_size == 0)
		c->t_progress = http_now();
	if (info->n_deleted > 0 && c->call != NULL && c->call->full &&
	    evbuffer_get_length(out) < HTTP_OUTPUT_STOP / 2)
		event_active(c->start, EV_TIMEOUT, 0);
	if (info->n_added > 0 && !c->reworded &&
	    (c->state == C_HEAD || c->state == C_BODY))
		event_active(c->start, EV_TIMEOUT, 0);
}

/* evhttp frees the connection; the call, if any, goes on without it. */
static void
on_close(struct evhttp_connection *evcon, void *arg)
{
	struct conn *c = arg;
	struct server *s = c->server;
	struct call *call = c->call;
	int fd = bufferevent_getfd(c->bev);

	if (fd >= 0 && (size_t)fd < s->n_fd && s->by_fd[fd] == c)
		s->by_fd[fd] = NULL;
	evbuffer_remove_cb(bufferevent_get_input(c->bev), on_input, c);
	evbuffer_remove_cb(bufferevent_get_output(c->bev), on_output, c);
	LIST_REMOVE(c, link);
	s->n_conns--;
	let_go(c);
	uncount(c);
	event_free(c->start);
	free(c);
	if (call != NULL) {
		call->conn = NULL;
		if (call->ops != NULL && call->ops->gone != NULL)
			call->ops->gone(call->arg);
	}
	listeners_on(s, true);
}

/*
 * As if evhttp's own timeout had struck: only that path of its lets a request
 * that a handler still has outlive its connection.
 */
static void
drop(struct conn *c)
{
	bufferevent_data_cb r, w;
	bufferevent_event_cb e;
	void *arg;

	bufferevent_getcb(c->bev, &r, &w, &e, &arg);
	e(c->bev, BEV_EVENT_TIMEOUT, arg);
}

static void
on_sweep(evutil_socket_t fd, short what, void *arg)
{
	struct server *s = arg;
	struct conn *c, *next;

	for (c = LIST_FIRST(&s->conns); c != NULL; c = next) {
		next = LIST_NEXT(c, link);
		if (c->too_large && c->evcon != NULL)
			drop(c);
	}
}

static int
remember_fd(struct server *s, struct conn *c)
{
	size_t fd = (size_t)bufferevent_getfd(c->bev), n = s->n_fd;
	struct conn **more;

	if (fd >= n) {
		n = 2 * fd + 64;
		more = realloc(s->by_fd, n * sizeof *more);
		if (more == NULL)
			return -ENOMEM;
		memset(more + s->n_fd, 0, (n - s->n_fd) * sizeof *more);
		s->by_fd = more;
		s->n_fd = n;
	}
	s->by_fd[fd] = c;
	return 0;
}

/* The output has room again, or evhttp wrote an answer of its own. */
static void
on_later(struct conn *c)
{
	struct call *call = c->call;

	if (call != NULL && call->full) {
		call->full = false;
		if (call->ops != NULL && call->ops->room != NULL)
			call->ops->room(call->arg);
	} else if (!c->reworded &&
	    (c->state == C_HEAD || c->state == C_BODY)) {
		c->reworded = words_replace(bufferevent_get_output(c->bev));
	}
}

/*
 * First: right after the accept, before the socket's first event; evhttp has
 * put itself into the bufferevent meanwhile. Later: see there.
 */
static void
on_start(evutil_socket_t fd, short what, void *arg)
{
	struct conn *c = arg;
	bufferevent_data_cb r, w;
	bufferevent_event_cb e;
	void *evcon = NULL;

	if (c->evcon != NULL) {
		on_later(c);
		return;
	}
	bufferevent_getcb(c->bev, &r, &w, &e, &evcon);
	if (evcon == NULL) {
		/* evhttp could not use it, and freed it but for our share. */
		LIST_REMOVE(c, link);
		c->server->n_conns--;
		bufferevent_decref(c->bev);
		event_free(c->start);
		free(c);
		return;
	}
	bufferevent_decref(c->bev);
	c->evcon = evcon;
	evhttp_connection_set_closecb(c->evcon, on_close, c);
	if (remember_fd(c->server, c) != 0)
		drop(c);
}

/* evhttp asks for a bufferevent: a connection was accepted. */
static struct bufferevent *
on_accept(struct event_base *base, void *arg)
{
	struct server *s = arg;
	struct conn *c = calloc(1, sizeof *c);

	if (c == NULL)
		return NULL;
	c->server = s;
	c->bev = bufferevent_socket_new(base, -1, 0);
	c->start = event_new(base, -1, 0, on_start, c);
	if (c->bev == NULL || c->start == NULL) {
		if (c->bev != NULL)
			bufferevent_free(c->bev);
		free(c);
		return NULL;
	}
	evbuffer_add_cb(bufferevent_get_input(c->bev), on_input, c);
	evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c);
	enter(c, C_IDLE);
	LIST_INSERT_HEAD(&s->conns, c, link);
	s->n_conns++;
	c->spare = s->n_conns > max_conns(s);
	if (s->n_conns >= max_conns(s) + SPARE_CONNS)
		listeners_on(s, false);
	bufferevent_incref(c->bev);	/* until on_start */
	event_active(c->start, EV_TIMEOUT, 0);
	return c->bev;
}

/*
 * The server of on_accept_error, whose argument is evhttp's own. A plugin has
 * one server, and one thread that runs it.
 */
static struct server *accepting;

/* No descriptor left, most likely: rest until the next tick. */
static void
on_accept_error(struct evconnlistener *l, void *arg)
{
	struct server *s = accepting;

	if (http_now() - s->t_warned >= WARN_S) {
		http_log(s->http, LOG_WARNING, "accept: %s; new connections "
		    "wait", strerror(errno));
		s->t_warned = http_now();
	}
	listeners_on(s, false);
}

/* --- requests ---------------------------------------------------------- */

/* The answer is out; evhttp turns to the connection's next request. */
static void
on_complete(struct evhttp_request *req, void *arg)
{
	struct conn *c = arg;
	struct evbuffer *in = bufferevent_get_input(c->bev);

	bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
	uncount(c);
	enter(c, C_IDLE);
	scan_tail(c, in, evbuffer_get_length(in));
}

/* NULL, or why this request could be read in two ways. */
static const char *
smuggling(const struct conn *c, struct evhttp_request *req)
{
	struct evkeyvalq *h = evhttp_request_get_input_headers(req);
	const char *te = NULL;
	unsigned n_te = 0, n_cl = 0;
	struct evkeyval *kv;

	TAILQ_FOREACH(kv, h, next) {
		/* "Content-Length :" is none to evhttp, and one to others. */
		if (kv->key[strcspn(kv->key, " \t")] != '\0')
			return "white space in a field's name";
		if (strcasecmp(kv->key, "Transfer-Encoding") == 0) {
			te = kv->value;
			n_te++;
		} else if (strcasecmp(kv->key, "Content-Length") == 0) {
			n_cl++;
			/* "+5" is 5 to evhttp, and nothing to others. */
			if (kv->value[strspn(kv->value, "0123456789")] != '\0')
				return "a Content-Length that is no number";
		}
	}
	if (req->type == EVHTTP_REQ_HEAD && (n_te > 0 || (n_cl > 0 && strcmp(
	    evhttp_find_header(h, "Content-Length"), "0") != 0)))
		return "a body, of HEAD";	/* evhttp leaves it there */
	if (n_te > 0 && n_cl > 0)
		return "both Content-Length and Transfer-Encoding";
	if (n_cl > 1 || n_te > 1)
		return "more than one Content-Length or Transfer-Encoding";
	if (te != NULL && strcasecmp(te, "chunked") != 0)
		return "a Transfer-Encoding other than chunked";
	return c != NULL && c->scan.bad ? "a chunk that is none: its size is "
	    "hexadecimal digits and CR LF, and CR LF follows its bytes" : NULL;
}

/* Read on while the request is answered, to notice that the client leaves. */
static void
watch(struct conn *c)
{
	bufferevent_data_cb r, w;
	bufferevent_event_cb e;
	void *arg;

	bufferevent_getcb(c->bev, &r, &w, &e, &arg);
	bufferevent_setcb(c->bev, NULL, w, e, arg);
	bufferevent_setwatermark(c->bev, EV_READ, 0, BUSY_INPUT);
	bufferevent_enable(c->bev, EV_READ);
}

static struct conn *
conn_of(struct server *s, struct evhttp_request *req)
{
	struct evhttp_connection *evcon = evhttp_request_get_connection(req);
	int fd = bufferevent_getfd(
	    evhttp_connection_get_bufferevent(evcon));

	/* NULL: there was no memory for it when it came. */
	return (size_t)fd < s->n_fd ? s->by_fd[fd] : NULL;
}

static struct call *
call_new(struct conn *c, struct evhttp_request *req)
{
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
	const char *path = uri != NULL ? evhttp_uri_get_path(uri) : NULL;
	struct call *call = calloc(1, sizeof *call);
	size_t n = 0, i;

	if (call == NULL)
		return NULL;
	call->path = evhttp_uridecode(path != NULL ? path : "", 0, &n);
	if (call->path == NULL) {
		free(call);
		return NULL;
	}
	/* "/health%00" is not "/health". */
	for (i = 0; i < n; i++)
		if (call->path[i] == '\0')
			call->path[i] = '?';
	call->http = c->server->http;
	call->conn = c;
	call->req = req;
	call->t_write = http_now();
	return call;
}

static void
on_request(struct evhttp_request *req, void *arg)
{
	struct server *s = arg;
	struct conn *c = conn_of(s, req);
	const char *why = smuggling(c, req);
	struct call *call = c != NULL ? call_new(c, req) : NULL;

	s->n_requests++;
	if (call == NULL) {
		evhttp_send_error(req, 503, "out of memory");
		return;
	}
	c->call = call;
	enter(c, C_BUSY);
	evhttp_request_set_on_complete_cb(req, on_complete, c);
	watch(c);
	if (why != NULL || c->spare)
		call_set_header(call, "Connection", "close");
	if (why != NULL)
		call_error(call, 400, NULL, "bad_request", "the request has "
		    "%s; it is refused, and the connection ends", why);
	else if (c->spare)
		call_error(call, 503, NULL, "too_many_connections",
		    "%u connections are open, the most there may be; try "
		    "again later, or raise %s", max_conns(s), max_conns(s) <
		    s->http->cfg.max_connections ? "the process's descriptors "
		    "(ulimit -n, LimitNOFILE=)" : "max_connections");
	else
		routes_dispatch(call);
}

/* --- what a call asks of its connection -------------------------------- */

const char *
server_method(const struct call *call)
{
	switch (evhttp_request_get_command(call->req)) {
	case EVHTTP_REQ_GET:
		return "GET";
	case EVHTTP_REQ_HEAD:
		return "HEAD";
	case EVHTTP_REQ_POST:
		return "POST";
	case EVHTTP_REQ_OPTIONS:
		return "OPTIONS";
	case EVHTTP_REQ_PUT:
		return "PUT";
	case EVHTTP_REQ_DELETE:
		return "DELETE";
	case EVHTTP_REQ_PATCH:
		return "PATCH";
	default:
		return "?";
	}
}

const char *
server_header(const struct call *call, const char *name)
{
	return evhttp_find_header(evhttp_request_get_input_headers(call->req),
	    name);
}

/* Kept among the input headers, where the query's keys cannot be mistaken. */
const char *
server_query(struct call *call, const char *key)
{
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(call->req);
	struct evkeyvalq *h = evhttp_request_get_input_headers(call->req);
	const char *q = evhttp_uri_get_query(uri), *v;
	struct evkeyvalq kv;
	char name[80];

	if (q == NULL || strlen(key) > 64 || evhttp_parse_query_str(q, &kv))
		return NULL;
	v = evhttp_find_header(&kv, key);
	if (v != NULL) {
		snprintf(name, sizeof name, "?%s", key);
		evhttp_remove_header(h, name);
		evhttp_add_header(h, name, v);
		v = evhttp_find_header(h, name);
	}
	evhttp_clear_headers(&kv);
	return v;
}

const char *
server_body(const struct call *call, size_t *len)
{
	struct evbuffer *in = evhttp_request_get_input_buffer(call->req);

	*len = evbuffer_get_length(in);
	return *len > 0 ? (const char *)evbuffer_pullup(in, -1) : "";
}

void
server_drop_body(struct call *call)
{
	struct evbuffer *in = evhttp_request_get_input_buffer(call->req);

	evbuffer_drain(in, evbuffer_get_length(in));
}

void
server_forget_body(struct call *call)
{
	if (call->conn != NULL)
		let_go(call->conn);
}

void
server_set_header(struct call *call, const char *name, const char *value)
{
	struct evkeyvalq *h = evhttp_request_get_output_headers(call->req);

	evhttp_remove_header(h, name);
	evhttp_add_header(h, name, value);
}

/* The call's last word is said; its connection lives on. */
static void
release(struct call *call)
{
	struct conn *c = call->conn;

	if (c == NULL)
		return;
	c->call = NULL;
	call->conn = NULL;
	enter(c, C_WRITING);
}

/*
 * evhttp sends the body of an answer to HEAD, without its length: the next
 * answer on the connection would be read wrong.
 */
static size_t
without_body(struct call *call, size_t len)
{
	char s[24];

	if (evhttp_request_get_command(call->req) != EVHTTP_REQ_HEAD)
		return len;
	if (len > 0) {
		snprintf(s, sizeof s, "%zu", len);
		server_set_header(call, "Content-Length", s);
	}
	return 0;
}

void
server_reply_buffer(struct call *call, int status, struct evbuffer *b)
{
	struct evhttp_request *req = call->req;
	struct conn *c = call->conn;

	if (c == NULL) {
		evhttp_request_free(req);
		return;
	}
	if (b != NULL && without_body(call, evbuffer_get_length(b)) > 0 &&
	    evbuffer_add_buffer(evhttp_request_get_output_buffer(req), b) != 0)
		status = 500;
	release(call);
	count(c);
	evhttp_send_reply(req, status, NULL, NULL);
	gen_bound(call->http);
}

uint64_t
server_largest(const struct server *s, struct conn **out)
{
	struct conn *c, *most = NULL;

	LIST_FOREACH(c, &s->conns, link)
		if (c->leaving > 0 && (most == NULL ||
		    c->leaving > most->leaving))
			most = c;
	*out = most;
	return most != NULL ? most->leaving : 0;
}

void
server_cut_off(struct conn *c)
{
	c->broken = c->too_large = true;
	uncount(c);
	event_active(c->server->sweep, 0, 0);
}

void
server_stream_begin(struct call *call, int status)
{
	/*
	 * HTTP/1.0 knows no chunks: the end is that of the connection. To who
	 * wants to keep it evhttp would promise a length, of 0.
	 */
	if (call->req->major < 1 ||
	    (call->req->major == 1 && call->req->minor < 1)) {
		evhttp_remove_header(
		    evhttp_request_get_input_headers(call->req), "Connection");
		server_set_header(call, "Connection", "close");
	}
	if (call->conn != NULL)
		evhttp_send_reply_start(call->req, status, NULL);
}

void
server_stream_add(struct call *call, const char *data, size_t len)
{
	struct evbuffer *b;

	if (call->conn == NULL || len == 0)
		return;
	b = evbuffer_new();
	if (b == NULL || evbuffer_add(b, data, len) != 0) {
		if (b != NULL)
			evbuffer_free(b);
		/* Better none than one with a hole. */
		call->conn->broken = true;
		return;
	}
	evhttp_send_reply_chunk(call->req, b);
	evbuffer_free(b);
	call->t_write = http_now();
	if (server_unread(call) >= HTTP_OUTPUT_STOP)
		call->full = true;
}

void
server_stream_end(struct call *call)
{
	struct evhttp_request *req = call->req;

	if (call->conn == NULL) {
		evhttp_request_free(req);
		return;
	}
	release(call);
	evhttp_send_reply_end(req);
}

size_t
server_unread(const struct call *call)
{
	return call->conn == NULL ? 0 :
	    evbuffer_get_length(bufferevent_get_output(call->conn->bev));
}

/* --- life -------------------------------------------------------------- */

/* Is it time for this connection to go? */
static bool
overdue(const struct conn *c, double now)
{
	size_t waits = evbuffer_get_length(bufferevent_get_output(c->bev));
	const struct http_config *cfg = &c->server->http->cfg;

	if (c->evcon == NULL)
		return false;
	if (c->broken)
		return true;
	switch (c->state) {
	case C_HEAD:
		return now - c->since > cfg->head_timeout;
	case C_IDLE:
	case C_BODY:
		/* An error page of evhttp's own may wait, too. */
		return now - c->since > cfg->idle_timeout;
	case C_BUSY:
	case C_WRITING:
		return waits > 0 && now - c->t_progress >
		    cfg->stuck_timeout;
	}
	return false;
}

/*
 * Bodies come in pieces too small for blocks of their own; freed, they stay
 * with the process unless it is told to give them back.
 */
static void
trim(struct server *s, double now)
{
	if (!s->trim || now - s->t_trim < TRIM_S)
		return;
	malloc_trim(0);
	s->trim = false;
	s->t_trim = now;
}

void
server_tick(struct server *s)
{
	double now = http_now();
	struct conn *c, *next;

	for (c = LIST_FIRST(&s->conns); c != NULL; c = next) {
		next = LIST_NEXT(c, link);
		if (overdue(c, now))
			drop(c);
		else if (c->call != NULL && c->call->streaming &&
		    now - c->call->t_write >= BEAT_S && !c->call->full)
			call_sse_beat(c->call);
	}
	trim(s, now);
	if (s->n_conns < max_conns(s) + SPARE_CONNS)
		listeners_on(s, true);
}

void
server_no_more(struct server *s)
{
	listeners_on(s, false);
	s->ended = true;
}

bool
server_has_output(const struct server *s)
{
	const struct conn *c;

	LIST_FOREACH(c, &s->conns, link)
		if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
			return true;
	return false;
}

struct server_status
server_status(const struct server *s)
{
	return (struct server_status){ s->n_conns, s->n_requests };
}

json_t *
server_names(const struct server *s)
{
	json_t *a = json_array();

	for (size_t i = 0; i < listeners_n(s->listeners); i++)
		json_array_append_new(a,
		    json_string(listeners_name(s->listeners, i)));
	return a;
}

static int
bind_all(struct server *s, char **why)
{
	size_t i, n;
	int rc;

	rc = listeners_open(s->http, &s->listeners, why);
	if (rc != 0)
		return rc;
	n = listeners_n(s->listeners);
	s->ev = calloc(n, sizeof *s->ev);
	if (s->ev == NULL)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		struct evhttp_bound_socket *b;

		b = evhttp_accept_socket_with_handle(s->evhttp,
		    listeners_fd(s->listeners, i));
		if (b == NULL)
			return -ENOMEM;
		/* evhttp closes it from now on. */
		listeners_given(s->listeners, i);
		s->ev[i] = evhttp_bound_socket_get_listener(b);
		accepting = s;
		evconnlistener_set_error_cb(s->ev[i], on_accept_error);
	}
	return 0;
}

int
server_new(struct http *http, struct server **out, char **why)
{
	struct server *s = calloc(1, sizeof *s);
	int rc = -ENOMEM;

	if (s == NULL)
		return rc;
	s->http = http;
	s->most_conns = listeners_room(http, SPARE_CONNS);
	LIST_INIT(&s->conns);
	s->evhttp = evhttp_new(http->base);
	s->sweep = event_new(http->base, -1, 0, on_sweep, s);
	if (s->evhttp == NULL || s->sweep == NULL)
		goto fail;
	evhttp_set_max_headers_size(s->evhttp, HTTP_HEAD_MAX);
	evhttp_set_max_body_size(s->evhttp, HTTP_BODY_MAX);
	evhttp_set_allowed_methods(s->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD |
	    EVHTTP_REQ_POST | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PUT |
	    EVHTTP_REQ_DELETE | EVHTTP_REQ_PATCH);
	/* A client that sends on would not read why it may not. */
	evhttp_set_flags(s->evhttp, EVHTTP_SERVER_LINGERING_CLOSE);
	evhttp_set_default_content_type(s->evhttp, NULL);
	evhttp_set_bevcb(s->evhttp, on_accept, s);
	evhttp_set_gencb(s->evhttp, on_request, s);
	rc = bind_all(s, why);
	if (rc != 0)
		goto fail;
	*out = s;
	return 0;
fail:
	server_free(s);
	return rc;
}

void
server_free(struct server *s)
{
	struct conn *c;

	if (s == NULL)
		return;
	s->ended = true;
	while ((c = LIST_FIRST(&s->conns)) != NULL) {
		if (c->evcon == NULL)
			on_start(-1, 0, c);
		else
			drop(c);
	}
	if (s->evhttp != NULL)
		evhttp_free(s->evhttp);
	listeners_close(s->listeners);
	if (s->sweep != NULL)
		event_free(s->sweep);
	free(s->ev);
	free(s->by_fd);
	free(s);
}
