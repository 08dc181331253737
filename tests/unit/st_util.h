/* Writes safetensors files for tests; nothing of the reader is used. */
#ifndef TESTS_ST_UTIL_H
#define TESTS_ST_UTIL_H

#include <stdint.h>

#include "tests/unit/model_util.h"

/* A file from a header as it is and n bytes of data (0, 1, 2, ...). */
static inline void
su_raw(const char *dir, const char *file, const char *header, size_t n)
{
	size_t len = strlen(header), i;
	unsigned char *b = malloc(8 + len + n);

	ck_assert_ptr_nonnull(b);
	for (i = 0; i < 8; i++)
		b[i] = (unsigned char)((uint64_t)len >> 8 * i);
	memcpy(b + 8, header, len);
	for (i = 0; i < n; i++)
		b[8 + len + i] = (unsigned char)i;
	mu_write(dir, file, b, 8 + len + n);
	free(b);
}

/* Tensors one after another. */
struct su {
	json_t *header;
	unsigned char *data;
	size_t n, cap;
};

static inline void
su_add(struct su *s, const char *name, const char *dtype, int rank,
    const uint64_t *shape, const void *data, size_t bytes)
{
	json_t *dims = json_array();
	int i;

	if (s->header == NULL)
		s->header = json_object();
	for (i = 0; i < rank; i++)
		json_array_append_new(dims, json_integer((json_int_t)shape[i]));
	ck_assert_ptr_null(json_object_get(s->header, name));
	json_object_set_new(s->header, name, json_pack("{s:s, s:o, s:[I, I]}",
	    "dtype", dtype, "shape", dims, "data_offsets", (json_int_t)s->n,
	    (json_int_t)(s->n + bytes)));
	if (s->n + bytes > s->cap) {
		s->cap = 2 * (s->n + bytes) + 64;
		s->data = realloc(s->data, s->cap);
		ck_assert_ptr_nonnull(s->data);
	}
	memcpy(s->data + s->n, data, bytes);
	s->n += bytes;
}

/* Writes DIR/file and empties s. */
static inline void
su_write(struct su *s, const char *dir, const char *file)
{
	char *header = json_dumps(s->header, JSON_COMPACT), path[MU_PATH + 300];
	uint64_t len = strlen(header);
	unsigned char le[8];
	FILE *f;
	int i;

	snprintf(path, sizeof path, "%s/%s", dir, file);
	for (i = 0; i < 8; i++)
		le[i] = (unsigned char)(len >> 8 * i);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(le, 1, 8, f), 8);
	ck_assert_uint_eq(fwrite(header, 1, len, f), len);
	ck_assert_uint_eq(fwrite(s->data, 1, s->n, f), s->n);
	ck_assert_int_eq(fclose(f), 0);
	free(header);
	json_decref(s->header);
	free(s->data);
	memset(s, 0, sizeof *s);
}

#endif
