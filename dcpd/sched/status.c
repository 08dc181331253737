/*
 * What the scheduler says of itself, and what an admin may ask of it. Admin
 * thread: takes the lock for short, never waits for a running step (but for
 * what needs a step boundary, which says so when none comes).
 */
#include "config.h"

#include <errno.h>

#include "dcpd/admin/counters.h"
#include "dcpd/sched/sched_i.h"

#define BOUNDARY_TIMEOUT_NS 10000000000u
#define RATE_SECONDS 10u	/* whole seconds the token rate looks back */

static const char *const state_name[] = {
	[R_TEXT] = "text", [R_WAIT] = "waiting", [R_PREFILL] = "prefill",
	[R_DECODE] = "decode", [R_ENDED] = "ending",
};
static const char *const way_name[] = {
	[DCPK_WAY_Q] = "q", [DCPK_WAY_KV] = "kv", [DCPK_WAY_A2A] = "a2a",
};

static json_t *
counters(void)
{
	json_t *o = json_object();

#define X(n, k, h) \
	json_object_set_new(o, #n, \
	    json_integer((json_int_t)DCPD_COUNTER(n)));
	DCPD_COUNTERS(X)
#undef X
	return o;
}

static double
per(double sum, uint64_t n)
{
	return n == 0 ? 0 : sum / (double)n;
}

/* Mean times of a pass, milliseconds. */
static json_t *
steps(void)
{
	uint64_t nd = DCPD_COUNTER(decode_steps);
	uint64_t np = DCPD_COUNTER(prefill_passes);

	return json_pack("{s:f, s:f, s:f, s:f}",
	    "decode_ms", per((double)DCPD_COUNTER(decode_ns) * 1e-6, nd),
	    "prefill_ms", per((double)DCPD_COUNTER(prefill_ns) * 1e-6, np),
	    "decode_rows", per((double)DCPD_COUNTER(decode_rows), nd),
	    "prefill_rows", per((double)DCPD_COUNTER(prefill_rows), np));
}

/* Tokens per second over the last whole seconds. */
static double
token_rate(const struct dcpd_sched *s)
{
	uint64_t now = dcpd_now_ns() / 1000000000u, sum = 0;

	for (uint32_t i = 0; i < RATE_BINS; i++) {
		uint64_t bin = atomic_load(&s->rate[i]), sec = bin >> 32;

		if (sec < now && sec + RATE_SECONDS >= now)
			sum += (uint32_t)bin;
	}
	return (double)sum / RATE_SECONDS;
}

/*
 * Lock held. What each rank holds of the running requests; a page that several
 * share counts once.
 */
static json_t *
ranks(const struct dcpd_sched *s)
{
	const struct dcpd_engine *e = s->c.engine;
	uint32_t cached = dcpd_prefix_n_idle(s->prefix), shared, own = 0;
	json_t *a = json_array();

	for (uint32_t i = 0; i < s->n_run; i++)
		own += s->run[i]->n_pages - s->run[i]->n_shared;
	shared = dcpd_pages_n_used(s->pages) - cached - own;

	for (uint32_t rank = 0; rank < e->world; rank++) {
		uint32_t dr = rank % e->dcp;
		uint64_t tokens = (uint64_t)shared * (DCPD_PAGE_TOKENS /
		    e->dcp);

		for (uint32_t i = 0; i < s->n_run; i++)
			tokens += dcpk_shard_len(s->run[i]->n_kv -
			    s->run[i]->n_shared * DCPD_PAGE_TOKENS, dr,
			    e->dcp);
		json_array_append_new(a, json_pack(
		    "{s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
		    "rank", (json_int_t)rank, "dcp_rank", (json_int_t)dr,
		    "tokens", (json_int_t)tokens,
		    "pages_used", (json_int_t)shared + own,
		    "pages_cached", (json_int_t)cached,
		    /* Of the used ones. */
		    "pages_pinned", (json_int_t)s->n_pinned,
		    "pages_total", (json_int_t)e->pages));
	}
	return a;
}

/* Lock held. Prefill under DCP: what was chosen, predicted and measured. */
static json_t *
ways(const struct dcpd_sched *s)
{
	json_t *o = json_object();

	for (uint32_t w = 0; w < 3; w++)
		json_object_set_new(o, way_name[w], json_pack(
		    "{s:I, s:f, s:f}", "passes",
		    (json_int_t)s->way[w].passes, "predicted_s",
		    s->way[w].predicted, "seconds", s->way[w].seconds));
	return o;
}

/* Lock held. */
static json_t *
limits(const struct dcpd_sched *s)
{
	const struct dcpd_engine *e = s->c.engine;

	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
	    "vocab", (json_int_t)e->vocab,
	    "max_context", (json_int_t)e->max_ctx,
	    "pages", (json_int_t)e->pages,
	    "host_pages", (json_int_t)e->host_pages,
	    "pool_tokens", (json_int_t)e->pages * DCPD_PAGE_TOKENS,
	    "chunk", (json_int_t)e->chunk,
	    "max_running", (json_int_t)e->max_running,
	    "queue_max", (json_int_t)s->c.queue_max,
	    "max_requests_uid", (json_int_t)s->c.max_requests_uid);
}

json_t *
dcpd_sched_status(struct dcpd_sched *s)
{
	const struct dcpd_engine *e;
	json_t *o = json_object();

	DCPD_CHECK(s, SCHED_MAGIC);
	e = s->c.engine;
	json_object_set_new(o, "engine", json_string(e->name));
	json_object_set_new(o, "tp", json_integer(e->world));
	json_object_set_new(o, "dcp", json_integer(e->dcp));
	json_object_set_new(o, "counters", counters());
	json_object_set_new(o, "steps", steps());
	pthread_mutex_lock(&s->lock);
	json_object_set_new(o, "limits", limits(s));
	json_object_set_new(o, "state", json_string(s->failed ? "failed" :
	    s->stopping ? "stopping" : s->draining ? "draining" : "serving"));
	if (s->failed)
		json_object_set_new(o, "error", json_string(s->fail.text));
	json_object_set_new(o, "running", json_integer(s->n_run));
	json_object_set_new(o, "waiting", json_integer(s->n_wait));
	json_object_set_new(o, "live", json_integer(s->n_live));
	json_object_set_new(o, "tokens_per_s", json_real(token_rate(s)));
	json_object_set_new(o, "ranks", ranks(s));
	if (e->dcp > 1)
		json_object_set_new(o, "prefill_ways", ways(s));
	if (e->break_even != NULL && e->break_even(e->self) >= 0)
		json_object_set_new(o, "prefill_break_even",
		    json_real(e->break_even(e->self)));
	pthread_mutex_unlock(&s->lock);
	return o;
}

json_t *
dcpd_sched_requests(struct dcpd_sched *s)
{
	uint64_t now = dcpd_now_ns();
	json_t *a = json_array();

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	for (const struct req *r = s->live; r != NULL; r = r->next) {
		/* Its text job may be writing sizes: not known yet. */
		bool sized = r->encoded;
		uint32_t prompt = sized ? r->n_prompt : 0;
		/* In the inbox until the next step boundary. */
		enum req_state state = r->state == R_TEXT && r->encoded ?
		    R_WAIT : r->state;

		/* Oldest first: the list has the newest in front. */
		json_array_insert_new(a, 0, json_pack(
		    "{s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
		    "id", (json_int_t)r->sub->id,
		    "uid", (json_int_t)r->sub->uid,
		    "state", state_name[state],
		    "prompt", (json_int_t)prompt,
		    "cached", (json_int_t)r->n_cached,
		    "prefilled", (json_int_t)(r->n_kv < prompt ? r->n_kv :
		    prompt),
		    "generated", (json_int_t)r->n_out,
		    "max_tokens", (json_int_t)(sized ? r->max_tokens : 0),
		    "pages", (json_int_t)r->n_pages,
		    "preempted", (json_int_t)r->preempted,
		    "age_s", (double)(now - r->t_submit) * 1e-9));
	}
	pthread_mutex_unlock(&s->lock);
	return a;
}

int
dcpd_sched_cancel(struct dcpd_sched *s, uint64_t id)
{
	int rc = -ENOENT;
	struct req *r;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	r = dcpd_live_find(s, NULL, id);
	if (r != NULL && r->state != R_ENDED) {
		dcpd_req_ctl(r, CTL_CANCEL);
		rc = 0;
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

void
dcpd_sched_drain(struct dcpd_sched *s, bool on)
{
	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	s->draining = on;
	pthread_mutex_unlock(&s->lock);
}

void
dcpd_sched_limits(struct dcpd_sched *s, uint32_t queue_max,
    uint32_t max_requests_uid)
{
	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	s->c.queue_max = queue_max;
	s->c.max_requests_uid = max_requests_uid;
	pthread_mutex_unlock(&s->lock);
}

bool
dcpd_sched_idle(struct dcpd_sched *s)
{
	bool idle;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	idle = s->n_live == 0;
	pthread_mutex_unlock(&s->lock);
	return idle;
}

/*
 * Lock held. Asks for one more of *want and waits for the step boundary at
 * which *done gets there.
 */
static int
at_boundary(struct dcpd_sched *s, uint64_t *want, const uint64_t *done,
    const char *what, struct dcpd_err *err)
{
	uint64_t mine = ++*want, until = dcpd_now_ns() + BOUNDARY_TIMEOUT_NS;
	struct timespec ts = { (time_t)(until / 1000000000u),
	    (long)(until % 1000000000u) };
	int rc = 0;

	dcpd_sched_kick(s);
	while (*done < mine && rc == 0)
		rc = pthread_cond_timedwait(&s->event_cv, &s->lock, &ts);
	return *done >= mine ? 0 : dcpd_fail(err, -ETIMEDOUT, "step %llu has "
	    "not ended for %u s: nothing could be %s",
	    (unsigned long long)s->step,
	    (unsigned)(BOUNDARY_TIMEOUT_NS / 1000000000u), what);
}

int
dcpd_sched_check(struct dcpd_sched *s, struct dcpd_err *err)
{
	int rc;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	rc = at_boundary(s, &s->check_want, &s->check_done, "checked", err);
	if (rc == 0 && s->check_err.code != 0)
		rc = dcpd_fail(err, s->check_err.code, "%s",
		    s->check_err.text);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int
dcpd_sched_cache_drop(struct dcpd_sched *s, uint32_t *pages,
    struct dcpd_err *err)
{
	int rc;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	rc = at_boundary(s, &s->drop_want, &s->drop_done, "dropped", err);
	if (rc == 0)
		*pages = s->dropped;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

void
dcpd_sched_cache_flush(struct dcpd_sched *s, uint32_t *pages)
{
	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	s->drop_want++;
	dcpd_sched_kick(s);
	*pages = dcpd_prefix_n_idle(s->prefix);
	pthread_mutex_unlock(&s->lock);
}

/*
 * Its answer, or none in time: then the ask is taken back. One at a time: who
 * comes while another waits is told so.
 */
static int
ask_pins(struct dcpd_sched *s, struct dcpd_pin_ask *a, struct dcpd_err *err)
{
	int rc;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	if (s->pin_ask != NULL) {
		pthread_mutex_unlock(&s->lock);
		return dcpd_fail(err, -EBUSY, "another pin is being set: try "
		    "again");
	}
	s->pin_ask = a;
	rc = at_boundary(s, &s->pin_want, &s->pin_done,
	    a->unpin ? "unpinned" : "pinned", err);
	if (s->pin_ask == a)
		s->pin_ask = NULL;
	pthread_mutex_unlock(&s->lock);
	return rc != 0 ? rc : a->rc == 0 ? 0 :
	    dcpd_fail(err, a->rc, "%s", a->err.text);
}

int
dcpd_sched_pin(struct dcpd_sched *s, const uint32_t *tokens, uint32_t n,
    const char *salt, uint64_t request, uint64_t *id, uint32_t *pages,
    struct dcpd_err *err)
{
	struct dcpd_pin_ask a = { .tokens = tokens, .n = n, .salt = salt,
		.request = request };
	int rc = ask_pins(s, &a, err);

	if (rc == 0) {
		*id = a.id;
		*pages = a.pages;
	}
	return rc;
}

int
dcpd_sched_unpin(struct dcpd_sched *s, uint64_t id, uint32_t *pages,
    struct dcpd_err *err)
{
	struct dcpd_pin_ask a = { .unpin = true, .id = id };
	int rc = ask_pins(s, &a, err);

	if (rc == 0)
		*pages = a.pages;
	return rc;
}

json_t *
dcpd_sched_cache(struct dcpd_sched *s)
{
	uint64_t asked = DCPD_COUNTER(prefix_lookup_tokens);
	uint64_t hit = DCPD_COUNTER(prefix_hit_tokens);
	uint32_t free, idle, nodes, host, pinned;
	json_t *o, *pins;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	free = dcpd_pages_n_free(s->pages);
	idle = dcpd_prefix_n_idle(s->prefix);
	nodes = dcpd_prefix_n_nodes(s->prefix);
	host = dcpd_prefix_n_host(s->prefix);
	pinned = s->n_pinned;
	pins = dcpd_pins_json(s);
	pthread_mutex_unlock(&s->lock);
	o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I}",
	    "pages_total", (json_int_t)s->c.engine->pages,
	    "pages_free", (json_int_t)free,
	    "pages_cached", (json_int_t)idle,
	    "pages_used", (json_int_t)(s->c.engine->pages - free - idle),
	    /* Found by a lookup: the cached ones, and of the used. */
	    "pages_known", (json_int_t)nodes,
	    "lookup_tokens", (json_int_t)asked, "hit_tokens", (json_int_t)hit,
	    "hit_rate", per((double)hit, asked),
	    "evictions", (json_int_t)DCPD_COUNTER(evictions),
	    "preemptions", (json_int_t)DCPD_COUNTER(preemptions));
	json_object_update_new(o, json_pack("{s:I, s:I, s:o}",
	    "pages_pinned", (json_int_t)pinned, "pinned_most",
	    (json_int_t)(s->c.pin_fraction * s->c.engine->pages),
	    "pins", pins));
	if (o == NULL || s->c.engine->host_pages == 0)
		return o;
	json_object_update_new(o, json_pack("{s:I, s:I, s:I, s:I, s:I, s:f}",
	    "host_total", (json_int_t)s->c.engine->host_pages,
	    "host_pages", (json_int_t)host,
	    "host_hit_tokens", (json_int_t)DCPD_COUNTER(host_hit_tokens),
	    "host_pages_out", (json_int_t)DCPD_COUNTER(host_pages_out),
	    "host_pages_in", (json_int_t)DCPD_COUNTER(host_pages_in),
	    "host_s", (double)DCPD_COUNTER(host_ns) * 1e-9));
	return o;
}

bool
dcpd_sched_failed(struct dcpd_sched *s, struct dcpd_err *err)
{
	bool failed;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	failed = s->failed;
	if (failed && err != NULL)
		*err = s->fail;
	pthread_mutex_unlock(&s->lock);
	return failed;
}
