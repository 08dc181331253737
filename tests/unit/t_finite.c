/*
 * Numbers that are none, in every type of a checkpoint: each value alone, and
 * one among finite ones at each place.
 */
#include "config.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/model/finite.h"

#define BYTES 200u

/* By the words of the formats: IEEE 754, OCP 8-bit and OCP MX. */
static bool
is_number(enum dcpd_st_dtype d, uint32_t v)
{
	float f;

	switch (d) {
	case DCPD_ST_F8_E4M3:
		return v != 0x7f && v != 0xff;
	case DCPD_ST_F8_E5M2:
		return v >> 2 != 31 && v >> 2 != 63;
	case DCPD_ST_F8_E8M0:
		return v != 0xff;
	case DCPD_ST_F16:
		return v >> 10 != 31 && v >> 10 != 63;
	case DCPD_ST_BF16:
		v <<= 16;
		/* fall through */
	default:
		memcpy(&f, &v, 4);
		return isfinite(f);
	}
}

static const struct {
	enum dcpd_st_dtype d;
	unsigned size;			/* bytes */
} types[] = {
	{ DCPD_ST_F8_E4M3, 1 }, { DCPD_ST_F8_E5M2, 1 }, { DCPD_ST_F8_E8M0, 1 },
	{ DCPD_ST_F16, 2 }, { DCPD_ST_BF16, 2 }, { DCPD_ST_F32, 4 },
};

START_TEST(each_value_is_told)
{
	unsigned size = types[_i].size, n = size == 1 ? 256 : 65536;

	for (uint32_t i = 0; i < n; i++) {
		/* Of f32 the upper half, above zeros and above ones. */
		for (uint32_t low = 0; low < 2; low++) {
			uint32_t v = size < 4 ? i : i << 16 |
			    (low == 0 ? 0 : 0xffff);
			uint64_t at = dcpd_first_not_finite(types[_i].d, &v,
			    size);

			ck_assert_msg(at == (is_number(types[_i].d, v) ?
			    UINT64_MAX : 0), "type %d: %x", (int)types[_i].d,
			    v);
		}
	}
}
END_TEST

START_TEST(the_first_is_found_at_any_place)
{
	unsigned size = types[_i].size;
	unsigned char p[BYTES];

	for (unsigned bytes = size; bytes <= BYTES; bytes += size) {
		/* Finite in every type, with most bits of its exponent set. */
		memset(p, 0x7b, sizeof p);
		ck_assert_uint_eq(dcpd_first_not_finite(types[_i].d, p, bytes),
		    UINT64_MAX);
		for (unsigned at = bytes; at >= size; at -= size) {
			memset(p + at - size, 0xff, size);
			ck_assert_uint_eq(dcpd_first_not_finite(types[_i].d, p,
			    bytes), at - size);
		}
	}
}
END_TEST

START_TEST(whole_numbers_are_all_right)
{
	unsigned char p[8];

	memset(p, 0xff, sizeof p);
	ck_assert_uint_eq(dcpd_first_not_finite(DCPD_ST_I32, p, 8), UINT64_MAX);
	ck_assert_uint_eq(dcpd_first_not_finite(DCPD_ST_U8, p, 8), UINT64_MAX);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("finite");
	TCase *t = tcase_create("finite");
	SRunner *r = srunner_create(s);
	int failed, n = sizeof types / sizeof types[0];

	tcase_add_loop_test(t, each_value_is_told, 0, n);
	tcase_add_loop_test(t, the_first_is_found_at_any_place, 0, n);
	tcase_add_test(t, whole_numbers_are_all_right);
	suite_add_tcase(s, t);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
