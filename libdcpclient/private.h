/*
 * A connection as the library sees it, and what its files share.
 *
 * Two locks, never held together with each other: tx for submissions, rx for
 * completions; ids is a leaf under either. One thread at a time, the leader,
 * spins or sleeps for new completions without holding rx; the others wait for
 * it on rx_cond.
 */
#ifndef DCP_PRIVATE_H
#define DCP_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libdcpclient/dcp_ring.h"
#pragma GCC visibility push(default)
#include "libdcpclient/dcpclient.h"
#pragma GCC visibility pop

struct box {			/* an event, then its tokens, text, ... */
	struct box *next;
	struct dcp_event ev;
	uint64_t storage[];
};

struct info_wait {		/* a dcp_server_info that waits */
	struct info_wait *next;
	uint64_t id;
	char *json;
	size_t len;
	int rc;
	bool done;
};

struct idset {			/* ids of live requests, lower halves */
	uint32_t *slot;		/* [cap] id + 1, 0 = empty */
	uint32_t cap, n;	/* cap: 2^n */
};

struct dcp {
	/* constant after dcp_connect */
	int sock, bell[2];		/* bell: read, written */
	uint32_t client, vocab;
	uint64_t spin_ns;
	volatile uint8_t *fork_mark;	/* 1; a forked child reads 0 */
	uint8_t *cli, *srv;		/* regions; srv is read-only */
	size_t cli_bytes, srv_bytes;
	struct dcpr_client_page *c;
	const struct dcpr_server_page *s;
	struct dcpr_sqe *sq;
	uint8_t *arena;
	const struct dcpr_cqe *cq;
	const uint8_t *stream;
	uint32_t sq_entries, cq_entries, arena_size, stream_size;

	atomic_bool dead;		/* the daemon is gone */

	pthread_mutex_t tx;
	uint32_t sq_tail;		/* ours; shared word follows it */
	uint32_t sq_done;		/* entries whose blocks are free */
	uint32_t sq_rung;		/* last sq_bell answered */
	uint32_t next_req, next_info;
	uint64_t a_head, a_tail;	/* arena in use, free-running */
	uint64_t *a_end;		/* [sq_entries] a_head once taken */

	pthread_mutex_t rx;
	pthread_cond_t rx_cond;
	unsigned followers;		/* waiting on rx_cond */
	bool leader;
	uint64_t recv_ms;		/* the leader's; the socket's timeout */
	bool polled;			/* dcp_fd() was asked for */
	bool kick_set;			/* kick is readable */
	int kick, epfd;			/* dcp_fd(): socket or kick readable */
	uint32_t cq_head;		/* ours; shared word follows it */
	uint32_t cq_bell;		/* last value we stored there */
	uint32_t space_rung;		/* last space_bell answered */
	struct box *queue, **queue_end;	/* taken off the ring, not yet given */
	struct info_wait *infos;

	pthread_mutex_t ids_lock;
	struct idset ids;
};

/* Words of the shared pages. */
static inline uint32_t
load_acquire(const uint32_t *w)
{
	return __atomic_load_n(w, __ATOMIC_ACQUIRE);
}

static inline uint32_t
load_sc(const uint32_t *w)
{
	return __atomic_load_n(w, __ATOMIC_SEQ_CST);
}

static inline void
store_sc(uint32_t *w, uint32_t v)
{
	__atomic_store_n(w, v, __ATOMIC_SEQ_CST);
}

/* error.c: set this thread's error text, return code */
int dcp_fail(int code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void dcp_ok(void);			/* "" */
/* 0, or the failure: NULL, or a child of the process that connected */
int dcp_enter(const struct dcp *d, const char *func);
uint64_t dcp_now_ns(void);

/* idset.c; under ids_lock */
int idset_add(struct idset *, uint32_t id);
bool idset_del(struct idset *, uint32_t id);
bool idset_has(const struct idset *, uint32_t id);

/* submit.c */
int dcp_push(struct dcp *d, uint32_t op, uint64_t id);	/* CANCEL, INFO */
void dcp_ring_doorbell(struct dcp *d);
/* receive.c: true and d->dead when the daemon's end of the socket is shut */
bool dcp_peer_gone(struct dcp *d);

#endif
