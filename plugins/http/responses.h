/* /v1/responses: between the way in (responses_in.c) and the way out. */
#ifndef HTTP_RESPONSES_H
#define HTTP_RESPONSES_H

#include "plugins/http/http.h"

/*
 * Reads the body: messages, tools, sampling. *input is what p->r.data leads to,
 * to be freed when the request is on its way. -EINVAL, -ENOMEM: the error is
 * out.
 */
int responses_read(struct call *, const json_t *body, struct params *p,
    char **input);

/* Asked for with "include": logprobs of the answer's text. */
bool responses_wants_logprobs(const json_t *body);

/* The tools that the model gets to see, in the API's form. */
json_t *responses_tools(const json_t *body);

/* The tool of this name is a "custom" one: its input is text, not JSON. */
bool responses_is_custom(const json_t *body, const char *name);

#endif
