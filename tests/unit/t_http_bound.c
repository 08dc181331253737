/*
 * The bound of answers in memory: the largest ends, whether it is gathered
 * still or on its way out, until the rest fits; and since the error that is
 * then told is an answer that is bounded, too, never inside of itself.
 */
#include "config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/http/call.h"
#include "plugins/http/engine.h"

#define GENS 1000u
#define CONNS (GENS + 8)	/* the first are the gens' */
#define ERROR 200u		/* bytes of the answer that says so */

struct conn {			/* what server.c keeps is its own */
	uint64_t leaving;
	uint32_t cut;
};

/* --- what bound.c calls --------------------------------------------------- */

static struct gen gens[GENS];
static struct gen_list list;
static struct conn conns[CONNS];
static struct http http;
static uint32_t dropped, depth, deepest;
static uint64_t last;		/* bytes of what was dropped before */

struct gen_list *
engine_gens(struct engine *e)
{
	return &list;
}

uint64_t
server_largest(const struct server *s, struct conn **out)
{
	*out = NULL;
	for (uint32_t i = 0; i < CONNS; i++)
		if (conns[i].leaving > (*out != NULL ? (*out)->leaving : 0))
			*out = &conns[i];
	return *out != NULL ? (*out)->leaving : 0;
}

static void
is_next(uint64_t bytes)
{
	ck_assert_uint_le(bytes, last);
	last = bytes;
	dropped++;
}

void
server_cut_off(struct conn *c)
{
	is_next(c->leaving);
	http.answers -= c->leaving;
	c->leaving = 0;
	c->cut++;
}

/* As generate.c and server.c: it is forgotten, then an error goes out, which is
 * counted, and whoever counts calls gen_bound. */
void
gen_drop(struct gen *g)
{
	deepest = ++depth > deepest ? depth : deepest;
	is_next(g->gathered);
	http.answers -= g->gathered;
	g->gathered = 0;
	g->finished = true;
	http.answers += ERROR;
	conns[g - gens].leaving = ERROR;
	gen_bound(&http);
	depth--;
}

void
http_log(const struct http *h, int priority, const char *fmt, ...)
{
}

/* --- tests ---------------------------------------------------------------- */

/* Answers of 1000, 1001 .. bytes, the largest in the middle. */
static void
gathered(uint32_t n)
{
	memset(gens, 0, sizeof gens);
	memset(conns, 0, sizeof conns);
	TAILQ_INIT(&list);
	http = (struct http){ .cfg.max_answers = UINT64_MAX };
	for (uint32_t i = 0; i < n; i++) {
		gens[i].gathered = 1000 + (i + n / 2) % n;
		http.answers += gens[i].gathered;
		TAILQ_INSERT_TAIL(&list, &gens[i], link);
	}
	dropped = depth = deepest = 0;
	last = UINT64_MAX;
}

START_TEST(what_fits_stays)
{
	gathered(GENS);
	http.cfg.max_answers = http.answers;
	gen_bound(&http);
	ck_assert_uint_eq(dropped, 0);
	http.cfg.max_answers--;
	gen_bound(&http);
	ck_assert_uint_eq(dropped, 1);
	ck_assert(gens[GENS / 2 - 1].finished);	/* the largest, alone */
}
END_TEST

/* A reload can bring a bound below what is there, so that many go at once. */
START_TEST(many_that_end_at_once_do_not_end_inside_of_each_other)
{
	gathered(GENS);
	http.cfg.max_answers = http.answers / 2;
	gen_bound(&http);
	ck_assert_uint_gt(dropped, GENS / 4);
	ck_assert_uint_le(http.answers, http.cfg.max_answers);
	ck_assert_uint_eq(deepest, 1);
}
END_TEST

START_TEST(it_bounds_again_and_again)
{
	gathered(GENS);
	for (uint64_t most = http.answers - 1; most > 400000; most -= 50000) {
		http.cfg.max_answers = most;
		last = UINT64_MAX;
		gen_bound(&http);
		ck_assert_uint_le(http.answers, most);
	}
	ck_assert_uint_eq(deepest, 1);
}
END_TEST

START_TEST(a_client_that_takes_nothing_pays_if_it_has_the_largest)
{
	gathered(10);
	conns[GENS].leaving = 5000;
	conns[GENS + 1].leaving = 900;
	http.answers += 5900;
	http.cfg.max_answers = http.answers - 5001;
	gen_bound(&http);
	ck_assert_uint_eq(conns[GENS].cut, 1);
	ck_assert_uint_eq(conns[GENS + 1].cut, 0);
	ck_assert_uint_eq(dropped, 2);
	ck_assert(gens[4].finished);
}
END_TEST

/* Errors that nobody takes are cut off as well: it ends, and not for ever. */
START_TEST(it_ends_when_nothing_is_left)
{
	gathered(10);
	http.answers += 77;		/* of nobody */
	for (int i = 1; i < 3; i++) {
		http.cfg.max_answers = 76;
		last = UINT64_MAX;
		gen_bound(&http);
		ck_assert_uint_eq(http.answers, 77);
		conns[GENS].leaving = 50;
		http.answers += 50;
	}
	ck_assert_uint_eq(conns[GENS].cut, 1);
	ck_assert_uint_eq(deepest, 1);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("http_bound");
	TCase *t = tcase_create("bound");
	SRunner *r;
	int failed;

	tcase_add_test(t, what_fits_stays);
	tcase_add_test(t,
	    many_that_end_at_once_do_not_end_inside_of_each_other);
	tcase_add_test(t, it_bounds_again_and_again);
	tcase_add_test(t,
	    a_client_that_takes_nothing_pays_if_it_has_the_largest);
	tcase_add_test(t, it_ends_when_nothing_is_left);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
