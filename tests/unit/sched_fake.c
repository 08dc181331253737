/* Clients and one of everything: sched_fake.h. One lock for all events. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/sched_fake.h"

/* --- clients and events: the ipc.h that the scheduler calls ------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
static struct fk_seen *seen;
static struct dcpd_client *clients[4096];
static uint32_t n_clients;
static struct fk_seen **by_id;		/* [n_by_id] of the same */
static size_t n_by_id;
static uint64_t id0 = 1;		/* id of by_id[0] */
static bool blocked;

struct dcpd_client *
fk_client(uint64_t id)
{
	struct dcpd_client *c = calloc(1, sizeof *c);

	DCPD_ASSERT(n_clients < sizeof clients / sizeof clients[0]);
	c->refs = 1;
	c->id = id;
	clients[n_clients++] = c;
	return c;
}

struct dcpd_client *
dcpd_client_ref(struct dcpd_client *c)
{
	pthread_mutex_lock(&lock);
	c->refs++;
	pthread_mutex_unlock(&lock);
	return c;
}

void
dcpd_client_unref(struct dcpd_client *c)
{
	pthread_mutex_lock(&lock);
	DCPD_ASSERT(c->refs > 1);	/* the test's own is the last */
	c->refs--;
	pthread_mutex_unlock(&lock);
}

void
dcpd_submit_free(struct dcpd_submit *s)
{
	for (uint32_t i = 0; i < s->p.n_stop; i++)
		free(s->stop[i]);
	free(s->stop);
	free(s->stop_ids);
	free(s->bias);
	free(s->options);
	free(s->data);
	dcpd_client_unref(s->client);
	free(s);
}

/* Lock held. Ids follow each other, the newest is the first. */
static struct fk_seen *
find(uint64_t id)
{
	return id < id0 || id - id0 >= n_by_id ? NULL : by_id[id - id0];
}

/* Lock held. */
static void
remember(struct fk_seen *f)
{
	f->id = id0 + n_by_id;
	f->next = seen;
	seen = f;
	if ((n_by_id & (n_by_id - 1)) == 0)
		by_id = realloc(by_id, 2 * (n_by_id + 1) * sizeof *by_id);
	by_id[n_by_id++] = f;
}

static void
add_text(struct fk_seen *f, const struct dcp_event *ev)
{
	char **t = &f->text[ev->channel];
	size_t n = *t == NULL ? 0 : strlen(*t);

	if (ev->text_len == 0)
		return;
	*t = realloc(*t, n + ev->text_len + 1);
	memcpy(*t + n, ev->text, ev->text_len);
	(*t)[n + ev->text_len] = '\0';
}

static void
add_tokens(struct fk_seen *f, const struct dcp_event *ev)
{
	bool prompt = ev->channel == DCP_CH_PROMPT;
	uint32_t **ids = prompt ? &f->prompt : &f->tokens;
	float **lps = prompt ? &f->prompt_lps : &f->lps;
	uint32_t *n = prompt ? &f->n_prompt : &f->n;

	DCPD_ASSERT(ev->n_logprobs == 0 || ev->n_logprobs == ev->n_tokens);
	*ids = realloc(*ids, (*n + ev->n_tokens + 1) * sizeof **ids);
	*lps = realloc(*lps, (*n + ev->n_tokens + 1) * sizeof **lps);
	for (uint32_t i = 0; i < ev->n_tokens; i++, ++*n) {
		(*ids)[*n] = ev->tokens[i];
		(*lps)[*n] = 1;
		if (ev->n_logprobs == 0)
			continue;
		DCPD_ASSERT(ev->logprobs[i].chosen.token == ev->tokens[i]);
		(*lps)[*n] = ev->logprobs[i].chosen.logprob;
		if (prompt)
			f->n_prompt_top += ev->logprobs[i].n_top;
		if (prompt || ev->logprobs[i].n_top == 0)
			continue;
		f->top = realloc(f->top, (f->n_top + ev->logprobs[i].n_top) *
		    sizeof *f->top);
		memcpy(f->top + f->n_top, ev->logprobs[i].top,
		    ev->logprobs[i].n_top * sizeof *f->top);
		f->n_top += ev->logprobs[i].n_top;
	}
}

int
dcpd_ipc_emit(struct dcpd_client *c, uint64_t id, const struct dcp_event *ev)
{
	struct fk_seen *f;

	pthread_mutex_lock(&lock);
	while (blocked)
		pthread_cond_wait(&cv, &lock);
	if (c->gone) {
		pthread_mutex_unlock(&lock);
		return -EPIPE;
	}
	f = find(id);
	DCPD_ASSERT(f != NULL && f->client == c);
	DCPD_ASSERT(ev->channel <= DCP_CH_PROMPT);
	f->events++;
	if (f->done)
		f->after_end++;
	if (f->t_first == 0)
		f->t_first = dcpd_now_ns();
	if (ev->type == DCP_EV_DELTA) {
		f->deltas++;
		add_text(f, ev);
		add_tokens(f, ev);
	} else {
		c->reserved -= f->reserved;
		f->reserved = 0;
		f->t_done = dcpd_now_ns();
		f->finish = ev->finish;
		f->stop = ev->call;
		f->usage = ev->usage;
		if (ev->type == DCP_EV_ERROR) {
			f->error = ev->error;
			snprintf(f->error_text, sizeof f->error_text, "%s",
			    ev->text);
		}
		f->done = true;
	}
	pthread_cond_broadcast(&cv);
	pthread_mutex_unlock(&lock);
	return 0;
}

int
dcpd_ipc_reserve(struct dcpd_client *c, uint64_t id, uint32_t max_tokens,
    uint32_t top_logprobs)
{
	struct fk_seen *f;
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (c->gone)
		rc = -EPIPE;
	else if (c->quota != 0 && max_tokens > c->quota)
		rc = -EMSGSIZE;
	else if (c->quota != 0 && max_tokens > c->quota - c->reserved)
		rc = -EDQUOT;
	if (rc == 0) {
		f = find(id);
		DCPD_ASSERT(f != NULL && f->reserved == 0);
		f->reserved = max_tokens;
		c->reserved += max_tokens;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

void
fk_charge(struct dcpd_client *c, int64_t tokens)
{
	pthread_mutex_lock(&lock);
	c->reserved += (uint64_t)tokens;
	pthread_mutex_unlock(&lock);
}

void
fk_gone(struct dcpd_client *c)
{
	pthread_mutex_lock(&lock);
	c->gone = true;
	pthread_mutex_unlock(&lock);
}

void
fk_block_emit(bool on)
{
	pthread_mutex_lock(&lock);
	blocked = on;
	pthread_cond_broadcast(&cv);
	pthread_mutex_unlock(&lock);
}

static void *
copy(const void *v, size_t n)
{
	char *p = calloc(1, n + 1);

	if (n > 0)
		memcpy(p, v, n);
	return p;
}

static struct dcpd_submit *
make_submit(struct dcpd_client *c, const struct fk_req *q)
{
	struct dcpd_submit *s = calloc(1, sizeof *s);
	uint32_t n = 0;

	s->client = dcpd_client_ref(c);
	s->uid = q->uid;
	s->p = q->p;
	s->input = q->text == NULL ? DCP_INPUT_TOKENS :
	    q->chat ? DCP_INPUT_CHAT : DCP_INPUT_TEXT;
	s->flags = q->flags;
	s->p.input = s->input;
	s->p.flags = q->flags;
	s->p.max_tokens = q->max_tokens;
	s->len = q->text != NULL ? strlen(q->text) : q->n * sizeof *q->ids;
	s->data = copy(q->text != NULL ? (const void *)q->text : q->ids,
	    s->len);
	while (n < 4 && q->stop[n] != NULL)
		n++;
	s->p.n_stop = n;
	s->stop = calloc(n + 1, sizeof *s->stop);
	for (uint32_t i = 0; i < n; i++)
		s->stop[i] = copy(q->stop[i], strlen(q->stop[i]));
	s->p.n_stop_ids = q->n_stop_ids;
	s->stop_ids = copy(q->stop_ids, sizeof q->stop_ids);
	s->p.n_logit_bias = q->n_bias;
	s->bias = copy(q->bias, sizeof q->bias);
	if (q->options != NULL)
		s->options = copy(q->options, strlen(q->options));
	return s;
}

int
fk_submit(struct dcpd_sched *sched, struct dcpd_client *c,
    const struct fk_req *q, uint64_t *id, struct dcpd_err *err)
{
	struct dcpd_submit *s = make_submit(c, q);
	struct fk_seen *f = calloc(1, sizeof *f);
	struct dcpd_err e;
	int rc;

	pthread_mutex_lock(&lock);
	f->client = c;
	remember(f);
	s->id = f->id;
	pthread_mutex_unlock(&lock);
	*id = f->id;
	rc = dcpd_sched_ipc_ops.submit(sched, s, err != NULL ? err : &e);
	if (rc != 0)
		dcpd_submit_free(s);
	return rc;
}

const struct fk_seen *
fk_wait(uint64_t id)
{
	struct timespec ts;
	struct fk_seen *f;
	int rc = 0;

	fk_after_ms(&ts, SOON);
	pthread_mutex_lock(&lock);
	f = find(id);
	DCPD_ASSERT(f != NULL);
	while (!f->done && rc == 0)
		rc = pthread_cond_timedwait(&cv, &lock, &ts);
	pthread_mutex_unlock(&lock);
	DCPD_ASSERT(f->done);
	return f;
}

struct fk_seen
fk_look(uint64_t id)
{
	struct fk_seen f;

	pthread_mutex_lock(&lock);
	f = *find(id);
	pthread_mutex_unlock(&lock);
	return f;
}

int
fk_wait_tokens(uint64_t id, uint32_t n, int ms)
{
	struct timespec ts;
	struct fk_seen *f;
	int rc = 0;

	fk_after_ms(&ts, ms);
	pthread_mutex_lock(&lock);
	f = find(id);
	while (f->n < n && rc == 0)
		rc = pthread_cond_timedwait(&cv, &lock, &ts);
	rc = f->n >= n ? 0 : -1;
	pthread_mutex_unlock(&lock);
	return rc;
}

void
fk_forget(void)
{
	struct fk_seen *f;

	while ((f = seen) != NULL) {
		seen = f->next;
		for (unsigned i = 0; i < 5; i++)
			free(f->text[i]);
		free(f->tokens);
		free(f->lps);
		free(f->top);
		free(f->prompt);
		free(f->prompt_lps);
		free(f);
	}
	id0 += n_by_id;
	n_by_id = 0;
	free(by_id);
	by_id = NULL;
	while (n_clients > 0) {
		/* Every request gave its reference back. */
		DCPD_ASSERT(clients[n_clients - 1]->refs == 1);
		free(clients[--n_clients]);
	}
}

/* --- one of everything ------------------------------------------------- */

void
fk_start(struct fk *f, struct fk_spec sp, const struct dcpd_sched_config *cfg)
{
	struct dcpd_sched_config c = { 0 };
	struct dcpd_err err = { 0 };

	if (cfg != NULL)
		c = *cfg;
	sp.vocab = sp.vocab != 0 ? sp.vocab : 1000;
	sp.max_ctx = sp.max_ctx != 0 ? sp.max_ctx : 4096;
	sp.pages = sp.pages != 0 ? sp.pages : 256;
	sp.dcp = sp.dcp != 0 ? sp.dcp : 1;
	sp.world = sp.world != 0 ? sp.world : sp.dcp;
	sp.chunk = sp.chunk != 0 ? sp.chunk : 512;
	sp.max_running = sp.max_running != 0 ? sp.max_running : 8;
	fk_engine_open(&f->e, &sp);
	DCPD_ASSERT(dcpd_textpool_start(2, &f->pool, &err) == 0);
	c.engine = &f->e.e;
	c.pool = f->pool;
	c.way = sp.way;
	c.pin_fraction = 0.5;
	c.queue_max = sp.queue_max != 0 ? sp.queue_max : 1000;
	c.max_requests_uid = sp.max_requests_uid;
	c.check_steps = true;
	if (dcpd_sched_start(&c, &f->s, &err) != 0) {
		fprintf(stderr, "%s\n", err.text);
		abort();
	}
	f->c = fk_client(1);
}

void
fk_stop(struct fk *f)
{
	dcpd_sched_stop(f->s);
	dcpd_textpool_stop(f->pool);
	fk_engine_close(&f->e);
	fk_forget();
}

int
fk_idle(struct fk *f)
{
	for (int i = 0; i < SOON; i++) {
		if (dcpd_sched_idle(f->s))
			return 0;
		usleep(1000);
	}
	return -1;
}

int64_t
fk_status(struct fk *f, const char *key)
{
	json_t *o = dcpd_sched_status(f->s), *v;
	int64_t n = -1;

	v = json_object_get(o, key);
	if (v == NULL)
		v = json_object_get(json_object_get(o, "counters"), key);
	if (v != NULL)
		n = json_integer_value(v);
	json_decref(o);
	return n;
}
