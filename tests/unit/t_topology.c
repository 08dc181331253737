/* The rule of the layout flags, both ways, and the slices of the weights. */
#include "config.h"

#include "dcpd/parallel/topology.h"
#include "tests/unit/model_util.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))

static struct dcpd_err err;

static int
check(uint32_t tp, uint32_t dp, uint32_t cp, uint32_t dcp)
{
	struct dcpd_layout l = { tp, dp, cp, dcp, DCPK_CP_INTERLEAVE };

	memset(&err, 0, sizeof err);
	return dcpd_layout_check(&l, &err);
}

START_TEST(combinations_that_must_pass)
{
	static const uint32_t c[][4] = {
		{ 8, 1, 8, 8 }, { 8, 1, 8, 4 }, { 8, 2, 4, 4 }, { 8, 2, 2, 4 },
		{ 64, 4, 1, 16 }, { 1, 1, 1, 1 }, { 8, 1, 1, 8 },
		{ 8, 1, 1, 1 }, { 6, 1, 3, 2 }, { 64, 1, 1, 64 },
		{ 12, 3, 2, 4 },
	};
	int i;

	for (i = 0; i < LEN(c); i++)
		ck_assert_msg(check(c[i][0], c[i][1], c[i][2], c[i][3]) == 0,
		    "%u,%u,%u,%u: %s", c[i][0], c[i][1], c[i][2], c[i][3],
		    err.text);
}
END_TEST

/* Each by its own rule: the text starts with the flag that is wrong. */
START_TEST(combinations_that_must_be_refused)
{
	static const struct {
		uint32_t tp, dp, cp, dcp;
		const char *flag, *says;
	} c[] = {
		{ 8, 2, 4, 8, "--dcp-size 8:", "divide the 4 ranks" },
		{ 8, 4, 1, 4, "--dcp-size 4:", "divide the 2 ranks" },
		{ 64, 4, 1, 32, "--dcp-size 32:", "divide the 16 ranks" },
		{ 6, 1, 1, 4, "--dcp-size 4:", "divide the 6 ranks" },
		{ 8, 1, 1, 3, "--dcp-size 3:", "1, 2, 4" },
		{ 8, 1, 1, 0, "--dcp-size 0:", "1, 2, 4" },
		{ 64, 1, 1, 128, "--dcp-size 128:", "1, 2, 4" },
		{ 8, 1, 3, 1, "--attn-cp-size 3:", "divide the 8 ranks" },
		{ 8, 2, 8, 1, "--attn-cp-size 8:", "divide the 4 ranks" },
		{ 8, 1, 0, 1, "--attn-cp-size 0:", "at least 1" },
		{ 8, 3, 1, 1, "--attn-dp-size 3:", "divide --tp 8" },
		{ 8, 0, 1, 1, "--attn-dp-size 0:", "at least 1" },
		{ 0, 1, 1, 1, "--tp 0:", "from 1 to 64" },
		{ 65, 1, 1, 1, "--tp 65:", "from 1 to 64" },
	};
	int i;

	for (i = 0; i < LEN(c); i++) {
		ck_assert_int_eq(check(c[i].tp, c[i].dp, c[i].cp, c[i].dcp),
		    -EINVAL);
		ck_assert_msg(strncmp(err.text, c[i].flag,
		    strlen(c[i].flag)) == 0 &&
		    strstr(err.text, c[i].says) != NULL, "%s", err.text);
	}
}
END_TEST

/*
 * Every small combination against the rule in other words: lay the ranks out
 * as a grid [dp][cp][tp] and cut each dp row into groups of D.
 */
static bool
can_lay_out(uint32_t tp, uint32_t dp, uint32_t cp, uint32_t dcp)
{
	uint32_t attn_tp, n = 0, d, c, t, bits = 0;

	if (tp == 0 || tp > 64 || dp == 0 || cp == 0)
		return false;
	for (t = dcp; t > 0; t >>= 1)
		bits += t & 1;
	if (bits != 1 || dcp > 64)
		return false;
	attn_tp = tp / (dp * cp);
	for (d = 0; d < dp; d++) {
		uint32_t row = 0;

		for (c = 0; c < cp; c++)
			for (t = 0; t < attn_tp; t++)
				row++;
		while (row >= dcp)
			row -= dcp, n += dcp;
		if (row != 0)
			return false;
	}
	return n == tp;
}

START_TEST(every_small_combination)
{
	uint32_t tp, dp, cp, dcp, pass = 0, total = 0;

	for (tp = 0; tp <= 66; tp++)
		for (dp = 0; dp <= 9; dp++)
			for (cp = 0; cp <= 17; cp++)
				for (dcp = 0; dcp <= 65; dcp++) {
					bool ok = check(tp, dp, cp, dcp) == 0;

					if (ok != can_lay_out(tp, dp, cp, dcp))
						ck_abort_msg("%u,%u,%u,%u: %s",
						    tp, dp, cp, dcp, ok ?
						    "passed" : err.text);
					pass += ok;
					total++;
				}
	ck_assert_uint_gt(pass, 500);
	ck_assert_uint_gt(total - pass, 500);
}
END_TEST

START_TEST(heads_and_what_is_not_built)
{
	struct dcpk_model m = { .heads = 8 };
	struct dcpd_layout l = { 16, 1, 2, 2, DCPK_CP_ZIGZAG };
	struct dcpk_topo t = { .world = 99 };

	ck_assert_int_eq(dcpd_topology(&l, &m, &t, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "--tp 16: the model's 8"));
	ck_assert_uint_eq(t.world, 99);
	l = (struct dcpd_layout){ 8, 2, 2, 2, DCPK_CP_ZIGZAG };
	ck_assert_int_eq(dcpd_topology(&l, &m, &t, &err), -ENOTSUP);
	ck_assert_ptr_nonnull(strstr(err.text, "--attn-dp-size 2"));
	ck_assert_ptr_nonnull(strstr(err.text, "not built"));
	/* 16 ranks in two shards of 8: only attention DP is in the way */
	l.tp = 16;
	ck_assert_int_eq(dcpd_topology(&l, &m, &t, &err), -ENOTSUP);
	l = (struct dcpd_layout){ 8, 1, 2, 4, DCPK_CP_ZIGZAG };
	ck_assert_int_eq(dcpd_topology(&l, &m, &t, &err), 0);
	ck_assert_uint_eq(t.world, 8);
	ck_assert_uint_eq(t.attn_tp, 4);
	ck_assert_uint_eq(t.cp, 2);
	ck_assert_uint_eq(t.dcp, 4);
	ck_assert_int_eq(t.strategy, DCPK_CP_ZIGZAG);
}
END_TEST

/* --- slices -------------------------------------------------------------- */

/* How often each rank keeps each element, by painting. */
static void
paint(const struct dcpd_slice *s, uint32_t n_slices, uint32_t rank,
    uint32_t n, uint32_t k, uint8_t *kept)
{
	uint32_t i, a, b;

	memset(kept, 0, (size_t)n * k);
	for (i = 0; i < n_slices; i++) {
		if ((s[i].ranks >> rank & 1) == 0)
			continue;
		for (a = s[i].n0; a < s[i].n1; a++)
			for (b = s[i].k0; b < s[i].k1; b++)
				kept[a * k + b]++;
	}
}

/*
 * What kernels.h says of each tensor: heads by the rank's attention slice (the
 * heads of layout.h), FFN and lm_head over all ranks, the rest whole.
 */
static bool
keeps(const struct dcpk_model *m, const struct dcpk_topo *t,
    enum dcpk_tensor x, uint32_t rank, uint32_t n, uint32_t k, uint32_t row,
    uint32_t col)
{
	struct dcpk_heads h = dcpk_prefill_heads(rank, m->heads, t->attn_tp);
	uint32_t at, size, head;

	switch (x) {
	case DCPK_T_Q_B: case DCPK_T_KV_B: case DCPK_T_O:
		head = x == DCPK_T_O ? col / (k / m->heads) :
		    row / (n / m->heads);
		return head >= h.first && head < h.first + h.n;
	case DCPK_T_LM_HEAD: case DCPK_T_GATE: case DCPK_T_UP:
	case DCPK_T_E_GATE: case DCPK_T_E_UP: case DCPK_T_S_GATE:
	case DCPK_T_S_UP:
		at = row;
		size = n;
		break;
	case DCPK_T_DOWN: case DCPK_T_E_DOWN: case DCPK_T_S_DOWN:
		at = col;
		size = k;
		break;
	default:
		return true;
	}
	/* as a dealer deals: each rank size/W, the first size%W one more */
	for (head = 0; head < rank; head++) {
		uint32_t part = size / t->world + (head < size % t->world);

		if (at < part)
			return false;
		at -= part;
	}
	return at < size / t->world + (rank < size % t->world);
}

START_TEST(slices_are_what_each_rank_keeps)
{
	static const struct dcpk_topo topo[] = {
		{ 1, 1, 1, 1, 0 }, { 2, 2, 1, 2, 0 }, { 8, 8, 1, 8, 0 },
		{ 8, 1, 8, 8, 0 }, { 8, 4, 2, 8, 0 }, { 8, 2, 4, 4, 1 },
		{ 4, 2, 2, 1, 0 }, { 64, 8, 8, 64, 0 },
	};
	const struct dcpk_topo *t = &topo[_i];
	struct dcpk_model m = { .heads = 64 };
	struct dcpd_slice s[DCPK_MAX_RANKS];
	uint32_t n_slices, r, a, b;
	uint8_t *kept = malloc(192 * 256);
	int x;

	for (x = 0; x < DCPK_T_N; x++) {
		/* 150 and 90: no W above 2 divides both */
		uint32_t n = x == DCPK_T_Q_B || x == DCPK_T_KV_B ? 192 : 150;
		uint32_t k = x == DCPK_T_O ? 128 : 90;

		n_slices = dcpd_slices(&m, t, x, n, k, s);
		ck_assert_uint_le(n_slices, t->world);
		for (a = 0; a < n_slices; a++)
			ck_assert_uint_eq(t->world == 64 ? 0 :
			    s[a].ranks >> t->world, 0);
		for (r = 0; r < t->world; r++) {
			paint(s, n_slices, r, n, k, kept);
			for (a = 0; a < n; a++)
				for (b = 0; b < k; b++)
					if (kept[a * k + b] != keeps(&m, t, x,
					    r, n, k, a, b))
						ck_abort_msg("tensor %d rank "
						    "%u [%u][%u]", x, r, a, b);
		}
	}
	free(kept);
}
END_TEST

START_TEST(fewer_rows_than_ranks)
{
	static const struct dcpk_topo t = { 8, 8, 1, 8, 0 };
	struct dcpk_model m = { .heads = 8 };
	struct dcpd_slice s[DCPK_MAX_RANKS];

	ck_assert_uint_eq(dcpd_slices(&m, &t, DCPK_T_GATE, 3, 5, s), 8);
	ck_assert_uint_eq(s[2].n1 - s[2].n0, 1);
	ck_assert_uint_eq(s[3].n0, s[3].n1);
	ck_assert_uint_eq(s[7].ranks, 128);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("topology");
	TCase *t = tcase_create("topology");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, combinations_that_must_pass);
	tcase_add_test(t, combinations_that_must_be_refused);
	tcase_add_test(t, every_small_combination);
	tcase_add_test(t, heads_and_what_is_not_built);
	tcase_add_loop_test(t, slices_are_what_each_rank_keeps, 0, 8);
	tcase_add_test(t, fewer_rows_than_ranks);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
