/*
 * The fuzzers' way through make check: see driver.h. Inputs are copied into
 * memory of exactly their size, so that a sanitizer sees one byte too far.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/base/base.h"
#include "tests/fuzz/driver.h"

#define INPUT_MOST 65536u
#define MAX_FILES 256u

struct file {
	char *s;
	size_t n;
};

static struct file files[MAX_FILES];
static unsigned n_files;
static uint64_t state;

static uint32_t
rnd(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

static void
one(const void *p, size_t n)
{
	uint8_t *copy = malloc(n > 0 ? n : 1);

	DCPD_ASSERT(copy != NULL);
	if (n > 0)
		memcpy(copy, p, n);
	(void)LLVMFuzzerTestOneInput(copy, n);
	free(copy);
}

static struct file
load(const char *path)
{
	struct dcpd_err err = { 0 };
	struct file f = { 0 };

	if (dcpd_read_file(path, INPUT_MOST, &f.s, &f.n, &err) != 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(2);
	}
	return f;
}

static int
by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int
is_file(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

static void
load_all(const char *name)
{
	const char *src = getenv("srcdir");
	struct dirent **list;
	char dir[1024], path[2048];
	int n;

	snprintf(dir, sizeof dir, "%s/tests/fuzz/corpus/%s",
	    src != NULL ? src : ".", name);
	n = scandir(dir, &list, is_file, by_name);
	if (n <= 0 || n > (int)MAX_FILES) {
		fprintf(stderr, "%s: %s\n", dir, n < 0 ? strerror(errno) :
		    "not between 1 and 256 files");
		exit(2);
	}
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
		files[n_files++] = load(path);
		free(list[i]);
	}
	free(list);
}

/* Put m bytes in the place of del at `at`, as far as there is room. */
static size_t
splice(uint8_t *b, size_t n, size_t at, size_t del, const void *ins, size_t m)
{
	del = del < n - at ? del : n - at;
	if (n - del + m > INPUT_MOST)
		return n;
	memmove(b + at + m, b + at + del, n - at - del);
	if (m > 0)
		memcpy(b + at, ins, m);
	return n - del + m;
}

static size_t
mutate(uint8_t *b, size_t n)
{
	static const uint8_t edge[] = { 0, 1, 0x7f, 0x80, 0xff, '"', '\\',
	    '{', '}', '[', ']', '<', '\n', ' ', '9', '-', 0xc3, 0xf0 };
	const struct file *f = &files[rnd(n_files)];
	size_t at = n > 0 ? rnd((uint32_t)n) : 0, from;
	uint8_t piece[64], *one_byte = &b[at];

	switch (rnd(6)) {
	case 0:
		if (n > 0)
			*one_byte ^= (uint8_t)(1u << rnd(8));
		return n;
	case 1:
		if (n > 0)
			*one_byte = edge[rnd(sizeof edge)];
		return n;
	case 2:
		return splice(b, n, at, 1 + rnd(16), NULL, 0);
	case 3:			/* a piece again */
		from = n - at < sizeof piece ? n - at : sizeof piece;
		from = from > 0 ? 1 + rnd((uint32_t)from) : 0;
		memcpy(piece, b + at, from);
		return splice(b, n, n > 0 ? rnd((uint32_t)n) : 0, 0, piece,
		    from);
	case 4:			/* a piece of another */
		if (f->n == 0)
			return n;
		from = rnd((uint32_t)f->n);
		return splice(b, n, at, rnd(32), f->s + from,
		    1 + rnd((uint32_t)(f->n - from < 256 ? f->n - from :
		    256)));
	default:
		return rnd(8) == 0 ? at : n;
	}
}

static unsigned long
number(const char *env, unsigned long other)
{
	const char *s = getenv(env);

	return s != NULL ? strtoul(s, NULL, 10) : other;
}

void
fuzz_corpus(const char *name, unsigned long ops)
{
	uint8_t *b = malloc(INPUT_MOST);
	unsigned long seed = number("FUZZ_SEED", 1);
	size_t n;

	DCPD_ASSERT(b != NULL);
	ops = number("FUZZ_OPS", getenv("DCPD_TEST_LONG") != NULL ?
	    100 * ops : ops);
	state = seed * 0x9e3779b97f4a7c15u + 1;
	load_all(name);
	for (unsigned i = 0; i < n_files; i++)
		one(files[i].s, files[i].n);
	for (unsigned long i = 0; i < ops; i++) {
		const struct file *f = &files[rnd(n_files)];

		n = f->n;
		memcpy(b, f->s, n);
		do
			n = mutate(b, n);
		while (rnd(3) != 0);
		one(b, n);
	}
	printf("%s: %u files, %lu mutations, FUZZ_SEED=%lu\n", name, n_files,
	    ops, seed);
	for (unsigned i = 0; i < n_files; i++)
		free(files[i].s);
	n_files = 0;
	free(b);
}

int
fuzz_files(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct file f = load(argv[i]);

		one(f.s, f.n);
		free(f.s);
	}
	return argc > 1;
}
