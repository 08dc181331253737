/*
 * victim SOCKET STATE: a client that gets into a state, prints "ready" and
 * stays in it until it is killed. SIGTERM: it closes its connection, prints
 * "closed" and stays alive. SIGUSR1: it becomes another program.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "libdcpclient/private.h"

#define TIMEOUT 20000		/* ms */

static volatile sig_atomic_t leave;
static struct dcp *d;

static void
on_signal(int sig)
{
	leave = sig;
}

static int
ask(uint32_t n_prompt, uint32_t max_tokens)
{
	static uint32_t ids[60000];
	struct dcp_request r = { .size = sizeof r, .data = ids,
	    .len = n_prompt * 4ul, .input = DCP_INPUT_TOKENS,
	    .flags = DCP_IGNORE_EOS, .max_tokens = max_tokens };
	uint64_t id;

	/* Another prompt each time, so that none is in the cache. */
	ids[0] = (uint32_t)getpid() % 1000;
	ids[1] = (uint32_t)rand() % 1000;
	return dcp_submit(d, &r, &id);
}

static void
ready(void)
{
	DCPD_ASSERT(write(STDOUT_FILENO, "ready\n", 6) == 6);
}

static void
rest(void)
{
	while (!leave)
		usleep(500);
}

/* Take what is there; true: something was. */
static bool
take(int timeout)
{
	const struct dcp_event *ev;

	if (dcp_next(d, timeout, &ev) < 0)
		return false;
	dcp_event_release(d, ev);
	return true;
}

static void
hello(void)
{
	ready();
	rest();
}

static void
submit(void)
{
	ready();
	while (!leave) {
		ask(5000, 1);
		while (take(0))
			;
	}
}

static void
queued(void)
{
	unsigned i;

	for (i = 0; i < 150; i++)
		DCPD_ASSERT(ask(100, 300) == 0);
	DCPD_ASSERT(take(TIMEOUT));
	ready();
	rest();
}

static void
prefill(void)
{
	DCPD_ASSERT(ask(60000, 100) == 0);
	while (load_acquire(&d->s->sq_head) == 0)
		usleep(100);
	ready();
	rest();
}

static void
decode(void)
{
	DCPD_ASSERT(ask(100, 50000) == 0);
	DCPD_ASSERT(take(TIMEOUT));
	ready();
	while (!leave)
		take(1);
}

static void
full(void)
{
	unsigned i;

	for (i = 0; i < 60; i++)
		DCPD_ASSERT(ask(10, 2000) == 0);
	while (load_acquire(&d->s->cq_tail) < d->cq_entries && !leave)
		usleep(500);
	ready();
	rest();
}

/* The child holds the socket, as long as it may: the parent's end must do. */
static void
forked(void)
{
	DCPD_ASSERT(ask(100, 50000) == 0);
	if (fork() == 0) {
		signal(SIGTERM, SIG_DFL);
		fclose(stdout);
		for (;;)
			pause();
	}
	ready();
	rest();
}

static const struct {
	const char *name;
	void (*enter)(void);
} states[] = {
	{ "hello", hello }, { "submit", submit }, { "queued", queued },
	{ "prefill", prefill }, { "decode", decode }, { "full", full },
	{ "forked", forked },
};

int
main(int argc, char **argv)
{
	size_t i, n = sizeof states / sizeof states[0];

	if (argc != 3)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, on_signal);
	signal(SIGUSR1, on_signal);
	srand((unsigned)getpid());
	for (i = 0; i < n && strcmp(states[i].name, argv[2]) != 0; i++)
		;
	DCPD_ASSERT(i < n);
	DCPD_ASSERT(dcp_connect(argv[1], TIMEOUT, &d) == 0);
	states[i].enter();
	if (leave == SIGUSR1)
		execlp("sleep", "sleep", "60", (char *)NULL);
	dcp_close(d);
	DCPD_ASSERT(write(STDOUT_FILENO, "closed\n", 7) == 7);
	for (;;)
		pause();
}
