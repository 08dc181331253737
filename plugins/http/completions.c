/*
 * POST /v1/completions: a prompt as text or token ids, one or a list of them;
 * echo and logprobs as the evaluation harnesses read them. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/api.h"

#define DEFAULT_MAX_TOKENS 16
#define LOGPROBS_MAX 20
#define MAX_PROMPTS 1024u

struct completion {		/* a gen's arg */
	bool echo;
	bool no_answer;		/* max_tokens 0: only the prompt is asked for */
};

struct offset {			/* a choice's arg */
	json_int_t chars;	/* of the text so far, begun ones too */
	unsigned rest;		/* bytes that the last one lacks */
};

/* --- logprobs ---------------------------------------------------------- */

/* A token's bytes, of which a character may have a part only. What is no UTF-8
 * is a character each in the text, U+FFFD. */
static void
count_chars(struct offset *at, const struct text *t)
{
	for (size_t i = 0; i < t->len; i++) {
		unsigned char c = (unsigned char)t->s[i];

		if ((c & 0xc0) == 0x80 && at->rest > 0) {
			at->rest--;
			continue;
		}
		at->chars++;
		at->rest = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
	}
}

/* The chosen token is among them, be it one of the best or not. */
static json_t *
top_json(const struct engine *e, const struct gen_token *t)
{
	json_t *o, *name;
	uint32_t k;

	if (isnan(t->logprob))
		return json_null();
	o = json_object();
	for (k = 0; k <= t->n_top; k++) {
		uint32_t id = k < t->n_top ? t->top[k].token : t->id;
		float x = k < t->n_top ? t->top[k].logprob : t->logprob;

		name = engine_token_json(e, id);
		json_object_set_new_nocheck(o, json_string_value(name),
		    json_real(isfinite(x) ? (double)x : -9999.0));
		json_decref(name);
	}
	return o;
}

enum { TOKENS, LOGPROBS, TOPS, OFFSETS, LISTS };
_Static_assert(LISTS <= GEN_LISTS, "a choice has a text for each");

/* What a token adds to each list; false: no memory. */
static bool
one_token(const struct gen *g, struct choice *c, const struct gen_token *t,
    json_t *v[LISTS])
{
	struct offset *at = c->arg;
	struct text bytes = { 0 };

	if (at == NULL)
		at = c->arg = calloc(1, sizeof *at);
	if (at == NULL || engine_token(g->engine, t->id, &bytes) != 0) {
		text_free(&bytes);
		return false;
	}
	v[TOKENS] = engine_bytes_json(&bytes);
	v[LOGPROBS] = isnan(t->logprob) ? json_null() :
	    json_real(isfinite(t->logprob) ? (double)t->logprob : -9999.0);
	v[TOPS] = top_json(g->engine, t);
	v[OFFSETS] = json_integer(at->chars - (at->rest > 0));
	count_chars(at, &bytes);
	text_free(&bytes);
	return true;
}

/* Of four lists, which are stolen. */
static json_t *
lists_json(json_t *const l[LISTS])
{
	return json_pack("{s:o, s:o, s:o, s:o}", "tokens", l[TOKENS],
	    "token_logprobs", l[LOGPROBS], "top_logprobs", l[TOPS],
	    "text_offset", l[OFFSETS]);
}

/* Is this channel's text part of the answer? */
static bool
is_told(const struct gen *g, uint32_t channel)
{
	const struct completion *o = g->arg;

	return channel == DCP_CH_PROMPT ? o->echo : !o->no_answer;
}

/* --- the whole --------------------------------------------------------- */

static int
completion_probs(struct choice *c, uint32_t channel,
    const struct gen_token *v, size_t n)
{
	json_t *one[LISTS];
	int rc = 0;

	for (size_t i = 0; i < n && is_told(c->gen, channel); i++) {
		if (!one_token(c->gen, c, &v[i], one))
			return -ENOMEM;
		for (uint32_t k = 0; k < LISTS; k++)
			rc = gen_prob(c, k, one[k]) != 0 ? -ENOMEM : rc;
	}
	return rc;
}

static json_t *
whole_logprobs(const struct gen *g, const struct choice *c)
{
	json_t *l[LISTS];

	if (!(g->p.r.flags & DCP_LOGPROBS))
		return json_null();
	for (uint32_t k = 0; k < LISTS; k++)
		l[k] = gen_probs(c, k);
	return lists_json(l);
}

static json_t *
whole_text(const struct gen *g, const struct choice *c)
{
	const struct completion *o = g->arg;
	struct text t = { 0 };
	json_t *s;

	if (o->echo && c->prompt.len > 0)
		(void)text_add(&t, c->prompt.s, c->prompt.len);
	if (!o->no_answer && c->content.len > 0)
		(void)text_add(&t, c->content.s, c->content.len);
	s = text_json(&t);
	text_free(&t);
	return s;
}

static json_t *
the_usage(const struct gen *g)
{
	const struct completion *o = g->arg;
	struct dcp_usage u = gen_usage(g);

	if (o->no_answer)
		u.completion_tokens = 0;
	return usage_json(&u);
}

static json_t *
completion_whole(struct gen *g)
{
	json_t *choices = json_array();

	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct choice *c = &g->choice[i];

		json_array_append_new(choices, json_pack(
		    "{s:I, s:o, s:o, s:s}", "index", (json_int_t)i,
		    "text", whole_text(g, c), "logprobs",
		    whole_logprobs(g, c), "finish_reason",
		    finish_name(c->finish)));
	}
	return json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", g->id,
	    "object", "text_completion", "created", (json_int_t)g->created,
	    "model", g->model, "choices", choices, "usage", the_usage(g));
}

/* --- in pieces --------------------------------------------------------- */

static void
chunk(struct gen *g, json_t *choices, bool with_usage)
{
	json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", g->id,
	    "object", "text_completion", "created", (json_int_t)g->created,
	    "model", g->model, "choices", choices);

	if (with_usage)
		json_object_set_new(o, "usage", the_usage(g));
	call_sse(g->call, NULL, o);
}

static json_t *
piece_logprobs(struct gen *g, struct choice *c, const struct gen_delta *d)
{
	json_t *l[LISTS], *one[LISTS];

	if (!(g->p.r.flags & DCP_LOGPROBS) || d->n_tokens == 0)
		return json_null();
	for (uint32_t k = 0; k < LISTS; k++)
		l[k] = json_array();
	for (uint32_t i = 0; i < d->n_tokens; i++) {
		if (!one_token(g, c, &d->tokens[i], one))
			break;
		for (uint32_t k = 0; k < LISTS; k++)
			json_array_append_new(l[k], one[k]);
	}
	return lists_json(l);
}

static void
completion_delta(struct gen *g, struct choice *c, const struct gen_delta *d)
{
	if (!is_told(g, d->channel))
		return;
	chunk(g, json_pack("[{s:I, s:s%, s:o, s:n}]", "index",
	    (json_int_t)c->index, "text", d->text, d->len,
	    "logprobs", piece_logprobs(g, c, d), "finish_reason"),
	    g->p.continuous_usage);
}

static void
completion_choice_end(struct gen *g, struct choice *c)
{
	chunk(g, json_pack("[{s:I, s:s, s:n, s:s}]", "index",
	    (json_int_t)c->index, "text", "", "logprobs", "finish_reason",
	    finish_name(c->finish)), g->p.continuous_usage);
}

static void
completion_end(struct gen *g)
{
	if (g->p.include_usage)
		chunk(g, json_array(), true);
	call_sse_text(g->call, "[DONE]");
}

static const struct gen_style completion_style = {
	.flags = GEN_FIELDS,
	.id_prefix = "cmpl-", .delta = completion_delta,
	.choice_end = completion_choice_end, .end = completion_end,
	.probs = completion_probs, .whole = completion_whole, .free = free,
};

/* --- the prompts ------------------------------------------------------- */

struct prompts {
	struct gen_prompt *v;
	uint32_t n;
	bool ids;		/* data is malloc'd uint32_t */
};

static void
prompts_free(struct prompts *p)
{
	for (uint32_t i = 0; i < p->n && p->ids; i++)
		free((void *)p->v[i].data);
	free(p->v);
}

static int
bad_prompt(struct call *call)
{
	call_error(call, 400, "prompt", "invalid_type", "prompt: want a "
	    "string, a list of strings, a list of token ids or a list of such "
	    "lists, none of them empty, at most %u", MAX_PROMPTS);
	return -EINVAL;
}

/* 0: the engine is not there to say. */
static json_int_t
vocabulary(const struct call *call)
{
	return json_integer_value(json_object_get(
	    engine_info(call_http(call)->engine), "vocab"));
}

/* [1, 2, 3] */
static int
take_ids(struct call *call, const json_t *list, struct gen_prompt *out)
{
	json_int_t id, vocab = vocabulary(call);
	size_t n = json_array_size(list), i;
	uint32_t *ids;

	if (n == 0)
		return bad_prompt(call);
	ids = malloc(n * sizeof *ids);
	for (i = 0; i < n && ids != NULL; i++) {
		const json_t *v = json_array_get(list, i);

		id = json_integer_value(v);
		if (!json_is_integer(v) || id < 0 || id > UINT32_MAX) {
			free(ids);
			return bad_prompt(call);
		}
		if (vocab > 0 && id >= vocab) {
			free(ids);
			call_error(call, 400, "prompt", "invalid_value",
			    "prompt: token id %lld: the vocabulary has %lld",
			    (long long)id, (long long)vocab);
			return -EINVAL;
		}
		ids[i] = (uint32_t)id;
	}
	*out = (struct gen_prompt){ ids, n * sizeof *ids };
	return ids != NULL ? 0 : call_no_memory(call);
}

static int
take_text(struct call *call, const json_t *v, struct gen_prompt *out)
{
	if (!json_is_string(v) || json_string_length(v) == 0)
		return bad_prompt(call);
	*out = (struct gen_prompt){ json_string_value(v),
	    json_string_length(v) };
	return 0;
}

static int
take_prompts(struct call *call, const json_t *body, struct prompts *p)
{
	const json_t *v = json_object_get(body, "prompt"), *one;
	size_t n = json_is_array(v) ? json_array_size(v) : 1, i;
	bool list = json_is_array(v) &&
	    !json_is_integer(json_array_get(v, 0));
	int rc = 0;

	if (v == NULL || n == 0 || (list && n > MAX_PROMPTS))
		return bad_prompt(call);
	if (!list)
		n = 1;
	one = list ? json_array_get(v, 0) : v;
	*p = (struct prompts){ .ids = json_is_array(one) };
	p->v = calloc(n, sizeof *p->v);
	if (p->v == NULL)
		return call_no_memory(call);
	for (i = 0; i < n && rc == 0; i++) {
		one = list ? json_array_get(v, i) : v;
		rc = p->ids ? take_ids(call, one, &p->v[i]) :
		    take_text(call, one, &p->v[i]);
		p->n += rc == 0;
	}
	if (rc != 0)
		prompts_free(p);
	return rc;
}

/* --- the request ------------------------------------------------------- */

static int
refuse(struct call *call, const char *key, const char *why)
{
	call_error(call, 400, key, "unsupported", "%s: %s", key, why);
	return -EINVAL;
}

static int
take_own(struct call *call, const json_t *body, struct params *p,
    struct completion *o)
{
	int64_t max = DEFAULT_MAX_TOKENS, best_of = p->n, logprobs = 0;
	const char *suffix = "";
	int rc, given;

	if (field_bool(call, body, "echo", &o->echo) < 0 ||
	    (given = field_int(call, body, "max_tokens", -1, INT32_MAX,
	    &max)) < 0 ||
	    field_int(call, body, "best_of", 1, 1000, &best_of) < 0 ||
	    field_string(call, body, "suffix", &suffix) < 0 ||
	    (rc = field_int(call, body, "logprobs", 0, LOGPROBS_MAX,
	    &logprobs)) < 0)
		return -EINVAL;
	if (rc > 0) {
		p->r.flags |= DCP_LOGPROBS;
		p->r.top_logprobs = (uint32_t)logprobs;
	}
	if (suffix[0] != '\0')
		return refuse(call, "suffix", "these models do not fill in; "
		    "leave it out");
	if (best_of != 1 && best_of != (int64_t)p->n)
		return refuse(call, "best_of", "answers are not ranked; ask "
		    "for n, or leave it at 1");
	if (max == 0 && !o->echo)
		return refuse(call, "max_tokens", "0 asks for nothing but "
		    "with echo; want at least 1");
	o->no_answer = max == 0;
	p->r.max_tokens = max == -1 ? 0 : max > 0 ? (uint32_t)max : 1;
	p->r.flags |= o->echo ? DCP_ECHO : 0;
	/* Who did not ask for 16 is not told that they do not fit. */
	p->r.flags |= given == 0 ? DCP_FIT : 0;
	return params_format(call, body, p);
}

void
completions(struct call *call)
{
	static const char *const names[] = { NULL };
	struct prompts prompts = { 0 };
	json_t *body = call_json(call);
	struct completion *own;
	struct params p;

	if (body == NULL || params_parse(call, body, names, &p) != 0)
		return;
	own = calloc(1, sizeof *own);
	if (own == NULL) {
		call_no_memory(call);
		params_free(&p);
		return;
	}
	if (take_own(call, body, &p, own) != 0 ||
	    take_prompts(call, body, &prompts) != 0) {
		params_free(&p);
		free(own);
		return;
	}
	p.r.input = prompts.ids ? DCP_INPUT_TOKENS : DCP_INPUT_TEXT;
	gen_start(call, &completion_style, &p, prompts.v, prompts.n, own);
	prompts_free(&prompts);
}
