/*
 * The two ends of a step: embedding; final norm, logits, sampling.
 *
 * Each rank makes the logits of its slice of the vocabulary; rank 0 reads them
 * together and samples. The rules are those of kernels/cpu/sample.c (order of
 * adjustments, randomness of (seed, index) alone, ties to the lowest id), so
 * greedy tokens are equal for equal logits.
 */
#include <cub/device/device_segmented_sort.cuh>

#include "kernels/cuda/rowops.cuh"

struct embed_args {
	const dcpk_row *row;
	const bf16 *w;
	float *x, *cos, *sin;
	uint32_t hidden, half;
	float factor, inv[128];
};

__global__ void
embed_rows(embed_args a)
{
	uint32_t i = blockIdx.x;
	dcpk_row row = a.row[i];

	for (uint32_t d = threadIdx.x; d < a.hidden; d += blockDim.x)
		a.x[(size_t)i * a.hidden + d] = __bfloat162float(
		    a.w[(size_t)row.token * a.hidden + d]);
	if (threadIdx.x < a.half) {
		float t = (float)row.pos * a.inv[threadIdx.x], s, co;

		sincosf(t, &s, &co);
		a.cos[(size_t)i * a.half + threadIdx.x] = co * a.factor;
		a.sin[(size_t)i * a.half + threadIdx.x] = s * a.factor;
	}
}

int
dcpg_embed_op(dcpk_ctx *c)
{
	const dcpk_model *m = &c->s.model;
	embed_args a = {};
	int rc = 0;

	if (c->replay)
		return 0;
	a.hidden = m->hidden;
	a.half = m->rope / 2;
	a.factor = m->rope_factor;
	memcpy(a.inv, m->inv_freq, sizeof a.inv);
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		a.row = DCPG_PLAN(c, r, dcpk_row, rows_off);
		a.w = r->embed.w;
		a.x = r->x;
		a.cos = r->cos;
		a.sin = r->sin;
		embed_rows<<<c->rows, 256, 0, r->st>>>(a);
		rc |= DCPG_LAUNCHED("embed_rows");
	}
	return rc;
}

/* All ranks' columns of one sample into [V]; grid (columns, samples). */
__global__ void
collect(dcpg_peers<float> l, uint32_t W, const uint32_t *first, uint32_t V,
    float *all)
{
	uint32_t v = blockIdx.x * blockDim.x + threadIdx.x, r = 0;

	if (v >= V)
		return;
	while (r + 1 < W && v >= first[r + 1])
		r++;
	all[(size_t)blockIdx.y * V + v] = l.p[r][(size_t)blockIdx.y *
	    (first[r + 1] - first[r]) + v - first[r]];
}

__device__ static inline bool
bit(const uint32_t *bits, uint32_t i)
{
	return !bits || (bits[i / 32] >> i % 32 & 1);
}

__device__ static double
uniform(uint64_t seed, uint32_t index)
{
	uint64_t x = mix(seed + 0x9e3779b97f4a7c15ull);

	x = mix(x + (index + 1ull) * 0x9e3779b97f4a7c15ull);
	return (double)(x >> 11) * 0x1p-53;
}

/* Best (value desc, id asc) of the block; value -inf and id ~0: none. */
__device__ static void
block_best(float *v, uint32_t *id)
{
	__shared__ float bv[32];
	__shared__ uint32_t bi[32];
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;

	for (int pass = 0; pass < 2; pass++) {
		for (int o = 16; o > 0; o >>= 1) {
			float x = __shfl_xor_sync(DCPG_FULL, *v, o);
			uint32_t y = __shfl_xor_sync(DCPG_FULL, *id, o);

			if (y != ~0u && (*id == ~0u || x > *v ||
			    (x == *v && y < *id))) {
				*v = x;
				*id = y;
			}
		}
		if (pass == 1)
			return;
		__syncthreads();
		if (lane == 0) {
			bv[w] = *v;
			bi[w] = *id;
		}
		__syncthreads();
		*v = lane < blockDim.x / 32 ? bv[lane] : -INFINITY;
		*id = lane < blockDim.x / 32 ? bi[lane] : ~0u;
	}
}

struct choose_args {
	const dcpk_sample *s;
	const dcpk_adjust *adj;
	const uint32_t *mask, *ok;
	const uint32_t *top_at;
	const float *logits;
	float *z;		/* [samples][V], what a draw sorts */
	uint32_t *ids;
	dcpk_logprob *out, *top;
	float *lse;		/* [samples] */
	uint32_t V;
};

/*
 * One block of 1024 a sample: log-sum-exp of the raw logits, the best n_top,
 * adjusted logits into z; the token where no draw is needed.
 */
__global__ void
choose(choose_args a)
{
	const dcpk_sample s = a.s[blockIdx.x];
	const float *l = a.logits + (size_t)blockIdx.x * a.V;
	float *z = a.z + (size_t)blockIdx.x * a.V, m = -INFINITY, t = 0, v;
	uint32_t *ids = a.ids + (size_t)blockIdx.x * a.V, id;
	const uint32_t *mask = s.flags & DCPK_S_MASK ? a.mask + s.mask : NULL;

	for (uint32_t i = threadIdx.x; i < a.V; i += blockDim.x)
		m = fmaxf(m, l[i]);
	m = block_max(m);
	for (uint32_t i = threadIdx.x; i < a.V; i += blockDim.x)
		if (l[i] == l[i])
			t += expf(l[i] - m);
	float lse = m + logf(block_sum(t));

	/* the best n_top, one after another */
	float pv = INFINITY;
	uint32_t pid = 0;

	for (uint32_t n = 0; n < s.n_top; n++) {
		v = -INFINITY;
		id = ~0u;
		for (uint32_t i = threadIdx.x; i < a.V; i += blockDim.x) {
			bool after = n == 0 || l[i] < pv ||
			    (l[i] == pv && i > pid);

			if (after && l[i] == l[i] && (id == ~0u || l[i] > v)) {
				v = l[i];
				id = i;
			}
		}
		block_best(&v, &id);
		pv = v;
		pid = id;
		if (threadIdx.x == 0) {
			a.top[a.top_at[blockIdx.x] + n].token = id;
			a.top[a.top_at[blockIdx.x] + n].logprob =
			    id == ~0u ? -INFINITY : v - lse;
		}
		__syncthreads();
	}
	for (uint32_t i = threadIdx.x; i < a.V; i += blockDim.x)
		z[i] = l[i];
	__syncthreads();
	for (uint32_t e = threadIdx.x; e < s.adjs; e += blockDim.x) {
		dcpk_adjust d = a.adj[s.adj0 + e];

		if (d.token >= a.V)
			continue;
		v = z[d.token] + d.bias;
		if (d.seen && s.repetition > 0)
			v = v > 0 ? v / s.repetition : v * s.repetition;
		if (d.out_count > 0)
			v -= s.frequency * (float)d.out_count + s.presence;
		z[d.token] = v;
	}
	__syncthreads();
	v = -INFINITY;
	id = ~0u;
	for (uint32_t i = threadIdx.x; i < a.V; i += blockDim.x) {
		if (z[i] != z[i] || !bit(a.ok, i) || !bit(mask, i))
			z[i] = -INFINITY;
		ids[i] = i;
		if (z[i] > -INFINITY && (id == ~0u || z[i] > v)) {
			v = z[i];
			id = i;
		}
	}
	block_best(&v, &id);
	if (id == ~0u) {	/* everything banned: the raw best allowed */
		/* Of a mask, even where no logit of it is a number. */
		v = -INFINITY;
		for (uint32_t i = threadIdx.x; mask != NULL && i < a.V;
		    i += blockDim.x)
			if (bit(a.ok, i) && bit(mask, i) &&
			    (id == ~0u || l[i] > v)) {
				v = l[i] > -INFINITY ? l[i] : -INFINITY;
				id = i;
			}
		block_best(&v, &id);
	}
	if (id == ~0u) {
		v = -INFINITY;
		for (uint32_t i = threadIdx.x; i < a.V; i += blockDim.x)
			if (l[i] > -INFINITY && bit(a.ok, i) &&
			    (id == ~0u || l[i] > v)) {
				v = l[i];
				id = i;
			}
		block_best(&v, &id);
	}
	if (threadIdx.x == 0) {
		if (s.flags & DCPK_S_SCORE)
			id = s.given;
		if (id == ~0u)
			id = 0;
		a.out[blockIdx.x].token = id;
		a.out[blockIdx.x].logprob = id < a.V ? l[id] - lse :
		    -INFINITY;
		a.lse[blockIdx.x] = lse;
	}
}

/*
 * After the sort by (z desc, id asc): top_k, top_p, min_p and the draw. A block
 * sums, one thread draws; it walks few candidates but for open draws.
 */
__global__ void
draw(const dcpk_sample *samples, const float *z, const uint32_t *ids,
    const float *logits, const float *lse, uint32_t V, dcpk_logprob *out)
{
	const dcpk_sample s = samples[blockIdx.x];
	double total = 0, mass = 0, cum = 0, p, limit, u;
	uint32_t k = s.top_k > 0 && s.top_k < V ? s.top_k : V, n, i;

	z += (size_t)blockIdx.x * V;
	ids += (size_t)blockIdx.x * V;
	if (s.flags & (DCPK_S_GREEDY | DCPK_S_SCORE) || !(s.temperature > 0) ||
	    !(z[0] > -INFINITY) || z[0] == INFINITY)
		return;
	__shared__ double part[256];
	double mine = 0;

	for (i = threadIdx.x; i < k; i += blockDim.x)
		mine += exp(((double)z[i] - z[0]) / s.temperature);
	part[threadIdx.x] = mine;
	__syncthreads();
	if (threadIdx.x != 0)
		return;
	for (i = 0; i < blockDim.x; i++)
		total += part[i];
	limit = s.top_p < 1 ? s.top_p * total : INFINITY;
	u = uniform(s.seed, s.index);
	bool open = k == V && !(s.top_p < 1) && !(s.min_p > 0);
	uint32_t pick = 0;

	for (n = 0; n < k; n++) {
		p = exp(((double)z[n] - z[0]) / s.temperature);
		if (n > 0 && (mass >= limit || p < s.min_p || p == 0))
			break;
		mass += p;
		if (open && mass > u * total)
			break;
	}
	if (open && n < k && mass > u * total) {
		pick = n;
	} else {
		for (i = 0; i < n; i++) {
			pick = i;
			cum += exp(((double)z[i] - z[0]) / s.temperature);
			if (cum > u * mass)
				break;
		}
	}
	out[blockIdx.x].token = ids[pick];
	out[blockIdx.x].logprob = logits[(size_t)blockIdx.x * V + ids[pick]] -
	    lse[blockIdx.x];
}

size_t
dcpg_sort_bytes(uint32_t n, uint32_t segments)
{
	size_t bytes = 0;

	cub::DeviceSegmentedSort::StableSortPairsDescending(NULL, bytes,
	    (const float *)NULL, (float *)NULL, (const uint32_t *)NULL,
	    (uint32_t *)NULL, (int64_t)n * segments, segments,
	    (const uint32_t *)NULL, (const uint32_t *)NULL);
	return bytes;
}

/* --- head and sample --------------------------------------------------- */

static uint32_t
block_n(dcpk_ctx *c, uint32_t s0)
{
	uint32_t left = c->plan->n_samples - s0;

	return left < c->cap_samples ? left : c->cap_samples;
}

/* Logits of samples s0.. on every rank, then together on rank 0. A padded pass
 * is one block of as many samples as rows. */
static int
logits(dcpk_ctx *c, uint32_t s0)
{
	const dcpk_model *m = &c->s.model;
	uint32_t n = c->padded ? c->rows : block_n(c, s0);
	int rc = 0;

	if (s0 != 0)
		rc |= dcpg_meet(c);	/* rank 0 has read the last block */
	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];
		dcpg_prod p = {};

		cudaSetDevice(r->dev);
		rc |= dcpg_final_norm(c, r, s0, n);
		p.w = r->lm_head.w;
		p.x = r->hs;
		p.y = r->logits;
		p.y_f32 = true;
		p.m = n;
		p.n = p.ldy = r->lm_head.n;
		p.k = p.ldw = p.ldx = m->hidden;
		rc |= dcpg_product(r, &p);
	}
	if (c->W > 1) {
		dcpg_share s = DCPG_SHARE(c, logits, (size_t)n *
		    ((m->vocab + c->W - 1) / c->W) * 4);

		rc |= dcpg_meet_over(c, DCPG_RANK0, &s, 1, 0);
	}
	cudaSetDevice(c->r[0].dev);
	collect<<<dim3((m->vocab + 255) / 256, n), 256, 0, c->r[0].st>>>(
	    DCPG_PEERS(c, &c->r[0], float, logits), c->W, c->r[0].vocab_first,
	    m->vocab, c->r[0].all_logits);
	return rc | DCPG_LAUNCHED("collect");
}

static int
sample_block(dcpk_ctx *c, uint32_t s0)
{
	dcpg_rank *r = &c->r[0];
	uint32_t n = block_n(c, s0), V = c->s.model.vocab;
	bool any = false;
	choose_args a = {};

	cudaSetDevice(r->dev);
	for (uint32_t i = s0; i < s0 + n; i++)
		any |= !(DCPK_SAMPLES(c->plan)[i].flags &
		    (DCPK_S_GREEDY | DCPK_S_SCORE));
	a.s = DCPG_PLAN(c, r, dcpk_sample, samples_off) + s0;
	a.adj = DCPG_PLAN(c, r, dcpk_adjust, adjusts_off);
	a.mask = DCPG_PLAN(c, r, uint32_t, mask_off);
	a.ok = r->ok;
	a.top_at = r->top_at + s0;
	a.logits = r->all_logits;
	a.z = r->z;
	a.ids = r->ids;
	a.out = r->out + s0;
	a.top = r->top;
	a.lse = r->lse;
	a.V = V;
	choose<<<n, 1024, 0, r->st>>>(a);
	if (any) {
		if (cub::DeviceSegmentedSort::StableSortPairsDescending(
		    r->sort_tmp, r->sort_bytes, r->z, r->z2, r->ids, r->ids2,
		    (int64_t)n * V, n, r->segment, r->segment + 1, r->st) !=
		    cudaSuccess)
			return -EIO;
		draw<<<n, 256, 0, r->st>>>(a.s, r->z2, r->ids2, r->all_logits,
		    r->lse, V, r->out + s0);
	}
	return DCPG_LAUNCHED("sample");
}

int
dcpg_head_op(dcpk_ctx *c)
{
	int rc = c->replay ? 0 : logits(c, 0);

	return rc != 0 ? rc : dcpg_graph_end(c);
}

int
dcpg_sample_op(dcpk_ctx *c)
{
	int rc = 0;

	for (uint32_t s0 = 0; s0 < c->plan->n_samples; s0 += block_n(c, s0)) {
		if (s0 != 0)	/* the first block's are there: head */
			rc |= logits(c, s0);
		rc |= sample_block(c, s0);
	}
	return rc != 0 ? -EIO : 0;
}
