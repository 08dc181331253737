# dcpctl: a client like any other, but for `bench ipc`, which brings a server.
bin_PROGRAMS += dcpctl/dcpctl
dcpctl_dcpctl_SOURCES = dcpctl/admin.c dcpctl/bench.c dcpctl/bench_ipc.c \
	dcpctl/bench_ipc.h dcpctl/cache.c dcpctl/measure.c dcpctl/measure.h \
	dcpctl/top.c dcpctl/trace.c dcpctl/trace.h dcpctl/trace_file.c \
	dcpctl/trace_report.c dcpctl/trace_tokens.c \
	dcpctl/chat.c dcpctl/ctl.h dcpctl/generate.c dcpctl/main.c \
	dcpctl/options.c dcpctl/request.c dcpctl/stats.c dcpctl/tokenize.c
dcpctl_dcpctl_CPPFLAGS = $(AM_CPPFLAGS) -DDCPD_SBINDIR='"$(sbindir)"'
dcpctl_dcpctl_LDADD = libdcpclient.la $(DCPD_LIBS)
dcpctl_dcpctl_LDFLAGS = $(PIE_FLAGS)

check_PROGRAMS += tests/unit/t_trace
TESTS += tests/unit/t_trace
tests_unit_t_trace_SOURCES = tests/unit/t_trace.c dcpctl/trace.h \
	dcpctl/trace_file.c dcpctl/trace_tokens.c
tests_unit_t_trace_LDADD = $(DCPD_LIBS) $(TEST_LIBS)
TESTS += tests/integration/test_trace.py tests/integration/test_top.py \
	tests/integration/test_tokenize.py tests/integration/test_bench_ipc.py
EXTRA_DIST += tests/integration/test_trace.py tests/integration/test_top.py \
	tests/integration/test_tokenize.py tests/integration/test_bench_ipc.py
TESTS += tests/integration/completion.sh
EXTRA_DIST += tests/integration/completion.sh
