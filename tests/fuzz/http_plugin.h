/* The HTTP plugin, loaded and listening, for its fuzzers; http_plugin.c. */
#ifndef FUZZ_HTTP_PLUGIN_H
#define FUZZ_HTTP_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

/* One connection: its bytes; leave when nothing comes for patience, ms. */
void http_talk(const uint8_t *, size_t, int patience);
/* Nothing runs on when everybody has left; then the plugin ends. */
void http_end(void);

#endif
