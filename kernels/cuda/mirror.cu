/*
 * GPUs that cannot reach each other's memory (DCPK_NO_PEERS): what a kernel
 * reads of other ranks is brought into its own rank's memory first, by NCCL's
 * sends and receives. Step thread only.
 *
 * Each rank has one region, `mirror`. An exchange stands where ranks otherwise
 * meet; it lays what it brings side by side from the region's start (behind
 * what was packed there to be sent) and notes where, so that dcpg_seen finds
 * it, until the next exchange. A region is written by its own rank's stream
 * alone, so the kernels that read an exchange are done before the next one.
 */
#include <stdio.h>

#include <algorithm>
#include <new>
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"

struct part {
	const void *of[DCPK_MAX_RANKS];
	enum dcpg_who who;
	size_t at, bytes;	/* the first rank's, in the region; each */
	bool packed;		/* the own part is there too */
};

struct dcpg_mirror {
	std::vector<part> now;
	std::vector<dcpg_copy> copies;
};

static size_t
up(size_t n)
{
	return (n + 255) / 256 * 256;
}

/* Ranks o whose part rank r gets: n of them from `first`. */
static void
sources(const dcpk_ctx *c, const dcpg_rank *r, enum dcpg_who who,
    uint32_t *first, uint32_t *n)
{
	*first = who == DCPG_GROUP ? r->group * c->D : 0;
	*n = who == DCPG_GROUP ? c->D : c->W;
	if (who == DCPG_RANK0 && r->id != 0)
		*n = 0;
}

static int
fits(const dcpk_ctx *c, const dcpg_rank *r, size_t used)
{
	size_t cap = dcpg_mirror_bytes(c, r->id);

	if (used <= cap)
		return 0;
	fprintf(stderr, "cuda: rank %u: an exchange of %zu bytes, its memory "
	    "has %zu\n", r->id, used, cap);
	return -EIO;
}

int
dcpg_mirror_open(dcpk_ctx *c, dcpk_err *err)
{
	if (!c->mirrored)
		return 0;
	c->mirror = new (std::nothrow) dcpg_mirror();
	if (c->mirror != NULL)
		return 0;
	snprintf(err->text, sizeof err->text, "cuda: out of memory");
	return -ENOMEM;
}

void
dcpg_mirror_close(dcpk_ctx *c)
{
	delete c->mirror;
	c->mirror = NULL;
}

/* What rank o has at p, as rank r can read it; NULL: it was not brought. */
const void *
dcpg_seen_at(const dcpk_ctx *c, const dcpg_rank *r, uint32_t o, const void *p)
{
	uint32_t first, n;

	if (!c->mirrored)
		return p;
	for (const part &m : c->mirror->now) {
		sources(c, r, m.who, &first, &n);
		if (m.of[o] != p || o < first || o >= first + n)
			continue;
		if (o == r->id && !m.packed)
			return p;
		return r->mirror + m.at + (o - first) * m.bytes;
	}
	return o == r->id ? p : NULL;
}

int
dcpg_meet_over(dcpk_ctx *c, enum dcpg_who who, const dcpg_share *s,
    uint32_t n, size_t used)
{
	dcpg_mirror *m = c->mirror;
	int rc = 0;

	if (!c->mirrored)
		return dcpg_meet(c);
	m->now.clear();
	m->copies.clear();
	used = up(used);
	for (uint32_t k = 0; k < n; k++) {
		size_t bytes = up(s[k].bytes);
		part p = {};

		p.who = who;
		p.at = used;
		p.bytes = bytes;
		memcpy(p.of, s[k].of, sizeof p.of);
		m->now.push_back(p);
		for (uint32_t i = 0; i < c->W; i++) {
			dcpg_rank *r = &c->r[i];
			uint32_t first, many;

			sources(c, r, who, &first, &many);
			rc |= fits(c, r, many ? used + many * bytes : 0);
			for (uint32_t o = first; o < first + many; o++)
				if (o != i)
					m->copies.push_back({ o, i, s[k].of[o],
					    r->mirror + used + (o - first) *
					    bytes, s[k].bytes });
		}
		used += (who == DCPG_GROUP ? c->D : c->W) * bytes;
	}
	return rc != 0 ? rc : dcpg_nccl_copy(c, m->copies.data(),
	    m->copies.size());
}

/*
 * Of [rows][D][width bytes] on each rank of a group, each gets its own column,
 * [D][rows][width]: packed by destination, sent, and its own copied.
 */
int
dcpg_meet_heads(dcpk_ctx *c, const dcpg_share *s, uint32_t n, uint32_t rows)
{
	dcpg_mirror *m = c->mirror;
	size_t used = 0;
	int rc = 0;

	if (!c->mirrored)
		return dcpg_meet(c);
	m->now.clear();
	m->copies.clear();
	for (uint32_t k = 0; k < n; k++) {
		size_t width = s[k].bytes, block = up(rows * width);
		part p = {};

		p.who = DCPG_GROUP;
		p.packed = true;
		p.at = used + c->D * block;
		p.bytes = block;
		memcpy(p.of, s[k].of, sizeof p.of);
		m->now.push_back(p);
		for (uint32_t i = 0; i < c->W; i++) {
			dcpg_rank *r = &c->r[i];

			if (fits(c, r, used + 2 * c->D * block) != 0)
				return -EIO;
			cudaSetDevice(r->dev);
			for (uint32_t e = 0; e < c->D; e++) {
				uint32_t to = r->group * c->D + e;
				char *from = r->mirror + used + e * block;

				rc |= dcpg_ok(cudaMemcpy2DAsync(from, width,
				    (const char *)s[k].of[i] + e * width,
				    c->D * width, width, rows,
				    cudaMemcpyDeviceToDevice, r->st), "heads");
				m->copies.push_back({ i, to, from,
				    c->r[to].mirror + p.at + r->dr * block,
				    rows * width });
			}
		}
		used += 2 * c->D * block;
	}
	return rc != 0 ? rc : dcpg_nccl_copy(c, m->copies.data(),
	    m->copies.size());
}

/*
 * The region of a rank: the largest of all exchanges, which must be those that
 * the operations make. S: rows of a request that fall to one of n ranks.
 */
size_t
dcpg_mirror_bytes(const dcpk_ctx *c, uint32_t id)
{
	const dcpk_model *m = &c->s.model;
	size_t M = c->M, R = c->s.max_rows, W = c->W, D = c->D;
	size_t cr = m->kv_lora + m->rope, heads = M * c->Hr, most = 0;
	size_t shards = (c->s.max_ctx + D - 1) / D;
	size_t tiles = (m->kv_lora + DCPK_WIRE_TILE - 1) / DCPK_WIRE_TILE;
	auto room = [&](size_t n) { most = std::max(most, n); };

	if (!c->mirrored)
		return 0;
	/* lists; new rows under CP; logits */
	room(W * (up((M / W + 1) * m->topk * 4) + up((M / W + 1) * 4)));
	if (c->s.topo.cp > 1)
		room(W * (up(M * c->row_bytes) + up(M * c->key_bytes) +
		    up(M * 4)));
	if (id == 0)
		room(W * up(c->cap_samples * ((m->vocab + W - 1) / W) * 4));
	if (D == 1)
		return most;
	/* q; partial outputs; those of a2a, f32, of a request */
	room(D * up(heads * cr * 2));
	room(2 * D * (up(heads * m->kv_lora * 2) + up(heads * 4)));
	room(2 * D * up((M / D + 1) * c->Hr * m->kv_lora * 4));
	if (c->s.wire == DCPK_WIRE_FP8)
		room(2 * D * (heads * m->kv_lora + heads * tiles * 4 +
		    heads * 4) + 3 * 256);
	/* scores and offers of decode; rows, or keys with scales, of prefill,
	 * packed and as they land */
	room(D * (up(R * dcpg_shard(c) * 4) + up(R * DCPG_OFFER_CAP * 8) +
	    up(R * sizeof(struct dcpg_window))));
	room((D + 1) * up(shards * c->row_bytes));
	room((D + 1) * (up(shards * c->key_bytes) + up(shards * 4)));
	return most;
}
