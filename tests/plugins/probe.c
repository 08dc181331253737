/*
 * A plugin for tests of the host: what it does is said by its configuration,
 * and one source makes the plugins that must be refused (-DPROBE_...). Built
 * by the test itself, as anyone's would be: with the installed header alone.
 *
 * {"fail": "create"|"start"|"reload", "why": bool, "tick": bool,
 *  "report": FILE, "ask_when": 1, "fd": NAME, "die_after": n}
 * The thread ticks, and appends to FILE each call of the host, each state that
 * it sees, and once what the host answers: at its third tick, or (ask_when)
 * when FILE.ask is there.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <dcp_plugin.h>

#ifndef PROBE_NAME
#define PROBE_NAME "probe"
#endif
#ifndef PROBE_MAGIC
#define PROBE_MAGIC DCP_PLUGIN_MAGIC
#endif
#ifndef PROBE_MAJOR
#define PROBE_MAJOR DCP_PLUGIN_MAJOR
#endif
#ifndef PROBE_MINOR
#define PROBE_MINOR DCP_PLUGIN_MINOR
#endif
#ifndef PROBE_SIZE
#define PROBE_SIZE sizeof(struct dcp_plugin)
#endif
#ifndef PROBE_CAPABILITIES
#define PROBE_CAPABILITIES 0
#endif
#ifndef PROBE_STOP
#define PROBE_STOP stop
#endif

struct probe {
	const struct dcp_host *host;
	json_t *config;
	pthread_t thread;
	_Atomic bool end;
	_Atomic unsigned ticks;
};

static const char *
text(const struct probe *p, const char *key)
{
	return json_string_value(json_object_get(p->config, key));
}

static void
report(const struct probe *p, const char *line)
{
	const char *path = text(p, "report");
	int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND |
	    O_CLOEXEC, 0600);

	char *whole = NULL;
	int n = fd < 0 ? -1 : asprintf(&whole, "%s\n", line);

	/* One write a line: other threads append to the same file. */
	if (n > 0 && write(fd, whole, n) != n)
		p->host->log(p->host->ctx, LOG_ERR, "the report is short");
	if (n > 0)
		free(whole);
	if (fd >= 0)
		close(fd);
}

/* Does the configuration say that this call fails? */
static int
call(const struct probe *p, const char *name, char **why)
{
	const char *fail = text(p, "fail");

	report(p, name);
	if (fail == NULL || strcmp(fail, name) != 0)
		return 0;
	if (!json_is_false(json_object_get(p->config, "why")))
		*why = strdup("asked to fail here; ask for less");
	return -EADDRINUSE;
}

static int
create(const struct dcp_host *host, const char *config, void **self,
    char **why)
{
	struct probe *p = calloc(1, sizeof *p);
	int rc;

	if (p == NULL)
		return -ENOMEM;
	p->host = host;
	p->config = json_loads(config, 0, NULL);
	rc = p->config == NULL || host->size != sizeof *host ||
	    host->abi != DCP_PLUGIN_ABI ? -EPROTO : call(p, "create", why);
	if (rc == 0) {
		*self = p;
		return 0;
	}
	json_decref(p->config);
	free(p);
	return rc;
}

static void
look(struct probe *p, int *before)
{
	int state = p->host->state(p->host->ctx);
	char line[20];

	if (state == *before)
		return;
	*before = state;
	snprintf(line, sizeof line, "state %d", state);
	report(p, line);
}

static void
ask_fd(struct probe *p)
{
	struct sockaddr_in sa = { .sin_family = AF_INET };
	const char *name = text(p, "fd");
	socklen_t len = sizeof sa;
	char line[60];
	int fd;

	fd = p->host->listen_fd(p->host->ctx, name != NULL ? name : "nobody");
	if (fd >= 0 && getsockname(fd, (struct sockaddr *)&sa, &len) == 0)
		snprintf(line, sizeof line, "fd port %d", ntohs(sa.sin_port));
	else
		snprintf(line, sizeof line, "fd %d", fd);
	report(p, line);
	if (fd >= 0)
		close(fd);
}

static void
ask(struct probe *p)
{
	const struct dcp_host *h = p->host;
	char *s = h->status(h->ctx), *r = h->requests(h->ctx);
	char *c = h->counters(h->ctx);
	uint64_t pages = 0;
	char line[60];
	int rc;

	report(p, s);
	report(p, r);
	report(p, c);
	free(s);
	free(r);
	free(c);
	ask_fd(p);
	rc = h->flush_cache(h->ctx, &pages);
	snprintf(line, sizeof line, rc == 0 ? "flush %d of %d" : "flush %d",
	    rc, (int)pages);
	report(p, line);
}

static bool
time_to_ask(const struct probe *p)
{
	char path[300];

	if (text(p, "report") == NULL)
		return false;
	if (json_object_get(p->config, "ask_when") == NULL)
		return p->ticks == 3;
	snprintf(path, sizeof path, "%s.ask", text(p, "report"));
	return unlink(path) == 0;
}

static void *
probe_main(void *arg)
{
	struct probe *p = arg;
	bool tick = !json_is_false(json_object_get(p->config, "tick"));
	json_int_t die = json_integer_value(json_object_get(p->config,
	    "die_after"));
	struct timespec ts = { .tv_nsec = 20000000 };
	int state = -1;

	p->host->log(p->host->ctx, LOG_NOTICE, "the thread runs");
	while (!p->end) {
		if (tick)
			p->host->tick(p->host->ctx);
		look(p, &state);
		p->ticks++;
		if (time_to_ask(p))
			ask(p);
		if (die > 0 && p->ticks == (unsigned)die)
			p->host->failed(p->host->ctx, "asked to give up");
		nanosleep(&ts, NULL);
	}
	return NULL;
}

static int
start(void *self, char **why)
{
	struct probe *p = self;
	int rc = call(p, "start", why);

	return rc != 0 ? rc : -pthread_create(&p->thread, NULL, probe_main, p);
}

static int
reload(void *self, const char *config, char **why)
{
	struct probe *p = self, next = { .config = json_loads(config, 0,
	    NULL) };
	int rc = call(&next, "reload", why);

	report(p, config);
	json_decref(next.config);
	return rc;
}

static void
drain(void *self)
{
	report(self, "drain");
}

static void
stop(void *self)
{
	struct probe *p = self;

	p->end = true;
	pthread_join(p->thread, NULL);
	report(p, "stop");
}

static void
destroy(void *self)
{
	struct probe *p = self;

	report(p, "destroy");
	json_decref(p->config);
	free(p);
}

static char *
stats(void *self)
{
	struct probe *p = self;
	char *line = NULL;

	return asprintf(&line, "{\"ticks\": %u}", p->ticks) < 0 ? NULL : line;
}

static const struct dcp_plugin plugin __attribute__((unused)) = {
	.magic = PROBE_MAGIC, .major = PROBE_MAJOR, .minor = PROBE_MINOR,
	.struct_size = PROBE_SIZE, .capabilities = PROBE_CAPABILITIES,
	.name = PROBE_NAME, .version = "1.2",
	.create = create, .start = start, .reload = reload, .drain = drain,
	.stop = PROBE_STOP, .destroy = destroy, .stats = stats,
};

#ifdef PROBE_NO_SYMBOL
#define dcp_plugin_get another_symbol
__attribute__((visibility("default")))
const struct dcp_plugin *another_symbol(uint32_t host_abi);
#endif

const struct dcp_plugin *
dcp_plugin_get(uint32_t host_abi)
{
#ifdef PROBE_NULL
	return NULL;
#else
	return &plugin;
#endif
}
