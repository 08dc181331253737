libdcpd_a_SOURCES += dcpd/base/base.c dcpd/base/base.h dcpd/base/bigjson.h \
	dcpd/base/stale.h dcpd/base/thread.h
