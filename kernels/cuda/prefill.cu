/*
 * The selection of prefill: which rank selects for which rows, the fast way
 * over them, and lists on their way to the ranks that attend (doc/design.md 3).
 *
 * Rows are dealt out to all ranks (under CP to the cp ranks, and the tp ranks
 * of each do the same), so each scores its part against all keys of the
 * request: those in its own pool where D is 1, else gathered into one run. What
 * does not fit into the scores is done in slices.
 */
#include <algorithm>
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/rowops.cuh"

/* CP prefill: who computes which row, for the device. */
int
dcpg_owners(dcpk_ctx *c)
{
	const dcpk_topo *t = &c->s.topo;
	const dcpk_row *row = DCPK_ROWS(c->plan);
	uint32_t M = c->M;
	int rc = 0;

	for (uint32_t q = 0; q < c->W; q++) {
		dcpg_rank *r = &c->r[q];
		uint32_t *own = c->own_pinned + (size_t)q * 3 * M;
		uint32_t *owner = own + M, *jof = own + 2 * M;
		std::vector<uint32_t> n(t->cp);

		for (uint32_t i = 0; i < c->rows; i++) {
			const dcpk_req *rq =
			    &DCPK_REQS(c->plan)[row[i].req];

			owner[i] = dcpk_cp_owner(t->strategy, i - rq->row0,
			    rq->rows, rq->prefix, t->cp);
			jof[i] = n[owner[i]]++;
			if (owner[i] == r->cp)
				own[jof[i]] = i;
		}
		r->m = n[r->cp];
		r->own = r->own_mem;
		r->owner = r->own_mem + M;
		r->jof = r->own_mem + 2 * M;
		cudaSetDevice(r->dev);
		rc |= dcpg_ok(cudaMemcpyAsync(r->own_mem, own, 3 *
		    (size_t)M * 4, cudaMemcpyHostToDevice, r->st), "rows");
	}
	return rc;
}

dcpg_deal
dcpg_select_deal(const dcpk_ctx *c, const dcpg_rank *r)
{
	dcpg_deal d = { r->owner, r->jof, c->W, r->id };

	if (d.owner != NULL)
		d.self = r->cp;
	return d;
}

/* a2a: every D-th row; else every row, or the own ones. */
dcpg_deal
dcpg_attend_deal(const dcpk_ctx *c, const dcpg_rank *r)
{
	dcpg_deal d = { r->owner, r->jof, 1, 0 };

	if (d.owner != NULL)
		d.self = r->cp;
	else if (c->gathered && c->plan->way == DCPK_WAY_A2A) {
		d.n = c->D;
		d.self = r->dr;
	}
	return d;
}

dcpg_span
dcpg_span_of(const dcpk_ctx *c, const dcpg_rank *r, const dcpg_deal &d,
    uint32_t req)
{
	const dcpk_req *q = &DCPK_REQS(c->plan)[req];
	dcpg_span s = { q->row0, 0 };

	if (d.owner != NULL) {
		const uint32_t *own = c->own_pinned + (size_t)r->id * 3 * c->M;
		const uint32_t *end = own + r->m;

		s.slot0 = (uint32_t)(std::lower_bound(own, end, q->row0) - own);
		s.n = (uint32_t)(std::lower_bound(own, end, q->row0 +
		    q->rows) - own) - s.slot0;
	} else if (q->rows > d.self)
		s.n = (q->rows - d.self + d.n - 1) / d.n;
	return s;
}

/* --- rows and keys in order of position ---------------------------------- */

struct gather_args {
	dcpg_peers<uint8_t> pool;	/* first row of this layer */
	dcpg_peers<float> scales;
	const uint32_t *pages;
	uint8_t *out;
	float *sout;
	uint32_t first, D, row_bytes, len, R;
	bool packed;	/* a rank's rows stand one after another */
};

/* One warp a position: its bytes, from the rank that holds it. */
__global__ void
gather_rows(gather_args a)
{
	uint32_t pos = blockIdx.x * 8 + threadIdx.x / 32, r, lane;
	size_t at;

	if (pos >= a.len)
		return;
	lane = threadIdx.x % 32;
	r = a.first + pos % a.D;
	at = a.packed ? pos / a.D : (size_t)a.pages[pos / DCPK_PAGE] * a.R +
	    pos % DCPK_PAGE / a.D;
	const uint32_t *s = (const uint32_t *)(a.pool.p[r] + at * a.row_bytes);
	uint32_t *d = (uint32_t *)(a.out + (size_t)pos * a.row_bytes);

	for (uint32_t e = lane; e < a.row_bytes / 4; e += 32)
		d[e] = s[e];
	if (a.sout && lane == 0)
		a.sout[pos] = a.scales.p[r][at];
}

/* Of a request: most positions that one rank holds, and where, in what it
 * sends of keys, their scales stand. */
static size_t
shard_of(const dcpk_ctx *c, uint32_t req)
{
	const dcpk_req *q = &DCPK_REQS(c->plan)[req];

	return dcpk_shard_len(q->prefix + q->rows, 0, c->D);
}

static size_t
scales_at(const dcpk_ctx *c, uint32_t req)
{
	return (shard_of(c, req) * c->key_bytes + 255) / 256 * 256;
}

/* A warp a row of this rank, in order of position. */
__global__ void
pack_rows(const uint8_t *pool, const float *scales, const uint32_t *pages,
    uint32_t R, uint32_t row_bytes, uint32_t n, uint8_t *out, float *sout)
{
	uint32_t j = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;

	if (j >= n)
		return;
	size_t at = (size_t)pages[j / R] * R + j % R;
	const uint32_t *s = (const uint32_t *)(pool + at * row_bytes);
	uint32_t *d = (uint32_t *)(out + (size_t)j * row_bytes);

	for (uint32_t e = lane; e < row_bytes / 4; e += 32)
		d[e] = s[e];
	if (scales && lane == 0)
		sout[j] = scales[at];
}

int
dcpg_bring(dcpk_ctx *c, uint32_t layer, uint32_t req, bool keys)
{
	const dcpk_req *q = &DCPK_REQS(c->plan)[req];
	uint32_t el = keys ? c->key_bytes : c->row_bytes;
	size_t n = shard_of(c, req), at = scales_at(c, req);
	dcpg_share s[2] = {};
	int rc = 0;

	if (!c->mirrored || c->D == 1)
		return 0;
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		float *scales = NULL;
		uint8_t *pool = keys ? dcpg_pool_keys(c, r, layer, &scales) :
		    dcpg_pool_rows(c, r, layer);
		uint32_t mine = dcpk_shard_len(q->prefix + q->rows, r->dr,
		    c->D);

		s[0].of[i] = r->mirror;
		s[1].of[i] = r->mirror + at;
		if (mine == 0)
			continue;
		cudaSetDevice(r->dev);
		pack_rows<<<(mine + 7) / 8, 256, 0, r->st>>>(pool, scales,
		    DCPG_PLAN(c, r, uint32_t, pages_off) + q->page0,
		    c->page_rows, el, mine, (uint8_t *)r->mirror,
		    (float *)(r->mirror + at));
		rc |= DCPG_LAUNCHED("pack_rows");
	}
	s[0].bytes = n * el;
	s[1].bytes = n * 4;
	return rc | dcpg_meet_over(c, DCPG_GROUP, s, keys ? 2 : 1,
	    keys ? at + n * 4 : n * el);
}

/* Rows (keys = false) or index keys of one request into gather / gkeys. */
int
dcpg_gather(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, uint32_t req, bool keys)
{
	const dcpk_req *q = &DCPK_REQS(c->plan)[req];
	gather_args a = {};

	a.packed = c->mirrored && c->D > 1;
	for (uint32_t i = 0; i < c->W; i++) {
		char *sent = c->r[i].mirror;

		a.pool.p[i] = keys ?
		    dcpg_pool_keys(c, &c->r[i], layer, &a.scales.p[i]) :
		    dcpg_pool_rows(c, &c->r[i], layer);
		if (!a.packed)
			continue;
		a.pool.p[i] = dcpg_seen(c, r, i, (uint8_t *)sent);
		a.scales.p[i] = dcpg_seen(c, r, i,
		    (float *)(sent + scales_at(c, req)));
	}
	a.pages = DCPG_PLAN(c, r, uint32_t, pages_off) + q->page0;
	a.out = keys ? r->gkeys : r->gather;
	a.sout = keys && c->s.idx == DCPK_KV_FP8 ? r->gscales : NULL;
	a.first = r->group * c->D;
	a.D = c->D;
	a.R = c->page_rows;
	a.row_bytes = keys ? c->key_bytes : c->row_bytes;
	a.len = q->prefix + q->rows;
	gather_rows<<<(a.len + 7) / 8, 256, 0, r->st>>>(a);
	return DCPG_LAUNCHED("gather_rows");
}

/* --- selection ----------------------------------------------------------- */

/* Keys that each row sees which this rank selects for. */
__global__ void
row_ends(const dcpk_row *row, const dcpk_req *req, uint32_t rows, dcpg_deal d,
    uint32_t *len)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, row0;

	if (i >= rows)
		return;
	row0 = req[row[i].req].row0;
	if (dealt_to(d, i, row0) == d.self)
		len[slot_of(d, i, row0)] = row[i].pos + 1;
}

int
dcpg_row_ends(dcpk_ctx *c, dcpg_rank *r)
{
	row_ends<<<(c->rows + 127) / 128, 128, 0, r->st>>>(
	    DCPG_PLAN(c, r, dcpk_row, rows_off),
	    DCPG_PLAN(c, r, dcpk_req, reqs_off), c->rows,
	    dcpg_select_deal(c, r), r->row_len);
	return DCPG_LAUNCHED("row_ends");
}

/* Scores, first digits and lists of neighbouring slots; a has the keys. */
static int
select_slice(dcpk_ctx *c, dcpg_rank *r, struct dcpg_index_rows *a,
    uint32_t slot, bool score)
{
	struct dcpg_select s = {};
	int rc = 0;

	a->len = r->row_len + slot;
	if (score)
		rc |= dcpg_index_rows(a, r->st);
	rc |= dcpg_index_count(a, r->st);
	s.score = a->score;
	s.hist = s.clear = a->hist;	/* decode finds it as it was */
	s.len = a->len;
	s.k = s.list_stride = c->s.model.topk;
	s.list = r->sel + (size_t)slot * s.k;
	s.count = r->sel_n + slot;
	s.rows = a->rows;
	s.stride = a->stride;
	s.max_len = a->keys_n;
	s.page_rows = DCPK_PAGE;
	s.ranks = 1;
	return rc | dcpg_select(&s, r->st);
}

int
dcpg_select_rows(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, uint32_t req)
{
	const dcpk_model *m = &c->s.model;
	const dcpk_req *q = &DCPK_REQS(c->plan)[req];
	dcpg_span span = dcpg_span_of(c, r, dcpg_select_deal(c, r), req);
	struct dcpg_index_rows a = {};
	float *scales;
	int rc = 0;

	a.keys_n = q->prefix + q->rows;
	a.least = m->topk;
	if (c->D == 1) {
		a.keys = dcpg_pool_keys(c, r, layer, &scales);
		a.kscale = scales;
		a.table = DCPG_PLAN(c, r, uint32_t, pages_off) + q->page0;
		a.page_rows = c->page_rows;
	} else {
		if (span.n > 0 && a.keys_n > a.least)
			rc |= dcpg_gather(c, r, layer, req, true);
		a.keys = r->gkeys;
		a.kscale = r->gscales;
	}
	a.score = r->scores;
	a.hist = r->hist;
	a.heads = m->idx_heads;
	a.q_step = r->own ? 1 : c->W;
	a.stride = (a.keys_n + 63) / 64 * 64;
	for (uint32_t s = 0; s < span.n; s += a.rows) {
		size_t j = r->own ? span.slot0 + s : q->row0 + r->id +
		    (size_t)s * c->W;

		a.rows = (uint32_t)std::min<size_t>({ span.n - s, DCPG_SLICE,
		    DCPG_SCORES / a.stride });
		a.q8 = r->iq8 + j * a.heads * 128;
		a.w = r->iw + j * a.heads;
		rc |= select_slice(c, r, &a, span.slot0 + s, a.keys_n >
		    a.least);
	}
	return rc;
}

/* DCPK_KEEP_SELECT: this rank's lists, by row. */
__global__ void
keep_rows(const dcpk_row *row, const dcpk_req *req, dcpg_deal d,
    const uint32_t *sel, const uint32_t *sel_n, uint32_t k, uint32_t *keep,
    uint32_t *keep_n)
{
	uint32_t i = blockIdx.x, row0 = req[row[i].req].row0, slot;

	if (dealt_to(d, i, row0) != d.self)
		return;
	slot = slot_of(d, i, row0);
	for (uint32_t x = threadIdx.x; x < sel_n[slot]; x += blockDim.x)
		keep[(size_t)i * k + x] = sel[(size_t)slot * k + x];
	if (threadIdx.x == 0)
		keep_n[i] = sel_n[slot];
}

int
dcpg_keep_rows(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	size_t at = (size_t)layer * c->M;
	uint32_t k = c->s.model.topk;

	keep_rows<<<c->rows, 256, 0, r->st>>>(
	    DCPG_PLAN(c, r, dcpk_row, rows_off),
	    DCPG_PLAN(c, r, dcpk_req, reqs_off), dcpg_select_deal(c, r),
	    r->sel, r->sel_n, k, r->keep + at * k, r->keep_n + at);
	return DCPG_LAUNCHED("keep_rows");
}

/* --- lists to those who attend ------------------------------------------- */

struct swap_args {
	dcpg_peers<uint32_t> list, count;
	dcpg_deal from, to;	/* as selected; as attended */
	uint32_t *out, *n_out, k, self;
	const dcpk_row *row;
	const dcpk_req *req;
	const uint32_t *pages;
	uint32_t D, dr, R;
	bool local;	/* keep own positions only, as pool rows */
	uint32_t i0;	/* the first block's row */
	uint32_t slot0;	/* at which `list` and `count` begin */
};

/*
 * One block a row: the list of positions from the rank that selected it, as it
 * is or cut down to this rank's pool rows (order kept). Under CP lists are
 * where they are needed.
 */
__global__ void
take_lists(swap_args a)
{
	__shared__ uint32_t warp_n[8], base;
	uint32_t i = a.i0 + blockIdx.x;
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;
	dcpk_row row = a.row[i];
	uint32_t row0 = a.req[row.req].row0;

	if (dealt_to(a.to, i, row0) != a.to.self)
		return;
	uint32_t from = a.from.owner ? a.self : dealt_to(a.from, i, row0);
	uint32_t at = slot_of(a.from, i, row0) - a.slot0;
	uint32_t to = slot_of(a.to, i, row0);
	const uint32_t *src = a.list.p[from] + (size_t)at * a.k;
	const uint32_t *table = a.pages + a.req[row.req].page0;
	uint32_t n = a.count.p[from][at];

	if (threadIdx.x == 0)
		base = 0;
	__syncthreads();
	for (uint32_t x0 = 0; x0 < n; x0 += blockDim.x) {
		uint32_t x = x0 + threadIdx.x, pos = x < n ? src[x] : 0, off;
		bool win = x < n && (!a.local || pos % a.D == a.dr);
		uint32_t b = __ballot_sync(DCPG_FULL, win);

		if (lane == 0)
			warp_n[w] = __popc(b);
		__syncthreads();
		off = base + __popc(b & ((1u << lane) - 1));
		for (uint32_t v = 0; v < w; v++)
			off += warp_n[v];
		if (win)
			a.out[(size_t)to * a.k + off] = a.local ?
			    table[pos / DCPK_PAGE] * a.R +
			    pos % DCPK_PAGE / a.D : pos;
		__syncthreads();
		if (threadIdx.x == 0)
			for (uint32_t v = 0; v < blockDim.x / 32; v++)
				base += warp_n[v];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		a.n_out[to] = base;
}

static int
swap_rows(dcpk_ctx *c, dcpg_rank *r, uint32_t i0, uint32_t rows,
    uint32_t slot0)
{
	size_t at = (size_t)slot0 * c->s.model.topk;
	swap_args a = {};

	a.list = DCPG_PEERS(c, r, uint32_t, sel + at);
	a.count = DCPG_PEERS(c, r, uint32_t, sel_n + slot0);
	a.i0 = i0;
	a.slot0 = slot0;
	a.from = dcpg_select_deal(c, r);
	a.to = dcpg_attend_deal(c, r);
	a.out = r->list;
	a.n_out = r->count;
	a.k = c->s.model.topk;
	a.self = r->id;
	a.row = DCPG_PLAN(c, r, dcpk_row, rows_off);
	a.req = DCPG_PLAN(c, r, dcpk_req, reqs_off);
	a.pages = DCPG_PLAN(c, r, uint32_t, pages_off);
	a.D = c->D;
	a.dr = r->dr;
	a.R = c->page_rows;
	a.local = !c->gathered;
	cudaSetDevice(r->dev);
	take_lists<<<rows, 256, 0, r->st>>>(a);
	return DCPG_LAUNCHED("take_lists");
}

static int
swap_all(dcpk_ctx *c, uint32_t i0, uint32_t rows, uint32_t slot0)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++)
		rc |= swap_rows(c, &c->r[i], i0, rows, slot0);
	return rc;
}

/* All rows at once, or, where lists must be brought, request by request. */
int
dcpg_swap_lists(dcpk_ctx *c)
{
	size_t k = c->s.model.topk;
	int rc = 0;

	if (!c->mirrored || c->r[0].owner != NULL)
		return dcpg_meet(c) | swap_all(c, 0, c->rows, 0);
	for (uint32_t q = 0; q < c->plan->n_reqs; q++) {
		const dcpk_req *rq = &DCPK_REQS(c->plan)[q];
		size_t n = (rq->rows + c->W - 1) / c->W, at = rq->row0 * k;
		const dcpg_share s[] = {
		    DCPG_SHARE(c, sel + at, n * k * 4),
		    DCPG_SHARE(c, sel_n + rq->row0, n * 4) };

		rc |= dcpg_meet_over(c, DCPG_ALL, s, 2, 0);
		rc |= swap_all(c, rq->row0, rq->rows, rq->row0);
	}
	return rc;
}
