/*
 * Requests of text and chat: what the scheduler makes of the tokenizer, the
 * template and the output parser. The engine follows a script, so that the
 * answer's text is known. These parts themselves: t_tokenizer, t_chat, t_out.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/sched_fake.h"

static struct fk F;
static struct dcpd_tokenizer *tok;
static struct dcpd_ids script;

static void
encode(const char *text, struct dcpd_ids *ids)
{
	struct dcpd_err err = { 0 };

	ck_assert_msg(dcpd_encode(tok, text, strlen(text), 0, 10000, ids,
	    &err) == 0, "%s", err.text);
}

/* A scheduler whose model answers every request with this text. */
static void
start(const char *answer)
{
	struct dcpd_sched_config c = {
		.chat = DCPD_CHAT_GLM47, .parser = DCPD_PARSE_GLM,
	};
	const char *src = getenv("srcdir");
	struct dcpd_err err = { 0 };
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/models/dcp-tiny",
	    src != NULL ? src : ".");
	ck_assert_msg(dcpd_tokenizer_open(dir, &tok, &err) == 0, "%s",
	    err.text);
	c.tok = tok;
	fk_start(&F, (struct fk_spec){ .vocab = 2048 }, &c);
	encode(answer, &script);
	F.e.script = script.v;
	F.e.n_script = (uint32_t)script.n;
}

static void
stop(void)
{
	fk_stop(&F);
	dcpd_ids_free(&script);
	dcpd_tokenizer_close(tok);
}

static const struct fk_seen *
one(const struct fk_req *q)
{
	struct dcpd_err err = { 0 };
	uint64_t id;

	ck_assert_msg(fk_submit(F.s, F.c, q, &id, &err) == 0, "%s", err.text);
	return fk_wait(id);
}

static void
expect_text(const struct fk_seen *f, uint32_t channel, const char *want)
{
	const char *got = f->text[channel] == NULL ? "" : f->text[channel];

	ck_assert_msg(f->error == 0, "%s", f->error_text);
	ck_assert_str_eq(got, want);
}

START_TEST(text_in_text_out)
{
	struct fk_req q = { .text = "What is 2 + 2?", .max_tokens = 100 };
	const struct fk_seen *f;
	struct dcpd_ids want = { 0 };

	start("It is 4, \xf0\x9f\x8d\x90 and so on.");
	f = one(&q);
	expect_text(f, DCP_CH_CONTENT, "It is 4, \xf0\x9f\x8d\x90 and so on.");
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	encode(q.text, &want);
	ck_assert_uint_eq(f->usage.prompt_tokens, want.n);
	/* The end token counts, comes as a token, and is no text. */
	ck_assert_uint_eq(f->n, script.n + 1);
	ck_assert_uint_eq(f->tokens[script.n], FK_EOS);
	ck_assert_uint_eq(f->usage.completion_tokens, script.n + 1);
	ck_assert_uint_eq(f->usage.reasoning_tokens, 0);
	/* With DCP_SPECIAL_TOKENS it is. */
	q.flags = DCP_SPECIAL_TOKENS;
	expect_text(one(&q), DCP_CH_CONTENT,
	    "It is 4, \xf0\x9f\x8d\x90 and so on.<|system|>");
	dcpd_ids_free(&want);
	stop();
}
END_TEST

/* Cut in the middle of a character: what was held back comes at the end. */
START_TEST(max_tokens_in_the_middle_of_a_character)
{
	struct fk_req q = { .text = "x", .max_tokens = 1 };
	const struct fk_seen *f;

	start("\xf0\x9f\x8d\x90");
	ck_assert_uint_gt(script.n, 1);
	f = one(&q);
	ck_assert_uint_eq(f->finish, DCP_FINISH_LENGTH);
	expect_text(f, DCP_CH_CONTENT, "\xef\xbf\xbd");
	stop();
}
END_TEST

/* Whatever is computed beyond a stop string is neither sent nor counted. */
START_TEST(a_stop_string_ends_the_answer)
{
	static const char *const cut[] = {
		"nine ten", "ten", "o", "one", "ten eleven twelve",
	};
	const char *answer = "one two three four five six seven eight nine ten "
	    "eleven twelve thirteen fourteen fifteen sixteen seventeen";
	struct fk_req q = { .text = "count", .max_tokens = 900,
	    .flags = DCP_IGNORE_EOS };
	const char *at = strstr(answer, cut[_i]);
	char want[200];
	const struct fk_seen *f;
	uint32_t n = 0;
	char *text;
	size_t len;

	start(answer);
	q.stop[0] = "no such thing";
	q.stop[1] = cut[_i];
	f = one(&q);
	snprintf(want, sizeof want, "%.*s", (int)(at - answer), answer);
	expect_text(f, DCP_CH_CONTENT, want);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	ck_assert_uint_eq(f->stop, 2);
	/* The last token sent is the one that completes the stop string. */
	do {
		free(n == 0 ? NULL : text);
		text = dcpd_decode(tok, script.v, ++n, true, &len);
	} while (strstr(text, cut[_i]) == NULL);
	free(text);
	ck_assert_uint_eq(f->n, n);
	ck_assert_uint_eq(f->usage.completion_tokens, n);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_status(&F, "pages_used"), 0);
	ck_assert_int_eq(fk_status(&F, "output_tokens"), n);
	ck_assert_int_eq(fk_status(&F, "requests_finished"), 1);
	/* Long before max_tokens: text workers hold a fast engine back. */
	ck_assert_uint_lt(fk_passes(&F.e), 800);
	stop();
}
END_TEST

/* The same string twice: the first is whole before min_tokens. */
START_TEST(a_stop_string_waits_for_min_tokens)
{
	static const char answer[] = "one two three four five six seven eight "
	    "nine ten and one two three four five six seven";
	struct fk_req q = { .text = "count", .max_tokens = 900,
	    .flags = DCP_IGNORE_EOS, .stop = { " three" } };
	const struct fk_seen *f;

	start(answer);
	q.p.min_tokens = script.n / 2;
	f = one(&q);
	expect_text(f, DCP_CH_CONTENT, "one two three four five six seven "
	    "eight nine ten and one two");
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	ck_assert_uint_gt(f->n, q.p.min_tokens);
	stop();
}
END_TEST

START_TEST(a_stop_id_is_a_token_without_text)
{
	struct fk_req q = { .text = "x", .max_tokens = 100 };
	const struct fk_seen *f;
	uint32_t n = 0;
	char *before;
	size_t len;

	start("alpha beta gamma");
	q.stop_ids[0] = script.v[script.n / 2];
	q.n_stop_ids = 1;
	while (script.v[n] != q.stop_ids[0])
		n++;
	before = dcpd_decode(tok, script.v, n, true, &len);
	f = one(&q);
	ck_assert_uint_eq(f->n, n + 1);
	ck_assert_uint_eq(f->tokens[n], q.stop_ids[0]);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	expect_text(f, DCP_CH_CONTENT, before);
	free(before);
	stop();
}
END_TEST

/* The model that has no script gives what its hash says and the mask allows. */
START_TEST(min_tokens_keep_stop_ids_away_from_a_form)
{
	struct fk_req q = { .text = "x", .max_tokens = 8,
	    .options = "{\"response_format\":{\"type\":\"json_schema\","
	    "\"json_schema\":{\"schema\":{\"type\":\"string\"}}}}" };
	const struct fk_seen *f;

	start("");
	F.e.script = NULL;
	f = one(&q);
	ck_assert_msg(f->error == 0 && f->n == 8, "%u: %s", f->n,
	    f->error_text);
	q.stop_ids[0] = f->tokens[3];
	q.n_stop_ids = 1;
	f = one(&q);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	ck_assert_uint_le(f->n, 4);
	q.p.min_tokens = 8;
	f = one(&q);
	ck_assert_uint_eq(f->finish, DCP_FINISH_LENGTH);
	ck_assert_uint_eq(f->n, 8);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_ne(f->tokens[i], q.stop_ids[0]);
	/* It ends nothing else: what the form has closed is closed. */
	q.options = "{\"response_format\":{\"type\":\"json_schema\","
	    "\"json_schema\":{\"schema\":{\"const\":7}}}}";
	f = one(&q);
	ck_assert_msg(f->error == 0, "%s", f->error_text);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	expect_text(f, DCP_CH_CONTENT, "7");
	/*
	 * Nor does it break the form, where that has nothing but a stop id: at
	 * most a newline and 32 spaces may come before.
	 */
	q.stop_ids[0] = f->tokens[0];
	q.p.min_tokens = q.max_tokens = 50;
	f = one(&q);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	ck_assert_uint_gt(f->n, 1);
	ck_assert_uint_lt(f->n, 50);
	ck_assert_uint_eq(f->tokens[f->n - 1], q.stop_ids[0]);
	stop();
}
END_TEST

/* What the last request had of the scheduler's is given back by then: it is
 * freed by a text worker, after its client has heard of its end. */
START_TEST(stopping_waits_for_the_last_request)
{
	struct fk_req q = { .text = "x", .max_tokens = 3,
	    .options = "{\"response_format\":{\"type\":\"json_object\"}}" };

	for (int i = 0; i < 60; i++) {
		start("");
		F.e.script = NULL;
		ck_assert_int_eq(one(&q)->error, 0);
		stop();
	}
}
END_TEST

#define CHAT(m) { .text = (m), .chat = true, .max_tokens = 500 }

START_TEST(chat_divides_reasoning_from_content)
{
	struct fk_req q = CHAT("[{\"role\":\"user\",\"content\":\"hi\"}]");
	struct dcpd_ids think = { 0 };
	const struct fk_seen *f;

	start("Let me think.</think>Hello there.");
	f = one(&q);
	expect_text(f, DCP_CH_REASONING, "Let me think.");
	expect_text(f, DCP_CH_CONTENT, "Hello there.");
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	encode("Let me think.", &think);
	ck_assert_uint_ge(f->usage.reasoning_tokens, think.n);
	ck_assert_uint_le(f->usage.reasoning_tokens, think.n + 1);
	/* Thinking switched off: the same text is content. */
	q.options = "{\"chat_template_kwargs\":{\"enable_thinking\":false}}";
	f = one(&q);
	ck_assert_ptr_null(f->text[DCP_CH_REASONING]);
	/* And with special tokens shown, all of it, marks too. */
	q.flags = DCP_SPECIAL_TOKENS;
	expect_text(one(&q), DCP_CH_CONTENT,
	    "Let me think.</think>Hello there.<|system|>");
	dcpd_ids_free(&think);
	stop();
}
END_TEST

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":" \
	"\"add\",\"parameters\":{\"type\":\"object\",\"properties\":" \
	"{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}}}}}]"

/* Whoever sends text or ids wants the text that comes, not its parts. */
START_TEST(only_chat_is_parsed)
{
	struct fk_req q = { .text = "x", .max_tokens = 100 };
	const struct fk_seen *f;

	start("Hm.</think><tool_call>add</tool_call>Well.");
	f = one(&q);
	ck_assert_ptr_null(f->text[DCP_CH_REASONING]);
	ck_assert_ptr_null(f->text[DCP_CH_TOOL_NAME]);
	ck_assert_ptr_nonnull(strstr(f->text[DCP_CH_CONTENT], "Hm."));
	ck_assert_ptr_nonnull(strstr(f->text[DCP_CH_CONTENT], "add"));
	ck_assert_ptr_nonnull(strstr(f->text[DCP_CH_CONTENT], "Well."));
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	ck_assert_uint_eq(f->usage.reasoning_tokens, 0);
	stop();
}
END_TEST

START_TEST(a_tool_call_is_the_reason_of_its_end)
{
	struct fk_req q = CHAT("[{\"role\":\"user\",\"content\":\"2+3\"}]");
	const struct fk_seen *f;
	uint32_t with, without;

	start("I add.</think><tool_call>add<arg_key>a</arg_key>"
	    "<arg_value>2</arg_value><arg_key>b</arg_key>"
	    "<arg_value>3</arg_value></tool_call>");
	q.options = "{" TOOLS "}";
	f = one(&q);
	expect_text(f, DCP_CH_REASONING, "I add.");
	expect_text(f, DCP_CH_TOOL_NAME, "add");
	expect_text(f, DCP_CH_TOOL_ARGS, "{\"a\": 2, \"b\": \"3\"}");
	ck_assert_uint_eq(f->finish, DCP_FINISH_TOOL_CALLS);
	with = f->usage.prompt_tokens;
	/* "none": the model is not told of them. */
	q.options = "{\"tool_choice\":\"none\"," TOOLS "}";
	without = one(&q)->usage.prompt_tokens;
	q.options = NULL;
	ck_assert_uint_eq(one(&q)->usage.prompt_tokens, without);
	ck_assert_uint_gt(with, without);
	/* Cut off by max_tokens it is no finished call. */
	q.options = "{" TOOLS "}";
	q.max_tokens = (uint32_t)script.n - 2;
	ck_assert_uint_eq(one(&q)->finish, DCP_FINISH_LENGTH);
	stop();
}
END_TEST

START_TEST(echo_shows_the_prompts_text)
{
	struct fk_req q = { .text = "Say \xf0\x9f\x8d\x90 <|user|> twice",
	    .max_tokens = 100, .flags = DCP_ECHO };
	const struct fk_seen *f;

	start("and again");
	f = one(&q);
	expect_text(f, DCP_CH_PROMPT, q.text);
	expect_text(f, DCP_CH_CONTENT, "and again");
	ck_assert_uint_eq(f->n_prompt, f->usage.prompt_tokens);
	q.flags |= DCP_LOGPROBS;
	f = one(&q);
	expect_text(f, DCP_CH_PROMPT, q.text);
	expect_text(f, DCP_CH_CONTENT, "and again");
	stop();
}
END_TEST

static void
refused(const struct fk_req *q, int code, const char *part)
{
	const struct fk_seen *f = one(q);

	ck_assert_msg(f->error == code, "%d: %s", f->error, f->error_text);
	ck_assert_msg(strstr(f->error_text, part) != NULL,
	    "\"%s\" does not say \"%s\"", f->error_text, part);
}

START_TEST(bad_text_is_refused)
{
	struct fk_req bytes = { .text = "ab\xff", .max_tokens = 1 };
	struct fk_req json = CHAT("[{\"role\":");
	struct fk_req role = CHAT("[{\"role\":\"king\",\"content\":\"x\"}]");
	struct fk_req stop_empty = { .text = "x", .max_tokens = 1,
	    .stop = { "" } };
	struct fk_req lengthy = { .max_tokens = 1 };
	char *text = calloc(1, 60001);

	start("x");
	refused(&bytes, -EILSEQ, "2");
	refused(&json, -EINVAL, "messages: not JSON");
	refused(&role, -EINVAL, "king");
	refused(&stop_empty, -EINVAL, "stop string 0 is empty");
	for (unsigned i = 0; i < 30000; i++)
		memcpy(text + 2 * i, "a ", 2);
	lengthy.text = text;
	refused(&lengthy, -EMSGSIZE, "more than 8192 tokens");
	text[10000] = '\0';
	refused(&lengthy, -EMSGSIZE, "the context is 4096");
	free(text);
	stop();
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched_text");
	TCase *t = tcase_create("text");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, text_in_text_out);
	tcase_add_test(t, max_tokens_in_the_middle_of_a_character);
	tcase_add_loop_test(t, a_stop_string_ends_the_answer, 0, 5);
	tcase_add_test(t, a_stop_string_waits_for_min_tokens);
	tcase_add_test(t, a_stop_id_is_a_token_without_text);
	tcase_add_test(t, min_tokens_keep_stop_ids_away_from_a_form);
	tcase_add_test(t, stopping_waits_for_the_last_request);
	tcase_add_test(t, chat_divides_reasoning_from_content);
	tcase_add_test(t, only_chat_is_parsed);
	tcase_add_test(t, a_tool_call_is_the_reason_of_its_end);
	tcase_add_test(t, echo_shows_the_prompts_text);
	tcase_add_test(t, bad_text_is_refused);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
