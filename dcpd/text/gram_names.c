/*
 * Names of an object that are none of its properties'. They are read against a
 * trie of the properties' names, character by character: who leaves it is
 * another name; who ends on a node that ends a name is refused.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram_schema.h"
#include "dcpd/text/utf8.h"

static bool
type_named(const char *t, const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT: return strcmp(t, "object") == 0;
	case JSON_ARRAY: return strcmp(t, "array") == 0;
	case JSON_STRING: return strcmp(t, "string") == 0;
	case JSON_TRUE: case JSON_FALSE: return strcmp(t, "boolean") == 0;
	case JSON_NULL: return strcmp(t, "null") == 0;
	case JSON_INTEGER: return strcmp(t, "integer") == 0 ||
	    strcmp(t, "number") == 0;
	case JSON_REAL: return strcmp(t, "number") == 0 ||
	    (strcmp(t, "integer") == 0 &&
	    floor(json_real_value(v)) == json_real_value(v));
	}
	return false;
}

bool
schema_type_is(const json_t *t, const json_t *v)
{
	const json_t *one;
	size_t i;

	if (json_is_string(t))
		return type_named(json_string_value(t), v);
	json_array_foreach(t, i, one)
		if (json_is_string(one) &&
		    type_named(json_string_value(one), v))
			return true;
	return false;
}

struct node {
	uint32_t c;			/* the character that leads here */
	uint32_t child, sibling;	/* 0: none */
	bool ends;
};

struct trie {
	struct node *v;
	uint32_t n;
};

static uint32_t
child_of(struct trie *t, uint32_t at, uint32_t c)
{
	uint32_t k;

	for (k = t->v[at].child; k != 0; k = t->v[k].sibling)
		if (t->v[k].c == c)
			return k;
	k = t->n++;
	t->v[k] = (struct node){ .c = c, .sibling = t->v[at].child };
	t->v[at].child = k;
	return k;
}

static int
by_code(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* From a node's state: its children, and every other character to `other`. */
static int
leave(struct gram_nfa *a, const struct trie *t, uint32_t at,
    const uint32_t *state, uint32_t other)
{
	uint32_t n = 0, k, lo = 0, *c;
	struct gram_range r;

	for (k = t->v[at].child; k != 0; k = t->v[k].sibling)
		n++;
	c = malloc((n + 1) * sizeof *c);
	if (c == NULL)
		return -ENOMEM;
	n = 0;
	for (k = t->v[at].child; k != 0; k = t->v[k].sibling) {
		r = (struct gram_range){ t->v[k].c, t->v[k].c };
		gram_char(a, state[at], state[k], &r, 1);
		c[n++] = t->v[k].c;
	}
	qsort(c, n, sizeof *c, by_code);
	for (k = 0; k < n; k++) {
		if (c[k] > lo) {
			r = (struct gram_range){ lo, c[k] - 1 };
			gram_char(a, state[at], other, &r, 1);
		}
		lo = c[k] + 1;
	}
	r = (struct gram_range){ lo, 0x10ffff };
	gram_char(a, state[at], other, &r, 1);
	free(c);
	return 0;
}

static int
build(const struct trie *t, struct gram_nfa *a, struct gram_dfa **out)
{
	static const struct gram_range any = { 0, 0x10ffff };
	uint32_t *state = calloc(t->n, sizeof *state);
	uint32_t start = gram_state(a), end = gram_state(a);
	uint32_t other = gram_state(a);
	int rc = state == NULL ? -ENOMEM : 0;

	for (uint32_t i = 0; i < t->n && rc == 0; i++)
		state[i] = gram_state(a);
	if (rc == 0) {
		gram_edge(a, start, state[0], '"', '"');
		gram_char(a, other, other, &any, 1);
		gram_edge(a, other, end, '"', '"');
	}
	for (uint32_t i = 0; i < t->n && rc == 0; i++) {
		if (!t->v[i].ends)
			gram_edge(a, state[i], end, '"', '"');
		rc = leave(a, t, i, state, other);
		if (rc == 0)
			rc = a->rc;
	}
	if (rc == 0)
		rc = gram_dfa(a, start, end, out);
	free(state);
	return rc;
}

int
schema_other_names(struct comp *c, const json_t *names, uint32_t *def)
{
	struct gram_nfa a = { 0 };
	struct gram_dfa *d = NULL;
	struct trie t = { NULL, 1 };
	const char *name;
	size_t bytes = 1;
	json_t *v;
	int rc;

	json_object_foreach((json_t *)names, name, v)
		bytes += strlen(name);
	t.v = calloc(bytes, sizeof *t.v);
	if (t.v == NULL)
		return dcpd_fail(c->err, -ENOMEM, "schema: out of memory");
	json_object_foreach((json_t *)names, name, v) {
		const char *s = name;
		uint32_t at = 0;
		unsigned len;

		for (; *s != '\0'; s += len)
			at = child_of(&t, at, dcpd_utf8_char(s, &len));
		t.v[at].ends = true;
	}
	rc = build(&t, &a, &d);
	gram_nfa_free(&a);
	free(t.v);
	if (rc == -ENOMEM)
		return dcpd_fail(c->err, rc, "schema: out of memory");
	if (rc != 0)
		return schema_fail(c, "additionalProperties beside so many "
		    "properties needs too many states: set it to false");
	return schema_add_dfa(c, d, false, def);
}
