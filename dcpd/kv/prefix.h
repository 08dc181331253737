/*
 * The prefix cache of one attention shard: which pages hold the rows of which
 * tokens. A radix tree whose symbol is a page: a node is one full page of 64
 * tokens and stands for the whole text from the root to its end. A page's rows
 * depend on that text alone, so who has the text may use the page.
 *
 * The tree holds one reference of each of its pages (pages.h); requests hold
 * further ones, always of a whole path from the root. Pages that no request
 * holds are idle: they stay until evicted, least recently used leaf first. With
 * slots of host memory an evicted page's rows go there, under the same node,
 * and come back when they are hit; the least recently used of these leave the
 * tree. All memory but the queue of moves is taken at the start.
 *
 * No rows are touched here, and page ids are the same on all ranks, so one
 * tree serves every layout and a hit is a multiple of 64 tokens whatever D is.
 * Owned by the step thread.
 */
#ifndef DCPD_PREFIX_H
#define DCPD_PREFIX_H

#include "dcpd/kv/pages.h"

#define DCPD_NO_PAGE UINT32_MAX

struct dcpd_prefix;
/*
 * pages: as many as the allocator has, which must outlive the tree. slots:
 * pages that host memory has room for.
 */
int dcpd_prefix_new(struct dcpd_pages *, uint32_t pages, uint32_t slots,
    struct dcpd_prefix **);
/* Nobody may hold a page of it. */
void dcpd_prefix_free(struct dcpd_prefix *);

/*
 * The text of tokens [], whole pages of it: those of pages from.. to-1 that
 * the tree has, one after another. table [to]: the first `from` are of the
 * tree already; what is found is put behind them. Returns how many table now
 * has. Takes no references. salt: texts of different salts have nothing in
 * common; NULL is one of them.
 */
uint32_t dcpd_prefix_match(const struct dcpd_prefix *, const char *salt,
    const uint32_t *tokens, uint32_t from, uint32_t to, uint32_t *table);
/*
 * A number of this page's stay in the tree, 0 if it is none of its own. While
 * it is the same, whatever match put before that page is found still.
 */
uint64_t dcpd_prefix_serial(const struct dcpd_prefix *, uint32_t page);
/* A reference of each for a request. */
void dcpd_prefix_hold(struct dcpd_prefix *, const uint32_t *table, uint32_t n);
/*
 * page, whose only reference is the caller's, holds tokens [64] after the text
 * of `parent` (DCPD_NO_PAGE: at the beginning, where the salt counts). It
 * becomes a node; or, when there is one of the same text, it is freed. Returns
 * the node, which the caller holds in its place. DCPD_NO_PAGE: no memory,
 * nothing happened.
 */
uint32_t dcpd_prefix_add(struct dcpd_prefix *, const char *salt,
    uint32_t parent, const uint32_t *tokens, uint32_t page);
/* The end of hold and add: the first n pages of a path. */
void dcpd_prefix_release(struct dcpd_prefix *, const uint32_t *table,
    uint32_t n);
/*
 * Frees n idle pages, or all there are: their rows go to host memory if it has
 * slots. Returns how many.
 */
uint32_t dcpd_prefix_evict(struct dcpd_prefix *, uint32_t n);
/* Idle pages and host memory forgotten. Returns how many pages they held. */
uint32_t dcpd_prefix_drop(struct dcpd_prefix *);
/*
 * As match and hold, of what lies in host memory and goes on from the first
 * `from` pages of table, which the caller holds. Takes pages for it, free or
 * idle ones; they hold nothing until the moves are done. At most `most` now:
 * then *more says that there is more, which stays for the next time as what was
 * used last.
 */
uint32_t dcpd_prefix_restore(struct dcpd_prefix *, const char *salt,
    const uint32_t *tokens, uint32_t from, uint32_t to, uint32_t most,
    uint32_t *table, bool *more);

struct dcpd_move {
	uint32_t page;		/* DCPD_NO_PAGE: nothing to do */
	uint32_t slot;
	bool out;		/* to host memory; or back */
};
/* What is to be moved, in this order, before any page is written to. */
const struct dcpd_move *dcpd_prefix_moves(const struct dcpd_prefix *,
    uint32_t *n);
void dcpd_prefix_moved(struct dcpd_prefix *);	/* all of it was */

uint32_t dcpd_prefix_n_idle(const struct dcpd_prefix *);
/* In the pool; in host memory. */
uint32_t dcpd_prefix_n_nodes(const struct dcpd_prefix *);
uint32_t dcpd_prefix_n_host(const struct dcpd_prefix *);
uint64_t dcpd_prefix_n_evicted(const struct dcpd_prefix *);	/* ever */
/* How many of these nobody but the tree holds. */
uint32_t dcpd_prefix_idle_of(const struct dcpd_prefix *, const uint32_t *table,
    uint32_t n);
/* Every node is found by its text, idle if and only if only the tree holds
   it, and older than its parent; counts add up. */
int dcpd_prefix_check(const struct dcpd_prefix *, struct dcpd_err *);

#endif
