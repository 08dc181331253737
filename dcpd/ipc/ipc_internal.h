/*
 * What the files of dcpd/ipc share.
 *
 * ipc.c     start, stop, the intake thread's loop, accepting, clients_json
 * hello.c   the set-up on a new socket, the shared memory of a client
 * client.c  a client's life, its live requests, the quotas of its uid
 * intake.c  submissions: from the ring to a private, validated copy
 * emit.c    events: into the ring, or queued until the reader frees space
 *
 * Fields say who may touch them. "intake" is the intake thread; "lock" is
 * the client's lock, a leaf: nothing else is taken under it.
 */
#ifndef DCPD_IPC_INTERNAL_H
#define DCPD_IPC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "dcpd/admin/listen.h"
#include "dcpd/ipc/ipc.h"
#include "libdcpclient/dcp_ring.h"

#define SQ_ENTRIES 256u
#define CQ_ENTRIES 4096u
#define ARENA_BYTES (8u << 20)	/* the largest request: 1M ids of 4 bytes */
#define STREAM_BYTES (4u << 20)
/* A record is never wrapped; half of an empty stream is always in one piece. */
#define RECORD_MAX (STREAM_BYTES / 2)

#define CLIENT_BYTES (DCPR_PAGE + SQ_ENTRIES * 64u + ARENA_BYTES)
#define SERVER_BYTES (DCPR_PAGE + CQ_ENTRIES * 64u + STREAM_BYTES)

#define INTAKE_BATCH 16u	/* submissions of a client in one turn */
/*
 * Answers that no reservation covers: refusals and server info. A client that
 * lets this many bytes pile up is not listened to until it reads.
 */
#define LOOSE_MAX (256u << 10)

#define CLIENT_MAGIC 0x1bc11e27u
#define LIVE_BUCKETS 128u

/* What an epoll event is about; embedded in its owner. */
enum source_kind { SRC_LISTEN, SRC_KICK, SRC_PENDING, SRC_SOCK, SRC_BELL,
	SRC_PIDFD };
struct source {
	enum source_kind kind;
	void *owner;
};

/* One uid's use. Never freed before the ipc: uids are few. */
struct uid_use {
	struct uid_use *next;
	uid_t uid;
	bool own;			/* clients inside this process */
	_Atomic uint32_t max_clients, max_requests;	/* intake writes */
	_Atomic uint64_t max_bytes;
	uint32_t clients;		/* intake; connecting ones too */
	_Atomic uint32_t requests;	/* live */
	_Atomic uint64_t bytes;		/* held for it, in and out */
};

/* A connection that has not said HELLO yet. */
struct pending {
	struct dcpd_ipc *ipc;
	struct pending *next, **prev;	/* oldest first */
	struct source src;
	int sock;
	struct ucred cred;
	struct uid_use *use;
	uint64_t deadline;		/* ns */
};

struct live {				/* a request without its final event */
	struct live *next;
	uint64_t id, user_data;
	uint64_t reserved;		/* bytes still to draw on */
	uint64_t echo_bytes;		/* a reservation's for DCP_ECHO */
	struct outrec *last;		/* queued, and may take more tokens */
	struct outrec *last_words;	/* for its end, should memory run out */
	uint32_t seq;
	bool logprobs;
	bool counted;			/* in uid_use.requests */
};

/*
 * An entry that waits for space. Tokens without logprobs gather in one entry
 * while they wait (join), so that a slow reader costs few bytes a token.
 */
#define JOIN_TOKENS 64u
#define JOIN_TEXT 640u
struct outrec {
	struct outrec *next;
	uint32_t len;			/* of payload; or, when joining: */
	bool joining;
	uint32_t call, n_tokens, text_len;
	bool loose;			/* not drawn from a reservation */
	struct dcpr_cqe e;
	uint64_t payload[];		/* or struct joined */
};
struct joined {
	uint32_t tokens[JOIN_TOKENS];
	char text[JOIN_TEXT];
};

struct dcpd_client {
	uint32_t magic;
	_Atomic uint32_t refs;
	struct dcpd_ipc *ipc;		/* a reference is held */
	struct uid_use *use;
	uint64_t id;
	struct ucred cred;
	double since;			/* dcpd_now() */

	/* intake */
	struct dcpd_client *next, **prev;	/* list_lock too */
	struct dcpd_client *act_next;	/* has work, or had some just now */
	struct dcpd_client *dead_next;
	bool active, dropped;
	int pidfd, bell;
	struct source src_sock, src_bell, src_pid;
	uint32_t sq_head, sq_seen, sq_bell;
	uint32_t next_req;
	uint64_t last_work;		/* ns */

	/* lock */
	pthread_mutex_t lock;
	int sock;
	bool gone;			/* mappings are no more */
	const char *fault;		/* for which it will be dropped */
	struct live *live[LIVE_BUCKETS];
	uint32_t n_live;
	uint8_t *cli, *srv;
	struct dcpr_client_page *c;
	struct dcpr_server_page *s;
	uint32_t cq_tail, cq_head;	/* head: as last read and checked */
	uint64_t st_tail, st_head;	/* stream in use, free-running */
	uint64_t st_end[CQ_ENTRIES];	/* st_head once that entry is taken */
	uint32_t cq_woken;		/* last cq_bell answered */
	uint32_t space_bell;
	bool space_asked;
	struct outrec *out, **out_end;
	uint64_t out_bytes, loose_bytes;
};

struct dcpd_ipc {
	_Atomic uint32_t refs;
	struct dcpd_ipc_config cfg;
	struct dcpd_ipc_ops ops;
	void *arg;
	uint64_t epoch;
	struct dcpd_listen listen;	/* no path: not bound here */
	int epfd, kick;
	struct source src_listen, src_kick;
	pthread_t thread;
	atomic_bool stop, fault, relimit;	/* with kick */

	/* intake */
	struct uid_use *uids;
	struct pending *pending, **pending_end;
	uint32_t n_pending, next_client;
	struct dcpd_client *act, **act_end;
	struct dcpd_client *dead;	/* dropped in this turn */
	uint64_t listen_off;		/* ns: not accepting until then; or 0 */
	uint64_t log_second;
	uint32_t log_lines, log_hidden;

	pthread_mutex_t list_lock;	/* intake changes, others read */
	struct dcpd_client *clients;
	uint32_t n_clients;
};

static inline uint32_t
word_load(const uint32_t *w)
{
	return __atomic_load_n(w, __ATOMIC_SEQ_CST);
}

static inline void
word_store(uint32_t *w, uint32_t v)
{
	__atomic_store_n(w, v, __ATOMIC_SEQ_CST);
}

/* ipc.c */
void ipc_unref(struct dcpd_ipc *);
void ipc_kick(struct dcpd_ipc *);
/* A line about a misbehaving peer; at most ten a second, then counted. */
void ipc_complain(struct dcpd_ipc *, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void ipc_activate(struct dcpd_client *);

/* hello.c; intake */
void hello_accept(struct dcpd_ipc *);
void hello_read(struct pending *);
int hello_expire(struct dcpd_ipc *);	/* ms to the next deadline, or -1 */
/* At start: does this kernel tell of every ring of a doorbell? */
int ipc_bell_check(struct dcpd_err *);
void pending_free(struct dcpd_ipc *, struct pending *);

/* client.c */
/* NULL: no memory */
struct uid_use *uid_find(struct dcpd_ipc *, const struct ucred *);
void uid_relimit(struct dcpd_ipc *);	/* intake: cfg has changed */
/* Charge bytes; false, and nothing charged, if the quota has no room. */
bool uid_charge(const struct dcpd_client *, uint64_t bytes);
void uid_discharge(const struct dcpd_client *, uint64_t bytes);
/* Takes sock, pidfd, bell and the mappings. NULL: no memory, nothing taken. */
struct dcpd_client *client_new(struct dcpd_ipc *, const struct pending *,
    int pidfd, int bell, uint8_t *cli, uint8_t *srv);
/* reason NULL: it left by itself. intake */
void client_drop(struct dcpd_client *, const char *reason);
/* lock held */
struct live *live_add(struct dcpd_client *, uint64_t id, uint64_t user_data);
struct live *live_find(const struct dcpd_client *, uint64_t id);
void live_del(struct dcpd_client *, uint64_t id);

/* intake.c: one turn; true when there was work. intake */
bool intake_turn(struct dcpd_client *);
/* Ask for a doorbell; false when there is work already. intake */
bool intake_arm(struct dcpd_client *);

/* emit.c; lock held */
int emit_locked(struct dcpd_client *, struct live *,
    const struct dcp_event *);
void emit_info(struct dcpd_client *, uint64_t id, const char *json);
/* The end of a request for which there was no memory, live or not. */
void emit_no_memory(struct dcpd_client *, uint64_t id, uint64_t user_data);
bool emit_refresh(struct dcpd_client *);	/* false: c->fault */
bool emit_pump(struct dcpd_client *);	/* true: something moved */
void emit_free_queue(struct dcpd_client *);

#endif
