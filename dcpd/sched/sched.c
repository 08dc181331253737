/*
 * The scheduler's frame: requests come in, are swept when they must go, and
 * the step thread's loop. See sched_i.h for who may touch what.
 *
 * The loop never polls: a turn in which nothing ran is followed by sleep until
 * somebody kicks (a request encoded, cancelled or done; a client gone; room in
 * a full box; a check asked for) or a time comes: the next deadline, or to try
 * a full quota again.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/admin/crash.h"
#include "dcpd/admin/stats.h"
#include "dcpd/base/thread.h"
#include "dcpd/sched/sched_i.h"

#define STOPPING_TEXT "the daemon is stopping: try again when it is back"

void
dcpd_sched_kick(struct dcpd_sched *s)
{
	s->kick = true;
	pthread_cond_signal(&s->kick_cv);
}

void
dcpd_req_ctl(struct req *r, unsigned ctl)
{
	if (r->state == R_ENDED) {
		/* Only whether somebody reads still matters. */
		r->ctl |= ctl & CTL_GONE;
		return;
	}
	r->ctl |= ctl;
	dcpd_live_ask(r->s, r);
	dcpd_sched_kick(r->s);
}

/* --- a request's end --------------------------------------------------- */

static void
post_later(struct req *r)
{
	struct dcpd_sched *s = r->s;

	r->pnext = NULL;
	*s->post_tail = r;
	s->post_tail = &r->pnext;
}

void
dcpd_req_wake_output(struct req *r)
{
	if (r->busy)
		return;
	r->busy = true;
	post_later(r);
}

/* Posting wakes a worker, which wants the lock: so not with it held. */
void
dcpd_sched_flush_posts(struct dcpd_sched *s)
{
	const struct dcp_usage none = { 0 };
	struct dcpd_job *first = NULL, **tail = &first;
	struct req *r = s->post, *next;

	s->post = NULL;
	s->post_tail = &s->post;
	for (; r != NULL; r = next) {
		next = r->pnext;
		if (r->direct) {
			dcpd_req_emit_end(r, &none);
			dcpd_req_put(r);
		} else {
			r->job.next = NULL;
			*tail = &r->job;
			tail = &r->job.next;
		}
	}
	if (first != NULL)
		dcpd_textpool_post_all(s->c.pool, first);
}

/* Is a before b: priority, then arrival. */
static bool
before(const struct req *a, const struct req *b)
{
	if (a->sub->p.priority != b->sub->p.priority)
		return a->sub->p.priority > b->sub->p.priority;
	return a->seq < b->seq;
}

/* v has room. */
void
dcpd_reqs_insert(struct req **v, uint32_t *n, struct req *r)
{
	uint32_t i = (*n)++;

	for (; i > 0 && before(r, v[i - 1]); i--)
		v[i] = v[i - 1];
	v[i] = r;
}

void
dcpd_reqs_remove(struct req **v, uint32_t *n, struct req *r)
{
	uint32_t i = 0;

	while (i < *n && v[i] != r)
		i++;
	DCPD_ASSERT(i < *n);
	memmove(v + i, v + i + 1, (*n - i - 1) * sizeof *v);
	--*n;
}

/* One that only asks for its tokens is in none. */
bool
dcpd_req_counts(const struct req *r)
{
	return (r->flags & DCP_TOKENIZE) == 0;
}

static void
count_end(const struct req *r, uint32_t finish, const struct dcpd_err *err)
{
	if (!dcpd_req_counts(r))
		return;
	if (r->ctl & CTL_GONE || (err == NULL && finish == DCP_FINISH_ABORT))
		DCPD_COUNT(requests_cancelled, 1);
	else if (err == NULL)
		DCPD_COUNT(requests_finished, 1);
	else if (r->admitted)
		DCPD_COUNT(requests_failed, 1);
	else
		DCPD_COUNT(requests_refused, 1);
}

void
dcpd_req_end(struct req *r, uint32_t finish, const struct dcpd_err *err)
{
	struct dcpd_sched *s = r->s;
	enum req_state was = r->state;

	DCPD_ASSERT(was != R_ENDED);
	if (was == R_WAIT)
		dcpd_reqs_remove(s->wait, &s->n_wait, r);
	if (was == R_PREFILL || was == R_DECODE) {
		dcpd_reqs_remove(s->run, &s->n_run, r);
		dcpd_req_give_back(r);
	}
	count_end(r, finish, err);
	r->state = R_ENDED;
	r->end = true;
	r->finish = finish;
	if (err != NULL)
		r->end_err = *err;
	if (was != R_TEXT || r->encoded) {
		dcpd_req_wake_output(r);
	} else if (!(r->ctl & CTL_GONE)) {
		/*
		 * Still queued for text, maybe for long: its reader hears of
		 * the end now, and the encode job then finds it ended.
		 */
		r->direct = true;
		r->refs++;
		post_later(r);
	}
}

void
dcpd_req_put(struct req *r)
{
	struct dcpd_sched *s = r->s;
	bool last;

	pthread_mutex_lock(&s->lock);
	last = --r->refs == 0;
	if (last) {
		dcpd_live_remove(s, r);
		s->n_freed++;
	}
	pthread_mutex_unlock(&s->lock);
	if (!last)
		return;
	/* What it has of the scheduler's (its grammar) goes back with it. */
	dcpd_req_free(r);
	pthread_mutex_lock(&s->lock);
	s->n_freed--;
	/* Its uid's quota may have room; or it was the last one. */
	dcpd_sched_kick(s);
	pthread_mutex_unlock(&s->lock);
}

/* --- intake: dcpd_ipc_ops ---------------------------------------------- */

/* Requests that hold no pages are bounded by queue_max; so is their memory. */
static int
may_enter(struct dcpd_sched *s, const struct dcpd_submit *sub,
    struct dcpd_err *err)
{
	uint32_t uid_live;

	if (s->failed)
		return dcpd_fail(err, -EIO, "the engine failed: %s",
		    s->fail.text);
	if (s->ending || s->draining)
		return dcpd_fail(err, -ESHUTDOWN, "%s", s->ending ?
		    STOPPING_TEXT : "the daemon is draining: it takes no new "
		    "requests");
	if (s->n_live - s->n_run >= s->c.queue_max)
		return dcpd_fail(err, -EAGAIN, "%u requests run and %u wait, "
		    "the most that may: try again later, or raise --queue-max",
		    s->n_run, s->n_live - s->n_run);
	/* A plugin's are bounded by ipc: it speaks for many users. */
	if (s->c.max_requests_uid == 0 || sub->own)
		return 0;
	uid_live = dcpd_live_of_uid(s, sub->uid);
	if (uid_live >= s->c.max_requests_uid)
		return dcpd_fail(err, -EAGAIN, "user %u has %u requests here, "
		    "the most one user may: wait for one to end",
		    (unsigned)sub->uid, uid_live);
	return 0;
}

static int
link_in(struct dcpd_sched *s, struct req *r, struct dcpd_err *err)
{
	if (dcpd_live_add(s, r) != 0)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	r->seq = s->seq++;
	if (r->t_deadline != 0 && r->t_deadline < s->next_deadline) {
		s->next_deadline = r->t_deadline;
		dcpd_sched_kick(s);
	}
	return 0;
}

static int
op_submit(void *arg, struct dcpd_submit *sub, struct dcpd_err *err)
{
	struct dcpd_sched *s = arg;
	uint32_t uid = sub->uid;
	struct req *r;
	int rc;

	DCPD_CHECK(s, SCHED_MAGIC);
	r = calloc(1, sizeof *r);
	if (r == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	r->magic = REQ_MAGIC;
	r->s = s;
	r->sub = sub;
	r->flags = sub->flags;
	r->min_tokens = sub->p.min_tokens;
	r->stop_ids = sub->stop_ids;
	r->n_stop_ids = sub->p.n_stop_ids;
	r->refs = 1;
	r->state = R_TEXT;
	r->job.run = dcpd_req_encode;
	r->t_submit = dcpd_now_ns();
	if (sub->p.deadline_ms > 0)
		r->t_deadline = r->t_submit +
		    (uint64_t)sub->p.deadline_ms * 1000000u;
	pthread_mutex_lock(&s->lock);
	rc = may_enter(s, sub, err);
	if (rc == 0)
		rc = link_in(s, r, err);
	pthread_mutex_unlock(&s->lock);
	if (rc != 0) {
		if (dcpd_req_counts(r))
			DCPD_COUNT(requests_refused, 1);
		free(r);
		return rc;
	}
	if (dcpd_req_counts(r))
		DCPD_COUNT(requests_total, 1);
	dcpd_textpool_post(s->c.pool, uid, &r->job);	/* sets its uid */
	return 0;
}

static void
op_cancel(void *arg, struct dcpd_client *client, uint64_t id)
{
	struct dcpd_sched *s = arg;
	struct req *r;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	r = dcpd_live_find(s, client, id);
	if (r != NULL)
		dcpd_req_ctl(r, CTL_CANCEL);
	pthread_mutex_unlock(&s->lock);
}

static void
op_gone(void *arg, struct dcpd_client *client)
{
	struct dcpd_sched *s = arg;

	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	for (struct req *r = s->live; r != NULL; r = r->next)
		if (r->sub->client == client)
			dcpd_req_ctl(r, CTL_GONE);
	pthread_mutex_unlock(&s->lock);
}

static char *
op_info(void *arg)
{
	const struct dcpd_sched *s = arg;
	const struct dcpd_engine *e = s->c.engine;
	json_t *o, *eos;
	char *text;

	DCPD_CHECK(s, SCHED_MAGIC);
	eos = json_array();
	for (uint32_t i = 0; i < e->n_eos; i++)
		json_array_append_new(eos, json_integer(e->eos[i]));
	o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, "
	    "s:o}",
	    "engine", e->name, "vocab", (json_int_t)e->vocab,
	    "max_context", (json_int_t)e->max_ctx,
	    "pool_tokens", (json_int_t)e->pages * DCPD_PAGE_TOKENS,
	    "tp", (json_int_t)e->world, "dcp", (json_int_t)e->dcp,
	    "chunk", (json_int_t)e->chunk,
	    "max_running", (json_int_t)e->max_running,
	    "text", s->c.tok != NULL, "chat", s->c.chat != DCPD_CHAT_NONE,
	    "always_thinks", s->c.chat == DCPD_CHAT_GLM53, "eos", eos);
	text = json_dumps(o, JSON_COMPACT);
	json_decref(o);
	return text;
}

const struct dcpd_ipc_ops dcpd_sched_ipc_ops = {
	.submit = op_submit, .cancel = op_cancel, .gone = op_gone,
	.info = op_info,
};

/* --- the step thread --------------------------------------------------- */

/* Lock held. */
static void
take_inbox(struct dcpd_sched *s)
{
	struct req *r = s->inbox, *next, **v;

	s->inbox = NULL;
	for (; r != NULL; r = next) {
		next = r->qnext;
		r->job.run = dcpd_req_output;
		if (r->err.code != 0) {
			dcpd_req_end(r, 0, &r->err);
			continue;
		}
		if (r->sub->flags & DCP_TOKENIZE) {
			dcpd_req_end(r, DCP_FINISH_STOP, NULL);
			continue;
		}
		/* Whoever runs may have to come back. */
		if (s->n_wait + s->n_run == s->cap_wait) {
			v = realloc(s->wait, 2 * s->cap_wait * sizeof *v);
			if (v == NULL) {
				const struct dcpd_err err = {
					-ENOMEM, "out of memory" };

				dcpd_req_end(r, 0, &err);
				continue;
			}
			s->wait = v;
			s->cap_wait *= 2;
		}
		if (dcpd_pin_leaves_room(s, r, &r->err) != 0) {
			dcpd_req_end(r, 0, &r->err);
			continue;
		}
		r->state = R_WAIT;
		dcpd_reqs_insert(s->wait, &s->n_wait, r);
	}
}

/* Lock held. r has something in ctl. */
static void
end_by_ctl(struct req *r)
{
	if (r->ctl & CTL_GONE)
		dcpd_req_end(r, DCP_FINISH_ABORT, NULL);
	else if (r->ctl & CTL_STOPPED)
		dcpd_req_end(r, DCP_FINISH_STOP, NULL);
	else
		dcpd_req_end(r, DCP_FINISH_ABORT, NULL);
}

/* Lock held. Those of which something was asked. */
static void
sweep_asked(struct dcpd_sched *s)
{
	struct req *r;

	while ((r = dcpd_live_asked(s)) != NULL)
		if (r->state != R_ENDED)
			end_by_ctl(r);
}

/* Lock held. Ends what must end; deadlines are looked at when one is due. */
static void
sweep(struct dcpd_sched *s)
{
	static const struct dcpd_err bye = { -ESHUTDOWN, STOPPING_TEXT };
	const struct dcpd_err *all = s->failed ? &s->fail :
	    s->ending ? &bye : NULL;
	uint64_t now = dcpd_now_ns(), next = UINT64_MAX;

	if (all == NULL && now < s->next_deadline) {
		sweep_asked(s);
		return;
	}
	for (struct req *r = s->live; r != NULL; r = r->next) {
		if (r->state == R_ENDED)
			continue;
		if (r->t_deadline != 0 && now >= r->t_deadline)
			r->ctl |= CTL_DEADLINE;
		if (r->ctl != 0)
			end_by_ctl(r);
		else if (all != NULL)
			dcpd_req_end(r, 0, all);
		else if (r->t_deadline != 0 && r->t_deadline < next)
			next = r->t_deadline;
	}
	s->next_deadline = next;
}

/* Lock held. */
static void
sleep_until_kicked(struct dcpd_sched *s)
{
	struct timespec ts;
	uint64_t until;

	while (!s->kick) {
		until = dcpd_min64(s->next_deadline, s->retry_at);
		if (until == UINT64_MAX) {
			pthread_cond_wait(&s->kick_cv, &s->lock);
			continue;
		}
		if (dcpd_now_ns() >= until)
			break;
		ts.tv_sec = (time_t)(until / 1000000000u);
		ts.tv_nsec = (long)(until % 1000000000u);
		pthread_cond_timedwait(&s->kick_cv, &s->lock, &ts);
	}
}

/*
 * Before the lock goes and the output jobs with the ends: whoever saw a
 * request end sees its pages free.
 */
void
dcpd_sched_gauges(struct dcpd_sched *s)
{
	DCPD_GAUGE(requests_waiting, s->n_wait);
	DCPD_GAUGE(requests_running, s->n_run);
	DCPD_GAUGE(pages_free, dcpd_pages_n_free(s->pages));
	DCPD_GAUGE(pages_host, dcpd_prefix_n_host(s->prefix));
	DCPD_COUNT(evictions, dcpd_prefix_n_evicted(s->prefix) - s->evicted);
	s->evicted = dcpd_prefix_n_evicted(s->prefix);
	DCPD_GAUGE(pages_cached, dcpd_prefix_n_idle(s->prefix));
	DCPD_GAUGE(pages_used, dcpd_pages_n_used(s->pages) -
	    dcpd_prefix_n_idle(s->prefix));
}

/* dcpd_sched_check() asks; this is a step boundary. */
static void
answer_check(struct dcpd_sched *s)
{
	struct dcpd_engine *e = s->c.engine;
	struct dcpd_err err = { 0 };
	uint64_t want;

	pthread_mutex_lock(&s->lock);
	want = s->check_want;
	pthread_mutex_unlock(&s->lock);
	if (want == s->check_done)
		return;
	err.code = dcpd_sched_verify(s, &err);
	if (err.code == 0 && e->check != NULL)
		err.code = e->check(e->self, &err);
	pthread_mutex_lock(&s->lock);
	s->check_err = err;
	s->check_done = want;
	pthread_cond_broadcast(&s->event_cv);
	pthread_mutex_unlock(&s->lock);
}

/*
 * dcpd_sched_cache_drop() asks; likewise. Before admission, so that whoever
 * comes after it finds nothing.
 */
static void
answer_drop(struct dcpd_sched *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->drop_want != s->drop_done) {
		s->dropped = dcpd_prefix_drop(s->prefix);
		s->drop_done = s->drop_want;
		dcpd_sched_gauges(s);
		pthread_cond_broadcast(&s->event_cv);
	}
	pthread_mutex_unlock(&s->lock);
}

/* dcpd_sched_pin() and dcpd_sched_unpin() ask; likewise. */
static void
answer_pin(struct dcpd_sched *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->pin_want != s->pin_done) {
		dcpd_pin_answer(s);
		s->pin_done = s->pin_want;
		dcpd_sched_gauges(s);
		pthread_cond_broadcast(&s->event_cv);
	}
	pthread_mutex_unlock(&s->lock);
}

static void
check_after_step(struct dcpd_sched *s)
{
	struct dcpd_err err;
	int rc;

	if (!DCPD_SCHED_DEBUG && !s->c.check_steps)
		return;
	rc = dcpd_sched_verify(s, &err);
	if (rc == 0 || rc == -ENOMEM)	/* it could not look */
		return;
	dcpd_log(LOG_CRIT, "step %llu: %s", (unsigned long long)s->step,
	    err.text);
	DCPD_ASSERT(!"the scheduler's invariant holds after every step");
}

static void *
step_main(void *arg)
{
	struct dcpd_sched *s = arg;
	bool ran = false, done = false;

	pthread_setname_np(pthread_self(), "dcpd-step");
	dcpd_crash_step_thread();
	while (!done) {
		pthread_mutex_lock(&s->lock);
		if (!ran) {
			dcpd_page->step_ns = 0;
			sleep_until_kicked(s);
		}
		dcpd_page->step_ns = dcpd_now_ns();
		s->kick = false;
		take_inbox(s);
		sweep(s);
		done = s->stopping && s->n_live == 0 && s->n_freed == 0;
		dcpd_sched_gauges(s);
		pthread_mutex_unlock(&s->lock);
		dcpd_sched_flush_posts(s);
		ran = false;
		answer_drop(s);
		answer_pin(s);
		if (!s->failed) {
			dcpd_sched_admit(s);
			ran = dcpd_sched_step(s);
		}
		check_after_step(s);
		answer_check(s);
	}
	dcpd_page->step_ns = 0;
	return NULL;
}

/* --- start and stop ---------------------------------------------------- */

static int
check_config(const struct dcpd_sched_config *c, struct dcpd_err *err)
{
	const struct dcpd_engine *e = c->engine;

	if (e->vocab == 0 || e->max_ctx < 2 || e->pages == 0 ||
	    e->dcp == 0 || e->world == 0 || e->world % e->dcp != 0)
		return dcpd_fail(err, -EINVAL, "engine %s: vocabulary %u, "
		    "context %u, %u pages, dcp %u of %u ranks", e->name,
		    e->vocab, e->max_ctx, e->pages, e->dcp, e->world);
	if (e->chunk == 0)
		return dcpd_fail(err, -EINVAL,
		    "--chunked-prefill-size is 0: give at least 1");
	if (e->max_running == 0)
		return dcpd_fail(err, -EINVAL,
		    "--max-running-requests is 0: give at least 1");
	if (c->queue_max == 0)
		return dcpd_fail(err, -EINVAL,
		    "--queue-max is 0: give at least 1");
	if (c->way < -1 || c->way > DCPK_WAY_A2A)
		return dcpd_fail(err, -EINVAL, "prefill way %d is unknown",
		    c->way);
	return 0;
}

static int
make(const struct dcpd_sched_config *c, struct dcpd_sched **out)
{
	struct dcpd_sched *s = calloc(1, sizeof *s);
	pthread_condattr_t ca;
	int rc;

	if (s == NULL)
		return -ENOMEM;
	s->magic = SCHED_MAGIC;
	s->c = *c;
	s->post_tail = &s->post;
	s->next_deadline = s->retry_at = UINT64_MAX;
	s->cap_wait = 64;
	s->wait = calloc(s->cap_wait, sizeof *s->wait);
	s->run = calloc(c->engine->max_running, sizeof *s->run);
	s->in_pass = calloc(c->engine->max_running, sizeof *s->in_pass);
	s->pin_refs = calloc(c->engine->pages, sizeof *s->pin_refs);
	rc = s->wait == NULL || s->run == NULL || s->in_pass == NULL ||
	    s->pin_refs == NULL || dcpd_live_open(s) != 0 ?
	    -ENOMEM : dcpd_pages_new(c->engine->pages, &s->pages);
	if (rc == 0)
		rc = dcpd_prefix_new(s->pages, c->engine->pages,
		    c->engine->move == NULL ? 0 : c->engine->host_pages,
		    &s->prefix);
	if (rc != 0) {
		dcpd_pages_free(s->pages);
		dcpd_live_close(s);
		free(s->pin_refs);
		free(s->in_pass);
		free(s->run);
		free(s->wait);
		free(s);
		return rc;
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->grams_lock, NULL);
	pthread_condattr_init(&ca);
	pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
	pthread_cond_init(&s->kick_cv, &ca);
	pthread_cond_init(&s->event_cv, &ca);
	pthread_condattr_destroy(&ca);
	*out = s;
	return 0;
}

static void
destroy(struct dcpd_sched *s)
{
	s->magic = 0;
	pthread_cond_destroy(&s->event_cv);
	pthread_cond_destroy(&s->kick_cv);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->grams_lock);
	dcpd_grams_free(s->grams);
	dcpd_planb_free(&s->plan);
	free(s->result.out);
	free(s->result.top);
	dcpd_prefix_free(s->prefix);
	dcpd_pages_free(s->pages);
	free(s->pin_refs);
	dcpd_live_close(s);
	free(s->move);
	free(s->in_pass);
	free(s->run);
	free(s->wait);
	free(s);
}

int
dcpd_sched_start(const struct dcpd_sched_config *c, struct dcpd_sched **out,
    struct dcpd_err *err)
{
	struct dcpd_sched *s;
	int rc = check_config(c, err);

	if (rc != 0)
		return rc;
	rc = make(c, &s);
	if (rc != 0)
		return dcpd_fail(err, rc, "scheduler: %s", strerror(-rc));
	DCPD_GAUGE(pages_total, c->engine->pages);
	dcpd_sched_gauges(s);
	rc = dcpd_thread_start(&s->thread, step_main, s);
	if (rc != 0) {
		destroy(s);
		return dcpd_fail(err, rc, "scheduler: no thread: %s",
		    strerror(-rc));
	}
	*out = s;
	return 0;
}

void
dcpd_sched_end(struct dcpd_sched *s)
{
	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	s->ending = true;
	dcpd_sched_kick(s);
	pthread_mutex_unlock(&s->lock);
}

void
dcpd_sched_stop(struct dcpd_sched *s)
{
	if (s == NULL)
		return;
	DCPD_CHECK(s, SCHED_MAGIC);
	pthread_mutex_lock(&s->lock);
	s->ending = s->stopping = true;
	dcpd_sched_kick(s);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	dcpd_pins_free(s);
	DCPD_ASSERT(s->n_live == 0 && dcpd_pages_n_used(s->pages) ==
	    dcpd_prefix_n_idle(s->prefix));
	destroy(s);
}
