/*
 * What the bytes of a request say of its framing, followed as they come in and
 * before evhttp has them: where the head ends, and whether a body in chunks is
 * one by RFC 9112, section 7.1. evhttp takes more for a size of a chunk: "0x5",
 * "+5", "5 junk", none between chunks or an empty line. Whoever is in front of
 * us may read those in another way, and then a second request is in the body.
 *
 * Nor has it a limit for such a line's length: it looks for the end through all
 * that has come, at each read. What is bad is followed as evhttp reads it, so
 * that a line without an end is seen.
 */
#ifndef HTTP_SCAN_H
#define HTTP_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCAN_LINE_MAX (16u << 10)	/* bytes of a line, once one is bad */

struct scan {
	int at;			/* scan.c's */
	bool head_over;		/* its empty line was there */
	bool chunked;		/* it has Transfer-Encoding */
	bool bad;		/* a chunk is none by the RFC */
	bool endless;		/* and a line of it longer than it may be */
	bool line_empty;	/* no byte since the last newline */
	unsigned matched;	/* bytes of that field's name in this line */
	uint64_t left;		/* of this chunk */
	size_t len;		/* bad: bytes of this line, or behind the end */
};

/* Before a request's first byte. */
void scan_begin(struct scan *);
/* The next bytes; those behind the request's end are passed over. */
void scan_bytes(struct scan *, const char *p, size_t n);
/* True: the next n bytes need no look, they are of a chunk or nobody's; they
 * have passed. Else they are scan_bytes's. */
bool scan_pass(struct scan *, size_t n);

#endif
