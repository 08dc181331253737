/*
 * Events into lines. Streaming, each is a line of its own; otherwise they are
 * put together and the last one makes the only line. An answer that memory
 * was short for ends with an error, never with a part of it missing.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/unix/unix.h"

static const char *const channels[] = {
	[DCP_CH_CONTENT] = "content", [DCP_CH_REASONING] = "reasoning",
	[DCP_CH_TOOL_NAME] = "tool_name", [DCP_CH_TOOL_ARGS] = "tool_args",
	[DCP_CH_PROMPT] = "prompt",
};
#define N_CHANNELS (sizeof channels / sizeof channels[0])

json_t *
unix_error(json_t *id, int error, const char *message)
{
	const char *name = strerrorname_np(-error);
	json_t *text = json_string(message);

	return json_pack("{s:O?,s:s,s:{s:s,s:o}}", "id", id, "event", "error",
	    "error", "code", name != NULL ? name : "EIO", "message",
	    text != NULL ? text : json_string("not UTF-8"));
}

struct asked *
asked_new(json_t *id, bool stream)
{
	struct asked *a = calloc(1, sizeof *a);

	if (a == NULL)
		return NULL;
	a->id = json_incref(id);
	a->stream = stream;
	if (stream)
		return a;
	a->text = evbuffer_new();
	a->reasoning = evbuffer_new();
	a->calls = json_array();
	a->tokens = json_array();
	a->logprobs = json_array();
	if (a->text != NULL && a->reasoning != NULL && a->calls != NULL &&
	    a->tokens != NULL && a->logprobs != NULL)
		return a;
	asked_free(a);
	return NULL;
}

void
asked_free(struct asked *a)
{
	json_decref(a->id);
	if (a->text != NULL)
		evbuffer_free(a->text);
	if (a->reasoning != NULL)
		evbuffer_free(a->reasoning);
	json_decref(a->calls);
	json_decref(a->tokens);
	json_decref(a->logprobs);
	free(a);
}

/* o, unless a part of it is missing. */
static json_t *
only_whole(json_t *o, int rc)
{
	if (rc == 0)
		return o;
	json_decref(o);
	return NULL;
}

/* --- pieces -------------------------------------------------------------- */

static int
add_tokens(json_t *list, const struct dcp_event *ev)
{
	int rc = 0;

	for (uint32_t i = 0; i < ev->n_tokens; i++)
		rc |= json_array_append_new(list, json_integer(ev->tokens[i]));
	return rc == 0 ? 0 : -ENOMEM;
}

/* null for the first token of a prompt, which has none */
static json_t *
logprob_json(const struct dcp_logprob *l)
{
	return json_pack("{s:I,s:o}", "token", (json_int_t)l->token, "logprob",
	    isfinite(l->logprob) ? json_real((double)l->logprob) : json_null());
}

static int
add_logprobs(json_t *list, const struct dcp_event *ev)
{
	int rc = 0;

	for (uint32_t i = 0; i < ev->n_logprobs; i++) {
		const struct dcp_token_logprobs *l = &ev->logprobs[i];
		json_t *o = logprob_json(&l->chosen), *top = json_array();

		for (uint32_t k = 0; k < l->n_top; k++)
			rc |= json_array_append_new(top,
			    logprob_json(&l->top[k]));
		rc |= json_object_set_new(o, "top", top);
		rc |= json_array_append_new(list, o);
	}
	return rc == 0 ? 0 : -ENOMEM;
}

static json_t *
usage(const struct dcp_usage *u)
{
	return json_pack("{s:I,s:I,s:I,s:I}",
	    "prompt_tokens", (json_int_t)u->prompt_tokens,
	    "cached_tokens", (json_int_t)u->cached_tokens,
	    "completion_tokens", (json_int_t)u->completion_tokens,
	    "reasoning_tokens", (json_int_t)u->reasoning_tokens);
}

static const char *
finish(uint32_t f)
{
	static const char *const name[] = {
		"none", "stop", "length", "tool_calls", "abort",
	};

	return f < sizeof name / sizeof name[0] ? name[f] : "none";
}

static json_t *
done_line(const struct asked *a, const struct dcp_event *ev)
{
	json_t *o = json_pack("{s:O?,s:s,s:s,s:o}", "id", a->id, "event",
	    "done", "finish_reason", finish(ev->finish), "usage",
	    usage(&ev->usage));
	int rc = 0;

	if (ev->call > 0)
		rc = json_object_set_new(o, "stop", json_integer(ev->call));
	return only_whole(o, rc);
}

/* --- streaming ----------------------------------------------------------- */

static json_t *
delta_line(const struct asked *a, const struct dcp_event *ev)
{
	json_t *tokens = json_array(), *logprobs, *o;
	int rc = add_tokens(tokens, ev);

	o = json_pack("{s:O?,s:s,s:s,s:s%,s:o}", "id", a->id, "event", "delta",
	    "channel", channels[ev->channel], "text", ev->text, ev->text_len,
	    "tokens", tokens);
	if (ev->channel == DCP_CH_TOOL_NAME || ev->channel == DCP_CH_TOOL_ARGS)
		rc |= json_object_set_new(o, "call", json_integer(ev->call));
	if (ev->n_logprobs > 0) {
		logprobs = json_array();
		rc |= add_logprobs(logprobs, ev);
		rc |= json_object_set_new(o, "logprobs", logprobs);
	}
	return only_whole(o, rc);
}

/* --- the whole answer ---------------------------------------------------- */

/* Pieces of text as one; joined at the end, or long ones would take long. */
static json_t *
joined(const json_t *pieces)
{
	size_t i, n = 0;
	json_t *p, *out;
	char *s;

	json_array_foreach(pieces, i, p)
		n += json_string_length(p);
	s = malloc(n + 1);
	if (s == NULL)
		return NULL;
	n = 0;
	json_array_foreach(pieces, i, p) {
		memcpy(s + n, json_string_value(p), json_string_length(p));
		n += json_string_length(p);
	}
	out = json_stringn(s, n);
	free(s);
	return out;
}

static json_t *
joined_calls(const json_t *calls)
{
	json_t *out = json_array(), *call;
	int rc = 0;
	size_t i;

	json_array_foreach(calls, i, call)
		rc |= json_array_append_new(out, json_pack("{s:o,s:o}",
		    "name", joined(json_object_get(call, "name")),
		    "arguments", joined(json_object_get(call, "arguments"))));
	return only_whole(out, rc);
}

static int
keep_call(struct asked *a, const struct dcp_event *ev)
{
	const char *part = ev->channel == DCP_CH_TOOL_NAME ? "name" :
	    "arguments";
	json_t *call;

	while (json_array_size(a->calls) <= ev->call)
		if (json_array_append_new(a->calls, json_pack("{s:[],s:[]}",
		    "name", "arguments")) != 0)
			return -ENOMEM;
	call = json_array_get(a->calls, ev->call);
	return json_array_append_new(json_object_get(call, part),
	    json_stringn(ev->text, ev->text_len)) == 0 ? 0 : -ENOMEM;
}

static int
keep(struct asked *a, const struct dcp_event *ev)
{
	int rc = 0;

	if (ev->channel == DCP_CH_CONTENT)
		rc = evbuffer_add(a->text, ev->text, ev->text_len);
	else if (ev->channel == DCP_CH_REASONING)
		rc = evbuffer_add(a->reasoning, ev->text, ev->text_len);
	else if (ev->channel != DCP_CH_PROMPT)
		rc = keep_call(a, ev);
	/* The prompt's logprobs (echo) come first; its tokens are known. */
	if (rc == 0 && ev->channel != DCP_CH_PROMPT)
		rc = add_tokens(a->tokens, ev);
	if (rc == 0)
		rc = add_logprobs(a->logprobs, ev);
	return rc == 0 ? 0 : -ENOMEM;
}

/* All of it as one string; "" of none. */
static json_t *
text_of(struct evbuffer *b)
{
	size_t n = evbuffer_get_length(b);

	return json_stringn(n == 0 ? "" : (char *)evbuffer_pullup(b, -1), n);
}

static json_t *
whole_line(struct asked *a, const struct dcp_event *ev)
{
	json_t *o = done_line(a, ev);
	int rc = json_object_set_new(o, "text", text_of(a->text));

	if (evbuffer_get_length(a->reasoning) > 0)
		rc |= json_object_set_new(o, "reasoning",
		    text_of(a->reasoning));
	if (json_array_size(a->calls) > 0)
		rc |= json_object_set_new(o, "tool_calls",
		    joined_calls(a->calls));
	rc |= json_object_set(o, "tokens", a->tokens);
	if (json_array_size(a->logprobs) > 0)
		rc |= json_object_set(o, "logprobs", a->logprobs);
	return only_whole(o, rc);
}

json_t *
asked_delta(struct asked *a, const struct dcp_event *ev)
{
	json_t *line = NULL;

	if (a->error != 0 || ev->channel >= N_CHANNELS)
		return NULL;
	if (!a->stream)
		a->error = keep(a, ev);
	else if ((line = delta_line(a, ev)) == NULL)
		a->error = -ENOMEM;
	return line;
}

json_t *
asked_last(struct asked *a, const struct dcp_event *ev)
{
	json_t *line = NULL;

	if (ev->type == DCP_EV_ERROR)
		return unix_error(a->id, ev->error, ev->text);
	if (a->error == 0)
		line = a->stream ? done_line(a, ev) : whole_line(a, ev);
	return line != NULL ? line : unix_error(a->id, -ENOMEM,
	    "no memory for the whole answer: try again later");
}
