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

#include <event2/buffer.h>

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

static int
take_probs(struct choice *c, const struct dcp_event *ev)
{
	const struct gen_style *style = c->gen->style;
	struct gen_tokens t = { 0 };
	int rc;

	if (style->probs == NULL || ev->n_logprobs == 0)
		return 0;
	rc = gen_tokens_add(&t, ev);
	if (rc == 0)
		rc = style->probs(c, ev->channel, t.v, t.n);
	gen_tokens_free(&t);
	return rc;
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
	if (!c->gen->p.stream && rc == 0)
		rc = take_probs(c, ev);
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
	for (uint32_t i = 0; i < GEN_LISTS; i++)
		text_free(&c->probs[i]);
	free(c->arg);
}

/* --- logprobs of an answer that is no stream ---------------------------- */

static int
add_json(const char *s, size_t len, void *arg)
{
	return text_add(arg, s, len);
}

int
gen_prob(struct choice *c, uint32_t list, json_t *v)
{
	struct text *t = &c->probs[list];
	int rc = v == NULL || json_dump_callback(v, add_json, t, JSON_COMPACT |
	    JSON_ENCODE_ANY) != 0 ? -ENOMEM : text_add(t, ",", 1);

	json_decref(v);
	return rc;
}

json_t *
gen_probs(const struct choice *c, uint32_t list)
{
	return json_sprintf("%s.%u.%u", c->gen->mark, c->index, list);
}

size_t
choice_probs(const struct choice *c)
{
	size_t n = 0;

	for (uint32_t i = 0; i < GEN_LISTS; i++)
		n += c->probs[i].cap;
	return n;
}

static void
free_it(const void *data, size_t len, void *arg)
{
	free(arg);
}

/* "[", the list without its last comma, "]"; the list goes with it. */
static int
add_list(struct evbuffer *b, struct text *t)
{
	int rc = evbuffer_add(b, "[", 1);

	if (rc == 0 && t->len > 0)
		rc = evbuffer_add_reference(b, t->s, t->len - 1, free_it,
		    t->s);
	if (rc == 0 && t->len > 0)
		*t = (struct text){ 0 };
	return rc != 0 ? rc : evbuffer_add(b, "]", 1);
}

struct evbuffer *
gen_dump(struct gen *g, json_t *o)
{
	char *s = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL, *at, *end;
	struct evbuffer *b = evbuffer_new();
	int rc = s == NULL || b == NULL ? -1 : 0;
	const char *p = s;
	unsigned long c, list;

	json_decref(o);
	while (rc == 0 && (at = strstr(p, g->mark)) != NULL) {
		c = strtoul(at + strlen(g->mark) + 1, &end, 10);
		list = strtoul(end + 1, &end, 10);
		/* without the quotes */
		rc = evbuffer_add(b, p, (size_t)(at - 1 - p));
		if (rc == 0)
			rc = add_list(b, &g->choice[c].probs[list]);
		p = end + 1;
	}
	if (rc == 0)
		rc = evbuffer_add(b, p, strlen(p));
	free(s);
	if (rc == 0)
		return b;
	if (b != NULL)
		evbuffer_free(b);
	return NULL;
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
