/*
 * What tests of misbehaving clients measure: whether an honest client is
 * still served, how late, and whether the server keeps anything of the dead.
 */
#ifndef RING_PROBE_H
#define RING_PROBE_H

#include <stdbool.h>
#include <sys/types.h>

/* Honest round trips on a thread of its own, until probe_stop. */
struct probe;
struct probe *probe_start(const char *path);
double probe_worst(struct probe *);	/* ms, since the last call */
void probe_stop(struct probe *);

/*
 * How late an answer may be, ms: 50 (a second under a sanitizer), or what this
 * machine needs with nobody misbehaving, three times over, if it is that slow
 * just now.
 */
double probe_bound(struct probe *);

struct holdings { int fds, maps; };
struct holdings holdings_of(pid_t);
/* Wait for the server to hold no more than base; false after a second. */
bool holdings_back(pid_t, struct holdings base);

/* Lines of the log with this text. */
int log_count(const char *log, const char *text);

#endif
