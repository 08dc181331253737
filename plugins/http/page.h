/*
 * What people and monitors look at: the page, its live stream, the metrics.
 */
#ifndef HTTP_PAGE_H
#define HTTP_PAGE_H

#include "plugins/http/http.h"

/* page.c: GET / */
void page_index(struct call *);

/* metrics.c: GET /metrics */
void metrics(struct call *);

/* live.c: GET /live. One for the plugin, on its event base. */
struct live;
int live_new(struct http *, struct live **);
void live_stream(struct call *);
/* Ends all streams, takes no more. */
void live_end(struct live *);
void live_free(struct live *);
/* {"viewers", "frames", "dropped"}: frames drawn up, and not sent to slow
   viewers. */
json_t *live_stats(const struct live *);

#endif
