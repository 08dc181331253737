/*
 * The plugin's life: dcp_plugin_get and what the host calls. create, reload
 * and the rest run on the daemon's main thread, stats on any; all they share
 * with the event thread is behind one lock, and an eventfd wakes it.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/thread.h"
#include "plugins/evlog.h"
#include "plugins/http/call.h"
#include "plugins/http/settings.h"
#include "plugins/http/engine.h"
#include "plugins/http/page.h"
#include "plugins/http/why.h"

#define TICK_MS 500
#define END_S 0.8		/* for the last words, once stop was called */

struct plugin {
	struct http http;
	pthread_t thread;
	bool running;
	int wake;			/* eventfd */
	struct event *wake_ev, *tick_ev, *end_ev;
	double end_by;			/* http_now() */
	pthread_mutex_t lock;		/* of what follows */
	bool stop;
	struct http_config *fresh;	/* a reload's, to be taken over */
	struct server_status seen;
};

void
http_log(const struct http *http, int priority, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	http->host->log(http->host->ctx, priority, line);
}

/* --- the event thread -------------------------------------------------- */

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct plugin *p = arg;
	const struct dcp_host *h = p->http.host;

	h->tick(h->ctx);
	server_tick(p->http.server);
	engine_tick(p->http.engine);
	pthread_mutex_lock(&p->lock);
	p->seen = server_status(p->http.server);
	pthread_mutex_unlock(&p->lock);
}

/*
 * The engine has ended its requests, but the last of their events may still be
 * in the ring, and the last bytes in a socket's buffer.
 */
static void
on_end(evutil_socket_t fd, short what, void *arg)
{
	const struct timeval soon = { 0, 10000 };
	struct plugin *p = arg;

	if ((engine_is_idle(p->http.engine) &&
	    !server_has_output(p->http.server)) || http_now() > p->end_by)
		event_base_loopbreak(p->http.base);
	else
		event_add(p->end_ev, &soon);
}

static void
on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct plugin *p = arg;
	struct http_config *fresh;
	uint64_t n;
	bool stop;

	if (read(p->wake, &n, sizeof n) < 0 && errno != EAGAIN)
		http_log(&p->http, LOG_WARNING, "eventfd: %s",
		    strerror(errno));
	pthread_mutex_lock(&p->lock);
	fresh = p->fresh;
	p->fresh = NULL;
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	if (fresh != NULL) {
		http_config_swap(&p->http.cfg, fresh);
		http_config_free(fresh);
		free(fresh);
	}
	if (stop) {
		server_no_more(p->http.server);
		p->end_by = http_now() + END_S;
		on_end(-1, 0, p);
	}
}

static void *
run(void *arg)
{
	struct plugin *p = arg;

	pthread_setname_np(pthread_self(), "http");
	if (event_base_dispatch(p->http.base) < 0)
		p->http.host->failed(p->http.host->ctx,
		    "its event loop failed");
	return NULL;
}

/* --- what the host calls ----------------------------------------------- */

static void
destroy(void *self)
{
	struct plugin *p = self;

	if (p->fresh != NULL)
		http_config_free(p->fresh);
	free(p->fresh);
	evlog_close();
	http_config_free(&p->http.cfg);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int
create(const struct dcp_host *host, const char *config, void **self,
    char **why)
{
	struct plugin *p = calloc(1, sizeof *p);
	int rc;

	if (p == NULL)
		return -ENOMEM;
	p->http.host = host;
	p->http.t_start = (int64_t)time(NULL);
	p->wake = -1;
	pthread_mutex_init(&p->lock, NULL);
	evlog_open(host);
	rc = http_config_read(config, &p->http.cfg, why);
	if (rc != 0) {
		destroy(p);
		return rc;
	}
	*self = p;
	return 0;
}

/* The thread has ended, or never was. Calls end before what they wait for. */
static void
tear_down(struct plugin *p)
{
	server_free(p->http.server);
	p->http.server = NULL;
	engine_free(p->http.engine);
	p->http.engine = NULL;
	live_free(p->http.live);
	p->http.live = NULL;
	if (p->wake_ev != NULL)
		event_free(p->wake_ev);
	if (p->tick_ev != NULL)
		event_free(p->tick_ev);
	if (p->end_ev != NULL)
		event_free(p->end_ev);
	p->wake_ev = p->tick_ev = p->end_ev = NULL;
	if (p->http.base != NULL)
		event_base_free(p->http.base);
	p->http.base = NULL;
	if (p->wake >= 0)
		close(p->wake);
	p->wake = -1;
}

static int
set_up(struct plugin *p, char **why)
{
	const struct timeval tick = { 0, TICK_MS * 1000 };
	int rc;

	p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->wake < 0)
		return http_why(why, -errno, "eventfd: %s", strerror(errno));
	rc = evlog_room();
	if (rc != 0)
		return http_why(why, rc, "event loop: %s", strerror(-rc));
	p->http.base = event_base_new();
	if (p->http.base == NULL)
		return -ENOMEM;
	p->wake_ev = event_new(p->http.base, p->wake, EV_READ | EV_PERSIST,
	    on_wake, p);
	p->tick_ev = event_new(p->http.base, -1, EV_PERSIST, on_tick, p);
	p->end_ev = event_new(p->http.base, -1, 0, on_end, p);
	if (p->wake_ev == NULL || p->tick_ev == NULL || p->end_ev == NULL ||
	    event_add(p->wake_ev, NULL) != 0 ||
	    event_add(p->tick_ev, &tick) != 0)
		return -ENOMEM;
	rc = live_new(&p->http, &p->http.live);
	if (rc == 0)
		rc = engine_new(&p->http, &p->http.engine);
	return rc != 0 ? rc : server_new(&p->http, &p->http.server, why);
}

/* Signals are the main thread's, SIGPIPE nobody's. */
static int
start(void *self, char **why)
{
	struct plugin *p = self;
	sigset_t set = dcpd_thread_signals(), before;
	int rc;

	rc = set_up(p, why);
	if (rc == 0) {
		pthread_sigmask(SIG_SETMASK, &set, &before);
		rc = dcpd_thread_start(&p->thread, run, p);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	p->running = rc == 0;
	if (rc != 0)
		tear_down(p);
	return rc;
}

static void
wake(struct plugin *p)
{
	const uint64_t one = 1;

	if (write(p->wake, &one, sizeof one) < 0)
		return;		/* full: it is awake */
}

static int
reload(void *self, const char *config, char **why)
{
	struct plugin *p = self;
	struct http_config *fresh = calloc(1, sizeof *fresh), *old;
	const char *a, *b;
	int rc;

	if (fresh == NULL)
		return -ENOMEM;
	rc = http_config_read(config, fresh, why);
	if (rc != 0) {
		free(fresh);
		return rc;
	}
	/* The event thread leaves these two alone (http_config_swap). */
	a = p->http.cfg.served_model_name;
	b = fresh->served_model_name;
	if (!http_config_same_sockets(&p->http.cfg, fresh))
		rc = http_why(why, -EBUSY, "listen: a change needs a restart");
	else if ((a == NULL) != (b == NULL) ||
	    (a != NULL && strcmp(a, b) != 0))
		rc = http_why(why, -EBUSY, "served_model_name: a change needs "
		    "a restart");
	if (rc != 0) {
		http_config_free(fresh);
		free(fresh);
		return rc;
	}
	pthread_mutex_lock(&p->lock);
	old = p->fresh;
	p->fresh = fresh;
	pthread_mutex_unlock(&p->lock);
	if (old != NULL)
		http_config_free(old);
	free(old);
	wake(p);
	return 0;
}

static void
stop(void *self)
{
	struct plugin *p = self;

	if (!p->running)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_mutex_unlock(&p->lock);
	wake(p);
	pthread_join(p->thread, NULL);
	p->running = false;
	tear_down(p);
}

static char *
stats(void *self)
{
	struct plugin *p = self;
	struct server_status s;
	json_t *o, *listen, *live;
	char *text;

	pthread_mutex_lock(&p->lock);
	s = p->seen;
	pthread_mutex_unlock(&p->lock);
	listen = p->running ? server_names(p->http.server) : json_array();
	live = p->running ? live_stats(p->http.live) : NULL;
	o = json_pack("{s:o, s:o*, s:I, s:I}", "listen", listen, "live", live,
	    "connections", (json_int_t)s.connections,
	    "requests", (json_int_t)s.requests);
	text = json_dumps(o, JSON_COMPACT);
	json_decref(o);
	return text;
}

static const struct dcp_plugin plugin = {
	.magic = DCP_PLUGIN_MAGIC, .major = DCP_PLUGIN_MAJOR,
	.minor = DCP_PLUGIN_MINOR, .struct_size = sizeof plugin,
	.name = "http", .version = PACKAGE_VERSION,
	.create = create, .start = start, .reload = reload, .stop = stop,
	.destroy = destroy, .stats = stats,
};

__attribute__((visibility("default"))) const struct dcp_plugin *
dcp_plugin_get(uint32_t host_abi)
{
	return host_abi >> 16 == DCP_PLUGIN_MAJOR ? &plugin : NULL;
}
