/*
 * The loaded plugins and their life, in the order in which they started. Main
 * thread; the lock is for those that look at them from elsewhere.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/plugin/plugin.h"

static struct {
	pthread_mutex_t lock;		/* n, each started, config, stats() */
	unsigned n;
	struct dcpd_plugin *v[DCPD_MAX_PLUGINS];
	char socket[108];		/* sizeof sun_path */
} set = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Take the plugin's line (may be NULL) into err. */
static int
plugin_fail(const char *name, const char *did, int rc, char *why,
    struct dcpd_err *err)
{
	if (rc > 0)
		rc = -EIO;	/* it should have been negative */
	dcpd_fail(err, rc, "plugin %s: %s%s", name, why != NULL ? why :
	    strerror(-rc), why != NULL ? "" : did);
	free(why);
	return rc;
}

static char *
config_text(const json_t *config, struct dcpd_err *err)
{
	char *text = json_dumps(config, JSON_COMPACT);

	if (text == NULL)
		dcpd_fail(err, -ENOMEM, "out of memory");
	return text;
}

/* A new instance; checks its configuration. */
static int
create(struct dcpd_plugin *p, const json_t *config, void **self,
    struct dcpd_err *err)
{
	char *text = config_text(config, err), *why = NULL;
	int rc;

	if (text == NULL)
		return err->code;
	rc = p->api->create(&p->host, text, self, &why);
	free(text);
	return rc == 0 ? 0 : plugin_fail(p->name, " (create)", rc, why, err);
}

static int
create_one(const char *dir, const char *name, json_t *config,
    struct dcpd_run *run, struct dcpd_err *err)
{
	struct dcpd_plugin *p = calloc(1, sizeof *p);
	int rc;

	if (p == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	snprintf(p->name, sizeof p->name, "%s", name);
	p->run = run;
	pthread_mutex_init(&p->lock, NULL);
	dcpd_plugin_host(p, set.socket);
	rc = dcpd_plugin_load(dir, name, &p->api, err);
	if (rc != 0) {
		free(p);
		return dcpd_fail_in(err, "plugin %s", name);
	}
	p->config = json_incref(config);
	/* From here on it is dcpd_plugins_stop's. */
	pthread_mutex_lock(&set.lock);
	set.v[set.n++] = p;
	pthread_mutex_unlock(&set.lock);
	return create(p, config, &p->self, err);
}

static int
start_one(struct dcpd_plugin *p, struct dcpd_err *err)
{
	char *why = NULL;
	int rc;

	p->ticked_ns = dcpd_now_ns();
	rc = p->api->start(p->self, &why);
	if (rc != 0)
		return plugin_fail(p->name, " (start)", rc, why, err);
	pthread_mutex_lock(&set.lock);
	p->started = true;
	pthread_mutex_unlock(&set.lock);
	dcpd_log(LOG_INFO, "plugin %s %s started", p->name,
	    p->api->version != NULL ? p->api->version : "");
	return 0;
}

/* All are created before any has a thread: what is set up once per process
 * (evthread_use_pthreads) is done by then, and no port is taken in vain. */
int
dcpd_plugins_start(const struct dcpd_options *o, const char *socket,
    struct dcpd_run *run, struct dcpd_err *err)
{
	json_t *all = NULL, *config;
	const char *name;
	int rc;

	DCPD_ASSERT(set.n == 0 && strlen(socket) < sizeof set.socket);
	strcpy(set.socket, socket);
	rc = dcpd_plugins_config(o, &all, err);
	json_object_foreach(all, name, config)
		if (rc == 0)
			rc = create_one(dcpd_plugin_dir(o), name, config, run,
			    err);
	for (unsigned i = 0; rc == 0 && i < set.n; i++)
		rc = start_one(set.v[i], err);
	json_decref(all);
	return rc;
}

/* --- a changed configuration --------------------------------------------- */

/* The new objects; which plugins are loaded cannot change. */
static int
new_config(const struct dcpd_options *o, json_t **all, struct dcpd_err *err)
{
	const char *name;
	json_t *v, *got = NULL;
	int rc = dcpd_plugins_config(o, &got, err);

	for (unsigned i = 0; rc == 0 && i < set.n; i++)
		if (json_object_get(got, set.v[i]->name) == NULL)
			rc = dcpd_fail(err, -EBUSY, "plugin %s is no longer "
			    "asked for: restart dcpd for that",
			    set.v[i]->name);
	json_object_foreach(got, name, v)
		if (rc == 0 && json_object_size(got) != set.n) {
			unsigned i = 0;

			while (i < set.n && strcmp(set.v[i]->name, name) != 0)
				i++;
			if (i == set.n)
				rc = dcpd_fail(err, -EBUSY, "plugin %s is not "
				    "loaded: restart dcpd for that", name);
		}
	if (rc != 0)
		json_decref(got);
	else
		*all = got;
	return rc;
}

int
dcpd_plugins_check(const struct dcpd_options *o, struct dcpd_err *err)
{
	json_t *all = NULL;
	int rc = new_config(o, &all, err);

	for (unsigned i = 0; rc == 0 && i < set.n; i++) {
		struct dcpd_plugin *p = set.v[i];
		void *self = NULL;

		rc = create(p, json_object_get(all, p->name), &self, err);
		if (rc == 0)
			p->api->destroy(self);
	}
	json_decref(all);
	return rc;
}

static int
reload_one(struct dcpd_plugin *p, const json_t *config, struct dcpd_err *err)
{
	char *text, *why = NULL;
	int rc;

	if (p->api->reload == NULL)
		return json_equal(p->config, config) ? 0 : dcpd_fail(err,
		    -ENOTSUP, "plugin %s: its configuration cannot change "
		    "while it runs: restart dcpd for that", p->name);
	if ((text = config_text(config, err)) == NULL)
		return err->code;
	rc = p->api->reload(p->self, text, &why);
	free(text);
	return rc == 0 ? 0 : plugin_fail(p->name, " (reload)", rc, why, err);
}

int
dcpd_plugins_reload(const struct dcpd_options *o, struct dcpd_err *err)
{
	struct dcpd_err back = { 0 };
	json_t *all = NULL;
	unsigned done;
	int rc = new_config(o, &all, err);

	for (done = 0; rc == 0 && done < set.n; done++) {
		struct dcpd_plugin *p = set.v[done];

		rc = reload_one(p, json_object_get(all, p->name), err);
		if (rc != 0)
			break;
	}
	/* What the first ones took, they give back. */
	for (unsigned i = done; rc != 0 && i-- > 0;)
		if (reload_one(set.v[i], set.v[i]->config, &back) != 0)
			dcpd_log(LOG_ERR, "back to the old configuration: %s",
			    back.text);
	for (unsigned i = 0; rc == 0 && i < set.n; i++) {
		pthread_mutex_lock(&set.lock);
		json_decref(set.v[i]->config);
		set.v[i]->config = json_incref(json_object_get(all,
		    set.v[i]->name));
		pthread_mutex_unlock(&set.lock);
	}
	json_decref(all);
	return rc;
}

/* --- the end ------------------------------------------------------------- */

void
dcpd_plugins_drain(void)
{
	for (unsigned i = set.n; i-- > 0;)
		if (set.v[i]->started && set.v[i]->api->drain != NULL)
			set.v[i]->api->drain(set.v[i]->self);
}

void
dcpd_plugins_stop(void)
{
	while (set.n > 0) {
		struct dcpd_plugin *p = set.v[set.n - 1];
		bool started = p->started;

		/* Nobody asks it for its numbers any more. */
		pthread_mutex_lock(&set.lock);
		p->started = false;
		set.n--;
		pthread_mutex_unlock(&set.lock);
		if (started)
			p->api->stop(p->self);
		if (p->self != NULL)
			p->api->destroy(p->self);
		json_decref(p->config);
		free(p);
	}
}

/* --- watched ------------------------------------------------------------- */

static double
tick_age(const struct dcpd_plugin *p, double now)
{
	return now - (double)p->ticked_ns * 1e-9;
}

bool
dcpd_plugins_alive(double now)
{
	bool alive = true;

	for (unsigned i = 0; i < set.n; i++) {
		struct dcpd_plugin *p = set.v[i];
		bool silent = p->started &&
		    tick_age(p, now) > DCPD_PLUGIN_TICK_S;

		if (silent && !p->silent)
			dcpd_log(LOG_ERR, "plugin %s: its thread has not been "
			    "seen for %.0f s: the watchdog is not fed",
			    p->name, tick_age(p, now));
		p->silent = silent;
		alive = alive && !silent;
	}
	return alive;
}

bool
dcpd_plugins_failed(struct dcpd_err *err)
{
	bool failed = false;

	for (unsigned i = 0; i < set.n && !failed; i++) {
		failed = set.v[i]->failed;
		if (failed)
			*err = set.v[i]->fail;
	}
	return failed;
}

/* Lock held; nothing of p is shared with what comes out. */
static json_t *
plugin_json(struct dcpd_plugin *p, double now)
{
	char *text = !p->started || p->api->stats == NULL ? NULL :
	    p->api->stats(p->self);
	json_t *stats = text == NULL ? NULL : json_loads(text, 0, NULL);
	const char *state = p->failed ? "failed" : !p->started ? "starting" :
	    tick_age(p, now) > DCPD_PLUGIN_TICK_S ? "stuck" : "running";

	free(text);
	return json_pack("{s:s,s:s?,s:s,s:s?,s:f,s:o?,s:o?}", "name", p->name,
	    "version", p->api->version, "state", state, "failure",
	    p->failed ? p->fail.text : NULL, "tick_age_s", tick_age(p, now),
	    "config", json_deep_copy(p->config), "stats", stats);
}

json_t *
dcpd_plugins_json(void)
{
	double now = dcpd_now();
	json_t *list = json_array();

	pthread_mutex_lock(&set.lock);
	for (unsigned i = 0; i < set.n; i++)
		json_array_append_new(list, plugin_json(set.v[i], now));
	pthread_mutex_unlock(&set.lock);
	return list;
}
