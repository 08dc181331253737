/* The growing buffers of the text part: bytes, and token ids. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/text/buf.h"
#include "dcpd/text/text.h"

void
dcpd_buf_add(struct dcpd_buf *b, const char *s, size_t n)
{
	size_t cap;
	char *v;

	if (b->failed || n == 0)
		return;
	if (n > b->cap - b->n) {
		if (n > SIZE_MAX / 4 - b->n) {
			b->failed = true;
			return;
		}
		cap = b->cap < 64 ? 64 : b->cap;
		while (cap < b->n + n)
			cap *= 2;
		v = realloc(b->v, cap);
		if (v == NULL) {
			b->failed = true;
			return;
		}
		b->v = v;
		b->cap = cap;
	}
	memcpy(b->v + b->n, s, n);
	b->n += n;
}

void
dcpd_buf_free(struct dcpd_buf *b)
{
	free(b->v);
	*b = (struct dcpd_buf){ 0 };
}

char *
dcpd_buf_take(struct dcpd_buf *b)
{
	char *v;

	dcpd_buf_add(b, "", 1);
	if (b->failed) {
		dcpd_buf_free(b);
		return NULL;
	}
	v = b->v;
	*b = (struct dcpd_buf){ 0 };
	return v;
}

int
dcpd_ids_push(struct dcpd_ids *ids, uint32_t id)
{
	if (ids->n == ids->cap) {
		size_t cap = ids->cap == 0 ? 64 : ids->cap * 2;
		uint32_t *v = reallocarray(ids->v, cap, sizeof *v);

		if (v == NULL)
			return -ENOMEM;
		ids->v = v;
		ids->cap = cap;
	}
	ids->v[ids->n++] = id;
	return 0;
}

void
dcpd_ids_free(struct dcpd_ids *ids)
{
	free(ids->v);
	*ids = (struct dcpd_ids){ 0 };
}
