/*
 * dcpctl cache: the prefix cache's numbers, and what an admin may do to it. A
 * text that is to be pinned is tokenised and prefilled as a request like any
 * other (so it is there), then pinned by its ids through the admin socket.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpctl/ctl.h"

struct input {
	const char *prompt, *file, *tokens, *salt;
	uint64_t request, id;
	bool has_request, has_id, all;
	char *text;		/* of --prompt-file */
	uint32_t *ids, n_ids;
};

/* --- a text as ids, and prefilled ---------------------------------------- */

static void
take_ids(void *arg, const struct dcp_event *ev)
{
	for (uint32_t i = 0; i < ev->n_tokens; i++)
		json_array_append_new(arg, json_integer(ev->tokens[i]));
}

static void
take_nothing(void *arg, const struct dcp_event *ev)
{
}

static json_t *
given_ids(const struct input *in)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < in->n_ids; i++)
		json_array_append_new(a, json_integer(in->ids[i]));
	return a;
}

/* {"cache_salt": ...}, malloc'd; NULL without one. */
static char *
options(const char *salt)
{
	json_t *o;
	char *text;

	if (salt == NULL)
		return NULL;
	o = json_pack("{s:s}", "cache_salt", salt);
	text = json_dumps(o, JSON_COMPACT);
	json_decref(o);
	return text;
}

/* Its ids as JSON, once the daemon has computed their rows. */
static int
prefill(struct input *in, struct dcp_request *r, json_t **ids)
{
	char *opts = options(in->salt);
	struct dcp *d;
	int rc = ctl_connect(&d);

	if (rc != CTL_OK) {
		free(opts);
		return rc;
	}
	if (r->input == DCP_INPUT_TEXT) {
		*ids = json_array();
		r->flags = DCP_TOKENIZE;
		rc = ctl_run(d, r, take_ids, *ids);
	} else {
		*ids = given_ids(in);
	}
	r->flags = 0;
	r->options = opts;
	r->max_tokens = 1;
	if (rc == CTL_OK)
		rc = ctl_run(d, r, take_nothing, NULL);
	dcp_close(d);
	free(opts);
	return rc;
}

/* --- commands ------------------------------------------------------------ */

static int
fill_text(struct input *in, struct dcp_request *r)
{
	r->input = DCP_INPUT_TEXT;
	r->data = in->prompt;
	r->len = in->prompt != NULL ? strlen(in->prompt) : 0;
	if (in->file == NULL)
		return CTL_OK;
	in->text = ctl_slurp(in->file, &r->len);
	r->data = in->text;
	return in->text != NULL ? CTL_OK : ctl_fail(CTL_FAILED,
	    "--prompt-file %s: %s", in->file, strerror(errno));
}

static int
pin(struct input *in, json_t **result)
{
	struct dcp_request r = { .size = sizeof r };
	int rc, given = (in->prompt != NULL) + (in->file != NULL) +
	    (in->tokens != NULL) + in->has_request;
	json_t *q = json_pack("{s:s,s:s}", "cmd", "cache", "op", "pin"), *ids;

	if (given != 1) {
		json_decref(q);
		return ctl_fail(CTL_USAGE, "cache pin: give one of --prompt, "
		    "--prompt-file, --tokens and --request");
	}
	if (in->has_request) {
		json_object_set_new(q, "request",
		    json_integer((json_int_t)in->request));
		return ctl_admin(q, false, result);
	}
	ids = NULL;
	if (in->tokens == NULL) {
		rc = fill_text(in, &r);
	} else {
		rc = ctl_ids(in->tokens, "--tokens", &in->ids, &in->n_ids);
		r.input = DCP_INPUT_TOKENS;
		r.data = in->ids;
		r.len = in->n_ids * sizeof *in->ids;
	}
	if (rc == CTL_OK)
		rc = prefill(in, &r, &ids);
	if (rc != CTL_OK) {
		json_decref(ids);
		json_decref(q);
		return rc;
	}
	json_object_set_new(q, "tokens", ids);
	if (in->salt != NULL)
		json_object_set_new(q, "salt", json_string(in->salt));
	return ctl_admin(q, false, result);
}

static int
unpin(const struct input *in, json_t **result)
{
	json_t *q;

	if (in->has_id == in->all)
		return ctl_fail(CTL_USAGE, "cache unpin: give --id or --all");
	q = json_pack("{s:s,s:s}", "cmd", "cache", "op", "unpin");
	if (in->has_id)
		json_object_set_new(q, "id", json_integer(
		    (json_int_t)in->id));
	return ctl_admin(q, false, result);
}

static long long
number(const json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

static void
print_stats(const json_t *r)
{
	const json_t *p;
	size_t i;

	ctl_print_scalars(r);
	json_array_foreach(json_object_get(r, "pins"), i, p)
		printf("pin %-17lld %lld pages, %lld tokens\n",
		    number(p, "id"), number(p, "pages"),
		    number(p, "tokens"));
}

static void
print_result(const char *op, const json_t *r)
{
	if (strcmp(op, "stats") == 0)
		print_stats(r);
	else if (strcmp(op, "pin") == 0)
		printf("pin %lld: %lld pages, %lld tokens\n", number(r, "id"),
		    number(r, "pages"), number(r, "tokens"));
	else
		printf("%lld pages %s\n", number(r, "pages"),
		    strcmp(op, "drop") == 0 ? "dropped" : "unpinned");
}

static int
run(const char *op, struct input *in, json_t **r)
{
	if (strcmp(op, "pin") == 0)
		return pin(in, r);
	if (in->prompt != NULL || in->file != NULL || in->tokens != NULL ||
	    in->has_request || in->salt != NULL)
		return ctl_fail(CTL_USAGE, "cache %s: what names a text is "
		    "for pin alone", op);
	if (strcmp(op, "unpin") == 0)
		return unpin(in, r);
	if (in->has_id || in->all)
		return ctl_fail(CTL_USAGE, "cache %s: --id and --all are for "
		    "unpin alone", op);
	return ctl_admin(json_pack("{s:s,s:s}", "cmd", "cache", "op", op),
	    false, r);
}

static bool
is_op(const struct ctl_list *op)
{
	static const char *const ops[] = { "stats", "drop", "pin", "unpin" };

	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (op->n == 1 && strcmp(op->v[0], ops[i]) == 0)
			return true;
	return false;
}

int
ctl_cache(int argc, char **argv)
{
	struct ctl_list op = { NULL, 0 };
	struct input in = { .prompt = NULL };
	const struct ctl_opt opts[] = {
		{ "prompt", 'p', CTL_STR, &in.prompt, "TEXT",
		  "pin: the text that is to stay", NULL },
		{ "prompt-file", 'f', CTL_STR, &in.file, "FILE",
		  "pin: the text, a file or - for standard input", NULL },
		{ "tokens", 0, CTL_STR, &in.tokens, "1,2,3",
		  "pin: token ids", NULL },
		{ "request", 0, CTL_U64, &in.request, "N",
		  "pin: the prompt of a running request", &in.has_request },
		{ "salt", 0, CTL_STR, &in.salt, "TEXT",
		  "pin: the cache_salt of those who will ask", NULL },
		{ "id", 0, CTL_U64, &in.id, "N", "unpin: which",
		  &in.has_id },
		{ "all", 0, CTL_FLAG, &in.all, NULL, "unpin: every one", NULL },
		{ .name = NULL },
	};
	json_t *r = NULL;
	int rc;

	rc = ctl_parse(argc, argv, opts, "cache stats|drop|pin|unpin "
	    "[options]", &op);
	if (rc == 0 && !is_op(&op))
		rc = ctl_fail(CTL_USAGE, "cache: give stats, drop, pin or "
		    "unpin");
	if (rc == 0)
		rc = run(op.v[0], &in, &r);
	if (rc == 0 && ctl.json)
		ctl_print_json(json_incref(r));
	else if (rc == 0)
		print_result(op.v[0], r);
	json_decref(r);
	free(in.ids);
	free(in.text);
	free(op.v);
	return rc > 0 ? rc : CTL_OK;
}
