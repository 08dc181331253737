/*
 * Which decode passes --device cuda keeps as CUDA graphs (--cuda-graph-max-bs)
 * and what device memory they take: told to the planner, to the daemon that
 * runs them once at start, and to the module. Pure functions.
 *
 * A graph is made for a bucket of rows (1, 2, 4, 8 .. and the most) and for a
 * bound of the longest context (8k, 32k, 128k .. and the longest; and the most
 * for which scores and selection are index.cu's and select.cu's).
 */
#ifndef DCPK_GRAPHS_H
#define DCPK_GRAPHS_H

#include "kernels/kernels.h"

/* Rows of the bucket that takes `rows`, which are no more than the most. */
static inline uint32_t
dcpk_graph_bucket(const struct dcpk_setup *s, uint32_t rows)
{
	uint32_t most = s->graph_rows < s->max_rows ? s->graph_rows :
	    s->max_rows, b = 1;

	while (b < rows)
		b *= 2;
	return b < most ? b : most;
}

/* Keys of one rank that the fast selection takes; select.cu has the same. */
#define DCPK_FAST_KEYS 2097152u

/* index.cu, index_rows.cu and select.cu have this shape. */
static inline bool
dcpk_fast_index(const struct dcpk_setup *s)
{
	uint32_t h = s->model.idx_heads;

	return s->idx == DCPK_KV_FP8 && s->model.idx_dim == 128 &&
	    (h == 8 || h == 16 || h == 32 || h == 64);
}

static inline uint32_t
dcpk_graph_bound(const struct dcpk_setup *s, uint32_t longest)
{
	uint64_t b = 8192, fast = (uint64_t)DCPK_FAST_KEYS * s->topo.dcp;

	while (b < longest)
		b *= 4;
	if (longest <= fast && fast < b)
		b = fast;
	return b < s->max_ctx ? (uint32_t)b : s->max_ctx;
}

/*
 * The next pair after (*rows, *bound), by bound, then by rows; begins with
 * {0, 0}. False: there is none.
 */
static inline bool
dcpk_graph_next(const struct dcpk_setup *s, uint32_t *rows, uint32_t *bound)
{
	uint32_t most;

	if (s->graph_rows == 0 || s->max_rows == 0 || s->max_ctx == 0)
		return false;
	most = dcpk_graph_bucket(s, UINT32_MAX / 2);
	if (*bound == 0 || *rows == most) {
		if (*bound == s->max_ctx)
			return false;
		*bound = dcpk_graph_bound(s, *bound + 1);
		*rows = 0;
	}
	*rows = dcpk_graph_bucket(s, *rows + 1);
	return true;
}

/*
 * Device memory of a rank's graphs. Measured on an H200, driver 580: 18 MiB for
 * 21 graphs of 150 launches a rank, of which some 8 come with the first; the
 * driver takes 2 MiB at a time. Launches of a layer are counted generously.
 */
#define DCPK_GRAPH_FIRST (8u << 20)
#define DCPK_GRAPH_LAUNCH 4096u

static inline uint64_t
dcpk_graph_bytes(const struct dcpk_setup *s)
{
	uint64_t layer = s->topo.dcp > 1 ? 40u : 30u;
	uint32_t rows = 0, bound = 0;
	uint64_t n = 0;

	while (dcpk_graph_next(s, &rows, &bound))
		n++;
	return n == 0 ? 0 : DCPK_GRAPH_FIRST +
	    n * s->model.layers * layer * DCPK_GRAPH_LAUNCH;
}

#endif
