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

/* The one parameter of the function that stands for a custom tool. */
#define RESPONSES_CUSTOM_INPUT "input"

struct responses_tool {
	bool custom;		/* its input is text, not JSON */
	const char *space;	/* its namespace, or NULL; borrowed */
};
/* What the request says of the tool of this name. */
void responses_find_tool(const json_t *body, const char *name,
    struct responses_tool *);

/* tools and tool_choice into the options; what fails has been told: -EINVAL,
   -ENOMEM. */
int responses_take_tools(struct call *, const json_t *body, struct params *);

#endif
