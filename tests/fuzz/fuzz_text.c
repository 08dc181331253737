/*
 * The text part under input that nobody chose: seeded random bytes, or the
 * files named as arguments (as a fuzzer's corpus has them).
 *
 * Each input is taken three ways: as text to encode, as damage to a
 * tokenizer.json, as a chat request. What must
 * hold is written where it is checked. FUZZ_OPS (2000; 200000 when
 * DCPD_TEST_LONG is set) inputs from FUZZ_SEED (1).
 */
#include "config.h"

#include <errno.h>
#include <unistd.h>

#include "dcpd/text/buf.h"
#include "dcpd/text/utf8.h"
#include "tests/fuzz/input.h"
#include "tests/unit/text_util.h"

static uint64_t state;
static struct dcpd_tokenizer *tok[2];
static char dir[] = "/tmp/fuzz_text.XXXXXX";
static char *good_file;
static size_t good_len;
static json_t *tools;

static uint32_t
rnd(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % n);
}

/* --- text ------------------------------------------------------------- */

/* Valid text comes back as it was; other text is refused, and only that. */
static void
as_text(struct input in)
{
	const struct dcpd_tokenizer *t = tok[next(&in) & 1];
	unsigned flags = next(&in) & 1 ? DCPD_PLAIN : 0;
	const char *s = (const char *)in.p;
	size_t ok = dcpd_utf8_valid(s, in.n), len;
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	char *back;
	int rc;

	rc = dcpd_encode(t, s, in.n, flags, SIZE_MAX, &ids, &err);
	DCPD_ASSERT(rc == (ok == in.n ? 0 : -EILSEQ));
	if (rc == 0) {
		back = dcpd_decode(t, ids.v, ids.n, false, &len);
		DCPD_ASSERT(len == in.n && memcmp(back, s, len) == 0);
		free(back);
	}
	dcpd_ids_free(&ids);
}

/* --- tokenizer.json --------------------------------------------------- */

/* It opens, or the error names the file; what opens can encode. */
static void
as_file(struct input in)
{
	char *s = malloc(good_len + 1), path[64];
	struct dcpd_tokenizer *t = NULL;
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	size_t len = good_len, at;
	unsigned i, cuts = 1 + next(&in) % 4;
	FILE *f;

	memcpy(s, good_file, good_len);
	for (i = 0; i < cuts; i++) {
		at = (next(&in) << 16 | next(&in) << 8 | next(&in)) % len;
		if (next(&in) & 1) {
			s[at] = (char)next(&in);
		} else {	/* a piece is missing */
			size_t n = next(&in) % (len - at);

			memmove(s + at, s + at + n, len - at - n);
			len -= n;
		}
	}
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	f = fopen(path, "w");
	DCPD_ASSERT(f != NULL && fwrite(s, 1, len, f) == len);
	fclose(f);
	if (dcpd_tokenizer_open(dir, &t, &err) == 0) {
		dcpd_encode(t, "I'm <|user|> 12  x\n", 19, 0, SIZE_MAX, &ids,
		    &err);
		dcpd_tokenizer_close(t);
	} else {
		DCPD_ASSERT(t == NULL && err.code < 0);
		DCPD_ASSERT(strncmp(err.text, path, strlen(path)) == 0);
	}
	dcpd_ids_free(&ids);
	free(s);
}

/* --- chat requests ---------------------------------------------------- */

static json_t *
some_text(struct input *in)
{
	static const char *const s[] = { "hi", "", " a ", "<|user|>",
		"x</think>y", "<think>", "\u20ac\n", "{\"a\": 1.5}", "{}",
		"{\"", "\uff5cDSML\uff5c", "system", "user", "assistant",
		"tool", "developer", "text", "f", "none", "high" };

	return json_string(s[next(in) % (sizeof s / sizeof *s)]);
}

static json_t *
some_value(struct input *in, unsigned depth)
{
	static const char *const keys[] = { "role", "content", "tool_calls",
		"reasoning_content", "function", "name", "arguments", "type",
		"text", "tools", "enable_thinking", "chat_template_kwargs",
		"reasoning_effort", "thinking", "clear_thinking",
		"response_format", "tool_choice" };
	unsigned i, n, k = next(in);
	json_t *v;

	if (depth == 0 || k % 8 < 4)
		return k % 8 < 3 ? some_text(in) : k & 8 ? json_true() :
		    k & 16 ? json_null() : json_real(k / 7.0);
	n = k / 8 % 5;
	if (k % 8 == 4) {
		v = json_array();
		for (i = 0; i < n; i++)
			json_array_append_new(v, some_value(in, depth - 1));
		return v;
	}
	v = json_object();
	for (i = 0; i < n; i++)
		json_object_set_new(v, keys[next(in) % (sizeof keys /
		    sizeof *keys)], some_value(in, depth - 1));
	return v;
}

/* Mostly right, so that the templates are reached. */
static json_t *
some_message(struct input *in)
{
	static const char *const role[] = { "system", "user", "assistant",
		"tool", "developer" };
	unsigned k = next(in);
	json_t *m;

	if (k % 16 == 0)
		return some_value(in, 3);
	m = json_object();
	json_object_set_new(m, "role", json_string(role[k % 5]));
	json_object_set_new(m, "content", k % 11 == 0 ? some_value(in, 2) :
	    some_text(in));
	if (k & 32)
		json_object_set_new(m, "reasoning_content", some_text(in));
	if (k & 64 && k % 5 == 2)
		json_object_set_new(m, "tool_calls", json_pack(
		    "[{s:{s:o, s:o}}]", "function", "name", some_text(in),
		    "arguments", k & 128 ? some_value(in, 2) :
		    json_pack("{s:o}", "k", some_value(in, 2))));
	return m;
}

/* A prompt in UTF-8, or an error with a text; as ids the same prompt. */
static void
as_chat(struct input in)
{
	enum dcpd_chat kind = (enum dcpd_chat)(next(&in) % 6);
	const struct dcpd_tokenizer *t = tok[kind == DCPD_CHAT_DSV32];
	json_t *messages = json_array(), *options = NULL;
	bool thinking = false, also = false;
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	unsigned i, n = 1 + next(&in) % 6;
	char *s, *back;
	size_t len;
	int rc;

	for (i = 0; i < n; i++)
		json_array_append_new(messages, some_message(&in));
	if (next(&in) & 1)
		options = some_value(&in, 3);
	if (json_is_object(options) && next(&in) & 1)
		json_object_set(options, "tools", tools);
	s = dcpd_chat_render(kind, messages, options, &thinking, &err);
	DCPD_ASSERT(s != NULL || (err.code < 0 && err.text[0] != '\0'));
	rc = dcpd_chat_encode(t, kind, messages, options, next(&in) & 1 ?
	    DCPD_PLAIN : 0, SIZE_MAX, &ids, &also, &err);
	DCPD_ASSERT((rc == 0) == (s != NULL) && thinking == also);
	if (rc == 0) {
		DCPD_ASSERT(dcpd_utf8_valid(s, strlen(s)) == strlen(s));
		back = dcpd_decode(t, ids.v, ids.n, false, &len);
		DCPD_ASSERT(strcmp(back, s) == 0);
		free(back);
	}
	free(s);
	dcpd_ids_free(&ids);
	json_decref(messages);
	json_decref(options);
}

/* --- driver ----------------------------------------------------------- */

static void
one_input(const unsigned char *p, size_t n)
{
	struct input in = { p, n };

	as_text(in);
	as_file(in);
	as_chat(in);
}

/* Random bytes, in places replaced by text. */
static size_t
generate(unsigned char *p, size_t cap)
{
	static const char *const bit[] = { "the ", "\u20ac", "<|user|>", "  ",
		"\r\n", "\U0001f44d\U0001f3fd", "\u65e5\u672c", "<think>",
		"'s ", "123", "\u180e", "e\u0301" };
	size_t n = 2 + rnd((uint32_t)cap - 32), i, len;
	bool text = rnd(2);

	for (i = 0; i < n; i++)
		p[i] = (unsigned char)rnd(i < 2 || !text ? 256 : 128);
	for (i = 2; i < n && text; i += len) {
		const char *b = bit[rnd(sizeof bit / sizeof *bit)];

		len = strlen(b);
		if (rnd(3) == 0 && i + len <= n)
			memcpy(p + i, b, len);
	}
	return n;
}

static void
from_file(const char *path)
{
	struct dcpd_err err = { 0 };
	char *p = NULL;
	size_t n;

	if (dcpd_read_file(path, 1 << 24, &p, &n, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(EXIT_FAILURE);
	}
	one_input((unsigned char *)p, n);
	free(p);
}

static uint64_t
from_env(const char *name, uint64_t other)
{
	const char *s = getenv(name);

	return s == NULL ? other : strtoull(s, NULL, 10);
}

static void
set_up(void)
{
	static const char schema[] = "[{\"type\":\"function\",\"function\":{"
	    "\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
	    "\"string\"},\"i\":{\"type\":\"integer\"}}}}}]";
	struct dcpd_err err = { 0 };
	char path[1024];

	tok[0] = text_tokenizer("tests/data/tok/tok-glm");
	tok[1] = text_tokenizer("tests/data/tok/tok-ds");
	tools = json_loads(schema, 0, NULL);
	text_path("tests/data/tok/tok-glm/tokenizer.json", path, sizeof path);
	DCPD_ASSERT(dcpd_read_file(path, 1 << 24, &good_file, &good_len,
	    &err) == 0);
	DCPD_ASSERT(tools != NULL && mkdtemp(dir) != NULL);
}

static void
tear_down(void)
{
	char path[64];

	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	unlink(path);
	rmdir(dir);
	free(good_file);
	json_decref(tools);
	dcpd_tokenizer_close(tok[0]);
	dcpd_tokenizer_close(tok[1]);
}

int
main(int argc, char **argv)
{
	uint64_t ops = from_env("FUZZ_OPS",
	    getenv("DCPD_TEST_LONG") != NULL ? 200000 : 2000);
	uint64_t seed = from_env("FUZZ_SEED", 1), i;
	unsigned char buf[512];
	int a;

	set_up();
	for (a = 1; a < argc; a++)
		from_file(argv[a]);
	if (argc == 1) {
		fprintf(stderr, "fuzz_text: %llu inputs, FUZZ_SEED=%llu\n",
		    (unsigned long long)ops, (unsigned long long)seed);
		state = seed * 0x9e3779b97f4a7c15u + 1;
		for (i = 0; i < ops; i++)
			one_input(buf, generate(buf, sizeof buf));
	}
	tear_down();
	return EXIT_SUCCESS;
}
