/*
 * The page allocator: a stack of free ids and a reference count per page. It
 * owns numbers, not memory: what a page holds lies in every rank's pool under
 * the same id. Step thread only.
 *
 * The stack hands out what was given back last, whose rows are the likeliest
 * to be in a cache still.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/kv/pages.h"

#define PAGES_MAGIC 0x50414745u

struct dcpd_pages {
	unsigned magic;
	uint32_t n;		/* pages in all */
	uint32_t n_free;
	uint32_t *free;		/* [n]; the first n_free are free ids */
	uint32_t *refs;		/* [n]; 0 = free */
};

int
dcpd_pages_new(uint32_t pages, struct dcpd_pages **out)
{
	struct dcpd_pages *p;

	if (pages == 0)
		return -EINVAL;
	p = calloc(1, sizeof *p);
	if (p == NULL)
		return -ENOMEM;
	p->free = malloc(pages * sizeof *p->free);
	p->refs = calloc(pages, sizeof *p->refs);
	if (p->free == NULL || p->refs == NULL) {
		free(p->refs);
		free(p->free);
		free(p);
		return -ENOMEM;
	}
	p->magic = PAGES_MAGIC;
	p->n = p->n_free = pages;
	/* Lowest id on top, so that a fresh pool fills from its start. */
	for (uint32_t i = 0; i < pages; i++)
		p->free[i] = pages - 1 - i;
	*out = p;
	return 0;
}

void
dcpd_pages_free(struct dcpd_pages *p)
{
	if (p == NULL)
		return;
	DCPD_CHECK(p, PAGES_MAGIC);
	p->magic = 0;
	free(p->refs);
	free(p->free);
	free(p);
}

int
dcpd_pages_get(struct dcpd_pages *p, uint32_t n, uint32_t *ids)
{
	uint32_t id;

	DCPD_CHECK(p, PAGES_MAGIC);
	if (n > p->n_free)
		return -ENOSPC;
	for (uint32_t i = 0; i < n; i++) {
		id = p->free[--p->n_free];
		DCPD_ASSERT(p->refs[id] == 0);
		p->refs[id] = 1;
		ids[i] = id;
	}
	return 0;
}

void
dcpd_pages_ref(struct dcpd_pages *p, uint32_t id)
{
	DCPD_CHECK(p, PAGES_MAGIC);
	DCPD_ASSERT(id < p->n && p->refs[id] > 0);
	DCPD_ASSERT(p->refs[id] < UINT32_MAX);
	p->refs[id]++;
}

void
dcpd_pages_put(struct dcpd_pages *p, const uint32_t *ids, uint32_t n)
{
	DCPD_CHECK(p, PAGES_MAGIC);
	/* Last first: the next to ask gets the same ids in the same order. */
	while (n-- > 0) {
		DCPD_ASSERT(ids[n] < p->n && p->refs[ids[n]] > 0);
		if (--p->refs[ids[n]] == 0)
			p->free[p->n_free++] = ids[n];
	}
}

uint32_t
dcpd_pages_refs(const struct dcpd_pages *p, uint32_t id)
{
	DCPD_ASSERT(id < p->n);
	return p->refs[id];
}

uint32_t
dcpd_pages_n_free(const struct dcpd_pages *p)
{
	return p->n_free;
}

uint32_t
dcpd_pages_n_used(const struct dcpd_pages *p)
{
	return p->n - p->n_free;
}

int
dcpd_pages_check(const struct dcpd_pages *p, struct dcpd_err *err)
{
	uint32_t used = 0;
	uint8_t *seen;
	int rc = 0;

	DCPD_CHECK(p, PAGES_MAGIC);
	if (p->n_free > p->n)
		return dcpd_fail(err, -EUCLEAN,
		    "pages: %u free of %u", p->n_free, p->n);
	seen = calloc(1, p->n);
	if (seen == NULL)
		return dcpd_fail(err, -ENOMEM, "pages: out of memory");
	for (uint32_t i = 0; i < p->n_free && rc == 0; i++) {
		uint32_t id = p->free[i];

		if (id >= p->n || seen[id])
			rc = dcpd_fail(err, -EUCLEAN, "pages: free list entry "
			    "%u is page %u, %s", i, id,
			    id >= p->n ? "out of range" : "there twice");
		else if (p->refs[id] != 0)
			rc = dcpd_fail(err, -EUCLEAN, "pages: page %u is free "
			    "and has %u references", id, p->refs[id]);
		else
			seen[id] = 1;
	}
	for (uint32_t id = 0; id < p->n && rc == 0; id++) {
		if (p->refs[id] > 0)
			used++;
		else if (!seen[id])
			rc = dcpd_fail(err, -EUCLEAN, "pages: page %u is lost: "
			    "neither free nor in use", id);
	}
	if (rc == 0 && used + p->n_free != p->n)
		rc = dcpd_fail(err, -EUCLEAN, "pages: %u free + %u in use is "
		    "not %u", p->n_free, used, p->n);
	free(seen);
	return rc;
}
