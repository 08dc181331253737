/*
 * The safetensors format and the index of sharded checkpoints, checked as
 * strictly as the format's own implementation does (huggingface/safetensors,
 * src/tensor.rs), plus our own caps. Main thread, at start.
 */
#include "config.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dcpd/model/keys.h"
#include "dcpd/model/safetensors.h"

#define INDEX_MAX (256u << 20)		/* bytes of an index file */
#define SHARDS_MAX 4096u

static const struct {
	const char *name;
	uint32_t bits;
} dtypes[DCPD_ST_DTYPES] = {
	[DCPD_ST_BOOL] = { "BOOL", 8 }, [DCPD_ST_F4] = { "F4", 4 },
	[DCPD_ST_F6_E2M3] = { "F6_E2M3", 6 },
	[DCPD_ST_F6_E3M2] = { "F6_E3M2", 6 },
	[DCPD_ST_U8] = { "U8", 8 }, [DCPD_ST_I8] = { "I8", 8 },
	[DCPD_ST_F8_E5M2] = { "F8_E5M2", 8 },
	[DCPD_ST_F8_E4M3] = { "F8_E4M3", 8 },
	[DCPD_ST_F8_E8M0] = { "F8_E8M0", 8 },
	[DCPD_ST_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
	[DCPD_ST_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
	[DCPD_ST_I16] = { "I16", 16 }, [DCPD_ST_U16] = { "U16", 16 },
	[DCPD_ST_F16] = { "F16", 16 }, [DCPD_ST_BF16] = { "BF16", 16 },
	[DCPD_ST_I32] = { "I32", 32 }, [DCPD_ST_U32] = { "U32", 32 },
	[DCPD_ST_F32] = { "F32", 32 }, [DCPD_ST_C64] = { "C64", 64 },
	[DCPD_ST_F64] = { "F64", 64 }, [DCPD_ST_I64] = { "I64", 64 },
	[DCPD_ST_U64] = { "U64", 64 },
};

const char *
dcpd_st_dtype_name(enum dcpd_st_dtype d)
{
	return dtypes[d].name;
}

const char *
dcpd_st_shape(char *buf, size_t cap, const struct dcpd_st_tensor *t)
{
	size_t n = (size_t)snprintf(buf, cap, "[");
	uint32_t i;

	for (i = 0; i < t->rank && n < cap; i++)
		n += (size_t)snprintf(buf + n, cap - n, "%s%llu",
		    i == 0 ? "" : ", ", (unsigned long long)t->shape[i]);
	if (n < cap)
		snprintf(buf + n, cap - n, "]");
	return buf;
}

/* --- the header of one file ---------------------------------------------- */

static int
bad(struct dcpd_err *err, const char *path, const char *tensor,
    const char *what)
{
	return dcpd_fail(err, -EINVAL, "%s: tensor \"%.100s\": %s", path,
	    tensor, what);
}

static int
parse_metadata(const char *path, const json_t *meta, struct dcpd_err *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(meta))
		return dcpd_fail(err, -EINVAL,
		    "%s: __metadata__ must be an object", path);
	json_object_foreach((json_t *)(uintptr_t)meta, key, v)
		if (!json_is_string(v))
			return dcpd_fail(err, -EINVAL, "%s: __metadata__ "
			    "must map strings to strings; \"%.60s\" does not",
			    path, key);
	return 0;
}

/* A JSON integer >= 0; jansson has refused those above 2^63-1 already. */
static bool
get_u64(const json_t *v, uint64_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*out = (uint64_t)json_integer_value(v);
	return true;
}

static int
parse_dtype(const char *path, const char *name, const json_t *v,
    struct dcpd_st_tensor *t, struct dcpd_err *err)
{
	const char *s = json_string_value(v);
	int d;

	for (d = 0; s != NULL && d < DCPD_ST_DTYPES; d++) {
		if (strcmp(s, dtypes[d].name) == 0) {
			t->dtype = d;
			return 0;
		}
	}
	return dcpd_fail(err, -EINVAL, "%s: tensor \"%.100s\": dtype %.40s "
	    "is not known", path, name, s != NULL ? s : "(not a string)");
}

/* Shape and dtype must make exactly the bytes between the offsets. */
static int
check_bytes(const char *path, const char *name, const struct dcpd_st_tensor *t,
    struct dcpd_err *err)
{
	uint64_t n = dtypes[t->dtype].bits;
	char shape[200];
	uint32_t i;

	for (i = 0; i < t->rank; i++)
		if (__builtin_mul_overflow(n, t->shape[i], &n))
			return bad(err, path, name,
			    "the product of its shape overflows 64 bits");
	if (n % 8 != 0)
		return bad(err, path, name,
		    "its elements do not fill whole bytes");
	if (n / 8 != t->bytes)
		return dcpd_fail(err, -EINVAL, "%s: tensor \"%.100s\": %s of "
		    "%s takes %llu bytes, data_offsets give %llu", path, name,
		    dcpd_st_shape(shape, sizeof shape, t),
		    dtypes[t->dtype].name, (unsigned long long)(n / 8),
		    (unsigned long long)t->bytes);
	return 0;
}

/* off is left relative to the data's first byte. */
static int
parse_tensor(const char *path, const char *name, const json_t *o,
    struct dcpd_st_tensor *t, struct dcpd_err *err)
{
	const json_t *shape = json_object_get(o, "shape");
	const json_t *offs = json_object_get(o, "data_offsets");
	uint64_t end;
	size_t i;
	int rc;

	if (strlen(name) > DCPD_ST_NAME_MAX)
		return bad(err, path, name, "name longer than 512 bytes");
	if (!json_is_object(o))
		return bad(err, path, name, "must be an object");
	rc = parse_dtype(path, name, json_object_get(o, "dtype"), t, err);
	if (rc != 0)
		return rc;
	if (!json_is_array(shape) ||
	    json_array_size(shape) > DCPD_ST_RANK_MAX)
		return bad(err, path, name,
		    "shape must be a list of at most 8 integers");
	t->rank = (uint32_t)json_array_size(shape);
	for (i = 0; i < t->rank; i++)
		if (!get_u64(json_array_get(shape, i), &t->shape[i]))
			return bad(err, path, name,
			    "shape must hold integers from 0 to 2^63-1");
	if (json_array_size(offs) != 2 ||
	    !get_u64(json_array_get(offs, 0), &t->off) ||
	    !get_u64(json_array_get(offs, 1), &end))
		return bad(err, path, name, "data_offsets must be two "
		    "integers from 0 to 2^63-1");
	if (end < t->off)
		return bad(err, path, name,
		    "data_offsets end before they start");
	t->bytes = end - t->off;
	return check_bytes(path, name, t, err);
}

static int
by_offset(const void *pa, const void *pb)
{
	const struct dcpd_st_tensor *a = pa, *b = pb;

	if (a->off != b->off)
		return a->off < b->off ? -1 : 1;
	return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Tensors must tile the data: no holes, no overlap, nothing left over. */
static int
check_tiling(const char *path, struct dcpd_st_tensor *t, uint32_t n,
    uint64_t data_off, uint64_t data_bytes, struct dcpd_err *err)
{
	uint64_t at = 0;
	uint32_t i;

	if (n > 1)
		qsort(t, n, sizeof *t, by_offset);
	for (i = 0; i < n; i++) {
		if (t[i].off != at)
			return dcpd_fail(err, -EINVAL, "%s: tensor "
			    "\"%.100s\" starts at %llu of the data, the one "
			    "before it ends at %llu (%s)", path, t[i].name,
			    (unsigned long long)t[i].off,
			    (unsigned long long)at,
			    t[i].off > at ? "a hole" : "an overlap");
		at += t[i].bytes;
		t[i].off += data_off;
	}
	if (at != data_bytes)
		return dcpd_fail(err, -EINVAL, "%s: the tensors take %llu "
		    "bytes, the file has %llu: it is %s; copy it again", path,
		    (unsigned long long)at, (unsigned long long)data_bytes,
		    at > data_bytes ? "cut short" : "longer than its header "
		    "says");
	return 0;
}

void
dcpd_st_tensors_free(struct dcpd_st_tensor *t, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		free(t[i].name);
	free(t);
}

static int
parse_object(const char *path, const json_t *j, struct dcpd_st_tensor *t,
    uint32_t *n, struct dcpd_err *err)
{
	const char *name;
	json_t *v;
	int rc;

	json_object_foreach((json_t *)(uintptr_t)j, name, v) {
		if (strcmp(name, "__metadata__") == 0) {
			rc = parse_metadata(path, v, err);
			if (rc != 0)
				return rc;
			continue;
		}
		rc = parse_tensor(path, name, v, &t[*n], err);
		if (rc != 0)
			return rc;
		t[*n].name = strdup(name);
		if (t[*n].name == NULL)
			return dcpd_fail(err, -ENOMEM, "%s: no memory", path);
		++*n;
	}
	return 0;
}

int
dcpd_st_parse(const char *path, const char *header, size_t len,
    uint64_t file_size, struct dcpd_st_tensor **out, uint32_t *out_n,
    struct dcpd_err *err)
{
	struct dcpd_st_tensor *t = NULL;
	uint32_t n = 0;
	json_t *j = NULL;
	int rc;

	if (len == 0 || header[0] != '{')
		return dcpd_fail(err, -EINVAL, "%s: the header does not start "
		    "with '{': not a safetensors file", path);
	rc = dcpd_json_text(path, header, len, &j, err);
	if (rc != 0)
		return rc;
	if (json_object_size(j) > DCPD_ST_TENSORS_MAX) {
		rc = dcpd_fail(err, -EINVAL, "%s: more than %u tensors", path,
		    DCPD_ST_TENSORS_MAX);
		goto out;
	}
	t = calloc(json_object_size(j) + 1, sizeof *t);
	if (t == NULL) {
		rc = dcpd_fail(err, -ENOMEM, "%s: no memory", path);
		goto out;
	}
	rc = parse_object(path, j, t, &n, err);
	if (rc == 0)
		rc = check_tiling(path, t, n, 8 + len, file_size - 8 - len,
		    err);
	if (rc == 0) {
		*out = t;
		*out_n = n;
		t = NULL;
	}
out:
	if (t != NULL)
		dcpd_st_tensors_free(t, n);
	json_decref(j);
	return rc;
}

/* --- files --------------------------------------------------------------- */

/* All of it or an error: a file may have been cut since it was opened. */
static int
read_all(const struct dcpd_st_file *f, uint64_t off, uint64_t bytes, void *buf,
    struct dcpd_err *err)
{
	char *p = buf;

	while (bytes > 0) {
		ssize_t n = pread(f->fd, p, bytes < 1u << 30 ? bytes : 1u << 30,
		    (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return dcpd_fail(err, -errno, "%s: read failed at "
			    "byte %llu: %s", f->path, (unsigned long long)off,
			    strerror(errno));
		if (n == 0)
			return dcpd_fail(err, -EIO, "%s: ends at byte %llu, "
			    "it had %llu when it was opened: do not change "
			    "files that are being loaded", f->path,
			    (unsigned long long)off,
			    (unsigned long long)f->size);
		p += n;
		off += (uint64_t)n;
		bytes -= (uint64_t)n;
	}
	return 0;
}

int
dcpd_st_read(const struct dcpd_st *st, const struct dcpd_st_tensor *t,
    uint64_t off, uint64_t bytes, void *buf, struct dcpd_err *err)
{
	DCPD_ASSERT(off <= t->bytes && bytes <= t->bytes - off);
	return read_all(&st->files[t->file], t->off + off, bytes, buf, err);
}

static int
open_file(struct dcpd_st_file *f, const char *path, struct dcpd_err *err)
{
	struct stat sb;

	f->path = strdup(path);
	if (f->path == NULL)
		return dcpd_fail(err, -ENOMEM, "%s: no memory", path);
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (f->fd < 0 || fstat(f->fd, &sb) != 0)
		return dcpd_fail(err, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(sb.st_mode))
		return dcpd_fail(err, -EINVAL, "%s: not a regular file", path);
	f->size = (uint64_t)sb.st_size;
	return 0;
}

/* Opens one file and appends its tensors to the checkpoint's. */
static int
add_file(struct dcpd_st *st, const char *path, struct dcpd_err *err)
{
	struct dcpd_st_file *f = &st->files[st->n_files];
	struct dcpd_st_tensor *t = NULL, *all;
	uint32_t n = 0, i;
	uint64_t len;
	char *header;
	int rc;

	f->fd = -1;
	st->n_files++;
	rc = open_file(f, path, err);
	if (rc != 0)
		return rc;
	if (f->size < 8)
		return dcpd_fail(err, -EINVAL,
		    "%s: %llu bytes are too few for a safetensors file", path,
		    (unsigned long long)f->size);
	rc = read_all(f, 0, 8, &len, err);
	if (rc != 0)
		return rc;
	len = le64toh(len);
	if (len > DCPD_ST_HEADER_MAX)
		return dcpd_fail(err, -EINVAL, "%s: a header of %llu bytes; "
		    "at most %u are legal: not a safetensors file", path,
		    (unsigned long long)len, DCPD_ST_HEADER_MAX);
	if (len > f->size - 8)
		return dcpd_fail(err, -EINVAL, "%s: the header needs %llu "
		    "bytes, the file has %llu: it is cut short; copy it again",
		    path, (unsigned long long)(8 + len),
		    (unsigned long long)f->size);
	header = malloc(len + 1);
	if (header == NULL)
		return dcpd_fail(err, -ENOMEM, "%s: no memory", path);
	rc = read_all(f, 8, len, header, err);
	if (rc == 0)
		rc = dcpd_st_parse(path, header, len, f->size, &t, &n, err);
	free(header);
	if (rc != 0)
		return rc;
	all = realloc(st->tensors, (st->n_tensors + n + 1) * sizeof *all);
	if (all == NULL) {
		dcpd_st_tensors_free(t, n);
		return dcpd_fail(err, -ENOMEM, "%s: no memory", path);
	}
	for (i = 0; i < n; i++) {
		t[i].file = st->n_files - 1;
		all[st->n_tensors + i] = t[i];
	}
	free(t);		/* the names have moved */
	st->tensors = all;
	st->n_tensors += n;
	return 0;
}

static int
by_name(const void *pa, const void *pb)
{
	const struct dcpd_st_tensor *a = pa, *b = pb;

	return strcmp(a->name, b->name);
}

static int
sort_tensors(struct dcpd_st *st, struct dcpd_err *err)
{
	uint32_t i;

	if (st->n_tensors == 0)
		return 0;
	qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
	for (i = 1; i < st->n_tensors; i++) {
		const struct dcpd_st_tensor *t = &st->tensors[i];

		if (by_name(t - 1, t) == 0)
			return dcpd_fail(err, -EINVAL,
			    "tensor \"%.100s\" is in two files, %s and %s",
			    t->name, st->files[t[-1].file].path,
			    st->files[t->file].path);
	}
	return 0;
}

struct dcpd_st_tensor *
dcpd_st_find(const struct dcpd_st *st, const char *name)
{
	struct dcpd_st_tensor key = { .name = (char *)(uintptr_t)name };

	if (st->n_tensors == 0)
		return NULL;
	return bsearch(&key, st->tensors, st->n_tensors, sizeof key, by_name);
}

/* --- the index of shards ------------------------------------------------- */

static int
bad_shard(struct dcpd_err *err, const char *index, const char *file,
    const char *what)
{
	return dcpd_fail(err, -EINVAL, "%s: weight_map names \"%.100s\": %s",
	    index, file, what);
}

/*
 * A shard must lie in the model's folder, also behind a symbolic link; the
 * one exception is the hub's cache, whose snapshots/REV/ links to ../../blobs/.
 */
static int
check_inside(const char *index, const char *dir, const char *file,
    const char *path, struct dcpd_err *err)
{
	char *rdir = realpath(dir, NULL), *rfile = realpath(path, NULL);
	char *up = NULL, *s;
	bool inside = false;
	int rc = 0;

	if (rfile == NULL) {
		rc = dcpd_fail(err, -errno, "%s: weight_map names %s: %s; "
		    "fetch the missing file", index, path, strerror(errno));
	} else if (rdir != NULL) {
		size_t n = strlen(rdir);

		inside = strncmp(rfile, rdir, n) == 0 && rfile[n] == '/';
		up = strdup(rdir);
		s = up != NULL ? strrchr(up, '/') : NULL;
		if (s != NULL) {
			*s = '\0';
			s = strrchr(up, '/');
		}
		if (s != NULL && strcmp(s, "/snapshots") == 0) {
			strcpy(s, "/blobs/");
			inside |= strncmp(rfile, up, strlen(up)) == 0;
		}
		if (!inside)
			rc = bad_shard(err, index, file, "a link that leaves "
			    "the model's folder");
	}
	free(up);
	free(rfile);
	free(rdir);
	return rc;
}

static int
shard_path(const char *index, const char *dir, const char *file, char *path,
    size_t cap, struct dcpd_err *err)
{
	size_t n = strlen(file);

	if (n == 0 || file[0] == '.' || strchr(file, '/') != NULL ||
	    strchr(file, '\\') != NULL)
		return bad_shard(err, index, file,
		    "must be the plain name of a file in the same folder");
	if (n < 13 || strcmp(file + n - 12, ".safetensors") != 0)
		return bad_shard(err, index, file,
		    "must end in .safetensors");
	if ((size_t)snprintf(path, cap, "%s/%s", dir, file) >= cap)
		return bad_shard(err, index, file, "path too long");
	return check_inside(index, dir, file, path, err);
}

/* The shards of the map, each opened once, in the order of their names. */
static int
add_shards(struct dcpd_st *st, const char *index, const char *dir,
    const json_t *map, struct dcpd_err *err)
{
	json_t *seen = json_object();
	char path[PATH_MAX];
	const char *name;
	json_t *v;
	int rc = seen == NULL ? dcpd_fail(err, -ENOMEM, "no memory") : 0;

	if (rc != 0)
		return rc;
	json_object_foreach((json_t *)(uintptr_t)map, name, v) {
		const char *file = json_string_value(v);

		if (file == NULL) {
			rc = dcpd_fail(err, -EINVAL, "%s: weight_map: "
			    "\"%.100s\" must map to a file's name", index,
			    name);
			break;
		}
		if (json_object_get(seen, file) != NULL)
			continue;
		if (json_object_size(seen) == SHARDS_MAX)
			rc = dcpd_fail(err, -EINVAL, "%s: more than %u shards",
			    index, SHARDS_MAX);
		if (rc == 0)
			rc = shard_path(index, dir, file, path, sizeof path,
			    err);
		if (rc == 0)
			rc = add_file(st, path, err);
		if (rc != 0)
			break;
		json_object_set_new(seen, file, json_true());
	}
	json_decref(seen);
	return rc;
}

/* Each tensor of the map must be where the map says. */
static int
check_map(const struct dcpd_st *st, const char *index, const json_t *map,
    struct dcpd_err *err)
{
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)map, name, v) {
		const struct dcpd_st_tensor *t = dcpd_st_find(st, name);
		const char *file = json_string_value(v);
		const char *has = t == NULL ? NULL :
		    strrchr(st->files[t->file].path, '/') + 1;

		if (t == NULL || strcmp(has, file) != 0)
			return dcpd_fail(err, -EINVAL, "%s: tensor \"%.100s\" "
			    "is not in %.100s, as weight_map says%s%s", index,
			    name, file, t == NULL ? "" : "; it is in ",
			    t == NULL ? "" : has);
	}
	return 0;
}

static int
open_index(struct dcpd_st *st, const char *index, const char *dir,
    struct dcpd_err *err)
{
	json_t *j = NULL, *map;
	int rc;

	rc = dcpd_json_file(index, INDEX_MAX, &j, err);
	if (rc != 0)
		return rc;
	map = json_object_get(j, "weight_map");
	if (json_object_size(map) == 0)
		rc = dcpd_fail(err, -EINVAL, "%s: weight_map is missing or "
		    "empty", index);
	if (rc == 0) {
		st->files = calloc(SHARDS_MAX, sizeof *st->files);
		if (st->files == NULL)
			rc = dcpd_fail(err, -ENOMEM, "no memory");
	}
	if (rc == 0)
		rc = add_shards(st, index, dir, map, err);
	if (rc == 0)
		rc = sort_tensors(st, err);
	if (rc == 0)
		rc = check_map(st, index, map, err);
	json_decref(j);
	return rc;
}

/* --- a checkpoint -------------------------------------------------------- */

static int
open_single(struct dcpd_st *st, const char *path, struct dcpd_err *err)
{
	int rc;

	st->files = calloc(1, sizeof *st->files);
	if (st->files == NULL)
		return dcpd_fail(err, -ENOMEM, "no memory");
	rc = add_file(st, path, err);
	return rc != 0 ? rc : sort_tensors(st, err);
}

int
dcpd_st_open(const char *dir, struct dcpd_st **out, struct dcpd_err *err)
{
	char one[PATH_MAX], index[PATH_MAX];
	struct dcpd_st *st;
	int rc;

	if ((size_t)snprintf(one, sizeof one, "%s/model.safetensors", dir) >=
	    sizeof one || (size_t)snprintf(index, sizeof index,
	    "%s/model.safetensors.index.json", dir) >= sizeof index)
		return dcpd_fail(err, -ENAMETOOLONG, "%.100s...: path too "
		    "long", dir);
	st = calloc(1, sizeof *st);
	if (st == NULL)
		return dcpd_fail(err, -ENOMEM, "no memory");
	/* As transformers: the single file first. */
	if (access(one, F_OK) == 0)
		rc = open_single(st, one, err);
	else if (access(index, F_OK) == 0)
		rc = open_index(st, index, dir, err);
	else
		rc = dcpd_fail(err, -ENOENT, "%s: neither model.safetensors "
		    "nor model.safetensors.index.json is there; fetch the "
		    "weights, or try without them by --load-format dummy",
		    dir);
	if (rc != 0) {
		dcpd_st_close(st);
		return rc;
	}
	*out = st;
	return 0;
}

void
dcpd_st_close(struct dcpd_st *st)
{
	uint32_t i;

	if (st == NULL)
		return;
	for (i = 0; i < st->n_files; i++) {
		if (st->files[i].fd >= 0)
			close(st->files[i].fd);
		free(st->files[i].path);
	}
	free(st->files);
	dcpd_st_tensors_free(st->tensors, st->n_tensors);
	free(st);
}

/* The names in the index alone: no shard is opened for this. */
static int
index_has_prefix(const char *index, const char *prefix)
{
	size_t n = strlen(prefix);
	const char *name;
	json_t *j = NULL, *v;
	int rc;

	rc = dcpd_json_file(index, INDEX_MAX, &j, NULL);
	if (rc != 0)
		return rc;
	json_object_foreach(json_object_get(j, "weight_map"), name, v)
		if (strncmp(name, prefix, n) == 0)
			rc = 1;
	json_decref(j);
	return rc;
}

int
dcpd_st_has_prefix(const char *dir, const char *prefix)
{
	char path[PATH_MAX];
	struct dcpd_st *st = NULL;
	uint32_t i;
	int rc;

	snprintf(path, sizeof path, "%s/model.safetensors", dir);
	if (access(path, F_OK) != 0) {
		snprintf(path, sizeof path,
		    "%s/model.safetensors.index.json", dir);
		return access(path, F_OK) != 0 ? -errno :
		    index_has_prefix(path, prefix);
	}
	rc = dcpd_st_open(dir, &st, NULL);
	for (i = 0; rc == 0 && i < st->n_tensors; i++)
		if (strncmp(st->tensors[i].name, prefix, strlen(prefix)) == 0)
			rc = 1;
	dcpd_st_close(st);
	return rc;
}
