/*
 * The inner agreement of the HTTP front end. One thread runs all of it: one
 * event loop, no locks, nothing that blocks.
 *
 *   server.c     sockets, limits, deadlines: the only file that calls evhttp
 *   scan.c       a request's framing, followed beside evhttp
 *   words.c      what evhttp says itself, in the API's form
 *   call.c       one exchange: body, JSON, reply, error, server-sent events
 *   routes.c     the table of paths
 *   fields.c     a body's fields -> struct params, types checked
 *   engine.c     the connection to the engine: requests and their events
 *   generate.c   submit, back-pressure, cancel, errors; the same for all APIs
 *   bound.c      the memory of answers that are no streams
 *   gen_text.c   what a choice gathers: text, tool calls, logprobs
 *   chat.c completions.c responses.c messages.c    one API each: a gen_style
 *
 * A handler gets a call and owes it exactly one answer, now or later: either
 * call_reply*() or call_error(), or call_sse_begin(), call_sse()... and
 * call_sse_end(). Until then the call is valid, even if the client leaves: then
 * ops->gone says so, what is written goes nowhere, and the handler ends it all
 * the same. After the answer the call is gone.
 */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <syslog.h>

#include "libdcpclient/dcp_plugin.h"
#include "libdcpclient/dcpclient.h"

#define HTTP_HEAD_MAX (16u << 10)	/* bytes of a request's head */
#define HTTP_BODY_MAX (32u << 20)	/* bytes of its body */
#define HTTP_OUTPUT_STOP (256u << 10)	/* bytes unread: nothing is added */
#define HTTP_RETRY_AFTER 1		/* seconds, with 503 */

struct event_base;
struct server;
struct engine;
struct evbuffer;
struct call;
struct gen;

/* --- the plugin -------------------------------------------------------- */

/* The plugin's part of the configuration; settings.c has the keys. */
struct http_config {
	char **listen;			/* HOST:PORT, unix:PATH, systemd */
	size_t n_listen;
	char **api_key;			/* any of them lets in */
	size_t n_api_key;		/* 0: no key is asked for */
	char *cors_origin;		/* NULL: off; "*" or one origin */
	char *served_model_name;	/* NULL: the daemon's model name */
	uint32_t max_connections;
	uint64_t max_input;		/* bytes of requests in memory */
	uint64_t max_answers;		/* of answers that are gathered */
	double head_timeout;		/* s, a head from its first byte */
	double idle_timeout;		/* s, between requests or body bytes */
	double stuck_timeout;		/* s, with nothing taken of an answer */
	bool metrics_compat;		/* names of other engines' dashboards */
};

struct http {
	const struct dcp_host *host;
	struct http_config cfg;
	struct event_base *base;
	struct server *server;
	struct engine *engine;
	struct live *live;		/* live.c: those who watch the page */
	int64_t t_start;		/* seconds since 1970 */
	uint64_t answers;	/* bytes that max_answers bounds: gathered, or
				   whole and on their way out */
	bool bounding;		/* gen_bound looks already */
};

void http_log(const struct http *, int priority, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* A growing string; {0} is empty, .s has a NUL behind it or is NULL. */
struct text {
	char *s;
	size_t len, cap;
};
int text_add(struct text *, const char *s, size_t len);	/* 0, -ENOMEM */
void text_free(struct text *);			/* and empties it */
/* prefix and 24 random hex digits, as far as they fit */
void random_id(char *to, size_t cap, const char *prefix);
json_t *text_json(const struct text *);		/* a JSON string, "" if empty */

/* --- one exchange ------------------------------------------------------ */

/* What an API's error looks like; code and param may be NULL. */
typedef json_t *error_form(int status, const char *type, const char *param,
    const char *code, const char *message);
error_form openai_error;	/* {"error": {message, type, param, code}} */

struct call_ops {
	/* The client is gone, or takes nothing: stop the work. */
	void (*gone)(void *arg);
	/* Less than HTTP_OUTPUT_STOP waits again. May be NULL. */
	void (*room)(void *arg);
};
/* Before the handler returns, if the answer comes later. */
void call_watch(struct call *, const struct call_ops *, void *arg);

struct http *call_http(const struct call *);
const char *call_path(const struct call *);	/* decoded, without query */
const char *call_rest(const struct call *);	/* ROUTE_PREFIX: behind it */
const char *call_header(const struct call *, const char *name);
const char *call_query(struct call *, const char *key);	/* NULL: not there */
const char *call_body(const struct call *, size_t *len);
/*
 * The body, a JSON object, borrowed until the answer or call_forget_body. NULL:
 * 400 is out.
 */
json_t *call_json(struct call *);
/* Nobody asks for it any more: many times its text's bytes become free. */
void call_forget_body(struct call *);

void call_reply(struct call *, int status, const char *content_type,
    const char *body, size_t len);
void call_reply_json(struct call *, int status, json_t *steals);
/* 503 where there is none. */
void call_reply_buffer(struct call *, int status, const char *content_type,
    struct evbuffer *steals);
/* A header more; before the answer. Values are ours, never a client's. */
void call_set_header(struct call *, const char *name, const char *value);
/* In the API's form; type by the status. 503 gets Retry-After. */
void call_error(struct call *, int status, const char *param,
    const char *code, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* 503, as another moment may have it; -ENOMEM. */
int call_no_memory(struct call *);
/* call_error's as JSON, for an event in mid-stream. */
json_t *call_error_json(const struct call *, int status, const char *param,
    const char *code, const char *message);

/* Head and an empty line, and one after each 5 s of silence. */
void call_sse_begin(struct call *);
/* event may be NULL (no "event:" line). */
void call_sse(struct call *, const char *event, json_t *steals);
void call_sse_text(struct call *, const char *data);	/* "[DONE]" */
void call_sse_end(struct call *);
size_t call_unread(const struct call *);	/* bytes that still wait */
bool call_is_gone(const struct call *);

/* --- routes ------------------------------------------------------------ */

enum {
	ROUTE_PUBLIC = 1 << 0,	/* no API key */
	ROUTE_PREFIX = 1 << 1,	/* the path ends in '/', more may follow */
	ROUTE_STREAM = 1 << 2,	/* has no end: nothing but its head to HEAD */
};

struct route {
	const char *method;	/* GET (HEAD too) or POST */
	const char *path;
	unsigned flags;
	void (*fn)(struct call *);
	error_form *error;
};
extern const struct route routes[];	/* ends with .method NULL */

/* --- the engine -------------------------------------------------------- */

/* One request to the engine; embed it. */
struct ereq {
	/* Each event; with DONE or ERROR, the last, r is yours again. */
	void (*event)(struct ereq *r, const struct dcp_event *);
	/* engine.c's */
	uint64_t id;
	TAILQ_ENTRY(ereq) link;
};

/*
 * dcp_submit; *why is valid until the next call. -EAGAIN: the ring is full,
 * engine_wait() and try again. -ENOTCONN: not ready (loading, or gone).
 */
int engine_submit(struct engine *, struct ereq *, struct dcp_request *,
    const char **why);
void engine_cancel(struct engine *, struct ereq *);

/* What dcp_server_info says; NULL until the engine is ready. */
const json_t *engine_info(const struct engine *);
const char *engine_model(const struct engine *);	/* served name */
uint32_t engine_context(const struct engine *);	/* tokens; 0: not ready */
/* False, and 503 is out, while the engine takes nothing. */
bool engine_is_ready(struct engine *, struct call *);
/* The status, code and text of an error event's or engine_submit's errno. */
int engine_error_status(int error, const char **code);
/* The field of chat or completions that such a text is about, or NULL. */
const char *engine_error_field(const char *message);

/* Appends the bytes of one token; "token_id:N" where there is no tokenizer. */
int engine_token(const struct engine *, uint32_t id, struct text *to);
/* They as a JSON string; "bytes:\\xNN..." of what is no whole UTF-8. */
json_t *engine_bytes_json(const struct text *);
json_t *engine_token_json(const struct engine *, uint32_t id);

/* --- fields of a body -------------------------------------------------- */

/*
 * What a body says: a dcp_request, whose pointers lead into this struct or into
 * the call's JSON, and options for it. Fill with params_parse, add what is the
 * API's own, give it to gen_start, which takes it over.
 */
struct params {
	struct dcp_request r;		/* input and data are the API's */
	json_t *options;		/* object; r.options is made of it */
	bool stream, include_usage, continuous_usage;
	uint32_t n;			/* choices of each prompt, 1..128 */
	const char **stop;
	uint32_t *stop_ids;
	struct dcp_logit_bias *bias;
	const char *rid;		/* in the body; NULL: none */
};

/*
 * temperature, top_p, top_k, min_p, penalties, logit_bias, seed, n, stop,
 * stop_token_ids, min_tokens, ignore_eos, stream, stream_options, priority,
 * skip_special_tokens, cache_salt, rid or request_id, and max_tokens under the
 * names given (the first that is there; NULL-ended). -EINVAL: 400 is out. null
 * is as absent.
 */
int params_parse(struct call *, const json_t *body,
    const char *const *max_tokens_names, struct params *out);
void params_free(struct params *);
/* Copy a member into options under the same name unless absent or null. */
int params_option(struct params *, const json_t *body, const char *key);

/*
 * chat's and completions' response_format into the options, also by the names
 * that other engines have for it, and what cannot be kept refused: -EINVAL,
 * the answer is out.
 */
int params_format(struct call *, const json_t *body, struct params *);
/* -EINVAL: chat_template_kwargs has what no template knows; 400 is out. */
int params_template(struct call *, const json_t *body);

/*
 * One field, for an API's own ones. Absent or null: *out stays, 0. 1: it is
 * there. -EINVAL: 400 that names it is out.
 */
int field_bool(struct call *, const json_t *body, const char *key, bool *out);
int field_int(struct call *, const json_t *body, const char *key, int64_t min,
    int64_t max, int64_t *out);
int field_number(struct call *, const json_t *body, const char *key,
    double min, double max, double *out);
/* Text, which may hold U+0000; field_string: which may not. */
int field_text(struct call *, const json_t *body, const char *key,
    const json_t **out);
int field_string(struct call *, const json_t *body, const char *key,
    const char **out);
/* An object or an array of the body: wants JSON_OBJECT or JSON_ARRAY. */
int field_json(struct call *, const json_t *body, const char *key,
    json_type wants, json_t **out);

/* --- generation -------------------------------------------------------- */

struct gen_token {		/* with DCP_LOGPROBS */
	uint32_t id;
	float logprob;		/* NaN: the prompt's first */
	uint32_t n_top;
	struct dcp_logprob *top;	/* best first */
};

struct gen_tokens {
	struct gen_token *v;
	size_t n, cap;
};

struct gen_call {		/* one tool call */
	char id[32];		/* "call_..." */
	struct text name, args;
};

#define GEN_LISTS 4

/* One answer. Text is gathered unless it streams. */
struct choice {
	struct ereq ereq;		/* generate.c's; the first member */
	struct gen *gen;
	uint32_t index;		/* prompt * n + which of the n */
	struct text prompt;	/* with DCP_ECHO */
	struct text reasoning, content;
	struct gen_call *calls;
	uint32_t n_calls;
	struct text probs[GEN_LISTS];	/* gen_prob's, a comma behind each */
	uint32_t finish;	/* DCP_FINISH_*; NONE: it still runs */
	uint32_t stop;		/* the stop string that ended it, from 1 */
	struct dcp_usage usage;	/* so far; .cached_tokens at the end */
	void *arg;		/* the API's own; freed with free() */
	/* generate.c's */
	bool ended, said;		/* its last event came; choice_end */
	TAILQ_HEAD(helds, held) held;	/* deltas that wait for the reader */
};

/* A piece of a choice, in a stream. */
struct gen_delta {
	uint32_t channel;	/* DCP_CH_* */
	const struct gen_call *call;	/* of TOOL_NAME and TOOL_ARGS */
	uint32_t call_index;
	bool call_begins;	/* TOOL_NAME: the first piece of this call */
	const char *text;	/* complete UTF-8, NUL behind it */
	size_t len;
	const struct gen_token *tokens;	/* with DCP_LOGPROBS, n_tokens */
	uint32_t n_tokens;
};

enum {
	GEN_BODY = 1 << 0,	/* call_json is asked for until the end */
	GEN_FIELDS = 1 << 1,	/* its fields have the engine's names */
};

/* How an API tells it. Functions may be NULL, but for whole. */
struct gen_style {
	unsigned flags;		/* GEN_* */
	const char *id_prefix;	/* "chatcmpl-" */
	/* Streams: all prompts are good and wait, the SSE head is out. */
	void (*begin)(struct gen *);
	void (*delta)(struct gen *, struct choice *, const struct gen_delta *);
	/* A choice is over: .finish, .usage. */
	void (*choice_end)(struct gen *, struct choice *);
	/* All are: closing events. The stream is ended by the caller. */
	void (*end)(struct gen *);
	/* In mid-stream; NULL: data: {"error":...} and [DONE]. */
	void (*failed)(struct gen *, int status, const char *code,
	    const char *message);
	/*
	 * Not a stream: tokens of a channel with their logprobs, by gen_prob as
	 * they come, since to write a hundred thousand at the end would hold up
	 * everybody else. -ENOMEM.
	 */
	int (*probs)(struct choice *, uint32_t channel,
	    const struct gen_token *, size_t n);
	/* Not a stream: the answer, with gen_probs for what these are in. */
	json_t *(*whole)(struct gen *);
	void (*free)(void *arg);
};

struct gen {
	struct call *call;
	const struct gen_style *style;
	struct params p;
	void *arg;			/* the API's own */
	char id[48];
	char *rid;			/* the client's, of the body; or NULL */
	char mark[32];			/* gen_probs's: nobody can know it */
	int64_t created;		/* seconds since 1970 */
	char *model;			/* served name */
	struct choice *choice;
	uint32_t n_choices, n_prompts;
	/* generate.c's */
	struct engine *engine;
	struct gen_input *input;	/* until all are submitted */
	char *options;
	uint32_t n_sent, n_begun, n_ended, n_live;
	bool opened;			/* the SSE head is out */
	bool finished;			/* answered; events are dropped */
	double t_start;
	size_t held_bytes;
	uint64_t gathered;		/* bytes */
	TAILQ_ENTRY(gen) link;
};

/*
 * Takes over params (also on failure) and arg. Answers in every case: 503
 * while the model loads or the queue is full, 400 if the request is refused.
 * prompts: n_prompts pieces of params' input kind, copied; NULL: the one in
 * p->r.data.
 */
struct gen_prompt {
	const void *data;
	size_t len;			/* bytes */
};
void gen_start(struct call *, const struct gen_style *, struct params *,
    const struct gen_prompt *prompts, uint32_t n_prompts, void *arg);

/* While answers take more than max_answers the largest ends. */
void gen_bound(struct http *);

/* One more of a list of a choice, as text; the value is stolen. -ENOMEM. */
int gen_prob(struct choice *, uint32_t list, json_t *);
/* What stands in an answer for that list. */
json_t *gen_probs(const struct choice *, uint32_t list);

const char *finish_name(uint32_t finish);	/* "stop", "length", ... */
/* Of all choices; the prompt of one prompt's choices counts once. */
struct dcp_usage gen_usage(const struct gen *);
json_t *usage_json(const struct dcp_usage *);	/* OpenAI's, with details */

/* Cancel the answers with this gen id; false: there is none. */
bool gen_abort(struct engine *, const char *id);
void gen_abort_all(struct engine *);

#endif
