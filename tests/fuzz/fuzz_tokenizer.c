/*
 * A tokenizer.json that nobody made: it opens, or the error names the file; what
 * opens encodes text, and decodes that to the same.
 */
#include "config.h"

#include <unistd.h>

#include "tests/fuzz/driver.h"
#include "tests/unit/text_util.h"

static char dir[] = "/tmp/fuzz_tokenizer.XXXXXX", path[64];

static void
use(struct dcpd_tokenizer *t)
{
	static const char text[] = "I'm <|user|> 12  x\n\xe2\x82\xac";
	struct dcpd_ids ids = { 0 };
	struct dcpd_err err = { 0 };
	size_t len;
	char *back;
	int rc;

	rc = dcpd_encode(t, text, strlen(text), 0, SIZE_MAX, &ids, &err);
	DCPD_ASSERT(rc == 0 || err.text[0] != '\0');
	if (rc == 0) {
		for (size_t i = 0; i < ids.n; i++)
			DCPD_ASSERT(ids.v[i] < dcpd_token_limit(t));
		back = dcpd_decode(t, ids.v, ids.n, false, &len);
		DCPD_ASSERT(back != NULL);
		free(back);
	}
	dcpd_ids_free(&ids);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcpd_tokenizer *t = NULL;
	struct dcpd_err err = { 0 };
	FILE *f;

	if (path[0] == '\0') {
		DCPD_ASSERT(mkdtemp(dir) != NULL);
		snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	}
	f = fopen(path, "w");
	DCPD_ASSERT(f != NULL && fwrite(data, 1, n, f) == n);
	fclose(f);
	if (dcpd_tokenizer_open(dir, &t, &err) == 0) {
		use(t);
		dcpd_tokenizer_close(t);
	} else {
		DCPD_ASSERT(t == NULL && err.code < 0);
		DCPD_ASSERT(strncmp(err.text, path, strlen(path)) == 0);
	}
	return 0;
}

#ifndef LIBFUZZER
int
main(int argc, char **argv)
{
	if (!fuzz_files(argc, argv))
		fuzz_corpus("tokenizer", 2000);
	unlink(path);
	rmdir(dir);
	return EXIT_SUCCESS;
}
#endif
