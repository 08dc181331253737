/*
 * Inside of the output parser. out.c turns tokens into text and marks and
 * owns what is held back; out_glm.c and out_dsml.c are the two tool-call
 * grammars; out_call.c writes a call's arguments as JSON.
 *
 *	tokens -> bytes -> characters -> text and marks -> state -> channel
 */
#ifndef DCPD_TEXT_OUT_H
#define DCPD_TEXT_OUT_H

#include "dcpd/text/buf.h"
#include "dcpd/text/text.h"

/* What divides the text. The first eight are tokens where there are such. */
enum out_mark {
	MARK_THINK, MARK_END_THINK, MARK_CALL, MARK_END_CALL,
	MARK_KEY, MARK_END_KEY, MARK_VALUE, MARK_END_VALUE,
	N_TOKEN_MARKS,
	MARK_CALLS = N_TOKEN_MARKS, MARK_END_CALLS,	/* DSML, over text */
	MARK_INVOKE, MARK_END_INVOKE, MARK_PARAM, MARK_END_PARAM,
};

struct out_tag {		/* a mark as it stood in the text */
	enum out_mark mark;
	const char *raw;
	size_t n;
	const char *name;	/* MARK_INVOKE, MARK_PARAM: name="..." */
	size_t name_n;
	bool string;		/* MARK_PARAM: string="true" */
};

enum out_state {
	ST_REASONING, ST_CONTENT,
	ST_NAME,		/* GLM: a call's name */
	ST_KEY,			/* GLM: an argument's name */
	ST_VALUE,		/* an argument's value */
	ST_GAP,			/* in a call, between arguments */
	ST_SECTION,		/* DSML: between calls */
};

struct dcpd_out {
	uint32_t magic;
	const struct dcpd_tokenizer *t;
	enum dcpd_parser parser;
	bool special;
	enum out_state state;
	bool stopped;			/* a stop string was found, or */
	bool one_call, enough;		/* the only call is over */
	uint32_t stopped_by;		/* which, from 0 */
	bool thought;			/* reasoning is more than space */
	bool after_call;		/* no content since the last call */
	uint32_t mark_id[N_TOKEN_MARKS];	/* or UINT32_MAX */
	bool text_mark[N_TOKEN_MARKS];	/* no such token: look in the text */
	bool scans;			/* any of those, or DSML */

	struct dcpd_buf tail;		/* begun character, < 4 bytes */
	struct dcpd_buf scan;		/* may become a mark */
	struct dcpd_buf space;		/* content's, may precede a call */
	struct dcpd_buf held;		/* content, may become a stop string */
	char **stop;
	size_t *stop_len;
	uint32_t n_stop;
	uint32_t pushed, min_tokens;
	size_t early;			/* of held: text of the first min_tokens
					   tokens, where no stop string ends */
	size_t space_early;		/* of space: the same */
	size_t scan_early;		/* of scan: the same */
	bool early_now;			/* so is what goes to the state */

	/* the call being read */
	const json_t *tools;
	struct dcpd_buf name, key, value;
	const json_t *params;		/* its schema, or NULL */
	bool open;			/* its name has been sent */
	bool raw_string;		/* the value is sent as it comes */
	unsigned types;			/* of a held value; see out_call.c */
	uint32_t n_args;

	uint32_t calls, reasoning_tokens;
	dcpd_out_fn *fn;		/* during a push */
	void *arg;
};

/* Everything returns 0, 1 (stopped) or -errno. */
int out_emit(struct dcpd_out *, uint32_t channel, const char *, size_t);
int out_text(struct dcpd_out *, const char *, size_t);	/* to the state */
int out_content(struct dcpd_out *, const char *, size_t);
/* Content ends here for now: what it held comes out, or is dropped. */
int out_content_end(struct dcpd_out *, bool call_follows);

int out_glm_mark(struct dcpd_out *, const struct out_tag *);
int out_dsml_mark(struct dcpd_out *, const struct out_tag *);
/*
 * Is there a DSML tag at s ("<" is there)? Its length with *tag filled; 0: it
 * may become one; -1: no.
 */
int out_dsml_tag(const char *s, size_t n, struct out_tag *tag);
int out_dsml_text(struct dcpd_out *, const char *, size_t);

int out_call_name(struct dcpd_out *);		/* .name is complete */
int out_value_begin(struct dcpd_out *);		/* .key is complete */
int out_value_begin_as(struct dcpd_out *, bool string);
int out_value_text(struct dcpd_out *, const char *, size_t);
int out_value_end(struct dcpd_out *);
int out_call_end(struct dcpd_out *);		/* from any state of a call */
/*
 * Where "#" or "#/..." leads within root: the grammar and the reader of what it
 * lets through must agree. -EINVAL: another form; -ENOENT: nowhere; -ENOMEM.
 */
int out_follow_ref(const json_t *root, const char *ref, const json_t **);
/* Is an argument a string by its tool's schema? key NULL: those not listed. */
bool out_arg_is_text(const json_t *parameters, const char *key);

#endif
