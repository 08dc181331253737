/* The memory plan: published numbers, what is allocated, what is refused. */
#include "config.h"

#include "dcpd/kv/memplan.h"
#include "kernels/keep.h"
#include "dcpd/model/quant.h"
#include "tests/unit/model_util.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))

static struct dcpd_model_config cfg;
static struct dcpd_memplan plan;
static struct dcpd_err err;

static void
read_config(const char *base, const char *change)
{
	json_t *j = mu_config(base);
	char dir[MU_PATH];

	mu_change(j, change);
	mu_mkdir(dir);
	mu_write_json(dir, "config.json", j);
	json_decref(j);
	ck_assert_msg(dcpd_config_load(dir, false, &cfg, &err) == 0, "%s",
	    err.text);
	mu_rmdir(dir);
}

static struct dcpd_memplan_in
input(const char *device, uint32_t tp, uint32_t cp, uint32_t dcp,
    enum dcpk_kv kv)
{
	struct dcpd_memplan_in in = {
		.cfg = &cfg, .layout = { tp, 1, cp, dcp, 0 }, .kv = kv,
		.idx = dcpd_index_format(kv, &cfg.m), .device = device,
		.mem_fraction = 0.9, .chunk = 512, .max_running = 8,
		.max_ctx = 4096, .threads = 2,
	};

	return in;
}

static void
make_plan(const struct dcpd_memplan_in *in)
{
	int rc = dcpd_memplan(in, &plan, &err);

	ck_assert_msg(rc == 0, "%s", err.text);
}

/* KV bytes of a token (doc/model.md 2): rows, index, a rank's share. */
START_TEST(published_bytes_per_token)
{
	static const struct {
		const char *model;
		uint32_t rows_bf16, rows_fp8, index, rank8_fp8;
	} c[] = {
		{ "deepseek-v3.2", 70272, 40016, 8052, 6009 },
		{ "glm-5", 89856, 51168, 10296, 7683 },
		{ "glm-5.2", 89856, 51168, 2772, 6743 },
	};
	static const uint32_t dcp[] = { 1, 2, 4, 8 };
	struct dcpd_memplan_in in;
	int i, d;

	for (i = 0; i < LEN(c); i++) {
		read_config(c[i].model, "{}");
		for (d = 0; d < 4; d++) {
			in = input("cuda", 8, 1, dcp[d], DCPK_KV_FP8);
			in.kv_bytes_per_rank = 1ull << 34;
			make_plan(&in);
			ck_assert_uint_eq(plan.page_bytes_rows * dcp[d],
			    64ull * c[i].rows_fp8);
			ck_assert_uint_eq(plan.page_bytes_index * dcp[d],
			    64ull * c[i].index);
			in = input("cuda", 8, 1, dcp[d], DCPK_KV_BF16);
			in.kv_bytes_per_rank = 1ull << 34;
			make_plan(&in);
			ck_assert_uint_eq(plan.page_bytes_rows * dcp[d],
			    64ull * c[i].rows_bf16);
			/* the index stays fp8 beside bf16 rows */
			ck_assert_uint_eq(plan.page_bytes_index * dcp[d],
			    64ull * c[i].index);
		}
		in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
		make_plan(&in);
		ck_assert_uint_eq((plan.page_bytes_rows +
		    plan.page_bytes_index + 63) / 64, c[i].rank8_fp8);
		dcpd_config_free(&cfg);
	}
}
END_TEST

/* D*pages(1) <= pages(D) < D*(pages(1)+2), from the same bytes. */
START_TEST(capacity_is_d_times)
{
	static const char *const model[] = { "deepseek-v3.2", "glm-5",
		"glm-5.2" };
	static const char *const change[] = { "{}",
		"{\"num_hidden_layers\": 4, \"indexer_types\": null}" };
	static const enum dcpk_kv kv[] = { DCPK_KV_BF16, DCPK_KV_FP8 };
	uint64_t bytes, pages1 = 0;
	struct dcpd_memplan_in in;
	int m, c, k;
	uint32_t D;

	for (m = 0; m < 3; m++)
	for (c = 0; c < 2; c++) {
		read_config(model[m], change[c]);
		for (k = 0; k < 2; k++)
		for (bytes = 200000000; bytes < 60ull << 30;
		    bytes = bytes * 37 / 5 + 12345)
		for (D = 1; D <= 64; D *= 2) {
			in = input("cuda", 64, 1, D, kv[k]);
			in.kv_bytes_per_rank = bytes;
			make_plan(&in);
			if (D == 1)
				pages1 = plan.pages;
			ck_assert_uint_le(D * pages1, plan.pages);
			ck_assert_uint_lt(plan.pages, D * (pages1 + 2));
			ck_assert_uint_eq(plan.tokens, plan.pages * 64ull);
			ck_assert_uint_eq(plan.tokens_tp, pages1 * 64);
			/* all bytes used but less than a page, sink paid */
			ck_assert_uint_le(plan.rank[0].rows +
			    plan.rank[0].index, bytes);
			ck_assert_uint_lt(bytes, plan.rank[0].rows +
			    plan.rank[0].index + plan.page_bytes_rows +
			    plan.page_bytes_index);
			ck_assert_uint_eq(plan.rank[63].rows,
			    (plan.pages + 1ull) * plan.page_bytes_rows);
		}
		dcpd_config_free(&cfg);
	}
}
END_TEST

/* --- planned == allocated, on the CPU ------------------------------------ */

static void
same_bytes(const struct dcpk_bytes *a, const struct dcpk_bytes *b,
    uint32_t r)
{
#define SAME(f) ck_assert_msg(a->f == b->f, "rank %u, " #f ": planned %llu, " \
	"allocated %llu", r, (unsigned long long)a->f, \
	(unsigned long long)b->f)
	SAME(weights);
	SAME(weights_attn);
	SAME(weights_rep);
	SAME(weights_mtp);
	SAME(rows);
	SAME(index);
	SAME(workspace);
	SAME(host);
#undef SAME
}

/* Opens the backend as planned, loads dir (or dummies), compares. */
static void
plan_and_open(const char *dir, const struct dcpd_memplan_in *in)
{
	struct dcpd_load_options o = { .format = dir != NULL ? DCPD_LOAD_AUTO :
	    DCPD_LOAD_DUMMY };
	struct dcpk_bytes got[DCPK_MAX_RANKS];
	struct dcpk_err ke = { "" };
	struct dcpk_setup s;
	struct dcpk_topo t;
	struct dcpk_ctx *c;
	uint32_t r;

	make_plan(in);
	ck_assert_int_eq(dcpd_topology(&in->layout, &cfg.m, &t, &err), 0);
	dcpd_memplan_setup(in, &t, plan.pages, plan.host_pages, &s);
	ck_assert_msg(dcpk_cpu.open(&s, &c, &ke) == 0, "%s", ke.text);
	ck_assert_msg(dcpd_weights_load(dir, &cfg, &t, &dcpk_cpu, c, &o,
	    &err) == 0, "%s", err.text);
	ck_assert_msg(dcpk_cpu.ready(c, &ke) == 0, "%s", ke.text);
	dcpk_cpu.actual(c, got);
	for (r = 0; r < plan.world; r++)
		same_bytes(&plan.rank[r], &got[r], r);
	dcpk_cpu.close(c);
}

static const struct { uint32_t tp, cp, dcp; } layouts[] = {
	{ 1, 1, 1 }, { 2, 1, 2 }, { 8, 1, 1 }, { 8, 1, 2 }, { 8, 1, 4 },
	{ 8, 1, 8 }, { 8, 8, 8 }, { 8, 2, 4 }, { 4, 2, 4 },
};

START_TEST(planned_is_allocated)
{
	static const enum dcpk_kv kv[] = { DCPK_KV_F32, DCPK_KV_BF16,
		DCPK_KV_FP8 };
	struct dcpd_memplan_in in;
	char dir[MU_PATH];
	int k;

	mu_src("models/dcp-tiny", dir);
	ck_assert_int_eq(dcpd_config_load(dir, false, &cfg, &err), 0);
	for (k = 0; k < 3; k++) {
		in = input("cpu", layouts[_i].tp, layouts[_i].cp,
		    layouts[_i].dcp, kv[k]);
		in.kv_bytes_per_rank = 7654321;
		in.host_cache_bytes = k == 1 ? 0 : 3210987;
		plan_and_open(dir, &in);
	}
	dcpd_config_free(&cfg);
}
END_TEST

/* Layers 4, 61, 78, index on all or some; sizes that no W divides; fp8. */
START_TEST(planned_is_allocated_for_other_shapes)
{
	static const char small[] = "{\"hidden_size\": 40, \"vocab_size\": 99, "
	    "\"num_attention_heads\": 8, \"num_key_value_heads\": null, "
	    "\"qk_nope_head_dim\": 8, \"v_head_dim\": 8, \"q_lora_rank\": 24, "
	    "\"intermediate_size\": 50, \"moe_intermediate_size\": 27, "
	    "\"n_routed_experts\": 3, \"num_experts_per_tok\": 2, "
	    "\"n_group\": 1, \"topk_group\": 1, \"index_n_heads\": 4, "
	    "\"eos_token_id\": 1, \"index_topk\": 64}";
	static const char *const model[] = { "deepseek-v3.2", "glm-5",
		"glm-5.2", "glm-5" };
	static const char *const more[] = { "{}", "{}", "{}",
		"{\"num_hidden_layers\": 4}" };
	static const enum dcpk_kv kv[] = { DCPK_KV_BF16, DCPK_KV_FP8 };
	struct dcpd_memplan_in in;
	json_t *j;
	char *text;
	uint32_t D;
	int k;

	j = mu_config(model[_i]);
	mu_change(j, small);
	mu_change(j, more[_i]);
	text = json_dumps(j, 0);
	read_config(text, "{}");
	free(text);
	json_decref(j);
	for (k = 0; k < 2; k++) {
		for (D = 1; D <= 8; D *= 2) {
			in = input("cpu", 8, 1, D, kv[k]);
			in.kv_bytes_per_rank = 30000000;
			plan_and_open(NULL, &in);
		}
	}
	in = input("cpu", 8, 4, 4, DCPK_KV_FP8);
	in.kv_bytes_per_rank = 30000000;
	plan_and_open(NULL, &in);
	dcpd_config_free(&cfg);
}
END_TEST

/* --- weights on CUDA ------------------------------------------------------ */

/*
 * DeepSeek-V3.2 has 671 B parameters, stored as FP8: counted here by hand from
 * the shapes of doc/model.md 2, for one rank. The module keeps bf16 matrices,
 * f32 norms and router, and no MTP layer; asked to, it keeps what is FP8, but
 * for kv_b_proj, with scales in rows of a multiple of four.
 */
START_TEST(weights_of_v32_by_hand)
{
	uint64_t attn, idx, moe, dense, kv_b, fp8, bf16, f32, blocks;
	struct dcpd_memplan_in in;
	struct dcpk_bytes *b = &plan.rank[0];

	read_config("deepseek-v3.2", "{}");
	in = input("cuda", 1, 1, 1, DCPK_KV_FP8);
	make_plan(&in);
	kv_b = 32768ull * 512;
	attn = 1536ull * 7168 + 24576ull * 1536 + 576ull * 7168 +
	    7168ull * 16384;
	idx = 8192ull * 1536 + 128ull * 7168;
	moe = 257ull * 3 * 2048 * 7168;
	dense = 3ull * 18432 * 7168;
	fp8 = 61 * (attn + idx) + 58 * moe + 3 * dense;
	bf16 = 2 * 129280ull * 7168 + 61 * (kv_b + 64 * 7168ull);
	f32 = 7168 + 61 * (2 * 7168ull + 1536 + 512 + 2 * 128) +
	    58 * (256ull * 7168 + 256);
	ck_assert_uint_eq(b->weights, 2 * (fp8 + bf16) + 4 * f32);
	ck_assert_uint_eq(b->weights_attn + b->weights_rep + b->weights_mtp,
	    0);
	ck_assert(b->weights > 1342e9 && b->weights < 1345e9);
	in.flags = DCPK_FP8_WEIGHTS;
	make_plan(&in);
	blocks = 61 * (12ull * 56 + 192ull * 12 + 5ull * 56 + 56ull * 128 +
	    64ull * 12 + 1ull * 56) + 58 * 257ull * 3 * 16 * 56 +
	    3 * 3ull * 144 * 56;
	ck_assert_uint_eq(b->weights, fp8 + 4 * blocks + 2 * bf16 + 4 * f32);
	ck_assert(b->weights > 671e9 && b->weights < 678e9);
	dcpd_config_free(&cfg);
}
END_TEST

/* A slice that cuts through a scale block is bf16 even where FP8 is kept. */
START_TEST(fp8_slices_end_at_scale_blocks)
{
	static const char odd[] = "{\"num_hidden_layers\": 4, "
	    "\"moe_intermediate_size\": 1536}";
	uint64_t expert = 3ull * 1536 / 8 * 7168, e, scales;
	struct dcpd_memplan_in in;

	read_config("deepseek-v3.2", odd);
	in = input("cuda", 8, 1, 1, DCPK_KV_FP8);
	in.flags = DCPK_FP8_WEIGHTS;
	make_plan(&in);
	e = plan.rank[5].weights;
	dcpd_config_free(&cfg);
	/* 192 of 1536 columns a rank are no whole blocks, 256 of 2048 are */
	read_config("deepseek-v3.2", "{\"num_hidden_layers\": 4}");
	make_plan(&in);
	/* gate and up: 2 x 56 floats; down: 56 x 2, in rows of 4 */
	scales = 4 * (2 * 2ull * 56 + 56 * 4);
	ck_assert_uint_eq(e - plan.rank[5].weights, 257 * (2 * expert -
	    (3ull * 2048 / 8 * 7168 + scales)));
	/* decode under CP takes views of what is by head */
	in = input("cuda", 8, 4, 1, DCPK_KV_FP8);
	in.flags = DCPK_FP8_WEIGHTS;
	make_plan(&in);
	ck_assert_uint_eq(plan.rank[2].weights_attn, 4 * 2 *
	    (24576ull * 1536 + 32768ull * 512 + 7168ull * 16384) / 2);
	dcpd_config_free(&cfg);
}
END_TEST

/* More columns than experts.cu has room for: an expert is bf16 then, and a
 * linear layer, which cuBLASLt does, FP8 still. */
START_TEST(fp8_experts_have_so_many_columns)
{
	static const struct {
		enum dcpk_tensor t;
		uint32_t k;
		bool kept;
	} is[] = {
		{ DCPK_T_E_DOWN, 65536, true }, { DCPK_T_E_DOWN, 65664, false },
		{ DCPK_T_E_UP, 65664, false }, { DCPK_T_E_GATE, 65664, false },
		{ DCPK_T_DOWN, 65664, true }, { DCPK_T_O, 131072, true },
	};

	for (size_t i = 0; i < sizeof is / sizeof *is; i++)
		ck_assert_int_eq(dcpk_keeps_fp8(DCPK_FP8_WEIGHTS, 1, is[i].t,
		    DCPK_W_FP8_BLOCK, 128, 128, 0, 256, 0, is[i].k),
		    is[i].kept);
}
END_TEST

/*
 * W4AFP8: routed experts in tiles of 64 x 128, half a byte an element and four
 * for the 128 of a row; a slice that is no whole tiles is bf16.
 */
START_TEST(int4_experts_by_hand)
{
	static const char w4[] = "{\"num_hidden_layers\": 4, "
	    "\"moe_intermediate_size\": %u, \"n_routed_experts\": %u, "
	    "\"quantization_config\": {\"quant_method\": \"w4afp8\", "
	    "\"fmt\": \"e4m3\", \"weight_block_size\": [128, 128]}}";
	static const struct {
		uint32_t moe, tp;
		bool up, down;
	} is[] = {
		{ 2048, 8, true, true },
		{ 2048, 16, true, true },
		/* 64 columns of down: half a group */
		{ 2048, 32, true, false },
		{ 1536, 8, true, false },
		{ 768, 8, false, false },
	};

	for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
		uint64_t n = (uint64_t)is[i].moe / is[i].tp * 7168, b[2];
		uint64_t as = n / 2 + n / 128 * 4;

		/* 128 experts more, in the one layer that has any */
		for (uint32_t e = 0; e < 2; e++) {
			struct dcpd_memplan_in in;
			char json[300];

			snprintf(json, sizeof json, w4, is[i].moe, 128 +
			    e * 128);
			read_config("deepseek-v3.2", json);
			in = input("cuda", is[i].tp, 1, 1, DCPK_KV_FP8);
			in.flags = DCPK_FP8_WEIGHTS | DCPK_INT4_WEIGHTS;
			make_plan(&in);
			b[e] = plan.rank[1].weights;
			dcpd_config_free(&cfg);
		}
		ck_assert_uint_eq(b[1] - b[0], 128 *
		    (2 * (is[i].up ? as : 2 * n) +
		    (is[i].down ? as : 2 * n)));
	}
}
END_TEST

/* The whole of V3.2: less than two thirds of a byte a parameter. */
START_TEST(int4_of_v32)
{
	struct dcpd_memplan_in in;

	read_config("deepseek-v3.2", "{\"quantization_config\": "
	    "{\"quant_method\": \"w4afp8\", \"fmt\": \"e4m3\"}}");
	in = input("cuda", 1, 1, 1, DCPK_KV_FP8);
	in.flags = DCPK_FP8_WEIGHTS | DCPK_INT4_WEIGHTS;
	make_plan(&in);
	ck_assert(plan.rank[0].weights > 360e9 &&
	    plan.rank[0].weights < 375e9);
	dcpd_config_free(&cfg);
}
END_TEST

/* Each rank of W holds its share; replicated attention has its own line. */
START_TEST(weights_split_over_ranks)
{
	struct dcpd_memplan_in in;
	uint64_t one, attn_tp8;
	uint32_t r;

	read_config("glm-5.2", "{}");
	in = input("cuda", 1, 1, 1, DCPK_KV_FP8);
	make_plan(&in);
	one = plan.rank[0].weights;
	in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
	make_plan(&in);
	attn_tp8 = 78ull * 2 * (16384ull * 2048 + 28672ull * 512 +
	    6144ull * 16384) / 8;
	ck_assert_uint_eq(plan.rank[0].weights_attn, 0);
	ck_assert_uint_eq(8 * plan.rank[3].weights +
	    plan.rank[3].weights_rep, one);
	one = plan.rank[0].weights;
	in = input("cuda", 8, 4, 8, DCPK_KV_FP8);
	make_plan(&in);
	for (r = 0; r < 8; r++) {
		ck_assert_uint_eq(plan.rank[r].weights_attn, 4 * attn_tp8);
		ck_assert_uint_eq(plan.rank[r].weights, one - attn_tp8);
	}
	dcpd_config_free(&cfg);
}
END_TEST

/*
 * compressed-tensors: int4 experts, the ignore list by regular expression. On
 * CUDA they become bf16 when they are loaded.
 */
START_TEST(weights_of_compressed_tensors)
{
	static const char q[] = "{\"num_nextn_predict_layers\": 0, "
	    "\"quantization_config\": {\"quant_method\": "
	    "\"compressed-tensors\", \"format\": \"pack-quantized\", "
	    "\"ignore\": [\"lm_head\", \"re:.*self_attn.*\", "
	    "\"re:.*shared_experts.*\", \"model.layers.0.mlp.up_proj\", "
	    "\"re:mlp\"], "
	    "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "
	    "\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": "
	    "\"group\", \"group_size\": 128}}}}}";
	static const struct {
		uint32_t layer;
		enum dcpk_tensor t;
		enum dcpk_wfmt fmt;
	} form[] = {
		{ 5, DCPK_T_E_UP, DCPK_W_INT4_WORD },
		{ 0, DCPK_T_GATE, DCPK_W_INT4_WORD },	/* "mlp" is inside */
		{ 0, DCPK_T_UP, DCPK_W_BF16 },
		{ 1, DCPK_T_UP, DCPK_W_INT4_WORD },
		{ 5, DCPK_T_S_UP, DCPK_W_BF16 },
		{ 5, DCPK_T_O, DCPK_W_BF16 },
		{ 0, DCPK_T_LM_HEAD, DCPK_W_BF16 },
	};
	struct dcpd_wform f;
	int i;
	struct dcpd_memplan_in in;
	uint64_t bf16;

	read_config("glm-5.2", "{\"num_nextn_predict_layers\": 0}");
	in = input("cuda", 1, 1, 1, DCPK_KV_FP8);
	make_plan(&in);
	bf16 = plan.rank[0].weights;
	dcpd_config_free(&cfg);
	read_config("glm-5.2", q);
	make_plan(&in);
	ck_assert_uint_eq(plan.rank[0].weights, bf16);
	for (i = 0; i < LEN(form); i++) {
		f = dcpd_quant_form(&cfg, form[i].layer, form[i].t, 7);
		ck_assert_int_eq(f.fmt, form[i].fmt);
	}
	/* an element takes 1/2 and its part of a scale, 2/128 */
	f = dcpd_quant_form(&cfg, 5, DCPK_T_E_DOWN, 7);
	ck_assert_uint_eq(dcpd_wform_bytes(&f, 6144, 2048),
	    6144 * 2048 / 2 + 6144 * 2048 / 128 * 2);
	dcpd_config_free(&cfg);
}
END_TEST

/* --- refusals ------------------------------------------------------------- */

static void
refused(const struct dcpd_memplan_in *in, int code, const char *const says[])
{
	struct dcpd_memplan untouched;
	int i;

	memset(&plan, 0x5a, sizeof plan);
	untouched = plan;
	ck_assert_int_eq(dcpd_memplan(in, &plan, &err), code);
	ck_assert_mem_eq(&plan, &untouched, sizeof plan);
	for (i = 0; says[i] != NULL; i++)
		ck_assert_msg(strstr(err.text, says[i]) != NULL,
		    "wanted \"%s\" in: %s", says[i], err.text);
}
#define SAYS(...) (const char *const[]){ __VA_ARGS__, NULL }

START_TEST(what_does_not_fit_is_refused_with_numbers)
{
	struct dcpd_memplan_in in;

	read_config("glm-5.2", "{}");
	/* weights alone are more than the fraction */
	in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
	in.device_bytes = 100ull << 30;
	refused(&in, -ENOSPC, SAYS("rank 0: weights and workspace take 1",
	    "--mem-fraction-static 0.9 of 100.00 GiB is 90.00 GiB",
	    "raise --tp"));
	/* the flag asks for more than the card has */
	in.device_bytes = 200ull << 30;
	in.kv_bytes_per_rank = 50ull << 30;
	refused(&in, -ENOSPC, SAYS("rank 0", "KV 50.00 GiB", "200.00 GiB",
	    "--kv-bytes-per-rank"));
	in.kv_bytes_per_rank = 10ull << 30;
	make_plan(&in);
	/* room for the sink page alone */
	in.kv_bytes_per_rank = 2 * (6396 + 347) * 64 - 200;
	refused(&in, -ENOSPC, SAYS("hold no page", "--kv-bytes-per-rank"));
	in.kv_bytes_per_rank = 2 * (6396 + 347) * 64;
	make_plan(&in);
	ck_assert_uint_eq(plan.pages, 1);
	dcpd_config_free(&cfg);
	/* on the CPU the ranks share the machine */
	read_config("glm-5.2", "{}");
	in = input("cpu", 8, 1, 8, DCPK_KV_FP8);
	in.device_bytes = 8ull << 30;
	refused(&in, -ENOSPC, SAYS("each of 8 ranks", "8.00 GiB"));
	dcpd_config_free(&cfg);
}
END_TEST

START_TEST(report_only_tells_instead)
{
	struct dcpd_memplan_in in;
	char *text;

	read_config("glm-5.2", "{}");
	in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
	in.device_bytes = 100ull << 30;
	in.report_only = true;
	make_plan(&in);
	ck_assert_ptr_nonnull(strstr(plan.misfit, "rank 0: weights"));
	ck_assert_uint_gt(plan.rank[0].weights, 0);
	text = dcpd_memplan_text(&in, &plan, NULL);
	ck_assert_ptr_nonnull(strstr(text, "DOES NOT FIT: rank 0"));
	free(text);
	dcpd_config_free(&cfg);
}
END_TEST

START_TEST(formats_are_checked)
{
	struct dcpd_memplan_in in;

	read_config("glm-5.2", "{\"kv_lora_rank\": 256}");
	in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
	refused(&in, -EINVAL, SAYS("fp8_e4m3", "kv_lora_rank 512", "has 256",
	    "use bf16"));
	dcpd_config_free(&cfg);
	read_config("glm-5.2", "{\"index_head_dim\": 64}");
	refused(&in, -EINVAL, SAYS("index_head_dim 128", "has 64"));
	ck_assert_int_eq(dcpd_index_format(DCPK_KV_BF16, &cfg.m),
	    DCPK_KV_BF16);
	dcpd_config_free(&cfg);
	read_config("glm-5.2", "{\"qk_rope_head_dim\": 32}");
	refused(&in, -EINVAL, SAYS("qk_rope_head_dim 64", "has 32"));
	ck_assert_int_eq(dcpd_index_format(DCPK_KV_BF16, &cfg.m), DCPK_KV_FP8);
	ck_assert_int_eq(dcpd_index_format(DCPK_KV_F32, &cfg.m), DCPK_KV_F32);
	in = input("cuda", 8, 1, 8, DCPK_KV_F32);
	refused(&in, -EINVAL, SAYS("f32", "--device cpu"));
	in = input("cuda", 8, 1, 3, DCPK_KV_BF16);
	refused(&in, -EINVAL, SAYS("--dcp-size 3"));
	dcpd_config_free(&cfg);
}
END_TEST

/* The budget from the fraction: what weights and workspace leave of it. */
START_TEST(fraction_is_of_device_memory)
{
	struct dcpd_memplan_in in;
	struct dcpk_bytes *b;
	uint64_t sum = 0;
	uint32_t r;

	read_config("deepseek-v3.2", "{}");
	in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
	in.flags = DCPK_FP8_WEIGHTS;
	in.device_bytes = 139ull << 30;
	make_plan(&in);
	b = &plan.rank[0];
	ck_assert_uint_eq(plan.budget, (uint64_t)(0.9 * (139ull << 30)) -
	    b->weights - b->weights_rep - b->weights_mtp - b->workspace);
	dcpd_config_free(&cfg);
	/* the CPU's copies are shared: the mean of the ranks */
	read_config("glm-5", "{\"num_hidden_layers\": 1, \"vocab_size\": "
	    "1000, \"eos_token_id\": 1}");
	in = input("cpu", 8, 1, 8, DCPK_KV_FP8);
	in.device_bytes = 4ull << 30;
	make_plan(&in);
	for (r = 0; r < 8; r++) {
		b = &plan.rank[r];
		sum += b->weights + b->weights_attn + b->weights_rep +
		    b->weights_mtp + b->workspace;
	}
	ck_assert_uint_eq(plan.budget, (uint64_t)(0.9 * (4ull << 30)) -
	    (sum + 7) / 8);
	dcpd_config_free(&cfg);
}
END_TEST

/* What NCCL takes leaves less for KV, where it is used: not by events, and not
 * with one rank. */
START_TEST(nccl_is_in_the_plan)
{
	struct dcpd_memplan_in in;
	uint64_t budget;
	char *text;

	read_config("deepseek-v3.2", "{\"num_hidden_layers\": 4}");
	in = input("cuda", 2, 1, 2, DCPK_KV_FP8);
	in.device_bytes = 139ull << 30;
	make_plan(&in);
	budget = plan.budget;
	ck_assert_uint_eq(plan.rank[1].comm, 0);
	in.comm = DCPK_COMM_NCCL;
	make_plan(&in);
	/* 860 MiB were measured */
	ck_assert_uint_ge(plan.rank[1].comm, 860ull << 20);
	ck_assert_uint_eq(budget - plan.budget, plan.rank[1].comm);
	in.flags |= DCPK_NO_PEERS;
	make_plan(&in);
	/* and 1306 */
	ck_assert_uint_ge(plan.rank[1].comm, 1306ull << 20);
	in.flags &= ~DCPK_NO_PEERS;
	make_plan(&in);
	text = dcpd_memplan_text(&in, &plan, NULL);
	ck_assert_ptr_nonnull(strstr(text, "NCCL"));
	free(text);
	in = input("cuda", 1, 1, 1, DCPK_KV_FP8);
	in.device_bytes = 1390ull << 30;
	in.comm = DCPK_COMM_NCCL;
	make_plan(&in);
	ck_assert_uint_eq(plan.rank[0].comm, 0);
	dcpd_config_free(&cfg);
}
END_TEST

/*
 * Without peer access a rank has a region for the largest exchange. V3.2 on
 * eight ranks, passes of 512 rows of 16 heads each, by hand.
 */
START_TEST(region_without_peer_access)
{
	static const struct {
		uint32_t cp, dcp, ctx;
		enum dcpk_kv kv;
		uint64_t first, other;	/* rank 0's, the others' */
	} is[] = {
		/* logits of 16 samples at rank 0; lists of 65 rows */
		{ 1, 1, 4096, DCPK_KV_FP8, 8 * 16ull * 16160 * 4,
		    8 * (65 * 2048 * 4 + 512ull) },
		/* partial outputs and their LSE, packed and as they land */
		{ 1, 8, 4096, DCPK_KV_FP8, 16 * 512 * 16 * (512 * 2 + 4ull),
		    16 * 512 * 16 * (512 * 2 + 4ull) },
		/* an eighth of a million rows: own ones, eight ranks' */
		{ 1, 8, 1u << 20, DCPK_KV_FP8, 9 * (131072ull * 656),
		    9 * (131072ull * 656) },
		/* CP: new rows, keys and scales of all ranks; logits */
		{ 8, 1, 4096, DCPK_KV_BF16, 8 * 16ull * 16160 * 4,
		    8 * 512 * (1152 + 128 + 4ull) },
	};
	struct dcpd_memplan with, without;
	struct dcpd_memplan_in in;

	read_config("deepseek-v3.2", "{}");
	for (int i = 0; i < LEN(is); i++) {
		in = input("cuda", 8, is[i].cp, is[i].dcp, is[i].kv);
		in.max_ctx = is[i].ctx;
		in.comm = DCPK_COMM_NCCL;
		make_plan(&in);
		without = plan;
		in.flags = DCPK_NO_PEERS;
		make_plan(&in);
		with = plan;
		ck_assert_uint_eq(with.rank[0].workspace -
		    without.rank[0].workspace, is[i].first);
		ck_assert_uint_eq(with.rank[7].workspace -
		    without.rank[7].workspace, is[i].other);
		/* the flag alone is not it: ranks that share a GPU */
		in.comm = DCPK_COMM_EVENT;
		make_plan(&in);
		ck_assert_uint_eq(plan.rank[0].workspace,
		    without.rank[0].workspace);
	}
	dcpd_config_free(&cfg);
}
END_TEST

/* --- the table and the JSON ----------------------------------------------- */

START_TEST(table_and_json_say_the_same)
{
	struct dcpk_bytes actual[DCPK_MAX_RANKS];
	struct dcpd_memplan_in in;
	json_t *j, *rank;
	char *text, *line;

	read_config("glm-5.2", "{}");
	in = input("cuda", 8, 1, 8, DCPK_KV_FP8);
	in.kv_bytes_per_rank = 40000000000;
	make_plan(&in);
	memcpy(actual, plan.rank, sizeof actual);
	actual[7].workspace += 1 << 30;
	text = dcpd_memplan_text(&in, &plan, actual);
	ck_assert_ptr_nonnull(strstr(text, "--tp 8 --attn-cp-size 1 "
	    "--dcp-size 8 --kv-cache-dtype fp8_e4m3, index fp8_e4m3"));
	ck_assert_ptr_nonnull(strstr(text, "0-6    planned"));
	line = strstr(text, "\n7      planned");
	ck_assert_ptr_nonnull(line);
	ck_assert_ptr_nonnull(strstr(line, "\n7      actual"));
	ck_assert_ptr_nonnull(strstr(text, "6,396 + 347 bytes"));
	ck_assert_ptr_nonnull(strstr(text, "tokens: 5,932,416 in 92,694 pages "
	    "of 64; under TP (--dcp-size 1) the same bytes hold 741,440"));
	ck_assert_ptr_nonnull(strstr(text, "estimate"));
	free(text);
	j = dcpd_memplan_json(&in, &plan, actual);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "pages")),
	    92694);
	ck_assert_int_eq(json_integer_value(json_object_get(j,
	    "token_bytes_per_rank")), 6743);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "tokens_tp")),
	    741440);
	ck_assert(json_is_null(json_object_get(j, "misfit")));
	rank = json_array_get(json_object_get(j, "ranks"), 7);
	ck_assert_int_eq(json_integer_value(json_object_get(
	    json_object_get(rank, "actual"), "workspace")) -
	    json_integer_value(json_object_get(json_object_get(rank,
	    "planned"), "workspace")), 1 << 30);
	json_decref(j);
	/* no budget known: the table still has bytes */
	in.kv_bytes_per_rank = 0;
	make_plan(&in);
	text = dcpd_memplan_text(&in, &plan, NULL);
	/* 2^30 / (6742.5 * 64) = 2488.2 pages; 311.0 at D = 1 */
	ck_assert_ptr_nonnull(strstr(text, "each GiB of a rank holds 159,232; "
	    "under TP (--dcp-size 1) 19,904; give --kv-bytes-per-rank"));
	ck_assert_ptr_null(strstr(text, "actual"));
	free(text);
	dcpd_config_free(&cfg);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("memplan");
	TCase *t = tcase_create("memplan");
	SRunner *r;
	int failed;

	dcpd_log_level(LOG_WARNING);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, published_bytes_per_token);
	tcase_add_test(t, capacity_is_d_times);
	tcase_add_loop_test(t, planned_is_allocated, 0, LEN(layouts));
	tcase_add_loop_test(t, planned_is_allocated_for_other_shapes, 0, 4);
	tcase_add_test(t, weights_of_v32_by_hand);
	tcase_add_test(t, fp8_slices_end_at_scale_blocks);
	tcase_add_test(t, fp8_experts_have_so_many_columns);
	tcase_add_test(t, int4_experts_by_hand);
	tcase_add_test(t, int4_of_v32);
	tcase_add_test(t, weights_split_over_ranks);
	tcase_add_test(t, weights_of_compressed_tensors);
	tcase_add_test(t, what_does_not_fit_is_refused_with_numbers);
	tcase_add_test(t, report_only_tells_instead);
	tcase_add_test(t, formats_are_checked);
	tcase_add_test(t, fraction_is_of_device_memory);
	tcase_add_test(t, nccl_is_in_the_plan);
	tcase_add_test(t, region_without_peer_access);
	tcase_add_test(t, table_and_json_say_the_same);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
