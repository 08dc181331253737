/*
 * The plugin's part of the configuration. Read on the daemon's main thread, by
 * create and reload.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/http/settings.h"
#include "plugins/http/listen.h"
#include "plugins/http/why.h"

#define KEY_FILE_MAX 65536u
#define MAX_CONNECTIONS 4096

int
http_why(char **why, int code, const char *fmt, ...)
{
	va_list ap;

	if (why == NULL)
		return code;
	free(*why);
	*why = NULL;
	va_start(ap, fmt);
	if (vasprintf(why, fmt, ap) < 0)
		*why = NULL;
	va_end(ap);
	return code;
}

/* --- keys, each with what takes its value ------------------------------ */

static int
add_listen(struct http_config *c, const json_t *v, char **why)
{
	char **more;

	if (!json_is_string(v))
		return http_why(why, -EINVAL, "listen: want an address or a "
		    "list of them");
	if (listen_check(json_string_value(v), why) != 0)
		return -EINVAL;
	more = realloc(c->listen, (c->n_listen + 1) * sizeof *more);
	if (more == NULL)
		return -ENOMEM;
	c->listen = more;
	more[c->n_listen] = strdup(json_string_value(v));
	if (more[c->n_listen] == NULL)
		return -ENOMEM;
	c->n_listen++;
	return 0;
}

static int
set_listen(struct http_config *c, const json_t *v, char **why)
{
	size_t i;
	int rc = 0;

	if (!json_is_array(v))
		return add_listen(c, v, why);
	for (i = 0; i < json_array_size(v) && rc == 0; i++)
		rc = add_listen(c, json_array_get(v, i), why);
	return rc;
}

/* Each line that is not empty is a key; "#" begins a comment. */
static int
add_keys(struct http_config *c, char *text, const char *path, char **why)
{
	char *line, **more, *end;

	while ((line = strsep(&text, "\n")) != NULL) {
		while (isspace((unsigned char)*line))
			line++;
		end = line + strlen(line);
		while (end > line && isspace((unsigned char)end[-1]))
			*--end = '\0';
		if (*line == '\0' || *line == '#')
			continue;
		more = realloc(c->api_key,
		    (c->n_api_key + 1) * sizeof *more);
		if (more == NULL)
			return -ENOMEM;
		c->api_key = more;
		more[c->n_api_key] = strdup(line);
		if (more[c->n_api_key] == NULL)
			return -ENOMEM;
		c->n_api_key++;
	}
	if (c->n_api_key == 0)
		return http_why(why, -EINVAL, "api_key_file: %s has no key: "
		    "write one a line, or leave api_key_file out", path);
	return 0;
}

static int
set_api_key_file(struct http_config *c, const json_t *v, char **why)
{
	const char *path = json_string_value(v);
	char *text = NULL;
	struct stat st;
	ssize_t n = -1;
	int fd, rc;

	if (path == NULL)
		return http_why(why, -EINVAL, "api_key_file: want a path");
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) != 0) {
		rc = -errno;
		if (fd >= 0)
			close(fd);
		return http_why(why, rc, "api_key_file: %s: %s", path,
		    strerror(-rc));
	}
	rc = -EINVAL;
	if (!S_ISREG(st.st_mode) || st.st_size > (off_t)KEY_FILE_MAX)
		http_why(why, rc, "api_key_file: %s: want a file of at most "
		    "%u bytes", path, KEY_FILE_MAX);
	else if (st.st_mode & S_IRWXO)
		http_why(why, rc, "api_key_file: %s: others may read it "
		    "(mode %04o): chmod 0600 it, and take new keys", path,
		    (unsigned)st.st_mode & 07777);
	else if ((text = calloc(1, KEY_FILE_MAX + 1)) == NULL)
		rc = -ENOMEM;
	else if ((n = read(fd, text, KEY_FILE_MAX)) < 0)
		rc = http_why(why, -errno, "api_key_file: %s: %s", path,
		    strerror(errno));
	else
		rc = add_keys(c, text, path, why);
	close(fd);
	if (text != NULL)
		explicit_bzero(text, KEY_FILE_MAX);
	free(text);
	return rc;
}

static int
set_string(char **to, const char *key, const json_t *v, char **why)
{
	const char *s = json_string_value(v);

	if (s == NULL || *s == '\0' || strpbrk(s, "\r\n") != NULL)
		return http_why(why, -EINVAL, "%s: want a string", key);
	free(*to);
	*to = strdup(s);
	return *to != NULL ? 0 : -ENOMEM;
}

static int
set_cors_origin(struct http_config *c, const json_t *v, char **why)
{
	return set_string(&c->cors_origin, "cors_origin", v, why);
}

static int
set_served_model_name(struct http_config *c, const json_t *v, char **why)
{
	return set_string(&c->served_model_name, "served_model_name", v, why);
}

static int
set_max_connections(struct http_config *c, const json_t *v, char **why)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < 1 || n > 100000)
		return http_why(why, -EINVAL,
		    "max_connections: want 1 to 100000");
	c->max_connections = (uint32_t)n;
	return 0;
}

static int
set_max_input(struct http_config *c, const json_t *v, char **why)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < (json_int_t)HTTP_BODY_MAX)
		return http_why(why, -EINVAL, "max_input: want bytes, at least "
		    "%u", HTTP_BODY_MAX);
	c->max_input = (uint64_t)n;
	return 0;
}

static int
set_max_answers(struct http_config *c, const json_t *v, char **why)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < (json_int_t)HTTP_BODY_MAX)
		return http_why(why, -EINVAL, "max_answers: want bytes, at "
		    "least %u", HTTP_BODY_MAX);
	c->max_answers = (uint64_t)n;
	return 0;
}

static int
set_seconds(double *to, const char *key, const json_t *v, char **why)
{
	double s = json_number_value(v);

	if (!json_is_number(v) || !(s >= 0.1 && s <= 86400))
		return http_why(why, -EINVAL, "%s: want 0.1 to 86400 seconds",
		    key);
	*to = s;
	return 0;
}

static int
set_head_timeout(struct http_config *c, const json_t *v, char **why)
{
	return set_seconds(&c->head_timeout, "head_timeout", v, why);
}

static int
set_idle_timeout(struct http_config *c, const json_t *v, char **why)
{
	return set_seconds(&c->idle_timeout, "idle_timeout", v, why);
}

static int
set_stuck_timeout(struct http_config *c, const json_t *v, char **why)
{
	return set_seconds(&c->stuck_timeout, "stuck_timeout", v, why);
}

static int
set_metrics_compat(struct http_config *c, const json_t *v, char **why)
{
	if (!json_is_boolean(v))
		return http_why(why, -EINVAL,
		    "metrics_compat: want true or false");
	c->metrics_compat = json_is_true(v);
	return 0;
}

static const struct {
	const char *key;
	int (*set)(struct http_config *, const json_t *, char **why);
} keys[] = {
	{ "listen", set_listen },
	{ "api_key_file", set_api_key_file },
	{ "cors_origin", set_cors_origin },
	{ "served_model_name", set_served_model_name },
	{ "max_connections", set_max_connections },
	{ "max_input", set_max_input },
	{ "max_answers", set_max_answers },
	{ "head_timeout", set_head_timeout },
	{ "idle_timeout", set_idle_timeout },
	{ "stuck_timeout", set_stuck_timeout },
	{ "metrics_compat", set_metrics_compat },
};
#define N_KEYS (sizeof keys / sizeof keys[0])

static int
set_key(struct http_config *c, const char *key, const json_t *v, char **why)
{
	char names[300] = "";

	for (size_t i = 0; i < N_KEYS; i++) {
		if (strcmp(keys[i].key, key) == 0)
			return keys[i].set(c, v, why);
		strcat(names, i > 0 ? ", " : "");
		strcat(names, keys[i].key);
	}
	return http_why(why, -EINVAL, "%.60s: no such key; there are %s", key,
	    names);
}

int
http_config_read(const char *text, struct http_config *out, char **why)
{
	struct http_config c = { .max_connections = MAX_CONNECTIONS,
	    .max_input = 512u << 20, .max_answers = 2048ull << 20,
	    .head_timeout = 10, .idle_timeout = 60, .stuck_timeout = 30 };
	json_error_t e;
	json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &e), *v;
	const char *key;
	int rc = 0;

	if (!json_is_object(o)) {
		json_decref(o);
		return http_why(why, -EINVAL, "configuration: want a JSON "
		    "object: %s", e.text);
	}
	json_object_foreach(o, key, v)
		if (rc == 0)
			rc = set_key(&c, key, v, why);
	json_decref(o);
	if (rc == 0 && c.n_listen == 0)
		rc = http_why(why, -EINVAL, "listen: say where, as in "
		    "\"127.0.0.1:8000\" (--http 127.0.0.1:8000)");
	if (rc != 0)
		http_config_free(&c);
	else
		*out = c;
	return rc;
}

bool
http_config_same_sockets(const struct http_config *a,
    const struct http_config *b)
{
	size_t i;

	for (i = 0; i < a->n_listen && i < b->n_listen; i++)
		if (strcmp(a->listen[i], b->listen[i]) != 0)
			return false;
	return a->n_listen == b->n_listen;
}

void
http_config_swap(struct http_config *a, struct http_config *b)
{
#define SWAP(field) do {						\
	__typeof__(a->field) was = a->field;				\
	a->field = b->field;						\
	b->field = was;							\
} while (0)
	SWAP(api_key);
	SWAP(n_api_key);
	SWAP(cors_origin);
	SWAP(max_connections);
	SWAP(max_input);
	SWAP(max_answers);
	SWAP(head_timeout);
	SWAP(idle_timeout);
	SWAP(stuck_timeout);
	SWAP(metrics_compat);
#undef SWAP
}

void
http_config_free(struct http_config *c)
{
	size_t i;

	for (i = 0; i < c->n_listen; i++)
		free(c->listen[i]);
	for (i = 0; i < c->n_api_key; i++) {
		explicit_bzero(c->api_key[i], strlen(c->api_key[i]));
		free(c->api_key[i]);
	}
	free(c->listen);
	free(c->api_key);
	free(c->cors_origin);
	free(c->served_model_name);
	*c = (struct http_config){ 0 };
}
