/*
 * The stats page (libdcpclient/dcp_stats.h): the daemon's counters, its state
 * and where its step is, in a file that dcpctl reads when nobody answers.
 *
 * The page is static memory until dcpd_stats_open maps the file in its place,
 * before there are threads that count. Afterwards any thread writes its own
 * words, relaxed.
 */
#ifndef DCPD_STATS_H
#define DCPD_STATS_H

#include "dcpd/base/base.h"
#include "kernels/kernels.h"
#include "libdcpclient/dcp_stats.h"

/* Operations of a step, in the order of kernels.h: X(name) */
#define DCPD_OPS(X) \
	X(step_begin) X(embed) X(attn_in) X(select) X(attend_merge) \
	X(attn_out) X(ffn) X(head) X(sample) X(step_end)
enum dcpd_op {
#define X(name) DCPD_OP_##name,
	DCPD_OPS(X)
#undef X
	DCPD_OP_N
};

extern struct dcps_page *dcpd_page;	/* never NULL */

/*
 * The file `path`, in place of one that was left. Another daemon holds its
 * lock: -EADDRINUSE. Mode 0640. Main thread.
 */
int dcpd_stats_open(const char *path, struct dcpd_err *);
void dcpd_stats_close(void);		/* removes the file; the page stays */

static inline void
dcpd_stats_state(enum dcps_state s)
{
	atomic_store_explicit(&dcpd_page->state, s, memory_order_relaxed);
}

/* Step thread: a pass begins, ends, and goes through its operations. */
void dcpd_stats_pass(const struct dcpk_plan *);
void dcpd_stats_pass_end(void);
static inline void
dcpd_stats_at(enum dcpd_op op, uint32_t layer)
{
	struct dcps_pass *p = &dcpd_page->pass;

	atomic_store_explicit(&p->op, op, memory_order_relaxed);
	atomic_store_explicit(&p->layer, layer, memory_order_relaxed);
}

#endif
