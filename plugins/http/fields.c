/*
 * A body's fields: types and ranges checked, errors that name the field. null
 * is as absent, unknown fields are nobody's business. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/call.h"

#define MAX_N 128
#define MAX_STOP 256u
#define MAX_STOP_IDS 4096u

static const json_t *
get(const json_t *body, const char *key)
{
	const json_t *v = json_object_get(body, key);

	return v == NULL || json_is_null(v) ? NULL : v;
}

static int
wrong(struct call *call, const char *key, const char *want)
{
	call_error(call, 400, key, "invalid_type", "%s: want %s", key, want);
	return -EINVAL;
}

int
field_bool(struct call *call, const json_t *body, const char *key, bool *out)
{
	const json_t *v = get(body, key);

	if (v == NULL)
		return 0;
	if (!json_is_boolean(v))
		return wrong(call, key, "true or false");
	*out = json_is_true(v);
	return 1;
}

/* 3.0 is an integer, too: some clients write so. */
static bool
as_int(const json_t *v, int64_t *out)
{
	double d;

	if (json_is_integer(v)) {
		*out = json_integer_value(v);
		return true;
	}
	if (!json_is_real(v))
		return false;
	d = json_real_value(v);
	if (d != floor(d) || fabs(d) > 9e15)
		return false;
	*out = (int64_t)d;
	return true;
}

int
field_int(struct call *call, const json_t *body, const char *key, int64_t min,
    int64_t max, int64_t *out)
{
	const json_t *v = get(body, key);
	int64_t n;

	if (v == NULL)
		return 0;
	if (!as_int(v, &n))
		return wrong(call, key, "an integer");
	if (n < min || n > max) {
		call_error(call, 400, key, "invalid_value", "%s is %" PRId64
		    ": want %" PRId64 " to %" PRId64, key, n, min, max);
		return -EINVAL;
	}
	*out = n;
	return 1;
}

int
field_number(struct call *call, const json_t *body, const char *key,
    double min, double max, double *out)
{
	const json_t *v = get(body, key);
	double d;

	if (v == NULL)
		return 0;
	if (!json_is_number(v))
		return wrong(call, key, "a number");
	d = json_number_value(v);
	if (!(d >= min && d <= max)) {
		call_error(call, 400, key, "invalid_value", "%s is %.9g: want "
		    "%g to %g", key, d, min, max);
		return -EINVAL;
	}
	*out = d;
	return 1;
}

int
field_text(struct call *call, const json_t *body, const char *key,
    const json_t **out)
{
	const json_t *v = get(body, key);

	if (v == NULL)
		return 0;
	if (!json_is_string(v))
		return wrong(call, key, "a string");
	*out = v;
	return 1;
}

int
field_string(struct call *call, const json_t *body, const char *key,
    const char **out)
{
	const json_t *v = NULL;
	int rc = field_text(call, body, key, &v);

	if (rc <= 0)
		return rc;
	if (strlen(json_string_value(v)) != json_string_length(v))
		return wrong(call, key, "a string without U+0000");
	*out = json_string_value(v);
	return 1;
}

int
field_json(struct call *call, const json_t *body, const char *key,
    json_type wants, json_t **out)
{
	const json_t *v = get(body, key);

	if (v == NULL)
		return 0;
	if (json_typeof(v) != wants)
		return wrong(call, key, wants == JSON_OBJECT ? "an object" :
		    "a list");
	*out = (json_t *)v;
	return 1;
}

/* --- lists ------------------------------------------------------------- */

static int
take_stop(struct call *call, const json_t *body, struct params *p)
{
	const json_t *v = get(body, "stop"), *s;
	size_t n, i;

	if (v == NULL)
		return 0;
	if (!json_is_string(v) && !json_is_array(v))
		return wrong(call, "stop", "a string or a list of strings");
	n = json_is_string(v) ? 1 : json_array_size(v);
	if (n > MAX_STOP) {
		call_error(call, 400, "stop", "invalid_value",
		    "stop has %zu strings: want at most %u", n, MAX_STOP);
		return -EINVAL;
	}
	p->stop = calloc(n + 1, sizeof *p->stop);
	if (p->stop == NULL)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		s = json_is_string(v) ? v : json_array_get(v, i);
		if (!json_is_string(s))
			return wrong(call, "stop",
			    "a string or a list of strings");
		if (json_string_length(s) == 0 ||
		    strlen(json_string_value(s)) != json_string_length(s))
			return wrong(call, "stop", "strings that are not "
			    "empty, without U+0000");
		p->stop[i] = json_string_value(s);
	}
	p->r.stop = p->stop;
	p->r.n_stop = (uint32_t)n;
	return 0;
}

static int
take_stop_ids(struct call *call, const json_t *body, struct params *p)
{
	json_t *v = NULL;
	int64_t id;
	size_t n, i;
	int rc;

	rc = field_json(call, body, "stop_token_ids", JSON_ARRAY, &v);
	if (rc <= 0)
		return rc;
	n = json_array_size(v);
	if (n > MAX_STOP_IDS)
		return wrong(call, "stop_token_ids", "at most 4096 ids");
	p->stop_ids = calloc(n + 1, sizeof *p->stop_ids);
	if (p->stop_ids == NULL)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		if (!as_int(json_array_get(v, i), &id) || id < 0 ||
		    id > UINT32_MAX)
			return wrong(call, "stop_token_ids", "token ids");
		p->stop_ids[i] = (uint32_t)id;
	}
	p->r.stop_ids = p->stop_ids;
	p->r.n_stop_ids = (uint32_t)n;
	return 0;
}

/* {"17": -100, "42": 2.5} */
static int
take_bias(struct call *call, const json_t *body, struct params *p)
{
	json_t *v = NULL, *b;
	unsigned long long id;
	const char *key;
	uint32_t n = 0;
	char *end;
	int rc;

	rc = field_json(call, body, "logit_bias", JSON_OBJECT, &v);
	if (rc <= 0)
		return rc;
	p->bias = calloc(json_object_size(v) + 1, sizeof *p->bias);
	if (p->bias == NULL)
		return -ENOMEM;
	json_object_foreach(v, key, b) {
		id = strtoull(key, &end, 10);
		if (*key < '0' || *key > '9' || *end != '\0' ||
		    id > UINT32_MAX)
			return wrong(call, "logit_bias", "token ids as keys");
		if (!json_is_number(b) ||
		    fabs(json_number_value(b)) > FLT_MAX)
			return wrong(call, "logit_bias", "numbers as values");
		p->bias[n++] = (struct dcp_logit_bias){ (uint32_t)id,
		    (float)json_number_value(b) };
	}
	p->r.logit_bias = p->bias;
	p->r.n_logit_bias = n;
	return 0;
}

/* --- scalars ----------------------------------------------------------- */

static int
take_flag(struct call *call, const json_t *body, const char *key,
    bool when, uint32_t flag, struct params *p)
{
	bool v = !when;
	int rc = field_bool(call, body, key, &v);

	if (rc > 0 && v == when)
		p->r.flags |= flag;
	return rc < 0 ? rc : 0;
}

static int
take_numbers(struct call *call, const json_t *body, struct params *p)
{
	const struct {
		const char *key;
		double min, max;
		float *to;
	} f[] = {
		{ "temperature", 0, 100, &p->r.temperature },
		{ "top_p", 0, 1, &p->r.top_p },
		{ "min_p", 0, 1, &p->r.min_p },
		{ "repetition_penalty", FLT_MIN, 100,
		  &p->r.repetition_penalty },
		{ "presence_penalty", -100, 100, &p->r.presence_penalty },
		{ "frequency_penalty", -100, 100, &p->r.frequency_penalty },
	};
	double d;
	int rc;

	for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
		rc = field_number(call, body, f[i].key, f[i].min, f[i].max,
		    &d);
		if (rc < 0)
			return rc;
		if (rc == 0)
			continue;
		*f[i].to = (float)d;
		if (f[i].to == &p->r.temperature)
			p->r.flags |= DCP_TEMPERATURE;
		/* 0 is "off" to the engine; here it is the best one only. */
		if (f[i].to == &p->r.top_p && d == 0)
			p->r.top_p = FLT_MIN;
	}
	return 0;
}

static int
take_integers(struct call *call, const json_t *body, struct params *p)
{
	int64_t v;
	int rc;

	v = 1;
	if (field_int(call, body, "n", 1, MAX_N, &v) < 0)
		return -EINVAL;
	p->n = (uint32_t)v;
	v = 0;
	if (field_int(call, body, "top_k", -1, INT32_MAX, &v) < 0)
		return -EINVAL;
	p->r.top_k = (int32_t)v;
	v = 0;
	if (field_int(call, body, "min_tokens", 0, INT32_MAX, &v) < 0)
		return -EINVAL;
	p->r.min_tokens = (uint32_t)v;
	v = 0;
	/* Above 0 is for users that the ring knows; here all are alike. */
	rc = field_int(call, body, "priority", INT32_MIN, 0, &v);
	if (rc < 0)
		return rc;
	p->r.priority = (int32_t)v;
	rc = field_int(call, body, "seed", INT64_MIN, INT64_MAX, &v);
	if (rc < 0)
		return rc;
	/* -1 is no seed to llama.cpp and vLLM. */
	if (rc > 0 && v != -1) {
		p->r.seed = (uint64_t)v;
		p->r.flags |= DCP_SEED;
	}
	return 0;
}

/* -1 is the end of the context, as to llama.cpp. */
static int
take_max_tokens(struct call *call, const json_t *body,
    const char *const *names, struct params *p)
{
	int64_t v;
	int rc;

	for (; *names != NULL; names++) {
		const json_t *n = get(body, *names);

		if (n != NULL && as_int(n, &v) && v == -1)
			return 0;
		rc = field_int(call, body, *names, 1, INT32_MAX, &v);
		if (rc < 0)
			return rc;
		if (rc > 0) {
			p->r.max_tokens = (uint32_t)v;
			return 0;
		}
	}
	return 0;
}

static int
take_stream(struct call *call, const json_t *body, struct params *p)
{
	json_t *o = NULL;

	if (field_bool(call, body, "stream", &p->stream) < 0 ||
	    field_json(call, body, "stream_options", JSON_OBJECT, &o) < 0)
		return -EINVAL;
	if (o == NULL || !p->stream)
		return 0;
	if (field_bool(call, o, "include_usage", &p->include_usage) < 0 ||
	    field_bool(call, o, "continuous_usage_stats",
	    &p->continuous_usage) < 0)
		return -EINVAL;
	return 0;
}

/* SGLang's and vLLM's x-request-id; the header of that name goes first. */
static int
take_id(struct call *call, const json_t *body, struct params *p)
{
	size_t n;

	if (field_string(call, body, "request_id", &p->rid) < 0 ||
	    field_string(call, body, "rid", &p->rid) < 0)
		return -EINVAL;
	n = p->rid != NULL ? strlen(p->rid) : 0;
	/* It stays when the body goes, and is in no bound of bytes. */
	if (n > REQUEST_ID_MAX)
		return wrong(call, json_object_get(body, "rid") != NULL ?
		    "rid" : "request_id", "at most 256 bytes");
	for (size_t i = 0; i < n; i++)
		if (p->rid[i] < ' ' || p->rid[i] > '~')
			n = 0;		/* no header can have it */
	if (n > 0 && server_header(call, "x-request-id") == NULL)
		server_set_header(call, "x-request-id", p->rid);
	return 0;
}

int
params_parse(struct call *call, const json_t *body,
    const char *const *max_tokens_names, struct params *out)
{
	struct params p = { .r.size = sizeof p.r };
	int rc;

	p.options = json_object();
	rc = p.options == NULL ? -ENOMEM : 0;
	if (rc != 0 ||
	    (rc = take_id(call, body, &p)) < 0 ||
	    (rc = take_stream(call, body, &p)) < 0 ||
	    (rc = take_numbers(call, body, &p)) < 0 ||
	    (rc = take_integers(call, body, &p)) < 0 ||
	    (rc = take_max_tokens(call, body, max_tokens_names, &p)) < 0 ||
	    (rc = take_flag(call, body, "ignore_eos", true, DCP_IGNORE_EOS,
	    &p)) < 0 ||
	    (rc = take_flag(call, body, "skip_special_tokens", false,
	    DCP_SPECIAL_TOKENS, &p)) < 0 ||
	    (rc = take_stop(call, body, &p)) < 0 ||
	    (rc = take_stop_ids(call, body, &p)) < 0 ||
	    (rc = take_bias(call, body, &p)) < 0 ||
	    (rc = params_option(&p, body, "cache_salt")) < 0)
		goto fail;
	*out = p;
	return 0;
fail:
	params_free(&p);
	if (rc == -ENOMEM)
		call_no_memory(call);
	return -EINVAL;
}

int
params_option(struct params *p, const json_t *body, const char *key)
{
	const json_t *v = get(body, key);

	if (v == NULL)
		return 0;
	return json_object_set(p->options, key, (json_t *)v) == 0 ? 0 :
	    -ENOMEM;
}

void
params_free(struct params *p)
{
	json_decref(p->options);
	free(p->stop);
	free(p->stop_ids);
	free(p->bias);
	*p = (struct params){ 0 };
}
