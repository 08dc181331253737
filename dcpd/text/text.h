/*
 * Text work: BPE, chat templates, and the way out (detokeniser, stop strings,
 * reasoning and tool-call parser). Runs in the worker pool, never on the
 * intake or step thread. A tokenizer is immutable once open: any thread.
 */
#ifndef DCPD_TEXT_H
#define DCPD_TEXT_H

#include <jansson.h>

#include "dcpd/base/base.h"
#include "libdcpclient/dcpclient.h"

struct dcpd_tokenizer;

struct dcpd_ids {		/* growing array of token ids; {0} is empty */
	uint32_t *v;
	size_t n, cap;
};
int dcpd_ids_push(struct dcpd_ids *, uint32_t id);	/* 0, -ENOMEM */
void dcpd_ids_free(struct dcpd_ids *);

/* tokenizer.json of a model folder. -ENOENT if the folder has none. */
int dcpd_tokenizer_open(const char *dir, struct dcpd_tokenizer **,
    struct dcpd_err *);
void dcpd_tokenizer_close(struct dcpd_tokenizer *);

enum {
	DCPD_PLAIN = 1,		/* added tokens are not recognised: all text */
};
/*
 * -EILSEQ: not UTF-8 (err says at which byte); -E2BIG: above max ids; -EINVAL:
 * too long without a break (err says where). out is as it was on failure.
 */
int dcpd_encode(const struct dcpd_tokenizer *, const char *s, size_t len,
    unsigned flags, size_t max, struct dcpd_ids *out, struct dcpd_err *);

/* Id of an added token by its content, else of a plain one by its bytes; -1. */
int64_t dcpd_token_id(const struct dcpd_tokenizer *, const char *content);
/* Bytes of one token (not NUL-terminated); special: added with special=true. */
int dcpd_token_bytes(const struct dcpd_tokenizer *, uint32_t id,
    const char **bytes, size_t *len, bool *special);
/* Highest id + 1. */
uint32_t dcpd_token_limit(const struct dcpd_tokenizer *);
/* The whole of ids as UTF-8 with U+FFFD for what is broken; malloc'd. */
char *dcpd_decode(const struct dcpd_tokenizer *, const uint32_t *ids, size_t n,
    bool skip_special, size_t *len);

/* --- chat templates --------------------------------------------------- */

enum dcpd_chat {
	DCPD_CHAT_NONE, DCPD_CHAT_GLM45, DCPD_CHAT_GLM47 /* 4.7, 5, 5.1 */,
	DCPD_CHAT_GLM52, DCPD_CHAT_GLM53, DCPD_CHAT_DSV32,
};
/* By name ("glm45", "glm47", "glm5", "glm52", "glm53", "deepseek_v32"). */
int dcpd_chat_by_name(const char *, enum dcpd_chat *);
/* From model_type, the added tokens and what the folder says. */
enum dcpd_chat dcpd_chat_guess(const char *model_type,
    const struct dcpd_tokenizer *);

/*
 * messages: OpenAI array. options: the request's options object or NULL.
 * *thinking: the prompt ends inside a reasoning part. Message text is encoded
 * without added tokens if flags has DCPD_PLAIN.
 */
int dcpd_chat_encode(const struct dcpd_tokenizer *, enum dcpd_chat,
    const json_t *messages, const json_t *options, unsigned flags, size_t max,
    struct dcpd_ids *out, bool *thinking, struct dcpd_err *);
/* The same as text, for tests and `dcpctl`; malloc'd. */
char *dcpd_chat_render(enum dcpd_chat, const json_t *messages,
    const json_t *options, bool *thinking, struct dcpd_err *);

/* --- the way out: one incremental parser over token ids ---------------- */

enum dcpd_parser {		/* --reasoning-parser + --tool-call-parser */
	DCPD_PARSE_RAW,		/* everything is content */
	DCPD_PARSE_GLM, DCPD_PARSE_DSV32,
};

struct dcpd_out;	/* one request's output state; one thread at a time */

struct dcpd_out_config {
	enum dcpd_parser parser;
	bool thinking;		/* begins inside reasoning */
	bool special;		/* special tokens are shown (implies RAW) */
	const json_t *tools;	/* for typed arguments; borrowed, or NULL */
	bool one_call;		/* the answer ends with its first call */
	char *const *stop;	/* stop strings: match in content only (raw:
				   everywhere), never shown, never over-held */
	uint32_t n_stop;
	uint32_t min_tokens;	/* none ends in the text of the first so many */
};

/* A piece of output: complete UTF-8 text of one channel. */
typedef int dcpd_out_fn(void *arg, uint32_t channel /* DCP_CH_* */,
    uint32_t call, const char *text, size_t len);

int dcpd_out_new(const struct dcpd_tokenizer *, const struct dcpd_out_config *,
    struct dcpd_out **);
/*
 * One token in; fn is called for what can be shown now. 1: a stop string
 * matched or the only call is over, the request must end (text after it is
 * dropped); 0; -errno.
 */
int dcpd_out_push(struct dcpd_out *, uint32_t id, dcpd_out_fn *fn, void *arg);
/* The end: what was held back comes out. */
int dcpd_out_finish(struct dcpd_out *, dcpd_out_fn *fn, void *arg);
uint32_t dcpd_out_reasoning_tokens(const struct dcpd_out *);
uint32_t dcpd_out_calls(const struct dcpd_out *);	/* tool calls begun */
/* Which of the stop strings matched, counted from 1; 0: none. */
uint32_t dcpd_out_stop(const struct dcpd_out *);
void dcpd_out_free(struct dcpd_out *);

/* --- constrained decoding ---------------------------------------------- */

/* A vocabulary as a trie, and compiled grammars by their text. Any thread. */
struct dcpd_grams;
int dcpd_grams_new(const struct dcpd_tokenizer *, uint32_t vocab,
    const uint32_t *eos, uint32_t n_eos, struct dcpd_grams **);
void dcpd_grams_free(struct dcpd_grams *);

/* What one answer may be; one thread at a time. */
struct dcpd_gram;
/*
 * From the request's options ("response_format", "tool_choice", "tools", or
 * NULL). *out stays NULL where they constrain nothing. thinking: the answer
 * begins inside reasoning, which is free, and is constrained after </think>.
 * -EINVAL: err names the place in the schema; -ENOTSUP.
 */
int dcpd_gram_open(struct dcpd_grams *, const json_t *options,
    enum dcpd_parser, bool thinking, struct dcpd_gram **out,
    struct dcpd_err *);
void dcpd_gram_close(struct dcpd_gram *);
/* The token that ends reasoning, or UINT32_MAX: constrained from the start. */
uint32_t dcpd_gram_begins_after(const struct dcpd_gram *);
/* Token that must not come inside reasoning (a tool call), or UINT32_MAX. */
uint32_t dcpd_gram_bans(const struct dcpd_gram *);
/* The next token of the answer. -EPROTO: it was not allowed. */
int dcpd_gram_push(struct dcpd_gram *, uint32_t token);
/*
 * Bits of the tokens that may come next, [(vocab + 31) / 32] words; at least
 * one is set. 0; 1: all may, bits is untouched; -ENOMEM.
 */
int dcpd_gram_mask(struct dcpd_gram *, uint32_t *bits);

/* --- worker pool: fair per uid ---------------------------------------- */

struct dcpd_textpool;
struct dcpd_job {		/* embedded in the caller's object */
	struct dcpd_job *next;	/* owned by the pool while queued */
	uint32_t uid;		/* whose turn it takes; stays */
	void (*run)(struct dcpd_job *);
};
int dcpd_textpool_start(unsigned threads, struct dcpd_textpool **,
    struct dcpd_err *);
/* Any thread. Jobs of one uid run in order of posting, but may overlap. */
void dcpd_textpool_post(struct dcpd_textpool *, uint32_t uid,
    struct dcpd_job *);
/* A list of them, whose uids are set: one wake-up of who is idle. */
void dcpd_textpool_post_all(struct dcpd_textpool *, struct dcpd_job *first);
/* Runs what is queued; jobs may still post jobs meanwhile. */
void dcpd_textpool_stop(struct dcpd_textpool *);

#endif
