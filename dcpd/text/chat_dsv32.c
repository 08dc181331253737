/*
 * The DeepSeek-V3.2 chat format, as the encoder that ships with the model
 * writes it. (The bars in its markers are U+FF5C.)
 */
#include "config.h"

#include <errno.h>

#include "dcpd/text/chat.h"

#define BOS "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
#define EOS "<\uff5cend\u2581of\u2581sentence\uff5c>"
#define USER "<\uff5cUser\uff5c>"
#define ASSISTANT "<\uff5cAssistant\uff5c>"
#define DSML "\uff5cDSML\uff5c"
#define THINK "<think>"
#define END_THINK "</think>"

static void
put_tools(struct chat *c, const json_t *tools)
{
	size_t i;

	chat_lit(c, "## Tools\n\n"
	    "You have access to a set of tools you can use to answer the "
	    "user's question.\n"
	    "You can invoke functions by writing a \"<" DSML "function_calls>\""
	    " block like the following as part of your reply to the user:\n"
	    "<" DSML "function_calls>\n"
	    "<" DSML "invoke name=\"$FUNCTION_NAME\">\n"
	    "<" DSML "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">"
	    "$PARAMETER_VALUE</" DSML "parameter>\n"
	    "...\n"
	    "</" DSML "invoke>\n"
	    "<" DSML "invoke name=\"$FUNCTION_NAME2\">\n"
	    "...\n"
	    "</" DSML "invoke>\n"
	    "</" DSML "function_calls>\n\n"
	    "String and scalar parameters should be specified as is without "
	    "any escaping or quotes, while lists and objects should use JSON "
	    "format. The \"string\" attribute should be set to \"true\" for "
	    "string type parameters and \"false\" for other types (numbers, "
	    "booleans, arrays, objects).\n\n"
	    "If the thinking_mode is enabled, then after function results you "
	    "should strongly consider outputting a thinking block. Here is an "
	    "example:\n\n"
	    "<" DSML "function_calls>\n...\n</" DSML "function_calls>\n\n"
	    "<function_results>\n...\n</function_results>\n\n"
	    THINK "...thinking about results" END_THINK "\n\n"
	    "Here are the functions available in JSONSchema format:\n"
	    "<functions>\n");
	for (i = 0; i < json_array_size(tools); i++) {
		if (i > 0)
			chat_lit(c, "\n");
		chat_own_json(c, json_object_get(json_array_get(tools, i),
		    "function"));
	}
	chat_lit(c, "\n</functions>\n");
}

static void
put_format(struct chat *c, const json_t *format)
{
	chat_lit(c, "## Response Format:\n\nYou MUST strictly adhere to the "
	    "following schema to reply:\n");
	chat_own_json(c, format);
}

/* Tools and response format after the text of a system message. */
static void
put_extras(struct chat *c, const struct chat_msg *m)
{
	if (m->tools != NULL) {
		chat_lit(c, "\n\n");
		put_tools(c, m->tools);
	}
	if (m->response_format != NULL) {
		chat_lit(c, "\n\n");
		put_format(c, m->response_format);
	}
}

/* The turn passes to the assistant. */
static void
open_turn(struct chat *c, bool think)
{
	chat_lit(c, think && c->thinking ? THINK : END_THINK);
	c->open_reasoning = think && c->thinking;
}

static void
put_user(struct chat *c, size_t i)
{
	const struct chat_msg *m = &c->msg[i];

	chat_lit(c, USER);
	if (m->role == ROLE_DEVELOPER) {
		put_extras(c, m);
		chat_lit(c, "\n\n# The user's message is: ");
	}
	chat_own(c, m->content.v, m->content.n);
	chat_lit(c, ASSISTANT);
	open_turn(c, i == c->last_user);
}

static void
put_calls(struct chat *c, const struct chat_msg *m)
{
	const char *key, *sep;
	json_t *v;
	size_t k;

	if (m->n_calls == 0)
		return;
	chat_lit(c, "\n\n<" DSML "function_calls>\n");
	for (k = 0; k < m->n_calls; k++) {
		chat_lit(c, k > 0 ? "\n" : "");
		chat_lit(c, "<" DSML "invoke name=\"");
		chat_own(c, m->calls[k].name, strlen(m->calls[k].name));
		chat_lit(c, "\">\n");
		sep = "";
		json_object_foreach(m->calls[k].args, key, v) {
			chat_lit(c, sep);
			chat_lit(c, "<" DSML "parameter name=\"");
			chat_own(c, key, strlen(key));
			chat_lit(c, json_is_string(v) ? "\" string=\"true\">" :
			    "\" string=\"false\">");
			chat_own_value(c, v);
			chat_lit(c, "</" DSML "parameter>");
			sep = "\n";
		}
		chat_lit(c, "\n</" DSML "invoke>");
	}
	chat_lit(c, "\n</" DSML "function_calls>");
}

static int
put_assistant(struct chat *c, size_t i)
{
	const struct chat_msg *m = &c->msg[i];

	if (c->thinking && (c->last_user == SIZE_MAX || i > c->last_user)) {
		if (!m->has_reasoning && m->n_calls == 0)
			return dcpd_fail(c->err, -EINVAL, "messages[%zu]: with "
			    "thinking on, an assistant's message after the "
			    "last user message needs reasoning_content or "
			    "tool_calls", i);
		chat_own(c, m->reasoning.s, m->reasoning.n);
		chat_lit(c, END_THINK);
	}
	chat_own(c, m->content.v, m->content.n);
	put_calls(c, m);
	chat_lit(c, EOS);
	return 0;
}

/* Results of one set of calls stand in one block, in the order of calls. */
static int
put_result(struct chat *c, size_t i)
{
	const struct chat_msg *m = &c->msg[i];
	size_t from, nth;

	if (i > 0 && c->msg[i - 1].role != ROLE_TOOL)
		c->caller = i - 1;
	from = c->caller;
	nth = i - from;
	if (c->msg[from].role != ROLE_ASSISTANT || c->msg[from].n_calls < nth)
		return dcpd_fail(c->err, -EINVAL, "messages[%zu]: a tool "
		    "message without a tool call of the assistant before it",
		    i);
	if (nth == 1)
		chat_lit(c, "\n\n<function_results>");
	chat_lit(c, "\n<result>");
	chat_own(c, m->content.v, m->content.n);
	chat_lit(c, "</result>");
	if (nth < c->msg[from].n_calls) {
		if (i + 1 < c->n && c->msg[i + 1].role == ROLE_TOOL)
			return 0;
		return dcpd_fail(c->err, -EINVAL, "messages[%zu]: %zu tool "
		    "calls but %zu tool messages follow", from,
		    c->msg[from].n_calls, nth);
	}
	chat_lit(c, "\n</function_results>\n\n");
	open_turn(c, c->last_user == SIZE_MAX || i >= c->last_user);
	return 0;
}

static int
put_message(struct chat *c, size_t i)
{
	switch (c->msg[i].role) {
	case ROLE_SYSTEM:
		chat_own(c, c->msg[i].content.v, c->msg[i].content.n);
		put_extras(c, &c->msg[i]);
		return 0;
	case ROLE_DEVELOPER:
	case ROLE_USER:
		put_user(c, i);
		return 0;
	case ROLE_ASSISTANT:
		return put_assistant(c, i);
	case ROLE_TOOL:
		return put_result(c, i);
	}
	return 0;
}

int
chat_dsv32(struct chat *c)
{
	struct chat_msg none = { .role = ROLE_SYSTEM }, *first = &c->msg[0];
	enum chat_role end = c->msg[c->n - 1].role;
	size_t i;
	int rc;

	if (end == ROLE_SYSTEM || end == ROLE_ASSISTANT)
		return dcpd_fail(c->err, -EINVAL, "messages[%zu]: the last "
		    "message must be one to answer: user, developer or tool",
		    c->n - 1);
	chat_lit(c, BOS);
	/* The request's tools belong to the system message, real or empty. */
	if (first->role != ROLE_SYSTEM)
		first = &none;
	first->tools = c->tools;
	first->response_format = c->response_format;
	put_extras(c, &none);
	for (i = 0; i < c->n; i++) {
		rc = put_message(c, i);
		if (rc < 0)
			return rc;
	}
	return 0;
}
