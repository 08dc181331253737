/*
 * Exact top-k over shards by threshold. Any thread; the caller gives the
 * workspace.
 *
 * The order is (score descending, position ascending). A score becomes a
 * 32-bit key that sorts the same way, so the k-th best is a pair (key,
 * position), and a winner is whoever is not after it. The pair is found by
 * histograms: the keys that may still be it lie in an interval; each round
 * cuts the interval into at most BINS parts, counts the members per part on
 * each rank, adds the counts up and goes on in the part where the k-th falls.
 *
 *  round 0	parts are the scores rounded to fp16, upper 11 bits: fine where
 *		scores are, coarse where they are not
 *  later	equal parts of the key interval (11 bits a round)
 *  last	the key is known: equal parts of the positions that have it
 *
 * It ends when all members of the interval win, or when they are few on every
 * rank: then the ranks exchange them as (key, position) pairs. Only sums of
 * histograms and these pairs would cross ranks. On all ranks the same sums
 * lead to the same branches.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/prim.h"

#define BINS 2048u
#define CAP DCPC_TOPK_CAP

struct pair {
	uint32_t key, pos;
};

struct topk {
	const float *const *scores;
	const uint32_t *n;
	uint32_t D, need;	/* winners still wanted among the members */
	uint32_t klo, khi;	/* members: keys klo..khi ... */
	uint32_t plo, phi;	/* ... and positions plo..phi */
	uint32_t members, share;	/* in all; most on one rank */
	uint32_t bytes;
	uint32_t *hist;		/* [D][BINS], each rank's own */
	struct pair *pairs;	/* [D*CAP] */
};

size_t
dcpc_topk_ws(uint32_t D)
{
	return (size_t)D * (BINS * sizeof(uint32_t) +
	    CAP * sizeof(struct pair));
}

/* Sorts as the score does: NaN 0, then -inf upwards; -0 and +0 the same. */
static inline uint32_t
key_of(float score)
{
	uint32_t u;

	memcpy(&u, &score, 4);
	if ((u & 0x7fffffff) > 0x7f800000)
		return 0;
	if (u == 0x80000000)
		u = 0;
	return u & 0x80000000 ? ~u : u | 0x80000000;
}

/*
 * First digit: the key's score rounded to fp16 (to even; beyond its range the
 * infinity), order-preserving, the upper 11 of 16 bits. Monotone in the key.
 */
static inline uint32_t
digit_of(uint32_t key)
{
	uint32_t neg = ~key >> 31, mag, half;
	float f;

	mag = (neg ? ~key : key) & 0x7fffffff;
	if (mag < 113u << 23) {			/* fp16 subnormals */
		memcpy(&f, &mag, 4);
		f += 0.5f;			/* last place 2^-24 */
		memcpy(&half, &f, 4);
		half -= 126u << 23;
	} else {
		half = (mag + 0xfff + (mag >> 13 & 1) - (112u << 23)) >> 13;
		half = half < 0x7c00 ? half : 0x7c00;
	}
	if (key == 0)				/* NaN */
		return 0;
	return (neg ? 0x7fff - half : half | 0x8000) >> 5;
}

/* The smallest key whose first digit is at least d; 2^32 if there is none. */
static uint64_t
first_key(uint32_t d)
{
	uint64_t lo = 0, hi = UINT64_C(1) << 32, mid;

	while (lo < hi) {
		mid = (lo + hi) / 2;
		if (digit_of((uint32_t)mid) >= d)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static bool
member(const struct topk *t, uint32_t key, uint32_t pos)
{
	return key >= t->klo && key <= t->khi && pos >= t->plo && pos <= t->phi;
}

/* Bits to drop so that lo..hi fall into BINS parts. */
static uint32_t
part_shift(uint32_t lo, uint32_t hi)
{
	uint32_t s = 0;

	while ((hi - lo) >> s >= BINS)
		s++;
	return s;
}

enum round { ROUND_FIRST, ROUND_KEY, ROUND_POS };

/* One rank's counts per part; part 0 is the best. */
static void
tally(const struct topk *t, uint32_t r, enum round round)
{
	uint32_t *hist = t->hist + r * BINS, j, key, pos;
	const uint32_t s = round == ROUND_KEY ? part_shift(t->klo, t->khi) :
	    part_shift(t->plo, t->phi);

	memset(hist, 0, BINS * sizeof(*hist));
	for (j = 0; j < t->n[r]; j++) {
		key = key_of(t->scores[r][j]);
		pos = j * t->D + r;
		if (round == ROUND_FIRST)
			hist[BINS - 1 - digit_of(key)]++;
		else if (!member(t, key, pos))
			continue;
		else if (round == ROUND_KEY)
			hist[(t->khi - key) >> s]++;
		else
			hist[(pos - t->plo) >> s]++;
	}
}

/* Goes on in part `b`. */
static void
narrow(struct topk *t, uint32_t b, enum round round)
{
	uint32_t s, lo;
	uint64_t top;

	if (round == ROUND_FIRST) {
		t->klo = (uint32_t)first_key(BINS - 1 - b);
		t->khi = (uint32_t)(first_key(BINS - b) - 1);
	} else if (round == ROUND_KEY) {
		s = part_shift(t->klo, t->khi);
		t->khi -= b << s;
		lo = t->khi - ((1u << s) - 1);
		t->klo = lo > t->klo && lo <= t->khi ? lo : t->klo;
	} else {
		s = part_shift(t->plo, t->phi);
		t->plo += b << s;
		top = (uint64_t)t->plo + ((1u << s) - 1);
		t->phi = top < t->phi ? (uint32_t)top : t->phi;
	}
}

/* Adds up the ranks' counts and finds the part with the k-th. */
static void
digest(struct topk *t, enum round round)
{
	uint32_t b, r, sum, above = 0;

	for (b = 0;; b++) {
		for (sum = 0, r = 0; r < t->D; r++)
			sum += t->hist[r * BINS + b];
		if (above + sum >= t->need)
			break;
		above += sum;
	}
	t->need -= above;
	t->members = sum;
	for (t->share = 0, r = 0; r < t->D; r++)
		if (t->hist[r * BINS + b] > t->share)
			t->share = t->hist[r * BINS + b];
	narrow(t, b, round);
}

static int
by_rank(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;

	if (x->key != y->key)
		return x->key > y->key ? -1 : 1;
	return x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* All ranks see the few members of all: the need-th best is the threshold. */
static void
exchange(struct topk *t)
{
	uint32_t r, j, key, pos, n = 0;

	for (r = 0; r < t->D; r++)
		for (j = 0; j < t->n[r]; j++) {
			key = key_of(t->scores[r][j]);
			pos = j * t->D + r;
			if (member(t, key, pos))
				t->pairs[n++] = (struct pair){ key, pos };
		}
	qsort(t->pairs, n, sizeof(*t->pairs), by_rank);
	t->klo = t->pairs[t->need - 1].key;
	t->phi = t->pairs[t->need - 1].pos;
}

/* Leaves the threshold in klo and phi. */
static void
find(struct topk *t)
{
	enum round round = ROUND_FIRST;
	uint32_t r, most = 0;

	for (r = 0; r < t->D; r++)
		most = t->n[r] > most ? t->n[r] : most;
	t->phi = most * t->D - 1;
	for (;;) {
		for (r = 0; r < t->D; r++)
			tally(t, r, round);
		digest(t, round);
		t->bytes += BINS * (most > UINT16_MAX ? 4 : 2);
		if (t->members == t->need)
			return;
		if (t->share <= CAP) {
			t->bytes += t->share * (uint32_t)sizeof(struct pair);
			exchange(t);
			return;
		}
		round = t->klo < t->khi ? ROUND_KEY : ROUND_POS;
	}
}

/* Rank r's winners, ascending. */
static uint32_t
collect(const struct topk *t, uint32_t r, uint32_t *out)
{
	uint32_t j, key, n = 0;

	for (j = 0; j < t->n[r]; j++) {
		key = key_of(t->scores[r][j]);
		if (key > t->klo ||
		    (key == t->klo && j * t->D + r <= t->phi))
			out[n++] = j;
	}
	return n;
}

uint32_t
dcpc_topk(const float *const *scores, const uint32_t *n, uint32_t D,
    uint32_t k, uint32_t *const *out, uint32_t *count, void *ws)
{
	struct topk t = { .scores = scores, .n = n, .D = D, .need = k,
	    .khi = UINT32_MAX, .phi = UINT32_MAX, .hist = ws };
	uint64_t all = 0;
	uint32_t r;

	t.pairs = (struct pair *)(void *)(t.hist + (size_t)D * BINS);
	for (r = 0; r < D; r++)
		all += n[r];
	if (k > 0 && k < all)
		find(&t);
	for (r = 0; r < D; r++)
		count[r] = k > 0 ? collect(&t, r, out[r]) : 0;
	return D > 1 ? t.bytes : 0;
}
