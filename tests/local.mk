# parity, integration and bench: programs and scripts that hold the whole
# against an independent reference. Each part's unit tests are in its own
# fragment.

check_PROGRAMS += tests/parity/fwd
tests_parity_fwd_SOURCES = tests/parity/fwd.c tests/parity/fwd.h \
	tests/parity/fwd_pages.c
tests_parity_fwd_LDADD = $(DCPD_LIBS)

noinst_PROGRAMS += tests/bench/floor
tests_bench_floor_SOURCES = tests/bench/floor.c
tests_bench_floor_LDADD = $(DCPD_LIBS)

TESTS += $(PARITY_TESTS) $(MODEL_TESTS) $(CLIENT_TESTS)
PARITY_TESTS = tests/parity/test_tiny.py tests/parity/test_fixtures.py \
	tests/parity/test_formats.py tests/parity/test_wire.py \
	tests/parity/test_cases.py tests/parity/test_layouts.py
MODEL_TESTS = tests/integration/test_model.py \
	tests/integration/test_accuracy.py tests/integration/test_begin.py \
	tests/integration/test_floor.py

# Clients that people have, from PyPI; see tests/lib/venv_for.py.
CLIENT_TESTS = tests/clients/test_anthropic.py \
	tests/clients/test_bench_serving.py tests/clients/test_curl.py \
	tests/clients/test_lm_eval.py tests/clients/test_openai.py \
	tests/clients/test_sglang_flags.py tests/integration/test_flags.py \
	tests/integration/test_recorded.py

# What real clients sent (tools/record_requests.py).
RECORDED = tests/data/http/anthropic.json tests/data/http/curl.json \
	tests/data/http/guidellm.json tests/data/http/lm_eval.json \
	tests/data/http/openai.json tests/data/http/sglang.json \
	tests/data/http/vllm.json

EXTRA_DIST += $(PARITY_TESTS) $(MODEL_TESTS) $(CLIENT_TESTS) tests/lib/parity.py \
	tests/lib/dcpclient.py tests/lib/daemon.py tools/accuracy \
	tests/lib/eval_rows.py tests/lib/httpd.py tests/lib/suite.py \
	tests/lib/gram_walk.py tests/lib/venv_for.py tests/lib/requirements-clients.txt \
	tests/lib/requirements-eval.txt tools/record_requests.py \
	$(RECORDED) \
	tests/bench/trace_table.py \
	tests/bench/transformers_bench.py

# What the parity tests unpack and derive.
clean-local: clean-parity clean-venvs
clean-parity:
	rm -rf tests/parity/work
clean-venvs:
	rm -rf tests/venv
.PHONY: clean-parity clean-venvs

# What the fuzzers share; tests/fuzz/driver.h says how they are built.
FUZZ_DRIVER = tests/fuzz/driver.c tests/fuzz/driver.h tests/fuzz/input.h
EXTRA_DIST += tests/fuzz/corpus tests/fuzz/libfuzzer

# The same as libFuzzer targets: not in any build but that of
# tests/fuzz/libfuzzer, where the compiler is clang.
LIBFUZZERS = tests/fuzz/lf_chat tests/fuzz/lf_tokenizer \
	tests/fuzz/lf_safetensors tests/fuzz/lf_ring tests/fuzz/lf_http \
	tests/fuzz/lf_body
EXTRA_PROGRAMS += $(LIBFUZZERS)
LIBFUZZER_DEFINE = $(AM_CPPFLAGS) -DLIBFUZZER
LIBFUZZER_LINK = $(AM_LDFLAGS) -fsanitize=fuzzer -export-dynamic
tests_fuzz_lf_chat_SOURCES = tests/fuzz/fuzz_chat.c
tests_fuzz_lf_chat_CPPFLAGS = $(LIBFUZZER_DEFINE)
tests_fuzz_lf_chat_LDFLAGS = $(LIBFUZZER_LINK)
tests_fuzz_lf_chat_LDADD = $(DCPD_LIBS)
tests_fuzz_lf_tokenizer_SOURCES = tests/fuzz/fuzz_tokenizer.c
tests_fuzz_lf_tokenizer_CPPFLAGS = $(LIBFUZZER_DEFINE)
tests_fuzz_lf_tokenizer_LDFLAGS = $(LIBFUZZER_LINK)
tests_fuzz_lf_tokenizer_LDADD = $(DCPD_LIBS)
tests_fuzz_lf_safetensors_SOURCES = tests/fuzz/fuzz_safetensors.c
tests_fuzz_lf_safetensors_CPPFLAGS = $(LIBFUZZER_DEFINE)
tests_fuzz_lf_safetensors_LDFLAGS = $(LIBFUZZER_LINK)
tests_fuzz_lf_safetensors_LDADD = $(DCPD_LIBS)
tests_fuzz_lf_ring_SOURCES = tests/fuzz/fuzz_ring.c tests/hostile/raw.c \
	$(ring_test_sources)
tests_fuzz_lf_ring_CPPFLAGS = $(LIBFUZZER_DEFINE)
tests_fuzz_lf_ring_LDFLAGS = $(LIBFUZZER_LINK)
tests_fuzz_lf_ring_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)
tests_fuzz_lf_http_SOURCES = tests/fuzz/fuzz_http.c $(FUZZ_PLUGIN)
tests_fuzz_lf_http_CPPFLAGS = $(LIBFUZZER_DEFINE)
tests_fuzz_lf_http_LDFLAGS = $(LIBFUZZER_LINK)
tests_fuzz_lf_http_LDADD = libdcpd.a $(JANSSON_LIBS) -ldl -lpthread
tests_fuzz_lf_body_SOURCES = tests/fuzz/fuzz_body.c $(FUZZ_PLUGIN)
tests_fuzz_lf_body_CPPFLAGS = $(LIBFUZZER_DEFINE)
tests_fuzz_lf_body_LDFLAGS = $(LIBFUZZER_LINK)
tests_fuzz_lf_body_LDADD = libdcpd.a $(JANSSON_LIBS) -ldl -lpthread
