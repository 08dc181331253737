/*
 * A JSON schema (2020-12, and what is in use of older drafts) as a grammar. A
 * keyword is understood, an annotation that is ignored, or refused by name with
 * its place; doc/grammar.md has the list.
 *
 * A schema that was seen is not compiled again: values are remembered by the
 * schema's text, which is how recursion ends. A value may then be one that is
 * still being filled, so alternatives are gathered at the end (gram_link.c).
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram_schema.h"
#include "dcpd/text/out.h"

/* --- errors, and where ------------------------------------------------- */

int
schema_fail(struct comp *c, const char *fmt, ...)
{
	char what[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	return dcpd_fail(c->err, -EINVAL, "schema at #%s: %s", c->path, what);
}

int
schema_no_memory(struct comp *c)
{
	return dcpd_fail(c->err, -ENOMEM, "schema: out of memory");
}

/* The error that a part has set, with the place before it. */
int
schema_placed(struct comp *c, int rc)
{
	if (rc != 0 && c->err != NULL)
		dcpd_fail_in(c->err, "schema at #%s", c->path);
	return rc;
}

/* One step down; returns what to give to schema_up(). */
size_t
schema_down(struct comp *c, const char *key, long long index)
{
	size_t n = strlen(c->path);

	if (index >= 0)
		snprintf(c->path + n, sizeof c->path - n, "/%s/%lld", key,
		    index);
	else
		snprintf(c->path + n, sizeof c->path - n, "/%s", key);
	return n;
}

void
schema_up(struct comp *c, size_t n)
{
	c->path[n] = '\0';
}

/* --- keywords ---------------------------------------------------------- */

static const char *const known[] = {
	"type", "properties", "required", "additionalProperties", "items",
	"prefixItems", "minItems", "maxItems", "enum", "const", "anyOf",
	"oneOf", "allOf", "$ref", "$defs", "definitions", "minLength",
	"maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
	"exclusiveMaximum",
	/* annotations */
	"title", "description", "default", "examples", "example", "format",
	"$schema", "$id", "$comment", "$anchor", "deprecated", "readOnly",
	"writeOnly", "contentMediaType", "contentEncoding", "discriminator",
	"strict", "markdownDescription", "enumNames", "propertyOrdering",
};

/* With these values a keyword that is not supported says nothing. */
static bool
says_nothing(const char *key, const json_t *v)
{
	static const char *const least[] = { "minProperties", "minContains" };

	for (unsigned i = 0; i < 2; i++)
		if (strcmp(key, least[i]) == 0)
			return json_is_integer(v) &&
			    json_integer_value(v) == 0;
	if (strcmp(key, "multipleOf") == 0)
		return false;
	if (strcmp(key, "uniqueItems") == 0 || strcmp(key, "nullable") == 0)
		return json_is_false(v);
	if (strcmp(key, "patternProperties") == 0)
		return json_is_object(v) && json_object_size(v) == 0;
	if (strcmp(key, "unevaluatedProperties") == 0)
		return json_is_true(v);
	return strncmp(key, "x-", 2) == 0;
}

static bool
is_known(const char *key)
{
	for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(key, known[i]) == 0)
			return true;
	return false;
}

static int
check_keywords(struct comp *c, const json_t *s)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)s, key, v)
		if (!is_known(key) && !says_nothing(key, v))
			return schema_fail(c, "\"%.60s\" is not supported in "
			    "constrained decoding: remove it, and check that "
			    "part of the answer yourself", key);
	return 0;
}

/* --- references and allOf ---------------------------------------------- */

static int
resolve(struct comp *c, const json_t *ref, const json_t **out)
{
	const char *text = json_string_value(ref);
	int rc = text == NULL ? -EINVAL : out_follow_ref(c->root, text, out);

	if (rc == -EINVAL)
		return schema_fail(c, "$ref: want \"#\" or \"#/...\", a place "
		    "in this schema");
	if (rc == -ENOENT)
		return schema_fail(c, "$ref \"%.100s\" leads nowhere", text);
	return rc != 0 ? schema_no_memory(c) : 0;
}

/* s without what only describes it, without `key`; a new reference. */
static json_t *
without(const json_t *s, const char *key)
{
	static const char *const describe[] = { "title", "description",
		"default", "examples", "example", "format", "$defs",
		"definitions", "$schema", "$id", "$comment", "discriminator",
		"strict", "deprecated", NULL };
	json_t *out = json_copy((json_t *)s);

	json_object_del(out, key);
	for (unsigned i = 0; describe[i] != NULL; i++)
		json_object_del(out, describe[i]);
	return out;
}

static int flat(struct comp *, const json_t *, unsigned depth, json_t **);

/* What a merge looks at, besides one schema. */
static uint32_t
weight(const json_t *s)
{
	static const char *const list[] = { "enum", "required", "anyOf",
		"oneOf" };
	size_t n = json_object_size(s) +
	    json_object_size(json_object_get(s, "properties"));

	for (unsigned i = 0; i < sizeof list / sizeof *list; i++)
		n += json_array_size(json_object_get(s, list[i]));
	return n < GRAM_MAX_WORK ? (uint32_t)n : GRAM_MAX_WORK;
}

/* *sum and s, merged. */
static int
merge_in(struct comp *c, json_t **sum, const json_t *s, unsigned depth)
{
	json_t *one, *more;
	int rc = flat(c, s, depth + 1, &one);

	if (rc != 0)
		return rc;
	c->work += weight(*sum) + weight(one);
	more = gram_merge(*sum, one, c->err);
	json_decref(one);
	if (more == NULL)
		return schema_placed(c, -EINVAL);
	json_decref(*sum);
	*sum = more;
	return 0;
}

/* s without $ref and allOf at its top; a new reference. */
static int
flat(struct comp *c, const json_t *s, unsigned depth, json_t **out)
{
	const json_t *target, *all = json_object_get(s, "allOf"), *v;
	const json_t *ref = json_object_get(s, "$ref");
	json_t *sum, *rest;
	size_t i;
	int rc = 0;

	if (++c->work > GRAM_MAX_WORK)
		return schema_fail(c, "it becomes more than %u schemas when "
		    "its parts are put together", GRAM_MAX_WORK);
	if (depth > GRAM_MAX_NEST)
		return schema_fail(c, "$ref and allOf lead on for ever, or "
		    "more than %u deep", GRAM_MAX_NEST);
	if (ref == NULL && all == NULL) {
		*out = json_incref((json_t *)s);
		return 0;
	}
	if (all != NULL && !json_is_array(all))
		return schema_fail(c, "allOf: want an array");
	rest = without(s, "$ref");
	json_object_del(rest, "allOf");
	sum = rest;
	if (ref != NULL) {
		rc = resolve(c, ref, &target);
		if (rc == 0)
			rc = merge_in(c, &sum, target, depth);
	}
	json_array_foreach(all, i, v)
		if (rc == 0)
			rc = merge_in(c, &sum, v, depth);
	if (rc == 0)
		*out = sum;
	else
		json_decref(sum);
	return rc;
}

/* --- definitions ------------------------------------------------------- */

int
schema_add_def(struct comp *c, enum gram_kind kind, uint32_t *id)
{
	struct gram *g = c->g;
	uint32_t cap;
	void *p;

	if (g->n_def >= GRAM_MAX_DEFS)
		return schema_fail(c, "more than %u objects, arrays, names and "
		    "literals", GRAM_MAX_DEFS);
	if (g->n_def == g->cap_def) {
		cap = g->cap_def == 0 ? 64 : 2 * g->cap_def;
		p = realloc(g->def, cap * sizeof *g->def);
		if (p == NULL)
			return schema_no_memory(c);
		g->def = p;
		g->cap_def = cap;
	}
	*id = g->n_def++;
	g->def[*id] = (struct gram_def){ .kind = kind, .max = GRAM_NONE,
	    .items = GRAM_NONE, .extra = GRAM_NONE, .extra_key = GRAM_NONE,
	    .height = GRAM_NONE };
	return 0;
}

static int
add_value(struct comp *c, uint32_t *id)
{
	struct gram *g = c->g;
	uint32_t cap;
	void *p;

	if (g->n_value == g->cap_value) {
		cap = g->cap_value == 0 ? 64 : 2 * g->cap_value;
		p = realloc(g->value, cap * sizeof *g->value);
		if (p == NULL)
			return schema_no_memory(c);
		g->value = p;
		g->cap_value = cap;
	}
	*id = g->n_value++;
	g->value[*id] = (struct gram_value){ .height = GRAM_NONE };
	return 0;
}

static int
push(struct comp *c, uint32_t **v, uint32_t *n, uint32_t *cap, uint32_t x)
{
	uint32_t more, *p;

	if (*n == *cap) {
		more = *cap == 0 ? 4 : 2 * *cap;
		p = realloc(*v, more * sizeof *p);
		if (p == NULL)
			return schema_no_memory(c);
		*v = p;
		*cap = more;
	}
	(*v)[(*n)++] = x;
	return 0;
}

int
schema_add_alt(struct comp *c, uint32_t value, uint32_t def)
{
	struct gram_value *v = &c->g->value[value];

	return push(c, &v->alt, &v->n, &v->cap, def);
}

int
schema_add_also(struct comp *c, uint32_t value, uint32_t other)
{
	struct gram_value *v = &c->g->value[value];

	return push(c, &v->also, &v->n_also, &v->cap_also, other);
}

int
schema_add_dfa(struct comp *c, struct gram_dfa *d, bool lazy, uint32_t *id)
{
	uint64_t bytes = (uint64_t)d->n * (d->n_cls * sizeof *d->next + 2) +
	    sizeof *d;
	int rc = 0;

	c->g->bytes += bytes;
	c->effort += d->work;
	if (c->effort > GRAM_MAX_EFFORTS)
		rc = schema_fail(c, "patterns, names and bounds take too long "
		    "to prepare: make them fewer or simpler");
	else if (c->g->bytes > GRAM_MAX_STATES * 64ull)
		rc = schema_fail(c, "patterns, names and bounds need more than "
		    "%u KiB", GRAM_MAX_STATES / 16);
	if (rc == 0)
		rc = schema_add_def(c, G_DFA, id);
	if (rc != 0) {
		gram_dfa_free(d);
		return rc;
	}
	c->g->def[*id].dfa = d;
	c->g->def[*id].own = true;
	c->g->def[*id].lazy = lazy;
	return 0;
}

/* Of more than 64 bits, or as large: its digits may be gone (bigjson.h). */
static bool
has_huge(const json_t *v)
{
	const char *key;
	json_t *kid;
	size_t i;

	json_array_foreach(v, i, kid)
		if (has_huge(kid))
			return true;
	json_object_foreach((json_t *)v, key, kid)
		if (has_huge(kid))
			return true;
	return json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63;
}

/* v as JSON, to the letter. */
int
schema_add_literal(struct comp *c, const json_t *v, uint32_t *id)
{
	char *text;
	int rc;

	if (has_huge(v))
		return schema_fail(c, "a number of 2^63 or above is not "
		    "supported in enum and const");
	text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
	if (text == NULL)
		return schema_no_memory(c);
	rc = schema_add_def(c, G_LIT, id);
	if (rc != 0) {
		free(text);
		return rc;
	}
	c->g->def[*id].lit = text;
	c->g->def[*id].len = (uint32_t)strlen(text);
	c->g->def[*id].lazy = json_is_number(v);
	return 0;
}

/* --- a schema ---------------------------------------------------------- */

/* anyOf or oneOf, with what stands beside it put into each branch. */
static int
branches(struct comp *c, const json_t *s, const char *key, uint32_t value)
{
	const json_t *list = json_object_get(s, key), *v;
	json_t *rest, *one;
	uint32_t id;
	size_t i;
	int rc = 0;

	if (!json_is_array(list) || json_array_size(list) == 0)
		return schema_fail(c, "%s: want an array that is not empty",
		    key);
	rest = without(s, key);
	json_array_foreach(list, i, v) {
		one = json_object_size(rest) == 0 ?
		    json_incref((json_t *)v) :
		    json_pack("{s:[O,O]}", "allOf", rest, v);
		rc = one == NULL ? schema_no_memory(c) :
		    schema_below(c, one, key, (long long)i, &id);
		json_decref(one);
		if (rc == 0)
			rc = schema_add_also(c, value, id);
		if (rc != 0)
			break;
	}
	json_decref(rest);
	return rc;
}

static int
fill(struct comp *c, const json_t *s, uint32_t value)
{
	const json_t *target;
	json_t *rest, *merged;
	uint32_t id;
	bool alone;
	int rc;

	if (json_is_true(s)) {
		rc = schema_any(c, &id);
		return rc != 0 ? rc : schema_add_also(c, value, id);
	}
	if (json_is_false(s))
		return 0;
	if (!json_is_object(s))
		return schema_fail(c, "want a schema: an object, true or "
		    "false");
	rc = check_keywords(c, s);
	if (rc != 0)
		return rc;
	if (json_object_get(s, "$ref") != NULL) {
		rest = without(s, "$ref");
		alone = json_object_size(rest) == 0;
		json_decref(rest);
		if (alone) {
			rc = resolve(c, json_object_get(s, "$ref"), &target);
			if (rc == 0)
				rc = schema_value(c, target, &id);
			return rc != 0 ? rc : schema_add_also(c, value, id);
		}
	}
	if (json_object_get(s, "$ref") != NULL ||
	    json_object_get(s, "allOf") != NULL) {
		rc = flat(c, s, 0, &merged);
		if (rc == 0) {
			rc = schema_value(c, merged, &id);
			json_decref(merged);
		}
		return rc != 0 ? rc : schema_add_also(c, value, id);
	}
	if (json_object_get(s, "anyOf") != NULL)
		return branches(c, s, "anyOf", value);
	if (json_object_get(s, "oneOf") != NULL)
		return branches(c, s, "oneOf", value);
	if (json_object_get(s, "enum") != NULL ||
	    json_object_get(s, "const") != NULL)
		return schema_enumerated(c, s, value);
	return schema_typed(c, s, value);
}

/* The value that a schema describes, compiled when it is new. */
int
schema_value(struct comp *c, const json_t *s, uint32_t *id)
{
	char *text = json_dumps(s, JSON_ENCODE_ANY | JSON_COMPACT);
	const json_t *known_as;
	int rc;

	if (text == NULL)
		return schema_no_memory(c);
	known_as = json_object_get(c->memo, text);
	if (known_as != NULL) {
		*id = (uint32_t)json_integer_value(known_as);
		free(text);
		return 0;
	}
	c->text += strlen(text);
	rc = add_value(c, id);
	if (rc == 0 && json_object_set_new(c->memo, text,
	    json_integer(*id)) != 0)
		rc = schema_no_memory(c);
	free(text);
	if (rc == 0 && (++c->work > GRAM_MAX_WORK ||
	    c->text > 64 * GRAM_MAX_SCHEMA))
		rc = schema_fail(c, "it becomes too large when its parts are "
		    "put together");
	if (rc == 0 && ++c->depth > GRAM_MAX_NEST)
		rc = schema_fail(c, "schemas nested more than %u deep",
		    GRAM_MAX_NEST);
	if (rc != 0)
		return rc;
	rc = fill(c, s, *id);
	c->depth--;
	return rc;
}

int
schema_below(struct comp *c, const json_t *s, const char *key,
    long long index, uint32_t *id)
{
	size_t n = schema_down(c, key, index);
	int rc = schema_value(c, s, id);

	schema_up(c, n);
	return rc;
}

int
schema_compile(struct comp *c)
{
	int rc = schema_any_string(c);

	return rc != 0 ? rc : schema_value(c, c->root, &c->g->root);
}
