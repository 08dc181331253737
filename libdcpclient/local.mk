# libdcpclient: library, header, .pc, man pages, examples, its unit tests
include_HEADERS += libdcpclient/dcpclient.h
lib_LTLIBRARIES += libdcpclient.la
libdcpclient_la_SOURCES = libdcpclient/dcp_ring.h libdcpclient/private.h \
	libdcpclient/request_check.h libdcpclient/connect.c \
	libdcpclient/submit.c libdcpclient/receive.c libdcpclient/error.c \
	libdcpclient/idset.c
libdcpclient_la_LDFLAGS = $(AM_LDFLAGS) -version-info 1:0:0 \
	-Wl,--version-script=$(srcdir)/libdcpclient/libdcpclient.map
libdcpclient_la_LIBADD = -lpthread
EXTRA_libdcpclient_la_DEPENDENCIES = libdcpclient/libdcpclient.map
EXTRA_DIST += libdcpclient/libdcpclient.map
