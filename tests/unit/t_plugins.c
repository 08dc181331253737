/*
 * Which plugins the flags and the configuration file ask for, and with what
 * configuration.
 */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/plugin/plugin.h"

static char path[] = "/tmp/t_plugins.XXXXXX";

/* The options of `flags`, with `file` as --config if it is not NULL. */
static int
parse(const char *flags, const char *file, struct dcpd_options *o,
    struct dcpd_err *err)
{
	char line[400], *argv[40], *save;
	int argc = 0;
	FILE *f;

	snprintf(line, sizeof line, "dcpd --engine null %s", flags);
	for (char *w = strtok_r(line, " ", &save); w != NULL;
	    w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	if (file != NULL) {
		f = fopen(path, "w");
		ck_assert_ptr_nonnull(f);
		fputs(file, f);
		fclose(f);
		argv[argc++] = "--config";
		argv[argc++] = path;
	}
	argv[argc] = NULL;
	return dcpd_options_parse(argc, argv, o, err);
}

/* The whole, in its order, as text. */
static void
want(const char *flags, const char *file, const char *expected)
{
	struct dcpd_options o;
	struct dcpd_err err = { 0 };
	json_t *all = NULL;
	char *text;

	ck_assert_msg(parse(flags, file, &o, &err) == 0, "%s", err.text);
	ck_assert_msg(dcpd_plugins_config(&o, &all, &err) == 0, "%s: %s",
	    flags, err.text);
	text = json_dumps(all, JSON_COMPACT);
	ck_assert_str_eq(text, expected);
	free(text);
	json_decref(all);
	dcpd_options_free(&o);
}

/* Refused, by a text with that word in it; nothing comes out. */
static void
refused(const char *flags, const char *file, const char *word)
{
	struct dcpd_options o;
	struct dcpd_err err = { 0 };
	json_t *all = NULL;

	if (parse(flags, file, &o, &err) == 0) {
		ck_assert_msg(dcpd_plugins_config(&o, &all, &err) != 0,
		    "%s: taken", flags);
		ck_assert_ptr_null(all);
		dcpd_options_free(&o);
	}
	ck_assert_msg(strstr(err.text, word) != NULL, "%s: no \"%s\" in: %s",
	    flags, word, err.text);
}

START_TEST(none_by_default)
{
	want("", NULL, "{}");
	want("", "{\"plugins\": {}}", "{}");
}
END_TEST

START_TEST(by_name)
{
	want("--plugins b,a", NULL, "{\"b\":{},\"a\":{}}");
	want("--plugins a,a", NULL, "{\"a\":{}}");
	want("--plugins b", "{\"plugins\": {\"a\": {\"k\": 1}, \"b\": "
	    "{\"k\": [2]}}}", "{\"b\":{\"k\":[2]},\"a\":{\"k\":1}}");
	want("", "{\"plugins\": {\"a-1_x\": {}}}", "{\"a-1_x\":{}}");
	refused("--plugins a,,b", NULL, "is no plugin's name");
	refused("--plugins ../a", NULL, "is no plugin's name");
	refused("--plugins A", NULL, "is no plugin's name");
	refused("", "{\"plugins\": {\"a/b\": {}}}", "is no plugin's name");
	refused("", "{\"plugins\": {\"\": {}}}", "is no plugin's name");
	refused("", "{\"plugins\": {\"a\": 1}}", "want an object");
	refused("", "{\"plugins\": [\"a\"]}", "want an object");
	refused("--plugins a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", NULL,
	    "more than 16");
	want("--plugins a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p", NULL,
	    "{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{},\"f\":{},\"g\":{},"
	    "\"h\":{},\"i\":{},\"j\":{},\"k\":{},\"l\":{},\"m\":{},\"n\":{},"
	    "\"o\":{},\"p\":{}}");
}
END_TEST

START_TEST(names)
{
	char longest[64], longer[65];

	memset(longest, 'a', 63);
	longest[63] = '\0';
	memset(longer, 'a', 64);
	longer[64] = '\0';
	ck_assert(dcpd_plugin_name_ok("http"));
	ck_assert(dcpd_plugin_name_ok("a-b_9"));
	ck_assert(dcpd_plugin_name_ok(longest));
	ck_assert(!dcpd_plugin_name_ok(longer));
	ck_assert(!dcpd_plugin_name_ok(""));
	ck_assert(!dcpd_plugin_name_ok("."));
	ck_assert(!dcpd_plugin_name_ok("a/b"));
	ck_assert(!dcpd_plugin_name_ok("a.so"));
	ck_assert(!dcpd_plugin_name_ok("\xc3\xa9"));
}
END_TEST

START_TEST(by_flags)
{
	want("--http 0.0.0.0:80", NULL,
	    "{\"http\":{\"listen\":[\"0.0.0.0:80\"]}}");
	want("--http unix:/a,systemd", NULL,
	    "{\"http\":{\"listen\":[\"unix:/a\",\"systemd\"]}}");
	want("--port 8000", NULL,
	    "{\"http\":{\"listen\":[\"127.0.0.1:8000\"]}}");
	want("--port 8000 --host ::1", NULL,
	    "{\"http\":{\"listen\":[\"[::1]:8000\"]}}");
	want("--port 8000 --host [::1]", NULL,
	    "{\"http\":{\"listen\":[\"[::1]:8000\"]}}");
	want("--port 0 --host x.example --api-key-file /k "
	    "--served-model-name n", NULL, "{\"http\":{\"listen\":"
	    "[\"x.example:0\"],\"api_key_file\":\"/k\","
	    "\"served_model_name\":\"n\"}}");
	want("--unix /u", NULL, "{\"unix\":{\"listen\":[\"/u\"]}}");
	/* The command line goes before the file. */
	want("--unix /u", "{\"plugins\": {\"unix\": {\"listen\": [\"/f\"], "
	    "\"mode\": \"0600\"}}}",
	    "{\"unix\":{\"listen\":[\"/u\"],\"mode\":\"0600\"}}");
	want("", "{\"unix\": \"/f\", \"port\": 81}",
	    "{\"http\":{\"listen\":[\"127.0.0.1:81\"]},"
	    "\"unix\":{\"listen\":[\"/f\"]}}");
	/* --plugins says the order. */
	want("--plugins unix,http --port 1 --unix /u", NULL,
	    "{\"unix\":{\"listen\":[\"/u\"]},"
	    "\"http\":{\"listen\":[\"127.0.0.1:1\"]}}");
	refused("", "{\"unix\": \"/f\", \"plugins\": {\"unix\": {\"listen\": "
	    "[\"/g\"]}}}", "leave one out");
	refused("--port x", NULL, "--port x");
	refused("--port 65536", NULL, "0..65535");
	refused("--port 100000", NULL, "0..65535");
	refused("--host ::1", NULL, "only with --port");
	refused("--port 1 --http :2", NULL, "leave one out");
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("plugins");
	TCase *t = tcase_create("all");
	SRunner *r;
	int failed;

	close(mkstemp(path));
	tcase_add_test(t, none_by_default);
	tcase_add_test(t, by_name);
	tcase_add_test(t, names);
	tcase_add_test(t, by_flags);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	unlink(path);
	return failed != 0;
}
