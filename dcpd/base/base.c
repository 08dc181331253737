/*
 * Errors, log, asserts, clock. No state but the log's level; every function
 * may be called from any thread.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/base.h"

static _Atomic int log_max = LOG_INFO;

/*
 * What is too long for it, a value that somebody gave most likely, loses its
 * middle: its end says what to do. No character is cut.
 */
static void
put(char *to, size_t cap, const char *fmt, va_list ap)
{
	static const char gap[] = " ... ";
	size_t head = cap / 2, n;
	char *all, *tail;
	va_list again;
	int w;

	va_copy(again, ap);
	w = vsnprintf(to, cap, fmt, ap);
	all = w < 0 || (n = (size_t)w) < cap ? NULL : malloc(n + 1);
	if (all != NULL) {
		vsnprintf(all, n + 1, fmt, again);
		tail = all + n - (cap - head - sizeof gap);
		/* no character is cut, where these are characters */
		for (int i = 0; i < 3 && (all[head] & 0xc0) == 0x80; i++)
			head--;
		for (int i = 0; i < 3 && (*tail & 0xc0) == 0x80; i++)
			tail++;
		snprintf(to, cap, "%.*s%s%s", (int)head, all, gap, tail);
		free(all);
	}
	va_end(again);
}

int
dcpd_fail(struct dcpd_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (err == NULL)
		return code;
	err->code = code;
	va_start(ap, fmt);
	put(err->text, sizeof err->text, fmt, ap);
	va_end(ap);
	return code;
}

int
dcpd_fail_in(struct dcpd_err *err, const char *fmt, ...)
{
	char old[sizeof err->text], prefix[sizeof err->text];
	va_list ap;

	memcpy(old, err->text, sizeof old);
	va_start(ap, fmt);
	put(prefix, sizeof prefix, fmt, ap);
	va_end(ap);
	return dcpd_fail(err, err->code, "%s: %s", prefix, old);
}

void
dcpd_log_level(int max_prio)
{
	atomic_store(&log_max, max_prio);
}

void
dcpd_log(int prio, const char *fmt, ...)
{
	char line[2048];
	size_t n = 0;
	va_list ap;
	int w;

	if (prio > atomic_load(&log_max))
		return;
	if (getenv("JOURNAL_STREAM") != NULL ||
	    getenv("NOTIFY_SOCKET") != NULL) {
		n = (size_t)snprintf(line, sizeof line, "<%d>", prio);
	} else {
		struct timespec ts;
		struct tm tm;

		clock_gettime(CLOCK_REALTIME, &ts);
		localtime_r(&ts.tv_sec, &tm);
		n = strftime(line, sizeof line, "%H:%M:%S", &tm);
		n += (size_t)snprintf(line + n, sizeof line - n, ".%03ld %s",
		    ts.tv_nsec / 1000000,
		    prio <= LOG_ERR ? "error: " :
		    prio == LOG_WARNING ? "warning: " : "");
	}
	va_start(ap, fmt);
	w = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
	va_end(ap);
	if (w > 0)
		n += (size_t)w;
	if (n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	/* One write, so that lines of several threads do not mix. */
	if (write(STDERR_FILENO, line, n) < 0)
		return;
}

_Noreturn void
dcpd_assert_failed(const char *expr, const char *file, int line,
    const char *func)
{
	dcpd_log(LOG_CRIT, "assertion failed: %s (%s:%d, %s)", expr, file,
	    line, func);
	abort();
}

uint64_t
dcpd_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

double
dcpd_now(void)
{
	return (double)dcpd_now_ns() * 1e-9;
}

int
dcpd_read_file(const char *path, size_t max, char **out, size_t *len,
    struct dcpd_err *err)
{
	struct stat st;
	char *buf = NULL;
	size_t n = 0;
	ssize_t r;
	int fd, rc;

	/* O_NONBLOCK: a FIFO is refused below, not waited for. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return dcpd_fail(err, -errno, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) < 0) {
		rc = dcpd_fail(err, -errno, "%s: %s", path, strerror(errno));
		goto out;
	}
	if (!S_ISREG(st.st_mode)) {
		rc = dcpd_fail(err, -EINVAL, "%s: not a regular file", path);
		goto out;
	}
	if ((uint64_t)st.st_size > max) {
		rc = dcpd_fail(err, -EFBIG,
		    "%s: %lld bytes, more than the %zu allowed for this file",
		    path, (long long)st.st_size, max);
		goto out;
	}
	buf = malloc((size_t)st.st_size + 1);
	if (buf == NULL) {
		rc = dcpd_fail(err, -ENOMEM, "%s: out of memory", path);
		goto out;
	}
	while (n < (size_t)st.st_size) {
		r = read(fd, buf + n, (size_t)st.st_size - n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0) {
			rc = r < 0 ? -errno : -EIO;
			dcpd_fail(err, rc, "%s: read failed at byte %zu: %s",
			    path, n, r < 0 ? strerror(errno) :
			    "file cut short");
			goto out;
		}
		n += (size_t)r;
	}
	buf[n] = '\0';
	*out = buf;
	*len = n;
	buf = NULL;
	rc = 0;
out:
	free(buf);
	close(fd);
	return rc;
}

const char *
dcpd_bytes(char *buf, size_t cap, uint64_t bytes)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)bytes;
	unsigned u = 0;

	while (v >= 1024 && u < 4) {
		v /= 1024;
		u++;
	}
	snprintf(buf, cap, u == 0 ? "%.0f %s" : "%.2f %s", v, unit[u]);
	return buf;
}
