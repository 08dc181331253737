/*
 * /v1/messages and /v1/messages/count_tokens: the answer as content blocks,
 * whole or as events. In a stream a block is opened, grows and is closed before
 * the next begins. The event thread's.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/base/bigjson.h"
#include "plugins/http/api.h"
#include "plugins/http/messages.h"

enum block_kind {
	BLOCK_NONE,
	BLOCK_THINKING,
	BLOCK_TEXT,
	BLOCK_TOOL,
};

/* gen.arg: a stream's state. */
struct stream {
	uint32_t index;			/* of the open or the next block */
	enum block_kind open;
	struct gen_call call;		/* the open one: id and name */
	bool started;			/* a call: its name is out */
};

json_t *
messages_error(int status, const char *type, const char *param,
    const char *code, const char *message)
{
	(void)param;
	(void)code;
	if (status == 413)
		type = "request_too_large";
	else if (status == 429)
		type = "rate_limit_error";
	else if (status >= 500 && status != 503)
		type = "api_error";
	return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error",
	    "type", type, "message", message);
}

/* --- objects ----------------------------------------------------------- */

static json_t *
usage(const struct dcp_usage *u)
{
	/* input_tokens are those that no cache had. */
	return json_pack("{s:I, s:I, s:i, s:I}",
	    "input_tokens", (json_int_t)u->prompt_tokens - u->cached_tokens,
	    "cache_read_input_tokens", (json_int_t)u->cached_tokens,
	    "cache_creation_input_tokens", 0,
	    "output_tokens", (json_int_t)u->completion_tokens);
}

/* Why it ended. An answer that was aborted is cut short, too. */
static const char *
stop_reason(const struct gen *g)
{
	const struct choice *c = &g->choice[0];
	uint32_t context = engine_context(g->engine);

	switch (c->finish) {
	case DCP_FINISH_TOOL_CALLS:
		return "tool_use";
	case DCP_FINISH_LENGTH:
		if (context > 0 && c->usage.prompt_tokens +
		    c->usage.completion_tokens >= context)
			return "model_context_window_exceeded";
		return "max_tokens";
	case DCP_FINISH_ABORT:
		return "max_tokens";
	default:
		return c->stop > 0 ? "stop_sequence" : "end_turn";
	}
}

/* Which of the request's, or null. */
static json_t *
stop_sequence(const struct gen *g)
{
	const json_t *list = json_object_get(call_json(g->call),
	    "stop_sequences");
	uint32_t which = g->choice[0].stop;
	json_t *s = which > 0 ? json_array_get(list, which - 1) : NULL;

	return s != NULL ? json_incref(s) : json_null();
}

/* Ids of calls, with this API's prefix. */
static void
tool_id(const struct gen_call *call, char *to, size_t size)
{
	const char *tail = strchr(call->id, '_');

	snprintf(to, size, "toolu_%s", tail != NULL ? tail + 1 : call->id);
}

static json_t *
tool_block(const struct gen_call *call, json_t *input)
{
	char id[48];

	tool_id(call, id, sizeof id);
	return json_pack("{s:s, s:s, s:o, s:o}", "type", "tool_use", "id", id,
	    "name", text_json(&call->name), "input", input);
}

static json_t *
thinking_block(const struct text *t)
{
	/* Nothing is signed here; nobody checks it when it comes back. */
	return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
	    text_json(t), "signature", "");
}

static json_t *
text_block(const struct text *t)
{
	return json_pack("{s:s, s:o}", "type", "text", "text", text_json(t));
}

static json_t *
message(const struct gen *g, json_t *content)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o, s:n, s:n, s:o}", "id",
	    g->id, "type", "message", "role", "assistant", "model", g->model,
	    "content", content, "stop_reason", "stop_sequence", "usage",
	    usage(&g->choice[0].usage));
}

static void
set_end(const struct gen *g, json_t *o)
{
	json_object_set_new(o, "stop_reason", json_string(stop_reason(g)));
	json_object_set_new(o, "stop_sequence", stop_sequence(g));
}

/* --- whole ------------------------------------------------------------- */

static json_t *
whole(struct gen *g)
{
	const struct choice *c = &g->choice[0];
	json_t *content = json_array(), *input, *o;
	json_error_t e;
	uint32_t i;

	if (c->reasoning.len > 0)
		json_array_append_new(content, thinking_block(&c->reasoning));
	if (c->content.len > 0)
		json_array_append_new(content, text_block(&c->content));
	for (i = 0; i < c->n_calls; i++) {
		input = dcpd_bigjson_loadb(c->calls[i].args.len > 0 ?
		    c->calls[i].args.s : "", c->calls[i].args.len,
		    JSON_ALLOW_NUL, &e);
		/* Cut in the middle: half a call must not be run. */
		if (input != NULL)
			json_array_append_new(content, tool_block(&c->calls[i],
			    input));
	}
	o = message(g, content);
	set_end(g, o);
	return o;
}

/* --- stream ------------------------------------------------------------ */

/* The event's members are stolen. */
static void
send(struct gen *g, const char *type, json_t *members)
{
	json_t *o = json_pack("{s:s}", "type", type);

	if (o == NULL || json_object_update(o, members) != 0) {
		json_decref(o);
		o = NULL;
	}
	json_decref(members);
	call_sse(g->call, type, o);
}

static void
begin(struct gen *g)
{
	send(g, "message_start", json_pack("{s:o}", "message",
	    message(g, json_array())));
}

static void
start(struct gen *g, json_t *block)
{
	struct stream *s = g->arg;

	send(g, "content_block_start", json_pack("{s:I, s:o}", "index",
	    (json_int_t)s->index, "content_block", block));
}

static void
grow(struct gen *g, const char *type, const char *key, const char *text,
    size_t len)
{
	struct stream *s = g->arg;

	send(g, "content_block_delta", json_pack("{s:I, s:{s:s, s:s%}}",
	    "index", (json_int_t)s->index, "delta", "type", type, key, text,
	    len));
}

/* A call is told of when its name is whole. */
static void
start_call(struct gen *g)
{
	struct stream *s = g->arg;

	if (s->started)
		return;
	s->started = true;
	start(g, tool_block(&s->call, json_object()));
}

static void
close_block(struct gen *g)
{
	struct stream *s = g->arg;

	if (s->open == BLOCK_NONE)
		return;
	if (s->open == BLOCK_TOOL)
		start_call(g);
	send(g, "content_block_stop", json_pack("{s:I}", "index",
	    (json_int_t)s->index));
	text_free(&s->call.name);
	s->call = (struct gen_call){ 0 };
	s->started = false;
	s->open = BLOCK_NONE;
	s->index++;
}

static void
open_block(struct gen *g, enum block_kind kind)
{
	static const struct text none = { 0 };
	struct stream *s = g->arg;

	if (s->open == kind && kind != BLOCK_TOOL)
		return;
	close_block(g);
	s->open = kind;
	if (kind == BLOCK_THINKING)
		start(g, thinking_block(&none));
	else if (kind == BLOCK_TEXT)
		start(g, text_block(&none));
}

static void
delta(struct gen *g, struct choice *c, const struct gen_delta *d)
{
	struct stream *s = g->arg;

	(void)c;
	if (d->channel == DCP_CH_TOOL_NAME) {
		if (d->call_begins) {
			open_block(g, BLOCK_TOOL);
			memcpy(s->call.id, d->call->id, sizeof s->call.id);
		}
		text_add(&s->call.name, d->text, d->len);
		return;
	}
	if (d->len == 0)
		return;
	switch (d->channel) {
	case DCP_CH_REASONING:
		open_block(g, BLOCK_THINKING);
		grow(g, "thinking_delta", "thinking", d->text, d->len);
		break;
	case DCP_CH_CONTENT:
		open_block(g, BLOCK_TEXT);
		grow(g, "text_delta", "text", d->text, d->len);
		break;
	case DCP_CH_TOOL_ARGS:
		if (s->open != BLOCK_TOOL)
			return;
		start_call(g);
		grow(g, "input_json_delta", "partial_json", d->text, d->len);
		break;
	default:
		break;
	}
}

static void
end(struct gen *g)
{
	json_t *how = json_pack("{s:n, s:n}", "stop_reason", "stop_sequence");

	close_block(g);
	set_end(g, how);
	send(g, "message_delta", json_pack("{s:o, s:o}", "delta", how,
	    "usage", usage(&g->choice[0].usage)));
	send(g, "message_stop", json_object());
}

static void
failed(struct gen *g, int status, const char *code, const char *text)
{
	call_sse(g->call, "error", call_error_json(g->call, status, NULL, code,
	    text));
}

static void
stream_free(void *arg)
{
	struct stream *s = arg;

	if (s != NULL)
		text_free(&s->call.name);
	free(s);
}

static const struct gen_style style = {
	.flags = GEN_BODY,
	.id_prefix = "msg_",
	.begin = begin,
	.delta = delta,
	.end = end,
	.failed = failed,
	.whole = whole,
	.free = stream_free,
};

/* --- handlers ---------------------------------------------------------- */

static void
run(struct call *call, const struct gen_style *how, bool counts, void *arg)
{
	const json_t *body = call_json(call);
	struct params p = { 0 };
	struct gen_prompt prompt;
	char *input;

	if (body == NULL || messages_read(call, body, counts, &p,
	    &input) < 0) {
		if (how->free != NULL)
			how->free(arg);
		return;
	}
	if (counts) {
		p.r.flags |= DCP_TOKENIZE;
		p.stream = false;
	}
	prompt = (struct gen_prompt){ .data = input, .len = strlen(input) };
	gen_start(call, how, &p, &prompt, 1, arg);
	free(input);
}

void
messages(struct call *call)
{
	struct stream *s = calloc(1, sizeof *s);

	if (s == NULL)
		call_no_memory(call);
	else
		run(call, &style, false, s);
}

static json_t *
count(struct gen *g)
{
	return json_pack("{s:I}", "input_tokens",
	    (json_int_t)g->choice[0].usage.prompt_tokens);
}

static const struct gen_style count_style = {
	.id_prefix = "count_",
	.whole = count,
};

void
messages_count_tokens(struct call *call)
{
	run(call, &count_style, true, NULL);
}
