/* dcpctl: the table of commands, and those that need no daemon. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpctl/ctl.h"

struct ctl_common ctl;

static const struct command {
	const char *name, *help;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "status", "state, counters, occupancy per rank", ctl_status },
	{ "requests", "requests waiting and running", ctl_requests },
	{ "clients", "connected clients", ctl_clients },
	{ "top", "watch ranks, requests and rates", ctl_top },
	{ "generate", "continue a text or token ids", ctl_generate },
	{ "chat", "ask a question, or talk", ctl_chat },
	{ "tokenize", "the token ids of a text, the text of ids",
	  ctl_tokenize },
	{ "cancel", "end a request", ctl_cancel },
	{ "drain", "refuse new requests", ctl_drain },
	{ "resume", "accept requests again", ctl_resume },
	{ "reload", "read the configuration again", ctl_reload },
	{ "plan", "the memory plan of a model, without a daemon", ctl_plan },
	{ "bench", "measure: ipc, decode, prefill, trace", ctl_bench },
	{ "check", "the daemon's invariants", ctl_check },
	{ "cache", "the prefix cache: stats, drop, pin, unpin", ctl_cache },
	{ "plugins", "front ends: state and their own numbers", ctl_plugins },
	{ "config", "the daemon's configuration: show, changed", ctl_config },
	{ "version", "versions of dcpctl and of the daemon", ctl_version },
	{ "help", "this list; help COMMAND: what that takes", ctl_help },
	{ NULL, NULL, NULL },
};

static const struct ctl_opt none[] = { { .name = NULL } };

static int
exec_dcpd(const char *path, char **argv)
{
	if (access(path, X_OK) != 0)
		return 0;
	argv[0] = (char *)path;
	execv(path, argv);
	return ctl_fail(CTL_FAILED, "%s: %s", path, strerror(errno));
}

/* Beside this program: as installed, in a build tree, in libtool's .libs. */
static const char *const beside[] = {
	"dcpd", "../sbin/dcpd", "../dcpd/dcpd", "../../dcpd/dcpd", NULL,
};

static int
find_dcpd(char **argv)
{
	char exe[PATH_MAX], path[PATH_MAX + 32];
	const char *env = getenv("DCPD");
	ssize_t n;
	char *slash;
	int rc;

	if (env != NULL) {
		rc = exec_dcpd(env, argv);
		return rc != 0 ? rc : ctl_fail(CTL_FAILED, "$DCPD is %s: not "
		    "an executable file", env);
	}
	n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	exe[n > 0 ? n : 0] = '\0';
	slash = strrchr(exe, '/');
	for (unsigned i = 0; slash != NULL && beside[i] != NULL; i++) {
		snprintf(path, sizeof path, "%.*s/%s", (int)(slash - exe), exe,
		    beside[i]);
		rc = exec_dcpd(path, argv);
		if (rc != 0)
			return rc;
	}
	rc = exec_dcpd(DCPD_SBINDIR "/dcpd", argv);
	return rc != 0 ? rc : ctl_fail(CTL_FAILED, "plan: no dcpd beside "
	    "dcpctl or in " DCPD_SBINDIR "; set DCPD to its path");
}

int
ctl_plan(int argc, char **argv)
{
	char **v = calloc((size_t)argc + 4, sizeof *v);
	unsigned n = 2;
	int rc;

	if (v == NULL)
		return ctl_fail(CTL_FAILED, "out of memory");
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 ||
	    strcmp(argv[1], "-h") == 0)) {
		printf("usage: dcpctl plan --model DIR|config.json [-j] "
		    "[flags of dcpd]\n\nRuns `dcpd --plan`: bytes per rank "
		    "and the tokens that fit. No GPU, no weights.\n");
		free(v);
		return CTL_OK;
	}
	v[1] = "--plan";
	if (ctl.json)
		v[n++] = "-j";
	for (int i = 1; i < argc; i++)
		v[n++] = argv[i];
	rc = find_dcpd(v);
	free(v);
	return rc;
}

int
ctl_version(int argc, char **argv)
{
	json_t *status = NULL;
	const char *daemon;
	int rc;

	rc = ctl_parse(argc, argv, none, "version", NULL);
	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	ctl_admin(json_pack("{s:s}", "cmd", "status"), true, &status);
	daemon = json_string_value(json_object_get(status, "version"));
	if (ctl.json)
		ctl_print_json(json_pack("{s:s,s:s,s:s?}", "dcpctl",
		    PACKAGE_VERSION, "libdcpclient", dcp_version(), "dcpd",
		    daemon));
	else
		ctl_say("dcpctl %s, libdcpclient %s, dcpd %s\n",
		    PACKAGE_VERSION, dcp_version(), daemon != NULL ? daemon :
		    "not running (or not this user's)");
	json_decref(status);
	return CTL_OK;
}

/* NULL after a message. */
static const struct command *
find_named(const char *name)
{
	const struct command *c, *like = NULL;

	for (c = commands; c->name != NULL; c++) {
		if (strcmp(c->name, name) == 0)
			return c;
		if (strncmp(c->name, name, strlen(name)) == 0)
			like = c;
	}
	if (like != NULL)
		ctl_fail(CTL_USAGE, "%s: no such command; did you mean %s?",
		    name, like->name);
	else
		ctl_fail(CTL_USAGE, "%s: no such command; see dcpctl help",
		    name);
	return NULL;
}

int
ctl_help(int argc, char **argv)
{
	const struct command *of;

	if (argc > 1 && argv[1][0] != '-') {
		of = find_named(argv[1]);
		if (of == NULL)
			return CTL_USAGE;
		/* Its words, one place to the left: main's last is NULL. */
		memmove(argv, argv + 1, ((size_t)argc - 1) * sizeof *argv);
		argv[argc - 1] = (char *)"--help";
		return of->run(argc, argv);
	}
	printf("usage: dcpctl [--socket PATH] COMMAND [options]\n\n");
	for (const struct command *c = commands; c->name != NULL; c++)
		printf("  %-10s %s\n", c->name, c->help);
	printf("\noptions of every command:\n");
	ctl_print_options(ctl_common_options);
	printf("\nExit code: 0 ok, 1 failed, 2 usage, 3 not running, 4 runs "
	    "but is loading,\ndraining or stuck. More in dcpctl(1).\n");
	return CTL_OK;
}

/* Options may stand before the command; the first other word is it. */
static int
find_command(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc && argv[i][0] == '-'; i++)
		if (strcmp(argv[i], "--socket") == 0 ||
		    strcmp(argv[i], "--admin-socket") == 0)
			i++;
	return i < argc ? i : 0;
}

static int
parse_before(int n, char **argv)
{
	int rc;

	/* argv[0] stands for the command here; a --help is the command's. */
	rc = ctl_parse(n, argv, none, NULL, NULL);
	return rc > 0 ? rc : 0;
}

/*
 * Closed ones are filled, or the connection to the daemon would be what is
 * printed to. For reading, so that printing still fails.
 */
static void
fill_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

int
main(int argc, char **argv)
{
	const struct command *c;
	int at = find_command(argc, argv), rc;

	fill_standard_fds();

	if (at == 0) {
		if (argc > 1 && (strcmp(argv[1], "--version") == 0 ||
		    strcmp(argv[1], "-V") == 0))
			return ctl_version(1, argv);
		/* An option that is none, or lacks its value. */
		rc = parse_before(argc, argv);
		if (rc != 0)
			return rc;
		ctl_help(0, NULL);
		return argc > 1 && (strcmp(argv[1], "--help") == 0 ||
		    strcmp(argv[1], "-h") == 0) ? CTL_OK : CTL_USAGE;
	}
	rc = parse_before(at, argv);
	if (rc != 0)
		return rc;
	c = find_named(argv[at]);
	if (c == NULL)
		return CTL_USAGE;
	rc = c->run(argc - at, argv + at);
	if (fflush(stdout) != 0 || ferror(stdout))
		return ctl_fail(CTL_FAILED, "standard output: %s",
		    strerror(errno));
	return rc;
}
