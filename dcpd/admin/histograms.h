/*
 * How long things took, for /metrics: per kind the counts between fixed
 * bounds, and the sum. This table makes all of them; adding one is one line
 * here and a dcpd_observe() where it happens. Relaxed atomics, as counters.h:
 * a reader may see an observation's count before its sum.
 */
#ifndef DCPD_HISTOGRAMS_H
#define DCPD_HISTOGRAMS_H

#include <jansson.h>
#include <stdint.h>

/* X(name, help) */
#define DCPD_HISTOGRAMS(X) \
	X(ttft, "from submission to first token, seconds") \
	X(itl,  "between two tokens of a stream, seconds") \
	X(e2e,  "from submission to the end of an answer, seconds")

enum dcpd_histogram {
#define X(n, h) DCPD_HIST_##n,
	DCPD_HISTOGRAMS(X)
#undef X
	DCPD_HIST_N
};

/* times: how many took ns each. Any thread. */
void dcpd_observe(enum dcpd_histogram, uint64_t ns, uint64_t times);
/*
 * Appends {"name", "kind": "histogram", "help", "bounds": [seconds],
 * "buckets": [observations up to each bound, then all], "sum": seconds} of
 * each, for struct dcp_host's counters. Any thread.
 */
void dcpd_histograms_json(json_t *list);

#endif
