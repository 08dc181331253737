/*
 * What tests and `dcpctl check` look at between two steps: logits, selections,
 * rows of the pools and of the last gather. Step thread.
 */
#include <algorithm>
#include <vector>

#include "kernels/cuda/device.cuh"

static int64_t
get(void *buf, size_t cap, const void *src, size_t n)
{
	if (n > cap)
		return -ENOSPC;
	return cudaMemcpy(buf, src, n, cudaMemcpyDefault) == cudaSuccess ?
	    (int64_t)n : -EIO;
}

static int64_t
get_selection(dcpk_ctx *c, uint32_t layer, uint32_t row, void *buf, size_t cap)
{
	size_t at = (size_t)layer * c->M + row, k = c->s.model.topk;
	std::vector<uint32_t> all;
	uint32_t first = 0, ranks = 1;

	if (!c->prefill) {
		ranks = c->D;		/* each of group 0 has its own part */
	} else if (c->s.topo.cp > 1) {
		const dcpk_row *rw = &DCPK_ROWS(c->plan)[row];
		const dcpk_req *rq = &DCPK_REQS(c->plan)[rw->req];

		first = dcpk_cp_owner(c->s.topo.strategy, row - rq->row0,
		    rq->rows, rq->prefix, c->s.topo.cp) * c->s.topo.attn_tp;
	} else {
		first = (row - DCPK_REQS(c->plan)[DCPK_ROWS(c->plan)[row]
		    .req].row0) % c->W;
	}
	for (uint32_t r = first; r < first + ranks; r++) {
		uint32_t n = 0;
		size_t was = all.size();

		if (get(&n, 4, c->r[r].keep_n + at, 4) < 0 || n > k)
			return -EIO;
		all.resize(was + n);
		if (n != 0 && get(all.data() + was, n * 4,
		    c->r[r].keep + at * k, n * 4) < 0)
			return -EIO;
	}
	std::sort(all.begin(), all.end());
	if (all.size() * 4 > cap)
		return -ENOSPC;
	memcpy(buf, all.data(), all.size() * 4);
	return (int64_t)all.size() * 4;
}

int64_t
dcpg_peek(dcpk_ctx *c, dcpk_peek what, uint32_t layer, uint32_t rank,
    uint32_t row, void *buf, size_t cap)
{
	dcpg_rank *r;
	float *scales;
	uint8_t *keys;
	int64_t n;

	if (layer >= c->s.model.layers || rank >= c->W)
		return -EINVAL;
	r = &c->r[rank];
	for (uint32_t i = 0; i < c->W; i++)
		cudaStreamSynchronize(c->r[i].st);
	switch (what) {
	case DCPK_PEEK_LOGITS:
		if (c->plan == NULL || c->plan->n_samples > c->cap_samples)
			return -EINVAL;
		return get(buf, cap, c->r[0].all_logits, (size_t)4 *
		    c->plan->n_samples * c->s.model.vocab);
	case DCPK_PEEK_SELECT:
		if (r->keep == NULL || row >= c->rows)
			return -EINVAL;
		return get_selection(c, layer, row, buf, cap);
	case DCPK_PEEK_POOL_ROW:
		if (row >= c->pool_rows)
			return -EINVAL;
		return get(buf, cap, dcpg_pool_rows(c, r, layer) +
		    (size_t)row * c->row_bytes, c->row_bytes);
	case DCPK_PEEK_INDEX_ROW:
		if (row >= c->pool_rows || !c->s.model.full[layer] ||
		    cap < c->key_bytes + 4)
			return -EINVAL;
		keys = dcpg_pool_keys(c, r, layer, &scales);
		n = get(buf, cap, keys + (size_t)row * c->key_bytes,
		    c->key_bytes);
		if (n < 0 || scales == NULL)
			return n;
		return get((char *)buf + n, 4, scales + row, 4) < 0 ? -EIO :
		    n + 4;
	case DCPK_PEEK_GATHERED_ROW:
		if (layer != c->gather_layer || row >= c->s.max_ctx)
			return -EINVAL;
		return get(buf, cap, r->gather + (size_t)row * c->row_bytes,
		    c->row_bytes);
	}
	return -EINVAL;
}
