/* Which decode passes are kept as graphs, and their rehearsal at start. */
#include "config.h"

#include <string.h>

#include "dcpd/kv/memplan.h"
#include "dcpd/model/engine.h"
#include "kernels/graphs.h"
#include "tests/unit/model_util.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))

/* graph_rows, max_rows, max_ctx, D: the pairs that must come, by hand */
static const struct {
	uint32_t graph_rows, max_rows, max_ctx, dcp, pairs;
} cases[] = {
	{ 0, 64, 4096, 1, 0 },
	{ 1, 64, 4096, 1, 1 },
	{ 8, 64, 4096, 1, 4 },		/* 1 2 4 8 */
	{ 6, 64, 4096, 1, 4 },		/* 1 2 4 6 */
	{ 64, 5, 4096, 1, 4 },		/* 1 2 4 5 */
	{ 8, 64, 8192, 1, 4 },
	{ 8, 64, 8193, 1, 8 },		/* 8192, 8193 */
	{ 8, 64, 40000, 1, 12 },	/* 8192, 32768, 40000 */
	{ 2, 64, 200000, 1, 8 },	/* .. 131072, 200000 */
	{ 1, 64, 9000000, 1, 7 },	/* .. 524288, 2097152, 8388608, 9e6 */
	{ 1, 64, 9000000, 2, 8 },	/* .. 2097152, 4194304, 8388608, 9e6 */
};

static struct dcpk_setup
setup_of(int i)
{
	struct dcpk_setup s = { .graph_rows = cases[i].graph_rows,
		.max_rows = cases[i].max_rows, .max_ctx = cases[i].max_ctx };

	s.topo.dcp = cases[i].dcp;
	return s;
}

static uint32_t
pairs_of(const struct dcpk_setup *s, uint32_t pair[][2], uint32_t cap)
{
	uint32_t rows = 0, bound = 0, n = 0;

	while (dcpk_graph_next(s, &rows, &bound)) {
		ck_assert_uint_lt(n, cap);
		pair[n][0] = rows;
		pair[n++][1] = bound;
	}
	return n;
}

/* A pass has just one graph, no smaller than it; marks it as used. */
static void
find_graph(const struct dcpk_setup *s, uint32_t rows, uint32_t ctx,
    uint32_t pair[][2], uint32_t n, bool *used)
{
	uint32_t b = dcpk_graph_bucket(s, rows);
	uint32_t c = dcpk_graph_bound(s, ctx), fast, k, hit = 0;

	ck_assert_uint_ge(b, rows);
	ck_assert_uint_lt(b, 2 * rows);
	ck_assert_uint_ge(c, ctx);
	/* never for contexts on both sides of what the fast selection takes */
	fast = DCPK_FAST_KEYS * s->topo.dcp;
	ck_assert(ctx > fast || c <= fast);
	for (k = 0; k < n; k++)
		if (pair[k][0] == b && pair[k][1] == c) {
			used[k] = true;
			hit++;
		}
	ck_assert_uint_eq(hit, 1);
}

/* And there is no graph without a pass. */
START_TEST(every_pass_has_its_graph)
{
	struct dcpk_setup s = setup_of(_i);
	uint32_t pair[64][2], n, most, rows, at, end, k;
	bool used[64] = { false };

	n = pairs_of(&s, pair, 64);
	ck_assert_uint_eq(n, cases[_i].pairs);
	most = s.graph_rows < s.max_rows ? s.graph_rows : s.max_rows;
	for (rows = 1; rows <= most; rows++)
		for (at = 0; at < s.max_ctx; at += 4096) {
			end = s.max_ctx - at < 4096 ? s.max_ctx : at + 4096;
			find_graph(&s, rows, at + 1, pair, n, used);
			find_graph(&s, rows, end, pair, n, used);
		}
	for (k = 0; k < n; k++)
		ck_assert(used[k]);
}
END_TEST

/* What a plan has for them grows with their number and stands in the budget. */
START_TEST(memory_is_planned)
{
	struct dcpd_model_config cfg;
	struct dcpd_memplan none, some;
	struct dcpd_memplan_in in = { .cfg = &cfg, .layout = { 8, 1, 1, 8, 0 },
		.kv = DCPK_KV_FP8, .idx = DCPK_KV_FP8, .device = "cuda",
		.mem_fraction = 0.9, .device_bytes = 139ull << 30,
		.chunk = 512, .max_running = 64, .max_ctx = 40000,
		.flags = DCPK_FP8_WEIGHTS };
	struct dcpd_err err;
	json_t *j = mu_config("deepseek-v3.2"), *rank;
	char dir[MU_PATH], *text;

	mu_mkdir(dir);
	mu_write_json(dir, "config.json", j);
	json_decref(j);
	ck_assert_int_eq(dcpd_config_load(dir, false, &cfg, &err), 0);
	mu_rmdir(dir);
	ck_assert_msg(dcpd_memplan(&in, &none, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(none.rank[0].graphs, 0);
	in.graph_rows = 8;
	ck_assert_msg(dcpd_memplan(&in, &some, &err) == 0, "%s", err.text);
	ck_assert_uint_gt(some.rank[7].graphs, 1 << 20);
	ck_assert_uint_eq(none.budget - some.budget, some.rank[0].graphs);
	j = dcpd_memplan_json(&in, &some, NULL);
	rank = json_object_get(json_array_get(json_object_get(j, "ranks"), 0),
	    "planned");
	ck_assert_int_eq(json_integer_value(json_object_get(rank, "graphs")),
	    (json_int_t)some.rank[0].graphs);
	json_decref(j);
	text = dcpd_memplan_text(&in, &some, NULL);
	ck_assert_ptr_nonnull(strstr(text, "graphs"));
	free(text);
	dcpd_config_free(&cfg);
}
END_TEST

/* --- the rehearsal, on a backend that has no graphs ----------------------- */

static struct dcpd_model_config cfg;
static struct dcpd_model_engine E;

static void
open_engine(uint32_t tp, uint32_t dcp)
{
	struct dcpd_memplan_in in = { .cfg = &cfg,
		.layout = { tp, 1, 1, dcp, 0 }, .kv = DCPK_KV_BF16,
		.idx = DCPK_KV_FP8, .device = "cpu",
		.kv_bytes_per_rank = 16u << 20, .chunk = 64, .max_running = 5,
		.max_ctx = 9000, .threads = 2, .flags = DCPK_GUARD,
		.graph_rows = 4 };
	struct dcpd_load_options lo = { .format = DCPD_LOAD_AUTO };
	struct dcpd_memplan plan;
	struct dcpk_topo topo;
	struct dcpd_err err;
	struct dcpk_setup s;
	char dir[MU_PATH];

	mu_src("models/dcp-tiny", dir);
	ck_assert_int_eq(dcpd_config_load(dir, false, &cfg, &err), 0);
	ck_assert_int_eq(dcpd_topology(&in.layout, &cfg.m, &topo, &err), 0);
	ck_assert_msg(dcpd_memplan(&in, &plan, &err) == 0, "%s", err.text);
	dcpd_memplan_setup(&in, &topo, plan.pages, 0, &s);
	ck_assert_msg(dcpd_engine_open(&E, &dcpk_cpu, &cfg, &s, &err) == 0,
	    "%s", err.text);
	ck_assert_msg(dcpd_engine_load(&E, dir, &lo, &err) == 0 &&
	    dcpd_engine_ready(&E, dir, &err) == 0, "%s", err.text);
}

static bool
is_zero(enum dcpk_peek what, uint32_t layer, uint32_t rank, uint32_t row)
{
	static const unsigned char zero[8192];
	unsigned char buf[8192];
	int64_t n = dcpk_cpu.peek(E.ctx, what, layer, rank, row, buf,
	    sizeof buf);

	ck_assert_int_gt(n, 0);
	return memcmp(buf, zero, (size_t)n) == 0;
}

/* It writes the sink page and no other. */
START_TEST(rehearsal_leaves_every_page_alone)
{
	static const uint32_t dcp[] = { 1, 4 };
	uint32_t D = dcp[_i], made = 0, rank, row, sink;
	struct dcpk_err ke;
	struct dcpd_err err;
	bool wrote = false;

	open_engine(4, D);
	ck_assert_msg(dcpd_engine_graphs(&E, &made, &err) == 0, "%s",
	    err.text);
	ck_assert_uint_eq(made, 6);	/* 1 2 4 rows, to 8192 and to 9000 */
	sink = E.setup.pages * (64 / D);
	for (rank = 0; rank < 4; rank++) {
		for (row = 0; row < sink; row += 1 + row / 64)
			ck_assert(is_zero(DCPK_PEEK_POOL_ROW, 0, rank, row) &&
			    is_zero(DCPK_PEEK_INDEX_ROW, 3, rank, row));
		for (row = sink; row < sink + 64 / D; row++)
			wrote |= !is_zero(DCPK_PEEK_POOL_ROW, 0, rank, row);
	}
	ck_assert(wrote);
	ck_assert_msg(dcpk_cpu.check(E.ctx, &ke) == 0, "%s", ke.text);
	dcpd_engine_close(&E);
	dcpd_config_free(&cfg);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("graphs");
	TCase *t = tcase_create("graphs");
	SRunner *r;
	int failed;

	dcpd_log_level(LOG_WARNING);
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, every_pass_has_its_graph, 0, LEN(cases));
	tcase_add_test(t, memory_is_planned);
	tcase_add_loop_test(t, rehearsal_leaves_every_page_alone, 0, 2);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
