/*
 * The daemon's side of the ring: the listening socket, the clients, their
 * shared memory, and the intake thread that owns all of these.
 *
 * A client's words are copied once, checked, and only the copy goes on. What
 * goes back is queued per client and moved into its stream ring as space
 * frees up, so a slow reader never blocks a caller of dcpd_ipc_emit.
 */
#ifndef DCPD_IPC_H
#define DCPD_IPC_H

#include <sys/types.h>

#include "dcpd/base/base.h"
#include "libdcpclient/dcpclient.h"

struct dcpd_ipc;
struct dcpd_client;		/* reference counted */

/*
 * A private, validated copy of one request: one block of memory, which
 * dcpd_submit_free frees as a whole.
 */
struct dcpd_submit {
	struct dcpd_client *client;	/* a reference is held */
	uint64_t id;			/* unique in this daemon's life */
	uid_t uid;
	bool own;			/* from a plugin in this process */
	uint32_t input, flags;		/* DCP_INPUT_*, DCP_* flags */
	char *data;			/* text or JSON, NUL after it; ids */
	size_t len;			/* bytes */
	struct dcp_request p;		/* scalars; its pointers are NULL */
	char **stop;
	uint32_t *stop_ids;
	struct dcp_logit_bias *bias;	/* counts are p.n_* */
	char *options;			/* or NULL */
};
void dcpd_submit_free(struct dcpd_submit *);	/* drops the reference */

struct dcpd_ipc_ops {
	/*
	 * Intake thread, must not block. 0: the callee owns s, and will end it
	 * with exactly one DONE or ERROR (unless the client goes first).
	 * Otherwise refused: ipc sends the ERROR event and frees s.
	 */
	int (*submit)(void *arg, struct dcpd_submit *s, struct dcpd_err *);
	void (*cancel)(void *arg, struct dcpd_client *, uint64_t id);
	/* The client died: drop its requests, emit no more for them. */
	void (*gone)(void *arg, struct dcpd_client *);
	char *(*info)(void *arg);	/* malloc'd JSON object */
};

struct dcpd_ipc_config {
	const char *path;		/* socket to bind; or */
	int listen_fd;			/* >= 0: already listening */
	/* 0: 256, 64, 256, 256 MiB. dcpd_ipc_limits changes them later. */
	_Atomic uint32_t max_clients, max_clients_uid;
	_Atomic uint32_t max_requests_uid;	/* live requests of one uid */
	_Atomic uint64_t max_bytes_uid;	/* queued in and out, of one uid */
	/*
	 * A plugin in this process carries the requests of many users. Its
	 * quotas are these many times a uid's, apart from that uid's; 0: 8.
	 */
	uint32_t own_times;
	uint32_t vocab;			/* ids in a request are below it */
	/* All below may stay 0. */
	uint32_t hello_timeout_ms;	/* to say HELLO in; 0: 2000 */
	uint32_t spin_us;		/* intake looks on before it sleeps */
	bool check_group;		/* only root, our uid and this group */
	gid_t group;
	mode_t mode;			/* of a socket bound here; 0: 0660 */
};

/* What may change while it runs; the same names as above. */
struct dcpd_ipc_limits {
	uint32_t max_clients, max_clients_uid, max_requests_uid;
	uint64_t max_bytes_uid;
};

int dcpd_ipc_start(const struct dcpd_ipc_config *, const struct dcpd_ipc_ops *,
    void *arg, struct dcpd_ipc **, struct dcpd_err *);
void dcpd_ipc_stop(struct dcpd_ipc *);	/* every live request gets -ESHUTDOWN */
/* Any thread; who is in already stays. */
void dcpd_ipc_limits(struct dcpd_ipc *, const struct dcpd_ipc_limits *);

/*
 * Any thread, never blocks. ev as in dcpclient.h (.user_data, .seq and .size
 * are filled in here). -EPIPE: the client is gone; -ENOENT: the request has
 * ended already. A request's events must come from one thread at a time. An
 * event too large for the ring goes out as several DELTAs and the event; while
 * the reader is slow, DELTAs of one channel may be joined into one.
 */
int dcpd_ipc_emit(struct dcpd_client *, uint64_t id,
    const struct dcp_event *ev);

/*
 * Reserve what max_tokens answers may need, at admission, once per request.
 * -EDQUOT: the uid's quota has no room now; -EMSGSIZE: it is smaller than this
 * answer and never will. Released by the final event.
 */
int dcpd_ipc_reserve(struct dcpd_client *, uint64_t id, uint32_t max_tokens,
    uint32_t top_logprobs);

struct dcpd_client *dcpd_client_ref(struct dcpd_client *);
void dcpd_client_unref(struct dcpd_client *);

/* JSON for `dcpctl clients`: id, pid, uid, requests, queued bytes, age. */
char *dcpd_ipc_clients_json(struct dcpd_ipc *);

#endif
