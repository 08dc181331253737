/*
 * The page allocator of one attention shard. Page ids 0..pages-1, the same on
 * all ranks of the shard; no memory is touched here. Owned by the step thread.
 * A page may have several references: those of the requests that use it, and
 * that of the prefix cache (prefix.h).
 */
#ifndef DCPD_PAGES_H
#define DCPD_PAGES_H

#include <stdint.h>

#include "dcpd/base/base.h"

struct dcpd_pages;
int dcpd_pages_new(uint32_t pages, struct dcpd_pages **);
void dcpd_pages_free(struct dcpd_pages *);
/* n pages or none: -ENOSPC. */
int dcpd_pages_get(struct dcpd_pages *, uint32_t n, uint32_t *ids);
void dcpd_pages_ref(struct dcpd_pages *, uint32_t id);
void dcpd_pages_put(struct dcpd_pages *, const uint32_t *ids, uint32_t n);
uint32_t dcpd_pages_refs(const struct dcpd_pages *, uint32_t id);
uint32_t dcpd_pages_n_free(const struct dcpd_pages *);
uint32_t dcpd_pages_n_used(const struct dcpd_pages *);
/* free + used = pages, every id once, reference counts add up. */
int dcpd_pages_check(const struct dcpd_pages *, struct dcpd_err *);

#endif
