/*
 * A daemon without a model for the tests of the ring: the real dcpd/ipc with
 * operations that count upwards. Token i of a request is
 * (first input id + i) % vocab; its text is "<id> ".
 *
 * What a request asks for by its input length, beside tokens:
 *   options {"refuse":true}   ops.submit refuses it with -ENOSPC
 *   DCP_LOGPROBS              logprob -0.5 * (i + 1), tops with ids 0, 1, ...
 */
#ifndef RING_SERVER_H
#define RING_SERVER_H

#include <sys/types.h>

#include "dcpd/ipc/ipc.h"

struct ring_server;

struct ring_server_config {
	struct dcpd_ipc_config ipc;	/* vocab 0: 1000 */
	unsigned step_us;		/* rest between rounds of one token */
	bool reserve;			/* call dcpd_ipc_reserve at admission */
	size_t info_bytes;		/* of server info; 0: a short one */
};

struct ring_server *ring_server_start(const struct ring_server_config *);
void ring_server_stop(struct ring_server *);
struct dcpd_ipc *ring_server_ipc(struct ring_server *);

/* Live jobs: requests not ended. */
unsigned ring_server_jobs(struct ring_server *);

/*
 * The same in a process of its own, its log appended to log (or NULL). Ends
 * on SIGTERM. It answers once this returns.
 */
pid_t ring_server_fork(const struct ring_server_config *, const char *log);
void ring_server_end(pid_t);	/* SIGTERM, and asserts a clean exit */

/* A path in a fresh folder under /tmp, removed at exit. */
const char *ring_temp_path(const char *name);

#endif
