/*
 * The framing of requests: where a head ends, and which bodies in chunks are
 * ones. Each whole, and cut at every byte.
 */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/scan.h"

#define POST "POST / HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static struct scan
run(const char *p, size_t n, size_t cut)
{
	struct scan s;

	memset(&s, 0xff, sizeof s);
	scan_begin(&s);
	scan_bytes(&s, p, cut);
	scan_bytes(&s, p + cut, n - cut);
	return s;
}

static void
expect(const char *text, bool head_over, bool chunked, bool bad, bool looks)
{
	size_t n = strlen(text), cut;
	struct scan s;

	for (cut = 0; cut <= n; cut++) {
		s = run(text, n, cut);
		ck_assert_msg(s.head_over == head_over &&
		    s.chunked == chunked && s.bad == bad &&
		    scan_pass(&s, SIZE_MAX) == !looks,
		    "%s, cut at %zu: head_over %d, chunked %d, bad %d, looks "
		    "%d", text, cut, s.head_over, s.chunked, s.bad,
		    !looks);
	}
}

START_TEST(a_head_ends_with_an_empty_line)
{
	expect("", false, false, false, true);
	expect(POST, false, false, false, true);
	expect(POST "\r", false, false, false, true);
	expect(POST "\r\n", true, false, false, false);
	expect("GET / HTTP/1.1\n\n", true, false, false, false);
	/* What follows is a body of another kind, or the next request. */
	expect(POST "Content-Length: 3\r\n\r\n0x5\r\n", true, false, false,
	    false);
}
END_TEST

START_TEST(the_fields_name_is_looked_for)
{
	expect(POST "tRANSFER-eNCODING:chunked\r\n\r\n", true, true, false,
	    true);
	expect(POST "Transfer-Encoding:\r\n chunked\r\n\r\n", true, true,
	    false, true);
	expect(POST "X-Transfer-Encoding: chunked\r\n\r\n", true, false, false,
	    false);
	expect(POST "X: Transfer-Encoding: chunked\r\n\r\n", true, false,
	    false, false);
	expect(POST " Transfer-Encoding: chunked\r\n\r\n", true, false, false,
	    false);
	expect(POST "Transfer-Encodings: chunked\r\n\r\n", true, false, false,
	    false);
	expect(POST ":\r\n\r\n", true, false, false, false);
}
END_TEST

START_TEST(chunks_by_the_rfc_are_good)
{
	static const char *const good[] = {
		"0\r\n\r\n", "000\r\n\r\n", "5\r\nabcde\r\n0\r\n\r\n",
		"a\r\n0123456789\r\n0\r\n\r\n", "A\r\n0123456789\r\n0\r\n\r\n",
		"0005\r\n0x5\r\n\r\n0\r\n\r\n", "1\r\na\r\n1\r\nb\r\n0\r\n\r\n",
		"0000000000000002\r\n\r\n\r\n0\r\n\r\n",
		"0\r\nX: y\r\n\r\n", "0\r\nX: y\r\nZ: 0x5\r\n\r\n",
		/* behind the end: the next request */
		"0\r\n\r\n0x5\r\n",
	};
	char text[200];

	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		snprintf(text, sizeof text, "%s%s", CHUNKED, good[i]);
		expect(text, true, true, false, false);
	}
	expect(CHUNKED "5\r\nabcde", true, true, false, true);
	expect(CHUNKED "5\r\nabcde\r\n", true, true, false, true);
	expect(CHUNKED "0\r\n", true, true, false, true);
	expect(CHUNKED "0\r\nX: y\r\n", true, true, false, true);
	expect(CHUNKED "ffffffffffffffff\r\nabc", true, true, false, true);
}
END_TEST

/* What is in a chunk need not be looked at, up to its last byte. */
START_TEST(bytes_of_a_chunk_pass)
{
	struct scan s = run(CHUNKED "5\r\na", strlen(CHUNKED "5\r\na"), 0);

	ck_assert(!scan_pass(&s, 4));
	ck_assert(scan_pass(&s, 2));
	ck_assert(scan_pass(&s, 1));
	ck_assert(!scan_pass(&s, 1));
	scan_bytes(&s, "e\r\n0\r", 5);
	ck_assert(!scan_pass(&s, 1) && !s.bad);
	scan_bytes(&s, "\n\r\n", 3);
	ck_assert(scan_pass(&s, 100) && !s.bad);
}
END_TEST

START_TEST(what_only_looks_like_chunks_is_bad)
{
	static const char *const bad[] = {
		"0x5\r\nabcde\r\n0\r\n\r\n", "+5\r\nabcde\r\n0\r\n\r\n",
		" 5\r\nabcde\r\n0\r\n\r\n", "5 \r\nabcde\r\n0\r\n\r\n",
		"5 ;a\r\nabcde\r\n0\r\n\r\n", "5;a=b\r\nabcde\r\n0\r\n\r\n",
		"5 5\r\nabcde\r\n0\r\n\r\n", "-1\r\n", "z\r\n", "\r\n0\r\n\r\n",
		"\n0\r\n\r\n", "5\nabcde\r\n0\r\n\r\n", "5\r\nabcde0\r\n\r\n",
		"5\r\nabcde\n0\r\n\r\n", "5\r\nabcde\r\n\r\n0\r\n\r\n",
		"5\r\nabcdef\r\n0\r\n\r\n", "5\rabcde\r\n0\r\n\r\n",
		"00000000000000000\r\n\r\n", "0;a\r\n\r\n",
	};
	char text[200];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		snprintf(text, sizeof text, "%s%s", CHUNKED, bad[i]);
		expect(text, true, true, true, true);
	}
}
END_TEST

/* What is behind a bad size, up to what no line may be longer than. */
static bool
endless(const char *head, size_t n)
{
	static char fill[40000];
	struct scan s;

	memset(fill, 'e', sizeof fill);
	scan_begin(&s);
	scan_bytes(&s, CHUNKED, strlen(CHUNKED));
	scan_bytes(&s, head, strlen(head));
	while (n > 0) {
		size_t m = n < 1000 ? n : 1000;

		scan_bytes(&s, fill, m);
		n -= m;
	}
	ck_assert(s.bad);
	return s.endless;
}

/*
 * Which libevent would look through at each read, or waits for as for a body:
 * that ends with a refusal, if it ends.
 */
START_TEST(a_line_behind_a_bad_size_ends)
{
	static const char *const lines[] = {
		"5;", "0x", "z", "-", "5 ", "5\r", "00000000000000000",
		/* and in a later line, as libevent reads them */
		"0x5\r\nabcde\r\n5;", "+5\nabcde5;", " 5\r\nabcde\r\n\r\n5;",
		"5 junk\r\nabcde\n1\r\na\r\nz", "5\r\nabcde\n1\ra",
		"5\r\nabcde\rz", "0x0\r\nA: b\r\n\r\n",
		"00000000000000000005\nabcdez", "\r\n5\r\nabcde;",
	};

	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		ck_assert_msg(!endless(lines[i], SCAN_LINE_MAX - 100), "%s",
		    lines[i]);
		ck_assert_msg(endless(lines[i], SCAN_LINE_MAX + 1), "%s",
		    lines[i]);
	}
	/* A chunk is no line. */
	ck_assert(!endless("0x9000\r\n", 0x9000));
	ck_assert(!endless("9000 \r\n", 0x9000));
	ck_assert(endless("5 \r\n", 0x9000));
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("http_scan");
	TCase *t = tcase_create("scan");
	SRunner *r;
	int failed;

	tcase_add_test(t, a_head_ends_with_an_empty_line);
	tcase_add_test(t, the_fields_name_is_looked_for);
	tcase_add_test(t, chunks_by_the_rfc_are_good);
	tcase_add_test(t, bytes_of_a_chunk_pass);
	tcase_add_test(t, what_only_looks_like_chunks_is_bad);
	tcase_add_test(t, a_line_behind_a_bad_size_ends);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
