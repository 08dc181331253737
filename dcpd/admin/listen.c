/*
 * Listening Unix sockets. Main thread at start and end.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "dcpd/admin/listen.h"
#include "dcpd/base/stale.h"

#define LOCK_MS 5000

/* Another dcpd is done in no time; anyone who can read the folder can lock it
 * for ever. */
static int
lock_soon(int fd)
{
	int rc = 0;

	for (int ms = 0; ms < LOCK_MS; ms += 20) {
		rc = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;
		if (rc != -EWOULDBLOCK && rc != -EINTR)
			return rc;
		usleep(20000);
	}
	return rc;
}

/* The folder of path, opened and locked: two daemons that start at once must
 * not both find the same stale socket. */
static int
lock_folder(const char *path, const char *flag, int *out, struct dcpd_err *err)
{
	char dir[sizeof ((struct sockaddr_un *)0)->sun_path];
	char *slash;
	int fd, rc;

	snprintf(dir, sizeof dir, "%s", path);
	slash = strrchr(dir, '/');
	if (slash == NULL)
		snprintf(dir, sizeof dir, ".");
	else
		slash[slash == dir] = '\0';
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return dcpd_fail(err, -errno, "%s %s: folder %s: %s; %s",
		    flag, path, dir, strerror(errno), errno != ENOENT ?
		    "give a path in a folder of yours" :
		    strcmp(dir, "/run/dcpd") != 0 ?
		    "create it, or give another path" :
		    "`systemd-tmpfiles --create dcpd.conf` makes it where "
		    "dcpd is installed, or give a path of your own: --socket "
		    "/tmp/dcpd.sock");
	rc = lock_soon(fd);
	if (rc != 0) {
		close(fd);
		return dcpd_fail(err, rc == -EWOULDBLOCK ? -EBUSY : rc,
		    "%s %s: %s %s", flag, path, dir, rc == -EWOULDBLOCK ? "is locked by another process; stop "
		    "it (fuser names it), or give a path elsewhere" :
		    strerror(-rc));
	}
	*out = fd;
	return 0;
}

static int
clear_path(const struct sockaddr_un *sa, int type, const char *flag,
    struct dcpd_err *err)
{
	int rc = dcpd_stale_remove(sa, type);

	return rc == 0 ? 0 : dcpd_fail(err, rc, "%s %s: %s", flag,
	    sa->sun_path, rc == -EEXIST ? "exists and is not a socket; remove "
	    "it, or give another path" : rc == -EADDRINUSE ? "in use: a "
	    "process listens on it; stop that process, or give another path" :
	    strerror(-rc));
}

static int
bind_path(const struct sockaddr_un *sa, int type, mode_t mode,
    const char *flag, struct dcpd_listen *l, struct dcpd_err *err)
{
	struct stat st;
	mode_t old;
	int fd, rc;

	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return dcpd_fail(err, -errno, "socket: %s", strerror(errno));
	/* Never wider than `mode`, not even between bind and a chmod. */
	old = umask(0777 & ~mode);
	rc = bind(fd, (const struct sockaddr *)sa, sizeof *sa);
	rc = rc == 0 ? 0 : -errno;
	umask(old);
	if (rc == 0 && (listen(fd, 1024) != 0 ||
	    lstat(sa->sun_path, &st) != 0))
		rc = -errno;
	if (rc != 0) {
		close(fd);
		return dcpd_fail(err, rc, "%s %s: %s; give a path in a folder "
		    "where this user may create files", flag, sa->sun_path,
		    strerror(-rc));
	}
	l->fd = fd;
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	return 0;
}

int
dcpd_listen_open(const char *path, int type, mode_t mode, const char *flag,
    struct dcpd_listen *out, struct dcpd_err *err)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct dcpd_listen l = DCPD_LISTEN_INIT;
	int dir = -1, rc;

	if (strlen(path) >= sizeof sa.sun_path)
		return dcpd_fail(err, -ENAMETOOLONG, "%s %.200s: longer than "
		    "%zu bytes", flag, path, sizeof sa.sun_path - 1);
	strcpy(sa.sun_path, path);
	if ((rc = lock_folder(path, flag, &dir, err)) != 0)
		return rc;
	l.path = strdup(path);
	if (l.path == NULL)
		rc = dcpd_fail(err, -ENOMEM, "out of memory");
	if (rc == 0)
		rc = clear_path(&sa, type, flag, err);
	if (rc == 0)
		rc = bind_path(&sa, type, mode, flag, &l, err);
	close(dir);
	if (rc != 0)
		free(l.path);
	else
		*out = l;
	return rc;
}

/* LISTEN_FDNAMES: a unit's FileDescriptorName=, by default its own name. */
static bool
named(const char *given, const char *name)
{
	size_t n = strlen(name);

	return strncmp(given, name, n) == 0 &&
	    (given[n] == '\0' || strcmp(given + n, ".socket") == 0);
}

/* The descriptor that systemd passed under that name; 0: none. */
static int
find_inherited(const char *name)
{
	char **names = NULL;
	int i, n, found = 0;

	n = sd_listen_fds_with_names(0, &names);
	if (n < 0)
		return n;
	for (i = 0; i < n; i++)
		if (found == 0 && named(names[i], name))
			found = SD_LISTEN_FDS_START + i;
	for (i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return found;
}

int
dcpd_listen_named(const char *name, int *fd)
{
	int found = find_inherited(name), copy;

	if (found == 0)
		return -ENOENT;
	if (found < 0)
		return found;
	if (sd_is_socket(found, AF_UNSPEC, SOCK_STREAM, 1) <= 0)
		return -EINVAL;
	copy = fcntl(found, F_DUPFD_CLOEXEC, 0);
	if (copy < 0 || fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) |
	    O_NONBLOCK) != 0) {
		int rc = -errno;

		if (copy >= 0)
			close(copy);
		return rc;
	}
	*fd = copy;
	return 0;
}

int
dcpd_listen_path(const struct dcpd_listen *l, char *buf, size_t cap)
{
	struct sockaddr_un sa = { .sun_family = AF_UNSPEC };
	socklen_t len = sizeof sa;

	if (getsockname(l->fd, (struct sockaddr *)&sa, &len) != 0)
		return -errno;
	if (sa.sun_family != AF_UNIX || sa.sun_path[0] == '\0')
		return -ENOENT;
	return (size_t)snprintf(buf, cap, "%.*s", (int)sizeof sa.sun_path,
	    sa.sun_path) < cap ? 0 : -ENAMETOOLONG;
}

int
dcpd_listen_inherited(const char *name, int type, struct dcpd_listen *out,
    struct dcpd_err *err)
{
	int found = find_inherited(name), rc;

	if (found < 0)
		return dcpd_fail(err, found, "LISTEN_FDS: %s",
		    strerror(-found));
	if (found == 0)
		return 0;
	if (sd_is_socket_unix(found, type, 1, NULL, 0) <= 0)
		return dcpd_fail(err, -EINVAL, "LISTEN_FDS: descriptor %d "
		    "(%s) is no listening Unix %s socket; see "
		    "ListenSequentialPacket= and ListenStream= in the unit",
		    found, name, type == SOCK_STREAM ? "stream" : "seqpacket");
	rc = fcntl(found, F_SETFL, fcntl(found, F_GETFL) | O_NONBLOCK);
	if (rc != 0)
		return dcpd_fail(err, -errno, "LISTEN_FDS: %s",
		    strerror(errno));
	out->fd = found;
	out->path = NULL;
	return 1;
}

void
dcpd_listen_unlink(const struct dcpd_listen *l)
{
	struct stat st;

	if (l->path != NULL && lstat(l->path, &st) == 0 &&
	    st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
}

void
dcpd_listen_close(struct dcpd_listen *l)
{
	dcpd_listen_unlink(l);
	if (l->fd >= 0)
		close(l->fd);
	free(l->path);
	l->fd = -1;
	l->path = NULL;
}
