/*
 * A path to listen on: what a process that died left there goes, and nothing
 * else. Inline and without the daemon, so that front ends, which link nothing
 * of it, use it too.
 */
#ifndef DCPD_STALE_H
#define DCPD_STALE_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * 0: nothing is at sa's path any more. -EEXIST: something that is no socket;
 * -EADDRINUSE: a process listens there; otherwise -errno, of looking, asking
 * (-EACCES: somebody's, perhaps alive) or removing. type: SOCK_STREAM or another.
 */
static inline int
dcpd_stale_remove(const struct sockaddr_un *sa, int type)
{
	struct stat st;
	int fd, e;

	if (lstat(sa->sun_path, &st) != 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	e = connect(fd, (const struct sockaddr *)sa, sizeof *sa) == 0 ? 0 :
	    errno;
	close(fd);
	/* A full queue or another type of socket is somebody's, too. */
	if (e == 0 || e == EAGAIN || e == EPROTOTYPE)
		return -EADDRINUSE;
	if (e != ECONNREFUSED && e != ENOENT)
		return -e;
	return unlink(sa->sun_path) == 0 || errno == ENOENT ? 0 : -errno;
}

#endif
