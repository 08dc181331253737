/*
 * One scheduler and one client, F: requests of plain ids, waiting until they
 * are encoded, and an end that leaves nothing behind.
 * Included by one program each; the test's thread.
 */
#ifndef SCHED_ONE_H
#define SCHED_ONE_H

#include <check.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/sched_fake.h"

#define VOCAB 1000u

static struct fk F;

static inline struct fk_req
tokens(const uint32_t *ids, uint32_t n, uint32_t max)
{
	return (struct fk_req){
		.ids = ids, .n = n, .max_tokens = max,
		.flags = DCP_IGNORE_EOS,
	};
}

static inline uint64_t
submit(const struct fk_req *q)
{
	struct dcpd_err err = { 0 };
	uint64_t id;
	int rc = fk_submit(F.s, F.c, q, &id, &err);

	ck_assert_msg(rc == 0, "%s", err.text);
	return id;
}

/* How many requests are live, and how many of them with the text workers. */
static inline unsigned
count_live(unsigned *text)
{
	json_t *list = dcpd_sched_requests(F.s), *o;
	unsigned live = (unsigned)json_array_size(list);
	size_t i;

	*text = 0;
	json_array_foreach(list, i, o)
		*text += strcmp(json_string_value(json_object_get(o,
		    "state")), "text") == 0;
	json_decref(list);
	return live;
}

/* Until n requests are live and none of them is with the text workers. */
static inline void
wait_encoded(unsigned n)
{
	unsigned text;

	while (count_live(&text) < n || text > 0)
		usleep(100);
}

/* Nothing lives, and all pages but cached ones are free. */
static inline void
expect_idle(void)
{
	struct dcpd_err err;

	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_msg(dcpd_sched_check(F.s, &err) == 0, "%s", err.text);
	ck_assert_int_eq(fk_status(&F, "pages_used"), 0);
	ck_assert_int_eq(fk_status(&F, "pages_free") +
	    fk_status(&F, "pages_cached"), F.e.e.pages);
}

static inline void
finish(void)
{
	expect_idle();
	fk_stop(&F);
}

#endif
