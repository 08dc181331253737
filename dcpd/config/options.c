/*
 * Reads the command line and --config FILE through the table in flags.h.
 * Main thread, before any other exists.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/config/options.h"

#define CONFIG_MAX (1u << 20)	/* bytes of a configuration file */

const struct dcpd_flag_def dcpd_flag_defs[] = {
#define GROUP(title) { .group = title },
#define X(kind, type, field, name, aliases, def, legal, help) \
	{ NULL, DCPD_FLAG_##field, DCPD_KIND_##kind, DCPD_TYPE_##type, \
	  offsetof(struct dcpd_options, field), name, aliases, def, legal, \
	  help },
	DCPD_FLAGS(GROUP, X)
#undef X
#undef GROUP
	{ .group = NULL }
};

static void *
field(struct dcpd_options *o, const struct dcpd_flag_def *d)
{
	return (char *)o + d->off;
}

/* Is `name` one of the words of list, which are separated by sep? */
static bool
listed(const char *list, char sep, const char *name, size_t len)
{
	const char *end;

	while (*list != '\0') {
		end = strchrnul(list, sep);
		if ((size_t)(end - list) == len && memcmp(list, name, len) == 0)
			return true;
		list = *end == '\0' ? end : end + 1;
	}
	return false;
}

const struct dcpd_flag_def *
dcpd_flag_find(const char *name, int len)
{
	const struct dcpd_flag_def *d;
	size_t n = len < 0 ? strlen(name) : (size_t)len;

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL)
			continue;
		if ((strlen(d->name) == n && memcmp(d->name, name, n) == 0) ||
		    listed(d->aliases, '|', name, n))
			return d;
	}
	return NULL;
}

/* The last group's say what to do instead of serving. */
bool
dcpd_flag_in_file(const struct dcpd_flag_def *d)
{
	return d->flag != DCPD_FLAG_config && d->flag < DCPD_FLAG_plan;
}

bool
dcpd_flag_runtime(const struct dcpd_flag_def *d)
{
	static const bool runtime[DCPD_FLAG_N] = {
#define X(field) [DCPD_FLAG_##field] = true,
		DCPD_FLAGS_RUNTIME(X)
#undef X
	};

	return runtime[d->flag];
}

/* Index of value in "a=synonym|b|c"; -1. */
static int
enum_index(const char *legal, const char *value)
{
	const char *end;
	char item[128];
	int i = 0;

	while (*legal != '\0') {
		end = strchrnul(legal, '|');
		snprintf(item, sizeof item, "%.*s", (int)(end - legal), legal);
		if (listed(item, '=', value, strlen(value)))
			return i;
		legal = *end == '\0' ? end : end + 1;
		i++;
	}
	return -1;
}

/* First spelling of the index'th value of "a=synonym|b|c". */
static void
enum_name(const char *legal, uint32_t index, char *buf, size_t cap)
{
	while (index-- > 0)
		legal = strchrnul(legal, '|') + 1;
	snprintf(buf, cap, "%.*s", (int)strcspn(legal, "|="), legal);
}

/* The next that is told from s on: the first spelling of each, and "auto". */
static const char *
enum_word(const char *legal, const char *s)
{
	size_t n;

	for (; *s != '\0'; s += n + (s[n] != '\0')) {
		n = strcspn(s, "|=");
		if (s == legal || s[-1] == '|' ||
		    (n == 4 && strncmp(s, "auto", n) == 0))
			break;
	}
	return s;
}

/* "a, b or c" of "a=synonym|b|c". */
static void
enum_text(const char *legal, char *buf, size_t cap)
{
	const char *s = legal, *next;
	size_t n = 0, len;

	buf[0] = '\0';
	for (; *s != '\0' && n < cap; s = next) {
		len = strcspn(s, "|=");
		next = enum_word(legal, s + len + (s[len] != '\0'));
		n += (size_t)snprintf(buf + n, cap - n, "%s%.*s",
		    n == 0 ? "" : *next != '\0' ? ", " : " or ", (int)len, s);
	}
}

static int
parse_u64(const char *s, int base, uint64_t *out)
{
	char *end;

	if (*s < '0' || *s > '9')
		return -EINVAL;
	errno = 0;
	*out = strtoull(s, &end, base);
	return errno != 0 || *end != '\0' ? -EINVAL : 0;
}

/* "4096", "64MiB", "1.5GiB", "64M" */
static int
parse_bytes(const char *s, uint64_t *out)
{
	static const char unit[] = "KMGT";
	char *end;
	const char *u;
	double v;

	if (*s < '0' || *s > '9')
		return -EINVAL;
	errno = 0;
	v = strtod(s, &end);
	if (errno != 0)
		return -EINVAL;
	if (*end != '\0' && (u = strchr(unit, *end)) != NULL) {
		v *= (double)(1ull << (10 * (u - unit + 1)));
		end++;
		if (strcmp(end, "iB") == 0)
			end += 2;
	} else if (strcmp(end, "B") == 0) {
		end++;
	}
	if (*end != '\0' || !(v >= 0) || v >= 9e18)
		return -EINVAL;
	*out = (uint64_t)v;
	return 0;
}

static int
set_number(struct dcpd_options *o, const struct dcpd_flag_def *d,
    const char *value, const char *where, struct dcpd_err *err)
{
	const char *dots = strstr(d->legal, "..");
	double lo = strtod(d->legal, NULL), hi = strtod(dots + 2, NULL), r;
	uint64_t u = 0;
	char *end;
	bool bad;

	if (d->type == DCPD_TYPE_REAL) {
		r = strtod(value, &end);
		bad = end == value || *end != '\0' || !(r >= lo && r <= hi);
		if (!bad)
			*(double *)field(o, d) = r;
	} else if (d->type == DCPD_TYPE_MODE) {
		bad = parse_u64(value, 8, &u) != 0 || u > 0777;
		if (!bad)
			*(uint32_t *)field(o, d) = (uint32_t)u;
	} else {
		bad = parse_u64(value, 10, &u) != 0 || (double)u < lo ||
		    (double)u > hi;
		if (!bad)
			*(uint32_t *)field(o, d) = (uint32_t)u;
	}
	if (!bad)
		return 0;
	return dcpd_fail(err, -EINVAL, "%s %s: want %s from %.*s to %s",
	    where, value, d->type == DCPD_TYPE_REAL ? "a number" :
	    d->type == DCPD_TYPE_MODE ? "an octal mode" : "a whole number",
	    (int)(dots - d->legal), d->legal, dots + 2);
}

static int
set_enum(struct dcpd_options *o, const struct dcpd_flag_def *d,
    const char *value, const char *where, struct dcpd_err *err)
{
	char text[200];
	int i = enum_index(d->legal, value);

	if (i >= 0) {
		*(uint32_t *)field(o, d) = (uint32_t)i;
		return 0;
	}
	enum_text(d->legal, text, sizeof text);
	if (d->kind == DCPD_KIND_CHECK)
		return dcpd_fail(err, -EINVAL, "%s %s: must be %s here: %s",
		    where, value, text, d->help);
	return dcpd_fail(err, -EINVAL, "%s %s: want %s", where, value, text);
}

int
dcpd_options_set(struct dcpd_options *o, const struct dcpd_flag_def *d,
    const char *value, const char *where, struct dcpd_err *err)
{
	char *copy;

	if (d->kind == DCPD_KIND_REFUSE)
		return dcpd_fail(err, -ENOTSUP, "%s: refused: %s", where,
		    d->help);
	switch (d->type) {
	case DCPD_TYPE_STR:
		if (*value == '\0')
			return dcpd_fail(err, -EINVAL, "%s: want %s, got an "
			    "empty string", where, d->legal);
		copy = strdup(value);
		if (copy == NULL)
			return dcpd_fail(err, -ENOMEM, "out of memory");
		free(*(char **)field(o, d));
		*(char **)field(o, d) = copy;
		return 0;
	case DCPD_TYPE_ENUM:
		return set_enum(o, d, value, where, err);
	case DCPD_TYPE_BYTES:
		if (parse_bytes(value, field(o, d)) == 0)
			return 0;
		return dcpd_fail(err, -EINVAL, "%s %s: want bytes, for example "
		    "4096, 64MiB or 2GiB", where, value);
	case DCPD_TYPE_BOOL:
		if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
			return dcpd_fail(err, -EINVAL,
			    "%s %s: want true or false", where, value);
		*(bool *)field(o, d) = value[0] == 't';
		return 0;
	default:
		return set_number(o, d, value, where, err);
	}
}

static int
set_defaults(struct dcpd_options *o, struct dcpd_err *err)
{
	const struct dcpd_flag_def *d;
	int rc = 0;

	memset(o, 0, sizeof *o);
	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name != NULL && d->def[0] != '\0')
			rc = dcpd_options_set(o, d, d->def, d->name, err);
		DCPD_ASSERT(rc == 0 || rc == -ENOMEM);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* One argument of the command line; *i moves past its value. */
static int
read_argument(int argc, char **argv, int *i, struct dcpd_options *o,
    struct dcpd_err *err)
{
	const char *arg = argv[*i], *name, *eq, *value;
	const struct dcpd_flag_def *d;
	char where[160], near[120];
	int len;

	if (*i == 1 && strcmp(arg, "serve") == 0)	/* as vllm has it */
		return dcpd_fail(err, -EINVAL, "serve: dcpd has no commands; "
		    "give dcpd --model %s", argc > 2 && argv[2][0] != '-' ?
		    argv[2] : "DIR");
	if (arg[0] != '-' || arg[1] == '\0')
		return dcpd_fail(err, -EINVAL, "%s: not a flag; every argument "
		    "of dcpd has a name, as in --model %s", arg, arg);
	name = arg + 1 + (arg[1] == '-');
	eq = strchr(name, '=');
	len = eq == NULL ? (int)strlen(name) : (int)(eq - name);
	d = len == 0 || (arg[1] == '-') != (len > 1) ? NULL :
	    dcpd_flag_find(name, len);
	if (d == NULL) {
		snprintf(where, sizeof where, "%.*s", len, name);
		return dcpd_fail(err, -EINVAL, "%.*s: no such flag%s; see "
		    "dcpd --help", (int)(name - arg) + len, arg,
		    dcpd_flag_near(where, near, sizeof near));
	}
	snprintf(where, sizeof where, "--%s", d->name);
	if (eq != NULL) {
		value = eq + 1;
	} else if (d->type == DCPD_TYPE_BOOL) {
		value = "true";
		if (*i + 1 < argc && (strcmp(argv[*i + 1], "true") == 0 ||
		    strcmp(argv[*i + 1], "false") == 0))
			value = argv[++*i];
	} else if (*i + 1 < argc) {
		value = argv[++*i];
	} else if (d->kind == DCPD_KIND_REFUSE) {
		value = "";
	} else {
		return dcpd_fail(err, -EINVAL, "%s: a value is missing", where);
	}
	o->given[d->flag] = 2;
	return dcpd_options_set(o, d, value, where, err);
}

/* A JSON value as the text that the command line would have. */
static int
json_text(const json_t *v, char *buf, size_t cap)
{
	if (json_is_string(v))
		return (size_t)snprintf(buf, cap, "%s", json_string_value(v)) <
		    cap ? 0 : -EINVAL;
	if (json_is_integer(v))
		snprintf(buf, cap, "%" JSON_INTEGER_FORMAT,
		    json_integer_value(v));
	else if (json_is_real(v))
		snprintf(buf, cap, "%.17g", json_real_value(v));
	else if (json_is_boolean(v))
		snprintf(buf, cap, "%s", json_is_true(v) ? "true" : "false");
	else
		return -EINVAL;
	return 0;
}

/* {"NAME": {...}}: what is inside is for the plugin of that name to check. */
static int
read_plugins(struct dcpd_options *o, const char *path, const json_t *v,
    struct dcpd_err *err)
{
	const char *name;
	json_t *one;

	json_object_foreach((json_t *)v, name, one)
		if (!json_is_object(one))
			return dcpd_fail(err, -EINVAL, "%.300s: plugins: "
			    "%.60s: want an object, \"%.60s\": {...}", path,
			    name, name);
	json_decref(o->plugin_conf);
	o->plugin_conf = json_deep_copy(v);
	return o->plugin_conf != NULL ? 0 :
	    dcpd_fail(err, -ENOMEM, "out of memory");
}

static int
read_key(struct dcpd_options *o, const char *path, const char *key,
    const json_t *v, struct dcpd_err *err)
{
	const struct dcpd_flag_def *d = dcpd_flag_find(key, -1);
	char value[4096], where[400], near[120];

	snprintf(where, sizeof where, "%.300s: %.60s", path, key);
	if (strcmp(key, "plugins") == 0 && json_is_object(v))
		return read_plugins(o, path, v, err);
	if (d == NULL || strlen(key) == 1)
		return dcpd_fail(err, -EINVAL, "%s: no such key%s; keys are "
		    "the flags of dcpd --help without their dashes", where,
		    dcpd_flag_near(key, near, sizeof near));
	if (!dcpd_flag_in_file(d))
		return dcpd_fail(err, -EINVAL, "%s: only on the command line",
		    where);
	if (o->given[d->flag] == 1)
		return dcpd_fail(err, -EINVAL, "%s: given twice, by another "
		    "of its names", where);
	if (o->given[d->flag] == 2)
		return 0;
	if (json_text(v, value, sizeof value) != 0)
		return dcpd_fail(err, -EINVAL, d->flag == DCPD_FLAG_plugins ?
		    "%s: want an object, {\"NAME\": {...}}" :
		    "%s: want a string, a number, true or false", where);
	o->given[d->flag] = 1;
	return dcpd_options_set(o, d, value, where, err);
}

static int
read_file(struct dcpd_options *o, const char *path, struct dcpd_err *err)
{
	json_error_t je;
	json_t *root, *v;
	const char *key;
	char *text = NULL;
	size_t len;
	int rc;

	/* As in a unit's EnvironmentFile=: may be missing. */
	if (path[0] == '-' && access(++path, F_OK) != 0 && errno == ENOENT)
		return 0;
	rc = dcpd_read_file(path, CONFIG_MAX, &text, &len, err);
	if (rc == -ENOENT && path[strspn(path, "0123456789")] == '\0')
		return dcpd_fail(err, -ENOENT, "--config %.20s: no such file; "
		    "for tokens of context give --max-context", path);
	if (rc != 0)
		return dcpd_fail_in(err, "--config");
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	free(text);
	if (root == NULL)
		return dcpd_fail(err, -EINVAL, "%.300s:%d: %.100s", path,
		    je.line, je.text);
	if (!json_is_object(root))
		rc = dcpd_fail(err, -EINVAL, "%s: want a JSON object, "
		    "{\"tp\": 8, ...}", path);
	json_object_foreach(root, key, v)
		if (rc == 0)
			rc = read_key(o, path, key, v, err);
	json_decref(root);
	return rc;
}

int
dcpd_options_parse(int argc, char **argv, struct dcpd_options *o,
    struct dcpd_err *err)
{
	int i, rc;

	rc = set_defaults(o, err);
	for (i = 1; rc == 0 && i < argc; i++)
		rc = read_argument(argc, argv, &i, o, err);
	if (rc == 0 && o->config != NULL)
		rc = read_file(o, o->config, err);
	if (rc == 0 && !o->help && !o->help_man && !o->help_conf &&
	    !o->version)
		rc = dcpd_options_check(o, err);
	if (rc != 0)
		dcpd_options_free(o);
	return rc;
}

void
dcpd_options_free(struct dcpd_options *o)
{
	const struct dcpd_flag_def *d;

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++)
		if (d->name != NULL && d->type == DCPD_TYPE_STR)
			free(*(char **)field(o, d));
	json_decref(o->plugin_conf);
	memset(o, 0, sizeof *o);
}

static json_t *
value_json(const struct dcpd_options *o, const struct dcpd_flag_def *d)
{
	const void *p = (const char *)o + d->off;
	char buf[128];

	switch (d->type) {
	case DCPD_TYPE_STR:
		return *(char *const *)p == NULL ? json_null() :
		    json_string(*(char *const *)p);
	case DCPD_TYPE_ENUM:
		if (d->def[0] == '\0' && o->given[d->flag] == 0)
			return json_null();
		enum_name(d->legal, *(const uint32_t *)p, buf, sizeof buf);
		return json_string(buf);
	case DCPD_TYPE_U32:
		return json_integer(*(const uint32_t *)p);
	case DCPD_TYPE_BYTES:
		return json_integer((json_int_t)*(const uint64_t *)p);
	case DCPD_TYPE_REAL:
		return json_real(*(const double *)p);
	case DCPD_TYPE_BOOL:
		return json_boolean(*(const bool *)p);
	case DCPD_TYPE_MODE:
		snprintf(buf, sizeof buf, "%04o", *(const uint32_t *)p);
		return json_string(buf);
	}
	return NULL;
}

json_t *
dcpd_options_changed(const struct dcpd_options *o)
{
	static const char *const from[] = { NULL, "file", "command line" };
	const struct dcpd_flag_def *d;
	json_t *root = json_object(), *v, *def;
	struct dcpd_options plain;
	struct dcpd_err err;

	if (set_defaults(&plain, &err) != 0) {
		dcpd_options_free(&plain);
		json_decref(root);
		return NULL;
	}
	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL || o->given[d->flag] == 0 ||
		    d->kind == DCPD_KIND_REFUSE)
			continue;
		v = value_json(o, d);
		def = value_json(&plain, d);
		if (!json_equal(v, def))
			json_object_set_new(root, d->name, json_pack(
			    "{s:O, s:O, s:s}", "value", v, "default", def,
			    "from", from[o->given[d->flag]]));
		json_decref(def);
		json_decref(v);
	}
	dcpd_options_free(&plain);
	return root;
}

json_t *
dcpd_options_json(const struct dcpd_options *o)
{
	const struct dcpd_flag_def *d;
	json_t *root = json_object();

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++)
		if (d->name != NULL && d->kind != DCPD_KIND_REFUSE)
			json_object_set_new(root, d->name, value_json(o, d));
	if (o->plugin_conf != NULL)
		json_object_set(root, "plugins", o->plugin_conf);
	return root;
}
