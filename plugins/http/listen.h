/* Listening sockets: HOST:PORT, unix:PATH, and those that systemd passed. */
#ifndef HTTP_LISTEN_H
#define HTTP_LISTEN_H

#include "plugins/http/http.h"

struct listeners;

/* 0, or -errno and *why. A form alone: listen_check, which takes no port. */
int listen_check(const char *spec, char **why);
int listeners_open(struct http *, struct listeners **, char **why);
size_t listeners_n(const struct listeners *);
int listeners_fd(const struct listeners *, size_t i);
/* Somebody else closes the i-th from now on. */
void listeners_given(struct listeners *, size_t i);
/* As it is bound, the port known: "127.0.0.1:8000" */
const char *listeners_name(const struct listeners *, size_t i);
void listeners_close(struct listeners *);
/* How many connections there are descriptors for, and spare ones. */
uint32_t listeners_room(struct http *, uint32_t spare);

#endif
