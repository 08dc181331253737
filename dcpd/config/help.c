/* Help, the manual's list of flags, and what a mistyped flag may mean. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "dcpd/config/options.h"

#define NAME_MAX_LEN 60

static unsigned
least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Edits from a to b: insert, delete, replace, swap neighbours. */
static unsigned
distance(const char *a, const char *b)
{
	unsigned d[3][NAME_MAX_LEN + 1], *up2, *up, *row, i, j, v;
	size_t m = strlen(a), n = strlen(b);

	if (m > NAME_MAX_LEN || n > NAME_MAX_LEN)
		return 100;
	for (j = 0; j <= n; j++)
		d[0][j] = j;
	for (i = 1; i <= m; i++) {
		row = d[i % 3];
		up = d[(i + 2) % 3];
		up2 = d[(i + 1) % 3];
		row[0] = i;
		for (j = 1; j <= n; j++) {
			v = up[j - 1] + (a[i - 1] != b[j - 1]);
			v = least(v, least(up[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
			    a[i - 2] == b[j - 1])
				v = least(v, up2[j - 2] + 1);
			row[j] = v;
		}
	}
	return d[m % 3][n];
}

/*
 * Flags that other servers have and dcpd has not: what to do instead. Names
 * are separated by '|'; one that ends with '*' is a beginning.
 */
static const struct {
	const char *names, *instead;
} foreign[] = {
	{ "dp|dp-size|data-parallel-size",
	  "data parallelism is not built yet; one daemon for each" },
	{ "ep|ep-size|expert-parallel-size|enable-expert-parallel",
	  "every expert is cut over the ranks of --tp" },
	{ "ctx-size|n-ctx", "give --max-context" },
	{ "enable-prefix-caching|no-enable-prefix-caching|disable-radix-cache",
	  "the prefix cache is always on" },
	{ "enable-auto-tool-choice|jinja|enable-chunked-prefill",
	  "it is not needed: always on" },
	{ "max-num-batched-tokens|max-prefill-tokens|batch-size|b|ubatch-size|"
	  "ub", "give --chunked-prefill-size" },
	{ "enforce-eager|disable-cuda-graph", "give --cuda-graph-max-bs 0" },
	{ "block-size", "a page is 64 tokens" },
	{ "kv-cache-memory-bytes|max-total-tokens|num-gpu-blocks-override",
	  "give --kv-bytes-per-rank" },
	{ "dcp", "give --dcp-size" },
	{ "dcp-comm-backend", "give --dcp-comm" },
	{ "prefill-context-parallel-size", "give --attn-cp-size" },
	{ "pp|pp-size|pipeline-parallel-size",
	  "layers are not split over ranks; give --tp" },
	{ "parallel|np", "give --max-running-requests" },
	{ "threads|t", "give --cpu-threads" },
	{ "alias", "give --served-model-name" },
	{ "dtype", "the checkpoint decides; --kv-cache-dtype is of the cache" },
	{ "seed", "each request may have a seed; --random-seed is of dummy "
	  "weights" },
	{ "tokenizer|revision", "all is in the folder of --model" },
	{ "schedule-policy", "requests run by priority, then arrival" },
	{ "cors-origin", "set the key cors_origin of the plugin http, in "
	  "--config" },
	{ "disable-log-requests", "requests are not logged" },
	{ "enable-metrics", "with --http or --port there is /metrics always" },
	{ "speculative-*", "speculative decoding is not there yet" },
	{ "nnodes|node-rank|dist-init-addr",
	  "all ranks are of one daemon on one host; give --tp" },
	{ "ssl-*", "there is no TLS; put a proxy in front" },
	{ "swap-space|cpu-offload-gb|enable-hierarchical-cache",
	  "--host-cache-bytes is host memory for cached pages" },
};

static const char *
instead_of(const char *name)
{
	char all[120], *one, *save;
	size_t i, n;

	for (i = 0; i < sizeof foreign / sizeof *foreign; i++) {
		snprintf(all, sizeof all, "%s", foreign[i].names);
		for (one = strtok_r(all, "|", &save); one != NULL;
		    one = strtok_r(NULL, "|", &save)) {
			n = strcspn(one, "*");
			if (one[n] == '*' ? strncmp(name, one, n) == 0 :
			    strcmp(name, one) == 0)
				return foreign[i].instead;
		}
	}
	return NULL;
}

/* Do they begin with the same word, but for slips of the hand? */
static bool
alike(const char *a, const char *b)
{
	char x[NAME_MAX_LEN + 1], y[NAME_MAX_LEN + 1];

	snprintf(x, sizeof x, "%.*s", (int)strcspn(a, "-_"), a);
	snprintf(y, sizeof y, "%.*s", (int)strcspn(b, "-_"), b);
	return distance(x, y) <= strlen(x) / 3;
}

const char *
dcpd_flag_near(const char *name, char *buf, size_t cap)
{
	const struct dcpd_flag_def *d;
	const char *instead = instead_of(name);
	char all[200], best[NAME_MAX_LEN + 1] = "", *one, *save;
	unsigned nearest = 100, n;

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		snprintf(all, sizeof all, "%s|%s", d->name != NULL ? d->name :
		    "", d->name != NULL ? d->aliases : "");
		for (one = strtok_r(all, "|", &save); one != NULL;
		    one = strtok_r(NULL, "|", &save)) {
			n = strlen(one) > 1 ? distance(name, one) : 100;
			if (n >= nearest || !alike(name, one))
				continue;
			nearest = n;
			snprintf(best, sizeof best, "%s", one);
		}
	}
	buf[0] = '\0';
	if (instead != NULL)
		snprintf(buf, cap, "; %s", instead);
	else if (nearest <= 1 + strlen(name) / 4)
		snprintf(buf, cap, "; did you mean --%s?", best);
	return buf;
}

/* What stands after the name: "DIR", "cpu|cuda", "N", "" */
static void
argument(const struct dcpd_flag_def *d, char *buf, size_t cap)
{
	const char *s = d->legal;
	size_t n = 0;

	buf[0] = '\0';
	switch (d->type) {
	case DCPD_TYPE_STR:
		snprintf(buf, cap, "%s", d->legal);
		break;
	case DCPD_TYPE_ENUM:		/* first spellings only */
		while (*s != '\0' && n + 1 < cap) {
			buf[n++] = *s++;
			if (*s == '=')
				s += strcspn(s, "|");
		}
		buf[n] = '\0';
		break;
	case DCPD_TYPE_BYTES:
		snprintf(buf, cap, "BYTES");
		break;
	case DCPD_TYPE_BOOL:
		break;
	case DCPD_TYPE_MODE:
		snprintf(buf, cap, "MODE");
		break;
	default:
		snprintf(buf, cap, "N");
	}
}

/* Text from column `at`, broken at spaces so that it keeps within 79; further
 * lines begin at column `in`. */
static void
wrapped(FILE *f, const char *s, int at, int in)
{
	int n;

	while (*s != '\0') {
		n = (int)strcspn(s, " ");
		if (at > in && at + 1 + n > 79) {
			fprintf(f, "\n%*s", in, "");
			at = in;
		}
		at += fprintf(f, "%s%.*s", at > in ? " " : "", n, s);
		s += n + (s[n] == ' ');
	}
	fputc('\n', f);
}

/* Help text, with how the flag is treated and its default. */
static void
describe(const struct dcpd_flag_def *d, char *buf, size_t cap)
{
	size_t n;

	n = (size_t)snprintf(buf, cap, "%s%s",
	    d->kind == DCPD_KIND_REFUSE ? "refused: " :
	    d->kind == DCPD_KIND_CHECK ? "checked: " : "", d->help);
	if (d->def[0] != '\0' && d->type != DCPD_TYPE_BOOL &&
	    d->kind == DCPD_KIND_ACT && n < cap)
		n += (size_t)snprintf(buf + n, cap - n, " [%s]", d->def);
}

/* " (also --model-path, -m)", or "". */
static void
also(const struct dcpd_flag_def *d, char *buf, size_t cap)
{
	char all[200], *alias, *save;
	size_t n = 0;

	buf[0] = '\0';
	snprintf(all, sizeof all, "%s", d->aliases);
	for (alias = strtok_r(all, "|", &save); alias != NULL && n < cap;
	    alias = strtok_r(NULL, "|", &save))
		n += (size_t)snprintf(buf + n, cap - n, "%s%s%s", n == 0 ?
		    " (also " : ", ", strlen(alias) == 1 ? "-" : "--", alias);
	if (n > 0 && n < cap)
		snprintf(buf + n, cap - n, ")");
}

void
dcpd_flags_help(FILE *f)
{
	const struct dcpd_flag_def *d;
	char arg[128], text[600];
	size_t had;
	int n;

	fprintf(f, "usage: dcpd --model DIR [flags]\n"
	    "       dcpd --plan [-j] --model DIR|config.json [flags]\n\n"
	    "Serves a DSA model to the clients of --socket until SIGTERM.\n");
	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL) {
			fprintf(f, "\n%s\n", d->group);
			continue;
		}
		argument(d, arg, sizeof arg);
		describe(d, text, sizeof text);
		had = strlen(text);
		also(d, text + had, sizeof text - had);
		n = fprintf(f, "  --%s%s%s", d->name, arg[0] != '\0' ? " " : "",
		    arg);
		if (n > 28)
			n = fprintf(f, "\n") - 1;
		fprintf(f, "%*s", 30 - n, "");
		wrapped(f, text, 30, 30);
	}
	fprintf(f, "\nExit code: 0 ended as asked, 1 failed, 78 the "
	    "configuration is wrong (the last\nline says what and where). "
	    "More in dcpd(8).\n");
}

/* roff: a '-' of a flag is \-, a leading dot or quote is protected. */
static void
roff(FILE *f, const char *s)
{
	if (*s == '.' || *s == '\'')
		fputs("\\&", f);
	for (; *s != '\0'; s++) {
		if (*s == '-')
			fputs("\\-", f);
		else if (*s == '\\')
			fputs("\\e", f);
		else
			fputc(*s, f);
	}
}

/* What stands behind the key in the file. */
static void
json_value(const struct dcpd_flag_def *d, char *buf, size_t cap)
{
	char arg[128];

	argument(d, arg, sizeof arg);
	switch (d->type) {
	case DCPD_TYPE_STR:
	case DCPD_TYPE_ENUM:
		snprintf(buf, cap, "\"%s\"", arg);
		break;
	case DCPD_TYPE_BYTES:
		snprintf(buf, cap, "N or \"NMiB\"");
		break;
	case DCPD_TYPE_BOOL:
		snprintf(buf, cap, "true|false");
		break;
	case DCPD_TYPE_MODE:
		snprintf(buf, cap, "\"0660\"");
		break;
	default:
		snprintf(buf, cap, "%s", d->legal);
	}
}

void
dcpd_flags_conf(FILE *f)
{
	const struct dcpd_flag_def *d, *title = NULL;
	char value[160], text[400];

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL)
			title = d;
		if (d->name == NULL || d->kind == DCPD_KIND_REFUSE ||
		    !dcpd_flag_in_file(d))
			continue;
		if (title != NULL)
			fprintf(f, ".SS %s\n", title->group);
		title = NULL;
		json_value(d, value, sizeof value);
		describe(d, text, sizeof text);
		fputs(".TP\n.BR ", f);
		roff(f, d->name);
		fputs(": \\fR", f);
		for (char *c = value; *c != '\0'; c++)
			if (*c == '"')
				fputs("\\(dq", f);
			else
				roff(f, (char[]){ *c, '\0' });
		fputc('\n', f);
		roff(f, text);
		fputc('\n', f);
		if (dcpd_flag_runtime(d))
			fprintf(f, ".br\nA reload changes it%s.\n",
			    d->type == DCPD_TYPE_STR ? " if its plugin can" :
			    "");
	}
}

void
dcpd_flags_man(FILE *f)
{
	const struct dcpd_flag_def *d;
	char arg[128], text[400], all[200], *alias, *save;

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL) {
			fprintf(f, ".SS %s\n", d->group);
			continue;
		}
		argument(d, arg, sizeof arg);
		describe(d, text, sizeof text);
		fputs(".TP\n.BR ", f);
		roff(f, "--");
		roff(f, d->name);
		if (arg[0] != '\0') {
			fputs(" \" \" \\fI", f);
			roff(f, arg);
			fputs("\\fR", f);
		}
		fputc('\n', f);
		roff(f, text);
		fputc('\n', f);
		snprintf(all, sizeof all, "%s", d->aliases);
		for (alias = strtok_r(all, "|", &save); alias != NULL;
		    alias = strtok_r(NULL, "|", &save)) {
			fputs(alias == all ? ".br\nAlso " : "and ", f);
			roff(f, strlen(alias) == 1 ? "-" : "--");
			roff(f, alias);
			fputs(save != NULL && *save != '\0' ? "\n" : ".\n", f);
		}
	}
}
