/*
 * The last part of compiling: a value's alternatives are gathered over the
 * values that it is made of, and what no finite text can satisfy is dropped. So
 * whatever is begun can be ended within GRAM_MAX_DEPTH containers: there is no
 * dead end.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram_schema.h"

struct link {
	struct gram *g;
	uint32_t *stack, *seen;		/* [n_value] */
	uint32_t *seen_def;		/* [n_def] */
	uint32_t *alt, n;		/* [n_def] gathered */
};

/* All alternatives of v and of what it names, each once, in order. */
static void
gather(struct link *l, uint32_t v, uint32_t stamp)
{
	uint32_t top = 0;

	l->n = 0;
	l->stack[top++] = v;
	l->seen[v] = stamp;
	while (top > 0) {
		const struct gram_value *x = &l->g->value[l->stack[--top]];

		for (uint32_t i = 0; i < x->n; i++)
			if (l->seen_def[x->alt[i]] != stamp) {
				l->seen_def[x->alt[i]] = stamp;
				l->alt[l->n++] = x->alt[i];
			}
		for (uint32_t i = x->n_also; i-- > 0;)
			if (l->seen[x->also[i]] != stamp) {
				l->seen[x->also[i]] = stamp;
				l->stack[top++] = x->also[i];
			}
	}
}

static int
gather_all(struct link *l)
{
	struct gram *g = l->g;
	uint32_t **alt = calloc(g->n_value, sizeof *alt);
	uint32_t *n = calloc(g->n_value, sizeof *n);
	uint64_t total = 0;
	int rc = alt == NULL || n == NULL ? -ENOMEM : 0;

	/* Into new lists: the old ones are still read. */
	for (uint32_t v = 0; v < g->n_value && rc == 0; v++) {
		gather(l, v, v + 1);
		total += l->n;
		if (total > 64 * GRAM_MAX_DEFS)
			rc = -E2BIG;
		else if ((alt[v] = malloc((l->n + 1) * sizeof **alt)) == NULL)
			rc = -ENOMEM;
		else
			memcpy(alt[v], l->alt, (n[v] = l->n) * sizeof **alt);
	}
	for (uint32_t v = 0; v < g->n_value && alt != NULL; v++) {
		if (rc != 0) {
			free(alt[v]);
			continue;
		}
		free(g->value[v].alt);
		free(g->value[v].also);
		g->value[v] = (struct gram_value){ .alt = alt[v], .n = n[v],
		    .cap = n[v], .height = GRAM_NONE };
	}
	free(alt);
	free(n);
	return rc;
}

/* --- heights ----------------------------------------------------------- */

static uint32_t
value_height(const struct gram *g, uint32_t v)
{
	uint32_t h = GRAM_NONE;

	for (uint32_t i = 0; i < g->value[v].n; i++) {
		uint32_t d = g->def[g->value[v].alt[i]].height;

		h = d < h ? d : h;
	}
	return h;
}

static uint32_t
array_height(const struct gram *g, const struct gram_def *d)
{
	uint32_t h = 0, v;

	for (uint32_t i = 0; i < d->min && i <= d->n_prefix; i++) {
		v = i < d->n_prefix ? d->prefix[i] : d->items;
		if (v == GRAM_NONE || g->value[v].height == GRAM_NONE)
			return GRAM_NONE;
		h = g->value[v].height > h ? g->value[v].height : h;
	}
	return h + 1;
}

static uint32_t
object_height(const struct gram *g, const struct gram_def *d)
{
	uint32_t h = 0;

	for (uint32_t i = 0; i < d->must; i++) {
		uint32_t vh = g->value[d->props[i].value].height;

		if (!d->props[i].required)
			continue;
		if (vh == GRAM_NONE)
			return GRAM_NONE;
		h = vh > h ? vh : h;
	}
	return h + 1;
}

/* Falls until nothing changes: each round settles what is one deeper. */
static void
find_heights(struct gram *g)
{
	bool more = true;

	while (more) {
		more = false;
		for (uint32_t i = 0; i < g->n_def; i++) {
			struct gram_def *d = &g->def[i];
			uint32_t h = d->kind == G_ARRAY ? array_height(g, d) :
			    d->kind == G_OBJECT ? object_height(g, d) : 0;

			more |= h != d->height;
			d->height = h;
		}
		for (uint32_t v = 0; v < g->n_value; v++) {
			uint32_t h = value_height(g, v);

			more |= h != g->value[v].height;
			g->value[v].height = h;
		}
	}
}

/* --- what has no finite value goes ------------------------------------- */

static bool
empty(const struct gram *g, uint32_t v)
{
	return v == GRAM_NONE || g->value[v].height == GRAM_NONE;
}

static void
drop_array(const struct gram *g, struct gram_def *d)
{
	uint32_t most = empty(g, d->items) ? d->n_prefix : GRAM_NONE;

	for (uint32_t i = d->n_prefix; i-- > 0;)
		if (empty(g, d->prefix[i]))
			most = i;
	if (d->max > most)
		d->max = most;
}

static void
drop_properties(const struct gram *g, struct gram_def *d)
{
	uint32_t n = 0;

	d->must = 0;
	for (uint32_t i = 0; i < d->n_props; i++) {
		if (empty(g, d->props[i].value))
			continue;
		d->props[n++] = d->props[i];
		if (d->props[n - 1].required)
			d->must = n;
	}
	d->n_props = n;
	if (empty(g, d->extra))
		d->extra = d->extra_key = GRAM_NONE;
}

static void
drop_empty(struct gram *g)
{
	for (uint32_t v = 0; v < g->n_value; v++) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < g->value[v].n; i++)
			if (g->def[g->value[v].alt[i]].height != GRAM_NONE)
				g->value[v].alt[n++] = g->value[v].alt[i];
		g->value[v].n = n;
	}
	for (uint32_t i = 0; i < g->n_def; i++) {
		struct gram_def *d = &g->def[i];

		if (d->height == GRAM_NONE)
			continue;
		if (d->kind == G_ARRAY)
			drop_array(g, d);
		else if (d->kind == G_OBJECT)
			drop_properties(g, d);
	}
}

int
gram_link(struct gram *g, struct dcpd_err *err)
{
	struct link l = { .g = g };
	int rc = 0;

	l.stack = malloc(g->n_value * sizeof *l.stack);
	l.seen = calloc(g->n_value, sizeof *l.seen);
	l.seen_def = calloc(g->n_def + 1, sizeof *l.seen_def);
	l.alt = malloc((g->n_def + 1) * sizeof *l.alt);
	if (l.stack == NULL || l.seen == NULL || l.seen_def == NULL ||
	    l.alt == NULL)
		rc = -ENOMEM;
	if (rc == 0)
		rc = gather_all(&l);
	free(l.alt);
	free(l.seen_def);
	free(l.seen);
	free(l.stack);
	if (rc == -E2BIG)
		return dcpd_fail(err, -EINVAL, "schema: anyOf of anyOf has too "
		    "many alternatives");
	if (rc != 0)
		return dcpd_fail(err, rc, "schema: out of memory");
	find_heights(g);
	if (g->value[g->root].height == GRAM_NONE)
		return dcpd_fail(err, -EINVAL, "schema: no value satisfies it: "
		    "its parts exclude each other, or it requires itself");
	if (g->value[g->root].height > GRAM_MAX_DEPTH)
		return dcpd_fail(err, -EINVAL, "schema: the smallest value "
		    "that satisfies it has %u objects and arrays inside each "
		    "other, %u are supported", g->value[g->root].height,
		    GRAM_MAX_DEPTH);
	drop_empty(g);
	for (uint32_t i = 0; i < g->n_def; i++)
		if (g->def[i].height != GRAM_NONE &&
		    g->def[i].height > g->deepest)
			g->deepest = g->def[i].height;
	return 0;
}

/* --- a grammar --------------------------------------------------------- */

void
gram_free(struct gram *g)
{
	if (g == NULL)
		return;
	gram_cache_free(&g->cache);
	gram_args_free(g->args);
	for (uint32_t i = 0; i < g->n_def; i++) {
		if (g->def[i].own)
			gram_dfa_free(g->def[i].dfa);
		free(g->def[i].lit);
		free(g->def[i].prefix);
		free(g->def[i].props);
	}
	for (uint32_t v = 0; v < g->n_value; v++) {
		free(g->value[v].alt);
		free(g->value[v].also);
	}
	free(g->def);
	free(g->value);
	free(g->key);
	free(g);
}

int
gram_compile(const json_t *schema, struct gram **out, struct dcpd_err *err)
{
	struct comp c = { .err = err };
	json_t *own = NULL;
	int rc;

	if (schema == NULL)
		schema = own = json_pack("{s:s}", "type", "object");
	c.root = schema;
	c.memo = json_object();
	c.g = calloc(1, sizeof *c.g);
	if (c.g == NULL || c.memo == NULL || schema == NULL) {
		free(c.g);
		rc = dcpd_fail(err, -ENOMEM, "schema: out of memory");
		goto out;
	}
	c.g->refs = 1;
	gram_cache_init(&c.g->cache);
	rc = schema_compile(&c);
	/* Looking at a schema is work, too: as much of it is too much. */
	c.g->effort = c.effort +
	    (uint64_t)c.work * (GRAM_MAX_EFFORTS / GRAM_MAX_WORK);
	if (rc == 0)
		rc = gram_link(c.g, err);
	if (rc == 0)
		*out = c.g;
	else
		gram_free(c.g);
out:
	json_decref(c.memo);
	json_decref(own);
	return rc;
}
