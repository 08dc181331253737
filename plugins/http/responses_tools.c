/*
 * /v1/responses: tools. Functions are those of chat, also within a namespace. A
 * "custom" tool takes free text; the model gets a function of one string in its
 * place. Tools that only OpenAI's own servers run (web_search and such) are
 * left out: agents offer them to every server.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "plugins/http/convert.h"
#include "plugins/http/responses.h"

static bool
is_type(const json_t *o, const char *type)
{
	const char *s = json_string_value(json_object_get(o, "type"));

	return s != NULL && strcmp(s, type) == 0;
}

static bool
is_own(const json_t *tool)
{
	return is_type(tool, "function") || is_type(tool, "custom");
}

/* The one of this name in a list, or NULL. */
static json_t *
named(const json_t *list, const char *name)
{
	const char *s;
	json_t *t;
	size_t i;

	for (i = 0; i < json_array_size(list); i++) {
		t = json_array_get(list, i);
		s = json_string_value(json_object_get(t, "name"));
		if (s != NULL && strcmp(s, name) == 0)
			return t;
	}
	return NULL;
}

void
responses_find_tool(const json_t *body, const char *name,
    struct responses_tool *out)
{
	const json_t *tools = json_object_get(body, "tools"), *t, *space;
	size_t i;

	*out = (struct responses_tool){ 0 };
	t = named(tools, name);
	for (i = 0; t == NULL && i < json_array_size(tools); i++) {
		space = json_array_get(tools, i);
		if (!is_type(space, "namespace"))
			continue;
		t = named(json_object_get(space, "tools"), name);
		if (t != NULL)
			out->space = json_string_value(json_object_get(space,
			    "name"));
	}
	out->custom = is_type(t, "custom");
}

/* tool_choice {"type": "allowed_tools"} names those that may be called. */
static bool
is_allowed(const json_t *body, const json_t *tool)
{
	const json_t *choice = json_object_get(body, "tool_choice");
	const char *name = json_string_value(json_object_get(tool, "name"));

	return !is_type(choice, "allowed_tools") || (name != NULL &&
	    named(json_object_get(choice, "tools"), name) != NULL);
}

json_t *
responses_tools(const json_t *body)
{
	const json_t *tools = json_object_get(body, "tools");
	json_t *out = json_array(), *t;
	size_t i;

	for (i = 0; i < json_array_size(tools); i++) {
		t = json_array_get(tools, i);
		if (is_type(t, "namespace") || (is_own(t) &&
		    is_allowed(body, t)))
			json_array_append(out, t);
	}
	return out;
}

/* A function in place of a custom tool. */
static json_t *
custom_tool(const json_t *t, const char *name)
{
	json_t *schema = json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type",
	    "object", "properties", RESPONSES_CUSTOM_INPUT, "type", "string",
	    "required", RESPONSES_CUSTOM_INPUT);
	json_t *f = convert_tool(name, json_object_get(t, "description"),
	    schema, NULL);

	json_decref(schema);
	return f;
}

/* One tool to out, unless it is none of ours or may not be called. */
static int
add_tool(struct call *call, const json_t *body, const json_t *t, json_t *out)
{
	const char *name = json_string_value(json_object_get(t, "name"));
	json_t *f;

	if (!is_own(t) || !is_allowed(body, t))
		return 0;
	if (name == NULL) {
		call_error(call, 400, "tools", "invalid_value",
		    "tools: a %s has no name, or one that is not a string",
		    is_type(t, "custom") ? "custom tool" : "function");
		return -EINVAL;
	}
	f = is_type(t, "custom") ? custom_tool(t, name) :
	    convert_tool(name, json_object_get(t, "description"),
	    json_object_get(t, "parameters"), json_object_get(t, "strict"));
	return json_array_append_new(out, f) == 0 ? 0 : call_no_memory(call);
}

static int
add_tools(struct call *call, const json_t *body, const json_t *list,
    json_t *out)
{
	const json_t *t;
	size_t i;
	int rc = 0;

	for (i = 0; rc == 0 && i < json_array_size(list); i++) {
		t = json_array_get(list, i);
		if (is_type(t, "namespace"))
			rc = add_tools(call, body, json_object_get(t, "tools"),
			    out);
		else
			rc = add_tool(call, body, t, out);
	}
	return rc;
}

static int
take_tool_choice(struct call *call, const json_t *body, struct params *p)
{
	const json_t *v = json_object_get(body, "tool_choice");
	const char *name = json_string_value(json_object_get(v, "name"));
	json_t *to = NULL;

	if (v == NULL || json_is_null(v))
		return 0;
	if (json_is_string(v))
		to = json_deep_copy(v);
	else if (is_type(v, "allowed_tools"))
		to = json_deep_copy(json_object_get(v, "mode"));
	else if (name != NULL && (is_type(v, "function") ||
	    is_type(v, "custom")))
		to = json_pack("{s:s, s:{s:s}}", "type", "function",
		    "function", "name", name);
	if (to == NULL) {
		call_error(call, 400, "tool_choice", "invalid_value",
		    "tool_choice must be \"auto\", \"none\", \"required\", or "
		    "name a function, a custom tool or allowed_tools");
		return -EINVAL;
	}
	return option_set(p, "tool_choice", to) == 0 ? 0 : call_no_memory(call);
}

static int
take_parallel(struct call *call, const json_t *body, struct params *p)
{
	bool many = true;

	if (field_bool(call, body, "parallel_tool_calls", &many) < 0)
		return -EINVAL;
	if (many)
		return 0;
	return option_set(p, "parallel_tool_calls", json_false()) == 0 ? 0 :
	    call_no_memory(call);
}

int
responses_take_tools(struct call *call, const json_t *body, struct params *p)
{
	json_t *list = NULL, *out = json_array();
	int rc;

	rc = field_json(call, body, "tools", JSON_ARRAY, &list);
	if (rc >= 0)
		rc = add_tools(call, body, list, out);
	if (rc == 0 && json_array_size(out) > 0) {
		rc = option_set(p, "tools", json_incref(out));
		if (rc != 0)
			rc = call_no_memory(call);
	}
	json_decref(out);
	if (rc == 0)
		rc = take_tool_choice(call, body, p);
	return rc == 0 ? take_parallel(call, body, p) : rc;
}
