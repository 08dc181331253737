/*
 * The sockets that are listened on, who may connect, and the loop. A socket
 * made here is never wider than its mode, replaces only one that nobody
 * listens on, and goes with the daemon.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/stale.h"
#include "plugins/evlog.h"
#include "plugins/unix/unix.h"

#define SYSTEMD_NAME "dcpd-unix"	/* FileDescriptorName= of its unit */
#define GROUPS_MAX 1024			/* of a client that are looked at */
#define ACCEPT_AT_ONCE 16
#define ACCEPT_PAUSE_S 0.2	/* when there are no descriptors left */
#define LAST_WORDS_MS 300	/* for the clients to read why it ends */

double
unix_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

char *
unix_why(const char *fmt, ...)
{
	char *s = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : s;
}

/* --- who may connect ----------------------------------------------------- */

static bool
in_group(int fd, const struct ucred *peer, gid_t want)
{
	gid_t groups[GROUPS_MAX];
	socklen_t len = sizeof groups;

	if (peer->gid == want)
		return true;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) != 0)
		return false;
	for (size_t i = 0; i < len / sizeof groups[0]; i++)
		if (groups[i] == want)
			return true;
	return false;
}

/* 0, or -errno with *why. */
static int
may_connect(struct server *s, int fd, const struct ucred *peer,
    const char **why)
{
	const struct unix_config *cfg = s->cfg;
	const struct conn *c;
	uint32_t same = 0;

	if (cfg->group != NULL && peer->uid != 0 && peer->uid != geteuid() &&
	    !in_group(fd, peer, cfg->gid)) {
		*why = "only members of its group may connect";
		return -EACCES;
	}
	TAILQ_FOREACH(c, &s->conns, link)
		same += c->uid == peer->uid;
	if (same >= cfg->max_connections_user)
		*why = "this user has as many connections as it may; close "
		    "one";
	else if (s->n_conns >= cfg->max_connections)
		*why = "there are as many connections as may be; try again "
		    "later";
	else
		return 0;
	return -EAGAIN;
}

static void
refuse(struct server *s, int fd, int error, const char *why)
{
	json_t *line = unix_error(NULL, error, why);
	char *text = line == NULL ? NULL : json_dumps(line, JSON_COMPACT);

	s->conns_refused++;
	if (text != NULL) {
		text[strlen(text)] = '\n';	/* in the place of the NUL */
		(void)!send(fd, text, strchr(text, '\n') - text + 1,
		    MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	free(text);
	json_decref(line);
	close(fd);
}

static void
accept_one(struct server *s, int fd)
{
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t len = sizeof peer;
	const char *why;
	int rc;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
		close(fd);
		return;
	}
	rc = may_connect(s, fd, &peer, &why);
	if (rc != 0)
		refuse(s, fd, rc, why);
	else if (conn_new(s, fd, peer.uid, peer.pid) == NULL)
		s->conns_refused++;
}

static void
on_accept(evutil_socket_t listening, short what, void *arg)
{
	struct listener *l = arg;
	struct server *s = l->server;
	int fd;

	for (unsigned i = 0; i < ACCEPT_AT_ONCE; i++) {
		fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC |
		    SOCK_NONBLOCK);
		if (fd >= 0) {
			accept_one(s, fd);
			continue;
		}
		if (errno == EAGAIN || errno == EINTR ||
		    errno == ECONNABORTED)
			return;
		/* Out of descriptors: it would be asked again at once. */
		s->accept_at = unix_now() + ACCEPT_PAUSE_S;
		for (unsigned k = 0; k < s->cfg->n_listen; k++)
			event_del(s->listen[k].ev);
		return;
	}
}

/* --- listening ----------------------------------------------------------- */

static int
bind_path(struct listener *l, const struct sockaddr_un *sa,
    const struct unix_config *cfg)
{
	struct stat st;

	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* The mode that bind gives, umask apart; nobody has it wider before
	 * chmod makes it exact. */
	if (l->fd < 0 || fchmod(l->fd, cfg->mode) != 0 ||
	    bind(l->fd, (const struct sockaddr *)sa, sizeof *sa) != 0)
		return -errno;
	if (lstat(sa->sun_path, &st) != 0)
		return -errno;
	l->path = strdup(sa->sun_path);
	if (l->path == NULL)
		return -ENOMEM;
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	if ((cfg->group != NULL && lchown(l->path, (uid_t)-1,
	    cfg->gid) != 0) || chmod(l->path, cfg->mode) != 0 ||
	    listen(l->fd, 1024) != 0)
		return -errno;
	return 0;
}

static int
open_path(struct listener *l, const char *path, const struct unix_config *cfg,
    char **why)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int rc;

	if (strlen(path) >= sizeof sa.sun_path) {
		*why = unix_why("%.200s: longer than the %zu bytes that a "
		    "socket's path may have", path, sizeof sa.sun_path - 1);
		return -ENAMETOOLONG;
	}
	strcpy(sa.sun_path, path);
	rc = dcpd_stale_remove(&sa, SOCK_STREAM);
	if (rc == -EEXIST)
		*why = unix_why("%s: exists and is not a socket; remove it, "
		    "or give another path", path);
	else if (rc == -EADDRINUSE)
		*why = unix_why("%s: in use; stop that process, or give "
		    "another path", path);
	if (rc == 0)
		rc = bind_path(l, &sa, cfg);
	if (rc != 0 && *why == NULL)
		*why = unix_why("%s: %s; give a path in a folder where dcpd's "
		    "user may create files%s", path, strerror(-rc),
		    cfg->group != NULL ? ", and a group that it is in" : "");
	return rc;
}

static int
open_listener(struct server *s, struct listener *l, const char *where,
    char **why)
{
	const struct dcp_host *h = s->host;
	int rc = 0;

	l->server = s;
	if (strcmp(where, "systemd") != 0) {
		rc = open_path(l, where, s->cfg, why);
	} else {
		l->fd = h->listen_fd(h->ctx, SYSTEMD_NAME);
		rc = l->fd < 0 ? l->fd : 0;
		if (rc != 0)
			*why = unix_why("listen: systemd: no listening stream "
			    "socket named " SYSTEMD_NAME " came from it (%s)",
			    strerror(-rc));
	}
	if (rc != 0)
		return rc;
	l->ev = event_new(s->base, l->fd, EV_READ | EV_PERSIST, on_accept, l);
	return l->ev != NULL && event_add(l->ev, NULL) == 0 ? 0 : -ENOMEM;
}

static void
close_listener(struct listener *l)
{
	struct stat st;

	if (l->ev != NULL)
		event_free(l->ev);
	if (l->path != NULL && lstat(l->path, &st) == 0 &&
	    st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
	if (l->fd >= 0)
		close(l->fd);
	free(l->path);
	*l = (struct listener){ .fd = -1 };
}

/* --- the loop ------------------------------------------------------------ */

static void
on_stop(evutil_socket_t fd, short what, void *arg)
{
	struct timeval tv = { .tv_usec = LAST_WORDS_MS * 1000 };
	struct server *s = arg;
	struct conn *c;

	s->ending = true;
	event_del(s->stop_ev);
	for (unsigned i = 0; i < s->cfg->n_listen; i++)
		close_listener(&s->listen[i]);
	TAILQ_FOREACH(c, &s->conns, link)
		conn_end(c);
	event_base_loopexit(s->base, TAILQ_EMPTY(&s->conns) ? NULL : &tv);
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct server *s = arg;
	double now = unix_now();
	struct conn *c, *next;

	s->host->tick(s->host->ctx);
	for (c = TAILQ_FIRST(&s->conns); c != NULL; c = next) {
		next = TAILQ_NEXT(c, link);
		conn_tick(c, now);
	}
	if (s->accept_at != 0 && now >= s->accept_at && !s->ending) {
		s->accept_at = 0;
		for (unsigned i = 0; i < s->cfg->n_listen; i++)
			event_add(s->listen[i].ev, NULL);
	}
	if (s->ending && TAILQ_EMPTY(&s->conns))
		event_base_loopexit(s->base, NULL);
}

int
server_open(struct server *s, char **why)
{
	struct timeval tick = { .tv_usec = UNIX_TICK_MS * 1000 };
	int rc = 0;

	TAILQ_INIT(&s->conns);
	for (unsigned i = 0; i < UNIX_MAX_LISTEN; i++)
		s->listen[i].fd = -1;
	s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->stop_fd < 0)
		return -errno;
	rc = evlog_room();
	if (rc != 0) {
		*why = unix_why("event loop: %s", strerror(-rc));
		return rc;
	}
	s->base = event_base_new();
	if (s->base == NULL)
		return -ENOMEM;
	s->stop_ev = event_new(s->base, s->stop_fd, EV_READ | EV_PERSIST,
	    on_stop, s);
	s->tick_ev = event_new(s->base, -1, EV_PERSIST, on_tick, s);
	if (s->stop_ev == NULL || s->tick_ev == NULL ||
	    event_add(s->stop_ev, NULL) != 0 ||
	    event_add(s->tick_ev, &tick) != 0)
		return -ENOMEM;
	for (unsigned i = 0; rc == 0 && i < s->cfg->n_listen; i++)
		rc = open_listener(s, &s->listen[i], s->cfg->listen[i], why);
	return rc;
}

void
server_run(struct server *s)
{
	if (event_base_dispatch(s->base) < 0)
		s->host->failed(s->host->ctx, "the event loop ended");
}

void
server_stop(struct server *s)
{
	uint64_t one = 1;

	(void)!write(s->stop_fd, &one, sizeof one);
}

void
server_close(struct server *s)
{
	while (!TAILQ_EMPTY(&s->conns))
		conn_free(TAILQ_FIRST(&s->conns));
	for (unsigned i = 0; i < s->cfg->n_listen; i++)
		close_listener(&s->listen[i]);
	if (s->tick_ev != NULL)
		event_free(s->tick_ev);
	if (s->stop_ev != NULL)
		event_free(s->stop_ev);
	if (s->base != NULL)
		event_base_free(s->base);
	if (s->stop_fd >= 0)
		close(s->stop_fd);
}
