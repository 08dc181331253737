/* Loading checkpoints of every format into a backend that only looks. */
#include "config.h"

#include <fcntl.h>
#include <math.h>

#include "tests/unit/checkpoint.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))

/* --- a backend that looks ------------------------------------------------ */

static bool fail_at_o;
static struct {
	enum mode mode;
	uint64_t loads, elements;
	uint64_t last_done, total, ticks;
	float act[4][2];		/* [layer][down] */
} seen;

static bool
same_bytes(const char *name, size_t from, const void *data, size_t n)
{
	const unsigned char *b = data;
	size_t i;

	for (i = 0; i < n; i++)
		if (b[i] != byte_of(name, from + i))
			return false;
	return true;
}

/* An F16 checkpoint arrives as F32. */
static bool
same_halves(const char *name, const void *data, size_t n)
{
	const float *f = data;
	size_t i;

	for (i = 0; i < n; i++) {
		int h = byte_of(name, 2 * i) | byte_of(name, 2 * i + 1) << 8;
		int e = h >> 10 & 31, m = h & 1023;
		double v = e == 0 ? m / 16777216.0 :
		    (1024 + m) * pow(2, e - 25);

		if (h & 0x8000)
			v = -v;
		if (e == 31 ? isfinite(f[i]) : (double)f[i] != v)
			return false;
	}
	return true;
}

static void
want_form(const struct dcpk_weight *w, enum dcpk_wfmt fmt, uint32_t bn,
    uint32_t bk)
{
	ck_assert_int_eq(w->fmt, fmt);
	ck_assert_uint_eq(w->block_n, bn);
	ck_assert_uint_eq(w->block_k, bk);
}

static void
check_packed(const struct dcpk_weight *w)
{
	bool down = w->tensor == DCPK_T_E_DOWN;
	size_t el = w->fmt == DCPK_W_BF16 ? 2 : 1, n = 128 * 128;
	size_t row = (down ? 128 : 256) * w->expert +
	    (w->tensor == DCPK_T_E_UP ? 128 : 0);
	char name[160];

	snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s",
	    w->layer, down ? "down_proj" : "gate_up_proj");
	ck_assert(same_bytes(name, row * 128 * el, w->data, n * el));
	if (seen.mode != FP8_BLOCK)
		return;
	want_form(w, DCPK_W_FP8_BLOCK, 32, 64);
	strcat(name, "_scale_inv");
	ck_assert(same_bytes(name, row / 32 * 2 * 4, w->scale, 4 * 2 * 4));
}

static void
check_linear(const struct dcpk_weight *w, const char *name)
{
	size_t n = (size_t)w->n * w->k, groups = w->k / 8;
	bool int4 = seen.mode == W4AFP8 && is_expert(w->tensor);
	char leaf[200];
	int cut = (int)strlen(name) - 7;

#define BESIDE(x) (snprintf(leaf, sizeof leaf, "%.*s" x, cut, name), leaf)
	if (int4) {
		want_form(w, DCPK_W_INT4_PAIR, 1, 128);
		ck_assert(same_bytes(name, 0, w->data, n / 2));
		ck_assert(same_bytes(BESIDE(".weight_scale_inv"), 0, w->scale,
		    w->n * 4));
		seen.act[w->layer][w->tensor == DCPK_T_E_DOWN] = w->act_scale;
	} else if (seen.mode == FP8_BLOCK || seen.mode == W4AFP8) {
		want_form(w, DCPK_W_FP8_BLOCK, 32, 64);
		ck_assert(same_bytes(name, 0, w->data, n));
		ck_assert(same_bytes(BESIDE(".weight_scale_inv"), 0, w->scale,
		    (w->n + 31) / 32 * ((w->k + 63) / 64) * 4));
		ck_assert(!w->scale_bf16);
	} else if (seen.mode == FP8_CHANNEL || seen.mode == FP8_ONE) {
		bool one = seen.mode == FP8_ONE;

		want_form(w, DCPK_W_FP8_CHANNEL, !one, 0);
		ck_assert(same_bytes(name, 0, w->data, n));
		ck_assert(w->scale_bf16 == !one);
		ck_assert(same_bytes(BESIDE(".weight_scale"), 0, w->scale,
		    one ? 4 : w->n * 2));
	} else {
		want_form(w, DCPK_W_INT4_WORD, 1, 8);
		ck_assert(same_bytes(BESIDE(".weight_packed"), 0, w->data,
		    n / 2));
		ck_assert(same_bytes(BESIDE(".weight_scale"), 0, w->scale,
		    w->n * groups * 2));
		ck_assert(w->scale_bf16);
		ck_assert((w->zero_point != NULL) == (seen.mode == CT4_ASYM));
		ck_assert((w->g_idx != NULL) == (seen.mode == CT4_ASYM));
		if (seen.mode == CT4_ASYM)
			ck_assert(same_bytes(BESIDE(".weight_zero_point"), 0,
			    w->zero_point, (w->n + 7) / 8 * groups * 4) &&
			    same_bytes(BESIDE(".weight_g_idx"), 0, w->g_idx,
			    w->k * 4));
	}
}

static int
look(struct dcpk_ctx *ctx, const struct dcpk_weight *w, struct dcpk_err *err)
{
	const struct tensor *x = &tensors[w->tensor];
	size_t n = (size_t)w->n * w->k;
	char name[160];

	if (fail_at_o && w->tensor == DCPK_T_O) {
		strcpy(err->text, "the device said no");
		return -ENOMEM;
	}
	seen.loads++;
	seen.elements += (uint64_t)(w->n1 - w->n0) * (w->k1 - w->k0) *
	    (uint64_t)__builtin_popcountll(w->ranks);
	ck_assert_uint_eq(w->n, x->k == 0 ? 1 : x->n);
	ck_assert_uint_eq(w->k, x->k == 0 ? x->n : x->k);
	full_name(name, sizeof name, (int)w->layer,
	    w->tensor == DCPK_T_LM_HEAD && twist.no_lm_head ? DCPK_T_EMBED :
	    w->tensor, (int)w->expert);
	if (is_expert(w->tensor) && twist.packed) {
		check_packed(w);
	} else if (x->kind == 'L' && seen.mode > F16) {
		check_linear(w, name);
	} else if (seen.mode == F16 && x->kind != 'f') {
		want_form(w, DCPK_W_F32, 0, 0);
		ck_assert_msg(same_halves(name, w->data, n), "%s", name);
	} else {
		bool f32 = seen.mode == F32 || x->kind == 'f';

		want_form(w, f32 ? DCPK_W_F32 : DCPK_W_BF16, 0, 0);
		ck_assert_ptr_null(w->scale);
		ck_assert_msg(same_bytes(name, 0, w->data, n * (f32 ? 4 : 2)),
		    "%s", name);
	}
	return 0;
}

static void
count_tick(void *arg, uint64_t done, uint64_t total)
{
	ck_assert_uint_ge(done, seen.last_done);
	ck_assert_uint_le(done, total);
	seen.last_done = done;
	seen.total = total;
	seen.ticks++;
}

static const struct dcpk_backend backend = { .name = "looker", .load = look };
static struct dcpd_err err;

/* Writes, loads over tp x cp ranks, returns what the loader returned. */
static int
run(enum mode mode, uint32_t tp, uint32_t cp)
{
	struct dcpd_load_options o = { .tick = count_tick };
	struct dcpd_layout l = { tp, 1, cp, 1, 0 };
	struct dcpd_model_config cfg;
	char dir[MU_PATH];
	struct dcpk_topo t;
	int rc;

	mu_mkdir(dir);
	write_checkpoint(dir, mode);
	memset(&seen, 0, sizeof seen);
	seen.mode = mode;
	ck_assert_msg(dcpd_config_load(dir, false, &cfg, &err) == 0, "%s",
	    err.text);
	ck_assert_int_eq(dcpd_topology(&l, &cfg.m, &t, &err), 0);
	rc = dcpd_weights_load(dir, &cfg, &t, &backend, NULL, &o, &err);
	dcpd_config_free(&cfg);
	mu_rmdir(dir);
	return rc;
}

static void
run_ok(enum mode mode, uint32_t tp, uint32_t cp)
{
	int rc = run(mode, tp, cp);

	ck_assert_msg(rc == 0, "mode %d: %s", (int)mode, err.text);
}

/* Elements that all ranks keep together, counted from the table. */
static uint64_t
elements(uint32_t tp, uint32_t cp)
{
	uint64_t sum = 0;
	int t;

	for (t = 0; t < DCPK_T_N; t++) {
		const struct tensor *x = &tensors[t];
		uint64_t n = (uint64_t)x->n * (x->k == 0 ? 1 : x->k);

		n *= x->where[0] == '\0' ? 1 : strlen(x->where);
		n *= is_expert(t) ? 3 : 1;
		if (t == DCPK_T_Q_B || t == DCPK_T_KV_B || t == DCPK_T_O)
			n *= cp;
		else if (t != DCPK_T_LM_HEAD && (t < DCPK_T_GATE ||
		    t == DCPK_T_ROUTER || t == DCPK_T_ROUTER_BIAS ||
		    t >= DCPK_T_E_NORM))
			n *= tp;
		sum += n;
	}
	return sum;
}

START_TEST(every_format_arrives_as_stored)
{
	run_ok(_i, 1, 1);
	ck_assert_uint_eq(seen.elements, elements(1, 1));
	ck_assert_uint_eq(seen.last_done, seen.total);
	ck_assert_uint_gt(seen.ticks, 50);
	run_ok(_i, 4, 2);
	ck_assert_uint_eq(seen.elements, elements(4, 2));
}
END_TEST

START_TEST(packed_experts)
{
	twist = (struct twist){ .packed = true };
	run_ok(BF16, 2, 1);
	ck_assert_uint_eq(seen.elements, elements(2, 1));
	run_ok(FP8_BLOCK, 2, 1);
	ck_assert_uint_eq(seen.elements, elements(2, 1));
}
END_TEST

/* input_scale: the largest of the layer's experts; gate and up share one. */
START_TEST(activation_scales_of_w4afp8)
{
	static const char *const proj[] = { "gate_proj", "up_proj",
		"down_proj" };
	char name[160];
	int layer, e, p;

	run_ok(W4AFP8, 1, 1);
	for (layer = 1; layer < 4; layer++) {
		float want[2] = { 0, 0 };

		for (e = 0; e < 3; e++) {
			for (p = 0; p < 3; p++) {
				snprintf(name, sizeof name, "model.layers.%d."
				    "mlp.experts.%d.%s.input_scale", layer, e,
				    proj[p]);
				if (act_scale_of(name) > want[p == 2])
					want[p == 2] = act_scale_of(name);
			}
		}
		ck_assert_float_eq(seen.act[layer][0], want[0]);
		ck_assert_float_eq(seen.act[layer][1], want[1]);
		ck_assert(want[0] != want[1]);
	}
	twist = (struct twist){ .act_scale = NAN };
	ck_assert_int_eq(run(W4AFP8, 1, 1), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "gate_proj.input_scale"));
	ck_assert_ptr_nonnull(strstr(err.text, "above 0"));
	twist = (struct twist){ .act_scale = -1 };
	ck_assert_int_eq(run(W4AFP8, 1, 1), -EINVAL);
}
END_TEST

START_TEST(tied_head_is_the_embedding)
{
	twist = (struct twist){ .no_lm_head = true };
	run_ok(BF16, 2, 1);
	ck_assert_uint_eq(seen.elements, elements(2, 1));
}
END_TEST

START_TEST(missing_tensors_are_named_and_counted)
{
	twist = (struct twist){ .skip = "lm_head" };
	ck_assert_int_eq(run(BF16, 1, 1), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.text, "missing (1): lm_head.weight"));
	ck_assert_ptr_nonnull(strstr(err.text, "lm_head.weight"));
	ck_assert_uint_eq(seen.loads, 0);
	twist = (struct twist){ .skip = "up_proj" };
	ck_assert_int_eq(run(BF16, 1, 1), -ENOENT);
	/* 1 dense, 3 x 3 experts, 3 shared */
	ck_assert_ptr_nonnull(strstr(err.text, "missing (13): "));
	ck_assert_ptr_nonnull(strstr(err.text,
	    "model.layers.0.mlp.up_proj.weight, "));
	ck_assert_ptr_nonnull(strstr(err.text,
	    "model.layers.1.mlp.experts.2.up_proj.weight, ..."));
}
END_TEST

static const struct {
	enum mode mode;
	struct twist twist;
	const char *says[3];
} wrong[] = {
	{ BF16, { .shape = "model.layers.1.self_attn.o_proj.weight" },
	  { "model.layers.1.self_attn.o_proj.weight", "expected",
	    "[128, 64], got BF16 [129, 64]" } },
	{ BF16, { .shape = "model.norm.weight" },
	  { "model.norm.weight", "[128]", "got BF16 [129]" } },
	{ BF16, { .dtype_of = "lm_head.weight", .dtype = "I32" },
	  { "lm_head.weight", "expected BF16", "got I32" } },
	{ BF16, { .dtype_of = "model.norm.weight", .dtype = "F8_E4M3" },
	  { "model.norm.weight", "expected BF16", "got F8_E4M3" } },
	{ FP8_BLOCK, { .shape =
	  "model.layers.0.self_attn.kv_b_proj.weight_scale_inv" },
	  { "kv_b_proj.weight_scale_inv", "F32 [3, 1]", "got F32 [4, 1]" } },
	{ FP8_BLOCK, { .skip = "layers.0.mlp.up_proj.weight_scale_inv" },
	  { "model.layers.0.mlp.up_proj.weight", "is F8_E4M3",
	    "weight_scale_inv or .weight_scale is missing" } },
	{ FP8_BLOCK, { .dtype_of =
	  "model.layers.0.mlp.up_proj.weight_scale_inv", .dtype = "I32" },
	  { "up_proj.weight_scale_inv", "expected F32", "got I32" } },
	{ FP8_CHANNEL, { .shape =
	  "model.layers.0.mlp.up_proj.weight_scale" },
	  { "up_proj.weight_scale", "[136, 1] or [1]", "[137, 1]" } },
	{ W4AFP8, { .shape = "model.layers.1.mlp.experts.2.up_proj.weight" },
	  { "experts.2.up_proj.weight", "I8 [128, 64]", "got I8 [129, 64]" } },
	{ W4AFP8, { .skip = "experts.1.up_proj.weight_scale_inv" },
	  { "experts.1.up_proj.weight", "is I8", "weight_scale_inv is" } },
	{ W4AFP8, { .dtype_of =
	  "model.layers.1.mlp.experts.2.up_proj.input_scale", .dtype =
	  "I32" }, { "input_scale", "[] or [1]", "got I32" } },
	{ CT4, { .shape =
	  "model.layers.1.mlp.experts.2.up_proj.weight_packed" },
	  { "weight_packed", "I32 [128, 16]", "got I32 [129, 16]" } },
	{ CT4, { .skip = "experts.2.up_proj.weight_scale" },
	  { "up_proj.weight_packed", "is I32", "weight_scale is missing" } },
	{ CT4_ASYM, { .shape =
	  "model.layers.1.mlp.experts.2.up_proj.weight_zero_point" },
	  { "weight_zero_point", "I32 [16, 16]", "got I32 [17, 16]" } },
	{ CT4_ASYM, { .shape =
	  "model.layers.1.mlp.experts.2.up_proj.weight_g_idx" },
	  { "weight_g_idx", "I32 [128]", "got I32 [129]" } },
	{ BF16, { .packed = true, .shape =
	  "model.layers.2.mlp.experts.gate_up_proj" },
	  { "gate_up_proj", "[3, 256, 128]", "got BF16 [4, 256, 128]" } },
	{ FP8_BLOCK, { .packed = true, .shape =
	  "model.layers.2.mlp.experts.down_proj_scale_inv" },
	  { "down_proj_scale_inv", "[3, 4, 2]", "[4, 4, 2]" } },
	{ FP8_BLOCK, { .packed = true, .skip = "down_proj_scale_inv" },
	  { "down_proj", "is F8_E4M3", "_scale_inv is missing" } },
};

START_TEST(wrong_tensors_are_refused_before_any_is_loaded)
{
	int i;

	twist = wrong[_i].twist;
	ck_assert_int_eq(run(wrong[_i].mode, 1, 1), -EINVAL);
	for (i = 0; i < 3; i++)
		ck_assert_msg(strstr(err.text, wrong[_i].says[i]) != NULL,
		    "wanted %s in: %s", wrong[_i].says[i], err.text);
	if (strcmp(wrong[_i].says[0], "input_scale") != 0)
		ck_assert_uint_eq(seen.loads, 0);
}
END_TEST

START_TEST(a_number_that_is_none_is_refused_by_name)
{
	static const struct {
		enum mode mode;
		const char *name;
	} bad[] = {
		{ BF16, "model.layers.1.self_attn.o_proj.weight" },
		{ F32, "model.layers.0.mlp.down_proj.weight" },
		{ F16, "lm_head.weight" },
		{ FP8_BLOCK, "model.layers.2.mlp.experts.2.up_proj.weight" },
		{ FP8_BLOCK, "model.layers.2.mlp.experts.0.up_proj.weight"
		    "_scale_inv" },
		{ CT4, "model.layers.0.self_attn.o_proj.weight_scale" },
	};

	twist = (struct twist){ .not_finite = bad[_i].name };
	ck_assert_int_eq(run(bad[_i].mode, 1, 1), -EINVAL);
	ck_assert_msg(strstr(err.text, bad[_i].name) != NULL &&
	    strstr(err.text, "NaN or infinite") != NULL, "%s", err.text);
	twist = (struct twist){ 0 };
}
END_TEST

START_TEST(the_backends_refusal_names_the_tensor)
{
	fail_at_o = true;
	ck_assert_int_eq(run(BF16, 1, 1), -ENOMEM);
	ck_assert_ptr_nonnull(strstr(err.text, "looker: "));
	ck_assert_ptr_nonnull(strstr(err.text,
	    "model.layers.0.self_attn.o_proj.weight"));
	ck_assert_ptr_nonnull(strstr(err.text, "the device said no"));
}
END_TEST

/* --- MTP and extra tensors ------------------------------------------------ */

/* Runs with stderr in a buffer. */
static char log_text[4000];

static void
run_logged(enum mode mode)
{
	FILE *f = tmpfile();
	int old = dup(2);
	size_t n;

	fflush(stderr);
	dup2(fileno(f), 2);
	run_ok(mode, 1, 1);
	fflush(stderr);
	dup2(old, 2);
	close(old);
	rewind(f);
	n = fread(log_text, 1, sizeof log_text - 1, f);
	log_text[n] = '\0';
	fclose(f);
}

START_TEST(mtp_layer)
{
	uint64_t all, without;

	run_logged(BF16);
	all = seen.elements;
	ck_assert_ptr_null(strstr(log_text, "not used"));
	twist = (struct twist){ .mtp_copies = true };
	run_logged(BF16);
	ck_assert_uint_eq(seen.elements, all);
	ck_assert_ptr_null(strstr(log_text, "not used"));
	twist = (struct twist){ .skip = "layers.3." };
	run_logged(BF16);
	without = seen.elements;
	ck_assert_uint_lt(without, all);
	ck_assert_ptr_nonnull(strstr(log_text, "has no MTP layer"));
	/* half an MTP layer is a broken checkpoint */
	twist = (struct twist){ .skip = "layers.3.eh_proj" };
	ck_assert_int_eq(run(BF16, 1, 1), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.text, "model.layers.3.eh_proj"));
}
END_TEST

START_TEST(extra_tensors_get_one_line)
{
	twist = (struct twist){ .extra = "model.layers.0.rotary.inv" };
	run_logged(BF16);
	ck_assert_ptr_nonnull(strstr(log_text, "are not used (1): "
	    "model.layers.0.rotary.inv"));
}
END_TEST

/* Scales and what lies beside a tensor are no extra tensors. */
START_TEST(nothing_of_a_format_is_extra)
{
	run_logged(_i);
	ck_assert_ptr_null(strstr(log_text, "not used"));
}
END_TEST

/* --- dummy weights -------------------------------------------------------- */

/* Sums that any slicing must give: of bytes, each counted once. */
static struct {
	uint64_t hash[DCPK_T_N], in_layer_2[DCPK_T_N], n[DCPK_T_N];
	double rms[DCPK_T_N];
	int fmt[DCPK_T_N];
} dummy;

static float
scale_of(const struct dcpk_weight *w, uint64_t i)
{
	uint64_t row = i / w->k, col = i % w->k;
	uint64_t groups = w->block_k != 0 ?
	    (w->k + w->block_k - 1) / w->block_k : 1;
	const float *scale = w->scale;

	if (w->fmt == DCPK_W_FP8_CHANNEL)
		return scale[w->block_n != 0 ? row : 0];
	if (w->fmt == DCPK_W_FP8_BLOCK)
		row /= w->block_n;
	return scale[row * groups + col / w->block_k];
}

static double
element(const struct dcpk_weight *w, uint64_t i)
{
	const unsigned char *b = w->data;
	uint32_t u;
	float f;

	if (w->fmt == DCPK_W_F32) {
		memcpy(&f, b + 4 * i, 4);
		return (double)f;
	}
	if (w->fmt == DCPK_W_BF16) {
		u = (uint32_t)(b[2 * i] | b[2 * i + 1] << 8) << 16;
		memcpy(&f, &u, 4);
		return (double)f;
	}
	f = scale_of(w, i);
	if (w->fmt == DCPK_W_INT4_PAIR) {
		int q = b[i / 2] >> 4 * (i % 2) & 15;

		return (q < 8 ? q : q - 16) * (double)f;
	}
	u = b[i] & 0x7f;
	if (u == 0x7f)
		return NAN;
	return (b[i] & 0x80 ? -1 : 1) * (double)f * (u < 8 ? u * 0x1p-9 :
	    ldexp(8 + u % 8, (int)(u / 8) - 10));
}

static int
take(struct dcpk_ctx *ctx, const struct dcpk_weight *w, struct dcpk_err *e)
{
	uint64_t n = (uint64_t)w->n * w->k, i, h = 0;
	double sum = 0, v;

	for (i = 0; i < n; i++) {
		v = element(w, i);
		if (!isfinite(v))
			ck_abort_msg("tensor %d [%d]", w->tensor, (int)i);
		sum += v * v;
		h = h * 31 + (uint64_t)(int64_t)(v * 1e6);
	}
	dummy.n[w->tensor] = n;
	if (w->layer == 2)
		dummy.in_layer_2[w->tensor] = h;
	/* the pointers are the whole tensor's: each slice must agree */
	if (w->layer == 1 || tensors[w->tensor].where[0] == '\0' ||
	    strchr(tensors[w->tensor].where, '1') == NULL) {
		if (w->expert == 0)
			dummy.hash[w->tensor] = h;
		dummy.rms[w->tensor] = sqrt(sum / (double)n);
		dummy.fmt[w->tensor] = w->fmt;
	}
	return 0;
}

static void
make_dummy(const char *change, uint32_t tp, uint64_t seed)
{
	static const struct dcpk_backend b = { .name = "taker", .load = take };
	struct dcpd_load_options o = { .format = DCPD_LOAD_DUMMY,
	    .seed = seed };
	struct dcpd_layout l = { tp, 1, 1, 1, 0 };
	struct dcpd_model_config cfg;
	json_t *j = mu_config(config);
	struct dcpk_topo t;
	char dir[MU_PATH];

	if (change != NULL)
		mu_change(j, change);
	mu_mkdir(dir);
	mu_write_json(dir, "config.json", j);
	json_decref(j);
	ck_assert_int_eq(dcpd_config_load(dir, false, &cfg, &err), 0);
	ck_assert_int_eq(dcpd_topology(&l, &cfg.m, &t, &err), 0);
	memset(&dummy, 0, sizeof dummy);
	ck_assert_int_eq(dcpd_weights_load(dir, &cfg, &t, &b, NULL, &o, &err),
	    0);
	dcpd_config_free(&cfg);
	mu_rmdir(dir);
}

START_TEST(dummy_weights_are_the_same_for_any_layout)
{
	uint64_t one[DCPK_T_N];
	int t, u, differ = 0;

	make_dummy(quant[_i], 1, 7);
	memcpy(one, dummy.hash, sizeof one);
	make_dummy(quant[_i], 4, 7);
	ck_assert_mem_eq(one, dummy.hash, sizeof one);
	/* no two tensors alike, and another seed changes them all */
	for (t = 0; t < DCPK_T_N; t++) {
		ck_assert_uint_ne(one[t], dummy.in_layer_2[t]);
		for (u = 0; u < t; u++)
			ck_assert_uint_ne(one[t], one[u]);
	}
	make_dummy(quant[_i], 4, 8);
	for (t = 0; t < DCPK_T_N; t++)
		differ += one[t] != dummy.hash[t];
	ck_assert_int_eq(differ, DCPK_T_N);
}
END_TEST

/*
 * The embedding is large enough for several threads, and not a multiple of
 * what they share out. Recorded when one thread made it.
 */
START_TEST(dummy_weights_do_not_depend_on_threads)
{
	make_dummy("{\"vocab_size\": 41003}", 1, 7);
	ck_assert_uint_gt(dummy.n[DCPK_T_EMBED], 2 << 20);
	ck_assert_uint_eq(dummy.hash[DCPK_T_EMBED],
	    UINT64_C(11727901389364469912));
}
END_TEST

START_TEST(dummy_weights_keep_the_size_of_activations)
{
	int t;

	make_dummy(quant[_i], 1, 1);
	for (t = 0; t < DCPK_T_N; t++) {
		double want = tensors[t].k == 0 ? 1 :
		    1 / sqrt(tensors[t].k);

		if (t == DCPK_T_EMBED)
			want = 1;
		if (t == DCPK_T_ROUTER_BIAS || t == DCPK_T_IDX_K_NORM_B)
			continue;
		/* a tensor of few scales has those alone */
		bool scaled = dummy.fmt[t] != DCPK_W_BF16 &&
		    dummy.fmt[t] != DCPK_W_F32;
		double off = scaled ? 0.55 : 0.2;

		ck_assert_msg(dummy.rms[t] > (1 - off) * want &&
		    dummy.rms[t] < (1 + off) * want, "tensor %d: %g, not %g", t,
		    dummy.rms[t], want);
	}
	ck_assert_int_eq(dummy.fmt[DCPK_T_E_UP], _i == W4AFP8 ?
	    DCPK_W_INT4_PAIR : _i == FP8_BLOCK ? DCPK_W_FP8_BLOCK :
	    DCPK_W_BF16);
	ck_assert_int_eq(dummy.fmt[DCPK_T_Q_B], _i == BF16 ? DCPK_W_BF16 :
	    DCPK_W_FP8_BLOCK);
	ck_assert_int_eq(dummy.fmt[DCPK_T_IDX_W], DCPK_W_BF16);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("weights");
	TCase *t = tcase_create("weights");
	SRunner *r;
	int failed;

	dcpd_log_level(LOG_INFO);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, every_format_arrives_as_stored, 0, MODES);
	tcase_add_test(t, packed_experts);
	tcase_add_test(t, activation_scales_of_w4afp8);
	tcase_add_test(t, tied_head_is_the_embedding);
	tcase_add_test(t, missing_tensors_are_named_and_counted);
	tcase_add_loop_test(t, wrong_tensors_are_refused_before_any_is_loaded,
	    0, LEN(wrong));
	tcase_add_loop_test(t, a_number_that_is_none_is_refused_by_name, 0, 6);
	tcase_add_test(t, the_backends_refusal_names_the_tensor);
	tcase_add_test(t, mtp_layer);
	tcase_add_test(t, extra_tensors_get_one_line);
	tcase_add_loop_test(t, nothing_of_a_format_is_extra, 0, MODES);
	tcase_add_test(t, dummy_weights_are_the_same_for_any_layout);
	tcase_add_loop_test(t, dummy_weights_are_the_same_for_any_layout,
	    FP8_BLOCK, FP8_BLOCK + 1);
	tcase_add_test(t, dummy_weights_do_not_depend_on_threads);
	tcase_add_test(t, dummy_weights_keep_the_size_of_activations);
	tcase_add_loop_test(t, dummy_weights_keep_the_size_of_activations,
	    FP8_BLOCK, FP8_BLOCK + 1);
	tcase_add_loop_test(t, dummy_weights_keep_the_size_of_activations,
	    W4AFP8, W4AFP8 + 1);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
