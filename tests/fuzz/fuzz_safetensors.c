/*
 * Broken safetensors files and indexes: refused or read, never a crash, and
 * what is read has the properties that the loader relies on.
 *
 * FUZZ_OPS (20000) mutations from FUZZ_SEED (1) of a few good headers, each
 * parsed; every 50th also as a file in a folder, with an index beside it. Before
 * that, the corpus and mutations of it (driver.h), as whole files.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/model/safetensors.h"
#include "tests/fuzz/driver.h"

static const char *const seeds[] = {
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
	"\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}",
	"{\"__metadata__\":{\"format\":\"pt\"},\"s\":{\"dtype\":\"F32\","
	"\"shape\":[],\"data_offsets\":[0,4]},\"e\":{\"dtype\":\"I64\","
	"\"shape\":[0],\"data_offsets\":[4,4]},\"w\":{\"dtype\":\"F8_E4M3\","
	"\"shape\":[4,7],\"data_offsets\":[4,32]}}   ",
	"{\"q\":{\"dtype\":\"F4\",\"shape\":[64],\"data_offsets\":[0,32]}}",
};
#define DATA 32u		/* bytes of data that each seed describes */
#define CAP 2048u
#define ENTRY "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[32,33]},"

static uint64_t state;

static uint32_t
rnd(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

static void
broken(const char *what, const char *header, size_t len)
{
	fprintf(stderr, "fuzz_safetensors: %s; header of %zu bytes:\n%.*s\n",
	    what, len, (int)len, header);
	abort();
}

/* What the loader takes for granted about accepted tensors. */
static void
hold(const struct dcpd_st_tensor *t, uint32_t n, const char *header,
    size_t len, uint64_t file_size)
{
	uint64_t at = 8 + len;
	uint32_t i, d;

	for (i = 0; i < n; i++) {
		unsigned __int128 elements = 1;

		if (t[i].off != at)
			broken("tensors do not tile the file", header, len);
		at += t[i].bytes;
		if (t[i].rank > DCPD_ST_RANK_MAX ||
		    t[i].dtype >= DCPD_ST_DTYPES || t[i].name == NULL)
			broken("a field is out of range", header, len);
		for (d = 0; d < t[i].rank && elements < 1u << 30; d++)
			elements *= t[i].shape[d];
		if (elements != 0 && t[i].bytes == 0)
			broken("elements without bytes", header, len);
		if (elements > 2 * t[i].bytes)
			broken("more elements than 4 bits each", header, len);
		for (d = 0; d < i; d++)
			if (strcmp(t[i].name, t[d].name) == 0)
				broken("one name twice", header, len);
	}
	if (at != file_size)
		broken("bytes are left over", header, len);
}

static bool
parse(const char *header, size_t len, uint64_t data)
{
	struct dcpd_st_tensor *t = NULL;
	struct dcpd_err err = { 0 };
	uint32_t n = 0;

	if (dcpd_st_parse("fuzz", header, len, 8 + len + data, &t, &n,
	    &err) != 0) {
		if (err.text[0] == '\0' || err.code >= 0 || t != NULL)
			broken("refused without a text", header, len);
		return false;
	}
	hold(t, n, header, len, 8 + len + data);
	dcpd_st_tensors_free(t, n);
	return true;
}

/* A file as it lies on disk: eight bytes of length, the header, the data. */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t n = 0;
	char *copy;

	if (size < 8)
		return 0;
	for (size_t i = 0; i < 8; i++)
		n |= (uint64_t)data[i] << 8 * i;
	if (n > size - 8)
		n = size - 8;	/* else most inputs would say nothing */
	copy = malloc(n > 0 ? n : 1);	/* exactly: a byte too far is seen */
	if (copy == NULL)
		return 0;
	memcpy(copy, data + 8, n);
	parse(copy, n, size - 8 - n);
	free(copy);
	return 0;
}

#ifndef LIBFUZZER

/* --- mutations ----------------------------------------------------------- */

static void
splice(char *b, size_t *len, size_t at, size_t del, const char *ins)
{
	size_t n = strlen(ins);

	if (at > *len)
		at = *len;
	if (del > *len - at)
		del = *len - at;
	if (*len - del + n > CAP)
		return;
	memmove(b + at + n, b + at + del, *len - at - del);
	memcpy(b + at, ins, n);
	*len = *len - del + n;
}

static void
mutate(char *b, size_t *len)
{
	static const char *const words[] = {
		"-1", "0", "1.0", "1e9", "9223372036854775807",
		"18446744073709551616", "4294967296", "null", "[]", "{}",
		"\"F32\"", "\"F6_E2M3\"", "\"a\"", "\\u0061", "\\ud800",
		"\xff", ",", ":", "[[[[", "\"__metadata__\":{\"a\":1},",
		ENTRY, " ", "\\\"", "24", "32", "3",
	};
	char piece[64];
	size_t n, at = *len == 0 ? 0 : rnd((uint32_t)*len);

	switch (rnd(6)) {
	case 0:
		if (*len > 0)
			b[at] = (char)rnd(256);
		break;
	case 1:
		splice(b, len, at, rnd(12), "");
		break;
	case 2:
	case 3:
		splice(b, len, at, rnd(4), words[rnd(sizeof words /
		    sizeof *words)]);
		break;
	case 4:			/* a piece again, elsewhere */
		n = rnd(sizeof piece - 1);
		n = n > *len - at ? *len - at : n;
		memcpy(piece, b + at, n);
		piece[n] = '\0';
		splice(b, len, *len == 0 ? 0 : rnd((uint32_t)*len), 0, piece);
		break;
	case 5:
		*len = at;
		break;
	}
}

/* --- files --------------------------------------------------------------- */

static void
put(const char *dir, const char *name, const void *p, size_t n, const void *q,
    size_t m)
{
	char path[600];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	f = fopen(path, "w");
	if (f == NULL || fwrite(p, 1, n, f) != n || fwrite(q, 1, m, f) != m ||
	    fclose(f) != 0) {
		perror(path);
		exit(2);
	}
}

/* The header as a shard, with a mutated index beside it. */
static void
as_files(const char *dir, const char *header, size_t len)
{
	static const char map[] = "{\"weight_map\":{\"a\":\"x.safetensors\","
	    "\"b\":\"x.safetensors\"}}";
	unsigned char file[8 + CAP + DATA] = { 0 };
	struct dcpd_err err = { 0 };
	struct dcpd_st *st = NULL;
	char index[CAP], buf[64];
	size_t i, n = sizeof map - 1;

	for (i = 0; i < 8; i++)
		file[i] = (unsigned char)((uint64_t)len >> 8 * i);
	if (rnd(4) == 0)
		file[rnd(8)] ^= (unsigned char)(1 << rnd(8));
	memcpy(file + 8, header, len);
	put(dir, "x.safetensors", file, 8 + len, file + 8 + len, DATA);
	memcpy(index, map, n);
	while (rnd(2) == 0)
		mutate(index, &n);
	put(dir, "model.safetensors.index.json", index, n, "", 0);
	if (dcpd_st_open(dir, &st, &err) != 0) {
		if (err.text[0] == '\0' || st != NULL)
			broken("a folder refused without a text", header, len);
		return;
	}
	for (i = 0; i < st->n_tensors; i++) {
		const struct dcpd_st_tensor *t = &st->tensors[i];

		if (dcpd_st_find(st, t->name) != t || (t->bytes <= sizeof buf &&
		    dcpd_st_read(st, t, 0, t->bytes, buf, &err) != 0))
			broken("a tensor cannot be read", header, len);
	}
	dcpd_st_close(st);
}

static long
number(const char *env, long dflt)
{
	const char *s = getenv(env);

	return s != NULL ? strtol(s, NULL, 10) : dflt;
}

static int
mutations(void)
{
	long ops = number("FUZZ_OPS", 20000), i, taken = 0;
	char dir[500], path[600], b[CAP];
	const char *tmp = getenv("TMPDIR");
	size_t len, s;

	state = (uint64_t)number("FUZZ_SEED", 1);
	snprintf(dir, sizeof dir, "%s/dcpd-fuzz-XXXXXX",
	    tmp != NULL ? tmp : "/tmp");
	if (mkdtemp(dir) == NULL) {
		perror(dir);
		return 2;
	}
	for (s = 0; s < sizeof seeds / sizeof *seeds; s++)
		if (!parse(seeds[s], strlen(seeds[s]), DATA))
			broken("a good header was refused", seeds[s],
			    strlen(seeds[s]));
	for (i = 0; i < ops; i++) {
		s = rnd(sizeof seeds / sizeof *seeds);
		len = strlen(seeds[s]);
		memcpy(b, seeds[s], len);
		do
			mutate(b, &len);
		while (rnd(3) != 0);
		taken += parse(b, len, rnd(8) == 0 ? rnd(64) : DATA);
		if (i % 50 == 0)
			as_files(dir, b, len);
	}
	snprintf(path, sizeof path, "%s/x.safetensors", dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
	unlink(path);
	rmdir(dir);
	printf("%ld mutations, %ld still legal\n", ops, taken);
	/* Both branches must have been seen, or this tests nothing. */
	return ops >= 1000 && (taken == 0 || taken > ops * 9 / 10);
}

int
main(int argc, char **argv)
{
	if (fuzz_files(argc, argv))
		return 0;
	fuzz_corpus("safetensors", 20000);
	return mutations();
}

#endif
