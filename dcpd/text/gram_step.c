/*
 * Configurations: where a text stands in a grammar, and one byte further.
 *
 * JSON's brackets and quotes say by themselves where a container or a scalar
 * begins and ends, so all ways to read a text have the same levels open, and a
 * level needs no more than the set of its items: it does not matter which item
 * of the level around led to which of them. When a level ends, the definitions
 * that are complete are offered to every item around, and those that wait for
 * one of them go on.
 *
 * Every item can be completed by itself (gram_link.c dropped the others), and a
 * container is opened only if its height still fits; so a text that was
 * accepted so far can always be brought to an end.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"

const struct gram_level gram_base = { .n = 0 };

/* --- memory ------------------------------------------------------------ */

#define CHUNK 32768u

struct gram_chunk {
	struct gram_chunk *next;
	size_t size;
	max_align_t data[];
};

static struct gram_chunk *
new_chunk(size_t least)
{
	size_t size = least > CHUNK ? least : CHUNK;
	struct gram_chunk *c = malloc(sizeof *c + size);

	if (c != NULL) {
		c->next = NULL;
		c->size = size;
	}
	return c;
}

/* NULL: no memory, and .failed is set. */
void *
gram_alloc(struct gram_arena *a, size_t n)
{
	struct gram_chunk *c;
	void *p;

	n = (n + 15) & ~(size_t)15;
	while (a->cur == NULL || a->used + n > a->cur->size) {
		c = a->cur == NULL ? a->first : a->cur->next;
		if (c == NULL || c->size < n) {
			struct gram_chunk *more = new_chunk(n);

			if (more == NULL) {
				a->failed = true;
				return NULL;
			}
			more->next = c;
			if (a->cur == NULL)
				a->first = more;
			else
				a->cur->next = more;
			c = more;
		}
		a->cur = c;
		a->used = 0;
	}
	p = (char *)a->cur->data + a->used;
	a->used += n;
	return p;
}

/* Of p, the last that was taken, only n bytes are needed. */
static void
shrink(struct gram_arena *a, void *p, size_t n)
{
	a->used = (size_t)((char *)p - (char *)a->cur->data) +
	    ((n + 15) & ~(size_t)15);
}

struct gram_mark
gram_mark(const struct gram_arena *a)
{
	return (struct gram_mark){ a->cur, a->used };
}

void
gram_release(struct gram_arena *a, struct gram_mark m)
{
	a->cur = m.cur;
	a->used = m.used;
}

void
gram_arena_free(struct gram_arena *a)
{
	struct gram_chunk *c = a->first, *next;

	for (; c != NULL; c = next) {
		next = c->next;
		free(c);
	}
	memset(a, 0, sizeof *a);
}

int
gram_step_init(struct gram_step *s, const struct gram *g)
{
	memset(s, 0, sizeof *s);
	s->g = g;
	s->seen = calloc(g->n_def + 1, sizeof *s->seen);
	s->done = malloc((g->n_def + 1) * sizeof *s->done);
	if (s->seen != NULL && s->done != NULL)
		return 0;
	gram_step_free(s);
	return -ENOMEM;
}

void
gram_step_free(struct gram_step *s)
{
	gram_arena_free(&s->arena);
	free(s->seen);
	free(s->done);
	memset(s, 0, sizeof *s);
}

/* --- sets -------------------------------------------------------------- */

static void
new_stamp(struct gram_step *s)
{
	if (++s->stamp == 0) {
		memset(s->seen, 0, (s->g->n_def + 1) * sizeof *s->seen);
		s->stamp = 1;
	}
}

/* False: it was there already. */
static bool
first_time(struct gram_step *s, uint32_t def)
{
	if (s->seen[def] == s->stamp)
		return false;
	s->seen[def] = s->stamp;
	return true;
}

/* Room for n items, of which no more are kept than may be alive. */
static bool
items_room(struct gram_step *s, struct gram_cfg *out, uint32_t n)
{
	n = n < GRAM_MAX_ITEMS ? n : GRAM_MAX_ITEMS;
	out->n = 0;
	out->it = gram_alloc(&s->arena, (n > 0 ? n : 1) * sizeof *out->it);
	return out->it != NULL;
}

/* Each item can be completed alone: to leave one out costs no more than the
   texts that only it would have allowed. */
static void
add_item(struct gram_cfg *out, struct gram_item it)
{
	for (uint32_t i = 0; i < out->n; i++)
		if (out->it[i].def == it.def && out->it[i].q == it.q &&
		    out->it[i].n == it.n)
			return;
	if (out->n < GRAM_MAX_ITEMS)
		out->it[out->n++] = it;
}

/* --- what containers allow --------------------------------------------- */

/* Does a value still fit that deep? */
static bool
fits(const struct gram *g, uint32_t value, uint32_t depth)
{
	return value != GRAM_NONE &&
	    depth + g->value[value].height <= GRAM_MAX_DEPTH;
}

static uint32_t
element(const struct gram_def *d, uint32_t n)
{
	return n < d->n_prefix ? d->prefix[n] : d->items;
}

/* May an element come after n of them? depth: of the array itself. */
static bool
may_add(const struct gram *g, const struct gram_def *d, uint32_t n,
    uint32_t depth)
{
	return n < d->max && fits(g, element(d, n), depth);
}

static bool
may_name(const struct gram *g, const struct gram_def *d, uint32_t pos,
    uint32_t depth)
{
	for (uint32_t i = pos; i < d->n_props; i++) {
		if (fits(g, d->props[i].value, depth))
			return true;
		if (d->props[i].required)
			return false;
	}
	return pos >= d->must && fits(g, d->extra, depth);
}

static bool
may_close(const struct gram *g, const struct gram_item *it)
{
	const struct gram_def *d;

	if (it->def == G_ROOT || (it->q != P_START && it->q != P_AFTER))
		return false;
	d = &g->def[it->def];
	return d->kind == G_ARRAY ? it->n >= d->min : it->n >= d->must;
}

/* The value that an item waits for, or NONE. */
static uint32_t
awaited(const struct gram *g, const struct gram_item *it, uint32_t depth)
{
	const struct gram_def *d;

	if (it->def == G_ROOT)
		return it->q == P_VALUE ? it->n : GRAM_NONE;
	d = &g->def[it->def];
	if (d->kind == G_ARRAY)
		return (it->q == P_START || it->q == P_VALUE) &&
		    may_add(g, d, it->n, depth) ? element(d, it->n) :
		    GRAM_NONE;
	if (it->q != P_VALUE)
		return GRAM_NONE;
	return it->n < d->n_props ? d->props[it->n].value : d->extra;
}

static bool
is_scalar(const struct gram *g, const struct gram_item *it)
{
	return it->def != G_ROOT && g->def[it->def].kind >= G_DFA;
}

/* --- scalars ----------------------------------------------------------- */

static bool
scalar_byte(const struct gram_def *d, struct gram_item *it, uint8_t b)
{
	uint16_t to;

	if (d->kind == G_LIT) {
		if (it->q >= d->len || (uint8_t)d->lit[it->q] != b)
			return false;
		it->q++;
		return true;
	}
	to = d->dfa->next[(size_t)it->q * d->dfa->n_cls + d->dfa->cls[b]];
	if (to == DFA_DEAD)
		return false;
	if (d->counted && (d->dfa->flags[it->q] & DFA_CHAR)) {
		if (b == '"' && !d->raw) {
			if (it->n < d->min)
				return false;
		} else if (it->n == d->max) {
			return false;
		} else if (it->n < d->min || d->max != GRAM_NONE) {
			it->n++;
		}
	}
	it->q = to;
	return true;
}

/* 1: it is whole; 2: and nothing can follow. */
static unsigned
scalar_done(const struct gram_def *d, const struct gram_item *it)
{
	if (d->kind == G_LIT)
		return it->q == d->len ? 2 : 0;
	if (!(d->dfa->flags[it->q] & DFA_ACCEPT) ||
	    (d->raw && d->counted && it->n < d->min))
		return 0;
	return d->dfa->final[it->q] ? 2 : 1;
}

/* Definitions of whole scalars into done[]. */
static void
collect_done(struct gram_step *s, const struct gram_item *it, uint32_t n)
{
	new_stamp(s);
	s->n_done = 0;
	for (uint32_t i = 0; i < n; i++)
		if (scalar_done(&s->g->def[it[i].def], &it[i]) > 0 &&
		    first_time(s, it[i].def))
			s->done[s->n_done++] = it[i].def;
}

/* A level has ended with done[]; what is around goes on. */
static int
end_level(struct gram_step *s, const struct gram_level *up,
    struct gram_cfg *out)
{
	if (up == &gram_base)
		return STEP_EXIT;
	return gram_pop(s, up, s->done, s->n_done, out) ? STEP_OK : STEP_DEAD;
}

static int
step_scalar(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	const struct gram *g = s->g;
	struct gram_cfg around;
	bool ends = false;
	int rc;

	if (!items_room(s, out, in->n))
		return STEP_DEAD;
	out->up = in->up;
	out->depth = in->depth;
	out->ws = 0;
	for (uint32_t i = 0; i < in->n; i++) {
		struct gram_item it = in->it[i];
		const struct gram_def *d = &g->def[it.def];

		if (!scalar_byte(d, &it, b))
			continue;
		out->it[out->n++] = it;
		ends |= !d->lazy && scalar_done(d, &it) > 0;
	}
	if (ends) {
		collect_done(s, out->it, out->n);
		return end_level(s, in->up, out);
	}
	if (out->n > 0)
		return STEP_OK;
	/* A number ends before what is no part of it. */
	if (!g->def[in->it[0].def].lazy || g->def[in->it[0].def].raw)
		return STEP_DEAD;
	collect_done(s, in->it, in->n);
	if (s->n_done == 0)
		return STEP_DEAD;
	if (in->up == &gram_base)
		return STEP_EXIT_BEFORE;
	rc = end_level(s, in->up, &around);
	return rc == STEP_OK ? gram_step(s, &around, b, out) : rc;
}

/* --- containers -------------------------------------------------------- */

static bool
may_space(const struct gram *g, const struct gram_item *it)
{
	switch (it->q) {
	case P_START: case P_KEY: case P_VALUE:
		return true;
	case P_AFTER:
		return may_close(g, it);
	}
	return false;
}

/* Spaces stay few: one, or a newline and an indentation. */
static int
step_space(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	if (b == '\n' ? in->ws != 0 : in->ws == 1 ||
	    in->ws >= 2 + GRAM_MAX_INDENT)
		return STEP_DEAD;
	if (!items_room(s, out, in->n))
		return STEP_DEAD;
	out->up = in->up;
	out->depth = in->depth;
	out->ws = b == '\n' ? 2 : in->ws + 1;
	for (uint32_t i = 0; i < in->n; i++)
		if (may_space(s->g, &in->it[i]))
			out->it[out->n++] = in->it[i];
	return out->n > 0 ? STEP_OK : STEP_DEAD;
}

/* A level inside in; its items are for the caller to fill. */
static bool
open_level(struct gram_step *s, const struct gram_cfg *in, uint32_t depth,
    uint32_t n, struct gram_cfg *out)
{
	struct gram_level *l = gram_alloc(&s->arena, sizeof *l);

	if (l == NULL || !items_room(s, out, n))
		return false;
	*l = (struct gram_level){ in->up, in->it, in->n, in->depth };
	out->up = l;
	out->depth = depth;
	out->ws = 0;
	return true;
}

static int
step_open(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	enum gram_kind kind = b == '{' ? G_OBJECT : G_ARRAY;
	const struct gram *g = s->g;

	if (!open_level(s, in, in->depth + 1, g->n_def, out))
		return STEP_DEAD;
	new_stamp(s);
	for (uint32_t i = 0; i < in->n; i++) {
		uint32_t v = awaited(g, &in->it[i], in->depth);

		if (v == GRAM_NONE)
			continue;
		for (uint32_t k = 0; k < g->value[v].n; k++) {
			uint32_t def = g->value[v].alt[k];
			const struct gram_def *d = &g->def[def];

			if (d->kind == kind && in->depth + d->height <=
			    GRAM_MAX_DEPTH && first_time(s, def) &&
			    out->n < GRAM_MAX_ITEMS)
				out->it[out->n++] = (struct gram_item){
				    .def = def, .q = P_START };
		}
	}
	shrink(&s->arena, out->it, out->n * sizeof *out->it);
	return out->n > 0 ? STEP_OK : STEP_DEAD;
}

static int
step_close(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	enum gram_kind kind = b == '}' ? G_OBJECT : G_ARRAY;

	new_stamp(s);
	s->n_done = 0;
	for (uint32_t i = 0; i < in->n; i++)
		if (may_close(s->g, &in->it[i]) &&
		    s->g->def[in->it[i].def].kind == kind &&
		    first_time(s, in->it[i].def))
			s->done[s->n_done++] = in->it[i].def;
	return s->n_done > 0 ? end_level(s, in->up, out) : STEP_DEAD;
}

/* "," or ":" */
static int
step_between(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	const struct gram *g = s->g;

	if (in->ws != 0 || !items_room(s, out, in->n))
		return STEP_DEAD;
	out->up = in->up;
	out->depth = in->depth;
	out->ws = 0;
	for (uint32_t i = 0; i < in->n; i++) {
		struct gram_item it = in->it[i];
		const struct gram_def *d;
		bool ok;

		if (it.def == G_ROOT)
			continue;
		d = &g->def[it.def];
		if (b == ':')
			ok = it.q == P_COLON;
		else
			ok = it.q == P_AFTER && (d->kind == G_ARRAY ?
			    may_add(g, d, it.n, in->depth) :
			    may_name(g, d, it.n, in->depth));
		it.q = b == ',' && d->kind == G_OBJECT ? P_KEY : P_VALUE;
		if (ok)
			out->it[out->n++] = it;
	}
	return out->n > 0 ? STEP_OK : STEP_DEAD;
}

/* A scalar's definition begins with b, if it can and has not yet. */
static void
begin(struct gram_step *s, struct gram_cfg *out, uint32_t def, uint8_t b)
{
	struct gram_item it = { .def = def };

	if (s->g->def[def].kind >= G_DFA && first_time(s, def) &&
	    scalar_byte(&s->g->def[def], &it, b) && out->n < GRAM_MAX_ITEMS)
		out->it[out->n++] = it;
}

static void
begin_names(struct gram_step *s, struct gram_cfg *out,
    const struct gram_item *it, uint32_t depth, uint8_t b)
{
	const struct gram_def *d = &s->g->def[it->def];

	for (uint32_t i = it->n; i < d->n_props; i++) {
		if (fits(s->g, d->props[i].value, depth))
			begin(s, out, d->props[i].key, b);
		if (d->props[i].required)
			return;
	}
	if (it->n >= d->must && fits(s->g, d->extra, depth))
		begin(s, out, d->extra_key, b);
}

/* The first byte of a string, a number or a literal. */
static int
step_begin(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	const struct gram *g = s->g;

	if (!open_level(s, in, in->depth, g->n_def, out))
		return STEP_DEAD;
	new_stamp(s);
	for (uint32_t i = 0; i < in->n; i++) {
		const struct gram_item *it = &in->it[i];
		uint32_t v = awaited(g, it, in->depth);

		if (v != GRAM_NONE)
			for (uint32_t k = 0; k < g->value[v].n; k++)
				begin(s, out, g->value[v].alt[k], b);
		else if (it->def != G_ROOT && b == '"' &&
		    g->def[it->def].kind == G_OBJECT &&
		    (it->q == P_START || it->q == P_KEY))
			begin_names(s, out, it, in->depth, b);
	}
	shrink(&s->arena, out->it, out->n * sizeof *out->it);
	return out->n > 0 ? STEP_OK : STEP_DEAD;
}

int
gram_step(struct gram_step *s, const struct gram_cfg *in, uint8_t b,
    struct gram_cfg *out)
{
	if (is_scalar(s->g, &in->it[0]))
		return step_scalar(s, in, b, out);
	switch (b) {
	case ' ': case '\n':
		return step_space(s, in, b, out);
	case '[': case '{':
		return step_open(s, in, b, out);
	case ']': case '}':
		return step_close(s, in, b, out);
	case ',': case ':':
		return step_between(s, in, b, out);
	case '"': case '-': case 't': case 'f': case 'n':
	case '0': case '1': case '2': case '3': case '4':
	case '5': case '6': case '7': case '8': case '9':
		return step_begin(s, in, b, out);
	}
	return STEP_DEAD;
}

/* --- a level's end ----------------------------------------------------- */

/* Names of an object: those of it that are complete lead to its colon. */
static void
pop_names(struct gram_step *s, const struct gram_item *it, uint32_t depth,
    struct gram_cfg *out)
{
	const struct gram_def *d = &s->g->def[it->def];
	struct gram_item next = { .def = it->def, .q = P_COLON };

	for (uint32_t i = it->n; i < d->n_props; i++) {
		next.n = i;
		if (s->seen[d->props[i].key] == s->stamp &&
		    fits(s->g, d->props[i].value, depth))
			add_item(out, next);
		if (d->props[i].required)
			return;
	}
	next.n = d->n_props;
	if (it->n >= d->must && d->extra != GRAM_NONE &&
	    s->seen[d->extra_key] == s->stamp)
		add_item(out, next);
}

/* An item after its value; elements are counted as far as it matters. */
static struct gram_item
after_value(const struct gram *g, struct gram_item it)
{
	const struct gram_def *d;

	it.q = P_AFTER;
	if (it.def == G_ROOT)
		return it;
	d = &g->def[it.def];
	if (d->kind == G_OBJECT)
		it.n = it.n < d->n_props ? it.n + 1 : it.n;
	else if (it.n < d->min || it.n < d->n_prefix || d->max != GRAM_NONE)
		it.n++;
	return it;
}

bool
gram_pop(struct gram_step *s, const struct gram_level *up,
    const uint32_t *done, uint32_t n_done, struct gram_cfg *out)
{
	const struct gram *g = s->g;
	uint64_t room = 0;

	new_stamp(s);
	for (uint32_t i = 0; i < n_done; i++)
		s->seen[done[i]] = s->stamp;
	/* A name leads to one property of each item. */
	room = (uint64_t)up->n * (n_done + 1);
	if (!items_room(s, out, room < GRAM_MAX_ITEMS ? (uint32_t)room :
	    GRAM_MAX_ITEMS))
		return false;
	out->up = up->up;
	out->depth = up->depth;
	out->ws = 0;
	for (uint32_t i = 0; i < up->n; i++) {
		const struct gram_item *it = &up->it[i];
		uint32_t v = awaited(g, it, up->depth);

		if (v == GRAM_NONE) {
			if (it->def != G_ROOT &&
			    g->def[it->def].kind == G_OBJECT &&
			    (it->q == P_START || it->q == P_KEY))
				pop_names(s, it, up->depth, out);
			continue;
		}
		for (uint32_t k = 0; k < g->value[v].n; k++)
			if (s->seen[g->value[v].alt[k]] == s->stamp) {
				add_item(out, after_value(g, *it));
				break;
			}
	}
	return out->n > 0;
}

/* Is the text whole? A number may be, and may go on. */
bool
gram_complete(const struct gram *g, const struct gram_cfg *c)
{
	const struct gram_item *it = &c->it[0];

	if (it->def == G_ROOT)
		return it->q == P_AFTER;
	if (!is_scalar(g, it) || c->up->it[0].def != G_ROOT)
		return false;
	for (uint32_t i = 0; i < c->n; i++)
		if (scalar_done(&g->def[c->it[i].def], &c->it[i]) > 0)
			return true;
	return false;
}
