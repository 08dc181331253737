/*
 * The GLM chat formats: 4.5/4.6, 4.7/5/5.1, 5.2, 5.3. One writer; what
 * differs stands in the table below.
 */
#include "config.h"

#include <errno.h>

#include "dcpd/text/chat.h"

#define THINK "<think>"
#define END_THINK "</think>"

static const struct glm_style {
	const char *nl;		/* after role tokens and between call parts */
	const char *no_think;	/* stands where there is no reasoning */
	bool effort;		/* "Reasoning Effort" at the beginning */
	bool always_thinks;
	bool opens;		/* the prompt itself says <think> */
	bool strips;		/* white space around reasoning is dropped */
	bool keeps;		/* clear_thinking is heeded */
	bool bare_tools;	/* only the function object, some keys less */
} styles[] = {
	[DCPD_CHAT_GLM45] = { .nl = "\n", .no_think = THINK END_THINK,
	    .strips = true },
	[DCPD_CHAT_GLM47] = { .nl = "", .no_think = END_THINK, .opens = true,
	    .keeps = true },
	[DCPD_CHAT_GLM52] = { .nl = "", .no_think = THINK END_THINK,
	    .opens = true, .keeps = true, .effort = true },
	[DCPD_CHAT_GLM53] = { .nl = "", .no_think = THINK END_THINK,
	    .opens = true, .keeps = true, .effort = true,
	    .always_thinks = true, .bare_tools = true },
};

static bool
ends_with(const struct dcpd_buf *b, const char *s)
{
	size_t n = strlen(s);

	return b->n >= n && memcmp(b->v + b->n - n, s, n) == 0;
}

/* First or last place of needle in s; NULL if there is none. */
static const char *
find(struct chat_str s, const char *needle, bool last)
{
	const char *hit = NULL, *p = s.s, *end = s.s + s.n;

	while (p != NULL && p < end) {
		p = memmem(p, (size_t)(end - p), needle, strlen(needle));
		if (p == NULL)
			break;
		hit = p++;
		if (!last)
			break;
	}
	return hit;
}

/*
 * "<think>a</think>b" in a content that came without reasoning_content. White
 * space around either is stripped later, where a release strips at all.
 */
static void
split_thoughts(struct chat_str *content, struct chat_str *thought, bool *has)
{
	const char *first, *last, *open, *end;

	first = find(*content, END_THINK, false);
	if (first == NULL)
		return;
	last = find(*content, END_THINK, true);
	*has = true;
	*thought = (struct chat_str){ content->s,
	    (size_t)(first - content->s) };
	open = find(*thought, THINK, true);
	if (open != NULL) {
		end = thought->s + thought->n;
		thought->s = open + strlen(THINK);
		thought->n = (size_t)(end - thought->s);
	}
	end = content->s + content->n;
	content->s = last + strlen(END_THINK);
	content->n = (size_t)(end - content->s);
}

static void
put_calls(struct chat *c, const struct glm_style *st,
    const struct chat_msg *m)
{
	const char *key;
	json_t *v;
	size_t k;

	for (k = 0; k < m->n_calls; k++) {
		chat_lit(c, st->nl);
		chat_lit(c, "<tool_call>");
		chat_own(c, m->calls[k].name, strlen(m->calls[k].name));
		chat_lit(c, st->nl);
		json_object_foreach(m->calls[k].args, key, v) {
			chat_lit(c, "<arg_key>");
			chat_own(c, key, strlen(key));
			chat_lit(c, "</arg_key>");
			chat_lit(c, st->nl);
			chat_lit(c, "<arg_value>");
			chat_own_value(c, v);
			chat_lit(c, "</arg_value>");
			chat_lit(c, st->nl);
		}
		chat_lit(c, "</tool_call>");
	}
}

static void
put_assistant(struct chat *c, const struct glm_style *st, size_t i)
{
	const struct chat_msg *m = &c->msg[i];
	struct chat_str text = { m->content.v, m->content.n };
	struct chat_str thought = m->reasoning;
	bool has = m->has_reasoning;

	if (!has)
		split_thoughts(&text, &thought, &has);
	/* Reasoning of turns before the last question is usually dropped. */
	if (i < c->last_user && c->last_user != SIZE_MAX &&
	    !(st->keeps && !c->clear_thinking))
		has = false;
	if (st->strips) {
		has = has && thought.n > 0;
		thought = chat_strip(thought);
	}
	chat_lit(c, "<|assistant|>");
	chat_lit(c, st->nl);
	if (has) {
		chat_lit(c, THINK);
		chat_own(c, thought.s, thought.n);
		chat_lit(c, END_THINK);
	} else {
		chat_lit(c, st->no_think);
	}
	text = chat_strip(text);
	if (text.n > 0) {
		chat_lit(c, st->nl);
		chat_own(c, text.s, text.n);
	}
	put_calls(c, st, m);
}

static void
put_message(struct chat *c, const struct glm_style *st, size_t i)
{
	const struct chat_msg *m = &c->msg[i];

	switch (m->role) {
	case ROLE_SYSTEM:
	case ROLE_DEVELOPER:		/* the newer name of the same */
		chat_lit(c, "<|system|>");
		chat_lit(c, st->nl);
		chat_own(c, m->content.v, m->content.n);
		break;
	case ROLE_USER:
		chat_lit(c, "<|user|>");
		chat_lit(c, st->nl);
		chat_own(c, m->content.v, m->content.n);
		if (c->kind == DCPD_CHAT_GLM45 && !c->thinking &&
		    !ends_with(&m->content, "/nothink"))
			chat_lit(c, "/nothink");
		break;
	case ROLE_ASSISTANT:
		put_assistant(c, st, i);
		break;
	case ROLE_TOOL:
		if (i == 0 || c->msg[i - 1].role != ROLE_TOOL)
			chat_lit(c, "<|observation|>");
		chat_lit(c, st->nl);
		chat_lit(c, "<tool_response>");
		chat_lit(c, st->nl);
		chat_own(c, m->content.v, m->content.n);
		chat_lit(c, st->nl);
		chat_lit(c, "</tool_response>");
		break;
	}
}

/* GLM-5.3: the function alone, without the keys that are for servers. */
static void
put_bare_tool(struct chat *c, const json_t *f)
{
	json_t *copy;

	if (json_is_true(json_object_get(f, "defer_loading")))
		return;
	copy = json_copy((json_t *)f);
	if (copy == NULL) {
		c->text.failed = true;
		return;
	}
	json_object_del(copy, "defer_loading");
	json_object_del(copy, "strict");
	chat_own_json(c, copy);
	json_decref(copy);
	chat_lit(c, "\n");
}

static void
put_tools(struct chat *c, const struct glm_style *st)
{
	const json_t *t;
	size_t i;

	chat_lit(c, "<|system|>\n# Tools\n\nYou may call one or more functions "
	    "to assist with the user query.\n\nYou are provided with function "
	    "signatures within <tools></tools> XML tags:\n<tools>\n");
	for (i = 0; i < json_array_size(c->tools); i++) {
		t = json_array_get(c->tools, i);
		if (st->bare_tools) {
			put_bare_tool(c, json_object_get(t, "function"));
			continue;
		}
		chat_own_json(c, t);
		chat_lit(c, "\n");
	}
	chat_lit(c, "</tools>\n\nFor each function call, output the function "
	    "name and arguments within the following XML format:\n"
	    "<tool_call>{function-name}");
	for (i = 1; i <= 2; i++) {
		const char n[] = { '-', (char)('0' + i), '}', '\0' };

		chat_lit(c, st->nl);
		chat_lit(c, "<arg_key>{arg-key");
		chat_lit(c, n);
		chat_lit(c, "</arg_key>");
		chat_lit(c, st->nl);
		chat_lit(c, "<arg_value>{arg-value");
		chat_lit(c, n);
		chat_lit(c, "</arg_value>");
	}
	chat_lit(c, st->nl);
	chat_lit(c, "...");
	chat_lit(c, st->nl);
	chat_lit(c, "</tool_call>");
}

static void
put_effort(struct chat *c, const struct glm_style *st)
{
	const char *e = c->effort == NULL ? "" : c->effort;

	if (!st->effort || !c->thinking)
		return;
	chat_lit(c, "<|system|>Reasoning Effort: ");
	if (strcmp(e, "high") == 0)
		chat_lit(c, "High");
	else if (st->always_thinks && strcmp(e, "low") == 0)
		chat_lit(c, "Low");
	else
		chat_lit(c, "Max");
}

int
chat_glm(struct chat *c)
{
	const struct glm_style *st = &styles[c->kind];
	size_t i;

	if (st->always_thinks && !c->thinking)
		return dcpd_fail(c->err, -EINVAL, "this model always thinks: "
		    "thinking cannot be turned off, reasoning_effort \"low\" "
		    "asks for the least");
	chat_lit(c, "[gMASK]<sop>");
	put_effort(c, st);
	if (c->tools != NULL)
		put_tools(c, st);
	for (i = 0; i < c->n; i++)
		put_message(c, st, i);
	chat_lit(c, "<|assistant|>");
	/*
	 * GLM-4.5 writes <think> itself: its output, too, begins with
	 * reasoning.
	 */
	c->open_reasoning = c->thinking;
	if (!c->thinking) {
		chat_lit(c, st->nl);
		chat_lit(c, st->no_think);
	} else if (st->opens) {
		chat_lit(c, THINK);
	}
	return 0;
}
