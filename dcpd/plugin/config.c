/*
 * Which plugins there are and what each is told: --plugins, the object
 * "plugins" of --config, and the flags that stand for a plugin's key. Main
 * thread.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/plugin/plugin.h"

enum form {
	TEXT,		/* the value as it is */
	LIST,		/* "a,b" as ["a", "b"] */
	ADDRESS,	/* of --port, with --host */
};

/* A flag that sets a key of a plugin, and so asks for the plugin. */
static const struct shorthand {
	enum dcpd_flag flag;
	size_t off;		/* char *, in struct dcpd_options */
	const char *plugin, *key;
	enum form form;
} shorthands[] = {
#define S(field, plugin, key, form) { DCPD_FLAG_##field, \
	offsetof(struct dcpd_options, field), plugin, key, form }
	S(http, "http", "listen", LIST),
	S(port, "http", "listen", ADDRESS),
	S(api_key_file, "http", "api_key_file", TEXT),
	S(served_model_name, "http", "served_model_name", TEXT),
	S(unix_path, "unix", "listen", LIST),
#undef S
};
#define N_SHORTHANDS (sizeof shorthands / sizeof shorthands[0])

bool
dcpd_plugin_name_ok(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return n > 0 && n < sizeof ((struct dcpd_plugin *)0)->name &&
	    name[n] == '\0';
}

/* The object of that plugin in `all`, made if there is none; NULL: err. */
static json_t *
plugin_of(json_t *all, const char *name, const char *where,
    struct dcpd_err *err)
{
	json_t *o = json_object_get(all, name);

	if (o != NULL)
		return o;
	if (!dcpd_plugin_name_ok(name)) {
		dcpd_fail(err, -EINVAL, "%s: \"%.80s\" is no plugin's name; "
		    "want a-z, 0-9, _ and -", where, name);
		return NULL;
	}
	if (json_object_size(all) == DCPD_MAX_PLUGINS) {
		dcpd_fail(err, -E2BIG, "%s: more than %d plugins", where,
		    DCPD_MAX_PLUGINS);
		return NULL;
	}
	o = json_object();
	if (json_object_set_new(all, name, o) != 0) {
		dcpd_fail(err, -ENOMEM, "out of memory");
		return NULL;
	}
	return o;
}

/* Each word of "a,b,c"; an empty one is given to fn, too. */
static int
each_word(const char *list, int (*fn)(void *arg, const char *word,
    struct dcpd_err *), void *arg, struct dcpd_err *err)
{
	char *copy = strdup(list), *next = copy, *word;
	int rc = copy == NULL ? dcpd_fail(err, -ENOMEM, "out of memory") : 0;

	while (rc == 0 && (word = strsep(&next, ",")) != NULL)
		rc = fn(arg, word, err);
	free(copy);
	return rc;
}

static int
add_plugin(void *all, const char *name, struct dcpd_err *err)
{
	return plugin_of(all, name, "--plugins", err) != NULL ? 0 : err->code;
}

static int
add_string(void *list, const char *word, struct dcpd_err *err)
{
	if (json_array_append_new(list, json_string(word)) != 0)
		return dcpd_fail(err, -EINVAL, "not UTF-8");
	return 0;
}

static int
add_file(json_t *all, const json_t *file, struct dcpd_err *err)
{
	const char *name;
	json_t *v, *o;

	json_object_foreach((json_t *)file, name, v) {
		DCPD_ASSERT(json_is_object(v));	/* checked when read */
		o = plugin_of(all, name, "--config: plugins", err);
		if (o == NULL)
			return err->code;
		if (json_object_update(o, v) != 0)
			return dcpd_fail(err, -ENOMEM, "out of memory");
	}
	return 0;
}

/* ["HOST:PORT"] of --host and --port */
static int
port_address(const struct dcpd_options *o, json_t **out, struct dcpd_err *err)
{
	const char *host = o->host != NULL ? o->host : "127.0.0.1";
	bool v6 = strchr(host, ':') != NULL && host[0] != '[';
	size_t digits = strspn(o->port, "0123456789");
	char text[300];

	if (o->port[digits] != '\0' || digits > 5 || atoi(o->port) > 65535)
		return dcpd_fail(err, -EINVAL, "--port %.60s: want 0..65535",
		    o->port);
	if ((size_t)snprintf(text, sizeof text, v6 ? "[%s]:%s" : "%s:%s", host,
	    o->port) >= sizeof text)
		return dcpd_fail(err, -EINVAL, "--host %.60s...: too long",
		    host);
	*out = json_pack("[s]", text);
	return 0;
}

/* *out is NULL when memory or UTF-8 is wanting. */
static int
shorthand_value(const struct dcpd_options *o, const struct shorthand *s,
    json_t **out, struct dcpd_err *err)
{
	const char *text = *(char *const *)((const char *)o + s->off);

	switch (s->form) {
	case ADDRESS:
		return port_address(o, out, err);
	case LIST:
		*out = json_array();
		return each_word(text, add_string, *out, err);
	default:
		*out = json_string(text);
		return 0;
	}
}

static int
add_shorthand(json_t *all, const struct dcpd_options *o,
    const struct shorthand *s, struct dcpd_err *err)
{
	json_t *plugin, *value = NULL;
	int rc;

	plugin = plugin_of(all, s->plugin, "flags of a plugin", err);
	if (plugin == NULL)
		return err->code;
	if (o->given[s->flag] == 1 && json_object_get(plugin, s->key) != NULL)
		return dcpd_fail(err, -EINVAL, "--config: plugins: %s: \"%s\" "
		    "is there, and the flag that stands for it too; leave one "
		    "out", s->plugin, s->key);
	rc = shorthand_value(o, s, &value, err);
	if (rc == 0 && json_object_set(plugin, s->key, value) != 0)
		rc = dcpd_fail(err, -EINVAL, "%s of plugin %s: not UTF-8",
		    s->key, s->plugin);
	json_decref(value);
	return rc;
}

int
dcpd_plugins_config(const struct dcpd_options *o, json_t **out,
    struct dcpd_err *err)
{
	json_t *all = json_object();
	int rc = 0;

	if (all == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	if (o->host != NULL && o->port == NULL)
		rc = dcpd_fail(err, -EINVAL, "--host %.100s: only with --port",
		    o->host);
	if (o->port != NULL && o->http != NULL)
		rc = dcpd_fail(err, -EINVAL, "--port: --http says where "
		    "already; leave one out");
	if (rc == 0 && o->plugins != NULL)
		rc = each_word(o->plugins, add_plugin, all, err);
	if (rc == 0 && o->plugin_conf != NULL)
		rc = add_file(all, o->plugin_conf, err);
	for (size_t i = 0; rc == 0 && i < N_SHORTHANDS; i++)
		if (o->given[shorthands[i].flag] != 0)
			rc = add_shorthand(all, o, &shorthands[i], err);
	if (rc != 0)
		json_decref(all);
	else
		*out = all;
	return rc;
}
