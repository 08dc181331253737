/*
 * Reload: read the configuration again, check all of it, change what can
 * change at run time, and say what needs a restart. Nothing changes if there
 * is a mistake. The main thread does it, for SIGHUP and for the admin socket.
 */
#ifndef DCPD_RELOAD_H
#define DCPD_RELOAD_H

#include "dcpd/daemon.h"

/* Main thread, before the admin thread is there: keeps the command line;
 * wake_fd: an eventfd that the main thread sleeps on. */
void dcpd_reload_init(struct dcpd_daemon *, int argc, char **argv,
    int wake_fd);
void dcpd_reload_open(void);	/* it serves: who asks is answered */
/*
 * Main thread. check: only says what would happen. {"changed": {NAME: {"from",
 * "to"}}, "restart": {NAME: ...}, "check": bool}, or NULL with err.
 */
json_t *dcpd_reload(struct dcpd_daemon *, bool check, struct dcpd_err *);
/* Main thread, each turn: does what dcpd_reload_ask wants. */
void dcpd_reload_serve(struct dcpd_daemon *);
/* Main thread, at the end: whoever asks is refused from now on. */
void dcpd_reload_close(void);

#endif
