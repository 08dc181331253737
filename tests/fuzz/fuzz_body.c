/*
 * JSON bodies of the HTTP front end: the first line of an input is the path, the
 * rest is the body of one POST. http_plugin.c says what must hold.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/base/base.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/http_plugin.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const uint8_t *end = n > 0 ? memchr(data, '\n', n) : NULL;
	size_t path = end != NULL ? (size_t)(end - data) : 0, len;
	char *all;
	int head;

	if (end == NULL || path > 200 || memchr(data, '\0', path) != NULL)
		return 0;
	len = n - path - 1;
	all = malloc(len + 400);
	DCPD_ASSERT(all != NULL);
	head = snprintf(all, 400, "POST %.*s HTTP/1.1\r\nHost: a\r\n"
	    "Connection: close\r\nContent-Length: %zu\r\n\r\n", (int)path,
	    (const char *)data, len);
	memcpy(all + head, end + 1, len);
	/* It closes when it has answered. */
	http_talk((uint8_t *)all, (size_t)head + len, 20);
	free(all);
	return 0;
}

#ifndef LIBFUZZER
int
main(int argc, char **argv)
{
	if (!fuzz_files(argc, argv))
		fuzz_corpus("body", 500);
	http_end();
	return 0;
}
#endif
