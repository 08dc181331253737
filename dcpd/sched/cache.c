/*
 * The pages of running requests and the prefix cache: what a request need not
 * compute because it is there, and what it leaves for others.
 *
 * Whatever pass fills a page makes it a node of the cache at once, while its
 * request runs on: so whoever comes in the meantime shares it, and nothing is
 * left to do when the request ends, is cancelled or gives way. Pages of
 * generated tokens are as good as those of prompts. The first n_shared pages
 * of a request's table are nodes; behind them is at most the one that is being
 * filled.
 *
 * Step thread, with the lock where pages change hands.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/admin/counters.h"
#include "dcpd/sched/sched_i.h"

bool
dcpd_req_scores_prompt(const struct req *r)
{
	return (r->flags & DCP_ECHO) && (r->flags & DCP_LOGPROBS);
}

/*
 * Whole pages that a hit may have. The last token is computed in any case: its
 * row is what the next one is drawn from. A prompt whose logprobs are wanted is
 * computed from the row that scores the first of them that is not out yet.
 */
static uint32_t
hit_max(const struct req *r)
{
	uint64_t rows = r->ids.n - 1;

	if (dcpd_req_scores_prompt(r) && r->n_echo < r->n_prompt)
		rows = r->n_echo == 0 ? 0 : r->n_echo - 1;
	return (uint32_t)(rows / DCPD_PAGE_TOKENS);
}

uint32_t
dcpd_req_match(const struct req *r, uint32_t *table)
{
	uint32_t to = hit_max(r);

	return to <= r->n_shared ? r->n_shared :
	    dcpd_prefix_match(r->s->prefix, r->salt, r->ids.v, r->n_shared,
	    to, table);
}

/*
 * It may wait for many steps: what was found once is not looked up again as
 * long as the last page of it is what it was.
 */
uint32_t
dcpd_req_match_waiting(struct req *r)
{
	const struct dcpd_prefix *t = r->s->prefix;

	if (r->n_match > 0 && dcpd_prefix_serial(t,
	    r->pages[r->n_match - 1]) != r->match_serial)
		r->n_match = 0;
	r->n_match = dcpd_prefix_match(t, r->salt, r->ids.v, r->n_match,
	    hit_max(r), r->pages);
	if (r->n_match > 0)
		r->match_serial = dcpd_prefix_serial(t,
		    r->pages[r->n_match - 1]);
	return r->n_match;
}

/* Lock held. The pages of table [n] take the place of computing them. */
void
dcpd_req_hit(struct req *r, uint32_t n)
{
	struct dcpd_sched *s = r->s;
	/* Of a page that it had begun nothing counts. */
	uint32_t hit = n * DCPD_PAGE_TOKENS -
	    (uint32_t)dcpd_div_up(r->n_kv, DCPD_PAGE_TOKENS) * DCPD_PAGE_TOKENS;

	DCPD_ASSERT(n * DCPD_PAGE_TOKENS >= r->n_kv && n >= r->n_shared);
	dcpd_prefix_hold(s->prefix, r->pages + r->n_shared, n - r->n_shared);
	r->n_shared = r->n_pages = n;
	r->n_kv = n * DCPD_PAGE_TOKENS;
	if (r->preempted > 0)
		return;		/* it had computed these itself */
	r->n_cached += hit;
	DCPD_COUNT(prefix_hit_tokens, hit);
}

/* Pages that come back in one step: no more than it might compute. */
static uint32_t
restore_most(const struct dcpd_sched *s)
{
	uint32_t most = s->c.engine->chunk / DCPD_PAGE_TOKENS;

	return most > 1 ? most : 1;
}

/*
 * Lock held. What of its text lies in host memory comes back; its table holds
 * what is before. It takes pages that it would have taken to compute it. A step
 * waits for its moves, so they are as many as keep it short for those who
 * stream: a long text comes in several steps, and its request joins the passes
 * when it is all there.
 */
void
dcpd_req_restore(struct req *r)
{
	struct dcpd_sched *s = r->s;
	uint32_t n, hit;

	DCPD_ASSERT(r->n_pages == r->n_shared);
	n = dcpd_prefix_restore(s->prefix, r->salt, r->ids.v, r->n_shared,
	    hit_max(r), restore_most(s) - s->n_restored, r->pages,
	    &r->restoring);
	s->n_restored += n - r->n_shared;
	hit = (n - r->n_shared) * DCPD_PAGE_TOKENS;
	r->n_shared = r->n_pages = n;
	r->n_kv = n * DCPD_PAGE_TOKENS;
	DCPD_COUNT(host_hit_tokens, hit);
	if (r->preempted > 0 || hit == 0)
		return;
	r->n_cached += hit;
	DCPD_COUNT(prefix_hit_tokens, hit);
}

/*
 * What others have computed since this prompt was looked up. Many requests of
 * one long prompt that come at once so compute it once.
 */
void
dcpd_req_hit_late(struct req *r)
{
	struct dcpd_sched *s = r->s;
	uint32_t part = r->n_pages - r->n_shared, page = 0, n;

	r->restoring = false;
	if (part > 1)
		return;		/* publishing found no memory: not now */
	if (part == 1)
		page = r->pages[r->n_shared];
	n = dcpd_req_match(r, r->pages);
	if (n * DCPD_PAGE_TOKENS > r->n_kv) {
		pthread_mutex_lock(&s->lock);
		dcpd_pages_put(s->pages, &page, part);
		dcpd_req_hit(r, n);
		pthread_mutex_unlock(&s->lock);
		part = 0;
	} else if (part == 1) {
		r->pages[r->n_shared] = page;
	}
	if (part == 0 && dcpd_prefix_n_host(s->prefix) > 0) {
		pthread_mutex_lock(&s->lock);
		dcpd_req_restore(r);
		pthread_mutex_unlock(&s->lock);
	}
}

/* Lock held. */
void
dcpd_req_publish(struct req *r)
{
	struct dcpd_prefix *t = r->s->prefix;
	uint32_t i, node;

	while (r->n_shared < r->n_kv / DCPD_PAGE_TOKENS) {
		i = r->n_shared;
		node = dcpd_prefix_add(t, r->salt,
		    i == 0 ? DCPD_NO_PAGE : r->pages[i - 1],
		    r->ids.v + (size_t)i * DCPD_PAGE_TOKENS, r->pages[i]);
		if (node == DCPD_NO_PAGE)
			return;		/* no memory; again after a pass */
		r->pages[i] = node;
		r->n_shared++;
	}
}

/* Lock held. */
void
dcpd_req_give_back(struct req *r)
{
	struct dcpd_sched *s = r->s;

	dcpd_pages_put(s->pages, r->pages + r->n_shared,
	    r->n_pages - r->n_shared);
	dcpd_prefix_release(s->prefix, r->pages, r->n_shared);
	r->n_pages = r->n_shared = r->n_kv = 0;
}

/* Lock held. n pages more, idle ones if none are free: all or -ENOSPC. */
int
dcpd_req_grow(struct req *r, uint32_t n)
{
	struct dcpd_sched *s = r->s;
	uint32_t free = dcpd_pages_n_free(s->pages);
	int rc;

	if (n > free) {
		if (n - free > dcpd_prefix_n_idle(s->prefix))
			return -ENOSPC;
		dcpd_prefix_evict(s->prefix, n - free);
	}
	rc = dcpd_pages_get(s->pages, n, r->pages + r->n_pages);
	DCPD_ASSERT(rc == 0);
	r->n_pages += n;
	return 0;
}

/* --- host memory ------------------------------------------------------- */

/* Of the moves from v on, those of one direction: what one call does. */
static uint32_t
next_run(struct dcpd_sched *s, const struct dcpd_move *v, uint32_t n,
    uint32_t *run)
{
	uint32_t i;

	*run = 0;
	for (i = 0; i < n && v[i].out == v[0].out; i++)
		if (v[i].page != DCPD_NO_PAGE)
			s->move[(*run)++] = (struct dcpk_move){
				v[i].page, v[i].slot };
	return i;
}

static int
room_for_run(struct dcpd_sched *s, uint32_t n)
{
	struct dcpk_move *v;

	if (n <= s->cap_move)
		return 0;
	v = realloc(s->move, n * sizeof *v);
	if (v == NULL)
		return -ENOMEM;
	s->move = v;
	s->cap_move = n;
	return 0;
}

/* Not with the lock held. Before a pass: pages are what their table says. */
int
dcpd_sched_move(struct dcpd_sched *s, struct dcpd_err *err)
{
	const struct dcpd_engine *e = s->c.engine;
	const struct dcpd_move *v;
	uint32_t n, i, k, run;
	uint64_t t0 = dcpd_now_ns();
	int rc;

	v = dcpd_prefix_moves(s->prefix, &n);
	if (n == 0)
		return 0;
	if (room_for_run(s, n) != 0)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	for (i = 0; i < n; i += k) {
		k = next_run(s, v + i, n - i, &run);
		if (run == 0)
			continue;
		rc = e->move(e->self, s->move, run, v[i].out, err);
		if (rc != 0)
			return rc;
		if (v[i].out)
			DCPD_COUNT(host_pages_out, run);
		else
			DCPD_COUNT(host_pages_in, run);
	}
	dcpd_prefix_moved(s->prefix);
	DCPD_COUNT(host_ns, dcpd_now_ns() - t0);
	return 0;
}

/* --- the invariant ----------------------------------------------------- */

static int
check_table(const struct req *r, uint32_t *refs, struct dcpd_err *err)
{
	uint32_t rows = r->n_kv, full = rows / DCPD_PAGE_TOKENS;

	if (r->n_pages < dcpd_div_up(rows, DCPD_PAGE_TOKENS) ||
	    r->n_pages > full + 1 || r->n_pages > r->pages_max ||
	    r->n_shared > full || r->n_kv > r->ids.n ||
	    r->ids.n != (size_t)r->n_prompt + r->n_out)
		return dcpd_fail(err, -EUCLEAN, "request %llu: %u pages of at "
		    "most %u, %u of them shared, hold %u of %zu tokens "
		    "(%u + %u)", (unsigned long long)r->sub->id, r->n_pages,
		    r->pages_max, r->n_shared, r->n_kv, r->ids.n, r->n_prompt,
		    r->n_out);
	for (uint32_t i = 0; i < r->n_pages; i++)
		refs[r->pages[i]]++;
	return 0;
}

/* refs [pages]: how many running requests and pins have each page. */
static int
check_refs(const struct dcpd_sched *s, uint32_t *refs, struct dcpd_err *err)
{
	uint32_t pages = s->c.engine->pages, held = 0, idle = 0, nodes, n;

	for (uint32_t i = 0; i < pages; i++) {
		n = dcpd_pages_refs(s->pages, i);
		held += refs[i] > 0;
		/* One more where the cache has it. */
		if (n != refs[i] && n != refs[i] + 1)
			return dcpd_fail(err, -EUCLEAN, "page %u has %u "
			    "references, %u requests and pins hold it", i, n,
			    refs[i]);
		idle += refs[i] == 0 && n == 1;
		refs[i] = n - refs[i];
	}
	nodes = dcpd_prefix_n_nodes(s->prefix);
	for (uint32_t i = 0; i < pages; i++)
		nodes -= refs[i];
	if (nodes != 0 || idle != dcpd_prefix_n_idle(s->prefix) ||
	    held + idle + dcpd_pages_n_free(s->pages) != pages)
		return dcpd_fail(err, -EUCLEAN, "pages: %u free + %u cached + "
		    "%u in use of %u; the cache has %u idle",
		    dcpd_pages_n_free(s->pages), idle, held, pages,
		    dcpd_prefix_n_idle(s->prefix));
	return 0;
}

/* free + cached + in use = pages, and every reference is somebody's. */
int
dcpd_sched_verify(struct dcpd_sched *s, struct dcpd_err *err)
{
	uint32_t *refs;
	int rc;

	if ((rc = dcpd_pages_check(s->pages, err)) != 0 ||
	    (rc = dcpd_prefix_check(s->prefix, err)) != 0)
		return rc;
	refs = calloc(s->c.engine->pages, sizeof *refs);
	if (refs == NULL)
		return dcpd_fail(err, -ENOMEM, "check: out of memory");
	for (uint32_t i = 0; i < s->n_run && rc == 0; i++)
		rc = check_table(s->run[i], refs, err);
	dcpd_pins_count(s, refs);
	if (rc == 0)
		rc = check_refs(s, refs, err);
	free(refs);
	return rc;
}
