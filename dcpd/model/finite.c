/*
 * See finite.h. Eight bytes at a time: with the sign off, an exponent of all
 * ones (of e4m3, a number of all ones) and no other carries into the sign's
 * place when one is added at its end.
 */
#include "config.h"

#include <string.h>

#include "dcpd/model/finite.h"

#define BLOCK 64u	/* bytes that are looked at together */

struct form {
	unsigned size;		/* bytes of an element; 0: all are finite */
	uint32_t mask, one, sign;
	bool negative;		/* the sign's place must have been set, too */
};

static const struct form forms[DCPD_ST_DTYPES] = {
	[DCPD_ST_F8_E4M3] = { 1, 0x7f, 0x01, 0x80, false },
	[DCPD_ST_F8_E5M2] = { 1, 0x7c, 0x04, 0x80, false },
	[DCPD_ST_F8_E8M0] = { 1, 0x7f, 0x01, 0x80, true },	/* 0xff */
	[DCPD_ST_F16] = { 2, 0x7c00, 0x0400, 0x8000, false },
	[DCPD_ST_BF16] = { 2, 0x7f80, 0x0080, 0x8000, false },
	[DCPD_ST_F32] = { 4, 0x7f800000, 0x00800000, 0x80000000, false },
};

/* v in each element of eight bytes. */
static uint64_t
spread(uint32_t v, unsigned size)
{
	return v * (UINT64_MAX / (UINT64_MAX >> (64 - 8 * size)));
}

struct wide {
	uint64_t mask, one, sign, any;
	unsigned size;
};

/* Bits in the places of the signs of those that are no numbers. */
static inline uint64_t
bad_in(const struct wide *w, const unsigned char *at)
{
	uint64_t v;

	memcpy(&v, at, 8);
	return ((v & w->mask) + w->one) & w->sign & (v | w->any);
}

/* The blocks before the one that has such a number, if any has; bytes. */
static uint64_t
skip_finite(const struct wide *f, const unsigned char *p, uint64_t bytes)
{
	const struct wide w = *f;
	uint64_t i, bad = 0;

	for (i = 0; i + BLOCK <= bytes; i += BLOCK) {
		for (unsigned k = 0; k < BLOCK; k += 8)
			bad |= bad_in(&w, p + i + k);
		if (bad != 0)
			break;
	}
	return i;
}

uint64_t
dcpd_first_not_finite(enum dcpd_st_dtype dtype, const void *p, uint64_t bytes)
{
	const struct form *f = &forms[dtype];
	const unsigned char *at = p;
	unsigned char last[8];
	struct wide w;
	uint64_t bad, i;

	if (f->size == 0)
		return UINT64_MAX;
	w = (struct wide){ spread(f->mask, f->size), spread(f->one, f->size),
	    spread(f->sign, f->size), f->negative ? 0 : UINT64_MAX, f->size };
	for (i = skip_finite(&w, p, bytes); i < bytes; i += 8) {
		memset(last, 0, 8);
		memcpy(last, at + i, bytes - i < 8 ? bytes - i : 8);
		bad = bad_in(&w, last);
		if (bad != 0)		/* little endian: the lowest is first */
			return (i + (unsigned)__builtin_ctzll(bad) / 8) /
			    w.size * w.size;
	}
	return UINT64_MAX;
}
