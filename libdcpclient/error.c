/*
 * The error text of each thread, and the check that every call begins with.
 */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "libdcpclient/private.h"

static _Thread_local char text[256];

int
dcp_fail(int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return code;
}

void
dcp_ok(void)
{
	text[0] = '\0';
}

const char *
dcp_error_text(void)
{
	return text;
}

const char *
dcp_version(void)
{
	return PACKAGE_VERSION;
}

int
dcp_enter(const struct dcp *d, const char *func)
{
	if (d == NULL)
		return dcp_fail(-EINVAL, "%s: connection is NULL", func);
	if (*d->fork_mark == 0)
		return dcp_fail(-ECHILD, "%s: this connection belongs to the "
		    "parent process; connect again after fork", func);
	text[0] = '\0';
	return 0;
}

uint64_t
dcp_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
