/*
 * A chat request (OpenAI form) into a prompt: reads and checks messages and
 * options, then lets the model's template write them. Runs on pool threads;
 * everything belongs to the call.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "dcpd/base/bigjson.h"
#include "dcpd/text/chat.h"
#include "dcpd/text/pyjson.h"
#include "dcpd/text/utf8.h"

static const struct {
	const char *name;
	enum dcpd_chat kind;
} names[] = {
	{ "none", DCPD_CHAT_NONE },
	{ "glm45", DCPD_CHAT_GLM45 },
	{ "glm47", DCPD_CHAT_GLM47 },
	{ "glm5", DCPD_CHAT_GLM47 },
	{ "glm51", DCPD_CHAT_GLM47 },
	{ "glm52", DCPD_CHAT_GLM52 },
	{ "glm53", DCPD_CHAT_GLM53 },
	{ "deepseek_v32", DCPD_CHAT_DSV32 },
};

int
dcpd_chat_by_name(const char *name, enum dcpd_chat *out)
{
	size_t i;

	for (i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i].name, name) == 0) {
			*out = names[i].kind;
			return 0;
		}
	return -EINVAL;
}

/* GLM releases share their vocabulary: only the template's text tells. */
static enum dcpd_chat
guess_glm(const char *tpl)
{
	if (tpl == NULL)
		return DCPD_CHAT_GLM47;
	if (strstr(tpl, "Reasoning Effort") != NULL)
		return strstr(tpl, "'low'") != NULL ? DCPD_CHAT_GLM53 :
		    DCPD_CHAT_GLM52;
	return strstr(tpl, "/nothink") != NULL ? DCPD_CHAT_GLM45 :
	    DCPD_CHAT_GLM47;
}

enum dcpd_chat
dcpd_chat_guess(const char *model_type, const struct dcpd_tokenizer *t)
{
	if (t == NULL)
		return DCPD_CHAT_NONE;
	if (dcpd_token_id(t, "[gMASK]") >= 0 &&
	    dcpd_token_id(t, "<|assistant|>") >= 0)
		return guess_glm(t->chat_template);
	if (dcpd_token_id(t, "<\uff5cAssistant\uff5c>") >= 0 &&
	    strcmp(model_type, "deepseek_v32") == 0)
		return DCPD_CHAT_DSV32;
	return DCPD_CHAT_NONE;
}

/* --- writing ---------------------------------------------------------- */

void
chat_lit(struct chat *c, const char *s)
{
	dcpd_buf_str(&c->text, s);
}

/* What was written since `from` came from the client. */
static void
mark_own(struct chat *c, size_t from)
{
	struct tok_span *v;

	if (c->text.n == from)
		return;
	if (c->n_plain > 0 && c->plain[c->n_plain - 1].end == from) {
		c->plain[c->n_plain - 1].end = c->text.n;
		return;
	}
	if (c->n_plain == c->cap_plain) {
		size_t cap = c->cap_plain == 0 ? 32 : 2 * c->cap_plain;

		v = reallocarray(c->plain, cap, sizeof *v);
		if (v == NULL) {
			c->text.failed = true;
			return;
		}
		c->plain = v;
		c->cap_plain = cap;
	}
	c->plain[c->n_plain++] = (struct tok_span){ from, c->text.n };
}

void
chat_own(struct chat *c, const char *s, size_t n)
{
	size_t from = c->text.n;

	dcpd_buf_add(&c->text, s, n);
	mark_own(c, from);
}

void
chat_own_json(struct chat *c, const json_t *v)
{
	size_t from = c->text.n;

	dcpd_pyjson(&c->text, v);
	mark_own(c, from);
}

void
chat_own_value(struct chat *c, const json_t *v)
{
	if (json_is_string(v))
		chat_own(c, json_string_value(v), json_string_length(v));
	else
		chat_own_json(c, v);
}

static bool
py_space(const char *s, unsigned *w)
{
	uint32_t u = dcpd_utf8_char(s, w);

	return dcpd_utf8_space(u) || (u >= 0x1c && u <= 0x1f);
}

struct chat_str
chat_strip(struct chat_str t)
{
	size_t at;
	unsigned w;

	while (t.n > 0 && py_space(t.s, &w)) {
		t.s += w;
		t.n -= w;
	}
	while (t.n > 0) {
		at = t.n - 1;
		while (at > 0 && ((unsigned char)t.s[at] & 0xc0) == 0x80)
			at--;
		if (!py_space(t.s + at, &w))
			break;
		t.n = at;
	}
	return t;
}

/* --- reading messages ------------------------------------------------- */

static bool
absent(const json_t *v)
{
	return v == NULL || json_is_null(v);
}

/* A string that is one in C, too: without U+0000. */
static const char *
c_string(const json_t *v)
{
	const char *s = json_string_value(v);

	return s != NULL && strlen(s) == json_string_length(v) ? s : NULL;
}

static int
read_role(struct chat *c, size_t i, const json_t *m, struct chat_msg *out)
{
	static const char *const role[] = {
		[ROLE_SYSTEM] = "system", [ROLE_DEVELOPER] = "developer",
		[ROLE_USER] = "user", [ROLE_ASSISTANT] = "assistant",
		[ROLE_TOOL] = "tool",
	};
	const json_t *v = json_object_get(m, "role");
	const char *s = c_string(v);
	unsigned r;

	for (r = 0; s != NULL && r < sizeof role / sizeof *role; r++)
		if (strcmp(s, role[r]) == 0) {
			out->role = (enum chat_role)r;
			return 0;
		}
	return dcpd_fail(c->err, -EINVAL, "messages[%zu].role is %s%.40s%s; "
	    "allowed are system, developer, user, assistant and tool", i,
	    s != NULL ? "\"" : json_is_string(v) ? "a string with U+0000" :
	    "missing", s == NULL ? "" : s,
	    s == NULL ? "" : "\"");
}

static int
read_part(struct chat *c, size_t i, size_t k, const json_t *p,
    struct chat_msg *out)
{
	const json_t *t = json_object_get(p, "text");
	const char *type = c_string(json_object_get(p, "type"));

	if (json_is_string(p)) {
		t = p;
	} else if (type == NULL || strcmp(type, "text") != 0) {
		return dcpd_fail(c->err, -EINVAL, "messages[%zu].content[%zu] "
		    "has type \"%.40s\": this model reads only parts of type "
		    "\"text\"", i, k, type == NULL ? "(none)" : type);
	} else if (!json_is_string(t)) {
		return dcpd_fail(c->err, -EINVAL, "messages[%zu].content[%zu]"
		    ".text is not a string", i, k);
	}
	dcpd_buf_add(&out->content, json_string_value(t),
	    json_string_length(t));
	return 0;
}

static int
read_content(struct chat *c, size_t i, const json_t *m, struct chat_msg *out)
{
	const json_t *v = json_object_get(m, "content");
	size_t k;
	int rc;

	if (absent(v)) {
		if (out->role == ROLE_ASSISTANT)
			return 0;
		return dcpd_fail(c->err, -EINVAL,
		    "messages[%zu].content is missing", i);
	}
	if (json_is_string(v)) {
		dcpd_buf_add(&out->content, json_string_value(v),
		    json_string_length(v));
		return 0;
	}
	if (!json_is_array(v))
		return dcpd_fail(c->err, -EINVAL, "messages[%zu].content must "
		    "be a string or a list of text parts", i);
	for (k = 0; k < json_array_size(v); k++) {
		rc = read_part(c, i, k, json_array_get(v, k), out);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int
read_reasoning(struct chat *c, size_t i, const json_t *m,
    struct chat_msg *out)
{
	static const char *const key[] = { "reasoning_content", "reasoning" };
	const json_t *v;
	unsigned k;

	for (k = 0; k < 2; k++) {
		v = json_object_get(m, key[k]);
		if (absent(v))
			continue;
		if (!json_is_string(v))
			return dcpd_fail(c->err, -EINVAL,
			    "messages[%zu].%s is not a string", i, key[k]);
		out->has_reasoning = true;
		out->reasoning = (struct chat_str){ json_string_value(v),
		    json_string_length(v) };
		return 0;
	}
	return 0;
}

/* Arguments come as an object, or as a string that holds one. */
static int
read_args(struct chat *c, size_t i, size_t k, const json_t *f,
    struct chat_call *out)
{
	json_t *v = json_object_get(f, "arguments");
	json_error_t e = { .text = "not an object" };

	if (absent(v) || (json_is_string(v) && json_string_length(v) == 0))
		out->args = json_object();
	else if (json_is_string(v))
		out->args = dcpd_bigjson_loadb(json_string_value(v),
		    json_string_length(v), JSON_ALLOW_NUL, &e);
	else
		out->args = json_incref(v);
	if (!json_is_object(out->args))
		return dcpd_fail(c->err, -EINVAL, "messages[%zu].tool_calls"
		    "[%zu].function.arguments is not a JSON object (%.100s)",
		    i, k, out->args != NULL ? "another type" : e.text);
	return 0;
}

static int
read_calls(struct chat *c, size_t i, const json_t *m, struct chat_msg *out)
{
	const json_t *v = json_object_get(m, "tool_calls"), *f, *call;
	size_t k, n = json_array_size(v);
	int rc;

	if (absent(v))
		return 0;
	if (out->role != ROLE_ASSISTANT || !json_is_array(v))
		return dcpd_fail(c->err, -EINVAL, "messages[%zu].tool_calls "
		    "must be a list, in a message of the assistant", i);
	out->calls = calloc(n + 1, sizeof *out->calls);
	if (out->calls == NULL)
		return dcpd_fail(c->err, -ENOMEM, "out of memory");
	for (k = 0; k < n; k++) {
		call = json_array_get(v, k);
		f = json_object_get(call, "function");
		if (f == NULL)
			f = call;
		out->calls[k].name = c_string(json_object_get(f, "name"));
		if (out->calls[k].name == NULL)
			return dcpd_fail(c->err, -EINVAL, "messages[%zu]."
			    "tool_calls[%zu].function.name is %s", i, k,
			    json_is_string(json_object_get(f, "name")) ?
			    "a string with U+0000" : "missing");
		out->n_calls++;
		rc = read_args(c, i, k, f, &out->calls[k]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int
read_message(struct chat *c, size_t i, const json_t *m)
{
	struct chat_msg *out = &c->msg[i];
	int rc;

	if (!json_is_object(m))
		return dcpd_fail(c->err, -EINVAL,
		    "messages[%zu] is not an object", i);
	rc = read_role(c, i, m, out);
	if (rc == 0)
		rc = read_content(c, i, m, out);
	if (rc == 0 && out->role == ROLE_ASSISTANT)
		rc = read_reasoning(c, i, m, out);
	if (rc == 0)
		rc = read_calls(c, i, m, out);
	if (rc < 0)
		return rc;
	if (out->content.failed)
		return dcpd_fail(c->err, -ENOMEM, "out of memory");
	if (out->role == ROLE_USER || (out->role == ROLE_DEVELOPER &&
	    c->kind == DCPD_CHAT_DSV32))
		c->last_user = i;
	return 0;
}

static int
read_messages(struct chat *c, const json_t *messages)
{
	size_t i, n = json_array_size(messages);
	int rc;

	if (!json_is_array(messages) || n == 0)
		return dcpd_fail(c->err, -EINVAL,
		    "messages must be a list with at least one message");
	c->msg = calloc(n, sizeof *c->msg);
	if (c->msg == NULL)
		return dcpd_fail(c->err, -ENOMEM, "out of memory");
	c->n = n;
	for (i = 0; i < n; i++) {
		rc = read_message(c, i, json_array_get(messages, i));
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* --- reading options -------------------------------------------------- */

static int
check_tools(struct chat *c, const json_t *tools, const char *where)
{
	const json_t *t, *f;
	size_t i;

	if (!json_is_array(tools))
		return dcpd_fail(c->err, -EINVAL, "%s is not a list", where);
	for (i = 0; i < json_array_size(tools); i++) {
		t = json_array_get(tools, i);
		f = json_object_get(t, "function");
		if (!json_is_object(f) ||
		    !json_is_string(json_object_get(f, "name")))
			return dcpd_fail(c->err, -EINVAL, "%s[%zu] must have "
			    "the form {\"type\": \"function\", \"function\": "
			    "{\"name\": ..., \"parameters\": ...}}", where, i);
	}
	return 0;
}

static int
read_tools(struct chat *c, const json_t *options)
{
	const json_t *v = json_object_get(options, "tools");
	const json_t *choice = json_object_get(options, "tool_choice");
	const char *s = json_string_value(choice);
	int rc;

	if (!absent(v)) {
		rc = check_tools(c, v, "tools");
		if (rc < 0)
			return rc;
		if (json_array_size(v) > 0)
			c->tools = v;
	}
	/* Other choices change nothing here: gram.c holds answers to them. */
	if (s != NULL && strcmp(s, "none") == 0)
		c->tools = NULL;
	return 0;
}

/* gram.c holds the answer to it; DeepSeek's template also asks for it. */
static void
read_format(struct chat *c, const json_t *options)
{
	const json_t *v = json_object_get(options, "response_format");
	const char *type = json_string_value(json_object_get(v, "type"));

	if (c->kind == DCPD_CHAT_DSV32 && !absent(v) &&
	    !(type != NULL && strcmp(type, "text") == 0))
		c->response_format = v;
}

/* A boolean option; *set tells whether it was there. */
static int
read_bool(struct chat *c, const json_t *from, const char *key, bool *out,
    bool *set)
{
	const json_t *v = json_object_get(from, key);

	if (absent(v))
		return 0;
	if (!json_is_boolean(v))
		return dcpd_fail(c->err, -EINVAL, "%s must be true or false",
		    key);
	*out = json_is_true(v);
	*set = true;
	return 0;
}

/* Also z.ai's form: {"type": "enabled" | "disabled", "clear_thinking": b} */
static int
read_thinking(struct chat *c, const json_t *from, bool *set)
{
	const json_t *v = json_object_get(from, "thinking");
	const char *type = json_string_value(json_object_get(v, "type"));
	bool ignore;

	if (!json_is_object(v))
		return read_bool(c, from, "thinking", &c->thinking, set);
	if (type == NULL || (strcmp(type, "enabled") != 0 &&
	    strcmp(type, "disabled") != 0))
		return dcpd_fail(c->err, -EINVAL, "thinking.type must be "
		    "\"enabled\" or \"disabled\"");
	c->thinking = strcmp(type, "enabled") == 0;
	*set = true;
	return read_bool(c, v, "clear_thinking", &c->clear_thinking, &ignore);
}

static int
read_effort(struct chat *c, const json_t *from)
{
	static const char *const known[] = { "none", "minimal", "low",
		"medium", "high", "xhigh", "max" };
	const json_t *v = json_object_get(from, "reasoning_effort");
	const char *s = json_string_value(v);
	size_t i;

	if (absent(v))
		return 0;
	for (i = 0; s != NULL && i < sizeof known / sizeof *known; i++)
		if (strcmp(s, known[i]) == 0) {
			c->effort = s;
			return 0;
		}
	return dcpd_fail(c->err, -EINVAL, "reasoning_effort must be one of "
	    "none, minimal, low, medium, high, xhigh and max");
}

/* One place where thinking options may stand; a later call goes first. */
static int
read_switches(struct chat *c, const json_t *from, bool *set)
{
	bool ignore;
	int rc;

	rc = read_thinking(c, from, set);
	if (rc == 0)
		rc = read_bool(c, from, "enable_thinking", &c->thinking, set);
	if (rc == 0)
		rc = read_bool(c, from, "clear_thinking", &c->clear_thinking,
		    &ignore);
	if (rc == 0)
		rc = read_effort(c, from);
	return rc;
}

static int
read_options(struct chat *c, const json_t *options)
{
	const json_t *kw = json_object_get(options, "chat_template_kwargs");
	bool set = false;
	int rc;

	c->thinking = c->kind != DCPD_CHAT_DSV32;
	c->clear_thinking = c->kind != DCPD_CHAT_GLM53;
	if (options != NULL && !json_is_object(options))
		return dcpd_fail(c->err, -EINVAL,
		    "the options are not a JSON object");
	if (!absent(kw) && !json_is_object(kw))
		return dcpd_fail(c->err, -EINVAL,
		    "chat_template_kwargs is not an object");
	rc = read_switches(c, options, &set);
	if (rc == 0)
		rc = read_switches(c, kw, &set);
	if (rc == 0)
		rc = read_tools(c, options);
	if (rc == 0)
		read_format(c, options);
	if (rc < 0)
		return rc;
	if (!set && c->effort != NULL && strcmp(c->effort, "none") == 0)
		c->thinking = false;
	return 0;
}

/* --- entry ------------------------------------------------------------ */

static void
chat_free(struct chat *c)
{
	size_t i, k;

	for (i = 0; i < c->n; i++) {
		for (k = 0; k < c->msg[i].n_calls; k++)
			json_decref(c->msg[i].calls[k].args);
		free(c->msg[i].calls);
		dcpd_buf_free(&c->msg[i].content);
	}
	free(c->msg);
	free(c->plain);
	dcpd_buf_free(&c->text);
}

static int
render(struct chat *c, const json_t *messages, const json_t *options)
{
	int rc;

	if (c->kind == DCPD_CHAT_NONE)
		return dcpd_fail(c->err, -ENOTSUP, "this model has no chat "
		    "template; send a plain prompt, or start the daemon with "
		    "--chat-template");
	rc = read_options(c, options);
	if (rc == 0)
		rc = read_messages(c, messages);
	if (rc == 0)
		rc = c->kind == DCPD_CHAT_DSV32 ? chat_dsv32(c) : chat_glm(c);
	if (rc == 0 && c->text.failed)
		rc = dcpd_fail(c->err, -ENOMEM, "out of memory");
	return rc;
}

int
dcpd_chat_encode(const struct dcpd_tokenizer *t, enum dcpd_chat kind,
    const json_t *messages, const json_t *options, unsigned flags, size_t max,
    struct dcpd_ids *out, bool *thinking, struct dcpd_err *err)
{
	struct chat c = { .kind = kind, .last_user = SIZE_MAX, .err = err };
	int rc;

	rc = render(&c, messages, options);
	if (rc == 0)
		rc = tok_encode(t, c.text.v, c.text.n, c.plain,
		    flags & DCPD_PLAIN ? c.n_plain : 0, max, out, err);
	if (rc == 0)
		*thinking = c.open_reasoning;
	chat_free(&c);
	return rc;
}

char *
dcpd_chat_render(enum dcpd_chat kind, const json_t *messages,
    const json_t *options, bool *thinking, struct dcpd_err *err)
{
	struct chat c = { .kind = kind, .last_user = SIZE_MAX, .err = err };
	char *s = NULL;

	if (render(&c, messages, options) == 0) {
		s = dcpd_buf_take(&c.text);
		if (s == NULL)
			dcpd_fail(err, -ENOMEM, "out of memory");
		else
			*thinking = c.open_reasoning;
	}
	chat_free(&c);
	return s;
}
