/*
 * An example of a plugin: each minute its thread asks for 16 tokens, as any
 * client would, and logs how many it got. It has no configuration.
 *
 *	cc -shared -fPIC -o canary.so canary.c -ldcpclient
 *	dcpd --plugin-dir . --plugins canary ...
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include <dcp_plugin.h>
#include <dcpclient.h>

struct canary {
	const struct dcp_host *host;
	pthread_t thread;
	_Atomic int end;
};

static void *canary_main(void *arg)
{
	const uint32_t prompt[] = { 1, 2, 3 };
	struct dcp_request r = { .size = sizeof r, .input = DCP_INPUT_TOKENS,
	    .data = prompt, .len = sizeof prompt, .max_tokens = 16 };
	struct canary *c = arg;
	const struct dcp_host *h = c->host;
	const struct dcp_event *ev;
	struct dcp *d = NULL;
	unsigned due = 0;		/* in tenths of a second */
	uint64_t id;
	char line[80];

	while (!c->end) {
		h->tick(h->ctx);		/* the thread lives */
		if (h->state(h->ctx) != DCP_HOST_READY ||
		    (d == NULL && dcp_connect(h->socket, 900, &d) != 0)) {
			usleep(100000);
			continue;
		}
		if (due == 0 && dcp_submit(d, &r, &id) == 0)
			due = 600;
		/* With users of its own it would have dcp_fd() in a loop. */
		if (dcp_next(d, 100, &ev) != 0) {
			due -= due > 0;
			continue;
		}
		if (ev->type != DCP_EV_DELTA) {
			snprintf(line, sizeof line, "%u tokens came",
			    ev->usage.completion_tokens);
			h->log(h->ctx, LOG_INFO, line);
		}
		dcp_event_release(d, ev);
	}
	dcp_close(d);
	return NULL;
}

static int create(const struct dcp_host *host, const char *config,
    void **self, char **why)
{
	struct canary *c;

	if (strcmp(config, "{}") != 0) {
		*why = strdup("it has no keys: give it no configuration");
		return -EINVAL;
	}
	*self = c = calloc(1, sizeof *c);
	if (c != NULL)
		c->host = host;
	return c != NULL ? 0 : -ENOMEM;
}

static int start(void *self, char **why)
{
	return -pthread_create(&((struct canary *)self)->thread, NULL,
	    canary_main, self);
}

static void stop(void *self)
{
	((struct canary *)self)->end = 1;
	pthread_join(((struct canary *)self)->thread, NULL);
}

static const struct dcp_plugin plugin = {
	DCP_PLUGIN_MAGIC, DCP_PLUGIN_MAJOR, DCP_PLUGIN_MINOR, sizeof plugin,
	.name = "canary", .version = "1", .create = create, .start = start,
	.stop = stop, .destroy = free,
};

const struct dcp_plugin *dcp_plugin_get(uint32_t host_abi)
{
	return host_abi >> 16 == DCP_PLUGIN_MAJOR ? &plugin : NULL;
}
