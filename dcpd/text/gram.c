/*
 * Constrained decoding as the scheduler sees it: a request's options become a
 * run, that takes the answer's tokens and says which may come next. Runs belong
 * to a text job; grammars and the trie are shared by all.
 *
 *	reasoning -> (a forced call's beginning -> free) or JSON -> end token
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"
#include "dcpd/text/tok.h"

#define GRAMS_MAGIC 0x4752414du
#define RUN_MAGIC 0x4752554eu
#define KEPT 32u		/* grammars kept when nobody uses them */
#define MAX_TOOLS 1024u

struct dcpd_grams {
	unsigned magic;
	struct gram_trie *trie;
	const struct dcpd_tokenizer *t;
	uint32_t vocab;
	uint32_t *eos, n_eos;
	pthread_mutex_t lock;
	struct gram *first;		/* newest first */
	uint32_t n;
};

enum run_state {
	RUN_REASONING,
	RUN_CALL,		/* a forced call's beginning is written */
	RUN_JSON,
	RUN_FREE,		/* nothing is asked any more */
};

struct dcpd_gram {
	unsigned magic;
	struct dcpd_grams *gs;
	enum run_state state, after;	/* after reasoning */
	uint32_t think_end, call;	/* tokens, or NONE */
	bool may_call;			/* a call may come in JSON's place */
	/* JSON */
	struct gram *g;
	struct gram_step step;
	struct gram_arena store[2];	/* of the configuration, in turn */
	unsigned turn;
	struct gram_cfg cfg;
	bool begun;
	/* a call: texts of which one is to be written */
	char **lit;
	bool *alive;
	uint32_t n_lit;
	size_t off;
	uint32_t then[2];		/* tokens that may follow, or NONE */
};

/* --- grammars ---------------------------------------------------------- */

int
dcpd_grams_new(const struct dcpd_tokenizer *t, uint32_t vocab,
    const uint32_t *eos, uint32_t n_eos, struct dcpd_grams **out)
{
	struct dcpd_grams *gs = calloc(1, sizeof *gs);
	int rc = 0;

	if (gs == NULL)
		return -ENOMEM;
	gs->magic = GRAMS_MAGIC;
	gs->t = t;
	gs->vocab = vocab;
	pthread_mutex_init(&gs->lock, NULL);
	gs->eos = calloc(n_eos + 1, sizeof *gs->eos);
	if (gs->eos == NULL)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < n_eos && rc == 0; i++)
		if (eos[i] < vocab)
			gs->eos[gs->n_eos++] = eos[i];
	if (rc == 0)
		rc = gram_trie_new(t, vocab, &gs->trie);
	if (rc == 0)
		*out = gs;
	else
		dcpd_grams_free(gs);
	return rc;
}

void
dcpd_grams_free(struct dcpd_grams *gs)
{
	struct gram *g, *next;

	if (gs == NULL)
		return;
	DCPD_CHECK(gs, GRAMS_MAGIC);
	for (g = gs->first; g != NULL; g = next) {
		next = g->next;
		DCPD_ASSERT(g->refs == 0);
		gram_free(g);
	}
	pthread_mutex_destroy(&gs->lock);
	gram_trie_free(gs->trie);
	free(gs->eos);
	gs->magic = 0;
	free(gs);
}

/* Lock held. The oldest that nobody uses go. */
static void
drop_old(struct dcpd_grams *gs)
{
	struct gram **p = &gs->first, *g;
	uint32_t unused = 0;

	while ((g = *p) != NULL) {
		if (g->refs == 0 && ++unused > KEPT) {
			*p = g->next;
			gram_free(g);
		} else {
			p = &g->next;
		}
	}
}

/* Lock held; one reference more. */
static struct gram *
find(struct dcpd_grams *gs, const char *key)
{
	struct gram **p = &gs->first, *g;

	for (; (g = *p) != NULL; p = &g->next)
		if (strcmp(g->key, key) == 0) {
			*p = g->next;
			g->next = gs->first;
			gs->first = g;
			g->refs++;
			return g;
		}
	return NULL;
}

static void
put(struct dcpd_grams *gs, struct gram *g)
{
	pthread_mutex_lock(&gs->lock);
	DCPD_ASSERT(g->refs > 0);
	g->refs--;
	drop_old(gs);
	pthread_mutex_unlock(&gs->lock);
}

/* The grammar of a schema (NULL: any object), compiled if it is new. */
static int
get(struct dcpd_grams *gs, const json_t *schema, struct gram **out,
    struct dcpd_err *err)
{
	char *key = schema == NULL ? strdup("") :
	    json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
	struct gram *g = NULL, *other;
	int rc = 0;

	if (key == NULL)
		return dcpd_fail(err, -ENOMEM, "schema: out of memory");
	if (strlen(key) > GRAM_MAX_SCHEMA) {
		rc = dcpd_fail(err, -EINVAL, "schema: %zu bytes, at most %u "
		    "are supported", strlen(key), GRAM_MAX_SCHEMA);
		free(key);
		return rc;
	}
	pthread_mutex_lock(&gs->lock);
	g = find(gs, key);
	pthread_mutex_unlock(&gs->lock);
	if (g == NULL) {
		rc = gram_compile(schema, &g, err);
		if (rc != 0) {
			free(key);
			return rc;
		}
		g->key = key;
		key = NULL;
		pthread_mutex_lock(&gs->lock);
		other = find(gs, g->key);
		if (other == NULL) {
			g->next = gs->first;
			gs->first = g;
		}
		pthread_mutex_unlock(&gs->lock);
		if (other != NULL) {	/* somebody was faster */
			gram_free(g);
			g = other;
		}
	}
	free(key);
	*out = g;
	return 0;
}

/* --- what the options ask for ------------------------------------------ */

/* *schema: NULL for any object. *json: whether JSON is asked for at all. */
static int
read_format(const json_t *options, bool *json, const json_t **schema,
    struct dcpd_err *err)
{
	const json_t *f = json_object_get(options, "response_format"), *s;
	const char *type = json_string_value(json_object_get(f, "type"));

	*json = false;
	*schema = NULL;
	if (f == NULL || json_is_null(f))
		return 0;
	if (type == NULL)
		return dcpd_fail(err, -EINVAL, "options: response_format: "
		    "want an object with a \"type\"");
	if (strcmp(type, "text") == 0)
		return 0;
	*json = true;
	if (strcmp(type, "json_object") == 0)
		return 0;
	if (strcmp(type, "json_schema") != 0)
		return dcpd_fail(err, -EINVAL, "options: response_format: type "
		    "\"%.60s\" is unknown: text, json_object and json_schema "
		    "are known", type);
	s = json_object_get(json_object_get(f, "json_schema"), "schema");
	if (s == NULL)
		return dcpd_fail(err, -EINVAL, "options: response_format: "
		    "json_schema: want an object with a \"schema\"");
	*schema = s;
	return 0;
}

static const char *
tool_name(const json_t *tool)
{
	return json_string_value(json_object_get(json_object_get(tool,
	    "function"), "name"));
}

/* *forced: a call must come; *name: of this function, or NULL for any. */
static int
read_choice(const json_t *options, bool *forced, const char **name,
    struct dcpd_err *err)
{
	const json_t *v = json_object_get(options, "tool_choice");
	const char *s = json_string_value(v), *type;

	*forced = false;
	*name = NULL;
	if (v == NULL || json_is_null(v))
		return 0;
	if (s != NULL && (strcmp(s, "auto") == 0 || strcmp(s, "none") == 0))
		return 0;
	*forced = true;
	if (s != NULL && strcmp(s, "required") == 0)
		return 0;
	type = json_string_value(json_object_get(v, "type"));
	*name = tool_name(v);
	if (type == NULL || strcmp(type, "function") != 0 || *name == NULL)
		return dcpd_fail(err, -EINVAL, "options: tool_choice: want "
		    "\"auto\", \"none\", \"required\" or {\"type\": "
		    "\"function\", \"function\": {\"name\": ...}}");
	return 0;
}

static uint32_t
token_named(const struct dcpd_grams *gs, const char *content)
{
	int64_t id = dcpd_token_id(gs->t, content);

	return id < 0 || id >= gs->vocab ? GRAM_NONE : (uint32_t)id;
}

/* --- a forced call ----------------------------------------------------- */

static char *
call_text(enum dcpd_parser parser, const char *name)
{
	char *s = NULL;
	int n = parser == DCPD_PARSE_GLM ?
	    asprintf(&s, "<tool_call>%s", name) :
	    asprintf(&s, "\n\n<\xef\xbd\x9c""DSML\xef\xbd\x9c"
	    "function_calls>\n<\xef\xbd\x9c""DSML\xef\xbd\x9c"
	    "invoke name=\"%s\">\n", name);

	return n < 0 ? NULL : s;
}

/* Texts with which a call of one of the tools begins. */
static int
read_tools(struct dcpd_gram *r, const json_t *tools, const char *only,
    enum dcpd_parser parser, struct dcpd_err *err)
{
	const json_t *t;
	size_t i;

	if (json_array_size(tools) > MAX_TOOLS)
		return dcpd_fail(err, -EINVAL, "options: tools: %zu, at most "
		    "%u can be chosen from", json_array_size(tools),
		    MAX_TOOLS);
	r->lit = calloc(json_array_size(tools) + 1, sizeof *r->lit);
	r->alive = calloc(json_array_size(tools) + 1, sizeof *r->alive);
	if (r->lit == NULL || r->alive == NULL)
		return dcpd_fail(err, -ENOMEM, "tools: out of memory");
	json_array_foreach(tools, i, t) {
		const char *name = tool_name(t);

		if (name == NULL || name[0] == '\0' ||
		    (only != NULL && strcmp(only, name) != 0))
			continue;
		r->lit[r->n_lit] = call_text(parser, name);
		if (r->lit[r->n_lit] == NULL)
			return dcpd_fail(err, -ENOMEM, "tools: out of memory");
		r->alive[r->n_lit++] = true;
	}
	if (r->n_lit == 0)
		return only != NULL ? dcpd_fail(err, -EINVAL, "options: "
		    "tool_choice: no tool is named \"%.100s\"", only) :
		    dcpd_fail(err, -EINVAL, "options: tool_choice: there are "
		    "no tools to choose from");
	return 0;
}

static int
open_call(struct dcpd_gram *r, const json_t *options, const char *name,
    enum dcpd_parser parser, struct dcpd_err *err)
{
	if (parser == DCPD_PARSE_RAW)
		return dcpd_fail(err, -ENOTSUP, "options: tool_choice: calls "
		    "are not parsed here (--tool-call-parser, or "
		    "DCP_SPECIAL_TOKENS): only \"auto\" and \"none\" are "
		    "possible");
	r->then[0] = r->then[1] = GRAM_NONE;
	if (parser == DCPD_PARSE_GLM) {
		r->then[0] = token_named(r->gs, "<arg_key>");
		r->then[1] = token_named(r->gs, "</tool_call>");
		if (r->call == GRAM_NONE || r->then[0] == GRAM_NONE ||
		    r->then[1] == GRAM_NONE)
			return dcpd_fail(err, -ENOTSUP, "options: tool_choice: "
			    "the vocabulary has no tokens for a call");
	}
	r->after = RUN_CALL;
	return read_tools(r, json_object_get(options, "tools"), name, parser,
	    err);
}

/* The added token that text begins with, the longest; NONE: none. */
static uint32_t
added_at(const struct dcpd_tokenizer *t, const char *text, size_t *len)
{
	size_t n = strlen(text);
	uint32_t id = GRAM_NONE;

	*len = 0;
	for (uint32_t i = 0; i < t->n_added; i++)
		if (t->added[i].len <= n && t->added[i].len > *len &&
		    memcmp(t->added[i].content, text, t->added[i].len) == 0) {
			id = t->added[i].id;
			*len = t->added[i].len;
		}
	return id;
}

static void
set(uint32_t *bits, uint32_t id)
{
	if (id != GRAM_NONE)
		bits[id / 32] |= 1u << id % 32;
}

/* Tokens that go on with text, up to an added token in it. */
static void
along(const struct dcpd_grams *gs, const char *text, uint32_t *bits)
{
	const struct gram_node *v = gs->trie->v;
	uint32_t at = 0, k;
	size_t len;

	k = added_at(gs->t, text, &len);
	if (k != GRAM_NONE && k < gs->vocab) {
		set(bits, k);
		return;
	}
	for (; *text != '\0'; text++) {
		if (added_at(gs->t, text, &len) != GRAM_NONE)
			return;
		for (k = at + 1; k < v[at].end; k = v[k].end)
			if (v[k].byte == (uint8_t)*text)
				break;
		if (k >= v[at].end)
			return;
		at = k;
		for (uint32_t i = 0; i < v[at].toks; i++)
			set(bits, gs->trie->tok[v[at].tok0 + i]);
	}
}

static void
mask_call(struct dcpd_gram *r, uint32_t *bits)
{
	memset(bits, 0, r->gs->trie->words * sizeof *bits);
	for (uint32_t i = 0; i < r->n_lit; i++) {
		if (!r->alive[i])
			continue;
		if (r->lit[i][r->off] != '\0') {
			along(r->gs, r->lit[i] + r->off, bits);
		} else {
			set(bits, r->then[0]);
			set(bits, r->then[1]);
		}
	}
}

static int
push_call(struct dcpd_gram *r, uint32_t token)
{
	const char *s;
	bool special, any = false, whole = false;
	size_t n;

	if (token == r->then[0] || token == r->then[1]) {
		for (uint32_t i = 0; i < r->n_lit; i++)
			whole |= r->alive[i] && r->lit[i][r->off] == '\0';
		r->state = RUN_FREE;
		return whole ? 0 : -EPROTO;
	}
	if (dcpd_token_bytes(r->gs->t, token, &s, &n, &special) != 0)
		return -EPROTO;
	for (uint32_t i = 0; i < r->n_lit; i++) {
		r->alive[i] = r->alive[i] &&
		    strncmp(r->lit[i] + r->off, s, n) == 0;
		any |= r->alive[i];
		whole |= r->alive[i] && r->lit[i][r->off + n] == '\0';
	}
	r->off += n;
	/* Where nothing is asked for behind the text, its end is the end. */
	if (whole && r->then[0] == GRAM_NONE)
		r->state = RUN_FREE;
	return any ? 0 : -EPROTO;
}

/* --- JSON -------------------------------------------------------------- */

/* c, copied into memory that stays until the next but one. */
static int
store(struct dcpd_gram *r, const struct gram_cfg *c)
{
	struct gram_arena *a = &r->store[r->turn ^ 1];
	struct gram_cfg *out = &r->cfg;
	const struct gram_level *from = c->up;
	const struct gram_level **to = &out->up;
	struct gram_cfg copy = *c;

	gram_release(a, (struct gram_mark){ NULL, 0 });
	copy.it = gram_alloc(a, c->n * sizeof *c->it);
	if (copy.it == NULL)
		return -ENOMEM;
	memcpy(copy.it, c->it, c->n * sizeof *c->it);
	*out = copy;
	for (; from != NULL; from = from->up) {
		struct gram_level *l = gram_alloc(a, sizeof *l);
		struct gram_item *it = gram_alloc(a, from->n * sizeof *it);

		if (l == NULL || it == NULL)
			return -ENOMEM;
		memcpy(it, from->it, from->n * sizeof *it);
		*l = (struct gram_level){ NULL, it, from->n, from->depth };
		*to = l;
		to = &l->up;
	}
	*to = NULL;
	r->turn ^= 1;
	return 0;
}

static int
open_json(struct dcpd_gram *r, const json_t *schema, struct dcpd_err *err)
{
	struct gram_item it = { .def = G_ROOT, .q = P_VALUE };
	struct gram_cfg c = { .it = &it, .n = 1 };
	int rc = get(r->gs, schema, &r->g, err);

	if (rc != 0)
		return rc;
	r->after = RUN_JSON;
	rc = gram_step_init(&r->step, r->g);
	if (rc == 0)
		rc = store(r, &c);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "grammar: out of memory");
}

static bool
is_eos(const struct dcpd_grams *gs, uint32_t token)
{
	for (uint32_t i = 0; i < gs->n_eos; i++)
		if (gs->eos[i] == token)
			return true;
	return false;
}

static int
push_json(struct dcpd_gram *r, uint32_t token)
{
	struct gram_cfg c = r->cfg, next;
	bool special;
	const char *s;
	size_t n;
	int rc = 0;

	if (r->may_call && !r->begun && token == r->call) {
		r->state = RUN_FREE;
		return 0;
	}
	if (is_eos(r->gs, token)) {
		r->state = RUN_FREE;
		return gram_complete(r->g, &r->cfg) ? 0 : -EPROTO;
	}
	if (dcpd_token_bytes(r->gs->t, token, &s, &n, &special) != 0 || special)
		return -EPROTO;
	for (size_t i = 0; i < n && rc == 0; i++) {
		if (gram_step(&r->step, &c, (uint8_t)s[i], &next) != STEP_OK)
			rc = r->step.arena.failed ? -ENOMEM : -EPROTO;
		c = next;
	}
	r->begun = true;
	if (rc == 0)
		rc = store(r, &c);
	gram_release(&r->step.arena, (struct gram_mark){ NULL, 0 });
	return rc;
}

static int
mask_json(struct dcpd_gram *r, uint32_t *bits)
{
	int rc = gram_mask(r->g, r->gs->trie, &r->step, &r->cfg, bits);

	gram_release(&r->step.arena, (struct gram_mark){ NULL, 0 });
	if (rc != 0)
		return rc;
	if (r->may_call && !r->begun)
		set(bits, r->call);
	if (gram_complete(r->g, &r->cfg))
		for (uint32_t i = 0; i < r->gs->n_eos; i++)
			set(bits, r->gs->eos[i]);
	return 0;
}

/* --- runs -------------------------------------------------------------- */

static int
begin(struct dcpd_gram *r, bool thinking, struct dcpd_err *err)
{
	r->state = thinking ? RUN_REASONING : r->after;
	r->think_end = token_named(r->gs, "</think>");
	if (thinking && r->think_end == GRAM_NONE)
		return dcpd_fail(err, -ENOTSUP, "options: response_format and "
		    "tool_choice with reasoning need a token \"</think>\": "
		    "turn thinking off");
	if (r->after == RUN_JSON && r->gs->n_eos == 0)
		return dcpd_fail(err, -ENOTSUP, "options: response_format "
		    "needs an end token, and this model has none");
	return 0;
}

int
dcpd_gram_open(struct dcpd_grams *gs, const json_t *options,
    enum dcpd_parser parser, bool thinking, struct dcpd_gram **out,
    struct dcpd_err *err)
{
	const json_t *schema, *v = json_object_get(options, "tool_choice");
	struct dcpd_gram *r;
	const char *name;
	bool json, forced;
	int rc;

	DCPD_CHECK(gs, GRAMS_MAGIC);
	if ((rc = read_format(options, &json, &schema, err)) != 0 ||
	    (rc = read_choice(options, &forced, &name, err)) != 0)
		return rc;
	if (!json && !forced)
		return 0;
	r = calloc(1, sizeof *r);
	if (r == NULL)
		return dcpd_fail(err, -ENOMEM, "grammar: out of memory");
	r->magic = RUN_MAGIC;
	r->gs = gs;
	r->call = token_named(gs, "<tool_call>");
	r->may_call = parser == DCPD_PARSE_GLM && r->call != GRAM_NONE &&
	    json_array_size(json_object_get(options, "tools")) > 0 &&
	    !(json_is_string(v) && strcmp(json_string_value(v), "none") == 0);
	/* A forced call comes first, and then there is no other answer. */
	rc = forced ? open_call(r, options, name, parser, err) :
	    open_json(r, schema, err);
	if (rc == 0)
		rc = begin(r, thinking, err);
	if (rc == 0)
		*out = r;
	else
		dcpd_gram_close(r);
	return rc;
}

void
dcpd_gram_close(struct dcpd_gram *r)
{
	if (r == NULL)
		return;
	DCPD_CHECK(r, RUN_MAGIC);
	for (uint32_t i = 0; i < r->n_lit; i++)
		free(r->lit[i]);
	free(r->lit);
	free(r->alive);
	gram_arena_free(&r->store[0]);
	gram_arena_free(&r->store[1]);
	gram_step_free(&r->step);
	if (r->g != NULL)
		put(r->gs, r->g);
	r->magic = 0;
	free(r);
}

uint32_t
dcpd_gram_begins_after(const struct dcpd_gram *r)
{
	return r->state == RUN_REASONING ? r->think_end : GRAM_NONE;
}

uint32_t
dcpd_gram_bans(const struct dcpd_gram *r)
{
	return r->call;
}

int
dcpd_gram_push(struct dcpd_gram *r, uint32_t token)
{
	DCPD_CHECK(r, RUN_MAGIC);
	switch (r->state) {
	case RUN_REASONING:
		if (token == r->think_end)
			r->state = r->after;
		return 0;
	case RUN_CALL:
		return push_call(r, token);
	case RUN_JSON:
		return push_json(r, token);
	case RUN_FREE:
		break;
	}
	return 0;
}

int
dcpd_gram_mask(struct dcpd_gram *r, uint32_t *bits)
{
	DCPD_CHECK(r, RUN_MAGIC);
	switch (r->state) {
	case RUN_CALL:
		mask_call(r, bits);
		return 0;
	case RUN_JSON:
		return mask_json(r, bits);
	default:
		return 1;
	}
}
