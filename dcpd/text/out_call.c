/*
 * A tool call's arguments as JSON, in pieces. A model writes values as bare
 * text; what type was meant is told by the tool's JSON schema:
 *
 *  - declared a string: the text as it is, sent piece by piece as it comes;
 *  - anything else, or undeclared: held until complete, then sent as JSON if
 *    it can be read as JSON of a type that the schema allows (with some
 *    charity: quoted numerals, Python's True and 'a'), else as a string.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "dcpd/base/bigjson.h"
#include "dcpd/text/out.h"
#include "dcpd/text/pyjson.h"

/* Sets of JSON types; 0 = nothing is known. */
enum {
	T_STRING = 1, T_INTEGER = 2, T_NUMBER = 4, T_BOOLEAN = 8,
	T_OBJECT = 16, T_ARRAY = 32, T_NULL = 64,
	T_UNKNOWN = 128,	/* only within schema_types() */
};
/*
 * Schemas come from clients, and $ref may lead round in circles: what lies
 * deeper, or beyond so many steps in all, is unknown.
 */
#define SCHEMA_DEPTH 8
#define SCHEMA_STEPS 1000

/* --- schema ----------------------------------------------------------- */

static unsigned
type_by_name(const char *s)
{
	static const char *const name[] = { "string", "integer", "number",
		"boolean", "object", "array", "null" };
	unsigned i;

	for (i = 0; s != NULL && i < sizeof name / sizeof *name; i++)
		if (strcmp(s, name[i]) == 0)
			return 1u << i;
	return 0;
}

static unsigned
type_of_value(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_STRING:
		return T_STRING;
	case JSON_INTEGER:
		return T_INTEGER;
	case JSON_REAL:
		return T_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return T_BOOLEAN;
	case JSON_OBJECT:
		return T_OBJECT;
	case JSON_ARRAY:
		return T_ARRAY;
	case JSON_NULL:
		return T_NULL;
	}
	return 0;
}

/* What a JSON pointer's part says: ~1, ~0 and %XX; in place. */
static void
unescape_part(char *s)
{
	char *to = s;
	unsigned x;

	for (; *s != '\0'; s++, to++) {
		*to = *s;
		if (*s == '~' && (s[1] == '0' || s[1] == '1'))
			*to = *++s == '1' ? '/' : '~';
		else if (*s == '%' && sscanf(s + 1, "%2x", &x) == 1 &&
		    x != 0 && s[1] != '\0' && s[2] != '\0') {
			*to = (char)x;
			s += 2;
		}
	}
	*to = '\0';
}

int
out_follow_ref(const json_t *root, const char *ref, const json_t **out)
{
	char *copy, *part, *save = NULL;

	if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/'))
		return -EINVAL;
	copy = strdup(ref + 1);
	if (copy == NULL)
		return -ENOMEM;
	for (part = strtok_r(copy, "/", &save); part != NULL && root != NULL;
	    part = strtok_r(NULL, "/", &save)) {
		unescape_part(part);
		root = json_is_array(root) ?
		    json_array_get(root, strtoul(part, NULL, 10)) :
		    json_object_get(root, part);
	}
	free(copy);
	if (root == NULL)
		return -ENOENT;
	*out = root;
	return 0;
}

static unsigned
types_of_values(const json_t *s)
{
	const json_t *list = json_object_get(s, "enum"), *v;
	unsigned types = 0;
	size_t i;

	json_array_foreach(list, i, v)
		types |= type_of_value(v);
	v = json_object_get(s, "const");
	return v != NULL ? types | type_of_value(v) : types;
}

/* Types that its keywords are about, as gram_types.c takes them, too. */
static unsigned
types_of_keywords(const json_t *s)
{
	static const struct { const char *key; unsigned type; } sign[] = {
		{ "properties", T_OBJECT }, { "required", T_OBJECT },
		{ "additionalProperties", T_OBJECT },
		{ "items", T_ARRAY }, { "prefixItems", T_ARRAY },
		{ "minItems", T_ARRAY }, { "maxItems", T_ARRAY },
		{ "minLength", T_STRING }, { "maxLength", T_STRING },
		{ "pattern", T_STRING },
		{ "minimum", T_NUMBER }, { "maximum", T_NUMBER },
		{ "exclusiveMinimum", T_NUMBER },
		{ "exclusiveMaximum", T_NUMBER },
	};
	unsigned types = 0;

	for (unsigned i = 0; i < sizeof sign / sizeof *sign; i++)
		if (json_object_get(s, sign[i].key) != NULL)
			types |= sign[i].type;
	return types;
}

/*
 * Types that s allows, and perhaps more; 0: it says nothing. With T_UNKNOWN,
 * any: something of it was not understood, or a choice of it says nothing.
 */
static unsigned
schema_types(const json_t *root, const json_t *s, unsigned depth,
    unsigned *steps)
{
	static const char *const of[] = { "allOf", "anyOf", "oneOf" };
	const json_t *v = json_object_get(s, "type"), *kid;
	const char *ref = json_string_value(json_object_get(s, "$ref"));
	unsigned types = type_by_name(json_string_value(v)), k, t;
	size_t i;

	if (depth == SCHEMA_DEPTH || *steps == 0)
		return T_UNKNOWN;
	--*steps;
	json_array_foreach(v, i, kid)
		types |= type_by_name(json_string_value(kid));
	if (types == 0)
		types = types_of_values(s);
	if (types != 0)
		return types;
	if (ref != NULL)
		types = out_follow_ref(root, ref, &kid) != 0 ? T_UNKNOWN :
		    schema_types(root, kid, depth + 1, steps);
	for (k = 0; k < 3; k++) {
		v = json_object_get(s, of[k]);
		json_array_foreach(v, i, kid) {
			t = schema_types(root, kid, depth + 1, steps);
			types |= t == 0 && k > 0 ? T_UNKNOWN : t;
		}
	}
	return types | types_of_keywords(s);
}

/* Types that a tool's schema gives to an argument; key NULL: to others. */
static unsigned
arg_types(const json_t *params, const char *key)
{
	const json_t *p = params, *s = NULL;
	const char *ref = json_string_value(json_object_get(p, "$ref"));
	unsigned steps = SCHEMA_STEPS, types;

	if (ref != NULL && out_follow_ref(params, ref, &p) != 0)
		return 0;
	if (key != NULL)
		s = json_object_get(json_object_get(p, "properties"), key);
	if (s == NULL)
		s = json_object_get(p, "additionalProperties");
	types = s == NULL ? 0 : schema_types(params, s, 0, &steps);
	return types & T_UNKNOWN ? 0 : types;
}

bool
out_arg_is_text(const json_t *params, const char *key)
{
	return arg_types(params, key) == T_STRING;
}

static const json_t *
tool_params(const struct dcpd_out *o)
{
	const json_t *f;
	const char *name;
	size_t i;

	for (i = 0; i < json_array_size(o->tools); i++) {
		f = json_object_get(json_array_get(o->tools, i), "function");
		name = json_string_value(json_object_get(f, "name"));
		if (name != NULL && strlen(name) == o->name.n &&
		    memcmp(name, o->name.v, o->name.n) == 0)
			return json_object_get(f, "parameters");
	}
	return NULL;
}

/* --- reading a held value --------------------------------------------- */

/* Types that the text is JSON of; 0: it is not JSON. */
static unsigned
text_type(const char *s, size_t n, json_t **string)
{
	json_error_t e;
	json_t *v;
	unsigned type;

	if (n == 0)
		return 0;
	v = dcpd_bigjson_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
	if (v == NULL)
		return 0;
	type = type_of_value(v);
	if (type == T_NUMBER && memchr(s, '.', n) == NULL &&
	    memchr(s, 'e', n) == NULL && memchr(s, 'E', n) == NULL)
		type = T_INTEGER;
	if (type == T_INTEGER)
		type |= T_NUMBER;
	if (type == T_STRING && string != NULL)
		*string = json_incref(v);
	json_decref(v);
	return type;
}

/* A Python string, its quote at s[0]; returns its length, 0 if broken. */
static size_t
python_string(const char *s, size_t n, struct dcpd_buf *out)
{
	size_t i;

	dcpd_buf_str(out, "\"");
	for (i = 1; i < n; i++) {
		if (s[i] == s[0]) {
			dcpd_buf_str(out, "\"");
			return i + 1;
		}
		if (s[i] == '"') {
			dcpd_buf_str(out, "\\\"");
		} else if (s[i] != '\\' || i + 1 == n) {
			dcpd_pyjson_escape(out, s + i, 1);
		} else if (s[i + 1] == '\'') {
			dcpd_buf_str(out, "'");
			i++;
		} else {
			dcpd_buf_add(out, s + i, 2);
			i++;
		}
	}
	return 0;
}

/* Python's True, None, 'text', (1, 2), [1,] as JSON; 0 if it is none. */
static unsigned
python_literal(const char *s, size_t n, struct dcpd_buf *out)
{
	static const char *const word[][2] = { { "True", "true" },
		{ "False", "false" }, { "None", "null" } };
	size_t i = 0, k, len;

	while (i < n) {
		if (s[i] == '\'' || s[i] == '"') {
			len = python_string(s + i, n - i, out);
			if (len == 0)
				return 0;
			i += len;
			continue;
		}
		for (k = 0; k < 3; k++) {
			len = strlen(word[k][0]);
			if (n - i >= len && memcmp(s + i, word[k][0], len) == 0)
				break;
		}
		if (k < 3) {
			dcpd_buf_str(out, word[k][1]);
			i += len;
			continue;
		}
		if (s[i] == ',') {	/* none before a closing bracket */
			for (k = i + 1; k < n && isspace((unsigned char)s[k]);)
				k++;
			if (k < n && strchr(")]}", s[k]) != NULL) {
				i++;
				continue;
			}
		}
		dcpd_buf_add(out, s[i] == '(' ? "[" : s[i] == ')' ? "]" :
		    s + i, 1);
		i++;
	}
	return out->failed ? 0 : text_type(out->v, out->n, NULL);
}

static void
put_string(struct dcpd_buf *out, const char *s, size_t n)
{
	dcpd_buf_str(out, "\"");
	dcpd_pyjson_escape(out, s, n);
	dcpd_buf_str(out, "\"");
}

/* A JSON string where another type was asked for: "5" for 5. */
static bool
unquote(const json_t *string, unsigned types, struct dcpd_buf *out)
{
	const char *s = json_string_value(string);
	size_t n = json_string_length(string);

	if (types == 0 || types & T_STRING ||
	    (text_type(s, n, NULL) & types) == 0)
		return false;
	dcpd_buf_add(out, s, n);
	return true;
}

/* {\"a\": 1}: the value, escaped once too often. */
static bool
unescape(const char *s, size_t n, unsigned types, struct dcpd_buf *out)
{
	struct dcpd_buf quoted = { 0 };
	json_t *v = NULL;
	unsigned type = 0;

	if (memchr(s, '\\', n) == NULL)
		return false;
	dcpd_buf_str(&quoted, "\"");
	dcpd_buf_add(&quoted, s, n);
	dcpd_buf_str(&quoted, "\"");
	if (!quoted.failed)
		v = json_loadb(quoted.v, quoted.n, JSON_DECODE_ANY, NULL);
	if (json_is_string(v))
		type = text_type(json_string_value(v), json_string_length(v),
		    NULL);
	if (type != 0 && (types == 0 || (type & types) != 0))
		dcpd_buf_add(out, json_string_value(v),
		    json_string_length(v));
	else
		type = 0;
	json_decref(v);
	dcpd_buf_free(&quoted);
	return type != 0;
}

static void
put_value(const struct dcpd_out *o, struct dcpd_buf *out)
{
	const char *s = o->value.v == NULL ? "" : o->value.v;
	size_t n = o->value.n;
	struct dcpd_buf py = { 0 };
	json_t *string = NULL;
	unsigned type;

	while (n > 0 && isspace((unsigned char)s[n - 1]))
		n--;
	while (n > 0 && isspace((unsigned char)*s)) {
		s++;
		n--;
	}
	type = text_type(s, n, &string);
	if (string != NULL && unquote(string, o->types, out)) {
		/* done */
	} else if (type != 0 && (o->types == 0 || (type & o->types) != 0 ||
	    !(o->types & T_STRING))) {
		dcpd_buf_add(out, s, n);
	} else if (unescape(s, n, o->types & ~(unsigned)T_STRING, out)) {
		/* done */
	} else if ((type = python_literal(s, n, &py)) != 0 &&
	    (o->types == 0 || (type & o->types) != 0)) {
		dcpd_buf_add(out, py.v, py.n);
	} else {
		put_string(out, o->value.v == NULL ? "" : o->value.v,
		    o->value.n);
	}
	dcpd_buf_free(&py);
	json_decref(string);
}

/* --- a call ----------------------------------------------------------- */

static void
trim(struct dcpd_buf *b)
{
	size_t lead = 0;

	while (b->n > 0 && isspace((unsigned char)b->v[b->n - 1]))
		b->n--;
	while (lead < b->n && isspace((unsigned char)b->v[lead]))
		lead++;
	dcpd_buf_drop(b, lead);
}

int
out_call_name(struct dcpd_out *o)
{
	int rc;

	trim(&o->name);
	if (o->name.failed)
		return -ENOMEM;
	o->n_args = 0;
	/* Without a name there is no call. */
	o->open = o->name.n > 0 && !o->enough;
	o->params = tool_params(o);
	if (!o->open)
		return 0;
	o->calls++;
	rc = out_emit(o, DCP_CH_TOOL_NAME, o->name.v, o->name.n);
	o->name.n = 0;
	return rc;
}

static int
emit_args(struct dcpd_out *o, struct dcpd_buf *b)
{
	int rc = b->failed ? -ENOMEM :
	    out_emit(o, DCP_CH_TOOL_ARGS, b->v, b->n);

	dcpd_buf_free(b);
	return rc;
}

static void
put_key(struct dcpd_out *o, struct dcpd_buf *b)
{
	dcpd_buf_str(b, o->n_args++ == 0 ? "{" : ", ");
	put_string(b, o->key.v, o->key.n);
	dcpd_buf_str(b, ": ");
}

int
out_value_begin_as(struct dcpd_out *o, bool string)
{
	struct dcpd_buf b = { 0 };

	trim(&o->key);
	o->value.n = 0;
	o->raw_string = string;
	o->state = ST_VALUE;
	if (!string || !o->open)
		return 0;
	put_key(o, &b);
	dcpd_buf_str(&b, "\"");
	return emit_args(o, &b);
}

int
out_value_begin(struct dcpd_out *o)
{
	trim(&o->key);
	dcpd_buf_add(&o->key, "", 1);	/* a NUL, for a moment */
	if (o->key.failed)
		return -ENOMEM;
	o->types = arg_types(o->params, o->key.v);
	o->key.n--;
	return out_value_begin_as(o, o->types == T_STRING);
}

int
out_value_text(struct dcpd_out *o, const char *s, size_t n)
{
	struct dcpd_buf b = { 0 };

	if (!o->raw_string) {
		dcpd_buf_add(&o->value, s, n);
		return o->value.failed ? -ENOMEM : 0;
	}
	if (!o->open)
		return 0;
	dcpd_pyjson_escape(&b, s, n);
	return emit_args(o, &b);
}

int
out_value_end(struct dcpd_out *o)
{
	struct dcpd_buf b = { 0 };

	o->state = ST_GAP;
	if (!o->open)
		return 0;
	if (o->raw_string) {
		dcpd_buf_str(&b, "\"");
		return emit_args(o, &b);
	}
	put_key(o, &b);
	put_value(o, &b);
	return emit_args(o, &b);
}

int
out_call_end(struct dcpd_out *o)
{
	int rc = 0;

	if (o->state == ST_NAME)
		rc = out_call_name(o);
	else if (o->state == ST_VALUE)
		rc = out_value_end(o);
	if (rc == 0 && o->open)
		rc = out_emit(o, DCP_CH_TOOL_ARGS,
		    o->n_args == 0 ? "{}" : "}", o->n_args == 0 ? 2 : 1);
	o->enough |= o->one_call && o->calls > 0;
	o->open = false;
	o->state = ST_CONTENT;
	return rc;
}
