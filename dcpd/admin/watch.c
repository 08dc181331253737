/*
 * Does the step thread get on? A turn of it that lasts longer than
 * --stuck-after is stuck: it works, or waits for a rank that never comes.
 * (That requests exist and no step ends is not enough: a client that does not
 * read sits passes out for as long as it likes.)
 *
 * Main thread; the state may be asked for by any.
 */
#include "config.h"

#include <stdio.h>

#include "dcpd/admin/admin.h"

double
dcpd_watch_turn(void)
{
	uint64_t began = dcpd_page->step_ns, now = dcpd_now_ns();

	return began == 0 || began > now ? 0 : (double)(now - began) * 1e-9;
}

enum dcps_state
dcpd_run_state(const struct dcpd_run *run)
{
	enum dcpd_state state = run->state;	/* clang: no switch (_Atomic) */

	switch (state) {
	case DCPD_LOADING:
		return DCPS_LOADING;
	case DCPD_READY:
		return dcpd_watch_turn() > run->stuck_after ? DCPS_STUCK :
		    run->draining ? DCPS_DRAINING : DCPS_READY;
	case DCPD_STOPPING:
		return DCPS_STOPPING;
	case DCPD_FAILED:
		break;
	}
	return DCPS_FAILED;
}

/* One line: which step, of what, where it is and whom it waits for. */
static void
say_stuck(const struct dcpd_run *run, double seconds)
{
	const struct dcps_pass *p = &dcpd_page->pass;
	const struct dcpd_engine *e = run->engine;
	char who[200] = "", where[64] = "";

	if (e->waits != NULL)
		e->waits(e->self, who, sizeof who);
	if (p->ended_ns != 0) {
		dcpd_log(LOG_ERR, "stuck: the step thread has not come back "
		    "for %.0f s, after step %llu", seconds,
		    (unsigned long long)p->step);
		return;
	}
	if (e->waits != NULL)		/* it has layers and operations */
		snprintf(where, sizeof where, " in layer %u, %s;", p->layer,
		    dcpd_page->op_name[p->op]);
	dcpd_log(LOG_ERR, "stuck: step %llu has not ended for %.0f s: %s of "
	    "%u rows of %u requests,%s ranks 0 to %u wait%s%s",
	    (unsigned long long)p->step, seconds, p->prefill ? "prefill" :
	    "decode", p->rows, p->reqs, where, e->world - 1,
	    who[0] != '\0' ? " for " : "", who);
}

void
dcpd_watch(struct dcpd_run *run)
{
	static double since;		/* when it got stuck; 0: it is not */
	enum dcps_state state = dcpd_run_state(run);
	double turn = dcpd_watch_turn();

	dcpd_page->main_ns = dcpd_now_ns();
	dcpd_stats_state(state);
	if (state == DCPS_STUCK && since == 0) {
		since = dcpd_now() - turn;
		say_stuck(run, turn);
	} else if (since != 0 && turn < run->stuck_after) {
		dcpd_log(LOG_NOTICE, "steps end again, after %.0f s",
		    dcpd_now() - since);
		since = 0;
	}
}
