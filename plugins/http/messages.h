/* /v1/messages: between the way in (messages_in.c) and the way out. */
#ifndef HTTP_MESSAGES_H
#define HTTP_MESSAGES_H

#include "plugins/http/http.h"

/*
 * Reads the body. counts: for count_tokens, which has no max_tokens. *input is
 * what p->r.data leads to, to be freed when the request is on its way. -EINVAL,
 * -ENOMEM: the error is out.
 */
int messages_read(struct call *, const json_t *body, bool counts,
    struct params *p, char **input);

error_form messages_error;	/* {"type": "error", "error": {...}} */

#endif
