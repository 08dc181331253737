/*
 * What the daemon gives a plugin (struct dcp_host): its state, status and
 * counters, by the same functions that answer dcpctl. Called from the
 * plugins' threads; nothing here waits for a step.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/admin/histograms.h"
#include "dcpd/admin/listen.h"
#include "dcpd/plugin/plugin.h"

static void
host_log(void *ctx, int priority, const char *line)
{
	struct dcpd_plugin *p = ctx;

	dcpd_log(priority, "%s: %s", p->name, line);
}

static int
host_state(void *ctx)
{
	static const struct {
		const char *name;
		int state;
	} states[] = {
		{ "loading", DCP_HOST_LOADING }, { "ready", DCP_HOST_READY },
		{ "draining", DCP_HOST_DRAINING },
		{ "stopping", DCP_HOST_DRAINING }, { "stuck", DCP_HOST_STUCK },
	};
	struct dcpd_plugin *p = ctx;
	const char *name;

	pthread_rwlock_rdlock(&p->run->lock);
	name = dcpd_admin_state(p->run);
	pthread_rwlock_unlock(&p->run->lock);
	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
		if (strcmp(states[i].name, name) == 0)
			return states[i].state;
	return DCP_HOST_FAILED;
}

/* The answer of an admin command as text, or NULL. */
static char *
admin_text(struct dcpd_plugin *p, const char *command)
{
	const struct dcpd_admin_command *cmd = dcpd_admin_find(command);
	struct dcpd_err err = { 0 };
	json_t *result;
	char *text;

	DCPD_ASSERT(cmd != NULL && !cmd->slow);
	pthread_rwlock_rdlock(&p->run->lock);
	result = cmd->run(p->run, NULL, &err);
	pthread_rwlock_unlock(&p->run->lock);
	text = result == NULL ? NULL : json_dumps(result, JSON_COMPACT);
	json_decref(result);
	return text;
}

static char *
host_status(void *ctx)
{
	return admin_text(ctx, "status");
}

static char *
host_requests(void *ctx)
{
	char *text = admin_text(ctx, "requests");

	return text != NULL ? text : strdup("[]");	/* still loading */
}

static char *
host_pages(void *ctx)
{
	return admin_text(ctx, "pages");
}

/* --- counters ------------------------------------------------------------ */

/* What each rank holds, beside the counters of the whole daemon. */
static const struct {
	const char *key, *name, *help;
} of_rank[] = {
	{ "tokens", "rank_tokens", "tokens of running requests on a rank" },
	{ "pages_used", "rank_pages_used", "pages held by requests, a rank" },
	{ "pages_cached", "rank_pages_cached",
	  "pages of the prefix cache in no use, a rank" },
	{ "pages_total", "rank_pages_total", "pages of a rank's pool" },
};

static void
add_rank(json_t *list, const json_t *rank)
{
	for (size_t i = 0; i < sizeof of_rank / sizeof of_rank[0]; i++)
		json_array_append_new(list, json_pack(
		    "{s:s,s:s,s:s,s:O,s:O}", "name", of_rank[i].name, "kind",
		    "gauge", "help", of_rank[i].help, "rank",
		    json_object_get(rank, "rank"), "value",
		    json_object_get(rank, of_rank[i].key)));
}

static char *
host_counters(void *ctx)
{
	static const struct {
		const char *name, *kind, *help;
	} table[] = {
#define C "counter"
#define G "gauge"
#define X(n, k, h) { #n, k, h },
		DCPD_COUNTERS(X)
#undef X
#undef G
#undef C
	};
	struct dcpd_plugin *p = ctx;
	json_t *list = json_array(), *status, *rank;
	char *text;
	size_t i;

	for (i = 0; i < DCPD_CNT_N; i++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:I}",
		    "name", table[i].name, "kind", table[i].kind, "help",
		    table[i].help, "value", (json_int_t)atomic_load_explicit(
		    &dcpd_counters[i], memory_order_relaxed)));
	pthread_rwlock_rdlock(&p->run->lock);
	status = p->run->sched == NULL ? NULL :
	    dcpd_sched_status(p->run->sched);
	pthread_rwlock_unlock(&p->run->lock);
	json_array_foreach(json_object_get(status, "ranks"), i, rank)
		add_rank(list, rank);
	json_decref(status);
	dcpd_histograms_json(list);
	text = json_dumps(list, JSON_COMPACT);
	json_decref(list);
	return text;
}

/* --- the rest ------------------------------------------------------------ */

static int
host_flush_cache(void *ctx, uint64_t *pages)
{
	struct dcpd_plugin *p = ctx;
	uint32_t n;
	int rc = -EAGAIN;

	pthread_rwlock_rdlock(&p->run->lock);
	if (p->run->sched != NULL) {
		dcpd_sched_cache_flush(p->run->sched, &n);
		*pages = n;
		rc = 0;
	}
	pthread_rwlock_unlock(&p->run->lock);
	return rc;
}

static int
host_listen_fd(void *ctx, const char *name)
{
	int fd, rc = dcpd_listen_named(name, &fd);

	return rc == 0 ? fd : rc;
}

static int
host_token_bytes(void *ctx, uint32_t id, const char **bytes, size_t *len)
{
	const struct dcpd_plugin *p = ctx;
	bool special;

	if (p->run->tok == NULL)
		return -ENOTSUP;
	return dcpd_token_bytes(p->run->tok, id, bytes, len, &special);
}

static void
host_tick(void *ctx)
{
	struct dcpd_plugin *p = ctx;

	p->ticked_ns = dcpd_now_ns();
}

static void
host_failed(void *ctx, const char *why)
{
	struct dcpd_plugin *p = ctx;

	pthread_mutex_lock(&p->lock);
	if (!p->failed)
		dcpd_fail(&p->fail, -EIO, "plugin %s: %s", p->name, why);
	p->failed = true;
	pthread_mutex_unlock(&p->lock);
}

void
dcpd_plugin_host(struct dcpd_plugin *p, const char *socket)
{
	p->host = (struct dcp_host){
		.size = sizeof p->host, .abi = DCP_PLUGIN_ABI, .ctx = p,
		.socket = socket, .version = PACKAGE_VERSION,
		.log = host_log, .state = host_state, .status = host_status,
		.requests = host_requests, .pages = host_pages,
		.counters = host_counters,
		.flush_cache = host_flush_cache, .listen_fd = host_listen_fd,
		.tick = host_tick, .failed = host_failed,
		.token_bytes = host_token_bytes,
	};
}
