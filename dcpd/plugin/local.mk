# The host of plugins. In the build tree they are in plugins/.libs.
libdcpd_a_SOURCES += dcpd/plugin/config.c dcpd/plugin/host.c \
	dcpd/plugin/load.c dcpd/plugin/plugin.h dcpd/plugin/set.c

check_PROGRAMS += tests/unit/t_plugins
TESTS += tests/unit/t_plugins tests/integration/test_plugins.py
tests_unit_t_plugins_SOURCES = tests/unit/t_plugins.c
tests_unit_t_plugins_LDADD = $(DCPD_LIBS) $(TEST_LIBS)
EXTRA_DIST += tests/integration/test_plugins.py tests/plugins/probe.c
