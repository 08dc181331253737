/* Reading struct http_config (http.h) from its JSON. */
#ifndef HTTP_SETTINGS_H
#define HTTP_SETTINGS_H

#include "plugins/http/http.h"

/* out is untouched on failure. Reads the key's file; takes no port. */
int http_config_read(const char *json, struct http_config *out, char **why);
bool http_config_same_sockets(const struct http_config *,
    const struct http_config *);
/*
 * Exchange what may change at run time. listen and served_model_name are left
 * where they are: a thread that does not own the struct may read these two.
 */
void http_config_swap(struct http_config *, struct http_config *);
void http_config_free(struct http_config *);

#endif
