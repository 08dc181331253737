/* safetensors: every rule of the format as a file that breaks it. */
#include "config.h"

#include <fcntl.h>

#include "dcpd/model/safetensors.h"
#include "tests/unit/st_util.h"

#define LEN(a) (int)(sizeof(a) / sizeof *(a))
#define ONE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static char dir[MU_PATH];
static struct dcpd_st *st;
static struct dcpd_err err;

static void
setup(void)
{
	mu_mkdir(dir);
	memset(&err, 0, sizeof err);
	st = NULL;
}

static void
teardown(void)
{
	dcpd_st_close(st);
	mu_rmdir(dir);
}

static void
opens(void)
{
	int rc = dcpd_st_open(dir, &st, &err);

	ck_assert_msg(rc == 0, "%s", err.text);
}

static void
refused(const char *says)
{
	int rc = dcpd_st_open(dir, &st, &err);

	ck_assert_int_lt(rc, 0);
	ck_assert_ptr_null(st);
	ck_assert_msg(strstr(err.text, says) != NULL,
	    "expected \"%s\", got: %s", says, err.text);
	ck_assert_msg(strstr(err.text, dir) != NULL, "names no file: %s",
	    err.text);
}

START_TEST(good_file)
{
	unsigned char b[24];

	su_raw(dir, ONE, "{\"__metadata__\":{\"format\":\"pt\"},"
	    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
	    "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
	    "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],"
	    "\"data_offsets\":[28,32]},"
	    "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],"
	    "\"data_offsets\":[4,4]},"
	    "\"empty2\":{\"dtype\":\"F4\",\"shape\":[0],"
	    "\"data_offsets\":[4,4]},"
	    "\"half\":{\"dtype\":\"F4\",\"shape\":[2],"
	    "\"data_offsets\":[32,33]}}   ", 33);
	opens();
	ck_assert_uint_eq(st->n_tensors, 6);
	ck_assert_ptr_null(dcpd_st_find(st, "c"));
	ck_assert_uint_eq(dcpd_st_find(st, "scalar")->rank, 0);
	ck_assert_uint_eq(dcpd_st_find(st, "b")->shape[1], 3);
	ck_assert_int_eq(dcpd_st_read(st, dcpd_st_find(st, "b"), 0, 24, b,
	    &err), 0);
	ck_assert_int_eq(b[0], 4);
	ck_assert_int_eq(b[23], 27);
	ck_assert_int_eq(dcpd_st_read(st, dcpd_st_find(st, "b"), 20, 4, b,
	    &err), 0);
	ck_assert_int_eq(b[0], 24);
	ck_assert_int_eq(dcpd_st_has_prefix(dir, "sca"), 1);
	ck_assert_int_eq(dcpd_st_has_prefix(dir, "scb"), 0);
}
END_TEST

#define T(dtype, shape, offs) "{\"dtype\":\"" dtype "\",\"shape\":" shape \
	",\"data_offsets\":" offs "}"

/* Header, bytes of data, words of the refusal. */
static const struct bad {
	const char *header;
	size_t data;
	const char *says;
} bad[] = {
	{ "[]", 0, "does not start with '{'" },
	{ " {}", 0, "does not start with '{'" },
	{ "{", 0, "bad JSON" },
	{ "{}x", 0, "bad JSON" },
	{ "{\"a\xff\":1}", 0, "bad JSON" },
	{ "{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]",
	    "[4,8]") "}", 8, "duplicate" },
	/* the same key once its escape is undone */
	{ "{\"a\":" T("F32", "[1]", "[0,4]") ",\"\\u0061\":" T("F32", "[1]",
	    "[4,8]") "}", 8, "duplicate" },
	{ "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],"
	  "\"data_offsets\":[0,4]}}", 4, "duplicate" },
	{ "{\"__metadata__\":{\"a\":1}}", 0, "strings to strings" },
	{ "{\"__metadata__\":\"x\"}", 0, "__metadata__ must be an object" },
	{ "{\"a\":7}", 0, "\"a\": must be an object" },
	{ "{\"a\":{}}", 0, "\"a\": dtype" },
	{ "{\"a\":" T("F33", "[1]", "[0,4]") "}", 4,
	  "\"a\": dtype F33 is not known" },
	{ "{\"a\":" T("F32", "1", "[0,4]") "}", 4, "shape must be a list" },
	{ "{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4,
	  "at most 8" },
	{ "{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, "shape must hold" },
	{ "{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, "shape must hold" },
	{ "{\"a\":" T("F32", "[\"1\"]", "[0,4]") "}", 4, "shape must hold" },
	{ "{\"a\":" T("F32", "[9223372036854775808]", "[0,4]") "}", 4,
	  "bad JSON" },
	{ "{\"a\":" T("F32", "[1]", "[0]") "}", 4, "data_offsets must" },
	{ "{\"a\":" T("F32", "[1]", "[0,4,4]") "}", 4, "data_offsets must" },
	{ "{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, "data_offsets must" },
	{ "{\"a\":" T("F32", "[1]", "[0,4.0]") "}", 4, "data_offsets must" },
	{ "{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, "end before they start" },
	{ "{\"a\":" T("F32", "[4294967296,4294967296]", "[0,4]") "}", 4,
	  "overflows" },
	/* 2^60 elements fit 64 bits, their bits do not */
	{ "{\"a\":" T("F32", "[1152921504606846976]", "[0,4]") "}", 4,
	  "overflows" },
	{ "{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "whole bytes" },
	{ "{\"a\":" T("F6_E2M3", "[2]", "[0,1]") "}", 1, "whole bytes" },
	{ "{\"a\":" T("F32", "[2]", "[0,4]") "}", 4,
	  "[2] of F32 takes 8 bytes, data_offsets give 4" },
	{ "{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "a hole" },
	{ "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]",
	    "[8,12]") "}", 12, "\"b\" starts at 8" },
	{ "{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[1]",
	    "[4,8]") "}", 8, "an overlap" },
	{ "{\"a\":" T("F32", "[2]", "[0,8]") "}", 7, "cut short" },
	{ "{\"a\":" T("F32", "[2]", "[0,8]") "}", 9, "longer than" },
	{ "{\"a\":" T("F32", "[2]", "[0,9223372036854775807]") "}", 8,
	  "takes 8 bytes" },
	{ "{}", 1, "longer than" },
};

START_TEST(each_rule_of_the_format)
{
	su_raw(dir, ONE, bad[_i].header, bad[_i].data);
	refused(bad[_i].says);
}
END_TEST

START_TEST(long_names_and_deep_json)
{
	char *header = malloc(3000);

	snprintf(header, 3000, "{\"%0600d\":" T("F32", "[1]", "[0,4]") "}", 0);
	su_raw(dir, ONE, header, 4);
	refused("name longer than 512");
	memset(header, '[', 100);
	memcpy(header, "{\"a\":", 5);
	header[100] = '\0';
	su_raw(dir, ONE, header, 0);
	refused("nested deeper");
	free(header);
}
END_TEST

/* The eight length bytes, against the file's size. */
START_TEST(length_bytes)
{
	static const struct {
		const char *bytes;
		size_t n;
		const char *says;
	} c[] = {
		{ "", 0, "too few" }, { "\1\0\0\0\0\0\0", 7, "too few" },
		/* 100,000,001 and 2^64-1 */
		{ "\x01\xe1\xf5\x05\0\0\0\0{}", 10, "100000001 bytes" },
		{ "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "not a safe" },
		{ "\x03\0\0\0\0\0\0\0{}", 10, "cut short" },
		/* the largest legal header, in a small file */
		{ "\x00\xe1\xf5\x05\0\0\0\0{}", 10, "cut short" },
		{ "\0\0\0\0\0\0\0\0", 8, "does not start" },
	};
	int i;

	for (i = 0; i < LEN(c); i++) {
		mu_write(dir, ONE, c[i].bytes, c[i].n);
		refused(c[i].says);
	}
}
END_TEST

/* A file cut while it is open is an error, not a signal. */
START_TEST(file_cut_after_open)
{
	char path[MU_PATH + 20];
	unsigned char b[8];

	su_raw(dir, ONE, "{\"a\":" T("F32", "[2]", "[0,8]") "}", 8);
	opens();
	snprintf(path, sizeof path, "%s/" ONE, dir);
	ck_assert_int_eq(truncate(path, 12), 0);
	ck_assert_int_eq(dcpd_st_read(st, dcpd_st_find(st, "a"), 0, 8, b,
	    &err), -EIO);
	ck_assert_ptr_nonnull(strstr(err.text, "do not change files"));
	ck_assert_ptr_nonnull(strstr(err.text, ONE));
}
END_TEST

START_TEST(not_a_file)
{
	char path[MU_PATH + 20];

	refused("neither model.safetensors nor");
	snprintf(path, sizeof path, "%s/" ONE, dir);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	refused("not a regular file");
	ck_assert_int_eq(rmdir(path), 0);
	/* must not hang on a pipe that nobody writes */
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refused("not a regular file");
	ck_assert_int_eq(unlink(path), 0);
}
END_TEST

/* --- shards -------------------------------------------------------------- */

static void
two_shards(void)
{
	su_raw(dir, "s1.safetensors", "{\"a\":" T("F32", "[1]", "[0,4]") "}",
	    4);
	su_raw(dir, "s2.safetensors", "{\"b\":" T("F32", "[1]", "[0,4]") "}",
	    4);
}

static void
index_file(const char *map)
{
	char text[1000];

	snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1},"
	    "\"weight_map\":%s}", map);
	mu_write(dir, INDEX, text, strlen(text));
}

START_TEST(good_shards)
{
	two_shards();
	index_file("{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}");
	opens();
	ck_assert_uint_eq(st->n_tensors, 2);
	ck_assert_uint_eq(st->n_files, 2);
	ck_assert_int_eq(dcpd_st_has_prefix(dir, "b"), 1);
	ck_assert_int_eq(dcpd_st_has_prefix(dir, "c"), 0);
}
END_TEST

static const struct {
	const char *map, *says;
} bad_map[] = {
	{ "[]", "missing or empty" },
	{ "{}", "missing or empty" },
	{ "{\"a\":7}", "\"a\" must map to a file" },
	{ "{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}", "duplicate" },
	{ "{\"a\":\"../s1.safetensors\"}", "plain name" },
	{ "{\"a\":\"/etc/s1.safetensors\"}", "plain name" },
	{ "{\"a\":\"x/s1.safetensors\"}", "plain name" },
	{ "{\"a\":\"..\"}", "plain name" },
	{ "{\"a\":\"\"}", "plain name" },
	{ "{\"a\":\".safetensors\"}", "plain name" },
	{ "{\"a\":\"passwd\"}", "end in .safetensors" },
	{ "{\"a\":\"s3.safetensors\"}", "fetch the missing file" },
	{ "{\"c\":\"s1.safetensors\"}", "\"c\" is not in s1.safetensors" },
	{ "{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}",
	  "\"b\" is not in s1.safetensors" },
	{ "{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}",
	  "it is in s" },
};

START_TEST(each_rule_of_the_index)
{
	two_shards();
	index_file(bad_map[_i].map);
	refused(bad_map[_i].says);
}
END_TEST

START_TEST(one_tensor_in_two_shards)
{
	two_shards();
	su_raw(dir, "s2.safetensors", "{\"b\":" T("F32", "[1]", "[0,4]")
	    ",\"a\":" T("F32", "[1]", "[4,8]") "}", 8);
	index_file("{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}");
	refused("is in two files");
}
END_TEST

/* Links may not leave the folder, but for the hub cache's ../../blobs. */
START_TEST(links_of_shards)
{
	static const char map[] =
	    "{\"weight_map\":{\"a\":\"s1.safetensors\"}}";
	char snap[MU_PATH + 40], path[MU_PATH + 80], blob[MU_PATH + 40];
	char up[MU_PATH + 40], out[MU_PATH];

	mu_mkdir(out);
	su_raw(out, "x.safetensors", "{\"a\":" T("F32", "[1]", "[0,4]") "}",
	    4);
	snprintf(blob, sizeof blob, "%s/x.safetensors", out);
	snprintf(path, sizeof path, "%s/s1.safetensors", dir);
	ck_assert_int_eq(symlink(blob, path), 0);
	index_file("{\"a\":\"s1.safetensors\"}");
	refused("leaves the model's folder");
	mu_rmdir(out);

	snprintf(up, sizeof up, "%s/snapshots", dir);
	snprintf(snap, sizeof snap, "%s/snapshots/rev", dir);
	snprintf(blob, sizeof blob, "%s/blobs", dir);
	ck_assert_int_eq(mkdir(up, 0700) + mkdir(snap, 0700) +
	    mkdir(blob, 0700), 0);
	su_raw(blob, "0123", "{\"a\":" T("F32", "[1]", "[0,4]") "}", 4);
	snprintf(path, sizeof path, "%s/s1.safetensors", snap);
	ck_assert_int_eq(symlink("../../blobs/0123", path), 0);
	mu_write(snap, INDEX, map, strlen(map));
	ck_assert_msg(dcpd_st_open(snap, &st, &err) == 0, "%s", err.text);
	dcpd_st_close(st);
	st = NULL;
	mu_rmdir(snap);
	mu_rmdir(blob);
	ck_assert_int_eq(rmdir(up), 0);
}
END_TEST

/* Every byte of a header changed: refused or read, never a crash. */
START_TEST(changed_bytes_never_crash)
{
	static const char good[] = "{\"a\":" T("F32", "[2]", "[0,8]")
	    ",\"b\":" T("F4", "[1,4]", "[8,10]") "}";
	struct dcpd_st_tensor *t = NULL;
	char h[sizeof good];
	uint32_t n, i, c, ok = 0, no = 0;

	for (i = 0; i < sizeof good - 1; i++) {
		for (c = 0; c < 256; c++) {
			memcpy(h, good, sizeof good);
			h[i] = (char)c;
			if (dcpd_st_parse("x", h, sizeof good - 1,
			    8 + sizeof good - 1 + 10, &t, &n, NULL) != 0) {
				no++;
				continue;
			}
			ck_assert_uint_le(n, 2);
			dcpd_st_tensors_free(t, n);
			ok++;
		}
	}
	ck_assert_uint_gt(ok, 100);
	ck_assert_uint_gt(no, 10000);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("safetensors");
	TCase *t = tcase_create("safetensors");
	SRunner *r;
	int failed;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, good_file);
	tcase_add_loop_test(t, each_rule_of_the_format, 0, LEN(bad));
	tcase_add_test(t, long_names_and_deep_json);
	tcase_add_test(t, length_bytes);
	tcase_add_test(t, file_cut_after_open);
	tcase_add_test(t, not_a_file);
	tcase_add_test(t, good_shards);
	tcase_add_loop_test(t, each_rule_of_the_index, 0, LEN(bad_map));
	tcase_add_test(t, one_tensor_in_two_shards);
	tcase_add_test(t, links_of_shards);
	tcase_add_test(t, changed_bytes_never_crash);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
