/*
 * Tokenizer: ids and texts equal those of huggingface/tokenizers on every
 * golden case, and what cannot be read is refused with a reason.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "dcpd/text/text.h"
#include "tests/unit/text_util.h"

static void
check_ids(const struct dcpd_tokenizer *t, const char *s, size_t len,
    unsigned flags, const json_t *want)
{
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	size_t i;
	int rc = dcpd_encode(t, s, len, flags, SIZE_MAX, &ids, &err);

	ck_assert_msg(rc == 0, "\"%.100s\": %s", s, err.text);
	for (i = 0; i < ids.n && i < json_array_size(want); i++)
		ck_assert_msg(ids.v[i] ==
		    json_integer_value(json_array_get(want, i)),
		    "\"%.200s\": token %zu is %u, not %lld", s, i, ids.v[i],
		    (long long)json_integer_value(json_array_get(want, i)));
	ck_assert_msg(ids.n == json_array_size(want),
	    "\"%.200s\": %zu tokens, not %zu", s, ids.n,
	    json_array_size(want));
	dcpd_ids_free(&ids);
}

static void
check_decode(const struct dcpd_tokenizer *t, const json_t *ids, bool skip,
    const json_t *want)
{
	size_t n = json_array_size(ids), i, len;
	uint32_t *v = calloc(n + 1, sizeof *v);
	char *s;

	for (i = 0; i < n; i++)
		v[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
	s = dcpd_decode(t, v, n, skip, &len);
	ck_assert_ptr_nonnull(s);
	ck_assert_msg(len == json_string_length(want) &&
	    memcmp(s, json_string_value(want), len) == 0,
	    "decoded \"%s\", not \"%s\"", s, json_string_value(want));
	free(s);
	free(v);
}

static const char *const folder[] = { "tok-glm", "tok-ds", "tok-added" };

START_TEST(golden_cases_of_the_reference_library)
{
	struct dcpd_tokenizer *t;
	json_t *root, *cases, *c;
	char path[512];
	size_t i;

	snprintf(path, sizeof path, "tests/data/tok/%s", folder[_i]);
	t = text_tokenizer(path);
	snprintf(path, sizeof path, "tests/data/tok/%s/golden.json",
	    folder[_i]);
	root = text_json(path);
	cases = json_object_get(root, "cases");
	ck_assert_uint_gt(json_array_size(cases), 100);
	json_array_foreach(cases, i, c) {
		json_t *s = json_object_get(c, "text");
		json_t *ids = json_object_get(c, "ids");

		if (s != NULL)
			check_ids(t, json_string_value(s),
			    json_string_length(s), 0, ids);
		else		/* ids that no text has: decoding only */
			ids = json_object_get(c, "ids_only");
		ck_assert(json_is_array(ids));
		check_decode(t, ids, false, json_object_get(c, "decoded"));
		check_decode(t, ids, true,
		    json_object_get(c, "decoded_skip"));
	}
	json_decref(root);
	dcpd_tokenizer_close(t);
}
END_TEST

/* The tiny model's own: prompts of its reference run. */
START_TEST(tiny_model_prompts)
{
	struct dcpd_tokenizer *t = text_tokenizer("models/dcp-tiny");
	json_t *root = text_json("models/dcp-tiny/reference.json"), *c;
	size_t i;

	ck_assert_uint_ge(json_array_size(root), 12);
	json_array_foreach(root, i, c) {
		json_t *s = json_object_get(c, "prompt");

		check_ids(t, json_string_value(s), json_string_length(s), 0,
		    json_object_get(c, "ids"));
	}
	json_decref(root);
	dcpd_tokenizer_close(t);
}
END_TEST

/* A folder of our own, gone at the end. */
static void
unxz(const char *name, const char *to)
{
	char cmd[2048];

	snprintf(cmd, sizeof cmd, "xz -dc '%s/tests/data/tok/%s' >'%s'",
	    text_srcdir(), name, to);
	ck_assert_int_eq(system(cmd), 0);
}

static void
remove_dir(const char *dir)
{
	char cmd[256];

	snprintf(cmd, sizeof cmd, "rm -r '%s'", dir);
	ck_assert_int_eq(system(cmd), 0);
}

/* 2,000 random strings: see tools/make_tok_golden.py. */
START_TEST(random_texts)
{
	char dir[] = "/tmp/t_tokenizer.XXXXXX", path[64];
	json_t *root, *texts, *all, *where, *list, *ids;
	const char *name;
	size_t i;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/random.json", dir);
	unxz("random.json.xz", path);
	root = text_json(path);
	texts = json_object_get(root, "texts");
	all = json_object_get(root, "ids");
	ck_assert_uint_eq(json_array_size(texts), 2000);
	ck_assert_uint_eq(json_object_size(all), 3);
	json_object_foreach(all, name, list) {
		struct dcpd_tokenizer *t;

		where = json_object_get(json_object_get(root, "folders"),
		    name);
		t = text_tokenizer(json_string_value(where));
		json_array_foreach(list, i, ids) {
			json_t *s = json_array_get(texts, i);

			check_ids(t, json_string_value(s),
			    json_string_length(s), 0, ids);
			check_decode(t, ids, false, s);
		}
		dcpd_tokenizer_close(t);
	}
	json_decref(root);
	remove_dir(dir);
}
END_TEST

/* The real DeepSeek-V3 tokenizer (128,000 words) and 1,400 vectors. */
START_TEST(deepseek_v3_vectors)
{
	char dir[] = "/tmp/t_tokenizer.XXXXXX", path[64], line[65536];
	struct dcpd_tokenizer *t;
	unsigned n = 0;
	double begin;
	FILE *f;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	unxz("deepseek-v3/tokenizer.json.xz", path);
	snprintf(path, sizeof path, "%s/vectors.jsonl", dir);
	unxz("deepseek-v3/vectors.jsonl.xz", path);
	begin = dcpd_now();
	t = text_tokenizer(dir);
	printf("opened in %.3f s\n", dcpd_now() - begin);
	ck_assert_int_eq(dcpd_token_id(t, "<\uff5cUser\uff5c>"), 128803);
	ck_assert_int_eq(dcpd_token_id(t, "</think>"), -1);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof line, f) != NULL) {
		json_t *c = json_loads(line, 0, NULL);
		json_t *s = json_object_get(c, "s");

		ck_assert_ptr_nonnull(c);
		check_ids(t, json_string_value(s), json_string_length(s), 0,
		    json_object_get(c, "ids"));
		json_decref(c);
		n++;
	}
	fclose(f);
	ck_assert_uint_eq(n, 1400);
	dcpd_tokenizer_close(t);
	remove_dir(dir);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("tokenizer");
	TCase *tc = tcase_create("tokenizer");
	SRunner *r;
	int bad;

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, golden_cases_of_the_reference_library, 0, 3);
	tcase_add_test(tc, random_texts);
	tcase_add_test(tc, tiny_model_prompts);
	tcase_add_test(tc, deepseek_v3_vectors);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	bad = srunner_ntests_failed(r);
	srunner_free(r);
	return bad != 0;
}
