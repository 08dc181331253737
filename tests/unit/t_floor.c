/* The floor of a pass: bytes and flops against sums made by hand, and against
 * the memory plan where a pass reads everything. */
#include "config.h"

#include <math.h>

#include "dcpd/kv/memplan.h"
#include "dcpd/model/floor.h"
#include "tests/unit/model_util.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))

static struct dcpd_model_config cfg;
static struct dcpd_err err;
static const struct dcpk_speed unit = { .read_bytes_s = 1, .flops_s = 1 };

static struct dcpd_floor
floor_of(const struct dcpk_topo *t, bool cpu, uint32_t flags, double requests,
    double rows, double prefix)
{
	struct dcpd_floor_of of = { &cfg, t, cpu, flags, DCPK_KV_BF16,
		dcpd_index_format(DCPK_KV_BF16, &cfg.m) };
	struct dcpd_pass p = { requests, rows, prefix };
	struct dcpd_floor f;

	dcpd_floor(&of, &unit, &p, &f);
	return f;
}

static void
read_config(const char *rel)
{
	char path[MU_PATH];

	ck_assert_msg(dcpd_config_load(mu_src(rel, path), false, &cfg, &err)
	    == 0, "%s", err.text);
}

static const struct dcpk_topo tp1 = { 1, 1, 1, 1, 0 };
static const struct dcpk_topo tp8 = { 8, 8, 1, 1, 0 };
static const struct dcpk_topo tp8_dcp8 = { 8, 8, 1, 8, 0 };
static const struct dcpk_topo cp8_dcp8 = { 8, 1, 8, 8, 0 };

/*
 * models/dcp-tiny by hand, bytes. A layer, whole on every rank: q_a 128x256x2,
 * kv_a 576x256x2, norms 4x(128+512+256+256): 365,056. By head: q_b
 * 8x128x128x2, kv_b 8x128x512x2, o 256x512x2: 1,572,864. An indexer: q_b
 * 1024x128x2, k 128x256x2, w 8x256x2, norms 4x256: 332,800. Dense FFN
 * 3x640x256x2: 983,040. Router 4x(8x256+8): 8,224. An expert, or the shared
 * one, 3x128x256x2: 196,608. lm_head 2048x256x2: 1,048,576; the last norm
 * 1,024, a token's embedding 512. Four layers, three with an indexer, three
 * with experts, of which a token chooses two.
 */
#define REP (4 * 365056. + 3 * 332800. + 3 * 8224. + 1024. + 512.)
#define SPLIT (4 * 1572864. + 983040. + 3 * (1 + 2) * 196608. + 1048576.)
/* 256 of them in each layer; bf16 rows, of keys all, fp8 with their scale. */
#define ROWS (4 * 256 * 1152.)
#define KEYS (3 * 2048 * 132.)

START_TEST(tiny_one_rank)
{
	struct dcpd_floor f;

	read_config("models/dcp-tiny");
	f = floor_of(&tp1, _i == 1, 0, 1, 1, 2047);
	ck_assert_double_eq_tol(f.weights, REP + SPLIT, .5);
	ck_assert_double_eq_tol(f.weights, 12577376., .5);
	ck_assert_double_eq_tol(f.rows, ROWS, .5);
	ck_assert_double_eq_tol(f.keys, KEYS, .5);
	ck_assert_double_eq_tol(f.rank, REP + SPLIT + ROWS + KEYS, .5);
	dcpd_config_free(&cfg);
}
END_TEST

/* CUDA: a copy on each rank of what is not split. */
START_TEST(tiny_cuda_ranks)
{
	struct dcpd_floor f;

	read_config("models/dcp-tiny");
	f = floor_of(&tp8_dcp8, false, 0, 1, 1, 2047);
	ck_assert_double_eq_tol(f.weights, 8 * REP + SPLIT, .5);
	ck_assert_double_eq_tol(f.rows, ROWS, .5);
	ck_assert_double_eq_tol(f.keys, KEYS, .5);
	ck_assert_double_eq_tol(f.rank, REP + (SPLIT + ROWS + KEYS) / 8, .5);
	ck_assert_double_eq_tol(f.rank, 3995232., .5);
	/* Replicated under CP, and each rank takes its heads of them. */
	f = floor_of(&cp8_dcp8, false, 0, 1, 1, 2047);
	ck_assert_double_eq_tol(f.rank, 3995232., .5);
	/* Without DCP every rank has the whole context. */
	f = floor_of(&tp8, false, 0, 1, 1, 2047);
	ck_assert_double_eq_tol(f.rank, REP + SPLIT / 8 + ROWS + KEYS, .5);
	ck_assert_double_eq_tol(f.rows, 8 * ROWS, .5);
	ck_assert_double_eq_tol(f.keys, 8 * KEYS, .5);
	dcpd_config_free(&cfg);
}
END_TEST

/* The CPU's ranks share one copy of weights and one search of the keys. */
START_TEST(tiny_cpu_ranks)
{
	struct dcpd_floor f;

	read_config("models/dcp-tiny");
	f = floor_of(&tp8_dcp8, true, 0, 1, 1, 2047);
	ck_assert_double_eq_tol(f.weights, REP + SPLIT, .5);
	ck_assert_double_eq_tol(f.rows, ROWS, .5);
	ck_assert_double_eq_tol(f.keys, KEYS, .5);
	ck_assert_double_eq_tol(f.rank, REP + (SPLIT + ROWS + KEYS) / 8, .5);
	f = floor_of(&tp8, true, 0, 1, 1, 2047);
	ck_assert_double_eq_tol(f.rows, 8 * ROWS, .5);
	ck_assert_double_eq_tol(f.keys, KEYS, .5);
	dcpd_config_free(&cfg);
}
END_TEST

/* Two streams hit 8*(1-(3/4)^2) = 3.5 experts, and half a stream is a mean. */
START_TEST(streams)
{
	struct dcpd_floor one, two;

	read_config("models/dcp-tiny");
	one = floor_of(&tp1, true, 0, 1, 1, 2047);
	two = floor_of(&tp1, true, 0, 2, 1, 2047);
	ck_assert_double_eq_tol(two.weights - one.weights,
	    3 * 1.5 * 196608. + 512, .5);
	ck_assert_double_eq_tol(two.rows, 2 * ROWS, .5);
	ck_assert_double_eq_tol(two.products, 2 * one.products, .5);
	two = floor_of(&tp1, true, 0, .5, 1, 2047);
	ck_assert_double_eq_tol(two.keys, KEYS / 2, .5);
	dcpd_config_free(&cfg);
}
END_TEST

/* Up to topk keys all are selected: none is scored, none is read. */
START_TEST(no_search_up_to_topk)
{
	struct dcpd_floor f;

	read_config("models/dcp-tiny");
	f = floor_of(&tp1, true, 0, 1, 1, 255);
	ck_assert_double_eq(f.keys, 0);
	ck_assert_double_eq(f.scores, 0);
	ck_assert_double_eq_tol(f.rows, ROWS, .5);
	f = floor_of(&tp1, true, 0, 1, 1, 256);
	ck_assert_double_eq_tol(f.keys, 3 * 257 * 132., .5);
	ck_assert_double_eq_tol(f.scores, 2 * 257 * 8 * 128 * 3., .5);
	ck_assert_double_eq_tol(f.rows, ROWS, .5);
	f = floor_of(&tp1, true, 0, 1, 1, 99);
	ck_assert_double_eq_tol(f.rows, 4 * 100 * 1152., .5);
	dcpd_config_free(&cfg);
}
END_TEST

/* Ten rows behind 250: 251 .. 256 attend to all, the last four to 256. */
START_TEST(prefill_flops)
{
	/* Of a token: a matrix's flops are its bf16 bytes; the router, kept
	 * as f32, has half as many. */
	const double matrices = 4 * (365056. - 4608) + 4 * 1572864. +
	    3 * (332800. - 1024) + 983040. + 3 * (3 * 196608. + 4096);
	struct dcpd_floor f;

	read_config("models/dcp-tiny");
	f = floor_of(&tp1, true, 0, 1, 10, 250);
	ck_assert_double_eq_tol(f.products, 10 * matrices + 1048576., .5);
	ck_assert_double_eq_tol(f.attend, 2. * (251 + 252 + 253 + 254 + 255 +
	    5 * 256) * 8 * (512 + 64 + 512) * 4, .5);
	ck_assert_double_eq_tol(f.scores, 2. * (257 + 258 + 259 + 260) * 8 *
	    128 * 3, .5);
	ck_assert(f.by_flops);
	ck_assert_double_eq_tol(f.seconds, f.products + f.attend + f.scores,
	    .5);
	/* On CUDA fp8 keys are scored at twice the rate. */
	f = floor_of(&tp8_dcp8, false, 0, 1, 10, 250);
	ck_assert_double_eq_tol(f.products, 10 * matrices + 1048576., .5);
	ck_assert_double_eq_tol(f.scores, (257 + 258 + 259 + 260) * 8 *
	    128 * 3., .5);
	dcpd_config_free(&cfg);
}
END_TEST

/* Who hits every expert reads what the plan says is kept, and no more. */
static const struct {
	const char *config;
	struct dcpk_topo topo;
	bool cpu;
	uint32_t flags;
} plans[] = {
	{ "models/dcp-tiny", { 1, 1, 1, 1, 0 }, true, 0 },
	{ "models/dcp-tiny", { 8, 8, 1, 8, 0 }, true, 0 },
	{ "models/dcp-tiny", { 8, 8, 1, 8, 0 }, false, 0 },
	{ "tests/data/configs/glm-5.2.json", { 8, 8, 1, 4, 0 }, false, 0 },
	{ "tests/data/configs/deepseek-v3.2.json", { 2, 2, 1, 2, 0 }, false,
	    0 },
	{ "tests/data/configs/deepseek-v3.2.json", { 8, 8, 1, 8, 0 }, false,
	    DCPK_FP8_WEIGHTS },
};

START_TEST(all_weights_once)
{
	const struct dcpk_topo *t = &plans[_i].topo;
	struct dcpk_bytes b[DCPK_MAX_RANKS];
	double all = 0, embed, n = 1e5;
	struct dcpd_floor f;

	read_config(plans[_i].config);
	ck_assert_int_eq(dcpd_weights_bytes(&cfg, t, plans[_i].cpu ? "cpu" :
	    "cuda", plans[_i].flags, b), 0);
	for (uint32_t r = 0; r < t->world; r++)
		all += (double)(b[r].weights + b[r].weights_attn +
		    b[r].weights_rep);
	f = floor_of(t, plans[_i].cpu, plans[_i].flags, n, 1, 2047);
	/* The embedding alone is read by rows. */
	embed = 2. * cfg.m.hidden * (plans[_i].cpu ? 1 : t->world);
	ck_assert_double_eq_tol(f.weights, all - embed * cfg.m.vocab +
	    embed * n, all * 1e-9);
	dcpd_config_free(&cfg);
}
END_TEST

/* FP8 that stays FP8: its bytes and its flops are about half. */
START_TEST(fp8_kept)
{
	struct dcpd_floor as_bf16, as_fp8;

	read_config("tests/data/configs/deepseek-v3.2.json");
	as_bf16 = floor_of(&tp8_dcp8, false, 0, 1, 1024, 0);
	as_fp8 = floor_of(&tp8_dcp8, false, DCPK_FP8_WEIGHTS, 1, 1024, 0);
	ck_assert_double_gt(as_fp8.weights, .50 * as_bf16.weights);
	ck_assert_double_lt(as_fp8.weights, .53 * as_bf16.weights);
	ck_assert_double_gt(as_fp8.products, .50 * as_bf16.products);
	ck_assert_double_lt(as_fp8.products, .55 * as_bf16.products);
	ck_assert_double_eq(as_fp8.attend, as_bf16.attend);
	dcpd_config_free(&cfg);
}
END_TEST

/* Experts that stay int4 are a quarter of bf16's bytes and a bit, and are
 * multiplied as FP8. */
START_TEST(int4_kept)
{
	struct dcpd_floor as_bf16, kept;

	read_config("tests/data/configs/deepseek-v3.2.json");
	strcpy(cfg.quant_method, "w4afp8");
	as_bf16 = floor_of(&tp8_dcp8, false, 0, 64, 1, 1024);
	kept = floor_of(&tp8_dcp8, false, DCPK_FP8_WEIGHTS | DCPK_INT4_WEIGHTS,
	    64, 1, 1024);
	ck_assert_double_gt(kept.weights, .265 * as_bf16.weights);
	ck_assert_double_lt(kept.weights, .31 * as_bf16.weights);
	ck_assert_double_gt(kept.products, .50 * as_bf16.products);
	ck_assert_double_lt(kept.products, .56 * as_bf16.products);
	dcpd_config_free(&cfg);
}
END_TEST

/* What was not measured limits nothing. */
START_TEST(rates_not_known)
{
	struct dcpd_floor_of of = { &cfg, &tp1, true, 0, DCPK_KV_BF16,
		DCPK_KV_BF16 };
	struct dcpd_pass p = { 1, 1, 99 };
	struct dcpk_speed v = { .flops_s = 2 };
	struct dcpd_floor f;

	read_config("models/dcp-tiny");
	dcpd_floor(&of, &v, &p, &f);
	ck_assert(f.by_flops);
	ck_assert_double_eq_tol(f.seconds, (f.products + f.scores + f.attend) /
	    2, 1e-3);
	v = (struct dcpk_speed){ .read_bytes_s = 4 };
	dcpd_floor(&of, &v, &p, &f);
	ck_assert(!f.by_flops);
	ck_assert_double_eq_tol(f.seconds, (f.weights + f.rows + f.keys) / 4,
	    1e-3);
	v = (struct dcpk_speed){ 0 };
	dcpd_floor(&of, &v, &p, &f);
	ck_assert_double_eq(f.seconds, 0);
	dcpd_config_free(&cfg);
}
END_TEST

int
main(void)
{
	TCase *tc = tcase_create("floor");
	Suite *s = suite_create("floor");
	SRunner *r;
	int failed;

	tcase_add_loop_test(tc, tiny_one_rank, 0, 2);
	tcase_add_test(tc, tiny_cuda_ranks);
	tcase_add_test(tc, tiny_cpu_ranks);
	tcase_add_test(tc, streams);
	tcase_add_test(tc, no_search_up_to_topk);
	tcase_add_test(tc, prefill_flops);
	tcase_add_loop_test(tc, all_weights_once, 0, LEN(plans));
	tcase_add_test(tc, fp8_kept);
	tcase_add_test(tc, int4_kept);
	tcase_add_test(tc, rates_not_known);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
