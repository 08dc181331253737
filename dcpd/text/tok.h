/*
 * Inside of a tokenizer; shared by tokenizer.c (reading tokenizer.json),
 * pattern.c (its regular expressions), encode.c and decode.c. Nothing here
 * changes after dcpd_tokenizer_open, so any thread may use it.
 */
#ifndef DCPD_TEXT_TOK_H
#define DCPD_TEXT_TOK_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "dcpd/text/buf.h"
#include "dcpd/text/text.h"

#define TOK_MAGIC 0x746f6b31u
#define TOK_NONE UINT32_MAX

/* Limits on a file that comes from elsewhere. */
#define TOK_MAX_FILE (128u << 20)	/* bytes of tokenizer.json */
#define TOK_MAX_ID (1u << 22)		/* ids are below */
#define TOK_MAX_MERGES (1u << 22)
#define TOK_MAX_TOKEN (64u << 10)	/* bytes of one token */
#define TOK_MAX_SPLITS 16
#define TOK_MAX_TEMPLATE (4u << 20)	/* bytes of a file with a template */
#define TOK_MAX_REGEX (16u << 10)	/* bytes of one expression */
/* A longer run that no expression divides (1 MiB of one letter) is refused. */
#define TOK_MAX_WORD (1u << 20)

struct tok_entry {
	uint32_t off, len;	/* what it decodes to, in .arena */
	bool used, special;
};

struct tok_added {
	char *content;
	uint32_t len, id;
	bool special, normalized, lstrip, rstrip, single_word;
};

/* Set of added tokens as a byte trie; node 0 is the root. */
struct tok_node {
	uint32_t child, sibling;	/* 0 = none */
	int32_t added;			/* index into .added, -1 = none */
	unsigned char byte;
};
struct tok_trie {
	struct tok_node *v;
	uint32_t n, cap;
	bool first[256];		/* a token begins with this byte */
};

struct tok_merge {			/* open addressing; id NONE = free */
	uint64_t pair;			/* left id << 32 | right id */
	uint32_t rank, id;
};

struct dcpd_tokenizer {
	uint32_t magic;
	struct tok_entry *tok;		/* [limit] */
	uint32_t limit, cap;
	struct dcpd_buf arena;
	uint32_t byte_id[256];		/* token of one byte, or NONE */
	uint32_t *words;		/* hash of plain tokens by bytes */
	uint32_t words_mask;
	struct tok_merge *merges;
	uint32_t merges_mask;
	bool ignore_merges;
	pcre2_code *split[TOK_MAX_SPLITS];
	unsigned n_split;
	struct tok_added *added;
	uint32_t n_added;
	/* HF looks for them in two passes: [1] those marked "normalized". */
	struct tok_trie trie[2];
	pcre2_code *word_char;		/* for single_word, or NULL */
	char *chat_template;		/* the folder's text, or NULL */
};

/*
 * Code point of a byte in the alphabet of byte-level BPE and back: printable
 * Latin-1 stands for itself, the rest for U+0100 and up. -1: no byte.
 */
uint32_t tok_byte_char(unsigned char byte);
int tok_char_byte(uint32_t c);

/* Plain token with exactly these bytes, or NONE. */
uint32_t tok_word(const struct dcpd_tokenizer *, const char *s, size_t len);
/* Merge of two tokens, or NULL. */
const struct tok_merge *tok_merge_of(const struct dcpd_tokenizer *,
    uint32_t left, uint32_t right);

/*
 * Compile an expression of tokenizer.json, written for Oniguruma, so that
 * PCRE2 finds the same matches; what cannot be said alike is refused.
 */
int tok_pattern(const char *regex, size_t len, pcre2_code **out,
    struct dcpd_err *);

struct tok_span { size_t start, end; };	/* bytes, ascending, disjoint */
/*
 * dcpd_encode where added tokens are not recognised if any part of them lies
 * in one of the plain spans.
 */
int tok_encode(const struct dcpd_tokenizer *, const char *s, size_t len,
    const struct tok_span *plain, size_t n_plain, size_t max,
    struct dcpd_ids *out, struct dcpd_err *);

#endif
