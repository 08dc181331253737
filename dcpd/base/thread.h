/*
 * Threads of the daemon, its front ends and its CPU workers. Each has a second
 * stack, on which the handler of a crash runs (dcpd/admin/crash.c): a thread
 * whose own stack ran over leaves a report, too. Inline and without the
 * daemon, so that those use it who link nothing of it. Plugins that come from
 * elsewhere start their threads themselves: where one's stack runs over, the
 * process ends without a report. Include config.h first.
 */
#ifndef DCPD_THREAD_H
#define DCPD_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define DCPD_SIGNAL_STACK (64u << 10)	/* bytes */

/* The thread's own: it goes with the thread, which returns from main. */
struct dcpd_thread_first {
	void *(*main)(void *);
	void *arg;
	char stack[DCPD_SIGNAL_STACK];	/* untouched, and so not resident */
};

static inline void *
dcpd_thread_run(void *arg)
{
	struct dcpd_thread_first *f = arg;
	void *ret;
#ifndef DCPD_DEBUG	/* the sanitizers have stacks of their own */
	const stack_t ss = { .ss_sp = f->stack, .ss_size = sizeof f->stack };
	const stack_t none = { .ss_flags = SS_DISABLE };

	sigaltstack(&ss, NULL);
#endif
	ret = f->main(f->arg);
#ifndef DCPD_DEBUG
	sigaltstack(&none, NULL);
#endif
	free(f);
	return ret;
}

/*
 * As pthread_create without attributes; 0 or -errno. Any thread. main returns,
 * and never calls pthread_exit.
 */
static inline int
dcpd_thread_start(pthread_t *t, void *(*main)(void *), void *arg)
{
	struct dcpd_thread_first *f = malloc(sizeof *f);
	int rc;

	if (f == NULL)
		return -ENOMEM;
	f->main = main;
	f->arg = arg;
	rc = pthread_create(t, NULL, dcpd_thread_run, f);
	if (rc != 0)
		free(f);
	return -rc;
}

/* What a thread blocks that handles no signal: all, but for those of a crash,
 * which, blocked, would end the process without a report. */
static inline sigset_t
dcpd_thread_signals(void)
{
	static const int own[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	sigset_t set;

	sigfillset(&set);
	for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
		sigdelset(&set, own[i]);
	return set;
}

#endif
