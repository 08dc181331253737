/*
 * /v1/messages, the way in: content blocks become chat messages.
 *
 * One message of the API may be several of chat: the results of tools stand in
 * the user's, beside text. Thinking is on when it is asked for, as clients of
 * this API expect: an answer to one who did not ask begins with text.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/convert.h"
#include "plugins/http/messages.h"

static const char *const text_types[] = { "text", NULL };

/* A block of content, and what names it in an error. */
struct block {
	struct convert *c;
	const json_t *v;
	char where[64];			/* "messages[1].content[2]" */
	struct text *said;		/* user: text not yet in a message */
};

static int
bad(const struct block *b, const char *key, const char *why)
{
	call_error(b->c->call, 400, b->where, "invalid_value", "%s%s%s %s",
	    b->where, *key != '\0' ? "." : "", key, why);
	return -EINVAL;
}

static const char *
member(const struct block *b, const char *key)
{
	const char *why;
	const char *s = convert_string(json_object_get(b->v, key), &why);

	if (s == NULL)
		bad(b, key, why);
	return s;
}

static int
bad_type(const struct block *b, const char *role)
{
	const char *type = json_string_value(json_object_get(b->v, "type"));
	char why[128];

	snprintf(why, sizeof why, "is \"%.40s\", which is not supported in a "
	    "message of the %s", type != NULL ? type : "(none)", role);
	return bad(b, "type", why);
}

/* --- the user's blocks ------------------------------------------------- */

static void
flush_said(const struct block *b)
{
	if (b->said->len == 0)
		return;
	convert_say(b->c, "user", b->said);
	text_free(b->said);
	*b->said = (struct text){ 0 };
}

static int
tool_result(const struct block *b)
{
	const char *id = member(b, "tool_use_id");
	const json_t *content = json_object_get(b->v, "content");
	struct text t = { 0 };
	char where[96];
	int rc = 0;

	if (id == NULL)
		return -EINVAL;
	snprintf(where, sizeof where, "%s.content", b->where);
	if (content != NULL && !json_is_null(content))
		rc = convert_text(b->c->call, content, text_types, where, &t);
	if (rc == 0) {
		flush_said(b);
		convert_result(b->c, id, &t);
	}
	text_free(&t);
	return rc;
}

/* A document of plain text is text; other sources would have to be read. */
static int
document(const struct block *b)
{
	const json_t *source = json_object_get(b->v, "source");
	const char *type = json_string_value(json_object_get(source, "type"));
	const json_t *data = json_object_get(source, "data");

	if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(data))
		return bad(b, "source", "must be of type \"text\": this model "
		    "reads only text");
	return text_add(b->said, json_string_value(data),
	    json_string_length(data)) == 0 ? 0 : call_no_memory(b->c->call);
}

static int
user_block(const struct block *b)
{
	const char *type = json_string_value(json_object_get(b->v, "type"));
	struct text t;

	if (type != NULL && strcmp(type, "text") == 0) {
		if (member(b, "text") == NULL)
			return -EINVAL;
		t = convert_borrow(json_object_get(b->v, "text"));
		return text_add(b->said, t.s, t.len) == 0 ? 0 :
		    call_no_memory(b->c->call);
	}
	if (type != NULL && strcmp(type, "tool_result") == 0)
		return tool_result(b);
	if (type != NULL && strcmp(type, "document") == 0)
		return document(b);
	if (type != NULL && strcmp(type, "image") == 0)
		return bad(b, "", "is an image: this model reads only text");
	return bad_type(b, "user");
}

/* --- the assistant's --------------------------------------------------- */

static int
tool_use(const struct block *b)
{
	const char *id = member(b, "id"), *name;
	json_t *input = json_object_get(b->v, "input");
	char *args;

	if (id == NULL || (name = member(b, "name")) == NULL)
		return -EINVAL;
	if (!json_is_object(input))
		return bad(b, "input", "must be an object");
	args = json_dumps(input, JSON_COMPACT);
	if (args == NULL)
		return call_no_memory(b->c->call);
	convert_call(b->c, id, name, args);
	free(args);
	return 0;
}

static int
assistant_block(const struct block *b)
{
	const char *type = json_string_value(json_object_get(b->v, "type"));
	struct text t;

	if (type == NULL)
		return bad_type(b, "assistant");
	if (strcmp(type, "tool_use") == 0)
		return tool_use(b);
	if (strcmp(type, "redacted_thinking") == 0)
		return 0;		/* nobody here can read it */
	if (strcmp(type, "text") != 0 && strcmp(type, "thinking") != 0)
		return bad_type(b, "assistant");
	if (member(b, type) == NULL)	/* the key is named as the type */
		return -EINVAL;
	t = convert_borrow(json_object_get(b->v, type));
	if (strcmp(type, "text") == 0)
		convert_answer(b->c, &t);
	else if (t.len > 0)
		convert_reasoning(b->c, &t);
	return 0;
}

/* --- messages ---------------------------------------------------------- */

static int
plain_message(struct convert *c, const char *role, const json_t *s)
{
	struct text t = convert_borrow(s);

	if (strcmp(role, "assistant") == 0)
		convert_answer(c, &t);
	else
		convert_say(c, role, &t);
	return 0;
}

static int
take_blocks(struct convert *c, const json_t *list, const char *role, size_t i)
{
	struct text said = { 0 };
	struct block b = { .c = c, .said = &said };
	size_t k, sent = json_array_size(c->messages);
	int rc = 0;

	for (k = 0; rc == 0 && k < json_array_size(list); k++) {
		b.v = json_array_get(list, k);
		snprintf(b.where, sizeof b.where, "messages[%zu].content[%zu]",
		    i, k);
		rc = strcmp(role, "assistant") == 0 ? assistant_block(&b) :
		    user_block(&b);
	}
	if (rc == 0 && said.len == 0 && strcmp(role, "user") == 0 &&
	    json_array_size(c->messages) == sent)
		convert_say(c, role, &said);	/* an empty message is one */
	else if (rc == 0)
		flush_said(&b);
	text_free(&said);
	return rc;
}

static int
take_system(struct convert *c, const json_t *v, const char *where)
{
	struct text t = { 0 };
	int rc;

	if (v == NULL || json_is_null(v))
		return 0;
	rc = convert_text(c->call, v, text_types, where, &t);
	if (rc == 0 && t.len > 0)
		convert_say(c, "system", &t);
	text_free(&t);
	return rc;
}

static int
take_message(struct convert *c, const json_t *m, size_t i)
{
	const json_t *content = json_object_get(m, "content");
	struct block b = { .c = c, .v = m };
	const char *role;

	snprintf(b.where, sizeof b.where, "messages[%zu]", i);
	role = json_is_string(json_object_get(m, "role")) ? member(&b, "role") :
	    "";
	if (role == NULL)
		return -EINVAL;
	if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
	    strcmp(role, "system") != 0)
		return bad(&b, "role", "must be user, assistant or system");
	if (strcmp(role, "system") == 0) {
		strncat(b.where, ".content", sizeof b.where - 1 -
		    strlen(b.where));
		return take_system(c, content, b.where);
	}
	if (json_is_string(content))
		return plain_message(c, role, content);
	if (!json_is_array(content))
		return bad(&b, "content", "must be a string or a list of "
		    "blocks");
	return take_blocks(c, content, role, i);
}

static int
take_messages(struct convert *c, const json_t *body)
{
	const json_t *list = json_object_get(body, "messages");
	const char *role;
	size_t i, n = json_array_size(list);
	int rc;

	if (n == 0) {
		call_error(c->call, 400, "messages", "invalid_value",
		    "messages must be a list with at least one message");
		return -EINVAL;
	}
	rc = take_system(c, json_object_get(body, "system"), "system");
	for (i = 0; rc == 0 && i < n; i++)
		rc = take_message(c, json_array_get(list, i), i);
	if (rc < 0)
		return rc;
	role = json_string_value(json_object_get(json_array_get(list, n - 1),
	    "role"));
	if (strcmp(role, "assistant") == 0) {
		call_error(c->call, 400, "messages", "unsupported_value",
		    "the last message is the assistant's: the beginning of an "
		    "answer cannot be given here");
		return -EINVAL;
	}
	return 0;
}

/* --- tools, thinking, format ------------------------------------------- */

static int
take_tools(struct call *call, const json_t *body, struct params *p)
{
	json_t *list = NULL, *out, *f;
	const json_t *t;
	const char *type, *name;
	size_t i;

	if (field_json(call, body, "tools", JSON_ARRAY, &list) < 0)
		return -EINVAL;
	if (json_array_size(list) == 0)
		return 0;
	out = json_array();
	for (i = 0; i < json_array_size(list); i++) {
		t = json_array_get(list, i);
		type = json_string_value(json_object_get(t, "type"));
		name = json_string_value(json_object_get(t, "name"));
		if (name == NULL || (type != NULL &&
		    strcmp(type, "custom") != 0)) {
			json_decref(out);
			call_error(call, 400, "tools", "unsupported_value",
			    type == NULL ? "tools[%zu].name must be a string" :
			    "tools[%zu].type is \"%.60s\": only tools of the "
			    "client's own (\"custom\"), with a name, can be "
			    "given", i, type);
			return -EINVAL;
		}
		f = convert_tool(name, json_object_get(t, "description"),
		    json_object_get(t, "input_schema"),
		    json_object_get(t, "strict"));
		if (json_array_append_new(out, f) != 0) {
			json_decref(out);
			return call_no_memory(call);
		}
	}
	return option_set(p, "tools", out) == 0 ? 0 : call_no_memory(call);
}

/* In tool_choice: whether one call is all that may come. */
static int
take_one_call(struct call *call, const json_t *choice, struct params *p)
{
	const json_t *one = json_object_get(choice,
	    "disable_parallel_tool_use");

	if (one != NULL && !json_is_null(one) && !json_is_boolean(one)) {
		call_error(call, 400, "tool_choice", "invalid_value",
		    "tool_choice.disable_parallel_tool_use must be true or "
		    "false");
		return -EINVAL;
	}
	if (!json_is_true(one))
		return 0;
	return option_set(p, "parallel_tool_calls", json_false()) == 0 ? 0 :
	    call_no_memory(call);
}

static int
take_tool_choice(struct call *call, const json_t *body, struct params *p)
{
	json_t *v = NULL, *to = NULL;
	const char *type, *name;
	int rc;

	if (field_json(call, body, "tool_choice", JSON_OBJECT, &v) < 0)
		return -EINVAL;
	if (v == NULL)
		return 0;
	type = json_string_value(json_object_get(v, "type"));
	name = json_string_value(json_object_get(v, "name"));
	if (type == NULL)
		type = "";
	if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)
		to = json_string(type);
	else if (strcmp(type, "any") == 0)
		to = json_string("required");
	else if (strcmp(type, "tool") == 0 && name != NULL)
		to = json_pack("{s:s, s:{s:s}}", "type", "function",
		    "function", "name", name);
	if (to == NULL) {
		call_error(call, 400, "tool_choice", "invalid_value",
		    "tool_choice.type must be auto, any, none, or tool with a "
		    "name");
		return -EINVAL;
	}
	rc = option_set(p, "tool_choice", to) == 0 ? 0 : call_no_memory(call);
	return rc != 0 ? rc : take_one_call(call, v, p);
}

/* GLM-5.3 always thinks; there, not to ask is no error. */
static bool
can_be_quiet(const struct call *call)
{
	const json_t *info = engine_info(call_http(call)->engine);

	return !json_is_true(json_object_get(info, "always_thinks"));
}

static int
take_thinking(struct call *call, const json_t *body, struct params *p)
{
	json_t *v = NULL, *kw = NULL;
	const char *type = "disabled";

	if (field_json(call, body, "thinking", JSON_OBJECT, &v) < 0 ||
	    params_template(call, body) < 0 ||
	    field_json(call, body, "chat_template_kwargs", JSON_OBJECT,
	    &kw) < 0)
		return -EINVAL;
	if (kw != NULL && option_set(p, "chat_template_kwargs",
	    json_deep_copy(kw)) != 0)
		return call_no_memory(call);
	if (v == NULL && kw != NULL)
		return 0;
	if (v != NULL)
		type = json_string_value(json_object_get(v, "type"));
	if (type == NULL || (strcmp(type, "enabled") != 0 &&
	    strcmp(type, "adaptive") != 0 && strcmp(type, "disabled") != 0 &&
	    strcmp(type, "between_tools") != 0)) {
		call_error(call, 400, "thinking", "invalid_value",
		    "thinking.type must be enabled, adaptive, between_tools "
		    "or disabled");
		return -EINVAL;
	}
	if (v == NULL && !can_be_quiet(call))
		return 0;
	return template_option(p, "enable_thinking",
	    json_boolean(strcmp(type, "disabled") != 0)) == 0 ? 0 :
	    call_no_memory(call);
}

/*
 * context_management: to keep all thinking of earlier turns is what
 * clear_thinking: false does, and it keeps the prefix cache's hits. Other edits
 * would have the context cut by the server, which does not happen here.
 */
static int
take_context_edits(struct call *call, const json_t *body, struct params *p)
{
	const json_t *list = json_object_get(json_object_get(body,
	    "context_management"), "edits");
	const json_t *edit, *keep;
	const char *type;
	size_t i;

	for (i = 0; i < json_array_size(list); i++) {
		edit = json_array_get(list, i);
		type = json_string_value(json_object_get(edit, "type"));
		keep = json_object_get(edit, "keep");
		if (type == NULL || strncmp(type, "clear_thinking", 14) != 0 ||
		    !json_is_string(keep) ||
		    strcmp(json_string_value(keep), "all") != 0)
			continue;
		if (template_option(p, "clear_thinking", json_false()) != 0)
			return call_no_memory(call);
	}
	return 0;
}

static int
take_output_config(struct call *call, const json_t *body, struct params *p)
{
	json_t *v = NULL, *format = NULL, *to = NULL;
	const char *effort = NULL, *type;

	if (field_json(call, body, "output_config", JSON_OBJECT, &v) < 0)
		return -EINVAL;
	if (v == NULL)
		return 0;
	if (field_string(call, v, "effort", &effort) < 0 ||
	    field_json(call, v, "format", JSON_OBJECT, &format) < 0)
		return -EINVAL;
	if (effort != NULL && option_set(p, "reasoning_effort",
	    json_string(effort)) != 0)
		return call_no_memory(call);
	if (format == NULL)
		return 0;
	type = json_string_value(json_object_get(format, "type"));
	if (type != NULL && strcmp(type, "json_schema") == 0)
		to = json_pack("{s:s, s:{s:s, s:O, s:b}}", "type",
		    "json_schema", "json_schema", "name", "output", "schema",
		    json_object_get(format, "schema"), "strict", 1);
	if (to == NULL) {
		call_error(call, 400, "output_config.format", "invalid_value",
		    "output_config.format must be {\"type\": \"json_schema\", "
		    "\"schema\": {...}}");
		return -EINVAL;
	}
	return option_set(p, "response_format", to) == 0 ? 0 :
	    call_no_memory(call);
}

/* max_tokens must be there; stop_sequences is what others call stop. */
static int
take_sampling(struct call *call, const json_t *body, bool counts,
    struct params *p)
{
	static const char *const limits[] = { "max_tokens", NULL };
	json_t *common = json_copy((json_t *)(uintptr_t)body);
	const json_t *stop = json_object_get(body, "stop_sequences");
	const json_t *max = json_object_get(body, "max_tokens");
	int rc;

	if (common == NULL)
		return call_no_memory(call);
	if (!counts && (max == NULL || json_is_null(max))) {
		call_error(call, 400, "max_tokens", "missing_field",
		    "max_tokens: is missing; this API wants it");
		json_decref(common);
		return -EINVAL;
	}
	json_object_del(common, "stop");
	if (stop != NULL)
		json_object_set(common, "stop", (json_t *)(uintptr_t)stop);
	rc = params_parse(call, common, limits, p);
	json_decref(common);
	if (rc == 0) {
		p->n = 1;		/* the API has one answer */
		/* Agents ask for as much as the largest model has. */
		p->r.flags |= DCP_FIT;
	}
	return rc;
}

int
messages_read(struct call *call, const json_t *body, bool counts,
    struct params *p, char **input)
{
	struct convert c;
	int rc;

	rc = take_sampling(call, body, counts, p);
	if (rc < 0)
		return rc;
	if (convert_begin(&c, call) < 0) {
		params_free(p);
		return -ENOMEM;
	}
	rc = take_messages(&c, body);
	if (rc == 0)
		rc = take_tools(call, body, p);
	if (rc == 0)
		rc = take_tool_choice(call, body, p);
	if (rc == 0)
		rc = take_thinking(call, body, p);
	if (rc == 0)
		rc = take_context_edits(call, body, p);
	if (rc == 0)
		rc = take_output_config(call, body, p);
	if (rc == 0)
		rc = convert_end(&c, p, input);
	convert_free(&c);
	if (rc < 0)
		params_free(p);
	return rc;
}
