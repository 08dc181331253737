/*
 * Events into lines. Streaming, each is a line of its own; otherwise they are
 * put together and the last one makes the only line.
 */
#include "config.h"

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

/* --- pieces -------------------------------------------------------------- */

static void
add_tokens(json_t *list, const struct dcp_event *ev)
{
	for (uint32_t i = 0; i < ev->n_tokens; i++)
		json_array_append_new(list, json_integer(ev->tokens[i]));
}

/* null for the first token of a prompt, which has none */
static json_t *
logprob_json(const struct dcp_logprob *l)
{
	json_t *v = json_real((double)l->logprob);

	return json_pack("{s:I,s:o}", "token", (json_int_t)l->token, "logprob",
	    v != NULL ? v : json_null());
}

static void
add_logprobs(json_t *list, const struct dcp_event *ev)
{
	for (uint32_t i = 0; i < ev->n_logprobs; i++) {
		const struct dcp_token_logprobs *l = &ev->logprobs[i];
		json_t *o = logprob_json(&l->chosen), *top = json_array();

		for (uint32_t k = 0; k < l->n_top; k++)
			json_array_append_new(top, logprob_json(&l->top[k]));
		json_object_set_new(o, "top", top);
		json_array_append_new(list, o);
	}
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

	if (ev->call > 0)
		json_object_set_new(o, "stop", json_integer(ev->call));
	return o;
}

/* --- streaming ----------------------------------------------------------- */

static json_t *
delta_line(const struct asked *a, const struct dcp_event *ev)
{
	json_t *tokens = json_array(), *logprobs, *o;

	if (ev->channel >= N_CHANNELS) {
		json_decref(tokens);
		return NULL;
	}
	add_tokens(tokens, ev);
	o = json_pack("{s:O?,s:s,s:s,s:s%,s:o}", "id", a->id, "event", "delta",
	    "channel", channels[ev->channel], "text", ev->text, ev->text_len,
	    "tokens", tokens);
	if (ev->channel == DCP_CH_TOOL_NAME || ev->channel == DCP_CH_TOOL_ARGS)
		json_object_set_new(o, "call", json_integer(ev->call));
	if (ev->n_logprobs > 0) {
		logprobs = json_array();
		add_logprobs(logprobs, ev);
		json_object_set_new(o, "logprobs", logprobs);
	}
	return o;
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
	size_t i;

	json_array_foreach(calls, i, call)
		json_array_append_new(out, json_pack("{s:o,s:o}",
		    "name", joined(json_object_get(call, "name")),
		    "arguments", joined(json_object_get(call, "arguments"))));
	return out;
}

static void
keep(struct asked *a, const struct dcp_event *ev)
{
	json_t *call;

	if (ev->channel == DCP_CH_CONTENT)
		evbuffer_add(a->text, ev->text, ev->text_len);
	else if (ev->channel == DCP_CH_REASONING)
		evbuffer_add(a->reasoning, ev->text, ev->text_len);
	if (ev->channel == DCP_CH_TOOL_NAME ||
	    ev->channel == DCP_CH_TOOL_ARGS) {
		while (json_array_size(a->calls) <= ev->call &&
		    json_array_append_new(a->calls, json_pack("{s:[],s:[]}",
		    "name", "arguments")) == 0)
			;
		call = json_array_get(a->calls, ev->call);
		json_array_append_new(json_object_get(call, ev->channel ==
		    DCP_CH_TOOL_NAME ? "name" : "arguments"),
		    json_stringn(ev->text, ev->text_len));
	}
	/* The prompt's logprobs (echo) come first; its tokens are known. */
	if (ev->channel != DCP_CH_PROMPT)
		add_tokens(a->tokens, ev);
	add_logprobs(a->logprobs, ev);
}

static json_t *
whole_line(struct asked *a, const struct dcp_event *ev)
{
	size_t n = evbuffer_get_length(a->text);
	size_t nr = evbuffer_get_length(a->reasoning);
	json_t *o = done_line(a, ev);

	json_object_set_new(o, "text", json_stringn(n == 0 ? "" :
	    (char *)evbuffer_pullup(a->text, -1), n));
	if (nr > 0)
		json_object_set_new(o, "reasoning", json_stringn(
		    (char *)evbuffer_pullup(a->reasoning, -1), nr));
	if (json_array_size(a->calls) > 0)
		json_object_set_new(o, "tool_calls", joined_calls(a->calls));
	json_object_set(o, "tokens", a->tokens);
	if (json_array_size(a->logprobs) > 0)
		json_object_set(o, "logprobs", a->logprobs);
	return o;
}

json_t *
asked_delta(struct asked *a, const struct dcp_event *ev)
{
	if (a->stream)
		return delta_line(a, ev);
	keep(a, ev);
	return NULL;
}

json_t *
asked_last(struct asked *a, const struct dcp_event *ev)
{
	if (ev->type == DCP_EV_ERROR)
		return unix_error(a->id, ev->error, ev->text);
	return a->stream ? done_line(a, ev) : whole_line(a, ev);
}
