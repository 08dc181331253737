/*
 * Decode passes as CUDA graphs (--cuda-graph-max-bs). Step thread only.
 *
 * A pass is laid out for a bucket (kernels/graphs.h): its rows are filled up
 * with rows of token 0 at position 0 of the sink page, and the plan's
 * arrays stand at offsets that follow from the bucket alone. Launches then
 * depend on nothing but the bucket and a bound of the longest context (8k, 32k,
 * 128k ..), so each such pair has one graph. The first pass of a pair runs as
 * ever, which finds the products' plans and loads their code; the second is
 * captured while the usual walk over the operations enqueues it; from then on
 * the walk enqueues nothing up to the logits, where the graph is launched.
 * Sampling, whose work differs from pass to pass, is never part of it.
 *
 * With events all ranks' streams are one graph, held together by their waits.
 * With flags in peer memory each rank has a graph of its own: the meetings are
 * kernels, and their numbers are counted on the device (peer.cu).
 */
#include <stdio.h>

#include <algorithm>
#include <new>
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"
#include "kernels/graphs.h"

struct graph {
	uint32_t rows, bound;		/* bucket, longest context */
	bool fast_index;
	bool ran;			/* as ever, once */
	uint32_t n;			/* 0: not captured; 1, or one a rank */
	cudaGraphExec_t exec[DCPK_MAX_RANKS];
};

struct dcpg_graphs {
	std::vector<graph> all;
	graph *now;		/* of this pass */
	bool capturing;
	uint64_t began_ns;
	size_t free_b[DCPK_MAX_RANKS];	/* of each GPU before the capture */
};

static bool
own_graphs(const dcpk_ctx *c)
{
	return c->s.comm == DCPK_COMM_PEER && c->W > 1;
}

int
dcpg_graphs_open(dcpk_ctx *c)
{
	if (c->s.graph_rows == 0)
		return 0;
	c->graphs = new (std::nothrow) dcpg_graphs();
	return c->graphs != NULL ? 0 : -ENOMEM;
}

void
dcpg_graphs_close(dcpk_ctx *c)
{
	if (c->graphs == NULL)
		return;
	for (graph &g : c->graphs->all)
		for (uint32_t i = 0; i < g.n; i++) {
			cudaSetDevice(c->r[i].dev);
			cudaGraphExecDestroy(g.exec[i]);
		}
	delete c->graphs;
	c->graphs = NULL;
}

/* --- the plan of a bucket ------------------------------------------------ */

template <class T>
static T *
put(char *to, uint32_t *at, uint32_t *off, size_t n)
{
	T *p;

	*at = (*at + 15) / 16 * 16;
	*off = *at;
	p = (T *)(to + *at);
	*at += (uint32_t)(n * sizeof(T));
	return p;
}

/* The arrays whose length the bucket sets, then those of this pass. */
static void
lay_out(dcpk_ctx *c, const dcpk_plan *p, uint32_t bucket)
{
	dcpk_plan *q = (dcpk_plan *)c->plan_pinned;
	uint32_t at = sizeof *q, words = (c->s.model.vocab + 31) / 32;
	dcpk_sample *sample;
	dcpk_adjust *adjust;
	dcpk_row *row;
	dcpk_req *req;
	uint32_t *page, *mask;

	*q = *p;
	row = put<dcpk_row>(c->plan_pinned, &at, &q->rows_off, bucket);
	req = put<dcpk_req>(c->plan_pinned, &at, &q->reqs_off, bucket + 1);
	sample = put<dcpk_sample>(c->plan_pinned, &at, &q->samples_off,
	    bucket);
	page = put<uint32_t>(c->plan_pinned, &at, &q->pages_off,
	    p->n_pages + 1);
	adjust = put<dcpk_adjust>(c->plan_pinned, &at, &q->adjusts_off,
	    p->n_adjusts);
	mask = put<uint32_t>(c->plan_pinned, &at, &q->mask_off,
	    (size_t)p->n_mask * words);

	memcpy(row, DCPK_ROWS(p), p->n_rows * sizeof *row);
	memcpy(req, DCPK_REQS(p), p->n_reqs * sizeof *req);
	memcpy(sample, DCPK_SAMPLES(p), p->n_samples * sizeof *sample);
	memcpy(adjust, DCPK_ADJUSTS(p), p->n_adjusts * sizeof *adjust);
	memcpy(mask, DCPK_MASK(p), (size_t)p->n_mask * words * 4);
	/* The table begins with the sink page, for the request behind the
	 * last, which has the rows that fill up. */
	page[0] = c->s.pages;
	memcpy(page + 1, DCPK_PAGES(p), p->n_pages * sizeof *page);
	for (uint32_t i = 0; i < p->n_reqs; i++)
		req[i].page0++;
	req[p->n_reqs] = (dcpk_req){};
	req[p->n_reqs].row0 = p->n_rows;
	req[p->n_reqs].rows = bucket - p->n_rows;
	req[p->n_reqs].pages = 1;
	for (uint32_t i = p->n_rows; i < bucket; i++) {
		row[i] = (dcpk_row){};
		row[i].req = p->n_reqs;
		row[i].page = c->s.pages;
	}
	for (uint32_t i = p->n_samples; i < bucket; i++) {
		sample[i] = (dcpk_sample){};
		sample[i].row = bucket - 1;
		sample[i].flags = DCPK_S_GREEDY;
	}
	q->bytes = at;
	q->n_rows = bucket;
	q->n_pages = p->n_pages + 1;
}

/* What lay_out will write at most: the plan and what fills it up. */
static size_t
room(const dcpk_plan *p, uint32_t bucket)
{
	return p->bytes + (bucket + 1) * (sizeof(dcpk_row) + sizeof(dcpk_req) +
	    sizeof(dcpk_sample)) + 4 + 8 * 16;
}

/*
 * True where the pass will be, or was, captured: c->plan_pinned is then its
 * plan, filled up to the bucket.
 */
bool
dcpg_graph_plan(dcpk_ctx *c, const dcpk_plan *p)
{
	uint32_t bucket;

	c->padded = c->replay = false;
	if (c->graphs == NULL || p->pass != DCPK_DECODE ||
	    p->n_rows > c->s.graph_rows || p->n_samples == 0 ||
	    p->n_samples > p->n_rows || p->n_reqs > p->n_rows)
		return false;
	bucket = dcpk_graph_bucket(&c->s, p->n_rows);
	if (room(p, bucket) > c->plan_cap)
		return false;
	lay_out(c, p, bucket);
	c->padded = true;
	return true;
}

/* --- capture and replay -------------------------------------------------- */

static graph *
find(dcpk_ctx *c)
{
	uint32_t bound = dcpk_graph_bound(&c->s, c->longest);

	c->longest = bound;	/* what this pass's launches are made for */
	for (graph &g : c->graphs->all)
		if (g.rows == c->rows && g.bound == bound &&
		    g.fast_index == c->fast_index)
			return &g;
	c->graphs->all.push_back((graph){ .rows = c->rows, .bound = bound,
	    .fast_index = c->fast_index });
	return &c->graphs->all.back();
}

/* Rank 0's stream after all others', or all others' after it. */
static int
join(dcpk_ctx *c)
{
	int rc = 0;

	for (uint32_t i = 1; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaEventRecord(c->r[i].met, c->r[i].st),
		    "event");
		cudaSetDevice(c->r[0].dev);
		rc |= dcpg_ok(cudaStreamWaitEvent(c->r[0].st, c->r[i].met, 0),
		    "wait");
	}
	return rc;
}

static int
fork_(dcpk_ctx *c)
{
	int rc = 0;

	if (c->W == 1)
		return 0;
	cudaSetDevice(c->r[0].dev);
	rc = dcpg_ok(cudaEventRecord(c->r[0].met, c->r[0].st), "event");
	for (uint32_t i = 1; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaStreamWaitEvent(c->r[i].st, c->r[0].met, 0),
		    "wait");
	}
	return rc;
}

/* After the copies of the plan, before anything else of the pass. */
int
dcpg_graph_begin(dcpk_ctx *c)
{
	dcpg_graphs *gs = c->graphs;
	uint32_t n = own_graphs(c) ? c->W : 1;
	size_t all;
	int rc = 0;

	if (!c->padded)
		return 0;
	gs->now = find(c);
	c->replay = gs->now->n != 0;
	if (c->replay || !gs->now->ran) {
		gs->now->ran = true;
		return 0;
	}
	gs->began_ns = dcpg_now_ns();
	for (int i = 0; i < c->devices; i++) {
		cudaSetDevice(i);
		cudaMemGetInfo(&gs->free_b[i], &all);
	}
	for (uint32_t i = 0; i < n; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaStreamBeginCapture(c->r[i].st,
		    cudaStreamCaptureModeThreadLocal), "graph: begin");
	}
	gs->capturing = rc == 0;
	return rc != 0 || n > 1 ? rc : fork_(c);
}

static int
instantiate(dcpk_ctx *c, graph *g, uint32_t i, cudaGraph_t captured,
    size_t *nodes)
{
	size_t n = 0;
	int rc;

	cudaSetDevice(c->r[i].dev);
	rc = dcpg_ok(cudaGraphGetNodes(captured, NULL, &n), "graph");
	if (rc == 0)
		rc = dcpg_ok(cudaGraphInstantiate(&g->exec[i], captured, 0),
		    "graph: instantiate");
	if (rc == 0) {
		g->n = i + 1;
		/* No memory is taken once a peer may be spinning. */
		rc = dcpg_ok(cudaGraphUpload(g->exec[i], c->r[i].st),
		    "graph: upload");
	}
	*nodes += n;
	return rc;
}

/* What the capture took of each GPU, its ranks' part to each; the most of one
 * GPU. Whoever else uses the GPUs meanwhile is in it. */
static size_t
charge(dcpk_ctx *c)
{
	const dcpg_graphs *gs = c->graphs;
	size_t most = 0;

	for (int i = 0; i < c->devices; i++) {
		size_t free_b = 0, all, took;
		uint32_t ranks = 0;

		cudaSetDevice(i);
		if (cudaMemGetInfo(&free_b, &all) != cudaSuccess ||
		    free_b >= gs->free_b[i])
			continue;
		took = gs->free_b[i] - free_b;
		for (uint32_t r = 0; r < c->W; r++)
			ranks += c->r[r].dev == i;
		for (uint32_t r = 0; r < c->W; r++)
			if (c->r[r].dev == i)
				c->got[r].graphs += took / ranks;
		most = std::max(most, took);
	}
	return most;
}

static int
end_capture(dcpk_ctx *c)
{
	dcpg_graphs *gs = c->graphs;
	uint32_t n = own_graphs(c) ? c->W : 1;
	cudaGraph_t captured[DCPK_MAX_RANKS] = {};
	size_t nodes = 0, bytes;
	int rc = n > 1 ? 0 : join(c);

	gs->capturing = false;
	/* All captures end first: nothing is instantiated beside one. */
	for (uint32_t i = 0; i < n; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_ok(cudaStreamEndCapture(c->r[i].st, &captured[i]),
		    "graph: end of capture");
	}
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		rc = instantiate(c, gs->now, i, captured[i], &nodes);
	for (uint32_t i = 0; i < n; i++)
		if (captured[i] != NULL)
			cudaGraphDestroy(captured[i]);
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		rc = dcpg_wait_rank(c, &c->r[i], "a graph's upload");
	if (rc != 0 && !c->lost) {
		fprintf(stderr, "cuda: a pass of %u rows cannot be captured; "
		    "start with --cuda-graph-max-bs 0\n", c->rows);
		return rc;
	}
	if (rc != 0)
		return rc;
	bytes = charge(c);
	fprintf(stderr, "cuda: graph of %u rows, contexts to %u: %zu nodes, "
	    "captured in %.1f ms, %.2f MiB of a GPU\n", c->rows,
	    gs->now->bound, nodes, (double)(dcpg_now_ns() - gs->began_ns) *
	    1e-6, (double)bytes / 1048576);
	return 0;
}

bool
dcpg_graph_captures(const dcpk_ctx *c)
{
	return c->graphs != NULL && c->graphs->capturing;
}

/* Behind the logits: the pass is enqueued, at the latest now. */
int
dcpg_graph_end(dcpk_ctx *c)
{
	dcpg_graphs *gs = c->graphs;
	graph *g;
	int rc = 0;

	if (!c->padded || (!c->replay && !gs->capturing))
		return 0;
	g = gs->now;
	if (gs->capturing)
		rc = end_capture(c);
	if (rc == 0 && g->n == 1)
		rc = join(c);
	for (uint32_t i = 0; rc == 0 && i < g->n; i++) {
		cudaSetDevice(c->r[i].dev);
		rc = dcpg_ok(cudaGraphLaunch(g->exec[i], c->r[i].st),
		    "graph: launch");
	}
	if (rc == 0 && g->n == 1)
		rc = fork_(c);
	return rc;
}
