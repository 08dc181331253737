/*
 * Grammars from schemas that nobody chose: the corpus in
 * tests/data/fuzz/schemas.jsonl, mutated in its bytes and in its shape, or the
 * files named as arguments. Whatever compiles is walked with random bytes out
 * of those that are allowed; there must always be one, or the text is whole,
 * and what is whole must be JSON. What does not compile must say why.
 *
 * FUZZ_OPS (1500; 100000 when DCPD_TEST_LONG is set) schemas from FUZZ_SEED
 * (1).
 */
#include "config.h"

#include <errno.h>

#include "dcpd/text/gram.h"
#include "dcpd/text/utf8.h"
#include "tests/unit/text_util.h"

#define MAX_SEEDS 256u
#define CAP 8192u

static uint64_t state;
static char *seed_text[MAX_SEEDS];
static uint32_t n_seeds;
static uint64_t compiled, refused;

static uint32_t
rnd(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

/* --- a schema that compiles -------------------------------------------- */

/* The byte that is taken among those allowed, -1: none. */
static int
pick(struct gram_step *s, const struct gram_cfg *c, bool end)
{
	static const char closers[] = "\"}]";
	struct gram_mark m = gram_mark(&s->arena);
	int allowed[256], n = 0;
	struct gram_cfg next;

	for (int b = 0; b < 256; b++)
		if (gram_step(s, c, (uint8_t)b, &next) == STEP_OK)
			allowed[n++] = b;
	gram_release(&s->arena, m);
	DCPD_ASSERT(!s->arena.failed);
	if (n == 0)
		return -1;
	for (unsigned k = 0; end && k < 3; k++)
		for (int i = 0; i < n; i++)
			if (allowed[i] == closers[k] && rnd(8) > 0)
				return allowed[i];
	return allowed[rnd((uint32_t)n)];
}

static void
walk(struct gram *g)
{
	struct gram_item it = { .def = G_ROOT, .q = P_VALUE };
	struct gram_cfg c = { .it = &it, .n = 1 }, next;
	struct gram_step s;
	char text[300];
	uint32_t n = 0;
	json_t *v;
	int b = 0;

	DCPD_ASSERT(gram_step_init(&s, g) == 0);
	while (n < sizeof text) {
		if (gram_complete(g, &c) && rnd(3) == 0)
			break;
		b = pick(&s, &c, n > sizeof text / 2);
		/* No dead end: either it goes on or it is whole. */
		DCPD_ASSERT(b >= 0 || gram_complete(g, &c));
		if (b < 0)
			break;
		DCPD_ASSERT(gram_step(&s, &c, (uint8_t)b, &next) == STEP_OK);
		c = next;
		text[n++] = (char)b;
	}
	if (n < sizeof text) {
		v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
		DCPD_ASSERT(v != NULL);
		json_decref(v);
	}
	gram_step_free(&s);
}

static void
one_schema(const json_t *schema)
{
	struct dcpd_err err = { 0 };
	struct gram *g = NULL;
	int rc = gram_compile(schema, &g, &err);

	if (rc != 0) {
		DCPD_ASSERT(rc == -EINVAL && g == NULL);
		DCPD_ASSERT(err.text[0] != '\0' && err.code == rc);
		refused++;
		return;
	}
	compiled++;
	walk(g);
	walk(g);
	gram_free(g);
}

/* --- mutations --------------------------------------------------------- */

static json_t *
seed(void)
{
	return json_loads(seed_text[rnd(n_seeds)], JSON_DECODE_ANY, NULL);
}

static json_t *
odd_value(void)
{
	static const char *const v[] = { "null", "true", "false", "-1", "0",
		"1.5", "1e308", "9223372036854775807", "\"\"", "\"^a*b\"",
		"\"(\"", "[]", "{}", "\"string\"", "[\"integer\",\"object\"]",
		"{\"$ref\":\"#\"}", "{\"not\":{}}", "\"#/properties/a\"" };

	return json_loads(v[rnd(sizeof v / sizeof *v)], JSON_DECODE_ANY, NULL);
}

/* Somewhere in v: a part is replaced, dropped, or added from another seed. */
static void
bend(json_t *v, unsigned depth)
{
	static const char *const key[] = { "type", "properties", "required",
		"items", "prefixItems", "anyOf", "allOf", "oneOf", "enum",
		"const", "$ref", "pattern", "minimum", "maximum", "minLength",
		"maxLength", "minItems", "maxItems", "additionalProperties",
		"$defs", "exclusiveMinimum", "a" };
	const char *k = key[rnd(sizeof key / sizeof *key)], *name;
	json_t *x = NULL;
	size_t n, i;

	if (json_is_object(v)) {
		n = json_object_size(v);
		i = n == 0 ? 0 : rnd((uint32_t)n);
		json_object_foreach(v, name, x)
			if (i-- == 0)
				break;
		if (n > 0 && depth < 8 && rnd(3) > 0) {
			bend(x, depth + 1);
			return;
		}
		if (n > 0 && rnd(4) == 0)
			json_object_del(v, name);
		else
			json_object_set_new(v, k, rnd(2) ? odd_value() :
			    seed());
	} else if (json_is_array(v)) {
		n = json_array_size(v);
		if (n > 0 && depth < 8 && rnd(3) > 0)
			bend(json_array_get(v, rnd((uint32_t)n)), depth + 1);
		else if (n > 0 && rnd(3) == 0)
			json_array_remove(v, rnd((uint32_t)n));
		else
			json_array_append_new(v, rnd(2) ? odd_value() :
			    seed());
	}
}

/* A pattern out of pieces, mostly one that is nearly right. */
static json_t *
random_pattern(void)
{
	static const char *const piece[] = { "a", "[a-c]", "[^x]", "\\d", "\\w",
		".", "(", ")", "|", "*", "+", "?", "{2,3}", "{", "^", "$",
		"(?:", "\\", "\u00e9", "\\u00e9", "[", "]", "-", "\\s",
		"\\.", "{1000}", "\"", "\\\\", "\U0001f600", "(?=" };
	char s[200] = "";
	uint32_t n = 1 + rnd(10);

	for (uint32_t i = 0; i < n; i++)
		strcat(s, piece[rnd(sizeof piece / sizeof *piece)]);
	return json_pack("{s:s,s:s}", "type", "string", "pattern", s);
}

static void
one_random(void)
{
	json_t *v = NULL;
	char text[CAP];
	size_t n;

	if (rnd(4) == 0) {
		v = random_pattern();
	} else if (rnd(3) == 0) {
		n = strlen(strcpy(text, seed_text[rnd(n_seeds)]));
		for (uint32_t i = 1 + rnd(4); i > 0; i--)
			text[rnd((uint32_t)n)] = "{}[]\",:0a1-\\"[rnd(12)];
		v = json_loads(text, JSON_DECODE_ANY, NULL);
	} else {
		v = seed();
		for (uint32_t i = 1 + rnd(4); i > 0; i--)
			bend(v, 0);
	}
	if (v != NULL)
		one_schema(v);
	json_decref(v);
}

/* --- input ------------------------------------------------------------- */

static void
read_seeds(void)
{
	char path[1024], line[CAP];
	FILE *f = fopen(text_path("tests/data/fuzz/schemas.jsonl", path,
	    sizeof path), "re");

	DCPD_ASSERT(f != NULL);
	while (n_seeds < MAX_SEEDS && fgets(line, sizeof line, f) != NULL) {
		json_t *v = json_loads(line, JSON_DECODE_ANY, NULL);

		DCPD_ASSERT(v != NULL);
		one_schema(v);
		json_decref(v);
		seed_text[n_seeds++] = strdup(line);
	}
	fclose(f);
	DCPD_ASSERT(n_seeds > 0);
}

static uint64_t
from_env(const char *name, uint64_t other)
{
	const char *s = getenv(name);

	return s == NULL ? other : strtoull(s, NULL, 10);
}

int
main(int argc, char **argv)
{
	uint64_t ops = from_env("FUZZ_OPS",
	    getenv("DCPD_TEST_LONG") != NULL ? 100000 : 1500);
	uint64_t seed0 = from_env("FUZZ_SEED", 1);

	for (int a = 1; a < argc; a++) {
		json_t *v = json_load_file(argv[a], JSON_DECODE_ANY, NULL);

		if (v != NULL)
			one_schema(v);
		json_decref(v);
	}
	if (argc > 1)
		return EXIT_SUCCESS;
	state = seed0 * 0x9e3779b97f4a7c15u + 1;
	read_seeds();
	for (uint64_t i = 0; i < ops; i++)
		one_random();
	printf("fuzz_gram: %llu schemas, FUZZ_SEED=%llu: %llu compiled, %llu "
	    "refused\n", (unsigned long long)ops, (unsigned long long)seed0,
	    (unsigned long long)compiled, (unsigned long long)refused);
	/* Both ways were taken. */
	DCPD_ASSERT(ops < 1000 || (compiled > ops / 10 && refused > ops / 10));
	for (uint32_t i = 0; i < n_seeds; i++)
		free(seed_text[i]);
	return EXIT_SUCCESS;
}
