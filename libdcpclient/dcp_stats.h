/*
 * The stats page: a file beside the clients' socket (its path with .stats after
 * it) that the daemon maps and counts in, so that what it says is as new as
 * the daemon is, even when no thread of it answers. Nothing but layout.
 *
 * The daemon holds a flock on the file as long as it lives. Its mode lets the
 * daemon's user write alone, who may end the daemon anyway: cut short, the file
 * does (SIGBUS). Readers read it, and do not map it: they may be more than the
 * daemon's user is, and outlive whatever becomes of it. Names travel with
 * the numbers: a reader of another release shows what it finds. A reader never
 * trusts n_counters or a name to end.
 */
#ifndef DCP_STATS_H
#define DCP_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#define DCPS_MAGIC 0x53504344u		/* "DCPS" */
#define DCPS_VERSION 1u			/* a reader wants this one */
#define DCPS_COUNTERS 192
#define DCPS_OPS 16

enum dcps_state {		/* names: dcps_state_name() */
	DCPS_LOADING, DCPS_READY, DCPS_DRAINING, DCPS_STUCK, DCPS_STOPPING,
	DCPS_FAILED, DCPS_STATES
};

/* What the pass under way, or else the last one, is about. */
struct dcps_pass {
	_Atomic uint64_t step;		/* 0: none was yet */
	_Atomic uint64_t began_ns;	/* CLOCK_MONOTONIC, as all times here */
	_Atomic uint64_t ended_ns;	/* 0: under way */
	_Atomic uint32_t prefill;	/* 0: a decode pass */
	_Atomic uint32_t rows, reqs, pages, samples;
	_Atomic uint32_t layer, op;	/* where the walk is; op: op_name[] */
};

struct dcps_page {
	uint32_t magic, version;
	uint32_t size;			/* sizeof(struct dcps_page) */
	uint32_t pid;
	uint64_t started_ns;
	char release[32];
	uint32_t tp, dcp;
	_Atomic uint32_t state;		/* enum dcps_state */
	uint32_t n_counters;
	_Atomic uint64_t main_ns, admin_ns;	/* last turn of that thread */
	_Atomic uint64_t step_ns;	/* its turn's beginning; 0: sleeps */
	struct dcps_pass pass;
	char op_name[DCPS_OPS][16];
	char counter_name[DCPS_COUNTERS][32];
	_Alignas(128) _Atomic uint64_t counter[DCPS_COUNTERS];
};

static inline const char *
dcps_state_name(uint32_t state)
{
	static const char *const name[DCPS_STATES] = {
		"loading", "ready", "draining", "stuck", "stopping", "failed",
	};

	return state < DCPS_STATES ? name[state] : "unknown";
}

#endif
