/*
 * What tests of misbehaving clients measure: whether an honest client is
 * still served, how late, and whether the server keeps anything of the dead.
 */
#ifndef RING_PROBE_H
#define RING_PROBE_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Honest round trips on a thread of its own, until probe_stop. Time in which
 * that thread or one of the server's was ready to run and had no core is not
 * counted: it is the machine's, not the server's.
 */
struct probe;
struct probe *probe_start(const char *path, pid_t server);
void probe_stop(struct probe *);

/* Forget what was measured so far. */
void probe_reset(struct probe *);
/* Round trips since the last reset. */
unsigned probe_trips(struct probe *);
/* The longest since the last reset. */
double probe_worst_ms(struct probe *);
/* No round trip since the last reset took 50 ms (1 s under a sanitizer). */
bool probe_fine(struct probe *);

struct holdings { int fds, maps; };
struct holdings holdings_of(pid_t);
/* Wait for the server to hold no more than base; false after a second. */
bool holdings_back(pid_t, struct holdings base);

/*
 * A path for a log that lies in memory: a line must not wait for a busy disk.
 * Of use to this process and to its children.
 */
const char *log_make(void);

/* Lines of the log with this text. */
int log_count(const char *log, const char *text);

#endif
