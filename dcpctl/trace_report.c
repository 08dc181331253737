/* The figures of a replayed trace: JSON, a table, a CSV. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpctl/measure.h"
#include "dcpctl/trace.h"

/* Seconds of v[n], which gets sorted, as milliseconds. */
static json_t *
spread(double *v, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += v[i];
	return json_pack("{s:I, s:f, s:f, s:f, s:f}", "n", (json_int_t)n,
	    "mean_ms", n > 0 ? sum / (double)n * 1e3 : 0,
	    "p50_ms", ctl_quantile(v, n, .5) * 1e3,
	    "p90_ms", ctl_quantile(v, n, .9) * 1e3,
	    "p99_ms", ctl_quantile(v, n, .99) * 1e3);
}

/* What is taken of a request; false: it has none. */
typedef bool value_fn(const struct trace_result *, double *);

static bool
ttft_first(const struct trace_result *r, double *v)
{
	*v = r->first - r->sent;
	return r->turn == 0;
}

static bool
ttft_later(const struct trace_result *r, double *v)
{
	*v = r->first - r->sent;
	return r->turn > 0;
}

/* Time per output token: the first is the prefill's. */
static bool
tpot(const struct trace_result *r, double *v)
{
	*v = r->got > 1 ? (r->last - r->first) / (r->got - 1) : 0;
	return r->got > 1;
}

static bool
e2e(const struct trace_result *r, double *v)
{
	*v = r->done - r->sent;
	return true;
}

static json_t *
spread_of(const struct trace_run *run, value_fn *fn, double *v)
{
	size_t n = 0;

	for (uint32_t i = 0; i < run->n; i++)
		if (run->result[i].error == NULL && fn(&run->result[i], v + n))
			n++;
	return spread(v, n);
}

struct sums {				/* of the requests that succeeded */
	uint64_t input, output, cached, ideal;
	uint32_t failures;
	double begin, end;		/* s; of all */
};

static struct sums
sum_up(const struct trace_run *run)
{
	struct sums s = { .begin = run->result[0].sent };

	for (uint32_t i = 0; i < run->n; i++) {
		const struct trace_result *r = &run->result[i];

		s.begin = r->sent < s.begin ? r->sent : s.begin;
		s.end = r->done > s.end ? r->done : s.end;
		s.failures += r->error != NULL;
		if (r->error != NULL)
			continue;
		s.input += r->input;
		s.output += r->got;
		s.cached += r->cached;
		s.ideal += r->ideal;
	}
	return s;
}

static double
share(uint64_t part, uint64_t whole)
{
	return whole > 0 ? (double)part / (double)whole : 0;
}

/*
 * Under DCP: turns whose cached tokens per new one lie below and above what
 * the daemon's measured constants say is the same by q and by kv.
 */
static void
add_break_even(const struct trace_run *run, json_t *o)
{
	uint32_t below = 0, above = 0;

	if (run->break_even < 0)
		return;
	for (uint32_t i = 0; i < run->n; i++) {
		const struct trace_result *r = &run->result[i];

		if (r->error != NULL)
			continue;
		if (r->cached > run->break_even * (r->input - r->cached))
			above++;
		else
			below++;
	}
	json_object_set_new(o, "break_even", json_real(run->break_even));
	json_object_set_new(o, "turns_below", json_integer(below));
	json_object_set_new(o, "turns_above", json_integer(above));
}

json_t *
trace_figures(struct trace_run *run)
{
	struct sums s = sum_up(run);
	double *v = malloc(run->n * sizeof *v), seconds = s.end - s.begin;
	json_t *o;

	if (v == NULL)
		return NULL;
	o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f,"
	    " s:f}", "bench", "trace",
	    "concurrency", (json_int_t)run->concurrency,
	    "sessions", (json_int_t)run->sessions,
	    "requests", (json_int_t)run->n,
	    "failures", (json_int_t)s.failures, "seconds", seconds,
	    "prompt_tokens", (json_int_t)s.input,
	    "cached_tokens", (json_int_t)s.cached,
	    "output_tokens", (json_int_t)s.output,
	    "output_tok_s", seconds > 0 ? (double)s.output / seconds : 0,
	    "hit_rate", share(s.cached, s.input),
	    "ideal_hit_rate", share(s.ideal, s.input));
	add_break_even(run, o);
	json_object_set_new(o, "ttft_first", spread_of(run, ttft_first, v));
	json_object_set_new(o, "ttft_later", spread_of(run, ttft_later, v));
	json_object_set_new(o, "tpot", spread_of(run, tpot, v));
	json_object_set_new(o, "itl", spread(run->gaps, run->n_gaps));
	json_object_set_new(o, "e2e", spread_of(run, e2e, v));
	free(v);
	return o;
}

/* --- for people ---------------------------------------------------------- */

static long long
integer(const json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

static double
number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const struct {
	const char *key, *text;
} rows[] = {
	{ "ttft_first", "to first token, first turn" },
	{ "ttft_later", "to first token, later turns" },
	{ "tpot", "per output token" },
	{ "itl", "between tokens" },
	{ "e2e", "whole request" },
};

void
trace_print(const json_t *o)
{
	printf("%lld requests of %lld sessions, %lld at once, in %.2f s; "
	    "%lld failed\n", integer(o, "requests"), integer(o, "sessions"),
	    integer(o, "concurrency"), number(o, "seconds"),
	    integer(o, "failures"));
	printf("prompts %lld tokens, %.2f %% from the cache; ideal %.2f %%\n",
	    integer(o, "prompt_tokens"), number(o, "hit_rate") * 100,
	    number(o, "ideal_hit_rate") * 100);
	printf("answers %lld tokens, %.1f a second\n",
	    integer(o, "output_tokens"), number(o, "output_tok_s"));
	if (json_object_get(o, "break_even") != NULL)
		printf("prefill: moving q beats moving KV from %.1f cached "
		    "tokens a new one on; %lld turns below, %lld above\n",
		    number(o, "break_even"), integer(o, "turns_below"),
		    integer(o, "turns_above"));
	putchar('\n');
	printf("%-28s %7s %10s %10s %10s %10s\n", "milliseconds", "n", "mean",
	    "p50", "p90", "p99");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const json_t *s = json_object_get(o, rows[i].key);

		printf("%-28s %7lld %10.3f %10.3f %10.3f %10.3f\n",
		    rows[i].text, integer(s, "n"), number(s, "mean_ms"),
		    number(s, "p50_ms"), number(s, "p90_ms"),
		    number(s, "p99_ms"));
	}
}

/* In quotes, as RFC 4180 has them. */
static void
put_quoted(const char *s, FILE *f)
{
	putc('"', f);
	for (; *s != '\0'; s++) {
		if (*s == '"')
			putc('"', f);
		putc(*s, f);
	}
	putc('"', f);
}

int
trace_csv(const struct trace_run *run, FILE *f)
{
	double begin = sum_up(run).begin, per;

	fputs("session,turn,input_tokens,cached_tokens,ideal_tokens,"
	    "output_tokens,sent_s,ttft_ms,tpot_ms,e2e_ms,error\n", f);
	for (uint32_t i = 0; i < run->n; i++) {
		const struct trace_result *r = &run->result[i];

		fprintf(f, "%u,%u,%u,%u,%u,%u,%.6f,", r->session, r->turn,
		    r->input, r->cached, r->ideal, r->got, r->sent - begin);
		if (r->got > 0)
			fprintf(f, "%.6f", (r->first - r->sent) * 1e3);
		putc(',', f);
		if (tpot(r, &per))
			fprintf(f, "%.6f", per * 1e3);
		fprintf(f, ",%.6f,", (r->done - r->sent) * 1e3);
		if (r->error != NULL)
			put_quoted(r->error, f);
		putc('\n', f);
	}
	return fflush(f) != 0 || ferror(f) ? -errno : 0;
}
