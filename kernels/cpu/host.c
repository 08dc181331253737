/*
 * Pages that left the pool: one mapping of host memory, cut into slots of one
 * page each, and the copies between it and the pools. A slot holds what a page
 * is on the D ranks of one group, rank after rank; of a rank the rows of every
 * layer, then the index keys, then their scales. The groups' pools are the same
 * byte for byte: group 0's are kept, and every group gets them back.
 *
 * Step thread and, in a phase, the workers: a task is a page on a rank.
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/ctx.h"
#include "kernels/fail.h"

struct task {
	struct dcpk_ctx *c;
	const struct dcpk_move *move;
	uint32_t ranks;		/* tasks per page */
	bool out;
};

/* Bytes of one page on one rank. */
static size_t
part_bytes(const struct dcpk_ctx *c)
{
	size_t key = c->key_bytes +
	    (c->s.idx == DCPK_KV_FP8 ? sizeof(float) : 0);

	return c->page_rows * (c->s.model.layers * (size_t)c->row_bytes +
	    c->full_layers * key);
}

size_t
dcpc_host_bytes(const struct dcpk_ctx *c)
{
	return c->s.host_pages * part_bytes(c) * c->D;
}

int
dcpc_host_open(struct dcpk_ctx *c)
{
	size_t bytes = dcpc_host_bytes(c);

	if (bytes == 0)
		return 0;
	c->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->host == MAP_FAILED) {
		c->host = NULL;
		return -ENOMEM;
	}
	c->got[0].host = bytes;
	return 0;
}

void
dcpc_host_close(struct dcpk_ctx *c)
{
	if (c->host != NULL)
		munmap(c->host, dcpc_host_bytes(c));
}

static uint8_t *
copy(bool out, uint8_t *at, void *pool, size_t bytes)
{
	if (out)
		memcpy(at, pool, bytes);
	else
		memcpy(pool, at, bytes);
	return at + bytes;
}

static void
move_part(void *arg, uint32_t task, uint32_t thread)
{
	const struct task *t = arg;
	struct dcpk_ctx *c = t->c;
	const struct dcpk_move *m = &t->move[task / t->ranks];
	uint32_t rank = task % t->ranks;
	size_t row = (size_t)m->page * c->page_rows;
	uint8_t *at = c->host + (m->slot * (size_t)c->D + rank % c->D) *
	    part_bytes(c);
	float *scales;
	uint8_t *keys;

	(void)thread;
	for (uint32_t i = 0; i < c->s.model.layers; i++)
		at = copy(t->out, at, dcpc_pool_rows(c, rank, i) +
		    row * c->row_bytes, c->page_rows * (size_t)c->row_bytes);
	for (uint32_t i = 0; i < c->s.model.layers; i++) {
		if (!c->s.model.full[i])
			continue;
		keys = dcpc_pool_keys(c, rank, i, &scales);
		at = copy(t->out, at, keys + row * c->key_bytes,
		    c->page_rows * (size_t)c->key_bytes);
		if (scales != NULL)
			at = copy(t->out, at, scales + row,
			    c->page_rows * sizeof *scales);
	}
}

int
dcpc_move(struct dcpk_ctx *c, const struct dcpk_move *m, uint32_t n, bool out,
    struct dcpk_err *err)
{
	struct task t = {
		.c = c, .move = m, .ranks = out ? c->D : c->W, .out = out,
	};
	uint32_t i;

	for (i = 0; i < n; i++)
		if (m[i].page >= c->s.pages || m[i].slot >= c->s.host_pages)
			return fail(err, -ERANGE, "move: page %u of %u, slot "
			    "%u of %u", m[i].page, c->s.pages, m[i].slot,
			    c->s.host_pages);
	dcpc_workers_run(c->workers, n * t.ranks, move_part, &t);
	return 0;
}
