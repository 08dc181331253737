/*
 * The CPU backend's threads. A phase is `n` independent tasks; workers and the
 * caller take them one by one, and run() returns when all are done: that is
 * the barrier between phases, and every collective is one.
 */
#ifndef DCPC_WORKERS_H
#define DCPC_WORKERS_H

#include <stddef.h>
#include <stdint.h>

struct dcpc_workers;
/* task: 0..n-1; thread: 0 is the caller, then 1..threads-1. */
typedef void dcpc_task_fn(void *arg, uint32_t task, uint32_t thread);

int dcpc_workers_new(uint32_t threads, struct dcpc_workers **);
void dcpc_workers_free(struct dcpc_workers *);
void dcpc_workers_run(struct dcpc_workers *, uint32_t n, dcpc_task_fn *fn,
    void *arg);
/*
 * Any thread: the first worker that has not left the phase under way, "CPU
 * worker 3 (thread 4711), task 5 of 16", or "".
 */
void dcpc_workers_waits(const struct dcpc_workers *, char *buf, size_t cap);

#endif
