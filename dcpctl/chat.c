/*
 * dcpctl chat: one question, or a conversation. Reasoning and answer are
 * printed as they come; on a terminal the reasoning is dim, elsewhere a blank
 * line ends it.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpctl/ctl.h"

#define OCCUPANCY_EVERY 8	/* tokens between two looks at the ranks */

struct buf {
	char *s;
	size_t n;
};

struct call {
	struct buf name, args;
};

struct turn {			/* an event_fn's argument */
	bool print, dim, occupancy;
	int channel;		/* of the last text printed, -1: none */
	struct buf reasoning, content;
	struct call *call;
	uint32_t n_calls;
	uint32_t finish;
	struct dcp_usage usage;
	uint32_t tokens;	/* so far */
	uint32_t call0;		/* calls of earlier turns: for ids */
	json_t *status;		/* with the most tokens on the ranks */
};

static void
append(struct buf *b, const char *s, size_t n)
{
	char *more = realloc(b->s, b->n + n + 1);

	if (more == NULL)
		return;
	memcpy(more + b->n, s, n);
	b->s = more;
	b->n += n;
	b->s[b->n] = '\0';
}

static json_int_t
tokens_on_ranks(const json_t *status)
{
	const json_t *r, *ranks = json_object_get(status, "ranks");
	json_int_t n = 0;
	size_t i;

	json_array_foreach(ranks, i, r)
		n += json_integer_value(json_object_get(r, "tokens"));
	return n;
}

/* Keep the fullest picture: the request is gone when its last event is read. */
static void
look_at_ranks(struct turn *t)
{
	json_t *s = NULL;

	if (ctl_admin(json_pack("{s:s}", "cmd", "status"), true, &s) != CTL_OK)
		return;
	if (t->status == NULL ||
	    tokens_on_ranks(s) >= tokens_on_ranks(t->status)) {
		json_decref(t->status);
		t->status = s;
	} else {
		json_decref(s);
	}
}

/* A heading or a blank line where the channel changes. */
static void
show(struct turn *t, const struct dcp_event *ev)
{
	bool begin = t->channel != (int)ev->channel ||
	    ev->channel == DCP_CH_TOOL_NAME;

	if (!t->print)
		return;
	if (begin && t->dim && t->channel == DCP_CH_REASONING)
		fputs("\033[0m", stdout);
	if (begin && t->channel >= 0 && ev->channel != DCP_CH_TOOL_ARGS)
		fputs(t->channel == DCP_CH_REASONING && !t->dim ? "\n\n" :
		    "\n", stdout);
	if (begin && ev->channel == DCP_CH_REASONING && t->dim)
		fputs("\033[2m", stdout);
	if (begin && ev->channel == DCP_CH_TOOL_NAME)
		fputs("call ", stdout);
	if (begin && ev->channel == DCP_CH_TOOL_ARGS)
		putchar(' ');
	ctl_put(stdout, ev->text, ev->text_len);
	fflush(stdout);
	t->channel = (int)ev->channel;
}

static struct call *
call_at(struct turn *t, uint32_t i)
{
	struct call *more;

	if (i == t->n_calls) {
		more = realloc(t->call, (i + 1) * sizeof *more);
		if (more == NULL)
			return NULL;
		memset(&more[i], 0, sizeof *more);
		t->call = more;
		t->n_calls++;
	}
	return i < t->n_calls ? &t->call[i] : NULL;
}

static void
keep(struct turn *t, const struct dcp_event *ev)
{
	struct call *c;

	switch (ev->channel) {
	case DCP_CH_REASONING:
		append(&t->reasoning, ev->text, ev->text_len);
		break;
	case DCP_CH_CONTENT:
		append(&t->content, ev->text, ev->text_len);
		break;
	default:
		c = call_at(t, ev->call);
		if (c != NULL)
			append(ev->channel == DCP_CH_TOOL_NAME ? &c->name :
			    &c->args, ev->text, ev->text_len);
	}
}

static void
take(void *arg, const struct dcp_event *ev)
{
	struct turn *t = arg;

	if (ev->type == DCP_EV_DONE) {
		t->finish = ev->finish;
		t->usage = ev->usage;
	}
	if (t->occupancy && ev->n_tokens > 0 && (t->tokens == 0 ||
	    t->tokens / OCCUPANCY_EVERY !=
	    (t->tokens + ev->n_tokens) / OCCUPANCY_EVERY))
		look_at_ranks(t);
	t->tokens += ev->n_tokens;
	if (ev->text_len == 0)
		return;
	keep(t, ev);
	show(t, ev);
}

static void
turn_free(struct turn *t)
{
	for (uint32_t i = 0; i < t->n_calls; i++) {
		free(t->call[i].name.s);
		free(t->call[i].args.s);
	}
	free(t->call);
	free(t->reasoning.s);
	free(t->content.s);
	json_decref(t->status);
}

static json_t *
text_json(const struct buf *b)
{
	return json_stringn(b->s != NULL ? b->s : "", b->n);
}

/* Calls as OpenAI has them; NULL if there are none. */
static json_t *
calls_json(const struct turn *t)
{
	json_t *a;

	if (t->n_calls == 0)
		return NULL;
	a = json_array();
	for (uint32_t i = 0; i < t->n_calls; i++) {
		char id[32];

		snprintf(id, sizeof id, "call_%u", t->call0 + i);
		json_array_append_new(a, json_pack("{s:s,s:s,s:{s:o,s:o}}",
		    "id", id, "type", "function", "function",
		    "name", text_json(&t->call[i].name),
		    "arguments", text_json(&t->call[i].args)));
	}
	return a;
}

static void
print_turn(const struct turn *t)
{
	json_t *o, *calls = calls_json(t);

	if (ctl.json) {
		o = json_pack("{s:o,s:o,s:s,s:o}",
		    "reasoning", text_json(&t->reasoning),
		    "content", text_json(&t->content), "finish_reason",
		    ctl_finish_name(t->finish), "usage",
		    ctl_usage_json(&t->usage));
		json_object_set_new(o, "tool_calls", calls != NULL ?
		    calls : json_array());
		if (t->status != NULL)
			json_object_set(o, "ranks",
			    json_object_get(t->status, "ranks"));
		ctl_print_json(o);
		return;
	}
	json_decref(calls);
	if (t->dim && t->channel == DCP_CH_REASONING)
		fputs("\033[0m", stdout);
	putchar('\n');
	if (t->finish == DCP_FINISH_LENGTH)
		fprintf(stderr, "dcpctl: cut off after %u tokens\n",
		    t->usage.completion_tokens);
	if (t->status != NULL) {
		putchar('\n');
		ctl_print_ranks(t->status);
	} else if (t->occupancy) {
		ctl_fail(CTL_OK, "--occupancy: the admin socket does not "
		    "answer; ask as the daemon's user or root");
	}
}

struct chat {
	struct dcp *dcp;
	json_t *messages;
	char *options;		/* JSON text, or NULL */
	struct dcp_request req;
	bool occupancy;
	uint32_t n_calls;	/* so far: each has an id of its own */
};

static void
remember(struct chat *c, const struct turn *t)
{
	json_t *m, *calls = calls_json(t);

	m = json_pack("{s:s,s:o}", "role", "assistant", "content",
	    text_json(&t->content));
	if (t->reasoning.n > 0)
		json_object_set_new(m, "reasoning_content",
		    text_json(&t->reasoning));
	if (calls != NULL)
		json_object_set_new(m, "tool_calls", calls);
	json_array_append_new(c->messages, m);
}

static int
ask(struct chat *c, const char *question)
{
	struct turn t = {
		.print = !ctl.json, .channel = -1, .occupancy = c->occupancy,
		.call0 = c->n_calls,
		.dim = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL,
	};
	char *text;
	int rc;

	if (json_array_append_new(c->messages, json_pack("{s:s,s:s}", "role",
	    "user", "content", question)) != 0)
		return ctl_fail(CTL_USAGE, "the question is not UTF-8");
	text = json_dumps(c->messages, JSON_COMPACT);
	if (text == NULL)
		return ctl_fail(CTL_FAILED, "no memory for the question");
	c->req.input = DCP_INPUT_CHAT;
	c->req.data = text;
	c->req.len = strlen(text);
	c->req.options = c->options;
	rc = ctl_run(c->dcp, &c->req, take, &t);
	free(text);
	if (rc == CTL_OK) {
		print_turn(&t);
		remember(c, &t);
		c->n_calls += t.n_calls;
		if (t.finish == DCP_FINISH_ABORT)
			rc = ctl_fail(CTL_FAILED, "cancelled");
	} else {
		/* It was not answered: the next question stands alone. */
		json_array_remove(c->messages,
		    json_array_size(c->messages) - 1);
	}
	turn_free(&t);
	return rc;
}

/* Questions from standard input until its end; an error does not end it. */
static int
talk(struct chat *c)
{
	bool prompt = isatty(STDIN_FILENO);
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int rc = CTL_OK;

	for (;;) {
		if (prompt) {
			fputs("> ", stdout);
			fflush(stdout);
		}
		n = getline(&line, &cap, stdin);
		if (n < 0)
			break;
		while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			line[--n] = '\0';
		if (n > 0)
			rc = ask(c, line);
		if (rc != CTL_OK && !prompt)
			break;
	}
	if (prompt)
		putchar('\n');
	free(line);
	return prompt ? CTL_OK : rc;
}

static int
read_tools(const char *path, json_t *options)
{
	json_error_t je;
	json_t *tools = json_load_file(path, JSON_REJECT_DUPLICATES, &je);

	if (tools == NULL && je.line < 1)	/* it was not read */
		return ctl_fail(CTL_USAGE, "--tools: %s", je.text);
	if (tools == NULL)
		return ctl_fail(CTL_USAGE, "--tools %s: line %d: %s", path,
		    je.line, je.text);
	if (!json_is_array(tools)) {
		json_decref(tools);
		return ctl_fail(CTL_USAGE, "--tools %s: want a JSON array of "
		    "tools as OpenAI has them", path);
	}
	json_object_set_new(options, "tools", tools);
	return CTL_OK;
}

static int
set_up(struct chat *c, const char *system, const char *tools, bool no_think,
    const struct ctl_sampling *s)
{
	json_t *o = json_object();
	int rc = CTL_OK;

	c->messages = json_array();
	if (system != NULL && json_array_append_new(c->messages,
	    json_pack("{s:s,s:s}", "role", "system", "content", system)) != 0)
		rc = ctl_fail(CTL_USAGE, "--system is not UTF-8");
	if (no_think)
		json_object_set_new(o, "chat_template_kwargs",
		    json_pack("{s:b}", "enable_thinking", 0));
	if (rc == CTL_OK && tools != NULL)
		rc = read_tools(tools, o);
	if (rc == CTL_OK)
		rc = ctl_format(s, o);
	if (rc == CTL_OK && json_object_size(o) > 0)
		c->options = json_dumps(o, JSON_COMPACT);
	json_decref(o);
	return rc != CTL_OK ? rc : ctl_connect(&c->dcp);
}

/* The words of the command line as one question; malloc'd, NULL: none. */
static char *
joined(const struct ctl_list *words)
{
	struct buf b = { NULL, 0 };

	for (uint32_t i = 0; i < words->n; i++) {
		if (i > 0)
			append(&b, " ", 1);
		append(&b, words->v[i], strlen(words->v[i]));
	}
	return b.s;
}

int
ctl_chat(int argc, char **argv)
{
	struct ctl_sampling s = { 0 };
	struct ctl_list words = { NULL, 0 };
	const char *system = NULL, *tools = NULL;
	bool no_think = false, plain = false;
	struct chat c = { .req = { .size = sizeof c.req } };
	const struct ctl_opt opts[] = {
		{ "system", 0, CTL_STR, &system, "TEXT", "system message",
		  NULL },
		{ "no-think", 0, CTL_FLAG, &no_think, NULL,
		  "answer without reasoning", NULL },
		{ "tools", 0, CTL_STR, &tools, "FILE",
		  "JSON array of tools the model may call", NULL },
		{ "plain", 0, CTL_FLAG, &plain, NULL,
		  "\"<|user|>\" in a message is text, no token",
		  NULL },
		{ "occupancy", 0, CTL_FLAG, &c.occupancy, NULL,
		  "show how many tokens each rank held", NULL },
		CTL_SAMPLING_OPTIONS(s),
		{ .name = NULL },
	};
	char *question = NULL;
	int rc;

	rc = ctl_parse(argc, argv, opts, "chat [options] [QUESTION]\n\nWithout "
	    "a question: a conversation, one line each, until end of file.",
	    &words);
	if (rc == 0 && (s.logprobs || s.top_logprobs > 0))
		rc = ctl_fail(CTL_USAGE, "--%s: chat does not show them; use "
		    "dcpctl generate -j", s.logprobs ? "logprobs" :
		    "top-logprobs");
	if (rc == 0)
		rc = ctl_sampling(&s, &c.req);
	if (plain)
		c.req.flags |= DCP_PLAIN_INPUT;
	if (rc == 0)
		rc = set_up(&c, system, tools, no_think, &s);
	question = joined(&words);
	if (rc == 0)
		rc = question != NULL ? ask(&c, question) : talk(&c);
	if (c.dcp != NULL)
		dcp_close(c.dcp);
	free(question);
	free(c.options);
	json_decref(c.messages);
	free(words.v);
	ctl_sampling_free(&s);
	return rc > 0 ? rc : CTL_OK;
}
