/*
 * /metrics: the daemon's counters in Prometheus' text format, 0.0.4. Their
 * names are those of the daemon's one table (dcpd/admin/counters.h) with dcp:
 * before them; counters end in _total, times are histograms in seconds.
 *
 * With "metrics_compat" the names that dashboards of SGLang and vLLM ask for
 * are there too, of the same numbers. The event thread's.
 */
#include "config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/page.h"

#define CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* --- lines ------------------------------------------------------------- */

struct page {			/* what is being written */
	struct text text;
	char model[300];	/* {model_name="..."} */
	const char *head;	/* the name whose HELP and TYPE are out */
	int rc;
};

static void put(struct page *, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void
put(struct page *p, const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof line)
		n = (int)sizeof line - 1;
	if (p->rc == 0)
		p->rc = text_add(&p->text, line, (size_t)n);
}

/* A label's value: \, " and newlines are written as \\, \" and \n. */
static void
escape(char *out, size_t size, const char *s)
{
	size_t n = 0;

	for (; *s != '\0' && n + 3 < size; s++) {
		if (*s == '\\' || *s == '"' || *s == '\n')
			out[n++] = '\\';
		out[n++] = *s == '\n' ? 'n' : *s;
	}
	out[n] = '\0';
}

/* A metric: what stands before its samples, once. */
static void
head(struct page *p, const char *name, const char *type, const char *help)
{
	put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static const char *
string(const json_t *m, const char *key)
{
	const char *s = json_string_value(json_object_get(m, key));

	return s != NULL ? s : "";
}

/* name: with its prefix. labels: "" or a="b". */
static void
histogram(struct page *p, const char *name, const char *labels,
    const json_t *m)
{
	const json_t *bounds = json_object_get(m, "bounds");
	const json_t *buckets = json_object_get(m, "buckets");
	const char *comma = labels[0] != '\0' ? "," : "";
	const char *open = labels[0] != '\0' ? "{" : "";
	const char *close = labels[0] != '\0' ? "}" : "";
	json_int_t n = 0;

	head(p, name, "histogram", string(m, "help"));
	for (size_t i = 0; i < json_array_size(buckets); i++) {
		char le[32] = "+Inf";

		if (i < json_array_size(bounds))
			snprintf(le, sizeof le, "%g", json_number_value(
			    json_array_get(bounds, i)));
		n = json_integer_value(json_array_get(buckets, i));
		put(p, "%s_bucket{%s%sle=\"%s\"} %" JSON_INTEGER_FORMAT "\n",
		    name, labels, comma, le, n);
	}
	put(p, "%s_sum%s%s%s %.9g\n", name, open, labels, close,
	    json_number_value(json_object_get(m, "sum")));
	put(p, "%s_count%s%s%s %" JSON_INTEGER_FORMAT "\n", name, open, labels,
	    close, n);
}

/* --- our own names ----------------------------------------------------- */

static bool
ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && strcmp(s + n - m, end) == 0;
}

static void
one_value(struct page *p, const json_t *m, const char *before)
{
	const char *kind = string(m, "kind"), *name = string(m, "name");
	const json_t *rank = json_object_get(m, "rank");
	const json_t *value = json_object_get(m, "value");
	bool total = strcmp(kind, "counter") == 0 && !ends_with(name, "_total");
	char full[160];

	snprintf(full, sizeof full, "dcp:%s%s", name, total ? "_total" : "");
	/* The samples of one name follow each other. */
	if (strcmp(before, name) != 0)
		head(p, full, kind, string(m, "help"));
	if (rank != NULL)
		put(p, "%s{rank=\"%" JSON_INTEGER_FORMAT "\"} %.17g\n", full,
		    json_integer_value(rank), json_number_value(value));
	else if (json_is_integer(value))
		put(p, "%s %" JSON_INTEGER_FORMAT "\n", full,
		    json_integer_value(value));
	else
		put(p, "%s %.17g\n", full, json_number_value(value));
}

/* Ranks come one after another; a name's samples belong together. */
static void
of_ranks(struct page *p, const json_t *list, size_t first)
{
	const char *name = string(json_array_get(list, first), "name");
	const char *before = "";

	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *m = json_array_get(list, i);

		if (strcmp(string(m, "name"), name) != 0)
			continue;
		if (i < first)
			return;		/* they are out */
		one_value(p, m, before);
		before = name;
	}
}

static void
own(struct page *p, const json_t *list)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *m = json_array_get(list, i);
		char name[160];

		if (strcmp(string(m, "kind"), "histogram") == 0) {
			snprintf(name, sizeof name, "dcp:%s_seconds",
			    string(m, "name"));
			histogram(p, name, "", m);
		} else if (json_object_get(m, "rank") != NULL) {
			of_ranks(p, list, i);
		} else {
			one_value(p, m, "");
		}
	}
}

static void
about(struct page *p, const struct http *http)
{
	int state = http->host->state(http->host->ctx);

	head(p, "dcp:info", "gauge", "1; which daemon and model");
	put(p, "dcp:info{version=\"%s\",%s} 1\n", http->host->version,
	    p->model);
	head(p, "dcp:ready", "gauge", "1: steps advance, or there is nothing "
	    "to do, and new requests are taken");
	put(p, "dcp:ready %d\n", state == DCP_HOST_READY);
}

/* --- other engines' names ---------------------------------------------- */

/* of: of the table, or a / b. */
static const struct {
	const char *name, *kind, *of, *per;
	const char *help;
} others[] = {
#define NAMES(prefix, running, waiting, usage, hits) \
	{ prefix running, "gauge", "requests_running", NULL, \
	    "requests in prefill or decode" }, \
	{ prefix waiting, "gauge", "requests_waiting", NULL, \
	    "requests waiting" }, \
	{ prefix usage, "gauge", "pages_used", "pages_total", \
	    "pages that requests hold, of all: 0 to 1" }, \
	{ prefix "prompt_tokens_total", "counter", "prompt_tokens", NULL, \
	    "prompt tokens prefilled" }, \
	{ prefix "generation_tokens_total", "counter", "output_tokens", NULL, \
	    "tokens generated" }, \
	{ prefix hits, "counter", "prefix_hit_tokens", NULL, \
	    "prompt tokens found in the prefix cache" }
	NAMES("vllm:", "num_requests_running", "num_requests_waiting",
	    "kv_cache_usage_perc", "prefix_cache_hits_total"),
	{ "vllm:prefix_cache_queries_total", "counter",
	    "prefix_lookup_tokens", NULL,
	    "prompt tokens looked up in the prefix cache" },
	{ "vllm:num_preemptions_total", "counter", "preemptions", NULL,
	    "requests that gave way and were resumed" },
	{ "vllm:request_success_total", "counter", "requests_finished", NULL,
	    "requests finished" },
	NAMES("sglang:", "num_running_reqs", "num_queue_reqs",
	    "token_usage", "cached_tokens_total"),
	{ "sglang:num_requests_total", "counter", "requests_total", NULL,
	    "requests accepted" },
	{ "sglang:cache_hit_rate", "gauge", "prefix_hit_tokens",
	    "prefix_lookup_tokens", "prompt tokens found in the prefix cache, "
	    "of all since the start: 0 to 1" },
#undef NAMES
	{ "vllm:time_to_first_token_seconds", "histogram", "ttft", NULL, "" },
	{ "vllm:inter_token_latency_seconds", "histogram", "itl", NULL, "" },
	/* Its name before; dashboards have either. */
	{ "vllm:time_per_output_token_seconds", "histogram", "itl", NULL, "" },
	{ "vllm:e2e_request_latency_seconds", "histogram", "e2e", NULL, "" },
	{ "sglang:time_to_first_token_seconds", "histogram", "ttft", NULL,
	    "" },
	{ "sglang:inter_token_latency_seconds", "histogram", "itl", NULL, "" },
	{ "sglang:e2e_request_latency_seconds", "histogram", "e2e", NULL, "" },
};

/* Of the whole daemon; NULL: the table has it no more. */
static const json_t *
find(const json_t *list, const char *name)
{
	const json_t *m;
	size_t i;

	json_array_foreach(list, i, m)
		if (strcmp(string(m, "name"), name) == 0 &&
		    json_object_get(m, "rank") == NULL)
			return m;
	return NULL;
}

static double
value(const json_t *m)
{
	return json_number_value(json_object_get(m, "value"));
}

/* Tokens a second, as the daemon's status has them. */
static void
throughput(struct page *p, const struct dcp_host *host)
{
	char *text = host->status(host->ctx);
	json_t *status = text != NULL ? json_loads(text, 0, NULL) : NULL;

	head(p, "sglang:gen_throughput", "gauge",
	    "tokens generated a second, over the last ten");
	put(p, "sglang:gen_throughput{%s} %.17g\n", p->model,
	    json_number_value(json_object_get(status, "tokens_per_s")));
	json_decref(status);
	free(text);
}

static void
compat(struct page *p, const struct dcp_host *host, const json_t *list)
{
	throughput(p, host);
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		const char *name = others[i].name;
		const json_t *m = find(list, others[i].of), *per = NULL;
		double v;

		if (others[i].per != NULL)
			per = find(list, others[i].per);
		if (m == NULL || (others[i].per != NULL && per == NULL))
			continue;
		if (strcmp(others[i].kind, "histogram") == 0) {
			histogram(p, name, p->model, m);
			continue;
		}
		v = value(m);
		if (per != NULL)
			v = value(per) > 0 ? v / value(per) : 0;
		head(p, name, others[i].kind, others[i].help);
		put(p, "%s{%s} %.17g\n", name, p->model, v);
	}
}

/* --- the page ---------------------------------------------------------- */

void
metrics(struct call *call)
{
	const struct http *http = call_http(call);
	/* Until then the model's name is not known. */
	bool ready = engine_info(http->engine) != NULL;
	char *text = http->host->counters(http->host->ctx), name[256];
	json_t *list = text != NULL ? json_loads(text, 0, NULL) : NULL;
	struct page p = { .rc = 0 };

	free(text);
	if (list == NULL) {
		call_no_memory(call);
		return;
	}
	escape(name, sizeof name, ready ? engine_model(http->engine) : "");
	snprintf(p.model, sizeof p.model, "model_name=\"%s\"", name);
	about(&p, http);
	own(&p, list);
	if (http->cfg.metrics_compat && ready)
		compat(&p, http->host, list);
	json_decref(list);
	if (p.rc == 0)
		call_reply(call, 200, CONTENT_TYPE, p.text.s, p.text.len);
	else
		call_no_memory(call);
	text_free(&p.text);
}
