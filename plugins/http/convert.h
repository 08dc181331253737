/*
 * Messages in the form that the chat template reads, made from those of
 * another API. What one turn of the assistant says in several items (thinking,
 * text, calls) becomes one message, as the template writes it. The event
 * thread's.
 */
#ifndef HTTP_CONVERT_H
#define HTTP_CONVERT_H

#include "plugins/http/http.h"

struct convert {
	struct call *call;
	json_t *messages;	/* array */
	json_t *turn;		/* the assistant's, still open; borrowed */
	/* What it says so far; it gets them when it is closed. */
	struct text answer, reasoning;
	bool failed;		/* no memory; convert_end says so */
};

int convert_begin(struct convert *, struct call *);
void convert_free(struct convert *);

/* A message of system, developer or user; text may be "". */
void convert_say(struct convert *, const char *role, const struct text *);
/* Parts of the assistant's turn. */
void convert_answer(struct convert *, const struct text *);
void convert_reasoning(struct convert *, const struct text *);
/* args: JSON text of an object */
void convert_call(struct convert *, const char *id, const char *name,
    const char *args);
/* What a call gave. */
void convert_result(struct convert *, const char *id, const struct text *);

/* A JSON string as a text that is not to be freed. */
struct text convert_borrow(const json_t *string);

/*
 * The text of a string, or of a list of parts whose type is one of types
 * (NULL-ended) and that have it under "text". where is how an error names it:
 * "input[3].content". -EINVAL: 400 is out.
 */
int convert_text(struct call *, const json_t *content,
    const char *const *types, const char *where, struct text *out);

/* A string without U+0000, which would end it early. NULL: *why is wrong. */
const char *convert_string(const json_t *, const char **why);

/* One tool, in chat's form; takes over nothing. NULL: no memory. */
json_t *convert_tool(const char *name, const json_t *description,
    const json_t *parameters, const json_t *strict);

/* The messages as the input of params. -ENOMEM: the error is out. */
int convert_end(struct convert *, struct params *, char **input);

/* A member of options, or of chat_template_kwargs in it. */
int option_set(struct params *, const char *key, json_t *steals);
int template_option(struct params *, const char *key, json_t *steals);

#endif
