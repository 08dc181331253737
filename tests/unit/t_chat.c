/* Chat formats: the prompt is what a model's template would write. */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <unistd.h>

#include "dcpd/text/pyjson.h"
#include "tests/unit/text_util.h"

/* The tools that tools/tiny_tasks.py offers, with its key order. */
static const char tiny_tools[] = "[{\"type\": \"function\", \"function\": "
    "{\"name\": \"get_weather\", \"description\": \"Weather of a city\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
    "{\"type\": \"string\"}}, \"required\": [\"city\"]}}}, {\"type\": "
    "\"function\", \"function\": {\"name\": \"add\", \"description\": \"Add "
    "two integers\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}}, "
    "\"required\": [\"a\", \"b\"]}}}]";

static const char *const eval_file[] = {
	"math", "recall16", "recall24", "recall32", "recall48", "recall64",
	"recall120", "tools",
};

/* Questions rendered as a chat give the prompts the tiny model learned. */
START_TEST(eval_prompts_byte_for_byte)
{
	char path[1024], rel[128], line[65536];
	json_t *tools = json_loads(tiny_tools, 0, NULL);
	struct dcpd_err err = { 0 };
	json_t *row, *msgs, *opt;
	unsigned n = 0;
	bool thinking;
	char *s;
	FILE *f;

	ck_assert_ptr_nonnull(tools);
	snprintf(rel, sizeof rel, "tests/data/eval/%s.jsonl", eval_file[_i]);
	f = fopen(text_path(rel, path, sizeof path), "r");
	ck_assert_msg(f != NULL, "%s", path);
	while (fgets(line, sizeof line, f) != NULL) {
		row = json_loads(line, 0, NULL);
		ck_assert_ptr_nonnull(row);
		msgs = json_pack("[{s:s, s:O}]", "role", "user", "content",
		    json_object_get(row, "question"));
		opt = strcmp(eval_file[_i], "tools") == 0 ?
		    json_pack("{s:O}", "tools", tools) : json_object();
		thinking = false;
		s = dcpd_chat_render(DCPD_CHAT_GLM47, msgs, opt, &thinking,
		    &err);
		ck_assert_msg(s != NULL, "%s", err.text);
		ck_assert_str_eq(s, json_string_value(json_object_get(row,
		    "prompt")));
		ck_assert(thinking);
		free(s);
		json_decref(opt);
		json_decref(msgs);
		json_decref(row);
		n++;
	}
	fclose(f);
	ck_assert_uint_ge(n, 20);
	json_decref(tools);
}
END_TEST

/* Arguments of calls as JSON in a string, the way OpenAI has them. */
static void
stringify_args(json_t *messages)
{
	json_t *m, *calls, *c, *f;
	size_t i, k;
	char *s;

	json_array_foreach(messages, i, m) {
		calls = json_object_get(m, "tool_calls");
		json_array_foreach(calls, k, c) {
			f = json_object_get(c, "function");
			s = json_dumps(json_object_get(f, "arguments"),
			    JSON_REAL_PRECISION(17));
			ck_assert_ptr_nonnull(s);
			json_object_set_new(f, "arguments", json_string(s));
			free(s);
		}
	}
}

/* form 0: options at the top, arguments as objects; 1: the other ways */
static void
check_golden(const json_t *root, const json_t *c, int form)
{
	const char *kind = json_string_value(json_object_get(c, "chat"));
	const char *name = json_string_value(json_object_get(c, "name"));
	const char *want = json_string_value(json_array_get(
	    json_object_get(root, "prompts"),
	    (size_t)json_integer_value(json_object_get(c, "prompt"))));
	json_t *kw = json_object_get(c, "options"), *opt, *msgs;
	struct dcpd_err err = { 0 };
	enum dcpd_chat chat;
	bool thinking;
	char *got;

	ck_assert_int_eq(dcpd_chat_by_name(kind, &chat), 0);
	msgs = json_deep_copy(json_object_get(json_object_get(root,
	    "messages"), name));
	if (form == 1)
		stringify_args(msgs);
	opt = form == 0 ? json_deep_copy(kw) :
	    json_pack("{s:O}", "chat_template_kwargs", kw);
	if (json_is_true(json_object_get(c, "tools")))
		json_object_set(opt, "tools", json_object_get(root, "tools"));
	got = dcpd_chat_render(chat, msgs, opt, &thinking, &err);
	ck_assert_msg(got != NULL, "%s %s: %s", kind, name, err.text);
	ck_assert_msg(strcmp(got, want) == 0, "%s %s\n got %s\n not %s", kind,
	    name, got, want);
	if (chat != DCPD_CHAT_GLM45)
		ck_assert_int_eq(thinking, strlen(want) > 7 &&
		    strcmp(want + strlen(want) - 7, "<think>") == 0);
	free(got);
	json_decref(opt);
	json_decref(msgs);
}

/* Written by templates in jinja: see doc/text.md for whose. */
START_TEST(golden_prompts_of_jinja_templates)
{
	json_t *root = text_json("tests/data/chat/golden.json"), *c;
	json_t *cases = json_object_get(root, "cases");
	size_t i;

	ck_assert_uint_gt(json_array_size(cases), 800);
	json_array_foreach(cases, i, c)
		check_golden(root, c, _i);
	json_decref(root);
}
END_TEST

static void
refused(enum dcpd_chat kind, const char *messages, const char *options,
    int code, const char *why)
{
	json_error_t e;
	json_t *m = json_loads(messages, JSON_ALLOW_NUL, &e), *o = NULL;
	struct dcpd_err err = { 0 };
	bool thinking;
	char *s;

	ck_assert_msg(m != NULL, "%s: %s", messages, e.text);
	if (options != NULL) {
		o = json_loads(options, 0, &e);
		ck_assert_msg(o != NULL, "%s: %s", options, e.text);
	}
	s = dcpd_chat_render(kind, m, o, &thinking, &err);
	ck_assert_msg(s == NULL, "taken: %s %s", messages, options);
	ck_assert_msg(strstr(err.text, why) != NULL, "\"%s\" lacks \"%s\"",
	    err.text, why);
	ck_assert_int_eq(err.code, code);
	json_decref(m);
	json_decref(o);
}

#define U "[{\"role\":\"user\",\"content\":\"x\"}]"
#define G DCPD_CHAT_GLM47

START_TEST(bad_messages_are_refused_by_place)
{
	refused(G, "{}", NULL, -EINVAL, "messages must be a list");
	refused(G, "[]", NULL, -EINVAL, "at least one message");
	refused(G, "[1]", NULL, -EINVAL, "messages[0] is not an object");
	refused(G, "[{\"content\":\"x\"}]", NULL, -EINVAL,
	    "messages[0].role is missing");
	refused(G, "[{\"role\":\"function\",\"content\":\"x\"}]", NULL,
	    -EINVAL, "messages[0].role is \"function\"; allowed are system");
	refused(G, "[{\"role\":\"user\\u0000x\",\"content\":\"x\"}]", NULL,
	    -EINVAL, "messages[0].role is a string with U+0000; allowed");
	refused(G, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
	    "\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
	    "\"f\\u0000g\",\"arguments\":{}}}]}]", NULL, -EINVAL,
	    "tool_calls[0].function.name is a string with U+0000");
	refused(G, "[{\"role\":\"user\",\"content\":[{\"type\":"
	    "\"text\\u0000\",\"text\":\"x\"}]}]", NULL, -EINVAL,
	    "messages[0].content[0]");
	refused(G, "[{\"role\":\"user\"}]", NULL, -EINVAL,
	    "messages[0].content is missing");
	refused(G, "[{\"role\":\"user\",\"content\":5}]", NULL, -EINVAL,
	    "messages[0].content must be a string or a list");
	refused(G, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
	    "\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{}}]}]",
	    NULL, -EINVAL, "messages[0].content[1] has type \"image_url\"");
	refused(G, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
	    NULL, -EINVAL, "messages[0].content[0].text is not a string");
	refused(G, "[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":"
	    "[{}]}]", NULL, -EINVAL, "messages[0].tool_calls");
	refused(G, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
	    "{}}]}]", NULL, -EINVAL,
	    "messages[0].tool_calls[0].function.name is missing");
	refused(G, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
	    "{\"name\":\"f\",\"arguments\":\"{oops\"}}]}]", NULL, -EINVAL,
	    "messages[0].tool_calls[0].function.arguments");
	refused(G, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
	    "{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]", NULL, -EINVAL,
	    "not a JSON object");
	refused(G, "[{\"role\":\"assistant\",\"content\":\"\","
	    "\"reasoning_content\":1}]", NULL, -EINVAL,
	    "messages[0].reasoning_content is not a string");
	refused(DCPD_CHAT_NONE, U, NULL, -ENOTSUP, "no chat template");
}
END_TEST

START_TEST(bad_options_are_refused_by_name)
{
	refused(G, U, "[]", -EINVAL, "not a JSON object");
	refused(G, U, "{\"tools\":{}}", -EINVAL, "tools is not a list");
	refused(G, U, "{\"tools\":[{\"name\":\"f\"}]}", -EINVAL,
	    "tools[0] must have the form");
	refused(G, U, "{\"enable_thinking\":\"no\"}", -EINVAL,
	    "enable_thinking must be true or false");
	refused(G, U, "{\"chat_template_kwargs\":5}", -EINVAL,
	    "chat_template_kwargs is not an object");
	refused(G, U, "{\"thinking\":{\"type\":\"maybe\"}}", -EINVAL,
	    "thinking.type must be");
	refused(G, U, "{\"reasoning_effort\":\"huge\"}", -EINVAL,
	    "reasoning_effort must be one of");
	refused(DCPD_CHAT_GLM53, U, "{\"enable_thinking\":false}", -EINVAL,
	    "always thinks");
}
END_TEST

START_TEST(deepseek_refuses_what_its_format_cannot_say)
{
	const enum dcpd_chat k = DCPD_CHAT_DSV32;

	refused(k, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
	    "\"assistant\",\"content\":\"y\"}]", NULL, -EINVAL,
	    "messages[1]: the last message must be one to answer");
	refused(k, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
	    "\"tool\",\"content\":\"y\"}]", NULL, -EINVAL,
	    "messages[1]: a tool message without a tool call");
	refused(k, "[{\"role\":\"tool\",\"content\":\"y\"}]", NULL, -EINVAL,
	    "messages[0]: a tool message without a tool call");
	refused(k, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
	    "\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}},"
	    "{\"function\":{\"name\":\"g\"}}]},{\"role\":\"tool\","
	    "\"content\":\"y\"}]", NULL, -EINVAL,
	    "messages[1]: 2 tool calls but 1 tool messages");
}
END_TEST

static char *
rendered(enum dcpd_chat kind, const char *messages, const char *options)
{
	json_t *m = json_loads(messages, 0, NULL);
	json_t *o = options == NULL ? NULL : json_loads(options, 0, NULL);
	struct dcpd_err err = { 0 };
	bool thinking;
	char *s;

	s = dcpd_chat_render(kind, m, o, &thinking, &err);
	ck_assert_msg(s != NULL, "%s", err.text);
	json_decref(m);
	json_decref(o);
	return s;
}

static void
same(enum dcpd_chat kind, const char *options, const char *as)
{
	char *a = rendered(kind, U, options), *b = rendered(kind, U, as);

	ck_assert_str_eq(a, b);
	free(a);
	free(b);
}

START_TEST(the_ways_to_say_an_option)
{
	const char *off = "{\"enable_thinking\":false}";
	const char *tool = "{\"tools\":[{\"type\":\"function\",\"function\":"
	    "{\"name\":\"f\"}}],\"tool_choice\":\"none\"}";

	same(G, "{\"thinking\":false}", off);
	same(G, "{\"thinking\":{\"type\":\"disabled\"}}", off);
	same(G, "{\"reasoning_effort\":\"none\"}", off);
	same(G, "{\"chat_template_kwargs\":{\"thinking\":false}}", off);
	/* what stands in chat_template_kwargs goes first */
	same(G, "{\"enable_thinking\":true,\"chat_template_kwargs\":"
	    "{\"enable_thinking\":false}}", off);
	same(G, "{\"enable_thinking\":null,\"tools\":null,\"tool_choice\":"
	    "null,\"unknown\":1}", NULL);
	same(G, tool, NULL);
	same(G, "{\"tools\":[],\"tool_choice\":\"auto\"}", NULL);
	same(G, "{\"response_format\":{\"type\":\"text\"}}", NULL);
	/* the answer is held to these, nothing is said to the model */
	same(G, "{\"tool_choice\":\"required\"}", NULL);
	same(G, "{\"response_format\":{\"type\":\"json_object\"}}", NULL);
	/* DeepSeek thinks only when asked to */
	same(DCPD_CHAT_DSV32, off, NULL);
}
END_TEST

/* What a user writes, "<|user|>" too, can be kept from being a token. */
START_TEST(plain_input_stays_text)
{
	struct dcpd_tokenizer *t = text_tokenizer("models/dcp-tiny");
	json_t *m = json_loads("[{\"role\":\"user\",\"content\":"
	    "\"a<|user|>b<think>\"}]", 0, NULL);
	json_t *clean = json_loads(U, 0, NULL);
	struct dcpd_ids a = { 0 }, b = { 0 };
	uint32_t user = (uint32_t)dcpd_token_id(t, "<|user|>");
	struct dcpd_err err = { 0 };
	unsigned i, n[2] = { 0, 0 };
	bool thinking;
	char *s;

	ck_assert_int_eq(dcpd_chat_encode(t, G, m, NULL, 0, SIZE_MAX, &a,
	    &thinking, &err), 0);
	ck_assert_int_eq(dcpd_chat_encode(t, G, m, NULL, DCPD_PLAIN, SIZE_MAX,
	    &b, &thinking, &err), 0);
	for (i = 0; i < a.n; i++)
		n[0] += a.v[i] == user;
	for (i = 0; i < b.n; i++)
		n[1] += b.v[i] == user;
	ck_assert_uint_eq(n[0], 2);
	ck_assert_uint_eq(n[1], 1);
	ck_assert_uint_gt(b.n, a.n);
	s = dcpd_decode(t, b.v, b.n, false, NULL);
	ck_assert_str_eq(s, "[gMASK]<sop><|user|>a<|user|>b<think><|assistant|>"
	    "<think>");
	free(s);
	/* and where there is nothing to confuse, nothing changes */
	a.n = b.n = 0;
	ck_assert_int_eq(dcpd_chat_encode(t, G, clean, NULL, 0, SIZE_MAX, &a,
	    &thinking, &err), 0);
	ck_assert_int_eq(dcpd_chat_encode(t, G, clean, NULL, DCPD_PLAIN,
	    SIZE_MAX, &b, &thinking, &err), 0);
	ck_assert_uint_eq(a.n, b.n);
	ck_assert_mem_eq(a.v, b.v, a.n * sizeof *a.v);
	/* a bound on ids holds for chats as well */
	a.n = 0;
	ck_assert_int_eq(dcpd_chat_encode(t, G, clean, NULL, 0, 3, &a,
	    &thinking, &err), -E2BIG);
	ck_assert_uint_eq(a.n, 0);
	dcpd_ids_free(&a);
	dcpd_ids_free(&b);
	json_decref(m);
	json_decref(clean);
	dcpd_tokenizer_close(t);
}
END_TEST

static void
put_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

/* A folder with the small GLM tokenizer and this template. */
static enum dcpd_chat
guess_with(const char *file, const char *text)
{
	char dir[] = "/tmp/t_chat.XXXXXX", cmd[1200];
	struct dcpd_tokenizer *t;
	enum dcpd_chat kind;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(cmd, sizeof cmd,
	    "cp '%s/tests/data/tok/tok-glm/tokenizer.json' %s",
	    text_srcdir(), dir);
	ck_assert_int_eq(system(cmd), 0);
	put_file(dir, file, text);
	t = text_tokenizer(dir);
	kind = dcpd_chat_guess("glm_moe_dsa", t);
	dcpd_tokenizer_close(t);
	snprintf(cmd, sizeof cmd, "rm -r %s", dir);
	ck_assert_int_eq(system(cmd), 0);
	return kind;
}

START_TEST(the_format_is_guessed_from_the_folder)
{
	static const char jinja[] = "chat_template.jinja";
	static const char config[] = "tokenizer_config.json";
	struct dcpd_tokenizer *t = text_tokenizer("models/dcp-tiny");
	enum dcpd_chat kind;

	ck_assert_int_eq(dcpd_chat_guess("glm_moe_dsa", t), DCPD_CHAT_GLM47);
	dcpd_tokenizer_close(t);
	t = text_tokenizer("tests/data/tok/tok-ds");
	ck_assert_int_eq(dcpd_chat_guess("deepseek_v32", t), DCPD_CHAT_DSV32);
	ck_assert_int_eq(dcpd_chat_guess("other", t), DCPD_CHAT_NONE);
	dcpd_tokenizer_close(t);
	ck_assert_int_eq(dcpd_chat_guess("glm_moe_dsa", NULL),
	    DCPD_CHAT_NONE);
	ck_assert_int_eq(guess_with(jinja, "[gMASK]<sop>{{ '/nothink' }}"),
	    DCPD_CHAT_GLM45);
	ck_assert_int_eq(guess_with(jinja, "Reasoning Effort: == 'high'"),
	    DCPD_CHAT_GLM52);
	ck_assert_int_eq(guess_with(config, "{\"chat_template\": "
	    "\"Reasoning Effort: in ['low', 'high']\"}"), DCPD_CHAT_GLM53);
	ck_assert_int_eq(guess_with(config, "{ not JSON"), DCPD_CHAT_GLM47);
	ck_assert_int_eq(dcpd_chat_by_name("glm5", &kind), 0);
	ck_assert_int_eq(kind, DCPD_CHAT_GLM47);
	ck_assert_int_eq(dcpd_chat_by_name("chatml", &kind), -EINVAL);
}
END_TEST

START_TEST(json_in_pythons_hand)
{
	static const char *const as_is[] = {
		"0.0", "-0.0", "1.5", "100.0", "0.1", "0.0001", "1e-05",
		"1.25e-07", "123456789.125", "1e+16", "1234567890123456.0",
		"1.2345678901234568e+18", "1e+22", "5e-324",
		"1.7976931348623157e+308", "-2.5e-10", "9007199254740993.0",
		"-9223372036854775808", "[]", "{}",
		"[1, [2, {\"b\": null, \"a\": true}]]",
		"\"\\b\\f\\n\\r\\t\\u001f\\\"/\x7f\"",
		"\"\u00e9\U0001f600\"",
	};
	struct dcpd_buf b = { 0 };
	size_t i;

	for (i = 0; i < sizeof as_is / sizeof *as_is; i++) {
		json_t *v = json_loads(as_is[i], JSON_DECODE_ANY, NULL);

		ck_assert_msg(v != NULL, "%s", as_is[i]);
		b.n = 0;
		dcpd_pyjson(&b, v);
		dcpd_buf_add(&b, "", 1);
		/* 2^53 + 1 is no double: repr gives the nearest */
		ck_assert_str_eq(b.v, strcmp(as_is[i], "9007199254740993.0") ==
		    0 ? "9007199254740992.0" : as_is[i]);
		json_decref(v);
	}
	dcpd_buf_free(&b);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("chat");
	TCase *tc = tcase_create("chat");
	SRunner *r;
	int bad;

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, eval_prompts_byte_for_byte, 0,
	    sizeof eval_file / sizeof *eval_file);
	tcase_add_loop_test(tc, golden_prompts_of_jinja_templates, 0, 2);
	tcase_add_test(tc, bad_messages_are_refused_by_place);
	tcase_add_test(tc, bad_options_are_refused_by_name);
	tcase_add_test(tc, deepseek_refuses_what_its_format_cannot_say);
	tcase_add_test(tc, the_ways_to_say_an_option);
	tcase_add_test(tc, plain_input_stays_text);
	tcase_add_test(tc, the_format_is_guessed_from_the_folder);
	tcase_add_test(tc, json_in_pythons_hand);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	bad = srunner_ntests_failed(r);
	srunner_free(r);
	return bad != 0;
}
