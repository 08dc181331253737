/*
 * Beside sched_one.h: a request's end as its client sees it, and a scheduler
 * that has nothing left. Included by one program each; the test's thread.
 */
#ifndef SCHED_LIFE_H
#define SCHED_LIFE_H

#include <stdlib.h>

#include "tests/unit/sched_one.h"

static inline uint64_t
submit_as(struct dcpd_client *c, const struct fk_req *q)
{
	struct dcpd_err err = { 0 };
	uint64_t id;
	int rc = fk_submit(F.s, c, q, &id, &err);

	ck_assert_msg(rc == 0, "%s", err.text);
	return id;
}

static inline void
cancel(uint64_t id)
{
	dcpd_sched_ipc_ops.cancel(F.s, fk_look(id).client, id);
}

static inline void
expect_tokens(uint64_t id, const struct fk_req *q)
{
	const struct fk_seen *f = fk_wait(id);
	uint32_t *want = calloc(q->max_tokens, sizeof *want);

	ck_assert_msg(f->error == 0, "%s", f->error_text);
	fk_expect(F.e.e.vocab, q->ids, q->n, NULL, UINT32_MAX, want,
	    q->max_tokens);
	ck_assert_uint_eq(f->n, q->max_tokens);
	ck_assert_mem_eq(f->tokens, want, f->n * sizeof *want);
	free(want);
}

static inline void
expect_abort(uint64_t id)
{
	const struct fk_seen *f = fk_wait(id);

	ck_assert_int_eq(f->error, 0);
	ck_assert_uint_eq(f->finish, DCP_FINISH_ABORT);
	ck_assert_uint_eq(f->usage.completion_tokens, f->n);
}

/* Nothing is left of any request, and the scheduler still answers. */
static inline void
expect_clean(void)
{
	uint32_t ids[3] = { 1, 2, 3 };
	struct fk_req q = tokens(ids, 3, 4);

	expect_idle();
	expect_tokens(submit(&q), &q);
}

#endif
