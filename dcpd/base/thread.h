/*
 * Threads of the daemon. Each has a second stack, on which the handler of a
 * crash runs: a thread whose own stack ran over leaves a report, too.
 */
#ifndef DCPD_THREAD_H
#define DCPD_THREAD_H

#include <pthread.h>

#define DCPD_SIGNAL_STACK (64u << 10)	/* bytes */

/* As pthread_create without attributes; 0 or -errno. Any thread. */
int dcpd_thread_start(pthread_t *, void *(*main)(void *), void *arg);

#endif
