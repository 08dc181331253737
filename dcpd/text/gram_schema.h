/*
 * Inside of compiling a schema: gram_schema.c, gram_types.c, gram_names.c and
 * gram_link.c. Everything that can fail returns 0, or -errno with err filled.
 */
#ifndef DCPD_TEXT_GRAM_SCHEMA_H
#define DCPD_TEXT_GRAM_SCHEMA_H

#include "dcpd/text/gram.h"

struct comp {
	struct gram *g;
	const json_t *root;
	json_t *memo;			/* value ids by a schema's text */
	struct dcpd_err *err;
	char path[160];			/* where, without the first "#" */
	unsigned depth;
	uint32_t work;			/* schemas looked at */
	uint64_t text;			/* bytes of their texts */
	uint64_t effort;		/* of automata, so far */
};

/* --- gram_schema.c ----------------------------------------------------- */

/* -EINVAL, with the place before the text. */
int schema_fail(struct comp *, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int schema_no_memory(struct comp *);
/* rc; the error that a part has set gets the place before it. */
int schema_placed(struct comp *, int rc);
/* One step down (index < 0: a name); returns what to give to schema_up(). */
size_t schema_down(struct comp *, const char *key, long long index);
void schema_up(struct comp *, size_t);

int schema_add_def(struct comp *, enum gram_kind, uint32_t *def);
/* An automaton of its own, which from here on is the grammar's. */
int schema_add_dfa(struct comp *, struct gram_dfa *, bool lazy, uint32_t *def);
/* v as JSON, to the letter. */
int schema_add_literal(struct comp *, const json_t *v, uint32_t *def);
/* One more alternative of a value; all those of another value. */
int schema_add_alt(struct comp *, uint32_t value, uint32_t def);
int schema_add_also(struct comp *, uint32_t value, uint32_t other);
/* The value that a schema describes, compiled when it is new. */
int schema_value(struct comp *, const json_t *schema, uint32_t *value);
/* The same of a schema one step down, as schema_down() has it. */
int schema_below(struct comp *, const json_t *schema, const char *key,
    long long index, uint32_t *value);
int schema_compile(struct comp *);

/* --- gram_types.c: alternatives into value ------------------------------ */

int schema_any_string(struct comp *);	/* GRAM_STRING; before all others */
int schema_any(struct comp *, uint32_t *value);
int schema_typed(struct comp *, const json_t *schema, uint32_t value);
int schema_enumerated(struct comp *, const json_t *schema, uint32_t value);

/* --- gram_names.c ------------------------------------------------------ */

/* Is v of type t: a name, or an array of names? */
bool schema_type_is(const json_t *t, const json_t *v);
/* A key that is none of the names (keys of an object). */
int schema_other_names(struct comp *, const json_t *names, uint32_t *def);

/* --- gram_link.c ------------------------------------------------------- */

/* Gathers alternatives, finds heights, drops what no finite value has. */
int gram_link(struct gram *, struct dcpd_err *);

#endif
