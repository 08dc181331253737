/*
 * The HTTP front end under connections that nobody would make: the corpus and
 * mutations of it (driver.h), bytes of one connection each; then seeded damage
 * to good requests of every path.
 *
 * FUZZ_OPS (1500; 100000 when DCPD_TEST_LONG is set, and never more: each takes
 * milliseconds) connections from FUZZ_SEED (1). http_plugin.c says what must
 * hold.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/driver.h"
#include "tests/fuzz/http_plugin.h"
#include "tests/fuzz/http_seeds.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	http_talk(data, n, 5);
	return 0;
}

#ifndef LIBFUZZER
static uint64_t state;

static uint32_t
rnd(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % n);
}

/* --- damage --------------------------------------------------------------- */

static size_t
build(uint8_t *out, size_t cap)
{
	const struct seed *s = &seeds[rnd(N_SEEDS)];
	char body[4096];
	size_t n, i, hits, at;

	snprintf(body, sizeof body, "%s", s->body);
	n = strlen(body);
	for (hits = rnd(4); hits > 0 && n > 0; hits--) {
		at = rnd((uint32_t)n);
		const char *w = words[rnd(N_WORDS)];
		size_t len = strlen(w), cut = rnd(12);

		if (cut > n - at)
			cut = n - at;
		if (n - cut + len + 1 > sizeof body)
			continue;
		memmove(body + at + len, body + at + cut, n - at - cut + 1);
		memcpy(body + at, w, len);
		n = n - cut + len;
	}
	n = (size_t)snprintf((char *)out, cap, "%s %s HTTP/1.1\r\nHost: a\r\n"
	    "Content-Length: %zu\r\n\r\n%s", s->method, s->path, n, body);
	for (hits = rnd(8) == 0 ? 1 + rnd(4) : 0; hits > 0;
	    hits--)
		out[rnd((uint32_t)n)] = (uint8_t)rnd(256);
	/* Several on one connection, the last perhaps cut short. */
	if (rnd(4) == 0 && 2 * n < cap) {
		for (i = 0; i < n; i++)
			out[n + i] = out[i];
		n = n + (rnd(2) == 0 ? n : rnd((uint32_t)n));
	}
	return n;
}

static void
damaged(void)
{
	const char *ops = getenv("FUZZ_OPS"), *seed = getenv("FUZZ_SEED");
	unsigned long n = ops != NULL ? strtoul(ops, NULL, 10) :
	    getenv("DCPD_TEST_LONG") != NULL ? 100000 : 1500, i;
	static uint8_t buf[16384];

	if (n > 100000)
		n = 100000;
	state = (seed != NULL ? strtoull(seed, NULL, 10) : 1) *
	    0x9e3779b97f4a7c15u | 1;
	for (i = 0; i < N_SEEDS; i++) {
		int len = snprintf((char *)buf, sizeof buf, "%s %s HTTP/1.1\r\n"
		    "Content-Length: %zu\r\n\r\n%s", seeds[i].method,
		    seeds[i].path, strlen(seeds[i].body), seeds[i].body);

		http_talk(buf, (size_t)len, 200);
	}
	for (i = 0; i < n; i++)
		http_talk(buf, build(buf, sizeof buf), rnd(8) == 0 ? 0 : 2);
	printf("%lu connections\n", n);
}

int
main(int argc, char **argv)
{
	if (!fuzz_files(argc, argv)) {
		fuzz_corpus("http", 300);
		damaged();
	}
	http_end();
	return 0;
}
#endif
