/* What evhttp says itself, said in the API's form. The event thread's. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>

#include "plugins/http/words.h"

static const struct own {
	int status;
	const char *reason, *words;
} own[] = {
	{ 400, "Bad Request", "no request that can be read: not HTTP/1.1, a "
	  "head of more than 16 KiB, or Content-Length beside "
	  "Transfer-Encoding" },
	{ 413, "Content Too Large", "the body is larger than 32 MiB, or the "
	  "size of a chunk, or its trailer, cannot be read: a hexadecimal "
	  "number, no extensions" },
	{ 417, "Expectation Failed", "Expect: only 100-continue is known" },
	{ 501, "Not Implemented", "no such method" },
	{ 0, "Error", "the request cannot be served" },
};

/*
 * Put an error of the API's form in the place of evhttp's page, which is HTML
 * and says too little. The connection ends with it, either way.
 */
static bool
replace(struct evbuffer *out)
{
	const struct own *o = own;
	char line[16] = "", body[320];
	int status, n;

	evbuffer_copyout(out, line, sizeof line - 1);
	if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12)
		return false;
	status = atoi(line + 9);
	if (status < 400)
		return false;		/* 100 Continue */
	while (o->status != status && o->status != 0)
		o++;
	evbuffer_drain(out, evbuffer_get_length(out));
	n = snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\","
	    "\"type\":\"invalid_request_error\",\"param\":null,"
	    "\"code\":\"bad_http\"}}", o->words);
	evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nContent-Type: "
	    "application/json\r\nConnection: close\r\n"
	    "Content-Length: %d\r\n\r\n%s", status,
	    o->reason, n, body);
	return true;
}

/* A bufferevent lets nobody else take from the front of its output. */
bool
words_replace(struct evbuffer *out)
{
	bool done;

	evbuffer_unfreeze(out, 1);
	done = replace(out);
	evbuffer_freeze(out, 1);
	return done;
}
