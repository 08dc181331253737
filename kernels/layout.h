/*
 * Where a token lives, and which rank computes it: the arithmetic of DCP,
 * shared by the daemon and every backend. Pure functions, no state.
 *
 * D = DCP size, a power of two, 1..64. A logical page is 64 tokens whatever D
 * is; a rank holds 64/D rows of it. Position p is on DCP rank p % D, in that
 * rank's pool row page*(64/D) + (p%64)/D. Page ids are the same on all ranks
 * of a shard, so one page table serves all.
 *
 * Seen from one rank its tokens are again a paged array, with pages of 64/D
 * rows: local index j is position j*D + r.
 */
#ifndef DCPK_LAYOUT_H
#define DCPK_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define DCPK_PAGE 64u
#define DCPK_NOPOS UINT32_MAX

enum dcpk_cp_strategy {
	DCPK_CP_INTERLEAVE = 0,	/* position % cp computes the token */
	DCPK_CP_ZIGZAG = 1,	/* 2*cp blocks of the chunk; see below */
};

/* Tokens of the first len positions that DCP rank r of D holds. */
static inline uint32_t
dcpk_shard_len(uint32_t len, uint32_t r, uint32_t D)
{
	return len / D + (r < len % D);
}

static inline uint32_t
dcpk_page_rows(uint32_t D)
{
	return DCPK_PAGE / D;
}

/* Pool row of position pos on its own rank (pos % D), given its page id. */
static inline uint32_t
dcpk_pool_row(uint32_t page, uint32_t pos, uint32_t D)
{
	return page * (DCPK_PAGE / D) + (pos % DCPK_PAGE) / D;
}

/*
 * Zigzag: the chunk's T new tokens are cut into 2*cp blocks, the first T%(2cp)
 * of them one token longer; rank r computes blocks r and 2*cp-1-r. Blocks may
 * be empty. First token of block b, counted within the chunk:
 */
static inline uint32_t
dcpk_zigzag_start(uint32_t b, uint32_t T, uint32_t cp)
{
	uint32_t n = 2 * cp, q = T / n, rem = T % n;

	return b * q + (b < rem ? b : rem);
}

/* The CP rank that computes token i (0..T-1) of a chunk that starts at pos0. */
static inline uint32_t
dcpk_cp_owner(enum dcpk_cp_strategy s, uint32_t i, uint32_t T, uint32_t pos0,
    uint32_t cp)
{
	uint32_t n, q, rem, cut, b;

	if (cp == 1)
		return 0;
	if (s == DCPK_CP_INTERLEAVE)
		return (pos0 + i) % cp;
	n = 2 * cp;
	q = T / n;
	rem = T % n;
	cut = rem * (q + 1);
	b = i < cut ? i / (q + 1) : rem + (i - cut) / q;
	return b < cp ? b : n - 1 - b;
}

/*
 * Heads. An attention shard of span = attn_tp*cp ranks; tp is inner, cp outer.
 * Rank r's prefill heads (CP: all of its attn_tp slice) and decode heads (its
 * cp part of that slice: the "decode slice").
 */
struct dcpk_heads {
	uint32_t first, n;
};

static inline struct dcpk_heads
dcpk_prefill_heads(uint32_t rank, uint32_t H, uint32_t attn_tp)
{
	struct dcpk_heads h = { rank % attn_tp * (H / attn_tp), H / attn_tp };

	return h;
}

static inline struct dcpk_heads
dcpk_decode_heads(uint32_t rank, uint32_t H, uint32_t attn_tp, uint32_t cp)
{
	uint32_t per = H / attn_tp / cp;
	struct dcpk_heads h = {
		rank % attn_tp * (H / attn_tp) + rank / attn_tp * per, per
	};

	return h;
}

#endif
