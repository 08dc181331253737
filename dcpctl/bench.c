/*
 * dcpctl bench: drives a running daemon through the ring. decode: N streams
 * at once, after a prompt of L tokens each; prefill: prompts of L tokens, one
 * new token each. Token ids are random, from a seed. Times of a step are the
 * daemon's own, from its counters before and after.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpctl/bench_ipc.h"
#include "dcpctl/ctl.h"
#include "dcpctl/measure.h"
#include "dcpctl/trace.h"

struct stream {
	double sent, first, last;	/* s */
	uint32_t tokens;
	bool done;
};

struct bench {
	uint32_t streams, prompt, tokens, vocab;
	uint64_t seed;
	struct dcp *dcp;
	struct stream *s;
	double *gaps;			/* between tokens of a stream, s */
	size_t n_gaps;
};

/* One event, if there is one in time. *left counts requests under way. */
static int
take_event(struct bench *b, int timeout_ms, uint32_t *left)
{
	const struct dcp_event *ev;
	struct stream *s;
	double t;
	int rc = dcp_next(b->dcp, timeout_ms, &ev);

	if (rc == -EAGAIN)
		return CTL_OK;
	if (rc != 0)
		return ctl_fail(CTL_FAILED, "%s", strerror(-rc));
	t = ctl_now();
	s = &b->s[ev->user_data];
	if (ev->n_tokens > 0) {
		if (s->tokens == 0)
			s->first = t;
		else if (s->tokens < b->tokens)	/* room for as many */
			b->gaps[b->n_gaps++] = (t - s->last) / ev->n_tokens;
		s->last = t;
		s->tokens += ev->n_tokens;
	}
	*left -= ev->type == DCP_EV_DONE;
	if (ev->type == DCP_EV_ERROR)
		rc = ctl_fail(CTL_FAILED, "%.*s", (int)ev->text_len, ev->text);
	dcp_event_release(b->dcp, ev);
	return rc;
}

/* A full ring or quota: events have to be taken before the next one fits. */
static int
submit_one(struct bench *b, const struct dcp_request *r, uint32_t *left)
{
	uint64_t id;
	int rc;

	for (;;) {
		rc = dcp_submit(b->dcp, r, &id);
		if (rc == 0) {
			(*left)++;
			return CTL_OK;
		}
		if (rc != -EAGAIN)
			return ctl_fail(CTL_FAILED, "submit: %s",
			    dcp_error_text()[0] != '\0' ? dcp_error_text() :
			    strerror(-rc));
		rc = take_event(b, 10, left);
		if (rc != CTL_OK)
			return rc;
	}
}

/* Sends all, in the order of the random numbers, and takes their events. */
static int
drive(struct bench *b)
{
	uint32_t *ids = malloc(b->prompt * sizeof *ids), left = 0;
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TOKENS,
		.flags = DCP_IGNORE_EOS | DCP_TEMPERATURE,
		.max_tokens = b->tokens, .data = ids,
		.len = b->prompt * sizeof *ids,
	};
	uint64_t state = b->seed;
	char salt[64];
	int rc = CTL_OK;

	if (ids == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	/* A second run with the same seed is no measurement of the cache. */
	snprintf(salt, sizeof salt, "{\"cache_salt\":\"bench %d %.9f\"}",
	    (int)getpid(), ctl_now());
	r.options = salt;
	for (uint32_t i = 0; i < b->streams && rc == CTL_OK; i++) {
		for (uint32_t k = 0; k < b->prompt; k++)
			ids[k] = (uint32_t)(ctl_draw(&state) % b->vocab);
		r.user_data = i;
		b->s[i].sent = ctl_now();
		rc = submit_one(b, &r, &left);
	}
	free(ids);
	while (rc == CTL_OK && left > 0)
		rc = take_event(b, -1, &left);
	return rc;
}

/* A counter's growth between two status objects; -1: not known. */
static double
grown(const json_t *before, const json_t *after, const char *name)
{
	const json_t *a = json_object_get(json_object_get(before,
	    "counters"), name);
	const json_t *z = json_object_get(json_object_get(after,
	    "counters"), name);

	if (a == NULL || z == NULL)
		return -1;
	return (double)(json_integer_value(z) - json_integer_value(a));
}

/*
 * What a pass of this run takes at least, and how many times that it took; the
 * pass is the mean of all, with so many requests in it. Left out where the
 * daemon cannot tell.
 */
static void
set_floor(const struct bench *b, json_t *o, bool decode, double ns,
    double passes, double requests)
{
	json_t *ask, *f = NULL;
	double floor;

	if (ns <= 0 || passes <= 0 || requests <= 0)
		return;
	ask = json_pack("{s:s, s:f, s:f}", "cmd", "floor", "streams",
	    requests / passes, decode ? "context" : "rows", decode ?
	    b->prompt + b->tokens / 2.0 : b->prompt);
	if (ctl_admin(ask, true, &f) != CTL_OK)
		return;
	floor = json_number_value(json_object_get(f, "seconds"));
	json_object_set_new(o, "floor_ms", json_real(floor * 1e3));
	json_object_set_new(o, "times_floor",
	    json_real(ns * 1e-9 / passes / floor));
	json_object_set(o, "floor_bound", json_object_get(f, "bound"));
	json_object_set_new(o, "floor", f);
}

static void
set_ms(json_t *o, const char *key, double ns, double n)
{
	if (ns >= 0 && n > 0)
		json_object_set_new(o, key, json_real(ns / n * 1e-6));
}

static json_t *
result(struct bench *b, const json_t *before, const json_t *after,
    const char *what)
{
	double *ttft = malloc(b->streams * sizeof *ttft);
	double t0 = b->s[0].sent, first = 0, last = 0, n = 0;
	json_t *o;

	for (uint32_t i = 0; i < b->streams && ttft != NULL; i++) {
		ttft[i] = b->s[i].first - b->s[i].sent;
		first = b->s[i].first > first ? b->s[i].first : first;
		last = b->s[i].last > last ? b->s[i].last : last;
		n += b->s[i].tokens;
	}
	if (ttft == NULL)
		return NULL;
	o = json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f}", "bench", what,
	    "streams", b->streams, "prompt_tokens", b->prompt,
	    "output_tokens", (int)n, "seconds", last - t0,
	    "ttft_p50_ms", ctl_quantile(ttft, b->streams, .5) * 1e3,
	    "ttft_p99_ms", ctl_quantile(ttft, b->streams, .99) * 1e3);
	json_object_set_new(o, "prefill_tok_s", json_real(
	    (double)b->streams * b->prompt / (first - t0)));
	if (b->n_gaps > 0) {
		json_object_set_new(o, "output_tok_s",
		    json_real((n - b->streams) / (last - first > 0 ?
		    last - first : last - t0)));
		json_object_set_new(o, "token_gap_p50_ms",
		    json_real(ctl_quantile(b->gaps, b->n_gaps, .5) * 1e3));
		json_object_set_new(o, "token_gap_p99_ms",
		    json_real(ctl_quantile(b->gaps, b->n_gaps, .99) * 1e3));
	}
	set_ms(o, "decode_pass_ms", grown(before, after, "decode_ns"),
	    grown(before, after, "decode_steps"));
	set_ms(o, "prefill_pass_ms", grown(before, after, "prefill_ns"),
	    grown(before, after, "prefill_passes"));
	if (strcmp(what, "decode") == 0)
		set_floor(b, o, true, grown(before, after, "decode_ns"),
		    grown(before, after, "decode_steps"),
		    grown(before, after, "decode_rows"));
	else
		set_floor(b, o, false, grown(before, after, "prefill_ns"),
		    grown(before, after, "prefill_passes"), b->streams);
	free(ttft);
	return o;
}

static int
run(struct bench *b, const char *what)
{
	json_t *before = NULL, *after = NULL, *o;
	int rc;

	b->s = calloc(b->streams, sizeof *b->s);
	b->gaps = malloc(((size_t)b->streams * b->tokens + 1) *
	    sizeof *b->gaps);
	if (b->s == NULL || b->gaps == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	rc = ctl_connect(&b->dcp);
	if (rc == CTL_OK)
		rc = ctl_vocab(b->dcp, &b->vocab);
	before = ctl_status_json();
	if (rc == CTL_OK)
		rc = drive(b);
	after = ctl_status_json();
	if (rc == CTL_OK) {
		o = result(b, before, after, what);
		if (ctl.json)
			ctl_print_json(json_incref(o));
		else
			ctl_print_scalars(o);
		json_decref(o);
	}
	json_decref(before);
	json_decref(after);
	return rc;
}

static int
driven(int argc, char **argv, bool decode)
{
	struct bench b = {
		.streams = 1, .prompt = decode ? 64 : 4096,
		.tokens = decode ? 128 : 1, .seed = 1,
	};
	const struct ctl_opt opts[] = {
		{ "streams", 'N', CTL_U32, &b.streams, "N",
		  "requests at once [1]", NULL },
		{ "prompt-tokens", 'L', CTL_U32, &b.prompt, "L",
		  decode ? "of each prompt [64]" : "of each prompt [4096]",
		  NULL },
		{ "max-tokens", 'n', CTL_U32, &b.tokens, "N",
		  decode ? "to generate, each [128]" : "to generate [1]",
		  NULL },
		{ "seed", 's', CTL_U64, &b.seed, "N", "of the ids [1]", NULL },
		{ "vocab", 0, CTL_U32, &b.vocab, "N",
		  "ids below N [the daemon's]", NULL },
		{ .name = NULL },
	};
	int rc;

	rc = ctl_parse(argc, argv, opts, decode ? "bench decode [options]" :
	    "bench prefill [options]", NULL);
	if (rc == 0 && (b.streams == 0 || b.prompt == 0 || b.tokens == 0 ||
	    b.streams > 65536 || b.prompt > 1u << 24 || b.tokens > 1u << 24))
		rc = ctl_fail(CTL_USAGE, "bench: --streams, --prompt-tokens "
		    "and --max-tokens: at least 1, at most 65536 streams of "
		    "%u tokens", 1u << 24);
	if (rc == 0)
		rc = run(&b, argv[0]);
	if (b.dcp != NULL)
		dcp_close(b.dcp);
	free(b.s);
	free(b.gaps);
	return rc > 0 ? rc : CTL_OK;
}

/* bench ipc has its own options and needs no daemon; -j may stand before. */
static int
ipc(int argc, char **argv)
{
	char **v = calloc((size_t)argc + 2, sizeof *v);
	int n = 0, rc;

	if (v == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	v[n++] = argv[0];
	if (ctl.json)
		v[n++] = "-j";
	for (int i = 1; i < argc; i++)
		v[n++] = argv[i];
	rc = bench_ipc_main(n, v);
	free(v);
	return rc;
}

int
ctl_bench(int argc, char **argv)
{
	while (argc > 1 && strcmp(argv[1], "-j") == 0) {
		ctl.json = true;
		argv++;
		argc--;
	}
	if (argc > 1 && strcmp(argv[1], "decode") == 0)
		return driven(argc - 1, argv + 1, true);
	if (argc > 1 && strcmp(argv[1], "prefill") == 0)
		return driven(argc - 1, argv + 1, false);
	if (argc > 1 && strcmp(argv[1], "trace") == 0)
		return bench_trace(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "ipc") == 0)
		return ipc(argc - 1, argv + 1);
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 ||
	    strcmp(argv[1], "-h") == 0)) {
		printf("usage: dcpctl bench {ipc|decode|prefill|trace} "
		    "[options]\n");
		return CTL_OK;
	}
	return ctl_fail(CTL_USAGE, "bench: want ipc, decode, prefill or trace");
}
