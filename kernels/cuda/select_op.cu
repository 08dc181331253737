/*
 * Selection (doc/design.md 5): index scores, and the exact top-k by (score
 * desc, position asc) over all shards.
 *
 * Decode: a rank scores its own keys and keeps its own winners as local pool
 * rows. Prefill: keys are gathered, query rows are split over all ranks (CP: a
 * row's owner), and the lists are exchanged. With fp8 keys of 128 the work is
 * done by index.cu, index_rows.cu and select.cu; here are plain kernels for any
 * other shape, in which every rank of a group reads the group's scores through
 * peer memory and finds the same threshold.
 */
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/digit.cuh"
#include "kernels/cuda/rowops.cuh"

struct score_args {
	const float *iq, *iw;	/* [m][hi][dim], [m][hi] */
	const uint32_t *own;
	const dcpk_row *row;
	const dcpk_req *req;
	const uint32_t *pages;
	const uint8_t *keys;	/* pool, or gathered by position */
	const float *scales;	/* or NULL */
	float *scores;		/* [m][ld] */
	size_t ld;
	dcpk_kv fmt;
	uint32_t hi, dim, key_bytes, D, dr, k, R;
	bool gathered;
	/* of the first block; prefill: slot row0 + j is row row0 + share +
	 * j * step, or, with own, one of these */
	uint32_t slot0, row0, step, share;
};

enum { KEYS = 64 };

/* Which row a block works on: its slot, the row in the pass and among q's. */
__device__ static void
row_of(const score_args &a, uint32_t b, uint32_t *slot, uint32_t *i,
    uint32_t *j)
{
	*slot = a.slot0 + b;
	*i = a.own ? a.own[*slot] : a.row0 + a.share + (*slot - a.row0) *
	    a.step;
	*j = a.own ? *slot : *i;
}

/*
 * A block owns 64 keys of one row: keys [64][dim+1] and the row's queries in
 * shared memory; a thread owns a key and a quarter of the heads.
 */
__global__ void
score_keys(score_args a)
{
	extern __shared__ float sm[];
	float *sk = sm, *sq = sm + KEYS * (a.dim + 1);
	__shared__ float part[4][KEYS];
	uint32_t slot, i, j, len, n, k0 = blockIdx.x * KEYS;

	row_of(a, blockIdx.y, &slot, &i, &j);
	dcpk_row row = a.row[i];
	len = row.pos + 1;
	if (len <= a.k)
		return;		/* all are selected */
	n = a.gathered ? len : len / a.D + (a.dr < len % a.D);
	if (k0 >= n)
		return;
	const uint32_t *table = a.pages + a.req[row.req].page0;
	uint32_t t = threadIdx.x % KEYS, quarter = threadIdx.x / KEYS;

	for (uint32_t e = threadIdx.x; e < KEYS * a.dim; e += blockDim.x) {
		uint32_t x = k0 + e / a.dim, d = e % a.dim;
		size_t at = a.gathered ? x : (size_t)table[x / a.R] * a.R +
		    x % a.R;

		sk[e / a.dim * (a.dim + 1) + d] = x < n ?
		    key_at(a.keys + at * a.key_bytes, a.fmt, d) : 0;
	}
	for (uint32_t e = threadIdx.x; e < a.hi * a.dim; e += blockDim.x)
		sq[e] = a.iq[(size_t)j * a.hi * a.dim + e];
	__syncthreads();
	float s = 0;

	for (uint32_t h = quarter; h < a.hi; h += 4) {
		float d = 0;

		for (uint32_t e = 0; e < a.dim; e++)
			d += sq[h * a.dim + e] * sk[t * (a.dim + 1) + e];
		s += a.iw[(size_t)j * a.hi + h] * fmaxf(d, 0);
	}
	part[quarter][t] = s;
	__syncthreads();
	if (quarter == 0 && k0 + t < n) {
		uint32_t x = k0 + t;
		size_t at = a.gathered ? x : (size_t)table[x / a.R] * a.R +
		    x % a.R;

		s = part[0][t] + part[1][t] + part[2][t] + part[3][t];
		a.scores[(size_t)blockIdx.y * a.ld + x] =
		    a.scales ? s * a.scales[at] : s;
	}
}

/* Descending order as ascending u32: NaN last of all, -0 as +0. */
__device__ static inline uint32_t
order_of(float f)
{
	return ~dcpg::score_key(f);
}

struct pick_args {
	dcpg_peers<float> scores;	/* of the shards' ranks */
	score_args s;
	uint32_t first, shards;	/* ranks first.. ; 1 when gathered */
	uint32_t dr;
	uint32_t *list, *count, *keep, *keep_n;
};

/*
 * One block of 512 a row. The threshold is found as the k-th smallest of the
 * composite (order, position), eight bits at a time, over all shards' scores;
 * then own winners are compacted in ascending position.
 */
__global__ void
pick_rows(pick_args a)
{
	__shared__ uint32_t hist[256], base, digit, warp_n[16];
	const score_args &s = a.s;
	uint32_t slot, i, j, len, D = a.shards, need = s.k;
	uint64_t prefix = 0, mask = 0;

	row_of(s, blockIdx.x, &slot, &i, &j);
	dcpk_row row = s.row[i];
	const uint32_t *table = s.pages + s.req[row.req].page0;
	len = row.pos + 1;
	size_t at = (size_t)blockIdx.x * s.ld;
	bool all = len <= s.k;

	for (int shift = 56; shift >= 0 && !all; shift -= 8) {
		for (uint32_t e = threadIdx.x; e < 256; e += blockDim.x)
			hist[e] = 0;
		__syncthreads();
		for (uint32_t r = 0; r < D; r++) {
			uint32_t n = len / D + (r < len % D);
			const float *p = a.scores.p[a.first + r] + at;

			for (uint32_t x = threadIdx.x; x < n;
			    x += blockDim.x) {
				uint64_t key = (uint64_t)order_of(p[x]) << 32 |
				    (x * D + r);

				if ((key & mask) == prefix)
					atomicAdd(&hist[key >> shift & 255],
					    1);
			}
		}
		__syncthreads();
		if (threadIdx.x == 0) {
			uint32_t d = 0, sum = 0;

			while (sum + hist[d] < need)
				sum += hist[d++];
			digit = d;
			base = sum;
		}
		__syncthreads();
		prefix |= (uint64_t)digit << shift;
		mask |= (uint64_t)255 << shift;
		need -= base;
		bool exact = hist[digit] == need;

		__syncthreads();
		if (exact)	/* everything in this bin belongs */
			break;
	}
	/* winner: key & mask <= prefix */
	uint32_t mine = s.gathered ? len : len / D + (a.dr < len % D);
	const float *p = a.scores.p[a.first + a.dr] + at;
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;

	if (threadIdx.x == 0)
		base = 0;
	__syncthreads();
	for (uint32_t x0 = 0; x0 < mine; x0 += blockDim.x) {
		uint32_t x = x0 + threadIdx.x, pos = x * D + a.dr;
		bool win = x < mine;

		if (win && !all)
			win = ((((uint64_t)order_of(p[x]) << 32) | pos) &
			    mask) <= prefix;
		uint32_t b = __ballot_sync(DCPG_FULL, win);
		uint32_t before = __popc(b & ((1u << lane) - 1)), off;

		if (lane == 0)
			warp_n[w] = __popc(b);
		__syncthreads();
		off = base;
		for (uint32_t v = 0; v < w; v++)
			off += warp_n[v];
		if (win) {
			a.list[(size_t)slot * s.k + off + before] = s.gathered ?
			    x : table[x / s.R] * s.R + x % s.R;
			if (a.keep)
				a.keep[(size_t)i * s.k + off + before] = pos;
		}
		__syncthreads();
		if (threadIdx.x == 0)
			for (uint32_t v = 0; v < blockDim.x / 32; v++)
				base += warp_n[v];
		__syncthreads();
	}
	if (threadIdx.x == 0) {
		a.count[slot] = base;
		if (a.keep_n)
			a.keep_n[i] = base;
	}
}

static score_args
base_args(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	score_args a = {};
	float *scales;

	a.iq = r->iq;
	a.iw = r->iw;
	a.own = r->own;
	a.step = 1;
	a.row = DCPG_PLAN(c, r, dcpk_row, rows_off);
	a.req = DCPG_PLAN(c, r, dcpk_req, reqs_off);
	a.pages = DCPG_PLAN(c, r, uint32_t, pages_off);
	a.keys = dcpg_pool_keys(c, r, layer, &scales);
	a.scales = scales;
	a.scores = r->scores;
	a.ld = c->scores_ld;
	a.fmt = c->s.idx;
	a.hi = m->idx_heads;
	a.dim = m->idx_dim;
	a.key_bytes = c->key_bytes;
	a.D = c->D;
	a.dr = r->dr;
	a.k = m->topk;
	a.R = c->page_rows;
	return a;
}

static size_t
score_smem(const score_args *a)
{
	return (KEYS * (a->dim + 1) + a->hi * a->dim) * sizeof(float);
}

/* Every rank of the group finds the same threshold in the group's scores. */
static int
pick_all(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		size_t at = (size_t)layer * c->M;
		pick_args p = {};

		cudaSetDevice(r->dev);
		p.s = base_args(c, r, layer);
		p.scores = DCPG_PEERS(c, r, float, scores);
		p.first = r->group * c->D;
		p.shards = c->D;
		p.dr = r->dr;
		p.list = r->list;
		p.count = r->count;
		p.keep = r->keep ? r->keep + at * p.s.k : NULL;
		p.keep_n = r->keep ? r->keep_n + at : NULL;
		pick_rows<<<c->rows, 512, 0, r->st>>>(p);
		rc |= DCPG_LAUNCHED("pick_rows");
	}
	return rc;
}

static int
decode(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		score_args a = base_args(c, r, layer);
		uint32_t n = dcpk_shard_len(c->longest, r->dr, c->D);

		cudaSetDevice(r->dev);
		if (c->longest > a.k && n > 0)
			score_keys<<<dim3((n + KEYS - 1) / KEYS, c->rows),
			    4 * KEYS, score_smem(&a), r->st>>>(a);
		rc |= DCPG_LAUNCHED("score_keys");
	}
	if (c->D > 1) {
		dcpg_share s = DCPG_SHARE(c, scores, c->rows * c->scores_ld *
		    4);

		rc |= dcpg_meet_over(c, DCPG_GROUP, &s, 1, 0);
	}
	return rc | pick_all(c, layer);
}

/* --- decode with fp8 keys of 128: index.cu and select.cu ---------------- */

/* Where each row's pages are, how many keys it has, how many on this rank. */
__global__ void
row_shards(const dcpk_row *row, const dcpk_req *req, uint32_t rows, uint32_t D,
    uint32_t dr, uint32_t *table_at, uint32_t *n, uint32_t *total)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, len;

	if (i >= rows)
		return;
	len = row[i].pos + 1;
	table_at[i] = req[row[i].req].page0;
	n[i] = len / D + (dr < len % D);
	total[i] = len;
}

int
dcpg_row_shards(dcpk_ctx *c, dcpg_rank *r)
{
	row_shards<<<(c->rows + 127) / 128, 128, 0, r->st>>>(
	    DCPG_PLAN(c, r, dcpk_row, rows_off),
	    DCPG_PLAN(c, r, dcpk_req, reqs_off), c->rows, c->D, r->dr,
	    r->table_at, r->shard_n, r->row_n);
	return DCPG_LAUNCHED("row_shards");
}

/* Counts of a row's digits start at 0: the selection leaves them so. */
static int
score_fast(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	struct dcpg_index_score a = {};
	float *scales;

	a.q8 = r->iq8;
	a.w = r->iw;
	a.keys = dcpg_pool_keys(c, r, layer, &scales);
	a.kscale = scales;
	a.table = DCPG_PLAN(c, r, uint32_t, pages_off);
	a.table_at = r->table_at;
	a.len = r->shard_n;
	a.score = r->scores;
	a.hist = r->hist;
	a.rows = c->rows;
	a.heads = c->s.model.idx_heads;
	a.stride = (uint32_t)c->scores_ld;
	a.max_len = dcpk_shard_len(c->longest, r->dr, c->D);
	a.page_rows = c->page_rows;
	return a.max_len != 0 ? dcpg_index_score(&a, r->st) : 0;
}

/* Before the first selection: nobody has offered anything. */
void
dcpg_no_offers(dcpk_ctx *c, dcpg_rank *r)
{
	size_t n = (size_t)c->D * c->s.max_rows;

	if (r->offer == NULL)
		return;
	cudaMemset(r->offer, 0xff, n * DCPG_OFFER_CAP * sizeof *r->offer);
	cudaMemset(r->window, 0xff, n * sizeof *r->window);
}

static struct dcpg_select
select_args(dcpk_ctx *c, dcpg_rank *r)
{
	struct dcpg_select a = {};

	a.score = r->scores;
	a.hist = a.clear = r->hist;
	a.table = DCPG_PLAN(c, r, uint32_t, pages_off);
	a.table_at = r->table_at;
	a.len = r->shard_n;
	a.list = r->list;
	a.count = r->count;
	a.rows = c->rows;
	a.stride = (uint32_t)c->scores_ld;
	a.max_len = max(1u, dcpk_shard_len(c->longest, r->dr, c->D));
	a.list_stride = c->s.model.topk;
	a.page_rows = c->page_rows;
	a.k = c->s.model.topk;
	a.rank = r->dr;
	a.ranks = c->D;
	if (c->D == 1)
		return a;
	a.cap = DCPG_OFFER_CAP;
	a.total = r->row_n;
	for (uint32_t e = 0; e < c->D; e++) {
		dcpg_rank *o = &c->r[r->group * c->D + e];
		bool peer = c->s.comm == DCPK_COMM_PEER;
		size_t mine = (size_t)r->dr * c->s.max_rows;
		size_t its = (size_t)e * c->s.max_rows;
		dcpg_rank *at = peer ? r : o;	/* where e's offers are */

		a.scores[e] = dcpg_seen(c, r, o->id, o->scores);
		a.from[e] = dcpg_seen(c, r, o->id, at->offer + its *
		    DCPG_OFFER_CAP);
		a.from_window[e] = dcpg_seen(c, r, o->id, at->window + its);
		if (!peer && o != r)
			continue;
		a.to[e] = o->offer + mine * DCPG_OFFER_CAP;
		a.to_window[e] = o->window + mine;
	}
	if (c->s.comm == DCPK_COMM_PEER)
		a.peer = dcpg_peer_of(c, r, 0);
	return a;
}

/* After it the group's offers, and its scores, can be read. */
static int
meet_offers(dcpk_ctx *c)
{
	size_t n = c->rows;
	const dcpg_share s[] = {
	    DCPG_SHARE(c, scores, n * c->scores_ld * 4),
	    DCPG_SHARE(c, offer + c->r[r_].dr * (size_t)c->s.max_rows *
		DCPG_OFFER_CAP, n * DCPG_OFFER_CAP * 8),
	    DCPG_SHARE(c, window + c->r[r_].dr * (size_t)c->s.max_rows,
		n * sizeof(struct dcpg_window)) };

	return dcpg_meet_over(c, DCPG_GROUP, s, 3, 0);
}

/*
 * D > 1: where ranks meet by flags, each launch waits for what its peers offer;
 * else they meet when all have offered. What a peer reads or writes of mine is
 * used again in the next layer, behind the meeting of attention's sum.
 */
static int
decode_fast(dcpk_ctx *c, uint32_t layer)
{
	bool meets = c->D > 1 && c->s.comm != DCPK_COMM_PEER;
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= score_fast(c, &c->r[i], layer);
		if (meets) {
			struct dcpg_select a = select_args(c, &c->r[i]);

			rc |= dcpg_select_offer(&a, c->r[i].st);
		}
	}
	if (meets)
		rc |= meet_offers(c);
	for (uint32_t i = 0; i < c->W; i++) {
		struct dcpg_select a = select_args(c, &c->r[i]);

		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_select(&a, c->r[i].st);
	}
	return rc;
}

/* Plain kernels, any shape: a request's rows in slices over gathered keys. */
static int
prefill(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, uint32_t req)
{
	const dcpk_req *rq = &DCPK_REQS(c->plan)[req];
	dcpg_span span = dcpg_span_of(c, r, dcpg_select_deal(c, r), req);
	uint32_t len = rq->prefix + rq->rows, slice;
	size_t at = (size_t)layer * c->M;
	pick_args p = {};
	int rc = 0;

	p.s = base_args(c, r, layer);
	p.s.gathered = true;
	p.s.keys = r->gkeys;
	p.s.scales = c->s.idx == DCPK_KV_FP8 ? r->gscales : NULL;
	p.s.ld = (len + 63) / 64 * 64;
	p.s.row0 = rq->row0;
	p.s.step = c->W;
	p.s.share = r->id;
	p.scores.p[0] = r->scores;
	p.shards = 1;
	p.list = r->sel;
	p.count = r->sel_n;
	p.keep = r->keep ? r->keep + at * p.s.k : NULL;
	p.keep_n = r->keep ? r->keep_n + at : NULL;
	if (span.n > 0 && len > p.s.k)
		rc |= dcpg_gather(c, r, layer, req, true);
	slice = max(1u, (uint32_t)(DCPG_SCORES / p.s.ld));
	for (uint32_t s = 0; s < span.n; s += slice) {
		uint32_t n = min(slice, span.n - s);

		p.s.slot0 = span.slot0 + s;
		if (len > p.s.k)
			score_keys<<<dim3((len + KEYS - 1) / KEYS, n),
			    4 * KEYS, score_smem(&p.s), r->st>>>(p.s);
		pick_rows<<<n, 512, 0, r->st>>>(p);
		rc |= DCPG_LAUNCHED("prefill scores");
	}
	return rc;
}

static int
prefill_all(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	for (uint32_t q = 0; q < c->plan->n_reqs; q++) {
		const dcpk_req *rq = &DCPK_REQS(c->plan)[q];

		if (rq->prefix + rq->rows > c->s.model.topk)
			rc |= dcpg_bring(c, layer, q, true);
		for (uint32_t i = 0; i < c->W; i++) {
			dcpg_rank *r = &c->r[i];

			cudaSetDevice(r->dev);
			rc |= c->fast_rows ?
			    dcpg_select_rows(c, r, layer, q) :
			    prefill(c, r, layer, q);
		}
	}
	for (uint32_t i = 0; c->fast_rows && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		if (c->r[i].keep != NULL)
			rc |= dcpg_keep_rows(c, &c->r[i], layer);
	}
	return rc;
}

int
dcpg_select_op(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	if (c->replay)
		return 0;
	if (!c->prefill) {
		rc = c->fast_index ? decode_fast(c, layer) : decode(c, layer);
		return rc != 0 ? -EIO : 0;
	}
	/* every rank's keys of this step are stored before peers read them */
	rc |= dcpg_meet(c);
	rc |= prefill_all(c, layer);
	rc |= dcpg_swap_lists(c);
	return rc != 0 ? -EIO : 0;
}

/* Once per device: shared memory above the default. */
int
dcpg_plain_init(void)
{
	return cudaFuncSetAttribute(score_keys,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024) ==
	    cudaSuccess ? 0 : -EIO;
}
