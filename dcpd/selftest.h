/* One token through the engine, before anybody is served. */
#ifndef DCPD_SELFTEST_H
#define DCPD_SELFTEST_H

#include "dcpd/sched/sched.h"

/* A prefill of one token on page 0, one greedy sample. Step thread's rights:
 * nothing else may use the engine meanwhile. */
int dcpd_selftest(struct dcpd_engine *, struct dcpd_err *);

#endif
