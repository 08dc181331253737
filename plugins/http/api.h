/* The handlers of the table in routes.c. */
#ifndef HTTP_API_H
#define HTTP_API_H

#include "plugins/http/http.h"

/* chat.c, completions.c */
void chat_completions(struct call *);
void completions(struct call *);

/* responses.c, messages.c */
void responses(struct call *);
void messages(struct call *);
void messages_count_tokens(struct call *);

/* models.c */
void models_list(struct call *);
void models_one(struct call *);
void health(struct call *);
void server_info(struct call *);
void model_info(struct call *);
void flush_cache(struct call *);
void abort_request(struct call *);

/* tokenize.c */
void tokenize(struct call *);
void detokenize(struct call *);

#endif
