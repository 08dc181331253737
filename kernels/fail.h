/* How a backend says why it returns an error. Any thread. */
#ifndef DCPK_FAIL_H
#define DCPK_FAIL_H

#include <stdarg.h>
#include <stdio.h>

#include "kernels/kernels.h"

/* Fill err, which may be NULL, and return code. */
static int __attribute__((format(printf, 3, 4)))
fail(struct dcpk_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (err != NULL) {
		va_start(ap, fmt);
		vsnprintf(err->text, sizeof err->text, fmt, ap);
		va_end(ap);
	}
	return code;
}

#endif
