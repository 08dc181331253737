/* Helpers of the text tests: data files by their path in the source tree. */
#ifndef DCPD_TEXT_UTIL_H
#define DCPD_TEXT_UTIL_H

#include <check.h>
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
	ck_assert_msg(rc == 0, "%s", err.text);
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
	ck_assert_msg(v != NULL, "%s: %s", buf, e.text);
	return v;
}

#endif
