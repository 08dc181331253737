/*
 * How long a mask takes, for a vocabulary of 150,000 tokens made up here:
 * pieces of words, punctuation that ends strings and opens others, spaces,
 * broken characters, as byte-level vocabularies have them. Answers are random
 * tokens out of the masks; each mask is timed, and so is each schema, in CPU
 * time.
 *
 * usage: bench_mask [TOKENS [SEED]]
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dcpd/text/gram.h"
#include "dcpd/text/tok.h"

static uint64_t rng;

static uint32_t
below(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((rng >> 33) % n);
}

/* --- a vocabulary ------------------------------------------------------ */

static void
letters(char *s, uint32_t n)
{
	static const char common[] =
	    "eeeeaaaiiooutttnnnsssrrrhhlldcmpgfybwvkxz";

	for (uint32_t i = 0; i < n; i++)
		s[i] = common[below(sizeof common - 1)];
	s[n] = '\0';
}

static void
make_word(char *s, uint32_t id)
{
	static const char *const punct[] = { "\"", "\",", "\":", "\", \"",
		"\":\"", "\"}", "\"],", "}}", "},", "{\"", "[\"", "[[", "]]",
		": ", ", ", "\n", "\n  ", "\n    ", "\": ", "\":[", "\"},{\"",
		"\":{\"", "0", "00", "12", "-", ".5", "true", "false", "null",
		"e", "\\n", "\\\"", "\\u", "()", "[];", "/*", "=>", "&&" };
	char w[40];
	uint32_t kind = below(100);

	letters(w, 2 + below(9));
	if (id < 256)
		sprintf(s, "%c", (int)id);
	else if (kind < 55)
		sprintf(s, " %s", w);
	else if (kind < 80)
		sprintf(s, "%s", w);
	else if (kind < 86)
		sprintf(s, "%.3s%s", w, punct[below(39)]);
	else if (kind < 90)
		sprintf(s, "%s%.2s", punct[below(39)], w);
	else if (kind < 96)	/* two Chinese characters, or one and a half */
		sprintf(s, "\xe4%c%c\xe5%c%.1s", (int)(0x80 + below(64)),
		    (int)(0x80 + below(64)), (int)(0x80 + below(64)),
		    below(2) ? "\x90" : "");
	else if (kind < 98)
		sprintf(s, "%*s", (int)(1 + below(80)), "");
	else
		sprintf(s, "%u", below(1000));
}

static struct dcpd_tokenizer *
vocabulary(uint32_t n)
{
	struct dcpd_tokenizer *t = calloc(1, sizeof *t);
	char s[256];

	t->magic = TOK_MAGIC;
	t->tok = calloc(n, sizeof *t->tok);
	t->limit = n;
	t->words = malloc(sizeof *t->words);	/* a table without words */
	t->words[0] = TOK_NONE;
	for (uint32_t id = 0; id < n; id++) {
		s[1] = '\0';
		make_word(s, id);
		t->tok[id] = (struct tok_entry){ .off = (uint32_t)t->arena.n,
		    .len = id == 0 ? 1 : (uint32_t)strlen(s), .used = true,
		    .special = id == n - 1 };
		dcpd_buf_add(&t->arena, s, t->tok[id].len);
	}
	return t;
}

/* --- answers ----------------------------------------------------------- */

static const struct { const char *name, *schema; } cases[] = {
	{ "any object", NULL },
	{ "a person", "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
	  "\"string\"},\"email\":{\"type\":\"string\",\"pattern\":"
	  "\"^[a-z0-9.]+@[a-z]+\\\\.[a-z]+$\"},\"age\":{\"type\":\"integer\","
	  "\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\","
	  "\"items\":{\"type\":\"string\",\"maxLength\":40},\"maxItems\":8},"
	  "\"kind\":{\"enum\":[\"a\",\"b\",\"other\"]}},\"required\":[\"name\","
	  "\"email\",\"age\",\"tags\",\"kind\"]}" },
	{ "a tree", "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":"
	  "\"object\",\"properties\":{\"v\":{\"anyOf\":[{\"type\":\"string\"},"
	  "{\"type\":\"number\"}]},\"c\":{\"type\":\"array\",\"items\":"
	  "{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\",\"c\"]}}}" },
	{ "20 fields and others", "{\"type\":\"object\",\"properties\":{"
	  "\"f0\":{},\"f1\":{},\"f2\":{},\"f3\":{},\"f4\":{},\"f5\":{},"
	  "\"f6\":{},\"f7\":{},\"f8\":{},\"f9\":{},\"g0\":{},\"g1\":{},"
	  "\"g2\":{},\"g3\":{},\"g4\":{},\"g5\":{},\"g6\":{},\"g7\":{},"
	  "\"g8\":{},\"g9\":{}},\"additionalProperties\":{\"type\":"
	  "\"string\",\"maxLength\":2000}}" },
};

#define STEPS 3000u

/* CPU time of this thread, ns: others may share the machine. */
static uint64_t
cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int
by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double
us(uint64_t ns)
{
	return (double)ns * 1e-3;
}

/* One of those allowed; the end where it may come, one time in eight. */
static uint32_t
choose(const uint32_t *bits, uint32_t vocab)
{
	uint32_t n = 0, pick, id;

	if ((bits[(vocab - 1) / 32] >> (vocab - 1) % 32 & 1) && below(8) == 0)
		return vocab - 1;
	for (uint32_t w = 0; w < (vocab + 31) / 32; w++)
		n += (uint32_t)__builtin_popcount(bits[w]);
	pick = below(n);
	for (id = 0; !(bits[id / 32] >> id % 32 & 1) || pick-- > 0; id++)
		;
	return id;
}

static void
run(struct dcpd_grams *gs, const char *name, const json_t *options,
    uint32_t vocab)
{
	uint32_t *bits = calloc((vocab + 31) / 32, sizeof *bits);
	uint32_t n = 0, slow = 0;
	uint64_t *took = calloc(STEPS, sizeof *took), t, compiled = 0, push = 0;
	struct dcpd_gram *r = NULL;
	struct dcpd_err err = { 0 };

	while (n < STEPS) {
		uint32_t id = 0;

		t = cpu_ns();
		if (dcpd_gram_open(gs, options, DCPD_PARSE_RAW, false, &r,
		    &err) != 0) {
			fprintf(stderr, "%s: %s\n", name, err.text);
			exit(1);
		}
		if (n == 0)
			compiled = cpu_ns() - t;
		while (n < STEPS && id != vocab - 1) {
			t = cpu_ns();
			dcpd_gram_mask(r, bits);
			took[n++] = cpu_ns() - t;
			id = choose(bits, vocab);
			t = cpu_ns();
			if (dcpd_gram_push(r, id) != 0)
				abort();
			push += cpu_ns() - t;
		}
		dcpd_gram_close(r);
	}
	for (uint32_t i = 0; i < n; i++)
		slow += took[i] > 1000000;
	qsort(took, n, sizeof *took, by_time);
	printf("%-22s %9.1f %9.1f %9.1f %9.1f %9.1f %5u %9.2f\n", name,
	    us(compiled), us(took[n / 2]), us(took[n * 9 / 10]),
	    us(took[n * 99 / 100]), us(took[n - 1]), slow, us(push) / n);
	free(took);
	free(bits);
}

int
main(int argc, char **argv)
{
	uint32_t vocab = argc > 1 ? (uint32_t)atol(argv[1]) : 150000, eos;
	struct dcpd_tokenizer *t;
	struct dcpd_grams *gs;
	uint64_t t0;

	rng = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	t = vocabulary(vocab);
	eos = vocab - 1;
	t0 = cpu_ns();
	if (dcpd_grams_new(t, vocab, &eos, 1, &gs) != 0)
		return 1;
	printf("trie of %u tokens: %.1f ms\n", vocab, us(cpu_ns() - t0) /
	    1000);
	printf("%-22s %9s %9s %9s %9s %9s %5s %9s\n", "us", "compile",
	    "mask p50", "p90", "p99", "max", ">1ms", "push");
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *o = cases[i].schema == NULL ?
		    json_pack("{s:{s:s}}", "response_format", "type",
		    "json_object") :
		    json_pack("{s:{s:s,s:{s:o}}}", "response_format", "type",
		    "json_schema", "json_schema", "schema",
		    json_loads(cases[i].schema, 0, NULL));

		run(gs, cases[i].name, o, vocab);
		json_decref(o);
	}
	dcpd_grams_free(gs);
	free(t->words);
	free(t->tok);
	dcpd_buf_free(&t->arena);
	free(t);
	return 0;
}
