/*
 * From a parsed request to its answer: one path for all APIs. A request asks
 * for one choice or several (n, and a list of prompts), each a request to the
 * engine. A stream opens when all of them are known to be good, so that what
 * is wrong is told by the status; what comes earlier, or while the client's
 * socket is full, waits in the choice, joined. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "plugins/http/call.h"
#include "plugins/http/engine.h"

#define MAX_CHOICES 1024u
#define OPEN_S 5.0		/* a stream opens by then, whatever is known */
#define HELD_MAX (32u << 20)	/* bytes that wait for one slow reader */

struct gen_input {		/* copies of the prompts, until submitted */
	uint32_t n;
	struct gen_prompt v[];	/* data is malloc'd */
};

static void
input_free(struct gen_input *in)
{
	if (in == NULL)
		return;
	for (uint32_t i = 0; i < in->n; i++)
		free((void *)in->v[i].data);
	free(in);
}

static void
gen_free(struct gen *g)
{
	TAILQ_REMOVE(engine_gens(g->engine), g, link);
	for (uint32_t i = 0; i < g->n_choices; i++)
		choice_clear(&g->choice[i]);
	free(g->choice);
	input_free(g->input);
	free(g->options);
	free(g->model);
	free(g->rid);
	params_free(&g->p);
	if (g->style->free != NULL)
		g->style->free(g->arg);
	free(g);
}

/* Nothing is added any more; what there is goes soon. */
static void
forget(struct gen *g)
{
	engine_http(g->engine)->answers -= g->gathered;
	g->gathered = 0;
}

/* Its answer is out: nothing of it runs on, and it goes with its last event. */
static void
finish(struct gen *g)
{
	g->finished = true;
	g->call = NULL;
	forget(g);
	g->n_sent = g->n_choices;
	for (uint32_t i = 0; i < g->n_choices && g->n_live > 0; i++)
		if (g->choice[i].ereq.id != 0 && !g->choice[i].ended)
			engine_cancel(g->engine, &g->choice[i].ereq);
	/* Not here: a caller up the stack may hold it (see settle). */
}

static void
settle(struct gen *g)
{
	if (g->finished && g->n_live == 0)
		gen_free(g);
}

/* --- errors ------------------------------------------------------------ */

static void
fail(struct gen *g, int status, const char *code, const char *message)
{
	struct call *call = g->call;
	const char *field = status == 400 && g->style->flags & GEN_FIELDS ?
	    engine_error_field(message) : NULL;

	if (g->finished)
		return;
	forget(g);	/* first: an error is an answer, too, and counted */
	if (!g->opened) {
		call_error(call, status, field, code, "%s", message);
	} else {
		if (g->style->failed != NULL) {
			g->style->failed(g, status, code, message);
		} else {
			call_sse(call, NULL, call_error_json(call, status, field,
			    code, message));
			call_sse_text(call, "[DONE]");
		}
		call_sse_end(call);
	}
	finish(g);
}

static void
fail_errno(struct gen *g, int error, const char *message)
{
	const char *code;
	int status = engine_error_status(error, &code);

	fail(g, status, code, message);
}

/* --- gathering --------------------------------------------------------- */

void
gen_drop(struct gen *g)
{
	fail(g, 503, "out_of_memory", "the answer takes more memory than there "
	    "is for such now: ask for fewer at once, for fewer logprobs, or "
	    "for a stream");
}

/* So many bytes more of an answer that is no stream. */
static void
gather(struct gen *g, uint64_t cost)
{
	struct http *http = engine_http(g->engine);

	g->gathered += cost;
	http->answers += cost;
	gen_bound(http);
}

/* --- telling ----------------------------------------------------------- */

static void
tell(struct choice *c, const struct gen_delta *d)
{
	if (c->gen->style->delta != NULL)
		c->gen->style->delta(c->gen, c, d);
}

static void
tell_held(struct choice *c, const struct held *h)
{
	bool tool = h->channel == DCP_CH_TOOL_NAME ||
	    h->channel == DCP_CH_TOOL_ARGS;
	const struct gen_delta d = {
		.channel = h->channel, .call_index = h->call,
		.call = tool ? &c->calls[h->call] : NULL,
		.call_begins = h->begins,
		.text = h->text.s != NULL ? h->text.s : "",
		.len = h->text.len, .tokens = h->tokens.v,
		.n_tokens = (uint32_t)h->tokens.n,
	};

	tell(c, &d);
}

static bool
may_write(const struct gen *g)
{
	return g->opened && call_unread(g->call) < HTTP_OUTPUT_STOP;
}

static void
whole(struct gen *g)
{
	struct call *call = g->call;
	struct evbuffer *b = gen_dump(g, g->style->whole(g));

	finish(g);
	call_reply_buffer(call, 200, "application/json", b);
}

static void
last_words(struct gen *g)
{
	struct call *call = g->call;

	if (!g->p.stream) {
		whole(g);
		return;
	}
	if (g->style->end != NULL)
		g->style->end(g);
	finish(g);
	call_sse_end(call);
}

/* As much of what waits as the client's socket takes. */
static void
pump_choice(struct choice *c)
{
	struct gen *g = c->gen;
	struct held *h;

	while ((h = TAILQ_FIRST(&c->held)) != NULL && may_write(g)) {
		TAILQ_REMOVE(&c->held, h, link);
		g->held_bytes -= held_size(h);
		tell_held(c, h);
		held_free(h);
	}
	if (TAILQ_EMPTY(&c->held) && c->ended && !c->said &&
	    (g->opened || !g->p.stream)) {
		c->said = true;
		if (g->p.stream && g->style->choice_end != NULL)
			g->style->choice_end(g, c);
		if (++g->n_ended == g->n_choices)
			last_words(g);
	}
}

static void
pump(struct gen *g)
{
	for (uint32_t i = 0; i < g->n_choices && !g->finished; i++)
		pump_choice(&g->choice[i]);
}

static void
open_stream(struct gen *g)
{
	if (!g->p.stream || g->opened || g->finished)
		return;
	g->opened = true;
	call_sse_begin(g->call);
	if (g->style->begin != NULL)
		g->style->begin(g);
	pump(g);
}

/* --- events ------------------------------------------------------------ */

static void
on_delta(struct choice *c, const struct dcp_event *ev)
{
	struct gen *g = c->gen;
	size_t before = choice_probs(c);
	bool begins = false;
	int n = 0;

	if (choice_take(c, ev, &begins) != 0) {
		fail(g, 503, "out_of_memory", "no memory for the answer");
		return;
	}
	if (!g->p.stream)	/* text is there twice, in the end */
		gather(g, 2 * ev->text_len + choice_probs(c) - before);
	if (!g->p.stream || (ev->text_len == 0 && ev->n_logprobs == 0 &&
	    !begins))
		return;
	n = choice_hold(c, ev, begins);
	if (n >= 0)
		g->held_bytes += (size_t)n;
	pump_choice(c);
	if (n < 0)
		fail(g, 503, "out_of_memory", "no memory for the answer");
	else if (!g->finished && !TAILQ_EMPTY(&c->held) &&
	    g->held_bytes > HELD_MAX)
		fail(g, 500, "slow_reader", "more of the answer waits for its "
		    "reader than is kept");
}

static void
on_event(struct ereq *r, const struct dcp_event *ev)
{
	struct choice *c = (struct choice *)r;
	struct gen *g = c->gen;

	if (ev->type == DCP_EV_DONE || ev->type == DCP_EV_ERROR) {
		c->ended = true;
		g->n_live--;
	}
	if (g->finished) {
		settle(g);
		return;
	}
	switch (ev->type) {
	case DCP_EV_BEGIN:
		c->usage.prompt_tokens = ev->usage.prompt_tokens;
		if (++g->n_begun == g->n_choices)
			open_stream(g);
		break;
	case DCP_EV_DELTA:
		on_delta(c, ev);
		break;
	case DCP_EV_DONE:
		c->finish = ev->finish;
		c->stop = ev->call;
		c->usage = ev->usage;
		pump_choice(c);
		break;
	case DCP_EV_ERROR:
		fail_errno(g, ev->error, ev->text);
		break;
	}
	settle(g);
}

/* --- the client's side ------------------------------------------------- */

static void
on_gone(void *arg)
{
	struct gen *g = arg;
	struct call *call = g->call;
	bool opened = g->opened;

	finish(g);
	if (opened)
		call_sse_end(call);
	else
		call_reply(call, 499, NULL, NULL, 0);
	settle(g);
}

static void
on_room(void *arg)
{
	struct gen *g = arg;

	pump(g);
	settle(g);
}

static const struct call_ops ops = { .gone = on_gone, .room = on_room };

/* --- submission -------------------------------------------------------- */

/* What is left; a full ring has it called again. */
static void
submit(struct gen *g)
{
	const char *why;
	int rc;

	while (!g->finished && g->n_sent < g->n_choices) {
		struct choice *c = &g->choice[g->n_sent];
		struct dcp_request q = g->p.r;
		uint32_t of_n = c->index % g->p.n;

		q.data = g->input->v[c->index / g->p.n].data;
		q.len = g->input->v[c->index / g->p.n].len;
		q.options = g->options;
		q.flags |= DCP_BEGIN;
		/* The same seed would give the same answer n times. */
		q.seed += of_n;
		rc = engine_submit(g->engine, &c->ereq, &q, &why);
		if (rc == -EAGAIN) {
			engine_wait(g->engine);
			return;
		}
		if (rc != 0) {
			fail_errno(g, rc, why);
			return;
		}
		g->n_sent++;
		g->n_live++;
	}
	input_free(g->input);
	g->input = NULL;
	if (g->finished)
		return;
	/* What was asked is the engine's now. */
	free(g->options);
	g->options = NULL;
	g->p.r.stop = NULL;
	g->p.r.n_stop = 0;
	if (!(g->style->flags & GEN_BODY))
		call_forget_body(g->call);
}

void
generate_resume(struct engine *e)
{
	struct gen *g, *next;

	for (g = TAILQ_FIRST(engine_gens(e)); g != NULL; g = next) {
		next = TAILQ_NEXT(g, link);
		if (!g->finished && g->n_sent < g->n_choices)
			submit(g);
		settle(g);
	}
}

void
generate_tick(struct engine *e)
{
	struct gen *g, *next;
	double now = http_now();

	for (g = TAILQ_FIRST(engine_gens(e)); g != NULL; g = next) {
		next = TAILQ_NEXT(g, link);
		if (!g->finished && !g->opened && now - g->t_start > OPEN_S)
			open_stream(g);
		settle(g);
	}
}

static int
take_input(struct gen *g, const struct gen_prompt *prompts, uint32_t n)
{
	const struct gen_prompt one = { g->p.r.data, g->p.r.len };
	struct gen_input *in = calloc(1, sizeof *in + n * sizeof in->v[0]);
	void *copy;

	if (in == NULL)
		return -ENOMEM;
	g->input = in;
	if (prompts == NULL)
		prompts = &one;
	for (; in->n < n; in->n++) {
		copy = malloc(prompts[in->n].len + 1);
		if (copy == NULL)
			return -ENOMEM;
		memcpy(copy, prompts[in->n].data, prompts[in->n].len);
		in->v[in->n] = (struct gen_prompt){ copy, prompts[in->n].len };
	}
	if (g->p.options != NULL && json_object_size(g->p.options) > 0) {
		g->options = json_dumps(g->p.options, JSON_COMPACT);
		if (g->options == NULL)
			return -ENOMEM;
	}
	/* It shares values with the body. */
	json_decref(g->p.options);
	g->p.options = NULL;
	return 0;
}

static int
make_choices(struct gen *g)
{
	g->choice = calloc(g->n_choices, sizeof *g->choice);
	if (g->choice == NULL) {
		g->n_choices = 0;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < g->n_choices; i++) {
		struct choice *c = &g->choice[i];

		c->ereq.event = on_event;
		c->gen = g;
		c->index = i;
		TAILQ_INIT(&c->held);
	}
	return 0;
}

void
gen_start(struct call *call, const struct gen_style *style, struct params *p,
    const struct gen_prompt *prompts, uint32_t n_prompts, void *arg)
{
	struct engine *e = call_http(call)->engine;
	struct gen *g = calloc(1, sizeof *g);

	if (g == NULL) {
		params_free(p);
		if (style->free != NULL)
			style->free(arg);
		call_no_memory(call);
		return;
	}
	g->call = call;
	g->style = style;
	g->p = *p;
	*p = (struct params){ 0 };
	g->arg = arg;
	g->engine = e;
	g->created = (int64_t)time(NULL);
	g->t_start = http_now();
	/* Its own: an answer may outlive the connection, and the name. */
	g->model = strdup(engine_model(e));
	g->rid = g->p.rid != NULL ? strdup(g->p.rid) : NULL;
	g->p.rid = NULL;
	g->n_prompts = n_prompts;
	TAILQ_INSERT_TAIL(engine_gens(e), g, link);
	random_id(g->id, sizeof g->id, style->id_prefix != NULL ?
	    style->id_prefix : "");
	random_id(g->mark, sizeof g->mark, "list:");
	if (!engine_is_ready(e, call)) {
		finish(g);
	} else if ((uint64_t)n_prompts * g->p.n > MAX_CHOICES) {
		fail(g, 400, "too_many_choices", "the prompts times n are more "
		    "than 1024 answers: send fewer at once");
	} else {
		g->n_choices = n_prompts * g->p.n;
		if (g->model == NULL || make_choices(g) != 0 ||
		    take_input(g, prompts, n_prompts) != 0)
			fail(g, 503, "out_of_memory", "no memory");
	}
	if (!g->finished) {
		call_watch(call, &ops, g);
		submit(g);
	}
	settle(g);
}

/* --- what styles ask --------------------------------------------------- */

const char *
finish_name(uint32_t finish)
{
	switch (finish) {
	case DCP_FINISH_STOP:
		return "stop";
	case DCP_FINISH_LENGTH:
		return "length";
	case DCP_FINISH_TOOL_CALLS:
		return "tool_calls";
	default:
		return "abort";
	}
}

struct dcp_usage
gen_usage(const struct gen *g)
{
	struct dcp_usage u = { 0 };

	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct choice *c = &g->choice[i];

		if (i % g->p.n == 0) {
			u.prompt_tokens += c->usage.prompt_tokens;
			u.cached_tokens += c->usage.cached_tokens;
		}
		u.completion_tokens += c->usage.completion_tokens;
		u.reasoning_tokens += c->usage.reasoning_tokens;
	}
	return u;
}

json_t *
usage_json(const struct dcp_usage *u)
{
	return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}",
	    "prompt_tokens", (json_int_t)u->prompt_tokens,
	    "completion_tokens", (json_int_t)u->completion_tokens,
	    "total_tokens", (json_int_t)u->prompt_tokens +
	    u->completion_tokens,
	    "prompt_tokens_details",
	    "cached_tokens", (json_int_t)u->cached_tokens,
	    "completion_tokens_details",
	    "reasoning_tokens", (json_int_t)u->reasoning_tokens);
}

bool
gen_abort(struct engine *e, const char *id)
{
	bool found = false;
	const char *rid;
	struct gen *g;

	TAILQ_FOREACH(g, engine_gens(e), link) {
		if (g->finished)
			continue;
		rid = call_header(g->call, "x-request-id");
		if (id != NULL && strcmp(id, g->id) != 0 &&
		    (rid == NULL || strcmp(id, rid) != 0) &&
		    (g->rid == NULL || strcmp(id, g->rid) != 0))
			continue;
		found = true;
		for (uint32_t i = 0; i < g->n_sent; i++)
			if (!g->choice[i].ended)
				engine_cancel(e, &g->choice[i].ereq);
	}
	return found;
}

void
gen_abort_all(struct engine *e)
{
	(void)gen_abort(e, NULL);
}
