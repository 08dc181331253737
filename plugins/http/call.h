/*
 * Between server.c, call.c and routes.c: what one exchange is, and what only
 * the server can do with its connection. The event thread's.
 */
#ifndef HTTP_CALL_H
#define HTTP_CALL_H

#include <event2/event.h>

#include "plugins/http/http.h"

#define REQUEST_ID_MAX 256u	/* bytes of one that goes back */

struct conn;
struct evbuffer;
struct evhttp_request;

struct call {
	struct http *http;
	struct conn *conn;		/* NULL: the client is gone */
	struct evhttp_request *req;
	const struct route *route;	/* NULL until one is found */
	char *path;			/* decoded */
	const char *rest;
	json_t *json;
	const struct call_ops *ops;
	void *arg;
	bool streaming;
	bool full;			/* unread passed HTTP_OUTPUT_STOP */
	double t_write;			/* last write to the stream, s */
};

struct server_status {
	uint32_t connections;
	uint64_t requests;
};

/* A listening socket each; a failure says which and why. */
int server_new(struct http *, struct server **, char **why);
void server_free(struct server *);
void server_tick(struct server *);		/* twice a second */
void server_no_more(struct server *);		/* stop listening */
bool server_has_output(const struct server *);	/* bytes wait for clients */
struct server_status server_status(const struct server *);
/* Where it listens; any thread. */
json_t *server_names(const struct server *);

const char *server_method(const struct call *);
const char *server_header(const struct call *, const char *name);
const char *server_query(struct call *, const char *key);
const char *server_body(const struct call *, size_t *len);
void server_drop_body(struct call *);		/* it was parsed */
void server_forget_body(struct call *);		/* and is needed no longer */
void server_set_header(struct call *, const char *name, const char *value);
/* A whole answer, which leaves the buffer; NULL: it has no body. */
void server_reply_buffer(struct call *, int status, struct evbuffer *);
/* Whose client has most to take of one yet, and how many bytes; 0: nobody. */
uint64_t server_largest(const struct server *, struct conn **);
void server_cut_off(struct conn *);		/* soon; not counted from now */
void server_stream_begin(struct call *, int status);
void server_stream_add(struct call *, const char *data, size_t len);
void server_stream_end(struct call *);
size_t server_unread(const struct call *);

/* Finds the route, asks for the key, calls the handler. */
void routes_dispatch(struct call *);

void call_sse_beat(struct call *);
void call_free(struct call *);

double http_now(void);				/* monotonic, seconds */

#endif
