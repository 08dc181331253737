/*
 * The Unix front end: lines of JSON on a stream socket, for scripts and
 * languages without shared memory (dcpd-unix(7)). One thread runs all of it.
 *
 *   plugin.c	configuration and life
 *   server.c	sockets, who may connect, the loop
 *   conn.c	one connection: its lines, its output, its ring
 *   request.c	a line's fields -> struct dcp_request
 *   answer.c	events -> lines
 *
 * Every connection has a ring of its own, so that a client which does not read
 * is slowed by it and holds up nobody, and one that dies takes its requests
 * with it.
 */
#ifndef UNIX_UNIX_H
#define UNIX_UNIX_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <syslog.h>

#include "libdcpclient/dcp_plugin.h"
#include "libdcpclient/dcpclient.h"

#define UNIX_LINE_MAX (8u << 20)	/* bytes of a line: 1M token ids */
#define UNIX_OUTPUT_STOP (256u << 10)	/* bytes unread: no more are made */
#define UNIX_MAX_LISTEN 8
#define UNIX_TICK_MS 250

/* --- configuration ------------------------------------------------------- */

struct unix_config {
	char *listen[UNIX_MAX_LISTEN];	/* PATH, or "systemd" */
	unsigned n_listen;
	mode_t mode;			/* of a socket made here */
	char *group;			/* NULL: whom mode lets in */
	gid_t gid;			/* its id */
	/* What may change at run time. */
	_Atomic uint32_t max_connections, max_connections_user, max_requests;
	_Atomic uint32_t stall_s;	/* nothing read for so long: the end */
};

/* --- server -------------------------------------------------------------- */

struct listener {
	int fd;			/* -1: none */
	char *path;		/* to remove at the end; NULL: systemd's */
	dev_t dev;
	ino_t ino;
	struct event *ev;
	struct server *server;
};

TAILQ_HEAD(conns, conn);

struct server {
	const struct dcp_host *host;
	struct unix_config *cfg;
	struct event_base *base;
	struct event *stop_ev, *tick_ev;
	int stop_fd;		/* eventfd: the plugin's stop() */
	struct listener listen[UNIX_MAX_LISTEN];
	struct conns conns;
	bool ending;
	double accept_at;	/* seconds; till then none is accepted */
	/* For stats(), which any thread calls. */
	_Atomic uint32_t n_conns, n_requests;
	_Atomic uint64_t conns_total, conns_refused, requests_total;
};

/* Opens what the configuration names; *why as in dcp_plugin.h. */
int server_open(struct server *, char **why);
void server_run(struct server *);	/* until server_stop */
void server_stop(struct server *);	/* any thread */
void server_close(struct server *);
double unix_now(void);			/* monotonic, seconds */
char *unix_why(const char *fmt, ...)	/* malloc'd */
	__attribute__((format(printf, 1, 2)));

/* --- one connection ------------------------------------------------------ */

struct conn {
	TAILQ_ENTRY(conn) link;
	struct server *server;
	uid_t uid;
	pid_t pid;
	struct bufferevent *bev;
	size_t scanned;		/* bytes of input without a line's end */
	struct dcp *ring;	/* NULL: nothing was asked yet */
	struct event *ring_ev;
	bool paused;		/* too much output waits: ring_ev is off */
	bool waiting;		/* its next line waits for the model */
	bool more;		/* lines are there whose turn comes later */
	bool ended;		/* no more lines come (the client said so) */
	bool closing;		/* closed when its output is out */
	double moved;		/* when output was last read, seconds */
	TAILQ_HEAD(, asked) asked;
	uint32_t n_asked;
};

/* Takes fd. NULL: no memory. */
struct conn *conn_new(struct server *, int fd, uid_t uid, pid_t pid);
void conn_free(struct conn *);		/* its requests are cancelled */
/* Four times a second. May free it. */
void conn_tick(struct conn *, double now);
/* The daemon ends: its requests end with an error. */
void conn_end(struct conn *);
/* One line out; takes the object. */
void conn_send(struct conn *, json_t *line);

/* --- requests ------------------------------------------------------------ */

/* What a line asks for: a dcp_request whose pointers lead into here. */
struct submit {
	struct dcp_request r;
	bool stream;
	json_t *line;		/* strings are its */
	char *data, *options;
	const char **stop;
	uint32_t *stop_ids;
	struct dcp_logit_bias *bias;
};

/* -EINVAL with *why (malloc'd) naming the field. Takes a reference to line. */
int submit_parse(json_t *line, struct submit *, char **why);
void submit_free(struct submit *);

/* --- answers ------------------------------------------------------------- */

struct asked {			/* one request under way */
	TAILQ_ENTRY(asked) link;
	json_t *id;		/* the client's, any JSON string or number */
	uint64_t request;	/* dcp_submit's */
	bool stream;
	int error;		/* -ENOMEM: a piece was lost */
	/* Not streaming: what came so far. */
	struct evbuffer *text, *reasoning;
	json_t *calls, *tokens, *logprobs;
};

struct asked *asked_new(json_t *id, bool stream);
void asked_free(struct asked *);
/* What an event brings of the answer, as a line; NULL: it is kept for the
 * last, or was lost, and then the last one is an error. */
json_t *asked_delta(struct asked *, const struct dcp_event *);
/* The line of DONE or ERROR; NULL: no memory even for an error's. */
json_t *asked_last(struct asked *, const struct dcp_event *);
json_t *unix_error(json_t *id, int error, const char *message);

#endif
