/*
 * dcpctl: what its commands share. One thread; everything here ends up in an
 * exit code.
 */
#ifndef DCPCTL_CTL_H
#define DCPCTL_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "libdcpclient/dcpclient.h"

enum {
	CTL_OK = 0,
	CTL_FAILED = 1,
	CTL_USAGE = 2,
	CTL_NOT_RUNNING = 3,
	CTL_DEGRADED = 4,	/* runs, but is loading, draining or stuck */
};

/* --- options ------------------------------------------------------------- */

enum ctl_type {
	CTL_FLAG, CTL_STR, CTL_U32, CTL_I32, CTL_U64, CTL_F32, CTL_F64,
	CTL_MANY,
};

struct ctl_list {		/* CTL_MANY: given several times */
	const char **v;
	uint32_t n;
};

struct ctl_opt {		/* ends with name = NULL */
	const char *name;
	char letter;		/* 0: none */
	enum ctl_type type;
	void *p;		/* bool, char *, number, ctl_list */
	const char *arg, *help;
	bool *given;		/* or NULL */
};

struct ctl_common {		/* options of every command */
	const char *socket, *admin_socket;
	bool json, help;
};
extern struct ctl_common ctl;
extern const struct ctl_opt ctl_common_options[];

/*
 * argv[0] is the command. What is no option goes to rest (NULL: none is
 * allowed). 0, or CTL_USAGE after a message; -1: help was printed.
 */
int ctl_parse(int argc, char **argv, const struct ctl_opt *, const char *usage,
    struct ctl_list *rest);
void ctl_print_options(const struct ctl_opt *);

/* One line to stderr, "dcpctl: ..."; returns code. */
int ctl_fail(int code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/*
 * Text of a model's or of a daemon's: on a terminal no control characters, which
 * would steer it; newlines and tabs are text.
 */
void ctl_put(FILE *, const char *, size_t);
/* So much of it on standard output, as printf() says it. */
void ctl_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ctl_print_json(json_t *);	/* takes it; on a terminal as ASCII */
/* Scalars as "key value" lines, in their order. */
void ctl_print_scalars(const json_t *);

/* --- the daemon ---------------------------------------------------------- */

const char *ctl_socket(void);	/* --socket, $DCPD_SOCKET, the default */

/*
 * One admin command; *result is a new reference. CTL_OK, or the exit code
 * after a message (quiet: without one).
 */
int ctl_admin(json_t *request, bool quiet, json_t **result);
/*
 * `status`, from the stats page if the daemon does not answer in seconds; there
 * is none to look at where --admin-socket alone is given.
 */
int ctl_ask_status(bool quiet, json_t **result);
/*
 * A status from the stats page, for when the daemon does not answer: NULL and
 * CTL_NOT_RUNNING if no daemon lives that would; quiet: no message.
 */
int ctl_stats(bool quiet, json_t **status);
/* Connect to the ring; CTL_OK, or the exit code after a message. */
int ctl_connect(struct dcp **);

/* --- requests ------------------------------------------------------------ */

/* Sampling options of generate and chat; fills a struct dcp_request. */
struct ctl_sampling {
	uint32_t max_tokens, min_tokens, top_logprobs, deadline_ms;
	float temperature, top_p, min_p, repetition, presence, frequency;
	int32_t top_k, priority;
	uint64_t seed;
	bool has_temperature, has_seed, ignore_eos, logprobs;
	const char *stop_ids, *logit_bias, *format;
	struct ctl_list stop;
	/* parsed from the lists */
	uint32_t *ids, n_ids;
	struct dcp_logit_bias *bias;
	uint32_t n_bias;
};
#define CTL_SAMPLING_OPTIONS(s) \
	{ "max-tokens", 'n', CTL_U32, &(s).max_tokens, "N", \
	  "tokens to generate; 0: to the end of the context", NULL }, \
	{ "min-tokens", 0, CTL_U32, &(s).min_tokens, "N", \
	  "no end before so many", NULL }, \
	{ "temperature", 't', CTL_F32, &(s).temperature, "T", \
	  "0 is greedy; default: the model's", &(s).has_temperature }, \
	{ "top-p", 0, CTL_F32, &(s).top_p, "P", "nucleus", NULL }, \
	{ "top-k", 0, CTL_I32, &(s).top_k, "K", "best K only", NULL }, \
	{ "min-p", 0, CTL_F32, &(s).min_p, "P", \
	  "at least P times the best", NULL }, \
	{ "repetition-penalty", 0, CTL_F32, &(s).repetition, "X", \
	  "1 is off", NULL }, \
	{ "presence-penalty", 0, CTL_F32, &(s).presence, "X", \
	  "0 is off", NULL }, \
	{ "frequency-penalty", 0, CTL_F32, &(s).frequency, "X", \
	  "0 is off", NULL }, \
	{ "seed", 's', CTL_U64, &(s).seed, "N", "of this request", \
	  &(s).has_seed }, \
	{ "stop", 0, CTL_MANY, &(s).stop, "TEXT", \
	  "ends the answer; may be given again", NULL }, \
	{ "stop-token-ids", 0, CTL_STR, &(s).stop_ids, "1,2,3", \
	  "end the answer", NULL }, \
	{ "logit-bias", 0, CTL_STR, &(s).logit_bias, "ID:BIAS,...", \
	  "added to logits", NULL }, \
	{ "ignore-eos", 0, CTL_FLAG, &(s).ignore_eos, NULL, \
	  "only --max-tokens ends it", NULL }, \
	{ "logprobs", 0, CTL_FLAG, &(s).logprobs, NULL, \
	  "log probability of each token", NULL }, \
	{ "top-logprobs", 0, CTL_U32, &(s).top_logprobs, "K", \
	  "and of the K best", NULL }, \
	{ "response-format", 0, CTL_STR, &(s).format, "JSON", \
	  "OpenAI's: {\"type\": \"json_object\"}, or a schema", \
	  NULL }, \
	{ "priority", 0, CTL_I32, &(s).priority, "N", "higher first", NULL }, \
	{ "deadline-ms", 0, CTL_U32, &(s).deadline_ms, "MS", \
	  "cancelled after so long", NULL }

int ctl_sampling(struct ctl_sampling *, struct dcp_request *);
/* --response-format into a request's options, if it was given. */
int ctl_format(const struct ctl_sampling *, json_t *options);
void ctl_sampling_free(struct ctl_sampling *);
/* "1,2,3" (spaces allowed) as ids, malloc'd; CTL_USAGE after a message. */
int ctl_ids(const char *text, const char *flag, uint32_t **ids, uint32_t *n);
/* The whole of a file, "-" for standard input; malloc'd, NULL: errno. */
char *ctl_slurp(const char *path, size_t *len);
const char *ctl_finish_name(uint32_t finish);
json_t *ctl_usage_json(const struct dcp_usage *);

/*
 * Submit and give every event of the request to fn until the last one.
 * SIGINT cancels. CTL_OK, or the exit code after a message; an ERROR event is
 * such a message.
 */
typedef void ctl_event_fn(void *arg, const struct dcp_event *);
int ctl_run(struct dcp *, const struct dcp_request *, ctl_event_fn *,
    void *arg);

/* --- commands: argv[0] is the command's name ---------------------------- */

int ctl_status(int argc, char **argv);
int ctl_requests(int argc, char **argv);
int ctl_clients(int argc, char **argv);
int ctl_cancel(int argc, char **argv);
int ctl_drain(int argc, char **argv);
int ctl_reload(int argc, char **argv);
int ctl_resume(int argc, char **argv);
int ctl_check(int argc, char **argv);
int ctl_cache(int argc, char **argv);
int ctl_plugins(int argc, char **argv);
int ctl_config(int argc, char **argv);
int ctl_generate(int argc, char **argv);
int ctl_chat(int argc, char **argv);
int ctl_tokenize(int argc, char **argv);
int ctl_bench(int argc, char **argv);
int ctl_top(int argc, char **argv);
int ctl_plan(int argc, char **argv);
int ctl_version(int argc, char **argv);
int ctl_help(int argc, char **argv);
/* "tokens 120 of 4096" per rank, from a status object. */
void ctl_print_ranks(const json_t *status);

#endif
