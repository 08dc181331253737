/*
 * dcpctl tokenize: what a text or a conversation becomes as token ids, and what
 * ids are as text. The daemon's own template and tokenizer do it; nothing runs
 * on the model.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpctl/ctl.h"

struct input {
	const char *prompt, *file, *messages, *tokens, *options;
	bool plain;
	char *text;		/* of a file */
	uint32_t *ids, n_ids;
};

struct prompt {			/* an event_fn's argument */
	json_t *tokens;
	char *text;
	size_t len;
	uint32_t count;
};

static void
take(void *arg, const struct dcp_event *ev)
{
	struct prompt *p = arg;
	char *more;

	if (ev->type == DCP_EV_DONE)
		p->count = ev->usage.prompt_tokens;
	for (uint32_t i = 0; i < ev->n_tokens; i++)
		json_array_append_new(p->tokens, json_integer(ev->tokens[i]));
	if (ev->text_len == 0)
		return;
	more = realloc(p->text, p->len + ev->text_len);
	if (more == NULL)
		return;
	memcpy(more + p->len, ev->text, ev->text_len);
	p->text = more;
	p->len += ev->text_len;
}

static void
print_prompt(const struct prompt *p, bool text)
{
	const json_t *id;
	size_t i;

	if (ctl.json) {
		ctl_print_json(json_pack("{s:O,s:I,s:o}", "tokens", p->tokens,
		    "count", (json_int_t)p->count, "text",
		    json_stringn(p->text != NULL ? p->text : "", p->len)));
		return;
	}
	if (text)
		ctl_put(stdout, p->text, p->len);
	else
		json_array_foreach(p->tokens, i, id)
			printf(i == 0 ? "%lld" : ",%lld",
			    (long long)json_integer_value(id));
	putchar('\n');
}

static int
read_file(struct input *in, const char *flag, const char *path,
    struct dcp_request *r)
{
	in->text = ctl_slurp(path, &r->len);
	r->data = in->text;
	return in->text != NULL ? CTL_OK : ctl_fail(CTL_FAILED, "%s %s: %s",
	    flag, path, strerror(errno));
}

static int
fill_input(struct input *in, struct dcp_request *r)
{
	int rc, given = (in->prompt != NULL) + (in->file != NULL) +
	    (in->messages != NULL) + (in->tokens != NULL);

	if (given != 1)
		return ctl_fail(CTL_USAGE, "tokenize: give one of --prompt, "
		    "--prompt-file, --messages and --tokens");
	if (in->options != NULL && in->messages == NULL)
		return ctl_fail(CTL_USAGE, "--options: only with --messages");
	r->flags = DCP_TOKENIZE | DCP_SPECIAL_TOKENS |
	    (in->plain ? DCP_PLAIN_INPUT : 0);
	r->input = DCP_INPUT_TEXT;
	if (in->prompt != NULL) {
		r->data = in->prompt;
		r->len = strlen(in->prompt);
		return CTL_OK;
	}
	if (in->file != NULL)
		return read_file(in, "--prompt-file", in->file, r);
	if (in->messages != NULL) {
		r->input = DCP_INPUT_CHAT;
		r->options = in->options;
		return read_file(in, "--messages", in->messages, r);
	}
	rc = ctl_ids(in->tokens, "--tokens", &in->ids, &in->n_ids);
	r->input = DCP_INPUT_TOKENS;
	r->data = in->ids;
	r->len = in->n_ids * sizeof *in->ids;
	return rc;
}

static int
run(const struct dcp_request *r)
{
	struct prompt p = { .tokens = json_array() };
	struct dcp *d;
	int rc = ctl_connect(&d);

	if (rc == CTL_OK) {
		rc = ctl_run(d, r, take, &p);
		dcp_close(d);
		if (rc == CTL_OK)
			print_prompt(&p, r->input == DCP_INPUT_TOKENS);
	}
	json_decref(p.tokens);
	free(p.text);
	return rc;
}

int
ctl_tokenize(int argc, char **argv)
{
	struct input in = { .prompt = NULL };
	const struct ctl_opt opts[] = {
		{ "prompt", 'p', CTL_STR, &in.prompt, "TEXT", "a text", NULL },
		{ "prompt-file", 'f', CTL_STR, &in.file, "FILE",
		  "a text, from a file or - for standard input", NULL },
		{ "messages", 'm', CTL_STR, &in.messages, "FILE",
		  "JSON array of messages, by the chat template", NULL },
		{ "tokens", 0, CTL_STR, &in.tokens, "1,2,3",
		  "token ids, to be made text", NULL },
		{ "options", 0, CTL_STR, &in.options, "JSON",
		  "with --messages: tools, chat_template_kwargs", NULL },
		{ "plain", 0, CTL_FLAG, &in.plain, NULL,
		  "\"<|user|>\" in the text is text, no special token", NULL },
		{ .name = NULL },
	};
	struct dcp_request r = { .size = sizeof r };
	int rc;

	rc = ctl_parse(argc, argv, opts, "tokenize -p TEXT|-f FILE|"
	    "-m FILE|--tokens 1,2,3 [options]", NULL);
	if (rc == 0)
		rc = fill_input(&in, &r);
	if (rc == 0)
		rc = run(&r);
	free(in.ids);
	free(in.text);
	return rc > 0 ? rc : CTL_OK;
}
