/*
 * See finite.h. Eight bytes at a time, in the time that reading them from
 * memory takes: with the sign off, an exponent of all ones (of e4m3, a number
 * of all ones) and no other carries into the sign's place when one is added at
 * its end.
 */
#include "config.h"

#include <string.h>

#include "dcpd/model/finite.h"

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

uint64_t
dcpd_first_not_finite(enum dcpd_st_dtype dtype, const void *p, uint64_t bytes)
{
	const struct form *f = &forms[dtype];
	const uint64_t mask = f->size == 0 ? 0 : spread(f->mask, f->size);
	const uint64_t one = f->size == 0 ? 0 : spread(f->one, f->size);
	const uint64_t sign = f->size == 0 ? 0 : spread(f->sign, f->size);
	const uint64_t any = f->negative ? 0 : UINT64_MAX;
	const unsigned char *at = p;
	uint64_t v, bad, i;

	if (f->size == 0)
		return UINT64_MAX;
	for (i = 0; i < bytes; i += 8) {
		v = 0;
		if (bytes - i >= 8)
			memcpy(&v, at + i, 8);
		else
			memcpy(&v, at + i, bytes - i);
		bad = ((v & mask) + one) & sign & (v | any);
		if (bad != 0)		/* little endian: the lowest is first */
			return (i + (unsigned)__builtin_ctzll(bad) / 8) /
			    f->size * f->size;
	}
	return UINT64_MAX;
}
