/*
 * What every part of the daemon may use: errors that carry a text, the log,
 * asserts that stay on, a clock.
 *
 * Internal functions return 0 or -errno. Where a person will read the failure
 * they also fill a struct dcpd_err: what failed, where, and what to change.
 */
#ifndef DCPD_BASE_H
#define DCPD_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <syslog.h>	/* LOG_ERR ... LOG_DEBUG */

/* Exit code for a configuration error (sysexits EX_CONFIG). */
#define DCPD_EXIT_CONFIG 78

#define DCPD_PAGE_TOKENS 64u	/* logical page, whatever D is */
#define DCPD_MAX_RANKS 64u

struct dcpd_err {
	int code;		/* -errno, 0 = none */
	char text[500];		/* one line, no newline at its end */
};

/*
 * Fill err (may be NULL) and return code, so that `return dcpd_fail(...)`. A
 * text that is too long loses its middle.
 */
int dcpd_fail(struct dcpd_err *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Put "prefix: " before the text that err already has. Returns err->code. */
int dcpd_fail_in(struct dcpd_err *err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * One line to stderr, any thread, never interleaved. Under systemd
 * (JOURNAL_STREAM or NOTIFY_SOCKET set) with the <N> priority prefix.
 */
void dcpd_log(int prio, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void dcpd_log_level(int max_prio);	/* default LOG_INFO */

/* Our own invariants only, never a client's input. Stays on in production. */
#define DCPD_ASSERT(x) \
	((x) ? (void)0 : dcpd_assert_failed(#x, __FILE__, __LINE__, __func__))
_Noreturn void dcpd_assert_failed(const char *expr, const char *file, int line,
    const char *func);

/* Objects carry a magic number, checked where a pointer comes back to us. */
#define DCPD_CHECK(p, m) DCPD_ASSERT((p) != NULL && (p)->magic == (m))

double dcpd_now(void);			/* monotonic, seconds */
uint64_t dcpd_now_ns(void);		/* monotonic, ns */

/*
 * The whole file into a malloc'd buffer with a NUL after it. -EFBIG above max.
 * On failure *out is untouched and err names the path.
 */
int dcpd_read_file(const char *path, size_t max, char **out, size_t *len,
    struct dcpd_err *err);

/* Bytes as "12.3 GiB" into buf (>= 16 bytes); returns buf. */
const char *dcpd_bytes(char *buf, size_t cap, uint64_t bytes);

static inline uint64_t
dcpd_min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t
dcpd_div_up(uint64_t a, uint64_t b)
{
	return (a + b - 1) / b;
}

#endif
