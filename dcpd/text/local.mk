# dcpd/text and its unit tests
libdcpd_a_SOURCES += \
	dcpd/text/text.h \
	dcpd/text/buf.c dcpd/text/buf.h \
	dcpd/text/utf8.c dcpd/text/utf8.h \
	dcpd/text/tok.h \
	dcpd/text/tokenizer.c \
	dcpd/text/pattern.c \
	dcpd/text/encode.c \
	dcpd/text/decode.c \
	dcpd/text/pyjson.c dcpd/text/pyjson.h \
	dcpd/text/chat.c dcpd/text/chat.h \
	dcpd/text/chat_glm.c \
	dcpd/text/chat_dsv32.c \
	dcpd/text/out.c dcpd/text/out.h \
	dcpd/text/out_call.c \
	dcpd/text/out_glm.c \
	dcpd/text/out_dsml.c \
	dcpd/text/gram.h dcpd/text/gram.c \
	dcpd/text/gram_schema.h dcpd/text/gram_schema.c \
	dcpd/text/gram_types.c \
	dcpd/text/gram_names.c dcpd/text/gram_link.c \
	dcpd/text/gram_merge.c dcpd/text/gram_nfa.c \
	dcpd/text/gram_regex.c dcpd/text/gram_number.c \
	dcpd/text/gram_step.c dcpd/text/gram_mask.c \
	dcpd/text/gram_read.c dcpd/text/gram_args.c \
	dcpd/text/gram_call.c \
	dcpd/text/pool.c

check_PROGRAMS += tests/unit/t_tokenizer
TESTS += tests/unit/t_tokenizer
tests_unit_t_tokenizer_SOURCES = tests/unit/t_tokenizer.c tests/unit/text_util.h
tests_unit_t_tokenizer_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_chat
TESTS += tests/unit/t_chat
tests_unit_t_chat_SOURCES = tests/unit/t_chat.c tests/unit/text_util.h
tests_unit_t_chat_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_out
TESTS += tests/unit/t_out
tests_unit_t_out_SOURCES = tests/unit/t_out.c tests/unit/text_util.h
tests_unit_t_out_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_pool
TESTS += tests/unit/t_pool
tests_unit_t_pool_SOURCES = tests/unit/t_pool.c
tests_unit_t_pool_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/fuzz/fuzz_text
TESTS += tests/fuzz/fuzz_text
tests_fuzz_fuzz_text_SOURCES = tests/fuzz/fuzz_text.c tests/fuzz/input.h \
	tests/unit/text_util.h
tests_fuzz_fuzz_text_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

# Constrained decoding: random answers, held against jsonschema from PyPI.
check_PROGRAMS += tests/grammar/gram_walk
tests_grammar_gram_walk_SOURCES = tests/grammar/gram_walk.c tests/unit/text_util.h
tests_grammar_gram_walk_LDADD = $(DCPD_LIBS) $(TEST_LIBS)
TESTS += tests/grammar/test_schemas.py tests/grammar/test_calls.py \
	tests/grammar/test_grammar.py
EXTRA_DIST += tests/grammar/test_schemas.py tests/grammar/schemas.py \
	tests/grammar/test_calls.py tests/grammar/test_grammar.py \
	tests/lib/requirements-schemas.txt
check_PROGRAMS += tests/unit/t_gram
TESTS += tests/unit/t_gram
tests_unit_t_gram_SOURCES = tests/unit/t_gram.c tests/unit/text_util.h
tests_unit_t_gram_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

noinst_PROGRAMS += tests/bench/bench_mask
tests_bench_bench_mask_SOURCES = tests/bench/bench_mask.c
tests_bench_bench_mask_LDADD = $(DCPD_LIBS)

check_PROGRAMS += tests/fuzz/fuzz_chat tests/fuzz/fuzz_tokenizer
TESTS += tests/fuzz/fuzz_chat tests/fuzz/fuzz_tokenizer
tests_fuzz_fuzz_chat_SOURCES = tests/fuzz/fuzz_chat.c $(FUZZ_DRIVER) \
	tests/unit/text_util.h
tests_fuzz_fuzz_chat_LDADD = $(DCPD_LIBS)
tests_fuzz_fuzz_tokenizer_SOURCES = tests/fuzz/fuzz_tokenizer.c \
	$(FUZZ_DRIVER) tests/unit/text_util.h
tests_fuzz_fuzz_tokenizer_LDADD = $(DCPD_LIBS)

check_PROGRAMS += tests/fuzz/fuzz_gram
TESTS += tests/fuzz/fuzz_gram
tests_fuzz_fuzz_gram_SOURCES = tests/fuzz/fuzz_gram.c tests/unit/text_util.h
tests_fuzz_fuzz_gram_LDADD = $(DCPD_LIBS) $(TEST_LIBS)
EXTRA_DIST += tests/data/fuzz/schemas.jsonl
