/*
 * The output parser. Each case is run from two tokenisations of the same
 * text, as the tokenizer cuts it and byte by byte, and must give the same;
 * so where tokens end, also in the middle of a character, never matters.
 */
#include "config.h"

#include <check.h>
#include <errno.h>

#include "dcpd/text/buf.h"
#include "tests/unit/text_util.h"

/*
 * Output as text: [R] reasoning, [C] content, [N0] name and [A0] arguments of
 * call 0. Pieces of one channel in a row are joined; each must be UTF-8.
 */
struct transcript {
	struct dcpd_buf text;
	uint32_t channel, call;
	unsigned pieces;
};

static int
record(void *arg, uint32_t channel, uint32_t call, const char *s, size_t n)
{
	struct transcript *t = arg;
	char head[16];

	ck_assert_uint_gt(n, 0);
	ck_assert_uint_lt(channel, 4);
	if (t->pieces++ == 0 || channel != t->channel || call != t->call) {
		if (channel < DCP_CH_TOOL_NAME)
			snprintf(head, sizeof head, "[%c]", "CR"[channel]);
		else
			snprintf(head, sizeof head, "[%c%u]",
			    "NA"[channel - DCP_CH_TOOL_NAME], call);
		dcpd_buf_str(&t->text, head);
	}
	t->channel = channel;
	t->call = call;
	dcpd_buf_add(&t->text, s, n);
	return 0;
}

struct how {
	enum dcpd_parser parser;
	bool thinking, special, cut;	/* cut: no dcpd_out_finish */
	bool one;			/* call, and that is all */
	const char *tools;
	const char *stop[4];
	uint32_t min;			/* tokens */
};

static char *
run(const struct dcpd_tokenizer *t, const struct how *how,
    const struct dcpd_ids *ids)
{
	struct dcpd_out_config c = { .parser = how->parser,
		.thinking = how->thinking, .special = how->special,
		.one_call = how->one, .min_tokens = how->min };
	struct transcript tr = { 0 };
	struct dcpd_out *o = NULL;
	json_t *tools = NULL;
	int rc = 0;
	size_t i;

	if (how->tools != NULL) {
		tools = json_loads(how->tools, 0, NULL);
		ck_assert_ptr_nonnull(tools);
	}
	c.tools = tools;
	c.stop = (char *const *)how->stop;
	while (c.n_stop < 4 && how->stop[c.n_stop] != NULL)
		c.n_stop++;
	ck_assert_int_eq(dcpd_out_new(t, &c, &o), 0);
	for (i = 0; i < ids->n && rc == 0; i++)
		rc = dcpd_out_push(o, ids->v[i], record, &tr);
	ck_assert_int_ge(rc, 0);
	if (!how->cut)
		ck_assert_int_eq(dcpd_out_finish(o, record, &tr), 0);
	if (rc == 1)
		dcpd_buf_str(&tr.text, "[STOP]");
	dcpd_out_free(o);
	json_decref(tools);
	return dcpd_buf_take(&tr.text);
}

static void
encode(const struct dcpd_tokenizer *t, const char *s, struct dcpd_ids *ids)
{
	struct dcpd_err err = { 0 };

	ck_assert_msg(dcpd_encode(t, s, strlen(s), 0, SIZE_MAX, ids, &err) ==
	    0, "%s", err.text);
}

static void
expect(const struct dcpd_tokenizer *t, const struct how *how, const char *s,
    const char *want)
{
	struct dcpd_ids ids = { 0 }, bytes = { 0 };
	char *got;

	encode(t, s, &ids);
	got = run(t, how, &ids);
	ck_assert_msg(strcmp(got, want) == 0, "\n in  %s\n got %s\n not %s", s,
	    got, want);
	free(got);
	text_into_bytes(t, &ids, &bytes);
	got = run(t, how, &bytes);
	ck_assert_msg(strcmp(got, want) == 0,
	    "byte by byte\n in  %s\n got %s\n not %s", s, got, want);
	free(got);
	dcpd_ids_free(&bytes);
	dcpd_ids_free(&ids);
}

static struct dcpd_tokenizer *glm, *ds;

static void
setup(void)
{
	glm = text_tokenizer("tests/data/tok/tok-glm");
	ds = text_tokenizer("tests/data/tok/tok-ds");
}

static void
teardown(void)
{
	dcpd_tokenizer_close(glm);
	dcpd_tokenizer_close(ds);
}

static const char tools[] = "[{\"type\":\"function\",\"function\":{"
    "\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
    "\"b\":{\"type\":\"boolean\"},\"n\":{\"type\":\"number\"},"
    "\"o\":{\"type\":\"object\"},\"l\":{\"type\":\"array\"},"
    "\"u\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},"
    "\"z\":{\"type\":[\"string\",\"null\"]},"
    "\"e\":{\"enum\":[\"1\",\"2\"]},\"c\":{\"const\":7},"
    "\"r\":{\"$ref\":\"#/$defs/T\"},\"x\":{}},"
    "\"$defs\":{\"T\":{\"type\":\"string\"}}}}}]";

#define CALL(args) "<tool_call>f" args "</tool_call>"
#define ARG(k, v) "<arg_key>" k "</arg_key><arg_value>" v "</arg_value>"

static const struct how think = { .parser = DCPD_PARSE_GLM, .thinking = true,
	.tools = tools };
static const struct how plain = { .parser = DCPD_PARSE_GLM, .tools = tools };

START_TEST(glm_reasoning_and_content)
{
	expect(glm, &think, "Let me see.</think>42", "[R]Let me see.[C]42");
	expect(glm, &think, "<think>a</think>b", "[R]a[C]b");
	expect(glm, &think, "\n<think>a</think>b", "[R]\na[C]b");
	expect(glm, &think, "</think>b", "[C]b");
	expect(glm, &plain, "42", "[C]42");
	expect(glm, &plain, "<think>a</think>b", "[R]a[C]b");
	/* A second end mark says nothing; a second begin is text. */
	expect(glm, &think, "a</think>b</think>c", "[R]a[C]bc");
	expect(glm, &think, "a<think>b</think>c", "[R]a<think>b[C]c");
	/* Special tokens are no text. */
	expect(glm, &think, "a</think>b<|user|>", "[R]a[C]b");
}
END_TEST

/* A model that never says </think> has only reasoned. */
START_TEST(glm_without_end_of_thinking_all_is_reasoning)
{
	expect(glm, &think, "The answer is 42.", "[R]The answer is 42.");
}
END_TEST

START_TEST(glm_calls)
{
	expect(glm, &think, "x</think>" CALL(ARG("s", "Paris")),
	    "[R]x[N0]f[A0]{\"s\": \"Paris\"}");
	expect(glm, &plain, "Look: " CALL(ARG("s", "a") ARG("i", "3")),
	    "[C]Look: [N0]f[A0]{\"s\": \"a\", \"i\": 3}");
	/* no arguments */
	expect(glm, &plain, CALL(""), "[N0]f[A0]{}");
	expect(glm, &plain, "<tool_call>\n f \n</tool_call>", "[N0]f[A0]{}");
	/* two calls; white space between and after belongs to none */
	expect(glm, &plain, CALL("") "\n" CALL(ARG("i", "1")) "\n",
	    "[N0]f[A0]{}[N1]f[A1]{\"i\": 1}");
	expect(glm, &plain, CALL("") "\nDone.", "[N0]f[A0]{}[C]\nDone.");
	/* a call within reasoning ends it */
	expect(glm, &think, "hm <tool_call>f</tool_call>",
	    "[R]hm [N0]f[A0]{}");
	/* names and keys are trimmed, values are not */
	expect(glm, &plain, "<tool_call>f\n<arg_key>s\n</arg_key>\n"
	    "<arg_value> a \n</arg_value>\n</tool_call>",
	    "[N0]f[A0]{\"s\": \" a \\n\"}");
	/* an undeclared function is the client's to refuse */
	expect(glm, &plain, "<tool_call>get_weather" ARG("s", "5")
	    "</tool_call>", "[N0]get_weather[A0]{\"s\": 5}");
	/* no name, no call */
	expect(glm, &plain, "<tool_call></tool_call>x", "[C]x");
	/* what is not closed ends where the next begins */
	expect(glm, &plain, "<tool_call>f<tool_call>g</tool_call>",
	    "[N0]f[A0]{}[N1]g[A1]{}");
	expect(glm, &plain, "<tool_call>f<arg_key>i</arg_key><arg_value>7"
	    "</tool_call>", "[N0]f[A0]{\"i\": 7}");
	/* an end of turn closes a call, too */
	expect(glm, &plain, "<tool_call>f" ARG("i", "7") "<|observation|>",
	    "[N0]f[A0]{\"i\": 7}");
	/* the first end of a value counts; other marks in it are text */
	expect(glm, &plain, CALL(ARG("s", "a <think> </think> <arg_key> b")),
	    "[N0]f[A0]{\"s\": \"a <think> </think> <arg_key> b\"}");
	/* marks that mean nothing in content are text */
	expect(glm, &plain, "a <arg_key> b </tool_call>",
	    "[C]a <arg_key> b </tool_call>");
}
END_TEST

START_TEST(glm_values_by_schema)
{
	static const struct { const char *k, *v, *want; } c[] = {
		{ "s", "12", "\"12\"" },
		{ "s", "true", "\"true\"" },
		{ "s", "\"q\"", "\"\\\"q\\\"\"" },
		{ "s", "a\tb\n\\ \x01", "\"a\\tb\\n\\\\ \\u0001\"" },
		{ "s", "", "\"\"" },
		{ "i", "12", "12" },
		{ "i", " -3\n", "-3" },
		{ "i", "\"12\"", "12" },
		{ "i", "123456789012345678901234567890",
		    "123456789012345678901234567890" },
		{ "i", "twelve", "\"twelve\"" },
		{ "b", "true", "true" },
		{ "b", "True", "true" },
		{ "b", "\"false\"", "false" },
		{ "n", "1.50", "1.50" },
		{ "n", "2", "2" },
		{ "o", "{\"a\": [1, 2]}", "{\"a\": [1, 2]}" },
		{ "o", "{'a': 'it\\'s \"x\"', 'b': None,}",
		    "{\"a\": \"it's \\\"x\\\"\", \"b\": null}" },
		{ "o", "{\\\"a\\\": 1}", "{\"a\": 1}" },
		{ "l", "(1, 2)", "[1, 2]" },
		{ "l", "[1,\n 2]", "[1,\n 2]" },
		{ "u", "12", "12" },
		{ "u", "12a", "\"12a\"" },
		{ "u", "-18446744073709551616", "-18446744073709551616" },
		{ "u", "1e3", "\"1e3\"" },
		{ "z", "null", "null" },
		{ "z", "5", "\"5\"" },
		{ "e", "1", "\"1\"" },
		{ "c", "7", "7" },
		{ "r", "7", "\"7\"" },
		{ "x", "7", "7" },
		{ "x", "seven", "\"seven\"" },
		{ "x", "[1", "\"[1\"" },
		{ "undeclared", "null", "null" },
	};
	char in[512], want[512];
	size_t i;

	for (i = 0; i < sizeof c / sizeof *c; i++) {
		json_t *v;

		snprintf(in, sizeof in, "<tool_call>f<arg_key>%s</arg_key>"
		    "<arg_value>%s</arg_value></tool_call>", c[i].k, c[i].v);
		snprintf(want, sizeof want, "[N0]f[A0]{\"%s\": %s}", c[i].k,
		    c[i].want);
		expect(glm, &plain, in, want);
		v = json_loads(want + 9, JSON_DECODE_INT_AS_REAL, NULL);
		ck_assert_msg(v != NULL, "%s", want + 9);
		json_decref(v);
	}
}
END_TEST

/* A schema that refers to itself a thousandfold costs no time. */
START_TEST(glm_endless_schema)
{
	json_t *any = json_array(), *all;
	struct how how = { .parser = DCPD_PARSE_GLM };
	char *s;
	int i;

	for (i = 0; i < 100; i++)
		json_array_append_new(any, json_pack("{s:s}", "$ref",
		    "#/properties/i"));
	all = json_pack("[{s:s, s:{s:s, s:{s:{s:{s:O}}}}}]", "type",
	    "function", "function", "name", "f", "parameters", "properties",
	    "i", "anyOf", any);
	ck_assert_ptr_nonnull(all);
	how.tools = s = json_dumps(all, 0);
	expect(glm, &how, CALL(ARG("i", "5")), "[N0]f[A0]{\"i\": 5}");
	free(s);
	json_decref(all);
	json_decref(any);
}
END_TEST

/* Strings come as they are written, other values when they are complete. */
START_TEST(glm_what_a_cut_call_has_sent)
{
	expect(glm, &plain, "<tool_call>f<arg_key>s</arg_key><arg_value>Par",
	    "[N0]f[A0]{\"s\": \"Par");
	expect(glm, &plain, "<tool_call>f<arg_key>i</arg_key><arg_value>12",
	    "[N0]f");
	expect(glm, &plain, "<tool_call>f" ARG("i", "12") "<arg_key>s",
	    "[N0]f[A0]{\"i\": 12");
	expect(glm, &plain, "<tool_call>get_wea", "");
}
END_TEST

START_TEST(stop_strings)
{
	struct how how = { .parser = DCPD_PARSE_GLM, .thinking = true,
		.stop = { "END", "\n\n" } };
	struct how raw = { .parser = DCPD_PARSE_RAW, .stop = { "END" } };
	struct how lap = { .parser = DCPD_PARSE_RAW,
		.stop = { "aab", "abcd", "bc" } };

	/* over several tokens, at the very start, at the end */
	expect(glm, &how, "r</think>one END two", "[R]r[C]one [STOP]");
	expect(glm, &how, "r</think>END", "[R]r[STOP]");
	expect(glm, &how, "r</think>a\n\nb", "[R]r[C]a[STOP]");
	/* not in reasoning; everywhere when raw */
	expect(glm, &how, "r END\n\n</think>x", "[R]r END\n\n[C]x");
	expect(glm, &raw, "r END</think>x", "[C]r [STOP]");
	/* a beginning that comes to nothing is shown */
	expect(glm, &how, "r</think>EN", "[R]r[C]EN");
	expect(glm, &how, "r</think>EN<tool_call>f</tool_call>D",
	    "[R]r[C]EN[N0]f[A0]{}[C]D");
	expect(glm, &raw, "ENEND", "[C]EN[STOP]");
	/* marks that put nothing between do not hide one */
	expect(glm, &how, "r</think>EN<think></think>D", "[R]r[STOP]");
	expect(glm, &how, "r</think>EN<tool_call></tool_call>D", "[R]r[STOP]");
	/* overlapping: the first to be complete counts, whole of it */
	expect(glm, &lap, "xaaab", "[C]xa[STOP]");
	expect(glm, &lap, "abcd", "[C]a[STOP]");
	expect(glm, &lap, "aabc", "[STOP]");
	/* also when one token ("turn") completes two of them */
	lap.stop[0] = "turn";
	lap.stop[1] = "u";
	lap.stop[2] = "tu";
	expect(glm, &lap, "return", "[C]re[STOP]");
	lap.stop[2] = NULL;
	expect(glm, &lap, "return", "[C]ret[STOP]");
}
END_TEST

/*
 * A token a byte: min tokens are min bytes. What is whole by then is text, also
 * where a longer one goes on from it; what a later byte completes ends the
 * answer, wherever it began.
 */
START_TEST(no_stop_string_ends_before_min_tokens)
{
	static const struct {
		uint32_t min;
		const char *text, *want;
	} c[] = {
		{ 0, "xEND.END.", "[C]x[STOP]" },
		{ 3, "xEND.END.", "[C]x[STOP]" },
		{ 4, "xEND.END.", "[C]xEND.[STOP]" },
		{ 7, "xEND.END.", "[C]xEND.[STOP]" },
		{ 8, "xEND.END.", "[C]xEND.END." },
		{ 9, "xEND.END.", "[C]xEND.END." },
		{ 90, "xEND.END.", "[C]xEND.END." },
		{ 3, "ENDEND", "[C]END[STOP]" },
		{ 2, "ababab", "[C]ab[STOP]" },
		{ 2, "abcx", "[C][STOP]" },
		{ 3, "abcab", "[C]abc[STOP]" },
		{ 2, "abxx", "[C]abxx" },
		{ 1, "abxx", "[C][STOP]" },
		{ 6, "aaabcE", "[C]aaabcE" },
	};
	size_t k;

	for (k = 0; k < sizeof c / sizeof *c; k++) {
		struct how how = { .parser = DCPD_PARSE_RAW, .min = c[k].min,
			.stop = { "END", "ab", "abc" } };
		struct dcpd_ids ids = { 0 }, bytes = { 0 };
		char *got;

		encode(glm, c[k].text, &ids);
		text_into_bytes(glm, &ids, &bytes);
		ck_assert_uint_eq(bytes.n, strlen(c[k].text));
		got = run(glm, &how, &bytes);
		if (strncmp(got, "[C]", 3) != 0) {	/* but an end */
			ck_assert_str_eq(c[k].want, "[C][STOP]");
			ck_assert_str_eq(got, "[STOP]");
		} else {
			ck_assert_msg(strcmp(got, c[k].want) == 0, "%s, %u: %s",
			    c[k].text, c[k].min, got);
		}
		free(got);
		dcpd_ids_free(&ids);
		dcpd_ids_free(&bytes);
	}
}
END_TEST

/* Newlines that waited for a call are still of the tokens that they came in. */
START_TEST(min_tokens_count_what_waits)
{
	static const struct {
		uint32_t min;
		const char *want;
	} c[] = {
		{ 0, "[C]ab[STOP]" },
		{ 3, "[C]ab[STOP]" },
		{ 4, "[C]ab\n\ncd" },
		{ 5, "[C]ab\n\ncd" },
	};
	size_t k;

	for (k = 0; k < sizeof c / sizeof *c; k++) {
		struct how how = { .parser = DCPD_PARSE_DSV32,
			.min = c[k].min, .stop = { "\n\n" } };
		struct dcpd_ids ids = { 0 }, bytes = { 0 };
		char *got;

		encode(glm, "ab\n\ncd", &ids);
		text_into_bytes(glm, &ids, &bytes);
		ck_assert_uint_eq(bytes.n, 6);
		got = run(glm, &how, &bytes);
		ck_assert_msg(strcmp(got, c[k].want) == 0, "%u: %s", c[k].min,
		    got);
		free(got);
		dcpd_ids_free(&ids);
		dcpd_ids_free(&bytes);
	}
}
END_TEST

/* And so is what waited as the beginning of a mark that it is not. */
START_TEST(min_tokens_count_a_mark_that_is_none)
{
	static const struct {
		uint32_t min;
		const char *stop, *want;
	} c[] = {
		{ 6, "<\uff5cD", "[C]ab[STOP]" },
		{ 7, "<\uff5cD", "[C]ab<\uff5cDcd" },
		{ 7, "Dc", "[C]ab<\uff5c[STOP]" },
		{ 8, "Dc", "[C]ab<\uff5cDcd" },
		{ 7, "c", "[C]ab<\uff5cD[STOP]" },
		{ 2, "b", "[C]ab<\uff5cDcd" },
	};
	size_t k;

	for (k = 0; k < sizeof c / sizeof *c; k++) {
		struct how how = { .parser = DCPD_PARSE_DSV32,
			.min = c[k].min, .stop = { c[k].stop } };
		struct dcpd_ids ids = { 0 }, bytes = { 0 };
		char *got;

		encode(glm, "ab<\uff5cDcd", &ids);
		text_into_bytes(glm, &ids, &bytes);
		ck_assert_uint_eq(bytes.n, 9);
		got = run(glm, &how, &bytes);
		ck_assert_msg(strcmp(got, c[k].want) == 0, "%s, %u: %s",
		    c[k].stop, c[k].min, got);
		free(got);
		dcpd_ids_free(&ids);
		dcpd_ids_free(&bytes);
	}
}
END_TEST

/* Reasoning's tokens count, its text is not looked at. */
START_TEST(min_tokens_count_reasoning)
{
	struct how how = { .parser = DCPD_PARSE_GLM, .thinking = true,
		.stop = { "END" } };
	static const char s[] = "thENDis</think>oEND and END";

	expect(glm, &how, s, "[R]thENDis[C]o[STOP]");
	how.min = 1;
	expect(glm, &how, s, "[R]thENDis[C]o[STOP]");
	how.min = 99;
	expect(glm, &how, s, "[R]thENDis[C]oEND and END");
}
END_TEST

/* Counted from 1; where several end at once, the longest. */
START_TEST(the_stop_string_that_matched_is_told)
{
	static const struct {
		const char *text;
		uint32_t which;
	} c[] = { { "xaaab", 1 }, { "abcd", 3 }, { "zabc", 3 }, { "qx", 0 },
		{ "1234", 4 }, { "ab", 0 } };
	char *stop[] = { "aab", "abcd", "bc", "234" };
	struct dcpd_out_config how = { .parser = DCPD_PARSE_RAW, .stop = stop,
		.n_stop = 4 };
	struct transcript tr = { 0 };
	struct dcpd_ids ids;
	struct dcpd_out *o;
	size_t i, k;
	int rc;

	for (k = 0; k < sizeof c / sizeof *c; k++) {
		ids = (struct dcpd_ids){ 0 };
		encode(glm, c[k].text, &ids);
		ck_assert_int_eq(dcpd_out_new(glm, &how, &o), 0);
		for (i = 0, rc = 0; i < ids.n && rc == 0; i++)
			rc = dcpd_out_push(o, ids.v[i], record, &tr);
		ck_assert_int_eq(rc, c[k].which > 0);
		ck_assert_msg(dcpd_out_stop(o) == c[k].which, "%s: %u",
		    c[k].text, dcpd_out_stop(o));
		dcpd_out_free(o);
		dcpd_ids_free(&ids);
	}
	free(dcpd_buf_take(&tr.text));
}
END_TEST

/* Nothing is held longer than it can still become a stop string. */
START_TEST(stop_strings_hold_no_more_than_needed)
{
	struct how how = { .parser = DCPD_PARSE_RAW, .cut = true,
		.stop = { "END" } };

	expect(glm, &how, "one EN", "[C]one ");
	expect(glm, &how, "one ENx", "[C]one ENx");
	how.stop[0] = NULL;
	expect(glm, &how, "one EN", "[C]one EN");
	how = (struct how){ .parser = DCPD_PARSE_GLM, .cut = true };
	expect(glm, &how, "one <tool_cal", "[C]one <tool_cal");
}
END_TEST

static void
push_bytes(const struct dcpd_tokenizer *t, const char *s, size_t n,
    bool cut, const char *want)
{
	struct dcpd_ids whole = { 0 }, bytes = { 0 };
	struct how how = { .parser = DCPD_PARSE_GLM, .cut = cut };
	char *got;

	/* a full text, cut into bytes and shortened */
	encode(t, s, &whole);
	text_into_bytes(t, &whole, &bytes);
	ck_assert_uint_ge(bytes.n, n);
	bytes.n = n;
	got = run(t, &how, &bytes);
	ck_assert_str_eq(got, want);
	free(got);
	dcpd_ids_free(&whole);
	dcpd_ids_free(&bytes);
}

START_TEST(emoji_across_tokens)
{
	static const char s[] = "a\U0001f600b";
	struct dcpd_ids ids = { 0 };
	struct how how = { .parser = DCPD_PARSE_GLM };
	char *got;

	expect(glm, &how, "\U0001f44d\U0001f3fd ok", "[C]\U0001f44d\U0001f3fd "
	    "ok");
	push_bytes(glm, s, 4, true, "[C]a");	/* held */
	push_bytes(glm, s, 4, false, "[C]a\ufffd");
	push_bytes(glm, s, 5, true, "[C]a\U0001f600");
	/* a mark in the middle of a character ends it */
	encode(glm, "\U0001f600", &ids);
	ids.n = 1;
	encode(glm, "<think>x", &ids);
	got = run(glm, &how, &ids);
	ck_assert_str_eq(got, "[C]\ufffd[R]x");
	free(got);
	dcpd_ids_free(&ids);
}
END_TEST

START_TEST(special_tokens_shown_on_demand)
{
	struct how how = { .parser = DCPD_PARSE_GLM, .special = true };

	expect(glm, &how, "a<think>b</think><|user|>",
	    "[C]a<think>b</think><|user|>");
	how = (struct how){ .parser = DCPD_PARSE_RAW };
	expect(glm, &how, "a<think>b</think><|user|>",
	    "[C]a<think>b</think>");
}
END_TEST

/* GLM's marks where the vocabulary does not have them as tokens. */
START_TEST(glm_marks_in_plain_text)
{
	expect(ds, &think, "r</think>a " CALL(ARG("s", "x") ARG("i", "1"))
	    "\n" CALL("") "b < c", "[R]r[C]a [N0]f[A0]{\"s\": \"x\", \"i\": 1}"
	    "[N1]f[A1]{}[C]b < c");
	expect(ds, &think, "r</think>a <tool_cal", "[R]r[C]a <tool_cal");
}
END_TEST

#define D "\uff5cDSML\uff5c"
#define DCALLS(x) "\n\n<" D "function_calls>\n" x "</" D "function_calls>"
#define DINV(n, x) "<" D "invoke name=\"" n "\">\n" x "</" D "invoke>\n"
#define DPAR(n, s, v) "<" D "parameter name=\"" n "\" string=\"" s "\">" v \
	"</" D "parameter>\n"

START_TEST(dsml_calls)
{
	struct how t = { .parser = DCPD_PARSE_DSV32, .thinking = true };
	struct how p = { .parser = DCPD_PARSE_DSV32 };

	expect(ds, &t, "r</think>a" DCALLS(DINV("f", DPAR("s", "true", "x\"y")
	    DPAR("i", "false", "3")) DINV("g", "")),
	    "[R]r[C]a[N0]f[A0]{\"s\": \"x\\\"y\", \"i\": 3}[N1]g[A1]{}");
	expect(ds, &t, "only reasoning", "[R]only reasoning");
	expect(ds, &p, DINV("f", DPAR("a>b", "false", "3")),
	    "[N0]f[A0]{\"a>b\": 3}");
	/* within reasoning */
	expect(ds, &t, "r" DCALLS(DINV("f", "")), "[R]r\n\n[N0]f[A0]{}");
	/* a bare invoke is a call */
	expect(ds, &p, "a\n\n" DINV("f", ""), "[C]a[N0]f[A0]{}");
	/* not closed: section, invoke, parameter */
	expect(ds, &p, "\n\n<" D "function_calls>\n" DINV("f",
	    DPAR("i", "false", "1")), "[N0]f[A0]{\"i\": 1}");
	expect(ds, &p, "<" D "invoke name=\"f\">\n" DPAR("i", "false", "1")
	    DINV("g", ""), "[N0]f[A0]{\"i\": 1}[N1]g[A1]{}");
	expect(ds, &p, "<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" "
	    "string=\"true\">v\n</" D "invoke>", "[N0]f[A0]{\"s\": \"v\\n\"}");
	/* a malformed sibling does not spoil the others */
	expect(ds, &p, DCALLS(DINV("f", "") "<" D "invoke nam=\"g\">\n</" D
	    "invoke>\n"), "[N0]f[A0]{}[C]<" D "invoke nam=\"g\">\n\n");
	/* text that only looks like markup is shown, and not held for long */
	expect(ds, &p, "a <" D "> b", "[C]a <" D "> b");
	expect(ds, &p, "x < y\n\nz", "[C]x < y\n\nz");
	expect(ds, &p, "a\n\n", "[C]a\n\n");
	p.cut = true;
	expect(ds, &p, "a <" D "x", "[C]a <" D "x");
	expect(ds, &p, "a <" D "inv", "[C]a ");
	expect(ds, &p, "a\n\n", "[C]a");
	/* the end of a parameter never leaks into its value */
	expect(ds, &p, "<" D "invoke name=\"f\"><" D "parameter name=\"s\" "
	    "string=\"true\">v</" D "para", "[N0]f[A0]{\"s\": \"v");
}
END_TEST

/* The answer ends with its first call, closed or not; none is none. */
START_TEST(one_call_is_all)
{
	struct how g = { .parser = DCPD_PARSE_GLM, .tools = tools,
		.one = true };
	struct how d = { .parser = DCPD_PARSE_DSV32, .one = true };

	expect(glm, &g, "a" CALL(ARG("s", "x")) CALL("") "b",
	    "[C]a[N0]f[A0]{\"s\": \"x\"}[STOP]");
	expect(glm, &g, "<tool_call>f" ARG("i", "1") CALL(""),
	    "[N0]f[A0]{\"i\": 1}[STOP]");
	expect(glm, &g, "a<tool_call>f" ARG("i", "1"),
	    "[C]a[N0]f[A0]{\"i\": 1");
	expect(glm, &g, "a</tool_call>b", "[C]a</tool_call>b");
	expect(ds, &d, "a" DCALLS(DINV("f", DPAR("i", "false", "3"))
	    DINV("g", "")) "b", "[C]a[N0]f[A0]{\"i\": 3}[STOP]");
	expect(ds, &d, "<" D "invoke name=\"f\">\n" DPAR("i", "false", "1")
	    DINV("g", ""), "[N0]f[A0]{\"i\": 1}[STOP]");
	expect(ds, &d, "just text", "[C]just text");
}
END_TEST

START_TEST(counts)
{
	struct dcpd_out_config c = { .parser = DCPD_PARSE_GLM,
		.thinking = true };
	struct dcpd_ids ids = { 0 };
	struct transcript tr = { 0 };
	struct dcpd_out *o = NULL;
	size_t i, n;

	encode(glm, "abc", &ids);
	n = ids.n;
	encode(glm, "</think>xyz" CALL("") CALL(""), &ids);
	ck_assert_int_eq(dcpd_out_new(glm, &c, &o), 0);
	for (i = 0; i < ids.n; i++)
		ck_assert_int_eq(dcpd_out_push(o, ids.v[i], record, &tr), 0);
	ck_assert_uint_eq(dcpd_out_reasoning_tokens(o), n);
	ck_assert_uint_eq(dcpd_out_calls(o), 2);
	/* no such token: no text, no error */
	ck_assert_int_eq(dcpd_out_push(o, 1u << 30, record, &tr), 0);
	dcpd_out_free(o);
	dcpd_buf_free(&tr.text);
	dcpd_ids_free(&ids);
}
END_TEST

static int
refuse(void *arg, uint32_t channel, uint32_t call, const char *s, size_t n)
{
	return -EPIPE;
}

START_TEST(errors)
{
	struct dcpd_out_config c = { .parser = DCPD_PARSE_RAW, .n_stop = 1,
		.stop = (char *[]){ "" } };
	struct dcpd_ids ids = { 0 };
	struct dcpd_out *o = NULL;

	ck_assert_int_eq(dcpd_out_new(glm, &c, &o), -EINVAL);
	ck_assert_ptr_null(o);
	c.n_stop = 0;
	encode(glm, "a", &ids);
	ck_assert_int_eq(dcpd_out_new(glm, &c, &o), 0);
	ck_assert_int_eq(dcpd_out_push(o, ids.v[0], refuse, NULL), -EPIPE);
	dcpd_out_free(o);
	dcpd_ids_free(&ids);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("out");
	TCase *tc = tcase_create("out");
	SRunner *r;
	int bad;

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, glm_reasoning_and_content);
	tcase_add_test(tc, glm_without_end_of_thinking_all_is_reasoning);
	tcase_add_test(tc, glm_calls);
	tcase_add_test(tc, glm_values_by_schema);
	tcase_add_test(tc, glm_endless_schema);
	tcase_add_test(tc, glm_what_a_cut_call_has_sent);
	tcase_add_test(tc, stop_strings);
	tcase_add_test(tc, stop_strings_hold_no_more_than_needed);
	tcase_add_test(tc, no_stop_string_ends_before_min_tokens);
	tcase_add_test(tc, min_tokens_count_what_waits);
	tcase_add_test(tc, min_tokens_count_a_mark_that_is_none);
	tcase_add_test(tc, min_tokens_count_reasoning);
	tcase_add_test(tc, the_stop_string_that_matched_is_told);
	tcase_add_test(tc, emoji_across_tokens);
	tcase_add_test(tc, special_tokens_shown_on_demand);
	tcase_add_test(tc, glm_marks_in_plain_text);
	tcase_add_test(tc, dsml_calls);
	tcase_add_test(tc, one_call_is_all);
	tcase_add_test(tc, counts);
	tcase_add_test(tc, errors);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	bad = srunner_ntests_failed(r);
	srunner_free(r);
	return bad != 0;
}
