/*
 * The Unix front end's answers while memory is short: whichever allocation
 * fails, a client gets all of the answer, an error, or a closed connection;
 * never an answer that lacks a part and does not say so.
 */
#include "config.h"

#include <check.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/unix/unix.h"

/* --- memory that fails --------------------------------------------------- */

static unsigned long n_asked, fail_at;	/* counted from 1; 0: none fails */
static bool for_good;			/* and all after it */

void *__real_malloc(size_t);
void *__wrap_malloc(size_t);

/* answer.c's own calls come here by the linker's --wrap=malloc. */
void *
__wrap_malloc(size_t n)
{
	n_asked++;
	if (fail_at > 0 && (n_asked == fail_at ||
	    (for_good && n_asked > fail_at)))
		return NULL;
	return __real_malloc(n);
}

static void *
may_realloc(void *p, size_t n)
{
	n_asked++;
	if (fail_at > 0 && (n_asked == fail_at ||
	    (for_good && n_asked > fail_at)))
		return NULL;
	return realloc(p, n);
}

/* --- an answer ----------------------------------------------------------- */

static const struct dcp_logprob top[] = {
	{ .token = 5, .logprob = -0.25f }, { .token = 6, .logprob = -2 },
};
static const struct dcp_token_logprobs logprobs[] = {
	{ .chosen = { .token = 5, .logprob = NAN } },
	{ .chosen = { .token = 5, .logprob = -0.25f }, .n_top = 2,
	  .top = top },
};
static const uint32_t tokens[] = { 5, 6, 7 };

static const struct {
	uint32_t channel, call;
	const char *text;
} pieces[] = {
	{ DCP_CH_PROMPT, 0, "" },
	{ DCP_CH_REASONING, 0, "it asks for two" },
	{ DCP_CH_CONTENT, 0, "both: " },
	{ DCP_CH_CONTENT, 0, "here" },
	{ DCP_CH_TOOL_NAME, 0, "get_" },
	{ DCP_CH_TOOL_NAME, 0, "weather" },
	{ DCP_CH_TOOL_ARGS, 0, "{\"city\": " },
	{ DCP_CH_TOOL_ARGS, 0, "\"Oslo\"}" },
	{ DCP_CH_TOOL_NAME, 1, "now" },
	{ DCP_CH_TOOL_ARGS, 1, "{}" },
};
#define N_PIECES (sizeof pieces / sizeof pieces[0])

struct answer {
	json_t *line[N_PIECES + 1];
	unsigned n;		/* but for the last */
	json_t *last;
};

/* False: there was none, as where a request is refused. */
static bool
answer(json_t *id, bool stream, struct answer *out)
{
	struct asked *a = asked_new(id, stream);
	struct dcp_event ev;

	*out = (struct answer){ 0 };
	if (a == NULL)
		return false;
	for (size_t i = 0; i < N_PIECES; i++) {
		ev = (struct dcp_event){ .type = DCP_EV_DELTA,
		    .channel = pieces[i].channel, .call = pieces[i].call,
		    .text = pieces[i].text,
		    .text_len = (uint32_t)strlen(pieces[i].text),
		    .tokens = tokens, .n_tokens = 3, .logprobs = logprobs,
		    .n_logprobs = 2 };
		out->line[out->n] = asked_delta(a, &ev);
		out->n += out->line[out->n] != NULL;
	}
	ev = (struct dcp_event){ .type = DCP_EV_DONE, .call = 1,
	    .finish = DCP_FINISH_TOOL_CALLS };
	out->last = asked_last(a, &ev);
	asked_free(a);
	return true;
}

static void
answer_free(struct answer *a)
{
	for (unsigned i = 0; i < a->n; i++)
		json_decref(a->line[i]);
	json_decref(a->last);
}

static const char *
event_of(const json_t *line)
{
	return json_string_value(json_object_get(line, "event"));
}

/* --- tests --------------------------------------------------------------- */

static void
same(const struct answer *a, const struct answer *want)
{
	ck_assert_uint_eq(a->n, want->n);
	for (unsigned i = 0; i < a->n; i++)
		ck_assert(json_equal(a->line[i], want->line[i]));
	ck_assert(json_equal(a->last, want->last));
}

/* Each allocation in turn fails, until none is left to. Returns how often an
 * error told of it. */
static unsigned
each_fails(bool stream, const struct answer *want, json_t *id)
{
	unsigned n_errors = 0;
	struct answer a;
	bool there;

	for (unsigned long i = 1; ; i++) {
		n_asked = 0;
		fail_at = i;
		there = answer(id, stream, &a);
		fail_at = 0;
		if (n_asked < i)
			break;
		if (there && a.last != NULL &&
		    strcmp(event_of(a.last), "error") == 0) {
			n_errors++;
			ck_assert_str_eq(json_string_value(json_object_get(
			    json_object_get(a.last, "error"), "code")),
			    "ENOMEM");
			ck_assert(json_equal(json_object_get(a.last, "id"),
			    id));
		} else if (there && a.last != NULL) {
			same(&a, want);
		}
		answer_free(&a);
	}
	same(&a, want);
	answer_free(&a);
	return n_errors;
}

START_TEST(no_part_is_lost)
{
	bool stream = _i != 0;
	json_t *id = json_string("a"), *calls;
	struct answer want;

	ck_assert(answer(id, stream, &want));
	ck_assert_str_eq(event_of(want.last), "done");
	ck_assert_uint_eq(want.n, stream ? N_PIECES : 0);
	calls = json_object_get(want.last, "tool_calls");
	ck_assert_uint_eq(json_array_size(calls), stream ? 0 : 2);
	if (!stream)
		ck_assert_str_eq(json_string_value(json_object_get(
		    json_array_get(calls, 0), "arguments")),
		    "{\"city\": \"Oslo\"}");
	for_good = false;
	ck_assert_uint_gt(each_fails(stream, &want, id), 50);
	for_good = true;		/* then mostly no line at all */
	each_fails(stream, &want, id);
	answer_free(&want);
	json_decref(id);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("unix answer");
	TCase *t = tcase_create("unix answer");
	SRunner *r;
	int failed;

	json_set_alloc_funcs(__wrap_malloc, free);
	event_set_mem_functions(__wrap_malloc, may_realloc, free);
	tcase_add_loop_test(t, no_part_is_lost, 0, 2);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
