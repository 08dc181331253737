/*
 * A front end that dcpd loads: what the host gives and what a plugin must be.
 *
 * A plugin is a shared object in the configured folder with one exported
 * function, dcp_plugin_get. It reaches the engine as every client does, by
 * dcp_connect(host->socket) and dcpclient.h, and links nothing of the daemon;
 * what the client API cannot know (health, counters) comes from struct
 * dcp_host. It runs in the daemon's process and is trusted.
 *
 * Life: get, create, start, (reload | stats)*, drain, stop, destroy, each
 * called from the daemon's main thread except stats (any thread). All plugins
 * are created before the first starts: what is set up once per process, such
 * as evthread_use_pthreads() of libevent, goes into the first create. More may
 * be created, only to check a configuration, while one runs. Functions
 * return 0 or -errno; on failure *why is a malloc'd line that says what, where
 * and what to change. A plugin has its own thread or threads; none of the
 * calls may block for longer than a second.
 */
#ifndef DCP_PLUGIN_H
#define DCP_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_PLUGIN_MAGIC 0x44435050u	/* "DCPP" */
#define DCP_PLUGIN_MAJOR 1		/* must be the host's */
#define DCP_PLUGIN_MINOR 0		/* at most the host's */
#define DCP_PLUGIN_ABI ((uint32_t)DCP_PLUGIN_MAJOR << 16 | DCP_PLUGIN_MINOR)

/* How the engine is, for a health check. */
enum {
	DCP_HOST_LOADING = 0,	/* dcp_connect waits; connect at READY */
	DCP_HOST_READY = 1,	/* steps advance, or there is nothing to do */
	DCP_HOST_DRAINING = 2,	/* no new requests; running ones go on */
	DCP_HOST_STUCK = 3,	/* there is work and no step ends */
	DCP_HOST_FAILED = 4,
};

/* Valid from create to destroy. Every function: any thread, never blocks. */
struct dcp_host {
	uint32_t size;			/* sizeof(struct dcp_host) */
	uint32_t abi;			/* DCP_PLUGIN_ABI of the host */
	void *ctx;			/* first argument of every function */
	const char *socket;		/* for dcp_connect */
	const char *version;		/* of the daemon */
	void (*log)(void *ctx, int priority /* LOG_* */, const char *line);
	int (*state)(void *ctx);	/* DCP_HOST_* */
	/* malloc'd JSON, as `dcpctl status -j` and `dcpctl requests -j` */
	char *(*status)(void *ctx);
	char *(*requests)(void *ctx);
	/* malloc'd JSON: which request holds which page of the pool, as the
	   admin command "pages"; NULL while the model loads */
	char *(*pages)(void *ctx);
	/* malloc'd JSON: [{"name", "kind": "counter"|"gauge", "help",
	   "value"} or, of one rank, the same with "rank": N; and {"name",
	   "kind": "histogram", "help", "bounds": [seconds], "buckets":
	   [observations up to each bound, then all], "sum": seconds}] */
	char *(*counters)(void *ctx);
	/* Drop what the prefix cache holds in no use, before the next request
	   is looked up; *pages: how many those were. -EAGAIN: it loads or
	   ends. */
	int (*flush_cache)(void *ctx, uint64_t *pages);
	/* A listening socket that systemd passed under this name; the caller
	   owns it. -ENOENT: none. */
	int (*listen_fd)(void *ctx, const char *name);
	/* The plugin's thread lives: at least once a second, or the watchdog
	   ends the process. */
	void (*tick)(void *ctx);
	/* It cannot go on: the daemon ends with this line. */
	void (*failed)(void *ctx, const char *why);
	/*
	 * The bytes of one token, which may be part of a character; they stay
	 * while the plugin runs. -ENOENT: no such token; -ENOTSUP: the model
	 * has no tokenizer.
	 */
	int (*token_bytes)(void *ctx, uint32_t id, const char **bytes,
	    size_t *len);
	void *spare[7];
};

struct dcp_plugin {
	uint32_t magic;			/* DCP_PLUGIN_MAGIC */
	uint16_t major, minor;		/* DCP_PLUGIN_MAJOR, _MINOR */
	uint32_t struct_size;		/* sizeof(struct dcp_plugin) */
	uint32_t capabilities;		/* 0; none is defined yet */
	const char *name;		/* [a-z0-9_-]+; the file is NAME.so */
	const char *version;		/* its own, for people; may be NULL */
	/* config: a JSON object, the plugin's part of the configuration. A key
	   that it does not know is an error. Checks only: takes no port. */
	int (*create)(const struct dcp_host *, const char *config,
	    void **self, char **why);
	int (*start)(void *self, char **why);
	/* A changed configuration; what cannot change at run time is an error
	   that says so, and then nothing changes. May be NULL. */
	int (*reload)(void *self, const char *config, char **why);
	void (*drain)(void *self);	/* take no new work; may be NULL */
	void (*stop)(void *self);	/* ends its threads, and what its users
					   still wait for with an error */
	void (*destroy)(void *self);
	char *(*stats)(void *self);	/* malloc'd JSON object; may be NULL */
	void *spare[8];
};

/* The only exported function. NULL: no version fits host_abi. */
__attribute__((visibility("default")))
const struct dcp_plugin *dcp_plugin_get(uint32_t host_abi);

#ifdef __cplusplus
}
#endif
#endif
