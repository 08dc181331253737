/*
 * A client without the library: it says HELLO, maps the regions and writes
 * whatever it likes into them.
 */
#ifndef HOSTILE_RAW_H
#define HOSTILE_RAW_H

#include <stdbool.h>

#include "libdcpclient/dcp_ring.h"

struct raw {
	int sock, fds[4];		/* of client, server; bell: r, w */
	struct dcpr_welcome w;
	uint8_t *cli;
	const uint8_t *srv;
	struct dcpr_client_page *c;
	const struct dcpr_server_page *s;
	struct dcpr_sqe *sq;
	uint8_t *arena;
	uint32_t next;			/* of request ids */
};

int raw_socket(const char *path);	/* connected, nothing said */
/* Send bytes with n copies of a descriptor. */
int raw_send(int sock, const void *p, size_t len, unsigned n_fds);
/* HELLO as given; returns the welcome's status, or -EPIPE. */
int raw_hello(struct raw *, const char *path, const struct dcpr_hello *);
void raw_join(struct raw *, const char *path);	/* a good HELLO, mapped */
void raw_close(struct raw *);

/* A valid request of one token into the arena at off; returns it. */
struct dcpr_request *raw_request(struct raw *, uint32_t off, uint32_t token);
/* Its bytes. */
#define RAW_REQUEST_LEN (sizeof(struct dcpr_request) + 8)
void raw_entry(struct raw *, struct dcpr_sqe);	/* at sq_tail; not published */
void raw_submit(struct raw *, uint32_t off, uint32_t len);	/* publishes */
void raw_publish(struct raw *, uint32_t tail);	/* store sq_tail, ring */
void raw_ring(struct raw *);

/* True when the daemon shut the connection within ms. */
bool raw_dropped(const struct raw *, int ms);

#endif
