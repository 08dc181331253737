/*
 * Pages that left the pool: pinned host memory, cut into slots of one page
 * each, and the copies between it and the pools. A slot holds what a page is on
 * the D ranks of one group, rank after rank: of a rank the rows of every layer,
 * the index keys of every full layer, then their scales. Groups hold the same;
 * group 0's copy is kept.
 *
 * One kernel per rank moves a whole batch of pages and reads or writes the
 * host's memory itself: a page is some hundred pieces (GLM-5: 78 + 78 + 78)
 * of a few KiB at D = 8, and a copy of each would cost more in calls than in
 * bytes. Step thread, between two steps.
 */
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/fail.h"

enum { BATCH = 1024, THREADS = 128 };

/* Of one rank: sizes in bytes of a page's piece in one layer, and counts. */
struct shape {
	uint32_t layers, full;
	uint32_t row, key, scale;	/* scale 0: the keys have none */
	size_t layer_rows, layer_keys, layer_scales;	/* of the pools */
	size_t part;			/* of a slot */
};

static shape
shape_of(const dcpk_ctx *c)
{
	shape s = {};

	s.layers = c->s.model.layers;
	s.full = c->full_layers;
	s.row = c->page_rows * c->row_bytes;
	s.key = c->page_rows * c->key_bytes;
	s.scale = c->s.idx == DCPK_KV_FP8 ? c->page_rows * 4 : 0;
	s.layer_rows = c->pool_rows * c->row_bytes;
	s.layer_keys = c->pool_rows * c->key_bytes;
	s.layer_scales = c->pool_rows * 4;
	s.part = (size_t)s.layers * s.row + (size_t)s.full * (s.key + s.scale);
	return s;
}

/* n bytes, a multiple of 4; by 16 where all of it allows. */
__device__ static void
copy(void *to, const void *from, uint32_t n)
{
	uint32_t t = threadIdx.x;

	if (((uintptr_t)to | (uintptr_t)from | n) % 16 == 0)
		for (uint32_t i = t; i < n / 16; i += THREADS)
			((uint4 *)to)[i] = ((const uint4 *)from)[i];
	else
		for (uint32_t i = t; i < n / 4; i += THREADS)
			((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

/*
 * Block (piece, page): one layer's rows, keys or scales of one page. Moves
 * layers * row + full * (key + scale) bytes per page; no shared memory.
 */
__global__ void
move_pages(shape s, const dcpk_move *move, uint8_t *rows, uint8_t *keys,
    uint8_t *scales, uint8_t *host, uint32_t ranks, uint32_t rank, bool out)
{
	uint32_t piece = blockIdx.x, n;
	dcpk_move m = move[blockIdx.y];
	uint8_t *slot = host + ((size_t)m.slot * ranks + rank) * s.part;
	uint8_t *pool;

	if (piece < s.layers) {
		n = s.row;
		pool = rows + piece * s.layer_rows + (size_t)m.page * n;
		slot += (size_t)piece * n;
	} else if (piece < s.layers + s.full) {
		piece -= s.layers;
		n = s.key;
		pool = keys + piece * s.layer_keys + (size_t)m.page * n;
		slot += (size_t)s.layers * s.row + (size_t)piece * n;
	} else {
		piece -= s.layers + s.full;
		n = s.scale;
		pool = scales + piece * s.layer_scales + (size_t)m.page * n;
		slot += (size_t)s.layers * s.row + (size_t)s.full * s.key +
		    (size_t)piece * n;
	}
	copy(out ? slot : pool, out ? pool : slot, n);
}

size_t
dcpg_host_bytes(const dcpk_ctx *c)
{
	return c->s.host_pages * shape_of(c).part * c->D;
}

int
dcpg_host_open(dcpk_ctx *c, dcpk_err *err)
{
	size_t bytes = dcpg_host_bytes(c);
	cudaError_t e;

	if (bytes == 0)
		return 0;
	/* Every device reads and writes it at the same address. */
	e = cudaHostAlloc(&c->host, bytes,
	    cudaHostAllocPortable | cudaHostAllocMapped);
	if (e == cudaSuccess)
		e = cudaHostAlloc(&c->moves, BATCH * sizeof *c->moves,
		    cudaHostAllocPortable | cudaHostAllocMapped);
	if (e != cudaSuccess)
		return fail(err, -ENOMEM, "cuda: %zu bytes of pinned memory "
		    "for --host-cache-bytes could not be had: %s; give less",
		    bytes, cudaGetErrorString(e));
	c->got[0].host = bytes;
	return 0;
}

void
dcpg_host_close(dcpk_ctx *c)
{
	cudaFreeHost(c->host);
	cudaFreeHost(c->moves);
}

static int
move_batch(dcpk_ctx *c, const dcpk_move *m, uint32_t n, bool out)
{
	uint32_t ranks = out ? c->D : c->W;
	shape s = shape_of(c);
	dim3 grid(s.layers + s.full * (s.scale > 0 ? 2 : 1), n);
	int rc = 0;

	memcpy(c->moves, m, n * sizeof *m);
	for (uint32_t i = 0; i < ranks; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		move_pages<<<grid, THREADS, 0, r->st>>>(s, c->moves, r->rows,
		    r->keys, (uint8_t *)r->scales, c->host, c->D, r->dr, out);
		rc |= DCPG_LAUNCHED("move pages");
	}
	for (uint32_t i = 0; rc == 0 && i < ranks; i++)
		rc = dcpg_wait_rank(c, &c->r[i], "moving pages");
	return rc;
}

int
dcpg_move(dcpk_ctx *c, const dcpk_move *m, uint32_t n, bool out,
    dcpk_err *err)
{
	for (uint32_t i = 0; i < n; i++)
		if (m[i].page >= c->s.pages || m[i].slot >= c->s.host_pages)
			return fail(err, -ERANGE, "cuda: move: page %u of %u, "
			    "slot %u of %u", m[i].page, c->s.pages, m[i].slot,
			    c->s.host_pages);
	for (uint32_t i = 0; i < n; i += BATCH)
		if (move_batch(c, m + i, std::min<uint32_t>(BATCH, n - i),
		    out) != 0)
			return fail(err, -EIO, "cuda: moving pages: %s",
			    c->lost ? "a rank is lost" :
			    cudaGetErrorString(cudaGetLastError()));
	return 0;
}
