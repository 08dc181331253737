/*
 * Every counter of the daemon, once: this table makes the storage (a part of
 * the stats page, stats.h), the names in `dcpctl status -j` and those in
 * /metrics. Adding one is one line here. Relaxed atomics: any thread adds,
 * readers want no order.
 */
#ifndef DCPD_COUNTERS_H
#define DCPD_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* X(name, kind, help)  kind: C = only grows, G = goes up and down */
#define DCPD_COUNTERS(X) \
	X(clients,            G, "clients connected") \
	X(clients_total,      C, "clients ever connected") \
	X(clients_dropped,    C, "clients dropped for breaking the protocol") \
	X(requests_total,     C, "requests accepted that want the model") \
	X(requests_refused,   C, "requests refused before they ran") \
	X(requests_finished,  C, "requests finished: stop or length") \
	X(requests_cancelled, C, "requests cancelled, client death included") \
	X(requests_failed,    C, "requests ended by an error") \
	X(requests_waiting,   G, "requests waiting for pages or a slot") \
	X(requests_running,   G, "requests in prefill or decode") \
	X(prompt_tokens,      C, "prompt tokens prefilled") \
	X(output_tokens,      C, "tokens generated") \
	X(first_tokens,       C, "requests that got a token") \
	X(ttft_ns,            C, "from submission to first token, ns") \
	X(later_tokens,       C, "tokens that came later than a request's first ones") \
	X(itl_ns,             C, "waited for them by their streams, ns") \
	X(steps,              C, "steps run") \
	X(decode_steps,       C, "decode passes run") \
	X(prefill_passes,     C, "prefill passes run") \
	X(decode_ns,          C, "time in decode passes, ns") \
	X(prefill_ns,         C, "time in prefill passes, ns") \
	X(decode_rows,        C, "query rows in decode passes") \
	X(prefill_rows,       C, "query rows in prefill passes") \
	X(prefill_way_q,      C, "prefill passes that gathered q") \
	X(prefill_way_kv,     C, "prefill passes that gathered KV rows") \
	X(prefill_way_a2a,    C, "prefill passes by all-to-all") \
	X(prefill_q_ns,       C, "in attention of passes that gathered q, ns") \
	X(prefill_q_predicted_ns, C, "predicted for them, ns") \
	X(prefill_kv_ns,      C, "in attention of those that gathered KV, ns") \
	X(prefill_kv_predicted_ns, C, "predicted for them, ns") \
	X(prefill_a2a_ns,     C, "in attention of those by all-to-all, ns") \
	X(prefill_a2a_predicted_ns, C, "predicted for them, ns") \
	X(pages_total,        G, "pages of the pool, without the sink page") \
	X(pages_free,         G, "pages free") \
	X(pages_used,         G, "pages held by requests") \
	X(pages_cached,       G, "pages of the prefix cache in no use") \
	X(prefix_lookup_tokens, C, "prompt tokens looked up in the cache") \
	X(prefix_hit_tokens,  C, "prompt tokens found there") \
	X(pages_pinned,       G, "pages that an admin keeps in the pool") \
	X(pages_host,         G, "pages of the prefix cache in host memory") \
	X(host_hit_tokens,    C, "prompt tokens that came back from there") \
	X(host_pages_out,     C, "pages copied to host memory") \
	X(host_pages_in,      C, "pages copied back") \
	X(host_ns,            C, "time in these copies, ns") \
	X(evictions,          C, "cached pages given up for others") \
	X(preemptions,        C, "requests that gave way and were resumed") \
	X(queue_bytes,        G, "bytes of requests and answers held")

enum dcpd_counter {
#define X(n, k, h) DCPD_CNT_##n,
	DCPD_COUNTERS(X)
#undef X
	DCPD_CNT_N
};

extern _Atomic uint64_t *dcpd_counters;	/* [DCPD_CNT_N], of the stats page */

#define DCPD_COUNT(n, v) \
	atomic_fetch_add_explicit(&dcpd_counters[DCPD_CNT_##n], \
	    (uint64_t)(v), memory_order_relaxed)
#define DCPD_GAUGE(n, v) \
	atomic_store_explicit(&dcpd_counters[DCPD_CNT_##n], \
	    (uint64_t)(v), memory_order_relaxed)
#define DCPD_COUNTER(n) \
	atomic_load_explicit(&dcpd_counters[DCPD_CNT_##n], \
	    memory_order_relaxed)

#endif
