/* Messages of another API in the form of chat; convert.h says more. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/convert.h"

int
convert_begin(struct convert *c, struct call *call)
{
	*c = (struct convert){ .call = call, .messages = json_array() };
	if (c->messages != NULL)
		return 0;
	return call_no_memory(call);
}

void
convert_free(struct convert *c)
{
	text_free(&c->answer);
	text_free(&c->reasoning);
	json_decref(c->messages);
	*c = (struct convert){ 0 };
}

const char *
convert_string(const json_t *v, const char **why)
{
	const char *s = json_string_value(v);

	*why = s == NULL ? "must be a string" : "must be without U+0000";
	return s != NULL && strlen(s) == json_string_length(v) ? s : NULL;
}

static void
append(struct convert *c, json_t *message)
{
	if (message == NULL || json_array_append_new(c->messages, message) != 0)
		c->failed = true;
}

/* The assistant's turn is over, if one is open. */
static void
close_turn(struct convert *c)
{
	if (c->turn == NULL)
		return;
	if (c->answer.len > 0 && json_object_set_new(c->turn, "content",
	    text_json(&c->answer)) != 0)
		c->failed = true;
	if (c->reasoning.len > 0 && json_object_set_new(c->turn,
	    "reasoning_content", text_json(&c->reasoning)) != 0)
		c->failed = true;
	text_free(&c->answer);
	text_free(&c->reasoning);
	c->turn = NULL;
}

void
convert_say(struct convert *c, const char *role, const struct text *t)
{
	close_turn(c);
	append(c, json_pack("{s:s, s:o}", "role", role, "content",
	    text_json(t)));
}

/* The assistant's open turn, or a new one. */
static json_t *
turn(struct convert *c)
{
	if (c->turn == NULL) {
		append(c, json_pack("{s:s, s:s}", "role", "assistant",
		    "content", ""));
		c->turn = c->failed ? NULL : json_array_get(c->messages,
		    json_array_size(c->messages) - 1);
	}
	return c->turn;
}

/*
 * A turn may come in a million parts: what they say is gathered, and becomes a
 * JSON string once.
 */
static void
extend(struct convert *c, struct text *all, const struct text *t)
{
	(void)turn(c);
	if (t->len > 0 && text_add(all, t->s, t->len) != 0)
		c->failed = true;
}

void
convert_answer(struct convert *c, const struct text *t)
{
	/* Text after calls is the next turn's: the template puts it first. */
	if (json_object_get(turn(c), "tool_calls") != NULL)
		close_turn(c);
	extend(c, &c->answer, t);
}

void
convert_reasoning(struct convert *c, const struct text *t)
{
	/* It opens a turn, unless it goes on with reasoning. */
	if (c->answer.len > 0 ||
	    json_object_get(turn(c), "tool_calls") != NULL)
		close_turn(c);
	extend(c, &c->reasoning, t);
}

void
convert_call(struct convert *c, const char *id, const char *name,
    const char *args)
{
	json_t *calls = json_object_get(turn(c), "tool_calls");
	json_t *call;

	if (calls == NULL) {
		calls = json_array();
		if (json_object_set_new(c->turn, "tool_calls", calls) != 0) {
			c->failed = true;
			return;
		}
	}
	call = json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type",
	    "function", "function", "name", name, "arguments", args);
	if (call == NULL || json_array_append_new(calls, call) != 0)
		c->failed = true;
}

void
convert_result(struct convert *c, const char *id, const struct text *t)
{
	close_turn(c);
	append(c, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id",
	    id, "content", text_json(t)));
}

struct text
convert_borrow(const json_t *s)
{
	return (struct text){
		.s = (char *)(uintptr_t)json_string_value(s),
		.len = json_string_length(s),
	};
}

static int
one_part(struct call *call, const json_t *part, const char *const *types,
    const char *where, size_t i, struct text *out)
{
	const char *type = json_string_value(json_object_get(part, "type"));
	const json_t *s = json_object_get(part, "text");

	for (; type != NULL && *types != NULL; types++) {
		if (strcmp(type, *types) != 0)
			continue;
		if (json_is_string(s))
			return text_add(out, json_string_value(s),
			    json_string_length(s));
		call_error(call, 400, where, "invalid_type",
		    "%s[%zu].text is not a string", where, i);
		return -EINVAL;
	}
	call_error(call, 400, where, "unsupported_content", "%s[%zu] has type "
	    "\"%.40s\": this model reads only text", where, i,
	    type != NULL ? type : "(none)");
	return -EINVAL;
}

int
convert_text(struct call *call, const json_t *v, const char *const *types,
    const char *where, struct text *out)
{
	size_t i;
	int rc = 0;

	if (json_is_string(v)) {
		rc = text_add(out, json_string_value(v),
		    json_string_length(v));
	} else if (json_is_array(v)) {
		for (i = 0; rc == 0 && i < json_array_size(v); i++)
			rc = one_part(call, json_array_get(v, i), types,
			    where, i, out);
	} else {
		call_error(call, 400, where, "invalid_type",
		    "%s must be a string or a list of text parts", where);
		return -EINVAL;
	}
	if (rc == -ENOMEM)
		call_no_memory(call);
	return rc;
}

json_t *
convert_tool(const char *name, const json_t *description,
    const json_t *parameters, const json_t *strict)
{
	json_t *f = json_pack("{s:s}", "name", name);

	/* The template writes them in this order. */
	if (json_is_string(description))
		json_object_set(f, "description", (json_t *)description);
	if (json_is_object(parameters))
		json_object_set(f, "parameters", (json_t *)parameters);
	if (json_is_boolean(strict))
		json_object_set(f, "strict", (json_t *)strict);
	return f == NULL ? NULL : json_pack("{s:s, s:o}", "type", "function",
	    "function", f);
}

int
convert_end(struct convert *c, struct params *p, char **input)
{
	close_turn(c);
	*input = c->failed ? NULL : json_dumps(c->messages, JSON_COMPACT);
	if (*input == NULL)
		return call_no_memory(c->call);
	p->r.input = DCP_INPUT_CHAT;
	p->r.data = *input;
	p->r.len = strlen(*input);
	return 0;
}

int
option_set(struct params *p, const char *key, json_t *v)
{
	if (p->options == NULL)
		p->options = json_object();
	return json_object_set_new(p->options, key, v) == 0 ? 0 : -ENOMEM;
}

int
template_option(struct params *p, const char *key, json_t *v)
{
	json_t *kw = json_object_get(p->options, "chat_template_kwargs");

	if (!json_is_object(kw)) {
		kw = json_object();
		if (option_set(p, "chat_template_kwargs", kw) != 0) {
			json_decref(v);
			return -ENOMEM;
		}
	}
	return json_object_set_new(kw, key, v) == 0 ? 0 : -ENOMEM;
}
