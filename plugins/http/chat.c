/*
 * POST /v1/chat/completions, as OpenAI has it. Reasoning goes out under both
 * names that clients look for. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/api.h"

#define TOP_LOGPROBS_MAX 20


/* --- logprobs ---------------------------------------------------------- */

/* JSON knows no infinity. */
static json_t *
logprob_json(float x)
{
	return json_real(isfinite(x) ? (double)x : -9999.0);
}

static json_t *
token_json(const struct engine *e, uint32_t id, float logprob)
{
	json_t *o = json_object(), *bytes = json_array();
	struct text t = { 0 };
	size_t i;

	(void)engine_token(e, id, &t);
	for (i = 0; i < t.len; i++)
		json_array_append_new(bytes,
		    json_integer((unsigned char)t.s[i]));
	json_object_set_new(o, "token", engine_bytes_json(&t));
	text_free(&t);
	json_object_set_new(o, "logprob", logprob_json(logprob));
	json_object_set_new(o, "bytes", bytes);
	return o;
}

static json_t *
with_tops(const struct gen *g, const struct gen_token *t)
{
	json_t *o = token_json(g->engine, t->id, t->logprob);
	json_t *top = json_array();

	for (uint32_t k = 0; k < t->n_top; k++)
		json_array_append_new(top, token_json(g->engine,
		    t->top[k].token, t->top[k].logprob));
	json_object_set_new(o, "top_logprobs", top);
	return o;
}

static json_t *
logprobs_json(const struct gen *g, const struct gen_token *v, size_t n)
{
	json_t *list;

	if (!(g->p.r.flags & DCP_LOGPROBS))
		return json_null();
	list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, with_tops(g, &v[i]));
	return json_pack("{s:o}", "content", list);
}

/* --- the whole --------------------------------------------------------- */

static json_t *
calls_json(const struct choice *c)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < c->n_calls; i++)
		json_array_append_new(a, json_pack("{s:s, s:s, s:{s:o, s:o}}",
		    "id", c->calls[i].id, "type", "function", "function",
		    "name", text_json(&c->calls[i].name),
		    "arguments", text_json(&c->calls[i].args)));
	return a;
}

static json_t *
message_json(const struct choice *c)
{
	bool silent = c->content.len == 0 &&
	    (c->n_calls > 0 || c->reasoning.len > 0);
	json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content",
	    silent ? json_null() : text_json(&c->content));

	if (c->reasoning.len > 0) {
		json_object_set_new(m, "reasoning_content",
		    text_json(&c->reasoning));
		json_object_set_new(m, "reasoning", text_json(&c->reasoning));
	}
	if (c->n_calls > 0)
		json_object_set_new(m, "tool_calls", calls_json(c));
	return m;
}

static int
chat_probs(struct choice *c, uint32_t channel, const struct gen_token *v,
    size_t n)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = gen_prob(c, 0, with_tops(c->gen, &v[i]));
	return rc;
}

static json_t *
chat_whole(struct gen *g)
{
	struct dcp_usage u = gen_usage(g);
	json_t *choices = json_array();

	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct choice *c = &g->choice[i];

		json_array_append_new(choices, json_pack(
		    "{s:I, s:o, s:o, s:s}", "index", (json_int_t)i,
		    "message", message_json(c), "logprobs",
		    g->p.r.flags & DCP_LOGPROBS ? json_pack("{s:o}", "content",
		    gen_probs(c, 0)) : json_null(),
		    "finish_reason", finish_name(c->finish)));
	}
	return json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", g->id,
	    "object", "chat.completion", "created", (json_int_t)g->created,
	    "model", g->model, "choices", choices, "usage", usage_json(&u));
}

/* --- in pieces --------------------------------------------------------- */

static void
chunk(struct gen *g, json_t *choices, bool with_usage)
{
	struct dcp_usage u;
	json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", g->id,
	    "object", "chat.completion.chunk",
	    "created", (json_int_t)g->created, "model", g->model,
	    "choices", choices);

	if (with_usage) {
		u = gen_usage(g);
		json_object_set_new(o, "usage", usage_json(&u));
	}
	call_sse(g->call, NULL, o);
}

static void
piece(struct gen *g, const struct choice *c, json_t *delta, json_t *logprobs,
    const char *finish)
{
	json_t *one = json_pack("[{s:I, s:o, s:o, s:s?}]",
	    "index", (json_int_t)c->index, "delta", delta,
	    "logprobs", logprobs, "finish_reason", finish);

	chunk(g, one, g->p.continuous_usage);
}

static void
chat_begin(struct gen *g)
{
	for (uint32_t i = 0; i < g->n_choices; i++)
		piece(g, &g->choice[i], json_pack("{s:s, s:s}",
		    "role", "assistant", "content", ""), json_null(), NULL);
}

static json_t *
call_delta(const struct gen_delta *d)
{
	json_t *f;

	if (d->channel == DCP_CH_TOOL_ARGS)
		return json_pack("[{s:I, s:{s:s%}}]",
		    "index", (json_int_t)d->call_index,
		    "function", "arguments", d->text, d->len);
	f = json_pack("{s:s%, s:s}", "name", d->text, d->len,
	    "arguments", "");
	if (!d->call_begins)	/* the rest of a name: never, so far */
		return json_pack("[{s:I, s:o}]", "index",
		    (json_int_t)d->call_index, "function", f);
	return json_pack("[{s:I, s:s, s:s, s:o}]",
	    "index", (json_int_t)d->call_index, "id", d->call->id,
	    "type", "function", "function", f);
}

static void
chat_delta(struct gen *g, struct choice *c, const struct gen_delta *d)
{
	json_t *o;

	switch (d->channel) {
	case DCP_CH_CONTENT:
		o = json_pack("{s:s%}", "content", d->text, d->len);
		break;
	case DCP_CH_REASONING:
		o = json_pack("{s:s%, s:s%}",
		    "reasoning_content", d->text, d->len,
		    "reasoning", d->text, d->len);
		break;
	case DCP_CH_TOOL_NAME:
	case DCP_CH_TOOL_ARGS:
		o = json_pack("{s:o}", "tool_calls", call_delta(d));
		break;
	default:
		return;
	}
	piece(g, c, o, logprobs_json(g, d->tokens, d->n_tokens), NULL);
}

static void
chat_choice_end(struct gen *g, struct choice *c)
{
	piece(g, c, json_object(), json_null(), finish_name(c->finish));
}

static void
chat_end(struct gen *g)
{
	if (g->p.include_usage)
		chunk(g, json_array(), true);
	call_sse_text(g->call, "[DONE]");
}

static const struct gen_style chat_style = {
	.flags = GEN_FIELDS,
	.id_prefix = "chatcmpl-", .begin = chat_begin, .delta = chat_delta,
	.choice_end = chat_choice_end, .end = chat_end,
	.probs = chat_probs, .whole = chat_whole,
};

/* --- the request ------------------------------------------------------- */

static int
chat_logprobs(struct call *call, const json_t *body, struct params *p)
{
	bool want = false;
	int64_t top = 0;

	if (field_bool(call, body, "logprobs", &want) < 0 ||
	    field_int(call, body, "top_logprobs", 0, TOP_LOGPROBS_MAX,
	    &top) < 0)
		return -EINVAL;
	if (top > 0 && !want) {
		call_error(call, 400, "top_logprobs", "invalid_value",
		    "top_logprobs needs logprobs: true");
		return -EINVAL;
	}
	if (want)
		p->r.flags |= DCP_LOGPROBS;
	p->r.top_logprobs = (uint32_t)top;
	return 0;
}

void
chat_completions(struct call *call)
{
	static const char *const max_tokens[] = {
		"max_completion_tokens", "max_tokens", NULL,
	};
	static const char *const options[] = {
		"tools", "tool_choice", "parallel_tool_calls",
		"thinking", "chat_template_kwargs",
		"reasoning_effort", NULL,
	};
	json_t *body = call_json(call), *messages = NULL;
	struct params p;
	char *text;
	int rc = 0;

	if (body == NULL ||
	    field_json(call, body, "messages", JSON_ARRAY, &messages) < 0)
		return;
	if (messages == NULL || json_array_size(messages) == 0) {
		call_error(call, 400, "messages", "missing_field",
		    "messages: want a list of at least one message");
		return;
	}
	if (params_parse(call, body, max_tokens, &p) != 0)
		return;
	if (chat_logprobs(call, body, &p) != 0 ||
	    params_format(call, body, &p) != 0) {
		params_free(&p);
		return;
	}
	for (const char *const *o = options; *o != NULL && rc == 0; o++)
		rc = params_option(&p, body, *o);
	text = json_dumps(messages, JSON_COMPACT);
	if (rc != 0 || text == NULL) {
		free(text);
		params_free(&p);
		call_no_memory(call);
		return;
	}
	p.r.input = DCP_INPUT_CHAT;
	p.r.data = text;
	p.r.len = strlen(text);
	gen_start(call, &chat_style, &p, NULL, 1, NULL);
	free(text);
}
