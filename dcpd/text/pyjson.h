/* JSON as Python's json.dumps(v, ensure_ascii=False) writes it. */
#ifndef DCPD_TEXT_PYJSON_H
#define DCPD_TEXT_PYJSON_H

#include <jansson.h>

#include "dcpd/text/buf.h"

/*
 * Chat templates dump tools and arguments with Python: ", " and ": " between
 * things, keys in their order, only control characters, '"' and '\' escaped,
 * floats as repr() prints them. A model sees each difference.
 */
void dcpd_pyjson(struct dcpd_buf *, const json_t *);
/* The inside of a JSON string, without its quotes. */
void dcpd_pyjson_escape(struct dcpd_buf *, const char *s, size_t n);

#endif
