/*
 * POST /tokenize and /detokenize: the engine's own template and tokenizer, so
 * that the ids are those of a request. The names of fields and answers are
 * those of several engines at once. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/api.h"

struct job {
	struct ereq ereq;	/* the first member */
	struct call *call;	/* NULL: answered, or the client is gone */
	struct engine *engine;
	bool back;		/* detokenize */
	json_t *ids;
	struct text text;
};

static void
job_free(struct job *j)
{
	json_decref(j->ids);
	text_free(&j->text);
	free(j);
}

static void
answer(struct job *j)
{
	json_t *o;

	if (j->back)
		o = json_pack("{s:o, s:o, s:o}",
		    "prompt", text_json(&j->text),
		    "text", text_json(&j->text),
		    "content", text_json(&j->text));
	else
		o = json_pack("{s:O, s:I, s:I}", "tokens", j->ids,
		    "count", (json_int_t)json_array_size(j->ids),
		    "max_model_len", (json_int_t)engine_context(j->engine));
	call_reply_json(j->call, 200, o);
}

static int
gather(struct job *j, const struct dcp_event *ev)
{
	uint32_t i;

	for (i = 0; i < ev->n_tokens && !j->back; i++)
		if (json_array_append_new(j->ids,
		    json_integer(ev->tokens[i])) != 0)
			return -ENOMEM;
	return j->back ? text_add(&j->text, ev->text, ev->text_len) : 0;
}

static void
fail(struct job *j, int error, const char *why)
{
	const char *code;
	int status = engine_error_status(error, &code);
	struct call *call = j->call;

	j->call = NULL;
	if (call != NULL)
		call_error(call, status, NULL, code, "%s", why);
}

static void
on_event(struct ereq *r, const struct dcp_event *ev)
{
	struct job *j = (struct job *)r;

	if (ev->type == DCP_EV_ERROR)
		fail(j, ev->error, ev->text);
	else if (j->call != NULL && gather(j, ev) != 0)
		fail(j, -ENOMEM, "no memory");
	if (ev->type != DCP_EV_DONE && ev->type != DCP_EV_ERROR)
		return;
	if (j->call != NULL)
		answer(j);
	job_free(j);
}

static void
on_gone(void *arg)
{
	struct job *j = arg;
	struct call *call = j->call;

	j->call = NULL;
	engine_cancel(j->engine, &j->ereq);
	call_reply(call, 499, NULL, NULL, 0);
}

static const struct call_ops ops = { .gone = on_gone };

static void
start(struct call *call, struct dcp_request *r, bool back)
{
	struct engine *e = call_http(call)->engine;
	struct job *j = calloc(1, sizeof *j);
	const char *why = "no memory";
	int rc = -ENOMEM;

	if (j != NULL) {
		j->ereq.event = on_event;
		j->call = call;
		j->engine = e;
		j->back = back;
		j->ids = json_array();
		r->flags |= DCP_TOKENIZE;
		rc = engine_submit(e, &j->ereq, r, &why);
	}
	if (rc == 0) {
		call_watch(call, &ops, j);
		return;
	}
	if (j != NULL) {
		fail(j, rc, why);
		job_free(j);
	} else {
		call_no_memory(call);
	}
}

/* {"prompt" or "content": TEXT} or {"messages": [...], "tools": ...} */
void
tokenize(struct call *call)
{
	struct engine *e = call_http(call)->engine;
	json_t *body = call_json(call), *messages = NULL;
	struct dcp_request r = { .input = DCP_INPUT_TEXT };
	struct params p = { .options = json_object() };
	const json_t *s = NULL;
	char *text = NULL, *options = NULL;

	if (body == NULL ||
	    field_json(call, body, "messages", JSON_ARRAY, &messages) < 0 ||
	    field_text(call, body, "content", &s) < 0 ||
	    field_text(call, body, "prompt", &s) < 0 ||
	    params_template(call, body) < 0 ||
	    !engine_is_ready(e, call))
		goto out;
	if (s == NULL && messages == NULL) {
		call_error(call, 400, "prompt", "missing_field",
		    "want prompt or content, a string, or messages");
		goto out;
	}
	if (s == NULL) {
		text = json_dumps(messages, JSON_COMPACT);
		r.input = DCP_INPUT_CHAT;
		r.data = text != NULL ? text : "";
		r.len = strlen(r.data);
		(void)params_option(&p, body, "tools");
		(void)params_option(&p, body, "chat_template_kwargs");
		(void)params_option(&p, body, "reasoning_effort");
		options = json_dumps(p.options, JSON_COMPACT);
		r.options = options;
	} else {
		r.data = json_string_value(s);
		r.len = json_string_length(s);
	}
	start(call, &r, false);
out:
	params_free(&p);
	free(text);
	free(options);
}

/* {"tokens": [1, 2, 3], "skip_special_tokens": false} */
void
detokenize(struct call *call)
{
	struct engine *e = call_http(call)->engine;
	struct dcp_request r = { .input = DCP_INPUT_TOKENS };
	json_t *body = call_json(call), *list = NULL, *v;
	bool hide = false;
	uint32_t *ids;
	size_t n, i;

	if (body == NULL ||
	    field_bool(call, body, "skip_special_tokens", &hide) < 0 ||
	    field_json(call, body, "tokens", JSON_ARRAY, &list) < 0 ||
	    !engine_is_ready(e, call))
		return;
	n = json_array_size(list);
	ids = malloc(n * sizeof *ids + 1);
	for (i = 0; i < n && ids != NULL; i++) {
		v = json_array_get(list, i);
		if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		    json_integer_value(v) > UINT32_MAX)
			break;
		ids[i] = (uint32_t)json_integer_value(v);
	}
	if (list == NULL || ids == NULL || i < n) {
		free(ids);
		call_error(call, 400, "tokens", "invalid_type",
		    "tokens: want a list of token ids");
		return;
	}
	r.data = ids;
	r.len = n * sizeof *ids;
	r.flags = hide ? 0 : DCP_SPECIAL_TOKENS;
	start(call, &r, true);
	free(ids);
}
