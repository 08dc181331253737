/* dcpctl generate: the continuation of a text or of token ids. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpctl/ctl.h"

struct answer {			/* an event_fn's argument */
	bool stream;		/* print text as it comes */
	bool logprobs;
	json_t *tokens, *logs, *tops, *prompt;
	char *text;
	size_t len;
	uint32_t finish;
	struct dcp_usage usage;
};

/* [id, logprob] */
static json_t *
pair(const struct dcp_logprob *l)
{
	return json_pack("[I,f]", (json_int_t)l->token, (double)l->logprob);
}

static void
take_logprobs(struct answer *a, const struct dcp_event *ev)
{
	const struct dcp_token_logprobs *l;
	json_t *top;

	for (uint32_t i = 0; i < ev->n_logprobs; i++) {
		l = &ev->logprobs[i];
		if (ev->channel == DCP_CH_PROMPT) {
			json_array_append_new(a->prompt, pair(&l->chosen));
			continue;
		}
		json_array_append_new(a->logs,
		    json_real((double)l->chosen.logprob));
		if (l->n_top == 0)
			continue;
		top = json_array();
		for (uint32_t k = 0; k < l->n_top; k++)
			json_array_append_new(top, pair(&l->top[k]));
		json_array_append_new(a->tops, top);
	}
}

static void
take(void *arg, const struct dcp_event *ev)
{
	struct answer *a = arg;
	char *more;

	if (ev->type == DCP_EV_DONE) {
		a->finish = ev->finish;
		a->usage = ev->usage;
	}
	take_logprobs(a, ev);
	if (ev->channel == DCP_CH_PROMPT)
		return;
	for (uint32_t i = 0; i < ev->n_tokens; i++)
		json_array_append_new(a->tokens, json_integer(ev->tokens[i]));
	if (ev->text_len == 0)
		return;
	if (a->stream) {
		ctl_put(stdout, ev->text, ev->text_len);
		fflush(stdout);
	}
	more = realloc(a->text, a->len + ev->text_len);
	if (more == NULL)
		return;
	memcpy(more + a->len, ev->text, ev->text_len);
	a->text = more;
	a->len += ev->text_len;
}

static void
print_answer(struct answer *a)
{
	json_t *o;

	if (!ctl.json) {
		putchar('\n');
		return;
	}
	o = json_pack("{s:O,s:o,s:s,s:o,s:O}", "tokens", a->tokens,
	    "text", json_stringn(a->text != NULL ? a->text : "", a->len),
	    "finish_reason", ctl_finish_name(a->finish),
	    "usage", ctl_usage_json(&a->usage), "top_logprobs", a->tops);
	if (a->logprobs)
		json_object_set(o, "logprobs", a->logs);
	if (json_array_size(a->prompt) > 0)
		json_object_set(o, "prompt_logprobs", a->prompt);
	json_dumpf(o, stdout, JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(o);
}

struct input {
	const char *prompt, *tokens, *file;
	bool echo, plain;
	char *text;		/* of --prompt-file */
	uint32_t *ids, n_ids;
};

static int
fill_input(struct input *in, struct dcp_request *r)
{
	int rc, given = (in->prompt != NULL) + (in->tokens != NULL) +
	    (in->file != NULL);

	if (given != 1)
		return ctl_fail(CTL_USAGE, "generate: give one of --prompt, "
		    "--prompt-file and --tokens");
	r->input = DCP_INPUT_TEXT;
	r->data = in->prompt;
	r->len = in->prompt != NULL ? strlen(in->prompt) : 0;
	if (in->file != NULL) {
		in->text = ctl_slurp(in->file, &r->len);
		r->data = in->text;
		if (in->text == NULL)
			return ctl_fail(CTL_FAILED, "--prompt-file %s: %s",
			    in->file, strerror(errno));
	} else if (in->tokens != NULL) {
		rc = ctl_ids(in->tokens, "--tokens", &in->ids, &in->n_ids);
		if (rc != CTL_OK)
			return rc;
		r->input = DCP_INPUT_TOKENS;
		r->data = in->ids;
		r->len = in->n_ids * sizeof *in->ids;
	}
	/* Special tokens are shown, so that the text is all there is. */
	r->flags |= DCP_SPECIAL_TOKENS | (in->plain ? DCP_PLAIN_INPUT : 0) |
	    (in->echo ? DCP_ECHO | DCP_LOGPROBS : 0);
	return CTL_OK;
}

static int
run(struct dcp_request *r, bool logprobs)
{
	struct answer a = {
		.stream = !ctl.json, .logprobs = logprobs,
		.tokens = json_array(), .logs = json_array(),
		.tops = json_array(), .prompt = json_array(),
	};
	struct dcp *d;
	int rc = ctl_connect(&d);

	if (rc == CTL_OK) {
		rc = ctl_run(d, r, take, &a);
		dcp_close(d);
		if (rc == CTL_OK)
			print_answer(&a);
		if (rc == CTL_OK && a.finish == DCP_FINISH_ABORT)
			rc = ctl_fail(CTL_FAILED, "cancelled");
	}
	json_decref(a.tokens);
	json_decref(a.logs);
	json_decref(a.tops);
	json_decref(a.prompt);
	free(a.text);
	return rc;
}

int
ctl_generate(int argc, char **argv)
{
	struct ctl_sampling s = { .max_tokens = 16 };
	struct input in = { .prompt = NULL };
	const struct ctl_opt opts[] = {
		{ "prompt", 'p', CTL_STR, &in.prompt, "TEXT", "the text",
		  NULL },
		{ "prompt-file", 'f', CTL_STR, &in.file, "FILE",
		  "the text, from a file or - for standard input", NULL },
		{ "tokens", 0, CTL_STR, &in.tokens, "1,2,3", "token ids",
		  NULL },
		{ "echo", 0, CTL_FLAG, &in.echo, NULL,
		  "the prompt's logprobs, too", NULL },
		{ "plain", 0, CTL_FLAG, &in.plain, NULL,
		  "\"<|user|>\" in the text is text, no special token", NULL },
		CTL_SAMPLING_OPTIONS(s),
		{ .name = NULL },
	};
	struct dcp_request r = { .size = sizeof r };
	json_t *options = json_object();
	char *text = NULL;
	int rc;

	rc = ctl_parse(argc, argv, opts, "generate -p TEXT|-f FILE|"
	    "--tokens 1,2,3 [options]", NULL);
	if (rc == 0 && !ctl.json &&
	    (s.logprobs || s.top_logprobs > 0 || in.echo))
		rc = ctl_fail(CTL_USAGE, "--%s: shown as JSON only; add -j",
		    in.echo ? "echo" : s.logprobs ? "logprobs" :
		    "top-logprobs");
	if (rc == 0)
		rc = fill_input(&in, &r);
	if (rc == 0)
		rc = ctl_sampling(&s, &r);
	if (rc == 0)
		rc = ctl_format(&s, options);
	if (rc == 0 && json_object_size(options) > 0)
		r.options = text = json_dumps(options, JSON_COMPACT);
	if (rc == 0)
		rc = run(&r, s.logprobs || s.top_logprobs > 0);
	ctl_sampling_free(&s);
	json_decref(options);
	free(text);
	free(in.ids);
	free(in.text);
	return rc > 0 ? rc : CTL_OK;
}
