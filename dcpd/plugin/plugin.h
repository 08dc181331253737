/*
 * The front ends inside the daemon: which are loaded, by what rules, and their
 * life (libdcpclient/dcp_plugin.h). One set per process, because a shared
 * object is never unloaded. They start before the model loads, so that a
 * health check is answered meanwhile.
 */
#ifndef DCPD_PLUGIN_H
#define DCPD_PLUGIN_H

#include "dcpd/admin/admin.h"
#include "dcpd/config/options.h"
#include "libdcpclient/dcp_plugin.h"

#define DCPD_MAX_PLUGINS 16
#define DCPD_PLUGIN_TICK_S 10.0	/* silent for so long: it is stuck */

/* --- set.c: main thread, unless another is named ------------------------- */

/*
 * Load, create and start what the options ask for. socket: for dcp_connect.
 * On failure err has the plugin's name and reason, and what was started stays
 * for dcpd_plugins_stop.
 */
int dcpd_plugins_start(const struct dcpd_options *, const char *socket,
    struct dcpd_run *, struct dcpd_err *);
/* Would these options do? Nothing changes. */
int dcpd_plugins_check(const struct dcpd_options *, struct dcpd_err *);
/* All plugins take them, or none does. */
int dcpd_plugins_reload(const struct dcpd_options *, struct dcpd_err *);
void dcpd_plugins_drain(void);
/* In reverse order. */
void dcpd_plugins_stop(void);
/* Did every plugin's thread tick of late? One that did not is logged once. */
bool dcpd_plugins_alive(double now);
/* A plugin cannot go on: the process must end. */
bool dcpd_plugins_failed(struct dcpd_err *);
/* Any thread: name, version, state, stats of each. */
json_t *dcpd_plugins_json(void);

/* --- config.c ------------------------------------------------------------ */

/*
 * {"NAME": {...}, ...} in the order of starting: --plugins, then "plugins" of
 * --config, then those whose flags are used.
 */
int dcpd_plugins_config(const struct dcpd_options *, json_t **out,
    struct dcpd_err *);
bool dcpd_plugin_name_ok(const char *name);

/* --- load.c -------------------------------------------------------------- */

/* Where plugins are: --plugin-dir; a build tree says so in its environment. */
const char *dcpd_plugin_dir(const struct dcpd_options *);
/*
 * NAME.so of dir, if only root and the daemon's user can have put it there
 * and it is a plugin of this ABI.
 */
int dcpd_plugin_load(const char *dir, const char *name,
    const struct dcp_plugin **out, struct dcpd_err *);

/* --- host.c -------------------------------------------------------------- */

struct dcpd_plugin;
/* The host's functions over the run; ctx is the plugin. */
void dcpd_plugin_host(struct dcpd_plugin *, const char *socket);

struct dcpd_plugin {
	char name[64];
	const struct dcp_plugin *api;
	struct dcp_host host;
	struct dcpd_run *run;
	void *self;			/* NULL: not created */
	json_t *config;
	bool started;
	bool silent;			/* its missing tick was logged */
	_Atomic uint64_t ticked_ns;	/* dcpd_now_ns() */
	_Atomic bool failed;		/* fail is set, and stays */
	pthread_mutex_t lock;		/* of fail while it is set */
	struct dcpd_err fail;
};

#endif
