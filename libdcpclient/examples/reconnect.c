/*
 * reconnect N: N requests, one after another, however often the daemon is
 * restarted meanwhile. What a restart cut short is asked again.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <dcpclient.h>

#define TRY_S 60		/* to connect again before giving up */

static void
say(const char *what)
{
	struct timespec t;

	timespec_get(&t, TIME_UTC);
	printf("%lld.%03ld %s\n", (long long)t.tv_sec, t.tv_nsec / 1000000,
	    what);
	fflush(stdout);
}

/* 0, or -errno of the connection or of the request. */
static int
ask(struct dcp *d, uint32_t i)
{
	struct dcp_request r = { .size = sizeof r, .max_tokens = 20,
	    .input = DCP_INPUT_TOKENS, .data = &i, .len = sizeof i };
	uint32_t type = DCP_EV_DELTA;
	const struct dcp_event *ev;
	uint64_t id;
	int rc;

	rc = dcp_submit(d, &r, &id);
	while (rc == 0 && type == DCP_EV_DELTA) {
		rc = dcp_next(d, -1, &ev);
		if (rc < 0)
			break;
		type = ev->type;
		if (type == DCP_EV_ERROR)
			rc = ev->error;
		dcp_event_release(d, ev);
	}
	return rc;
}

/* While the daemon starts it is not there, or not yet ready. */
static struct dcp *
connect_again(void)
{
	struct timespec pause = { .tv_nsec = 20000000 };
	time_t end = time(NULL) + TRY_S;
	struct dcp *d;

	while (dcp_connect(NULL, 5000, &d) < 0) {
		if (time(NULL) >= end) {
			fprintf(stderr, "reconnect: %s\n", dcp_error_text());
			exit(1);
		}
		nanosleep(&pause, NULL);
	}
	say("connected");
	return d;
}

int
main(int argc, char **argv)
{
	struct timespec pause = { .tv_nsec = 20000000 };
	uint32_t i = 0, n = argc > 1 ? (uint32_t)atoi(argv[1]) : 10;
	struct dcp *d = connect_again();
	int rc;

	while (i < n) {
		rc = ask(d, i);
		if (rc == 0) {
			i++;
			say("answered");
		} else if (rc == -EPIPE) {
			say("lost");
			dcp_close(d);
			d = connect_again();
		} else if (rc == -ESHUTDOWN || rc == -EAGAIN) {
			/* It ends, or is full. */
			nanosleep(&pause, NULL);
		} else {
			fprintf(stderr, "reconnect: error %d: %s\n", rc,
			    dcp_error_text());
			return 1;
		}
	}
	dcp_close(d);
	return 0;
}
