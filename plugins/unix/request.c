/*
 * A line's fields into a struct dcp_request. The names are those of OpenAI's
 * API where it has them; null is as good as absent, and a key that is not
 * known is an error, because a mistyped one would change the answer. What the
 * values mean together is checked by the library and the daemon.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/unix/unix.h"

static int
bad(char **why, const char *key, const char *want)
{
	*why = unix_why("%s: want %s", key, want);
	return -EINVAL;
}

/* --- values -------------------------------------------------------------- */

/* COUNT: U32, but not 0, which the ring takes for no limit. */
enum kind { F32, U32, COUNT, I32, U64, FLAG, NOT_FLAG };

struct field {
	const char *name;
	enum kind kind;
	size_t off;		/* in struct dcp_request */
	uint32_t flag;		/* that is set along, or by true */
};

#define R(f) offsetof(struct dcp_request, f)
static const struct field fields[] = {
	{ "max_tokens", COUNT, R(max_tokens), 0 },
	{ "max_completion_tokens", COUNT, R(max_tokens), 0 },
	{ "min_tokens", U32, R(min_tokens), 0 },
	{ "temperature", F32, R(temperature), DCP_TEMPERATURE },
	{ "top_p", F32, R(top_p), 0 },
	{ "min_p", F32, R(min_p), 0 },
	{ "top_k", I32, R(top_k), 0 },
	{ "repetition_penalty", F32, R(repetition_penalty), 0 },
	{ "presence_penalty", F32, R(presence_penalty), 0 },
	{ "frequency_penalty", F32, R(frequency_penalty), 0 },
	{ "seed", U64, R(seed), DCP_SEED },
	{ "top_logprobs", U32, R(top_logprobs), 0 },
	{ "priority", I32, R(priority), 0 },
	{ "deadline_ms", U32, R(deadline_ms), 0 },
	{ "logprobs", FLAG, 0, DCP_LOGPROBS },
	{ "echo", FLAG, 0, DCP_ECHO },
	{ "ignore_eos", FLAG, 0, DCP_IGNORE_EOS },
	{ "plain_input", FLAG, 0, DCP_PLAIN_INPUT },
	{ "skip_special_tokens", NOT_FLAG, 0, DCP_SPECIAL_TOKENS },
};
#undef R

static int
read_flag(struct dcp_request *r, const struct field *f, const json_t *v,
    char **why)
{
	if (!json_is_boolean(v))
		return bad(why, f->name, "true or false");
	if (json_is_true(v) == (f->kind == FLAG))
		r->flags |= f->flag;
	return 0;
}

static int
read_number(struct dcp_request *r, const struct field *f, const json_t *v,
    char **why)
{
	void *p = (char *)r + f->off;
	json_int_t i = json_integer_value(v);
	double d = json_number_value(v);

	r->flags |= f->flag;
	if (f->kind == F32) {
		if (!json_is_number(v) || !isfinite((float)d))
			return bad(why, f->name, "a number");
		*(float *)p = (float)d;
		return 0;
	}
	if (!json_is_integer(v))
		return bad(why, f->name, "a whole number");
	if (f->kind == I32) {
		if (i < INT32_MIN || i > INT32_MAX)
			return bad(why, f->name, "a number of 32 bits");
		*(int32_t *)p = (int32_t)i;
		return 0;
	}
	if (i == 0 && f->kind == COUNT)
		return bad(why, f->name, "1 or more; without it an answer may "
		    "fill the context");
	if (i < 0 || (f->kind != U64 && i > UINT32_MAX))
		return bad(why, f->name, f->kind == U64 ? "0 or more" :
		    "0..4294967295");
	if (f->kind == U64)
		*(uint64_t *)p = (uint64_t)i;
	else
		*(uint32_t *)p = (uint32_t)i;
	return 0;
}

/* --- lists --------------------------------------------------------------- */

/* Token ids as an array of them; free() it. */
static int
read_ids(const json_t *v, const char *key, uint32_t **ids, size_t *n,
    char **why)
{
	size_t count = json_array_size(v);
	uint32_t *a;

	if (!json_is_array(v))
		return bad(why, key, "a list of token ids");
	a = malloc((count + 1) * sizeof *a);
	if (a == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		const json_t *e = json_array_get(v, i);
		json_int_t id = json_integer_value(e);

		if (!json_is_integer(e) || id < 0 || id > UINT32_MAX) {
			free(a);
			*why = unix_why("%s[%zu]: want a token id", key, i);
			return -EINVAL;
		}
		a[i] = (uint32_t)id;
	}
	*ids = a;
	*n = count;
	return 0;
}

static int
read_stop(struct submit *s, const json_t *v, char **why)
{
	size_t n = json_is_string(v) ? 1 : json_array_size(v);

	if (!json_is_string(v) && !json_is_array(v))
		return bad(why, "stop", "a string or a list of strings");
	s->stop = calloc(n + 1, sizeof *s->stop);
	if (s->stop == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		s->stop[i] = json_string_value(json_is_string(v) ? v :
		    json_array_get(v, i));
		if (s->stop[i] == NULL)
			return bad(why, "stop", "a list of strings");
	}
	s->r.stop = s->stop;
	s->r.n_stop = (uint32_t)n;
	return 0;
}

/* {"17": -100, ...} */
static int
read_bias(struct submit *s, json_t *v, char **why)
{
	uint32_t n = 0;
	const char *key;
	json_t *b;

	if (!json_is_object(v))
		return bad(why, "logit_bias", "an object, {\"ID\": BIAS}");
	s->bias = calloc(json_object_size(v) + 1, sizeof *s->bias);
	if (s->bias == NULL)
		return -ENOMEM;
	json_object_foreach(v, key, b) {
		char *end;
		unsigned long id = strtoul(key, &end, 10);

		if (*key < '0' || *key > '9' || *end != '\0' ||
		    id > UINT32_MAX || !json_is_number(b))
			return bad(why, "logit_bias", "{\"ID\": BIAS}");
		s->bias[n++] = (struct dcp_logit_bias){ (uint32_t)id,
		    (float)json_number_value(b) };
	}
	s->r.logit_bias = s->bias;
	s->r.n_logit_bias = n;
	return 0;
}

/* --- the input ----------------------------------------------------------- */

static int
read_input(struct submit *s, const char *key, json_t *v, char **why)
{
	size_t n;
	int rc;

	if (s->r.input != 0) {
		*why = unix_why("%s: there is another of prompt, messages and "
		    "tokens; want one", key);
		return -EINVAL;
	}
	if (strcmp(key, "prompt") == 0) {
		s->r.input = DCP_INPUT_TEXT;
		s->r.data = json_string_value(v);
		s->r.len = json_string_length(v);
		return json_is_string(v) ? 0 : bad(why, key, "a string");
	}
	if (strcmp(key, "tokens") == 0) {
		s->r.input = DCP_INPUT_TOKENS;
		rc = read_ids(v, key, (uint32_t **)&s->data, &n, why);
		if (rc == 0)
			s->r.len = n * sizeof(uint32_t);
	} else {
		s->r.input = DCP_INPUT_CHAT;
		if (!json_is_array(v))
			return bad(why, key, "a list");
		s->data = json_dumps(v, JSON_COMPACT);
		s->r.len = s->data != NULL ? strlen(s->data) : 0;
		rc = s->data != NULL ? 0 : -ENOMEM;
	}
	s->r.data = s->data;
	return rc;
}

/* What goes on to the chat template and the grammar as it is. */
static const char *const options[] = {
	"tools", "tool_choice", "parallel_tool_calls", "response_format",
	"chat_template_kwargs", "reasoning_effort", "cache_salt",
};
#define N_OPTIONS (sizeof options / sizeof options[0])

static int
read_list(struct submit *s, const char *key, json_t *v, char **why)
{
	size_t n = 0;
	int rc;

	if (strcmp(key, "prompt") == 0 || strcmp(key, "messages") == 0 ||
	    strcmp(key, "tokens") == 0)
		return read_input(s, key, v, why);
	if (strcmp(key, "stop") == 0)
		return read_stop(s, v, why);
	if (strcmp(key, "logit_bias") == 0)
		return read_bias(s, v, why);
	if (strcmp(key, "stop_token_ids") == 0) {
		rc = read_ids(v, key, &s->stop_ids, &n, why);
		s->r.stop_ids = s->stop_ids;
		s->r.n_stop_ids = (uint32_t)n;
		return rc;
	}
	*why = unix_why("%.60s: no such key; dcpd-unix(7) lists them", key);
	return -EINVAL;
}

static int
read_key(struct submit *s, json_t *opt, const char *key, json_t *v,
    char **why)
{
	if (json_is_null(v) || strcmp(key, "id") == 0 ||
	    strcmp(key, "op") == 0)
		return 0;
	if (strcmp(key, "stream") == 0) {
		s->stream = json_is_true(v);
		return json_is_boolean(v) ? 0 : bad(why, key, "true or false");
	}
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (strcmp(key, options[i]) == 0)
			return json_object_set(opt, key, v) == 0 ? 0 : -ENOMEM;
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (strcmp(key, fields[i].name) == 0)
			return fields[i].kind >= FLAG ?
			    read_flag(&s->r, &fields[i], v, why) :
			    read_number(&s->r, &fields[i], v, why);
	return read_list(s, key, v, why);
}

int
submit_parse(json_t *line, struct submit *s, char **why)
{
	json_t *opt = json_object(), *v;
	const char *key;
	int rc = opt == NULL ? -ENOMEM : 0;

	memset(s, 0, sizeof *s);
	s->r.size = sizeof s->r;
	s->line = json_incref(line);
	json_object_foreach(line, key, v)
		if (rc == 0)
			rc = read_key(s, opt, key, v, why);
	if (rc == 0 && s->r.input == 0) {
		*why = unix_why("prompt, messages or tokens is missing");
		rc = -EINVAL;
	}
	if (rc == 0 && s->r.top_logprobs > 0)
		s->r.flags |= DCP_LOGPROBS;
	if (rc == 0 && json_object_size(opt) > 0) {
		s->options = json_dumps(opt, JSON_COMPACT);
		s->r.options = s->options;
		rc = s->options != NULL ? 0 : -ENOMEM;
	}
	json_decref(opt);
	if (rc != 0)
		submit_free(s);
	return rc;
}

void
submit_free(struct submit *s)
{
	json_decref(s->line);
	free(s->data);
	free(s->options);
	free(s->stop);
	free(s->stop_ids);
	free(s->bias);
	memset(s, 0, sizeof *s);
}
