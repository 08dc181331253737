# Front ends. Each is NAME.la here, so that all are found in plugins/.libs.
plugindir = $(pkglibdir)/plugins
PLUGIN_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version

# Examples: installed where doc/plugins.md links to, built and run by tests.
exampledir = $(docdir)/plugins/example
dist_example_DATA = plugins/example/canary.c plugins/example/run_plugin.c
check_PROGRAMS += plugins/run_plugin
plugins_run_plugin_SOURCES = plugins/example/run_plugin.c
plugins_run_plugin_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/libdcpclient
plugins_run_plugin_LDADD = libdcpclient.la -lpthread -ldl
check_LTLIBRARIES += plugins/canary.la
plugins_canary_la_SOURCES = plugins/example/canary.c
plugins_canary_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/libdcpclient
plugins_canary_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
plugins_canary_la_LIBADD = libdcpclient.la -lpthread

include $(srcdir)/plugins/unix/local.mk
