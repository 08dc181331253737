/* The admin socket's client, and the commands that are one question to it. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "dcpctl/ctl.h"

#define ANSWER_MAX (64u << 20)	/* bytes of one answer */
#define WAIT_S 30		/* for an answer; check waits for a step */
#define WAIT_STATUS_S 5		/* then the stats page is looked at */
#define WAIT_ALONE_MS 1000	/* by then, where there is no such page */

const char *
ctl_socket(void)
{
	const char *env = getenv("DCPD_SOCKET");

	return ctl.socket != NULL ? ctl.socket : env != NULL ? env :
	    "/run/dcpd/dcpd.sock";
}

/* Is there no telling which daemon's socket, and so page, goes with it? */
static bool
page_unknown(void)
{
	return ctl.admin_socket != NULL && ctl.socket == NULL &&
	    getenv("DCPD_SOCKET") == NULL;
}

static int
admin_connect(bool quiet, time_t wait_s, int *out)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct timeval tv = { .tv_sec = wait_s };
	int fd, n, e;

	if (ctl.admin_socket != NULL)
		n = snprintf(sa.sun_path, sizeof sa.sun_path, "%s",
		    ctl.admin_socket);
	else
		n = snprintf(sa.sun_path, sizeof sa.sun_path, "%s.admin",
		    ctl_socket());
	if ((size_t)n >= sizeof sa.sun_path)
		return quiet ? CTL_USAGE : ctl_fail(CTL_USAGE, "%s: longer "
		    "than %zu bytes%s", ctl.admin_socket != NULL ?
		    "--admin-socket" : "--socket", sizeof sa.sun_path - 1,
		    ctl.admin_socket != NULL ? "" : " with .admin after it");
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return ctl_fail(CTL_FAILED, "socket: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	if (connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0) {
		*out = fd;
		return CTL_OK;
	}
	e = errno;
	close(fd);
	if (quiet)
		return e == EACCES || e == EPERM ? CTL_FAILED :
		    CTL_NOT_RUNNING;
	if (e == EACCES || e == EPERM)
		return ctl_fail(CTL_FAILED, "%s: %s; ask as the daemon's user "
		    "or root", sa.sun_path, strerror(e));
	return ctl_fail(CTL_NOT_RUNNING, "dcpd is not running: %s: %s; start "
	    "it (dcpd --model DIR), or name its socket by --socket",
	    sa.sun_path, strerror(e));
}

static int
send_line(int fd, json_t *request)
{
	char *text = json_dumps(request, JSON_COMPACT);
	size_t n, off = 0;
	ssize_t w = 0;

	json_decref(request);
	if (text == NULL)
		return -ENOMEM;
	n = strlen(text);
	text[n++] = '\n';	/* in the place of the NUL */
	while (off < n && (w = send(fd, text + off, n - off,
	    MSG_NOSIGNAL)) > 0)
		off += (size_t)w;
	free(text);
	return off == n ? 0 : -errno;
}

/* One line, without its end; malloc'd. */
static int
read_line(int fd, char **out, size_t *len)
{
	size_t n = 0, cap = 1 << 16;
	char *buf = malloc(cap), *more;
	ssize_t r;

	while (buf != NULL && n < ANSWER_MAX) {
		if (n == cap) {
			more = realloc(buf, cap *= 2);
			if (more == NULL)
				break;
			buf = more;
		}
		r = recv(fd, buf + n, cap - n, 0);
		if (r <= 0) {
			int rc = r == 0 ? -EPIPE : -errno;

			free(buf);
			return rc;
		}
		n += (size_t)r;
		if (buf[n - 1] == '\n') {
			*out = buf;
			*len = n - 1;
			return 0;
		}
	}
	free(buf);
	return -ENOMEM;
}

/* What comes to a request that was sent, or could not be: rc; closes fd. */
static int
admin_answer(int fd, int rc, bool quiet, json_t **result)
{
	json_t *answer;
	char *line = NULL;
	size_t len = 0;

	if (rc == 0)
		rc = read_line(fd, &line, &len);
	close(fd);
	if (rc != 0)
		return quiet ? CTL_FAILED : ctl_fail(CTL_FAILED, "no answer "
		    "from the daemon: %s", rc == -EAGAIN ? "none in time; a "
		    "step may hang, see dcpctl status" : strerror(-rc));
	answer = json_loadb(line, len, 0, NULL);
	free(line);
	if (json_is_true(json_object_get(answer, "ok"))) {
		*result = json_incref(json_object_get(answer, "result"));
		json_decref(answer);
		return CTL_OK;
	}
	if (!quiet)
		ctl_fail(CTL_FAILED, "%s", answer == NULL ? "the daemon's "
		    "answer is no JSON; is it of another version?" :
		    json_string_value(json_object_get(answer, "error")));
	json_decref(answer);
	return CTL_FAILED;
}

int
ctl_admin(json_t *request, bool quiet, json_t **result)
{
	int fd = -1, rc = admin_connect(quiet, WAIT_S, &fd);

	if (rc == CTL_OK)
		return admin_answer(fd, send_line(fd, request), quiet, result);
	json_decref(request);
	return rc;
}

/* Who listens there; 0: not to be seen from here. */
static pid_t
listener(int fd)
{
	struct ucred who = { 0 };
	socklen_t len = sizeof who;

	(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len);
	return who.pid;
}

/* Process 1 of a container may be dcpd, and systemd a user's. */
static bool
is_systemd(pid_t pid)
{
	char path[40], name[16] = "";
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
	f = fopen(path, "re");
	if (f == NULL)
		return false;
	if (fgets(name, sizeof name, f) == NULL)
		name[0] = '\0';
	fclose(f);
	return strcmp(name, "systemd\n") == 0;
}

/*
 * Is there a daemon that may yet answer? Not if it has been silent for long
 * while none holds a stats page: but systemd has the socket before its daemon
 * runs, and starts that for us.
 */
static bool
may_answer(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };
	json_t *page = NULL;

	if (page_unknown() || poll(&p, 1, WAIT_ALONE_MS) != 0 ||
	    is_systemd(listener(fd)) || ctl_stats(true, &page) == CTL_OK) {
		json_decref(page);
		return true;
	}
	return false;
}

static int
alone(pid_t who)
{
	char process[32] = "a process unseen here";

	if (who != 0)
		snprintf(process, sizeof process, "process %d", (int)who);
	return ctl_fail(CTL_FAILED, "no answer: %s has the admin socket and "
	    "stands still, and no daemon holds %s.stats; see its log, or end "
	    "it", process, ctl_socket());
}

int
ctl_ask_status(bool quiet, json_t **result)
{
	int fd = -1, rc = admin_connect(true, WAIT_STATUS_S, &fd), sent;
	bool refused = rc == CTL_FAILED;

	if (rc == CTL_OK) {
		sent = send_line(fd, json_pack("{s:s}", "cmd", "status"));
		if (sent == 0 && !may_answer(fd)) {
			rc = quiet ? CTL_FAILED : alone(listener(fd));
			close(fd);
			return rc;
		}
		rc = admin_answer(fd, sent, true, result);
	}
	/* Not running, not ours, or there and silent. */
	if (rc != CTL_OK && !page_unknown() &&
	    ctl_stats(true, result) == CTL_OK) {
		if (refused)	/* by this user; nothing may be wrong */
			json_object_set_new(*result, "problem", json_string(
			    "the admin socket is not for this user: ask as "
			    "the daemon's user or root"));
		return CTL_OK;
	}
	if (rc != CTL_OK && !quiet)
		return ctl_admin(json_pack("{s:s}", "cmd", "status"), false,
		    result);
	return rc;
}

static long long
integer(const json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

static double
number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *
string(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s != NULL ? s : "-";
}

void
ctl_print_ranks(const json_t *status)
{
	const json_t *ranks = json_object_get(status, "ranks"), *r;
	size_t i;

	if (json_array_size(ranks) > 0)
		printf("rank  dcp rank  tokens  pages used  cached  pages\n");
	json_array_foreach(ranks, i, r)
		printf("%4lld  %8lld  %6lld  %10lld  %6lld  %5lld\n",
		    integer(r, "rank"), integer(r, "dcp_rank"),
		    integer(r, "tokens"), integer(r, "pages_used"),
		    integer(r, "pages_cached"),
		    integer(r, "pages_total"));
}

void
ctl_print_scalars(const json_t *o)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)o, key, v) {
		if (json_is_string(v)) {
			ctl_say("%-20s ", key);
			ctl_put(stdout, json_string_value(v),
			    json_string_length(v));
			putchar('\n');
		} else if (json_is_integer(v))
			ctl_say("%-20s %" JSON_INTEGER_FORMAT "\n", key,
			    json_integer_value(v));
		else if (json_is_real(v))
			ctl_say("%-20s %.6g\n", key, json_real_value(v));
		else if (json_is_boolean(v))
			ctl_say("%-20s %s\n", key, json_is_true(v) ? "yes" :
			    "no");
	}
}

static void
print_status(const json_t *s)
{
	const json_t *p, *phases = json_object_get(s, "phases");
	size_t i;

	ctl_print_scalars(s);
	ctl_print_scalars(json_object_get(s, "counters"));
	json_array_foreach(phases, i, p)
		ctl_say("%s %s %.3f s", i == 0 ? "phases              " : ",",
		    string(p, "name"), number(p, "seconds"));
	printf("\n\n");
	ctl_print_ranks(s);
}

static const struct ctl_opt none[] = { { .name = NULL } };

/* Parse (no options of its own), ask, and hand over the result. */
static int
ask(int argc, char **argv, const char *usage, json_t **result)
{
	int rc = ctl_parse(argc, argv, none, usage, NULL);

	return rc != 0 ? rc :
	    ctl_admin(json_pack("{s:s}", "cmd", argv[0]), false, result);
}

int
ctl_status(int argc, char **argv)
{
	json_t *s = NULL;
	bool ready;
	int rc = ctl_parse(argc, argv, none, "status [-j]", NULL);

	if (rc == 0)
		rc = ctl_ask_status(false, &s);
	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	ready = json_is_true(json_object_get(s, "ready"));
	if (ctl.json) {
		ctl_print_json(s);
	} else {
		print_status(s);
		json_decref(s);
	}
	return ready ? CTL_OK : CTL_DEGRADED;
}

int
ctl_requests(int argc, char **argv)
{
	json_t *a = NULL, *r;
	size_t i;
	int rc = ask(argc, argv, "requests [-j]", &a);

	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	if (ctl.json) {
		ctl_print_json(a);
		return CTL_OK;
	}
	printf("%8s %6s %-10s %8s %8s %9s %9s %6s %8s\n", "id", "uid",
	    "state", "prompt", "cached", "prefilled", "generated", "pages",
	    "age s");
	json_array_foreach(a, i, r)
		ctl_say("%8lld %6lld %-10s %8lld %8lld %9lld %9lld %6lld "
		    "%8.1f\n",
		    integer(r, "id"), integer(r, "uid"), string(r, "state"),
		    integer(r, "prompt"), integer(r, "cached"),
		    integer(r, "prefilled"), integer(r, "generated"),
		    integer(r, "pages"),
		    number(r, "age_s"));
	json_decref(a);
	return CTL_OK;
}

int
ctl_clients(int argc, char **argv)
{
	json_t *a = NULL, *r;
	size_t i;
	int rc = ask(argc, argv, "clients [-j]", &a);

	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	if (ctl.json) {
		ctl_print_json(a);
		return CTL_OK;
	}
	printf("%8s %8s %6s %9s %12s %8s\n", "id", "pid", "uid", "requests",
	    "queued bytes", "age s");
	json_array_foreach(a, i, r)
		printf("%8lld %8lld %6lld %9lld %12lld %8.1f\n",
		    integer(r, "id"), integer(r, "pid"), integer(r, "uid"),
		    integer(r, "requests"), integer(r, "queued_bytes"),
		    number(r, "age_s"));
	json_decref(a);
	return CTL_OK;
}

int
ctl_cancel(int argc, char **argv)
{
	struct ctl_list ids = { NULL, 0 };
	unsigned long long id;
	json_t *r;
	char *end;
	int rc;

	rc = ctl_parse(argc, argv, none, "cancel ID...", &ids);
	if (rc == 0 && ids.n == 0)
		rc = ctl_fail(CTL_USAGE, "cancel: give the id of a request; "
		    "see dcpctl requests");
	for (uint32_t i = 0; rc == 0 && i < ids.n; i++) {
		id = strtoull(ids.v[i], &end, 10);
		if (*end != '\0' || end == ids.v[i]) {
			rc = ctl_fail(CTL_USAGE, "cancel: %s is no id; see "
			    "dcpctl requests", ids.v[i]);
			break;
		}
		r = NULL;
		rc = ctl_admin(json_pack("{s:s,s:I}", "cmd", "cancel", "id",
		    (json_int_t)id), false, &r);
		json_decref(r);
	}
	free(ids.v);
	if (rc == 0 && ctl.json)
		ctl_print_json(json_pack("{s:b}", "ok", 1));
	return rc > 0 ? rc : CTL_OK;
}

static int
simple(int argc, char **argv, const char *usage, const char *said)
{
	json_t *r = NULL;
	int rc = ask(argc, argv, usage, &r);

	if (rc == 0 && ctl.json)
		ctl_print_json(json_incref(r));
	else if (rc == 0)
		printf("%s\n", said);
	json_decref(r);
	return rc > 0 ? rc : CTL_OK;
}

int
ctl_drain(int argc, char **argv)
{
	bool wait = false;
	const struct ctl_opt opts[] = {
		{ "wait", 'w', CTL_FLAG, &wait, NULL,
		  "until no request is left", NULL },
		{ .name = NULL },
	};
	struct timespec pause = { .tv_nsec = 100000000 };
	json_t *r = NULL;
	bool idle;
	int rc;

	rc = ctl_parse(argc, argv, opts, "drain [--wait]", NULL);
	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	rc = ctl_admin(json_pack("{s:s}", "cmd", "drain"), false, &r);
	idle = json_is_true(json_object_get(r, "idle"));
	while (rc == CTL_OK && wait && !idle) {
		nanosleep(&pause, NULL);
		json_decref(r);
		r = NULL;
		rc = ctl_admin(json_pack("{s:s}", "cmd", "idle"), false, &r);
		idle = json_is_true(json_object_get(r, "idle"));
	}
	if (rc == CTL_OK && ctl.json)
		ctl_print_json(json_incref(r));
	else if (rc == CTL_OK)
		printf("draining, %s\n", idle ? "idle" : "requests run on");
	json_decref(r);
	return rc;
}

/* "max-clients: 100, was 256; would change" */
static void
print_reload(const json_t *flags, const char *what, bool check)
{
	const char *key;
	json_t *o;

	json_object_foreach((json_t *)flags, key, o) {
		char *from = json_dumps(json_object_get(o, "from"),
		    JSON_ENCODE_ANY);
		char *to = json_dumps(json_object_get(o, "to"),
		    JSON_ENCODE_ANY);

		/* Only a plugin itself knows, when it is to. */
		ctl_say("%s: %s, was %s%s%s\n", key, to != NULL ? to : "?",
		    from != NULL ? from : "?", what, check &&
		    strcmp(key, "plugins") == 0 ?
		    ", unless a plugin wants a restart for it" : "");
		free(from);
		free(to);
	}
}

int
ctl_reload(int argc, char **argv)
{
	bool check = false;
	const struct ctl_opt opts[] = {
		{ "check", 'c', CTL_FLAG, &check, NULL,
		  "only say what would change", NULL },
		{ .name = NULL },
	};
	const json_t *changed, *restart;
	json_t *r = NULL;
	int rc;

	rc = ctl_parse(argc, argv, opts, "reload [--check] [-j]", NULL);
	if (rc == 0)
		rc = ctl_admin(json_pack("{s:s,s:b}", "cmd", "reload", "check",
		    check), false, &r);
	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	changed = json_object_get(r, "changed");
	restart = json_object_get(r, "restart");
	if (ctl.json) {
		ctl_print_json(json_incref(r));
	} else {
		print_reload(changed, check ? "; would change" : "", check);
		print_reload(restart, "; needs a restart", false);
		if (json_object_size(changed) + json_object_size(restart) == 0)
			printf("nothing differs\n");
	}
	json_decref(r);
	return CTL_OK;
}

int
ctl_resume(int argc, char **argv)
{
	return simple(argc, argv, "resume", "requests are accepted again");
}

int
ctl_check(int argc, char **argv)
{
	return simple(argc, argv, "check [-j]", "ok: the invariants hold");
}

/* "name value (default D, from the file)" */
static void
print_changed(const json_t *c)
{
	const char *key;
	json_t *o;

	json_object_foreach((json_t *)c, key, o) {
		char *v = json_dumps(json_object_get(o, "value"),
		    JSON_ENCODE_ANY);
		char *d = json_dumps(json_object_get(o, "default"),
		    JSON_ENCODE_ANY);

		ctl_say("%-28s %-20s default %s, from the %s\n", key,
		    v != NULL ? v : "?", d != NULL ? d : "?",
		    string(o, "from"));
		free(v);
		free(d);
	}
}

int
ctl_plugins(int argc, char **argv)
{
	json_t *a = NULL, *p, *stats;
	char *text;
	size_t i;
	int rc = ask(argc, argv, "plugins [-j]", &a);

	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	if (ctl.json) {
		ctl_print_json(a);
		return CTL_OK;
	}
	if (json_array_size(a) > 0)
		printf("%-16s %-10s %-9s %s\n", "name", "version", "state",
		    "stats");
	else
		printf("none runs; --http, --port, --unix and --plugins of "
		    "dcpd load some\n");
	json_array_foreach(a, i, p) {
		stats = json_object_get(p, "stats");
		text = json_is_object(stats) ? json_dumps(stats, 0) : NULL;
		ctl_say("%-16s %-10s %-9s %s\n", string(p, "name"),
		    string(p, "version"), string(p, "state"),
		    text != NULL ? text : "-");
		free(text);
	}
	json_decref(a);
	return CTL_OK;
}

int
ctl_config(int argc, char **argv)
{
	struct ctl_list op = { NULL, 0 };
	const char *what = "show";
	json_t *c = NULL;
	int rc;

	rc = ctl_parse(argc, argv, none, "config [show|changed] [-j]", &op);
	if (rc == 0 && op.n > 0)
		what = op.v[0];
	if (rc == 0 && (op.n > 1 || (strcmp(what, "show") != 0 &&
	    strcmp(what, "changed") != 0)))
		rc = ctl_fail(CTL_USAGE, "config: give show or changed");
	if (rc == 0)
		rc = ctl_admin(json_pack("{s:s,s:s}", "cmd", "config", "op",
		    what), false, &c);
	free(op.v);
	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	if (ctl.json)
		ctl_print_json(json_incref(c));
	else if (what[0] == 'c')
		print_changed(c);
	else
		ctl_print_scalars(c);
	json_decref(c);
	return CTL_OK;
}
