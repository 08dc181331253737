/*
 * `dcpctl bench trace`: replays a trace's conversations through the ring. C of
 * them are under way at once, each a turn at a time; when one ends the file's
 * next begins. One thread: prompts are made between events.
 *
 * The transcript is frozen: a prompt is the trace's text, whatever was answered
 * to the turn before. With --feedback it is what was really said so far, and
 * then the trace's text up to this turn's length.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpctl/ctl.h"
#include "dcpctl/measure.h"
#include "dcpctl/trace.h"

struct slot {				/* a conversation under way */
	const struct trace_session *session;	/* NULL: none left */
	struct trace_result *result;	/* of the turn at hand */
	uint32_t turn;
	bool ready, flying;		/* prompt made; submitted */
	uint32_t *token;		/* [n] prompt, then answer */
	uint32_t n, cap;
};

struct replay {
	struct trace trace;
	struct trace_text text;
	bool feedback;
	double speed;			/* of the file's clock; 0: none */
	double begin, next_due;		/* ctl_now(); INFINITY: nobody waits */
	char options[80];		/* of every request: this run's salt */
	struct dcp *dcp;
	struct trace_pages pages;	/* what was sent and answered so far */
	struct slot *slot;		/* [run.concurrency] */
	uint32_t *first;		/* [sessions] where results begin */
	uint32_t next_session, flying;
	struct trace_run run;
};

static int
no_memory(void)
{
	return ctl_fail(CTL_FAILED, "out of memory");
}

/* --- a turn -------------------------------------------------------------- */

static void
begin_session(struct replay *p, struct slot *s)
{
	uint32_t i = p->next_session;

	s->session = NULL;
	if (i == p->trace.n_sessions)
		return;
	p->next_session++;
	s->session = &p->trace.session[i];
	s->result = &p->run.result[p->first[i]];
	s->turn = 0;
	s->n = 0;
}

static int
make_prompt(struct replay *p, struct slot *s)
{
	const struct trace_turn *t = &s->session->turn[s->turn];
	struct trace_result *r = s->result;
	uint32_t want = r->input + r->output, *more;
	/* A number of this request alone, the same in each run. */
	uint64_t own = (uint64_t)(r - p->run.result);

	if (want > s->cap) {
		more = realloc(s->token, want * sizeof *more);
		if (more == NULL)
			return no_memory();
		s->token = more;
		s->cap = want;
	}
	if (!p->feedback || !t->follows)
		s->n = 0;
	if (s->n > r->input)	/* lengths were rounded */
		s->n = r->input;
	trace_fill(&p->trace, t, own, &p->text, s->n, r->input, s->token);
	s->n = r->input;
	s->ready = true;
	return CTL_OK;
}

/* Counts the pages that could be hit, then those that this prompt adds. */
static int
note_prompt(struct replay *p, struct slot *s)
{
	s->result->ideal = trace_pages_find(&p->pages, s->token, s->n);
	return trace_pages_add(&p->pages, s->token, s->n) == 0 ? CTL_OK :
	    no_memory();
}

/* The turn is over; why: NULL if it succeeded. */
static int
end_turn(struct replay *p, struct slot *s, const char *why, size_t len)
{
	struct trace_result *r = s->result;

	r->done = ctl_now();
	s->ready = false;
	if (why != NULL) {
		r->error = strndup(why, len);
		if (r->error == NULL)
			return no_memory();
	} else if (trace_pages_add(&p->pages, s->token, s->n - 1) != 0) {
		/* The last token was never an input: it has no rows. */
		return no_memory();
	}
	if (++s->turn == s->session->n_turns)
		begin_session(p, s);
	else
		s->result++;
	return CTL_OK;
}

/* *full: the ring or a quota is; try again after an event. */
static int
submit(struct replay *p, struct slot *s, bool *full)
{
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TOKENS,
		.flags = DCP_IGNORE_EOS | DCP_TEMPERATURE,
		.max_tokens = s->result->output,
		.data = s->token, .len = s->n * sizeof *s->token,
		.user_data = (uint64_t)(s - p->slot), .options = p->options,
	};
	const char *why;
	uint64_t id;
	int rc;

	s->result->sent = ctl_now();
	rc = dcp_submit(p->dcp, &r, &id);
	*full = rc == -EAGAIN;
	if (rc == -EAGAIN)
		return CTL_OK;
	if (rc == -EPIPE)
		return ctl_fail(CTL_FAILED, "the daemon is gone");
	if (rc == 0) {
		s->flying = true;
		p->flying++;
		return note_prompt(p, s);
	}
	why = dcp_error_text()[0] != '\0' ? dcp_error_text() : strerror(-rc);
	return end_turn(p, s, why, strlen(why));
}

/* Has its time come? If not, when the next one's does is noted. */
static bool
due(struct replay *p, const struct slot *s)
{
	double t;

	if (p->speed == 0)
		return true;
	t = p->begin + s->session->turn[s->turn].arrival / p->speed;
	if (ctl_now() >= t)
		return true;
	p->next_due = fmin(p->next_due, t);
	return false;
}

/* Submits what can be; *full: something is left for later. */
static int
submit_all(struct replay *p, bool *full)
{
	int rc = CTL_OK;

	*full = false;
	p->next_due = INFINITY;
	for (uint32_t i = 0; i < p->run.concurrency && rc == CTL_OK; ) {
		struct slot *s = &p->slot[i];

		if (s->session == NULL || s->flying || !due(p, s)) {
			i++;
			continue;
		}
		if (!s->ready)
			rc = make_prompt(p, s);
		if (rc == CTL_OK)
			rc = submit(p, s, full);
		if (*full)
			break;
	}
	return rc;
}

/* --- events -------------------------------------------------------------- */

static void
take_tokens(struct replay *p, struct slot *s, const struct dcp_event *ev,
    double t)
{
	struct trace_result *r = s->result;
	uint32_t n = ev->n_tokens;

	if (r->got == 0)
		r->first = t;
	else if (r->got < r->output)	/* there is room for as many */
		p->run.gaps[p->run.n_gaps++] = (t - r->last) / n;
	r->last = t;
	/* More than was asked for is counted, and a failure at the end. */
	r->got += n;
	if (n > s->cap - s->n)
		n = s->cap - s->n;
	memcpy(s->token + s->n, ev->tokens, n * sizeof *ev->tokens);
	s->n += n;
}

static int
finished(struct replay *p, struct slot *s, const struct dcp_event *ev)
{
	struct trace_result *r = s->result;
	char why[160];
	int n;

	s->flying = false;
	p->flying--;
	r->cached = ev->usage.cached_tokens;
	if (ev->type == DCP_EV_ERROR)
		return end_turn(p, s, ev->text, ev->text_len);
	if (ev->finish == DCP_FINISH_LENGTH && r->got == r->output &&
	    ev->usage.completion_tokens == r->got &&
	    ev->usage.prompt_tokens == r->input && r->cached < r->input)
		return end_turn(p, s, NULL, 0);
	n = snprintf(why, sizeof why, "ended by %s after %u of %u tokens; "
	    "usage says %u prompt (%u sent), %u cached, %u answered",
	    ctl_finish_name(ev->finish), r->got, r->output,
	    ev->usage.prompt_tokens, r->input, r->cached,
	    ev->usage.completion_tokens);
	return end_turn(p, s, why, (size_t)n);
}

static int
take_event(struct replay *p, int timeout_ms)
{
	const struct dcp_event *ev;
	struct slot *s;
	double t;
	int rc = dcp_next(p->dcp, timeout_ms, &ev);

	if (rc == -EAGAIN || rc == -EINTR)
		return CTL_OK;
	if (rc != 0)
		return ctl_fail(CTL_FAILED, "%s", rc == -EPIPE ?
		    "the daemon is gone" : strerror(-rc));
	t = ctl_now();
	s = &p->slot[ev->user_data];
	if (ev->n_tokens > 0)
		take_tokens(p, s, ev, t);
	if (ev->type != DCP_EV_DELTA)
		rc = finished(p, s, ev);
	dcp_event_release(p->dcp, ev);
	return rc;
}

/* Milliseconds to wait for an event. */
static int
patience(const struct replay *p, bool full)
{
	double s = p->next_due - ctl_now();

	/* A quota may be full of others' requests: look again. */
	if (full)
		return 10;
	return !isfinite(s) ? -1 : s <= 0 ? 0 : s > 60 ? 60000 :
	    (int)(s * 1e3) + 1;
}

static int
drive(struct replay *p)
{
	bool full;
	int rc;

	/* What an earlier run left in the cache is no hit of this one. */
	snprintf(p->options, sizeof p->options,
	    "{\"cache_salt\":\"trace %d %.9f\"}", (int)getpid(), ctl_now());
	p->begin = ctl_now();
	for (uint32_t i = 0; i < p->run.concurrency; i++)
		begin_session(p, &p->slot[i]);
	for (;;) {
		rc = submit_all(p, &full);
		if (rc != CTL_OK || (p->flying == 0 && !full &&
		    !isfinite(p->next_due)))
			return rc;
		rc = take_event(p, patience(p, full));
		if (rc != CTL_OK)
			return rc;
	}
}

/* --- before and after ---------------------------------------------------- */

/* With --arrivals every turn must have a time. */
static int
check_arrivals(const struct replay *p)
{
	for (uint32_t i = 0; i < p->trace.n_sessions; i++) {
		const struct trace_session *s = &p->trace.session[i];

		for (uint32_t k = 0; k < s->n_turns; k++)
			if (s->turn[k].arrival < 0)
				return ctl_fail(CTL_USAGE, "--arrivals: line "
				    "%zu has no \"timestamp\"",
				    s->turn[k].line);
	}
	return CTL_OK;
}

/* What the daemon has measured; it may have nothing to choose. */
static double
break_even(void)
{
	json_t *r = NULL, *v;
	double x = -1;

	if (ctl_admin(json_pack("{s:s}", "cmd", "status"), true, &r) ==
	    CTL_OK) {
		v = json_object_get(r, "prefill_break_even");
		if (json_is_number(v))
			x = json_number_value(v);
	}
	json_decref(r);
	return x;
}

/* Lengths of every request, and room for what comes of it. */
static int
prepare(struct replay *p)
{
	struct trace_run *run = &p->run;
	struct trace_result *r;
	uint64_t in, out, sum = 0;

	run->sessions = p->trace.n_sessions;
	run->result = calloc(p->trace.n_turns, sizeof *run->result);
	p->first = calloc(run->sessions, sizeof *p->first);
	if (run->concurrency > run->sessions)
		run->concurrency = run->sessions;
	p->slot = calloc(run->concurrency, sizeof *p->slot);
	if (run->result == NULL || p->first == NULL || p->slot == NULL)
		return no_memory();
	for (uint32_t i = 0; i < run->sessions; i++) {
		const struct trace_session *s = &p->trace.session[i];

		p->first[i] = run->n;
		for (uint32_t k = 0; k < s->n_turns; k++) {
			in = trace_scaled(s->turn[k].input, p->text.scale);
			out = trace_scaled(s->turn[k].output, p->text.scale);
			if (in > TRACE_MAX_LEN || out > TRACE_MAX_LEN)
				return ctl_fail(CTL_USAGE, "--scale %g makes "
				    "line %zu longer than %u tokens",
				    p->text.scale, s->turn[k].line,
				    TRACE_MAX_LEN);
			r = &run->result[run->n++];
			r->session = i;
			r->turn = k;
			r->input = (uint32_t)in;
			r->output = (uint32_t)out;
			sum += out;
		}
	}
	run->gaps = malloc((sum + 1) * sizeof *run->gaps);
	return run->gaps != NULL ? CTL_OK : no_memory();
}

static int
report(struct replay *p, FILE *csv)
{
	json_t *o = trace_figures(&p->run);
	const struct trace_result *first = NULL;
	uint32_t failures = 0;

	if (o == NULL)
		return no_memory();
	if (ctl.json) {
		ctl_print_json(o);
	} else {
		trace_print(o);
		json_decref(o);
	}
	if (csv != NULL && trace_csv(&p->run, csv) != 0)
		return ctl_fail(CTL_FAILED, "--csv: %s", strerror(errno));
	for (uint32_t i = 0; i < p->run.n; i++) {
		if (p->run.result[i].error == NULL)
			continue;
		failures++;
		if (first == NULL)
			first = &p->run.result[i];
	}
	return failures == 0 ? CTL_OK : ctl_fail(CTL_FAILED, "%u of %u "
	    "requests failed; the first, session %u turn %u (from 0): %s",
	    failures, p->run.n, first->session, first->turn, first->error);
}

static void
clean_up(struct replay *p)
{
	if (p->dcp != NULL)
		dcp_close(p->dcp);
	for (uint32_t i = 0; p->slot != NULL && i < p->run.concurrency; i++)
		free(p->slot[i].token);
	free(p->slot);
	free(p->first);
	for (uint32_t i = 0; i < p->run.n; i++)
		free(p->run.result[i].error);
	free(p->run.result);
	free(p->run.gaps);
	trace_pages_free(&p->pages);
	trace_free(&p->trace);
}

static int
replay(struct replay *p, const char *csv_path)
{
	FILE *csv = NULL;
	int rc = prepare(p);

	if (rc == CTL_OK)
		rc = ctl_connect(&p->dcp);
	if (rc == CTL_OK)
		rc = ctl_vocab(p->dcp, &p->text.vocab);
	if (rc != CTL_OK)
		return rc;
	/* Before the run, which may take long, and not after it. */
	if (csv_path != NULL && (csv = fopen(csv_path, "we")) == NULL)
		return ctl_fail(CTL_FAILED, "--csv %s: %s", csv_path,
		    strerror(errno));
	rc = drive(p);
	p->run.break_even = break_even();
	if (rc == CTL_OK)
		rc = report(p, csv);
	if (csv != NULL && fclose(csv) != 0 && rc == CTL_OK)
		rc = ctl_fail(CTL_FAILED, "--csv %s: %s", csv_path,
		    strerror(errno));
	return rc;
}

int
bench_trace(int argc, char **argv)
{
	struct replay p = {
		.text = { .scale = 1, .seed = 1 },
		.run = { .concurrency = 8 },
	};
	uint32_t turns = 10, sessions = 0, block = 0;
	bool arrivals = false, bounded = false;
	const char *csv = NULL;
	const struct ctl_opt opts[] = {
		{ "concurrency", 'C', CTL_U32, &p.run.concurrency, "C",
		  "conversations at once [8; with --arrivals all]", &bounded },
		{ "turns", 'T', CTL_U32, &turns, "T",
		  "of each conversation; 0: all [10]", NULL },
		{ "sessions", 0, CTL_U32, &sessions, "N",
		  "conversations of the file; 0: all [0]", NULL },
		{ "scale", 'S', CTL_F64, &p.text.scale, "S",
		  "multiplies all lengths [1]", NULL },
		{ "feedback", 0, CTL_FLAG, &p.feedback, NULL,
		  "prompts continue what was answered", NULL },
		{ "arrivals", 0, CTL_F64, &p.speed, "F",
		  "no request before its timestamp, F times as fast",
		  &arrivals },
		{ "block", 0, CTL_U32, &block, "N",
		  "tokens of a hash id [by their number]", NULL },
		{ "csv", 0, CTL_STR, &csv, "FILE",
		  "a line per request, too", NULL },
		{ "seed", 's', CTL_U64, &p.text.seed, "N",
		  "of the tokens [1]", NULL },
		{ "vocab", 0, CTL_U32, &p.text.vocab, "N",
		  "ids below N [the daemon's]", NULL },
		{ .name = NULL },
	};
	struct ctl_list files = { NULL, 0 };
	struct trace_error err;
	int rc;

	rc = ctl_parse(argc, argv, opts, "bench trace FILE [options]", &files);
	if (rc == 0 && files.n != 1)
		rc = ctl_fail(CTL_USAGE, "bench trace: want one file");
	if (rc == 0 && (p.run.concurrency == 0 || p.run.concurrency > 65536))
		rc = ctl_fail(CTL_USAGE, "--concurrency: want 1 to 65536");
	if (rc == 0 && !(p.text.scale > 0 && p.text.scale <= 1e4))
		rc = ctl_fail(CTL_USAGE, "--scale: want more than 0 and at "
		    "most 10000");
	if (rc == 0 && arrivals && !(p.speed > 0 && p.speed <= 1e6))
		rc = ctl_fail(CTL_USAGE, "--arrivals: want more than 0 and at "
		    "most 1e6");
	if (rc == 0 && arrivals && !bounded)
		p.run.concurrency = 65536;
	if (rc == 0 && block > TRACE_MAX_LEN)
		rc = ctl_fail(CTL_USAGE, "--block: at most %u", TRACE_MAX_LEN);
	if (rc == 0 && trace_load(files.v[0], sessions, turns, block,
	    &p.trace, &err) != 0)
		rc = ctl_fail(CTL_FAILED, "%s", err.text);
	if (rc == 0 && arrivals)
		rc = check_arrivals(&p);
	if (rc == 0)
		rc = replay(&p, csv);
	clean_up(&p);
	free(files.v);
	return rc > 0 ? rc : CTL_OK;
}
