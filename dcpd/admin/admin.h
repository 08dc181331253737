/*
 * The admin socket: what dcpctl speaks. Its own thread, which answers while
 * the model loads and while a step hangs, and never waits for a client.
 *
 * A stream of lines. A request is {"cmd": NAME, ...}; its answer one line,
 * {"ok": true, "result": ...} or {"ok": false, "error": TEXT}. Only the
 * daemon's own user and root may ask.
 */
#ifndef DCPD_ADMIN_H
#define DCPD_ADMIN_H

#include <jansson.h>
#include <pthread.h>

#include "dcpd/admin/stats.h"
#include "dcpd/base/base.h"
#include "dcpd/ipc/ipc.h"
#include "dcpd/sched/sched.h"

#define DCPD_MAX_PHASES 16

enum dcpd_state {
	DCPD_LOADING, DCPD_READY, DCPD_STOPPING, DCPD_FAILED,
};

/*
 * How far the daemon is. Main writes, the admin thread reads; both under the
 * lock. Only slow commands hold it while a step runs, for 10 s at most. sched
 * and ipc are set while they may be called, and cleared before they are
 * stopped.
 */
struct dcpd_run {
	pthread_rwlock_t lock;
	_Atomic enum dcpd_state state;	/* main writes, without the lock */
	double started;			/* dcpd_now() */
	struct {
		const char *name;
		double seconds;
	} phase[DCPD_MAX_PHASES];
	uint32_t phases;		/* the last of them may be under way */
	double phase_began;		/* 0: none is */
	double phase_most;		/* s without a sign; 0: any time */
	_Atomic uint32_t phase_signs;	/* counts: a phase, weights read */
	_Atomic uint64_t done, total;	/* bytes of weights read, in all */
	struct dcpd_sched *sched;
	struct dcpd_ipc *ipc;
	struct dcpd_engine *engine;
	const struct dcpd_tokenizer *tok;	/* set before any thread reads
						   it; NULL: there is none */
	_Atomic double stuck_after;	/* s; --stuck-after */
	json_t *about;			/* model, layout, plan: for status */
	/* A lock of their own: a reload does not wait for a slow command. */
	pthread_mutex_t config_lock;
	json_t *config;			/* effective flags */
	json_t *changed;		/* those that are not the default */
	/* A command's own thread, without the lock. */
	json_t *(*reload)(struct dcpd_run *, bool check, struct dcpd_err *);
	_Atomic bool draining;
};

struct dcpd_admin;
/* listen_fd stays the caller's. */
int dcpd_admin_start(int listen_fd, struct dcpd_run *, struct dcpd_admin **,
    struct dcpd_err *);
void dcpd_admin_stop(struct dcpd_admin *);

/* --- commands.c: one table makes the commands and their help ------------ */

struct dcpd_admin_command {
	const char *name, *help;
	bool slow;		/* may wait for a step: gets its own thread */
	/* A result, or NULL with err filled. Called with run->lock shared;
	 * reload alone without, for the main thread wants it meanwhile. */
	json_t *(*run)(struct dcpd_run *, const json_t *request,
	    struct dcpd_err *);
};
json_t *dcpd_admin_reload(struct dcpd_run *, const json_t *,
    struct dcpd_err *);
const struct dcpd_admin_command *dcpd_admin_find(const char *name);
/* "loading", "ready", "draining", "stuck", "stopping", "failed"; any thread. */
const char *dcpd_admin_state(const struct dcpd_run *);

/* --- watch.c: does the step thread get on? ------------------------------- */

/* Main thread, many times a second: keeps the stats page's state, and logs a
 * step that does not end, and that it did after all. */
void dcpd_watch(struct dcpd_run *);
/* Seconds that the step thread has been awake in its turn; 0: it sleeps. */
double dcpd_watch_turn(void);
/* Any thread. */
enum dcps_state dcpd_run_state(const struct dcpd_run *);

#endif
