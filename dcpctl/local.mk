# dcpctl: a client like any other, but for `bench ipc`, which brings a server.
bin_PROGRAMS += dcpctl/dcpctl
dcpctl_dcpctl_SOURCES = dcpctl/admin.c dcpctl/bench.c dcpctl/bench_ipc.c \
	dcpctl/bench_ipc.h \
	dcpctl/chat.c dcpctl/ctl.h dcpctl/generate.c dcpctl/main.c \
	dcpctl/options.c dcpctl/request.c
dcpctl_dcpctl_CPPFLAGS = $(AM_CPPFLAGS) -DDCPD_SBINDIR='"$(sbindir)"'
dcpctl_dcpctl_LDADD = libdcpclient.la $(DCPD_LIBS)
dcpctl_dcpctl_LDFLAGS = $(PIE_FLAGS)
