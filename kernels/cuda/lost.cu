/*
 * The host's waits for ranks, none of which lasts for ever: at the end of a
 * step or of a move of pages, and when it has enqueued DCPG_AHEAD layers
 * more than are done (a full queue of launches would hold it with no bound
 * at all). Rank 0 stands for all: it has met the others at the end of each
 * layer, and of the step. Step thread only, but for dcpg_waits.
 *
 * What must come within DCPG_LOST_NS is a layer, or, where a graph has the
 * whole pass, the pass. When it does not, each GPU is given a tiny kernel on
 * a stream of its own: one that does not run it within a second is the one
 * that is stuck, the others wait for it. (A copy or a memset would not tell:
 * it needs no SM.) Then the step fails, which ends the process
 * (doc/design.md 8), and nothing is closed, since that would wait.
 */
#include <stdio.h>
#include <time.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"

static const uint64_t PROBE_NS = 1000000000ull;

__global__ void
probe_kernel(uint32_t *word)
{
	*word = 0;
}

uint64_t
dcpg_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int
dcpg_lost_open(dcpk_ctx *c, dcpg_rank *r)
{
	for (uint32_t i = 0; r->id == 0 && i < DCPG_AHEAD; i++)
		if (cudaEventCreateWithFlags(&c->mark[i],
		    cudaEventDisableTiming) != cudaSuccess)
			return -EIO;
	if (cudaStreamCreateWithFlags(&r->probe, cudaStreamNonBlocking) !=
	    cudaSuccess)
		return -EIO;
	/* its code is loaded now: then there may be no way to */
	probe_kernel<<<1, 1, 0, r->probe>>>(r->probe_word);
	return cudaStreamSynchronize(r->probe) == cudaSuccess ? 0 : -EIO;
}

void
dcpg_lost_close(dcpk_ctx *c, dcpg_rank *r)
{
	for (uint32_t i = 0; r->id == 0 && i < DCPG_AHEAD; i++)
		if (c->mark[i] != NULL)
			cudaEventDestroy(c->mark[i]);
	if (r->probe != NULL)
		cudaStreamDestroy(r->probe);
}

/* A meeting by flags that somebody did not come to, or words that it did not
 * send. */
bool
dcpg_lost_peer(const dcpk_ctx *c)
{
	bool lost = false;

	for (uint32_t i = 0; c->stuck != NULL && i < c->W; i++) {
		const volatile struct dcpg_stuck *s = &c->stuck[i];

		if (s->set == 0)
			continue;
		fprintf(stderr, "cuda: rank %u waited %llu s for rank %u, "
		    "meeting %u: it is lost\n", i, (unsigned long long)
		    (DCPG_LOST_NS / 1000000000), s->peer, s->meeting);
		lost = true;
	}
	return lost;
}

/* Any thread: the ranks whose work of this step is not done. */
void
dcpg_waits(dcpk_ctx *c, char *buf, size_t cap)
{
	size_t at = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; c->ending && i < c->W && at < cap; i++)
		if (cudaEventQuery(c->r[i].end) == cudaErrorNotReady)
			at += (size_t)snprintf(buf + at, cap - at,
			    "%srank %u on GPU %d", at > 0 ? ", " : "", i,
			    c->r[i].dev);
}

/* Which ranks' GPUs do nothing any more: one line, and the context is lost. */
static int
give_up(dcpk_ctx *c, const char *what)
{
	uint64_t begun = dcpg_now_ns();
	uint32_t stuck = 0;

	c->lost = true;
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		probe_kernel<<<1, 1, 0, c->r[i].probe>>>(c->r[i].probe_word);
	}
	while (dcpg_now_ns() - begun < PROBE_NS)
		;
	for (uint32_t i = 0; i < c->W; i++) {
		if (cudaStreamQuery(c->r[i].probe) == cudaSuccess)
			continue;
		stuck++;
		fprintf(stderr, "cuda: %s did not end within %llu s: rank %u "
		    "on GPU %d does not answer, it is lost\n", what,
		    DCPG_LOST_NS / 1000000000, i, c->r[i].dev);
	}
	if (stuck == 0)
		fprintf(stderr, "cuda: %s did not end within %llu s, though "
		    "every GPU answers: the ranks are lost\n", what,
		    DCPG_LOST_NS / 1000000000);
	return -EIO;
}

/* Until the event, of any rank, has come, DCPG_LOST_NS at most. */
int
dcpg_wait_event(dcpk_ctx *c, cudaEvent_t event, const char *what)
{
	uint64_t begun = dcpg_now_ns();
	cudaError_t e;

	while ((e = cudaEventQuery(event)) == cudaErrorNotReady)
		if (dcpg_now_ns() - begun > DCPG_LOST_NS)
			return give_up(c, what);
	return dcpg_ok(e, what);
}

/* Layer by layer, and then the step's own end. */
int
dcpg_wait_end(dcpk_ctx *c)
{
	uint32_t n = c->marks < DCPG_AHEAD ? c->marks : DCPG_AHEAD;
	int rc = 0;

	for (uint32_t i = c->marks - n; rc == 0 && i < c->marks; i++)
		rc = dcpg_wait_event(c, c->mark[i % DCPG_AHEAD], "a layer");
	return rc != 0 ? rc : dcpg_wait_event(c, c->r[0].end, "a step");
}

/* Between two steps, or before the first: all that the rank has been given. */
int
dcpg_wait_rank(dcpk_ctx *c, dcpg_rank *r, const char *what)
{
	int rc;

	cudaSetDevice(r->dev);
	rc = dcpg_ok(cudaEventRecord(r->end, r->st), what);
	return rc != 0 ? rc : dcpg_wait_event(c, r->end, what);
}

/* A pass that is a graph, or becomes one, has no marks: what is captured cannot
 * be waited for. */
int
dcpg_mark(dcpk_ctx *c)
{
	cudaEvent_t mark = c->mark[c->marks % DCPG_AHEAD];
	int rc = 0;

	if (c->replay || dcpg_graph_captures(c))
		return 0;
	if (c->marks >= DCPG_AHEAD)
		rc = dcpg_wait_event(c, mark, "a layer");
	cudaSetDevice(c->r[0].dev);
	c->marks++;
	return rc != 0 ? rc :
	    dcpg_ok(cudaEventRecord(mark, c->r[0].st), "mark");
}
