/* evhttp's own answers. */
#ifndef HTTP_WORDS_H
#define HTTP_WORDS_H

#include <stdbool.h>

struct evbuffer;

/* An error page in a bufferevent's output becomes one of the API's; or false. */
bool words_replace(struct evbuffer *out);

#endif
