/*
 * A growing byte buffer. The first failure sticks: append freely, look at
 * .failed once at the end. {0} is empty; .v may be NULL when .n is 0.
 */
#ifndef DCPD_TEXT_BUF_H
#define DCPD_TEXT_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct dcpd_buf {
	char *v;
	size_t n, cap;
	bool failed;		/* out of memory: the contents are not whole */
};

void dcpd_buf_add(struct dcpd_buf *, const char *s, size_t n);
void dcpd_buf_free(struct dcpd_buf *);
/* The text with a NUL after it, now the caller's; NULL if it failed. */
char *dcpd_buf_take(struct dcpd_buf *);

static inline void
dcpd_buf_str(struct dcpd_buf *b, const char *s)
{
	dcpd_buf_add(b, s, strlen(s));
}

/* Drop the first n bytes. */
static inline void
dcpd_buf_drop(struct dcpd_buf *b, size_t n)
{
	if (n == 0)
		return;
	memmove(b->v, b->v + n, b->n - n);
	b->n -= n;
}

#endif
