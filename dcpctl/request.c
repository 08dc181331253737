/* What generate, chat and bench share: sampling options, one request's run. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpctl/ctl.h"

#define CONNECT_MS 10000	/* a daemon that loads answers later */

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int s)
{
	interrupted = 1;
}

char *
ctl_slurp(const char *path, size_t *len)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
	size_t n = 0, cap = 0;
	char *buf = NULL, *more;

	while (f != NULL && !feof(f) && !ferror(f)) {
		more = realloc(buf, cap = cap * 2 + 65536);
		if (more == NULL)
			break;
		buf = more;
		n += fread(buf + n, 1, cap - n, f);
	}
	if (f == NULL || ferror(f) || !feof(f)) {
		free(buf);
		buf = NULL;
	}
	if (f != NULL && f != stdin)
		fclose(f);
	*len = n;
	return buf;
}

int
ctl_ids(const char *text, const char *flag, uint32_t **ids, uint32_t *n)
{
	uint32_t *v = malloc((strlen(text) / 2 + 1) * sizeof *v), k = 0;
	const char *s = text;
	unsigned long long x;
	char *end;

	if (v == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	for (;;) {
		s += strspn(s, " \n\t");
		x = strtoull(s, &end, 10);
		if (*s < '0' || *s > '9' || x > UINT32_MAX)
			break;
		v[k++] = (uint32_t)x;
		s = end + strspn(end, " \n\t");
		if (*s == '\0') {
			*ids = v;
			*n = k;
			return CTL_OK;
		}
		if (*s++ != ',')
			break;
	}
	free(v);
	return ctl_fail(CTL_USAGE, "%s: want token ids, 1,2,3; not \"%.20s\"",
	    flag, s);
}

static int
parse_bias(struct ctl_sampling *s)
{
	const char *p = s->logit_bias;
	char *end, *end2;

	s->bias = malloc((strlen(p) / 3 + 1) * sizeof *s->bias);
	if (s->bias == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	for (;;) {
		unsigned long id = strtoul(p, &end, 10);
		float b;

		if (*p < '0' || *p > '9' || id > UINT32_MAX || *end != ':')
			break;
		b = strtof(end + 1, &end2);
		if (end2 == end + 1)
			break;
		s->bias[s->n_bias++] = (struct dcp_logit_bias){
			(uint32_t)id, b };
		p = end2;
		if (*p == '\0')
			return CTL_OK;
		if (*p++ != ',')
			break;
	}
	return ctl_fail(CTL_USAGE, "--logit-bias: want ID:BIAS,..., as in "
	    "17:-100,42:2.5; not \"%.20s\"", p);
}

int
ctl_sampling(struct ctl_sampling *s, struct dcp_request *r)
{
	int rc = CTL_OK;

	if (s->stop_ids != NULL)
		rc = ctl_ids(s->stop_ids, "--stop-token-ids", &s->ids,
		    &s->n_ids);
	if (rc == CTL_OK && s->logit_bias != NULL)
		rc = parse_bias(s);
	if (rc != CTL_OK)
		return rc;
	r->flags |= (s->has_temperature ? DCP_TEMPERATURE : 0) |
	    (s->has_seed ? DCP_SEED : 0) |
	    (s->ignore_eos ? DCP_IGNORE_EOS : 0) |
	    (s->logprobs || s->top_logprobs > 0 ? DCP_LOGPROBS : 0);
	r->max_tokens = s->max_tokens;
	r->min_tokens = s->min_tokens;
	r->top_logprobs = s->top_logprobs;
	r->deadline_ms = s->deadline_ms;
	r->temperature = s->temperature;
	r->top_p = s->top_p;
	r->min_p = s->min_p;
	r->repetition_penalty = s->repetition;
	r->presence_penalty = s->presence;
	r->frequency_penalty = s->frequency;
	r->top_k = s->top_k;
	r->priority = s->priority;
	r->seed = s->seed;
	r->stop = s->stop.v;
	r->n_stop = s->stop.n;
	r->stop_ids = s->ids;
	r->n_stop_ids = s->n_ids;
	r->logit_bias = s->bias;
	r->n_logit_bias = s->n_bias;
	return CTL_OK;
}

int
ctl_format(const struct ctl_sampling *s, json_t *options)
{
	json_error_t je;
	json_t *v;

	if (s->format == NULL)
		return CTL_OK;
	v = json_loads(s->format, JSON_REJECT_DUPLICATES, &je);
	if (v == NULL)
		return ctl_fail(CTL_USAGE, "--response-format: not JSON: %s at "
		    "byte %d", je.text, je.position);
	json_object_set_new(options, "response_format", v);
	return CTL_OK;
}

void
ctl_sampling_free(struct ctl_sampling *s)
{
	free(s->stop.v);
	free(s->ids);
	free(s->bias);
}

const char *
ctl_finish_name(uint32_t finish)
{
	static const char *const name[] = {
		"none", "stop", "length", "tool_calls", "abort",
	};

	return finish < sizeof name / sizeof *name ? name[finish] : "?";
}

json_t *
ctl_usage_json(const struct dcp_usage *u)
{
	return json_pack("{s:i,s:i,s:i,s:i}",
	    "prompt_tokens", u->prompt_tokens,
	    "cached_tokens", u->cached_tokens,
	    "completion_tokens", u->completion_tokens,
	    "reasoning_tokens", u->reasoning_tokens);
}

/* Why the ring failed: the library's own line, or the errno's. */
static const char *
why(int rc)
{
	static const char call[] = "dcp_submit: ";
	const char *text = dcp_error_text();

	/* The name of a call says nothing here. */
	if (strncmp(text, call, sizeof call - 1) == 0)
		text += sizeof call - 1;
	return text[0] != '\0' ? text : strerror(-rc);
}

int
ctl_connect(struct dcp **out)
{
	int rc = dcp_connect(ctl_socket(), CONNECT_MS, out);

	if (rc == 0)
		return CTL_OK;
	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return ctl_fail(CTL_NOT_RUNNING, "dcpd is not running: %s: %s; "
		    "start it (dcpd --model DIR), or name its socket by "
		    "--socket", ctl_socket(), strerror(-rc));
	if (rc == -ETIMEDOUT)
		return ctl_fail(CTL_DEGRADED, "%s: dcpd does not answer; it "
		    "may be loading, see dcpctl status", ctl_socket());
	/* The library's text names the socket. */
	if (dcp_error_text()[0] != '\0')
		return ctl_fail(CTL_FAILED, "%s", dcp_error_text());
	return ctl_fail(CTL_FAILED, "%s: %s", ctl_socket(), strerror(-rc));
}

/* CTL_OK and *last when the request's last event was handed over. */
static int
next_event(struct dcp *d, uint64_t id, bool *cancelled, ctl_event_fn *fn,
    void *arg, bool *last)
{
	const struct dcp_event *ev;
	int rc;

	rc = dcp_next(d, 200, &ev);
	if (interrupted && !*cancelled) {
		*cancelled = true;
		dcp_cancel(d, id);
	}
	if (rc == -EAGAIN || rc == -EINTR)
		return CTL_OK;
	if (rc != 0)
		return ctl_fail(CTL_FAILED, "%s", rc == -EPIPE ?
		    "the daemon is gone" : why(rc));
	if (ev->type == DCP_EV_ERROR) {
		*last = true;
		rc = ctl_fail(CTL_FAILED, "%.*s", (int)ev->text_len, ev->text);
	} else {
		*last = ev->type == DCP_EV_DONE;
		fn(arg, ev);
		rc = CTL_OK;
	}
	dcp_event_release(d, ev);
	return rc;
}

int
ctl_run(struct dcp *d, const struct dcp_request *r, ctl_event_fn *fn,
    void *arg)
{
	struct sigaction sa = { .sa_handler = on_interrupt }, old;
	bool cancelled = false, last = false;
	uint64_t id;
	int rc;

	rc = dcp_submit(d, r, &id);
	if (rc != 0)
		return ctl_fail(rc == -EINVAL ? CTL_USAGE : CTL_FAILED, "%s",
		    why(rc));
	interrupted = 0;
	sigaction(SIGINT, &sa, &old);
	do
		rc = next_event(d, id, &cancelled, fn, arg, &last);
	while (rc == CTL_OK && !last);
	sigaction(SIGINT, &old, NULL);
	return rc;
}
