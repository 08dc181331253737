/*
 * libdcpclient: submit requests to dcpd and receive their tokens.
 *
 * Functions return 0 or -errno and leave outputs untouched on failure. A
 * struct dcp may be used by several threads at once; see libdcpclient(3).
 * Structs begin with their size: zero them, set .size = sizeof, fill what you
 * need; zero means the default unless a comment says otherwise.
 */
#ifndef DCPCLIENT_H
#define DCPCLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_API_MAJOR 1
#define DCP_API_MINOR 0

struct dcp;				/* one connection */

/* What a request's input is. */
enum {
	DCP_INPUT_TEXT = 1,	/* UTF-8 prompt, as it is */
	DCP_INPUT_CHAT = 2,	/* JSON array of messages, OpenAI form */
	DCP_INPUT_TOKENS = 3,	/* uint32_t ids, host order */
};

/* struct dcp_request.flags */
enum {
	DCP_IGNORE_EOS = 1 << 0,	/* only max_tokens ends it */
	DCP_LOGPROBS = 1 << 1,		/* logprob of each token */
	DCP_ECHO = 1 << 2,		/* with LOGPROBS: the prompt's too */
	DCP_SPECIAL_TOKENS = 1 << 3,	/* special tokens stay in the text, no
					   reasoning or tool parsing: all text
					   is DCP_CH_CONTENT */
	DCP_PLAIN_INPUT = 1 << 4,	/* "<|user|>" in the input's text (of
					   messages) stays text */
	DCP_SEED = 1 << 5,		/* .seed counts; else one is drawn */
	DCP_TEMPERATURE = 1 << 6,	/* .temperature counts; else the model's
					   default (greedy if it has none) */
	DCP_TOKENIZE = 1 << 7,		/* nothing runs: the prompt's tokens and
					   their text come on DCP_CH_PROMPT, its
					   length in DONE's usage; data may be
					   empty; special tokens are part of the
					   text with DCP_SPECIAL_TOKENS */
	DCP_BEGIN = 1 << 8,		/* DCP_EV_BEGIN comes first */
	DCP_FIT = 1 << 9,		/* more max_tokens than there is room
					   for is no error, but all of it */
};

struct dcp_logit_bias {
	uint32_t token;
	float bias;			/* added to the logit */
};

struct dcp_request {
	uint32_t size;			/* sizeof(struct dcp_request) */
	uint32_t input;			/* DCP_INPUT_* */
	uint32_t flags;
	uint32_t max_tokens;		/* 0: to the end of the context */
	const void *data;		/* the input */
	size_t len;			/* its bytes */
	uint64_t user_data;		/* comes back with every event */
	/* sampling */
	float temperature;		/* 0 = greedy; needs DCP_TEMPERATURE */
	float top_p;			/* 0 or 1 = off */
	float min_p;			/* 0 = off */
	float repetition_penalty;	/* 0 or 1 = off */
	float presence_penalty, frequency_penalty;
	int32_t top_k;			/* 0 or -1 = off */
	uint32_t min_tokens;		/* end tokens, stop ids and stop strings
					   end nothing before */
	uint32_t top_logprobs;		/* per token; needs DCP_LOGPROBS */
	int32_t priority;		/* higher first; 0 usual; above it only
					   root and the daemon's user */
	uint64_t seed;
	uint32_t deadline_ms;		/* 0 = none; from submit to the end */
	uint32_t n_stop, n_stop_ids, n_logit_bias;
	const char *const *stop;	/* UTF-8 strings; never in the answer */
	const uint32_t *stop_ids;
	const struct dcp_logit_bias *logit_bias;
	/*
	 * NULL, or a JSON object with what only chat needs: "tools",
	 * "tool_choice", "parallel_tool_calls" (false: at most one),
	 * "response_format", "chat_template_kwargs" {"enable_thinking",
	 * "clear_thinking", "reasoning_effort"}, "cache_salt". Unknown keys
	 * are ignored.
	 */
	const char *options;
};

/* struct dcp_event.type */
enum {
	DCP_EV_DELTA = 1,	/* text and tokens */
	DCP_EV_DONE = 2,	/* last event of a request: finish, usage */
	DCP_EV_ERROR = 3,	/* last event of a request: error, text */
	DCP_EV_BEGIN = 4,	/* DCP_BEGIN: it is good and waits for its turn;
				   usage.prompt_tokens */
};

enum {
	DCP_CH_CONTENT = 0,
	DCP_CH_REASONING = 1,
	DCP_CH_TOOL_NAME = 2,	/* begins a call; .call counts from 0 */
	DCP_CH_TOOL_ARGS = 3,	/* JSON text of the arguments, in pieces */
	DCP_CH_PROMPT = 4,	/* DCP_ECHO: prompt tokens and logprobs;
				   DCP_TOKENIZE: prompt tokens */
};

enum {
	DCP_FINISH_NONE = 0,
	DCP_FINISH_STOP = 1,	/* end token, stop id or stop string */
	DCP_FINISH_LENGTH = 2,
	DCP_FINISH_TOOL_CALLS = 3,
	DCP_FINISH_ABORT = 4,	/* cancelled, or past its deadline */
};

struct dcp_logprob {
	uint32_t token;
	float logprob;		/* natural log */
};

/* logprob of one token, and the best top_logprobs alternatives */
struct dcp_token_logprobs {
	struct dcp_logprob chosen;
	uint32_t n_top;
	const struct dcp_logprob *top;	/* best first */
};

struct dcp_usage {
	uint32_t prompt_tokens, cached_tokens;
	uint32_t completion_tokens, reasoning_tokens;
};

/* Pointers are valid until the event is released. */
struct dcp_event {
	uint32_t size;
	uint32_t type;			/* DCP_EV_* */
	uint64_t request;		/* id that dcp_submit gave */
	uint64_t user_data;
	uint64_t seq;			/* counts a request's events from 0 */
	uint32_t channel;		/* DCP_CH_* */
	uint32_t call;			/* which tool call; with DONE: which
					   of the stop strings ended it, counted
					   from 1, or 0 */
	const char *text;		/* complete UTF-8, NUL after it; may be
					   empty while tokens are held back */
	size_t text_len;
	const uint32_t *tokens;
	uint32_t n_tokens;
	uint32_t n_logprobs;		/* 0, or n_tokens */
	const struct dcp_token_logprobs *logprobs;
	uint32_t finish;		/* DCP_FINISH_*, with DONE */
	int32_t error;			/* -errno, with ERROR; text says why */
	struct dcp_usage usage;		/* with DONE, ERROR and BEGIN */
};

/*
 * Connect to the daemon's socket; NULL: $DCPD_SOCKET, else /run/dcpd/dcpd.sock.
 * Waits timeout_ms at most (-1: for ever). -ECONNREFUSED, -ENOENT: not running;
 * -EACCES: not in its group; -EPROTO: another major version.
 */
int dcp_connect(const char *path, int timeout_ms, struct dcp **out);

/*
 * Hand over one request; it is copied. *id names it from now on: it ends with
 * exactly one DONE or ERROR event. -EINVAL: a field is wrong (dcp_error_text);
 * -EAGAIN: ring or quota is full, take events first; -EMSGSIZE: larger than
 * the ring's arena; -EPIPE: the daemon is gone.
 */
int dcp_submit(struct dcp *, const struct dcp_request *, uint64_t *id);

/* Ask for the end; DONE with DCP_FINISH_ABORT follows. -ENOENT: not running. */
int dcp_cancel(struct dcp *, uint64_t id);

/* Readable when an event may wait; for poll(2). Owned by the library. */
int dcp_fd(struct dcp *);

/*
 * The next event, from any request. timeout_ms 0 looks only, -1 waits.
 * -EAGAIN: none in time; -EPIPE: the daemon is gone.
 */
int dcp_next(struct dcp *, int timeout_ms, const struct dcp_event **ev);
void dcp_event_release(struct dcp *, const struct dcp_event *ev);

/* What the daemon serves: a JSON object, to be freed with free(). */
int dcp_server_info(struct dcp *, char **json);

/* Why this thread's last call failed, one line; "" if it did not say. */
const char *dcp_error_text(void);

/* Requests still running are cancelled. */
void dcp_close(struct dcp *);

const char *dcp_version(void);

#ifdef __cplusplus
}
#endif
#endif
