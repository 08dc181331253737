/*
 * allOf: two schemas as one that says what both say. Neither has $ref or allOf
 * at its top (gram_schema.c sees to that); what is below is joined by a new
 * allOf, to be merged when it is reached. Where two keywords have no common
 * form the schema is refused.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/text/gram.h"

#define MAX_PAIRS 4096u

/* {"allOf": [a, b]}; a new reference. */
static json_t *
both(const json_t *a, const json_t *b)
{
	return json_pack("{s:[O,O]}", "allOf", a, b);
}

static bool
names(const json_t *types, const char *t)
{
	size_t i;
	json_t *v;

	if (json_is_string(types))
		return strcmp(json_string_value(types), t) == 0;
	json_array_foreach(types, i, v)
		if (json_is_string(v) && strcmp(json_string_value(v), t) == 0)
			return true;
	return false;
}

static json_t *
types_of_both(const json_t *a, const json_t *b)
{
	static const char *const all[] = { "object", "array", "string",
		"number", "integer", "boolean", "null" };
	json_t *out = json_array();

	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		bool in_a = names(a, all[i]), in_b = names(b, all[i]);

		if (strcmp(all[i], "integer") == 0) {
			bool num_a = names(a, "number"), num_b =
			    names(b, "number");

			if (num_a && num_b)
				continue;	/* "number" says it */
			in_a |= num_a;
			in_b |= num_b;
		}
		if (in_a && in_b)
			json_array_append_new(out, json_string(all[i]));
	}
	return out;
}

static json_t *
values_of_both(const json_t *a, const json_t *b)
{
	json_t *out = json_array(), *v, *w;
	size_t i, k;

	json_array_foreach(a, i, v)
		json_array_foreach(b, k, w)
			if (json_equal(v, w)) {
				json_array_append(out, v);
				break;
			}
	return out;
}

static json_t *
required_of_both(const json_t *a, const json_t *b)
{
	json_t *out = json_copy((json_t *)a), *v, *w;
	size_t i, k;
	bool there;

	json_array_foreach(b, i, v) {
		there = false;
		json_array_foreach(a, k, w)
			there |= json_equal(v, w);
		if (!there)
			json_array_append(out, v);
	}
	return out;
}

/* anyOf of both: every pair. */
static json_t *
branches_of_both(const json_t *a, const json_t *b)
{
	json_t *out = json_array(), *v, *w;
	size_t i, k;

	json_array_foreach(a, i, v)
		json_array_foreach(b, k, w)
			json_array_append_new(out, both(v, w));
	return out;
}

/* A property of one only is held to what the other says of other names. */
static void
add_properties(json_t *out, const json_t *from, const json_t *other)
{
	const json_t *theirs = json_object_get(other, "properties");
	const json_t *rest = json_object_get(other, "additionalProperties");
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)json_object_get(from, "properties"),
	    name, v) {
		json_t *w = json_object_get(theirs, name);

		if (json_object_get(out, name) != NULL)
			continue;
		if (w == NULL)
			w = (json_t *)rest;
		if (w == NULL || json_is_true(w))
			json_object_set(out, name, v);
		else
			json_object_set_new(out, name, both(v, w));
	}
}

static json_t *
properties_of_both(const json_t *a, const json_t *b)
{
	json_t *out = json_object();

	add_properties(out, a, b);
	add_properties(out, b, a);
	return out;
}

/* The larger (or the smaller) of two numbers. */
static json_t *
stricter(const json_t *a, const json_t *b, bool larger)
{
	bool a_first = larger ?
	    json_number_value(a) >= json_number_value(b) :
	    json_number_value(a) <= json_number_value(b);

	return json_incref((json_t *)(a_first ? a : b));
}

enum how { TYPE, VALUES, REQUIRED, BOTH, LARGER, SMALLER, PROPERTIES, BRANCHES,
	DROP };

static const struct { const char *key; enum how how; } rules[] = {
	{ "type", TYPE }, { "enum", VALUES }, { "required", REQUIRED },
	{ "items", BOTH }, { "additionalProperties", BOTH },
	{ "minimum", LARGER }, { "exclusiveMinimum", LARGER },
	{ "minLength", LARGER }, { "minItems", LARGER },
	{ "maximum", SMALLER }, { "exclusiveMaximum", SMALLER },
	{ "maxLength", SMALLER }, { "maxItems", SMALLER },
	{ "properties", PROPERTIES }, { "anyOf", BRANCHES },
	{ "oneOf", BRANCHES }, { "title", DROP }, { "description", DROP },
	{ "default", DROP }, { "examples", DROP }, { "format", DROP },
	{ "$defs", DROP }, { "definitions", DROP }, { "$schema", DROP },
	{ "$id", DROP }, { "$comment", DROP },
};

/* What is joined pair by pair must be few enough. */
static bool
too_many(const json_t *x, const json_t *y)
{
	return json_array_size(x) * json_array_size(y) > MAX_PAIRS;
}

static json_t *
join(const char *key, const json_t *a, const json_t *b, const json_t *x,
    const json_t *y, struct dcpd_err *err)
{
	for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++) {
		if (strcmp(key, rules[i].key) != 0)
			continue;
		if (rules[i].how != DROP && too_many(x, y)) {
			dcpd_fail(err, -EINVAL, "allOf: \"%s\" of %zu and of "
			    "%zu elements are too many to merge", key,
			    json_array_size(x), json_array_size(y));
			return NULL;
		}
		switch (rules[i].how) {
		case TYPE: return types_of_both(x, y);
		case VALUES: return values_of_both(x, y);
		case REQUIRED: return required_of_both(x, y);
		case BOTH: return both(x, y);
		case LARGER: return stricter(x, y, true);
		case SMALLER: return stricter(x, y, false);
		case PROPERTIES: return properties_of_both(a, b);
		case BRANCHES: return branches_of_both(x, y);
		case DROP: return json_incref((json_t *)x);
		}
	}
	if (json_equal((json_t *)x, (json_t *)y))
		return json_incref((json_t *)x);
	dcpd_fail(err, -EINVAL, "allOf: two different \"%s\" cannot be "
	    "merged", key);
	return NULL;
}

/* "const" as "enum", so that there is one rule. */
static json_t *
plain(const json_t *s)
{
	json_t *out = json_copy((json_t *)s), *c;

	c = json_object_get(out, "const");
	if (c != NULL && json_object_get(out, "enum") == NULL) {
		json_object_set_new(out, "enum", json_pack("[O]", c));
		json_object_del(out, "const");
	}
	return out;
}

json_t *
gram_merge(const json_t *in_a, const json_t *in_b, struct dcpd_err *err)
{
	json_t *a, *b, *out, *x, *y;
	const char *key;

	if (json_is_false(in_a) || json_is_false(in_b))
		return json_false();
	if (json_is_true(in_a))
		return json_incref((json_t *)in_b);
	if (json_is_true(in_b))
		return json_incref((json_t *)in_a);
	if ((json_object_get(in_a, "prefixItems") != NULL &&
	    json_object_get(in_b, "items") != NULL) ||
	    (json_object_get(in_b, "prefixItems") != NULL &&
	    json_object_get(in_a, "items") != NULL)) {
		dcpd_fail(err, -EINVAL, "allOf: \"prefixItems\" of one and "
		    "\"items\" of another cannot be merged");
		return NULL;
	}
	a = plain(in_a);
	b = plain(in_b);
	out = json_object();
	json_object_foreach(a, key, x) {
		y = json_object_get(b, key);
		if (strcmp(key, "properties") == 0 && y == NULL)
			y = properties_of_both(a, b);
		else if (y == NULL)
			y = json_incref(x);
		else
			y = join(key, a, b, x, y, err);
		if (y == NULL) {
			json_decref(out);
			out = NULL;
			goto out;
		}
		json_object_set_new(out, key, y);
	}
	json_object_foreach(b, key, y) {
		if (json_object_get(out, key) != NULL)
			continue;
		if (strcmp(key, "properties") == 0)
			json_object_set_new(out, key, properties_of_both(a,
			    b));
		else
			json_object_set(out, key, y);
	}
out:
	json_decref(a);
	json_decref(b);
	return out;
}
