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
#include <string.h>

#include "kernels/cpu/prim.h"

/* The loops over a block of scores have no branches, so as to be vectorised. */
#ifndef __clang__
#pragma GCC optimize("O3")
#endif

#define BINS 2048u
#define CAP DCPC_TOPK_CAP
#define BLOCK 32u	/* scores whose keys are made at a time */

struct topk {
	const float *const *scores;
	const uint32_t *n;
	uint32_t D, need;	/* winners still wanted among the members */
	uint32_t klo, khi;	/* members: keys klo..khi ... */
	uint32_t plo, phi;	/* ... and positions plo..phi */
	uint32_t members, share;	/* in all; most on one rank */
	uint32_t bytes;
	uint32_t *hist;		/* [D][BINS], each rank's own */
	uint64_t *pairs;	/* [D*CAP], see pair() */
};

size_t
dcpc_topk_ws(uint32_t D)
{
	return (size_t)D * (BINS * sizeof(uint32_t) +
	    CAP * sizeof(uint64_t));
}

/*
 * a where c holds, else b, without a branch. Comparisons are kept signed and
 * below 2^31, which vector units of all ages have.
 */
static inline uint32_t
pick(bool c, uint32_t a, uint32_t b)
{
	uint32_t m = 0u - c;

	return (a & m) | (b & ~m);
}

/* Sorts as the score does: NaN 0, then -inf upwards; -0 and +0 the same. */
static inline uint32_t
key_of(float score)
{
	uint32_t u, mag, key;

	memcpy(&u, &score, 4);
	mag = u & 0x7fffffff;
	key = pick((int32_t)u < 0 && mag != 0, 0x7fffffff - mag,
	    mag | 0x80000000);
	return pick((int32_t)mag > 0x7f800000, 0, key);
}

/*
 * First digit: the key's score rounded to fp16 (to even; beyond its range the
 * infinity), order-preserving, the upper 11 of 16 bits. Monotone in the key.
 */
static inline uint32_t
digit_of(uint32_t key)
{
	const bool neg = (int32_t)key >= 0;
	const uint32_t mag = pick(neg, 0x7fffffff - key, key & 0x7fffffff);
	const bool small = (int32_t)mag < 113 << 23;	/* fp16 subnormal */
	uint32_t half, u;
	float f;

	half = (mag + 0xfff + (mag >> 13 & 1) - (112u << 23)) >> 13;
	half = pick((int32_t)half > 0x7c00, 0x7c00, half);
	u = pick(small, mag, 0);
	memcpy(&f, &u, 4);
	f += 0.5f;			/* whose last place is 2^-24 */
	memcpy(&u, &f, 4);
	half = pick(small, u - (126u << 23), half);
	half = pick(neg, 0x7fff - half, half | 0x8000) >> 5;
	return pick(key == 0, 0, half);	/* NaN */
}

/* Keys of a block of scores, and the largest. Past n: NaN's. */
static inline uint32_t
block_keys(uint32_t *key, const float *s, uint32_t n)
{
	uint32_t i, max = 0;

	if (n < BLOCK) {
		for (i = 0; i < n; i++)
			key[i] = key_of(s[i]);
		memset(key + n, 0, (BLOCK - n) * sizeof(*key));
	} else {
		for (i = 0; i < BLOCK; i++)
			key[i] = key_of(s[i]);
	}
	for (i = 0; i < BLOCK; i++)
		max = key[i] > max ? key[i] : max;
	return max;
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

/* One rank's counts of the first digit; part 0 is the best. */
static void
tally_first(const struct topk *t, uint32_t r)
{
	uint32_t *hist = t->hist + r * BINS, odd[BINS], key[BLOCK];
	uint32_t digit[BLOCK], i, j, m;

	/* Two counts by turns: neighbours in one part need not wait. */
	memset(hist, 0, BINS * sizeof(*hist));
	memset(odd, 0, sizeof(odd));
	for (j = 0; j < t->n[r]; j += BLOCK) {
		m = t->n[r] - j < BLOCK ? t->n[r] - j : BLOCK;
		block_keys(key, t->scores[r] + j, m);
		for (i = 0; i < BLOCK; i++)
			digit[i] = BINS - 1 - digit_of(key[i]);
		for (i = 0; i + 2 <= m; i += 2) {
			hist[digit[i]]++;
			odd[digit[i + 1]]++;
		}
		if (i < m)
			hist[digit[i]]++;
	}
	for (i = 0; i < BINS; i++)
		hist[i] += odd[i];
}

/* One rank's members by equal parts of the keys or of the positions. */
static void
tally(const struct topk *t, uint32_t r, enum round round)
{
	uint32_t *hist = t->hist + r * BINS, key[BLOCK], i, j, m, pos;
	const uint32_t s = round == ROUND_KEY ? part_shift(t->klo, t->khi) :
	    part_shift(t->plo, t->phi);

	memset(hist, 0, BINS * sizeof(*hist));
	for (j = 0; j < t->n[r]; j += BLOCK) {
		m = t->n[r] - j < BLOCK ? t->n[r] - j : BLOCK;
		if (block_keys(key, t->scores[r] + j, m) < t->klo)
			continue;
		for (i = 0; i < m; i++) {
			pos = (j + i) * t->D + r;
			if (!member(t, key[i], pos))
				continue;
			if (round == ROUND_KEY)
				hist[(t->khi - key[i]) >> s]++;
			else
				hist[(pos - t->plo) >> s]++;
		}
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

/* (key, position) as one number: larger is better. */
static inline uint64_t
pair(uint32_t key, uint32_t pos)
{
	return (uint64_t)key << 32 | (UINT32_MAX - pos);
}

/* The k-th largest (from 1) of n different numbers; orders x in part. */
static uint64_t
kth(uint64_t *x, uint32_t n, uint32_t k)
{
	uint32_t lo = 0, hi = n, i, j;
	uint64_t pivot, y;

	while (hi - lo > 1) {
		pivot = x[lo + (hi - lo) / 2];
		x[lo + (hi - lo) / 2] = x[lo];
		for (i = lo, j = lo + 1; j < hi; j++)
			if (x[j] > pivot) {	/* better ones to the front */
				y = x[j];
				x[j] = x[i + 1];
				x[++i] = y;
			}
		/* x[i] is the last better one, or the pivot's own place */
		x[lo] = x[i];
		x[i] = pivot;
		if (i == k - 1)
			return pivot;
		if (i < k - 1)
			lo = i + 1;
		else
			hi = i;
	}
	return x[lo];
}

/* All ranks see the few members of all: the need-th best is the threshold. */
static void
exchange(struct topk *t)
{
	uint32_t r, i, j, m, key[BLOCK], pos, n = 0;
	uint64_t x;

	for (r = 0; r < t->D; r++)
		for (j = 0; j < t->n[r]; j += BLOCK) {
			m = t->n[r] - j < BLOCK ? t->n[r] - j : BLOCK;
			if (block_keys(key, t->scores[r] + j, m) < t->klo)
				continue;
			for (i = 0; i < m; i++) {
				pos = (j + i) * t->D + r;
				if (member(t, key[i], pos))
					t->pairs[n++] = pair(key[i], pos);
			}
		}
	x = kth(t->pairs, n, t->need);
	t->klo = (uint32_t)(x >> 32);
	t->phi = UINT32_MAX - (uint32_t)x;
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
			if (round == ROUND_FIRST)
				tally_first(t, r);
			else
				tally(t, r, round);
		digest(t, round);
		t->bytes += BINS * (most > UINT16_MAX ? 4 : 2);
		if (t->members == t->need)
			return;
		if (t->share <= CAP) {
			t->bytes += t->share * (uint32_t)sizeof(uint64_t);
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
	uint32_t i, j, m, key[BLOCK], n = 0;

	for (j = 0; j < t->n[r]; j += BLOCK) {
		m = t->n[r] - j < BLOCK ? t->n[r] - j : BLOCK;
		if (block_keys(key, t->scores[r] + j, m) < t->klo)
			continue;
		for (i = 0; i < m; i++)
			if (key[i] > t->klo || (key[i] == t->klo &&
			    (j + i) * t->D + r <= t->phi))
				out[n++] = j + i;
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

	t.pairs = (uint64_t *)(void *)(t.hist + (size_t)D * BINS);
	for (r = 0; r < D; r++)
		all += n[r];
	if (k > 0 && k < all)
		find(&t);
	for (r = 0; r < D; r++)
		count[r] = k > 0 ? collect(&t, r, out[r]) : 0;
	return D > 1 ? t.bytes : 0;
}
