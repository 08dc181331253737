/*
 * Who runs: admission, and who gives way when pages run out. Step thread only.
 *
 * Nothing is reserved for what an answer may become. A request is let in when
 * there is room for all it has to compute now and a page to go on with, for it
 * and for everybody who runs; then it takes pages as it grows. When none is
 * left the last in order (the lowest class, in it the youngest) gives way: its
 * full pages go to the prefix cache, it waits in its old place, and when it is
 * let in again prefill computes what the cache has not kept of ids[], prompt or
 * answer, and sampling goes on with the same index, seed and counts.
 *
 * Why that never locks up and starves nobody: no request is let in that would
 * not fit into the whole pool. The first in order can take a page from any
 * other, so it computes in every step; when it has ended the next is first.
 * Nobody of the same class overtakes who waits for pages. So a request with
 * others in front of it has ended when each of these, and it, could have run
 * alone, once as a prompt of all its tokens and once to generate them.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/sched/sched_i.h"

#define QUOTA_RETRY_NS 100000000u

static void
refuse(struct dcpd_sched *s, struct req *r, const struct dcpd_err *err)
{
	pthread_mutex_lock(&s->lock);
	dcpd_req_end(r, 0, err);
	pthread_mutex_unlock(&s->lock);
}

/* Nobody is left to read the answer. */
static void
gone(struct dcpd_sched *s, struct req *r)
{
	pthread_mutex_lock(&s->lock);
	r->ctl |= CTL_GONE;
	dcpd_req_end(r, DCP_FINISH_ABORT, NULL);
	pthread_mutex_unlock(&s->lock);
}

static void
not_admitted(struct dcpd_sched *s, struct req *r, int rc)
{
	struct dcpd_err err;

	if (rc == -EMSGSIZE)
		dcpd_fail(&err, rc, "an answer of %u tokens with %u top "
		    "logprobs each is more than one user may have queued: "
		    "lower max_tokens or top_logprobs, or raise "
		    "--max-bytes-per-user", r->max_tokens, r->params.n_top);
	else
		dcpd_fail(&err, rc, "not admitted: %s", strerror(-rc));
	refuse(s, r, &err);
}

/* Room for its ids and page table, so that nothing can fail later. */
static int
make_room(struct req *r)
{
	size_t cap = (size_t)r->n_prompt + r->max_tokens;
	uint32_t *pages = malloc(r->pages_max * sizeof *pages);
	uint32_t *ids = realloc(r->ids.v, cap * sizeof *ids);

	if (ids != NULL) {
		r->ids.v = ids;
		r->ids.cap = cap;
	}
	if (ids == NULL || pages == NULL) {
		free(pages);
		return -ENOMEM;
	}
	r->pages = pages;
	return 0;
}

/* --- room -------------------------------------------------------------- */

/* Pages for all that r has to compute now, and for 64 tokens more. */
static uint32_t
pages_wanted(const struct req *r)
{
	uint64_t n = dcpd_div_up(r->ids.n, DCPD_PAGE_TOKENS) + 1;

	return (uint32_t)dcpd_min64(n, r->pages_max);
}

/* What those who run still want of the pages that are free or idle. */
static uint64_t
pages_claimed(const struct dcpd_sched *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->n_run; i++)
		if (pages_wanted(s->run[i]) > s->run[i]->n_pages)
			n += pages_wanted(s->run[i]) - s->run[i]->n_pages;
	return n;
}

/*
 * May r run beside those who do? Of a hit's pages the idle ones are taken from
 * what there is; those that others hold cost nothing. When nobody runs the
 * answer is yes: pages_max is never more than the pool. *hit: pages of its hit.
 */
static bool
has_room(const struct dcpd_sched *s, struct req *r, uint32_t *hit)
{
	uint64_t want;

	if (s->n_run == s->c.engine->max_running)
		return false;
	*hit = dcpd_req_match_waiting(r);
	want = pages_wanted(r) - *hit +
	    dcpd_prefix_idle_of(s->prefix, r->pages, *hit);
	return want + pages_claimed(s) <=
	    (uint64_t)dcpd_pages_n_free(s->pages) +
	    dcpd_prefix_n_idle(s->prefix);
}

/* --- giving way -------------------------------------------------------- */

/* Lock held. */
static void
preempt(struct dcpd_sched *s, struct req *r)
{
	dcpd_reqs_remove(s->run, &s->n_run, r);
	dcpd_req_give_back(r);
	r->state = R_WAIT;
	r->preempted++;
	dcpd_reqs_insert(s->wait, &s->n_wait, r);
	DCPD_COUNT(preemptions, 1);
}

/* Is there somebody of a lower class than r, who must let it in? */
static bool
outranks_any(const struct dcpd_sched *s, const struct req *r)
{
	return s->n_run > 0 &&
	    s->run[s->n_run - 1]->sub->p.priority < r->sub->p.priority;
}

bool
dcpd_sched_secure(struct dcpd_sched *s, uint32_t i, uint32_t n)
{
	struct req *r = s->run[i];
	uint32_t want = (uint32_t)dcpd_div_up(r->n_kv + n, DCPD_PAGE_TOKENS);
	int rc = 0;

	DCPD_ASSERT(want <= r->pages_max);
	if (want <= r->n_pages)
		return true;
	pthread_mutex_lock(&s->lock);
	while ((rc = dcpd_req_grow(r, want - r->n_pages)) != 0 &&
	    i + 1 < s->n_run)
		preempt(s, s->run[s->n_run - 1]);
	pthread_mutex_unlock(&s->lock);
	/* For the first in order there is always enough. */
	DCPD_ASSERT(rc == 0 || i > 0);
	return rc == 0;
}

/* --- admission --------------------------------------------------------- */

/* It begins to run, or goes on. */
static void
let_in(struct dcpd_sched *s, struct req *r, uint32_t hit)
{
	pthread_mutex_lock(&s->lock);
	dcpd_reqs_remove(s->wait, &s->n_wait, r);
	/* Both passes serve by this order. */
	dcpd_reqs_insert(s->run, &s->n_run, r);
	r->state = R_PREFILL;
	if (!r->admitted)
		DCPD_COUNT(prefix_lookup_tokens, r->n_prompt);
	r->admitted = true;
	r->n_match = 0;
	dcpd_req_hit(r, hit);
	dcpd_req_restore(r);
	pthread_mutex_unlock(&s->lock);
}

/* 1: in. 0: it waits, and so does who comes after it. Or -errno. */
static int
admit_one(struct dcpd_sched *s, uint32_t i)
{
	struct req *r = s->wait[i];
	uint32_t hit;
	int rc;

	if (r->pages == NULL && (rc = make_room(r)) != 0)
		return rc;
	if (!has_room(s, r, &hit) && !outranks_any(s, r))
		return 0;
	if (!r->reserved) {
		rc = dcpd_ipc_reserve(r->sub->client, r->sub->id,
		    r->max_tokens, r->params.n_top);
		if (rc != 0)
			return rc;
		r->reserved = true;
	}
	while (!has_room(s, r, &hit)) {
		if (!outranks_any(s, r))
			return 0;
		pthread_mutex_lock(&s->lock);
		preempt(s, s->run[s->n_run - 1]);
		pthread_mutex_unlock(&s->lock);
	}
	let_in(s, r, hit);
	return 1;
}

/*
 * A request whose uid has no room for answers now waits until that uid has
 * read or ended something, which nobody tells us: it is tried again at every
 * step, and in an idle daemon ten times a second. Others go on.
 */
void
dcpd_sched_admit(struct dcpd_sched *s)
{
	uint64_t retry = UINT64_MAX;
	uint32_t i = 0;
	int rc = 1;

	s->n_restored = 0;	/* a step begins */
	while (i < s->n_wait && rc != 0) {
		rc = admit_one(s, i);
		if (rc == -EDQUOT) {
			retry = dcpd_now_ns() + QUOTA_RETRY_NS;
			i++;
		} else if (rc == -EPIPE) {
			gone(s, s->wait[i]);
		} else if (rc < 0) {
			not_admitted(s, s->wait[i], rc);
		}
	}
	pthread_mutex_lock(&s->lock);
	s->retry_at = retry;
	dcpd_sched_gauges(s);
	pthread_mutex_unlock(&s->lock);
	dcpd_sched_flush_posts(s);
}
