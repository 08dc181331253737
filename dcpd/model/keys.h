/*
 * JSON files that others wrote (config.json, index files, safetensors
 * headers): read with caps, and their keys checked one by one. Any thread; no
 * state but the caller's.
 */
#ifndef DCPD_MODEL_KEYS_H
#define DCPD_MODEL_KEYS_H

#include <jansson.h>

#include "dcpd/base/base.h"

#define DCPD_JSON_DEPTH 32u	/* of brackets; config files use 4 or so */

/*
 * Text to JSON: duplicate keys, bad UTF-8 and more than DCPD_JSON_DEPTH nested
 * brackets are errors, which name `what`.
 */
int dcpd_json_text(const char *what, const char *text, size_t len, json_t **,
    struct dcpd_err *);
/* The same for a file of at most max bytes; its top must be an object. */
int dcpd_json_file(const char *path, size_t max, json_t **,
    struct dcpd_err *);

/*
 * The keys of one object. The first failure stays: later calls return their
 * default, so that a reader asks for all its keys and looks at rc once.
 */
struct dcpd_keys {
	const json_t *o;
	const char *where;		/* for texts: the file's path */
	const char *prefix;		/* "rope_parameters." or "" */
	struct dcpd_err *err;
	int rc;
};

/* NULL if the key is absent or null. */
const json_t *dcpd_key(const struct dcpd_keys *, const char *name);
/* Fail: `where: "name" is VALUE: must be LEGAL`. */
void dcpd_key_bad(struct dcpd_keys *, const char *name, const char *legal, ...)
	__attribute__((format(printf, 3, 4)));

/* An integer; the key must be there. */
uint32_t dcpd_key_uint(struct dcpd_keys *, const char *name, uint32_t min,
    uint32_t max);
/* With a default for an absent key. */
uint32_t dcpd_key_uint_or(struct dcpd_keys *, const char *name,
    uint32_t dflt, uint32_t min, uint32_t max);
bool dcpd_key_bool_or(struct dcpd_keys *, const char *name, bool dflt);
double dcpd_key_num_or(struct dcpd_keys *, const char *name, double dflt,
    double min, double max);
const char *dcpd_key_str_or(struct dcpd_keys *, const char *name,
    const char *dflt);
/* If the key is there it must be exactly this. */
void dcpd_key_only_bool(struct dcpd_keys *, const char *name, bool legal);
void dcpd_key_only_str(struct dcpd_keys *, const char *name,
    const char *legal);

#endif
