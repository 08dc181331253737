/* Tokens from the ids of a trace, and the pages that a perfect cache holds. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpctl/measure.h"
#include "dcpctl/trace.h"

#define STRIDE 0x9e3779b97f4a7c15u	/* odd: neighbours far apart */

uint64_t
trace_scaled(uint32_t len, double scale)
{
	/* 0.29 * 100 is 28.999...: what is whole on paper stays whole. */
	uint64_t n = (uint64_t)((double)len * scale + 1e-6);

	return n > 0 ? n : 1;
}

void
trace_fill(const struct trace *t, const struct trace_turn *turn, uint64_t own,
    const struct trace_text *x, uint32_t from, uint32_t to, uint32_t *out)
{
	uint64_t last = UINT64_MAX, block, id, base = 0;

	for (uint32_t p = from; p < to; p++) {
		block = (uint64_t)((double)p / x->scale + 1e-6) / t->block;
		if (block > turn->n_ids)
			block = turn->n_ids;
		if (block != last) {
			last = block;
			id = block < turn->n_ids ?
			    (uint64_t)turn->ids[block] : ~ctl_mix(own + 1);
			base = ctl_mix(id * STRIDE + ctl_mix(x->seed));
		}
		out[p] = (uint32_t)(ctl_mix(base + p * STRIDE) % x->vocab);
	}
}

/* --- pages --------------------------------------------------------------- */

/* The hash of a page and all before it; never 0. */
static uint64_t
next_page(uint64_t before, const uint32_t *tokens)
{
	uint64_t h = before;

	for (uint32_t i = 0; i < TRACE_PAGE; i++)
		h = ctl_mix(h + tokens[i] + STRIDE);
	return h != 0 ? h : 1;
}

/* Where h is, or the empty slot where it belongs. */
static size_t
slot_of(const struct trace_pages *s, uint64_t h)
{
	size_t i = h & (s->cap - 1);

	while (s->slot[i] != 0 && s->slot[i] != h)
		i = (i + 1) & (s->cap - 1);
	return i;
}

/* At most half full, so that a search is short. */
static int
grow(struct trace_pages *s)
{
	struct trace_pages more = { .n = s->n };

	if (s->n * 2 < s->cap)
		return 0;
	more.cap = s->cap == 0 ? 1024 : s->cap * 2;
	more.slot = calloc(more.cap, sizeof *more.slot);
	if (more.slot == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < s->cap; i++)
		if (s->slot[i] != 0)
			more.slot[slot_of(&more, s->slot[i])] = s->slot[i];
	free(s->slot);
	*s = more;
	return 0;
}

uint32_t
trace_pages_find(const struct trace_pages *s, const uint32_t *tokens,
    uint32_t n)
{
	uint64_t h = 0;
	uint32_t at;

	if (s->n == 0 || n == 0)
		return 0;
	for (at = 0; at + TRACE_PAGE < n; at += TRACE_PAGE) {
		h = next_page(h, tokens + at);
		if (s->slot[slot_of(s, h)] == 0)
			break;
	}
	return at;
}

int
trace_pages_add(struct trace_pages *s, const uint32_t *tokens, uint32_t n)
{
	uint64_t h = 0;
	size_t i;
	int rc;

	for (uint32_t at = 0; at + TRACE_PAGE <= n; at += TRACE_PAGE) {
		rc = grow(s);
		if (rc != 0)
			return rc;
		h = next_page(h, tokens + at);
		i = slot_of(s, h);
		s->n += s->slot[i] == 0;
		s->slot[i] = h;
	}
	return 0;
}

void
trace_pages_free(struct trace_pages *s)
{
	free(s->slot);
	*s = (struct trace_pages){ 0 };
}
