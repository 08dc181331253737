# main, config, admin socket
libdcpd_a_SOURCES += dcpd/admin/counters.c dcpd/admin/counters.h \
	dcpd/admin/admin.c dcpd/admin/admin.h dcpd/admin/commands.c \
	dcpd/admin/listen.c dcpd/admin/listen.h \
	dcpd/config/check.c dcpd/config/device.c dcpd/config/device.h \
	dcpd/config/flags.h dcpd/config/help.c dcpd/config/memavail.c \
	dcpd/config/memavail.h dcpd/config/options.c dcpd/config/options.h \
	dcpd/daemon.h dcpd/selftest.c dcpd/selftest.h dcpd/start.c

noinst_LIBRARIES += libdcpd_main.a
libdcpd_main_a_SOURCES = dcpd/main.c

check_PROGRAMS += tests/unit/t_options
TESTS += tests/unit/t_options
tests_unit_t_options_SOURCES = tests/unit/t_options.c
tests_unit_t_options_LDADD = $(DCPD_LIBS) $(TEST_LIBS)
