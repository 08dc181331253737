/*
 * layout.h by enumeration: a model that deals positions out one by one, as
 * the words of the header say, against its formulas.
 */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"

/* Position p goes to rank p mod D; each rank fills its rows in order. */
START_TEST(shards_hold_every_position_once)
{
	uint32_t D, L, p, r, have[64];

	for (D = 1; D <= 64; D *= 2)
		for (L = 0; L <= 300; L++) {
			memset(have, 0, sizeof(have));
			for (p = 0; p < L; p++)
				have[p % D]++;
			for (r = 0; r < D; r++)
				ck_assert_uint_eq(dcpk_shard_len(L, r, D),
				    have[r]);
		}
	/* the causal bound of a query at s: keys 0..s */
	ck_assert_uint_eq(dcpk_shard_len(8 + 1, 0, 8), 2);
	ck_assert_uint_eq(dcpk_shard_len(8 + 1, 1, 8), 1);
}
END_TEST

/* Rows of a page are used once each, all of them, on each rank. */
START_TEST(pool_rows_fill_the_pages)
{
	enum { PAGES = 5 };
	static const uint32_t table[PAGES] = { 3, 0, 4, 1, 2 };
	static bool used[64][PAGES * 64];
	uint32_t D, p, row, r, rows, j;

	for (D = 1; D <= 64; D *= 2) {
		rows = PAGES * dcpk_page_rows(D);
		ck_assert_uint_eq(dcpk_page_rows(D) * D, 64);
		memset(used, 0, sizeof(used));
		for (p = 0; p < PAGES * 64; p++) {
			row = dcpk_pool_row(table[p / 64], p, D);
			ck_assert_uint_lt(row, rows);
			ck_assert(!used[p % D][row]);
			used[p % D][row] = true;
			/* the rank's j-th token, in pages of 64/D rows */
			j = p / D;
			ck_assert_uint_eq(row, table[j / dcpk_page_rows(D)] *
			    dcpk_page_rows(D) + j % dcpk_page_rows(D));
		}
		for (r = 0; r < D; r++)
			for (row = 0; row < rows; row++)
				ck_assert(used[r][row]);
	}
}
END_TEST

/* Deal the chunk into 2*cp blocks, the first T%(2cp) one token longer. */
static void
zigzag(uint32_t *owner, uint32_t T, uint32_t cp)
{
	uint32_t b, i = 0, n;

	for (b = 0; b < 2 * cp; b++) {
		ck_assert_uint_eq(dcpk_zigzag_start(b, T, cp), i);
		for (n = T / (2 * cp) + (b < T % (2 * cp)); n > 0; n--)
			owner[i++] = b < cp ? b : 2 * cp - 1 - b;
	}
	ck_assert_uint_eq(i, T);
	ck_assert_uint_eq(dcpk_zigzag_start(2 * cp, T, cp), T);
}

START_TEST(zigzag_owners)
{
	uint32_t owner[300], cp, T, i;

	for (cp = 1; cp <= 8; cp++)
		for (T = 0; T < 300; T += T < 40 ? 1 : 13) {
			zigzag(owner, T, cp);
			for (i = 0; i < T; i++)
				ck_assert_uint_eq(dcpk_cp_owner(
				    DCPK_CP_ZIGZAG, i, T, 1000, cp),
				    owner[i]);
		}
}
END_TEST

/* 19 tokens over four: rank 0 has {0,1,2,17,18}, rank 3 {9..12}. */
START_TEST(zigzag_of_19_over_4)
{
	static const uint32_t rank0[] = { 0, 1, 2, 17, 18 };
	static const uint32_t rank3[] = { 9, 10, 11, 12 };
	uint32_t got[4][19], n[4] = { 0 }, seen[19] = { 0 }, i, r;

	for (i = 0; i < 19; i++) {
		r = dcpk_cp_owner(DCPK_CP_ZIGZAG, i, 19, 0, 4);
		ck_assert_uint_lt(r, 4);
		got[r][n[r]++] = i;
		seen[i]++;
	}
	ck_assert_uint_eq(n[0], 5);
	ck_assert_mem_eq(got[0], rank0, sizeof(rank0));
	ck_assert_uint_eq(n[3], 4);
	ck_assert_mem_eq(got[3], rank3, sizeof(rank3));
	for (i = 0; i < 19; i++)
		ck_assert_uint_eq(seen[i], 1);
}
END_TEST

START_TEST(interleave_owner_is_the_position)
{
	uint32_t i, pos0, cp;

	for (cp = 1; cp <= 8; cp++)
		for (pos0 = 0; pos0 < 20; pos0++)
			for (i = 0; i < 50; i++)
				ck_assert_uint_eq(dcpk_cp_owner(
				    DCPK_CP_INTERLEAVE, i, 50, pos0, cp),
				    (pos0 + i) % cp);
}
END_TEST

/* Decode slices part each prefill slice; tp is the inner rank. */
START_TEST(heads_are_dealt_once)
{
	static const uint32_t shapes[][3] = { { 64, 8, 1 }, { 128, 4, 2 },
	    { 64, 1, 8 }, { 64, 2, 4 }, { 8, 1, 1 } };
	uint32_t i, rank, h, owner[128];
	struct dcpk_heads p, d;

	for (i = 0; i < 5; i++) {
		const uint32_t H = shapes[i][0], tp = shapes[i][1];
		const uint32_t cp = shapes[i][2];

		memset(owner, 0xff, sizeof(owner));
		for (rank = 0; rank < tp * cp; rank++) {
			p = dcpk_prefill_heads(rank, H, tp);
			d = dcpk_decode_heads(rank, H, tp, cp);
			ck_assert_uint_eq(p.n, H / tp);
			ck_assert_uint_eq(p.first, rank % tp * (H / tp));
			ck_assert_uint_eq(d.n, H / tp / cp);
			ck_assert_uint_ge(d.first, p.first);
			ck_assert_uint_le(d.first + d.n, p.first + p.n);
			for (h = d.first; h < d.first + d.n; h++) {
				ck_assert_uint_eq(owner[h], UINT32_MAX);
				owner[h] = rank;
			}
		}
		for (h = 0; h < H; h++)
			ck_assert_uint_lt(owner[h], tp * cp);
	}
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("layout");
	TCase *t = tcase_create("layout");
	SRunner *sr;
	int failed;

	tcase_add_test(t, shards_hold_every_position_once);
	tcase_add_test(t, pool_rows_fill_the_pages);
	tcase_add_test(t, zigzag_owners);
	tcase_add_test(t, zigzag_of_19_over_4);
	tcase_add_test(t, interleave_owner_is_the_position);
	tcase_add_test(t, heads_are_dealt_once);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
