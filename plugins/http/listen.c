/*
 * Listening sockets. Opened on the daemon's main thread by start, closed when
 * the plugin stops.
 */
#include "config.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "dcpd/base/stale.h"
#include "plugins/http/listen.h"
#include "plugins/http/why.h"

#define BACKLOG 1024
#define OTHERS_FDS 128u	/* at least, for the daemon and the ring */
#define SYSTEMD_NAME "dcpd-http"	/* FileDescriptorName= of its unit */

struct one {
	int fd;
	char name[NI_MAXHOST + 16];
	char *path;		/* to be removed, or NULL */
};

struct listeners {
	size_t n;
	struct one v[];
};

/* --- HOST:PORT --------------------------------------------------------- */

/* "[::1]:8000" -> "::1", "8000" */
static int
split(const char *spec, char *host, size_t cap, const char **port)
{
	const char *colon = strrchr(spec, ':');
	size_t n;

	if (colon == NULL)
		return -EINVAL;
	n = (size_t)(colon - spec);
	if (n >= 2 && spec[0] == '[' && spec[n - 1] == ']') {
		spec++;
		n -= 2;
	} else if (memchr(spec, ':', n) != NULL) {
		return -EINVAL;	/* an IPv6 address needs its brackets */
	}
	if (n == 0 || n >= cap)
		return -EINVAL;
	memcpy(host, spec, n);
	host[n] = '\0';
	*port = colon + 1;
	return 0;
}

int
listen_check(const char *spec, char **why)
{
	char host[NI_MAXHOST];
	const char *port;
	char *end;
	unsigned long p;

	if (strcmp(spec, "systemd") == 0)
		return 0;
	if (strncmp(spec, "unix:", 5) == 0) {
		if (spec[5] != '/' || strlen(spec + 5) >=
		    sizeof ((struct sockaddr_un *)0)->sun_path)
			return http_why(why, -EINVAL, "listen: \"%s\": want "
			    "unix:/PATH, of at most %zu bytes", spec,
			    sizeof ((struct sockaddr_un *)0)->sun_path - 1);
		return 0;
	}
	if (split(spec, host, sizeof host, &port) == 0 && *port >= '0' &&
	    *port <= '9') {
		p = strtoul(port, &end, 10);
		if (*end == '\0' && p <= 65535)
			return 0;
	}
	return http_why(why, -EINVAL, "listen: \"%s\": want HOST:PORT (an IPv6 "
	    "address in [brackets]), unix:/PATH or systemd", spec);
}

static void
name_of(struct one *l)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof sa;
	char host[NI_MAXHOST], port[16];

	if (getsockname(l->fd, (struct sockaddr *)&sa, &len) != 0)
		return;
	if (sa.ss_family == AF_UNIX) {
		const struct sockaddr_un *un = (const void *)&sa;

		snprintf(l->name, sizeof l->name, "unix:%s", un->sun_path);
		return;
	}
	if (getnameinfo((struct sockaddr *)&sa, len, host, sizeof host, port,
	    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(l->name, sizeof l->name, strchr(host, ':') != NULL ?
		    "[%s]:%s" : "%s:%s", host, port);
}

/* What to do about it. */
static const char *
hint(int rc)
{
	switch (rc) {
	case -EADDRINUSE:
		return "; choose another port, or end what has it";
	case -EADDRNOTAVAIL:
		return "; this machine has no such address";
	case -EACCES:
		return "; a port below 1024 needs CAP_NET_BIND_SERVICE: "
		    "choose another";
	default:
		return "";
	}
}

static int
open_tcp(const char *spec, struct one *l, char **why)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
	    .ai_flags = AI_PASSIVE | AI_ADDRCONFIG }, *ai = NULL, *a;
	char host[NI_MAXHOST];
	const char *port;
	int one = 1, rc = -EADDRNOTAVAIL, fd = -1, gai;

	if (split(spec, host, sizeof host, &port) != 0)
		return listen_check(spec, why);
	gai = getaddrinfo(host, port, &hints, &ai);
	if (gai != 0)
		/* Whoever knows names may be asked later, too. */
		return http_why(why, gai == EAI_AGAIN ? -EADDRNOTAVAIL :
		    gai == EAI_MEMORY ? -ENOMEM : -EINVAL, "listen: %s: %s; "
		    "give an address or a name of this machine", spec,
		    gai_strerror(gai));
	for (a = ai; a != NULL && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK |
		    SOCK_CLOEXEC, 0);
		if (fd < 0) {
			rc = -errno;
			continue;
		}
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		/* Accepted sockets inherit it: a token is not held back. */
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 ||
		    listen(fd, BACKLOG) != 0) {
			rc = -errno;
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(ai);
	if (fd < 0)
		return http_why(why, rc, "listen: %s: %s%s", spec,
		    strerror(-rc), hint(rc));
	l->fd = fd;
	return 0;
}

/* --- unix:PATH --------------------------------------------------------- */

static int
open_unix(const char *path, struct one *l, char **why)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, rc;

	if (strlen(path) >= sizeof sa.sun_path)
		return -ENAMETOOLONG;
	memcpy(sa.sun_path, path, strlen(path) + 1);
	rc = dcpd_stale_remove(&sa, SOCK_STREAM);
	if (rc != 0)
		return http_why(why, rc, "listen: unix:%s: %s", path,
		    rc == -EADDRINUSE ? "another process listens there" :
		    rc == -EEXIST ? "exists and is no socket" : strerror(-rc));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* The mode before anybody can connect. */
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0 ||
	    chmod(path, 0660) != 0 || listen(fd, BACKLOG) != 0) {
		rc = -errno;
		if (fd >= 0)
			close(fd);
		return http_why(why, rc, "listen: unix:%s: %s%s", path,
		    strerror(-rc), rc == -ENOENT || rc == -EACCES ?
		    "; give a path in a folder where dcpd's user may create "
		    "files" : "");
	}
	l->fd = fd;
	l->path = strdup(path);
	return 0;
}

/* --- all --------------------------------------------------------------- */

static int
open_systemd(const struct http *http, struct one *l, char **why)
{
	const struct dcp_host *h = http->host;
	int fd = h->listen_fd(h->ctx, SYSTEMD_NAME), one = 1;

	if (fd < 0)
		return http_why(why, fd, "listen: systemd: it passed no socket "
		    "with FileDescriptorName=" SYSTEMD_NAME "; enable "
		    "dcpd-http.socket, or give HOST:PORT");
	l->fd = fd;
	/* As of our own; a Unix socket has no such option, and needs none. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return 0;
}

static bool
is_loopback(const struct one *l)
{
	return strncmp(l->name, "127.", 4) == 0 ||
	    strncmp(l->name, "[::1]", 5) == 0 ||
	    strncmp(l->name, "unix:", 5) == 0;
}

int
listeners_open(struct http *http, struct listeners **out, char **why)
{
	size_t n = http->cfg.n_listen, i;
	struct listeners *ls = calloc(1, sizeof *ls + n * sizeof ls->v[0]);
	int rc = 0;

	if (ls == NULL)
		return -ENOMEM;
	for (i = 0; i < n && rc == 0; i++) {
		const char *spec = http->cfg.listen[i];
		struct one *l = &ls->v[i];

		l->fd = -1;
		ls->n = i + 1;
		rc = strcmp(spec, "systemd") == 0 ?
		    open_systemd(http, l, why) :
		    strncmp(spec, "unix:", 5) == 0 ?
		    open_unix(spec + 5, l, why) : open_tcp(spec, l, why);
		if (rc != 0)
			break;
		name_of(l);
		http_log(http, LOG_INFO, "listening on %s%s", l->name,
		    http->cfg.n_api_key == 0 && !is_loopback(l) ?
		    ": anybody who reaches it may use it; give api_key_file, "
		    "or listen on 127.0.0.1" : "");
	}
	if (rc != 0) {
		listeners_close(ls);
		return rc;
	}
	*out = ls;
	return 0;
}

size_t
listeners_n(const struct listeners *ls)
{
	return ls == NULL ? 0 : ls->n;
}

int
listeners_fd(const struct listeners *ls, size_t i)
{
	return ls->v[i].fd;
}

void
listeners_given(struct listeners *ls, size_t i)
{
	ls->v[i].fd = -1;
}

const char *
listeners_name(const struct listeners *ls, size_t i)
{
	return ls->v[i].name;
}

void
listeners_close(struct listeners *ls)
{
	size_t i;

	if (ls == NULL)
		return;
	for (i = 0; i < ls->n; i++) {
		if (ls->v[i].fd >= 0)
			close(ls->v[i].fd);
		if (ls->v[i].path != NULL)
			unlink(ls->v[i].path);
		free(ls->v[i].path);
	}
	free(ls);
}

/*
 * Connections must not take the descriptors that dcpctl, the ring's clients
 * and a crash report need: a quarter is theirs.
 */
uint32_t
listeners_room(struct http *http, uint32_t spare)
{
	uint32_t want = http->cfg.max_connections;
	struct rlimit rl;
	rlim_t others;

	if (getrlimit(RLIMIT_NOFILE, &rl) != 0 || rl.rlim_cur > UINT32_MAX)
		return UINT32_MAX;
	others = rl.rlim_cur / 4;
	if (others < OTHERS_FDS)
		others = OTHERS_FDS;
	others += spare;
	rl.rlim_cur = rl.rlim_cur > others ? rl.rlim_cur - others : 1;
	if (rl.rlim_cur < want)
		http_log(http, LOG_WARNING, "max_connections is %u, but of this "
		    "process's descriptors %llu are left for them: that many "
		    "are taken; raise its limit (ulimit -n, LimitNOFILE=)",
		    want, (unsigned long long)rl.rlim_cur);
	return (uint32_t)rl.rlim_cur;
}
