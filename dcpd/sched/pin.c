/*
 * Pinned text: pages that an admin wants kept in the pool, whatever else is
 * asked of it. A pin holds its pages as a request does, so they are never idle
 * and never leave; pins may share them with each other and with requests.
 *
 * Bounded by c.pin_fraction of the pool, and so that whoever is live still
 * fits into the rest: the first in order must always find its pages
 * (admit.c). A request that comes later and does not fit beside the pins is
 * refused when it comes (dcpd_pin_leaves_room).
 *
 * An admin thread asks and waits; the step thread acts at a step boundary.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/sched/sched_i.h"

struct pin {
	struct pin *next;
	uint64_t id;
	uint32_t n;
	uint32_t page[];	/* [n] a path of the tree */
};

/* Pages that pins hold, each counted once. */
static uint32_t
pin_pages(const struct dcpd_sched *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; s->pins != NULL && i < s->c.engine->pages; i++)
		n += s->pin_refs[i] > 0;
	return n;
}

static uint32_t
pin_limit(const struct dcpd_sched *s)
{
	return (uint32_t)(s->c.pin_fraction * s->c.engine->pages);
}

int
dcpd_pin_leaves_room(const struct dcpd_sched *s, const struct req *r,
    struct dcpd_err *err)
{
	uint32_t left = s->c.engine->pages - s->n_pinned;

	if (r->pages_max <= left)
		return 0;
	return dcpd_fail(err, -EMSGSIZE, "%u prompt tokens + max_tokens %u "
	    "need %u pages: the pool has %u, of which %u are pinned; ask for "
	    "less, or `dcpctl cache unpin`", r->n_prompt, r->max_tokens,
	    r->pages_max, s->c.engine->pages, s->n_pinned);
}

/* The longest that a live request may become, pages. */
static uint32_t
longest_live(const struct dcpd_sched *s)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < s->n_wait; i++)
		if (s->wait[i]->pages_max > most)
			most = s->wait[i]->pages_max;
	for (uint32_t i = 0; i < s->n_run; i++)
		if (s->run[i]->pages_max > most)
			most = s->run[i]->pages_max;
	return most;
}

/* May these be pinned beside what is? */
static int
check_limits(const struct dcpd_sched *s, const struct pin *p,
    struct dcpd_err *err)
{
	uint32_t n = s->n_pinned, pages = s->c.engine->pages;

	for (uint32_t i = 0; i < p->n; i++)
		n += s->pin_refs[p->page[i]] == 0;
	if (n > pin_limit(s))
		return dcpd_fail(err, -ENOSPC, "pinned pages would be %u of "
		    "%u: %u may be (--pin-fraction %g); unpin something, or "
		    "raise it", n, pages, pin_limit(s), s->c.pin_fraction);
	if (longest_live(s) > pages - n)
		return dcpd_fail(err, -EBUSY, "a request that is here may need "
		    "%u pages, and only %u would not be pinned: try again when "
		    "it has ended", longest_live(s), pages - n);
	return 0;
}

/* The text that is asked for: tokens, or a running request's own pages. */
static int
find_pages(struct dcpd_sched *s, const struct dcpd_pin_ask *a, struct pin *p,
    struct dcpd_err *err)
{
	const struct req *r;
	uint32_t to = a->n / DCPD_PAGE_TOKENS, found, n = a->n;
	bool more;

	if (a->n == 0) {
		r = dcpd_live_find(s, NULL, a->request);
		if (r == NULL || (r->state != R_PREFILL &&
		    r->state != R_DECODE))
			return dcpd_fail(err, -ENOENT, "no running request "
			    "%llu; see `dcpctl requests`",
			    (unsigned long long)a->request);
		if (r->restoring)
			return dcpd_fail(err, -EBUSY, "request %llu: part of "
			    "its text is still in host memory: try again in a "
			    "moment", (unsigned long long)a->request);
		n = r->n_prompt;
		p->n = (uint32_t)dcpd_min64(r->n_shared,
		    n / DCPD_PAGE_TOKENS);
		memcpy(p->page, r->pages, p->n * sizeof *p->page);
		dcpd_prefix_hold(s->prefix, p->page, p->n);
	} else {
		found = dcpd_prefix_match(s->prefix, a->salt, a->tokens, 0, to,
		    p->page);
		dcpd_prefix_hold(s->prefix, p->page, found);
		p->n = dcpd_prefix_restore(s->prefix, a->salt, a->tokens, found,
		    to, UINT32_MAX, p->page, &more);
	}
	if (p->n == 0 && n < DCPD_PAGE_TOKENS)
		return dcpd_fail(err, -EINVAL, "%u tokens: only whole pages of "
		    "%u are kept; give a longer text", n, DCPD_PAGE_TOKENS);
	return p->n > 0 ? 0 : dcpd_fail(err, -ENOENT, "the cache has no whole "
	    "page of %u tokens of it: let it be prefilled first",
	    DCPD_PAGE_TOKENS);
}

/* Lock held. */
static int
pin(struct dcpd_sched *s, struct dcpd_pin_ask *a, struct dcpd_err *err)
{
	struct pin *p = malloc(sizeof *p +
	    s->c.engine->pages * sizeof *p->page);
	int rc;

	if (p == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	p->n = 0;
	rc = find_pages(s, a, p, err);
	if (rc == 0)
		rc = check_limits(s, p, err);
	if (rc != 0) {
		dcpd_prefix_release(s->prefix, p->page, p->n);
		free(p);
		return rc;
	}
	for (uint32_t i = 0; i < p->n; i++)
		s->pin_refs[p->page[i]]++;
	p->id = ++s->pin_id;
	p->next = s->pins;
	s->pins = p;
	a->id = p->id;
	a->pages = p->n;
	return 0;
}

static void
let_go(struct dcpd_sched *s, struct pin *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		s->pin_refs[p->page[i]]--;
	dcpd_prefix_release(s->prefix, p->page, p->n);
	free(p);
}

/* Lock held. One, or with id 0 all. */
static int
unpin(struct dcpd_sched *s, struct dcpd_pin_ask *a, struct dcpd_err *err)
{
	struct pin **at = &s->pins, *p;

	a->pages = 0;
	while ((p = *at) != NULL) {
		if (a->id != 0 && p->id != a->id) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		a->pages += p->n;
		let_go(s, p);
		if (a->id != 0)
			return 0;
	}
	return a->id == 0 ? 0 : dcpd_fail(err, -ENOENT, "no pin %llu; see "
	    "`dcpctl cache stats`", (unsigned long long)a->id);
}

/* Step thread, lock held. */
void
dcpd_pin_answer(struct dcpd_sched *s)
{
	struct dcpd_pin_ask *a = s->pin_ask;

	if (a == NULL)
		return;
	a->rc = a->unpin ? unpin(s, a, &a->err) : pin(s, a, &a->err);
	s->n_pinned = pin_pages(s);
	DCPD_GAUGE(pages_pinned, s->n_pinned);
	s->pin_ask = NULL;
}

void
dcpd_pins_free(struct dcpd_sched *s)
{
	struct pin *p;

	while ((p = s->pins) != NULL) {
		s->pins = p->next;
		let_go(s, p);
	}
}

/* refs [pages]: one more for each pin. */
void
dcpd_pins_count(const struct dcpd_sched *s, uint32_t *refs)
{
	for (const struct pin *p = s->pins; p != NULL; p = p->next)
		for (uint32_t i = 0; i < p->n; i++)
			refs[p->page[i]]++;
}

/* Lock held. */
json_t *
dcpd_pins_json(const struct dcpd_sched *s)
{
	json_t *a = json_array();

	for (const struct pin *p = s->pins; p != NULL; p = p->next)
		json_array_append_new(a, json_pack("{s:I, s:I, s:I}",
		    "id", (json_int_t)p->id, "pages", (json_int_t)p->n,
		    "tokens", (json_int_t)p->n * DCPD_PAGE_TOKENS));
	return a;
}
