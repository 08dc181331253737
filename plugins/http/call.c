/*
 * One exchange: its body, its reply, its events, its error. The event
 * thread's.
 */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>

#include "dcpd/base/bigjson.h"
#include "plugins/http/call.h"

void
call_watch(struct call *call, const struct call_ops *ops, void *arg)
{
	call->ops = ops;
	call->arg = arg;
}

struct http *
call_http(const struct call *call)
{
	return call->http;
}

const char *
call_path(const struct call *call)
{
	return call->path;
}

const char *
call_rest(const struct call *call)
{
	return call->rest != NULL ? call->rest : "";
}

const char *
call_header(const struct call *call, const char *name)
{
	return server_header(call, name);
}

const char *
call_query(struct call *call, const char *key)
{
	return server_query(call, key);
}

const char *
call_body(const struct call *call, size_t *len)
{
	return server_body(call, len);
}

json_t *
call_json(struct call *call)
{
	json_error_t e;
	const char *s;
	size_t n;

	if (call->json != NULL)
		return call->json;
	s = server_body(call, &n);
	if (n == 0) {
		call_error(call, 400, NULL, "invalid_json",
		    "the body is empty: send a JSON object");
		return NULL;
	}
	/* U+0000 is a character like others; field_string refuses it. */
	call->json = dcpd_bigjson_loadb(s, n, JSON_ALLOW_NUL, &e);
	server_drop_body(call);
	if (call->json == NULL) {
		call_error(call, 400, NULL, "invalid_json", "the body is not "
		    "JSON: %s, line %d, column %d (byte %d)", e.text, e.line,
		    e.column, e.position);
		return NULL;
	}
	if (!json_is_object(call->json)) {
		call_error(call, 400, NULL, "invalid_json",
		    "the body is JSON, but not an object: send {...}");
		return NULL;
	}
	return call->json;
}

void
call_forget_body(struct call *call)
{
	json_decref(call->json);
	call->json = NULL;
	server_forget_body(call);
}

/* --- answers ----------------------------------------------------------- */

void
call_free(struct call *call)
{
	json_decref(call->json);
	free(call->path);
	free(call);
}

void
call_set_header(struct call *call, const char *name, const char *value)
{
	server_set_header(call, name, value);
}

void
call_reply(struct call *call, int status, const char *content_type,
    const char *body, size_t len)
{
	struct evbuffer *b = evbuffer_new();

	if (b == NULL || (len > 0 && evbuffer_add(b, body, len) != 0))
		status = 500;
	if (content_type != NULL)
		server_set_header(call, "Content-Type", content_type);
	server_reply_buffer(call, status, b);
	if (b != NULL)
		evbuffer_free(b);
	call_free(call);
}

void
call_reply_buffer(struct call *call, int status, const char *content_type,
    struct evbuffer *b)
{
	if (b == NULL) {
		call_no_memory(call);
		return;
	}
	server_set_header(call, "Content-Type", content_type);
	server_reply_buffer(call, status, b);
	evbuffer_free(b);
	call_free(call);
}

void
call_reply_json(struct call *call, int status, json_t *o)
{
	char *s = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;

	json_decref(o);
	if (s == NULL) {
		call_no_memory(call);
		return;
	}
	call_reply(call, status, "application/json", s, strlen(s));
	free(s);
}

json_t *
openai_error(int status, const char *type, const char *param, const char *code,
    const char *message)
{
	return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error",
	    "message", message, "type", type, "param", param, "code", code);
}

static const char *
type_of(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 503:
		return "overloaded_error";
	default:
		return status >= 500 ? "server_error" :
		    "invalid_request_error";
	}
}

json_t *
call_error_json(const struct call *call, int status, const char *param,
    const char *code, const char *message)
{
	error_form *form = call->route != NULL ? call->route->error : NULL;

	if (form == NULL)
		form = openai_error;
	return form(status, type_of(status), param, code, message);
}

/* printf may cut a character, or repeat what is not UTF-8. */
static void
only_utf8(char *s)
{
	json_t *j = json_string(s);

	if (j == NULL)
		for (; *s != '\0'; s++)
			if ((unsigned char)*s >= 0x80)
				*s = '?';
	json_decref(j);
}

void
call_error(struct call *call, int status, const char *param, const char *code,
    const char *fmt, ...)
{
	char message[1024], after[16];
	va_list ap;
	json_t *o;
	char *s;

	va_start(ap, fmt);
	vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	only_utf8(message);
	o = call_error_json(call, status, param, code, message);
	s = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	if (status == 503) {
		snprintf(after, sizeof after, "%d", HTTP_RETRY_AFTER);
		server_set_header(call, "Retry-After", after);
	}
	call_reply(call, status, "application/json", s != NULL ? s : "{}",
	    s != NULL ? strlen(s) : 2);
	free(s);
}

int
call_no_memory(struct call *call)
{
	call_error(call, 503, NULL, "out_of_memory", "no memory for this now: "
	    "try again later, or send less");
	return -ENOMEM;
}

/* --- server-sent events ------------------------------------------------ */

/*
 * Shows that the client is there, and to the client that we are. An empty line
 * ends an event of nothing, so the standard has it ignored; a comment would do
 * too, but bench_serving takes every line that is not empty for JSON.
 */
void
call_sse_beat(struct call *call)
{
	server_stream_add(call, "\n", 1);
}

void
call_sse_begin(struct call *call)
{
	server_set_header(call, "Content-Type", "text/event-stream");
	server_set_header(call, "Cache-Control", "no-cache");
	/* A proxy that gathers would undo it. */
	server_set_header(call, "X-Accel-Buffering", "no");
	call->streaming = true;
	server_stream_begin(call, 200);
	call_sse_beat(call);
}

static void
event_out(struct call *call, const char *event, const char *data)
{
	size_t ne = event != NULL ? strlen(event) : 0, nd = strlen(data);
	char *s = malloc(ne + nd + 24), *p = s;

	if (s == NULL)
		return;
	if (event != NULL)
		p += sprintf(p, "event: %s\n", event);
	memcpy(p, "data: ", 6);
	memcpy(p + 6, data, nd);
	memcpy(p + 6 + nd, "\n\n", 2);
	server_stream_add(call, s, (size_t)(p - s) + nd + 8);
	free(s);
}

void
call_sse(struct call *call, const char *event, json_t *o)
{
	/* Compact JSON has no newline, so it is one data line. */
	char *s = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;

	json_decref(o);
	if (s != NULL)
		event_out(call, event, s);
	free(s);
}

void
call_sse_text(struct call *call, const char *data)
{
	event_out(call, NULL, data);
}

void
call_sse_end(struct call *call)
{
	server_stream_end(call);
	call_free(call);
}

size_t
call_unread(const struct call *call)
{
	return server_unread(call);
}

bool
call_is_gone(const struct call *call)
{
	return call->conn == NULL;
}
