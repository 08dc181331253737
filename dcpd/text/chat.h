/*
 * Inside of the chat templates. chat.c reads and checks a request into
 * struct chat; chat_glm.c and chat_dsv32.c write it in a model's format.
 */
#ifndef DCPD_TEXT_CHAT_H
#define DCPD_TEXT_CHAT_H

#include "dcpd/text/buf.h"
#include "dcpd/text/text.h"
#include "dcpd/text/tok.h"

enum chat_role {
	ROLE_SYSTEM, ROLE_DEVELOPER, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL,
};

struct chat_str {			/* not NUL-terminated */
	const char *s;
	size_t n;
};

struct chat_call {
	const char *name;
	json_t *args;			/* an object; ours */
};

struct chat_msg {
	enum chat_role role;
	struct dcpd_buf content;	/* parts of a list, joined */
	bool has_reasoning;
	struct chat_str reasoning;
	struct chat_call *calls;
	size_t n_calls;
	const json_t *tools, *response_format;	/* of this message, or NULL */
};

struct chat {
	enum dcpd_chat kind;
	struct chat_msg *msg;
	size_t n;
	size_t last_user;		/* SIZE_MAX: none */
	size_t caller;			/* DSML: message with the calls whose
					   results are being written */
	/* options */
	const json_t *tools;		/* not empty, or NULL */
	const json_t *response_format;	/* or NULL */
	bool thinking;
	bool clear_thinking;		/* drop reasoning of earlier turns */
	const char *effort;		/* or NULL */
	/* result */
	struct dcpd_buf text;
	struct tok_span *plain;		/* what the client wrote, in text */
	size_t n_plain, cap_plain;
	bool open_reasoning;		/* the text ends inside reasoning */
	struct dcpd_err *err;
};

/* Template text, and text that came from the client. */
void chat_lit(struct chat *, const char *);
void chat_own(struct chat *, const char *s, size_t n);
void chat_own_json(struct chat *, const json_t *);

/* str.strip() */
struct chat_str chat_strip(struct chat_str);
/* A call's argument: strings as they are, the rest as JSON. */
void chat_own_value(struct chat *, const json_t *);

int chat_glm(struct chat *);
int chat_dsv32(struct chat *);

#endif
