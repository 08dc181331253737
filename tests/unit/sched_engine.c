/* The engine of sched_fake.h. Step thread, and the test at the gate. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/sched/plan.h"
#include "tests/unit/sched_fake.h"

static uint64_t
mix(uint64_t a, uint64_t b)
{
	uint64_t h = a * 0x9e3779b97f4a7c15u ^ (b + 0x632be59bd9b4e019u);

	h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
	return h ^ h >> 32;
}

static uint32_t
pick(uint64_t h, uint32_t vocab, const uint64_t *seed, uint32_t index)
{
	if (seed != NULL)
		h = mix(h, mix(*seed, index));
	return (uint32_t)(h % vocab);
}

static float
lp_of(uint64_t h, uint32_t token)
{
	return -(float)(mix(h, token) % 1000) / 100;
}

static bool
banned(const struct dcpk_adjust *a, uint32_t n, uint32_t token)
{
	for (uint32_t i = 0; i < n; i++)
		if (a[i].token == token && a[i].bias == -INFINITY)
			return true;
	return false;
}

/*
 * As samplers do: from t on, the first that the mask has and nothing bans, or
 * else that the mask has.
 */
static uint32_t
masked(uint32_t t, uint32_t vocab, const uint32_t *mask,
    const struct dcpk_adjust *a, uint32_t n)
{
	uint32_t i, id, kept = vocab;

	for (i = 0; i < vocab; i++) {
		id = (t + i) % vocab;
		if (!(mask[id / 32] >> id % 32 & 1))
			continue;
		if (!banned(a, n, id))
			return id;
		kept = kept == vocab ? id : kept;
	}
	return kept;
}

static void
keep_pass(struct fk_engine *e, const struct dcpk_plan *p)
{
	const struct dcpk_req *q = DCPK_REQS(p);
	struct fk_pass *l;

	if (e->n_log == e->cap_log) {
		e->cap_log = e->cap_log == 0 ? 256 : 2 * e->cap_log;
		e->log = realloc(e->log, e->cap_log * sizeof *e->log);
	}
	l = &e->log[e->n_log++];
	memset(l, 0, sizeof *l);
	l->pass = p->pass;
	l->way = p->way;
	l->n_rows = p->n_rows;
	l->n_reqs = p->n_reqs;
	l->back = e->back;
	e->back = 0;
	for (uint32_t i = 0; i < p->n_reqs && i < 64; i++) {
		l->rows[i] = q[i].rows;
		l->first[i] = DCPK_ROWS(p)[q[i].row0].token;
	}
}

static void
write_rows(struct fk_engine *e, const struct dcpk_plan *p)
{
	const struct dcpk_req *q = DCPK_REQS(p);
	const struct dcpk_row *r = DCPK_ROWS(p);
	const uint32_t *pages = DCPK_PAGES(p);

	for (uint32_t i = 0; i < p->n_rows; i++, r++) {
		const uint32_t *table = pages + q[r->req].page0;
		uint64_t before = 1;

		if (r->pos > 0)
			before = e->pool[table[(r->pos - 1) / 64] * 64 +
			    (r->pos - 1) % 64];
		e->pool[r->page * 64 + r->pos % 64] = mix(before, r->token);
	}
}

static void
draw(struct fk_engine *e, const struct dcpk_plan *p, struct dcpk_result *res)
{
	const struct dcpk_sample *s = DCPK_SAMPLES(p);
	const struct dcpk_row *rows = DCPK_ROWS(p);
	const struct dcpk_adjust *adj = DCPK_ADJUSTS(p);
	struct dcpk_logprob *top = res->top;

	for (uint32_t i = 0; i < p->n_samples; i++, s++) {
		const struct dcpk_row *r = &rows[s->row];
		uint64_t h = e->pool[r->page * 64 + r->pos % 64];
		uint32_t t = pick(h, e->e.vocab, s->flags & DCPK_S_GREEDY ?
		    NULL : &s->seed, s->index);

		if (s->flags & DCPK_S_MASK)
			t = masked(t, e->e.vocab, DCPK_MASK(p) + s->mask,
			    adj + s->adj0, s->adjs);
		else
			while (banned(adj + s->adj0, s->adjs, t))
				t = (t + 1) % e->e.vocab;
		if (e->script != NULL)
			t = s->index < e->n_script ? e->script[s->index] :
			    FK_EOS;
		if (s->flags & DCPK_S_SCORE)
			t = s->given;
		else
			e->last = *s;
		res->out[i] = (struct dcpk_logprob){ t, lp_of(h, t) };
		for (uint32_t k = 0; k < s->n_top; k++)
			*top++ = (struct dcpk_logprob){
				(t + k) % e->e.vocab,
				lp_of(h, (t + k) % e->e.vocab) };
		if (s->adjs > 0) {
			e->adj = realloc(e->adj, s->adjs * sizeof *e->adj);
			memcpy(e->adj, adj + s->adj0, s->adjs * sizeof *adj);
			e->n_adj = s->adjs;
		}
	}
}

static int
fk_step(void *self, const struct dcpk_plan *p, struct dcpk_result *res,
    struct dcpd_err *err)
{
	struct fk_engine *e = self;
	struct dcpd_plan_limits l = {
		.vocab = e->e.vocab, .max_ctx = e->e.max_ctx,
		.pages = e->e.pages, .max_reqs = e->e.max_running,
		.max_rows = p->pass == DCPK_DECODE ? e->e.max_running :
		    e->e.chunk,
	};
	uint64_t me;
	int rc;

	pthread_mutex_lock(&e->lock);
	me = ++e->entered;
	keep_pass(e, p);
	pthread_cond_broadcast(&e->cv);
	while (e->gated && e->allowed < me)
		pthread_cond_wait(&e->cv, &e->lock);
	pthread_mutex_unlock(&e->lock);
	if (e->step_us > 0)
		usleep(e->step_us);
	if (e->fail_at != 0 && me >= e->fail_at)
		return dcpd_fail(err, -EIO, "rank 3 is lost (injected)");
	rc = dcpd_plan_check(p, &l, err);
	if (rc != 0)
		return rc;
	write_rows(e, p);
	draw(e, p, res);
	return 0;
}

static int
fk_move(void *self, const struct dcpk_move *m, uint32_t n, bool out,
    struct dcpd_err *err)
{
	struct fk_engine *e = self;

	for (uint32_t i = 0; i < n; i++, m++) {
		uint64_t *page = e->pool + m->page * 64;
		uint64_t *slot = e->host + m->slot * 64;

		if (m->page >= e->e.pages || m->slot >= e->e.host_pages)
			return dcpd_fail(err, -ERANGE, "move: page %u, slot "
			    "%u", m->page, m->slot);
		memcpy(out ? slot : page, out ? page : slot,
		    64 * sizeof *page);
		/* Who reads a page that left, reads nonsense. */
		memset(out ? page : slot, 0xa5, 64 * sizeof *page);
	}
	if (!out)
		e->back += n;
	return 0;
}

static void
fk_predict(void *self, const struct dcpk_plan *p, double s[3])
{
	struct fk_engine *e = self;

	memcpy(s, e->predict, sizeof e->predict);
}

void
fk_engine_open(struct fk_engine *e, const struct fk_spec *sp)
{
	memset(e, 0, sizeof *e);
	e->eos[0] = FK_EOS;
	e->e = (struct dcpd_engine){
		.name = "fake", .self = e, .step = fk_step, .move = fk_move,
		.host_pages = sp->host_pages,
		.predict = sp->predict ? fk_predict : NULL,
		.vocab = sp->vocab, .max_ctx = sp->max_ctx,
		.pages = sp->pages, .dcp = sp->dcp, .world = sp->world,
		.chunk = sp->chunk, .max_running = sp->max_running,
		.eos = e->eos, .n_eos = 1,
	};
	e->pool = calloc((size_t)sp->pages * 64, sizeof *e->pool);
	e->host = calloc((size_t)sp->host_pages * 64 + 1, sizeof *e->host);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->cv, NULL);
}

void
fk_engine_close(struct fk_engine *e)
{
	free(e->pool);
	free(e->host);
	free(e->log);
	free(e->adj);
	pthread_cond_destroy(&e->cv);
	pthread_mutex_destroy(&e->lock);
}

void
fk_gate(struct fk_engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->gated = true;
	e->allowed = e->entered;
	pthread_mutex_unlock(&e->lock);
}

void
fk_let(struct fk_engine *e, uint64_t passes)
{
	pthread_mutex_lock(&e->lock);
	e->allowed += passes;
	pthread_cond_broadcast(&e->cv);
	pthread_mutex_unlock(&e->lock);
}

void
fk_open_gate(struct fk_engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->gated = false;
	pthread_cond_broadcast(&e->cv);
	pthread_mutex_unlock(&e->lock);
}

void
fk_after_ms(struct timespec *ts, int ms)
{
	clock_gettime(CLOCK_REALTIME, ts);
	ts->tv_sec += ms / 1000;
	ts->tv_nsec += ms % 1000 * 1000000l;
	if (ts->tv_nsec >= 1000000000l) {
		ts->tv_sec++;
		ts->tv_nsec -= 1000000000l;
	}
}

int
fk_at_gate(struct fk_engine *e, int ms)
{
	struct timespec ts;
	int rc = 0;

	fk_after_ms(&ts, ms);
	pthread_mutex_lock(&e->lock);
	while (e->entered <= e->allowed && rc == 0)
		rc = pthread_cond_timedwait(&e->cv, &e->lock, &ts);
	rc = e->entered > e->allowed ? 0 : -1;
	pthread_mutex_unlock(&e->lock);
	return rc;
}

uint64_t
fk_passes(struct fk_engine *e)
{
	uint64_t n;

	pthread_mutex_lock(&e->lock);
	n = e->entered;
	pthread_mutex_unlock(&e->lock);
	return n;
}

void
fk_expect(uint32_t vocab, const uint32_t *prompt, uint32_t n,
    const uint64_t *seed, uint32_t ban, uint32_t *out, uint32_t n_out)
{
	uint64_t h = 1;

	for (uint32_t i = 0; i < n; i++)
		h = mix(h, prompt[i]);
	for (uint32_t i = 0; i < n_out; i++) {
		out[i] = pick(h, vocab, seed, i);
		while (out[i] == ban)
			out[i] = (out[i] + 1) % vocab;
		h = mix(h, out[i]);
	}
}

float
fk_logprob(uint32_t vocab, const uint32_t *text, uint32_t n, uint32_t token)
{
	uint64_t h = 1;

	(void)vocab;
	for (uint32_t i = 0; i < n; i++)
		h = mix(h, text[i]);
	return lp_of(h, token);
}

uint32_t *
fk_prompt(uint32_t vocab, uint32_t n, uint32_t seed)
{
	uint32_t *v = malloc((n + 1) * sizeof *v);

	for (uint32_t i = 0; i < n; i++)
		v[i] = (uint32_t)(mix(seed, i) % vocab);
	return v;
}
