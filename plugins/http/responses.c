/*
 * /v1/responses: the answer as output items, whole or as events.
 *
 * An answer is a list of items: reasoning, a message, function calls. In a
 * stream each is opened, grows and is closed before the next begins; what has
 * been closed is kept for response.completed. The event thread's.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/base/bigjson.h"
#include "plugins/http/api.h"
#include "plugins/http/responses.h"

enum item_kind {
	ITEM_NONE,
	ITEM_REASONING,
	ITEM_MESSAGE,
	ITEM_CALL,
};

/* gen.arg: a stream's state. */
struct stream {
	uint32_t seq;			/* sequence_number */
	json_t *output;			/* items that are closed */
	enum item_kind open;
	bool added;			/* a call: its name is out */
	char id[80];			/* of the open item */
	struct text text;		/* of the open item, so far */
	json_t *logprobs;		/* of an open message */
	struct gen_call call;		/* the open one: id and name */
};

/* --- objects ----------------------------------------------------------- */

static void
set(json_t *o, const char *key, json_t *v)
{
	json_object_set_new(o, key, v);
}

/* As it was asked for, or null. */
static void
echo(json_t *o, const json_t *body, const char *key)
{
	json_t *v = json_object_get(body, key);

	if (v != NULL)
		json_object_set(o, key, v);
	else
		set(o, key, json_null());
}

static json_t *
or_else(json_t *v, json_t *otherwise)
{
	if (v == NULL || json_is_null(v))
		return otherwise;
	json_decref(otherwise);
	return json_incref(v);
}

/* What of the request the API repeats. */
static void
echo_request(json_t *o, const json_t *body)
{
	static const char *const keys[] = { "instructions",
		"max_output_tokens", "temperature", "top_p", "user",
		"prompt_cache_key" };
	const json_t *effort = json_object_get(json_object_get(body,
	    "reasoning"), "effort");
	size_t i;

	for (i = 0; i < sizeof keys / sizeof *keys; i++)
		echo(o, body, keys[i]);
	set(o, "metadata", or_else(json_object_get(body, "metadata"),
	    json_object()));
	set(o, "parallel_tool_calls", or_else(json_object_get(body,
	    "parallel_tool_calls"), json_true()));
	set(o, "tool_choice", or_else(json_object_get(body, "tool_choice"),
	    json_string("auto")));
	set(o, "text", or_else(json_object_get(body, "text"),
	    json_pack("{s:{s:s}}", "format", "type", "text")));
	set(o, "top_logprobs", or_else(json_object_get(body, "top_logprobs"),
	    json_integer(0)));
	set(o, "reasoning", json_pack("{s:o, s:n}", "effort",
	    or_else((json_t *)effort, json_null()), "summary"));
	set(o, "tools", responses_tools(body));
	/* Said plainly, whatever was asked: nothing is kept. */
	set(o, "store", json_false());
	set(o, "background", json_false());
	set(o, "truncation", json_string("disabled"));
	set(o, "previous_response_id", json_null());
}

static json_t *
usage(const struct dcp_usage *u)
{
	return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}",
	    "input_tokens", (json_int_t)u->prompt_tokens,
	    "input_tokens_details",
	    "cached_tokens", (json_int_t)u->cached_tokens,
	    "cache_write_tokens", 0,
	    "output_tokens", (json_int_t)u->completion_tokens,
	    "output_tokens_details",
	    "reasoning_tokens", (json_int_t)u->reasoning_tokens,
	    "total_tokens", (json_int_t)u->prompt_tokens +
	    u->completion_tokens);
}

/* The response; output is stolen. status by choice->finish, or as given. */
static json_t *
response(struct gen *g, const char *status, json_t *output)
{
	const struct choice *c = &g->choice[0];
	json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:n, s:n, s:s, s:o}",
	    "id", g->id, "object", "response",
	    "created_at", (json_int_t)g->created, "status", status, "error",
	    "incomplete_details", "model", g->model, "output", output);

	echo_request(o, call_json(g->call));
	if (strcmp(status, "in_progress") == 0) {
		set(o, "usage", json_null());
		return o;
	}
	if (c->finish == DCP_FINISH_LENGTH)
		set(o, "incomplete_details", json_pack("{s:s}", "reason",
		    "max_output_tokens"));
	set(o, "usage", usage(&c->usage));
	return o;
}

/* How the response ended, and so which event tells it. */
static const char *
status_of(const struct choice *c)
{
	switch (c->finish) {
	case DCP_FINISH_LENGTH:
		return "incomplete";
	case DCP_FINISH_ABORT:
		return "failed";
	default:
		return "completed";
	}
}

static json_t *
aborted(void)
{
	return json_pack("{s:s, s:s}", "code", "server_error", "message",
	    "the response was aborted");
}

/* Ids of items: the response's, with another prefix and a number. */
static void
item_id(const struct gen *g, const char *prefix, size_t n, char *to,
    size_t size)
{
	const char *tail = strchr(g->id, '_');

	snprintf(to, size, "%s_%s_%zu", prefix, tail != NULL ? tail + 1 :
	    g->id, n);
}

static json_t *
one_logprob(const struct gen *g, uint32_t id, float logprob)
{
	struct text t = { 0 };
	json_t *o, *bytes = json_array();
	size_t i;

	engine_token(g->engine, id, &t);
	for (i = 0; i < t.len; i++)
		json_array_append_new(bytes,
		    json_integer((unsigned char)t.s[i]));
	o = json_pack("{s:o, s:o, s:f}", "token", engine_bytes_json(&t),
	    "bytes", bytes, "logprob",
	    (double)(isfinite(logprob) ? logprob : -9999));
	text_free(&t);
	return o;
}

static json_t *
with_tops(const struct gen *g, const struct gen_token *t)
{
	json_t *o = one_logprob(g, t->id, t->logprob), *top = json_array();

	for (size_t k = 0; k < t->n_top; k++)
		json_array_append_new(top, one_logprob(g, t->top[k].token,
		    t->top[k].logprob));
	json_object_set_new(o, "top_logprobs", top);
	return o;
}

static json_t *
logprobs(const struct gen *g, const struct gen_token *v, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, with_tops(g, &v[i]));
	return list;
}

static int
probs(struct choice *c, uint32_t channel, const struct gen_token *v, size_t n)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = gen_prob(c, 0, with_tops(c->gen, &v[i]));
	return rc;
}

/* probs is stolen; NULL: none. */
static json_t *
text_part(const struct text *t, json_t *probs)
{
	return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text",
	    "text", text_json(t), "annotations", "logprobs",
	    probs != NULL ? probs : json_array());
}

static json_t *
message_item(const char *id, const char *status, json_t *part)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o}", "type", "message", "id",
	    id, "role", "assistant", "status", status, "content",
	    part != NULL ? json_pack("[o]", part) : json_array());
}

static json_t *
reasoning_part(const struct text *t)
{
	return json_pack("{s:s, s:o}", "type", "reasoning_text", "text",
	    text_json(t));
}

static json_t *
reasoning_item(const char *id, const char *status, json_t *part)
{
	return json_pack("{s:s, s:s, s:s, s:[], s:o, s:n}", "type",
	    "reasoning", "id", id, "status", status, "summary", "content",
	    part != NULL ? json_pack("[o]", part) : json_array(),
	    "encrypted_content");
}

/* What a custom tool gets: the one string of its stand-in's arguments. */
static json_t *
custom_input(const struct text *args)
{
	json_error_t e;
	json_t *o = dcpd_bigjson_loadb(args->len > 0 ? args->s : "",
	    args->len, JSON_ALLOW_NUL, &e);
	json_t *v = json_object_get(o, RESPONSES_CUSTOM_INPUT);

	v = json_is_string(v) ? json_incref(v) : text_json(args);
	json_decref(o);
	return v;
}

static struct responses_tool
tool_of(const struct gen *g, const struct gen_call *call)
{
	struct responses_tool t;

	responses_find_tool(call_json(g->call), call->name.len > 0 ?
	    call->name.s : "", &t);
	return t;
}

static bool
is_custom(const struct gen *g, const struct gen_call *call)
{
	return tool_of(g, call).custom;
}

/* args: NULL while they are still to come. */
static json_t *
call_item(const struct gen *g, const char *id, const char *status,
    const struct gen_call *call, const struct text *args)
{
	static const struct text none = { 0 };
	struct responses_tool t = tool_of(g, call);
	bool custom = t.custom;
	json_t *o;

	o = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "type",
	    custom ? "custom_tool_call" : "function_call", "id", id, "status",
	    status, "call_id", call->id, "name", text_json(&call->name),
	    custom ? "input" : "arguments",
	    custom && args != NULL ? custom_input(args) :
	    text_json(args != NULL ? args : &none));
	if (t.space != NULL)
		set(o, "namespace", json_string(t.space));
	return o;
}

/* --- whole ------------------------------------------------------------- */

static json_t *
whole(struct gen *g)
{
	const struct choice *c = &g->choice[0];
	const char *status = status_of(c), *part = c->finish ==
	    DCP_FINISH_LENGTH ? "incomplete" : "completed";
	json_t *out = json_array(), *o;
	char id[80];
	uint32_t i;

	if (c->reasoning.len > 0) {
		item_id(g, "rs", json_array_size(out), id, sizeof id);
		json_array_append_new(out, reasoning_item(id,
		    c->content.len > 0 || c->n_calls > 0 ? "completed" : part,
		    reasoning_part(&c->reasoning)));
	}
	if (c->content.len > 0) {
		item_id(g, "msg", json_array_size(out), id, sizeof id);
		json_array_append_new(out, message_item(id,
		    c->n_calls > 0 ? "completed" : part,
		    text_part(&c->content, c->probs[0].len > 0 ?
		    gen_probs(c, 0) : NULL)));
	}
	for (i = 0; i < c->n_calls; i++) {
		item_id(g, "fc", json_array_size(out), id, sizeof id);
		json_array_append_new(out, call_item(g, id, i + 1 < c->n_calls ?
		    "completed" : part, &c->calls[i], &c->calls[i].args));
	}
	o = response(g, status, out);
	if (c->finish == DCP_FINISH_ABORT)
		set(o, "error", aborted());
	return o;
}

/* --- stream ------------------------------------------------------------ */

/* Type and number go before what the event has (stolen). */
static void
send(struct gen *g, const char *type, json_t *members)
{
	struct stream *s = g->arg;
	json_t *o = json_pack("{s:s, s:I}", "type", type, "sequence_number",
	    (json_int_t)s->seq++);

	if (o == NULL || json_object_update(o, members) != 0) {
		json_decref(o);
		o = NULL;
	}
	json_decref(members);
	call_sse(g->call, type, o);
}

static void
send_response(struct gen *g, const char *type, const char *status)
{
	struct stream *s = g->arg;

	send(g, type, json_pack("{s:o}", "response", response(g, status,
	    json_copy(s->output))));
}

/* An event of the open item, with more (stolen, or NULL). indexed: within its
 * one part. */
static void
send_item(struct gen *g, const char *type, bool indexed, json_t *more)
{
	struct stream *s = g->arg;
	json_t *o = json_pack("{s:s, s:I}", "item_id", s->id, "output_index",
	    (json_int_t)json_array_size(s->output));

	if (indexed)
		set(o, "content_index", json_integer(0));
	if (more != NULL)
		json_object_update(o, more);
	json_decref(more);
	send(g, type, o);
}

static void
send_whole_item(struct gen *g, const char *type, json_t *item)
{
	struct stream *s = g->arg;

	send(g, type, json_pack("{s:I, s:o}", "output_index",
	    (json_int_t)json_array_size(s->output), "item", item));
}

static void
begin(struct gen *g)
{
	send_response(g, "response.created", "in_progress");
	send_response(g, "response.in_progress", "in_progress");
}

/* A call is told of when its name is whole. */
static void
add_call(struct gen *g)
{
	struct stream *s = g->arg;

	if (s->added)
		return;
	s->added = true;
	send_whole_item(g, "response.output_item.added", call_item(g, s->id,
	    "in_progress", &s->call, NULL));
}

static void
close_reasoning(struct gen *g, const char *status)
{
	struct stream *s = g->arg;
	json_t *item = reasoning_item(s->id, status, reasoning_part(&s->text));

	send_item(g, "response.reasoning_text.done", true,
	    json_pack("{s:o}", "text", text_json(&s->text)));
	send_item(g, "response.content_part.done", true,
	    json_pack("{s:o}", "part", reasoning_part(&s->text)));
	send_whole_item(g, "response.output_item.done", json_incref(item));
	json_array_append_new(s->output, item);
}

static void
close_message(struct gen *g, const char *status)
{
	struct stream *s = g->arg;
	json_t *part = text_part(&s->text, json_incref(s->logprobs)), *item;

	send_item(g, "response.output_text.done", true,
	    json_pack("{s:o, s:o}", "text", text_json(&s->text), "logprobs",
	    s->logprobs));
	s->logprobs = NULL;
	send_item(g, "response.content_part.done", true,
	    json_pack("{s:O}", "part", part));
	item = message_item(s->id, status, part);
	send_whole_item(g, "response.output_item.done", json_incref(item));
	json_array_append_new(s->output, item);
}

static void
close_call(struct gen *g, const char *status)
{
	struct stream *s = g->arg;
	json_t *item, *input;

	add_call(g);
	if (is_custom(g, &s->call)) {
		/* JSON came; the text in it is known only now. */
		input = custom_input(&s->text);
		send_item(g, "response.custom_tool_call_input.delta", false,
		    json_pack("{s:O}", "delta", input));
		send_item(g, "response.custom_tool_call_input.done", false,
		    json_pack("{s:o}", "input", input));
	} else {
		send_item(g, "response.function_call_arguments.done", false,
		    json_pack("{s:o, s:o}", "name", text_json(&s->call.name),
		    "arguments", text_json(&s->text)));
	}
	item = call_item(g, s->id, status, &s->call, &s->text);
	send_whole_item(g, "response.output_item.done", json_incref(item));
	json_array_append_new(s->output, item);
}

static void
close_item(struct gen *g, const char *status)
{
	struct stream *s = g->arg;

	switch (s->open) {
	case ITEM_NONE:
		break;
	case ITEM_REASONING:
		close_reasoning(g, status);
		break;
	case ITEM_MESSAGE:
		close_message(g, status);
		break;
	case ITEM_CALL:
		close_call(g, status);
		break;
	}
	text_free(&s->text);
	s->text = (struct text){ 0 };
	text_free(&s->call.name);
	s->call = (struct gen_call){ 0 };
	s->added = false;
	s->open = ITEM_NONE;
}

static void
open_item(struct gen *g, enum item_kind kind)
{
	static const char *const prefix[] = { [ITEM_REASONING] = "rs",
		[ITEM_MESSAGE] = "msg", [ITEM_CALL] = "fc" };
	static const struct text none = { 0 };
	struct stream *s = g->arg;

	close_item(g, "completed");
	s->open = kind;
	item_id(g, prefix[kind], json_array_size(s->output), s->id,
	    sizeof s->id);
	if (kind == ITEM_CALL)
		return;
	if (kind == ITEM_MESSAGE)
		s->logprobs = json_array();
	send_whole_item(g, "response.output_item.added",
	    kind == ITEM_MESSAGE ? message_item(s->id, "in_progress", NULL) :
	    reasoning_item(s->id, "in_progress", NULL));
	send_item(g, "response.content_part.added", true, json_pack("{s:o}",
	    "part", kind == ITEM_MESSAGE ? text_part(&none, NULL) :
	    reasoning_part(&none)));
}

static json_t *
delta_json(const struct gen_delta *d)
{
	return json_pack("{s:s%}", "delta", d->text, d->len);
}

static void
text_delta(struct gen *g, const struct gen_delta *d)
{
	struct stream *s = g->arg;
	json_t *o, *probs;

	/* Tokens whose text is held back, or has none, open nothing. */
	if (d->len == 0 && (d->n_tokens == 0 || s->open != ITEM_MESSAGE))
		return;
	if (s->open != ITEM_MESSAGE)
		open_item(g, ITEM_MESSAGE);
	probs = logprobs(g, d->tokens, d->n_tokens);
	json_array_extend(s->logprobs, probs);
	text_add(&s->text, d->text, d->len);
	o = delta_json(d);
	json_object_set_new(o, "logprobs", probs);
	send_item(g, "response.output_text.delta", true, o);
}

static void
reasoning_delta(struct gen *g, const struct gen_delta *d)
{
	struct stream *s = g->arg;

	if (d->len == 0)
		return;
	if (s->open != ITEM_REASONING)
		open_item(g, ITEM_REASONING);
	text_add(&s->text, d->text, d->len);
	send_item(g, "response.reasoning_text.delta", true, delta_json(d));
}

static void
name_delta(struct gen *g, const struct gen_delta *d)
{
	struct stream *s = g->arg;

	if (d->call_begins) {
		open_item(g, ITEM_CALL);
		memcpy(s->call.id, d->call->id, sizeof s->call.id);
	}
	text_add(&s->call.name, d->text, d->len);
}

static void
args_delta(struct gen *g, const struct gen_delta *d)
{
	struct stream *s = g->arg;

	if (s->open != ITEM_CALL || d->len == 0)
		return;
	add_call(g);
	text_add(&s->text, d->text, d->len);
	if (!is_custom(g, &s->call))
		send_item(g, "response.function_call_arguments.delta", false,
		    delta_json(d));
}

static void
delta(struct gen *g, struct choice *c, const struct gen_delta *d)
{
	(void)c;
	switch (d->channel) {
	case DCP_CH_REASONING:
		reasoning_delta(g, d);
		break;
	case DCP_CH_CONTENT:
		text_delta(g, d);
		break;
	case DCP_CH_TOOL_NAME:
		name_delta(g, d);
		break;
	case DCP_CH_TOOL_ARGS:
		args_delta(g, d);
		break;
	default:
		break;
	}
}

/* error is stolen. */
static void
send_failed(struct gen *g, json_t *error)
{
	struct stream *s = g->arg;
	json_t *r;

	close_item(g, "incomplete");
	r = response(g, "failed", json_copy(s->output));
	set(r, "error", error);
	send(g, "response.failed", json_pack("{s:o}", "response", r));
}

static void
failed(struct gen *g, int status, const char *code, const char *message)
{
	(void)status;
	(void)code;		/* the API has a closed list of codes */
	send_failed(g, json_pack("{s:s, s:s}", "code", "server_error",
	    "message", message));
}

static void
end(struct gen *g)
{
	switch (g->choice[0].finish) {
	case DCP_FINISH_LENGTH:
		close_item(g, "incomplete");
		send_response(g, "response.incomplete", "incomplete");
		break;
	case DCP_FINISH_ABORT:
		send_failed(g, aborted());
		break;
	default:
		close_item(g, "completed");
		send_response(g, "response.completed", "completed");
		break;
	}
}

static void
stream_free(void *arg)
{
	struct stream *s = arg;

	if (s == NULL)
		return;
	json_decref(s->output);
	json_decref(s->logprobs);
	text_free(&s->text);
	text_free(&s->call.name);
	free(s);
}

static const struct gen_style style = {
	.flags = GEN_BODY,
	.id_prefix = "resp_",
	.begin = begin,
	.delta = delta,
	.end = end,
	.failed = failed,
	.probs = probs, .whole = whole,
	.free = stream_free,
};

void
responses(struct call *call)
{
	const json_t *body = call_json(call);
	struct params p = { 0 };
	struct gen_prompt prompt;
	struct stream *s;
	char *input;

	if (body == NULL || responses_read(call, body, &p, &input) < 0)
		return;
	s = calloc(1, sizeof *s);
	if (s == NULL || (s->output = json_array()) == NULL) {
		free(s);
		params_free(&p);
		free(input);
		call_no_memory(call);
		return;
	}
	prompt = (struct gen_prompt){ .data = input, .len = strlen(input) };
	gen_start(call, &style, &p, &prompt, 1, s);
	free(input);
}
