/*
 * From the residual stream to q, KV rows and index keys. Each row and key is
 * quantised once, by the rank that computes it, into new_rows / new_keys; the
 * ranks that hold the token copy those bytes into their pools.
 */
#include "kernels/cuda/rowops.cuh"

struct latent_args {
	dcpk_kv kv, idx;
	uint32_t q_lora, c, r, dim, row_bytes, key_bytes;
	float eps;
	bool full, interleave, hadamard;
	const uint32_t *own;
	const float *qr, *kvl, *ik, *cos, *sin;
	const float *qw, *kvw, *kw, *kb;
	bf16 *qr16;
	uint8_t *rows, *keys;
	float *scales;
};

/* RoPE of x[r] in shared memory; out of place through registers. */
__device__ static void
rope_shared(float *x, const float *cs, const float *sn, uint32_t r, bool inter)
{
	uint32_t half = r / 2, i = threadIdx.x;
	float a = 0, b = 0;

	if (i < half) {
		a = inter ? x[2 * i] : x[i];
		b = inter ? x[2 * i + 1] : x[i + half];
	}
	__syncthreads();
	if (i < half) {
		x[i] = a * cs[i] - b * sn[i];
		x[i + half] = b * cs[i] + a * sn[i];
	}
	__syncthreads();
}

__device__ static void
hadamard_shared(float *x, uint32_t n)
{
	for (uint32_t s = 1; s < n; s *= 2) {
		uint32_t i = threadIdx.x;
		float a = 0, b = 0;
		uint32_t lo = 0;

		if (i < n / 2) {
			lo = i / s * 2 * s + i % s;
			a = x[lo];
			b = x[lo + s];
		}
		__syncthreads();
		if (i < n / 2) {
			x[lo] = a + b;
			x[lo + s] = a - b;
		}
		__syncthreads();
	}
	if (threadIdx.x < n)
		x[threadIdx.x] *= rsqrtf((float)n);
	__syncthreads();
}

/* One block of 256 a row. Shared: c + r floats, then dim floats. */
__global__ void
latents(latent_args a)
{
	extern __shared__ float sm[];
	uint32_t j = blockIdx.x, i = a.own ? a.own[j] : j, half = a.r / 2;
	const float *qr = a.qr + (size_t)j * a.q_lora;
	const float *kv = a.kvl + (size_t)j * (a.c + a.r);
	const float *cs = a.cos + (size_t)i * half;
	const float *sn = a.sin + (size_t)i * half;
	uint8_t *row = a.rows + (size_t)i * a.row_bytes;
	float *k = sm + a.c + a.r, s = 0;

	for (uint32_t d = threadIdx.x; d < a.q_lora; d += blockDim.x)
		s += qr[d] * qr[d];
	s = rsqrtf(block_sum(s) / (float)a.q_lora + a.eps);
	for (uint32_t d = threadIdx.x; d < a.q_lora; d += blockDim.x)
		a.qr16[(size_t)j * a.q_lora + d] =
		    __float2bfloat16(qr[d] * s * a.qw[d]);

	s = 0;
	for (uint32_t d = threadIdx.x; d < a.c; d += blockDim.x)
		s += kv[d] * kv[d];
	s = rsqrtf(block_sum(s) / (float)a.c + a.eps);
	for (uint32_t d = threadIdx.x; d < a.c + a.r; d += blockDim.x)
		sm[d] = d < a.c ? kv[d] * s * a.kvw[d] : kv[d];
	__syncthreads();
	rope_shared(sm + a.c, cs, sn, a.r, true);

	if (a.kv == DCPK_KV_FP8) {
		uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;

		if (w < a.c / 128) {	/* a warp a tile of 128 */
			float *t = sm + w * 128, m = 0, sc;

			for (uint32_t d = lane; d < 128; d += 32)
				m = fmaxf(m, fabsf(t[d]));
			sc = warp_max(m) / 448.0f;
			for (uint32_t d = lane; d < 128; d += 32)
				row[w * 128 + d] =
				    to_e4m3(sc > 0 ? t[d] / sc : 0);
			if (lane == 0)
				((float *)(row + a.c))[w] = sc;
		}
		for (uint32_t d = threadIdx.x; d < a.r; d += blockDim.x)
			((bf16 *)(row + a.c + a.c / 128 * 4))[d] =
			    __float2bfloat16(sm[a.c + d]);
	} else {
		for (uint32_t d = threadIdx.x; d < a.c + a.r; d += blockDim.x)
			((bf16 *)row)[d] = __float2bfloat16(sm[d]);
	}
	if (!a.full)
		return;

	const float *ik = a.ik + (size_t)j * a.dim;
	float mean = 0, var = 0, v = 0;

	for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
		mean += ik[d];
	mean = block_sum(mean) / (float)a.dim;
	for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
		var += (ik[d] - mean) * (ik[d] - mean);
	var = block_sum(var) / (float)a.dim;
	for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
		k[d] = (ik[d] - mean) * rsqrtf(var + 1e-6f) * a.kw[d] +
		    a.kb[d];
	__syncthreads();
	rope_shared(k, cs, sn, a.r, a.interleave);
	uint8_t *key = a.keys + (size_t)i * a.key_bytes;
	if (a.idx != DCPK_KV_FP8) {
		for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
			((bf16 *)key)[d] = __float2bfloat16(k[d]);
		return;
	}
	if (a.hadamard)
		hadamard_shared(k, a.dim);
	for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
		v = fmaxf(v, fabsf(k[d]));
	v = block_max(v) / 448.0f;
	for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
		key[d] = to_e4m3(v > 0 ? k[d] / v : 0);
	if (threadIdx.x == 0)
		a.scales[i] = v;
}

struct store_args {
	dcpg_peers<uint8_t> rows, keys;
	dcpg_peers<float> scales;
	const dcpk_row *row;
	const uint32_t *owner;	/* [rows] CP owner, or NULL */
	uint32_t D, dr, attn_tp, tp, row_bytes, key_bytes, self;
	uint8_t *pool, *kpool;
	float *spool;
	bool full;
};

/* One block a row: its bytes into this rank's pool, if it lives here. */
__global__ void
store_rows(store_args a)
{
	uint32_t i = blockIdx.x, from;
	dcpk_row row = a.row[i];
	size_t at;

	if (row.pos % a.D != a.dr)
		return;
	from = a.owner ? a.owner[i] * a.attn_tp + a.tp : a.self;
	at = (size_t)row.page * (DCPK_PAGE / a.D) + row.pos % DCPK_PAGE / a.D;
	const uint32_t *s = (const uint32_t *)(a.rows.p[from] +
	    (size_t)i * a.row_bytes);
	uint32_t *d = (uint32_t *)(a.pool + at * a.row_bytes);

	for (uint32_t e = threadIdx.x; e < a.row_bytes / 4; e += blockDim.x)
		d[e] = s[e];
	if (!a.full)
		return;
	s = (const uint32_t *)(a.keys.p[from] + (size_t)i * a.key_bytes);
	d = (uint32_t *)(a.kpool + at * a.key_bytes);
	for (uint32_t e = threadIdx.x; e < a.key_bytes / 4; e += blockDim.x)
		d[e] = s[e];
	if (a.spool && threadIdx.x == 0)
		a.spool[at] = a.scales.p[from][i];
}

struct query_args {
	const uint32_t *own;
	const bf16 *qh;		/* [m][heads][n+r] */
	bf16 *q;		/* [m][heads][c+r] */
	const float *cos, *sin;
	uint32_t heads, n, r, c;
	/* indexer */
	float *iq, *iw;		/* [m][hi][dim], [m][hi] */
	uint8_t *iq8;		/* the e4m3 codes too, or NULL */
	uint32_t hi, dim;
	bool interleave, hadamard, fp8;
};

/* RoPE tail of each head: one block a row, threads over (head, pair). */
__global__ void
rope_queries(query_args a)
{
	uint32_t j = blockIdx.x, i = a.own ? a.own[j] : j, half = a.r / 2;
	const float *cs = a.cos + (size_t)i * half;
	const float *sn = a.sin + (size_t)i * half;

	for (uint32_t e = threadIdx.x; e < a.heads * half; e += blockDim.x) {
		uint32_t h = e / half, p = e % half;
		const bf16 *x = a.qh + ((size_t)j * a.heads + h) * (a.n + a.r) +
		    a.n;
		bf16 *y = a.q + ((size_t)j * a.heads + h) * (a.c + a.r) + a.c;
		float u = __bfloat162float(x[2 * p]);
		float v = __bfloat162float(x[2 * p + 1]);

		y[p] = __float2bfloat16(u * cs[p] - v * sn[p]);
		y[p + half] = __float2bfloat16(v * cs[p] + u * sn[p]);
	}
}

/*
 * Index query: one block (>= dim threads) per (row, index head). The head's
 * weight gets hi^-.5, dim^-.5 and, for fp8 keys, the query's own scale.
 */
__global__ void
index_queries(query_args a)
{
	extern __shared__ float x[];
	uint32_t j = blockIdx.x, h = blockIdx.y, i = a.own ? a.own[j] : j;
	uint32_t half = a.r / 2;
	float *q = a.iq + ((size_t)j * a.hi + h) * a.dim, f, v = 0;

	for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
		x[d] = q[d];
	__syncthreads();
	rope_shared(x, a.cos + (size_t)i * half, a.sin + (size_t)i * half, a.r,
	    a.interleave);
	f = rsqrtf((float)a.hi) * rsqrtf((float)a.dim);
	if (a.fp8) {
		if (a.hadamard)
			hadamard_shared(x, a.dim);
		for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
			v = fmaxf(v, fabsf(x[d]));
		v = block_max(v) / 448.0f;
		for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
			uint8_t b = to_e4m3(v > 0 ? x[d] / v : 0);

			if (a.iq8)
				a.iq8[((size_t)j * a.hi + h) * a.dim + d] = b;
			else
				q[d] = from_e4m3(b);
		}
		f *= v;
	} else {
		for (uint32_t d = threadIdx.x; d < a.dim; d += blockDim.x)
			q[d] = x[d];
	}
	if (threadIdx.x == 0)
		a.iw[(size_t)j * a.hi + h] *= f;
}

static int
linear(dcpk_ctx *c, dcpg_rank *r, const dcpg_mat *w, const bf16 *x, void *y,
    bool f32, uint32_t m)
{
	dcpg_prod p = {};

	p.w = w->w;
	p.scale = w->scale;
	p.pow2 = c->s.model.act_ue8m0;
	p.x = x;
	p.y = y;
	p.y_f32 = f32;
	p.m = m;
	p.n = w->n;
	p.k = w->k;
	p.ldw = w->k;
	p.ldx = w->k;
	p.ldy = w->n;
	return dcpg_product(r, &p);
}

/* norm, first products, latents: everything before rows change hands */
static int
first_half(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	dcpg_layer *l = &r->layer[layer];
	latent_args a = {};
	int rc;

	if (r->m == 0)
		return 0;
	rc = dcpg_in_norm(c, r, layer);
	rc |= linear(c, r, &l->q_a, r->h, r->qr, true, r->m);
	rc |= linear(c, r, &l->kv_a, r->h, r->kv, true, r->m);
	if (m->full[layer]) {
		rc |= linear(c, r, &l->idx_k, r->h, r->ik, true, r->m);
		rc |= linear(c, r, &l->idx_w, r->h, r->iw, true, r->m);
	}
	a.kv = c->s.kv;
	a.idx = c->s.idx;
	a.q_lora = m->q_lora;
	a.c = m->kv_lora;
	a.r = m->rope;
	a.dim = m->idx_dim;
	a.row_bytes = c->row_bytes;
	a.key_bytes = c->key_bytes;
	a.eps = m->latent_eps;
	a.full = m->full[layer] != 0;
	a.interleave = m->idx_interleave;
	a.hadamard = m->idx_hadamard;
	a.own = r->own;
	a.qr = r->qr;
	a.kvl = r->kv;
	a.ik = r->ik;
	a.cos = r->cos;
	a.sin = r->sin;
	a.qw = l->q_a_norm;
	a.kvw = l->kv_a_norm;
	a.kw = l->k_norm_w;
	a.kb = l->k_norm_b;
	a.qr16 = r->qr16;
	a.rows = r->new_rows;
	a.keys = r->new_keys;
	a.scales = r->new_scales;
	latents<<<r->m, 256, (a.c + a.r + a.dim) * sizeof(float), r->st>>>(a);
	return rc | DCPG_LAUNCHED("latents");
}

static int
store(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	store_args a = {};

	a.rows = DCPG_PEERS(c, uint8_t, new_rows);
	a.keys = DCPG_PEERS(c, uint8_t, new_keys);
	a.scales = DCPG_PEERS(c, float, new_scales);
	a.row = DCPG_PLAN(c, r, dcpk_row, rows_off);
	a.owner = r->owner;
	a.D = c->D;
	a.dr = r->dr;
	a.attn_tp = c->s.topo.attn_tp;
	a.tp = r->tp;
	a.row_bytes = c->row_bytes;
	a.key_bytes = c->key_bytes;
	a.self = r->id;
	a.full = c->s.model.full[layer] != 0;
	a.pool = dcpg_pool_rows(c, r, layer);
	a.kpool = dcpg_pool_keys(c, r, layer, &a.spool);
	store_rows<<<c->rows, 128, 0, r->st>>>(a);
	return DCPG_LAUNCHED("store_rows");
}

/* q of the heads of this pass, absorbed */
static int
queries(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	dcpg_layer *l = &r->layer[layer];
	uint32_t heads = c->prefill ? c->Hp : c->Hr, qd = m->nope + m->rope;
	uint32_t h0 = c->prefill ? 0 : r->cp * c->Hr;	/* decode slice */
	uint32_t ld = m->kv_lora + m->rope;
	dcpg_mat qb = l->q_b;
	dcpg_prod p = {};
	query_args a = {};
	int rc;

	if (r->m == 0)
		return 0;
	qb.w += (size_t)h0 * qd * m->q_lora;	/* FP8: h0 is 0, see keep.h */
	qb.n = heads * qd;
	rc = linear(c, r, &qb, r->qr16, r->qh, false, r->m);
	p.w = l->uk.w + (size_t)h0 * m->kv_lora * m->nope;
	p.x = r->qh;
	p.y = r->q;
	p.m = r->m;
	p.n = m->kv_lora;
	p.k = m->nope;
	p.ldw = m->nope;
	p.ldx = heads * qd;
	p.ldy = heads * ld;
	p.batch = heads;
	p.sw = (int64_t)m->kv_lora * m->nope;
	p.sx = qd;
	p.sy = ld;
	rc |= dcpg_product(r, &p);
	a.own = r->own;
	a.qh = r->qh;
	a.q = r->q;
	a.cos = r->cos;
	a.sin = r->sin;
	a.heads = heads;
	a.n = m->nope;
	a.r = m->rope;
	a.c = m->kv_lora;
	rope_queries<<<r->m, 256, 0, r->st>>>(a);
	return rc | DCPG_LAUNCHED("rope_queries");
}

static int
index_query(dcpk_ctx *c, dcpg_rank *r, uint32_t layer)
{
	const dcpk_model *m = &c->s.model;
	query_args a = {};
	int rc;

	if (r->m == 0 || !m->full[layer])
		return 0;
	rc = linear(c, r, &r->layer[layer].idx_q_b, r->qr16, r->iq, true, r->m);
	a.own = r->own;
	a.cos = r->cos;
	a.sin = r->sin;
	a.r = m->rope;
	a.iq = r->iq;
	a.iw = r->iw;
	a.iq8 = c->fast_index ? r->iq8 : NULL;
	a.hi = m->idx_heads;
	a.dim = m->idx_dim;
	a.interleave = m->idx_interleave;
	a.hadamard = m->idx_hadamard;
	a.fp8 = c->s.idx == DCPK_KV_FP8;
	index_queries<<<dim3(r->m, m->idx_heads), 128, a.dim * sizeof(float),
	    r->st>>>(a);
	return rc | DCPG_LAUNCHED("index_queries");
}

/*
 * Decode: q on the side stream, its way to the group included. The push waits
 * for peers, so it is enqueued when all ranks have what is before it: loading
 * a kernel's code may wait for the device.
 */
static int
queries_aside(dcpk_ctx *c, uint32_t layer)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		rc |= dcpg_fork(r);
		dcpg_aside(r);
		rc |= queries(c, r, layer);
		dcpg_aside(r);
		rc |= index_query(c, r, layer);
	}
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		if (dcpg_pushes_q(c)) {
			dcpg_aside(r);
			rc |= dcpg_push_q(c, r);
			dcpg_aside(r);
		}
		rc |= dcpg_joins(r);
	}
	c->forked = true;
	return rc;
}

int
dcpg_attn_in_op(dcpk_ctx *c, uint32_t rank, uint32_t layer)
{
	int rc = 0;

	if (c->replay)
		return 0;
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= first_half(c, &c->r[i], layer);
	}
	if (c->r[0].owner != NULL)	/* CP prefill: rows change hands */
		rc |= dcpg_meet(c);
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= store(c, &c->r[i], layer);
	}
	/* With events each meeting has all of a rank's work before it. */
	if (!c->prefill && c->s.model.full[layer] &&
	    (c->W == 1 || c->s.comm == DCPK_COMM_PEER)) {
		rc |= queries_aside(c, layer);
		return rc != 0 ? -EIO : 0;
	}
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= queries(c, &c->r[i], layer);
		rc |= index_query(c, &c->r[i], layer);
	}
	for (uint32_t i = 0; dcpg_pushes_q(c) && i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= dcpg_push_q(c, &c->r[i]);
	}
	return rc != 0 ? -EIO : 0;
}
