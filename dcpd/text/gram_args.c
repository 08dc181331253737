/*
 * A tool's arguments. Models do not write them as one JSON object but one by
 * one in a markup of their own, strings as bare text and the rest as JSON
 * (out_call.c has the reading side). So the schema is compiled as usual, and its
 * object is then taken apart: names to write, values to read, and for strings
 * their automata without quotes and escapes.
 *
 * Where the markup is spelled out in text (DeepSeek's tags), no string may hold
 * "<" or "</" before the tags' U+FF5C; in JSON it can still be written \uff5c.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram_schema.h"
#include "dcpd/text/out.h"

#define TAG_BYTE 0xefu		/* the first of U+FF5C */
#define MAX_OTHER 64u		/* characters of a name that is not listed */
#define MAX_KEY 512u		/* bytes; out_dsml.c's tags have an end, too */

struct cut {
	struct comp c;
	const json_t *params;
	bool tagged;
	uint32_t plain;			/* any string, bare; or NONE */
};

/* --- automata, once more ----------------------------------------------- */

/* What a byte of a bare string is in JSON; 0: it has none. */
static unsigned
in_json(unsigned b, uint8_t *out)
{
	static const char from[] = "\"\\\b\t\n\f\r", to[] = "\"\\btnfr";
	const char *at = b == 0 || b >= 0x80 ? NULL : strchr(from, (int)b);

	if (at != NULL) {
		out[0] = '\\';
		out[1] = (uint8_t)to[at - from];
		return 2;
	}
	out[0] = (uint8_t)b;
	return b < 0x20 ? 0 : 1;
}

static uint32_t
follow(const struct gram_dfa *d, uint32_t q, const uint8_t *s, unsigned n)
{
	for (unsigned i = 0; i < n && q != DFA_DEAD; i++)
		q = d->next[(size_t)q * d->n_cls + d->cls[s[i]]];
	return q;
}

/* How much of "</" has just been read, 0..2, and b after it. */
static unsigned
tag_after(unsigned had, unsigned b)
{
	return b == '<' ? 1 : b == '/' && had == 1 ? 2 : 0;
}

struct remake {
	const struct gram_dfa *d;
	bool raw, tagged;
	bool (*only)(unsigned byte);	/* or NULL: any */
};

/* Where a byte leads from (q, had), or DFA_DEAD. */
static uint32_t
leads_to(const struct remake *m, uint32_t q, unsigned had, unsigned b,
    unsigned *has)
{
	uint8_t s[2] = { (uint8_t)b };
	unsigned n = m->raw ? in_json(b, s) : 1;

	if (n == 0 || (m->tagged && had > 0 && b == TAG_BYTE) ||
	    (m->only != NULL && !m->only(b)))
		return DFA_DEAD;
	*has = m->tagged ? tag_after(had, b) : 0;
	return follow(m->d, q, s, n);
}

/* Edges of one state, equal neighbours as one. */
static void
remake_state(const struct remake *m, struct gram_nfa *a, uint32_t q,
    unsigned had)
{
	unsigned lo = 0, has = 0, now = 0;
	uint32_t to = DFA_DEAD, next;

	for (unsigned b = 0; b <= 256; b++) {
		next = b == 256 ? DFA_DEAD : leads_to(m, q, had, b, &now);
		if (b < 256 && next == to && (next == DFA_DEAD || now == has))
			continue;
		if (to != DFA_DEAD)
			gram_edge(a, 3 * q + had, 3 * to + has, (uint8_t)lo,
			    (uint8_t)(b - 1));
		lo = b;
		to = next;
		has = now;
	}
}

/*
 * A string's automaton without its quotes, or without tags in it, or both. The
 * states of the new one are those of the old, three times: by what tag_after()
 * says. -EDOM: nothing is left of it.
 */
static int
remake(const struct remake *m, struct gram_dfa **out)
{
	static const uint8_t quote[1] = { '"' };
	const struct gram_dfa *d = m->d;
	struct gram_nfa a = { 0 };
	uint32_t end, start = m->raw ? 3 * follow(d, 0, quote, 1) : 0;
	int rc;

	for (uint32_t i = 0; i < 3 * d->n; i++)
		gram_state(&a);
	end = gram_state(&a);
	for (uint32_t q = 0; q < d->n && a.rc == 0; q++) {
		uint32_t last = m->raw ? follow(d, q, quote, 1) : q;

		for (unsigned had = 0; had < 3 && a.rc == 0; had++) {
			remake_state(m, &a, q, had);
			if (a.rc != 0)
				break;
			a.chr[3 * q + had] = d->flags[q] & DFA_CHAR ? 1 : 0;
			if (last != DFA_DEAD && (d->flags[last] & DFA_ACCEPT))
				gram_eps(&a, 3 * q + had, end);
		}
	}
	rc = a.rc != 0 ? a.rc : gram_dfa(&a, start, end, out);
	gram_nfa_free(&a);
	return rc;
}

static int
remade(struct cut *k, int rc)
{
	if (rc == -ENOMEM)
		return schema_no_memory(&k->c);
	return rc == 0 ? 0 : schema_fail(&k->c, rc == -EDOM ?
	    "no string of it can be written in a call" :
	    "patterns and names need too many states in a call: make them "
	    "simpler");
}

static bool
is_string(const struct gram_def *d)
{
	return d->kind == G_DFA ? !d->lazy : d->kind == G_LIT &&
	    d->lit[0] == '"';
}

static bool
has_tag(const char *s)
{
	return strstr(s, "<\uff5c") != NULL || strstr(s, "</\uff5c") != NULL;
}

/* Definition i anew, if it is a string's automaton of its own. */
static int
without_tag(struct cut *k, uint32_t i)
{
	struct gram_def *def = &k->c.g->def[i];
	struct remake m = { .d = def->dfa, .tagged = true };
	struct gram_dfa *d;
	int rc;

	if (def->kind == G_LIT && has_tag(def->lit))
		return schema_fail(&k->c, "a name or a literal holds what ends "
		    "an argument in this model's calls");
	if (def->kind != G_DFA || !def->own || def->lazy)
		return 0;
	rc = remade(k, remake(&m, &d));
	if (rc != 0)
		return rc;
	k->c.effort += d->work;
	/* Others still use that of any string. */
	if (i != GRAM_STRING)
		gram_dfa_free(def->dfa);
	def->dfa = d;
	return 0;
}

/* No string of the grammar may hold a tag. */
static int
without_tags(struct cut *k)
{
	struct gram *g = k->c.g;
	struct gram_dfa *plain = g->def[GRAM_STRING].dfa;
	int rc = 0;

	for (uint32_t i = 0; i < g->n_def && rc == 0; i++)
		rc = without_tag(k, i);
	for (uint32_t i = 0; i < g->n_def; i++)
		if (g->def[i].kind == G_DFA && !g->def[i].own)
			g->def[i].dfa = g->def[GRAM_STRING].dfa;
	if (g->def[GRAM_STRING].dfa != plain)
		gram_dfa_free(plain);
	return rc;
}

/* --- bare strings ------------------------------------------------------ */

static int
raw_literal(struct cut *k, const char *lit, uint32_t *id)
{
	json_t *v = json_loads(lit, JSON_DECODE_ANY, NULL);
	char *s = v == NULL ? NULL : strdup(json_string_value(v));
	int rc;

	json_decref(v);
	if (s == NULL)
		return schema_no_memory(&k->c);
	rc = schema_add_def(&k->c, G_LIT, id);
	if (rc != 0) {
		free(s);
		return rc;
	}
	k->c.g->def[*id].lit = s;
	k->c.g->def[*id].len = (uint32_t)strlen(s);
	return 0;
}

/* Definition d without quotes; only: of these bytes. */
static int
raw_string(struct cut *k, uint32_t d, bool (*only)(unsigned), uint32_t *id)
{
	const struct gram_def from = k->c.g->def[d];
	struct remake m = { from.dfa, true, k->tagged, only };
	struct gram_dfa *dfa = NULL;
	struct gram_def *to;
	int rc;

	/* One for all, so that masks are made once. */
	if (d == GRAM_STRING && only == NULL && k->plain != GRAM_NONE) {
		*id = k->plain;
		return 0;
	}
	if (from.kind == G_LIT) {
		rc = raw_literal(k, from.lit, id);
	} else {
		rc = remade(k, remake(&m, &dfa));
		if (rc == 0)
			rc = schema_add_dfa(&k->c, dfa, true, id);
	}
	if (rc != 0)
		return rc;
	to = &k->c.g->def[*id];
	to->lazy = to->raw = true;
	to->height = 0;
	to->counted = from.counted;
	if (from.counted) {
		to->min = from.min;
		to->max = from.max;
	}
	if (d == GRAM_STRING && only == NULL)
		k->plain = *id;
	return 0;
}

/* Its strings, of a value that is written as text. */
static int
raw_values(struct cut *k, struct gram_arg *a)
{
	const struct gram_value *v = &k->c.g->value[a->value];
	int rc = 0;

	a->raw = calloc(v->n + 1, sizeof *a->raw);
	if (a->raw == NULL)
		return schema_no_memory(&k->c);
	for (uint32_t i = 0; i < v->n && rc == 0; i++)
		if (is_string(&k->c.g->def[v->alt[i]]))
			rc = raw_string(k, v->alt[i], NULL,
			    &a->raw[a->n_raw++]);
	if (rc == 0 && a->n_raw == 0)
		rc = schema_fail(&k->c, "no value of it can be written in a "
		    "call");
	return rc;
}

/* --- the object -------------------------------------------------------- */

static bool
name_byte(unsigned b)
{
	return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') ||
	    (b >= 'A' && b <= 'Z') || b == '_' || b == '-';
}

/* A name that the markup carries unharmed. */
static bool
writable(const char *s)
{
	size_t n = strlen(s);

	if (n == 0 || n > MAX_KEY || s[0] == ' ' || s[n - 1] == ' ')
		return false;
	for (; *s != '\0'; s++)
		if ((unsigned char)*s < 0x20 || strchr("\"<>", *s) != NULL)
			return false;
	return true;
}

/* Property p of the object, if it can be written. */
static int
cut_arg(struct cut *k, struct gram_args *to, const struct gram_prop *p)
{
	const char *lit = k->c.g->def[p->key].lit;
	json_t *name = json_loads(lit, JSON_DECODE_ANY, NULL);
	struct gram_arg *a = &to->v[to->n];
	size_t at;
	int rc = 0;

	if (name == NULL)
		return schema_no_memory(&k->c);
	at = schema_down(&k->c, "properties", -1);
	schema_down(&k->c, json_string_value(name), -1);
	if (writable(json_string_value(name))) {
		a->key = strdup(json_string_value(name));
		a->required = p->required;
		a->value = p->value;
		to->n++;
		if (p->required)
			to->must = to->n;
		a->text = a->key != NULL &&
		    out_arg_is_text(k->params, a->key);
		rc = a->key == NULL ? schema_no_memory(&k->c) :
		    a->text ? raw_values(k, a) : 0;
	} else if (p->required) {
		rc = schema_fail(&k->c, "required, but the name cannot be "
		    "written in a call: want up to %u bytes without quotes, "
		    "\"<\", \">\" and control characters", MAX_KEY);
	}
	schema_up(&k->c, at);
	json_decref(name);
	return rc;
}

static int
cut_object(struct cut *k, uint32_t object)
{
	struct gram *g = k->c.g;
	struct gram_def o = g->def[object];
	struct gram_args *to = calloc(1, sizeof *to);
	size_t at;
	int rc = 0;

	g->args = to;
	if (to == NULL || (to->v = calloc(o.n_props + 1, sizeof *to->v)) ==
	    NULL)
		return schema_no_memory(&k->c);
	for (uint32_t i = 0; i < o.n_props && rc == 0; i++)
		rc = cut_arg(k, to, &o.props[i]);
	if (rc != 0 || o.extra == GRAM_NONE)
		return rc;
	to->has_extra = true;
	to->extra.value = o.extra;
	at = schema_down(&k->c, "additionalProperties", -1);
	to->extra.text = out_arg_is_text(k->params, NULL);
	rc = raw_string(k, o.extra_key, name_byte, &to->extra_key);
	if (rc == 0) {
		g->def[to->extra_key].counted = true;
		g->def[to->extra_key].min = 1;
		g->def[to->extra_key].max = MAX_OTHER;
	}
	if (rc == 0 && to->extra.text)
		rc = raw_values(k, &to->extra);
	schema_up(&k->c, at);
	return rc;
}

static int
find_object(struct cut *k, uint32_t *object)
{
	const struct gram *g = k->c.g;
	const struct gram_value *v = &g->value[g->root];
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->n; i++)
		if (g->def[v->alt[i]].kind == G_OBJECT) {
			*object = v->alt[i];
			n++;
		}
	return n == 1 ? 0 : schema_fail(&k->c, n == 0 ? "want the schema of an "
	    "object: a call's arguments have names" : "anyOf and oneOf are "
	    "not supported at the top of a forced call's arguments");
}

static void
free_arg(struct gram_arg *a)
{
	free(a->key);
	free(a->raw);
}

void
gram_args_free(struct gram_args *a)
{
	if (a == NULL)
		return;
	for (uint32_t i = 0; i < a->n; i++)
		free_arg(&a->v[i]);
	free_arg(&a->extra);
	free(a->v);
	free(a);
}

int
gram_args_compile(const json_t *params, bool tagged, struct gram **out,
    struct dcpd_err *err)
{
	struct cut k = { .c.err = err, .params = params, .tagged = tagged,
	    .plain = GRAM_NONE };
	uint32_t object = 0;
	struct gram *g;
	int rc;

	if (json_is_object(params) && json_object_size(params) == 0)
		params = NULL;		/* said nothing: any object */
	rc = gram_compile(params, &g, err);
	if (rc != 0)
		return rc;
	k.c.g = g;
	k.c.effort = g->effort;
	rc = find_object(&k, &object);
	if (rc == 0 && tagged)
		rc = without_tags(&k);
	if (rc == 0)
		rc = cut_object(&k, object);
	g->effort = k.c.effort > g->effort ? k.c.effort : g->effort;
	if (rc == 0)
		*out = g;
	else
		gram_free(g);
	return rc;
}
