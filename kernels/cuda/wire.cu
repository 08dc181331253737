/*
 * --dcp-wire fp8_e4m3: the partial attention outputs of a DCP group cross ranks
 * as e4m3 with a scale for each tile of 128 columns. Step thread only. (bf16
 * ones stay where they were computed and are fetched by the merge, see
 * attend_op.cu.)
 *
 * The rank that computed a partial writes the other ranks' heads of it into
 * their owners' memory; all meet, and each merges by log-sum-exp, in rank
 * order, what landed with its own part, which stays bf16. Bytes to each peer:
 * rows * Hr * (c + c / 32 + 4), where bf16 has rows * Hr * (2 c + 4).
 *
 * Why what landed is free when it is written again: the next layer's partials
 * come behind the meeting of this layer's sum, to which every rank comes behind
 * its merge.
 */
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/rowops.cuh"

struct wire_shape {
	uint32_t rows, D, dr, first;	/* group: ranks first .. first + D */
	uint32_t Hr, c, tiles;		/* tiles of c columns */
};

/* Of one head of a row: what `e` computed, on the rank that owns the head. */
__device__ static inline size_t
landed_at(const wire_shape &s, uint32_t e, uint32_t i, uint32_t h)
{
	return ((size_t)e * s.rows + i) * s.Hr + h;
}

/* The same on the rank that computed it; head h of the group's rank e. */
__device__ static inline size_t
part_at(const wire_shape &s, uint32_t e, uint32_t i, uint32_t h)
{
	return ((size_t)i * s.D + e) * s.Hr + h;
}

/* --- to the owners ------------------------------------------------------- */

struct landing {
	dcpg_peers<uint8_t> w8;		/* [D][rows][Hr][c] */
	dcpg_peers<float> scale, lse;	/* [D][rows][Hr][tiles], .. [Hr] */
};

__device__ static inline void
load8(float *x, const bf16 *p)
{
	uint4 u = *(const uint4 *)p;

	for (int j = 0; j < 8; j++)
		x[j] = __bfloat162float(((const bf16 *)&u)[j]);
}

/*
 * 16 lanes take a tile of 128 columns, 8 each: amax among them, then 8 bytes a
 * lane into the owner's memory. Tiles of the other ranks' heads in turn, so
 * that neighbours write neighbouring bytes.
 */
__global__ void __launch_bounds__(256)
send_parts(const bf16 *o, const float *lse, const __grid_constant__ landing to,
    const __grid_constant__ wire_shape s)
{
	uint32_t lane = threadIdx.x % 16, mask = 0xffffu << (threadIdx.x & 16);
	uint64_t n = (uint64_t)(s.D - 1) * s.rows * s.Hr * s.tiles;

	for (uint64_t t = (blockIdx.x * 256ull + threadIdx.x) / 16; t < n;
	    t += gridDim.x * 16ull) {
		uint32_t k = t % s.tiles, h = t / s.tiles % s.Hr;
		uint32_t i = t / s.tiles / s.Hr % s.rows;
		uint32_t e = t / s.tiles / s.Hr / s.rows;
		uint32_t d = k * DCPK_WIRE_TILE + lane * 8;
		size_t from, at = landed_at(s, s.dr, i, h);
		float x[8] = {}, a = 0, scale;

		e += e >= s.dr;		/* not to itself */
		from = part_at(s, e, i, h);
		if (d < s.c)
			load8(x, o + from * s.c + d);
		for (int j = 0; j < 8; j++)
			a = fmaxf(a, fabsf(x[j]));
		for (int j = 8; j > 0; j >>= 1)
			a = fmaxf(a, __shfl_xor_sync(mask, a, j));
		scale = a / 448;
		if (d < s.c)
			*(uint2 *)(to.w8.p[s.first + e] + at * s.c + d) =
			    make_uint2(e4m3x4(make_float4(x[0], x[1], x[2],
			    x[3]), scale), e4m3x4(make_float4(x[4], x[5],
			    x[6], x[7]), scale));
		if (lane == 0)
			to.scale.p[s.first + e][at * s.tiles + k] = scale;
		if (lane == 0 && k == 0)
			to.lse.p[s.first + e][at] = lse[from];
	}
}

/* Bytes of one rank's part for another: codes, scales, LSEs; and, without peer
 * access, where each kind stands in the memory that is sent from. */
static size_t
block(const wire_shape &s, uint32_t kind)
{
	size_t heads = (size_t)s.rows * s.Hr;

	return kind == 0 ? heads * s.c : kind == 1 ? heads * s.tiles * 4 :
	    heads * 4;
}

static size_t
sent_at(const wire_shape &s, uint32_t kind)
{
	size_t at = 0;

	for (uint32_t k = 0; k < kind; k++)
		at += (2 * s.D * block(s, k) + 255) / 256 * 256;
	return at;
}

static int
carry(dcpk_ctx *c, const wire_shape &s)
{
	std::vector<dcpg_copy> v;

	for (uint32_t i = 0; i < c->W; i++)
		for (uint32_t e = 0; e < c->D; e++) {
			dcpg_rank *r = &c->r[i];
			dcpg_rank *o = &c->r[r->group * c->D + e];
			char *to[] = { (char *)o->w8, (char *)o->w8_scale,
			    (char *)o->w8_lse };

			for (uint32_t k = 0; k < 3 && o != r; k++)
				v.push_back({ i, o->id, r->mirror +
				    sent_at(s, k) + (e + r->dr) * block(s, k),
				    to[k] + r->dr * block(s, k),
				    block(s, k) });
		}
	return dcpg_nccl_copy(c, v.data(), v.size());
}

static int
send(dcpk_ctx *c, dcpg_rank *r, const wire_shape &s)
{
	uint64_t n = (uint64_t)(s.D - 1) * s.rows * s.Hr * s.tiles;
	uint64_t blocks = (n + 15) / 16;
	landing to = {};

	for (uint32_t e = s.first; e < s.first + s.D; e++) {
		dcpg_rank *o = &c->r[e];

		/* ours of rank e is block e + dr of what is sent */
		to.w8.p[e] = c->mirrored ? (uint8_t *)r->mirror +
		    (e - s.first) * block(s, 0) : o->w8;
		to.scale.p[e] = c->mirrored ? (float *)(r->mirror +
		    sent_at(s, 1) + (e - s.first) * block(s, 1)) : o->w8_scale;
		to.lse.p[e] = c->mirrored ? (float *)(r->mirror +
		    sent_at(s, 2) + (e - s.first) * block(s, 2)) : o->w8_lse;
	}

	send_parts<<<(uint32_t)(blocks > 528 ? 528 : blocks), 256, 0,
	    r->st>>>((const bf16 *)r->po, r->plse, to, s);
	return DCPG_LAUNCHED("send_parts");
}

/* --- the merge ----------------------------------------------------------- */

struct landed {
	const bf16 *own;		/* [rows][D * Hr][c] */
	const float *own_lse;
	const uint8_t *w8;
	const float *scale, *lse;
	bf16 *o;			/* [rows][Hr][c] */
	struct dcpg_peer peer;
};

/* Eight columns from d on of the part that rank e computed. */
__device__ static inline void
part8(float *x, const landed &p, const wire_shape &s, uint32_t e, uint32_t i,
    uint32_t h, uint32_t d)
{
	size_t at = landed_at(s, e, i, h);
	float scale;
	uint2 u;

	if (e == s.dr) {
		load8(x, p.own + part_at(s, e, i, h) * s.c + d);
		return;
	}
	u = *(const uint2 *)(p.w8 + at * s.c + d);
	scale = p.scale[at * s.tiles + d / DCPK_WIRE_TILE];
	for (int j = 0; j < 8; j++)
		x[j] = scale * from_e4m3((j < 4 ? u.x : u.y) >> j % 4 * 8);
}

/* A block owns head h of row i, a thread 8 columns at a time. */
__global__ void __launch_bounds__(64)
merge_landed(const __grid_constant__ landed p,
    const __grid_constant__ wire_shape s)
{
	uint32_t i = blockIdx.x, h = blockIdx.y;
	float m = -INFINITY, den = 0, wt[DCPK_MAX_RANKS];

	dcpg::meet_in(p.peer, i == 0 && h == 0);
	for (uint32_t e = 0; e < s.D; e++) {
		wt[e] = e == s.dr ? p.own_lse[part_at(s, e, i, h)] :
		    p.lse[landed_at(s, e, i, h)];
		if (!(wt[e] < INFINITY))
			wt[e] = -INFINITY;	/* NaN and +inf are empty */
		m = fmaxf(m, wt[e]);
	}
	for (uint32_t e = 0; e < s.D; e++) {
		wt[e] = m == -INFINITY ? 0 : __expf(wt[e] - m);
		den += wt[e];
	}
	for (uint32_t d = threadIdx.x * 8; d < s.c; d += 64 * 8) {
		float v[8] = {}, x[8];
		bf16 y[8];

		for (uint32_t e = 0; e < s.D; e++) {
			if (wt[e] == 0)		/* 0 * NaN is not 0 */
				continue;
			part8(x, p, s, e, i, h, d);
			for (int j = 0; j < 8; j++)
				v[j] += wt[e] * x[j];
		}
		for (int j = 0; j < 8; j++)
			y[j] = __float2bfloat16(den > 0 ? v[j] / den : 0);
		*(uint4 *)(p.o + ((size_t)i * s.Hr + h) * s.c + d) =
		    *(const uint4 *)y;
	}
	dcpg::meet_out(p.peer, gridDim.x * gridDim.y);
}

/* On the device before a peer spins in it there, as dcpg_norm_init's. */
int
dcpg_wire_init(void)
{
	cudaFuncAttributes f;

	return cudaFuncGetAttributes(&f, merge_landed) == cudaSuccess ? 0 :
	    -EIO;
}

static int
merge(dcpk_ctx *c, dcpg_rank *r, const wire_shape &s)
{
	landed p = { (const bf16 *)r->po, r->plse, r->w8, r->w8_scale,
	    r->w8_lse, r->o };

	if (c->s.comm == DCPK_COMM_PEER)
		p.peer = dcpg_peer_of(c, r, 0);
	merge_landed<<<dim3(s.rows, s.Hr), 64, 0, r->st>>>(p, s);
	return DCPG_LAUNCHED("merge_landed");
}

static wire_shape
of_rank(wire_shape s, const dcpk_ctx *c, const dcpg_rank *r)
{
	s.dr = r->dr;
	s.first = r->group * c->D;
	return s;
}

int
dcpg_merge_fp8(dcpk_ctx *c)
{
	wire_shape s = { c->rows, c->D, 0, 0, c->Hr, c->s.model.kv_lora,
	    (c->s.model.kv_lora + DCPK_WIRE_TILE - 1) / DCPK_WIRE_TILE };
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= send(c, &c->r[i], of_rank(s, c, &c->r[i]));
	}
	if (c->mirrored)
		rc |= carry(c, s);
	else if (c->s.comm != DCPK_COMM_PEER)
		rc |= dcpg_meet(c);
	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		rc |= merge(c, &c->r[i], of_rank(s, c, &c->r[i]));
	}
	return rc;
}
