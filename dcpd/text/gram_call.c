/*
 * A forced call: one of some tools, with arguments as its schema wants them, in
 * the markup of the model's parser (out_glm.c, out_dsml.c have the reading
 * side). It is a walk over places:
 *
 *	BEGIN	the markup up to a tool's name
 *	ARGS	another argument, or the call's end
 *	KEY	its name: one of those that may follow, or a free one
 *	VALUE	JSON or bare text
 *	CALLS	a call is over: another one, or the end
 *	DONE	only an end token
 *
 * At each place the next text is one of some literals, of which none begins
 * another, or a text that a grammar reads and a terminator ends. In GLM's markup
 * terminators are tokens. In DeepSeek's they are text, which may also go on as
 * text: both are followed until one of them is refused.
 *
 * Belongs to one request's text job.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"
#include "dcpd/text/tok.h"

#define MAX_TOOLS 1024u
#define DSML "\uff5cDSML\uff5c"

/* Added tokens that calls are written with; the last is DeepSeek's. */
static const char *const marks[] = { "<tool_call>", "</tool_call>",
	"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", DSML };
#define N_MARKS (sizeof marks / sizeof *marks)

enum place { BEGIN, ARGS, KEY, VALUE, CALLS, DONE };

struct tool {
	char *name;
	struct gram *g;			/* with .args */
};

struct lit {
	char *s;
	enum place to;
	uint32_t arg;			/* a tool (BEGIN), an argument (KEY) */
	bool alive;
};

struct gram_call {
	struct dcpd_grams *gs;
	bool dsml, one;
	uint32_t mark[N_MARKS];
	struct tool *tool;
	uint32_t n_tools;
	enum place at;
	uint32_t t, pos;		/* the tool, its next argument */
	struct lit *lit;		/* what may be written here */
	uint32_t n_lit, cap_lit;
	size_t off;			/* of them */
	struct gram_read read;		/* or what is read here */
	const char *term;
	size_t term_off;		/* of it, 0: it has not begun */
};

/* --- tools ------------------------------------------------------------- */

static int
add_tool(struct gram_call *c, const json_t *tool, uint64_t *effort,
    struct dcpd_err *err)
{
	const json_t *f = json_object_get(tool, "function");
	const json_t *params = json_object_get(f, "parameters");
	const char *name = gram_tool_name(tool);
	struct tool *t = &c->tool[c->n_tools];
	int rc;

	/* Its reader takes white space off the ends: out_call.c, trim(). */
	if (strpbrk(name, "\"<>\n") != NULL || isspace((uint8_t)name[0]) ||
	    isspace((uint8_t)name[strlen(name) - 1]))
		return dcpd_fail(err, -EINVAL, "options: tools: \"%.60s\": no "
		    "name that can be written in a call: want letters, "
		    "digits, _ and -", name);
	t->name = strdup(name);
	if (t->name == NULL)
		return dcpd_fail(err, -ENOMEM, "tools: out of memory");
	rc = gram_get(c->gs, json_is_null(params) ? NULL : params,
	    c->dsml ? GRAM_TAGGED : GRAM_ARGS, &t->g, err);
	if (rc != 0) {
		free(t->name);
		if (err != NULL)
			dcpd_fail_in(err, "options: tools: \"%.60s\": "
			    "parameters", name);
		return rc;
	}
	c->n_tools++;
	*effort += t->g->effort;
	if (*effort > GRAM_MAX_EFFORTS)
		return dcpd_fail(err, -EINVAL, "options: tools: the schemas of "
		    "all take too long to prepare: offer fewer, or force one "
		    "by its name");
	return 0;
}

static int
read_tools(struct gram_call *c, const json_t *tools, const char *only,
    struct dcpd_err *err)
{
	uint64_t effort = 0;
	const json_t *t;
	size_t i;
	int rc = 0;

	if (json_array_size(tools) > MAX_TOOLS)
		return dcpd_fail(err, -EINVAL, "options: tools: %zu, at most "
		    "%u can be chosen from", json_array_size(tools),
		    MAX_TOOLS);
	c->tool = calloc(json_array_size(tools) + 1, sizeof *c->tool);
	if (c->tool == NULL)
		return dcpd_fail(err, -ENOMEM, "tools: out of memory");
	json_array_foreach(tools, i, t) {
		const char *name = gram_tool_name(t);

		if (rc == 0 && name != NULL && name[0] != '\0' &&
		    (only == NULL || strcmp(only, name) == 0))
			rc = add_tool(c, t, &effort, err);
	}
	if (rc != 0 || c->n_tools > 0)
		return rc;
	return only != NULL ? dcpd_fail(err, -EINVAL, "options: "
	    "tool_choice: no tool is named \"%.100s\"", only) :
	    dcpd_fail(err, -EINVAL, "options: tool_choice: there are "
	    "no tools to choose from");
}

/* --- places ------------------------------------------------------------ */

static void
drop_lits(struct gram_call *c)
{
	for (uint32_t i = 0; i < c->n_lit; i++)
		free(c->lit[i].s);
	c->n_lit = 0;
	c->off = 0;
}

static int __attribute__((format(printf, 4, 5)))
add_lit(struct gram_call *c, enum place to, uint32_t arg, const char *fmt, ...)
{
	uint32_t cap = c->cap_lit == 0 ? 8 : 2 * c->cap_lit;
	va_list ap;
	void *p;
	char *s;
	int n;

	if (c->lit == NULL || c->n_lit == c->cap_lit) {
		p = realloc(c->lit, cap * sizeof *c->lit);
		if (p == NULL)
			return -ENOMEM;
		c->lit = p;
		c->cap_lit = cap;
	}
	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	if (n < 0)
		return -ENOMEM;
	c->lit[c->n_lit++] = (struct lit){ s, to, arg, true };
	return 0;
}

static const struct gram_args *
args_of(const struct gram_call *c, uint32_t tool)
{
	return c->tool[tool].g->args;
}

static bool
may_go_on(const struct gram_args *a, uint32_t pos)
{
	return pos < a->n || a->has_extra;
}

/* A call of each of the tools. first: of all calls. */
static int
go_begin(struct gram_call *c, bool first)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->n_tools && rc == 0; i++) {
		const struct gram_args *a = args_of(c, i);
		const char *name = c->tool[i].name;

		if (c->dsml) {
			rc = add_lit(c, ARGS, i, "%s<" DSML "invoke "
			    "name=\"%s\">\n", first ? "\n\n<" DSML
			    "function_calls>\n" : "", name);
			continue;
		}
		if (may_go_on(a, 0))
			rc = add_lit(c, KEY, i, "<tool_call>%s<arg_key>",
			    name);
		if (rc == 0 && a->must == 0)
			rc = add_lit(c, CALLS, i, "<tool_call>%s</tool_call>",
			    name);
	}
	return rc;
}

static int
go_args(struct gram_call *c)
{
	const struct gram_args *a = args_of(c, c->t);
	int rc = 0;

	if (may_go_on(a, c->pos))
		rc = add_lit(c, KEY, c->t, "%s", c->dsml ?
		    "<" DSML "parameter name=\"" : "<arg_key>");
	if (rc == 0 && c->pos >= a->must)
		rc = add_lit(c, CALLS, c->t, "%s", c->dsml ?
		    "</" DSML "invoke>\n" : "</tool_call>");
	return rc;
}

/* What stands between an argument's name and its value. */
static const char *
after_key(const struct gram_call *c, const struct gram_arg *a)
{
	return !c->dsml ? "</arg_key><arg_value>" : a->text ?
	    "\" string=\"true\">" : "\" string=\"false\">";
}

static int
go_key(struct gram_call *c)
{
	const struct gram_args *a = args_of(c, c->t);
	int rc = 0;

	for (uint32_t i = c->pos; i < a->n && rc == 0; i++) {
		rc = add_lit(c, VALUE, i, "%s%s", a->v[i].key,
		    after_key(c, &a->v[i]));
		if (a->v[i].required)
			return rc;
	}
	if (rc != 0 || !a->has_extra || c->pos < a->must)
		return rc;
	c->term = after_key(c, &a->extra);
	return gram_read_raw(&c->read, c->tool[c->t].g, &a->extra_key, 1);
}

static int
go_value(struct gram_call *c)
{
	const struct gram_args *a = args_of(c, c->t);
	const struct gram_arg *v = c->pos < a->n ? &a->v[c->pos] : &a->extra;

	c->term = c->dsml ? "</" DSML "parameter>\n" : "</arg_value>";
	if (v->text)
		return gram_read_raw(&c->read, c->tool[c->t].g, v->raw,
		    v->n_raw);
	return gram_read_value(&c->read, c->tool[c->t].g, v->value);
}

/* Another call, unless one is all. DeepSeek's are in a section that ends. */
static int
go_calls(struct gram_call *c)
{
	int rc = 0;

	if (c->dsml)
		rc = add_lit(c, DONE, 0, "</" DSML "function_calls>");
	else if (c->one)
		c->at = DONE;
	return rc == 0 && !c->one ? go_begin(c, false) : rc;
}

static int
go(struct gram_call *c, enum place to)
{
	drop_lits(c);
	c->read.open = false;
	c->term_off = 0;
	c->at = to;
	switch (to) {
	case BEGIN: return go_begin(c, true);
	case ARGS: return go_args(c);
	case KEY: return go_key(c);
	case VALUE: return go_value(c);
	case CALLS: return go_calls(c);
	case DONE: break;
	}
	return 0;
}

/* A literal is written. */
static int
take_lit(struct gram_call *c, const struct lit *l)
{
	enum place from = c->at, to = l->to;

	if (from == BEGIN || from == CALLS) {
		c->t = l->arg;
		c->pos = 0;
	} else if (from == KEY) {
		c->pos = l->arg;
	}
	return go(c, to);
}

/* What was read is terminated. */
static int
take_read(struct gram_call *c)
{
	const struct gram_args *a = args_of(c, c->t);

	if (c->at == KEY) {
		c->pos = a->n;
		return go(c, VALUE);
	}
	c->pos = c->pos < a->n ? c->pos + 1 : c->pos;
	return go(c, ARGS);
}

/* --- tokens ------------------------------------------------------------ */

static int
push_lits(struct gram_call *c, const char *s, size_t n)
{
	/* A literal has none, but behind its end strncmp() would look. */
	bool nul = memchr(s, '\0', n) != NULL, any = false;

	for (uint32_t i = 0; i < c->n_lit; i++) {
		struct lit *l = &c->lit[i];

		l->alive = l->alive && !nul &&
		    strncmp(l->s + c->off, s, n) == 0;
		any |= l->alive;
	}
	c->off += n;
	for (uint32_t i = 0; i < c->n_lit; i++)
		if (c->lit[i].alive && c->lit[i].s[c->off] == '\0')
			return take_lit(c, &c->lit[i]);
	return any ? 0 : -EPROTO;
}

/* Bytes of a token into what is read and into its terminator. */
static int
push_read(struct gram_call *c, const char *s, size_t n, bool added)
{
	bool whole = false;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		bool ready = gram_read_complete(&c->read);

		/* A token of GLM's markup is no text, nor text it. */
		if (whole || (!c->dsml && !added)) {
			c->term_off = 0;
		} else if (c->term_off > 0 && c->term[c->term_off] == s[i]) {
			c->term_off++;
		} else {
			c->term_off = ready && s[i] == c->term[0];
		}
		if (!c->dsml && added)
			c->read.open = false;
		if (c->read.open)
			rc = gram_read_push(&c->read, &s[i], 1);
		if (rc != 0 && rc != -EPROTO)
			return rc;
		if (!c->read.open && c->term_off == 0)
			return -EPROTO;
		whole = c->term[c->term_off] == '\0';
	}
	return whole ? take_read(c) : 0;
}

static bool
is_added(const struct dcpd_tokenizer *t, uint32_t token)
{
	for (uint32_t i = 0; i < t->n_added; i++)
		if (t->added[i].id == token)
			return true;
	return false;
}

int
gram_call_push(struct gram_call *c, uint32_t token)
{
	bool special;
	const char *s;
	size_t n;
	int rc = -EPROTO;

	if (dcpd_token_bytes(c->gs->t, token, &s, &n, &special) != 0 || n == 0)
		return -EPROTO;
	/* A free name is written where others are: whichever takes it. */
	if (c->n_lit > 0) {
		enum place at = c->at;

		rc = push_lits(c, s, n);
		if (c->at != at || c->n_lit == 0)
			return rc;
	}
	if (c->read.open || c->term_off > 0) {
		int more = push_read(c, s, n, is_added(c->gs->t, token));

		rc = more == -EPROTO ? rc : more;
	}
	return rc;
}

/*
 * The mark that text begins with; GRAM_NONE: none. Others of the added tokens
 * may stand in a name: they are written as text, as special ones are not read.
 */
static uint32_t
mark_at(const struct gram_call *c, const char *text)
{
	unsigned from = c->dsml ? N_MARKS - 1 : 0;
	unsigned to = c->dsml ? N_MARKS : N_MARKS - 1;

	for (unsigned i = from; i < to; i++)
		if (strncmp(marks[i], text, strlen(marks[i])) == 0)
			return c->mark[i];
	return GRAM_NONE;
}

/* Tokens that go on with text, up to a mark in it. */
static void
along(const struct gram_call *c, const char *text, uint32_t *bits)
{
	const struct dcpd_grams *gs = c->gs;
	const struct gram_node *v = gs->trie->v;
	uint32_t at = 0, k;

	k = mark_at(c, text);
	if (k != GRAM_NONE && k < gs->vocab) {
		gram_set_bit(bits, k);
		return;
	}
	for (; *text != '\0'; text++) {
		if (mark_at(c, text) != GRAM_NONE)
			return;
		for (k = at + 1; k < v[at].end; k = v[k].end)
			if (v[k].byte == (uint8_t)*text)
				break;
		if (k >= v[at].end)
			return;
		at = k;
		for (uint32_t i = 0; i < v[at].toks; i++)
			gram_set_bit(bits, gs->trie->tok[v[at].tok0 + i]);
	}
}

int
gram_call_mask(struct gram_call *c, uint32_t *bits)
{
	int rc = 0;

	memset(bits, 0, c->gs->trie->words * sizeof *bits);
	if (c->read.open)
		rc = gram_read_mask(&c->read, c->gs->trie, bits);
	if (rc != 0)
		return rc;
	if (c->term_off > 0)
		along(c, c->term + c->term_off, bits);
	if (gram_read_complete(&c->read))
		along(c, c->term, bits);
	for (uint32_t i = 0; i < c->n_lit; i++)
		if (c->lit[i].alive)
			along(c, c->lit[i].s + c->off, bits);
	return 0;
}

bool
gram_call_may_end(const struct gram_call *c)
{
	/* Between GLM's calls nothing is open, and each may be the last. */
	return c->at == DONE || (c->at == CALLS && !c->dsml && c->off == 0);
}

/* --- a call's life ----------------------------------------------------- */

static int
find_marks(struct gram_call *c, struct dcpd_err *err)
{
	for (unsigned i = 0; i < N_MARKS; i++) {
		c->mark[i] = gram_token(c->gs, marks[i]);
		/* DeepSeek's may be text, too. */
		if (c->mark[i] == GRAM_NONE && !c->dsml && i < N_MARKS - 1)
			return dcpd_fail(err, -ENOTSUP, "options: tool_choice: "
			    "the vocabulary has no token \"%s\" for a call",
			    marks[i]);
	}
	return 0;
}

int
gram_call_open(struct dcpd_grams *gs, const json_t *options,
    const char *only, enum dcpd_parser parser, struct gram_call **out,
    struct dcpd_err *err)
{
	const json_t *many = json_object_get(options, "parallel_tool_calls");
	struct gram_call *c;
	int rc;

	if (parser == DCPD_PARSE_RAW)
		return dcpd_fail(err, -ENOTSUP, "options: tool_choice: calls "
		    "are not parsed here (--tool-call-parser, or "
		    "DCP_SPECIAL_TOKENS): only \"auto\" and \"none\" are "
		    "possible");
	c = calloc(1, sizeof *c);
	if (c == NULL)
		return dcpd_fail(err, -ENOMEM, "tools: out of memory");
	c->gs = gs;
	c->dsml = parser == DCPD_PARSE_DSV32;
	c->one = only != NULL || json_is_false(many);
	rc = find_marks(c, err);
	if (rc == 0)
		rc = read_tools(c, json_object_get(options, "tools"), only,
		    err);
	if (rc == 0 && go(c, BEGIN) != 0)
		rc = dcpd_fail(err, -ENOMEM, "tools: out of memory");
	if (rc == 0)
		*out = c;
	else
		gram_call_close(c);
	return rc;
}

void
gram_call_close(struct gram_call *c)
{
	if (c == NULL)
		return;
	drop_lits(c);
	free(c->lit);
	gram_read_close(&c->read);
	for (uint32_t i = 0; i < c->n_tools; i++) {
		free(c->tool[i].name);
		gram_put(c->gs, c->tool[i].g);
	}
	free(c->tool);
	free(c);
}
