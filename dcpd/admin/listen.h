/* Listening Unix sockets: bound here, or handed over by systemd. */
#ifndef DCPD_LISTEN_H
#define DCPD_LISTEN_H

#include <sys/stat.h>

#include "dcpd/base/base.h"

struct dcpd_listen {
	int fd;			/* -1: none */
	char *path;		/* to remove at the end; NULL: systemd's */
	dev_t dev;
	ino_t ino;
};
#define DCPD_LISTEN_INIT { .fd = -1 }

/*
 * Bind and listen. A socket that a process listens on is refused, one that
 * nobody does is replaced. flag: for the message, "--socket". Main thread,
 * before others exist (umask).
 */
int dcpd_listen_open(const char *path, int type, mode_t mode, const char *flag,
    struct dcpd_listen *, struct dcpd_err *);
/*
 * A socket that systemd passed under `name` or `name`.socket. 1: taken, 0:
 * none of that name, -errno: it is no listening Unix socket of that type.
 */
int dcpd_listen_inherited(const char *name, int type, struct dcpd_listen *,
    struct dcpd_err *);
/* As above for a listening socket of any family; *fd is the caller's own.
 * 0, or -ENOENT: none of that name. Any thread. */
int dcpd_listen_named(const char *name, int *fd);
/* Where clients connect, into buf; -ENOENT: the socket has no path. */
int dcpd_listen_path(const struct dcpd_listen *, char *buf, size_t cap);
/* Close; the path goes only if it is still ours. */
void dcpd_listen_close(struct dcpd_listen *);
/* Remove the path alone, for an exit without unwinding. Any thread. */
void dcpd_listen_unlink(const struct dcpd_listen *);

#endif
