# main, config, admin socket
libdcpd_a_SOURCES += dcpd/admin/histograms.c dcpd/admin/histograms.h \
	dcpd/admin/counters.h dcpd/admin/stats.c dcpd/admin/stats.h \
	libdcpclient/dcp_stats.h dcpd/admin/watch.c \
	dcpd/admin/crash.c dcpd/admin/crash.h \
	dcpd/admin/admin.c dcpd/admin/admin.h dcpd/admin/commands.c \
	dcpd/admin/listen.c dcpd/admin/listen.h \
	dcpd/config/check.c dcpd/config/device.c dcpd/config/device.h \
	dcpd/config/flags.h dcpd/config/help.c dcpd/config/memavail.c \
	dcpd/config/memavail.h dcpd/config/options.c dcpd/config/options.h \
	dcpd/daemon.h dcpd/reload.c dcpd/reload.h dcpd/selftest.c dcpd/selftest.h dcpd/start.c

# A folder of the build tree is named dcpd, so the program is built inside it.
sbin_PROGRAMS += dcpd/dcpd
dcpd_dcpd_SOURCES = dcpd/main.c
dcpd_dcpd_LDADD = $(DCPD_LIBS)
dcpd_dcpd_LDFLAGS = $(PIE_FLAGS)

check_PROGRAMS += tests/unit/t_histograms
TESTS += tests/unit/t_histograms
tests_unit_t_histograms_SOURCES = tests/unit/t_histograms.c
tests_unit_t_histograms_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_crash
TESTS += tests/unit/t_crash
tests_unit_t_crash_SOURCES = tests/unit/t_crash.c
tests_unit_t_crash_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_options
TESTS += tests/unit/t_options
tests_unit_t_options_SOURCES = tests/unit/t_options.c
tests_unit_t_options_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

# The daemon as a whole
check_LTLIBRARIES += tests/integration/libdcp_cuda.la
tests_integration_libdcp_cuda_la_SOURCES = tests/integration/fake_cuda.c
tests_integration_libdcp_cuda_la_LDFLAGS = $(AM_LDFLAGS) -module \
	-avoid-version -rpath /nowhere
TESTS += tests/integration/startup.sh tests/integration/plan.sh \
	tests/integration/daemon.sh \
	tests/integration/answer.sh tests/integration/man_pages.sh \
	tests/integration/documented.sh tests/integration/docs.sh \
	tests/integration/setup.sh \
	tests/integration/test_systemd.py tests/integration/test_service.py \
	tests/integration/test_soak.py
EXTRA_DIST += tests/integration/lib.sh tests/integration/plan.sh \
	tests/integration/startup.sh tests/integration/setup.sh \
	tests/integration/daemon.sh tests/integration/answer.sh \
	tests/integration/man_pages.sh tests/integration/documented.sh \
	tests/integration/docs.sh tests/integration/test_systemd.py \
	tests/integration/test_service.py tests/integration/test_soak.py
