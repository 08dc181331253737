# dcpctl
noinst_LIBRARIES += libdcpctl_tmp.a
libdcpctl_tmp_a_SOURCES = dcpctl/admin.c dcpctl/bench.c dcpctl/chat.c \
	dcpctl/ctl.h dcpctl/generate.c dcpctl/main.c dcpctl/options.c \
	dcpctl/request.c
libdcpctl_tmp_a_CPPFLAGS = $(AM_CPPFLAGS) -DDCPD_SBINDIR='"$(sbindir)"'
