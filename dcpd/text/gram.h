/*
 * Inside of constrained decoding: how a JSON schema becomes something that can
 * say, byte by byte, what may come next. doc/grammar.md explains the whole.
 *
 *	gram_nfa.c	automata over bytes: build, determinise, trim
 *	gram_regex.c	"pattern" as an automaton
 *	gram_number.c	numbers, with their bounds
 *	gram_merge.c	allOf: two schemas as one
 *	gram_schema.c	a schema as values and definitions: gram_types.c,
 *			gram_names.c and gram_link.c are parts of it
 *	gram_args.c	a tool's arguments: its schema's object, cut into values
 *	gram_step.c	configurations: one byte further
 *	gram_mask.c	the vocabulary's trie; which tokens may follow
 *	gram_read.c	a text as far as it has come, token by token
 *	gram_call.c	a forced call, in the markup of the model's parser
 *	gram.c		what the rest of the daemon sees
 *
 * A grammar is a set of definitions. A scalar (a string, a number, a literal)
 * is an automaton over bytes. A container says which values may follow. A value
 * is a list of alternatives, each a definition.
 *
 * A grammar and a trie do not change once built: any thread. A run belongs to
 * one request's text job.
 */
#ifndef DCPD_TEXT_GRAM_H
#define DCPD_TEXT_GRAM_H

#include <pthread.h>

#include "dcpd/text/buf.h"
#include "dcpd/text/text.h"

/* Bounds on what a client may ask for; above: -EINVAL with the number. */
#define GRAM_MAX_SCHEMA (256u << 10)	/* bytes of a schema's text */
#define GRAM_MAX_NEST 64u		/* of schemas in schemas */
#define GRAM_MAX_DEFS 8192u		/* definitions of one grammar */
#define GRAM_MAX_WORK 50000u		/* schemas looked at, merged ones too */
#define GRAM_MAX_PROPS 1024u		/* properties of one object */
#define GRAM_MAX_NFA 20000u		/* states of one automaton, as built */
#define GRAM_MAX_DFA 4000u		/* and without choices */
#define GRAM_MAX_EFFORT 20000000u	/* steps to make an automaton; 0.1 s */
#define GRAM_MAX_EFFORTS 100000000u	/* and all of a grammar's */
#define GRAM_MAX_STATES 200000u		/* bytes / 64 of all of a grammar's */
#define GRAM_MAX_REPEAT 1000u		/* {m,n} in a pattern */
#define GRAM_MAX_DEPTH 128u		/* of containers in an answer */
#define GRAM_MAX_INDENT 32u		/* spaces after a newline */
#define GRAM_MAX_ITEMS 2048u		/* alternatives alive at once */
#define GRAM_MAX_TOKEN 256u		/* bytes; longer ones are not used */

#define GRAM_NONE UINT32_MAX

/* --- automata ---------------------------------------------------------- */

struct gram_edge {
	uint32_t from, to;
	uint8_t lo, hi;
	bool eps;			/* needs no byte */
};

struct gram_nfa {
	struct gram_edge *e;
	uint32_t n_e, cap_e;
	uint8_t *chr;			/* [n] between two characters */
	uint32_t n, cap;
	int rc;				/* sticks: -ENOMEM, -E2BIG */
};

enum { DFA_ACCEPT = 1, DFA_CHAR = 2 };
#define DFA_DEAD 0xffffu

struct gram_dfa {
	uint32_t n, n_cls;		/* state 0 is the start */
	uint8_t cls[256];
	uint16_t *next;			/* [n][n_cls] */
	uint8_t *flags;			/* [n] */
	bool *final;			/* [n] accepts and goes nowhere */
	uint64_t work;			/* steps that it took to make */
};

uint32_t gram_state(struct gram_nfa *);
void gram_edge(struct gram_nfa *, uint32_t from, uint32_t to, uint8_t lo,
    uint8_t hi);
void gram_eps(struct gram_nfa *, uint32_t from, uint32_t to);

struct gram_range { uint32_t lo, hi; };	/* code points */
/*
 * A character of a JSON string out of ascending, disjoint ranges, as UTF-8, or
 * with a backslash where it needs one. No \u is used: control characters
 * other than \b \t \n \f \r are left out.
 */
void gram_char(struct gram_nfa *, uint32_t from, uint32_t to,
    const struct gram_range *, uint32_t n);

/*
 * What leads from start to accept, without choices and dead ends. -EDOM:
 * nothing does. -E2BIG: more than GRAM_MAX_DFA states.
 */
int gram_dfa(const struct gram_nfa *, uint32_t start, uint32_t accept,
    struct gram_dfa **);
/*
 * The strings of d with min..max characters. -EDOM: there are none; -E2BIG.
 */
int gram_dfa_count(const struct gram_dfa *d, uint32_t min, uint32_t max,
    struct gram_dfa **);
void gram_dfa_free(struct gram_dfa *);
void gram_nfa_free(struct gram_nfa *);

/* A string in quotes that matches the expression somewhere. */
int gram_regex(const char *regex, struct gram_dfa **, struct dcpd_err *);

struct gram_bounds {			/* of a number; NULL: open */
	const json_t *min, *max, *xmin, *xmax;
};
int gram_number(bool integer, const struct gram_bounds *, struct gram_dfa **,
    struct dcpd_err *);

/* --- a compiled grammar ------------------------------------------------ */

enum gram_kind { G_OBJECT, G_ARRAY, G_DFA, G_LIT };
#define G_ROOT GRAM_NONE	/* an item's definition: around everything */

struct gram_prop {
	uint32_t key;			/* definition of its name, quoted */
	uint32_t value;
	bool required;
};

struct gram_def {
	enum gram_kind kind;
	bool lazy;			/* a number: ends before what follows */
	bool raw;			/* a string without quotes and escapes:
					   whoever reads knows its end */
	uint32_t height;		/* containers nested at least; NONE:
					   no value of it is finite */
	/* G_DFA; characters min..max where counted */
	struct gram_dfa *dfa;
	bool own, counted;		/* dfa is freed with it */
	/* G_LIT */
	char *lit;
	uint32_t len;
	/* G_ARRAY: elements min..max; G_DFA, G_OBJECT see above, below */
	uint32_t min, max;		/* max NONE: no bound */
	uint32_t *prefix, n_prefix;	/* values of the first elements */
	uint32_t items;			/* value of the others, or NONE */
	/* G_OBJECT: names come in this order */
	struct gram_prop *props;
	uint32_t n_props;
	uint32_t must;			/* 1 + last required property, or 0 */
	uint32_t extra, extra_key;	/* other names: value, or NONE */
};

struct gram_value {
	uint32_t *alt;			/* definitions */
	uint32_t n, cap;
	uint32_t *also;			/* values, until linked */
	uint32_t n_also, cap_also;
	uint32_t height;
};

/* Masks that do not depend on what is around; gram_mask.c. */
struct gram_cache {
	pthread_mutex_t lock;
	struct gram_cached **bucket;
	uint32_t n;
};

struct gram {
	unsigned refs;			/* grams' lock */
	char *key;			/* what it was made of */
	struct gram *next;		/* in grams' list, newest first */
	struct gram_def *def;
	uint32_t n_def, cap_def;
	struct gram_value *value;
	uint32_t n_value, cap_value;
	uint32_t root;			/* value */
	uint32_t deepest;		/* height of the highest definition */
	uint64_t bytes;			/* of automata */
	uint64_t effort;		/* that it took, in their steps */
	struct gram_args *args;		/* of a tool, or NULL */
	struct gram_cache cache;
};

#define GRAM_STRING 0u		/* definition of any string, in every grammar */

/* Compile a schema; NULL: any object. *out is new and has one reference. */
int gram_compile(const json_t *schema, struct gram **out, struct dcpd_err *);
void gram_free(struct gram *);

/*
 * The schema that says what both say, without "allOf" at its top. A new
 * reference; NULL: err says what cannot be merged.
 */
json_t *gram_merge(const json_t *a, const json_t *b, struct dcpd_err *);

/* --- a tool's arguments ------------------------------------------------ */

struct gram_arg {
	char *key;			/* as it is written; extra: NULL */
	bool required;
	uint32_t value;			/* as JSON, or */
	bool text;			/* bare text: any of raw[] */
	uint32_t *raw, n_raw;
};

struct gram_args {
	struct gram_arg *v;		/* they come in this order */
	uint32_t n;
	uint32_t must;			/* 1 + last required one, or 0 */
	bool has_extra;			/* others may follow, named by: */
	struct gram_arg extra;
	uint32_t extra_key;		/* raw */
};

/*
 * The grammar of a tool's "parameters" (NULL: any object), with .args.
 * tagged: values end with a tag in the text (DeepSeek's), and must not hold
 * what looks like one.
 */
int gram_args_compile(const json_t *parameters, bool tagged,
    struct gram **out, struct dcpd_err *);
void gram_args_free(struct gram_args *);

/* --- configurations ---------------------------------------------------- */

enum { P_START, P_KEY, P_COLON, P_VALUE, P_AFTER };

/*
 * One way to read what is there, in one container or scalar. Containers:
 * q is the phase, n the elements so far, or the next property (P_COLON,
 * P_VALUE: the property whose value comes). Scalars: q is the state, n the
 * characters so far.
 */
struct gram_item {
	uint32_t def, q, n;		/* G_ROOT: n is the value */
};

/* A container that is open around the innermost one. */
struct gram_level {
	const struct gram_level *up;
	struct gram_item *it;
	uint32_t n, depth;
};

/* Where a text stands; a scalar is a level of its own. */
struct gram_cfg {
	const struct gram_level *up;
	struct gram_item *it;
	uint32_t n;
	uint32_t depth;			/* containers open, root 0 */
	uint32_t ws;			/* 0; 1: a space; 2 + n: newline, n */
};

/* Memory that is taken and given back in order. */
struct gram_arena {
	struct gram_chunk *first, *cur;
	size_t used;
	bool failed;
};
struct gram_mark { struct gram_chunk *cur; size_t used; };
void *gram_alloc(struct gram_arena *, size_t);
struct gram_mark gram_mark(const struct gram_arena *);
void gram_release(struct gram_arena *, struct gram_mark);
void gram_arena_free(struct gram_arena *);

enum {
	STEP_DEAD, STEP_OK,
	STEP_EXIT,		/* the level ended and .up is gram_base: its
				   definitions are in done[] */
	STEP_EXIT_BEFORE,	/* likewise, but the byte is not of it */
};

struct gram_step {
	const struct gram *g;
	struct gram_arena arena;
	uint32_t *seen;			/* [n_def] stamp of a definition */
	uint32_t stamp;
	uint32_t *done;			/* [n_def] */
	uint32_t n_done;
};
/* Stands for whatever is around, where a mask is made once for all. */
extern const struct gram_level gram_base;

int gram_step_init(struct gram_step *, const struct gram *);
void gram_step_free(struct gram_step *);
/* Its items and levels come from the arena; in is left alone. */
int gram_step(struct gram_step *, const struct gram_cfg *in, uint8_t byte,
    struct gram_cfg *out);
/* The level around, with one of done[] complete in it. False: none fits. */
bool gram_pop(struct gram_step *, const struct gram_level *up,
    const uint32_t *done, uint32_t n_done, struct gram_cfg *out);
bool gram_complete(const struct gram *, const struct gram_cfg *);

/* --- tokens ------------------------------------------------------------ */

struct gram_node {
	uint32_t end;			/* behind its subtree */
	uint32_t tok0, toks;		/* tokens that end here */
	uint8_t byte;
};

struct gram_trie {
	struct gram_node *v;		/* [n] depth first; 0 is the root */
	uint32_t n;
	uint32_t *tok;
	uint32_t words;			/* u32 of a mask */
	uint32_t horizon;		/* bytes of the longest token */
	uint32_t opens;			/* most brackets opened by a token */
	const struct dcpd_tokenizer *t;
	/* Inside of any string: the same for all grammars, and what takes
	   longest to make. */
	struct gram_cache strings;
};

int gram_trie_new(const struct dcpd_tokenizer *, uint32_t vocab,
    struct gram_trie **);
void gram_trie_free(struct gram_trie *);
/* Bits of all tokens whose bytes may follow; 0 or -ENOMEM. */
int gram_mask(struct gram *, struct gram_trie *, struct gram_step *,
    const struct gram_cfg *, uint32_t *bits);
void gram_cache_init(struct gram_cache *);
void gram_cache_free(struct gram_cache *);

/* --- a text that is being written -------------------------------------- */

struct gram_read {
	struct gram *g;			/* the caller's */
	struct gram_step step;
	struct gram_arena store[2];	/* of the configuration, in turn */
	unsigned turn;
	struct gram_cfg cfg;
	bool open;			/* there is one */
};

/* Each: 0, -ENOMEM; push: -EPROTO, the bytes are not of it: it is over. */
int gram_read_value(struct gram_read *, struct gram *, uint32_t value);
int gram_read_raw(struct gram_read *, struct gram *, const uint32_t *defs,
    uint32_t n);
int gram_read_push(struct gram_read *, const char *, size_t);
int gram_read_mask(struct gram_read *, struct gram_trie *, uint32_t *bits);
bool gram_read_complete(const struct gram_read *);
void gram_read_close(struct gram_read *);

/* --- a forced call ----------------------------------------------------- */

struct dcpd_grams;
struct gram_call;

int gram_call_open(struct dcpd_grams *, const json_t *options,
    const char *only, enum dcpd_parser, struct gram_call **,
    struct dcpd_err *);
void gram_call_close(struct gram_call *);
int gram_call_push(struct gram_call *, uint32_t token);
int gram_call_mask(struct gram_call *, uint32_t *bits);
/* The calls are over: only an end token may come. */
bool gram_call_may_end(const struct gram_call *);

/* --- gram.c, for its parts --------------------------------------------- */

struct dcpd_grams {
	unsigned magic;
	struct gram_trie *trie;
	const struct dcpd_tokenizer *t;
	uint32_t vocab;
	uint32_t *eos, n_eos;
	pthread_mutex_t lock;
	struct gram *first;		/* newest first */
	uint32_t n;
};

enum gram_use { GRAM_JSON, GRAM_ARGS, GRAM_TAGGED };
/* A schema's grammar (NULL: any object), compiled if it is new; then put. */
int gram_get(struct dcpd_grams *, const json_t *schema, enum gram_use,
    struct gram **, struct dcpd_err *);
void gram_put(struct dcpd_grams *, struct gram *);
uint32_t gram_token(const struct dcpd_grams *, const char *content);
bool gram_is_eos(const struct dcpd_grams *, uint32_t token);
const char *gram_tool_name(const json_t *tool);
void gram_set_bit(uint32_t *bits, uint32_t id);

#endif
