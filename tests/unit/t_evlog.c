/*
 * What libevent says comes to the host, and still does when a second plugin of
 * the process, as a check of a reload makes one, has come and gone.
 */
#include "config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/evlog.h"

static unsigned said;

static void
on_log(void *ctx, int level, const char *line)
{
	ck_assert_ptr_eq(ctx, &said);
	if (strncmp(line, "libevent: ", 10) == 0)
		said += level == LOG_WARNING;
}

/* It has words for a descriptor that is none. */
static unsigned
says(void)
{
	struct event_base *base = event_base_new();
	struct event *ev = event_new(base, 9999, EV_READ,
	    (event_callback_fn)abort, NULL);

	said = 0;
	ck_assert_int_ne(event_add(ev, NULL), 0);
	event_free(ev);
	event_base_free(base);
	return said;
}

START_TEST(a_second_one_comes_and_goes)
{
	struct dcp_host host = { .log = on_log, .ctx = &said };

	evlog_open(&host);
	ck_assert_uint_gt(says(), 0);
	evlog_open(&host);
	evlog_close();
	ck_assert_uint_gt(says(), 0);
	evlog_close();
	ck_assert_uint_eq(says(), 0);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("evlog");
	TCase *t = tcase_create("evlog");
	SRunner *r;
	int failed;

	tcase_add_test(t, a_second_one_comes_and_goes);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
