/*
 * Tokenizer: ids and texts equal those of huggingface/tokenizers on every
 * golden case, and what cannot be read is refused with a reason.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
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

/* Random strings, and long runs: see tools/make_tok_golden.py. */
static const struct { const char *file; size_t n; } texts_of[] = {
	{ "random.json.xz", 2000 }, { "runs.json.xz", 176 },
};

START_TEST(random_texts_and_long_runs_as_the_reference)
{
	char dir[] = "/tmp/t_tokenizer.XXXXXX", path[64];
	json_t *root, *texts, *all, *where, *list, *ids;
	const char *name;
	size_t i;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/random.json", dir);
	unxz(texts_of[_i].file, path);
	root = text_json(path);
	texts = json_object_get(root, "texts");
	all = json_object_get(root, "ids");
	ck_assert_uint_eq(json_array_size(texts), texts_of[_i].n);
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

/* Speed on mixed text and on the worst for merging: printed, not judged. */
static void
time_megabyte(const struct dcpd_tokenizer *t, const char *path)
{
	const size_t size = 1 << 20;
	struct dcpd_err err = { 0 };
	char *file = NULL, *s = malloc(size);
	double begin;
	size_t i, len;

	ck_assert_int_eq(dcpd_read_file(path, size, &file, &len, &err), 0);
	for (i = 0; i < 2; i++) {
		struct dcpd_ids ids = { 0 };
		size_t n = 0;

		while (i == 0 && n + len <= size) {
			memcpy(s + n, file, len);
			n += len;
		}
		if (i == 1)
			memset(s, 'a', n = size);
		begin = dcpd_now();
		ck_assert_msg(dcpd_encode(t, s, n, 0, SIZE_MAX, &ids, &err) ==
		    0, "%s", err.text);
		printf("%zu bytes %s: %zu tokens in %.3f s\n", n,
		    i == 0 ? "mixed" : "of \"a\"", ids.n, dcpd_now() - begin);
		dcpd_ids_free(&ids);
	}
	free(file);
	free(s);
}

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
	time_megabyte(t, path);
	dcpd_tokenizer_close(t);
	remove_dir(dir);
}
END_TEST

static void *
encode_cases(void *arg)
{
	json_t *root = text_json("tests/data/tok/tok-added/golden.json"), *c;
	size_t i;

	json_array_foreach(json_object_get(root, "cases"), i, c) {
		json_t *s = json_object_get(c, "text");

		check_ids(arg, json_string_value(s), json_string_length(s), 0,
		    json_object_get(c, "ids"));
	}
	json_decref(root);
	return NULL;
}

START_TEST(threads_share_a_tokenizer)
{
	struct dcpd_tokenizer *t = text_tokenizer("tests/data/tok/tok-added");
	pthread_t thread[3];
	unsigned i;

	for (i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL,
		    encode_cases, t), 0);
	for (i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	dcpd_tokenizer_close(t);
}
END_TEST

/* --- bounds and bad input --------------------------------------------- */

START_TEST(text_that_is_not_utf8_is_refused_with_its_place)
{
	static const struct { const char *s; size_t n, at; } bad[] = {
		{ "ab\xff", 3, 2 }, { "\x80", 1, 0 }, { "a\xc3", 2, 1 },
		{ "\xc0\x80", 2, 0 },		/* overlong */
		{ "\xed\xa0\x80", 3, 0 },	/* a surrogate */
		{ "\xf4\x90\x80\x80", 4, 0 },	/* above U+10FFFF */
		{ "\xe2\x82", 2, 0 },
	};
	struct dcpd_tokenizer *t = text_tokenizer("models/dcp-tiny");
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err;
	char want[64];
	size_t i;

	ck_assert_int_eq(dcpd_ids_push(&ids, 7), 0);
	for (i = 0; i < sizeof bad / sizeof *bad; i++) {
		err = (struct dcpd_err){ 0 };
		ck_assert_int_eq(dcpd_encode(t, bad[i].s, bad[i].n, 0,
		    SIZE_MAX, &ids, &err), -EILSEQ);
		snprintf(want, sizeof want, "not UTF-8 at byte %zu",
		    bad[i].at);
		ck_assert_ptr_nonnull(strstr(err.text, want));
		ck_assert_uint_eq(ids.n, 1);	/* untouched */
	}
	/* A NUL is a character like others. */
	ck_assert_int_eq(dcpd_encode(t, "a\0b", 3, 0, SIZE_MAX, &ids, &err),
	    0);
	ck_assert_uint_eq(ids.n, 4);
	/* Surrogates cannot come in through JSON either. */
	ck_assert_ptr_null(json_loads("[\"\\ud83d\"]", 0, NULL));
	ck_assert_ptr_null(json_loads("[\"\\ude00\\ud83d\"]", 0, NULL));
	dcpd_ids_free(&ids);
	dcpd_tokenizer_close(t);
}
END_TEST

START_TEST(decoding_marks_broken_text)
{
	struct dcpd_tokenizer *t = text_tokenizer("models/dcp-tiny");
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	size_t len;
	char *s;

	/* The first two bytes of a euro sign, then a letter, then the first. */
	ck_assert_int_eq(dcpd_encode(t, "\u20ac", 3, 0, SIZE_MAX, &ids, &err),
	    0);
	ck_assert_uint_eq(ids.n, 3);
	ids.n = 2;
	ck_assert_int_eq(dcpd_encode(t, "a", 1, 0, SIZE_MAX, &ids, &err), 0);
	ck_assert_int_eq(dcpd_ids_push(&ids, ids.v[0]), 0);
	ck_assert_int_eq(dcpd_ids_push(&ids, 1u << 31), 0);	/* no token */
	s = dcpd_decode(t, ids.v, ids.n, false, &len);
	ck_assert_str_eq(s, "\ufffda\ufffd");
	ck_assert_uint_eq(len, 7);
	free(s);
	dcpd_ids_free(&ids);
	dcpd_tokenizer_close(t);
}
END_TEST

START_TEST(tokens_by_content_and_id)
{
	struct dcpd_tokenizer *t = text_tokenizer("tests/data/tok/tok-glm");
	const char *b = NULL;
	size_t n = 0;
	bool special = false;

	ck_assert_int_eq(dcpd_token_id(t, "<|user|>"), 397);
	ck_assert_int_eq(dcpd_token_id(t, "!"), 0);
	ck_assert_int_eq(dcpd_token_id(t, " "), 220);
	ck_assert_int_eq(dcpd_token_id(t, "<nothing>"), -1);
	ck_assert_int_eq(dcpd_token_bytes(t, 397, &b, &n, &special), 0);
	ck_assert_uint_eq(n, 8);
	ck_assert_int_eq(memcmp(b, "<|user|>", n), 0);
	ck_assert(special);
	ck_assert_int_eq(dcpd_token_bytes(t, 411, &b, &n, &special), 0);
	ck_assert(!special);		/* <think> is added, not special */
	ck_assert_int_eq(dcpd_token_bytes(t, dcpd_token_limit(t), &b, &n,
	    &special), -ENOENT);
	dcpd_tokenizer_close(t);
}
END_TEST

START_TEST(plain_text_matches_no_added_token)
{
	struct dcpd_tokenizer *t = text_tokenizer("tests/data/tok/tok-glm");
	static const char s[] = "a<|user|><think>";
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	size_t i;
	char *d;

	ck_assert_int_eq(dcpd_encode(t, s, sizeof s - 1, DCPD_PLAIN, SIZE_MAX,
	    &ids, &err), 0);
	for (i = 0; i < ids.n; i++)
		ck_assert_uint_lt(ids.v[i], 390);
	d = dcpd_decode(t, ids.v, ids.n, true, NULL);
	ck_assert_str_eq(d, s);
	free(d);
	dcpd_ids_free(&ids);
	dcpd_tokenizer_close(t);
}
END_TEST

START_TEST(too_many_tokens_are_refused)
{
	struct dcpd_tokenizer *t = text_tokenizer("models/dcp-tiny");
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };

	ck_assert_int_eq(dcpd_ids_push(&ids, 1), 0);
	ck_assert_int_eq(dcpd_encode(t, "0123456789", 10, 0, 10, &ids, &err),
	    0);
	ck_assert_uint_eq(ids.n, 11);
	ids.n = 1;
	ck_assert_int_eq(dcpd_encode(t, "0123456789", 10, 0, 9, &ids, &err),
	    -E2BIG);
	ck_assert_uint_eq(ids.n, 1);
	ck_assert_ptr_nonnull(strstr(err.text, "tokens"));
	dcpd_ids_free(&ids);
	dcpd_tokenizer_close(t);
}
END_TEST

/* Runs without a break must neither take long nor overflow a stack. */
START_TEST(long_runs)
{
	static const char *const unit[] = { "a", " ", "\n", " \n", "1",
		"\u00e9", "'", "\t x", "\u3000",
		"<", "<|user", "!a", "ab cd, 12\n" };
	const size_t size = 1000000;
	struct dcpd_tokenizer *t = text_tokenizer(_i == 0 ?
	    "tests/data/tok/tok-glm" : "tests/data/tok/tok-ds");
	char *s = malloc(size + 16), *d;
	size_t i, n, len;

	for (i = 0; i < sizeof unit / sizeof *unit; i++) {
		struct dcpd_ids ids = { 0 };
		struct dcpd_err err = { 0 };
		double begin = dcpd_now();

		len = strlen(unit[i]);
		for (n = 0; n < size; n += len)
			memcpy(s + n, unit[i], len);
		ck_assert_msg(dcpd_encode(t, s, n, 0, SIZE_MAX, &ids, &err) ==
		    0, "1 MB of \"%s\": %s", unit[i], err.text);
		printf("1 MB of \"%s\": %zu tokens in %.3f s\n",
		    unit[i][0] < ' ' ? "\\.." : unit[i], ids.n,
		    dcpd_now() - begin);
		d = dcpd_decode(t, ids.v, ids.n, false, &len);
		ck_assert_uint_eq(len, n);
		ck_assert_int_eq(memcmp(d, s, n), 0);
		free(d);
		dcpd_ids_free(&ids);
	}
	free(s);
	dcpd_tokenizer_close(t);
}
END_TEST

START_TEST(a_word_beyond_the_bound_is_refused)
{
	struct dcpd_tokenizer *t = text_tokenizer("tests/data/tok/tok-glm");
	const size_t n = (1u << 20) + 1;
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	char *s = malloc(n + 2);

	memset(s, 'a', n + 2);
	s[0] = '1';
	ck_assert_int_eq(dcpd_encode(t, s, n + 1, 0, SIZE_MAX, &ids, &err),
	    -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "without a break at byte 1;"));
	ck_assert_int_eq(dcpd_encode(t, s, n, 0, SIZE_MAX, &ids, &err), 0);
	free(s);
	dcpd_ids_free(&ids);
	dcpd_tokenizer_close(t);
}
END_TEST

/* --- bad files -------------------------------------------------------- */

#define BAD(set, reason) { set, reason }
/* Each changes one thing of a good file: path/in/it = JSON, or - to remove. */
static const struct { const char *set, *why; } bad_file[] = {
	BAD("model=-", "\"model\" is missing"),
	BAD("model/type=\"WordPiece\"", "model.type is \"WordPiece\""),
	BAD("model/dropout=0.1", "model.dropout"),
	BAD("model/byte_fallback=true", "byte_fallback"),
	BAD("model/continuing_subword_prefix=\"##\"",
	    "continuing_subword_prefix"),
	BAD("model/vocab=-", "model.vocab is missing"),
	BAD("model/vocab={}", "model.vocab is missing or empty"),
	BAD("model/vocab/!=-", "no token for the byte 0x21"),
	BAD("model/vocab/!=-1", "\"!\" has no id"),
	BAD("model/vocab/!=\"0\"", "\"!\" has no id"),
	BAD("model/vocab/!=4194304", "from 0 to 4194303"),
	BAD("model/vocab/!=1", "id 1 of another token"),
	BAD("model/merges=-", "model.merges is missing"),
	BAD("model/merges/0=\"a\"", "model.merges[0] is neither"),
	BAD("model/merges/0=\"a b c\"", "model.merges[0] is neither"),
	BAD("model/merges/1=[\"a\"]", "model.merges[1] is neither"),
	BAD("model/merges/1=[\"\",\"a\"]", "model.merges[1] is neither"),
	BAD("model/merges/2=[\"z\",\"q\"]", "model.merges[2]: \"z\" + \"q\""),
	BAD("normalizer={\"type\":\"NFC\"}", "normalizer \"NFC\""),
	BAD("post_processor={\"type\":\"TemplateProcessing\"}",
	    "post_processor \"TemplateProcessing\""),
	BAD("decoder=null", "decoder is \"(no type)\""),
	BAD("pre_tokenizer=null", "pre_tokenizer 0 is \"(no type)\""),
	BAD("pre_tokenizer/pretokenizers/1=-", "pre_tokenizer 0 is \"Split\""),
	BAD("pre_tokenizer/pretokenizers=[]", "does not end with ByteLevel"),
	BAD("pre_tokenizer/pretokenizers/1/use_regex=true",
	    "use_regex must be false"),
	BAD("pre_tokenizer/pretokenizers/1/add_prefix_space=true",
	    "add_prefix_space"),
	BAD("pre_tokenizer/pretokenizers/0/behavior=\"Removed\"", "Isolated"),
	BAD("pre_tokenizer/pretokenizers/0/invert=true", "not inverted"),
	BAD("pre_tokenizer/pretokenizers/0/pattern={\"String\":\" \"}",
	    "only a \"Regex\" pattern"),
	BAD("pre_tokenizer/pretokenizers/0/pattern/Regex=\"(a\"",
	    "its expression: missing closing parenthesis"),
	BAD("pre_tokenizer/pretokenizers/0/pattern/Regex=\"[a&&b]\"",
	    "a set operation"),
	BAD("pre_tokenizer/pretokenizers/0/pattern/Regex=\"[a[b]]\"",
	    "a set operation"),
	BAD("pre_tokenizer/pretokenizers/0/pattern/Regex=\"\\\\h\"",
	    "\\h is not supported"),
	BAD("pre_tokenizer/pretokenizers/0/pattern/Regex=\"[\\\\S]\"",
	    "\\S inside"),
	BAD("pre_tokenizer/pretokenizers/0/pattern/Regex=\"\\\\\"",
	    "lone backslash"),
	BAD("added_tokens={}", "added_tokens is not a list"),
	BAD("added_tokens/0=5", "added_tokens[0]"),
	BAD("added_tokens/0/id=-", "added_tokens[0]"),
	BAD("added_tokens/0/id=0", "added_tokens[0]: \"<|endoftext|>\" has the "
	    "id 0 of another token"),
	BAD("added_tokens/1/content=\"!\"", "has id 391 here and 0 in"),
};

static json_t *
step_into(json_t *v, const char *key)
{
	return json_is_array(v) ? json_array_get(v, (size_t)atoi(key)) :
	    json_object_get(v, key);
}

static void
change(json_t *root, const char *set)
{
	char buf[256], *value, *key, *next;
	json_t *at = root, *v;

	snprintf(buf, sizeof buf, "%s", set);
	value = strchr(buf, '=');
	*value++ = '\0';
	for (key = buf; (next = strchr(key, '/')) != NULL; key = next + 1) {
		*next = '\0';
		at = step_into(at, key);
		ck_assert_msg(at != NULL, "%s: no %s", set, key);
	}
	if (strcmp(value, "-") == 0) {
		if (json_is_array(at))
			json_array_remove(at, (size_t)atoi(key));
		else
			json_object_del(at, key);
		return;
	}
	v = json_loads(value, JSON_DECODE_ANY, NULL);
	ck_assert_msg(v != NULL, "%s", value);
	if (json_is_array(at))
		json_array_set_new(at, (size_t)atoi(key), v);
	else
		json_object_set_new(at, key, v);
}

static void
open_fails(const char *dir, int code, const char *why)
{
	struct dcpd_tokenizer *t = NULL;
	struct dcpd_err err = { 0 };
	int rc = dcpd_tokenizer_open(dir, &t, &err);

	ck_assert_msg(rc == code, "%s: %d %s", why, rc, err.text);
	ck_assert_int_eq(err.code, code);
	ck_assert_ptr_null(t);
	ck_assert_msg(strstr(err.text, "tokenizer.json: ") != NULL, "%s",
	    err.text);
	ck_assert_msg(strstr(err.text, why) != NULL, "\"%s\" lacks \"%s\"",
	    err.text, why);
}

START_TEST(what_a_file_must_not_have)
{
	char dir[] = "/tmp/t_tokenizer.XXXXXX", path[64];
	json_t *root = text_json("tests/data/tok/tok-glm/tokenizer.json");

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	change(root, bad_file[_i].set);
	ck_assert_int_eq(json_dump_file(root, path, 0), 0);
	open_fails(dir, -EINVAL, bad_file[_i].why);
	json_decref(root);
	remove_dir(dir);
}
END_TEST

static void
put(const char *path, const char *s, size_t n)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(s, 1, n, f), n);
	fclose(f);
}

START_TEST(what_is_no_file_at_all)
{
	char dir[] = "/tmp/t_tokenizer.XXXXXX", path[64];

	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	open_fails(dir, -ENOENT, "No such file");
	put(path, "", 0);
	open_fails(dir, -EINVAL, "line 1");
	put(path, "{\n\n oops}", 9);
	open_fails(dir, -EINVAL, "line 3");
	put(path, "[]", 2);
	open_fails(dir, -EINVAL, "not a JSON object");
	put(path, "{\"a\": 1, \"a\": 2}", 16);
	open_fails(dir, -EINVAL, "duplicate");
	put(path, "{\"a\": \"\xff\"}", 10);
	open_fails(dir, -EINVAL, "unable to decode byte 0xff");
	ck_assert_int_eq(truncate(path, (off_t)200 << 20), 0);
	open_fails(dir, -EFBIG, "more than the");
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
	tcase_add_loop_test(tc, random_texts_and_long_runs_as_the_reference,
	    0, 2);
	tcase_add_test(tc, tiny_model_prompts);
	tcase_add_test(tc, deepseek_v3_vectors);
	tcase_add_test(tc, threads_share_a_tokenizer);
	tcase_add_test(tc, text_that_is_not_utf8_is_refused_with_its_place);
	tcase_add_test(tc, decoding_marks_broken_text);
	tcase_add_test(tc, tokens_by_content_and_id);
	tcase_add_test(tc, plain_text_matches_no_added_token);
	tcase_add_test(tc, too_many_tokens_are_refused);
	tcase_add_loop_test(tc, long_runs, 0, 2);
	tcase_add_test(tc, a_word_beyond_the_bound_is_refused);
	tcase_add_loop_test(tc, what_a_file_must_not_have, 0,
	    sizeof bad_file / sizeof *bad_file);
	tcase_add_test(tc, what_is_no_file_at_all);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	bad = srunner_ntests_failed(r);
	srunner_free(r);
	return bad != 0;
}
