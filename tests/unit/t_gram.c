/*
 * Grammars by themselves: what is accepted and what is refused, byte by byte,
 * with texts written by hand; and masks, held against trying every token of the
 * vocabulary. What random answers look like to a validator:
 * tests/grammar/test_schemas.py.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"
#include "tests/unit/text_util.h"

static struct gram *
compile(const char *schema)
{
	struct dcpd_err err = { 0 };
	json_error_t je;
	struct gram *g;
	json_t *s = json_loads(schema, JSON_DECODE_ANY, &je);

	ck_assert_msg(s != NULL, "%s: %s", schema, je.text);
	ck_assert_msg(gram_compile(s, &g, &err) == 0, "%s: %s", schema,
	    err.text);
	json_decref(s);
	return g;
}

/* How many bytes of text are accepted; *whole: and then it may end. */
static size_t
accepted(struct gram *g, const char *text, bool *whole)
{
	struct gram_item it = { .def = G_ROOT, .q = P_VALUE,
	    .n = g->root };
	struct gram_cfg c = { .it = &it, .n = 1 }, next;
	struct gram_step s;
	size_t n = 0;

	ck_assert_int_eq(gram_step_init(&s, g), 0);
	for (; text[n] != '\0'; n++) {
		if (gram_step(&s, &c, (uint8_t)text[n], &next) != STEP_OK)
			break;
		c = next;
	}
	*whole = gram_complete(g, &c);
	gram_step_free(&s);
	return n;
}

/* Texts that are whole answers; NULL ends them. */
static void
takes(const char *schema, ...)
{
	struct gram *g = compile(schema);
	const char *text;
	va_list ap;
	bool whole;

	va_start(ap, schema);
	while ((text = va_arg(ap, const char *)) != NULL) {
		size_t n = accepted(g, text, &whole);

		ck_assert_msg(n == strlen(text) && whole, "%s: \"%s\" at byte "
		    "%zu%s", schema, text, n, whole ? "" : ", not whole");
	}
	va_end(ap);
	gram_free(g);
}

/* Texts that are refused somewhere, or are no whole answers. */
static void
refuses(const char *schema, ...)
{
	struct gram *g = compile(schema);
	const char *text;
	va_list ap;
	bool whole;

	va_start(ap, schema);
	while ((text = va_arg(ap, const char *)) != NULL) {
		size_t n = accepted(g, text, &whole);

		ck_assert_msg(n < strlen(text) || !whole, "%s: \"%s\"", schema,
		    text);
	}
	va_end(ap);
	gram_free(g);
}

START_TEST(any_object_is_an_object_and_nothing_else)
{
	takes("{\"type\":\"object\"}", "{}", " {}", "\n{ }",
	    "{\"a\": 1, \"b\": [true, null, {\"c\": \"x\"}]}",
	    "{\"\": -0.5e-7}", "{\"k\":\"\\u00e9 \\\\ \\\" \xc3\xa9\"}",
	    "{\n  \"a\": [\n    1,\n    2\n  ]\n}", NULL);
	refuses("{\"type\":\"object\"}", "[]", "1", "\"\"", "", "{", "{}}",
	    "{} ", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\":01}",
	    "{\"a\":1.}", "{\"a\":.5}", "{\"a\":+1}", "{\"a\":tru}",
	    "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\ud800\"}",
	    "{\"a\":\"\\u0000\"}", "{\"a\":\"\xff\"}", "{\"a\":\"\xc0\x80\"}",
	    "{a:1}", "{'a':1}", "{\"a\":[1,]}", "{\"a\":[1}", NULL);
}
END_TEST

START_TEST(white_space_is_bounded)
{
	takes("{\"type\":\"array\"}", "[1, 2]", "[\n1\n]", "[ ]", "[\n ]",
	    NULL);
	refuses("{\"type\":\"array\"}", "  []", "\n\n[]", "[1 , 2]", "[1,  2]",
	    "[\t1]", "[ \n1]", "[1,\n\n2]", "[\r\n1]",
	    "[\n                                 1]", NULL);
	takes("{\"type\":\"array\"}", "[\n                                1]",
	    NULL);
}
END_TEST

START_TEST(properties_come_in_order_and_only_those)
{
	const char *s = "{\"properties\":{\"a\":{\"type\":\"integer\"},"
	    "\"ab\":{\"type\":\"string\"},\"c\":{\"type\":\"boolean\"}},"
	    "\"required\":[\"ab\"],\"type\":\"object\"}";

	takes(s, "{\"ab\":\"\"}", "{\"a\":1,\"ab\":\"x\",\"c\":true}",
	    "{\"ab\":\"x\",\"c\":false}", NULL);
	refuses(s, "{}", "{\"a\":1}", "{\"ab\":\"\",\"a\":1}",
	    "{\"ab\":\"\",\"ab\":\"\"}", "{\"ab\":1}", "{\"d\":1}",
	    "{\"c\":true}", "{\"ab\":\"\",\"d\":1}", NULL);
}
END_TEST

START_TEST(other_names_are_none_of_the_properties)
{
	const char *s = "{\"type\":\"object\",\"properties\":{\"ab\":"
	    "{\"type\":\"integer\"},\"a\\\"b\":{\"type\":\"integer\"},"
	    "\"\xc3\xa9\":{\"type\":\"integer\"}},"
	    "\"additionalProperties\":{\"type\":\"string\"}}";

	takes(s, "{}", "{\"a\":\"\"}", "{\"abc\":\"\"}", "{\"b\":\"\"}",
	    "{\"ab\":1,\"\xc3\xa9\":2,\"\xc3\xa8\":\"\"}", "{\"\":\"\"}",
	    "{\"a\\\"\":\"\",\"a\\\"b\\\\\":\"\"}", NULL);
	refuses(s, "{\"ab\":\"\"}", "{\"x\":1}", "{\"x\":\"\",\"ab\":\"\"}",
	    "{\"x\":\"\",\"\xc3\xa9\":\"\"}", "{\"a\\u0062\":\"\"}",
	    "{\"a\\\"b\":\"\"}", NULL);
}
END_TEST

START_TEST(arrays_count)
{
	takes("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
	    "\"minItems\":2,\"maxItems\":3}", "[1,2]", "[1,2,3]", NULL);
	refuses("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
	    "\"minItems\":2,\"maxItems\":3}", "[]", "[1]", "[1,2,3,4]",
	    "[1 ,2]", "[1\n]", NULL);
	takes("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],"
	    "\"items\":{\"type\":\"null\"}}", "[]", "[1]", "[1,\"\"]",
	    "[1,\"\",null,null]", NULL);
	refuses("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":"
	    "\"string\"}]}", "[\"\"]", "[1,1]", "[1,\"\",null]", NULL);
}
END_TEST

START_TEST(numbers_stay_within_their_bounds)
{
	takes("{\"type\":\"integer\"}", "0", "-7", "123456789012345678",
	    NULL);
	refuses("{\"type\":\"integer\"}", "1.0", "1e3", "00", "-",
	    "1234567890123456789", "+1", NULL);
	takes("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}", "-12",
	    "-9", "0", "99", "100", "105", NULL);
	refuses("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
	    "-13", "-20", "106", "110", "1000", "-0", NULL);
	takes("{\"type\":\"number\",\"exclusiveMinimum\":-0.5,\"maximum\":"
	    "12.25}", "0", "-0.49", "-0.4999999", "12.25", "12.249", "9.99",
	    "12.250", NULL);
	refuses("{\"type\":\"number\",\"exclusiveMinimum\":-0.5,\"maximum\":"
	    "12.25}", "-0.5", "-0.50", "-0.51", "12.26", "12.2500001", "13",
	    "1e0", "-1", NULL);
	takes("{\"type\":\"number\"}", "1.5e-7", "-0.0", "1E+10", "0.1", NULL);
	refuses("{\"type\":\"number\"}", "1e100", "NaN", "1.e1", "e1", NULL);
}
END_TEST

START_TEST(every_integer_of_many_ranges)
{
	char schema[200], text[32];
	bool whole;

	for (int lo = -120; lo <= 120; lo += 17)
		for (int hi = lo; hi <= 130; hi += 23) {
			struct gram *g;

			snprintf(schema, sizeof schema, "{\"type\":\"integer\","
			    "\"minimum\":%d,\"maximum\":%d}", lo, hi);
			g = compile(schema);
			for (int x = -200; x <= 200; x++) {
				size_t n;

				snprintf(text, sizeof text, "%d", x);
				n = accepted(g, text, &whole);
				ck_assert_msg((n == strlen(text) && whole) ==
				    (x >= lo && x <= hi), "%s: %d", schema, x);
			}
			gram_free(g);
		}
}
END_TEST

START_TEST(every_decimal_of_many_ranges)
{
	static const double bound[] = { -10.5, -1, -0.25, 0, 0.1, 0.75, 1.5,
		9.9, 10, 12.34 };
	char schema[200], text[32];
	bool whole;

	for (unsigned i = 0; i < 10; i++)
		for (unsigned k = i + 1; k < 10; k++) {
			bool open = (i + k) % 2;
			struct gram *g;

			snprintf(schema, sizeof schema, "{\"type\":\"number\","
			    "\"%s\":%g,\"%s\":%g}", open ? "exclusiveMinimum" :
			    "minimum", bound[i], open ? "exclusiveMaximum" :
			    "maximum", bound[k]);
			g = compile(schema);
			for (int x = -1300; x <= 1300; x += 3) {
				double v;
				size_t n;
				bool in;

				snprintf(text, sizeof text, "%s%d.%02d",
				    x < 0 ? "-" : "", abs(x) / 100,
				    abs(x) % 100);
				v = strtod(text, NULL);
				in = open ? v > bound[i] && v < bound[k] :
				    v >= bound[i] && v <= bound[k];
				n = accepted(g, text, &whole);
				ck_assert_msg((n == strlen(text) && whole) ==
				    in, "%s: %s", schema, text);
			}
			gram_free(g);
		}
}
END_TEST

START_TEST(strings_count_characters_not_bytes)
{
	takes("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
	    "\"ab\"", "\"\xc3\xa9\xf0\x9f\x8d\x90\"", "\"\\n\\u00e9x\"",
	    NULL);
	refuses("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
	    "\"a\"", "\"\xf0\x9f\x8d\x90\"", "\"abcd\"", "\"\\n\"", NULL);
	takes("{\"pattern\":\"^[a-c\xc3\xa9]{2,3}\\\\.$\"}", "\"ab.\"",
	    "\"\xc3\xa9""ca.\"", NULL);
	refuses("{\"pattern\":\"^[a-c\xc3\xa9]{2,3}\\\\.$\"}", "\"a.\"",
	    "\"abd.\"", "\"abca.\"", "\"ab.x\"", "\"abx\"",
	    "\"\xc3\xa8""a.\"", NULL);
	takes("{\"pattern\":\"b\"}", "\"abc\"", "\"b\"", "\"\\\"b\"", NULL);
	refuses("{\"pattern\":\"b\"}", "\"\"", "\"ac\"", NULL);
	takes("{\"pattern\":\"^(?:ab|c)*$\",\"minLength\":3,\"maxLength\":4}",
	    "\"abc\"", "\"abab\"", "\"cccc\"", NULL);
	refuses("{\"pattern\":\"^(?:ab|c)*$\",\"minLength\":3,\"maxLength\":4}",
	    "\"ab\"", "\"ababc\"", "\"cc\"", NULL);
}
END_TEST

START_TEST(alternatives_stay_open_until_they_differ)
{
	const char *s = "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":"
	    "\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1}},"
	    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":"
	    "{\"type\":\"string\"},\"minItems\":1}},{\"enum\":[12,123,\"1\"]}"
	    "]}";

	takes(s, "[[1],[2]]", "[[\"a\"],[\"b\"]]", "12", "123", "\"1\"", "[]",
	    NULL);
	refuses(s, "[[1],[\"a\"]]", "[[1,\"a\"]]", "1", "1234", "\"12\"",
	    "[[]]", NULL);
	s = "{\"$ref\":\"#/$defs/l\",\"$defs\":{\"l\":{\"anyOf\":[{\"type\":"
	    "\"null\"},{\"type\":\"object\",\"properties\":{\"v\":{\"enum\":"
	    "[1]},\"n\":{\"$ref\":\"#/$defs/l\"}},\"required\":[\"v\","
	    "\"n\"]}]}}}";
	takes(s, "null", "{\"v\":1,\"n\":{\"v\":1,\"n\":null}}", NULL);
	refuses(s, "{\"v\":1}", "{\"v\":1,\"n\":{\"v\":2,\"n\":null}}", NULL);
}
END_TEST

START_TEST(depth_is_bounded_and_leaves_a_way_out)
{
	struct gram *g = compile("{\"type\":\"array\"}");
	char text[2 * GRAM_MAX_DEPTH + 3];
	bool whole;

	memset(text, '[', GRAM_MAX_DEPTH + 1);
	text[GRAM_MAX_DEPTH + 1] = '\0';
	ck_assert_uint_eq(accepted(g, text, &whole), GRAM_MAX_DEPTH);
	memset(text + GRAM_MAX_DEPTH, ']', GRAM_MAX_DEPTH);
	text[2 * GRAM_MAX_DEPTH] = '\0';
	ck_assert_uint_eq(accepted(g, text, &whole), 2 * GRAM_MAX_DEPTH);
	ck_assert(whole);
	gram_free(g);
	/* What needs two more levels is not begun on the last but one. */
	g = compile("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":"
	    "\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},"
	    "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"array\","
	    "\"maxItems\":0}}]}}}}");
	memset(text, '[', GRAM_MAX_DEPTH + 1);
	memset(text + GRAM_MAX_DEPTH, ']', GRAM_MAX_DEPTH);
	text[2 * GRAM_MAX_DEPTH] = '\0';
	ck_assert_uint_eq(accepted(g, text, &whole), 2 * GRAM_MAX_DEPTH);
	ck_assert(whole);
	gram_free(g);
}
END_TEST

/* --- masks ------------------------------------------------------------- */

static struct dcpd_tokenizer *tok;
static struct gram_trie *trie;
static uint32_t vocab;

static void
open_tok(void)
{
	tok = text_tokenizer("models/dcp-tiny");
	vocab = dcpd_token_limit(tok);
	ck_assert_int_eq(gram_trie_new(tok, vocab, &trie), 0);
}

static void
close_tok(void)
{
	gram_trie_free(trie);
	dcpd_tokenizer_close(tok);
}

/* Ids 0..18 of this vocabulary are its added tokens. */
static bool
fits(struct gram_step *s, const struct gram_cfg *from, uint32_t id)
{
	struct gram_mark m = gram_mark(&s->arena);
	struct gram_cfg c = *from, next;
	bool special, ok = true;
	const char *b;
	size_t n;

	if (id < 19 || dcpd_token_bytes(tok, id, &b, &n, &special) != 0 ||
	    special || n == 0)
		return false;
	for (size_t i = 0; i < n && ok; i++) {
		ok = gram_step(s, &c, (uint8_t)b[i], &next) == STEP_OK;
		c = next;
	}
	gram_release(&s->arena, m);
	return ok;
}

/* At every place in text: the mask is that of trying each token. */
static void
masks_along(const char *schema, const char *text)
{
	struct gram_item it = { .def = G_ROOT, .q = P_VALUE };
	struct gram_cfg c = { .it = &it, .n = 1 }, next;
	uint32_t *bits = calloc(trie->words, sizeof *bits);
	struct gram *g = compile(schema);
	struct gram_step s;

	it.n = g->root;
	ck_assert_int_eq(gram_step_init(&s, g), 0);
	for (;; text++) {
		ck_assert_int_eq(gram_mask(g, trie, &s, &c, bits), 0);
		for (uint32_t id = 0; id < vocab; id++)
			ck_assert_msg((bits[id / 32] >> id % 32 & 1) ==
			    fits(&s, &c, id), "%s: token %u before \"%s\"",
			    schema, id, text);
		if (*text == '\0')
			break;
		ck_assert_int_eq(gram_step(&s, &c, (uint8_t)*text, &next),
		    STEP_OK);
		c = next;
	}
	gram_step_free(&s);
	gram_free(g);
	free(bits);
}

START_TEST(a_mask_is_what_trying_every_token_gives)
{
	open_tok();
	masks_along("{\"type\":\"object\"}", "{\"a \\u00e9\": [1, {\"b\": "
	    "-1.5e3}, \"\xf0\x9f\x8d\x90\"],\n  \"c\": {}, \"d\": [[], true]}");
	masks_along("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
	    "\"string\",\"minLength\":3,\"maxLength\":40},\"n\":{\"type\":"
	    "\"integer\",\"minimum\":3,\"maximum\":217},\"l\":{\"type\":"
	    "\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2,"
	    "\"maxItems\":9}},\"required\":[\"name\",\"l\"],"
	    "\"additionalProperties\":{\"type\":\"null\"}}",
	    "{\"name\": \"The river and the old man were\", \"n\": 21, \"l\": "
	    "[true, false,true], \"names\": null}");
	masks_along("{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":"
	    "\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z ]+"
	    "$\"}}},{\"type\":\"array\",\"items\":{\"type\":\"array\","
	    "\"items\":{\"enum\":[\"the\",\"then\",\"there is\"]}}}]}",
	    "[[\"the\", \"then\"], [\"there is\"]]");
	masks_along("{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],"
	    "\"items\":{\"enum\":[12,123,1.5]},\"minItems\":300}",
	    "[1,12, 123,1.5");
	masks_along("{\"type\":\"number\"}", "12.5e7");
	close_tok();
}
END_TEST

/* The same places twice: what was remembered says the same. */
START_TEST(a_remembered_mask_is_the_same)
{
	open_tok();
	masks_along("{\"type\":\"array\",\"items\":{\"type\":\"object\","
	    "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":"
	    "\"string\",\"maxLength\":300}},\"required\":[\"a\",\"b\"]}}",
	    "[{\"a\":\"x y\",\"b\":\"x y\"},{\"a\":\"x y\",\"b\":\"x y\"}]");
	close_tok();
}
END_TEST

/* --- forced calls ------------------------------------------------------ */

static int
note(void *arg, uint32_t channel, uint32_t call, const char *text, size_t len)
{
	struct dcpd_buf *b = arg;

	if (channel == DCP_CH_TOOL_NAME && call == 0)
		dcpd_buf_add(b, text, len);
	ck_assert_uint_ne(channel, DCP_CH_REASONING);
	return 0;
}

/*
 * Random allowed tokens until all are: the parser then has read one of the
 * names. What else may come at each place is looked at, too.
 */
static void
forced(struct dcpd_grams *gs, const struct dcpd_tokenizer *t,
    enum dcpd_parser parser, const char *options, const char *name)
{
	struct dcpd_out_config oc = { .parser = parser };
	uint32_t words = (dcpd_token_limit(t) + 31) / 32;
	uint32_t *bits = calloc(words, sizeof *bits);
	json_t *o = json_loads(options, 0, NULL);
	struct dcpd_gram *r = NULL;
	struct dcpd_err err = { 0 };
	struct dcpd_buf got = { 0 };
	struct dcpd_out *out = NULL;
	int rc, n = 0;

	ck_assert_msg(dcpd_gram_open(gs, o, parser, false, &r, &err) == 0,
	    "%s", err.text);
	ck_assert_ptr_nonnull(r);
	ck_assert_int_eq(dcpd_out_new(t, &oc, &out), 0);
	while ((rc = dcpd_gram_mask(r, bits)) == 0) {
		uint32_t some = 0, id, pick;

		for (uint32_t i = 0; i < words; i++)
			some += (uint32_t)__builtin_popcount(bits[i]);
		ck_assert_uint_gt(some, 0);
		pick = (uint32_t)rand() % some;
		for (id = 0; !(bits[id / 32] >> id % 32 & 1) || pick-- > 0;
		    id++)
			;
		ck_assert_int_eq(dcpd_gram_push(r, id), 0);
		ck_assert_int_eq(dcpd_out_push(out, id, note, &got), 0);
		ck_assert_int_lt(n++, 200);
	}
	ck_assert_int_eq(rc, 1);
	dcpd_buf_add(&got, "", 1);
	if (name != NULL)
		ck_assert_str_eq(got.v, name);
	else
		ck_assert_msg(strcmp(got.v, "get") == 0 ||
		    strcmp(got.v, "get_time") == 0, "%s", got.v);
	dcpd_out_free(out);
	dcpd_buf_free(&got);
	dcpd_gram_close(r);
	json_decref(o);
	free(bits);
}

#define TOOL(n) "{\"type\":\"function\",\"function\":{\"name\":\"" n "\"," \
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}"
#define TOOLS "\"parallel_tool_calls\":false,\"tools\":[" TOOL("get") "," \
    TOOL("get_time") "]"

START_TEST(a_forced_call_has_one_of_the_names)
{
	static const struct {
		const char *dir;
		enum dcpd_parser parser;
	} k[] = {
		{ "tests/data/tok/tok-glm", DCPD_PARSE_GLM },
		{ "tests/data/tok/tok-ds", DCPD_PARSE_DSV32 },
		{ "models/dcp-tiny", DCPD_PARSE_GLM },
	};

	for (unsigned i = 0; i < 3; i++) {
		struct dcpd_tokenizer *t = text_tokenizer(k[i].dir);
		struct dcpd_grams *gs;
		uint32_t eos = 0;

		ck_assert_int_eq(dcpd_grams_new(t, dcpd_token_limit(t), &eos,
		    1, &gs), 0);
		for (int n = 0; n < 20; n++) {
			forced(gs, t, k[i].parser, "{" TOOLS ","
			    "\"tool_choice\":\"required\"}", NULL);
			forced(gs, t, k[i].parser, "{" TOOLS ","
			    "\"tool_choice\":" TOOL("get") "}", "get");
			forced(gs, t, k[i].parser, "{" TOOLS ","
			    "\"tool_choice\":" TOOL("get_time") "}",
			    "get_time");
		}
		dcpd_grams_free(gs);
		dcpd_tokenizer_close(t);
	}
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("gram");
	TCase *t = tcase_create("texts");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, any_object_is_an_object_and_nothing_else);
	tcase_add_test(t, white_space_is_bounded);
	tcase_add_test(t, properties_come_in_order_and_only_those);
	tcase_add_test(t, other_names_are_none_of_the_properties);
	tcase_add_test(t, arrays_count);
	tcase_add_test(t, numbers_stay_within_their_bounds);
	tcase_add_test(t, every_integer_of_many_ranges);
	tcase_add_test(t, every_decimal_of_many_ranges);
	tcase_add_test(t, strings_count_characters_not_bytes);
	tcase_add_test(t, alternatives_stay_open_until_they_differ);
	tcase_add_test(t, depth_is_bounded_and_leaves_a_way_out);
	suite_add_tcase(s, t);
	t = tcase_create("masks");
	tcase_set_timeout(t, 300);
	tcase_add_test(t, a_mask_is_what_trying_every_token_gives);
	tcase_add_test(t, a_remembered_mask_is_the_same);
	tcase_add_test(t, a_forced_call_has_one_of_the_names);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
