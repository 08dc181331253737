/*
 * Checkpoints: one model.safetensors, or shards named by an index file. The
 * headers are read and checked when a checkpoint is opened; data is read on
 * demand with pread, so a file that is cut or vanishes later is an error text
 * and never a SIGBUS. One thread at a time.
 */
#ifndef DCPD_SAFETENSORS_H
#define DCPD_SAFETENSORS_H

#include "dcpd/base/base.h"

#define DCPD_ST_HEADER_MAX 100000000u	/* bytes, the format's own limit */
#define DCPD_ST_RANK_MAX 8u
#define DCPD_ST_NAME_MAX 512u		/* bytes of a tensor's name */
#define DCPD_ST_TENSORS_MAX (1u << 22)	/* in one file */

enum dcpd_st_dtype {
	DCPD_ST_BOOL, DCPD_ST_F4, DCPD_ST_F6_E2M3, DCPD_ST_F6_E3M2, DCPD_ST_U8,
	DCPD_ST_I8, DCPD_ST_F8_E5M2, DCPD_ST_F8_E4M3, DCPD_ST_F8_E8M0,
	DCPD_ST_F8_E4M3FNUZ, DCPD_ST_F8_E5M2FNUZ, DCPD_ST_I16, DCPD_ST_U16,
	DCPD_ST_F16, DCPD_ST_BF16, DCPD_ST_I32, DCPD_ST_U32, DCPD_ST_F32,
	DCPD_ST_C64, DCPD_ST_F64, DCPD_ST_I64, DCPD_ST_U64, DCPD_ST_DTYPES
};
const char *dcpd_st_dtype_name(enum dcpd_st_dtype);

struct dcpd_st_tensor {
	char *name;
	enum dcpd_st_dtype dtype;
	uint32_t rank;
	uint64_t shape[DCPD_ST_RANK_MAX];
	uint64_t off, bytes;		/* off: from the file's first byte */
	uint32_t file;			/* index into the checkpoint's files */
	bool used;			/* for the reader's own bookkeeping */
};

struct dcpd_st_file {
	char *path;
	int fd;
	uint64_t size;			/* when it was opened */
};

struct dcpd_st {
	struct dcpd_st_file *files;
	uint32_t n_files;
	struct dcpd_st_tensor *tensors;	/* by name */
	uint32_t n_tensors;
};

/* The header of one file (after its 8 length bytes); tensors by offset. */
int dcpd_st_parse(const char *path, const char *header, size_t len,
    uint64_t file_size, struct dcpd_st_tensor **, uint32_t *n,
    struct dcpd_err *);
void dcpd_st_tensors_free(struct dcpd_st_tensor *, uint32_t n);

int dcpd_st_open(const char *dir, struct dcpd_st **, struct dcpd_err *);
void dcpd_st_close(struct dcpd_st *);
/* NULL if there is none of that name. */
struct dcpd_st_tensor *dcpd_st_find(const struct dcpd_st *, const char *name);
/* `bytes` of the tensor from its byte `off` on. */
int dcpd_st_read(const struct dcpd_st *, const struct dcpd_st_tensor *,
    uint64_t off, uint64_t bytes, void *, struct dcpd_err *);
/* "[2048, 6144]" into buf; returns buf. */
const char *dcpd_st_shape(char *buf, size_t cap,
    const struct dcpd_st_tensor *);

/*
 * Does the folder's checkpoint have a tensor whose name starts so? 1, 0, or
 * -errno when there is no checkpoint or it cannot be read.
 */
int dcpd_st_has_prefix(const char *dir, const char *prefix);

#endif
