/*
 * Helpers of the text tests and fuzzers: data files by their path in the
 * source tree. A file that cannot be read ends the program.
 */
#ifndef DCPD_TEXT_UTIL_H
#define DCPD_TEXT_UTIL_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/text.h"

static inline const char *
text_srcdir(void)
{
	const char *s = getenv("srcdir");

	return s == NULL ? "." : s;
}

/* path: absolute, or below the source tree */
static inline const char *
text_path(const char *path, char *buf, size_t cap)
{
	if (path[0] == '/')
		snprintf(buf, cap, "%s", path);
	else
		snprintf(buf, cap, "%s/%s", text_srcdir(), path);
	return buf;
}

static inline struct dcpd_tokenizer *
text_tokenizer(const char *dir)
{
	struct dcpd_tokenizer *t = NULL;
	struct dcpd_err err = { 0 };
	char buf[1024];
	int rc;

	rc = dcpd_tokenizer_open(text_path(dir, buf, sizeof buf), &t, &err);
	if (rc != 0) {
		fprintf(stderr, "%s\n", err.text);
		abort();
	}
	return t;
}

static inline json_t *
text_json(const char *path)
{
	char buf[1024];
	json_error_t e;
	json_t *v;

	v = json_load_file(text_path(path, buf, sizeof buf),
	    JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
	if (v == NULL) {
		fprintf(stderr, "%s: %s\n", buf, e.text);
		abort();
	}
	return v;
}

/* A mark, special token or the like: it is never cut into bytes. */
static inline bool
text_is_mark(const char *b, size_t n, bool special)
{
	return special || (n > 4 && b[0] == '<' && b[n - 1] == '>');
}

/* The same text with plain tokens cut into tokens of one byte each. */
static inline void
text_into_bytes(const struct dcpd_tokenizer *t, const struct dcpd_ids *in,
    struct dcpd_ids *out)
{
	uint32_t of[256] = { 0 }, id;
	const char *b;
	bool special;
	size_t i, k, n;

	for (id = dcpd_token_limit(t); id-- > 0;)
		if (dcpd_token_bytes(t, id, &b, &n, &special) == 0 && n == 1)
			of[(unsigned char)*b] = id;
	for (i = 0; i < in->n; i++) {
		if (dcpd_token_bytes(t, in->v[i], &b, &n, &special) < 0 ||
		    text_is_mark(b, n, special)) {
			dcpd_ids_push(out, in->v[i]);
			continue;
		}
		for (k = 0; k < n; k++)
			dcpd_ids_push(out, of[(unsigned char)b[k]]);
	}
}

#endif
