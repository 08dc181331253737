/* What the tests of dcpd/model share: scratch folders, config.json variants. */
#ifndef TESTS_MODEL_UTIL_H
#define TESTS_MODEL_UTIL_H

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dcpd/model/model.h"

#define MU_PATH 600

/* A file of the source tree. */
static inline const char *
mu_src(const char *rel, char path[MU_PATH])
{
	const char *top = getenv("srcdir");

	snprintf(path, MU_PATH, "%s/%s", top != NULL ? top : ".", rel);
	return path;
}

static inline void
mu_mkdir(char dir[MU_PATH])
{
	const char *tmp = getenv("TMPDIR");

	snprintf(dir, MU_PATH, "%s/dcpd-test-XXXXXX",
	    tmp != NULL ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

/* Removes the folder and its plain files. */
static inline void
mu_rmdir(const char *dir)
{
	char path[MU_PATH + 300];
	struct dirent *e;
	DIR *d = opendir(dir);

	ck_assert_ptr_nonnull(d);
	while ((e = readdir(d)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		ck_assert_int_eq(unlink(path), 0);
	}
	closedir(d);
	ck_assert_int_eq(rmdir(dir), 0);
}

static inline void
mu_write(const char *dir, const char *name, const void *data, size_t n)
{
	char path[MU_PATH + 300];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(data, 1, n, f), n);
	ck_assert_int_eq(fclose(f), 0);
}

static inline void
mu_write_json(const char *dir, const char *name, json_t *j)
{
	char *text = json_dumps(j, JSON_ENCODE_ANY);

	ck_assert_ptr_nonnull(text);
	mu_write(dir, name, text, strlen(text));
	free(text);
}

/* A config of tests/data/configs, or a JSON text that starts with '{'. */
static inline json_t *
mu_config(const char *base)
{
	char rel[200], path[MU_PATH];
	json_error_t e;
	json_t *j;

	if (base[0] == '{') {
		j = json_loads(base, 0, &e);
	} else {
		snprintf(rel, sizeof rel, "tests/data/configs/%s.json", base);
		j = json_load_file(mu_src(rel, path), 0, &e);
	}
	ck_assert_msg(j != NULL, "%s: %s", base, e.text);
	return j;
}

/* Sets the keys of `change` (a JSON object's text); null deletes a key. */
static inline void
mu_change(json_t *o, const char *change)
{
	json_t *c = mu_config(change), *v;
	const char *key;

	json_object_foreach(c, key, v) {
		if (json_is_null(v))
			json_object_del(o, key);
		else
			json_object_set(o, key, v);
	}
	json_decref(c);
}

#endif
