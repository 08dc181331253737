/*
 * A text as far as it has come, in a configuration that outlives the steps: it
 * is copied into one of two arenas in turn. Belongs to one request's text job.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/text/gram.h"

/* c, copied into memory that stays until the next but one. */
static int
store(struct gram_read *r, const struct gram_cfg *c)
{
	struct gram_arena *a = &r->store[r->turn ^ 1];
	struct gram_cfg *out = &r->cfg;
	const struct gram_level *from = c->up;
	const struct gram_level **to = &out->up;
	struct gram_cfg copy = *c;

	gram_release(a, (struct gram_mark){ NULL, 0 });
	copy.it = gram_alloc(a, c->n * sizeof *c->it);
	if (copy.it == NULL)
		return -ENOMEM;
	memcpy(copy.it, c->it, c->n * sizeof *c->it);
	*out = copy;
	for (; from != NULL; from = from->up) {
		struct gram_level *l = gram_alloc(a, sizeof *l);
		struct gram_item *it = gram_alloc(a, from->n * sizeof *it);

		if (l == NULL || it == NULL)
			return -ENOMEM;
		memcpy(it, from->it, from->n * sizeof *it);
		*l = (struct gram_level){ NULL, it, from->n, from->depth };
		*to = l;
		to = &l->up;
	}
	*to = NULL;
	r->turn ^= 1;
	return 0;
}

/* Steps know one grammar's definitions. */
static int
open_steps(struct gram_read *r, struct gram *g)
{
	int rc = 0;

	r->open = false;
	if (r->g == g)
		return 0;
	gram_step_free(&r->step);
	r->g = NULL;
	rc = gram_step_init(&r->step, g);
	if (rc == 0)
		r->g = g;
	return rc;
}

int
gram_read_value(struct gram_read *r, struct gram *g, uint32_t value)
{
	struct gram_item it = { .def = G_ROOT, .q = P_VALUE, .n = value };
	struct gram_cfg c = { .it = &it, .n = 1 };
	int rc = open_steps(r, g);

	if (rc == 0)
		rc = store(r, &c);
	r->open = rc == 0;
	return rc;
}

int
gram_read_raw(struct gram_read *r, struct gram *g, const uint32_t *defs,
    uint32_t n)
{
	struct gram_item root = { .def = G_ROOT, .q = P_VALUE };
	struct gram_level around = { .it = &root, .n = 1 };
	struct gram_cfg c = { .up = &around, .n = n };
	int rc = open_steps(r, g);

	if (rc != 0)
		return rc;
	c.it = gram_alloc(&r->step.arena, n * sizeof *c.it);
	if (c.it == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		c.it[i] = (struct gram_item){ .def = defs[i] };
	rc = store(r, &c);
	gram_release(&r->step.arena, (struct gram_mark){ NULL, 0 });
	r->open = rc == 0;
	return rc;
}

int
gram_read_push(struct gram_read *r, const char *s, size_t n)
{
	struct gram_cfg c = r->cfg, next;
	int rc = r->open ? 0 : -EPROTO;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (gram_step(&r->step, &c, (uint8_t)s[i], &next) != STEP_OK)
			rc = r->step.arena.failed ? -ENOMEM : -EPROTO;
		c = next;
	}
	if (rc == 0)
		rc = store(r, &c);
	gram_release(&r->step.arena, (struct gram_mark){ NULL, 0 });
	r->open = rc == 0;
	return rc;
}

int
gram_read_mask(struct gram_read *r, struct gram_trie *t, uint32_t *bits)
{
	int rc = gram_mask(r->g, t, &r->step, &r->cfg, bits);

	gram_release(&r->step.arena, (struct gram_mark){ NULL, 0 });
	return rc;
}

bool
gram_read_complete(const struct gram_read *r)
{
	return r->open && gram_complete(r->g, &r->cfg);
}

void
gram_read_close(struct gram_read *r)
{
	gram_arena_free(&r->store[0]);
	gram_arena_free(&r->store[1]);
	gram_step_free(&r->step);
	memset(r, 0, sizeof *r);
}
