/*
 * What the types' keywords say: strings, numbers, arrays, objects, and values
 * that are given to the letter. A part of gram_schema.c, which decides what is
 * asked here.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram_schema.h"

/* How many of keys s has. */
static unsigned
has_any(const json_t *s, const char *const *keys)
{
	unsigned n = 0;

	for (; *keys != NULL; keys++)
		n += json_object_get(s, *keys) != NULL;
	return n;
}

static const char *const of_object[] = { "properties", "required",
	"additionalProperties", NULL };
static const char *const of_array[] = { "items", "prefixItems", "minItems",
	"maxItems", NULL };
static const char *const of_string[] = { "minLength", "maxLength", "pattern",
	NULL };
static const char *const of_number[] = { "minimum", "maximum",
	"exclusiveMinimum", "exclusiveMaximum", NULL };

/* --- strings and numbers ----------------------------------------------- */

/* A non-negative integer, or NULL: not given. */
static int
count_of(struct comp *c, const json_t *s, const char *key, uint32_t *n)
{
	const json_t *v = json_object_get(s, key);
	double x = json_number_value(v);

	if (v == NULL)
		return 0;
	if (!json_is_number(v) || x < 0 || x != floor(x))
		return schema_fail(c, "%s: want an integer from 0", key);
	*n = x >= 1e9 ? 1000000000u : (uint32_t)x;
	return 0;
}

/* Any string: \u but for NUL and surrogates, which not every reader takes. */
static int
any_string(struct gram_dfa **out)
{
	static const struct gram_range any = { 0, 0x10ffff };
	struct gram_nfa a = { 0 };
	uint32_t start = gram_state(&a), c = gram_state(&a);
	uint32_t end = gram_state(&a), esc = gram_state(&a);
	uint32_t h[4], zero[3], d;
	int rc;

	gram_edge(&a, start, c, '"', '"');
	gram_edge(&a, c, end, '"', '"');
	gram_char(&a, c, c, &any, 1);
	gram_edge(&a, c, esc, '\\', '\\');
	gram_edge(&a, esc, c, '/', '/');
	for (unsigned i = 0; i < 4; i++)
		h[i] = gram_state(&a);
	for (unsigned i = 0; i < 3; i++)
		zero[i] = gram_state(&a);
	d = gram_state(&a);
	gram_edge(&a, esc, h[0], 'u', 'u');
	/* The first digit: not 0, which may become NUL; d: below 0xd800. */
	gram_edge(&a, h[0], h[1], '1', '9');
	for (unsigned low = 0; low <= 32; low += 32) {
		uint8_t base = (uint8_t)('A' + low);

		gram_edge(&a, h[0], h[1], base, (uint8_t)(base + 2));
		gram_edge(&a, h[0], h[1], (uint8_t)(base + 4),
		    (uint8_t)(base + 5));
		gram_edge(&a, h[0], d, (uint8_t)(base + 3),
		    (uint8_t)(base + 3));
		for (unsigned i = 1; i < 4; i++)
			gram_edge(&a, h[i], i == 3 ? c : h[i + 1], base,
			    (uint8_t)(base + 5));
		for (unsigned i = 0; i < 3; i++)
			gram_edge(&a, zero[i], i == 2 ? c : h[i + 2], base,
			    (uint8_t)(base + 5));
	}
	gram_edge(&a, d, h[2], '0', '7');
	gram_edge(&a, h[0], zero[0], '0', '0');
	for (unsigned i = 1; i < 4; i++)
		gram_edge(&a, h[i], i == 3 ? c : h[i + 1], '0', '9');
	for (unsigned i = 0; i < 3; i++)
		gram_edge(&a, zero[i], i == 2 ? c : h[i + 2], '1', '9');
	gram_edge(&a, zero[0], zero[1], '0', '0');
	gram_edge(&a, zero[1], zero[2], '0', '0');
	rc = gram_dfa(&a, start, end, out);
	gram_nfa_free(&a);
	return rc;
}

/* The first definition of all. */
int
schema_any_string(struct comp *c)
{
	struct gram_dfa *d;
	uint32_t id;
	int rc;

	if (any_string(&d) != 0)
		return schema_no_memory(c);
	rc = schema_add_dfa(c, d, false, &id);
	DCPD_ASSERT(rc != 0 || id == GRAM_STRING);
	return rc;
}

static int
pattern(struct comp *c, const json_t *v, uint32_t min, uint32_t max,
    uint32_t *id)
{
	struct gram_dfa *d, *counted;
	int rc;

	if (!json_is_string(v) || json_string_length(v) !=
	    strlen(json_string_value(v)))
		return schema_fail(c, "pattern: want a string");
	rc = schema_placed(c, gram_regex(json_string_value(v), &d, c->err));
	if (rc != 0)
		return rc;
	if (min > 0 || max != GRAM_NONE) {
		rc = gram_dfa_count(d, min, max, &counted);
		gram_dfa_free(d);
		if (rc == -ENOMEM)
			return schema_no_memory(c);
		if (rc != 0)
			return schema_fail(c, rc == -EDOM ? "no string has "
			    "both this pattern and this length" : "pattern "
			    "and minLength or maxLength together need too "
			    "many states: give one of them");
		d = counted;
	}
	return schema_add_dfa(c, d, false, id);
}

static int
string(struct comp *c, const json_t *s, uint32_t value)
{
	const json_t *p = json_object_get(s, "pattern");
	uint32_t min = 0, max = GRAM_NONE, id = GRAM_STRING;
	int rc;

	if ((rc = count_of(c, s, "minLength", &min)) != 0 ||
	    (rc = count_of(c, s, "maxLength", &max)) != 0)
		return rc;
	if (min > max)
		return schema_fail(c, "minLength is above maxLength");
	if (p != NULL) {
		rc = pattern(c, p, min, max, &id);
	} else if (min > 0 || max != GRAM_NONE) {
		rc = schema_add_def(c, G_DFA, &id);
		if (rc == 0) {
			c->g->def[id].dfa = c->g->def[GRAM_STRING].dfa;
			c->g->def[id].counted = true;
			c->g->def[id].min = min;
			c->g->def[id].max = max;
		}
	}
	return rc != 0 ? rc : schema_add_alt(c, value, id);
}

static int
number(struct comp *c, const json_t *s, bool integer, uint32_t value)
{
	struct gram_bounds b = {
		json_object_get(s, "minimum"), json_object_get(s, "maximum"),
		json_object_get(s, "exclusiveMinimum"),
		json_object_get(s, "exclusiveMaximum"),
	};
	struct gram_dfa *d;
	uint32_t id;
	int rc;

	rc = schema_placed(c, gram_number(integer, &b, &d, c->err));
	if (rc == 0)
		rc = schema_add_dfa(c, d, true, &id);
	return rc != 0 ? rc : schema_add_alt(c, value, id);
}

/* --- containers -------------------------------------------------------- */

int
schema_any(struct comp *c, uint32_t *id)
{
	json_t *everything;
	int rc;

	everything = json_pack("{s:[s,s,s,s,s,s]}", "type", "string", "number",
	    "object", "array", "boolean", "null");
	rc = schema_value(c, everything, id);
	json_decref(everything);
	return rc;
}

static int
array(struct comp *c, const json_t *s, uint32_t value)
{
	const json_t *first = json_object_get(s, "prefixItems");
	const json_t *rest = json_object_get(s, "items");
	uint32_t id, v = GRAM_NONE, min = 0, max = GRAM_NONE, *prefix = NULL;
	size_t n = json_array_size(first);
	int rc;

	if ((rc = count_of(c, s, "minItems", &min)) != 0 ||
	    (rc = count_of(c, s, "maxItems", &max)) != 0)
		return rc;
	if (min > max)
		return schema_fail(c, "minItems is above maxItems");
	if (first != NULL && !json_is_array(first))
		return schema_fail(c, "prefixItems: want an array");
	if (json_is_array(rest))
		return schema_fail(c, "items: a list of schemas is "
		    "\"prefixItems\" now");
	rc = schema_add_def(c, G_ARRAY, &id);
	if (rc == 0 && n > 0 && (prefix = calloc(n, sizeof *prefix)) == NULL)
		rc = schema_no_memory(c);
	if (rc != 0)
		return rc;
	/* The grammar's from now on: gram_free() sees to it. */
	c->g->def[id].prefix = prefix;
	c->g->def[id].n_prefix = (uint32_t)n;
	c->g->def[id].min = min;
	c->g->def[id].max = max;
	for (size_t i = 0; i < n; i++) {
		rc = schema_below(c, json_array_get(first, i), "prefixItems",
		    (long long)i, &prefix[i]);
		if (rc != 0)
			return rc;
	}
	if (rest != NULL)
		rc = schema_below(c, rest, "items", -1, &v);
	else if (first == NULL)
		rc = schema_any(c, &v);
	if (rc != 0)
		return rc;
	c->g->def[id].items = v;
	return schema_add_alt(c, value, id);
}

/* All names of an object: its properties', then what is required besides. */
static json_t *
all_names(const json_t *props, const json_t *required)
{
	json_t *out = json_object(), *v;
	const char *name;
	size_t i;

	json_object_foreach((json_t *)props, name, v)
		json_object_set(out, name, v);
	json_array_foreach(required, i, v)
		if (json_is_string(v) &&
		    json_object_get(out, json_string_value(v)) == NULL)
			json_object_set_new(out, json_string_value(v),
			    json_null());
	return out;
}

static int
check_object(struct comp *c, const json_t *props, const json_t *required,
    const json_t *extra)
{
	const json_t *v;
	size_t i;

	if (props != NULL && !json_is_object(props))
		return schema_fail(c, "properties: want an object");
	if (required != NULL && !json_is_array(required))
		return schema_fail(c, "required: want an array of names");
	if (extra != NULL && !json_is_boolean(extra) && !json_is_object(extra))
		return schema_fail(c, "additionalProperties: want true, false "
		    "or a schema");
	json_array_foreach(required, i, v)
		if (!json_is_string(v))
			return schema_fail(c, "required: want an array of "
			    "names");
	if (json_object_size(props) + json_array_size(required) >
	    GRAM_MAX_PROPS)
		return schema_fail(c, "more than %u properties",
		    GRAM_MAX_PROPS);
	return 0;
}

static bool
is_required(const json_t *required, const char *name)
{
	const json_t *v;
	size_t i;

	json_array_foreach(required, i, v)
		if (strcmp(json_string_value(v), name) == 0)
			return true;
	return false;
}

static int
property(struct comp *c, const char *name, const json_t *s, bool required,
    uint32_t extra, struct gram_prop *p)
{
	json_t *key = json_string(name);
	int rc = key == NULL ? schema_no_memory(c) :
	    schema_add_literal(c, key, &p->key);

	json_decref(key);
	if (rc != 0)
		return rc;
	p->required = required;
	if (!json_is_null(s))
		return schema_below(c, s, name, -1, &p->value);
	/* Required, but no property says what it is. */
	p->value = extra;
	return extra != GRAM_NONE ? 0 : schema_any(c, &p->value);
}

/* Values first: filling them moves the table of definitions. */
static int
fill_object(struct comp *c, uint32_t id, const json_t *s, const json_t *names)
{
	const json_t *required = json_object_get(s, "required");
	const json_t *rest = json_object_get(s, "additionalProperties");
	struct gram_prop *props = NULL;
	uint32_t n = 0, extra = GRAM_NONE, key;
	const char *name;
	json_t *v;
	int rc = 0;

	if (json_object_size(names) > 0) {
		props = calloc(json_object_size(names), sizeof *props);
		if (props == NULL)
			return schema_no_memory(c);
	}
	c->g->def[id].props = props;
	if (rest == NULL ? json_object_get(s, "properties") == NULL :
	    json_is_true(rest))
		rc = schema_any(c, &extra);
	else if (rest != NULL && !json_is_false(rest))
		rc = schema_below(c, rest, "additionalProperties", -1, &extra);
	json_object_foreach((json_t *)names, name, v) {
		size_t at;

		if (rc != 0)
			return rc;
		at = schema_down(c, "properties", -1);
		rc = property(c, name, v, is_required(required, name), extra,
		    &props[n]);
		if (rc != 0)
			return rc;
		schema_up(c, at);
		n++;
		if (props[n - 1].required)
			c->g->def[id].must = n;
		c->g->def[id].n_props = n;
	}
	key = extra == GRAM_NONE ? GRAM_NONE : GRAM_STRING;
	if (rc == 0 && extra != GRAM_NONE && n > 0)
		rc = schema_other_names(c, names, &key);
	if (rc != 0)
		return rc;
	c->g->def[id].extra = extra;
	c->g->def[id].extra_key = key;
	return 0;
}

static int
object(struct comp *c, const json_t *s, uint32_t value)
{
	const json_t *props = json_object_get(s, "properties");
	const json_t *required = json_object_get(s, "required");
	json_t *names;
	uint32_t id;
	int rc;

	rc = check_object(c, props, required,
	    json_object_get(s, "additionalProperties"));
	if (rc == 0)
		rc = schema_add_def(c, G_OBJECT, &id);
	if (rc != 0)
		return rc;
	names = all_names(props, required);
	rc = fill_object(c, id, s, names);
	json_decref(names);
	return rc != 0 ? rc : schema_add_alt(c, value, id);
}

/* --- enum and const ---------------------------------------------------- */

static int constant(struct comp *, const json_t *, uint32_t value);

/* A container to the letter: its shape, with constants in it. */
static int
constant_object(struct comp *c, const json_t *v, uint32_t value)
{
	json_t *s = json_pack("{s:b,s:{},s:[]}", "additionalProperties", 0,
	    "properties", "required");
	const char *name;
	json_t *x;
	int rc;

	json_object_foreach((json_t *)v, name, x) {
		json_object_set_new(json_object_get(s, "properties"), name,
		    json_pack("{s:O}", "const", x));
		json_array_append_new(json_object_get(s, "required"),
		    json_string(name));
	}
	rc = object(c, s, value);
	json_decref(s);
	return rc;
}

static int
constant_array(struct comp *c, const json_t *v, uint32_t value)
{
	json_t *s = json_pack("{s:[],s:i,s:i}", "prefixItems", "minItems",
	    (int)json_array_size(v), "maxItems", (int)json_array_size(v));
	size_t i;
	json_t *x;
	int rc;

	json_array_foreach(v, i, x)
		json_array_append_new(json_object_get(s, "prefixItems"),
		    json_pack("{s:O}", "const", x));
	rc = array(c, s, value);
	json_decref(s);
	return rc;
}

static int
constant(struct comp *c, const json_t *v, uint32_t value)
{
	uint32_t id;
	int rc;

	if (json_is_object(v))
		return constant_object(c, v, value);
	if (json_is_array(v))
		return constant_array(c, v, value);
	rc = schema_add_literal(c, v, &id);
	return rc != 0 ? rc : schema_add_alt(c, value, id);
}

static size_t
characters(const json_t *v)
{
	const char *s = json_string_value(v);
	size_t n = 0;

	for (; *s != '\0'; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

/* Does what stands beside an enum admit v? Lengths, bounds and types. */
static bool
admits(const json_t *s, const json_t *v)
{
	const json_t *t = json_object_get(s, "type"), *b;
	double x = json_number_value(v);

	if (t != NULL && !schema_type_is(t, v))
		return false;
	if (json_is_string(v)) {
		x = (double)characters(v);
		b = json_object_get(s, "minLength");
		if (b != NULL && x < json_number_value(b))
			return false;
		b = json_object_get(s, "maxLength");
		return b == NULL || x <= json_number_value(b);
	}
	if (!json_is_number(v))
		return true;
	b = json_object_get(s, "minimum");
	if (b != NULL && x < json_number_value(b))
		return false;
	b = json_object_get(s, "maximum");
	if (b != NULL && x > json_number_value(b))
		return false;
	b = json_object_get(s, "exclusiveMinimum");
	if (b != NULL && x <= json_number_value(b))
		return false;
	b = json_object_get(s, "exclusiveMaximum");
	return b == NULL || x < json_number_value(b);
}

int
schema_enumerated(struct comp *c, const json_t *s, uint32_t value)
{
	const json_t *e = json_object_get(s, "enum"), *v;
	const json_t *k = json_object_get(s, "const");
	size_t i;
	int rc = 0;

	if (has_any(s, of_object) + has_any(s, of_array) > 0 ||
	    json_object_get(s, "pattern") != NULL)
		return schema_fail(c, "enum or const beside keywords of "
		    "objects or arrays, or pattern, is not supported");
	if (e != NULL && (!json_is_array(e) || json_array_size(e) == 0))
		return schema_fail(c, "enum: want an array that is not empty");
	if (e == NULL)
		return admits(s, k) ? constant(c, k, value) : 0;
	json_array_foreach(e, i, v)
		if (rc == 0 && (k == NULL || json_equal((json_t *)k,
		    (json_t *)v)) && admits(s, v))
			rc = constant(c, v, value);
	return rc;
}

/* --- by type ----------------------------------------------------------- */

static int
boolean(struct comp *c, uint32_t value)
{
	uint32_t id;
	int rc = schema_add_literal(c, json_true(), &id);

	if (rc == 0)
		rc = schema_add_alt(c, value, id);
	if (rc == 0)
		rc = schema_add_literal(c, json_false(), &id);
	return rc != 0 ? rc : schema_add_alt(c, value, id);
}

static int
of_type(struct comp *c, const json_t *s, const char *t, uint32_t value)
{
	uint32_t id;
	int rc;

	if (strcmp(t, "object") == 0)
		return object(c, s, value);
	if (strcmp(t, "array") == 0)
		return array(c, s, value);
	if (strcmp(t, "string") == 0)
		return string(c, s, value);
	if (strcmp(t, "number") == 0)
		return number(c, s, false, value);
	if (strcmp(t, "integer") == 0)
		return number(c, s, true, value);
	if (strcmp(t, "boolean") == 0)
		return boolean(c, value);
	if (strcmp(t, "null") != 0)
		return schema_fail(c, "type \"%.60s\" is unknown", t);
	rc = schema_add_literal(c, json_null(), &id);
	return rc != 0 ? rc : schema_add_alt(c, value, id);
}

/* Without a type: what the keywords are about, else anything. */
static int
without_type(struct comp *c, const json_t *s, uint32_t value)
{
	uint32_t any;
	unsigned n = 0;
	int rc = 0;

	if (has_any(s, of_object) > 0 && ++n)
		rc = object(c, s, value);
	if (has_any(s, of_array) > 0 && rc == 0 && ++n)
		rc = array(c, s, value);
	if (has_any(s, of_string) > 0 && rc == 0 && ++n)
		rc = string(c, s, value);
	if (has_any(s, of_number) > 0 && rc == 0 && ++n)
		rc = number(c, s, false, value);
	if (rc != 0 || n > 0)
		return rc;
	rc = schema_any(c, &any);
	return rc != 0 ? rc : schema_add_also(c, value, any);
}

int
schema_typed(struct comp *c, const json_t *s, uint32_t value)
{
	const json_t *t = json_object_get(s, "type"), *v;
	size_t i;
	int rc = 0;

	if (t == NULL)
		return without_type(c, s, value);
	if (json_is_string(t))
		return of_type(c, s, json_string_value(t), value);
	if (!json_is_array(t))
		return schema_fail(c, "type: want a name or an array of "
		    "names");
	json_array_foreach(t, i, v) {
		if (!json_is_string(v))
			return schema_fail(c, "type: want a name or an array "
			    "of names");
		if (rc == 0)
			rc = of_type(c, s, json_string_value(v), value);
	}
	return rc;
}
