/*
 * Pages in host memory, on the CPU backend with models/dcp-tiny: what comes
 * back is what left, byte for byte, into whatever page, on every rank; and it
 * is what computing it again gives. Rows, index keys and their scales, in each
 * format and layout.
 */
#include "config.h"

#include "dcpd/kv/memplan.h"
#include "dcpd/model/engine.h"
#include "dcpd/sched/plan.h"
#include "tests/unit/model_util.h"

#define TEXT_PAGES 4u
#define TOKENS (TEXT_PAGES * DCPD_PAGE_TOKENS)
#define POOL 8u
#define SLOTS 6u

static struct dcpd_model_config cfg;
static struct dcpd_model_engine E;
static struct dcpd_memplan plan;
static struct dcpd_err err;

static const struct { uint32_t tp, cp, dcp; } layouts[] = {
	{ 1, 1, 1 }, { 8, 1, 1 }, { 8, 1, 8 }, { 8, 1, 2 }, { 8, 8, 8 },
};
static const enum dcpk_kv formats[] = {
	DCPK_KV_F32, DCPK_KV_BF16, DCPK_KV_FP8 };

static void
open_engine(int layout, enum dcpk_kv kv)
{
	struct dcpd_memplan_in in = {
		.cfg = &cfg, .layout = { layouts[layout].tp, 1,
		layouts[layout].cp, layouts[layout].dcp, 0 }, .kv = kv,
		.idx = dcpd_index_format(kv, &cfg.m), .device = "cpu",
		.chunk = TOKENS, .max_running = 4, .max_ctx = TOKENS,
		.threads = 2, .flags = DCPK_GUARD,
	};
	struct dcpd_load_options lo = { .format = DCPD_LOAD_AUTO };
	struct dcpk_topo topo;
	struct dcpk_setup s;
	char dir[MU_PATH];
	uint64_t page;

	ck_assert_int_eq(dcpd_topology(&in.layout, &cfg.m, &topo, &err), 0);
	/* A page's bytes first, then as many as there shall be, and some. */
	in.kv_bytes_per_rank = 1u << 30;
	ck_assert_msg(dcpd_memplan(&in, &plan, &err) == 0, "%s", err.text);
	page = plan.page_bytes_rows + plan.page_bytes_index;
	in.kv_bytes_per_rank = (POOL + 1) * page;
	in.host_cache_bytes = SLOTS * page * layouts[layout].dcp + page / 2;
	ck_assert_msg(dcpd_memplan(&in, &plan, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(plan.pages, POOL);
	ck_assert_uint_eq(plan.host_pages, SLOTS);
	dcpd_memplan_setup(&in, &topo, plan.pages, plan.host_pages, &s);
	ck_assert_msg(dcpd_engine_open(&E, &dcpk_cpu, &cfg, &s, &err) == 0,
	    "%s", err.text);
	ck_assert_msg(dcpd_engine_load(&E, mu_src("models/dcp-tiny", dir), &lo,
	    &err) == 0 && dcpd_engine_ready(&E, dir, &err) == 0, "%s",
	    err.text);
}

/* The text's rows into these pages, in one pass. */
static void
prefill(const uint32_t *pages, uint32_t seed)
{
	struct dcpd_planb b = { 0 };
	struct dcpk_result r = { 0 };
	struct dcpd_engine e;
	uint32_t tokens[TOKENS];
	struct dcpk_plan *p;

	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = (i * 7 + seed * 131) % 900 + 19;
	ck_assert_int_eq(dcpd_planb_req(&b, pages, 0, tokens, TOKENS), 0);
	p = dcpd_planb_finish(&b, DCPK_PREFILL, 1);
	ck_assert_ptr_nonnull(p);
	p->way = DCPK_WAY_KV;
	dcpd_engine_make(&E, &e);
	ck_assert_msg(e.step(e.self, p, &r, &err) == 0, "%s", err.text);
	dcpd_planb_free(&b);
}

static void
move(const struct dcpk_move *m, bool out)
{
	struct dcpd_engine e;

	dcpd_engine_make(&E, &e);
	ck_assert_uint_eq(e.host_pages, SLOTS);
	ck_assert_msg(e.move(e.self, m, TEXT_PAGES, out, &err) == 0, "%s",
	    err.text);
}

/* All that the ranks have of these pages, malloc'd. */
static uint8_t *
peek(const uint32_t *pages, size_t *n)
{
	uint32_t rows = dcpk_page_rows(E.setup.topo.dcp);
	size_t cap = (size_t)plan.world * TEXT_PAGES *
	    (plan.page_bytes_rows + plan.page_bytes_index) + 8192;
	uint8_t *buf = malloc(cap);
	int64_t k;

	*n = 0;
	for (uint32_t l = 0; l < cfg.m.layers; l++)
		for (uint32_t i = 0; i < plan.world * TEXT_PAGES * rows; i++) {
			uint32_t rank = i / (TEXT_PAGES * rows);
			uint32_t at = i % (TEXT_PAGES * rows);
			uint32_t row = pages[at / rows] * rows + at % rows;

			k = dcpk_cpu.peek(E.ctx, DCPK_PEEK_POOL_ROW, l, rank,
			    row, buf + *n, cap - *n);
			ck_assert_int_gt(k, 0);
			*n += (size_t)k;
			if (!cfg.m.full[l])
				continue;
			k = dcpk_cpu.peek(E.ctx, DCPK_PEEK_INDEX_ROW, l, rank,
			    row, buf + *n, cap - *n);
			ck_assert_int_gt(k, 0);
			*n += (size_t)k;
		}
	return buf;
}

START_TEST(what_comes_back_is_what_left_and_what_is_computed_anew)
{
	static const uint32_t a[] = { 0, 1, 2, 3 }, b[] = { 7, 4, 6, 5 };
	static const struct dcpk_move out[] = {
		{ 0, 5 }, { 1, 2 }, { 2, 0 }, { 3, 3 } };
	static const struct dcpk_move in[] = {
		{ 7, 5 }, { 4, 2 }, { 6, 0 }, { 5, 3 } };
	uint8_t *was, *is;
	size_t n, k;

	open_engine(_i % 5, formats[_i / 5]);
	prefill(a, 1);
	was = peek(a, &n);
	ck_assert_uint_ge(n, (size_t)plan.world * TEXT_PAGES *
	    plan.page_bytes_rows);
	move(out, true);
	prefill(a, 2);
	is = peek(a, &k);
	ck_assert(memcmp(was, is, n) != 0);	/* they are gone */
	free(is);
	move(in, false);
	is = peek(b, &k);
	ck_assert_uint_eq(k, n);
	ck_assert(memcmp(was, is, n) == 0);
	free(is);
	prefill(a, 1);
	is = peek(a, &k);
	ck_assert(memcmp(was, is, n) == 0);
	free(is);
	free(was);
	ck_assert_int_eq(dcpk_cpu.check(E.ctx, NULL), 0);
	dcpd_engine_close(&E);
}
END_TEST

START_TEST(moves_out_of_range_are_refused)
{
	struct dcpk_move m[] = { { 0, 0 }, { POOL, 0 } };
	struct dcpk_err ke;

	open_engine(2, DCPK_KV_FP8);
	ck_assert_int_eq(dcpk_cpu.move(E.ctx, m, 2, true, &ke), -ERANGE);
	ck_assert_ptr_nonnull(strstr(ke.text, "page 8 of 8"));
	m[1] = (struct dcpk_move){ 1, SLOTS };
	ck_assert_int_eq(dcpk_cpu.move(E.ctx, m, 2, false, &ke), -ERANGE);
	ck_assert_ptr_nonnull(strstr(ke.text, "slot 6 of 6"));
	dcpd_engine_close(&E);
}
END_TEST

static void
setup(void)
{
	char dir[MU_PATH];

	mu_src("models/dcp-tiny", dir);
	ck_assert_int_eq(dcpd_config_load(dir, false, &cfg, &err), 0);
}

static void
teardown(void)
{
	dcpd_config_free(&cfg);
}

int
main(void)
{
	Suite *s = suite_create("host");
	TCase *t = tcase_create("host");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t,
	    what_comes_back_is_what_left_and_what_is_computed_anew, 0, 15);
	tcase_add_test(t, moves_out_of_range_are_refused);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
