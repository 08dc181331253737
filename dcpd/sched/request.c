/*
 * A request before it runs: its parameters are checked, its text becomes ids,
 * and what it will cost becomes known. Runs in the text pool, once per request.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "dcpd/base/bigjson.h"
#include "dcpd/sched/sched_i.h"

/* --- adjustments ------------------------------------------------------- */

static uint32_t
slot_of(const struct adjusts *a, uint32_t token)
{
	uint32_t i = token * 2654435769u & (a->map_cap - 1);

	while (a->map[i] != 0 && a->v[a->map[i] - 1].token != token)
		i = (i + 1) & (a->map_cap - 1);
	return i;
}

static int
grow(struct adjusts *a)
{
	uint32_t cap = a->cap == 0 ? 32 : 2 * a->cap;
	struct dcpk_adjust *v;
	uint32_t *map;

	v = realloc(a->v, cap * sizeof *v);
	if (v == NULL)
		return -ENOMEM;
	a->v = v;
	map = calloc(2 * (size_t)cap, sizeof *map);
	if (map == NULL)
		return -ENOMEM;
	free(a->map);
	a->map = map;
	a->map_cap = 2 * cap;
	a->cap = cap;
	for (uint32_t i = 0; i < a->n; i++)
		a->map[slot_of(a, a->v[i].token)] = i + 1;
	return 0;
}

/* The entry of a token, made if there is none; NULL: no memory. */
static struct dcpk_adjust *
entry(struct adjusts *a, uint32_t token)
{
	uint32_t slot;

	if (a->n == a->cap && grow(a) != 0)
		return NULL;
	slot = slot_of(a, token);
	if (a->map[slot] == 0) {
		a->v[a->n] = (struct dcpk_adjust){ .token = token };
		a->map[slot] = ++a->n;
	}
	return &a->v[a->map[slot] - 1];
}

/* One more of a generated token. */
int
dcpd_adjusts_count(struct adjusts *a, uint32_t token)
{
	struct dcpk_adjust *e = entry(a, token);

	if (e == NULL)
		return -ENOMEM;
	e->out_count++;
	e->seen = 1;
	return 0;
}

/* An id that must not come before min_tokens. */
static int
ban(struct adjusts *a, uint32_t token)
{
	struct dcpk_adjust *e = entry(a, token);

	if (e == NULL)
		return -ENOMEM;
	a->ban[a->n_ban++] = (uint32_t)(e - a->v);
	return 0;
}

/* A token may be named more than once: the sum counts. */
static int
add_biases(struct req *r, struct dcpd_err *err)
{
	const struct dcp_logit_bias *b = r->sub->bias;
	struct dcpk_adjust *a;

	for (uint32_t i = 0; i < r->sub->p.n_logit_bias; i++) {
		a = entry(&r->adj, b[i].token);
		if (a == NULL)
			return dcpd_fail(err, -ENOMEM, "prompt: out of memory");
		a->bias += b[i].bias;
		if (isnan(a->bias))
			return dcpd_fail(err, -EINVAL, "logit_bias %u: id %u "
			    "has +inf and -inf, which have no sum; give one "
			    "of them", i, b[i].token);
	}
	return 0;
}

/*
 * tool_choice "none" takes the tools out of the prompt, but a model that sees
 * earlier calls may well go on calling. DeepSeek's calls begin with text.
 */
static int
ban_calls(struct req *r, struct dcpd_err *err)
{
	const struct dcpd_sched_config *c = &r->s->c;
	const char *choice = json_string_value(json_object_get(r->options,
	    "tool_choice"));
	struct dcpk_adjust *a;
	int64_t call;

	if (c->tok == NULL || c->parser != DCPD_PARSE_GLM ||
	    r->sub->input != DCP_INPUT_CHAT || choice == NULL ||
	    strcmp(choice, "none") != 0)
		return 0;
	call = dcpd_token_id(c->tok, "<tool_call>");
	if (call < 0 || call >= c->engine->vocab)
		return 0;
	a = entry(&r->adj, (uint32_t)call);
	if (a == NULL)
		return dcpd_fail(err, -ENOMEM, "prompt: out of memory");
	a->bias = -INFINITY;
	return 0;
}

/*
 * An answer that has to come is not to be missed: reasoning ends by its own
 * token, not by an end token or a tool call.
 */
static int
hush(struct req *r)
{
	const struct dcpd_engine *e = r->s->c.engine;
	uint32_t call = dcpd_gram_bans(r->gram);
	struct adjusts *a = &r->adj;
	struct dcpk_adjust *x;

	a->hush = calloc(e->n_eos + 1, sizeof *a->hush);
	if (a->hush == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i <= e->n_eos; i++) {
		if (i == e->n_eos && call == UINT32_MAX)
			break;
		x = entry(a, i < e->n_eos ? e->eos[i] : call);
		if (x == NULL)
			return -ENOMEM;
		a->hush[a->n_hush++] = (uint32_t)(x - a->v);
	}
	return 0;
}

static int
fill_adjusts(struct req *r)
{
	const struct dcpd_engine *e = r->s->c.engine;
	const struct dcp_request *p = &r->sub->p;
	struct dcpk_adjust *a;

	if (r->params.repetition != 1)
		for (size_t i = 0; i < r->ids.n; i++) {
			a = entry(&r->adj, r->ids.v[i]);
			if (a == NULL)
				return -ENOMEM;
			a->seen = 1;
		}
	if (r->gram != NULL && r->think_end != UINT32_MAX && hush(r) != 0)
		return -ENOMEM;
	if (p->min_tokens == 0)
		return 0;
	r->adj.ban = calloc(e->n_eos + p->n_stop_ids + 1, sizeof(uint32_t));
	if (r->adj.ban == NULL)
		return -ENOMEM;
	if (!(p->flags & DCP_IGNORE_EOS))
		for (uint32_t i = 0; i < e->n_eos; i++)
			if (ban(&r->adj, e->eos[i]) != 0)
				return -ENOMEM;
	for (uint32_t i = 0; i < p->n_stop_ids; i++)
		if (ban(&r->adj, r->sub->stop_ids[i]) != 0)
			return -ENOMEM;
	return 0;
}

/* --- parameters -------------------------------------------------------- */

static int
check_numbers(const struct dcp_request *p, struct dcpd_err *err)
{
	/* Written so that a NaN fails. */
	if ((p->flags & DCP_TEMPERATURE) &&
	    !(p->temperature >= 0 && p->temperature <= 100))
		return dcpd_fail(err, -EINVAL,
		    "temperature is %g: give 0 (greedy) to 100",
		    (double)p->temperature);
	if (!(p->top_p >= 0 && p->top_p <= 1))
		return dcpd_fail(err, -EINVAL,
		    "top_p is %g: give 0 to 1 (0 and 1 are off)",
		    (double)p->top_p);
	if (!(p->min_p >= 0 && p->min_p <= 1))
		return dcpd_fail(err, -EINVAL,
		    "min_p is %g: give 0 (off) to 1", (double)p->min_p);
	if (p->top_k < -1)
		return dcpd_fail(err, -EINVAL, "top_k is %d: give 1 or more, "
		    "0 or -1 for off", p->top_k);
	if (!(p->repetition_penalty >= 0 && p->repetition_penalty <= 100))
		return dcpd_fail(err, -EINVAL, "repetition_penalty is %g: give "
		    "a positive number up to 100, 0 or 1 for off",
		    (double)p->repetition_penalty);
	if (!(fabsf(p->presence_penalty) <= 100) ||
	    !(fabsf(p->frequency_penalty) <= 100))
		return dcpd_fail(err, -EINVAL, "presence_penalty is %g and "
		    "frequency_penalty %g: give -100 to 100",
		    (double)p->presence_penalty, (double)p->frequency_penalty);
	if (p->max_tokens > 0 && p->min_tokens > p->max_tokens)
		return dcpd_fail(err, -EINVAL,
		    "min_tokens %u is more than max_tokens %u", p->min_tokens,
		    p->max_tokens);
	return 0;
}

static int
check_params(const struct req *r, struct dcpd_err *err)
{
	const struct dcpd_engine *e = r->s->c.engine;
	const struct dcpd_submit *sub = r->sub;
	const struct dcp_request *p = &sub->p;
	int rc = check_numbers(p, err);

	if (rc != 0)
		return rc;
	if (p->top_logprobs > 0 && !(p->flags & DCP_LOGPROBS))
		return dcpd_fail(err, -EINVAL, "top_logprobs is %u without "
		    "DCP_LOGPROBS: set that flag", p->top_logprobs);
	if (p->top_logprobs > e->vocab)
		return dcpd_fail(err, -EINVAL, "top_logprobs is %u: the "
		    "vocabulary has %u ids", p->top_logprobs, e->vocab);
	for (uint32_t i = 0; i < p->n_stop_ids; i++)
		if (sub->stop_ids[i] >= e->vocab)
			return dcpd_fail(err, -EINVAL, "stop id %u is %u: the "
			    "vocabulary has %u ids", i, sub->stop_ids[i],
			    e->vocab);
	for (uint32_t i = 0; i < p->n_logit_bias; i++)
		if (sub->bias[i].token >= e->vocab || isnan(sub->bias[i].bias))
			return dcpd_fail(err, -EINVAL, "logit_bias %u is %g "
			    "for id %u: the vocabulary has %u ids", i,
			    (double)sub->bias[i].bias, sub->bias[i].token,
			    e->vocab);
	if (p->n_stop > 0 && r->s->c.tok == NULL)
		return dcpd_fail(err, -ENOTSUP, "stop strings need text, and "
		    "this model has no tokenizer.json: use stop ids");
	for (uint32_t i = 0; i < p->n_stop; i++)
		if (sub->stop[i][0] == '\0')
			return dcpd_fail(err, -EINVAL,
			    "stop string %u is empty", i);
	return 0;
}

/* What every sample of this request says. */
static void
fill_params(struct req *r)
{
	const struct dcpd_sched_config *c = &r->s->c;
	const struct dcp_request *p = &r->sub->p;
	struct dcpk_sample *s = &r->params;
	bool own = (p->flags & DCP_TEMPERATURE) != 0;

	/* Without a temperature, what was not said is the model's choice. */
	s->temperature = own ? p->temperature : c->def_temperature;
	s->top_p = p->top_p > 0 ? p->top_p :
	    !own && c->def_top_p > 0 ? c->def_top_p : 1;
	s->top_k = p->top_k > 0 ? (uint32_t)p->top_k :
	    !own && p->top_k == 0 && c->def_top_k > 0 ?
	    (uint32_t)c->def_top_k : 0;
	if (s->top_k >= c->engine->vocab)
		s->top_k = 0;
	s->min_p = p->min_p;
	s->repetition = p->repetition_penalty > 0 ? p->repetition_penalty : 1;
	s->presence = p->presence_penalty;
	s->frequency = p->frequency_penalty;
	s->n_top = p->top_logprobs;
	if (s->temperature == 0)
		s->flags = DCPK_S_GREEDY;
	r->penalties = s->repetition != 1 || s->presence != 0 ||
	    s->frequency != 0;
}

/* --- options ----------------------------------------------------------- */

#define SALT_MAX 256u		/* bytes */

static int
take_salt(struct req *r, struct dcpd_err *err)
{
	const json_t *v = json_object_get(r->options, "cache_salt");

	if (v == NULL || json_is_null(v))
		return 0;
	if (!json_is_string(v) || json_string_length(v) > SALT_MAX)
		return dcpd_fail(err, -EINVAL, "options: cache_salt: want a "
		    "string of at most %u bytes", SALT_MAX);
	if (json_string_length(v) > 0)
		r->salt = json_string_value(v);
	return 0;
}

/*
 * U+0000 in a string of v, which would end it early: names, patterns, a salt.
 * Descriptions are only shown to the model, and messages' text has it, too.
 * key: v's, and then the one of it.
 */
static bool
nul_in(const json_t *v, const char *name, const char **key)
{
	const char *k;
	json_t *kid;
	size_t i;

	*key = name;
	if (json_is_string(v))
		return strcmp(name, "description") != 0 &&
		    strlen(json_string_value(v)) != json_string_length(v);
	json_array_foreach(v, i, kid)
		if (nul_in(kid, name, key))
			return true;
	json_object_foreach((json_t *)v, k, kid)
		if (nul_in(kid, k, key))
			return true;
	return false;
}

static int
parse_options(struct req *r, struct dcpd_err *err)
{
	json_error_t je;
	const char *key;

	if (r->sub->options == NULL)
		return 0;
	r->options = dcpd_bigjson_loadb(r->sub->options,
	    strlen(r->sub->options), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
	    &je);
	if (r->options == NULL)
		return dcpd_fail(err, -EINVAL, "options: not JSON: %s at byte "
		    "%d", je.text, je.position);
	if (!json_is_object(r->options))
		return dcpd_fail(err, -EINVAL, "options: not a JSON object");
	if (nul_in(r->options, "options", &key))
		return dcpd_fail(err, -EINVAL, "options: %.60s: a string holds "
		    "U+0000: it can only in a \"description\"", key);
	return take_salt(r, err);
}

/* --- the prompt -------------------------------------------------------- */

static int
take_ids(struct req *r, struct dcpd_err *err)
{
	size_t len = r->sub->len, n = len / sizeof(uint32_t);
	uint32_t vocab = r->s->c.engine->vocab;
	uint32_t *v;

	if (len % sizeof(uint32_t) != 0)
		return dcpd_fail(err, -EINVAL, "token ids: %zu bytes are no "
		    "whole number of 4-byte ids", len);
	v = malloc(len + 1);
	if (v == NULL)
		return dcpd_fail(err, -ENOMEM, "prompt: out of memory");
	if (len > 0)
		memcpy(v, r->sub->data, len);
	r->ids = (struct dcpd_ids){ .v = v, .n = n, .cap = n };
	for (size_t i = 0; i < n; i++)
		if (v[i] >= vocab)
			return dcpd_fail(err, -EINVAL, "token ids: id %zu is "
			    "%u: the vocabulary has %u ids", i, v[i], vocab);
	return 0;
}

static int
take_chat(struct req *r, unsigned flags, size_t max, bool *thinking,
    struct dcpd_err *err)
{
	const struct dcpd_sched_config *c = &r->s->c;
	json_error_t je;
	json_t *messages;
	int rc;

	if (c->chat == DCPD_CHAT_NONE)
		return dcpd_fail(err, -ENOTSUP, "no chat template is known for "
		    "this model: send text or token ids");
	messages = dcpd_bigjson_loadb(r->sub->data, r->sub->len,
	    JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
	if (messages == NULL)
		return dcpd_fail(err, -EINVAL, "messages: not JSON: %s at "
		    "byte %d", je.text, je.position);
	rc = dcpd_chat_encode(c->tok, c->chat, messages, r->options, flags,
	    max, &r->ids, thinking, err);
	json_decref(messages);
	return rc;
}

static int
take_prompt(struct req *r, bool *thinking, struct dcpd_err *err)
{
	const struct dcpd_sched_config *c = &r->s->c;
	const struct dcpd_submit *sub = r->sub;
	unsigned flags = sub->flags & DCP_PLAIN_INPUT ? DCPD_PLAIN : 0;
	/* Twice the context: whoever is a little over learns by how much. */
	size_t max = 2 * (size_t)c->engine->max_ctx;
	int rc;

	if (sub->input == DCP_INPUT_TOKENS)
		return take_ids(r, err);
	if (sub->input != DCP_INPUT_TEXT && sub->input != DCP_INPUT_CHAT)
		return dcpd_fail(err, -EINVAL, "input kind %u is unknown: text "
		    "is 1, chat 2, token ids 3", sub->input);
	if (c->tok == NULL)
		return dcpd_fail(err, -ENOTSUP, "this model has no "
		    "tokenizer.json: send token ids");
	rc = sub->input == DCP_INPUT_CHAT ?
	    take_chat(r, flags, max, thinking, err) :
	    dcpd_encode(c->tok, sub->data, sub->len, flags, max, &r->ids, err);
	if (rc == -E2BIG)
		rc = dcpd_fail(err, -EMSGSIZE, "the prompt has more than %zu "
		    "tokens: the context is %u; shorten it", max,
		    c->engine->max_ctx);
	return rc;
}

/*
 * How long it may become and what that costs. The last token's row is never
 * computed, so n prompt tokens and m new ones need n + m - 1 rows.
 */
static int
take_size(struct req *r, struct dcpd_err *err)
{
	const struct dcpd_engine *e = r->s->c.engine;
	uint64_t pool = (uint64_t)e->pages * DCPD_PAGE_TOKENS;
	uint64_t n = r->ids.n, m = r->sub->p.max_tokens, room;

	if (n == 0)
		return dcpd_fail(err, -EINVAL, "the prompt is empty");
	if (n + 1 > e->max_ctx)
		return dcpd_fail(err, -EMSGSIZE, "the prompt has %llu tokens: "
		    "the context is %u, one of them for the answer; shorten it "
		    "by %llu", (unsigned long long)n, e->max_ctx,
		    (unsigned long long)(n + 1 - e->max_ctx));
	if (n > pool)
		return dcpd_fail(err, -EMSGSIZE, "the prompt has %llu tokens: "
		    "the KV pool holds %llu; raise --kv-bytes-per-rank or "
		    "--dcp-size, or shorten it", (unsigned long long)n,
		    (unsigned long long)pool);
	room = dcpd_min64(e->max_ctx, pool + 1) - n;
	if (m == 0 || (r->sub->flags & DCP_FIT && m > room))
		m = room;
	if (n + m > e->max_ctx)
		return dcpd_fail(err, -EMSGSIZE, "%llu prompt tokens + "
		    "max_tokens %llu = %llu: the context is %u; lower "
		    "max_tokens to %llu", (unsigned long long)n,
		    (unsigned long long)m, (unsigned long long)(n + m),
		    e->max_ctx, (unsigned long long)(e->max_ctx - n));
	if (n + m - 1 > pool)
		return dcpd_fail(err, -EMSGSIZE, "%llu prompt tokens + "
		    "max_tokens %llu: the KV pool holds %llu tokens; lower "
		    "max_tokens to %llu or raise --kv-bytes-per-rank",
		    (unsigned long long)n, (unsigned long long)m,
		    (unsigned long long)pool,
		    (unsigned long long)(pool + 1 - n));
	r->n_prompt = (uint32_t)n;
	r->max_tokens = (uint32_t)m;
	r->pages_max = (uint32_t)dcpd_div_up(n + m - 1, DCPD_PAGE_TOKENS);
	return 0;
}

static int
open_output(struct req *r, bool thinking, struct dcpd_err *err)
{
	const struct dcpd_sched_config *c = &r->s->c;
	const struct dcpd_submit *sub = r->sub;
	const json_t *many = json_object_get(r->options,
	    "parallel_tool_calls");
	bool special = (sub->flags & DCP_SPECIAL_TOKENS) != 0;
	struct dcpd_out_config oc = {
		.parser = sub->input == DCP_INPUT_CHAT && !special ?
		    c->parser : DCPD_PARSE_RAW,
		.thinking = thinking, .special = special,
		.tools = json_object_get(r->options, "tools"),
		.one_call = json_is_false(many),
		.stop = sub->stop, .n_stop = sub->p.n_stop,
		.min_tokens = sub->p.min_tokens,
	};
	struct dcpd_out_config ec = {
		.parser = DCPD_PARSE_RAW, .special = true,
	};
	int rc;

	if (many != NULL && !json_is_null(many) && !json_is_boolean(many))
		return dcpd_fail(err, -EINVAL, "options: parallel_tool_calls: "
		    "want true or false");
	if (c->tok == NULL)
		return 0;
	if (oc.parser != DCPD_PARSE_RAW && thinking)
		r->channel0 = r->channel = DCP_CH_REASONING;
	rc = dcpd_out_new(c->tok, &oc, &r->out);
	if (rc == 0 && (sub->flags & DCP_ECHO))
		rc = dcpd_out_new(c->tok, &ec, &r->echo);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "output parser: %s",
	    strerror(-rc));
}

/* The grammars of this model's vocabulary; the first who asks makes them. */
static int
get_grams(struct dcpd_sched *s, struct dcpd_grams **out)
{
	const struct dcpd_engine *e = s->c.engine;
	int rc = 0;

	pthread_mutex_lock(&s->grams_lock);
	if (s->grams == NULL)
		rc = dcpd_grams_new(s->c.tok, e->vocab, e->eos, e->n_eos,
		    &s->grams);
	*out = s->grams;
	pthread_mutex_unlock(&s->grams_lock);
	return rc;
}

/* Does an option ask for more than null, or the string that is the default? */
static bool
asks(const json_t *options, const char *key, const char *usual)
{
	const json_t *v = json_object_get(options, key);

	if (json_is_object(v) && strcmp(usual, "text") == 0)
		v = json_object_get(v, "type");
	return v != NULL && !json_is_null(v) && !(json_is_string(v) &&
	    (strcmp(json_string_value(v), usual) == 0 ||
	    strcmp(json_string_value(v), "none") == 0));
}

/* What the answer may be; the first mask is ready before the first step. */
static int
constrain(struct req *r, bool thinking, struct dcpd_err *err)
{
	const struct dcpd_sched_config *c = &r->s->c;
	bool parsed = r->sub->input == DCP_INPUT_CHAT &&
	    !(r->sub->flags & DCP_SPECIAL_TOKENS);
	struct dcpd_grams *gs;
	int rc;

	r->think_end = UINT32_MAX;
	if (!asks(r->options, "response_format", "text") &&
	    !asks(r->options, "tool_choice", "auto"))
		return 0;
	if (c->tok == NULL)
		return dcpd_fail(err, -ENOTSUP, "options: response_format and "
		    "tool_choice need text, and this model has no "
		    "tokenizer.json");
	if (r->sub->flags & DCP_IGNORE_EOS)
		return dcpd_fail(err, -EINVAL, "options: response_format and "
		    "tool_choice do not go with DCP_IGNORE_EOS: the end token "
		    "ends such an answer");
	rc = get_grams(r->s, &gs);
	if (rc != 0)
		return dcpd_fail(err, rc, "grammar: %s", strerror(-rc));
	rc = dcpd_gram_open(gs, r->options, parsed ? c->parser :
	    DCPD_PARSE_RAW, thinking, &r->gram, err);
	if (rc != 0 || r->gram == NULL)
		return rc;
	r->mask_words = (c->engine->vocab + 31) / 32;
	r->mask = calloc(r->mask_words, sizeof *r->mask);
	r->think_end = dcpd_gram_begins_after(r->gram);
	r->masked = r->think_end == UINT32_MAX;
	rc = r->mask == NULL ? -ENOMEM : dcpd_gram_mask(r->gram, r->mask);
	r->mask_all = rc == 1;
	return rc >= 0 ? 0 : dcpd_fail(err, rc, "grammar: out of memory");
}

/*
 * DCP_TOKENIZE: the whole answer is known now and goes into the box. Nobody
 * else looks at that before the request is in the inbox.
 */
static int
tokenized(struct req *r, struct dcpd_err *err)
{
	const struct dcpd_submit *sub = r->sub;
	struct dcpd_out_config oc = {
		.parser = DCPD_PARSE_RAW,
		.special = (sub->flags & DCP_SPECIAL_TOKENS) != 0,
	};
	struct out_token t = { .flags = OUT_PROMPT };
	int rc;

	if (r->ids.n > UINT32_MAX)
		return dcpd_fail(err, -EMSGSIZE, "%zu tokens", r->ids.n);
	rc = dcpd_ipc_reserve(sub->client, sub->id, 0, 0);
	if (rc == -EDQUOT)
		return dcpd_fail(err, -EAGAIN, "what this user has not read "
		    "yet leaves no room for %zu tokens: take events, then try "
		    "again", r->ids.n);
	if (rc == -EMSGSIZE)
		return dcpd_fail(err, rc, "%zu tokens are more than one user "
		    "may have queued: raise --max-bytes-per-user, or send a "
		    "part", r->ids.n);
	if (rc == 0 && r->s->c.tok != NULL)
		rc = dcpd_out_new(r->s->c.tok, &oc, &r->echo);
	for (size_t i = 0; i < r->ids.n && rc == 0; i++) {
		t.token = r->ids.v[i];
		rc = dcpd_box_push(&r->box, &t, NULL);
	}
	r->n_prompt = (uint32_t)r->ids.n;
	return rc == 0 ? 0 : dcpd_fail(err, rc, "the prompt's tokens: %s",
	    strerror(-rc));
}

static int
encode(struct req *r, struct dcpd_err *err)
{
	bool thinking = false;
	int rc;

	if ((rc = check_params(r, err)) != 0 ||
	    (rc = parse_options(r, err)) != 0 ||
	    (rc = take_prompt(r, &thinking, err)) != 0)
		return rc;
	if (r->sub->flags & DCP_TOKENIZE)
		return tokenized(r, err);
	if ((rc = take_size(r, err)) != 0 ||
	    (rc = constrain(r, thinking, err)) != 0 ||
	    (rc = add_biases(r, err)) != 0 ||
	    (rc = ban_calls(r, err)) != 0 ||
	    (rc = open_output(r, thinking, err)) != 0)
		return rc;
	fill_params(r);
	if (fill_adjusts(r) != 0)
		return dcpd_fail(err, -ENOMEM, "prompt: out of memory");
	r->seed = r->sub->p.seed;
	if (!(r->sub->p.flags & DCP_SEED) &&
	    getrandom(&r->seed, sizeof r->seed, 0) != sizeof r->seed)
		return dcpd_fail(err, -EIO, "no random seed: %s",
		    strerror(errno));
	return 0;
}

/* Whatever is wrong with the request is known now, and nothing is. */
static void
say_begin(const struct req *r)
{
	const struct dcp_event ev = {
		.size = sizeof ev, .type = DCP_EV_BEGIN,
		.request = r->sub->id, .text = "",
		.usage.prompt_tokens = r->n_prompt,
	};

	(void)dcpd_ipc_emit(r->sub->client, r->sub->id, &ev);
}

void
dcpd_req_encode(struct dcpd_job *job)
{
	struct req *r = (void *)((char *)job - offsetof(struct req, job));
	struct dcpd_sched *s = r->s;
	struct dcpd_err err = { 0 };
	bool ended;

	DCPD_CHECK(r, REQ_MAGIC);
	pthread_mutex_lock(&s->lock);
	ended = r->state == R_ENDED;	/* cancelled while it was queued */
	pthread_mutex_unlock(&s->lock);
	if (!ended) {
		err.code = encode(r, &err);
		r->err = err;
		if (err.code == 0 && r->sub->flags & DCP_BEGIN)
			say_begin(r);
	}
	pthread_mutex_lock(&s->lock);
	ended = r->state == R_ENDED;
	r->encoded = true;
	if (!ended) {
		r->qnext = s->inbox;
		s->inbox = r;
		dcpd_sched_kick(s);
	}
	pthread_mutex_unlock(&s->lock);
	if (ended)
		dcpd_req_put(r);
}

void
dcpd_req_free(struct req *r)
{
	DCPD_CHECK(r, REQ_MAGIC);
	DCPD_ASSERT(r->n_pages == 0);
	r->magic = 0;
	dcpd_out_free(r->echo);
	dcpd_out_free(r->out);
	json_decref(r->options);
	free(r->adj.v);
	free(r->adj.map);
	free(r->adj.ban);
	free(r->adj.hush);
	dcpd_gram_close(r->gram);
	free(r->mask);
	free(r->box.v);
	free(r->box.top);
	free(r->work.v);
	free(r->work.top);
	free(r->pages);
	dcpd_ids_free(&r->ids);
	dcpd_submit_free(r->sub);
	free(r);
}
