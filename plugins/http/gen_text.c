/*
 * What a choice gathers: text by channel, tool calls, tokens with their
 * logprobs; and what waits while its reader is slow. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "plugins/http/engine.h"

#define HELD_JOIN (64u << 10)	/* bytes of text that one held piece gathers */

int
text_add(struct text *t, const char *s, size_t len)
{
	size_t cap = t->cap;
	char *p;

	if (len >= cap - t->len || t->s == NULL) {
		cap = 2 * (t->len + len) + 16;
		p = realloc(t->s, cap);
		if (p == NULL)
			return -ENOMEM;
		t->s = p;
		t->cap = cap;
	}
	if (len > 0)
		memcpy(t->s + t->len, s, len);
	t->len += len;
	t->s[t->len] = '\0';
	return 0;
}

void
text_free(struct text *t)
{
	free(t->s);
	*t = (struct text){ 0 };
}

json_t *
text_json(const struct text *t)
{
	return json_stringn(t->s != NULL ? t->s : "", t->len);
}

/* --- tokens ------------------------------------------------------------ */

static int
add_token(struct gen_tokens *t, const struct dcp_token_logprobs *lp)
{
	struct gen_token *v;
	size_t cap;

	if (t->n == t->cap) {
		cap = 2 * t->cap + 16;
		v = realloc(t->v, cap * sizeof *v);
		if (v == NULL)
			return -ENOMEM;
		t->v = v;
		t->cap = cap;
	}
	v = &t->v[t->n];
	*v = (struct gen_token){ .id = lp->chosen.token,
	    .logprob = lp->chosen.logprob, .n_top = lp->n_top };
	if (lp->n_top > 0) {
		v->top = malloc(lp->n_top * sizeof *v->top);
		if (v->top == NULL)
			return -ENOMEM;
		memcpy(v->top, lp->top, lp->n_top * sizeof *v->top);
	}
	t->n++;
	return 0;
}

int
gen_tokens_add(struct gen_tokens *t, const struct dcp_event *ev)
{
	uint32_t i;
	int rc = 0;

	for (i = 0; i < ev->n_logprobs && rc == 0; i++)
		rc = add_token(t, &ev->logprobs[i]);
	return rc;
}

void
gen_tokens_free(struct gen_tokens *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->v[i].top);
	free(t->v);
	*t = (struct gen_tokens){ 0 };
}

/* --- gathering --------------------------------------------------------- */

void
random_id(char *to, size_t cap, const char *prefix)
{
	uint8_t r[12] = { 0 };
	int n = snprintf(to, cap, "%s", prefix);

	/* Not secret: zeros would do, but for who looks for an id in a log. */
	if (getrandom(r, sizeof r, GRND_NONBLOCK) < 0)
		memset(r, 0, sizeof r);
	for (size_t i = 0; i < sizeof r && (size_t)n + 3 <= cap; i++, n += 2)
		snprintf(to + n, 3, "%02x", r[i]);
}

static struct gen_call *
call_at(struct choice *c, uint32_t i)
{
	struct gen_call *v;

	if (i < c->n_calls)
		return &c->calls[i];
	v = realloc(c->calls, (i + 1) * sizeof *v);
	if (v == NULL)
		return NULL;
	c->calls = v;
	for (; c->n_calls <= i; c->n_calls++) {
		v = &c->calls[c->n_calls];
		*v = (struct gen_call){ .id = "" };
		random_id(v->id, sizeof v->id, "call_");
	}
	return &c->calls[i];
}

static struct text *
text_of(struct choice *c, const struct dcp_event *ev, bool *begins)
{
	uint32_t before = c->n_calls;
	struct gen_call *call;

	switch (ev->channel) {
	case DCP_CH_PROMPT:
		return &c->prompt;
	case DCP_CH_CONTENT:
		return &c->content;
	case DCP_CH_REASONING:
		return &c->reasoning;
	default:
		call = call_at(c, ev->call);
		*begins = c->n_calls > before;
		return call == NULL ? NULL :
		    ev->channel == DCP_CH_TOOL_NAME ? &call->name :
		    &call->args;
	}
}

int
choice_take(struct choice *c, const struct dcp_event *ev, bool *begins)
{
	bool keep = !c->gen->p.stream ||
	    ev->channel == DCP_CH_TOOL_NAME || ev->channel == DCP_CH_PROMPT;
	bool prompt = ev->channel == DCP_CH_PROMPT;
	struct text *t = text_of(c, ev, begins);
	int rc = 0;

	if (t == NULL)
		return -ENOMEM;
	if (!prompt) {
		c->usage.completion_tokens += ev->n_tokens;
		if (ev->channel == DCP_CH_REASONING)
			c->usage.reasoning_tokens += ev->n_tokens;
	}
	if (keep && ev->text_len > 0)
		rc = text_add(t, ev->text, ev->text_len);
	if (keep && rc == 0)
		rc = gen_tokens_add(prompt ? &c->prompt_tokens : &c->tokens,
		    ev);
	return rc;
}

void
choice_clear(struct choice *c)
{
	struct held *h;

	while ((h = TAILQ_FIRST(&c->held)) != NULL) {
		TAILQ_REMOVE(&c->held, h, link);
		held_free(h);
	}
	for (uint32_t i = 0; i < c->n_calls; i++) {
		text_free(&c->calls[i].name);
		text_free(&c->calls[i].args);
	}
	free(c->calls);
	text_free(&c->prompt);
	text_free(&c->reasoning);
	text_free(&c->content);
	gen_tokens_free(&c->prompt_tokens);
	gen_tokens_free(&c->tokens);
	free(c->arg);
}

/* --- what waits -------------------------------------------------------- */

void
held_free(struct held *h)
{
	text_free(&h->text);
	gen_tokens_free(&h->tokens);
	free(h);
}

size_t
held_size(const struct held *h)
{
	return sizeof *h + h->text.cap + h->tokens.cap * sizeof *h->tokens.v +
	    h->tops;
}

int
choice_hold(struct choice *c, const struct dcp_event *ev, bool begins)
{
	struct held *h = TAILQ_LAST(&c->held, helds);
	size_t before = 0, n;

	if (h != NULL && h->channel == ev->channel && h->call == ev->call &&
	    !begins && h->text.len < HELD_JOIN) {
		before = held_size(h);
	} else {
		h = calloc(1, sizeof *h);
		if (h == NULL)
			return -ENOMEM;
		h->channel = ev->channel;
		h->call = ev->call;
		h->begins = begins;
		TAILQ_INSERT_TAIL(&c->held, h, link);
	}
	n = h->tokens.n;
	if (text_add(&h->text, ev->text, ev->text_len) != 0 ||
	    gen_tokens_add(&h->tokens, ev) != 0)
		return -ENOMEM;
	for (; n < h->tokens.n; n++)
		h->tops += h->tokens.v[n].n_top * sizeof *h->tokens.v[n].top;
	return (int)(held_size(h) - before);
}
