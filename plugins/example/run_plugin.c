/*
 * Runs a plugin outside the daemon: run_plugin SOCKET FILE.so CONFIG. A front
 * end is written against the client API, so it does its work from here too;
 * what only the daemon knows (counters, requests, the prefix cache) it is told
 * there is none of. Ends at SIGTERM, or when the plugin cannot go on.
 *
 *	cc -o run_plugin run_plugin.c -ldcpclient
 *	./run_plugin /run/dcpd/dcpd.sock ./unix.so '{"listen": ["/tmp/u"]}'
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include <dcp_plugin.h>
#include <dcpclient.h>

#define LOOK_MS 250	/* at the daemon and for signals */

static struct {
	const char *socket;
	struct dcp *d;			/* NULL: the daemon is not there */
	pthread_mutex_t lock;		/* of d, for status() */
	_Atomic int state;
	volatile sig_atomic_t failed;
} host = { .lock = PTHREAD_MUTEX_INITIALIZER, .state = DCP_HOST_LOADING };

static void host_log(void *ctx, int priority, const char *line)
{
	fprintf(stderr, "run_plugin: <%d> %s\n", priority, line);
}

static int host_state(void *ctx)
{
	return host.state;
}

static char *host_status(void *ctx)
{
	char *json = NULL;

	pthread_mutex_lock(&host.lock);
	if (host.d == NULL || dcp_server_info(host.d, &json) != 0)
		json = strdup("{\"state\": \"loading\", \"ready\": false}");
	pthread_mutex_unlock(&host.lock);
	return json;
}

static char *host_no_list(void *ctx)
{
	return strdup("[]");
}

static char *host_no_pages(void *ctx)
{
	return NULL;
}

static int host_no_cache(void *ctx, uint64_t *pages)
{
	return -ENOTSUP;
}

static int host_no_socket(void *ctx, const char *name)
{
	return -ENOENT;
}

static void host_tick(void *ctx)
{
}

static void host_failed(void *ctx, const char *why)
{
	host_log(ctx, LOG_ERR, why);
	host.failed = 1;
}

/* Is the daemon there? Clients of the ring see it go. */
static void look(void)
{
	const struct dcp_event *ev;
	struct dcp *d = NULL;

	if (host.d == NULL) {
		if (dcp_connect(host.socket, LOOK_MS, &d) != 0)
			return;
	} else if (dcp_next(host.d, 0, &ev) != -EPIPE) {
		return;
	}
	pthread_mutex_lock(&host.lock);
	if (d == NULL)
		dcp_close(host.d);
	host.d = d;
	pthread_mutex_unlock(&host.lock);
	host.state = d != NULL ? DCP_HOST_READY : DCP_HOST_LOADING;
}

static const struct dcp_plugin *load(const char *file)
{
	const struct dcp_plugin *(*get)(uint32_t), *p = NULL;
	void *so = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (so == NULL) {
		fprintf(stderr, "run_plugin: %s\n", dlerror());
		return NULL;
	}
	*(void **)&get = dlsym(so, "dcp_plugin_get");
	if (get != NULL)
		p = get(DCP_PLUGIN_ABI);
	if (p != NULL && p->magic == DCP_PLUGIN_MAGIC &&
	    p->major == DCP_PLUGIN_MAJOR && p->struct_size == sizeof *p)
		return p;
	fprintf(stderr, "run_plugin: %s: no plugin of ABI %d\n", file,
	    DCP_PLUGIN_MAJOR);
	return NULL;
}

/* SIGTERM and SIGINT, taken by the main thread alone. */
static int signalled(void)
{
	struct timespec ts = { .tv_nsec = LOOK_MS * 1000000 };
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return sigtimedwait(&set, NULL, &ts) > 0;
}

static int run(const struct dcp_plugin *p, const struct dcp_host *h,
    const char *config)
{
	char *why = NULL;
	void *self = NULL;
	int rc = p->create(h, config, &self, &why);

	if (rc == 0 && (rc = p->start(self, &why)) != 0)
		p->destroy(self);
	if (rc != 0) {
		fprintf(stderr, "run_plugin: %s: %s\n", p->name, why != NULL ?
		    why : strerror(-rc));
		free(why);
		return EXIT_FAILURE;
	}
	do
		look();
	while (!signalled() && !host.failed);
	if (p->drain != NULL)
		p->drain(self);
	p->stop(self);
	p->destroy(self);
	return host.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	const struct dcp_plugin *p;
	struct dcp_host h = {
		.size = sizeof h, .abi = DCP_PLUGIN_ABI, .log = host_log,
		.state = host_state, .status = host_status,
		.requests = host_no_list, .pages = host_no_pages,
		.counters = host_no_list, .flush_cache = host_no_cache,
		.listen_fd = host_no_socket, .tick = host_tick,
		.failed = host_failed, .version = dcp_version(),
	};
	int rc;

	if (argc != 4) {
		fprintf(stderr, "usage: run_plugin SOCKET FILE.so CONFIG\n");
		return EXIT_FAILURE;
	}
	host.socket = h.socket = argv[1];
	signalled();		/* blocks them, before there are threads */
	p = load(argv[2]);
	rc = p == NULL ? EXIT_FAILURE : run(p, &h, argv[3]);
	dcp_close(host.d);
	return rc;
}
