/*
 * The daemon's configuration: the command line and --config FILE, read
 * through the one table in flags.h. Used by main before any thread runs;
 * constant afterwards.
 */
#ifndef DCPD_OPTIONS_H
#define DCPD_OPTIONS_H

#include <jansson.h>
#include <stdio.h>

#include "dcpd/base/base.h"
#include "dcpd/config/flags.h"
#include "dcpd/kv/memplan.h"
#include "dcpd/parallel/topology.h"
#include "dcpd/text/text.h"

#define DCPD_CTYPE_STR char *
#define DCPD_CTYPE_ENUM uint32_t
#define DCPD_CTYPE_U32 uint32_t
#define DCPD_CTYPE_BYTES uint64_t
#define DCPD_CTYPE_REAL double
#define DCPD_CTYPE_BOOL bool
#define DCPD_CTYPE_MODE uint32_t

enum dcpd_flag {
#define GROUP(title)
#define X(kind, type, field, ...) DCPD_FLAG_##field,
	DCPD_FLAGS(GROUP, X)
#undef X
	DCPD_FLAG_N
};

struct dcpd_options {
#define X(kind, type, field, ...) DCPD_CTYPE_##type field;
	DCPD_FLAGS(GROUP, X)
#undef X
#undef GROUP
	/* 0: default, 1: from the file, 2: from the command line */
	uint8_t given[DCPD_FLAG_N];
	/* "plugins" of the file, {"NAME": {...}}; NULL: it has none */
	json_t *plugin_conf;
};
#define DCPD_GIVEN(o, field) ((o)->given[DCPD_FLAG_##field] != 0)

enum dcpd_flag_kind { DCPD_KIND_ACT, DCPD_KIND_CHECK, DCPD_KIND_REFUSE };
enum dcpd_flag_type {
	DCPD_TYPE_STR, DCPD_TYPE_ENUM, DCPD_TYPE_U32, DCPD_TYPE_BYTES,
	DCPD_TYPE_REAL, DCPD_TYPE_BOOL, DCPD_TYPE_MODE,
};

struct dcpd_flag_def {		/* one line of flags.h */
	const char *group;	/* a title line: only this is set */
	enum dcpd_flag flag;
	enum dcpd_flag_kind kind;
	enum dcpd_flag_type type;
	size_t off;		/* in struct dcpd_options */
	const char *name, *aliases, *def, *legal, *help;
};
/* In the order of flags.h, titles included; ends with group = name = NULL. */
extern const struct dcpd_flag_def dcpd_flag_defs[];

/* Values of ENUM flags that code compares with. */
enum { DCPD_DEVICE_CPU, DCPD_DEVICE_CUDA };
enum { DCPD_COMM_AUTO, DCPD_COMM_P2P, DCPD_COMM_PEER, DCPD_COMM_NCCL };
enum { DCPD_FP8_AUTO, DCPD_FP8_BF16, DCPD_FP8_CUBLASLT };
enum { DCPD_ENGINE_MODEL, DCPD_ENGINE_NULL };
enum { DCPD_EPS_1E6, DCPD_EPS_CONFIG };

/*
 * Defaults, then --config, then argv. Every refusal is one line in err that
 * names the flag (or the file and key) and says what is legal. On failure o
 * is freed. Relations between flags are checked too (check.c).
 */
int dcpd_options_parse(int argc, char **argv, struct dcpd_options *o,
    struct dcpd_err *);
void dcpd_options_free(struct dcpd_options *);
/* One value by its text; where: "--tp" or "FILE: key tp", for the message. */
int dcpd_options_set(struct dcpd_options *, const struct dcpd_flag_def *,
    const char *value, const char *where, struct dcpd_err *);
/* Effective values, {"tp": 8, ...}; refused flags left out. */
json_t *dcpd_options_json(const struct dcpd_options *);
/* {"tp": {"value": 8, "default": 1, "from": "file"}, ...}; NULL: no memory. */
json_t *dcpd_options_changed(const struct dcpd_options *);

/* By name or alias; NULL. len < 0: NUL-terminated. */
const struct dcpd_flag_def *dcpd_flag_find(const char *name, int len);
/* May it stand in the configuration file? Can a reload change it? */
bool dcpd_flag_in_file(const struct dcpd_flag_def *);
bool dcpd_flag_runtime(const struct dcpd_flag_def *);
/* "; did you mean --dcp-size?" into buf, or what to do instead of another
 * server's flag, or "". */
const char *dcpd_flag_near(const char *name, char *buf, size_t cap);
void dcpd_flags_help(FILE *);
void dcpd_flags_man(FILE *);	/* roff for doc/man/dcpd.8 */
void dcpd_flags_conf(FILE *);	/* roff for doc/man/dcpd.conf.5 */

/* --- check.c: relations, and what the values mean ----------------------- */

int dcpd_options_check(const struct dcpd_options *, struct dcpd_err *);
void dcpd_options_layout(const struct dcpd_options *, struct dcpd_layout *);
/* Row and index formats; refuses what the model or device cannot hold. */
int dcpd_options_formats(const struct dcpd_options *, const struct dcpk_model *,
    enum dcpk_kv *kv, enum dcpk_kv *idx, struct dcpd_err *);
/* --quantization against what the checkpoint says. */
int dcpd_options_quantization(const struct dcpd_options *,
    const struct dcpd_model_config *, struct dcpd_err *);
/* Which weights stay what they are: DCPK_FP8_WEIGHTS, DCPK_INT4_WEIGHTS. */
uint32_t dcpd_options_keeps(const struct dcpd_options *,
    const struct dcpd_model_config *);
/* Chat template and output parser; tok may be NULL. */
int dcpd_options_chat(const struct dcpd_options *, const char *model_type,
    const struct dcpd_tokenizer *tok, enum dcpd_chat *, enum dcpd_parser *,
    struct dcpd_err *);
/* -1: by prediction, or enum dcpk_way */
int dcpd_options_way(const struct dcpd_options *);
/* --dcp-comm and --cuda-graph-max-bs as the backend is to have them. */
enum dcpk_comm dcpd_options_comm(const struct dcpd_options *);
uint32_t dcpd_options_graph_rows(const struct dcpd_options *);
/* --dcp-wire, auto resolved. */
enum dcpk_wire dcpd_options_wire(const struct dcpd_options *);
int dcpd_options_log_level(const struct dcpd_options *);	/* LOG_* */

#endif
