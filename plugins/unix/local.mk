# Lines of JSON on a Unix socket
plugin_LTLIBRARIES += plugins/unix.la
plugins_unix_la_SOURCES = plugins/evlog.h plugins/unix/unix.h plugins/unix/answer.c \
	plugins/unix/conn.c plugins/unix/plugin.c plugins/unix/request.c \
	plugins/unix/server.c
plugins_unix_la_CFLAGS = $(AM_CFLAGS) $(LIBEVENT_CFLAGS)
plugins_unix_la_LDFLAGS = $(PLUGIN_LDFLAGS)
plugins_unix_la_LIBADD = libdcpclient.la $(JANSSON_LIBS) $(LIBEVENT_LIBS) \
	-lpthread
# Its own objects: the linker gives them a malloc that fails.
check_PROGRAMS += tests/unit/t_unix_answer
TESTS += tests/unit/t_unix_answer
tests_unit_t_unix_answer_SOURCES = tests/unit/t_unix_answer.c \
	plugins/unix/answer.c
tests_unit_t_unix_answer_CFLAGS = $(AM_CFLAGS) $(LIBEVENT_CFLAGS)
tests_unit_t_unix_answer_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc
tests_unit_t_unix_answer_LDADD = $(JANSSON_LIBS) $(LIBEVENT_LIBS) $(TEST_LIBS)
dist_man_MANS += doc/man/dcpd-unix.7
TESTS += tests/integration/test_unix.py
EXTRA_DIST += tests/integration/test_unix.py
