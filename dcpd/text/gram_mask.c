/*
 * Which tokens may come next: a walk over the trie of the vocabulary's bytes,
 * that leaves out a subtree as soon as its bytes are refused.
 *
 * Most of a mask depends on the innermost level alone: what may follow inside a
 * string does not ask where the string stands. That part is made once for each
 * set of items and remembered in the grammar, together with the places in the
 * trie where the level ends; from there on the walk is continued in the levels
 * around, each time. The inside of any string is remembered for all grammars.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"
#include "dcpd/text/tok.h"

/* --- the trie ---------------------------------------------------------- */

struct word {
	const char *s;
	size_t n;
	uint32_t id;
};

static int
by_bytes(const void *a, const void *b)
{
	const struct word *x = a, *y = b;
	size_t n = x->n < y->n ? x->n : y->n;
	int c = memcmp(x->s, y->s, n);

	return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

/* Tokens that are text: no special or added ones, none that is very long. */
static int
words_of(const struct dcpd_tokenizer *t, uint32_t vocab, struct word **out,
    uint32_t *n)
{
	struct word *w = malloc(((size_t)vocab + 1) * sizeof *w);
	bool *added = calloc((size_t)vocab + 1, sizeof *added), special;

	if (w == NULL || added == NULL) {
		free(added);
		free(w);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < t->n_added; i++)
		if (t->added[i].id < vocab)
			added[t->added[i].id] = true;
	*n = 0;
	for (uint32_t id = 0; id < vocab && id < dcpd_token_limit(t); id++) {
		struct word *k = &w[*n];

		if (dcpd_token_bytes(t, id, &k->s, &k->n, &special) != 0 ||
		    special || added[id] || k->n == 0 || k->n > GRAM_MAX_TOKEN)
			continue;
		k->id = id;
		++*n;
	}
	free(added);
	qsort(w, *n, sizeof *w, by_bytes);
	*out = w;
	return 0;
}

static uint32_t
brackets(const struct word *w)
{
	uint32_t n = 0;

	for (size_t i = 0; i < w->n; i++)
		n += w->s[i] == '[' || w->s[i] == '{';
	return n;
}

/* Nodes of sorted words, depth first: a path is open, and grows or closes. */
static void
fill_trie(struct gram_trie *t, const struct word *w, uint32_t n)
{
	uint32_t path[GRAM_MAX_TOKEN + 1] = { 0 };
	size_t depth = 0, same;

	t->n = 1;
	t->v[0] = (struct gram_node){ .end = 0 };
	for (uint32_t i = 0; i < n; i++) {
		for (same = 0; i > 0 && same < depth && same < w[i].n &&
		    w[i].s[same] == w[i - 1].s[same]; same++)
			;
		for (; depth > same; depth--)
			t->v[path[depth]].end = t->n;
		for (; depth < w[i].n; depth++) {
			path[depth + 1] = t->n;
			t->v[t->n++] = (struct gram_node){
			    .byte = (uint8_t)w[i].s[depth], .tok0 = i };
		}
		t->v[path[depth]].toks++;
		t->tok[i] = w[i].id;
		if (w[i].n > t->horizon)
			t->horizon = (uint32_t)w[i].n;
		if (brackets(&w[i]) > t->opens)
			t->opens = brackets(&w[i]);
	}
	for (; depth > 0; depth--)
		t->v[path[depth]].end = t->n;
	t->v[0].end = t->n;
}

int
gram_trie_new(const struct dcpd_tokenizer *tok, uint32_t vocab,
    struct gram_trie **out)
{
	struct gram_trie *t = calloc(1, sizeof *t);
	struct word *w = NULL;
	size_t nodes = 1;
	uint32_t n = 0;
	int rc = t == NULL ? -ENOMEM : words_of(tok, vocab, &w, &n);

	for (uint32_t i = 0; i < n; i++) {
		size_t same = 0;

		while (i > 0 && same < w[i].n && same < w[i - 1].n &&
		    w[i].s[same] == w[i - 1].s[same])
			same++;
		nodes += w[i].n - same;
	}
	if (rc == 0) {
		t->t = tok;
		gram_cache_init(&t->strings);
		t->words = (vocab + 31) / 32;
		t->v = malloc(nodes * sizeof *t->v);
		t->tok = malloc(((size_t)n + 1) * sizeof *t->tok);
		if (t->v == NULL || t->tok == NULL)
			rc = -ENOMEM;
	}
	if (rc == 0) {
		fill_trie(t, w, n);
		DCPD_ASSERT(t->n == nodes);
		*out = t;
	} else {
		gram_trie_free(t);
	}
	free(w);
	return rc;
}

void
gram_trie_free(struct gram_trie *t)
{
	if (t == NULL)
		return;
	if (t->t != NULL)
		gram_cache_free(&t->strings);
	free(t->v);
	free(t->tok);
	free(t);
}

/* --- the walk ---------------------------------------------------------- */

struct exit {			/* where a level ends */
	uint32_t node;
	bool before;		/* node's byte is not of the level */
	uint32_t done0, n_done;	/* its definitions, in .done */
};

struct gram_cached {
	struct gram_cached *next;
	uint64_t hash;
	/* what it is for */
	struct gram_item *it;
	uint32_t n, ws, room;	/* room: containers that may still open */
	/* what it says */
	uint32_t *bits;
	struct exit *exit;
	uint32_t n_exit, cap_exit;
	uint32_t *done, n_done, cap_done;
};

struct walk {
	struct gram_step *s;
	const struct gram_trie *t;
	uint32_t *bits;
	struct gram_cached *into;	/* exits go here; NULL: none come */
	int rc;
};

static void
set_tokens(struct walk *w, const struct gram_node *n)
{
	for (uint32_t i = 0; i < n->toks; i++) {
		uint32_t id = w->t->tok[n->tok0 + i];

		w->bits[id / 32] |= 1u << id % 32;
	}
}

static int
room(void *v, uint32_t n, uint32_t *cap, size_t size)
{
	uint32_t c = *cap == 0 ? 16 : *cap;
	void **p = v, *more;

	if (n <= *cap)
		return 0;
	while (c < n)
		c *= 2;
	more = realloc(*p, c * size);
	if (more == NULL)
		return -ENOMEM;
	*p = more;
	*cap = c;
	return 0;
}

/* The level ended at a node: remember where, and what is complete. */
static void
note_exit(struct walk *w, uint32_t node, bool before)
{
	struct gram_cached *c = w->into;
	const struct gram_step *s = w->s;
	const struct exit *last = c->n_exit > 0 ? &c->exit[c->n_exit - 1] :
	    NULL;
	uint32_t done0 = c->n_done;

	if (room(&c->exit, c->n_exit + 1, &c->cap_exit, sizeof *c->exit) != 0 ||
	    room(&c->done, c->n_done + s->n_done, &c->cap_done,
	    sizeof *c->done) != 0) {
		w->rc = -ENOMEM;
		return;
	}
	if (c->n_exit > 0)
		last = &c->exit[c->n_exit - 1];
	/* Mostly the same as before: a string ends everywhere alike. */
	if (last != NULL && last->n_done == s->n_done &&
	    memcmp(c->done + last->done0, s->done,
	    s->n_done * sizeof *s->done) == 0) {
		done0 = last->done0;
	} else {
		memcpy(c->done + done0, s->done, s->n_done * sizeof *s->done);
		c->n_done += s->n_done;
	}
	c->exit[c->n_exit++] = (struct exit){ node, before, done0,
	    s->n_done };
}

static void walk_below(struct walk *, uint32_t node, const struct gram_cfg *);

static void
walk_node(struct walk *w, uint32_t node, const struct gram_cfg *c)
{
	struct gram_mark m = gram_mark(&w->s->arena);
	struct gram_cfg next;

	switch (gram_step(w->s, c, w->t->v[node].byte, &next)) {
	case STEP_OK:
		set_tokens(w, &w->t->v[node]);
		walk_below(w, node, &next);
		break;
	case STEP_EXIT:
		note_exit(w, node, false);
		break;
	case STEP_EXIT_BEFORE:
		note_exit(w, node, true);
		break;
	}
	gram_release(&w->s->arena, m);
}

/*
 * One string without a count, which is what takes longest: its state is all
 * there is to keep, as long as it goes on.
 */
static void
walk_string(struct walk *w, uint32_t node, const struct gram_cfg *c,
    const struct gram_dfa *d, uint32_t q)
{
	const struct gram_node *v = w->t->v;
	const uint16_t *row = d->next + (size_t)q * d->n_cls;
	bool raw = w->s->g->def[c->it[0].def].raw;

	for (uint32_t k = node + 1; k < v[node].end; k = v[k].end) {
		uint16_t to = row[d->cls[v[k].byte]];

		if (to == DFA_DEAD)
			continue;
		if ((d->flags[to] & DFA_ACCEPT) && !raw) {
			struct gram_item it = { c->it[0].def, q, 0 };
			struct gram_cfg at = *c;

			at.it = &it;
			walk_node(w, k, &at);
			continue;
		}
		set_tokens(w, &v[k]);
		walk_string(w, k, c, d, to);
	}
}

/* All below node, which has been read. */
static void
walk_below(struct walk *w, uint32_t node, const struct gram_cfg *c)
{
	const struct gram_def *d = c->it[0].def == G_ROOT ? NULL :
	    &w->s->g->def[c->it[0].def];

	if (c->n == 1 && d != NULL && d->kind == G_DFA && !d->counted &&
	    (!d->lazy || d->raw)) {
		walk_string(w, node, c, d->dfa, c->it[0].q);
		return;
	}
	for (uint32_t k = node + 1; k < w->t->v[node].end && w->rc == 0;
	    k = w->t->v[k].end)
		walk_node(w, k, c);
}

/* --- what is remembered ------------------------------------------------ */

#define BUCKETS 1024u
#define CACHED_MAX 256u		/* of a grammar; then all are dropped */

static void
cached_free(struct gram_cached *c)
{
	if (c == NULL)
		return;
	free(c->it);
	free(c->bits);
	free(c->exit);
	free(c->done);
	free(c);
}

void
gram_cache_init(struct gram_cache *k)
{
	*k = (struct gram_cache){ .n = 0 };
	pthread_mutex_init(&k->lock, NULL);
}

static void
drop_all(struct gram_cache *k)
{
	for (uint32_t i = 0; k->bucket != NULL && i < BUCKETS; i++) {
		struct gram_cached *c = k->bucket[i], *next;

		for (; c != NULL; c = next) {
			next = c->next;
			cached_free(c);
		}
	}
	free(k->bucket);
	k->bucket = NULL;
	k->n = 0;
}

void
gram_cache_free(struct gram_cache *k)
{
	drop_all(k);
	pthread_mutex_destroy(&k->lock);
}

/*
 * Counts that no token can lead to the end of are all alike: what is allowed
 * next does not depend on them.
 */
static struct gram_item
alike(const struct gram *g, const struct gram_trie *t, struct gram_item it)
{
	const struct gram_def *d;
	uint32_t far = t->horizon + 1;

	if (it.def == G_ROOT)
		return it;
	d = &g->def[it.def];
	if ((d->kind != G_DFA || !d->counted) && d->kind != G_ARRAY)
		return it;
	if (d->kind == G_ARRAY && it.n < d->n_prefix)
		return it;
	if (it.n < d->min) {
		if (d->min - it.n > far)
			it.n = d->kind == G_ARRAY && d->min - far <
			    d->n_prefix ? it.n : d->min - far;
	} else if (d->max == GRAM_NONE || d->max - it.n > far) {
		it.n = d->kind == G_ARRAY && d->min < d->n_prefix ?
		    d->n_prefix : d->min;
	}
	return it;
}

static uint64_t
mix(uint64_t h, uint32_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

/* What to look for, in c: its items are new memory. */
static int
key_of(const struct gram *g, const struct gram_trie *t,
    const struct gram_cfg *cfg, struct gram_cached *c)
{
	uint32_t left = GRAM_MAX_DEPTH - cfg->depth;
	uint32_t far = t->opens + g->deepest;
	bool scalar = cfg->it[0].def != G_ROOT &&
	    g->def[cfg->it[0].def].kind >= G_DFA;

	c->it = malloc(cfg->n * sizeof *c->it);
	if (c->it == NULL)
		return -ENOMEM;
	c->n = cfg->n;
	c->ws = cfg->ws;
	c->room = scalar ? 0 : left < far ? left : far;
	c->hash = mix(mix(1, c->ws), c->room);
	for (uint32_t i = 0; i < cfg->n; i++) {
		c->it[i] = alike(g, t, cfg->it[i]);
		c->hash = mix(mix(mix(c->hash, c->it[i].def), c->it[i].q),
		    c->it[i].n);
	}
	return 0;
}

static bool
same_key(const struct gram_cached *a, const struct gram_cached *b)
{
	return a->hash == b->hash && a->n == b->n && a->ws == b->ws &&
	    a->room == b->room &&
	    memcmp(a->it, b->it, a->n * sizeof *a->it) == 0;
}

/* Lock held. */
static struct gram_cached *
find(const struct gram_cache *k, const struct gram_cached *key)
{
	struct gram_cached *c;

	if (k->bucket == NULL)
		return NULL;
	for (c = k->bucket[key->hash % BUCKETS]; c != NULL; c = c->next)
		if (same_key(c, key))
			return c;
	return NULL;
}

/* Lock held; takes c. */
static void
keep(struct gram_cache *k, struct gram_cached *c)
{
	uint32_t i = c->hash % BUCKETS;

	if (k->n == CACHED_MAX)
		drop_all(k);
	if (k->bucket == NULL)
		k->bucket = calloc(BUCKETS, sizeof *k->bucket);
	if (k->bucket == NULL) {
		cached_free(c);
		return;
	}
	c->next = k->bucket[i];
	k->bucket[i] = c;
	k->n++;
}

/* --- a mask ------------------------------------------------------------ */

/* Go on where the innermost level ended, in what is around it. */
static void
walk_exits(struct walk *w, const struct gram_cfg *cfg,
    const struct gram_cached *c)
{
	struct gram_mark m = gram_mark(&w->s->arena), inner;
	const struct exit *e = c->exit, *last = NULL;
	struct gram_cfg around = { .n = 0 };
	bool fits = false;

	for (uint32_t i = 0; i < c->n_exit; i++, e++) {
		if (last == NULL || e->done0 != last->done0 ||
		    e->n_done != last->n_done) {
			gram_release(&w->s->arena, m);
			fits = gram_pop(w->s, cfg->up, c->done + e->done0,
			    e->n_done, &around);
		}
		last = e;
		if (!fits)
			continue;
		inner = gram_mark(&w->s->arena);
		if (e->before) {
			walk_node(w, e->node, &around);
		} else {
			set_tokens(w, &w->t->v[e->node]);
			walk_below(w, e->node, &around);
		}
		gram_release(&w->s->arena, inner);
	}
	gram_release(&w->s->arena, m);
}

static int
make(const struct gram_trie *t, struct gram_step *s,
    const struct gram_cfg *cfg, struct gram_cached *c)
{
	struct walk w = { .s = s, .t = t, .into = c };
	struct gram_cfg alone = *cfg;

	c->bits = calloc(t->words, sizeof *c->bits);
	if (c->bits == NULL)
		return -ENOMEM;
	w.bits = c->bits;
	alone.up = &gram_base;
	walk_below(&w, 0, &alone);
	return s->arena.failed ? -ENOMEM : w.rc;
}

/* The exits of c, copied so that the lock can go; bits are copied, too. */
static int
take(const struct gram_cached *c, const struct gram_trie *t, uint32_t *bits,
    struct gram_cached *copy)
{
	*copy = (struct gram_cached){ .n_exit = c->n_exit };
	memcpy(bits, c->bits, t->words * sizeof *bits);
	if (c->n_exit == 0)
		return 0;
	copy->exit = malloc(c->n_exit * sizeof *c->exit);
	copy->done = malloc(c->n_done * sizeof *c->done);
	if (copy->exit == NULL || copy->done == NULL) {
		free(copy->exit);
		free(copy->done);
		*copy = (struct gram_cached){ .n_exit = 0 };
		return -ENOMEM;
	}
	memcpy(copy->exit, c->exit, c->n_exit * sizeof *c->exit);
	memcpy(copy->done, c->done, c->n_done * sizeof *c->done);
	return 0;
}

/* A cached mask, or a new one; the exits, and the bits, copied. */
static int
look_up(struct gram_cache *k, const struct gram_trie *t, struct gram_step *s,
    const struct gram_cfg *cfg, struct gram_cached **c, uint32_t *bits,
    struct gram_cached *exits)
{
	struct gram_cached *old;
	int rc = 0;

	pthread_mutex_lock(&k->lock);
	old = find(k, *c);
	if (old != NULL)
		rc = take(old, t, bits, exits);
	pthread_mutex_unlock(&k->lock);
	if (old != NULL)
		return rc;
	rc = make(t, s, cfg, *c);
	if (rc == 0)
		rc = take(*c, t, bits, exits);
	if (rc != 0)
		return rc;
	pthread_mutex_lock(&k->lock);
	keep(k, *c);
	pthread_mutex_unlock(&k->lock);
	*c = NULL;
	return 0;
}

int
gram_mask(struct gram *g, struct gram_trie *t, struct gram_step *s,
    const struct gram_cfg *cfg, uint32_t *bits)
{
	struct gram_cached *c = calloc(1, sizeof *c), exits = { 0 };
	/* Tagged arguments have a string of their own: gram_args.c. */
	bool string = cfg->n == 1 && cfg->it[0].def == GRAM_STRING &&
	    g->args == NULL;
	struct walk w = { .s = s, .t = t, .bits = bits };
	int rc;

	if (c == NULL)
		return -ENOMEM;
	rc = key_of(g, t, cfg, c);
	if (rc == 0)
		rc = look_up(string ? &t->strings : &g->cache, t, s, cfg, &c,
		    bits, &exits);
	if (rc == 0)
		walk_exits(&w, cfg, &exits);
	free(exits.exit);
	free(exits.done);
	cached_free(c);
	return s->arena.failed ? -ENOMEM : rc;
}
