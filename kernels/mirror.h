/*
 * --device cuda where GPUs cannot reach each other's memory: how large the
 * region is that a rank has what it reads of the others in (cuda/mirror.cu),
 * told to the planner and to the module alike. Pure functions.
 */
#ifndef DCPK_MIRROR_H
#define DCPK_MIRROR_H

#include "kernels/kernels.h"

/* What a rank offers of a row in decode; mirror.cu asserts both. */
#define DCPK_OFFER_BYTES (2048u * 8)
#define DCPK_WINDOW_BYTES 16u

static inline bool
dcpk_mirrored(const struct dcpk_setup *s)
{
	return (s->flags & DCPK_NO_PEERS) != 0 && s->topo.world > 1 &&
	    s->comm == DCPK_COMM_NCCL;
}

/* Scores of a row that a rank has in decode, filled up. */
static inline uint64_t
dcpk_shard_scores(const struct dcpk_setup *s)
{
	return ((uint64_t)dcpk_shard_len(s->max_ctx, 0, s->topo.dcp) + 31) /
	    32 * 32;
}

/* An index key without its scale. */
static inline uint64_t
dcpk_mirror_key(const struct dcpk_setup *s)
{
	return dcpk_index_bytes(s->idx, s->model.idx_dim) -
	    (s->idx == DCPK_KV_FP8 ? 4 : 0);
}

/* Where the next thing in the region begins. */
static inline uint64_t
dcpk_mirror_up(uint64_t n)
{
	return (n + 255) / 256 * 256;
}

static inline void
dcpk_mirror_room(uint64_t *most, uint64_t n)
{
	if (n > *most)
		*most = n;
}

/* Exchanges inside a DCP group of D > 1, of which M rows are a pass. */
static inline void
dcpk_mirror_group(const struct dcpk_setup *s, uint64_t M, uint64_t *most)
{
	const struct dcpk_model *m = &s->model;
	uint64_t R = s->max_rows, D = s->topo.dcp;
	uint64_t Hr = m->heads / s->topo.world, heads = M * Hr;
	uint64_t tiles = (m->kv_lora + DCPK_WIRE_TILE - 1) / DCPK_WIRE_TILE;
	uint64_t shard = dcpk_shard_len(s->max_ctx, 0, s->topo.dcp);
	uint64_t row = dcpk_row_bytes(s->kv, m->kv_lora, m->rope);

	/* q; partial outputs; those of a2a, f32, of a request */
	dcpk_mirror_room(most, D * dcpk_mirror_up(heads * 2 *
	    (m->kv_lora + m->rope)));
	dcpk_mirror_room(most, 2 * D * (dcpk_mirror_up(heads * m->kv_lora *
	    2) + dcpk_mirror_up(heads * 4)));
	dcpk_mirror_room(most, 2 * D * dcpk_mirror_up((M / D + 1) * Hr *
	    m->kv_lora * 4));
	if (s->wire == DCPK_WIRE_FP8)
		dcpk_mirror_room(most, 2 * D * heads * (m->kv_lora +
		    tiles * 4 + 4) + 3 * 256);
	/* scores and offers of decode; rows, or keys with scales, of prefill,
	 * packed and as they land */
	dcpk_mirror_room(most, D * (dcpk_mirror_up(R * 4 *
	    dcpk_shard_scores(s)) + dcpk_mirror_up(R * DCPK_OFFER_BYTES) +
	    dcpk_mirror_up(R * DCPK_WINDOW_BYTES)));
	dcpk_mirror_room(most, (D + 1) * dcpk_mirror_up(shard * row));
	dcpk_mirror_room(most, (D + 1) * (dcpk_mirror_up(shard *
	    dcpk_mirror_key(s)) + dcpk_mirror_up(shard * 4)));
}

/*
 * The region of a rank: the largest of all exchanges, which must be those that
 * the operations make.
 */
static inline uint64_t
dcpk_mirror_bytes(const struct dcpk_setup *s, uint32_t rank)
{
	const struct dcpk_model *m = &s->model;
	uint64_t W = s->topo.world, samples, most = 0;
	uint64_t M = s->max_rows > s->max_prefill ? s->max_rows :
	    s->max_prefill;

	if (!dcpk_mirrored(s))
		return 0;
	M = (M + 3) / 4 * 4;	/* backend.cu's, of FP8 */
	samples = s->max_rows > 16 ? s->max_rows : 16;
	if ((s->flags & DCPK_KEEP_SELECT) != 0 && M > samples)
		samples = M;
	/* lists; new rows under CP; logits */
	dcpk_mirror_room(&most, W * (dcpk_mirror_up((M / W + 1) * m->topk *
	    4) + dcpk_mirror_up((M / W + 1) * 4)));
	if (s->topo.cp > 1)
		dcpk_mirror_room(&most, W * (dcpk_mirror_up(M *
		    dcpk_row_bytes(s->kv, m->kv_lora, m->rope)) +
		    dcpk_mirror_up(M * dcpk_mirror_key(s)) +
		    dcpk_mirror_up(M * 4)));
	if (rank == 0)
		dcpk_mirror_room(&most, W * dcpk_mirror_up(samples * 4 *
		    ((m->vocab + W - 1) / W)));
	if (s->topo.dcp > 1)
		dcpk_mirror_group(s, M, &most);
	return most;
}

#endif
