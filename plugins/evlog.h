/*
 * libevent's words, and its end, in the daemon's log. It is one library for all
 * plugins of the process, so whoever came last speaks for all. Inline; include
 * config.h first.
 */
#ifndef PLUGINS_EVLOG_H
#define PLUGINS_EVLOG_H

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>
#include <unistd.h>

#include "libdcpclient/dcp_plugin.h"

#define EVLOG_FDS 8	/* an event_base takes six */

static const struct dcp_host *evlog_host;
static _Atomic unsigned evlog_users;	/* a check of a reload makes a second */
/* what it said last: why it ends */
static _Thread_local char evlog_last[400];

static inline void
evlog_say(int severity, const char *words)
{
	char line[sizeof evlog_last + 16];

	snprintf(evlog_last, sizeof evlog_last, "%s", words);
	snprintf(line, sizeof line, "libevent: %s", words);
	evlog_host->log(evlog_host->ctx, severity == EVENT_LOG_ERR ? LOG_ERR :
	    severity == EVENT_LOG_WARN ? LOG_WARNING : LOG_DEBUG, line);
}

/* It would call exit(), on a thread that others wait for. */
static inline void
evlog_fatal(int status)
{
	char line[sizeof evlog_last + 80];

	snprintf(line, sizeof line, "libevent cannot go on, the process ends: "
	    "%s", evlog_last);
	evlog_host->log(evlog_host->ctx, LOG_CRIT, line);
	if (status != EXIT_FAILURE)
		abort();	/* a broken rule of its own: a report */
	_exit(EXIT_FAILURE);
}

/* While the host lives. */
static inline void
evlog_open(const struct dcp_host *host)
{
	if (evlog_users++ > 0)
		return;
	evlog_host = host;
	event_set_log_callback(evlog_say);
	event_set_fatal_callback(evlog_fatal);
}

/* The plugin's threads have ended; another's may run on. */
static inline void
evlog_close(void)
{
	if (--evlog_users > 0)
		return;
	event_set_log_callback(NULL);
	event_set_fatal_callback(NULL);
}

/*
 * Are there the descriptors that an event_base takes? Where they are too few it
 * ends the process. 0 or -errno.
 */
static inline int
evlog_room(void)
{
	int fd[EVLOG_FDS], n = 0, rc = 0;

	for (; rc == 0 && n < EVLOG_FDS; n++) {
		fd[n] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (fd[n] < 0)
			rc = -errno;
	}
	while (n-- > 0)
		if (fd[n] >= 0)
			close(fd[n]);
	return rc;
}

#endif
