/*
 * Constrained decoding as the scheduler sees it: a request's options become a
 * run, that takes the answer's tokens and says which may come next. Runs belong
 * to a text job; grammars and the trie are shared by all.
 *
 *	reasoning -> forced calls or JSON -> end token
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

enum run_state {
	RUN_REASONING,
	RUN_CALL,		/* forced calls */
	RUN_JSON,
	RUN_FREE,		/* nothing is asked any more */
};

struct dcpd_gram {
	unsigned magic;
	struct dcpd_grams *gs;
	enum run_state state, after;	/* after reasoning */
	uint32_t think_end, call;	/* tokens, or NONE */
	bool may_call;			/* a call may come in JSON's place */
	bool begun;			/* JSON */
	struct gram *g;
	struct gram_read read;
	struct gram_call *forced;
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

void
gram_put(struct dcpd_grams *gs, struct gram *g)
{
	pthread_mutex_lock(&gs->lock);
	DCPD_ASSERT(g->refs > 0);
	g->refs--;
	drop_old(gs);
	pthread_mutex_unlock(&gs->lock);
}

/* What grammars are kept by: the use and the schema's text; or NULL. */
static char *
key_of(const json_t *schema, enum gram_use use)
{
	char *text = schema == NULL ? strdup("") :
	    json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
	char *key;

	if (text == NULL || asprintf(&key, "%u%s", (unsigned)use, text) < 0)
		key = NULL;
	free(text);
	return key;
}

static int
compile(const json_t *schema, enum gram_use use, struct gram **out,
    struct dcpd_err *err)
{
	return use == GRAM_JSON ? gram_compile(schema, out, err) :
	    gram_args_compile(schema, use == GRAM_TAGGED, out, err);
}

int
gram_get(struct dcpd_grams *gs, const json_t *schema, enum gram_use use,
    struct gram **out, struct dcpd_err *err)
{
	char *key = key_of(schema, use);
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
		rc = compile(schema, use, &g, err);
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

const char *
gram_tool_name(const json_t *tool)
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
	*name = gram_tool_name(v);
	if (type == NULL || strcmp(type, "function") != 0 || *name == NULL)
		return dcpd_fail(err, -EINVAL, "options: tool_choice: want "
		    "\"auto\", \"none\", \"required\" or {\"type\": "
		    "\"function\", \"function\": {\"name\": ...}}");
	return 0;
}

uint32_t
gram_token(const struct dcpd_grams *gs, const char *content)
{
	int64_t id = dcpd_token_id(gs->t, content);

	return id < 0 || id >= gs->vocab ? GRAM_NONE : (uint32_t)id;
}

void
gram_set_bit(uint32_t *bits, uint32_t id)
{
	if (id != GRAM_NONE)
		bits[id / 32] |= 1u << id % 32;
}

bool
gram_is_eos(const struct dcpd_grams *gs, uint32_t token)
{
	for (uint32_t i = 0; i < gs->n_eos; i++)
		if (gs->eos[i] == token)
			return true;
	return false;
}

/* --- JSON -------------------------------------------------------------- */

static int
open_json(struct dcpd_gram *r, const json_t *schema, struct dcpd_err *err)
{
	int rc = gram_get(r->gs, schema, GRAM_JSON, &r->g, err);

	if (rc != 0)
		return rc;
	r->after = RUN_JSON;
	rc = gram_read_value(&r->read, r->g, r->g->root);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "grammar: out of memory");
}

static int
push_json(struct dcpd_gram *r, uint32_t token)
{
	bool special;
	const char *s;
	size_t n;

	if (r->may_call && !r->begun && token == r->call) {
		r->state = RUN_FREE;
		return 0;
	}
	if (gram_is_eos(r->gs, token)) {
		r->state = RUN_FREE;
		return gram_read_complete(&r->read) ? 0 : -EPROTO;
	}
	if (dcpd_token_bytes(r->gs->t, token, &s, &n, &special) != 0 || special)
		return -EPROTO;
	r->begun = true;
	return gram_read_push(&r->read, s, n);
}

static void
mask_end(const struct dcpd_grams *gs, uint32_t *bits)
{
	for (uint32_t i = 0; i < gs->n_eos; i++)
		gram_set_bit(bits, gs->eos[i]);
}

static int
mask_json(struct dcpd_gram *r, uint32_t *bits)
{
	int rc = gram_read_mask(&r->read, r->gs->trie, bits);

	if (rc != 0)
		return rc;
	if (r->may_call && !r->begun)
		gram_set_bit(bits, r->call);
	if (gram_read_complete(&r->read))
		mask_end(r->gs, bits);
	return 0;
}

/* --- forced calls ------------------------------------------------------ */

static int
push_call(struct dcpd_gram *r, uint32_t token)
{
	if (!gram_call_may_end(r->forced) || !gram_is_eos(r->gs, token))
		return gram_call_push(r->forced, token);
	r->state = RUN_FREE;
	return 0;
}

static int
mask_call(struct dcpd_gram *r, uint32_t *bits)
{
	int rc = gram_call_mask(r->forced, bits);

	if (rc == 0 && gram_call_may_end(r->forced))
		mask_end(r->gs, bits);
	return rc;
}

/* --- runs -------------------------------------------------------------- */

static int
begin(struct dcpd_gram *r, bool thinking, struct dcpd_err *err)
{
	r->state = thinking ? RUN_REASONING : r->after;
	r->think_end = gram_token(r->gs, "</think>");
	if (thinking && r->think_end == GRAM_NONE)
		return dcpd_fail(err, -ENOTSUP, "options: response_format and "
		    "tool_choice with reasoning need a token \"</think>\": "
		    "turn thinking off");
	if (r->gs->n_eos == 0)
		return dcpd_fail(err, -ENOTSUP, "options: response_format and "
		    "tool_choice need an end token, and this model has none");
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
	r->call = gram_token(gs, "<tool_call>");
	r->may_call = parser == DCPD_PARSE_GLM && r->call != GRAM_NONE &&
	    json_array_size(json_object_get(options, "tools")) > 0 &&
	    !(json_is_string(v) && strcmp(json_string_value(v), "none") == 0);
	/* A forced call comes first, and then there is no other answer. */
	if (forced) {
		r->after = RUN_CALL;
		rc = gram_call_open(gs, options, name, parser, &r->forced,
		    err);
	} else {
		rc = open_json(r, schema, err);
	}
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
	gram_call_close(r->forced);
	gram_read_close(&r->read);
	if (r->g != NULL)
		gram_put(r->gs, r->g);
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
		return mask_call(r, bits);
	case RUN_JSON:
		return mask_json(r, bits);
	default:
		return 1;
	}
}
