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
	tests/parity/test_formats.py tests/parity/test_cases.py \
	tests/parity/test_layouts.py
MODEL_TESTS = tests/integration/test_model.py \
	tests/integration/test_accuracy.py tests/integration/test_begin.py

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
	tests/lib/venv_for.py tests/lib/requirements-clients.txt \
	tests/lib/requirements-eval.txt tools/record_requests.py \
	$(RECORDED) \
	tests/bench/transformers_bench.py

# What the parity tests unpack and derive.
clean-local: clean-parity clean-venvs
clean-parity:
	rm -rf tests/parity/work
clean-venvs:
	rm -rf tests/venv
.PHONY: clean-parity clean-venvs
