/* Reading struct http_config (http.h) from its JSON. */
#ifndef HTTP_SETTINGS_H
#define HTTP_SETTINGS_H

#include "plugins/http/http.h"

/* out is untouched on failure. Reads the key's file; takes no port. */
int http_config_read(const char *json, struct http_config *out, char **why);
bool http_config_same_sockets(const struct http_config *,
    const struct http_config *);
void http_config_free(struct http_config *);

#endif
