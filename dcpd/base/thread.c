/*
 * See thread.h. A thread's second stack is its own: it goes with the thread.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "dcpd/base/thread.h"

struct start {
	void *(*main)(void *);
	void *arg;
	char stack[DCPD_SIGNAL_STACK];	/* untouched, and so not resident */
};

static void *
run(void *arg)
{
	struct start *s = arg;
	void *ret;
#ifndef DCPD_DEBUG	/* the sanitizers have stacks of their own */
	const stack_t ss = { .ss_sp = s->stack, .ss_size = sizeof s->stack };
	const stack_t none = { .ss_flags = SS_DISABLE };

	sigaltstack(&ss, NULL);
#endif
	ret = s->main(s->arg);
#ifndef DCPD_DEBUG
	sigaltstack(&none, NULL);
#endif
	free(s);
	return ret;
}

int
dcpd_thread_start(pthread_t *t, void *(*main)(void *), void *arg)
{
	struct start *s = malloc(sizeof *s);
	int rc;

	if (s == NULL)
		return -ENOMEM;
	s->main = main;
	s->arg = arg;
	rc = pthread_create(t, NULL, run, s);
	if (rc != 0)
		free(s);
	return -rc;
}
