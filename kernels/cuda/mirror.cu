/*
 * GPUs that cannot reach each other's memory (DCPK_NO_PEERS): what a kernel
 * reads of other ranks is brought into its own rank's memory first, by NCCL's
 * sends and receives. Step thread only.
 *
 * Each rank has one region, `mirror`. An exchange stands where ranks otherwise
 * meet; it lays what it brings side by side from the region's start (behind
 * what was packed there to be sent) and notes where, so that dcpg_seen finds
 * it, until the next exchange. A region is written by its own rank's stream
 * alone, so the kernels that read an exchange are done before the next one. How
 * large it is: kernels/mirror.h.
 */
#include <stdio.h>

#include <new>
#include <vector>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"
#include "kernels/fail.h"
#include "kernels/mirror.h"

static_assert(DCPK_OFFER_BYTES == DCPG_OFFER_CAP * sizeof(uint64_t) &&
    DCPK_WINDOW_BYTES == sizeof(struct dcpg_window), "kernels/mirror.h");

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
	size_t cap = dcpk_mirror_bytes(&c->s, r->id);

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
	return fail(err, -ENOMEM, "cuda: out of memory");
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
