/*
 * JSON files that others wrote: caps, and checks of single keys. See keys.h.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/model/keys.h"

/* jansson recurses per bracket: count them first, which costs no stack. */
static bool
too_deep(const char *text, size_t len)
{
	bool in_string = false;
	uint32_t depth = 0;
	size_t i;

	for (i = 0; i < len; i++) {
		char c = text[i];

		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
		} else if (c == '"') {
			in_string = true;
		} else if (c == '{' || c == '[') {
			if (++depth > DCPD_JSON_DEPTH)
				return true;
		} else if ((c == '}' || c == ']') && depth > 0) {
			depth--;
		}
	}
	return false;
}

int
dcpd_json_text(const char *what, const char *text, size_t len, json_t **out,
    struct dcpd_err *err)
{
	json_error_t je;
	json_t *j;

	if (too_deep(text, len))
		return dcpd_fail(err, -EINVAL,
		    "%s: JSON nested deeper than %u brackets", what,
		    DCPD_JSON_DEPTH);
	j = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (j == NULL)
		return dcpd_fail(err, -EINVAL,
		    "%s: bad JSON at line %d, column %d: %s", what, je.line,
		    je.column, je.text);
	*out = j;
	return 0;
}

int
dcpd_json_file(const char *path, size_t max, json_t **out,
    struct dcpd_err *err)
{
	json_t *j = NULL;
	char *text;
	size_t len;
	int rc;

	rc = dcpd_read_file(path, max, &text, &len, err);
	if (rc != 0)
		return rc;
	rc = dcpd_json_text(path, text, len, &j, err);
	free(text);
	if (rc != 0)
		return rc;
	if (!json_is_object(j)) {
		json_decref(j);
		return dcpd_fail(err, -EINVAL, "%s: must be a JSON object",
		    path);
	}
	*out = j;
	return 0;
}

const json_t *
dcpd_key(const struct dcpd_keys *k, const char *name)
{
	const json_t *v = json_object_get(k->o, name);

	return json_is_null(v) ? NULL : v;
}

void
dcpd_key_bad(struct dcpd_keys *k, const char *name, const char *legal, ...)
{
	const json_t *v = json_object_get(k->o, name);
	char must[200], *is = NULL;
	va_list ap;

	if (k->rc != 0)
		return;
	va_start(ap, legal);
	vsnprintf(must, sizeof must, legal, ap);
	va_end(ap);
	if (v != NULL)
		is = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
	if (is != NULL && strlen(is) > 60)
		memcpy(is + 57, "...", 4);
	k->rc = dcpd_fail(k->err, -EINVAL, "%s: \"%s%s\" is %s: must be %s",
	    k->where, k->prefix, name, is != NULL ? is : "missing", must);
	free(is);
}

uint32_t
dcpd_key_uint(struct dcpd_keys *k, const char *name, uint32_t min,
    uint32_t max)
{
	const json_t *v = dcpd_key(k, name);

	if (json_is_integer(v) && json_integer_value(v) >= (json_int_t)min &&
	    json_integer_value(v) <= (json_int_t)max)
		return (uint32_t)json_integer_value(v);
	dcpd_key_bad(k, name, "an integer from %u to %u", min, max);
	return min;
}

uint32_t
dcpd_key_uint_or(struct dcpd_keys *k, const char *name, uint32_t dflt,
    uint32_t min, uint32_t max)
{
	return dcpd_key(k, name) == NULL ? dflt :
	    dcpd_key_uint(k, name, min, max);
}

bool
dcpd_key_bool_or(struct dcpd_keys *k, const char *name, bool dflt)
{
	const json_t *v = dcpd_key(k, name);

	if (v == NULL)
		return dflt;
	if (!json_is_boolean(v))
		dcpd_key_bad(k, name, "true or false");
	return json_is_true(v);
}

double
dcpd_key_num_or(struct dcpd_keys *k, const char *name, double dflt, double min,
    double max)
{
	const json_t *v = dcpd_key(k, name);

	if (v == NULL)
		return dflt;
	if (json_is_number(v) && json_number_value(v) >= min &&
	    json_number_value(v) <= max)
		return json_number_value(v);
	dcpd_key_bad(k, name, "a number from %g to %g", min, max);
	return dflt;
}

const char *
dcpd_key_str_or(struct dcpd_keys *k, const char *name, const char *dflt)
{
	const json_t *v = dcpd_key(k, name);

	if (v == NULL)
		return dflt;
	if (!json_is_string(v)) {
		dcpd_key_bad(k, name, "a string");
		return dflt;
	}
	return json_string_value(v);
}

void
dcpd_key_only_bool(struct dcpd_keys *k, const char *name, bool legal)
{
	if (dcpd_key_bool_or(k, name, legal) != legal)
		dcpd_key_bad(k, name, "%s (nothing else is built)",
		    legal ? "true" : "false");
}

void
dcpd_key_only_str(struct dcpd_keys *k, const char *name, const char *legal)
{
	const char *s = dcpd_key_str_or(k, name, legal);

	if (s != NULL && strcmp(s, legal) != 0)
		dcpd_key_bad(k, name, "\"%s\" (nothing else is built)", legal);
}
