/*
 * The Unix front end as a plugin: its configuration and its life. Main
 * thread; the server has one of its own.
 */
#include "config.h"

#include <errno.h>
#include <event2/thread.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/base/thread.h"
#include "plugins/evlog.h"
#include "plugins/unix/unix.h"

struct plugin {
	struct server server;
	struct unix_config cfg;
	pthread_t thread;
};

/* --- configuration ------------------------------------------------------- */

static const struct limit {
	const char *key;
	size_t off;		/* _Atomic uint32_t, in struct unix_config */
	uint32_t def;
} limits[] = {
#define L(field, def) { #field, offsetof(struct unix_config, field), def }
	L(max_connections, 64),
	L(max_connections_user, 48),
	L(max_requests, 64),
	L(stall_s, 30),
#undef L
};
#define N_LIMITS (sizeof limits / sizeof limits[0])

static _Atomic uint32_t *
limit_of(struct unix_config *c, size_t i)
{
	return (_Atomic uint32_t *)(void *)((char *)c + limits[i].off);
}

static int
read_listen(struct unix_config *c, const json_t *v, char **why)
{
	const json_t *e;
	size_t i;

	json_array_foreach(v, i, e) {
		const char *s = json_string_value(e);

		if (s == NULL || i >= UNIX_MAX_LISTEN || (s[0] != '/' &&
		    strcmp(s, "systemd") != 0)) {
			*why = unix_why("listen: want at most %d paths that "
			    "begin with /, or \"systemd\"", UNIX_MAX_LISTEN);
			return -EINVAL;
		}
		c->listen[c->n_listen] = strdup(s);
		if (c->listen[c->n_listen++] == NULL)
			return -ENOMEM;
	}
	return 0;
}

static int
read_mode(struct unix_config *c, const json_t *v, char **why)
{
	const char *s = json_string_value(v);
	char *end;
	unsigned long mode = s != NULL ? strtoul(s, &end, 8) : 0;

	if (s == NULL || *s < '0' || *s > '7' || *end != '\0' || mode > 0777) {
		*why = unix_why("mode: want octal digits in quotes, as "
		    "\"0660\"");
		return -EINVAL;
	}
	c->mode = (mode_t)mode;
	return 0;
}

static int
read_group(struct unix_config *c, const json_t *v, char **why)
{
	const char *s = json_string_value(v);
	const struct group *g = s != NULL ? getgrnam(s) : NULL;

	if (g == NULL) {
		*why = unix_why("group: %.60s: no such group; create it "
		    "(groupadd --system), or name another", s != NULL ? s :
		    "want a name");
		return -EINVAL;
	}
	c->gid = g->gr_gid;
	c->group = strdup(s);
	return c->group != NULL ? 0 : -ENOMEM;
}

static int
read_limit(struct unix_config *c, const char *key, const json_t *v, char **why)
{
	json_int_t n = json_integer_value(v);

	for (size_t i = 0; i < N_LIMITS; i++) {
		if (strcmp(key, limits[i].key) != 0)
			continue;
		if (!json_is_integer(v) || n < 1 || n > 100000) {
			*why = unix_why("%s: want 1..100000", key);
			return -EINVAL;
		}
		*limit_of(c, i) = (uint32_t)n;
		return 0;
	}
	*why = unix_why("%.60s: no such key; dcpd-unix(7) lists them", key);
	return -EINVAL;
}

static void
config_free(struct unix_config *c)
{
	for (unsigned i = 0; i < c->n_listen; i++)
		free(c->listen[i]);
	free(c->group);
}

static int
read_key(struct unix_config *c, const char *key, const json_t *v, char **why)
{
	if (strcmp(key, "listen") == 0) {
		if (json_is_array(v))
			return read_listen(c, v, why);
		*why = unix_why("listen: want a list of paths");
		return -EINVAL;
	}
	return strcmp(key, "mode") == 0 ? read_mode(c, v, why) :
	    strcmp(key, "group") == 0 ? read_group(c, v, why) :
	    read_limit(c, key, v, why);
}

static int
config_read(struct unix_config *c, const char *text, char **why)
{
	json_t *o = json_loads(text, 0, NULL), *v;
	const char *key;
	int rc = json_is_object(o) ? 0 : -EINVAL;

	memset(c, 0, sizeof *c);
	c->mode = 0660;
	for (size_t i = 0; i < N_LIMITS; i++)
		*limit_of(c, i) = limits[i].def;
	json_object_foreach(o, key, v)
		if (rc == 0)
			rc = read_key(c, key, v, why);
	if (rc == 0 && c->n_listen == 0) {
		*why = unix_why("listen: missing; want [PATH], which --unix "
		    "PATH gives too");
		rc = -EINVAL;
	}
	json_decref(o);
	if (rc != 0)
		config_free(c);
	return rc;
}

/* --- life ---------------------------------------------------------------- */

static int
create(const struct dcp_host *host, const char *config, void **self,
    char **why)
{
	static bool threads;	/* once per process, and before any loop */
	struct plugin *p;
	int rc;

	if (!threads && evthread_use_pthreads() != 0) {
		*why = unix_why("libevent has no threads here");
		return -ENOTSUP;
	}
	threads = true;
	p = calloc(1, sizeof *p);
	if (p == NULL)
		return -ENOMEM;
	rc = config_read(&p->cfg, config, why);
	if (rc != 0) {
		free(p);
		return rc;
	}
	evlog_open(host);
	p->server.host = host;
	p->server.cfg = &p->cfg;
	*self = p;
	return 0;
}

static void *
unix_main(void *arg)
{
	struct plugin *p = arg;

	pthread_setname_np(pthread_self(), "dcpd-unix");
	server_run(&p->server);
	return NULL;
}

static int
start(void *self, char **why)
{
	struct plugin *p = self;
	int rc = server_open(&p->server, why);

	if (rc == 0)
		rc = dcpd_thread_start(&p->thread, unix_main, p);
	if (rc != 0)
		server_close(&p->server);
	return rc;
}

static bool
same_sockets(const struct unix_config *a, const struct unix_config *b)
{
	bool same = a->n_listen == b->n_listen && a->mode == b->mode &&
	    a->gid == b->gid && (a->group == NULL) == (b->group == NULL);

	for (unsigned i = 0; same && i < a->n_listen; i++)
		same = strcmp(a->listen[i], b->listen[i]) == 0;
	return same;
}

static int
reload(void *self, const char *config, char **why)
{
	struct plugin *p = self;
	struct unix_config next;
	int rc = config_read(&next, config, why);

	if (rc != 0)
		return rc;
	if (same_sockets(&p->cfg, &next)) {
		for (size_t i = 0; i < N_LIMITS; i++)
			*limit_of(&p->cfg, i) = *limit_of(&next, i);
	} else {
		*why = unix_why("listen, mode and group cannot change while "
		    "it runs: restart dcpd for that");
		rc = -EBUSY;
	}
	config_free(&next);
	return rc;
}

static void
stop(void *self)
{
	struct plugin *p = self;

	server_stop(&p->server);
	pthread_join(p->thread, NULL);
	server_close(&p->server);
}

static void
destroy(void *self)
{
	struct plugin *p = self;

	evlog_close();
	config_free(&p->cfg);
	free(p);
}

static char *
stats(void *self)
{
	struct server *s = &((struct plugin *)self)->server;

	return unix_why("{\"connections\": %u, \"connections_total\": %llu, "
	    "\"connections_refused\": %llu, \"requests\": %u, "
	    "\"requests_total\": %llu}", s->n_conns,
	    (unsigned long long)s->conns_total,
	    (unsigned long long)s->conns_refused, s->n_requests,
	    (unsigned long long)s->requests_total);
}

static const struct dcp_plugin plugin = {
	.magic = DCP_PLUGIN_MAGIC, .major = DCP_PLUGIN_MAJOR,
	.minor = DCP_PLUGIN_MINOR, .struct_size = sizeof plugin,
	.name = "unix", .version = PACKAGE_VERSION, .create = create,
	.start = start, .reload = reload, .stop = stop, .destroy = destroy,
	.stats = stats,
};

const struct dcp_plugin *
dcp_plugin_get(uint32_t host_abi)
{
	return host_abi >> 16 == DCP_PLUGIN_MAJOR ? &plugin : NULL;
}
