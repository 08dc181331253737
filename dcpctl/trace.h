/*
 * `dcpctl bench trace`: a trace file, the tokens that stand for it, and what
 * replaying it gave. One thread.
 *
 * A trace names the blocks of each prompt by ids; equal ids, from the first on,
 * mean equal text. Token p of a prompt follows from the id of its block and
 * from p alone, so prompts share exactly the prefix that the trace says.
 */
#ifndef DCPCTL_TRACE_H
#define DCPCTL_TRACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_PAGE 64u			/* tokens of a page, whatever D is */
#define TRACE_MAX_LEN (1u << 24)	/* tokens of a prompt, of an answer */

/* --- the file: trace_file.c ---------------------------------------------- */

struct trace_turn {
	uint32_t input, output;		/* tokens, as in the file */
	uint32_t n_ids;
	bool follows;			/* begins with the turn before it */
	size_t line;			/* in the file, from 1 */
	double arrival;			/* s, from "timestamp"; -1: none */
	int64_t *ids;			/* [n_ids] of blocks */
};

struct trace_session {
	uint32_t n_turns, cap;
	struct trace_turn *turn;	/* in the file's order */
};

struct trace {
	uint32_t n_sessions, cap;
	uint32_t block;			/* tokens, unscaled, of an id */
	uint32_t n_turns;		/* of all sessions */
	struct trace_session *session;
};

struct trace_error {
	char text[400];			/* one line */
};

/*
 * Reads JSONL: input_length, output_length, hash_ids; session_id, without which
 * a line is a session of one turn. The first `turns` of the first `sessions`
 * are kept (0: all). block 0: found by the number of ids. 0 or -errno.
 */
int trace_load(const char *path, uint32_t sessions, uint32_t turns,
    uint32_t block, struct trace *, struct trace_error *);
void trace_free(struct trace *);

/* --- tokens and pages: trace_tokens.c ------------------------------------ */

/* Whole tokens of len at a scale, 1 at least. */
uint64_t trace_scaled(uint32_t len, double scale);

struct trace_text {		/* how ids become tokens */
	double scale;
	uint64_t seed;
	uint32_t vocab;
};

/*
 * Tokens from..to of a turn's prompt (positions after scaling) into out[to];
 * those before `from` are left alone. What lies behind the last id belongs to
 * `own`, a number of this request alone.
 */
void trace_fill(const struct trace *, const struct trace_turn *, uint64_t own,
    const struct trace_text *, uint32_t from, uint32_t to, uint32_t *out);

/* The pages that a cache without end would hold: hashes of whole prefixes. */
struct trace_pages {
	uint64_t *slot;			/* [cap], 0: empty */
	size_t n, cap;			/* cap: 0 or a power of two */
};

/*
 * Tokens of the leading pages that are there, with at least one token left to
 * compute.
 */
uint32_t trace_pages_find(const struct trace_pages *, const uint32_t *tokens,
    uint32_t n);
int trace_pages_add(struct trace_pages *, const uint32_t *tokens, uint32_t n);
void trace_pages_free(struct trace_pages *);

/* --- what came out: trace_report.c --------------------------------------- */

struct trace_result {			/* of one request; times in s */
	uint32_t session, turn;		/* from 0 */
	uint32_t input, output;		/* tokens asked for, scaled */
	uint32_t cached, ideal;		/* of input */
	uint32_t got;			/* tokens */
	double sent, first, last, done;
	char *error;			/* NULL: it succeeded */
};

struct trace_run {
	struct trace_result *result;	/* [n], in the file's order */
	uint32_t n, concurrency, sessions;
	double break_even;		/* cached tokens a new one at which q
					   and kv take the same; -1: unknown */
	double *gaps;			/* between tokens of a stream, s */
	size_t n_gaps;
};

/* A new object with every figure; sorts the gaps. NULL: out of memory. */
json_t *trace_figures(struct trace_run *);
void trace_print(const json_t *figures);
/* One line per request. 0 or -errno. */
int trace_csv(const struct trace_run *, FILE *);

/* --- the command: trace.c ------------------------------------------------ */

int bench_trace(int argc, char **argv);

#endif
