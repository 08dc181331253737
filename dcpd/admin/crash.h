/*
 * A report of the end that nobody wanted: what the step was doing, what the
 * ranks held, every counter, where the threads were. Written by a signal's
 * handler into the state folder, or to standard error where there is none.
 */
#ifndef DCPD_CRASH_H
#define DCPD_CRASH_H

#include "dcpd/base/base.h"

#define DCPD_CRASH_KEEP 10	/* reports that a start leaves there */

/*
 * Main thread, before others exist. dir: NULL for $STATE_DIRECTORY, if that
 * is set. -errno: reports cannot be written there.
 */
int dcpd_crash_init(const char *dir, struct dcpd_err *);
/* The step thread, once: a report has its backtrace too. */
void dcpd_crash_step_thread(void);
/* A report without a signal, for an engine that failed; the first one stays
 * the only one. Any thread. */
void dcpd_crash_report(const char *why);

#endif
