/*
 * The connection to the engine: one for the whole plugin. Its descriptor is in
 * the event loop; events go to the request that they are of. The event
 * thread's.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/call.h"
#include "plugins/http/engine.h"

#define CONNECT_MS 500
#define RETRY_US 100000		/* between two looks for an engine */
#define RESUME_US 2000		/* after the ring was full */
#define EVENTS_AT_ONCE 256	/* then sockets have their turn, */
#define EVENTS_S 0.01		/* or after so long: logprobs take their time */

struct engine {
	struct http *http;
	struct dcp *dcp;		/* NULL: not connected */
	struct event *ev;		/* its descriptor */
	struct event *retry;		/* while not connected */
	struct event *resume;
	struct event *again;		/* more events wait */
	json_t *info;
	char *model;
	uint32_t context;
	TAILQ_HEAD(, ereq) live;
	struct gen_list gens;
};

/* --- connecting -------------------------------------------------------- */

static void
arm(struct event *ev, long us)
{
	const struct timeval tv = { us / 1000000, us % 1000000 };

	event_add(ev, &tv);
}

/* Whoever waits hears that nothing will come any more. */
static void
hang_up(struct engine *e, const char *why)
{
	struct dcp_event ev = {
		.size = sizeof ev, .type = DCP_EV_ERROR, .error = -EPIPE,
		.text = why, .text_len = strlen(why),
	};
	struct ereq *r;

	event_free(e->ev);
	e->ev = NULL;
	dcp_close(e->dcp);
	e->dcp = NULL;
	e->context = 0;
	while ((r = TAILQ_FIRST(&e->live)) != NULL) {
		TAILQ_REMOVE(&e->live, r, link);
		r->event(r, &ev);
	}
}

static void
lost(struct engine *e, const char *why)
{
	http_log(e->http, LOG_WARNING, "the engine is gone: %s", why);
	hang_up(e, why);
	arm(e->retry, RETRY_US);
}

static void
deliver(struct engine *e, const struct dcp_event *ev)
{
	struct ereq *r = (struct ereq *)(uintptr_t)ev->user_data;

	if (ev->type == DCP_EV_DONE || ev->type == DCP_EV_ERROR)
		TAILQ_REMOVE(&e->live, r, link);
	r->event(r, ev);
}

static void
on_events(evutil_socket_t fd, short what, void *arg)
{
	struct engine *e = arg;
	const struct dcp_event *ev;
	double until = http_now() + EVENTS_S;
	int i, rc = 0;

	for (i = 0; i < EVENTS_AT_ONCE && http_now() < until; i++) {
		rc = dcp_next(e->dcp, 0, &ev);
		if (rc != 0)
			break;
		deliver(e, ev);
		dcp_event_release(e->dcp, ev);
	}
	/* There is more. Not event_active: that runs before any socket. */
	if (rc == 0)
		arm(e->again, 0);
	else if (rc != -EAGAIN && rc != -EINTR)
		lost(e, rc == -EPIPE ? "it closed the connection" :
		    dcp_error_text());
}

static void
on_again(evutil_socket_t fd, short what, void *arg)
{
	struct engine *e = arg;

	if (e->dcp != NULL)
		on_events(fd, what, e);
}

/* The served name: configured, or what the status says. */
static char *
model_name(const struct http *http)
{
	const struct dcp_host *h = http->host;
	json_t *status;
	const char *s;
	char *text, *name;

	if (http->cfg.served_model_name != NULL)
		return strdup(http->cfg.served_model_name);
	text = h->status(h->ctx);
	status = text != NULL ? json_loads(text, 0, NULL) : NULL;
	free(text);
	s = json_string_value(json_object_get(status, "model"));
	if (s != NULL && strrchr(s, '/') != NULL && strrchr(s, '/')[1] != '\0')
		s = strrchr(s, '/') + 1;
	name = strdup(s != NULL && s[0] != '\0' ? s : "dcpd");
	json_decref(status);
	return name;
}

static int
learn(struct engine *e)
{
	json_t *info;
	char *text, *model;
	int rc;

	rc = dcp_server_info(e->dcp, &text);
	if (rc != 0)
		return rc;
	info = json_loads(text, 0, NULL);
	free(text);
	model = model_name(e->http);
	if (info == NULL || model == NULL) {
		json_decref(info);
		free(model);
		return -ENOMEM;
	}
	json_decref(e->info);
	free(e->model);
	e->info = info;
	e->model = model;
	e->context = (uint32_t)json_integer_value(
	    json_object_get(info, "max_context"));
	return 0;
}

static int
try_connect(struct engine *e)
{
	int rc = dcp_connect(e->http->host->socket, CONNECT_MS, &e->dcp);

	if (rc != 0)
		return rc;
	rc = learn(e);
	if (rc == 0)
		e->ev = event_new(e->http->base, dcp_fd(e->dcp),
		    EV_READ | EV_PERSIST, on_events, e);
	if (rc == 0 && (e->ev == NULL || event_add(e->ev, NULL) != 0))
		rc = -ENOMEM;
	if (rc == 0)
		return 0;
	if (e->ev != NULL)
		event_free(e->ev);
	e->ev = NULL;
	e->context = 0;
	dcp_close(e->dcp);
	e->dcp = NULL;
	return rc;
}

/* While the model loads nobody connects: the answer would only come later. */
static void
on_retry(evutil_socket_t fd, short what, void *arg)
{
	struct engine *e = arg;
	const struct dcp_host *h = e->http->host;
	int rc;

	if (h->state(h->ctx) != DCP_HOST_READY) {
		arm(e->retry, RETRY_US);
		return;
	}
	rc = try_connect(e);
	if (rc == 0) {
		http_log(e->http, LOG_INFO, "serving %s, %u tokens of context",
		    e->model, e->context);
		/* What came before the first look. */
		event_active(e->ev, EV_READ, 0);
		return;
	}
	http_log(e->http, LOG_WARNING, "%s: %s; trying on",
	    h->socket, strerror(-rc));
	arm(e->retry, 10 * RETRY_US);
}

static void
on_resume(evutil_socket_t fd, short what, void *arg)
{
	generate_resume(arg);
}

/* --- requests ---------------------------------------------------------- */

int
engine_submit(struct engine *e, struct ereq *r, struct dcp_request *q,
    const char **why)
{
	int rc;

	*why = "the engine is not ready";
	if (e->dcp == NULL)
		return -ENOTCONN;
	q->size = sizeof *q;
	q->user_data = (uint64_t)(uintptr_t)r;
	rc = dcp_submit(e->dcp, q, &r->id);
	if (rc == 0) {
		TAILQ_INSERT_TAIL(&e->live, r, link);
		return 0;
	}
	*why = dcp_error_text();
	if (strncmp(*why, "dcp_submit: ", 12) == 0)
		*why += 12;	/* the name of a call says nothing here */
	if (**why == '\0')
		*why = strerror(-rc);
	return rc;
}

void
engine_cancel(struct engine *e, struct ereq *r)
{
	if (e->dcp != NULL)
		(void)dcp_cancel(e->dcp, r->id);
}

void
engine_wait(struct engine *e)
{
	if (!event_pending(e->resume, EV_TIMEOUT, NULL))
		arm(e->resume, RESUME_US);
}

bool
engine_is_ready(struct engine *e, struct call *call)
{
	const struct dcp_host *h = e->http->host;
	int state = h->state(h->ctx);

	if (state == DCP_HOST_DRAINING)
		call_error(call, 503, NULL, "draining",
		    "the server is ending or at rest: it takes no new "
		    "requests");
	else if (state == DCP_HOST_LOADING || (e->dcp == NULL &&
	    state == DCP_HOST_READY))
		call_error(call, 503, NULL, "loading",
		    "the model is still loading: try again soon");
	else if (e->dcp == NULL)
		call_error(call, 503, NULL, "unavailable",
		    "the engine has failed: see the server's log");
	else
		return true;
	return false;
}

int
engine_error_status(int error, const char **code)
{
	switch (-error) {
	case EINVAL:
	case ENOTSUP:
	case EILSEQ:
		*code = "invalid_request";
		return 400;
	case EMSGSIZE:
	case E2BIG:
		*code = "context_length_exceeded";
		return 400;
	case EAGAIN:
	case EDQUOT:
		*code = "queue_full";
		return 503;
	case ESHUTDOWN:
		*code = "draining";
		return 503;
	case ENOMEM:
		*code = "out_of_memory";
		return 503;
	case EPIPE:
	case ENOTCONN:
		*code = "unavailable";
		return 503;
	default:
		*code = "internal_error";
		return 500;
	}
}

/* What the engine's words begin with, where it is not the field itself. */
static const struct {
	const char *word, *field;
} fields[] = {
	{ "cache_salt", NULL }, { "chat_template_kwargs", NULL },
	{ "clear_thinking", "chat_template_kwargs" },
	{ "enable_thinking", "chat_template_kwargs" },
	{ "logit_bias", NULL }, { "messages", NULL }, { "min_tokens", NULL },
	{ "parallel_tool_calls", NULL }, { "reasoning_effort", NULL },
	{ "response_format", NULL }, { "schema", "response_format" },
	{ "stop_ids", "stop_token_ids" }, { "thinking", NULL },
	{ "tool_choice", NULL }, { "tools", NULL },
};

const char *
engine_error_field(const char *message)
{
	size_t i, n;

	if (strncmp(message, "options: ", 9) == 0)
		message += 9;
	n = strspn(message, "abcdefghijklmnopqrstuvwxyz_");
	for (i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (strlen(fields[i].word) == n &&
		    strncmp(message, fields[i].word, n) == 0)
			return fields[i].field != NULL ? fields[i].field :
			    fields[i].word;
	return NULL;
}

/* --- what it is -------------------------------------------------------- */

const json_t *
engine_info(const struct engine *e)
{
	return e->dcp != NULL ? e->info : NULL;
}

const char *
engine_model(const struct engine *e)
{
	return e->model != NULL ? e->model : "dcpd";
}

uint32_t
engine_context(const struct engine *e)
{
	return e->context;
}

int
engine_token(const struct engine *e, uint32_t id, struct text *to)
{
	const struct dcp_host *h = e->http->host;
	const char *bytes;
	char name[24];
	size_t len;

	if (h->token_bytes != NULL &&
	    h->token_bytes(h->ctx, id, &bytes, &len) == 0)
		return text_add(to, bytes, len);
	len = (size_t)snprintf(name, sizeof name, "token_id:%u", id);
	return text_add(to, name, len);
}

json_t *
engine_bytes_json(const struct text *t)
{
	json_t *o = json_stringn(t->s != NULL ? t->s : "", t->len);
	struct text hex = { 0 };
	char x[8];

	if (o == NULL && text_add(&hex, "bytes:", 6) == 0) {
		for (size_t i = 0; i < t->len; i++) {
			snprintf(x, sizeof x, "\\x%02x",
			    (unsigned char)t->s[i]);
			(void)text_add(&hex, x, 4);
		}
		o = json_stringn(hex.s, hex.len);
	}
	text_free(&hex);
	return o;
}

json_t *
engine_token_json(const struct engine *e, uint32_t id)
{
	struct text t = { 0 };
	json_t *o = engine_token(e, id, &t) == 0 ? engine_bytes_json(&t) : NULL;

	text_free(&t);
	return o;
}

/* --- life -------------------------------------------------------------- */

struct http *
engine_http(const struct engine *e)
{
	return e->http;
}

struct gen_list *
engine_gens(struct engine *e)
{
	return &e->gens;
}

bool
engine_is_idle(const struct engine *e)
{
	return TAILQ_EMPTY(&e->live) && TAILQ_EMPTY(&e->gens);
}

void
engine_tick(struct engine *e)
{
	generate_tick(e);
}

int
engine_new(struct http *http, struct engine **out)
{
	struct engine *e = calloc(1, sizeof *e);

	if (e == NULL)
		return -ENOMEM;
	e->http = http;
	TAILQ_INIT(&e->live);
	TAILQ_INIT(&e->gens);
	e->retry = event_new(http->base, -1, 0, on_retry, e);
	e->resume = event_new(http->base, -1, 0, on_resume, e);
	e->again = event_new(http->base, -1, 0, on_again, e);
	if (e->retry == NULL || e->resume == NULL || e->again == NULL) {
		engine_free(e);
		return -ENOMEM;
	}
	arm(e->retry, 0);
	*out = e;
	return 0;
}

/* The server has gone before, and with it all who listened. */
void
engine_free(struct engine *e)
{
	if (e == NULL)
		return;
	if (e->dcp != NULL)
		hang_up(e, "the server ends");
	if (e->retry != NULL)
		event_free(e->retry);
	if (e->resume != NULL)
		event_free(e->resume);
	if (e->again != NULL)
		event_free(e->again);
	json_decref(e->info);
	free(e->model);
	free(e);
}
