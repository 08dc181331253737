/*
 * The daemon as a whole: what main.c and start.c share. Filled from top to
 * bottom at start and released in reverse; main thread only, but for `run`
 * (admin/admin.h).
 */
#ifndef DCPD_DAEMON_H
#define DCPD_DAEMON_H

#include "dcpd/admin/admin.h"
#include "dcpd/admin/listen.h"
#include "dcpd/config/options.h"
#include "dcpd/model/engine.h"

struct dcpd_daemon {
	struct dcpd_options opt;
	struct dcpd_run run;
	/* Of the sockets' and the stats page's paths: a signal's thread may
	 * remove them while the main thread makes them. */
	pthread_mutex_t files_lock;
	struct dcpd_listen client_sock, admin_sock;
	gid_t client_group;			/* of --socket-group */
	struct dcpd_admin *admin;
	bool have_config;
	struct dcpd_model_config config;	/* of the model folder */
	struct dcpd_tokenizer *tok;		/* NULL: token ids only */
	enum dcpd_chat chat;
	enum dcpd_parser parser;
	struct dcpd_model_engine model;		/* unused by the null engine */
	struct dcpd_engine null;		/* under --null-fail-after */
	uint32_t null_steps;
	uint32_t null_end;			/* end token of --engine null */
	bool have_engine;
	struct dcpd_engine engine;
	struct dcpd_textpool *pool;
	struct dcpd_sched *sched;
	struct dcpd_ipc *ipc;
};

/* Its locks, before another thread sees it. */
void dcpd_daemon_init(struct dcpd_daemon *);
/*
 * From options to a listening, tested daemon; one log line per phase with its
 * seconds. On failure what was started stays for dcpd_daemon_stop.
 */
int dcpd_daemon_start(struct dcpd_daemon *, struct dcpd_err *);
/* `dcpd --plan`: the memory plan to stdout. */
int dcpd_daemon_plan(struct dcpd_daemon *, struct dcpd_err *);
/* Releases everything that was started. */
void dcpd_daemon_stop(struct dcpd_daemon *);

#endif
