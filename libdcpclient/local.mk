# libdcpclient: library, header, .pc, man pages, examples, its unit tests
include_HEADERS += libdcpclient/dcpclient.h libdcpclient/dcp_plugin.h
lib_LTLIBRARIES += libdcpclient.la
libdcpclient_la_SOURCES = libdcpclient/dcp_ring.h libdcpclient/private.h \
	libdcpclient/request_check.h libdcpclient/connect.c \
	libdcpclient/submit.c libdcpclient/receive.c libdcpclient/error.c \
	libdcpclient/idset.c
libdcpclient_la_CFLAGS = $(AM_CFLAGS) -Wconversion -Wsign-conversion
libdcpclient_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 \
	-Wl,--version-script=$(srcdir)/libdcpclient/libdcpclient.map
libdcpclient_la_LIBADD = -lpthread
EXTRA_libdcpclient_la_DEPENDENCIES = libdcpclient/libdcpclient.map
EXTRA_DIST += libdcpclient/libdcpclient.map

pkgconfigdir = $(libdir)/pkgconfig
nodist_pkgconfig_DATA = libdcpclient/libdcpclient.pc
libdcpclient/libdcpclient.pc: libdcpclient/libdcpclient.pc.in Makefile
	@$(MKDIR_P) libdcpclient
	$(AM_V_GEN)sed -e 's|@prefix[@]|$(prefix)|' \
		-e 's|@exec_prefix[@]|$(exec_prefix)|' \
		-e 's|@libdir[@]|$(libdir)|' \
		-e 's|@includedir[@]|$(includedir)|' \
		-e 's|@PACKAGE_VERSION[@]|$(PACKAGE_VERSION)|' \
		$(srcdir)/libdcpclient/libdcpclient.pc.in > $@
CLEANFILES += libdcpclient/libdcpclient.pc
EXTRA_DIST += libdcpclient/libdcpclient.pc.in

dist_man_MANS += libdcpclient/man/libdcpclient.3 \
	libdcpclient/man/dcp_connect.3 libdcpclient/man/dcp_close.3 \
	libdcpclient/man/dcp_submit.3 libdcpclient/man/dcp_cancel.3 \
	libdcpclient/man/dcp_fd.3 libdcpclient/man/dcp_next.3 \
	libdcpclient/man/dcp_event_release.3 \
	libdcpclient/man/dcp_server_info.3 \
	libdcpclient/man/dcp_error_text.3 libdcpclient/man/dcp_version.3 \
	doc/man/dcp_ring.7
EXTRA_DIST += doc/ring.md

# The examples, as a user of the installed library would build them.
check_PROGRAMS += libdcpclient/examples/generate \
	libdcpclient/examples/poll_many libdcpclient/examples/reconnect
libdcpclient_examples_generate_SOURCES = libdcpclient/examples/generate.c
libdcpclient_examples_generate_CPPFLAGS = -I$(srcdir)/libdcpclient
libdcpclient_examples_generate_LDADD = libdcpclient.la
libdcpclient_examples_poll_many_SOURCES = libdcpclient/examples/poll_many.c
libdcpclient_examples_poll_many_CPPFLAGS = -I$(srcdir)/libdcpclient
libdcpclient_examples_poll_many_LDADD = libdcpclient.la
libdcpclient_examples_reconnect_SOURCES = libdcpclient/examples/reconnect.c
libdcpclient_examples_reconnect_CPPFLAGS = -I$(srcdir)/libdcpclient
libdcpclient_examples_reconnect_LDADD = libdcpclient.la

# After a compatible change of the ABI: make record-abi, and commit the file.
EXTRA_DIST += libdcpclient/libdcpclient.abi
record-abi: libdcpclient.la
	abidw --no-corpus-path --no-comp-dir-path --no-show-locs \
		--header-file $(srcdir)/libdcpclient/dcpclient.h --drop-private-types \
		--out-file $(srcdir)/libdcpclient/libdcpclient.abi \
		.libs/libdcpclient.so
.PHONY: record-abi
