/*
 * /v1/responses, the way in: input items become chat messages, the API's tools
 * and formats those of chat.
 *
 * Nothing is stored here, so what leans on an earlier response is refused.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/convert.h"
#include "plugins/http/responses.h"

static const char *
type_of(const json_t *o)
{
	const char *s = json_string_value(json_object_get(o, "type"));

	return s != NULL ? s : "";
}

static bool
is_type(const json_t *o, const char *type)
{
	return strcmp(type_of(o), type) == 0;
}

static bool
is_given(const json_t *body, const char *key)
{
	const json_t *v = json_object_get(body, key);

	return v != NULL && !json_is_null(v) && !json_is_false(v);
}

/* What would need a memory of earlier responses, or something else that is
 * not here. */
static int
refuse(struct call *call, const json_t *body)
{
	static const struct {
		const char *key, *why;
	} no[] = {
		{ "previous_response_id", "responses are not stored here: "
		    "send the whole conversation in input" },
		{ "conversation", "conversations are not stored here: send "
		    "the whole conversation in input" },
		{ "prompt", "prompt templates are not stored here: send "
		    "instructions and input" },
		{ "background", "responses are not stored here, so none can "
		    "run in the background: leave it out, or use stream" },
	};
	const char *s = json_string_value(json_object_get(body,
	    "truncation"));
	size_t i;

	for (i = 0; i < sizeof no / sizeof *no; i++) {
		if (!is_given(body, no[i].key))
			continue;
		call_error(call, 400, no[i].key, "unsupported_parameter",
		    "%s: %s", no[i].key, no[i].why);
		return -EINVAL;
	}
	if (s != NULL && strcmp(s, "disabled") != 0) {
		call_error(call, 400, "truncation", "unsupported_parameter",
		    "truncation can only be \"disabled\": what does not fit "
		    "into the context is an error");
		return -EINVAL;
	}
	return 0;
}

/* --- input ------------------------------------------------------------- */

static const char *const text_types[] = { "input_text", "output_text", "text",
	"refusal", "summary_text", "reasoning_text", NULL };

struct item {
	struct convert *c;
	const json_t *v;
	size_t i;
};

static int
bad_item(const struct item *it, const char *key, const char *why)
{
	char where[64];

	snprintf(where, sizeof where, "input[%zu]%s%s", it->i,
	    *key != '\0' ? "." : "", key);
	call_error(it->c->call, 400, where, "invalid_value", "%s %s", where,
	    why);
	return -EINVAL;
}

static const char *
member(const struct item *it, const char *key)
{
	const char *why;
	const char *s = convert_string(json_object_get(it->v, key), &why);

	if (s == NULL)
		bad_item(it, key, why);
	return s;
}

/* Text under a key of the item; NULL is text too, of no length. */
static int
item_text(const struct item *it, const char *key, struct text *t)
{
	char where[64];
	const json_t *v = json_object_get(it->v, key);

	snprintf(where, sizeof where, "input[%zu].%s", it->i, key);
	if (v == NULL || json_is_null(v))
		return 0;
	return convert_text(it->c->call, v, text_types, where, t);
}

static int
take_message(const struct item *it)
{
	const char *role = member(it, "role");
	struct text t = { 0 };
	int rc;

	if (role == NULL)
		return -EINVAL;
	if (strcmp(role, "user") != 0 && strcmp(role, "system") != 0 &&
	    strcmp(role, "developer") != 0 && strcmp(role, "assistant") != 0)
		return bad_item(it, "role", "must be user, assistant, system "
		    "or developer");
	rc = item_text(it, "content", &t);
	if (rc == 0 && strcmp(role, "assistant") == 0)
		convert_answer(it->c, &t);
	else if (rc == 0)
		convert_say(it->c, role, &t);
	text_free(&t);
	return rc;
}

/* The text itself where there is one, else its summary. */
static int
take_reasoning(const struct item *it)
{
	struct text t = { 0 };
	int rc = item_text(it, "content", &t);

	if (rc == 0 && t.len == 0)
		rc = item_text(it, "summary", &t);
	if (rc == 0 && t.len > 0)
		convert_reasoning(it->c, &t);
	text_free(&t);
	return rc;
}

static int
take_call(const struct item *it)
{
	const char *id = member(it, "call_id"), *name, *args;

	if (id == NULL || (name = member(it, "name")) == NULL ||
	    (args = member(it, "arguments")) == NULL)
		return -EINVAL;
	convert_call(it->c, id, name, args);
	return 0;
}

static int
take_custom_call(const struct item *it)
{
	const char *id = member(it, "call_id"), *name, *input;
	json_t *o;
	char *args;

	if (id == NULL || (name = member(it, "name")) == NULL ||
	    (input = member(it, "input")) == NULL)
		return -EINVAL;
	o = json_pack("{s:s}", RESPONSES_CUSTOM_INPUT, input);
	args = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	if (args == NULL)
		return call_no_memory(it->c->call);
	convert_call(it->c, id, name, args);
	free(args);
	return 0;
}

static int
take_output(const struct item *it)
{
	const char *id = member(it, "call_id");
	struct text t = { 0 };
	int rc;

	if (id == NULL)
		return -EINVAL;
	rc = item_text(it, "output", &t);
	if (rc == 0)
		convert_result(it->c, id, &t);
	text_free(&t);
	return rc;
}

static int
take_reference(const struct item *it)
{
	return bad_item(it, "", "refers to a stored item, but nothing is "
	    "stored here: send the item itself");
}

static int
take_item(const struct item *it)
{
	static const struct {
		const char *type;
		int (*take)(const struct item *);
	} kinds[] = {
		{ "", take_message },	/* an "easy" message has no type */
		{ "message", take_message },
		{ "reasoning", take_reasoning },
		{ "function_call", take_call },
		{ "function_call_output", take_output },
		{ "custom_tool_call", take_custom_call },
		{ "custom_tool_call_output", take_output },
		{ "item_reference", take_reference },
	};
	const char *type = type_of(it->v);
	char why[160];
	size_t i;

	if (!json_is_object(it->v))
		return bad_item(it, "", "is not an object");
	for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(type, kinds[i].type) == 0)
			return kinds[i].take(it);
	snprintf(why, sizeof why, "is \"%.40s\", which is not supported: "
	    "message, reasoning, function_call, custom_tool_call and their "
	    "outputs are", type);
	return bad_item(it, "type", why);
}

static int
say(struct convert *c, const char *role, const json_t *s)
{
	struct text t = convert_borrow(s);

	convert_say(c, role, &t);
	return 0;
}

static int
take_input(struct convert *c, const json_t *body)
{
	const json_t *input = json_object_get(body, "input");
	struct item it = { .c = c };
	const char *s = NULL;
	int rc;

	if (field_string(c->call, body, "instructions", &s) < 0)
		return -EINVAL;
	if (s != NULL && *s != '\0')
		say(c, "system", json_object_get(body, "instructions"));
	if (json_is_string(input))
		return say(c, "user", input);
	if (!json_is_array(input) || json_array_size(input) == 0) {
		call_error(c->call, 400, "input", "invalid_type", "input must "
		    "be a string, or a list of at least one item");
		return -EINVAL;
	}
	for (; it.i < json_array_size(input); it.i++) {
		it.v = json_array_get(input, it.i);
		rc = take_item(&it);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* --- text.format, reasoning -------------------------------------------- */

static int
take_format(struct call *call, const json_t *body, struct params *p)
{
	json_t *text = NULL, *format, *to, *inner;

	if (field_json(call, body, "text", JSON_OBJECT, &text) < 0)
		return -EINVAL;
	format = json_object_get(text, "format");
	if (format == NULL || json_is_null(format) || is_type(format, "text"))
		return 0;
	if (!is_type(format, "json_schema")) {
		/* json_object; others are the engine's to refuse. */
		to = json_deep_copy(format);
	} else {
		inner = json_copy(format);
		json_object_del(inner, "type");
		to = json_pack("{s:s, s:o}", "type", "json_schema",
		    "json_schema", inner);
	}
	return option_set(p, "response_format", to) == 0 ? 0 :
	    call_no_memory(call);
}

static int
take_reasoning_options(struct call *call, const json_t *body, struct params *p)
{
	json_t *r = NULL, *kw = NULL;
	const char *effort = NULL;

	if (field_json(call, body, "reasoning", JSON_OBJECT, &r) < 0 ||
	    field_json(call, body, "chat_template_kwargs", JSON_OBJECT,
	    &kw) < 0 || params_template(call, body) < 0 ||
	    (r != NULL && field_string(call, r, "effort", &effort) < 0))
		return -EINVAL;
	if (kw != NULL && option_set(p, "chat_template_kwargs",
	    json_deep_copy(kw)) != 0)
		return call_no_memory(call);
	if (effort != NULL && option_set(p, "reasoning_effort",
	    json_string(effort)) != 0)
		return call_no_memory(call);
	return 0;
}

bool
responses_wants_logprobs(const json_t *body)
{
	const json_t *list = json_object_get(body, "include");
	const char *s;
	size_t i;

	for (i = 0; i < json_array_size(list); i++) {
		s = json_string_value(json_array_get(list, i));
		if (s != NULL && strcmp(s, "message.output_text.logprobs") == 0)
			return true;
	}
	return false;
}

static int
take_logprobs(struct call *call, const json_t *body, struct params *p)
{
	int64_t top = 0;

	if (field_int(call, body, "top_logprobs", 0, 20, &top) < 0)
		return -EINVAL;
	if (responses_wants_logprobs(body)) {
		p->r.flags |= DCP_LOGPROBS;
		p->r.top_logprobs = (uint32_t)top;
	}
	return 0;
}

int
responses_read(struct call *call, const json_t *body, struct params *p,
    char **input)
{
	static const char *const limits[] = { "max_output_tokens", NULL };
	struct convert c;
	int rc;

	if (params_parse(call, body, limits, p) < 0)
		return -EINVAL;
	p->n = 1;		/* the API has one answer */
	p->r.flags |= DCP_FIT;	/* max_output_tokens is an upper bound */
	if (convert_begin(&c, call) < 0) {
		params_free(p);
		return -ENOMEM;
	}
	rc = refuse(call, body);
	if (rc == 0)
		rc = take_input(&c, body);
	if (rc == 0)
		rc = responses_take_tools(call, body, p);
	if (rc == 0)
		rc = take_format(call, body, p);
	if (rc == 0)
		rc = take_reasoning_options(call, body, p);
	if (rc == 0)
		rc = take_logprobs(call, body, p);
	if (rc == 0)
		rc = convert_end(&c, p, input);
	convert_free(&c);
	if (rc < 0)
		params_free(p);
	return rc;
}
