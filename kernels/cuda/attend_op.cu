/*
 * Sparse attention over the selected rows, the merge by LSE, and the way back
 * to the residual stream. Where the work is done: see kernels/cpu/attend.c;
 * both backends follow the same layouts.
 */
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/rowops.cuh"

/* Everything of a query row stands at its slot (dcpg_attend_deal). */
struct att_args {
	const bf16 *q;		/* [..][heads][c+r] */
	const uint8_t *rows;
	const uint32_t *list, *count;
	float *o, *lse;		/* [..][heads][c], [..][heads]; or */
	bf16 *o16;		/* [..][heads][c] */
	dcpk_kv kv;
	uint32_t heads, c, r, k, row_bytes;
	uint32_t slot0;		/* of the first */
	float scale;
	bool send;		/* o and lse: straight to the ranks that own the
				   heads (sends_o) */
};

/*
 * Any shape: a block of 128 owns one head of one row. Scores of its keys stay
 * in shared memory [k], q beside them; a warp takes a key for the dot product,
 * a thread takes latent columns for the output.
 */
__global__ void
attend_any(att_args a)
{
	extern __shared__ float sm[];
	float *p = sm, *sq = sm + a.k;
	uint32_t i = a.slot0 + blockIdx.x, h = blockIdx.y, n = a.count[i];
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;
	float m = -INFINITY, s = 0;

	const uint32_t *list = a.list + (size_t)i * a.k;
	const bf16 *q = a.q + ((size_t)i * a.heads + h) * (a.c + a.r);
	size_t at = ((size_t)i * a.heads + h) * a.c;

	for (uint32_t d = threadIdx.x; d < a.c + a.r; d += blockDim.x)
		sq[d] = __bfloat162float(q[d]);
	__syncthreads();
	for (uint32_t t = w; t < n; t += blockDim.x / 32) {
		const uint8_t *row = a.rows + (size_t)list[t] * a.row_bytes;
		float d = 0;

		for (uint32_t e = lane; e < a.c + a.r; e += 32)
			d += sq[e] * row_at(row, a.kv, a.c, e);
		d = warp_sum(d) * a.scale;
		if (lane == 0)
			p[t] = d;
	}
	__syncthreads();
	for (uint32_t t = threadIdx.x; t < n; t += blockDim.x)
		m = fmaxf(m, p[t]);
	m = block_max(m);
	for (uint32_t t = threadIdx.x; t < n; t += blockDim.x) {
		p[t] = __expf(p[t] - m);
		s += p[t];
	}
	s = block_sum(s);
	__syncthreads();
	for (uint32_t d = threadIdx.x; d < a.c; d += blockDim.x) {
		float v = 0;

		for (uint32_t t = 0; t < n; t++)
			v += p[t] * row_at(a.rows + (size_t)list[t] *
			    a.row_bytes, a.kv, a.c, d);
		v = n > 0 ? v / s : 0;
		if (a.o16)
			a.o16[at + d] = __float2bfloat16(v);
		else
			a.o[at + d] = v;
	}
	if (a.lse && threadIdx.x == 0)
		a.lse[(size_t)i * a.heads + h] =
		    n > 0 ? m + logf(s) : -INFINITY;
}

/* qg[slot][e*Hr + h] = q of the group's e-th rank; one block a row. */
__global__ void
gather_q(dcpg_peers<bf16> q, const dcpk_row *row, const dcpk_req *req,
    dcpg_deal deal, uint32_t first, uint32_t D, uint32_t Hr, uint32_t ld,
    bf16 *qg)
{
	uint32_t i = blockIdx.x, n = Hr * ld / 8;
	uint32_t row0 = req[row[i].req].row0;
	size_t slot = slot_of(deal, i, row0);

	if (dealt_to(deal, i, row0) != deal.self)
		return;
	for (uint32_t e = 0; e < D; e++) {
		const uint4 *s = (const uint4 *)(q.p[first + e] +
		    (size_t)i * Hr * ld);
		uint4 *d = (uint4 *)(qg + (slot * D + e) * Hr * ld);

		for (uint32_t x = threadIdx.x; x < n; x += blockDim.x)
			d[x] = s[x];
	}
}

struct merge_args {
	dcpg_peers<bf16> po;	/* [rows][D*Hr][c] partial outputs */
	dcpg_peers<float> pl;	/* [rows][D*Hr] their LSE */
	uint32_t first, D, Hr, c;
	uint32_t ld, own;	/* ranks' heads in a row of po: D, dr; or, where
				   others' heads are not there, 1, 0 */
	bf16 *o;		/* [rows][Hr][c] */
	struct dcpg_peer peer;
};

/* Own heads of every row from the group's partials, eight columns a thread. */
__global__ void __launch_bounds__(256)
merge_parts(const __grid_constant__ merge_args a)
{
	uint32_t i = blockIdx.x, piece = blockIdx.y * 256 + threadIdx.x;
	uint32_t h = piece / (a.c / 8), col = piece % (a.c / 8) * 8;
	size_t at = ((size_t)i * a.ld + a.own) * a.Hr + h;

	dcpg::meet_in(a.peer, i == 0 && blockIdx.y == 0);
	if (h < a.Hr)
		*(uint4 *)(a.o + ((size_t)i * a.Hr + h) * a.c + col) =
		    dcpg::merge_eight(a.po.p + a.first, a.pl.p + a.first, a.D,
		    at, a.c, col);
	dcpg::meet_out(a.peer, gridDim.x * gridDim.y);
}

/* a2a: own heads of rows i0 .. from the rank that attended them; po begins at
 * slot0, ld and own as in merge_args. */
__global__ void
take_heads(dcpg_peers<float> po, const dcpk_row *row, const dcpk_req *req,
    dcpg_deal deal, uint32_t first, uint32_t ld, uint32_t own, uint32_t Hr,
    uint32_t c, uint32_t i0, uint32_t slot0, bf16 *o)
{
	uint32_t i = i0 + blockIdx.x, h = blockIdx.y;
	uint32_t row0 = req[row[i].req].row0;
	size_t slot = slot_of(deal, i, row0) - slot0;
	const float *s = po.p[first + dealt_to(deal, i, row0)] +
	    ((slot * ld + own) * Hr + h) * c;

	for (uint32_t d = threadIdx.x; d < c; d += blockDim.x)
		o[((size_t)i * Hr + h) * c + d] = __float2bfloat16(s[d]);
}

static bool
has_fast(const dcpk_ctx *c, uint32_t heads)
{
	return c->fast_attend && heads >= 8 && heads <= 128 &&
	    (heads & (heads - 1)) == 0;
}

/* value.cu merges the partials, and makes values of them, for few rows; from
 * peers' memory, where it can be reached. */
static bool
by_value(const dcpk_ctx *c)
{
	return !c->prefill && c->rows <= 64 && c->fast_attend &&
	    !c->mirrored && c->s.model.vdim % 64 == 0;
}

/*
 * Decode: do partial outputs cross while attention still runs, from its blocks
 * into the owners' memory? Otherwise the owners fetch them when it has ended. A
 * rank's value.cu has read what stood in the place, two layers before, and has
 * set it to ones, one layer before, when its peers' attention writes there: all
 * have met in the sums between.
 */
static bool
sends_o(const dcpk_ctx *c)
{
	return c->D > 1 && by_value(c) && has_fast(c, c->Hg) &&
	    c->s.wire != DCPK_WIRE_FP8;
}

/* Where rank `from` tells rank o's value.cu of outputs that it has written. */
static uint32_t *
arrivals(dcpk_ctx *c, const dcpg_rank *o, dcpg_rank *from)
{
	struct dcpg_peer p = dcpg_peer_of(c, from, 0);

	return c->s.comm == DCPK_COMM_PEER ? dcpg::peer_arrivals(p, o->id,
	    from->id) : NULL;
}

/* Elements between the two places where layers' partials come in turn, so that
 * in one what peers sent is read while the other is made ready; of their LSEs a
 * 512th of it. */
static size_t
o_turn(const dcpk_ctx *c, uint32_t layer)
{
	return layer % 2 * c->M * c->Hg * (size_t)DCPG_LATENT;
}

/* The tables, one for each turn, that attention of a rank looks its group's
 * owners up in; without peer access there are none. */
int
dcpg_parts_open(dcpk_ctx *c, dcpg_rank *r)
{
	std::vector<dcpg_part> to(2 * c->D);

	if (r->parts == NULL)
		return 0;
	for (uint32_t i = 0; i < 2 * c->D; i++) {
		dcpg_rank *o = &c->r[r->group * c->D + i % c->D];
		size_t turn = o_turn(c, i / c->D);

		to[i] = { (bf16 *)o->po + turn, o->plse + turn / DCPG_LATENT,
		    arrivals(c, o, r) };
	}
	cudaSetDevice(r->dev);	/* behind what clears its memory */
	return dcpg_ok(cudaMemcpy(r->parts, to.data(), to.size() * sizeof to[0],
	    cudaMemcpyHostToDevice), "parts");
}

/* What rank `from` of r's group has sent it. */
static bf16 *
sent_o(const dcpk_ctx *c, const dcpg_rank *r, uint32_t layer, uint32_t from)
{
	return (bf16 *)r->po + o_turn(c, layer) + (size_t)from * c->rows *
	    c->Hr * DCPG_LATENT;
}

static float *
sent_lse(const dcpk_ctx *c, const dcpg_rank *r, uint32_t layer, uint32_t from)
{
	return r->plse + o_turn(c, layer) / DCPG_LATENT + (size_t)from *
	    c->rows * c->Hr;
}

/* Is what is sent known by its own words? What the first layer writes to was
 * not made ready by one before. */
static bool
by_words(const dcpk_ctx *c, uint32_t layer)
{
	return c->s.comm == DCPK_COMM_PEER && sends_o(c) && layer != 0;
}

static uint64_t
q_bytes(const dcpk_ctx *c)
{
	return (uint64_t)c->Hr * (c->s.model.kv_lora + c->s.model.rope) *
	    sizeof(bf16);
}

/* Does q cross by pushes, or is it fetched after a meeting? */
bool
dcpg_pushes_q(const dcpk_ctx *c)
{
	return c->D > 1 && !c->gathered && c->s.comm == DCPK_COMM_PEER &&
	    (c->s.model.kv_lora + c->s.model.rope) % 8 == 0;
}

/* Few rows of decode: query.cu does all that is behind q_b. */
bool
dcpg_by_query(const dcpk_ctx *c)
{
	const dcpk_model *m = &c->s.model;

	return !c->prefill && c->rows <= 64 &&
	    dcpg_query_fits(m->kv_lora, m->rope, m->nope);
}

/* Elements between the two places that query.cu's layers use in turn, so that
 * in one what peers sent is read while the other is made ready; 0: no room. */
static size_t
q_turn(const dcpk_ctx *c)
{
	return dcpg_by_query(c) && dcpg_pushes_q(c) && 2 * c->rows <= c->M ?
	    c->rows * c->D * (q_bytes(c) / sizeof(bf16)) : 0;
}

/* Does attention wait for q itself? */
static bool
q_by_words(const dcpk_ctx *c, uint32_t layer)
{
	return q_turn(c) != 0 && by_words(c, layer);
}

/* Heads that attend.cu has: the fast kernel. A rank's pool has its share of the
 * keys that are selected. */
static struct dcpg_attend
fast_args(dcpk_ctx *c, dcpg_rank *r, const att_args *a, uint32_t layer,
    uint32_t rows)
{
	const dcpk_model *m = &c->s.model;
	size_t at = (size_t)a->slot0 * a->heads;
	struct dcpg_attend f = {};

	f.q = a->q + at * (DCPG_LATENT + DCPG_ROPE);
	f.q_ones = a->send && q_by_words(c, layer);
	if (f.q_ones) {
		f.first = r->group * c->D;
		f.peer = dcpg_peer_of(c, r, 0);
	}
	f.pool = a->rows;
	f.list = r->list + (size_t)a->slot0 * m->topk;
	f.count = r->count + a->slot0;
	f.out_f32 = a->o16 == NULL;
	if (f.out_f32)
		f.out = a->o + at * DCPG_LATENT;
	else
		f.out = a->o16 + at * DCPG_LATENT;
	f.lse = (a->lse ? a->lse : r->lse_unused) + at;
	/* attend_out.cuh: more ranks might wait for SMs that they all hold */
	f.work = c->s.ranks_per_gpu > 8 ? NULL : r->attend_work;
	f.to = a->send ? r->parts + layer % 2 * c->D : NULL;
	f.arrive = c->s.comm == DCPK_COMM_PEER && !by_words(c, layer);
	f.parts = c->D;
	f.self = r->dr;
	f.rows = rows;
	f.heads = a->heads;
	f.list_stride = m->topk;
	f.max_count = m->topk;
	if (!c->gathered)
		f.expected = (m->topk + c->D - 1) / c->D;
	f.kv = c->s.kv;
	f.scale = m->attn_scale;
	return f;
}

static int
attend(dcpk_ctx *c, dcpg_rank *r, att_args *a, uint32_t layer, uint32_t rows)
{
	const dcpk_model *m = &c->s.model;

	if (rows == 0)
		return 0;
	if (has_fast(c, a->heads)) {
		struct dcpg_attend f = fast_args(c, r, a, layer, rows);

		return dcpg_attend(&f, r->st);
	}
	a->kv = c->s.kv;
	a->c = m->kv_lora;
	a->r = m->rope;
	a->k = m->topk;
	a->row_bytes = c->row_bytes;
	a->scale = m->attn_scale;
	a->list = r->list;
	a->count = r->count;
	attend_any<<<dim3(rows, a->heads), 128,
	    (a->k + a->c + a->r) * sizeof(float), r->st>>>(*a);
	return DCPG_LAUNCHED("attend_any");
}

/* The group's q of the rows that this rank attends for. */
static int
bring_q(dcpk_ctx *c, dcpg_rank *r)
{
	gather_q<<<c->rows, 256, 0, r->st>>>(DCPG_PEERS(c, r, bf16, q),
	    DCPG_PLAN(c, r, dcpk_row, rows_off),
	    DCPG_PLAN(c, r, dcpk_req, reqs_off), dcpg_attend_deal(c, r),
	    r->group * c->D, c->D, c->Hr,
	    c->s.model.kv_lora + c->s.model.rope, r->qg);
	return DCPG_LAUNCHED("gather_q");
}

/* After it q of the group can be read. */
static int
meet_q(dcpk_ctx *c)
{
	const dcpg_share s = DCPG_SHARE(c, q, c->rows * q_bytes(c));

	return dcpg_meet_over(c, DCPG_GROUP, &s, 1, 0);
}

/* Where rank e of r's group reads r's q, that rank itself among them. */
static bf16 *
place_of_q(const dcpk_ctx *c, const dcpg_rank *r, uint32_t e)
{
	return c->r[r->group * c->D + e].qg + r->dr * (q_bytes(c) /
	    sizeof(bf16));
}

bf16 *
dcpg_own_q(const dcpk_ctx *c, const dcpg_rank *r)
{
	return place_of_q(c, r, r->dr);
}

/* The same for the kernel that makes it (lane 1), or this rank alone. */
void
dcpg_query_to(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, struct dcpg_query *a)
{
	size_t turn = q_turn(c);

	a->ranks = dcpg_pushes_q(c) ? c->D : 1;
	a->step = a->ranks * (q_bytes(c) / sizeof(bf16));
	a->to[0] = r->q;
	if (a->ranks == 1)
		return;
	a->peer = dcpg_peer_of(c, r, 1);
	a->first = r->group * c->D;
	a->ones = q_by_words(c, layer);
	a->clear = turn != 0 ? r->qg + (layer + 1) % 2 * turn : NULL;
	for (uint32_t e = 0; e < c->D; e++)
		a->to[e] = place_of_q(c, r, e) + layer % 2 * turn;
}

/* A rank puts its q where its group reads it, and has the group's (lane 1). */
int
dcpg_push_q(dcpk_ctx *c, dcpg_rank *r)
{
	struct dcpg_peer p = dcpg_peer_of(c, r, 1);
	struct dcpg_push a = {};

	a.from = dcpg_own_q(c, r);
	a.rows = c->rows;
	a.bytes = q_bytes(c);
	a.from_step = a.to_step = c->D * a.bytes;
	a.first = r->group * c->D;
	a.n = c->D;
	for (uint32_t e = 0; e < c->D; e++)
		if (e != r->dr)
			a.to[e] = place_of_q(c, r, e);
	return dcpg_peer_push(&p, &a, r->st) == 0 ? 0 :
	    dcpg_ok(cudaErrorLaunchFailure, "push of q");
}

/* Whether value.cu writes the codes too: their blocks are inside a head. */
static bool
codes_by_value(const dcpk_ctx *c)
{
	return by_value(c) && c->s.model.vdim % 128 == 0;
}

static int
value(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, const bf16 *w, bool fp8)
{
	/* what has crossed as fp8 is merged already */
	bool merged = c->D == 1 || c->s.wire == DCPK_WIRE_FP8;
	bool sent = sends_o(c);
	size_t own = (size_t)r->dr * c->Hr;
	struct dcpg_value a = {};

	for (uint32_t e = 0; !merged && e < c->D; e++) {
		dcpg_rank *o = &c->r[r->group * c->D + e];

		a.part[e] = sent ? sent_o(c, r, layer, e) : (bf16 *)o->po +
		    own * DCPG_LATENT;
		a.lse[e] = sent ? sent_lse(c, r, layer, e) : o->plse + own;
	}
	if (merged)
		a.part[0] = r->o;
	a.w = w;
	a.y = r->ov;
	if (fp8 && codes_by_value(c))
		a.y8 = r->ov8;
	a.rows = c->rows;
	a.heads = c->Hr;
	a.values = c->s.model.vdim;
	a.row_heads = merged || sent ? c->Hr : c->Hg;
	a.ranks = merged ? 1 : c->D;
	if (!merged && c->s.comm == DCPK_COMM_PEER)
		a.peer = dcpg_peer_of(c, r, 0);
	if (sent && c->s.comm == DCPK_COMM_PEER) {
		att_args as = {};
		struct dcpg_attend f;

		as.heads = c->Hg;
		as.send = true;
		f = fast_args(c, r, &as, layer, c->rows);
		a.first = r->group * c->D;
		a.ones = by_words(c, layer);
		if (!a.ones)
			a.arrivals = dcpg_attend_arrivals(&f);
		a.clear = sent_o(c, r, layer + 1, 0);
		a.clear_lse = sent_lse(c, r, layer + 1, 0);
	}
	return dcpg_value(&a, r->st);
}

/* merge_parts is on the device before a peer spins in it there; attend_any has
 * more shared memory than the default for the longest lists. */
int
dcpg_merge_init(void)
{
	cudaFuncAttributes f;

	return cudaFuncGetAttributes(&f, merge_parts) == cudaSuccess &&
	    cudaFuncSetAttribute(attend_any,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024) ==
	    cudaSuccess ? 0 : -EIO;
}

static int
merge(dcpk_ctx *c, dcpg_rank *r)
{
	merge_args a = {};

	a.po = DCPG_PEERS(c, r, bf16, po);
	a.pl = DCPG_PEERS(c, r, float, plse);
	a.first = r->group * c->D;
	a.D = c->D;
	a.ld = c->mirrored ? 1 : c->D;
	a.own = c->mirrored ? 0 : r->dr;
	a.Hr = c->Hr;
	a.c = c->s.model.kv_lora;
	a.o = r->o;
	if (c->s.comm == DCPK_COMM_PEER)
		a.peer = dcpg_peer_of(c, r, 0);
	merge_parts<<<dim3(c->rows, (c->Hr * a.c / 8 + 255) / 256), 256, 0,
	    r->st>>>(a);
	return DCPG_LAUNCHED("merge_parts");
}

/* After it own heads of the group's partial outputs can be read. */
static int
meet_parts(dcpk_ctx *c)
{
	const dcpg_share s[] = {
	    DCPG_SHARE(c, po, (size_t)c->Hr * c->s.model.kv_lora *
		sizeof(bf16)),
	    DCPG_SHARE(c, plse, c->Hr * sizeof(float)) };

	return dcpg_meet_heads(c, s, 2, c->rows);
}

/*
 * Every rank attends to its own rows with the group's heads; then the merge.
 * Partial outputs cross as bf16, what they are rounded to in the end anyway, or
 * by --dcp-wire as fp8.
 */
static int
from_pools(dcpk_ctx *c, uint32_t layer)
{
	bool pushed = dcpg_pushes_q(c);
	int rc = 0;

	if (c->D > 1 && !pushed)	/* q of the group is there */
		rc |= meet_q(c);
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		att_args a = {};

		cudaSetDevice(r->dev);
		a.rows = dcpg_pool_rows(c, r, layer);
		a.q = r->q;
		a.heads = c->Hr;
		a.o16 = r->o;
		if (c->D > 1) {
			if (!pushed)
				rc |= bring_q(c, r);
			a.q = r->qg + layer % 2 * q_turn(c);
			a.heads = c->Hg;
			a.o16 = (bf16 *)r->po;
			a.lse = r->plse;
			a.send = sends_o(c);
		}
		rc |= attend(c, r, &a, layer, c->rows);
	}
	if (c->D == 1)
		return rc;
	if (c->s.wire == DCPK_WIRE_FP8)
		return rc | dcpg_merge_fp8(c);
	if (c->s.comm != DCPK_COMM_PEER)
		rc |= meet_parts(c);
	for (uint32_t i = 0; !by_value(c) && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= merge(c, &c->r[i]);
	}
	return rc;
}

/* Over a request's gathered rows: own heads (kv, and CP), or a share of the
 * query rows with all heads of the group (a2a). */
static int
over_gathered(dcpk_ctx *c, dcpg_rank *r, uint32_t layer, uint32_t req, bool a2a)
{
	dcpg_span s = dcpg_span_of(c, r, dcpg_attend_deal(c, r), req);
	att_args a = {};
	int rc;

	if (s.n == 0)
		return 0;
	rc = dcpg_gather(c, r, layer, req, false);
	a.rows = r->gather;
	a.slot0 = s.slot0;
	if (a2a) {
		a.q = r->qg;
		a.heads = c->Hg;
		a.o = r->po;
		a.lse = r->plse;
	} else {
		a.q = r->q;
		a.heads = c->Hp;
		a.o16 = r->o;
	}
	return rc | attend(c, r, &a, layer, s.n);
}

static int
take(dcpk_ctx *c, uint32_t i0, uint32_t rows, uint32_t slot0)
{
	const dcpk_model *m = &c->s.model;
	size_t at = (size_t)slot0 * c->Hg * m->kv_lora;
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		take_heads<<<dim3(rows, c->Hr), 128, 0, r->st>>>(
		    DCPG_PEERS(c, r, float, po + at),
		    DCPG_PLAN(c, r, dcpk_row, rows_off),
		    DCPG_PLAN(c, r, dcpk_req, reqs_off),
		    dcpg_attend_deal(c, r), r->group * c->D,
		    c->mirrored ? 1 : c->D, c->mirrored ? 0 : r->dr,
		    c->Hr, m->kv_lora, i0, slot0, r->o);
		rc |= DCPG_LAUNCHED("take_heads");
	}
	return rc;
}

/* a2a's way back: all rows at once, or, where they must be brought, request by
 * request. */
static int
take_all(dcpk_ctx *c)
{
	size_t head = c->s.model.kv_lora;
	int rc = 0;

	if (!c->mirrored)
		return dcpg_meet(c) | take(c, 0, c->rows, 0);
	for (uint32_t q = 0; q < c->plan->n_reqs; q++) {
		const dcpk_req *rq = &DCPK_REQS(c->plan)[q];
		size_t at = rq->row0 * c->Hg * head;
		dcpg_share s = DCPG_SHARE(c, po + at, c->Hr * head * 4);

		rc |= dcpg_meet_heads(c, &s, 1, (rq->rows + c->D - 1) / c->D);
		rc |= take(c, rq->row0, rq->rows, rq->row0);
	}
	return rc;
}

static int
from_gathered(dcpk_ctx *c, uint32_t layer)
{
	bool a2a = c->s.topo.cp == 1 && c->plan->way == DCPK_WAY_A2A;
	int rc = a2a ? meet_q(c) : dcpg_meet(c);

	/* rows are stored, q is there */
	for (uint32_t i = 0; a2a && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= bring_q(c, &c->r[i]);
	}
	for (uint32_t q = 0; q < c->plan->n_reqs; q++) {
		rc |= dcpg_bring(c, layer, q, false);
		for (uint32_t i = 0; i < c->W; i++) {
			dcpg_rank *r = &c->r[i];

			cudaSetDevice(r->dev);
			rc |= over_gathered(c, r, layer, q, a2a);
		}
	}
	c->gather_layer = layer;
	return a2a ? rc | take_all(c) : rc;
}

/* CP prefill at D = 1: the owner has every row in its own pool. */
static int
from_own_pool(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		att_args a = {};

		cudaSetDevice(r->dev);
		a.rows = dcpg_pool_rows(c, r, layer);
		a.q = r->q;
		a.heads = c->Hp;
		a.o16 = r->o;
		rc |= attend(c, r, &a, layer, r->m);
	}
	return rc;
}

int
dcpg_attend_op(dcpk_ctx *c, uint32_t layer)
{
	int rc;

	if (c->replay)
		return 0;
	rc = dcpg_join(c);
	if (c->gathered)
		rc |= from_gathered(c, layer);
	else if (c->prefill && c->s.topo.cp > 1)
		rc |= from_own_pool(c, layer);
	else
		rc |= from_pools(c, layer);
	return rc != 0 ? -EIO : 0;
}

/* Merged outputs to values, any number of rows. */
static int
values(dcpk_ctx *c, dcpg_rank *r, const bf16 *w, uint32_t heads)
{
	const dcpk_model *m = &c->s.model;
	dcpg_prod p = {};

	p.w = w;
	p.x = r->o;
	p.y = r->ov;
	p.m = r->m;
	p.n = m->vdim;
	p.k = m->kv_lora;
	p.ldw = m->kv_lora;
	p.ldx = heads * m->kv_lora;
	p.ldy = heads * m->vdim;
	p.batch = heads;
	p.sw = (int64_t)m->vdim * m->kv_lora;
	p.sx = m->kv_lora;
	p.sy = m->vdim;
	return dcpg_product(r, &p);
}

int
dcpg_attn_out_op(dcpk_ctx *c, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	uint32_t heads = c->prefill ? c->Hp : c->Hr, full = c->Hp * m->vdim;
	int rc = 0;

	if (c->replay)
		return 0;
	/* Ranks may meet in value(): all are enqueued before what follows. */
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		const bf16 *uv = r->layer[layer].uv.w + (size_t)(c->prefill ?
		    0 : r->cp * c->Hr) * m->vdim * m->kv_lora;

		cudaSetDevice(r->dev);
		rc |= by_value(c) ? value(c, r, layer, uv,
		    r->layer[layer].o.scale != NULL) :
		    values(c, r, uv, heads);
	}
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		dcpg_layer *l = &r->layer[layer];
		uint32_t h0 = c->prefill ? 0 : r->cp * c->Hr;
		dcpg_prod p = {};

		cudaSetDevice(r->dev);
		p.w = l->o.w + (size_t)h0 * m->vdim;	/* a strided view */
		p.scale = l->o.scale;	/* FP8: h0 is 0, see keep.h */
		p.x = r->ov;
		p.x8 = r->ov8;
		p.y = r->ya;
		p.y_f32 = true;
		p.m = r->m;
		p.n = m->hidden;
		p.k = heads * m->vdim;
		p.ldw = full;
		p.ldx = heads * m->vdim;
		p.ldy = m->hidden;
		if (p.scale != NULL && !codes_by_value(c))
			rc |= dcpg_quantise(r, r->ov, p.m, p.k, &r->ov8);
		rc |= dcpg_product(r, &p);
	}
	rc |= dcpg_sum_norm(c, true, layer);
	return rc != 0 ? -EIO : 0;
}
