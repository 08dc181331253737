/*
 * An adversary of constrained decoding: answers made of random tokens out of
 * those that the mask allows, for tests/grammar/test_schemas.py and
 * tests/grammar/test_calls.py.
 *
 * usage: gram_walk MODEL_DIR SAMPLES SEED [glm|dsv32 EOS]
 * Standard input: one response_format per line. Output, one JSON per line:
 * {"line": N, "error": TEXT}, or {"line": N, "text": ..., "done": BOOL, "utf8":
 * whether it is, "jansson": whether that reads it, "tokens": N}. With a parser:
 * options per line, and what the parser makes of it besides: "calls": [[NAME,
 * ARGUMENTS]] and "content". It ends with
 * status 2 if a mask is empty or if a token that was allowed is then refused.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/buf.h"
#include "dcpd/text/utf8.h"
#include "tests/unit/text_util.h"

#define WILD 120		/* tokens of any kind, then it wants to end */
#define MOST 4000

static struct dcpd_tokenizer *tok;
static uint32_t vocab, eos, *bits, of_byte[256];
static uint64_t rng;
static enum dcpd_parser parser = DCPD_PARSE_RAW;

struct heard {			/* what the parser says */
	json_t *calls;
	struct dcpd_buf content;
};

static uint32_t
random_below(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((rng >> 33) % n);
}

static bool
allowed(uint32_t id)
{
	return bits[id / 32] >> id % 32 & 1;
}

/* The token of exactly this byte, if it is allowed. */
static bool
byte_token(unsigned char byte, uint32_t *id)
{
	*id = of_byte[byte];
	return *id != UINT32_MAX && allowed(*id);
}

static void
find_bytes(void)
{
	const char *s;
	bool special;
	size_t n;

	memset(of_byte, 0xff, sizeof of_byte);
	for (uint32_t i = 0; i < vocab; i++)
		if (dcpd_token_bytes(tok, i, &s, &n, &special) == 0 &&
		    !special && n == 1)
			of_byte[(unsigned char)*s] = i;
}

/* A token that leads to the end, if one is allowed. */
static bool
closer(char last, uint32_t *id)
{
	static const char *const marks[] = { "</tool_call>", "</arg_value>",
		"\uff5cDSML\uff5c" };
	static const char closers[] = "\"}]<";
	int64_t k;

	if (parser == DCPD_PARSE_DSV32 && last == '<' && byte_token('/', id))
		return true;
	for (unsigned i = 0; i < 3 && parser != DCPD_PARSE_RAW; i++) {
		k = dcpd_token_id(tok, marks[i]);
		if (k >= 0 && allowed((uint32_t)k)) {
			*id = (uint32_t)k;
			return true;
		}
	}
	for (unsigned i = 0, k0 = parser == DCPD_PARSE_DSV32 ?
	    random_below(4) : 0; i < 4; i++)
		if (byte_token((unsigned char)closers[(i + k0) % 4], id))
			return true;
	return false;
}

static uint32_t
choose(unsigned step, char last)
{
	uint32_t n = 0, id = 0, pick;

	if (allowed(eos) && (step > WILD || random_below(3) == 0))
		return eos;
	if (step > WILD && random_below(10) < 9 && closer(last, &id))
		return id;
	for (uint32_t i = 0; i < vocab; i++)
		n += allowed(i);
	if (n == 0) {
		fprintf(stderr, "an empty mask\n");
		exit(2);
	}
	pick = random_below(n);
	for (id = 0; !allowed(id) || pick-- > 0; id++)
		;
	return id;
}

static int
hear(void *arg, uint32_t channel, uint32_t call, const char *s, size_t n)
{
	struct heard *h = arg;
	json_t *c, *args;

	if (channel == DCP_CH_CONTENT) {
		dcpd_buf_add(&h->content, s, n);
		return 0;
	}
	if (channel == DCP_CH_TOOL_NAME)
		json_array_append_new(h->calls, json_pack("[s%,s]", s, n, ""));
	c = json_array_get(h->calls, call);
	args = json_array_get(c, 1);
	if (channel == DCP_CH_TOOL_ARGS)
		json_array_set_new(c, 1, json_pack("s+%",
		    json_string_value(args), s, n));
	return 0;
}

/* One sample; the text up to what is UTF-8 of it. */
static void
print(long line, const struct dcpd_buf *b, bool done, unsigned tokens,
    struct heard *h)
{
	size_t n = dcpd_utf8_valid(b->v, b->n);
	json_t *o, *v;

	v = json_loadb(b->n > 0 ? b->v : "", n, JSON_DECODE_ANY, NULL);
	o = json_pack("{s:I,s:s%,s:b,s:b,s:b,s:i}", "line", (json_int_t)line,
	    "text", b->n > 0 ? b->v : "", n, "done", done, "utf8", n == b->n,
	    "jansson", v != NULL, "tokens", (int)tokens);
	json_decref(v);
	if (parser != DCPD_PARSE_RAW) {
		json_object_set(o, "calls", h->calls);
		json_object_set_new(o, "content", json_stringn(
		    h->content.n > 0 ? h->content.v : "", h->content.n));
	}
	json_dumpf(o, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(o);
}

static struct dcpd_out *
parse_as(const json_t *options)
{
	struct dcpd_out_config c = { .parser = parser,
	    .tools = json_object_get(options, "tools") };
	struct dcpd_out *o = NULL;

	if (dcpd_out_new(tok, &c, &o) != 0)
		exit(3);
	return o;
}

static void
sample(struct dcpd_grams *gs, const json_t *options, long line)
{
	struct dcpd_buf text = { 0 };
	struct dcpd_gram *r = NULL;
	struct dcpd_err err = { 0 };
	struct heard h = { .calls = json_array() };
	struct dcpd_out *out;
	unsigned step = 0;
	bool done = false, special;
	const char *s;
	uint32_t id;
	size_t n;

	if (dcpd_gram_open(gs, options, parser, false, &r, &err) != 0) {
		json_t *o = json_pack("{s:I,s:s}", "line", (json_int_t)line,
		    "error", err.text);

		json_dumpf(o, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(o);
		json_decref(h.calls);
		return;
	}
	if (r == NULL) {
		fprintf(stderr, "line %ld: nothing is constrained\n", line);
		exit(2);
	}
	out = parse_as(options);
	for (; step < MOST && !done; step++) {
		if (dcpd_gram_mask(r, bits) != 0)
			exit(3);
		id = choose(step, text.n > 0 ? text.v[text.n - 1] : '\0');
		if (dcpd_gram_push(r, id) != 0) {
			fprintf(stderr, "line %ld: token %u was allowed, then "
			    "refused after \"%.*s\"\n", line, id,
			    (int)text.n, text.v);
			exit(2);
		}
		done = id == eos;
		if (!done && dcpd_token_bytes(tok, id, &s, &n, &special) == 0)
			dcpd_buf_add(&text, s, n);
		if (!done && dcpd_out_push(out, id, hear, &h) != 0)
			exit(3);
	}
	dcpd_out_finish(out, hear, &h);
	print(line, &text, done, step, &h);
	dcpd_out_free(out);
	json_decref(h.calls);
	dcpd_buf_free(&h.content);
	dcpd_buf_free(&text);
	dcpd_gram_close(r);
}

int
main(int argc, char **argv)
{
	struct dcpd_grams *gs;
	char *buf = NULL;
	size_t cap = 0;
	long samples, line;

	if (argc != 4 && argc != 6) {
		fprintf(stderr, "usage: gram_walk MODEL_DIR SAMPLES SEED "
		    "[glm|dsv32 EOS]\n");
		return 1;
	}
	if (argc == 6)
		parser = strcmp(argv[4], "glm") == 0 ? DCPD_PARSE_GLM :
		    DCPD_PARSE_DSV32;
	tok = text_tokenizer(argv[1]);
	samples = atol(argv[2]);
	rng = strtoull(argv[3], NULL, 10);
	vocab = dcpd_token_limit(tok);
	eos = (uint32_t)dcpd_token_id(tok, argc == 6 ? argv[5] :
	    "<|endoftext|>");
	bits = calloc((vocab + 31) / 32, sizeof *bits);
	find_bytes();
	if (dcpd_grams_new(tok, vocab, &eos, 1, &gs) != 0)
		return 3;
	for (line = 0; getline(&buf, &cap, stdin) > 0; line++) {
		json_t *v = json_loads(buf, JSON_DECODE_ANY, NULL);
		json_t *options = argc == 6 ? v :
		    json_pack("{s:o}", "response_format", v);

		for (long i = 0; i < samples; i++)
			sample(gs, options, line);
		json_decref(options);
	}
	dcpd_grams_free(gs);
	dcpd_tokenizer_close(tok);
	free(bits);
	free(buf);
	return 0;
}
