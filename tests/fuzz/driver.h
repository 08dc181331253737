/*
 * What the fuzzers share. Each has one entry, LLVMFuzzerTestOneInput(), and a
 * kept corpus in tests/fuzz/corpus/NAME. Built by gcc for make check, the corpus
 * and seeded mutations of it are run through the entry; with LIBFUZZER defined
 * and clang's -fsanitize=fuzzer (tools/check --long) libFuzzer does that.
 */
#ifndef FUZZ_DRIVER_H
#define FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *, size_t);

/*
 * Each file of the corpus, then ops mutations: bytes changed, cut, repeated,
 * spliced with another file. FUZZ_OPS and FUZZ_SEED go before ops and 1, and
 * with DCPD_TEST_LONG ops is a hundred times as many. A corpus that is missing
 * or empty ends the program.
 */
void fuzz_corpus(const char *name, unsigned long ops);
/* The files named, once each; false: none is. */
int fuzz_files(int argc, char **argv);

#endif
