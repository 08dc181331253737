/* Reads a command's options through its table; the table is its help, too. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpctl/ctl.h"

const struct ctl_opt ctl_common_options[] = {
	{ "socket", 0, CTL_STR, &ctl.socket, "PATH",
	  "of dcpd [$DCPD_SOCKET, /run/dcpd/dcpd.sock]", NULL },
	{ "admin-socket", 0, CTL_STR, &ctl.admin_socket, "PATH",
	  "[--socket with .admin after it]", NULL },
	{ "json", 'j', CTL_FLAG, &ctl.json, NULL, "print JSON", NULL },
	{ "help", 'h', CTL_FLAG, &ctl.help, NULL, "this list", NULL },
	{ .name = NULL },
};

static void
put_args(FILE *to, const char *fmt, va_list ap)
{
	char *s = NULL;
	int n = vasprintf(&s, fmt, ap);

	if (n < 0)
		return;
	ctl_put(to, s, (size_t)n);
	free(s);
}

void
ctl_say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_args(stdout, fmt, ap);
	va_end(ap);
}

int
ctl_fail(int code, const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fputs("dcpctl: ", stderr);
	va_start(ap, fmt);
	put_args(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return code;
}

void
ctl_put(FILE *to, const char *s, size_t n)
{
	size_t i;

	if (!isatty(fileno(to))) {
		fwrite(s, 1, n, to);
		return;
	}
	for (i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];

		if (c == 0xc2 && i + 1 < n && (s[i + 1] & 0xe0) == 0x80) {
			fputc('?', to);		/* U+0080 to U+009F */
			i++;
		} else if (c == '\r' && i + 1 < n && s[i + 1] == '\n') {
			continue;
		} else {
			fputc(c == '\n' || c == '\t' || (c >= ' ' &&
			    c != 0x7f) ? c : '?', to);
		}
	}
}

/* JSON leaves U+007F as it is; it is in nothing but strings. */
static int
put_ascii(const char *s, size_t n, void *arg)
{
	for (size_t i = 0; i < n; i++) {
		if (s[i] == 0x7f)
			fputs("\\u007f", arg);
		else
			fputc(s[i], arg);
	}
	return 0;
}

void
ctl_print_json(json_t *j)
{
	size_t how = JSON_INDENT(2) | JSON_REAL_PRECISION(9);

	if (isatty(STDOUT_FILENO))
		json_dump_callback(j, put_ascii, stdout,
		    how | JSON_ENSURE_ASCII);
	else
		json_dumpf(j, stdout, how);
	putchar('\n');
	json_decref(j);
}

static const struct ctl_opt *
find(const struct ctl_opt *o, const char *name, size_t len, bool letter)
{
	for (; o->name != NULL; o++)
		if (letter ? len == 1 && o->letter == name[0] :
		    strlen(o->name) == len && memcmp(o->name, name, len) == 0)
			return o;
	return NULL;
}

static int
add(struct ctl_list *l, const char *s)
{
	const char **v = realloc(l->v, (l->n + 1) * sizeof *v);

	if (v == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	l->v = v;
	l->v[l->n++] = s;
	return 0;
}

static int
set_number(const struct ctl_opt *o, const char *s)
{
	char *end;
	bool ok;

	errno = 0;
	if (o->type == CTL_F32) {
		*(float *)o->p = strtof(s, &end);
		ok = end != s;
	} else if (o->type == CTL_F64) {
		*(double *)o->p = strtod(s, &end);
		ok = end != s;
	} else if (o->type == CTL_I32) {
		long v = strtol(s, &end, 10);

		*(int32_t *)o->p = (int32_t)v;
		ok = end != s && v >= INT32_MIN && v <= INT32_MAX;
	} else {
		unsigned long long v = strtoull(s, &end, 10);

		ok = *s >= '0' && *s <= '9' &&
		    (o->type == CTL_U64 || v <= UINT32_MAX);
		if (o->type == CTL_U64)
			*(uint64_t *)o->p = v;
		else
			*(uint32_t *)o->p = (uint32_t)v;
	}
	if (ok && errno == 0 && *end == '\0')
		return 0;
	return ctl_fail(CTL_USAGE, "--%s %s: want %s", o->name, s,
	    o->type == CTL_F32 || o->type == CTL_F64 ? "a number" :
	    o->type == CTL_I32 ? "a whole number" :
	    "a whole number that is not negative");
}

static int
set(const struct ctl_opt *o, const char *value)
{
	if (o->given != NULL)
		*o->given = true;
	switch (o->type) {
	case CTL_FLAG:
		*(bool *)o->p = true;
		return 0;
	case CTL_STR:
		*(const char **)o->p = value;
		return 0;
	case CTL_MANY:
		return add(o->p, value);
	default:
		return set_number(o, value);
	}
}

static int
option(int argc, char **argv, int *i, const struct ctl_opt *opts)
{
	const char *arg = argv[*i], *name = arg + 1 + (arg[1] == '-');
	const char *eq = arg[1] == '-' ? strchr(name, '=') : NULL, *value;
	size_t len = eq != NULL ? (size_t)(eq - name) : strlen(name);
	const struct ctl_opt *o;

	o = find(opts, name, len, arg[1] != '-');
	if (o == NULL)
		o = find(ctl_common_options, name, len, arg[1] != '-');
	if (o == NULL)
		return ctl_fail(CTL_USAGE, "%s: no such option; see dcpctl "
		    "help, or --help after a command", arg);
	if (o->type == CTL_FLAG && eq != NULL)
		return ctl_fail(CTL_USAGE, "--%s takes no value", o->name);
	value = eq != NULL ? eq + 1 : NULL;
	if (o->type != CTL_FLAG && value == NULL) {
		if (*i + 1 == argc)
			return ctl_fail(CTL_USAGE, "--%s: %s is missing",
			    o->name, o->arg);
		value = argv[++*i];
	}
	return set(o, value);
}

void
ctl_print_options(const struct ctl_opt *o)
{
	char left[80];
	int n;

	for (; o->name != NULL; o++) {
		n = snprintf(left, sizeof left, "  ");
		if (o->letter != 0)
			n += snprintf(left + n, sizeof left - (size_t)n,
			    "-%c, ", o->letter);
		snprintf(left + n, sizeof left - (size_t)n, "--%s%s%s",
		    o->name, o->arg != NULL ? " " : "",
		    o->arg != NULL ? o->arg : "");
		printf("%-30s %s\n", left, o->help);
	}
}

int
ctl_parse(int argc, char **argv, const struct ctl_opt *opts,
    const char *usage, struct ctl_list *rest)
{
	bool words = false;
	int i, rc;

	for (i = 1; i < argc; i++) {
		if (!words && strcmp(argv[i], "--") == 0) {
			words = true;
			continue;
		}
		if (!words && argv[i][0] == '-' && argv[i][1] != '\0')
			rc = option(argc, argv, &i, opts);
		else if (rest != NULL)
			rc = add(rest, argv[i]);
		else
			rc = ctl_fail(CTL_USAGE, "%s: one word too many; see "
			    "dcpctl %s --help", argv[i], argv[0]);
		if (rc != 0)
			return rc;
	}
	if (!ctl.help || usage == NULL)
		return 0;
	printf("usage: dcpctl %s\n\n", usage);
	ctl_print_options(opts);
	ctl_print_options(ctl_common_options);
	return -1;
}
