# The host of plugins. In the build tree they are in plugins/.libs.
libdcpd_a_SOURCES += dcpd/plugin/config.c dcpd/plugin/host.c \
	dcpd/plugin/load.c dcpd/plugin/plugin.h dcpd/plugin/set.c

TESTS += tests/integration/test_plugins.py
EXTRA_DIST += tests/integration/test_plugins.py tests/plugins/probe.c
