/* Trace files, the tokens of their ids, the pages of a perfect cache. */
#include "config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpctl/trace.h"

static int
load(const char *text, uint32_t sessions, uint32_t turns, uint32_t block,
    struct trace *t, struct trace_error *err)
{
	char path[] = "/tmp/t_trace.XXXXXX";
	int fd = mkstemp(path), rc;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	memset(err, 0, sizeof *err);
	rc = trace_load(path, sessions, turns, block, t, err);
	unlink(path);
	return rc;
}

#define LINE(in, out, ids) "{\"input_length\": " #in ", \"output_length\": " \
	#out ", \"hash_ids\": " ids "}\n"
#define TURN(id, in, ids) "{\"session_id\": " id ", \"input_length\": " #in \
	", \"output_length\": 3, \"hash_ids\": " ids "}\n"

START_TEST(a_wrong_line_is_named)
{
	static const struct {
		const char *text, *want;
	} bad[] = {
		{ LINE(64, 1, "[1]") "{\"input_length\"\n", ":2: " },
		{ "\n\n[1]\n", ":3: want a JSON object" },
		{ LINE(0, 1, "[]"), ":1: \"input_length\"" },
		{ LINE(16777217, 1, "[]"), ":1: \"input_length\"" },
		{ LINE(64.5, 1, "[1]"), ":1: \"input_length\"" },
		{ "{\"output_length\": 1, \"hash_ids\": []}\n",
		  ":1: \"input_length\"" },
		{ LINE(64, -1, "[1]"), ":1: \"output_length\"" },
		{ LINE(64, 1, "7"), ":1: \"hash_ids\": want an array" },
		{ LINE(2, 1, "[1, 2, 3]"), ":1: \"hash_ids\": 3 of them" },
		{ LINE(128, 1, "[1, \"x\"]"), ":1: \"hash_ids\"[1]" },
		{ TURN("[1]", 64, "[1]"), ":1: \"session_id\"" },
		{ LINE(64, 1, "[1]") LINE(6400, 1, "[1, 2]"),
		  ":2: 2 hash_ids for 6400 tokens: " },
		{ "\n", "no request" },
		{ "", "no request" },
	};
	struct trace_error err;
	struct trace t;

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		ck_assert_int_lt(load(bad[i].text, 0, 0, 0, &t, &err), 0);
		ck_assert_msg(strstr(err.text, bad[i].want) != NULL,
		    "%zu: \"%s\" has not \"%s\"", i, err.text, bad[i].want);
	}
	ck_assert_int_lt(load(LINE(64, 1, "[1]"), 0, 0, 16, &t, &err), 0);
	ck_assert_ptr_nonnull(strstr(err.text, "--block"));
	ck_assert_int_lt(trace_load("/nowhere/x", 0, 0, 0, &t, &err), 0);
	ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/x: No such file"));
}
END_TEST

START_TEST(lines_of_a_session_are_its_turns)
{
	static const char text[] =
	    TURN("1", 130, "[5, 6]") TURN("\"1\"", 64, "[9]")
	    TURN("1", 200, "[5, 6, 7]") LINE(70, 0, "[5]")
	    TURN("\"1\"", 140, "[8, 3]") TURN("1", 150, "[5, 6]")
	    LINE(70, 1, "[5]") TURN("1", 140, "[5, 6]");
	struct trace_error err;
	struct trace t;

	ck_assert_int_eq(load(text, 0, 0, 0, &t, &err), 0);
	ck_assert_uint_eq(t.n_sessions, 4);	/* 1, "1", two without */
	ck_assert_uint_eq(t.n_turns, 8);
	ck_assert_uint_eq(t.block, 64);
	ck_assert_uint_eq(t.session[0].n_turns, 4);
	ck_assert_uint_eq(t.session[1].n_turns, 2);
	ck_assert_uint_eq(t.session[0].turn[1].input, 200);
	ck_assert_uint_eq(t.session[0].turn[1].line, 3);
	ck_assert_int_eq(t.session[0].turn[1].ids[2], 7);
	ck_assert(!t.session[0].turn[0].follows);
	ck_assert(t.session[0].turn[1].follows);
	ck_assert(!t.session[0].turn[2].follows);	/* block 7 is gone */
	ck_assert(!t.session[0].turn[3].follows);	/* shorter */
	ck_assert(!t.session[1].turn[1].follows);	/* other text */
	trace_free(&t);
	ck_assert_int_eq(load(text, 2, 2, 0, &t, &err), 0);
	ck_assert_uint_eq(t.n_sessions, 2);
	ck_assert_uint_eq(t.n_turns, 4);
	trace_free(&t);
}
END_TEST

START_TEST(the_tokens_of_an_id_are_found)
{
	struct trace_error err;
	struct trace t;

	/* Mooncake's: the last, unfull block has an id as well. */
	ck_assert_int_eq(load(LINE(1100, 1, "[1, 2, 3]") LINE(512, 1, "[1]"),
	    0, 0, 0, &t, &err), 0);
	ck_assert_uint_eq(t.block, 512);
	trace_free(&t);
	ck_assert_int_eq(load(LINE(33, 1, "[1, 2]"), 0, 0, 0, &t, &err), 0);
	ck_assert_uint_eq(t.block, 16);
	trace_free(&t);
	ck_assert_int_eq(load(LINE(100, 1, "[1, 2, 3]"), 0, 0, 40, &t, &err),
	    0);
	ck_assert_uint_eq(t.block, 40);
	trace_free(&t);
}
END_TEST

static uint32_t
common(const uint32_t *a, const uint32_t *b, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && a[i] == b[i])
		i++;
	return i;
}

/* 5 ids, 3 of them shared: equal tokens up to there and never after. */
START_TEST(equal_ids_give_equal_tokens)
{
	static const double scale[] = { 1, .25, .07, 3, 1.0 / 3 };
	struct trace_text x = { .seed = 1, .vocab = 1u << 30 };
	struct trace_error err;
	uint32_t *a, *b, n, same;
	struct trace t;

	ck_assert_int_eq(load(LINE(330, 1, "[-1, 7, 3, 5, 6]")
	    LINE(330, 1, "[-1, 7, 3, 6, 5]"), 0, 0, 0, &t, &err), 0);
	for (size_t i = 0; i < sizeof scale / sizeof *scale; i++) {
		x.scale = scale[i];
		n = (uint32_t)trace_scaled(330, x.scale);
		a = calloc(n, sizeof *a);
		b = calloc(n, sizeof *b);
		trace_fill(&t, t.session[0].turn, 0, &x, 0, n, a);
		trace_fill(&t, t.session[1].turn, 1, &x, 0, n, b);
		/* Tokens p with p / scale < 192: 192 scale, rounded up. */
		same = (uint32_t)(192 * x.scale + .999999);
		ck_assert_uint_eq(common(a, b, n), same);
		/* The same again, and from the middle on */
		memset(b, 0, n * sizeof *b);
		trace_fill(&t, t.session[0].turn, 0, &x, n / 2, n, b);
		ck_assert_uint_eq(common(a + n / 2, b + n / 2, n - n / 2),
		    n - n / 2);
		ck_assert_uint_eq(b[n / 2 - 1], 0);
		/* Another's tail, and another seed */
		trace_fill(&t, t.session[0].turn, 1, &x, 0, n, b);
		ck_assert_uint_eq(common(a, b, n),
		    (uint32_t)(320 * x.scale + .999999));
		x.seed = 2;
		trace_fill(&t, t.session[0].turn, 0, &x, 0, n, b);
		ck_assert_uint_eq(common(a, b, n), 0);
		x.seed = 1;
		x.vocab = 11;
		trace_fill(&t, t.session[0].turn, 0, &x, 0, n, b);
		for (uint32_t k = 0; k < n; k++)
			ck_assert_uint_lt(b[k], 11);
		x.vocab = 1u << 30;
		free(a);
		free(b);
	}
	trace_free(&t);
}
END_TEST

START_TEST(lengths_are_scaled_to_whole_tokens)
{
	ck_assert_uint_eq(trace_scaled(100, .29), 29);	/* 28.999... */
	ck_assert_uint_eq(trace_scaled(10, .7), 7);
	ck_assert_uint_eq(trace_scaled(10, .75), 7);
	ck_assert_uint_eq(trace_scaled(10, .01), 1);
	ck_assert_uint_eq(trace_scaled(0, 5), 1);
	ck_assert_uint_eq(trace_scaled(1u << 24, 1e4), 167772160000u);
}
END_TEST

#define SEQS 200
#define SEQ_MAX 700

/* Against comparing with every sequence added before, token by token. */
START_TEST(pages_are_those_of_the_longest_prefix_seen)
{
	static uint32_t seq[SEQS][SEQ_MAX], len[SEQS];
	struct trace_pages pages = { 0 };
	uint32_t best, c, hits = 0;

	srand(5);
	for (uint32_t i = 0; i < SEQS; i++) {
		uint32_t of = i > 0 ? (uint32_t)rand() % i : 0;
		uint32_t keep = i > 0 ? (uint32_t)rand() % (len[of] + 1) : 0;

		/* Often whole pages: there the last token is left over. */
		len[i] = 1 + (uint32_t)rand() % SEQ_MAX;
		if (rand() % 2 == 0)
			len[i] = 64 * (1 + (uint32_t)rand() % (SEQ_MAX / 64));
		for (uint32_t k = 0; k < len[i]; k++)
			seq[i][k] = k < keep ? seq[of][k] :
			    (uint32_t)rand() % 5;
		best = 0;
		for (uint32_t j = 0; j < i; j++) {
			c = len[j] < len[i] ? len[j] : len[i];
			c = common(seq[i], seq[j], c) / 64 * 64;
			best = c > best ? c : best;
		}
		if (best == len[i])
			best -= 64;
		ck_assert_uint_eq(trace_pages_find(&pages, seq[i], len[i]),
		    best);
		hits += best > 0;
		ck_assert_int_eq(trace_pages_add(&pages, seq[i], len[i]), 0);
	}
	ck_assert_uint_gt(hits, 50);
	ck_assert_uint_gt(pages.cap, 2 * pages.n);
	trace_pages_free(&pages);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("trace");
	TCase *c = tcase_create("all");
	SRunner *r;
	int failed;

	tcase_add_test(c, a_wrong_line_is_named);
	tcase_add_test(c, lines_of_a_session_are_its_turns);
	tcase_add_test(c, the_tokens_of_an_id_are_found);
	tcase_add_test(c, equal_ids_give_equal_tokens);
	tcase_add_test(c, lengths_are_scaled_to_whole_tokens);
	tcase_add_test(c, pages_are_those_of_the_longest_prefix_seen);
	suite_add_tcase(s, c);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
