/* Storage of the histograms and their form as JSON; see histograms.h. */
#include "config.h"

#include <stdatomic.h>

#include "dcpd/admin/histograms.h"

#define BOUNDS (sizeof bound_ns / sizeof bound_ns[0])

/* From a token of a small model to the answer to a full context. */
static const uint64_t bound_ns[] = {
	1000000, 2000000, 5000000, 10000000, 20000000, 50000000,
	100000000, 200000000, 500000000, 1000000000, 2000000000,
	5000000000, 10000000000, 20000000000, 50000000000, 100000000000,
	200000000000, 500000000000,
};

static struct {
	_Atomic uint64_t n[BOUNDS + 1];	/* not cumulative; the last: above */
	_Atomic uint64_t sum_ns;
} hist[DCPD_HIST_N];

static const struct {
	const char *name, *help;
} about[] = {
#define X(n, h) { #n, h },
	DCPD_HISTOGRAMS(X)
#undef X
};

void
dcpd_observe(enum dcpd_histogram h, uint64_t ns, uint64_t times)
{
	uint32_t i = 0;

	while (i < BOUNDS && ns > bound_ns[i])
		i++;
	atomic_fetch_add_explicit(&hist[h].n[i], times, memory_order_relaxed);
	atomic_fetch_add_explicit(&hist[h].sum_ns, ns * times,
	    memory_order_relaxed);
}

void
dcpd_histograms_json(json_t *list)
{
	for (uint32_t h = 0; h < DCPD_HIST_N; h++) {
		json_t *bounds = json_array(), *buckets = json_array();
		uint64_t n = 0;

		for (uint32_t i = 0; i <= BOUNDS; i++) {
			n += atomic_load_explicit(&hist[h].n[i],
			    memory_order_relaxed);
			json_array_append_new(buckets,
			    json_integer((json_int_t)n));
			if (i < BOUNDS)
				json_array_append_new(bounds,
				    json_real((double)bound_ns[i] * 1e-9));
		}
		json_array_append_new(list, json_pack(
		    "{s:s, s:s, s:s, s:o, s:o, s:f}", "name", about[h].name,
		    "kind", "histogram", "help", about[h].help, "bounds",
		    bounds, "buckets", buckets, "sum",
		    (double)atomic_load_explicit(&hist[h].sum_ns,
		    memory_order_relaxed) * 1e-9));
	}
}
