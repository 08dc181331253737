/*
 * A request's way out: tokens become text and events. A job of the text pool,
 * posted when something is in the request's box and it is not posted already,
 * so that one request's output is in order and no step waits for it. What
 * piled up meanwhile goes out in one event.
 *
 * It ends the request's life: the final event is emitted here and the last
 * reference dropped (sched.c emits for a request whose encode job is yet to
 * come).
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/admin/histograms.h"
#include "dcpd/sched/sched_i.h"

/* An event is sent when it holds as much as this. */
#define DELTA_TOKENS 64u
#define DELTA_TEXT 8192u
#define DELTA_TOPS 4096u

struct delta {			/* the event that is being gathered */
	struct req *r;
	uint32_t channel, call;
	uint32_t tokens[DELTA_TOKENS];
	struct dcp_token_logprobs lps[DELTA_TOKENS];
	uint32_t n;		/* tokens */
	uint32_t n_top;		/* of all of them */
	bool logprobs;
	char *text;
	size_t len, cap;
	int rc;
};

static void
flush(struct delta *d)
{
	struct dcp_event ev = {
		.size = sizeof ev, .type = DCP_EV_DELTA,
		.request = d->r->sub->id, .channel = d->channel,
		.call = d->call, .text = d->len > 0 ? d->text : "",
		.text_len = d->len, .tokens = d->tokens, .n_tokens = d->n,
		.n_logprobs = d->logprobs ? d->n : 0,
		.logprobs = d->logprobs ? d->lps : NULL,
	};

	if (d->n == 0 && d->len == 0)
		return;
	if (d->rc == 0)
		d->rc = dcpd_ipc_emit(d->r->sub->client, d->r->sub->id, &ev);
	d->n = d->n_top = 0;
	d->len = 0;
}

/* dcpd_out_fn: text of one channel. */
static int
piece(void *arg, uint32_t channel, uint32_t call, const char *text, size_t len)
{
	struct delta *d = arg;
	size_t cap;
	char *p;

	if (channel != d->channel || call != d->call) {
		if (d->len > 0)
			flush(d);
		d->channel = channel;
		d->call = call;
	}
	if (d->len + len + 1 > d->cap) {
		cap = 2 * (d->len + len + 1);
		p = realloc(d->text, cap);
		if (p == NULL)
			return -ENOMEM;
		d->text = p;
		d->cap = cap;
	}
	if (len > 0)
		memcpy(d->text + d->len, text, len);
	d->len += len;
	d->text[d->len] = '\0';
	return 0;
}

/* dcpd_out_fn: the prompt's text, whatever its channel would be. */
static int
prompt_piece(void *arg, uint32_t channel, uint32_t call, const char *text,
    size_t len)
{
	return piece(arg, DCP_CH_PROMPT, 0, text, len);
}

/* Prompt and answer never share an event. */
static int
switch_to(struct delta *d, bool prompt)
{
	struct req *r = d->r;
	int rc;

	if (prompt == (d->channel == DCP_CH_PROMPT))
		return 0;
	if (!prompt && r->echo != NULL) {
		rc = dcpd_out_finish(r->echo, prompt_piece, d);
		if (rc < 0)
			return rc;
		dcpd_out_free(r->echo);
		r->echo = NULL;
	}
	flush(d);
	d->channel = prompt ? DCP_CH_PROMPT : r->channel0;
	d->call = 0;
	return 0;
}

/* 1: a stop string ends the request with this token. */
static int
take_token(struct delta *d, const struct out_token *t,
    const struct dcp_logprob *top)
{
	bool prompt = (t->flags & OUT_PROMPT) != 0;
	struct req *r = d->r;
	int rc;

	rc = switch_to(d, prompt);
	if (rc < 0)
		return rc;
	if (d->n == DELTA_TOKENS || d->len >= DELTA_TEXT ||
	    (d->n > 0 && d->n_top + t->n_top > DELTA_TOPS))
		flush(d);
	rc = 0;
	if (prompt && r->echo != NULL)
		rc = dcpd_out_push(r->echo, t->token, prompt_piece, d);
	else if (!prompt && r->out != NULL && !(t->flags & OUT_HIDDEN))
		rc = dcpd_out_push(r->out, t->token, piece, d);
	if (rc < 0)
		return rc;
	d->logprobs = (t->flags & OUT_LOGPROB) != 0;
	d->tokens[d->n] = t->token;
	d->lps[d->n] = (struct dcp_token_logprobs){
		.chosen = { t->token, t->logprob },
		.n_top = t->n_top, .top = top,
	};
	d->n++;
	d->n_top += t->n_top;
	if (!prompt)
		r->n_done++;
	return d->rc < 0 ? d->rc : rc;
}

static void
fill_usage(const struct req *r, struct dcp_usage *u)
{
	uint32_t cached;

	pthread_mutex_lock(&r->s->lock);
	cached = r->n_cached;
	pthread_mutex_unlock(&r->s->lock);
	*u = (struct dcp_usage){
		.prompt_tokens = r->n_prompt,
		.cached_tokens = cached,
		.completion_tokens = r->n_done,
		.reasoning_tokens = r->out != NULL ?
		    dcpd_out_reasoning_tokens(r->out) : 0,
	};
}

static void
emit_done(struct req *r, uint32_t finish, const struct dcp_usage *usage)
{
	struct dcp_event ev = {
		.size = sizeof ev, .type = DCP_EV_DONE,
		.request = r->sub->id, .text = "", .finish = finish,
		.usage = *usage,
	};

	if (finish == DCP_FINISH_STOP && r->out != NULL) {
		ev.call = dcpd_out_stop(r->out);
		if (dcpd_out_calls(r->out) > 0)
			ev.finish = DCP_FINISH_TOOL_CALLS;
	}
	if (finish != DCP_FINISH_ABORT && dcpd_req_counts(r))
		dcpd_observe(DCPD_HIST_e2e, dcpd_now_ns() - r->t_submit, 1);
	(void)dcpd_ipc_emit(r->sub->client, r->sub->id, &ev);
}

static void
emit_error(struct req *r, const struct dcpd_err *err,
    const struct dcp_usage *usage)
{
	struct dcp_event ev = {
		.size = sizeof ev, .type = DCP_EV_ERROR,
		.request = r->sub->id, .error = err->code, .text = err->text,
		.text_len = strlen(err->text), .usage = *usage,
	};

	(void)dcpd_ipc_emit(r->sub->client, r->sub->id, &ev);
}

void
dcpd_req_emit_end(struct req *r, const struct dcp_usage *usage)
{
	if (r->end_err.code != 0)
		emit_error(r, &r->end_err, usage);
	else
		emit_done(r, r->finish, usage);
}

/* The answer is over for its reader; the step thread hears why. */
static void
close_early(struct req *r, unsigned ctl)
{
	r->closed = true;
	pthread_mutex_lock(&r->s->lock);
	dcpd_req_ctl(r, ctl);
	pthread_mutex_unlock(&r->s->lock);
}

static void
stopped(struct req *r)
{
	struct dcp_usage u;

	fill_usage(r, &u);
	emit_done(r, DCP_FINISH_STOP, &u);
	close_early(r, CTL_STOPPED);
}

static void
broken(struct req *r, int rc)
{
	struct dcpd_err err = { rc, "output parser: out of memory" };
	struct dcp_usage u;

	if (rc == -EPROTO)
		dcpd_fail(&err, -EIO, "the model gave a token that its "
		    "response_format does not allow");
	fill_usage(r, &u);
	emit_error(r, &err, &u);
	close_early(r, CTL_CANCEL);
}

/* Into the bin of this second, which may hold an older one's. */
static void
count_rate(struct dcpd_sched *s, uint64_t sec, uint32_t tokens)
{
	_Atomic uint64_t *bin = &s->rate[sec % RATE_BINS];
	uint64_t was = atomic_load(bin), is;

	do
		is = was >> 32 == sec ? was + tokens : sec << 32 | tokens;
	while (!atomic_compare_exchange_weak(bin, &was, is));
}

/* Tokens went out, none sooner than at `now`; `before` had gone earlier. */
static void
count(struct req *r, uint32_t before, uint64_t now)
{
	uint32_t tokens = r->n_done - before;

	DCPD_COUNT(output_tokens, tokens);
	if (before == 0) {
		DCPD_COUNT(first_tokens, 1);
		DCPD_COUNT(ttft_ns, now - r->t_submit);
		dcpd_observe(DCPD_HIST_ttft, now - r->t_submit, 1);
	} else {
		DCPD_COUNT(later_tokens, tokens);
		DCPD_COUNT(itl_ns, now - r->t_token);
		dcpd_observe(DCPD_HIST_itl, (now - r->t_token) / tokens,
		    tokens);
	}
	r->t_token = now;
	count_rate(r->s, now / 1000000000u, tokens);
}

/*
 * Constrained decoding: the tokens in r->work, then the mask of the next one.
 * First of all that is done with them, for the step may be waiting.
 */
static int
constrain(struct req *r)
{
	struct dcpd_sched *s = r->s;
	uint32_t before = r->n_gram;
	int rc = 0;

	for (uint32_t i = 0; i < r->work.n && rc == 0; i++) {
		if (r->work.v[i].flags & OUT_PROMPT)
			continue;
		rc = dcpd_gram_push(r->gram, r->work.v[i].token);
		r->n_gram++;
	}
	/* The mask that is there holds, and the step may be reading it. */
	if (rc == 0 && r->n_gram == before)
		return 0;
	if (rc == 0)
		rc = dcpd_gram_mask(r->gram, r->mask);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&s->lock);
	r->mask_n = r->n_gram;
	r->mask_all = rc == 1;
	if (r->stalled) {
		r->stalled = false;
		dcpd_sched_kick(s);
	}
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* All of r->work; with `end` what was held back comes out too. */
static void
deliver(struct req *r, bool end)
{
	const struct dcp_logprob *top = r->work.top;
	struct delta d = { .r = r, .channel = r->channel, .call = r->call };
	uint32_t before = r->n_done;
	int rc = 0, bad = 0;
	uint64_t now;

	if (r->gram != NULL && !end)
		bad = constrain(r);
	now = dcpd_now_ns();	/* a client may have a token before we go on */
	for (uint32_t i = 0; i < r->work.n && rc == 0; i++) {
		rc = take_token(&d, &r->work.v[i], top);
		top += r->work.v[i].n_top;
	}
	if (end && rc == 0)
		rc = switch_to(&d, false);
	if (end && rc == 0 && r->out != NULL)
		rc = dcpd_out_finish(r->out, piece, &d);
	flush(&d);
	free(d.text);
	r->channel = d.channel;
	r->call = d.call;
	if (r->n_done > before)
		count(r, before, now);
	if (d.rc < 0)
		close_early(r, CTL_GONE);
	else if (rc == 1 && !r->closed)
		stopped(r);
	else if (bad < 0)
		broken(r, bad);
	else if (rc < 0)
		broken(r, rc);
}

int
dcpd_box_push(struct outbox *b, const struct out_token *t,
    const struct dcpk_logprob *top)
{
	uint32_t cap;
	void *p;

	if (b->n == b->cap) {
		cap = b->cap == 0 ? 16 : 2 * b->cap;
		p = realloc(b->v, cap * sizeof *b->v);
		if (p == NULL)
			return -ENOMEM;
		b->v = p;
		b->cap = cap;
	}
	if (t->n_top > b->cap_top - b->n_top) {
		cap = 2 * (b->n_top + t->n_top);
		p = realloc(b->top, cap * sizeof *b->top);
		if (p == NULL)
			return -ENOMEM;
		b->top = p;
		b->cap_top = cap;
	}
	for (uint32_t i = 0; i < t->n_top; i++)
		b->top[b->n_top++] = (struct dcp_logprob){
			top[i].token, top[i].logprob };
	b->v[b->n++] = *t;
	return 0;
}

/*
 * Take what is in the box. False: nothing was, and the next to put something
 * in posts the job again.
 */
static bool
take(struct req *r, bool *end)
{
	struct dcpd_sched *s = r->s;
	struct outbox b;
	bool some;

	pthread_mutex_lock(&s->lock);
	b = r->box;
	r->box = r->work;
	r->box.n = r->box.n_top = 0;
	r->work = b;
	*end = r->end;
	if (r->ctl & CTL_GONE)
		r->closed = true;
	some = b.n > 0 || r->end;
	if (!some)
		r->busy = false;
	if (r->stalled) {
		r->stalled = false;
		dcpd_sched_kick(s);
	}
	pthread_mutex_unlock(&s->lock);
	return some;
}

void
dcpd_req_output(struct dcpd_job *job)
{
	struct req *r = (void *)((char *)job - offsetof(struct req, job));
	struct dcp_usage usage;
	bool end;

	DCPD_CHECK(r, REQ_MAGIC);
	while (take(r, &end)) {
		if (!r->closed)
			deliver(r, end);
		if (!end)
			continue;
		if (!r->closed) {
			fill_usage(r, &usage);
			dcpd_req_emit_end(r, &usage);
		}
		dcpd_req_put(r);
		return;
	}
}
